"""Calls of models through OpenAI's and Anthropic's clients are recorded, whole and once, with nothing told by the program."""

import asyncio
import gc
import json
import sys
import threading
import weakref

import anthropic
import httpx
import httpx2
import openai
import pytest

import optree
from optree._capture import FINDER, instrument, uninstrument
from optree._capture.clients.httpx import _sending
from optree._nodes import Tokens
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.testing import capture
from tests.capture.provider import Provider, Reply, events
from tests.capture.sdk_calls import CALLS, CHAT, CHAT_EVENTS, CHAT_TOOL, MESSAGE_EVENTS, QUESTION, RESPONSE_EVENTS, chat, chat_stream

REFUSED = Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after-ms": "1", "x-should-retry": "true"})


@pytest.fixture
def client(provider):
    """Return a client of OpenAI's that sends nothing again by itself."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ops_of(recording):
    """Return the ops that were recorded."""
    return [op for _, _, op in walk_ops(recording.tree)]


def only_op(recording):
    """Return the only one."""
    [op] = ops_of(recording)
    return op


@pytest.mark.captured(
    "openai", "chat, responses, completions", "plain", "streamed", "parsed", added="one line", checks=("calls", "answers", "tokens")
)
@pytest.mark.captured("anthropic", "messages", "plain", "streamed", added="one line", checks=("calls", "answers", "tokens"))
@pytest.mark.parametrize(("call", "reply"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_a_call_is_an_op(recording, provider, call, reply):
    """A call is one op with its model, its answer and its tokens, each counted once; the program gets what it would get."""
    provider.says(reply)
    with optree.session("agent") as session, optree.turn(user="Weather?"):
        assert "It rains" == call(provider.url)
    op = only_op(recording)
    maker = "anthropic" if call.__name__.startswith("message") else "openai"
    model = "claude-5" if maker == "anthropic" else "gpt-5"
    assert ("llm", f"{maker}-compatible:{model}", "ok") == (op.kind, op.name, op.status)
    [entry] = op.accounting
    reasoning = 0 if maker == "anthropic" else 3
    assert Tokens(8, 5, 4, 0, 17, reasoning) == entry.tokens
    assert (1, 1) == (session.totals.llm_requests, len(provider.requests))
    assert b"It rains" in bytes(op.response.payload)
    assert not op.response.partial


def test_the_request_is_recorded(recording, provider):
    """An op has the messages and the parameters of its request, the provider's id of the answer, and the server that it went to."""
    provider.says(CHAT)
    with optree.session("agent"), optree.turn():
        chat(provider.url)
    op = only_op(recording)
    assert {"messages": QUESTION, "temperature": 0} == recording.tree.pool.resolve(decode(op.request.payload))
    assert ("req-1", "127.0.0.1", "gpt-5") == tuple(op.attributes[name] for name in ("request_id", "server.address", "model"))
    assert "gpt-5-2026" == op.accounting[0].actual_model


@pytest.mark.captured("openai", "chat", "retries", added="one line", checks="calls")
def test_attempts_are_one_op(recording, provider, client):
    """What a client sends again after a refusal is one op and one call, with an entry that cost nothing and a log line for each attempt."""
    provider.says(REFUSED, REFUSED, CHAT)
    client = client.with_options(max_retries=2)
    with optree.session("agent"), optree.turn():
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    op = only_op(recording)
    assert [("failed", True, 0.0), ("failed", True, 0.0), ("ok", False, None)] == [
        (entry.status, entry.retried, entry.cost_usd) for entry in op.accounting
    ]
    totals = recording.tree.session.totals
    assert (1, 0, 1) == (totals.llm_requests, totals.llm_failed, totals.unknown_costs)
    said = "failed: 429 Too Many Requests: slow down"
    assert [("WRN", f"attempt 1 {said}"), ("WRN", f"attempt 2 {said}")] == [(log.severity, log.message) for log in op.logs]
    assert ("ok", 200) == (op.status, op.attributes["http.response.status_code"])


