"""A program gets the answers that were recorded, and nothing is sent: the same results, tree and bill, or where it begins to differ."""

import asyncio
import json
import shutil
import sys
import threading

import aiohttp
import anthropic
import httpx
import openai
import pytest
from botocore.exceptions import BotoCoreError
from msgspec import Raw
from msgspec.structs import replace

import optree
from optree._capture import FINDER, uninstrument
from optree._capture.replay import as_recorded, is_replay
from optree._cli.program import command_line
from optree._formats.plain_json import PlainJson
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_ops
from optree._tree.redacted import redacted
from optree._values import decode
from optree.errors import OptreeError
from optree.testing import capture, replay, shape
from tests.capture.calls.test_wire import CASES, COHERE_TOOLS, EVENTS, OLLAMA
from tests.capture.clients.test_aiohttp import READ, asked, gemini, gemini_reply, in_lines, value
from tests.capture.clients.test_bedrock import CALLS as BEDROCK
from tests.capture.clients.test_bedrock import client as bedrock
from tests.capture.clients.test_bedrock import converse, converse_stream
from tests.capture.conftest import record
from tests.capture.provider import Reply, events
from tests.capture.sdk_calls import CALLS, CHAT, CHAT_EVENTS, QUESTION
from tests.cli.conftest import CommandLine
from tests.otel.backends.waiting import wait_for

pytestmark = pytest.mark.usefixtures("hooked")
LIMIT = Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after-ms": "1"})


def llms(recording):
    """Return the calls of models that were recorded."""
    return [op for _, _, op in walk_ops(recording.tree) if op.kind == "llm"]


def told(recording):
    """Return what is the same each time of a recording: structure, totals but for costs (a replay has none), answers, what was thought."""
    said = [(op.name, op.status, op.error, op.response and decode(op.response.payload), op.accounting[0].tokens) for op in llms(recording)]
    free = {"cost_usd": 0.0, "upstream_inference_cost_usd": 0.0, "known_costs": 0, "unknown_costs": 0}
    return shape(recording.tree), replace(recording.tree.session.totals, **free), said


def outcome_of(call):
    """Return what a call raises, and its recording."""
    with capture() as recorded, optree.session("agent"), optree.turn(), pytest.raises(Exception) as raised:  # noqa: PT011 - it is returned
        call()
    return raised.value, recorded


