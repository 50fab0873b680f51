"""What an llm op has beside request and answer: when its stream came, a refusal's limits, and with `trace_llm` HTTP's details."""

import contextlib
import re
import time
from itertools import pairwise

import httpx
import openai
import pytest

import optree
from optree._capture.calls.details import Details
from optree._console import LineOptions, LineRenderer
from optree._tree import walk_ops
from optree._tree.unfold import unfold
from optree._values import decode
from optree.testing import capture
from tests.capture.provider import EVENTS, Reply, events
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, MESSAGE_EVENTS, QUESTION, RESPONSE_EVENTS

CHATTED = [{"choices": [{"delta": {"content": "It "}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
TOLD = {"x-ratelimit-remaining-requests": "59", "openai-processing-ms": "12", "set-cookie": "__cf_bm=secret"}


@pytest.fixture
def client(provider):
    """Return a client of OpenAI's that sends nothing again by itself."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def lines_of(recording):
    """Return the lines of the only op that are traced: direction, text with figures that change as N, details."""
    [(_, _, op)] = walk_ops(recording.tree)
    told = [(one.direction, re.sub(r"\d\.\d{3} s", "N s", one.message), one.details) for one in op.logs if one.severity == "TRC"]
    return [(direction, message, decode(details) if details else None) for direction, message, details in told]


def test_a_call(recording, provider, client):
    """It has what was sent where, the answer's status and headers without cookies, its size, and how long that took (S4-120)."""
    optree.configure(trace_llm=True)
    provider.says(Reply(*CHAT.pieces, headers=TOLD))
    client.chat.completions.create(model="gpt-5", messages=QUESTION)
    size, [(_, body)] = len(CHAT.pieces[0]), provider.requests
    sent, head, over = lines_of(recording)
    assert ("request", f"POST /v1/chat/completions, {len(body):,} bytes", None) == sent
    assert ("response", "200 OK after N s", None, "59", str(size)) == (
        *head[:2],
        head[2]["headers"].get("set-cookie"),
        head[2]["headers"]["x-ratelimit-remaining-requests"],
        head[2]["headers"]["content-length"],
    )
    assert ("response", f"{size:,} bytes in N s", None) == over


@pytest.mark.parametrize(
    ("reply", "kinds"),
    [
        (CHAT_EVENTS, f"{len(CHAT_EVENTS.pieces) - 1} chat.completion.chunk"),
        (RESPONSE_EVENTS, "response.output_text.delta"),
    ],
)
def test_a_stream(recording, provider, client, reply, kinds):
    """It has how many events of which types came, how many bytes, and how long that took (S4-120)."""
    optree.configure(trace_llm=True)
    provider.says(reply)
    ask = client.responses.create if reply is RESPONSE_EVENTS else client.chat.completions.create
    told = {"input": "Weather?"} if reply is RESPONSE_EVENTS else {"messages": QUESTION}
    with ask(model="gpt-5", stream=True, **told) as stream:
        assert list(stream)
    direction, said, _ = lines_of(recording)[-1]
    size = sum(map(len, reply.pieces))
    assert ("response", True) == (direction, f" events, {size:,} bytes in N s: " in said)
    assert kinds in said


def test_what_is_printed(recording, provider, client):
    """The lines stand on the console at the op's path, credentials in them replaced (S4-120)."""
    optree.configure(trace_llm=True)
    provider.says(Reply(*CHAT.pieces, headers={"x-debug": "Bearer sk-proj-0123456789abcdefghijABCDEFGHIJ"}))
    client.chat.completions.create(model="gpt-5", messages=QUESTION)
    renderer = LineRenderer("txn", LineOptions(trace_llm=True))
    lines = [line for record in unfold(recording.tree) for line in renderer.render(record)]
    [sent] = [line for line in lines if "POST /v1/chat/completions" in line]
    [head] = [line for line in lines if "200 OK" in line]
    assert ("[path:1.1]", True) == (sent.split()[1], "[TRC] → llm openai-compatible:gpt-5: POST" in sent)
    assert ([], 1) == ([line for line in lines if "sk-proj" in line], head.count("x-debug"))


def test_by_default_nothing_is_traced(recording, provider, client):
    """Without the setting no line of that severity is recorded, and no header."""
    provider.says(Reply(*CHAT.pieces, headers=TOLD))
    client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert [] == lines_of(recording)
    assert b"ratelimit" not in repr(recording.tree).encode()


def test_a_call_that_nobody_answers(recording):
    """What found no server has the line of what was sent alone."""
    optree.configure(trace_llm=True)
    with pytest.raises(httpx.ConnectError):
        httpx.post("http://127.0.0.1:9/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION})
    assert ["request"] == [direction for direction, _, _ in lines_of(recording)]


@pytest.mark.parametrize("traced", [False, True])
def test_the_limits_of_a_refusal(recording, provider, client, traced):
    """When more may be asked, and how much, is in the details of the warning of an attempt that was refused."""
    optree.configure(trace_llm=traced)
    limits = {"retry-after": "20", "x-ratelimit-remaining-tokens": "0", "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:00Z"}
    provider.says(Reply({"error": {"message": "slow down"}}, status=429, headers={**limits, "openai-processing-ms": "12"}))
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    [(_, _, op)] = walk_ops(recording.tree)
    [warning] = [one for one in op.logs if one.severity == "WRN"]
    assert (limits, "rate_limit") == (decode(warning.details)["headers"], decode(warning.details)["error.class"])


OPENED = [
    pytest.param("v1/chat/completions", events({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, *CHATTED), id="a role"),
    pytest.param("v1/chat/completions", events({"choices": [], "prompt_filter_results": []}, *CHATTED), id="azure"),
    pytest.param("v1/responses", RESPONSE_EVENTS, id="responses"),
    pytest.param("v1/messages", MESSAGE_EVENTS, id="messages"),
]


@pytest.mark.parametrize(("url", "reply"), OPENED)
def test_when_the_first_piece_came(recording, provider, url, reply):
    """How long the first event took that has anything of the answer is an attribute, while the stream goes on; none that only opens it."""

    class Body(httpx.SyncByteStream):
        def __iter__(self):
            at = next(at for at, piece in enumerate(reply.pieces) if b"It " in piece)
            yield b"".join(reply.pieces[:at])
            yield reply.pieces[at]
            yield b"".join(reply.pieces[at + 1 :])

    answer = httpx.Response(200, headers={"content-type": EVENTS}, stream=Body())
    client = httpx.Client(transport=httpx.MockTransport(lambda _request: answer))

    def first():
        assert optree.flush()
        [(_, _, op)] = walk_ops(recording.tree)
        return op.attributes.get("time_to_first_chunk")

    asked = {"model": "m", ("input" if reply is RESPONSE_EVENTS else "messages"): QUESTION, "stream": True}
    with optree.session("agent"), optree.turn(), client:
        began = time.monotonic()
        with client.stream("POST", f"{provider.url}/{url}", json=asked) as response:
            pieces = response.iter_raw()
            next(pieces)
            assert first() is None
            next(pieces)
            assert 0 < (came := first()) <= time.monotonic() - began
            list(pieces)
    assert came == first()


def test_a_program_says_it_itself(recording, provider, client):
    """What the program records in an op of its own stands."""
    provider.says(CHAT_EVENTS)
    with optree.session("agent"), optree.turn(), optree.llm(provider="openai", model="gpt-5", time_to_first_chunk=7.0):
        list(client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True))
    [(_, _, op)] = walk_ops(recording.tree)
    assert 7.0 == op.attributes["time_to_first_chunk"]


def test_when_how_much_had_come(recording, provider, client):
    """An op has points of its stream: seconds, and bytes that had come by then, the last of which has all."""
    provider.says(CHAT_EVENTS)
    list(client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True))
    [(_, _, op)] = walk_ops(recording.tree)
    points = op.attributes["stream.timeline"]
    assert (sum(map(len, CHAT_EVENTS.pieces)), sorted(points)) == (points[-1][1], points)
    assert op.attributes["time_to_first_chunk"] <= op.latency / 1e3


def test_a_long_stream_has_some_points():
    """Of many pieces the points are in even distances, and the last is that of the end."""
    with capture() as recording, optree.session("agent"), optree.turn(), optree.llm() as op:
        details = Details(op, 0.0)
        for number in range(1, 10_001):
            details.reads(float(number), number)
        details.over(10_000)
    [(_, _, node)] = walk_ops(recording.tree)
    points = node.attributes["stream.timeline"]
    assert 64 <= len(points) <= 128
    assert {128} == {after[1] - before[1] for before, after in pairwise(points[:-1])}
    assert 10_000 == points[-1][1]


def test_an_answer_that_is_no_stream_has_neither(recording, provider, client):
    """An answer that comes as one document has no first piece and no points."""
    provider.says(CHAT)
    client.chat.completions.create(model="gpt-5", messages=QUESTION)
    [(_, _, op)] = walk_ops(recording.tree)
    assert set() == op.attributes.keys() & {"time_to_first_chunk", "stream.timeline"}


def test_a_stream_that_its_client_has_read_whole(recording, provider):
    """Of a stream that comes as one body nobody knows when it began: it has neither, and the line of its end has all of its bytes."""
    optree.configure(trace_llm=True)
    provider.says(CHAT_EVENTS)
    httpx.post(f"{provider.url}/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION, "stream": True})
    [(_, _, op)] = walk_ops(recording.tree)
    assert set() == op.attributes.keys() & {"time_to_first_chunk", "stream.timeline"}
    _, said, _ = lines_of(recording)[-1]
    assert f" events, {sum(map(len, CHAT_EVENTS.pieces)):,} bytes in N s: " in said


def test_the_size_of_a_refusal(recording, provider, client):
    """The line of a refusal's end has the size of its body."""
    optree.configure(trace_llm=True)
    provider.says(refusal := Reply({"error": {"message": "slow down"}}, status=429))
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert ("response", f"{len(refusal.pieces[0])} bytes in N s", None) == lines_of(recording)[-1]


def test_a_stream_that_is_read_when_its_turn_has_ended(recording, provider):
    """The end of a turn around a stream of which nothing has come yet is no point of it."""
    provider.says(CHAT_EVENTS)
    asked = {"model": "gpt-5", "messages": QUESTION, "stream": True}
    with contextlib.ExitStack() as stack, httpx.Client() as client:
        with optree.session("agent"), optree.turn():
            response = stack.enter_context(client.stream("POST", f"{provider.url}/v1/chat/completions", json=asked))
        assert list(response.iter_raw())
    [(_, _, op)] = walk_ops(recording.tree)
    points = op.attributes["stream.timeline"]
    assert (sum(map(len, CHAT_EVENTS.pieces)), []) == (points[-1][1], [point for point in points if point[0] < 0 or not point[1]])
