"""A stream that broke off when it was recorded breaks off again in a replay, behind the same text, and by the same exception."""

import asyncio
import json
import threading
from contextlib import nullcontext
from itertools import islice

import aiohttp
import httpx
import pytest

import optree
from optree._nodes import Tokens
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.calls.test_wire import COHERE, COHERE_EVENTS, GEMINI, OLLAMA_LINES, PARTS
from tests.capture.clients.test_bedrock import CALLS as BEDROCK_CALLS
from tests.capture.clients.test_bedrock import MODEL, converse_stream
from tests.capture.clients.test_bedrock import QUESTION as BEDROCK_QUESTION
from tests.capture.clients.test_bedrock import client as bedrock
from tests.capture.conftest import twice
from tests.capture.provider import EVENTS, Reply
from tests.capture.replay.test_replay import llms, told
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, COMPLETION_EVENTS, MESSAGE_EVENTS, QUESTION, RESPONSE_EVENTS, _anthropic, _openai
from tests.capture.sdk_calls import chat as whole

pytestmark = pytest.mark.usefixtures("hooked")
ERROR = {"error": {"message": "The model is overloaded", "type": "server_error", "code": "overloaded"}}


def cut(reply, pieces, short=9):
    """Return the beginning of a reply, behind which the connection breaks."""
    return Reply(*reply.pieces[:pieces], kind=reply.kind, short=short)


def read(texts):
    """Return what came of a stream, and what ended it."""
    came = []
    try:
        came.extend(texts)
    except Exception as error:  # noqa: BLE001 - it is compared
        return "".join(came), type(error), str(error)
    return "".join(came), None, ""


