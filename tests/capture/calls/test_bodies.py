"""The values of an answer's bytes, however these are cut, in time that grows with them."""

import json
import zlib

import pytest

from optree._capture.calls.bodies import Body
from optree._providers.answers import Assembly
from optree._values import MAX_TEXT, decode, dumps
from tests.capture.provider import AWS_EVENTS, aws_event
from tests.growth import SQUARE, growth

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
STREAM = (
    b'data: {"a": 1}\r\n\r\n: hi\r\ndata: {"b":\r\ndata: 2}\r\n\r\ndata: nonsense\n\n'
    b'data: {"c": "\\ud83d"}\n\ndata: {"n": NaN}\n\ndata: [DONE]\n\n'
)
VALUES = [{"a": 1}, {"b": 2}, {"c": "�"}]


def read(body, pieces):
    """Return the values of pieces, and of the end."""
    return [value for piece in pieces for value in body.feed(piece)] + list(body.feed(b"", last=True))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_events_in_pieces(size):
    """Events are the same however they are cut; one that is no JSON is said, and those behind it are read."""
    body = Body(EVENTS, "")
    found = read(body, [STREAM[at : at + size] for at in range(0, len(STREAM), size)])
    assert VALUES == found[:3]
    assert [{"n"}] == [set(one) for one in found[3:]]
    assert body.is_over
    assert ("a part of the answer is not JSON, and is not recorded: 8 bytes", b"data: nonsense\n\n") == (body.flaw, body.text)


def test_lines():
    """A value a line, the last one without an end."""
    body = Body("application/x-ndjson", "")
    assert [{"a": 1}, {"b": 2}] == read(body, [b'{"a"', b': 1}\n\n{"b": 2}'])


def test_a_long_stream_is_read_to_its_end():
    """More than 64 MiB of events are no reason to stop."""
    body = Body(EVENTS, "")
    event = b"data: " + json.dumps({"t": "x" * (1 << 20)}).encode() + b"\n\n"
    assert 70 == sum(1 for _ in range(70) for _ in body.feed(event))
    assert body.flaw is None


def test_a_stream_that_unpacks_without_end():
    """A packed stream of which a little unpacks to more than 64 MiB is read so far, and no further; that is said."""
    packer = zlib.compressobj(1, wbits=31)
    packed = b"".join(packer.compress((b": " + b"x" * 1021 + b"\n") * 1024) for _ in range(70))
    body = Body(EVENTS, "gzip")
    assert [] == read(body, [packed + packer.compress(b'data: {"a": 1}\n\n') + packer.flush()])
    assert "of an answer with more than 64 MiB in one piece the rest is not recorded" == body.flaw


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_what_is_skipped_of_events(end):
    """Behind bytes that were not seen the next whole event is read, wherever in an event they ended; how many they were is said."""
    data = b"".join(b'data: {"a":' + end + b"data: %d}" % number + end + end for number in range(20))
    whole = [{"a": number} for number in range(20)]
    for gap in range(len(data) - 200):
        body = Body(EVENTS, "")
        before = list(body.feed(data[:gap]))
        body.skip(100)
        after = read(body, [data[gap + 100 :]])
        assert whole[: len(before)] == before
        assert whole[-len(after) :] == after
        assert 20 - 100 // 15 - 3 <= len(before) + len(after) < 20
        assert "100 bytes" in body.flaw


def test_what_is_skipped_of_lines():
    """Behind bytes that were not seen the next whole line is read."""
    body = Body("application/x-ndjson", "")
    assert [{"a": 1}] == list(body.feed(b'{"a": 1}\n{"a"'))
    body.skip(9)
    body.skip(5)
    assert [{"a": 5}] == read(body, [b'4}\n{"a": 5}\n'])
    assert "14 bytes" in body.flaw


