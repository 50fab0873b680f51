"""What an answer told of its usage is all, a part, or cannot be read: only of all of it a cost is worked out."""

import json
from contextlib import nullcontext

import pytest

import optree
from optree._tracing.results import ENDED_EARLY
from optree._tree import walk_ops
from optree._values import decode
from tests.capture.calls.test_wire import EVENTS, client

USED = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
STREAMS = {
    "openai:gpt-4o": [
        {"type": "response.created", "response": {"object": "response", "status": "in_progress", "model": "gpt-4o"}},
        {"type": "response.incomplete", "response": {"object": "response", "status": "incomplete", "model": "gpt-4o", "usage": USED}},
    ],
    "google:gemini-2.5-flash": [
        {
            "candidates": [{"content": {"parts": [{"text": "It rains"}]}, "finish_reason": "STOP"}],
            "usage_metadata": {"prompt_token_count": 10, "candidates_token_count": 3},
        }
    ],
    "cohere:command-r": [
        {"type": "message-start", "id": "1"},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": {"tokens": {"input_tokens": 10, "output_tokens": 3}}}},
    ],
    "bedrock:anthropic.claude-3-5-sonnet-20240620-v1:0": [
        {"messageStart": {"role": "assistant"}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"inputTokens": 10, "outputTokens": 3, "totalTokens": 13}}},
    ],
    "ollama:llama3": [
        {
            "model": "llama3",
            "message": {"role": "assistant", "content": "It rains"},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 10,
            "eval_count": 3,
        }
    ],
    "ollama:said-nothing": [
        {
            "model": "said-nothing",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 13,
        }
    ],
    "openai:llama.cpp": [
        {"object": "chat.completion.chunk", "model": "llama.cpp", "choices": [{"index": 0, "delta": {"content": "It rains"}}]},
        {
            "object": "chat.completion.chunk",
            "model": "llama.cpp",
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "timings": {"prompt_n": 10, "predicted_n": 3},
        },
    ],
    "langchain:gpt-4o": [
        {
            "type": "AIMessageChunk",
            "content": "It rains",
            "response_metadata": {"finish_reason": "stop", "model_name": "gpt-4o"},
            "usage_metadata": USED,
        }
    ],
    "anthropic:claude-sonnet-4-5": [
        {
            "type": "message_start",
            "message": {
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [],
                "usage": {"input_tokens": 10, "output_tokens": 1},
            },
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    ],
}
"""Chunks of a whole stream, by the model that says them."""


@pytest.mark.parametrize("model", STREAMS)
@pytest.mark.parametrize("left", [True, False])
def test_what_a_stream_took_that_has_told_all(recording, tmp_path, model, left):
    """A stream that a program leaves behind its last chunk, or reads to its end, has told all: its cost is known."""
    provider, _, name = model.partition(":")
    (prices := tmp_path / "prices.json").write_text(json.dumps({provider: {name: {"input": 1, "output": 1}}}))
    optree.configure(prices=prices)

    @optree.llm(model)
    def ask():
        yield from STREAMS[model]

    with optree.session("a"), optree.turn():
        chunks = ask()
        for _ in STREAMS[model]:
            next(chunks)
        if left:
            chunks.close()
        else:
            assert [] == list(chunks)
    [entry] = recording.tree.session.turns[0].ops[0].accounting
    assert (13, 13e-6) == (entry.tokens.total_tokens, entry.cost_usd)
    assert "partial" not in decode(entry.details)