def chat(url):
    """Ask OpenAI's chat."""
    stream = _openai(url).chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
    return read(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def completion(url):
    """Ask OpenAI's completions."""
    stream = _openai(url).completions.create(model="gpt-5", prompt="Weather?", stream=True)
    return read(chunk.choices[0].text for chunk in stream if chunk.choices)


def response(url):
    """Ask OpenAI's responses."""
    stream = _openai(url).responses.create(model="gpt-5", input=QUESTION, stream=True)
    return read(event.delta for event in stream if event.type == "response.output_text.delta")


def message(url):
    """Ask Anthropic's messages."""

    def texts():
        with _anthropic(url).messages.stream(model="claude-5", max_tokens=64, messages=QUESTION) as stream:
            yield from stream.text_stream

    return read(texts())


def lines_of(path, request, text_of):
    """Return a function that asks by httpx, and reads an answer's lines of JSON."""

    def ask(url):
        def texts():
            with httpx.stream("POST", f"{url}{path}", json=request) as answer:
                for line in answer.iter_lines():
                    if line.removeprefix("data: ").startswith("{"):
                        yield text_of(json.loads(line.removeprefix("data: ")))

        return read(texts())

    return ask


def said_by_gemini(event):
    """Return the text of an event of Gemini's."""
    return "".join(part["text"] for part in event["candidates"][0]["content"]["parts"])


def told_by_gemini(event):
    """Return that, and the tokens that it tells."""
    return f"{said_by_gemini(event)} {event.get('usageMetadata')} "


def said_by_cohere(event):
    """Return the text of an event of Cohere's."""
    return event["delta"]["message"]["content"]["text"] if event["type"] == "content-delta" else ""


def by_aiohttp(url, wait=0.0):
    """Ask OpenAI's chat by aiohttp, and wait for so many seconds before the answer is read."""

    async def ask():
        came = []
        async with aiohttp.ClientSession() as session:
            sent = {"model": "gpt-5", "messages": QUESTION, "stream": True}
            async with session.post(f"{url}/v1/chat/completions", json=sent) as answer:
                await asyncio.sleep(wait)
                try:
                    async for line in answer.content:
                        came += [json.loads(line[6:])["choices"][0]["delta"].get("content") or ""] if line.startswith(b"data: {") else []
                except aiohttp.ClientError as error:
                    return "".join(came), type(error)
        return "".join(came), None

    return asyncio.run(ask())


def in_events(values, pieces):
    """Return the beginning of a stream of events."""
    return cut(Reply(*(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values), kind=EVENTS), pieces)


BROKEN = {
    "chat": (chat, cut(CHAT_EVENTS, 2)),
    "completions": (completion, cut(COMPLETION_EVENTS, 2)),
    "responses": (response, cut(RESPONSE_EVENTS, 3)),
    "messages": (message, cut(MESSAGE_EVENTS, 4)),
    "gemini": (lines_of("/v1beta/models/gemini-3:streamGenerateContent?alt=sse", GEMINI, said_by_gemini), in_events(PARTS, 1)),
    "cohere": (lines_of("/v2/chat", {**COHERE, "stream": True}, said_by_cohere), in_events(COHERE_EVENTS, 4)),
    "ollama": (
        lines_of("/api/chat", {"model": "qwen", "messages": QUESTION}, lambda line: line["message"]["content"]),
        cut(Reply(*(json.dumps(line).encode() + b"\n" for line in OLLAMA_LINES), kind="application/x-ndjson"), 1),
    ),
    "aiohttp": (by_aiohttp, cut(CHAT_EVENTS, 2)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_connection_that_broke(provider, name):
    """The program reads the same text, and gets the same exception; the tree has the same text, status, error and tokens."""
    ask, reply = BROKEN[name]
    expected, found, recorded, again = twice(provider, [reply], lambda: ask(provider.url))
    assert expected[0]
    assert expected[1] is not None
    assert expected == found
    [before], [after] = llms(recorded), llms(again)
    assert ("failed", True) == (before.status, before.response.partial)
    if name != "aiohttp":  # whose error has how many bytes there were
        assert told(recorded) == told(again)
    assert decode(before.response.payload) == decode(after.response.payload)
    assert (before.attributes["error.class"], before.response.partial) == (after.attributes["error.class"], after.response.partial)


@pytest.mark.parametrize("texts", [("It ", "rains"), ("It ",), ("",)], ids=["two", "one", "no text"])
def test_the_tokens_of_a_stream_of_geminis_that_broke(provider, texts):
    """Each event of Gemini's tells the tokens so far: the last that were told are given again, and count in the tree."""
    usages = [{"promptTokenCount": 12, "cachedContentTokenCount": 4, "candidatesTokenCount": 2 * at, "thoughtsTokenCount": 3,
               "totalTokenCount": 15 + 2 * at} for at in (1, 2)]  # fmt: skip
    sent = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": text}] if text else []}, "index": 0}], "usageMetadata": usage}
        for text, usage in zip(texts, usages, strict=False)
    ]
    ask = lines_of("/v1beta/models/gemini-3:streamGenerateContent?alt=sse", GEMINI, told_by_gemini)
    expected, found, recorded, again = twice(provider, [in_events(sent, len(sent))], lambda: ask(provider.url))
    assert f"{''.join(texts)} {usages[len(sent) - 1]} " == found[0]
    assert expected[1:] == found[1:]
    [before], [after] = llms(recorded), llms(again)
    assert Tokens(8, 3 + 2 * len(sent), 4, 0, 15 + 2 * len(sent), 3) == before.accounting[0].tokens == after.accounting[0].tokens
    assert told(recorded) == told(again)


@pytest.mark.parametrize(("ask", "pieces"), [(chat, 2), (message, 4)])
def test_an_error_in_the_middle(provider, ask, pieces):
    """What a provider says behind some text is said again behind it."""
    told_so = ERROR if ask is chat else {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    last = (b"" if ask is chat else b"event: error\n") + b"data: " + json.dumps(told_so).encode() + b"\n\n"
    reply = Reply(*(CHAT_EVENTS if ask is chat else MESSAGE_EVENTS).pieces[:pieces], last, kind=EVENTS)
    expected, found, recorded, again = twice(provider, [reply], lambda: ask(provider.url))
    assert ("It rains", True) == (expected[0], expected[1] is not None)
    assert expected == found
    assert told_so == llms(recorded)[0].attributes["error.body"] == llms(again)[0].attributes["error.body"]


def test_a_program_that_stops_reading(provider):
    """One that has read enough stops again; in the tree both are cancelled, with what had come."""

    def ask():
        with _openai(provider.url).chat.completions.create(model="gpt-5", messages=QUESTION, stream=True) as stream:
            for chunk in stream:
                if chunk.choices[0].delta.content:
                    return "It" in chunk.choices[0].delta.content
        return False

    expected, found, recorded, again = twice(provider, [cut(CHAT_EVENTS, 2, short=0)], ask)
    assert (True, True) == (expected, found)
    assert ["cancelled"] * 2 == [one.status for recording in (recorded, again) for one in llms(recording)]


@pytest.mark.parametrize("own", [False, True])
def test_what_a_stream_cost_that_a_program_stops_reading(own):
    """Anthropic tells as a stream begins what was sent, and of the answer a token: where no more is told the cost is unknown, not low."""
    optree.configure(prices=True)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-type": EVENTS}, stream=_Pieces()))
    asked = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": QUESTION, "stream": True}
    with capture() as recording, optree.session("agent"), optree.turn(), optree.budget(usd=1.0) as budget:
        with (
            optree.llm("anthropic:claude-sonnet-4-5") if own else nullcontext(),
            httpx.Client(transport=transport) as client,
            client.stream("POST", "https://api.anthropic.com/v1/messages", json=asked) as answer,
        ):
            next(line for line in answer.iter_lines() if "text_delta" in line)
        optree.flush()
        assert (13, 0.0, 1) == (budget.used["tokens"], budget.used["usd"], budget.unknown_cost)
    [entry] = llms(recording)[0].accounting
    assert (8, 1, None, True) == (entry.tokens.input_tokens, entry.tokens.output_tokens, entry.cost_usd, decode(entry.details)["partial"])


class _Pieces(httpx.SyncByteStream):
    """The pieces of Anthropic's stream."""

    def __iter__(self):
        yield from MESSAGE_EVENTS.pieces


def test_a_program_that_reads_so_many_pieces(provider):
    """It had no exception, and gets none, though its pieces are one now."""

    def ask():
        with _openai(provider.url).chat.completions.create(model="gpt-5", messages=QUESTION, stream=True) as stream:
            return "".join(chunk.choices[0].delta.content or "" for chunk, _ in zip(stream, range(2), strict=False))

    expected, found, _, _ = twice(provider, [cut(CHAT_EVENTS, 2, short=0)], ask)
    assert ("It rains", "It rains") == (expected, found)


def test_a_break_behind_reasoning(provider):
    """Where no text had come, the reasoning and the first usage are given, and the break comes as the program reads."""
    thinks = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    ]
    pieces = [b"event: " + one["type"].encode() + b"\ndata: " + json.dumps(one).encode() + b"\n\n" for one in thinks]
    reply = Reply(MESSAGE_EVENTS.pieces[0], *pieces, kind=EVENTS, short=9)

    def ask():
        def thoughts():
            with _anthropic(provider.url).messages.stream(model="claude-5", max_tokens=64, messages=QUESTION) as stream:
                yield from (event.thinking for event in stream if event.type == "thinking")

        return read(thoughts())

    expected, found, recorded, again = twice(provider, [reply], ask)
    assert ("hm", False) == (expected[0], expected[1] is None)
    assert expected == found
    assert told(recorded) == told(again)


def test_an_exception_of_the_programs_own_transport(provider):
    """Whatever a transport raises is raised again, if it is Python's for connections."""

    class Breaking(httpx.SyncByteStream):
        def __iter__(self):
            yield CHAT_EVENTS.pieces[0]
            raise ConnectionResetError(104, "gone")

    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-type": EVENTS}, stream=Breaking()))

    def ask():
        with httpx.Client(transport=transport) as client:
            sent = {"model": "gpt-5", "messages": QUESTION, "stream": True}
            with client.stream("POST", f"{provider.url}/v1/chat/completions", json=sent) as answer:
                return read(line for line in answer.iter_lines() if "It" in line)[1]

    expected, found, _, _ = twice(provider, [CHAT], ask)
    assert (ConnectionResetError, ConnectionResetError) == (expected, found)


def test_an_exception_without_a_class(provider):
    """A stream that ends by an exception of the transport's own, which has no class, does not end well in a replay."""

    class GoneError(Exception):
        pass

    class Breaking(httpx.SyncByteStream):
        def __iter__(self):
            yield CHAT_EVENTS.pieces[0]
            raise GoneError("gone")

    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-type": EVENTS}, stream=Breaking()))

    def ask():
        with httpx.Client(transport=transport) as client:
            sent = {"model": "gpt-5", "messages": QUESTION, "stream": True}
            with client.stream("POST", f"{provider.url}/v1/chat/completions", json=sent) as answer:
                return read(answer.iter_lines())[1:]

    expected, found, _, _ = twice(provider, [CHAT], ask)
    assert (GoneError, "gone") == expected
    assert (httpx.ReadError, "GoneError: gone") == found


def test_a_call_of_which_nothing_but_the_name_had_come(provider):
    """It is not given as a whole call without arguments, which an agent would make."""
    reply = in_events(_STARTED[:2], 2)
    ask = lines_of("/v1/messages", {"model": "claude-5", "messages": QUESTION, "stream": True}, calls_in)
    expected, found, _, _ = twice(provider, [reply], lambda: ask(provider.url))
    assert "weather" == expected[0]
    assert expected == found


def test_a_program_by_aiohttp_that_is_slow_to_read(provider):
    """What came of the answer is there when the program comes to it."""
    provider.says(cut(CHAT_EVENTS, 2))
    with capture() as recorded, optree.session("agent"), optree.turn():
        expected = by_aiohttp(provider.url)
    with replay(recorded.tree), capture(), optree.session("agent"), optree.turn():
        found = by_aiohttp(provider.url, wait=0.1)
    assert ("It rains", aiohttp.ClientPayloadError) == expected == found


def test_a_run_that_went_on(provider):
    """A run in which a stream broke, and that asked once more, is a test of what it does then."""

    def run():
        with optree.session("agent"), optree.turn():
            text, error, _ = chat(provider.url)
            return text if error is None else whole(provider.url)

    expected, found, recorded, again = twice(provider, [cut(CHAT_EVENTS, 1), CHAT], run)
    assert ("It rains", "It rains") == (expected, found)
    assert told(recorded) == told(again)


def test_the_client_reads_it_whole(provider):
    """A program that has its client read the answer gets the exception of that call."""

    def ask():
        with httpx.Client() as client, pytest.raises(httpx.TransportError) as raised:
            client.post(f"{provider.url}/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION, "stream": True})
        return type(raised.value), str(raised.value)

    expected, found, _, _ = twice(provider, [cut(CHAT_EVENTS, 2)], ask)
    assert expected == found


def test_what_cannot_be_given(provider):
    """A stream of an interface that is not known, and a call that was cancelled before any answer: the difference says so."""
    ask = lines_of("/strange", {"model": "gpt-5", "messages": QUESTION, "stream": True}, str)
    provider.says(cut(CHAT_EVENTS, 2))
    with capture() as recorded, optree.session("agent"), optree.turn():
        assert httpx.RemoteProtocolError is ask(provider.url)[1]
    with pytest.raises(AssertionError, match=r"the call at 1\.1 of test-1 was broken off when it was recorded"), replay(recorded.tree):
        assert ask(provider.url)[1] is None


_CALLS = [{"index": 0, "id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}]
_BLOCK = {"type": "tool_use", "id": "call-1", "name": "weather", "input": {}}
_ITEM = {"type": "function_call", "id": "fc-1", "call_id": "call-1", "name": "weather", "arguments": '{"city": "Ath'}
_BEGUN = {"id": "msg-1", "type": "message", "role": "assistant", "model": "claude-5", "content": [], "usage": {"input_tokens": 8}}
CUT_CALLS = {
    "chat": (
        "/v1/chat/completions",
        [
            {"object": "chat.completion.chunk", "model": "gpt-5", "choices": [{"index": 0, "delta": {"tool_calls": _CALLS}}]},
            {
                "object": "chat.completion.chunk",
                "model": "gpt-5",
                "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"Ath'}}]}}],
            },
        ],
    ),
    "messages": (
        "/v1/messages",
        [
            {"type": "message_start", "message": _BEGUN},
            {"type": "content_block_start", "index": 0, "content_block": _BLOCK},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"Ath'}},
        ],
    ),
    "responses": (
        "/v1/responses",
        [
            {"type": "response.created", "response": {"id": "r-1", "object": "response", "model": "gpt-5", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"city": "Ath'},
            {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
            {"type": "response.output_item.added", "output_index": 1, "item": {**_ITEM, "id": "fc-2", "arguments": ""}},
        ],
    ),
}
"""Beginnings of streams in which a function is called, and what they are of."""


def read_stream(url, asked):
    """Read a stream to its end."""
    with httpx.stream("POST", url, json=asked) as answer:
        answer.read()


@pytest.mark.parametrize("interface", CUT_CALLS)
def test_function_calls_of_a_stream_that_broke_off(provider, interface):
    """The function calls that had come when a stream broke off are an attribute of its op, as far as they had come; a log line says it."""
    path, values = CUT_CALLS[interface]
    provider.says(in_events(values, len(values)))
    asked = {"model": "gpt-5", "input" if interface == "responses" else "messages": QUESTION, "stream": True}
    with capture() as caught, optree.session("agent"), optree.turn(), pytest.raises(httpx.RemoteProtocolError):
        read_stream(f"{provider.url}{path}", asked)
    [op] = llms(caught)
    assert "the answer broke off behind a call of weather" in [line.message for line in op.logs]
    calls = [{"id": "call-1", "name": "weather", "arguments": '{"city": "Ath'}]
    assert ("failed", calls) == (op.status, op.attributes["response.tool_calls"])


def calls_in(event):
    """Return what an event of a stream tells of a function call, joined: names and arguments, and that a call is whole."""
    delta = event["choices"][0]["delta"] if event.get("choices") else event.get("delta") or {}
    block = event.get("content_block") or event.get("item") or {}
    told = [one["function"] for one in delta.get("tool_calls") or []] if isinstance(delta, dict) else []
    content = event.get("candidates", [{}])[0].get("content", {})
    told += [part["functionCall"] for part in content.get("parts", ()) if "functionCall" in part]
    told += [call["function"] for call in (event.get("message") or {}).get("tool_calls") or ()]
    told += [block] if event.get("type") == "content_block_start" and "name" in block else []
    told += [{**block, "done": True}] if event.get("type") == "response.output_item.done" else []
    names = "".join(str(one.get("name") or "") for one in told)
    sent = [one.get("arguments", one.get("args")) or "" for one in told]
    arguments = "".join(json.dumps(found) if isinstance(found, dict) else found for found in sent)
    partial = delta.get("partial_json", "") if isinstance(delta, dict) else ""
    is_whole = event.get("type") in ("content_block_stop", "response.output_item.done")
    return f"{names}{arguments}{partial}{'!' * is_whole}"


_STARTED = [
    {"type": "message_start", "message": _BEGUN},
    {"type": "content_block_start", "index": 0, "content_block": _BLOCK},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city":"Athens"}'}},
    {"type": "content_block_stop", "index": 0},
]
_GEMINI_CALL = {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"city": "Athens"}}}]}
_OLLAMA_CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Athens"}}}]}
CALLED = {
    **{name: (path, {"input" if name == "responses" else "messages": QUESTION}, values) for name, (path, values) in CUT_CALLS.items()},
    "messages, a whole call": ("/v1/messages", {"messages": QUESTION}, _STARTED),
    "gemini": ("/v1beta/models/gemini-3:streamGenerateContent?alt=sse", GEMINI, [{"candidates": [{"content": _GEMINI_CALL, "index": 0}]}]),
    "ollama": ("/api/chat", {"messages": QUESTION}, [{"model": "gpt-5", "message": _OLLAMA_CALL, "done": False}]),
}


@pytest.mark.parametrize("interface", CALLED)
def test_a_replay_of_a_stream_that_broke_behind_a_function_call(provider, interface):
    """In a replay the program gets the function call, as far as it had come, and the same exception behind it."""
    path, sent, values = CALLED[interface]
    values = [one for one in values if one.get("item", {}).get("id") != "fc-2"]  # of whose arguments nothing had come
    reply = in_events(values, len(values))
    if interface == "ollama":
        reply = Reply(*(json.dumps(value).encode() + b"\n" for value in values), kind="application/x-ndjson", short=9)
    ask = lines_of(path, {"model": "gpt-5", "stream": True} | sent, calls_in)
    expected, found, recorded, again = twice(provider, [reply], lambda: ask(provider.url))
    assert ("weather" in expected[0], True) == ("Ath" in expected[0], expected[1] is not None)
    assert expected == found
    [before], [after] = llms(recorded), llms(again)
    assert "failed" == before.status == after.status
    assert before.attributes["response.tool_calls"] == after.attributes["response.tool_calls"]


def test_a_program_that_reads_as_far_as_a_function_call(provider):
    """One that stops there, or whose function fails before the stream is over, does the same in a replay."""

    def ask(weather):
        with _anthropic(provider.url).messages.stream(model="claude-5", max_tokens=64, messages=QUESTION) as stream:
            called = next(event.content_block for event in stream if event.type == "content_block_stop")
        sent = [*QUESTION, {"role": "assistant", "content": weather(**called.input)}]
        with _anthropic(provider.url).messages.stream(model="claude-5", max_tokens=64, messages=sent) as stream:
            return "".join(stream.text_stream)

    reply = in_events(_STARTED, len(_STARTED))
    reply.pieces = [b"event: " + one["type"].encode() + b"\n" + piece for one, piece in zip(_STARTED, reply.pieces, strict=True)]
    reply.short = 0
    expected, found, recorded, again = twice(provider, [reply, MESSAGE_EVENTS], lambda: ask("rain in {city}".format))
    assert "It rains" == expected == found
    assert ["cancelled", "ok"] == [op.status for op in llms(recorded)] == [op.status for op in llms(again)]


def test_a_turn_that_fails_amid_a_stream(provider):
    """A program that fails while it reads gets as much of the answer in a replay, and no exception of a connection's."""
    held = []

    def run():
        with optree.session("agent"), optree.turn():
            held.append(_anthropic(provider.url).messages.create(model="claude-5", max_tokens=64, messages=QUESTION, stream=True))
            kinds = [event.type for event in islice(held[-1], 4)]
            raise KeyError(kinds[-1])

    reply = in_events(_STARTED, len(_STARTED))
    reply.pieces = [b"event: " + one["type"].encode() + b"\n" + piece for one, piece in zip(_STARTED, reply.pieces, strict=True)]
    reply.short = 0
    expected, found, recorded, _ = twice(provider, [reply], run)
    assert (KeyError, "'content_block_stop'") == expected == found
    assert ["failed"] == [op.status for op in llms(recorded)]


def test_a_stream_that_is_read_on_behind_its_turn(provider):
    """What comes after the turn has ended is in its op too, with the tokens, once; what had come by then is what it broke off behind."""
    ends = [
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 21}},
        {"type": "message_stop"},
    ]
    pieces = [b"event: " + one["type"].encode() + b"\ndata: " + json.dumps(one).encode() + b"\n\n" for one in (*_STARTED, *ends)]
    hold = threading.Event()
    provider.says(Reply(*pieces[:-2], b"".join(pieces[-2:]), kind=EVENTS, hold=hold))
    with capture() as caught, optree.session("agent"):
        with optree.turn():
            stream = _anthropic(provider.url).messages.create(model="claude-5", max_tokens=64, messages=QUESTION, stream=True)
            assert "content_block_start" == [event.type for event in islice(stream, 2)][-1]
        hold.set()
        rest = [event.type for event in stream]
        optree.flush()
    assert "message_stop" == rest[-1]
    [op] = llms(caught)
    assert [("weather", "call-1")] == [(one["name"], one["id"]) for one in op.attributes["response.tool_calls"]]
    assert [{"city": "Athens"}] == [block["input"] for block in decode(op.response.payload)["content"]]
    assert [(8, 21)] == [(entry.tokens.input_tokens, entry.tokens.output_tokens) for entry in op.accounting]


def chat_to_its_end(url):
    """Read OpenAI's chat as far as what it took, and leave the stream open."""
    stream = _openai(url).chat.completions.create(model="gpt-5", messages=QUESTION, stream=True)
    next(chunk for chunk in stream if chunk.usage)
    return stream


def response_to_its_end(url):
    """Read OpenAI's responses as far as the last event, and leave the stream open."""
    stream = _openai(url).responses.create(model="gpt-5", input=QUESTION, stream=True)
    next(event for event in stream if event.type == "response.completed")
    return stream


def message_to_its_end(url):
    """Read Anthropic's messages as far as the last event, and leave the stream open."""
    stream = _anthropic(url).messages.create(model="claude-5", max_tokens=64, messages=QUESTION, stream=True)
    next(event for event in stream if event.type == "message_stop")
    return stream


def ollama_to_its_end(url):
    """Read Ollama's chat as far as the last line, and leave the stream open."""
    client = httpx.Client()
    asked = client.build_request("POST", f"{url}/api/chat", json={"model": "qwen", "messages": QUESTION})
    stream = client.send(asked, stream=True)
    lines = stream.iter_lines()
    next(line for line in lines if json.loads(line)["done"])
    stream.extensions["kept"] = lines
    return stream


def bedrock_to_its_end(url):
    """Read ConverseStream as far as what it took, and leave the stream open."""
    stream = bedrock(url).converse_stream(modelId=MODEL, messages=BEDROCK_QUESTION)["stream"]
    next(event for event in stream if "metadata" in event)
    return stream


TO_THE_END = [
    (chat_to_its_end, CHAT_EVENTS), (response_to_its_end, RESPONSE_EVENTS), (message_to_its_end, MESSAGE_EVENTS),
    (ollama_to_its_end, Reply(*(json.dumps(line).encode() + b"\n" for line in OLLAMA_LINES), kind="application/x-ndjson")),
    (bedrock_to_its_end, next(reply for call, reply, *_ in BEDROCK_CALLS if call is converse_stream)),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "reply"), TO_THE_END)
def test_a_turn_that_fails_right_behind_the_last_piece(provider, ask, reply):
    """An answer that came whole is recorded as one, though a turn ends at once, by an exception, and nobody closes the stream before."""
    provider.says(reply)
    held = []

    def fails():
        with optree.turn():
            held.append(ask(provider.url))
            raise KeyError("Athens")

    with capture() as caught, optree.session("agent"), pytest.raises(KeyError):
        fails()
    held[0].close()
    [op] = llms(caught)
    assert ("ok", None, None) == (op.status, op.error, op.response.partial)