@pytest.mark.parametrize(("call", "reply"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_a_call_of_a_client(provider, call, reply):
    """A client gets an answer from which its caller reads the same, whole, parsed, streamed or managed, and the tree is the same."""
    provider.says(reply)
    expected, recorded = record(lambda: call(provider.url))
    provider.says(Reply({}, status=500))
    with replay(recorded.tree):
        found, again = record(lambda: call(provider.url))
    assert (expected, 1) == (found, len(provider.requests))
    assert told(recorded) == told(again)
    assert [f"test-1:{op.path}" for op in llms(recorded)] == [op.attributes["replay.of"] for op in llms(again)]


THOUGHT = [
    {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "claude-5", "content": [],
     "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 8, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Look outside."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "weather", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"Athens"}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]  # fmt: skip
OUTPUT = [
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Look outside."}]},
    {"type": "function_call", "id": "f", "call_id": "c", "name": "weather", "arguments": '{"city": "Athens"}', "status": "completed"},
    {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": "I look.", "annotations": []}, {"type": "refusal", "refusal": "I may not."}]},
]  # fmt: skip
RESPONSE = {"id": "r-1", "object": "response", "created_at": 1, "model": "gpt-5", "parallel_tool_calls": True, "tool_choice": "auto",
            "tools": [], "usage": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 3}}}  # fmt: skip


def thought(url):
    """Have Anthropic's client put a stream together."""
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        asked = client.messages.stream(model="claude-5", max_tokens=64, messages=QUESTION)
        with asked as stream:
            return stream.get_final_message().model_dump()


def responded(url):
    """Have OpenAI's client put a stream of responses together, and take each of its events."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        asked = client.responses.stream(model="gpt-5", input="Weather?")
        with asked as stream:
            kinds = [event.type for event in stream]
            return stream.get_final_response().model_dump(), {kind for kind in kinds if "delta" in kind}


def response_events():
    """Return a stream of responses as OpenAI sends it: `responded` reads it, piece by piece."""
    said = [{"type": "response.created", "response": {**RESPONSE, "output": [], "usage": None, "status": "in_progress"}}]
    for place, item in enumerate(OUTPUT):
        where = {"output_index": place, "item_id": item["id"]}
        empty = {name: [] if name in ("summary", "content") else value for name, value in item.items()}
        said.append({"type": "response.output_item.added", "output_index": place, "item": empty})
        if "summary" in item:
            said.append(
                {"type": "response.reasoning_summary_part.added", "summary_index": 0, **where, "part": {"type": "summary_text", "text": ""}}
            )
            said.append({"type": "response.reasoning_summary_text.delta", "summary_index": 0, **where, "delta": "Look outside."})
        if "arguments" in item:
            said.append({"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]})
        for at, part in enumerate(item.get("content", ())):
            name, member = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
            said.append({"type": "response.content_part.added", "content_index": at, **where, "part": {**part, member: ""}})
            said.append({"type": f"response.{name}.delta", "content_index": at, **where, "delta": part[member], "logprobs": []})
        said.append({"type": "response.output_item.done", "output_index": place, "item": item})
    said.append({"type": "response.completed", "response": {**RESPONSE, "output": OUTPUT, "status": "completed"}})
    return events(*({**one, "sequence_number": number} for number, one in enumerate(said)), done=False, names=True)


@pytest.mark.parametrize(("call", "reply"), [(thought, events(*THOUGHT, done=False, names=True)), (responded, response_events())])
def test_a_stream_is_put_together_again(provider, call, reply):
    """Of a stream with reasoning, tool calls and several parts a client puts the same together."""
    provider.says(reply)
    expected, recorded = record(lambda: call(provider.url))
    with replay(recorded.tree):
        found, again = record(lambda: call(provider.url))
    assert expected == found
    assert told(recorded) == told(again)


def asked_by(respond, url, sent):
    """Return what asks for it: a client of httpx whose requests *respond* answers."""

    def ask():
        with httpx.Client(transport=httpx.MockTransport(respond)) as client, client.stream("POST", url, json=sent) as response:
            response.read()

    return ask


def unsent(request):
    """Fail: nothing is sent."""
    raise AssertionError(request.url)


TOOLS = "".join(f"data: {json.dumps(one)}\n\n" for one in COHERE_TOOLS)
WIRE = [pytest.param(*case.values[:4], id=case.id) for case in CASES] + [
    pytest.param("https://api.cohere.com/v2/chat", OLLAMA, EVENTS, TOOLS, id="cohere, tools")
]


@pytest.mark.parametrize(("url", "sent", "kind", "body"), WIRE)
def test_a_provider(url, sent, kind, body):
    """What comes of an answer of each interface is the same, whether it came whole or as a stream."""
    if kind == EVENTS and "google" not in url:
        sent = {**sent, "stream": True}
    answered = asked_by(lambda _: httpx.Response(200, headers={"content-type": kind}, content=body.encode()), url, sent)
    _, recorded = record(answered)
    with replay(recorded.tree):
        _, again = record(asked_by(unsent, url, sent))
    assert told(recorded) == told(again)


def test_any_order():
    """Requests get the answers that the same ones got, also where they come in another order, and where two are the same."""
    numbers = iter(range(10))

    def respond(request):
        asked = json.loads(request.content)["messages"][0]["content"]
        answer = {"index": 0, "message": {"role": "assistant", "content": f"{asked} {next(numbers)}"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"object": "chat.completion", "model": "m", "choices": [answer]})

    def ask_all(questions, respond):
        async def one(client, question):
            body = {"model": "m", "messages": [{"role": "user", "content": question}]}
            found = await client.post("http://llm.example/v1/chat/completions", json=body)
            return found.json()["choices"][0]["message"]["content"]

        async def all_at_once():
            async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
                return await asyncio.gather(*(one(client, question) for question in questions))

        return asyncio.run(all_at_once())

    first, recorded = record(lambda: ask_all(["a", "b", "a", "c"], respond))
    with replay(recorded.tree):
        found, _ = record(lambda: ask_all(["c", "a", "b", "a"], unsent))
    assert [first[3], first[0], first[1], first[2]] == found


def chat(client, content, **more):
    """Ask OpenAI's chat."""
    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": content}], **more}
    return client.chat.completions.create(**asked).choices[0].message.content


def refused(ask):
    """Return what a client says of a request that is refused."""
    with pytest.raises(openai.BadRequestError) as raised:
        ask()
    return raised.value.body["message"]


@pytest.fixture
def client(provider):
    """Return a client of OpenAI's as its documentation makes it."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
        yield client


@pytest.mark.parametrize(
    ("content", "more", "where"),
    [
        ("Snow?", {}, 'messages[0].content is "Snow?", not "Weather?"'),
        ("Weather?", {"temperature": 1}, "temperature is 1, not null"),
        ("Weather?", {"model": "gpt-6"}, 'model is "gpt-6", not "gpt-5"'),
    ],
)
def test_a_request_that_differs(provider, client, content, more, where):
    """A request that was not recorded is not sent: its client raises where it differs, once, and so does the end of the replay."""
    provider.says(CHAT)
    _, recorded = record(lambda: chat(client, "Weather?"))
    with pytest.raises(AssertionError) as raised, replay(recorded.tree):
        said, again = record(lambda: refused(lambda: chat(client, content, **more)))
    assert f"optree replay: not as recorded at 1.1 of test-1: {where}" == said
    assert f"1.1: not as recorded at 1.1 of test-1: {where}; 1.1 of test-1 was not asked for" == str(raised.value)
    [op] = llms(again)
    assert ("failed", f"not as recorded at 1.1 of test-1: {where}") == (op.status, op.attributes["replay.difference"])
    assert 1 == len(provider.requests)


def test_more_calls_than_were_recorded(provider, client):
    """An answer is given once."""
    provider.says(CHAT)
    _, recorded = record(lambda: chat(client, "Weather?"))
    with pytest.raises(AssertionError, match=r"1\.2: session test-1 has no more calls of a model"), replay(recorded.tree):
        record(lambda: refused(lambda: [chat(client, "Weather?") for _ in range(2)]))


def test_a_call_that_failed(provider, client):
    """A call that was refused when it was recorded is refused again, with its status, and its client does not try again."""
    provider.says(LIMIT)
    with capture() as recorded, optree.session("agent"), optree.turn(), pytest.raises(openai.RateLimitError) as expected:
        chat(client, "Weather?")
    assert 3 == len(provider.requests)
    with replay(recorded.tree), pytest.raises(openai.RateLimitError) as found:
        record(lambda: chat(client, "Weather?"))
    assert "slow down" in str(expected.value)
    assert "slow down" in str(found.value)
    assert 3 == len(provider.requests)


def test_a_call_that_was_cancelled(provider):
    """A call that the program cancelled before anything of its answer came has none to be given."""
    hold = threading.Event()
    provider.says(Reply(b"", CHAT.pieces[0], hold=hold))

    async def ask():
        async with httpx.AsyncClient() as asking:
            return await asking.post(f"{provider.url}/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION})

    async def cancel():
        task = asyncio.ensure_future(ask())
        await asyncio.to_thread(wait_for, lambda: provider.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        _, recorded = record(lambda: asyncio.run(cancel()))
    finally:
        hold.set()
    with pytest.raises(AssertionError, match=r"the call at 1\.1 of test-1 was broken off when it was recorded"), replay(recorded.tree):
        record(lambda: asyncio.run(ask()).status_code)
    assert ["cancelled"] == [one.status for one in llms(recorded)]


def test_an_op_of_the_programs_own(provider, client):
    """A call within an op of the program's is compared by the request that is recorded there, be it the program's or the client's."""

    def ask():
        with optree.llm(provider="openai", model="gpt-5") as op:
            op.request({"question": "as the program says it"})
            said = chat(client, "Weather?")
        with optree.llm(provider="openai", model="gpt-5"):
            return said, chat(client, "Snow?")

    provider.says(CHAT)
    expected, recorded = record(ask)
    with replay(recorded.tree):
        found, again = record(ask)
    assert (expected, 2) == (found, len(provider.requests))
    assert told(recorded) == told(again)


PAID = Reply(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "cost": 0.25},
    }
)  # fmt: skip


