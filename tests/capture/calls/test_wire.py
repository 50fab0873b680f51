"""Requests of any client on httpx are told by their path and body, answers by their shape."""

import asyncio
import importlib
import json
from contextlib import nullcontext
from datetime import timedelta

import httpx
import pytest

import optree
from optree import _speed as speed
from optree._capture.calls.begin import begin
from optree._nodes import Tokens
from optree._providers.messages import ReasoningPart, ToolCallPart, answers, message
from optree._tree import walk_ops
from optree._values import decode

JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}
CHAT = {"object": "chat.completion", "model": "qwen", "choices": [_CHOICE], "usage": {"prompt_tokens": 12, "completion_tokens": 2}}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Weather?"}]}]}
GEMINI_USAGE = {"promptTokenCount": 12, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 17}
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3:"


def _part(text, **more):
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, **more}], "modelVersion": "gemini-3"}


PARTS = [_part("It "), {**_part("rains", finishReason="STOP"), "usageMetadata": GEMINI_USAGE}]
OLLAMA = {"model": "qwen", "messages": [{"role": "user", "content": "Weather?"}]}
OLLAMA_LINES = [
    {"model": "qwen", "message": {"role": "assistant", "content": "It "}, "done": False},
    {"model": "qwen", "message": {"role": "assistant", "content": "rains"}, "done": True, "prompt_eval_count": 12, "eval_count": 2},
]
COHERE = {"model": "command-a", "messages": [{"role": "user", "content": "Weather?"}], "stream": False}
COHERE_USAGE = {
    "billed_units": {"input_tokens": 6, "output_tokens": 2},
    "tokens": {"input_tokens": 12, "output_tokens": 2},
    "cached_tokens": 4,
}
COHERE_CALL = {"id": "weather_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Athens"}'}}


def _cohere(kind, **message):
    return {"type": kind, "index": 0, "delta": {"message": message}}


