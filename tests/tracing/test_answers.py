"""`@optree.llm` on functions that return or stream what providers' clients give: messages, model, tokens, text and tool calls."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message
from msgspec import UNSET
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

import optree
from optree._nodes import Tokens
from optree._store import Directory
from optree._store.ledger import Ledger
from optree._store.reading.recovery import load
from optree._tree import walk_ops
from optree._values import decode
from optree.conversation.content import answers_of
from optree.testing import capture
from tests.cli.conftest import CommandLine

ASKED = [{"role": "user", "content": "Weather?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"Paris"}'}}
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
CHAT = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5",
    "choices": [
        {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}}
    ],
    "usage": USAGE,
}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1.0,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "look", "arguments": '{"at":"Paris"}', "status": "completed"},
    ],
    "usage": {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-5",
    "stop_reason": "tool_use",
    "content": [{"type": "text", "text": "Let me see."}, {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "Paris"}}],
    "usage": {"input_tokens": 12, "output_tokens": 5},
}
GEMINI = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [{"text": "Let me see."}, {"functionCall": {"id": "c1", "name": "look", "args": {"at": "Paris"}}}],
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17},
    "modelVersion": "gemini-3",
}
OLLAMA = {
    "model": "llama4",
    "done": True,
    "done_reason": "stop",
    "message": {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": {"at": "Paris"}}}],
    },
    "prompt_eval_count": 12,
    "eval_count": 5,
}
LANGCHAIN = {
    "type": "ai",
    "content": "Let me see.",
    "tool_calls": [{"id": "c1", "name": "look", "args": {"at": "Paris"}, "type": "tool_call"}],
    "response_metadata": {"model_name": "gpt-5", "model_provider": "openai"},
    "usage_metadata": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17},
}
WHOLE = {
    "openai": (ChatCompletion.model_validate(CHAT), "gpt-5", "openai"),
    "openai dict": (CHAT, "gpt-5", None),
    "responses": (Response.model_validate(RESPONSE), "gpt-5", "openai"),
    "anthropic": (Message.model_validate(MESSAGE), "claude-5", "anthropic"),
    "gemini": (GEMINI, "gemini-3", None),
    "ollama": (OLLAMA, "llama4", None),
    "langchain": (LANGCHAIN, "gpt-5", "openai"),
}


def traced(run):
    """Return the only op of what a function records, and what is said of it."""
    with capture() as recording, optree.session("a"), optree.turn():
        run()
    [(_, _, op)] = walk_ops(recording.tree.session)
    return op


def said(op):
    """Return the text of an op's answer, and its tool calls by id, name and arguments."""
    entries = answers_of(decode(op.response.payload))
    calls = [call for entry in entries for call in entry.tool_calls or ()]
    told = [(call["id"], (one := call.get("function", call))["name"], arguments(one.get("arguments", one.get("args")))) for call in calls]
    texts = [
        entry.content if isinstance(entry.content, str) else "".join(block.get("text", "") for block in entry.content)
        for entry in entries
        if entry.content
    ]
    return "".join(texts), told


def arguments(given):
    """Return a call's arguments as a value."""
    return json.loads(given) if isinstance(given, str) else given


@pytest.mark.parametrize("form", WHOLE)
def test_an_answer_is_read(form):
    """What a client returns is recorded as what it says: text, tool calls, model, provider and tokens, and goes to the program as it is."""
    answer, model, provider = WHOLE[form]
    returned = []

    @optree.llm
    def ask(messages, model):  # noqa: ARG001 - recorded, as what was asked
        return answer

    op = traced(lambda: returned.append(ask(ASKED, model="asked")))
    assert [True] == [one is answer for one in returned]
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)
    [entry] = op.accounting
    assert Tokens(12, 5, total_tokens=17) == entry.tokens
    assert ("asked", provider, model) == (entry.model, entry.provider, entry.actual_model)
    assert "asked" == op.attributes["model"]
    assert b"repr" not in bytes(op.response.payload)