def test_what_is_replayed_costs_nothing(provider, client):
    """A replay costs nothing in the tree and in a budget, and says what the recorded answer had cost, whoever accounts for it."""

    def ask():
        with optree.budget(usd=5.0) as budget:
            chat(client, "Weather?")
            with optree.llm(provider="openai", model="gpt-5") as op:
                chat(client, "Snow?")
                op.account(input_tokens=12, output_tokens=5, cost_usd=0.5)
            with optree.llm(provider="openai", model="gpt-5"):
                chat(client, "Hail?")
        return budget.used["usd"], budget.used["tokens"], budget.unknown_cost

    provider.says(PAID)
    expected, recorded = record(ask)
    with replay(recorded.tree):
        found, again = record(ask)
    assert ((1.0, 51, 0), (0.0, 51, 0)) == (expected, found)
    before, after = recorded.tree.session.totals, again.tree.session.totals
    assert (replace(before, cost_usd=0.0), 1.0) == (after, before.cost_usd)
    assert [(f"test-1:1.{at}", f"test-1:1.{at}", cost) for at, cost in ((1, 0.25), (2, 0.5), (3, 0.25))] == [
        (op.attributes["replay.of"], op.accounting[0].replay_of, op.attributes["replay.cost_usd"]) for op in llms(again)
    ]