COHERE_EVENTS = [
    {"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}}},
    _cohere("content-start", content={"type": "text", "text": ""}),
    _cohere("content-delta", content={"text": "It "}),
    _cohere("content-delta", content={"text": "rains"}),
    {"type": "content-end", "index": 0},
    {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": COHERE_USAGE}},
]
COHERE_TOOLS = [
    {"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}}},
    _cohere("tool-plan-delta", tool_plan="I look "),
    _cohere("tool-plan-delta", tool_plan="outside."),
    _cohere("tool-call-start", tool_calls={**COHERE_CALL, "function": {"name": "weather", "arguments": ""}}),
    _cohere("tool-call-delta", tool_calls={"function": {"arguments": '{"city": '}}),
    _cohere("tool-call-delta", tool_calls={"function": {"arguments": '"Athens"}'}}),
    {"type": "tool-call-end", "index": 0},
    {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": COHERE_USAGE}},
]
MISTRAL_THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Look outside."}]}


def _mistral(finish=None, **delta):
    return {"id": "m-1", "object": "chat.completion.chunk", "model": "magistral", "choices": [
        {"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip


MISTRAL_CALL = {"id": "weather1", "index": 0, "function": {"name": "weather", "arguments": '{"city": "Athens"}'}}
MISTRAL_CHUNKS = [
    _mistral(role="assistant", content=[MISTRAL_THOUGHT]),
    _mistral(content=[{"type": "text", "text": "It "}]),
    _mistral(content="rains"),
    {**_mistral("tool_calls", content="", tool_calls=[MISTRAL_CALL]), "usage": {**CHAT["usage"], "total_tokens": 14}},
]


def _sse(*values):
    return "".join(f"data: {json.dumps(value)}\n\n" for value in values)


CASES = [
    pytest.param(
        "https://api.openai.com/v1/completions", {"model": "old", "prompt": "Weather?"}, JSON,
        json.dumps({"object": "text_completion", "model": "old", "choices": [{"index": 0, "text": "It rains", "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}}),
        "openai:old", Tokens(12, 2, 0, 0, 14, 0), id="completions",
    ),
    pytest.param(
        GOOGLE + "generateContent", GEMINI, JSON, json.dumps({**_part("It rains"), "usageMetadata": GEMINI_USAGE}),
        "google:gemini-3", Tokens(12, 5, 0, 0, 17, 3), id="gemini",
    ),
    pytest.param(
        GOOGLE + "streamGenerateContent?alt=sse", GEMINI, EVENTS, "".join(f"data: {json.dumps(part)}\r\n\r\n" for part in PARTS),
        "google:gemini-3", Tokens(12, 5, 0, 0, 17, 3), id="gemini, events",
    ),
    pytest.param(
        GOOGLE + "streamGenerateContent", GEMINI, JSON, json.dumps(PARTS),
        "google:gemini-3", Tokens(12, 5, 0, 0, 17, 3), id="gemini, a list",
    ),
    pytest.param(
        "http://localhost:11434/api/chat", OLLAMA, LINES, "".join(json.dumps(line) + "\n" for line in OLLAMA_LINES),
        "ollama:qwen", Tokens(12, 2, 0, 0, 14, 0), id="ollama",
    ),
    pytest.param(
        "https://api.cohere.com/v2/chat", COHERE, JSON,
        json.dumps({"id": "c-1", "finish_reason": "COMPLETE", "usage": COHERE_USAGE,
                    "message": {"role": "assistant", "content": [{"type": "text", "text": "It rains"}]}}),
        "cohere:command-a", Tokens(8, 2, 4, 0, 14, 0), id="cohere",
    ),
    pytest.param(
        "https://api.cohere.com/v2/chat", COHERE, EVENTS, _sse(*COHERE_EVENTS),
        "cohere:command-a", Tokens(8, 2, 4, 0, 14, 0), id="cohere, events",
    ),
    pytest.param(
        "https://api.mistral.ai/v1/chat/completions", {**OLLAMA, "model": "magistral"}, JSON,
        json.dumps({**CHAT, "model": "magistral", "choices": [{**_CHOICE, "message": {"role": "assistant", "content": [
            MISTRAL_THOUGHT, {"type": "text", "text": "It rains"}]}}]}),
        "mistral:magistral", Tokens(12, 2, 0, 0, 14, 0), id="mistral",
    ),
    pytest.param(
        "https://api.mistral.ai/v1/chat/completions#stream", {**OLLAMA, "model": "magistral"}, EVENTS, _sse(*MISTRAL_CHUNKS),
        "mistral:magistral", Tokens(12, 2, 0, 0, 14, 0), id="mistral, events",
    ),
    pytest.param(
        "http://llm.example/api/v3/ask", OLLAMA, JSON,
        json.dumps(CHAT),
        "openai-compatible:qwen", Tokens(12, 2, 0, 0, 14, 0), id="a chat at an unknown path",
    ),
    pytest.param(
        "https://openrouter.ai/api/v1/chat/completions", OLLAMA, JSON,
        json.dumps({**CHAT, "usage": {**CHAT["usage"], "cost": 0.25}}),
        "openrouter:qwen", Tokens(12, 2, 0, 0, 14, 0), id="openrouter",
    ),
]  # fmt: skip


def client(kind, body):
    """Return a client whose requests are all answered with *body*."""
    return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-type": kind}, content=body.encode())))


@pytest.mark.captured(
    "httpx",
    "requests as those of completions, Gemini, Ollama, Cohere, Mistral, OpenRouter",
    "plain",
    "streamed",
    added="one line",
    checks=("calls", "answers", "tokens"),
)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("url", "sent", "kind", "body", "name", "tokens"), CASES)
def test_a_provider(recording, url, sent, kind, body, name, tokens, streamed):
    """Each interface is told: provider, model, messages, answer and tokens, whether the program streams or reads at once."""
    optree.configure(prices=False)  # the only cost is what the provider says
    with optree.session("agent"), optree.turn():
        if streamed:
            with client(kind, body).stream("POST", url, json=sent) as response:
                assert body == "".join(response.iter_text())
        else:
            assert body == client(kind, body).post(url, json=sent).text
    [(_, _, op)] = walk_ops(recording.tree)
    assert ("ok", name, tokens) == (op.status, op.name, op.accounting[0].tokens)
    [question] = recording.tree.pool.resolve(decode(op.request.payload))["messages"]
    assert "Weather?" in str(question)
    answer = bytes(op.response.payload)
    assert b"It " in answer
    assert b"rains" in answer
    assert (0.25 if "openrouter" in url else None) == op.accounting[0].cost_usd


@pytest.mark.captured("httpx", "requests as those of Cohere, Mistral", "streamed", "thinking", "tools", added="one line", checks="answers")
@pytest.mark.parametrize(
    ("url", "body", "thought"),
    [
        pytest.param("https://api.cohere.com/v2/chat", _sse(*COHERE_TOOLS), "I look outside.", id="cohere"),
        pytest.param("https://api.mistral.ai/v1/chat/completions#stream", _sse(*MISTRAL_CHUNKS), "Look outside.", id="mistral"),
    ],
)
def test_what_a_stream_thinks_and_asks_for(recording, url, body, thought):
    """Of a stream's events the reasoning is recorded as it comes, and with the tool calls it stands in the answer."""
    with optree.session("agent"), optree.turn():
        client(EVENTS, body).post(url, json=OLLAMA)
    [(_, _, op)] = walk_ops(recording.tree)
    assert thought == "".join(chunk.text for chunk in op.reasoning.chunks)
    [answer] = answers(decode(op.response.payload))
    parts = message(answer.messages[0]).parts
    assert [thought] == [part.text for part in parts if isinstance(part, ReasoningPart)]
    assert [("weather", {"city": "Athens"})] == [(part.name, part.decoded()) for part in parts if isinstance(part, ToolCallPart)]


def test_a_stream_that_comes_faster_than_it_is_read(recording):
    """Of more than 4 MiB that wait to be read the oldest are left out, which is said; the last events are read, with the tokens."""
    chunk = {"object": "chat.completion.chunk", "model": "qwen", "choices": [{"index": 0, "delta": {"content": "x" * 1000}}]}
    usage = {"object": "chat.completion.chunk", "choices": [], "usage": CHAT["usage"]}
    with optree.session("agent"), optree.turn():
        exchange = begin("POST", "llm.example", "/v1/chat/completions", json.dumps(OLLAMA).encode())
        exchange.responded(200, [(b"content-type", EVENTS.encode())], None)
        with exchange._lock:
            for value in [*[chunk] * 10_000, usage]:
                exchange.note(b"data: " + json.dumps(value).encode() + b"\n\n")
            assert 4.3e6 > sum(len(piece) for _, piece in exchange._chunks)
        exchange.ended(None)
    [(_, _, op)] = walk_ops(recording.tree)
    assert ("ok", Tokens(12, 2, 0, 0, 14, 0)) == (op.status, op.accounting[0].tokens)
    assert 1 == sum("came faster than it can be read" in log.message for log in op.logs)
    assert op.response.truncated


@pytest.mark.parametrize(
    "sent",
    [
        {"messages": "none", "model": "m"},
        {"messages": {}, "model": "m"},
        {"messages": [{"to": "+1", "text": "hi"}]},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"messages": [], "model": "m"}},
        [1],
        "text",
    ],
)
def test_what_asks_no_model(recording, sent):
    """A body that is not a model's request is none."""
    with optree.session("agent"), optree.turn():
        client(JSON, "{}").post("http://example.com/api", json=sent)
        client(JSON, "{}").post("http://example.com/v1/messages/count_tokens", json={"model": "m", "messages": []})
        client(JSON, "{}").post("http://example.com/v1/messages", json={"messages": [{"to": "+1", "text": "hi"}]})
        client(JSON, "{}").post("http://example.com/surveys/7/responses", json={"input": {"age": 7}})
        client(JSON, "{}").get("http://example.com/v1/chat/completions")
        client(JSON, "{}").post("http://example.com/v1/chat/completions", content=iter([b"{}"]))
    assert [] == list(walk_ops(recording.tree))


@pytest.mark.parametrize("within", [optree.llm, nullcontext])
@pytest.mark.parametrize("choice", [_CHOICE, _CHOICE | {"error": {"code": 502, "message": "Broke"}}], ids=["whole", "error"])
def test_an_answer_that_tells_a_cost_alone(recording, within, choice):
    """What a router says that a call costs is its cost, also where it tells no tokens, and of an answer that is an error."""
    answer = json.dumps(CHAT | {"choices": [choice], "usage": {"cost": 0.5}})
    with optree.session("agent"), optree.turn(), within():
        client(JSON, answer).post("https://openrouter.ai/api/v1/chat/completions", json=OLLAMA)
    [(_, _, op)] = walk_ops(recording.tree)
    assert [0.5] == [entry.cost_usd for entry in op.accounting]
    assert [] == [line.message for line in op.logs if "tells no tokens" in line.message]


@pytest.mark.skipif(not speed.compiled(), reason="the compiled path is not in use")
def test_a_call_that_is_one_document_is_two_writes(recording):
    """What is asked is on the disk before it is sent, and what came of it before the program has it: each in one write."""
    batches = []

    class Batches:
        def take(self, batch):
            batches.append([type(record).__struct_config__.tag for record in batch])

    with optree.session("agent") as session, optree.turn():
        session.builder.core.stream._write = "structure"  # as that of a session on the disk
        session.builder.core.stream.subscribe(Batches(), ordered=False)
        exchange = begin("POST", "llm.example", "/v1/chat/completions", json.dumps(OLLAMA).encode())
        asked = batches[:]
        exchange.responded(200, [(b"content-type", JSON.encode())], json.dumps(CHAT).encode())
        assert [["op.begin", "pool", "request"], ["accounting", "response", "op.end"]] == batches
        assert 1 == len(asked)
    assert 1 == recording.tree.session.totals.llm_requests


@pytest.mark.parametrize("usage", [{"prompt_tokens": "many"}, "many", [1]])
@pytest.mark.parametrize("own", [False, True])
def test_a_usage_that_cannot_be_read(recording, usage, own):
    """Tokens that an answer tells, and that cannot be read, are unknown, not 0."""
    with optree.session("agent"), optree.turn(), optree.llm("openai:gpt-5") if own else nullcontext():
        client(JSON, json.dumps(CHAT | {"usage": usage})).post("https://api.openai.com/v1/chat/completions", json=OLLAMA)
    [(_, _, op)] = walk_ops(recording.tree)
    assert [(None, "ok")] == [(entry.tokens, entry.status) for entry in op.accounting]


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_how_long_a_stream_took(recording, library):
    """The response of a stream says how long it took, as it does without hooks, read or closed, in an event loop too."""
    module = importlib.import_module(library)
    transport = module.MockTransport(lambda _request: module.Response(200, stream=module.ByteStream(b"")))

    async def awaited(client):
        async with client, client.stream("POST", "https://api.openai.com/v1/chat/completions", json=OLLAMA) as response:
            await response.aread()
        return response.elapsed

    def found():
        client = module.Client(transport=transport)
        with client.stream("POST", "https://api.openai.com/v1/chat/completions", json=OLLAMA) as response:
            response.read()
        return [type(took) for took in (response.elapsed, asyncio.run(awaited(module.AsyncClient(transport=transport))))]

    with optree.session("asker"), optree.turn():
        assert [timedelta, timedelta] == found()
    assert 2 == len(list(walk_ops(recording.tree.session)))


def test_an_asynchronous_stream_that_is_left(recording):
    """What a transport reads it by is closed with it, in the task of the program, and not where it is collected."""
    module, closed = importlib.import_module("httpx2"), []

    class Stream(module.AsyncByteStream):
        async def __aiter__(self):
            try:
                yield b"data: {}\n\n"
                yield b"data: {}\n\n"
            finally:
                closed.append(asyncio.current_task())

    async def program():
        transport = module.MockTransport(lambda _request: module.Response(200, headers={"content-type": EVENTS}, stream=Stream()))
        asking = module.AsyncClient(transport=transport)
        async with asking, asking.stream("POST", "https://api.openai.com/v1/chat/completions", json=OLLAMA) as response:
            pieces = response.stream.__aiter__()
            await anext(pieces)
            await pieces.aclose()
            assert [asyncio.current_task()] == closed

    with optree.session("asker"), optree.turn():
        asyncio.run(program())
    assert 1 == len(list(walk_ops(recording.tree.session)))


def _chunk(delta, at=0, **more):
    return {"object": "chat.completion.chunk", "model": "m", "choices": [{"index": at, "delta": delta, **more}]}


USED = {"object": "chat.completion.chunk", "model": "m", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 2}}


def streamed(recording, *events):
    """Return the op of a streamed chat, and its answer."""
    with optree.session("agent"), optree.turn():
        client(EVENTS, _sse(*events) + "data: [DONE]\n\n").post("https://api.openai.com/v1/chat/completions", json=OLLAMA)
    [(_, _, op)] = walk_ops(recording.tree)
    return op, decode(op.response.payload)


def test_choices_that_begin_in_any_order(recording):
    """Each of several answers in one stream has its own text and end, whichever comes first."""
    texts = [_chunk({"content": f"answer {at}"}, at) for at in (1, 0, 2)]
    _, answer = streamed(recording, *texts, *[_chunk({}, at, finish_reason="stop") for at in (2, 0, 1)], USED)
    assert [(f"answer {at}", "stop") for at in range(3)] == [(one["message"]["content"], one["finish_reason"]) for one in answer["choices"]]


@pytest.mark.parametrize("numbers", [(0, 1), (1, 2), (1, 0)])
def test_tool_calls_by_their_numbers(recording, numbers):
    """Two calls are two, though a gateway counts a text as the first part, or gives the second one first."""
    begun = [{"index": at, "id": f"c{at}", "function": {"name": f"f{at}", "arguments": ""}} for at in numbers]
    rest = [{"index": at, "function": {"arguments": "{}"}} for at in numbers]
    _, answer = streamed(recording, *[_chunk({"tool_calls": [one]}) for one in begun + rest], _chunk({}, finish_reason="tool_calls"), USED)
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [(f"f{at}", "{}") for at in sorted(numbers)] == [(one["function"]["name"], one["function"]["arguments"]) for one in calls]


def test_what_a_stream_says_beside_its_text(recording, tmp_path):
    """Sources, probabilities, a call of the older kind and reasoning in parts are in the answer; what a search cost is unknown."""
    (prices := tmp_path / "prices.json").write_text(json.dumps({"openai": {"m": {"input": 1, "output": 1}}}))
    optree.configure(prices=prices)
    cited = [{"type": "url_citation", "url_citation": {"url": f"https://example.com/{at}"}} for at in (1, 2)]
    thought = {"type": "reasoning.text", "index": 0}
    op, answer = streamed(
        recording,
        _chunk({"role": "assistant", "content": "It "}, logprobs={"content": [{"token": "It ", "logprob": -0.5}]}),
        _chunk({"content": "rains"}, logprobs={"content": [{"token": "rains", "logprob": -0.25}]}),
        _chunk({"annotations": cited[:1]}),
        _chunk({"annotations": cited[1:]}),
        _chunk({"reasoning_details": [{**thought, "text": "Look "}]}),
        _chunk({"reasoning_details": [{**thought, "text": "outside", "signature": "s"}]}),
        _chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
        _chunk({"function_call": {"arguments": ":1}"}}),
        _chunk({"audio": {"id": "a", "data": "AAAA", "transcript": "It"}}),
        _chunk({}, finish_reason="stop", content_filter_results={"hate": {"filtered": False}}),
        USED,
    )
    assert {
        "message": {
            "role": "assistant",
            "content": "It rains",
            "annotations": cited,
            "reasoning_details": [{**thought, "text": "Look outside", "signature": "s"}],
            "function_call": {"name": "f", "arguments": '{"a":1}'},
            "audio": {"id": "a", "transcript": "It"},
        },
        "logprobs": {"content": [{"token": "It ", "logprob": -0.5}, {"token": "rains", "logprob": -0.25}]},
        "finish_reason": "stop",
        "content_filter_results": {"hate": {"filtered": False}},
    } == answer["choices"][0]
    assert [(14, None)] == [(one.tokens.total_tokens, one.cost_usd) for one in op.accounting]


@pytest.mark.parametrize(
    ("path", "sent", "kind"),
    [
        pytest.param("/v1/responses", {"prompt": {"id": "pmpt_1"}}, "response", id="a prompt that the provider keeps"),
        pytest.param("/v1/responses", {"prompt": {"id": "pmpt_1"}, "input": "Weather?"}, "response", id="and what the user says"),
        pytest.param("/v1/responses/compact", {"model": "m", "input": "Weather?"}, "response.compaction", id="a compaction"),
    ],
)
def test_responses_that_are_asked_for_otherwise(recording, path, sent, kind):
    """They are calls of a model too, by the model that answers where none is asked for."""
    usage = {"input_tokens": 12, "output_tokens": 2, "total_tokens": 14}
    answer = {
        "id": "r-1",
        "object": kind,
        "model": "m",
        "status": "completed",
        "output": [{"type": "message", "content": []}],
        "usage": usage,
    }
    with optree.session("agent"), optree.turn():
        client(JSON, json.dumps(answer)).post(f"https://api.openai.com{path}", json=sent)
    [(_, _, op)] = walk_ops(recording.tree)
    [entry] = op.accounting
    assert ("ok", "openai", "m", 14) == (op.status, entry.provider, entry.model, entry.tokens.total_tokens)
    assert answer == decode(op.response.payload)