@pytest.mark.captured("openai", "chat", "retries", "failed", added="one line", checks="calls")
def test_a_call_that_is_refused_for_good_failed(recording, provider, client):
    """The op of a call whose last attempt was refused is failed, with the exception that the program gets; nothing is counted twice."""
    provider.says(REFUSED)
    client = client.with_options(max_retries=1)
    with optree.session("agent"), optree.turn(), pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    op = only_op(recording)
    assert ("failed", [True, False]) == (op.status, [entry.retried for entry in op.accounting])
    totals = recording.tree.session.totals
    assert (1, 1, 0) == (totals.llm_requests, totals.llm_failed, totals.unknown_costs)
    assert "RateLimitError" in op.error
    assert "slow down" in op.error


def test_a_call_that_finds_no_server_failed(recording):
    """A request that nobody answers is an attempt that failed, and the program gets the client's exception."""
    provider = Provider()
    provider.close()
    with optree.session("agent"), optree.turn(), pytest.raises(openai.APIConnectionError):
        chat(provider.url)
    op = only_op(recording)
    assert ("failed", [("failed", 0.0)]) == (op.status, [(entry.status, entry.cost_usd) for entry in op.accounting])
    assert "ConnectError" in op.logs[0].message


def test_a_call_within_an_op_of_the_programs_joins_it(recording, provider):
    """Where the program has an llm op open, the call is that op, with what the program leaves unsaid."""
    provider.says(CHAT)
    with optree.session("agent"), optree.turn(), optree.llm("planner"):
        chat(provider.url)
    op = only_op(recording)
    assert ("planner", Tokens(8, 5, 4, 0, 17, 3)) == (op.name, op.accounting[0].tokens)
    assert b"It rains" in bytes(op.response.payload)


def test_what_a_joined_calls_price_depends_on_is_kept(recording, provider):
    """The op of the program's has the tier that its call was answered in, and the tools that the provider ran: they have their price."""
    provider.says(
        Reply(
            {
                "object": "response", "id": "r", "model": "gpt-5", "service_tier": "flex",
                "output": [{"type": "web_search_call", "id": "ws"}, {"type": "message", "role": "assistant", "content": []}],
                "usage": {"input_tokens": 12, "output_tokens": 5},
            }
        )
    )  # fmt: skip
    with optree.session("agent"), optree.turn(), optree.llm("planner"):
        httpx.post(f"{provider.url}/v1/responses", json={"model": "gpt-5", "input": "Weather?"})
    [entry] = only_op(recording).accounting
    assert Tokens(12, 5, 0, 0, 17) == entry.tokens
    assert {"service_tier": "flex", "server_tool_calls": {"web_search_call": 1}} == decode(entry.details)


def test_switched_off_nothing_is_recorded(recording, provider):
    """While optree is switched off a call passes as it is: there is no op of it, in an open session or outside of one."""
    provider.says(CHAT, CHAT)
    optree.configure(enabled=False)
    assert "It rains" == chat(provider.url)
    optree.configure(enabled=True)
    with optree.session("agent"):
        optree.configure(enabled=False)
        assert "It rains" == chat(provider.url)
    assert (2, ["agent"], []) == (len(provider.requests), [one.agent for one in recording.sessions], ops_of(recording))


def test_a_call_that_is_open_goes_on_when_it_is_switched_off(recording, provider):
    """A call that began while optree was on has its later attempts and its answer; so has an op of the program's that is open."""
    provider.says(REFUSED, CHAT, CHAT)
    http = openai.DefaultHttpxClient(event_hooks={"response": [lambda _response: optree.configure(enabled=False)]})
    asked = {"model": "gpt-5", "messages": QUESTION}
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=1, http_client=http) as client, optree.session("agent"):
        client.chat.completions.create(**asked)
        optree.configure(enabled=True)
        with optree.llm("mine"):
            optree.configure(enabled=False)
            client.chat.completions.create(**asked)
    first, mine = ops_of(recording)
    assert ["failed", "ok"] == [entry.status for entry in first.accounting]
    assert [(True, "ok"), (True, "ok")] == [(b"It rains" in bytes(op.response.payload), op.status) for op in (first, mine)]