def test_the_programs_own_account_holds():
    """Who accounts for a call is not corrected, and the call is billed once."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        optree.current().account(input_tokens=1, output_tokens=2)
        return CHAT

    [entry] = traced(lambda: ask(ASKED)).accounting
    assert Tokens(1, 2, total_tokens=3) == entry.tokens


@pytest.mark.parametrize("value", [{"choices": []}, {"output": [1]}, {"message": "hi"}, {"done": True}, {"candidates": 3}, {"content": []}])
def test_what_only_looks_like_an_answer_is_kept_as_it_is(value):
    """A function's own dicts are nobody's answer."""

    @optree.llm
    def ask():
        return value

    assert value == decode(traced(ask).response.payload)


def chat_chunks():
    """Return a stream of OpenAI's chat."""
    deltas = [
        {"role": "assistant", "content": ""},
        {"content": "Let me"},
        {"content": " see."},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
    ]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
    found = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    found.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return [*found, {**head, "choices": [], "usage": USAGE}]


def message_events():
    """Return a stream of Anthropic's messages."""
    return [
        {
            "type": "message_start",
            "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 12, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " see."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c1", "name": "look", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"at":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"Paris"}'}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def response_events():
    """Return a stream of OpenAI's responses."""
    return [
        {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "Let me"},
        {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": " see."},
        {"type": "response.completed", "sequence_number": 9, "response": RESPONSE},
    ]


def all_response_events():
    """Return the same stream as the server has it: items and their parts are opened and closed."""
    item, call = RESPONSE["output"]
    [part] = item["content"]
    empty = {**part, "text": ""}
    first, second, third, last = response_events()
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    events = [
        first,
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": [], "status": "in_progress"}},
        {"type": "response.content_part.added", **place, "part": empty},
        {**second, "logprobs": []},
        {**third, "logprobs": []},
        {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": "", "status": "in_progress"}},
        {"type": "response.function_call_arguments.delta", "item_id": "f", "output_index": 1, "delta": call["arguments"]},
        {"type": "response.function_call_arguments.done", "item_id": "f", "output_index": 1, "arguments": call["arguments"]},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        last,
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


STREAMS = {
    "openai": (chat_chunks(), "gpt-5"),
    "responses": (response_events(), "gpt-5"),
    "anthropic": (message_events(), "claude-5"),
    "gemini": (
        [
            {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let me"}]}}], "modelVersion": "gemini-3"},
            {"candidates": [{"content": {"role": "model", "parts": [{"text": " see."}]}}]},
            {**GEMINI, "candidates": [{"content": {"parts": GEMINI["candidates"][0]["content"]["parts"][1:]}, "finishReason": "STOP"}]},
        ],
        "gemini-3",
    ),
    "ollama": (
        [
            {"model": "llama4", "done": False, "message": {"role": "assistant", "content": "Let me"}},
            {"model": "llama4", "done": False, "message": {"role": "assistant", "content": " see."}},
            {**OLLAMA, "message": {**OLLAMA["message"], "content": ""}},
        ],
        "llama4",
    ),
    "langchain": (
        [
            {"type": "AIMessageChunk", "content": "Let me", "response_metadata": {}},
            {"type": "AIMessageChunk", "content": [{"type": "text", "text": " see."}], "response_metadata": {"model_name": "gpt-5"}},
            {
                "type": "AIMessageChunk",
                "content": "",
                "tool_call_chunks": [{"index": 0, "id": "c1", "name": "look", "args": '{"at":"Paris"}'}],
                "usage_metadata": LANGCHAIN["usage_metadata"],
            },
        ],
        "gpt-5",
    ),
}


@pytest.mark.parametrize("form", STREAMS)
def test_a_stream_is_read(form):
    """The chunks of a stream come out as they are, their text is streamed to the op, and the whole answer stands there at the end."""
    chunks, model = STREAMS[form]
    partial = []

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        for chunk in chunks:
            yield chunk
            response = optree.current().node.response
            partial.append(None if response is None else (decode(response.payload), response.partial))

    got = []
    op = traced(lambda: got.extend(ask(ASKED)))
    assert chunks == got
    assert ("Let me see.", True) in partial
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)
    [entry] = op.accounting
    assert (Tokens(12, 5, total_tokens=17), model) == (entry.tokens, entry.model)
    assert op.response.partial is None


def test_a_stream_that_breaks_off_leaves_its_text():
    """What came before the error is the answer, in part."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        yield from chat_chunks()[:3]
        raise TimeoutError

    def run():
        with pytest.raises(TimeoutError):
            list(ask(ASKED))

    op = traced(run)
    assert ("Let me see.", True, "failed") == (decode(op.response.payload), op.response.partial, op.status)


@pytest.fixture
def server():
    """Return the address of a server that streams as the two providers do."""

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
            self.end_headers()
            if not asked.get("stream"):
                lines = [json.dumps(CHAT if "chat" in self.path else MESSAGE)]
            elif "broken" in self.path:
                lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in [*chat_chunks()[:2], {"error": {"message": "overloaded"}}]]
            elif "chat" in self.path:
                lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chat_chunks()] + ["data: [DONE]\n\n"]
            else:
                events = all_response_events() if "responses" in self.path else message_events()
                lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_):
            """Say nothing."""

    found = HTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


def of_openai(address):
    """Stream a chat by OpenAI's client."""
    client = openai.OpenAI(api_key="none", base_url=address, max_retries=0)
    return client.chat.completions.create(model="gpt-5", messages=ASKED, stream=True)


def of_anthropic(address):
    """Stream a message by Anthropic's client."""
    client = anthropic.Anthropic(api_key="none", base_url=address, max_retries=0)
    return client.messages.create(model="claude-5", max_tokens=9, messages=ASKED, stream=True)


@pytest.mark.parametrize(("call", "provider"), [(of_openai, "openai"), (of_anthropic, "anthropic")])
def test_a_real_client_streams(server, call, provider):
    """Streams of the real clients, over HTTP: all is read, and the provider is told by whose objects they are."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        yield from call(server)

    op = traced(lambda: list(ask(ASKED)))
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)
    [entry] = op.accounting
    assert (Tokens(12, 5, total_tokens=17), provider) == (entry.tokens, entry.provider)


@pytest.mark.parametrize(("call", "provider"), [(of_openai, "openai"), (of_anthropic, "anthropic")])
def test_a_function_that_returns_a_stream(server, call, provider):
    """The client's own stream is returned; its op is open until the program has read it, and has all of it then."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return call(server)

    def run():
        stream = ask(ASKED)
        assert provider == type(stream).__module__.partition(".")[0]
        with stream:
            assert len(list(stream)) in (len(chat_chunks()), len(message_events()))

    op = traced(run)
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})], "ok") == (*said(op), op.status)
    assert Tokens(12, 5, total_tokens=17) == op.accounting[0].tokens


