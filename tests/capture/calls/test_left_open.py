"""Streams that a program leaves open: what has come of them by the end of their turn, of the program, or where an exception breaks in."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import optree
from optree._capture.calls import exchange
from optree._capture.calls.observed import AnswerOverWire
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_ops
from tests.capture.provider import events

URL = "https://api.openai.com/v1/chat/completions"
ASKED = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "Weather?"}]}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
WORDS = [CHUNK | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": word}}]} for word in ("It ", "rains")]
ENDED = CHUNK | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = CHUNK | {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}}
GEMINI = [
    {
        "candidates": [{"content": {"role": "model", "parts": [{"text": word}]}, "index": 0}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": count, "totalTokenCount": 100 + count},
        "modelVersion": "gemini-3",
    }
    for word, count in (("It ", 20), ("rains", 50))
]


class Stream(httpx.SyncByteStream):
    """Gives pieces; what raises is raised, what can be called is called."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def __iter__(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if callable(piece):
                piece()
            else:
                yield piece


def client(*pieces):
    """Return a client that is answered by a stream of these."""
    head = {"content-type": "text/event-stream"}
    return httpx.Client(transport=httpx.MockTransport(lambda _request: httpx.Response(200, headers=head, stream=Stream(*pieces))))


def pieces_of(*values):
    """Return events as they are sent."""
    return events(*values, done=False).pieces


def around_the_end_of_a_turn(asking, url, asked):
    """Ask within a turn that ends behind the first piece; return what the call took by then, and once all is read."""
    found = []
    with asking, optree.session("a") as session:
        with optree.turn():
            response = asking.send(asking.build_request("POST", url, json=asked), stream=True)
            pieces = response.iter_raw()
            next(pieces)
        found.append(tokens(session.tree.session.turns[0].ops[0]))
        list(pieces)
        response.close()
        found.append(tokens(session.tree.session.turns[0].ops[0]))
    return found


def tokens(op):
    """Return what each call of an op took, and how it ended."""
    return [(one.tokens and (one.tokens.input_tokens, one.tokens.output_tokens), one.status) for one in op.accounting]


def text_of(op):
    """Return the text of an answer that came in part."""
    return None if op.response is None else bytes(op.response.payload).decode()


@pytest.mark.parametrize("at", range(len(b"data: [DONE]\n\n") + 1))
@pytest.mark.parametrize("is_cut", [False, True])
def test_the_end_of_a_stream_in_two_pieces(recording, at, is_cut):
    """An answer whose usage has come is whole, wherever the event behind it is cut in two, or the stream ends within it."""
    done = b"data: [DONE]\n\n"
    rest = () if is_cut else (done[at:],)
    with optree.session("a"), optree.turn(), client(*pieces_of(*WORDS, ENDED, USAGE), done[:at], optree.flush, *rest) as asking:
        asking.post(URL, json=ASKED)
    [op] = recording.tree.session.turns[0].ops
    assert ("ok", None, [((12, 2), "ok")]) == (op.status, op.error, tokens(op))


@pytest.mark.parametrize("ends", ["raises", "closed"])
def test_a_stream_that_breaks_off_in_an_op_of_the_programs(recording, ends):
    """Its text is the op's answer, in part, and what it took is unknown; a replay gives it again."""

    def ask(asking):
        with optree.llm(provider="openai", model="gpt-5"), asking.stream("POST", URL, json=ASKED) as response:
            for _ in response.iter_raw():
                if ends == "closed" and response.num_bytes_downloaded > len(pieces_of(WORDS[0])[0]):
                    break

    def run(asking):
        with optree.session("a"), optree.turn(), asking:
            try:
                ask(asking)
            except httpx.ReadError:
                return "raised"
        return "left"

    broken = httpx.ReadError("reset")
    assert {"raises": "raised", "closed": "left"}[ends] == run(client(*pieces_of(*WORDS), broken))
    [op] = recording.tree.session.turns[0].ops
    assert ('"It rains"', [(None, "failed" if ends == "raises" else "ok")]) == (text_of(op), tokens(op))


def test_the_program_shows_what_came_itself(recording):
    """Text that the program streams to its op is not there twice."""

    def ask(asking):
        with optree.llm(provider="openai", model="gpt-5") as op:
            op.chunk("It rains")
            asking.post(URL, json=ASKED)

    broken = client(*pieces_of(*WORDS), httpx.ReadError("reset"))
    with optree.session("a"), optree.turn(), broken as asking, pytest.raises(httpx.ReadError):
        ask(asking)
    [op] = recording.tree.session.turns[0].ops
    assert '"It rains"' == text_of(op)


def test_the_program_shows_behind_the_error_what_came(recording):
    """Text that the program streams to its op once the stream has broken off is there once too."""
    broken = client(*pieces_of(*WORDS), httpx.ReadError("reset"))
    with optree.session("a"), optree.turn(), broken as asking, optree.llm(provider="openai", model="gpt-5") as op:
        with pytest.raises(httpx.ReadError):
            asking.post(URL, json=ASKED)
        op.chunk("It rains")
    [op] = recording.tree.session.turns[0].ops
    assert '"It rains"' == text_of(op)