def test_a_usage_of_geminis_that_cannot_be_read(recording):
    """It is unknown, and no call of 0 tokens."""
    answer = {
        "candidates": [{"content": {"parts": [{"text": "It rains"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": "x"},
    }
    with optree.session("a"), optree.turn():
        optree.llm("google:gemini-2.5-flash")(lambda: answer)()
    assert [None] == [one.tokens for one in recording.tree.session.turns[0].ops[0].accounting]


def test_usages_of_several_answers(recording):
    """One of several answers whose usage cannot be read is a call, with an unknown cost."""
    answers = [
        {
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}],
            "usage": one,
        }
        for one in ({"prompt_tokens": 1, "completion_tokens": 1}, {"prompt_tokens": "x"})
    ]
    with optree.session("a"), optree.turn():
        optree.llm("openai:m")(lambda: answers)()
    assert 2 == recording.tree.session.totals.llm_requests


ANTHROPIC = [
    {
        "type": "message_start",
        "message": {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "usage": {"input_tokens": 10, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains"}},
]
GEMINI = [{"candidates": [{"content": {"parts": [{"text": "It"}]}}], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 1}}]
_CHUNK = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "It"}}]}
CHAT = [{**_CHUNK, "usage": {"prompt_tokens": 10, "completion_tokens": 1}}]


@pytest.mark.parametrize("within", [nullcontext, optree.llm], ids=["outside", "in an op"])
@pytest.mark.parametrize(
    ("url", "events"),
    [
        ("https://api.anthropic.com/v1/messages", ANTHROPIC),
        ("https://generativelanguage.googleapis.com/v1/models/m:streamGenerateContent?alt=sse", GEMINI),
        ("https://api.openai.com/v1/chat/completions", CHAT),
    ],
)
def test_a_stream_that_ends_before_its_end(recording, tmp_path, url, events, within):
    """One that ends without an error, and without a word that it is over, has not told all: it has tokens, a warning and no cost."""
    names = {provider: {"m": {"input": 1, "output": 1}} for provider in ("anthropic", "google", "openai")}
    (prices := tmp_path / "prices.json").write_text(json.dumps(names))
    optree.configure(prices=prices)
    asked = {"model": "m", "messages": [], "contents": [], "stream": True}
    said = "".join(f"data: {json.dumps(one)}\n\n" for one in events)
    with optree.session("a"), optree.turn(), within():
        assert said == client(EVENTS, said).post(url, json=asked).text
        if events is CHAT:
            client(EVENTS, said + "data: [DONE]\n\n").post(url, json=asked)
    ops = [op for _, _, op in walk_ops(recording.tree.session)]
    [entry] = ops[0].accounting
    assert ("ok", 11, None) == (ops[0].status, entry.tokens.total_tokens, entry.cost_usd)
    assert [ENDED_EARLY] == [line.message for line in ops[0].logs]
    assert [11e-6] * (events is CHAT) == [op.accounting[0].cost_usd for op in ops[1:]]


@pytest.mark.parametrize("within", [nullcontext, optree.llm], ids=["outside", "in an op"])
def test_a_response_that_ends_before_its_end(recording, within):
    """Of one of OpenAI's, whose last event has all of it, the text that came is there."""
    begun = {"type": "response.created", "response": {"object": "response", "status": "in_progress", "model": "m", "output": []}}
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text} for text in ("It ", "rains")]
    said = "".join(f"data: {json.dumps(one)}\n\n" for one in (begun, *deltas))
    with optree.session("a"), optree.turn(), within():
        client(EVENTS, said).post("https://api.openai.com/v1/responses", json={"model": "m", "input": "Weather?", "stream": True})
    [(_, _, op)] = walk_ops(recording.tree.session)
    assert ("ok", "It rains") == (op.status, decode(op.response.payload))
    assert [None] == [entry.cost_usd for entry in op.accounting]
    assert ENDED_EARLY in [line.message for line in op.logs]


def test_a_function_that_yields_the_beginning_of_a_stream(recording, tmp_path):
    """What it took is not all known either."""
    (prices := tmp_path / "prices.json").write_text(json.dumps({"anthropic": {"m": {"input": 1, "output": 1}}}))
    optree.configure(prices=prices)

    @optree.llm("anthropic:m")
    def ask():
        yield from ANTHROPIC

    with optree.session("a"), optree.turn():
        list(ask())
    [entry] = recording.tree.session.turns[0].ops[0].accounting
    assert (11, None) == (entry.tokens.total_tokens, entry.cost_usd)


@pytest.mark.parametrize(
    ("url", "sent", "answer"),
    [
        pytest.param(
            "https://aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google/models/m:generateContent",
            {"contents": []},
            {"candidates": [{"content": {"parts": [{"text": "It rains"}]}, "finishReason": "STOP"}],
             "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3, "trafficType": "PROVISIONED_THROUGHPUT"}},
            id="throughput that is paid for by the hour",
        ),
        pytest.param(
            "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse",
            {"messages": []},
            {"output": {"message": {"role": "assistant", "content": [{"text": "It rains"}]}}, "stopReason": "end_turn",
             "usage": {"inputTokens": 10, "outputTokens": 3}, "performanceConfig": {"latency": "optimized"}},
            id="answers that come faster",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [False, True])
def test_traffic_with_a_price_of_its_own(recording, tmp_path, url, sent, answer, own):
    """What it costs is unknown."""
    names = {"vertex": {"m": {"input": 1, "output": 1}}, "bedrock": {"m": {"input": 1, "output": 1}}}
    (prices := tmp_path / "prices.json").write_text(json.dumps(names))
    optree.configure(prices=prices)
    with optree.session("agent"), optree.turn():
        if own:
            with optree.llm():
                client("application/json", json.dumps(answer)).post(url, json=sent)
        else:
            client("application/json", json.dumps(answer)).post(url, json=sent)
    [(_, _, op)] = walk_ops(recording.tree)
    assert [(13, None)] == [(one.tokens.total_tokens, one.cost_usd) for one in op.accounting]