@optree.llm
def streamed(call, address):
    """Return a client's stream, or the manager of one."""
    return call(address)


def now(state):
    """Return how the only op of this process's open session stands, read while its turn is open."""
    [(_, _, op)] = walk_ops(optree.current_session().tree.session)
    state.append(
        (op.status, None if op.response is None else (said(op)[0] if op.response.partial is None else decode(op.response.payload)))
    )


def unread(stream):
    """Leave a stream's block at once."""
    with stream:
        pass


def broken(stream):
    """Leave a stream's block and loop after the second chunk of text."""
    with stream as chunks:
        for chunk in chunks:
            if "Let me" in str(chunk):
                break


def half(stream):
    """Close a stream that was read in part."""
    broken_off = iter(stream)
    while "Let me" not in str(next(broken_off)):
        pass
    stream.close()


def whole_of(stream):
    """Read a stream to its end, without a block."""
    for _ in stream:
        pass


@pytest.mark.parametrize("call", [of_openai, of_anthropic])
@pytest.mark.parametrize(
    ("use", "left"),
    [(unread, ("cancelled", None)), (broken, ("cancelled", "Let me")), (half, ("cancelled", "Let me")), (whole_of, ("ok", "Let me see."))],
)
def test_the_op_ends_with_its_stream(server, call, use, left):
    """The op of a stream ends when the stream is read to its end or closed, however that is done, and not with the turn."""
    state = []

    def run():
        stream = streamed(call, server)
        now(state)
        use(stream)
        now(state)

    traced(run)
    assert [(None, None), left] == state


