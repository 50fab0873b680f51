"""An answer that comes in pieces: who reads it, and who ends it, whatever thread, finalizer or turn's end comes in between."""

import json
import threading
from time import sleep
from weakref import WeakMethod

import httpx
import pytest

import optree
from optree._capture.calls.begin import begin
from optree._capture.calls.bodies import Body
from optree._capture.calls.observed import one_client_call
from optree._capture.calls.program import PROGRAM
from optree._values import decode
from optree.testing import capture
from tests.capture.provider import EVENTS
from tests.capture.sdk_calls import QUESTION

ASKED = json.dumps({"model": "gpt-5", "messages": QUESTION, "stream": True}).encode()
HEAD = [(b"content-type", EVENTS.encode())]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def chunk(text, end=None, usage=None, choice=0):
    """Return an event of OpenAI's chat."""
    told = {"index": choice, "delta": {"content": text}, "finish_reason": end}
    return (
        b"data: " + json.dumps({"object": "chat.completion.chunk", "model": "gpt-5", "choices": [told], "usage": usage}).encode() + b"\n\n"
    )


def asked(status=200):
    """Return an exchange whose answer's head has come."""
    exchange = begin("POST", "api.openai.com", "/v1/chat/completions", ASKED)
    exchange.responded(status, HEAD, None)
    return exchange


def said(op):
    """Return what an op has: status, text of each choice, and output tokens."""
    texts = [choice["message"]["content"] for choice in decode(op.response.payload)["choices"]]
    return op.status, texts, [entry.tokens.output_tokens for entry in op.accounting]


def test_a_stream_that_is_ended_while_it_is_read(monkeypatch):
    """A finalizer that closes a stream amid the reading of it, on the same thread, ends it behind that: nothing is lost."""
    feed = Body.feed

    def fed(body, data, *, last=False):
        exchange.ended(GeneratorExit())
        yield from feed(body, data, last=last)

    monkeypatch.setattr(Body, "feed", fed)
    with capture(), optree.session("agent"), optree.turn():
        exchange = asked()
        exchange.note(chunk("It "))
        exchange.note(chunk("rains", "stop", USAGE))
        exchange.drain()
        assert ("ok", ["It rains"], [5]) == said(exchange.op.node)


def test_pieces_that_come_while_others_are_read(monkeypatch):
    """What comes while a stream is read waits for the next time: a stream that goes on and on holds up none that waits for the reading."""
    feed, fed = Body.feed, []

    def feeding(body, data, *, last=False):
        fed.append(bytes(data))
        if len(fed) < 100:
            exchange.note(chunk(f"{len(fed)} "))
        yield from feed(body, data, last=last)

    with capture(), optree.session("agent"), optree.turn():
        exchange = asked()
        exchange._asked = True  # nobody else reads it
        exchange.note(chunk("0 "))
        monkeypatch.setattr(Body, "feed", feeding)
        exchange._step(None)
        assert 1 == len(fed)
        monkeypatch.undo()
        exchange.ended(None)
        assert ["0 1 "] == said(exchange.op.node)[1]


@pytest.mark.usefixtures("hooked")
def test_a_thread_that_holds_what_the_reader_waits_for():
    """A finalizer that closes a stream where its thread holds a lock does not wait for the thread that reads, and waits for that lock."""
    sent = [chunk("It rains", "stop"), b'data: {"choices": [], "usage": %b}\n\n' % json.dumps(USAGE).encode()]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"content-type": EVENTS}, stream=Pieces(sent)))
    closed = threading.Event()

    def run():
        with httpx.Client(transport=transport) as client, PROGRAM.apart():
            response = client.send(client.build_request("POST", "http://api/v1/chat/completions", content=ASKED), stream=True)
            with PROGRAM._lock:
                assert sent == list(two_pieces(response))
                [exchange] = [reader().__self__ for reader in PROGRAM._session.builder.core.unread.values()]
                while not exchange._is_advancing:  # the reader ends the op, and so its turn, for which it needs the lock
                    sleep(0.001)
                response.close()
            closed.set()

    with capture() as caught:
        thread = threading.Thread(target=run)
        thread.start()
        assert closed.wait(30)
        thread.join()
    [op] = [op for session in caught.sessions for turn in session.tree.session.turns for op in turn.ops]
    assert ("ok", ["It rains"], [5]) == said(op)