@pytest.mark.usefixtures("hooked")
def test_a_call_keeps_no_session_alive(provider):
    """The tree of a session that has ended is freed, though a call was made within an op of its program's."""
    provider.says(CHAT)

    def record():
        with capture(), optree.session("agent") as session, optree.turn(), optree.llm("planner"):
            chat(provider.url)
        return weakref.ref(session.builder.core)

    kept = record()
    gc.collect()
    assert kept() is None


def test_what_the_program_accounts_for_is_not_counted_twice(recording, provider):
    """Of a call in the program's own op, what the program says stands, once: answer and tokens."""
    provider.says(CHAT)
    with optree.session("agent") as session, optree.turn(), optree.llm(provider="openai", model="gpt-5") as op:
        op.request(messages=[{"role": "user", "content": "in my words"}])
        chat(provider.url)
        op.account(input_tokens=100, output_tokens=1)
        op.response("mine")
    found = only_op(recording)
    assert (1, 100, "mine") == (session.totals.llm_requests, session.totals.input_tokens, decode(found.response.payload))
    [sent] = recording.tree.pool.resolve(decode(found.request.payload))["messages"]
    assert "in my words" == sent["content"]


def test_a_decorated_call_is_one_op(recording, provider, client):
    """A function that `@optree.llm` decorates and that calls a client is one op, counted once."""
    provider.says(CHAT)

    @optree.llm
    def ask(messages):
        return client.chat.completions.create(model="gpt-5", messages=messages)

    with optree.session("agent") as session, optree.turn():
        ask(QUESTION)
    assert (1, Tokens(8, 5, 4, 0, 17, 3)) == (session.totals.llm_requests, only_op(recording).accounting[0].tokens)


def test_two_calls_in_one_op_of_the_programs(recording, provider):
    """A second call in the program's op, after the first was answered, is an op of its own below it."""
    provider.says(CHAT)
    with optree.session("agent") as session, optree.turn(), optree.llm("planner"):
        chat(provider.url)
        chat(provider.url)
    assert 2 == session.totals.llm_requests
    assert ["planner", "openai-compatible:gpt-5"] == [op.name for op in ops_of(recording)]


def test_a_bare_decorator_has_the_model_that_is_asked(recording, provider, client):
    """An op of the program's that names no model has the one of its request, and its provider: by these it has its price."""
    provider.says(CHAT)

    @optree.llm
    def ask(messages):
        return client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content

    with optree.session("agent"), optree.turn():
        ask(QUESTION)
    op = only_op(recording)
    [entry] = op.accounting
    assert ("openai-compatible", "gpt-5") == (op.attributes["provider"], op.attributes["model"]) == (entry.provider, entry.model)


def answer_of(number):
    """Return an answer of chat with tokens of its own; OpenAI's example has others."""
    usage = {"prompt_tokens": 100 * number, "completion_tokens": number, "total_tokens": 101 * number}
    return Reply({**json.loads(CHAT.pieces[0]), "usage": usage})


BLOCKS = {
    "usage": lambda op, answers: [op.account(answer.usage) for answer in answers],
    "answer": lambda op, answers: [op.account(answer) for answer in answers],
    "figures": lambda op, answers: [
        op.account(input_tokens=answer.usage.prompt_tokens, output_tokens=answer.usage.completion_tokens) for answer in answers
    ],
    "backwards": lambda op, answers: [op.account(answer.usage) for answer in reversed(answers)],
    "the last": lambda op, answers: op.account(answers[-1].usage),
    "the first": lambda op, answers: op.account(answers[0].usage),
    "none": lambda _op, _answers: None,
}


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("how", BLOCKS)
def test_the_program_accounts_for_several_calls_in_one_op(how, alike, recording, provider, client):
    """Each call counts once, whichever of them the program accounts for: what has an op of its own is not entered a second time."""
    with optree.session("agent") as session, optree.turn(), optree.llm("planner") as op:
        answers = []
        for number in (3, 1, 2):
            provider.says(answer_of(2 if alike else number))
            answers.append(client.chat.completions.create(model="gpt-5", messages=QUESTION))
        BLOCKS[how](op, answers)
    assert (3, 600, 6) == (session.totals.llm_requests, session.totals.input_tokens, session.totals.output_tokens)
    assert [1, 1, 1] == [len(op.accounting) for op in ops_of(recording)]