def test_a_replay_as_if_it_were_recorded(provider, client):
    """Made a recording of its own, a replay costs what the answers had cost, and names neither the other session nor this machine."""
    provider.says(PAID)
    _, recorded = record(lambda: chat(client, "Weather?"))
    with replay(recorded.tree):
        _, again = record(lambda: chat(client, "Weather?"))
    assert (True, True) == (is_replay(again.tree), "ingress" in again.tree.session.attributes)
    tree = as_recorded(again.tree)
    [op] = llms(again)
    assert (False, {}, [(0.25, None)]) == (
        is_replay(tree), tree.session.attributes, [(entry.cost_usd, entry.replay_of) for entry in op.accounting],
    )  # fmt: skip
    assert (recorded.tree.session.totals, 0.25) == (tree.session.totals, tree.session.totals.cost_usd)
    assert "replay.cost_usd" not in op.attributes


def test_an_answer_that_cannot_be_read(provider, client):
    """Where what was recorded is damaged the client is refused, and nothing is sent."""
    provider.says(CHAT)
    _, recorded = record(lambda: chat(client, "Weather?"))
    [op] = llms(recorded)
    op.response.payload = Raw(b"{")
    with pytest.raises(AssertionError, match=r"1\.1: what is recorded cannot be given: DecodeError"), replay(recorded.tree):
        said, _ = record(lambda: refused(lambda: chat(client, "Weather?")))
    assert (True, 1) == (said.startswith("optree replay: what is recorded cannot be given: DecodeError: "), len(provider.requests))


def test_what_several_attempts_had_cost(provider, client):
    """A replay says what all that a program accounted for within one call had cost."""

    def ask():
        with optree.llm(provider="openai", model="gpt-5") as op:
            chat(client, "Weather?")
            op.account(status="failed", cost_usd=0.25)
            op.account(cost_usd=0.5)

    provider.says(CHAT)
    _, recorded = record(ask)
    with replay(recorded.tree):
        _, again = record(ask)
    [op] = llms(again)
    assert (0.75, [0.0, 0.0]) == (op.attributes["replay.cost_usd"], [entry.cost_usd for entry in op.accounting])
    totals = as_recorded(again.tree).session.totals
    assert (0.75, 2, 0) == (totals.cost_usd, totals.known_costs, totals.unknown_costs)


@pytest.mark.parametrize("cost", [0.0, None])
def test_what_a_free_call_had_cost(provider, client, cost):
    """Nothing is not the same as unknown."""

    def ask():
        with optree.llm(provider="openai", model="gpt-5") as op:
            chat(client, "Weather?")
            op.account(cost_usd=cost)

    provider.says(CHAT)
    _, recorded = record(ask)
    with replay(recorded.tree):
        _, again = record(ask)
    assert cost == llms(again)[0].attributes.get("replay.cost_usd")
    as_recorded(again.tree)
    assert [cost] == [entry.cost_usd for entry in llms(again)[0].accounting]