@pytest.mark.usefixtures("hooked")
def test_an_answer_that_comes_while_calls_begin_elsewhere(monkeypatch):
    """An answer waits a bounded time for a thread that begins a call; who comes next ends its turn."""
    monkeypatch.setattr("optree._capture.calls.program._MOST_SECONDS", 0.01)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"choices": [{"message": {"content": "It rains"}}]}))
    held, free = threading.Event(), threading.Event()

    def hold():
        with PROGRAM._lock:
            held.set()
            assert free.wait(30)

    with capture() as caught, httpx.Client(transport=transport) as client, PROGRAM.apart():

        def ask():
            client.post("http://api/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION})

        answered = PROGRAM.answered

        def answering(op):
            thread = threading.Thread(target=hold)
            thread.start()
            assert held.wait(30)
            answered(op)
            free.set()
            thread.join()

        monkeypatch.setattr(PROGRAM, "answered", answering)
        ask()
        monkeypatch.undo()
        [turn] = PROGRAM._session.builder.node.turns
        assert turn.ended_at is None
        ask()
        assert ("ok", "ok") == (turn.status, PROGRAM._session.builder.node.turns[1].status)
    assert 1 == len(caught.sessions)


class Pieces(httpx.SyncByteStream):
    """A body that does not end by itself."""

    def __init__(self, pieces):
        self.pieces = pieces

    def __iter__(self):
        yield from self.pieces
        raise AssertionError("the program reads no further")


def two_pieces(response):
    """Yield two pieces of a response, and leave it open."""
    raw = response.iter_raw()
    yield from (next(raw), next(raw))
    response.extensions["kept"] = raw


def test_usage_that_is_told_first():
    """An event with usage and no choices that comes ahead of the answer is not its end."""
    with capture(), optree.session("agent"), optree.turn():
        exchange = asked()
        exchange.note(b'data: {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}}\n\n')
        optree.flush()
        exchange.note(chunk("It rains", "stop", USAGE))
        exchange.ended(None)
        assert ("ok", ["It rains"], [5]) == said(exchange.op.node)


def test_a_refused_answer_that_is_closed_behind_the_retry():
    """Nothing is kept of attempts that are over, in whichever order they end."""
    with capture(), optree.session("agent") as session, optree.turn(), one_client_call():
        refused = asked(503)
        again = asked()
        again.note(chunk("It rains", "stop", USAGE))
        again.ended(None)
        refused.ended(GeneratorExit())
        assert {} == session.builder.core.unread
        assert (refused.op, 1) == (again.op, len(again.op.turn.node.ops))


def test_an_attempt_that_another_thread_ends():
    """An attempt that was refused is not the end of its call, though another thread finds that out: the client may try again."""
    with capture(), optree.session("agent"), optree.turn(), one_client_call():
        refused = asked(503)
        thread = threading.Thread(target=refused.ended, args=(None,))
        thread.start()
        thread.join()
        again = asked()
        again.note(chunk("It rains", "stop", USAGE))
        again.ended(None)
        assert (refused.op, "ok") == (again.op, again.op.node.status)


def test_an_interrupt_of_the_end_of_a_turn():
    """An exception out of a signal's handler that comes while an answer is read keeps no turn and no session open."""

    class Interrupted:
        def read(self, _until):
            raise KeyboardInterrupt

    reader = Interrupted()
    with capture():
        builder = optree.SessionTreeBuilder("agent")
        turn = builder.begin_turn()
        builder.core.unread["1.1"] = WeakMethod(reader.read)
        with pytest.raises(KeyboardInterrupt):
            turn.end()
        with pytest.raises(KeyboardInterrupt):
            builder.end_session()
    assert (True, True) == (turn.node.ended_at is not None, builder.node.ended_at is not None)


@pytest.mark.parametrize("read_by", ["worker", "turn"])
def test_an_answer_whose_turn_ends_in_its_middle(read_by):
    """An answer of several choices, each chunk of which tells the usage, is whole though its turn ends between two of them."""
    with capture(), optree.session("agent"):
        with optree.turn():
            exchange = asked()
            exchange.note(chunk("a ", "stop", USAGE | {"completion_tokens": 1}))
            if read_by == "worker":
                optree.flush()
        exchange.note(chunk("b ", None, USAGE | {"completion_tokens": 3}, choice=1))
        exchange.note(chunk("c", "stop", USAGE, choice=1))
        exchange.ended(None)
        assert (["a ", "b c"], [5]) == said(exchange.op.node)[1:]


def test_the_end_of_a_turn_waits_no_longer_than_it_says():
    """Where the reader of answers is stuck, a turn ends all the same."""
    stuck, go_on, waited_in_vain = threading.Event(), threading.Event(), []

    def feeding(*_args, **_kwargs):
        stuck.set()
        waited_in_vain.append(not go_on.wait(30))
        return iter(())

    with pytest.MonkeyPatch.context() as patch, capture(), optree.session("agent"):
        patch.setattr(Body, "feed", feeding)
        with optree.turn() as turn:
            exchange = asked()
            exchange.note(chunk("It rains"))
            assert stuck.wait(30)
        assert (True, []) == (turn.node.ended_at is not None, waited_in_vain)
        go_on.set()
        exchange.ended(None)
