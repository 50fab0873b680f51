"""The compiled path of blocks and decorated calls: it records what the Python functions do, also where something fails."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import weakref
from contextvars import Context, copy_context
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

import optree
from optree import _speed as speed
from optree._builder.guard import FAULTS
from optree._builder.handles import Op
from optree._capture.calls.observed import ObservedCall
from optree._records import Accounted, Entries, OpBegin, OpEnd
from optree._speed import plainly
from optree._tracing import context, holding, scopes, wrapping
from optree.errors import BudgetExceeded
from optree.testing import capture

ROOT = Path(__file__).resolve().parents[2]
compiled = pytest.mark.skipif(
    not speed.compiled() and (os.environ.get("OPTREE_PURE") or not os.environ.get("CI")),
    reason="optree is not compiled here: no C compiler or Python headers, or OPTREE_PURE",
)


@optree.tool
def search(query, most=3, *more, **rest):
    """Return what it was called with; fail if asked to."""
    if query == "fail":
        raise ValueError("asked to")
    return {"query": query, "most": most, "more": list(more), "rest": rest}


@optree.tool(provider="mcp", name="given")
def named(value):
    """Return what it is given."""
    return value


@optree.tool
async def slowly(query):
    """Call another tool after a pause."""
    await asyncio.sleep(0)
    return search(query)


@optree.tool
def letters(word):
    """Yield letters."""
    yield from word


@optree.tool
def outer(messages):
    """Call another tool for each message."""
    return [search(message) for message in messages]


class Library:
    """Its methods are tools."""

    @optree.tool
    def find(self, title):
        """Return a title."""
        return title.upper()

    @classmethod
    @optree.tool
    def count(cls, titles):
        """Count titles."""
        return len(titles)


class Strange:
    """A value that JSON cannot hold."""

    def __repr__(self):
        return "strange"


def many_arguments():
    """Call with arguments of all kinds."""
    search("a")
    search("b", 4, "c", "d", e=5)
    search(query="f")
    Library().find("tides")
    Library.count(titles=["x"])
    outer(["g"])
    named(None)


def strange_values():
    """Take and return what JSON cannot hold, and what is long."""
    for value in (
        Strange(),
        float("nan"),
        b"bytes",
        "\ud800",
        "x" * 600,
        "x" * (2 << 20),
        {1: 2},
        {"headers": {"Authorization": "Bearer x"}},
    ):
        named(value)
    named([value := []])
    value.append(value)
    named(value)


def failures():
    """Leave calls and blocks by exceptions."""
    with contextlib.suppress(ValueError):
        search("fail")
    with contextlib.suppress(TypeError):
        search()
    with contextlib.suppress(ZeroDivisionError), optree.llm(provider="openai", model="gpt-5") as op:
        op.log(str(1 / 0))
    with contextlib.suppress(SystemExit), optree.tool("leaving"):
        sys.exit()


def tasks():
    """Call and enter in tasks, one of which is cancelled."""

    async def all_at_once():
        return await asyncio.gather(*(slowly(str(number)) for number in range(3)))

    asyncio.run(all_at_once())

    async def cancelled():
        with optree.llm(provider="openai", model="gpt-5"):
            await asyncio.sleep(60)

    async def cancel():
        task = asyncio.ensure_future(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def blocks():
    """Enter blocks in each way there is."""
    with optree.llm(provider="openai", model="gpt-5", temperature=0.5) as op:
        op.log("a line")
        op.account(input_tokens=3, output_tokens=4, cost_usd=0.5)
        with optree.tool("inner", where="here") as inner:
            inner.request(a=1)
            inner.response("b")
            search("within")
    with optree.llm():
        pass
    scope = optree.tool("again")
    with scope:
        scope.__enter__()
        with scope:
            search("thrice")
        scope.__exit__(None, None, None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(optree.tool("stacked"))
        search("in a stack")


def generators():
    """Call and enter in pieces of generators."""
    assert "abc" == "".join(letters("abc"))
    stream = letters("de")
    next(stream)
    search("beside a generator")
    stream.close()

    @optree.llm(provider="openai", model="gpt-5")
    def model(question):
        with optree.tool("in a generator"):
            yield question
        yield search("in its piece")["query"]

    list(model("why"))


def budgets():
    """Make calls within a budget, one too many."""
    with contextlib.suppress(BudgetExceeded), optree.budget(calls=1):
        for _ in range(2):
            search("free")
            with optree.llm(provider="openai", model="gpt-5") as op:
                op.account(input_tokens=1, output_tokens=1)


def sessions():
    """Call in a sub-agent, without a turn, in other contexts, and end early."""
    with optree.session("sub"):
        search("without a turn")
        with optree.turn():
            search("in a sub-agent")
    copy_context().run(search, "in a copy")
    with optree.turn(user="another"):
        search("in another turn")
        with optree.tool("ends late") as op:
            op.end("failed", "said by the program")


def without_a_session():
    """Begin ops where no session is, nested and one after another."""

    def outside():
        with optree.tool("alone") as op:
            op.log("a line", severity="WRN")
            search("within")
        search("alone too")

    Context().run(outside)


def as_hooks_do():
    """Begin and end ops as hooks of clients and frameworks do, where a scope is given."""
    place = Library()
    for arguments in (None, {}, {"query": "x"}, {"messages": ["m"], "query": "x"}, {"odd": Strange()}):
        for kind in ("tool", "llm", "system"):
            for holder in (None, weakref.ref(place)):
                for status, error in (("ok", None), ("failed", "ValueError: x"), ("ok", "beside"), ("cancelled", None)):
                    scope = scopes.OpScope(kind, "hooked", {"known": 1})
                    within = scope.begin(context.here(), holder, arguments)
                    below = scope.begin(within)
                    scope.finish(below.op, "ok", None)
                    scope.finish(within.op, status, error)
                    scope.finish(within.op, "ok", None)
    with contextlib.suppress(BudgetExceeded), optree.budget(calls=1):
        for _ in range(2):
            scope = scopes.OpScope("llm", "within a budget", {})
            scope.finish(scope.begin(context.here()).op, "ok", None)
    with optree.session("sub"):
        scope = scopes.OpScope("llm", "without a turn", {})
        scope.finish(scope.begin(context.here()).op, "ok", None)


def each_begin_and_end(found):
    """Begin an op where the program is, and end it, in each way there is, usual or odd; note what each scope has, or what is raised."""
    here, place = context.here(), Library()
    holder, sent = weakref.ref(place), {"query": "x"}
    begins = [
        *(((here,), {}), ((here, holder), {}), ((here, None, sent), {}), ((here, holder, MappingProxyType(sent)), {})),
        *(((), {"before": here}), ((here,), {"holder": holder, "arguments": sent}), ((), {}), ((here, None, None, None), {}), ((3,), {})),
    ]
    odd = str(b"ok", "ascii")  # another text than the constant
    ends = [("ok", None), (odd, None), ("ok", ""), ("failed", "said"), ("odd", None), ("ok",), ("ok", None, None), ("ok", {"error": None})]
    for number, (args, more) in enumerate(begins * 2):
        kind = "tool" if number < len(begins) else "llm"
        scope = scopes.OpScope(kind, "hooked", {"known": number})
        with noting(found):
            begun = scope.begin(*args, **more)
            found.append([getattr(begun, name) is getattr(here, name) for name in ("session", "piece", "budget")] + [begun.before is here])
            found.append((begun.holder is holder, begun.finish == scope.finish, begun.turn is begun.op.turn, begun.op.path))
            for end in ends:
                inner, named = scope.begin(here).op, end[-1] if isinstance(end[-1], dict) else {}
                if kind == "llm":
                    inner.call = ObservedCall(inner, None)
                    inner.call.text = "what had come"
                with noting(found):
                    found.append((scope.finish(inner, *(one for one in end if one is not named), **named), inner.bare.status))
                inner.end()
            begun.op.end()
    with noting(found):
        scopes.OpScope("tool", "hooked", {}).finish(None, "ok", None)


@contextlib.contextmanager
def noting(found):
    """Note what is raised."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        found.append(type(error))