def test_an_answer_that_was_recorded_in_part(provider, client):
    """An answer of which only some was recorded is not given for the whole."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "a " * 600_000}, "finish_reason": "stop"}
    provider.says(Reply({**json.loads(CHAT.pieces[0]), "choices": [choice]}))
    _, recorded = record(lambda: chat(client, "Weather?"))
    expected = "the answer at 1.1 of test-1 was too long to be recorded whole"
    with pytest.raises(AssertionError, match=f"1.1: {expected}"), replay(recorded.tree):
        said, _ = record(lambda: refused(lambda: chat(client, "Weather?")))
    assert (f"optree replay: {expected}", 1) == (said, len(provider.requests))


def test_a_fork(provider, client):
    """Up to an op the answers are those that were recorded; from there on requests are sent, be they the same or others."""
    provider.says(CHAT)
    _, recorded = record(lambda: [chat(client, content) for content in ("one", "two", "three")])
    provider.says(Reply({**json.loads(CHAT.pieces[0]), "choices": [{"index": 0, "message": {"role": "assistant", "content": "It snows"}}]}))
    with replay(recorded.tree, at="1.3"):
        found, again = record(lambda: [chat(client, content) for content in ("one", "two", "three", "four")])
    assert (["It rains", "It rains", "It snows", "It snows"], 5) == (found, len(provider.requests))
    assert ["test-1:1.1", "test-1:1.2", None, None] == [op.attributes.get("replay.of") for op in llms(again)]


def test_a_fork_that_leaves_its_way(provider, client):
    """A request that was not recorded ahead of the fork is sent, which is said."""
    provider.says(CHAT)
    _, recorded = record(lambda: [chat(client, content) for content in ("one", "two")])
    with pytest.raises(AssertionError, match=r"1\.1 of test-1 was not asked for"), replay(recorded.tree, at="1.2"):
        _, again = record(lambda: chat(client, "other"))
    [op] = llms(again)
    assert ["sent, though 1.1 of test-1, ahead of the fork, was not asked for yet"] == [line.message for line in op.logs]


def test_a_fork_at_no_op(provider, client):
    """A fork at an op that is not there is refused."""
    provider.says(CHAT)
    _, recorded = record(lambda: chat(client, "one"))
    with pytest.raises(OptreeError, match=r"session test-1 has no op 2\.1"), replay(recorded.tree, at="2.1"):
        pass


@pytest.mark.parametrize("read", READ, ids=[read.__name__ for read in READ])
def test_a_call_through_aiohttp(provider, read):
    """A program reads the recorded answer in each way, though nothing is sent; the tree is the same."""
    provider.says(CHAT)
    expected, recorded = record(lambda: asked(read, provider.url))
    with replay(recorded.tree):
        found, again = record(lambda: asked(read, provider.url))
    assert ([type(expected)], 1) == ([type(found)], len(provider.requests))
    assert told(recorded) == told(again)


def test_a_stream_through_aiohttp(provider):
    """A stream is given as one, whose events add up to the answer; a large one too."""
    provider.says(CHAT_EVENTS)
    sent = {"json": {"model": "gpt-5", "messages": QUESTION, "stream": True}}
    _, recorded = record(lambda: asked(in_lines, provider.url, **sent))
    with replay(recorded.tree):
        found, again = record(lambda: asked(in_lines, provider.url, **sent))
    assert b"data: [DONE]\n" in found
    assert told(recorded) == told(again)


def test_a_large_answer_through_aiohttp(provider):
    """An answer that is larger than what a connection holds is given whole."""
    said = "It rains. " * 50_000
    provider.says(Reply({"object": "chat.completion", "model": "m", "choices": [{"message": {"role": "assistant", "content": said}}]}))
    expected, recorded = record(lambda: asked(value, provider.url))
    with replay(recorded.tree):
        found, _ = record(lambda: asked(value, provider.url))
    assert (said, expected) == (found["choices"][0]["message"]["content"], found)


@pytest.mark.parametrize("status", [429, 529])
def test_a_refusal_through_aiohttp(provider, status):
    """A call that was refused is refused again with its status, as the session wants that; so is one that was not recorded, with 400."""
    provider.says(Reply({"error": {"message": "slow down"}}, status=status))
    options = {"session": {"raise_for_status": True}}
    expected, recorded = outcome_of(lambda: asked(value, provider.url, **options))
    with replay(recorded.tree):
        found, _ = outcome_of(lambda: asked(value, provider.url, **options))
    assert (status, status) == (expected.status, found.status)
    with pytest.raises(AssertionError, match='model is "gpt-6", not "gpt-5"'), replay(recorded.tree):
        missed, _ = outcome_of(lambda: asked(value, provider.url, json={"model": "gpt-6", "messages": QUESTION}, **options))
    assert (aiohttp.ClientResponseError, 400, 1) == (type(missed), missed.status, len(provider.requests))


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # what aiohttp says of Gemini's client
@pytest.mark.parametrize("streamed", [False, True])
def test_geminis_asynchronous_client(provider, streamed):
    """Gemini's client, which sends through aiohttp, gets the recorded answer, whole or as a stream."""
    provider.says(gemini_reply(streamed=streamed))
    expected, recorded = record(lambda: asyncio.run(gemini(provider.url, streamed=streamed)))
    with replay(recorded.tree):
        found, again = record(lambda: asyncio.run(gemini(provider.url, streamed=streamed)))
    assert ("It rains", "It rains", 1) == (expected, found, len(provider.requests))
    assert told(recorded) == told(again)