@pytest.mark.parametrize(("kind", "encoding"), [("application/json", ""), (EVENTS, "gzip")])
def test_what_is_skipped_of_others(kind, encoding):
    """Of one document, and of what is packed, nothing is read behind bytes that were not seen."""
    body = Body(kind, encoding)
    body.skip(9)
    assert [] == read(body, [b'{"a": 1}'])
    assert "9 bytes of it are not recorded, nor what is behind them" in body.flaw


@pytest.mark.parametrize(("kind", "line"), [(LINES, b"no json\n"), (EVENTS, b"data: no json\n\n")])
def test_many_parts_that_are_no_json(kind, line):
    """After a thousand the rest is not looked at: each takes its time, which is the program's."""
    body = Body(kind, "")
    good = b'{"a": 1}\n' if kind == LINES else b'data: {"a": 1}\n\n'
    assert [{"a": 1}] == list(body.feed(line * 1000 + good))
    assert [] == list(body.feed(line + good, last=True))
    assert "more than 1,000 parts of the answer are not JSON: they and the rest are not recorded" == body.flaw


def test_a_long_text_is_cut():
    """Of a streamed text that is longer than texts are kept the beginning stands in the answer, behind both sizes."""
    assembly = Assembly()
    for _ in range(5000):
        assembly.take({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "x" * 500}}]}, decoded=True)
    [choice] = assembly.whole()["choices"]
    content = choice["message"]["content"]
    assert f"[TRUNCATED] Original size 2500000 characters; truncated to {MAX_TEXT} characters.\n\n" + "x" * MAX_TEXT == content


def _delta(**said):
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": said}]}


@pytest.mark.parametrize(
    ("first", "odd"),
    [
        *[(_delta(content="x"), _delta(**{name: odd})) for name in ("content", "reasoning", "refusal", "tool_calls")
          for odd in (5, {"a": 1}, [1], [{"type": "text", "text": 7}], [{"type": "thinking", "thinking": [{"text": 7}]}])],
        *[({"type": "message-start"},
           {"type": kind, "index": index, "delta": {"message": {"content": odd, "tool_plan": odd, "tool_calls": odd}}})
          for kind in ("content-start", "content-delta", "tool-plan-delta", "tool-call-delta", "message-end", "citation-start")
          for index in (0, -5, "a") for odd in (5, [1], {"text": 5}, {"text": {}}, {"function": {"arguments": 5}})],
        *[({"object": "text_completion", "choices": []}, {"object": "text_completion", "choices": [{"text": odd}]})
          for odd in (5, [1], {})],
    ],
)  # fmt: skip
def test_chunks_of_odd_values(first, odd):
    """What a chunk has in place of a text is taken for none; pieces are texts, and the answer can be put together."""
    assembly = Assembly()
    pieces = [assembly.take(chunk, decoded=True) for chunk in (first, odd, first)]
    assert all(piece is None or {str} == {type(said) for said in piece} for piece in pieces)
    assert assembly.whole() == decode(dumps(assembly.whole()))


@pytest.mark.slow
def test_a_large_event_in_small_pieces():
    """The time for one event grows with its size, not with the square of it."""

    def reading(size):
        data = b'data: {"t": "' + b"x" * size + b'"}\n\n'
        pieces = [data[at : at + 256] for at in range(0, len(data), 256)]
        return lambda: read(Body(EVENTS, ""), pieces)

    assert growth(reading, 1 << 16) < SQUARE  # both fit a processor's cache


@pytest.mark.slow
def test_an_answer_of_many_chunks():
    """The time for an answer grows with its chunks, not with the square of them."""
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "x" * 500}}]}

    def taking(chunks):
        def work():
            assembly = Assembly()
            for _ in range(chunks):
                assembly.take(chunk, decoded=True)
            assembly.whole()

        return work

    assert growth(taking, 2000) < SQUARE


@pytest.mark.slow
def test_many_frames_at_once():
    """The time for frames that come in one piece, as where a client has read them whole, grows with them, not with the square of them."""
    frame = aws_event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "x" * 40}})

    def reading(count):
        return lambda: read(Body(AWS_EVENTS, ""), [frame * count])

    assert growth(reading, 4000) < SQUARE