def wherever_hooks_are():
    """Do so in a turn, an op, a budget, a piece of a generator, and a sub-agent without a turn."""
    found = []

    @optree.tool
    def pieces():
        each_begin_and_end(found)
        yield 1

    each_begin_and_end(found)
    list(pieces())
    for around in (optree.tool("around"), optree.budget(calls=1000), optree.session("sub")):
        with around:
            each_begin_and_end(found)
    with optree.tool("found") as op:
        op.response(repr(found))


PROGRAMS = [many_arguments, strange_values, failures, tasks, blocks, generators, budgets, sessions, without_a_session]
PROGRAMS += [as_hooks_do, wherever_hooks_are]


def told(program):
    """Return what a program leaves in a session: its records, without durations, and what `health` counts."""
    FAULTS.clear()
    with capture() as recording:
        with optree.session("root"), optree.turn(user="go"):
            program()
        assert optree.current_session() is None
    records = [msgspec.json.decode(msgspec.json.encode(record)) for record in recording.records]
    return [timeless(record, recording.tree.session.id) for record in records], FAULTS.calls, FAULTS.stack


def timeless(value, txn):
    """Return a record without what differs from run to run."""
    if isinstance(value, dict):
        return {key: timeless(one, txn) for key, one in value.items() if key not in ("latency", "ts", "timestamp", "cwd")}
    if isinstance(value, list):
        return [timeless(one, txn) for one in value]
    return value.replace(txn.partition(":")[0], "txn") if isinstance(value, str) else value