@pytest.mark.parametrize(("call", "reply"), BEDROCK, ids=[call.__name__ for call, _ in BEDROCK])
def test_a_call_through_botocore(provider, call, reply):
    """A program gets the recorded answer of Bedrock in each way, whole or as events that add up to it; nothing is sent."""
    provider.says(reply)
    expected, recorded = record(lambda: call(provider.url))
    with replay(recorded.tree):
        found, again = record(lambda: call(provider.url))
    assert ([type(expected)], 1) == ([type(found)], len(provider.requests))
    assert told(recorded) == told(again)


def test_a_refusal_through_botocore(provider):
    """A call that was refused raises the same again; one that was not recorded raises that it is none."""
    provider.says(Reply({"message": "slow down"}, status=429, headers={"x-amzn-errortype": "ThrottlingException"}))
    expected, recorded = outcome_of(lambda: converse(provider.url))
    with replay(recorded.tree):
        found, _ = outcome_of(lambda: converse(provider.url))
    assert (type(expected), str(expected), 429) == (type(found), str(found), found.response["ResponseMetadata"]["HTTPStatusCode"])
    with pytest.raises(AssertionError, match="not as recorded"), replay(recorded.tree):
        missed, _ = outcome_of(lambda: converse_stream(provider.url))
    assert ("ValidationException", 1) == (missed.response["Error"]["Code"], len(provider.requests))


def through_openai(url, timeout):
    """Ask by OpenAI's client, once."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=timeout) as client:
        return chat(client, "Weather?")


def through_aiohttp(url, timeout):
    """Ask by aiohttp."""
    return asked(value, url, session={"timeout": aiohttp.ClientTimeout(sock_read=timeout)})


def through_botocore(url, timeout):
    """Ask by botocore."""
    bedrock(url, read_timeout=timeout).converse(modelId="m", messages=[{"role": "user", "content": [{"text": "Weather?"}]}])


@pytest.mark.parametrize("ask", [through_openai, through_aiohttp, through_botocore])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_call_that_got_no_answer(provider, ask, hangs):
    """One that found no server, or waited too long, ends by such an exception of its client's again, and with the same class."""
    held = threading.Event()
    provider.says(Reply(b"{", b"}", hold=held))
    url = provider.url if hangs else "http://127.0.0.1:9"
    try:
        before, recorded = outcome_of(lambda: ask(url, 0.2))
    finally:
        held.set()
    with replay(recorded.tree):
        after, again = outcome_of(lambda: ask(url, 0.2))
    [first], [second] = llms(recorded), llms(again)
    kinds = {
        through_openai: openai.APIConnectionError,
        through_aiohttp: (aiohttp.ClientError, TimeoutError),
        through_botocore: BotoCoreError,
    }
    assert isinstance(before, kinds[ask])
    assert isinstance(after, kinds[ask])
    assert first.attributes["error.type"] == second.attributes["error.type"] == ("timeout" if hangs else "network")