@pytest.mark.parametrize("returned", [-1, 0])
def test_a_decorated_function_that_asks_again(returned, recording, provider, client):
    """Each of its calls counts once, whichever answer it returns."""

    @optree.llm(provider="openai", model="gpt-5")
    def ask(messages):
        answers = []
        for number in (5, 1):
            provider.says(answer_of(number))
            answers.append(client.chat.completions.create(model="gpt-5", messages=messages))
        return answers[returned]

    with optree.session("agent") as session, optree.turn():
        ask(QUESTION)
    assert (2, 600, 6) == (session.totals.llm_requests, session.totals.input_tokens, session.totals.output_tokens)
    assert [1, 1] == [len(op.accounting) for op in ops_of(recording)]


def test_the_cost_that_the_program_gives_of_a_second_call(recording, provider, client):
    """It is the cost of that call's own op."""
    with optree.session("agent") as session, optree.turn(), optree.llm("planner") as op:
        for number in (1, 2):
            provider.says(answer_of(number))
            op.account(client.chat.completions.create(model="gpt-5", messages=QUESTION), cost_usd=0.25 * number)
    assert [(0.25,), (0.5,)] == [tuple(entry.cost_usd for entry in op.accounting) for op in ops_of(recording)]
    assert 0.75 == session.totals.cost_usd


@pytest.mark.captured("openai", "chat", "streamed", "cancelled", "failed", added="one line", checks=("calls", "answers"))
def test_a_stream_that_is_broken_off_keeps_what_came(recording, provider, client):
    """A stream that the program closes is cancelled, with the text that came until then, and one that the provider cuts is failed."""
    held = threading.Event()
    reply = Reply(*CHAT_EVENTS.pieces[:2], b"", kind=CHAT_EVENTS.kind, hold=held, short=1)
    provider.says(reply)
    with optree.session("agent"), optree.turn():
        stream = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
        assert ["It ", "rains"] == [next(stream).choices[0].delta.content for _ in range(2)]
        stream.close()
        held.set()
        with pytest.raises(openai.APIError):
            chat_stream(provider.url)
    first, second = ops_of(recording)
    assert ("cancelled", "It rains", True) == (first.status, decode(first.response.payload), first.response.partial)
    assert ("failed", "It rains", True) == (second.status, decode(second.response.payload), second.response.partial)


def test_an_error_in_a_stream_fails_the_op(recording, provider):
    """A stream in which the provider says that something went wrong is failed, with the text that came before."""
    broken = json.dumps({"error": {"message": "overloaded"}}).encode()
    provider.says(Reply(CHAT_EVENTS.pieces[0], b"data: " + broken + b"\n\n", kind=CHAT_EVENTS.kind))
    with optree.session("agent"), optree.turn(), pytest.raises(openai.APIError):
        chat_stream(provider.url)
    op = only_op(recording)
    assert ("failed", "It ") == (op.status, decode(op.response.payload))
    assert "overloaded" in op.error


def test_other_traffic_passes_untouched(recording, provider, client):
    """What asks no model is not recorded: embeddings, counts of tokens, and JSON of others."""
    provider.says(Reply({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "e",
                         "usage": {"prompt_tokens": 1, "total_tokens": 1}}))  # fmt: skip
    with optree.session("agent"), optree.turn():
        client.embeddings.create(model="e", input=["a"], encoding_format="float")
        client.post("/threads", cast_to=object, body={"messages": 3, "model": "m"})
    assert [] == ops_of(recording)