@compiled
@pytest.mark.parametrize("program", PROGRAMS, ids=[one.__name__ for one in PROGRAMS])
def test_any_program_leaves_the_same(program):
    """Whatever is called and entered, the records are those of the Python functions."""
    with plainly():
        expected = told(program)
    assert expected == told(program)


@compiled
def test_it_is_taken():
    """Within an open turn calls and blocks are compiled; outside of one, and where optree is off, they are not."""
    given = wrapping.__dict__["_begun"], (optree.tool("x"), wrapping.Names([]), (), {})
    assert "_Piece" == type(given[0](*given[1])).__name__
    with capture(), optree.session("root"), optree.turn():
        assert "Piece" == type(given[0](*given[1])).__name__
        scope = optree.llm("y")
        left = scope.__exit__
        assert ("Exit", "HeldScope") == (type(left).__name__, type(scope._held).__name__)
        with optree.llm("z") as op:
            assert op is context.CURRENT.get().op
    assert {"Twin"} == {
        type(place).__name__
        for place in (
            *(vars(wrapping)["_begun"], vars(holding.Exit)["__get__"], scopes.OpScope.__enter__),
            *(scopes.OpScope.begin, scopes.OpScope.finish),
        )
    }


class Follower:
    """Another tracer, which is told where the program is."""

    def __init__(self, fails=""):
        self.told, self.fails = [], fails

    def enter(self, _txn, path):
        """Note it."""
        self.told.append(f"enter {path}")
        self.fail("enter")

    def leave(self, _txn, path):
        """Note it."""
        self.told.append(f"leave {path}")
        self.fail("leave")

    def traceparent(self, _txn, _path):
        """Return no name."""
        return

    def fail(self, where):
        """Fail, once, where it is to."""
        if where == self.fails:
            self.fails = ""
            raise RuntimeError(f"the other tracer fails as it is told to {where}")