def test_a_stream_stays_what_it_is(server):
    """Type, attributes and reading of a stream are the client's."""

    def run():
        stream = streamed(of_openai, server)
        assert openai.Stream is type(stream)
        assert 200 == stream.response.status_code
        assert "" == next(stream).choices[0].delta.content
        assert [None, "tool_calls"] == [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-2:]
        assert stream.response.is_closed
        with pytest.raises(StopIteration):
            next(stream)

    assert "ok" == traced(run).status


def test_a_connection_that_breaks_fails_the_op(server):
    """The client's error reaches the program as it is, and the op has it."""

    def run():
        with pytest.raises(openai.APIError, match="overloaded") as caught:
            list(streamed(lambda address: of_openai(f"{address}/broken"), server))
        assert caught.value.__cause__ is None

    op = traced(run)
    assert ("failed", "APIError: overloaded", "Let me", True) == (op.status, op.error, decode(op.response.payload), op.response.partial)


def managed_by_anthropic(address):
    """Return the manager of a message's stream."""
    return anthropic.Anthropic(api_key="none", base_url=address, max_retries=0).messages.stream(
        model="claude-5", max_tokens=9, messages=ASKED
    )


def managed_by_openai(address):
    """Return the manager of a chat's stream."""
    return openai.OpenAI(api_key="none", base_url=address, max_retries=0).chat.completions.stream(model="gpt-5", messages=ASKED)


@pytest.mark.parametrize("call", [managed_by_openai, managed_by_anthropic])
@pytest.mark.parametrize(
    ("use", "left"),
    [(unread, ("cancelled", None)), (broken, ("cancelled", "Let me")), (lambda it: whole_of(it.__enter__()), ("ok", "Let me see."))],
)
def test_the_manager_of_a_stream(server, call, use, left):
    """What `stream(…)` of the clients returns is a block around a stream of their own, which is read like others."""
    state = []

    def run():
        use(streamed(call, server))
        now(state)

    traced(run)
    assert [left] == state