@pytest.mark.usefixtures("recording")
def test_hooks_are_there_once_and_go(provider):
    """A second `instrument` counts no call twice, and after `uninstrument` none is recorded, whatever client made it."""
    provider.says(CHAT)
    instrument()
    with optree.session("agent") as session, optree.turn():
        chat(provider.url)
        uninstrument()
        chat(provider.url)
        instrument()
        chat(provider.url)
    assert 2 == session.totals.llm_requests


def test_packages_can_be_left_alone():
    """What is excluded, or is not among those that are asked for, is not hooked."""
    try:
        assert "httpx2" not in instrument(exclude=["httpx2"])
        uninstrument()
        assert {"httpx2"} >= set(instrument(["httpx2"]))
    finally:
        uninstrument()


@pytest.mark.parametrize(
    ("names", "said"),
    [(["opena"], "'opena' cannot be hooked"), (["httpx2", "pydantic_ai"], "'pydantic_ai' cannot"), ("openai", "'openai' is no list")],
)
def test_a_package_that_is_none(names, said):
    """A name that is none of a package that is hooked, or no list of such, is refused with those that there are, and nothing is hooked."""
    for call in (instrument, lambda names: instrument(exclude=names)):
        with pytest.raises(optree.SetupError, match=said) as refused:
            call(names)
        assert "choose from httpx, httpx2, openai" in str(refused.value)
    assert FINDER not in sys.meta_path


def test_what_is_chosen_records_what_it_sends(provider):
    """A call is recorded where the library that sends it is hooked: by its own name, or where none of those that send is named."""
    provider.says(CHAT)
    for names, calls in ((["openai"], 1), (["openai", "httpx2"], 1), (["openai", "aiohttp"], 0), ([], 0)):
        instrument(names)
        with optree.session("agent") as session:
            chat(provider.url)
        uninstrument()
        assert calls == session.totals.llm_requests


def test_tools_that_are_asked_for_are_in_the_answer(recording, provider):
    """The tool calls that a model asks for are in the op's response, as the provider has them."""
    provider.says(CHAT_TOOL)
    with optree.session("agent"), optree.turn():
        assert chat(provider.url) is None
    [choice] = decode(only_op(recording).response.payload)["choices"]
    assert "weather" == choice["message"]["tool_calls"][0]["function"]["name"]


@pytest.mark.captured("openai", "chat", "streamed", "at once", added="one line", checks=("calls", "agents"))
def test_calls_at_once_stand_where_they_are_made(recording, provider):
    """Of 20 sub-agents that call at the same time each has its own call, whole."""
    provider.says(CHAT_EVENTS)

    @optree.session
    async def researcher(client):
        stream = await client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(researcher(client) for _ in range(20)))

    with optree.session("lead") as lead, optree.turn():
        assert ["It rains"] * 20 == asyncio.run(main())
    assert 20 == lead.totals.llm_requests
    sessions = [session.totals.llm_requests for session in walk_sessions(recording.tree)]
    assert [20, *[1] * 20] == sessions


def test_calls_at_once_within_an_op_of_the_programs(recording, provider):
    """Of calls that are made at the same time in one llm op of the program's, one is that op, the others are ops below it; none is lost."""
    provider.says(CHAT)

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
            await asyncio.gather(*[client.chat.completions.create(model="gpt-5", messages=QUESTION) for _ in range(3)])

    with optree.session("agent") as session, optree.turn(), optree.llm("fan"):
        asyncio.run(main())
    assert (3, 24, 15) == (session.totals.llm_requests, session.totals.input_tokens, session.totals.output_tokens)
    assert 3 == len(ops_of(recording))