@compiled
@pytest.mark.parametrize("fails", ["", "enter", "leave"])
def test_a_follower_is_told(monkeypatch, fails):
    """Another tracer is told of each enter and leave; if it fails, the program goes on, in the right place."""

    def told_of():
        follower = Follower()
        with capture(), optree.session("root"), optree.turn():
            before = context.CURRENT.get()
            monkeypatch.setattr(context, "follower", follower)
            follower.fails = fails
            assert {"query": "a", "most": 3, "more": [], "rest": {}} == search("a")
            assert before is context.here()
            with optree.llm("model"):
                search("b")
            assert before is context.here()
            monkeypatch.setattr(context, "follower", None)
        return sorted(set(follower.told)) if fails else follower.told

    with plainly():
        expected = told_of()
    assert expected == told_of()
    assert fails or ["enter 1.1", "leave 1.1", "enter 1.2", "enter 1.3", "leave 1.3", "leave 1.2"] == expected


@compiled
@pytest.mark.parametrize("raised", [RuntimeError, MemoryError, RecursionError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["begin_op", "end"])
def test_what_optree_itself_raises(monkeypatch, place, raised):
    """A fault at a begin or an end is counted, and the function's result is the program's; an interrupt goes on to it. No op stays open."""

    def program():
        def fail(*_args, **_kwargs):
            monkeypatch.undo()
            raise raised("a fault of optree's own")

        owner = Op if place == "end" else scopes.OpScope if place in ("called", "finish") else optree.SessionTreeBuilder
        results = []
        for work in (lambda: search("x" * 600)["most"], block):
            monkeypatch.setattr(owner, place, fail)
            try:
                results.append(work())
            except KeyboardInterrupt:
                results.append("interrupted")
            finally:
                monkeypatch.undo()
        return results

    def block():
        with optree.tool("block"):
            return 3

    def outcome_of():
        FAULTS.clear()
        with capture() as recording, optree.session("root"), optree.turn():
            before = context.CURRENT.get()
            results = program()
            assert before is context.CURRENT.get()
            is_open = [op.path for _, _, op in optree.walk_ops(recording.tree.session) if op.ended_at is None]
        return results, is_open, FAULTS.calls, FAULTS.stack

    with plainly():
        expected = outcome_of()
    assert expected == outcome_of()
    assert [] == expected[1]


@compiled
@pytest.mark.usefixtures("recording")
def test_a_call_that_failed_lets_its_arguments_go():
    """What refers to itself through a traceback is freed by the collector: pieces are among what it looks at."""

    class Kept:
        pass

    with optree.session("root"), optree.turn():
        kept = Kept()
        try:
            optree.tool(lambda one: one.missing)(kept)
        except AttributeError as error:
            kept.error = error
        alive = weakref.ref(kept)
        del kept
        gc.collect()
        assert alive() is None


GROWN = """
import gc, sys
import optree
from optree.testing import capture
from tests.tracing import test_quick

def run():
    for program in (test_quick.many_arguments, test_quick.failures, test_quick.blocks, test_quick.sessions, test_quick.generators):
        with capture(), optree.session("root"), optree.turn():
            program()
    gc.collect()
    return sys.getallocatedblocks()

run()
kept = []
while len(kept) < 5 and min(kept, default=40) >= 40:
    before = run()
    for _ in range(40):
        after = run()
    kept.append(after - before)
print(min(kept))
"""


@compiled
def test_nothing_is_kept():
    """40 runs of all programs leave less than a block each behind: every reference that is taken is given back."""
    done = subprocess.run([sys.executable, "-c", GROWN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40


@pytest.mark.parametrize("way", [contextlib.nullcontext, pytest.param(plainly, marks=compiled)], ids=["as it is", "in Python"])
def test_a_block_leaves_its_lines_to_the_thread_that_delivers(way):
    """What a block logs is not delivered by the thread that leaves it, if nobody waits for it: that would cost the program a write more."""
    optree.configure(console=False)
    found = []

    class Taker:
        def take(self, batch):
            found.extend(type(record) for record in batch)

    with way(), optree.session("lead") as session, optree.turn():
        stream = session.builder.core.stream
        stream.subscribe(Taker(), ordered=False)
        stream._awake = True  # as if the thread were there: it does not come in between
        with optree.llm("openai:gpt-5") as op:
            op.log("asked")
        assert [OpBegin, Accounted, OpEnd] == found
        stream.flush()
        assert Entries is found[-1]
        stream._awake = False