@pytest.mark.parametrize("manager", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_an_async_stream_is_closed(server, manager, read):
    """The same holds for `async with` and `async for`."""
    state = []

    @optree.llm
    async def ask():
        client = anthropic.AsyncAnthropic(api_key="none", base_url=server, max_retries=0)
        asked = {"model": "claude-5", "max_tokens": 9, "messages": ASKED}
        return client.messages.stream(**asked) if manager else await client.messages.create(**asked, stream=True)

    async def use():
        async with await ask() as stream:
            if read:
                async for _ in stream:
                    pass
        now(state)

    traced(lambda: asyncio.run(use()))
    assert [("ok", "Let me see.") if read else ("cancelled", None)] == state


def test_a_stream_that_cannot_be_watched():
    """A client that makes its streams in another way leaves them as they are, and `health()` says it once."""
    stream = type("Stream", (), {"__module__": "openai._streaming", "__iter__": lambda _: iter(["a"])})()

    @optree.llm
    def ask():
        return stream

    def run():
        assert ["a"] == list(ask())

    assert "ok" == traced(run).status
    assert "ok" == traced(run).status
    assert 1 == sum("a openai._streaming.Stream cannot be watched" in problem for problem in optree.health()["problems"])


AT_ONCE = """
import asyncio, json, sys, threading
import optree
from optree._tree import walk_ops
from optree._values import decode

@optree.llm
def ask(word):
    for _ in range(3):
        met()
        yield {"object": "chat.completion.chunk", "model": "m-" + word, "choices": [{"index": 0, "delta": {"content": word}}]}

@optree.llm
async def aask(word):
    for _ in range(3):
        await asyncio.sleep(0)
        yield {"object": "chat.completion.chunk", "model": "m-" + word, "choices": [{"index": 0, "delta": {"content": word}}]}

def kept(session):
    [(_, _, op)] = walk_ops(session.tree.session)
    found[session.agent] = decode(op.response.payload)["choices"][0]["message"]["content"], op.attributes["model"]

def run(word):
    with optree.session(word) as session, optree.turn():
        list(ask(word))
    kept(session)

async def arun(word):
    with optree.session(word) as session, optree.turn():
        async for _ in aask(word):
            pass
    kept(session)

async def both():
    await asyncio.gather(arun("a"), arun("b"))

found = {}
met = threading.Barrier(2).wait
if sys.argv[1] == "tasks":
    asyncio.run(both())
else:
    threads = [threading.Thread(target=run, args=(word,)) for word in "ab"]
    [one.start() for one in threads]
    [one.join() for one in threads]
print(json.dumps(found, sort_keys=True))
"""


@pytest.mark.parametrize("pure", ["", "1"])
@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_sessions_at_once_do_not_mix(tmp_path, how, pure):
    """Two sessions that stream through one function at once each have their own answer and model."""
    env = {**os.environ, "OPTREE_PURE": pure, "OPTREE_SESSIONS_DIR": str(tmp_path), "OPTREE_CONSOLE": "0"}
    run = subprocess.run([sys.executable, "-c", AT_ONCE, how], env=env, capture_output=True, text=True, check=True)
    assert {"a": ["aaa", "m-a"], "b": ["bbb", "m-b"]} == json.loads(run.stdout)


def test_an_async_client_streams(server):
    """A coroutine may return a stream as well."""

    @optree.llm
    async def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        client = openai.AsyncOpenAI(api_key="none", base_url=server, max_retries=0)
        return await client.chat.completions.create(model="gpt-5", messages=ASKED, stream=True)

    async def use():
        async for _ in await ask(ASKED):
            pass

    op = traced(lambda: asyncio.run(use()))
    assert ("Let me see.", "ok") == (said(op)[0], op.status)


@pytest.mark.filterwarnings("error")
def test_a_client_whose_objects_warn(server, capfd):
    """Events of `responses.stream` are dumped without pydantic's warnings: none is printed, and where they are errors nothing is lost."""

    @optree.llm
    def ask(messages):
        client = openai.OpenAI(api_key="none", base_url=server, max_retries=0)
        with client.responses.stream(model="gpt-5", input=messages) as events:
            yield from events

    @optree.llm
    def ask_for_all(messages):
        client = openai.OpenAI(api_key="none", base_url=server, max_retries=0)
        with client.responses.stream(model="gpt-5", input=messages) as events:
            return events.get_final_response()

    def account(messages):
        with optree.llm() as op:
            op.account(ask_for_all.__wrapped__(messages))
            op.response(ask_for_all.__wrapped__(messages))

    for call in (lambda: list(ask(ASKED)), lambda: ask_for_all(ASKED), lambda: account(ASKED)):
        op = traced(call)
        assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)
        assert Tokens(12, 5, total_tokens=17) == op.accounting[0].tokens
    assert "" == "".join(line for line in capfd.readouterr().err.splitlines() if "txn:" not in line)


RESUMED = "import optree\nwith optree.session('agent'), optree.turn(): print(optree.flush('snapshot', 60))"
EARLY = """
import sys, optree
from tests.tracing.test_answers import {chunks}

@optree.llm
def ask(messages, model={asked!r}, temperature=0.5):
    for chunk in {chunks}()[:4]:
        yield chunk
    print(optree.flush(), flush=True)
    sys.stdin.readline()

with optree.session("agent"), optree.turn(user="Weather?"):
    list(ask([{{"role": "user", "content": "Weather?"}}]))
"""