@pytest.mark.parametrize("shows", [False, True])
def test_a_turn_that_ends_ahead_of_a_stream_in_an_op_of_the_programs(recording, shows):
    """The text that had come by then is the op's answer, in part, and there once; what is read behind that makes it whole."""
    with client(*pieces_of(*WORDS, ENDED, USAGE)) as asking, optree.session("a"):
        with optree.turn():
            op = optree.llm(provider="openai", model="gpt-5").__enter__()
            response = asking.send(asking.build_request("POST", URL, json=ASKED), stream=True)
            pieces = response.iter_raw()
            next(pieces)
            if shows:
                op.chunk("It ")
        node = recording.tree.session.turns[0].ops[0]
        assert '"It "' == text_of(node)
        list(pieces)
        response.close()
    assert "It rains" in text_of(node)
    assert [(12, 2)] == [figures for figures, _ in tokens(node)]


def test_streams_that_have_ended_are_not_held(recording):
    """Of streams one after another only the one that is open is known to the end of the program, and none once it has ended."""
    known = []
    with optree.session("a"), optree.turn():
        for _ in range(3):
            with client(*pieces_of(*WORDS, ENDED, USAGE)) as asking, asking.stream("POST", URL, json=ASKED) as response:
                pieces = response.iter_raw()
                next(pieces)
                known.append(len(exchange._open))
    assert ([1, 1, 1], 0) == (known, len(exchange._open))
    assert 3 == recording.tree.session.totals.llm_requests


@pytest.mark.parametrize("begin", [b"data:", b"data: "])
def test_a_stream_that_is_left_before_it_is_whole(recording, begin):
    """A stream without its end that the program leaves behind the beginning of an event is cancelled, and no whole answer."""
    asking = client(*pieces_of(*WORDS), begin, b"more")
    with optree.session("a"), optree.turn(), asking, asking.stream("POST", URL, json=ASKED) as response:
        pieces = response.iter_raw()
        for _ in range(3):
            next(pieces)
        optree.flush()
    [op] = recording.tree.session.turns[0].ops
    assert ("cancelled", [(None, "failed")]) == (op.status, tokens(op))


def test_a_tier_is_no_usage(recording):
    """A service tier in each chunk tells no tokens: at the turn's end these are unknown, and what is read behind it is the only call."""
    tiered = [chunk | {"service_tier": "default"} for chunk in (*WORDS, ENDED, USAGE)]
    found = around_the_end_of_a_turn(client(*pieces_of(*tiered)), URL, ASKED)
    assert [[(None, "failed")], [((12, 2), "ok")]] == found
    assert (1, 0) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.llm_failed)


@pytest.mark.parametrize("whole", [False, True])
def test_an_interrupt_at_the_end_of_an_answer(recording, monkeypatch, whole):
    """An exception of a handler's behind the recording of usage leaves one call, with its tokens and text."""
    place = AnswerOverWire._account

    def interrupted(self, *given):
        place(self, *given)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(AnswerOverWire, "_account", interrupted)
    answer = {"object": "chat.completion", "model": "gpt-5", "usage": USAGE["usage"]}
    answer["choices"] = [{"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}]
    asking = (
        httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))
        if whole
        else client(*pieces_of(*WORDS, ENDED, USAGE))
    )
    with optree.session("a"), optree.turn(), asking, pytest.raises(KeyboardInterrupt):
        asking.post(URL, json=ASKED)
    [op] = recording.tree.session.turns[0].ops
    assert [(12, 2)] == [figures for figures, _ in tokens(op)]
    assert "It rains" in text_of(op)


def test_usage_that_had_come_when_the_turn_ended(recording):
    """What a stream has told of usage by the end of its turn is recorded then, and replaced by what comes behind it."""
    url = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3:streamGenerateContent"
    found = around_the_end_of_a_turn(client(*pieces_of(*GEMINI)), url, {"contents": [{"parts": [{"text": "q"}]}]})
    assert [[((100, 20), "failed")], [((100, 50), "ok")]] == found
    assert 150 == recording.tree.session.totals.input_tokens + recording.tree.session.totals.output_tokens


PROGRAM = """
import sys
import httpx
import optree
from tests.capture.calls.test_left_open import ASKED, ENDED, URL, USAGE, WORDS, client, pieces_of

optree.instrument()
asking = client(*pieces_of(*WORDS, ENDED, USAGE), lambda: None, b": more")
opened = []
if sys.argv[1] == "open":
    opened += [optree.session("a"), optree.turn()]
    for one in opened:
        one.__enter__()
response = asking.send(asking.build_request("POST", URL, json=ASKED), stream=True)
pieces = response.iter_raw()
for _ in range(int(sys.argv[2])):
    next(pieces)
"""


@pytest.mark.parametrize("where", ["open", "outside"])
@pytest.mark.parametrize(("read", "expected", "ends"), [(1, (None, "failed"), "cancelled"), (4, ((12, 2), "ok"), "ok")])
def test_a_stream_that_is_open_when_the_program_ends(tmp_path, where, read, expected, ends):
    """What it took is as it was told, or unknown: it is ended before the program is taken down, by what had come of it, with its text."""
    env = os.environ | {"OPTREE_BASE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", PROGRAM, where, str(read)], env=env, cwd=root, capture_output=True, text=True, check=True)
    assert "ImportError" not in run.stderr
    [(_, turn, op)] = walk_ops(load("last", Directory.of(tmp_path)).session)
    assert (ends, [expected]) == (op.status, tokens(op))
    assert (ends if where == "outside" else None) == turn.status
    assert [] == [line.message for line in op.logs if "cannot be read" in line.message]
    assert "It " in text_of(op)