@pytest.mark.parametrize("block", [optree.turn, lambda: optree.llm("m"), lambda: optree.session("handler")], ids=["turn", "llm", "session"])
def test_a_stream_that_is_read_behind_the_end(recording, provider, client, block):
    """A stream that the program reads on when its op has ended counts once, as a call that went well, with its tokens and its answer."""
    provider.says(CHAT_EVENTS)
    with optree.session("agent") as session:
        with block():
            stream = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
        assert "It rains" == "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    (op,) = [op for op in ops_of(recording) if op.kind == "llm"]
    totals = session.totals
    assert (1, 0, 8, 5) == (totals.llm_requests, totals.llm_failed, totals.input_tokens, totals.output_tokens)
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.parametrize("ends", ["close", "read"])
def test_a_stream_without_usage_that_ends_behind_its_session(recording, provider, client, ends):
    """Its call has unknown tokens, as one that ends within; that its usage was not asked for is said of one that was read."""
    said = {"object": "chat.completion.chunk", "model": "gpt-5", "choices": [{"index": 0, "delta": {"content": "It rains"}}]}
    provider.says(events(said, said, done=ends == "read"))
    with optree.session("agent") as session, optree.turn():
        stream = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
        next(stream)
    stream.close() if ends == "close" else list(stream)
    (op,) = ops_of(recording)
    assert (1, 1, 0) == (session.totals.llm_requests, session.totals.unknown_costs, session.totals.input_tokens)
    assert [ends == "read"] * len(op.logs) == ["stream_options" in log.message for log in op.logs]
    assert (ends == "read") == bool(op.logs)


def test_requests_are_known_while_they_are_sent(recording, provider, client):  # noqa: ARG001 - it is recorded
    """Nothing is kept of a request that was answered, refused or not sent."""
    provider.says(CHAT, Reply({"error": {"message": "no"}}, status=400))
    with optree.session("agent"), optree.turn():
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="gpt-5", messages=QUESTION)
        with pytest.raises(httpx.ConnectError), httpx.Client() as gone:
            gone.post("http://127.0.0.1:1/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION})
    assert {} == _sending


def test_a_call_within_a_call(recording, provider):
    """What a client's own transport asks another model, before it sends, is a call of its own."""
    provider.says(CHAT)

    class Guarded(httpx2.HTTPTransport):
        def handle_request(self, request):
            httpx.post(f"{provider.url}/v1/chat/completions", json={"model": "guard", "messages": QUESTION})
            return super().handle_request(request)

    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", http_client=httpx2.Client(transport=Guarded()))
    with client, optree.session("agent") as session, optree.turn():
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert ["openai-compatible:gpt-5", "openai-compatible:guard"] == sorted(op.name for op in ops_of(recording))
    assert 2 == session.totals.llm_requests


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the client leaves the socket of such a stream open
def test_the_last_event_is_the_end(recording, provider, client):
    """A stream that the program leaves when the provider has said its last word went well."""
    provider.says(RESPONSE_EVENTS)
    with optree.session("agent"), optree.turn():
        for event in client.responses.create(model="gpt-5", input="Weather?", stream=True):
            if event.type == "response.completed":
                break
        del event
        gc.collect()
    op = only_op(recording)
    assert ("ok", Tokens(8, 5, 4, 0, 17, 3)) == (op.status, op.accounting[0].tokens)


def test_what_is_left_behind_the_usage_was_complete(recording, provider, client):
    """A stream that the program leaves when it has the usage went well: its answer is whole."""
    provider.says(CHAT_EVENTS)
    with optree.session("agent"), optree.turn():
        for chunk in client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True):
            if chunk.usage:
                break
        del chunk
        gc.collect()
    op = only_op(recording)
    assert ("ok", Tokens(8, 5, 4, 0, 17, 3), None) == (op.status, op.accounting[0].tokens, op.response.partial)


def test_streams_that_are_forgotten_behind_their_usage(recording, provider, client):
    """Each went well, in whatever order Python's collector ends what a client holds of it, in a cycle."""
    gc.disable()  # else other threads collect some
    try:
        with optree.session("agent"), optree.turn():
            for _ in range(12):
                provider.says(Reply(*CHAT_EVENTS.pieces[:-1], b"", kind=CHAT_EVENTS.kind))
                next(chunk for chunk in client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True) if chunk.usage)
            gc.collect()
    finally:
        gc.enable()
    assert [("ok", 17)] * 12 == [(op.status, op.accounting[0].tokens.total_tokens) for op in ops_of(recording)]