@pytest.mark.parametrize(
    ("chunks", "model", "usage"),
    [
        ("chat_chunks", "gpt-5", None),
        ("response_events", "gpt-5", None),
        ("message_events", "claude-5", {"input_tokens": 12, "output_tokens": 1}),
    ],
)
def test_a_killed_stream_has_its_model(tmp_path, chunks, model, usage):
    """What a stream tells before its text is on disk with it: the model, and the tokens that were sent; a default is what was asked."""
    line = CommandLine(tmp_path)
    process = line.start(sys.executable, "-c", EARLY.format(chunks=chunks, asked=None))
    assert "True\n" == process.stdout.readline()
    process.kill()
    process.communicate()
    [txn] = line.txns()
    loaded = load(txn, Directory.of(line.base)).session
    [(_, _, op)] = walk_ops(loaded)
    [entry] = op.accounting
    tokens = Tokens(12, 1, total_tokens=13) if usage else None
    assert (tokens, None, bool(usage)) == (entry.tokens, entry.cost_usd, entry.details is not UNSET and decode(entry.details)["partial"])
    assert ((12, 1, 1) if usage else (0, 0, 1)) == (loaded.totals.input_tokens, loaded.totals.output_tokens, loaded.totals.unknown_costs)
    told = usage and usage | {"partial": True}
    assert (model, told, True) == (op.attributes["model"], op.attributes.get("usage_at_start"), op.response.partial)
    assert {"temperature": 0.5} == {name: one for name, one in decode(op.request.payload).items() if name != "messages"}
    line("load", txn, "--", sys.executable, "-c", RESUMED)
    [(_, _, resumed)] = walk_ops(load(txn, Directory.of(line.base)).session)
    billed = [one for one in Ledger(Directory.of(line.base).billing).read() if one["type"] == "llm"]
    assert ([entry], [entry.id]) == ([*resumed.accounting], [one["id"] for one in billed])


def test_a_default_is_what_was_asked():
    """A model that is the function's default is the one that was asked, and other defaults that are data are part of the request."""

    @optree.llm
    def ask(messages, model="asked", *, temperature=0.5, client=object(), tools=None):  # noqa: ARG001, B008 - recorded, as what was asked
        return CHAT

    op = traced(lambda: ask(ASKED))
    assert ("asked", "gpt-5") == (op.accounting[0].model, op.accounting[0].actual_model)
    payload = decode(op.request.payload)
    assert ({"messages", "model", "temperature"}, "asked", 0.5) == (set(payload), payload["model"], payload["temperature"])
    assert "other" == decode(traced(lambda: ask(ASKED, "other")).request.payload)["model"]


@pytest.mark.parametrize(("chunks", "tokens"), [(message_events, Tokens(12, 1, total_tokens=13)), (chat_chunks, None)])
def test_a_stream_that_is_left_early_has_what_it_told(chunks, tokens):
    """Tokens that were told before the program stopped reading are those of a call that did not succeed; untold they are unknown, not 0."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        yield from chunks()

    def run():
        stream = ask(ASKED)
        [next(stream) for _ in range(3)]
        stream.close()

    op = traced(run)
    [entry] = op.accounting
    assert ("cancelled", "failed", tokens, ()) == (op.status, entry.status, entry.tokens, op.logs)


def chat_manager(address):
    """Return the manager of a chat's stream."""
    client = openai.OpenAI(api_key="none", base_url=address, max_retries=0)
    return client.chat.completions.stream(model="gpt-5", messages=ASKED)


def test_the_events_of_a_chat(server):
    """Events of `chat.completions.stream` are read as the chunks that they bring, once, with the text as it comes."""
    partial = []

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        with chat_manager(server) as events:
            for event in events:
                yield event
                response = optree.current().node.response
                partial.append(response and decode(response.payload))

    op = traced(lambda: list(ask(ASKED)))
    assert "Let me" in partial
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)
    assert (Tokens(12, 5, total_tokens=17), "gpt-5", "openai") == ((one := op.accounting[0]).tokens, one.model, one.provider)
    assert "items" not in decode(op.response.payload)


@pytest.mark.parametrize("client", [openai.OpenAI, anthropic.Anthropic])
def test_a_raw_response(client):
    """What `with_raw_response` returns is read once its body is there, and the program parses it as ever."""
    answer = CHAT if client is openai.OpenAI else MESSAGE
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer))
    made = client(api_key="none", base_url="http://localhost", http_client=httpx2.Client(transport=transport))
    parsed = []

    @optree.llm
    def ask(messages):
        if client is openai.OpenAI:
            return made.chat.completions.with_raw_response.create(model="gpt-5", messages=messages)
        return made.messages.with_raw_response.create(model="claude-5", max_tokens=9, messages=messages)

    op = traced(lambda: parsed.append(ask(ASKED).parse()))
    assert [answer["id"]] == [one.id for one in parsed]
    assert (Tokens(12, 5, total_tokens=17), answer["model"]) == ((one := op.accounting[0]).tokens, one.model)
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})]) == said(op)