def test_a_recording_without_credentials(provider, client, tmp_path):
    """A file that was exported, which has no credentials, has the answers of requests that have them."""
    asked = ["deploy with password=correct-horse-battery", "log in with sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFy"]
    provider.says(CHAT)
    _, recorded = record(lambda: [chat(client, content) for content in asked])
    tree, is_changed = redacted(recorded.tree)
    [path] = PlainJson().write(tree, tmp_path / "monday.json")
    with replay(path):
        found, _ = record(lambda: [chat(client, content) for content in asked])
    assert (["It rains", "It rains"], True) == (found, is_changed)
    assert "correct-horse" not in path.read_text()
    with pytest.raises(AssertionError) as raised, replay(path):
        record(lambda: refused(lambda: chat(client, "deploy with password=correct-horse-battery now")))
    assert "correct-horse" not in str(raised.value)


def test_hooks_are_there_for_the_block():
    """Where the program has put no hooks in, they are there for the block only."""
    uninstrument()
    _, recorded = record(lambda: None)
    with replay(recorded.tree):
        assert FINDER in sys.meta_path
    assert FINDER not in sys.meta_path


AGENT = """
import sys
import openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
messages = [{"role": "user", "content": "Weather?"}]
for question in sys.argv[2:]:
    messages.append(client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message)
    messages.append({"role": "user", "content": question})
    print(messages[-2].content)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory, server):
    """Return the folder of a command line with a program that was recorded."""
    line = CommandLine(tmp_path_factory.mktemp("ran"))
    (line.folder / "agent.py").write_text(AGENT)
    server.says(CHAT)
    line("run", "--auto", "--", sys.executable, "agent.py", server.url, "Athens?", "Rome?")
    return line.folder


@pytest.fixture
def line(ran, tmp_path, provider):
    """Return a command line with that program and its session, and a provider that was asked nothing since."""
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    line = CommandLine(tmp_path)
    (line.folder / "agent.py").write_text(AGENT)
    provider.says(CHAT)
    return line


def test_replay_of_a_program(line, provider):
    """`optree replay` runs a program that does not know optree with a session's answers, to the same results, as a session of its own."""
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", provider.url, "Athens?", "Rome?")
    assert ("It rains\nIt rains\n", []) == (run.stdout, provider.requests)
    assert f"optree: 2 of 2 calls of models were answered as in {txn}\n" in run.stderr
    [other] = set(line.txns()) - {txn}
    before, after = (load(one, Directory.of(line.base)).session for one in (txn, other))
    assert (2, 0) == (before.totals.unknown_costs, after.totals.unknown_costs)
    assert before.totals == replace(after.totals, unknown_costs=2, known_costs=0)
    assert "2 calls got a recorded answer (optree replay, optree fork), and cost nothing" in line("cost", other).stdout
    lines = [json.loads(one) for one in Directory.of(line.base).billing.read_text().splitlines()]
    assert [None, None, f"{txn}:1.1", f"{txn}:2.1"] == [one.get("replayOf") for one in lines]


def test_replay_of_a_program_that_was_changed(line, provider):
    """Its first request that differs is said, with what was not asked for, and the exit code is not 0."""
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", provider.url, "Berlin?", "Rome?", code=1)
    assert ("It rains\n", []) == (run.stdout, provider.requests)
    said = [one for one in run.stderr.splitlines() if one.startswith("optree: 1 of 2")]
    expected = f'1 differ, the first at 2.1: not as recorded at 2.1 of {txn}: messages[2].content is "Berlin?", not "Athens?"'
    assert [f"optree: 1 of 2 calls of models were answered as in {txn}; not asked for: 2.1; {expected}"] == said
    [other] = set(line.txns()) - {txn}
    command = command_line([sys.executable, "agent.py", provider.url, "Berlin?", "Rome?"])
    assert run.stderr.endswith(
        f"optree: what changed: optree diff {txn} {other}\n"
        f"optree: with new answers from there on, if it is to change: optree fork {txn} --at 2.1 -- {command}\n"
    )
    assert "go on with" not in run.stderr


