"""Between the pieces of a stream of LangChain's or LangGraph's a program is outside of it, and it may read no further."""

import asyncio
from contextvars import ContextVar

import pytest

pytest.importorskip("langgraph", reason="it is not there for this Python")

from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph

import optree
from optree._tracing import context
from optree.testing import capture

ASKED = {"messages": [("user", "Weather?")]}


def graph():
    """Return a graph of two nodes."""
    made = StateGraph(MessagesState)
    made.add_node("look", lambda _state: {"messages": [("assistant", "It ")]})
    made.add_node("say", lambda _state: {"messages": [("assistant", "rains")]})
    made.add_edge(START, "look")
    made.add_edge("look", "say")
    return made.compile(name="streamed")


def chain():
    """Return a chain whose answer comes in pieces."""

    def says(_asked):
        yield from ("It ", "rains")

    async def says_later(_asked):
        for text in ("It ", "rains"):
            yield text

    return (RunnableLambda(str) | RunnableGenerator(says, says_later)).with_config(run_name="streamed")


async def read(pieces, most, between):
    """Read so many pieces of a stream, with what the program does between them; returns the stream."""
    if hasattr(pieces, "__aiter__"):
        async for _ in pieces:
            between()
            if (most := most - 1) == 0:
                break
    else:
        for _ in pieces:
            between()
            if (most := most - 1) == 0:
                break
    return pieces


def looks():
    """Do something of the program's own."""
    with optree.session("program"), optree.turn():
        pass


STREAMS = {
    "graph": (lambda: graph().stream(ASKED, stream_mode="updates"), "cancelled"),
    "graph, asynchronous": (lambda: graph().astream(ASKED, stream_mode="updates"), "cancelled"),
    "chain": (lambda: chain().stream("Weather?"), "ok"),  # as LangChain says of one that is left
    "chain, asynchronous": (lambda: chain().astream("Weather?"), "cancelled"),
}


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize(("stream", "left"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("most", [1, 9], ids=["left", "read"])
def test_a_program_between_the_pieces(stream, left, most):
    """What it does there, and behind a stream that it has left and not closed, is a session of its own, whole; and so is the stream's."""

    async def program():
        kept = await read(stream(), most, looks)
        looks()
        if hasattr(kept, "aclose"):
            await kept.aclose()
        else:
            kept.close()

    with capture() as recording:
        asyncio.run(program())
    found = sorted((one.agent, one.tree.session.status) for one in recording.sessions)
    pieces = 1 if most == 1 else 2
    assert [*[("program", "ok")] * (pieces + 1), ("streamed", left if most == 1 else "ok")] == found


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("name", ["graph", "chain"])
def test_a_stream_that_is_read_elsewhere(name):
    """A program that reads on in another session than it began in is in that between the pieces, and behind the last."""
    with capture() as recording:
        pieces = STREAMS[name][0]()
        next(pieces)
        with optree.session("other"), optree.turn():
            for _ in pieces:
                with optree.tool("between"):
                    pass
            with optree.tool("behind"):
                pass
    found = {one.agent: [op.name for turn in one.tree.session.turns for op in turn.ops] for one in recording.sessions}
    assert ["between", "behind"] == found["other"]


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("name", ["graph, asynchronous", "chain, asynchronous"])
def test_a_stream_that_is_left_as_the_program_ends(name):
    """The event loop closes it then, which raises no more than without hooks; its session is cancelled."""
    said = []

    async def program():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, about: said.append(about))
        async for _ in STREAMS[name][0]():
            break

    with capture() as recording:
        asyncio.run(program())
    assert ([], "cancelled") == (said, recording.tree.session.status)


class Follower:
    """Where the program is for another tracer, whose context puts back what was before the innermost node only."""

    def __init__(self):
        self.places = ContextVar("places", default=())

    def enter(self, _txn, path):
        """Go into a node."""
        self.places.set((*self.places.get(), path))

    def leave(self, _txn, path):
        """Go out of a node."""
        places = self.places.get()
        if places and places[-1] == path:
            self.places.set(places[:-1])


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("stream", [stream for stream, _ in STREAMS.values()], ids=STREAMS)
def test_other_tracers_are_outside_too(stream, monkeypatch):
    """Between the pieces, and behind the last, another tracer is where the program is, in a session and outside of all."""
    with capture():
        monkeypatch.setattr(context, "follower", follower := Follower())

        async def program():
            seen = []
            await read(stream(), 9, lambda: seen.append(follower.places.get()))
            return {*seen, follower.places.get()}

        assert {()} == asyncio.run(program())
        with optree.session("a"), optree.turn():
            assert {("", "1")} == asyncio.run(program())
        assert () == follower.places.get()


def test_what_is_paused_is_left_and_entered_whole(monkeypatch):
    """What a program pauses in is left for other tracers, the innermost first, and entered again; nothing is where it is in nothing."""
    with capture(), optree.session("a"), optree.turn():
        outer = context.here()
        monkeypatch.setattr(context, "follower", follower := Follower())
        with optree.tool("graph"), optree.tool("node"):
            inner = context.here()
            left = context.pause(outer)
            assert ((inner, inner.before), outer, ()) == (left, context.CURRENT.get(), follower.places.get())
            context.enter(*left)
            assert ("1.1", "1.2") == follower.places.get()
        assert (None, outer, ()) == (context.pause(outer), context.CURRENT.get(), follower.places.get())