def calls(address, kind, **more):
    """Return the two clients' calls that make a model's answer, as attributes of a client of this kind ("", or "Async")."""
    of_one = getattr(openai, f"{kind}OpenAI")(api_key="none", base_url=address, max_retries=0)
    other = getattr(anthropic, f"{kind}Anthropic")(api_key="none", base_url=address, max_retries=0)
    return {
        "openai": (of_one.chat.completions, {"model": "gpt-5", "messages": ASKED, **more}),
        "anthropic": (other.messages, {"model": "claude-5", "max_tokens": 9, "messages": ASKED, **more}),
    }


SEEN = ("Let me see.", [("c1", "look", {"at": "Paris"})])


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("way", ["with_raw_response", "with_streaming_response"])
@pytest.mark.parametrize("kind", ["", "Async"])
def test_a_raw_response_of_a_stream(server, kind, way, provider):
    """A raw response that a function returns is watched once the program has parsed it: all is recorded, and ends with the stream."""
    made, asked = calls(server, kind, stream=True)[provider]
    state, got = [], []

    def run():
        @optree.llm
        def ask(messages):  # noqa: ARG001 - recorded, as what was asked
            return getattr(made, way).create(**asked)

        found = ask(ASKED)
        now(state)
        if way == "with_raw_response":
            got.extend(found.parse())
            assert len(got) == len(list(found.parse())) + len(got)  # the same stream again, and it is read
        else:
            with found as response:
                got.extend(response.parse())
        now(state)

    async def run_async():
        @optree.llm
        async def ask(messages):  # noqa: ARG001 - recorded, as what was asked
            found = getattr(made, way).create(**asked)
            return await found if way == "with_raw_response" else found

        async def read(response):
            stream = response.parse()
            got.extend([one async for one in (await stream if inspect.isawaitable(stream) else stream)])

        found = await ask(ASKED)
        now(state)
        if way == "with_raw_response":
            await read(found)
        else:
            async with found as response:
                await read(response)
        now(state)

    op = traced((lambda: asyncio.run(run_async())) if kind else run)
    assert len(got) in (len(chat_chunks()), len(message_events()))
    assert [(None, None), "ok"] == [state[0], state[1][0]]
    assert SEEN == said(op)
    [entry] = op.accounting
    assert (Tokens(12, 5, total_tokens=17), provider) == (entry.tokens, entry.provider)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("read", [lambda r: r.parse(), lambda r: r.json(), lambda r: r.read(), lambda r: (r.text(), r.parse())])
def test_a_raw_response_that_is_still_to_be_read(server, provider, read):
    """However the program reads the body of a response, its answer is recorded, and the op ends with it."""
    made, asked = calls(server, "")[provider]
    state = []

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return made.with_streaming_response.create(**asked)

    def run():
        with ask(ASKED) as response:
            assert 200 == response.status_code
            now(state)
            read(response)
            now(state)

    op = traced(run)
    assert [None, "ok"] == [status for status, _ in state]
    assert SEEN == said(op)
    assert (1, Tokens(12, 5, total_tokens=17)) == (len(op.accounting), op.accounting[0].tokens)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_raw_response_in_pieces(server, provider):
    """A program that reads lines has them all; the op ends with them, and says that its answer is none that is read."""
    made, asked = calls(server, "", stream=True)[provider]
    lines = []

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return made.with_streaming_response.create(**asked)

    def run():
        with ask(ASKED) as response:
            lines.extend(response.iter_lines())

    op = traced(run)
    assert sum(line.startswith("data:") for line in lines) in (len(chat_chunks()) + 1, len(message_events()))
    assert ("ok", 1) == (op.status, len(op.logs))
    assert "is none that is read: it has no tokens" in op.logs[0].message


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("use", "text"), [(lambda _: None, None), (lambda r: next(iter(r.parse())), None), (lambda r: half(r.parse()), "Let me")]
)
def test_a_raw_response_that_is_left(server, provider, use, text):
    """A response that is closed unread, or a stream of it in part, is a call that was cancelled, with what had come."""
    made, asked = calls(server, "", stream=True)[provider]

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return made.with_streaming_response.create(**asked)

    def run():
        with ask(ASKED) as response:
            use(response)

    op = traced(run)
    assert ("cancelled", text) == (op.status, op.response and decode(op.response.payload))


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_raw_response_that_never_comes(provider):
    """A request that fails when its block is entered is a failed call, and its error the program's."""
    made, asked = calls("http://127.0.0.1:9", "", stream=True)[provider]

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return made.with_streaming_response.create(**asked)

    def run():
        with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)), ask(ASKED):
            pass

    assert "failed" == traced(run).status