def test_what_is_left_behind_the_reason_of_its_end_was_complete(recording, provider):
    """So did one of Anthropic's, which says both together, ahead of its last event."""
    provider.says(MESSAGE_EVENTS)
    with (
        anthropic.Anthropic(base_url=provider.url, api_key="none", max_retries=0) as client,
        optree.session("agent"),
        optree.turn(),
        client.messages.create(model="claude-5", max_tokens=9, messages=QUESTION, stream=True) as stream,
    ):
        for event in stream:
            if event.type == "message_delta":
                break
    op = only_op(recording)
    assert ("ok", Tokens(8, 5, 4, 0, 17, 0), None) == (op.status, op.accounting[0].tokens, op.response.partial)


def test_what_is_left_ahead_of_the_usage_was_not(recording, provider, client):
    """A stream that the program leaves at its last text, ahead of the usage that it asked for, is cancelled, with what came."""
    held = threading.Event()
    provider.says(Reply(*CHAT_EVENTS.pieces[:-1], kind=CHAT_EVENTS.kind, hold=held))
    with optree.session("agent"), optree.turn():
        for chunk in client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True):
            if chunk.choices[0].finish_reason:
                break
        del chunk
        gc.collect()
    held.set()
    assert ("cancelled", True) == (only_op(recording).status, only_op(recording).response.partial)


@pytest.mark.usefixtures("recording")
def test_another_library_over_our_hooks(provider, monkeypatch):
    """A library that wraps `send` too, and takes itself out again, leaves each call recorded once, and none after `uninstrument`."""
    provider.says(CHAT)
    request = {"url": f"{provider.url}/v1/chat/completions", "json": {"model": "gpt-5", "messages": QUESTION}}
    with optree.session("agent") as session, optree.turn():
        ours = httpx.Client.send

        def theirs(self, *args, **kwargs):
            return ours(self, *args, **kwargs)

        monkeypatch.setattr(httpx.Client, "send", theirs)
        uninstrument()
        httpx.post(**request)
        assert 0 == session.totals.llm_requests
        instrument()
        httpx.post(**request)
        assert 1 == session.totals.llm_requests
        monkeypatch.undo()
        instrument()
        httpx.post(**request)
        assert 2 == session.totals.llm_requests
        monkeypatch.setattr(httpx.Client, "send", httpx.Client.send.__wrapped__)
        instrument()
        httpx.post(**request)
    assert 3 == session.totals.llm_requests


def test_an_address_is_not_kept(recording, provider):
    """Of an exception that names the address of a request, credentials in it are not recorded."""

    def refuse(response):
        response.raise_for_status()

    provider.says(Reply({"error": {"message": "no"}}, status=404))
    url = f"{provider.url}/v1beta/models/gemini-3:generateContent?key=AIzaSyD0123456789abcdefghijklmnopqrstuvw"
    client = httpx.Client(event_hooks={"response": [refuse]})
    with optree.session("agent"), optree.turn(), pytest.raises(httpx.HTTPStatusError):
        client.post(url, json={"contents": [{"role": "user", "parts": [{"text": "Weather?"}]}]})
    op = only_op(recording)
    assert "failed" == op.status
    assert "0123456789abcdef" not in f"{op.error} {[log.message for log in op.logs]}"


def test_a_coroutine_that_is_closed_elsewhere(recording, provider):
    """A call whose coroutine is closed outside of its task raises nothing of optree's, and has ended."""
    provider.says(Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "5"}))

    async def main():
        client = openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=2)
        asking = client.chat.completions.create(model="gpt-5", messages=QUESTION)
        task = asyncio.ensure_future(asking)
        while not provider.requests or not ops_of(recording)[0].accounting:  # noqa: ASYNC110 - what is waited for happens on a thread
            await asyncio.sleep(0)
        asking.close()
        task.cancel()
        await client.close()

    with optree.session("agent"), optree.turn():
        asyncio.run(main())
    assert "cancelled" == only_op(recording).status