def test_fork_of_a_program(line, provider):
    """`optree fork` asks the provider from an op on."""
    [txn] = line.txns()
    run = line("fork", txn, "--at", "2.1", "--", sys.executable, "agent.py", provider.url, "Athens?", "Rome?")
    assert ("It rains\nIt rains\n", 1) == (run.stdout, len(provider.requests))
    assert f"optree: 1 of 1 calls of models were answered as in {txn}; 1 were asked\n" in run.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("replay", "last"), 2, "it needs a program"),
        (("replay", "nosuch", "--", "true"), 1, "nosuch"),
        (("fork", "last", "--at", "9.1", "--", "true"), 1, "has no op 9.1"),
        (("fork", "last", "--", "true"), 2, "--at"),
    ],
)
def test_what_cannot_be_replayed(line, command, code, said):
    """The program is not started without a session, a program, or an op to fork at."""
    assert said in line.read(*command, code=code).stderr


def test_a_replay_while_optree_is_switched_off(line):
    """A program that would ask its provider is not started."""
    line.env["OPTREE_DISABLED"] = "1"
    assert "OPTREE_DISABLED switches optree off" in line("replay", "last", "--", "true", code=2).stderr


AIOHTTP = """
import asyncio
import sys

import aiohttp


async def ask(session, question):
    sent = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
    async with session.post(sys.argv[1] + "/v1/chat/completions", json=sent) as response:
        await response.json()


async def main():
    async with aiohttp.ClientSession() as session:
        for question in ("Weather?", "Snow?"):
            await ask(session, question)


asyncio.run(main())
"""


def test_replay_of_a_program_on_aiohttp(tmp_path, provider):
    """Its calls get the recorded answers, and nothing is sent."""
    line = CommandLine(tmp_path)
    line.agent.write_text(AIOHTTP)
    provider.says(CHAT)
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url)
    [txn] = line.txns()
    run = line("replay", "last", "--", sys.executable, "agent.py", provider.url)
    expected = f"optree: 2 of 2 calls of models were answered as in {txn}\n"
    assert (True, 2) == (expected in run.stderr, len(provider.requests)), run.stderr


@pytest.mark.parametrize(
    "odd", [{"attributes": [1]}, {"request": {"payload": {"messages": {"$history": "x", "count": "y"}}, "size": 1, "kind": "messages"}}]
)
def test_a_recording_with_members_of_other_types(line, provider, odd):
    """Where an op's members in a file are of other types than optree's, the program's requests are refused as those that differ."""
    file = line.folder / "odd.json"
    line.read("export", "last", "--to", "json", "-o", file)
    document = json.loads(file.read_text())
    for turn in document["session"]["turns"]:
        turn["ops"][0] |= odd
    file.write_text(json.dumps(document))
    run = line("replay", "odd.json", "--", sys.executable, "agent.py", provider.url, "Athens?", "Rome?", code=1)
    assert [] == provider.requests
    assert "openai.BadRequestError: Error code: 400 - optree replay: not as recorded at 1.1" in run.stderr
    assert "optree: 0 of 2 calls of models were answered" in run.stderr


EMBEDDING = """
import sys
import httpx

asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "Weather?"}]}
httpx.post(sys.argv[1] + "/v1/embeddings", json={"model": "e", "input": "x"})
httpx.post(sys.argv[1] + "/v1/embeddings", json={"model": "e", "input": "y"})
httpx.post(sys.argv[1] + "/v1/chat/completions", json=asked)
"""


def test_what_asks_no_model_is_sent(tmp_path, provider):
    """Embeddings are sent in a replay too, which is said, once; where nothing is replayed nothing is said of them."""
    line = CommandLine(tmp_path)
    line.agent.write_text(EMBEDDING)
    provider.says(CHAT)
    command = [sys.executable, "agent.py", provider.url]
    said = "a request to /v1/embeddings asks no model: it is sent, in a replay too\n"
    assert 0 == line("run", "--auto", "--", *command).stderr.count(said)
    run = line("replay", "last", "--", *command)
    assert (1, 3 + 2) == (run.stderr.count(said), len(provider.requests))
    assert "1 of 1 calls of models were answered" in run.stderr