OPENAI = ChatCompletion.model_validate(CHAT)


@pytest.mark.parametrize(
    ("value", "calls"),
    [
        ([OPENAI, OPENAI], 2),
        (("Let me see.", OPENAI.usage), 1),
        (OPENAI.usage, 1),
        (("Let me see.", OPENAI), 1),
        ({"text": "Let me see.", "usage": USAGE}, 1),
        (Message.model_validate(MESSAGE).usage, 1),
    ],
)
def test_tokens_beside_a_text(value, calls):
    """Answers in a list are calls of their own, and a usage that is returned, alone or beside the text, is what the call took."""
    op = traced(optree.llm(lambda: value))
    assert [Tokens(12, 5, total_tokens=17)] * calls == [entry.tokens for entry in op.accounting]


class Unread:
    """A client's answer that nobody knows."""


@pytest.mark.parametrize(
    ("value", "report"),
    [
        (Unread(), "what a model's call returned, a tests.tracing.test_answers.Unread, is none that is read"),
        ({**CHAT, "usage": None}, "an answer of gpt-5 tells no tokens and counts with 0"),
        ("text", None),
    ],
)
def test_what_has_no_tokens_is_reported_once(value, report):
    """A model's call of which nothing is known is not passed over: a program is told once, and in the op."""
    with capture() as recording, optree.session("a"), optree.turn():
        for _ in range(2):
            optree.llm(lambda: value)()
    logs = [log.message for _, _, op in walk_ops(recording.tree.session) for log in op.logs]
    assert [True] * (report is not None) == [log.startswith(report) for log in logs]


@pytest.mark.parametrize(
    ("name", "answer", "is_told"),
    [
        ("openai:gpt-5", {**CHAT, "usage": None}, True),
        ("gemini:gemini-3", {"candidates": [{"content": {"role": "model", "parts": [{"text": "x"}]}}]}, False),
        ("own", {**CHAT, "usage": None}, False),
    ],
)
def test_who_is_told_of_stream_options(name, answer, is_told):
    """How a stream of OpenAI's chat is made to tell its tokens is said of that alone."""
    with capture() as recording, optree.session("a"), optree.turn():
        optree.llm(name)(lambda: answer)()
    [log] = [log.message for _, _, op in walk_ops(recording.tree.session) for log in op.logs]
    assert ("tells no tokens" in log, is_told) == (True, "stream_options" in log)


class _Stream:
    """A proxy as other instrumentation puts around a client's stream: it passes all on, and has a name of its own."""

    def __init__(self, wrapped):
        self.__wrapped__ = wrapped

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __iter__(self):
        return iter(self.__wrapped__)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.__wrapped__.__exit__(*error)


class OwnStream:
    """A stream of nobody known, built as the clients' are."""

    def __init__(self):
        self._iterator = iter(chat_chunks())
        self.response = type("Response", (), {"close": lambda _: None})()

    def __iter__(self):
        yield from self._iterator

    def close(self):
        """Close it."""
        self.response.close()


@pytest.mark.parametrize("make", [lambda at: _Stream(of_openai(at)), lambda at: _Stream(of_anthropic(at)), lambda _: OwnStream()])
def test_streams_are_told_by_their_shape(server, make):
    """A stream behind another's proxy is watched, and so is one that is built as the clients' are."""

    @optree.llm
    def ask(messages):  # noqa: ARG001 - recorded, as what was asked
        return make(server)

    op = traced(lambda: list(ask(ASKED)))
    assert ("Let me see.", [("c1", "look", {"at": "Paris"})], "ok") == (*said(op), op.status)
    assert Tokens(12, 5, total_tokens=17) == op.accounting[0].tokens
