import asyncio
import contextvars
import inspect
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import optree
from optree import _records as r
from optree._store.files.system import OS
from tests.tracing.conftest import LONG

THREADS = 8
CALLS = 200


@optree.tool
def work(name):
    """Be called on other threads."""
    op = optree.current()
    op.log(str(name))
    return op.path


def parents(recording):
    """Return {path: parent op} of every op."""
    return {op.path: op.parent_op for _, _, op in optree.walk_ops(recording.tree.session)}


def test_to_thread(recording):
    """`asyncio.to_thread` takes the context along by itself."""

    async def main():
        with optree.tool("caller"):
            return await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(4)))

    with optree.session("root"), optree.turn():
        assert {"1.2", "1.3", "1.4", "1.5"} == set(asyncio.run(main()))
    assert {"1.1": None, "1.2": "1.1", "1.3": "1.1", "1.4": "1.1", "1.5": "1.1"} == parents(recording)


def test_run_in_executor(recording):
    """`run_in_executor` takes the context along by `wrap`."""

    async def main():
        with optree.tool("caller"):
            return await asyncio.get_running_loop().run_in_executor(None, optree.wrap(work), "a")

    with optree.session("root"), optree.turn():
        assert "1.2" == asyncio.run(main())
    assert {"1.1": None, "1.2": "1.1"} == parents(recording)


def test_submit_and_map(recording):
    """A pool's thread is where the function was wrapped, for that call only (S4-34)."""
    with ThreadPoolExecutor(2) as pool, optree.session("root"), optree.turn():
        with optree.tool("first"):
            first = pool.submit(optree.wrap(work), "a").result()
        with optree.tool("second"):
            second = sorted(pool.map(optree.wrap(work), "bcd"))
        assert [None, None] == [pool.submit(optree.current_session).result() for _ in range(2)]
    assert ("1.2", ["1.4", "1.5", "1.6"]) == (first, second)
    assert {"1.1": None, "1.2": "1.1", "1.3": None, "1.4": "1.3", "1.5": "1.3", "1.6": "1.3"} == parents(recording)


def test_thread(recording):
    """A thread's target is where it was wrapped, also when that op has ended since."""
    gate = threading.Event()
    with optree.session("root"), optree.turn():
        with optree.tool("caller"):

            def target():
                assert gate.wait(10)
                work("late")

            thread = threading.Thread(target=optree.wrap(target))
            thread.start()
        gate.set()
        thread.join()
    assert {"1.1": None, "1.2": "1.1"} == parents(recording)


def test_a_context_that_outlives_its_block(recording):
    """What runs later in a copy of a block's context, as a callback of an event loop does, is where it was, though that op has ended."""
    with optree.session("root"), optree.turn():
        with optree.tool("caller"):
            context = contextvars.copy_context()
        assert "1.2" == context.run(work, "late")
    assert {"1.1": None, "1.2": "1.1"} == parents(recording)
    assert {"ok"} == {op.status for _, _, op in optree.walk_ops(recording.tree.session)}


def test_wrapped_coroutine_function(recording):
    """A wrapped coroutine function runs in its place on another thread's loop, and stays a coroutine function."""

    @optree.wrap
    async def look():
        await asyncio.sleep(0)
        return work("a")

    async def elsewhere():
        with optree.tool("caller"):
            function = optree.wrap(ask)
        assert inspect.iscoroutinefunction(function)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def ask():
        await asyncio.sleep(0)
        return work("b")

    with optree.session("root"), optree.turn():
        assert "1.2" == asyncio.run(elsewhere())
    assert "1.1" == parents(recording)["1.2"]
    assert "look" == look.__name__


def test_wrap_passes_results_errors_and_names():
    """A wrapped function returns and raises what it did, and keeps its name and docstring."""

    def fails(one, *, two):
        """Fail."""
        raise KeyError(one, two)

    wrapped = optree.wrap(fails)
    assert ("fails", "Fail.") == (wrapped.__name__, wrapped.__doc__)
    with pytest.raises(KeyError) as caught:
        wrapped(1, two=2)
    assert (1, 2) == caught.value.args
    assert 3 == optree.wrap(optree.wrap(lambda: 3))()


def test_wrap_without_a_session(recording):
    """A function that is wrapped where no session is open runs without one, wherever that is."""
    wrapped = optree.wrap(optree.current_session)
    with optree.session("root"):
        assert wrapped() is None
        assert optree.current_session() is not None
    assert 1 == len(recording.sessions)


def test_thread_without_context(recording):
    """An op on a thread without context goes to the only open session, and is marked as detached."""
    with optree.session("root"), optree.turn(), optree.tool("caller"):
        thread = threading.Thread(target=work, args=["a"])
        thread.start()
        thread.join()
    caller, lost = recording.tree.session.turns[0].ops
    assert ({}, {"detached": True}, None) == (caller.attributes, lost.attributes, lost.parent_op)


@pytest.mark.parametrize("opened", [0, 2])
def test_op_without_a_session(opened, recording):
    """An op that belongs to none, or to no one of several open sessions, gets a root session of its own that ends with it."""
    gate = threading.Barrier(opened + 1)

    def agent():
        with optree.session("agent"):
            gate.wait(10)
            gate.wait(10)

    threads = [threading.Thread(target=agent) for _ in range(opened)]
    for thread in threads:
        thread.start()
    gate.wait(10)
    assert "1.1" == work("a")
    own = recording.sessions[-1].builder.node
    assert ("work", {"detached": True}, "ok") == (own.agent_id, own.turns[0].ops[0].attributes, own.status)
    assert own.attributes["detached"]
    assert opened + 1 == len(recording.sessions)
    gate.wait(10)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("scope", [optree.turn, optree.llm, optree.tool])
def test_failure_without_a_session(scope, recording):
    """The root session of a node without context fails with it, and what the node opened is in it."""

    def fails():
        with optree.tool("inner"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        scope(fails)()
    session = recording.tree.session
    assert ("failed", "ValueError: no", False) == (session.status, session.error, session.success)
    assert {"failed"} == {op.status for _, _, op in optree.walk_ops(session)}


def test_two_ops_without_a_session_at_once(recording):
    """Two ops without context on two threads get a root session each, and each ends its own."""
    gate = threading.Barrier(2)
    paths = []

    @optree.tool
    def meet(name):
        gate.wait(10)
        paths.append(optree.current().path)
        if name == "bad":
            raise ValueError(name)

    def run(name):
        with pytest.raises(ValueError, match="bad") if name == "bad" else optree.tool("around"):
            meet(name)

    threads = [threading.Thread(target=run, args=[name]) for name in ("good", "bad")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["failed", "ok"] == sorted(session.builder.node.status for session in recording.sessions)
    assert ["1.1", "1.2"] == sorted(paths)


def test_detached_turn(recording):
    """A turn that comes without a session gets one, and its ops are in it."""
    with optree.turn(user="why") as turn, optree.tool("a") as op:
        assert ("1", "1.1") == (turn.path, op.path)
    assert ("turn", "ok") == (recording.tree.session.agent_id, recording.tree.session.status)


def test_many_threads(recording):
    """Ops from many threads at once: each there once, with its own log, each begun and ended once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with optree.session("root"), optree.turn(), ThreadPoolExecutor(THREADS) as pool:
            paths = list(pool.map(optree.wrap(work), range(THREADS * CALLS)))
    finally:
        sys.setswitchinterval(before)
    assert THREADS * CALLS == len(set(paths))
    ops = {op.path: op for _, _, op in optree.walk_ops(recording.tree.session)}
    assert [[str(number)] for number in range(THREADS * CALLS)] == [[entry.message for entry in ops[path].logs] for path in paths]
    counted = Counter(type(record) for record in recording.records)
    assert (THREADS * CALLS, THREADS * CALLS) == (counted[r.OpBegin], counted[r.OpEnd])


def test_one_scope_object_on_many_threads(recording):
    """A context manager object that many threads enter at once ends for each of them its own op."""
    scope = optree.tool("shared")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def enter(number):
        with scope as op:
            op.log(str(number))
        assert op.node.ended_at is not None

    try:
        with optree.session("root"), optree.turn(), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(optree.wrap(enter), range(THREADS * CALLS)))
    finally:
        sys.setswitchinterval(before)
    ended = Counter(record.path for record in recording.records if isinstance(record, r.OpEnd))
    assert (THREADS * CALLS, {1}) == (len(ended), set(ended.values()))


def test_one_scope_object_that_two_threads_are_about_to_enter(recording):
    """A `with` statement looks for its end first, then for its begin: where another thread's looked between, each has its own block."""
    scope, ends = optree.tool("shared"), []
    with optree.session("root"), optree.turn():
        thread = threading.Thread(target=lambda: ends.append(scope.__exit__))
        thread.start()
        thread.join()
        op = scope.__enter__()
        ends.clear()  # that thread's statement is over
        assert "1.2" == work("within")
        assert (op, None) == (optree.current(), op.node.ended_at)
        type(scope).__exit__(scope, None, None, None)
        assert "ok" == op.node.status
    assert {"1.1": None, "1.2": "1.1"} == parents(recording)


def test_one_op_on_many_threads(recording):
    """Log lines, reasoning and figures that many threads give one op are all there, and it ends once."""

    def give(number):
        op.log(str(number))
        op.think(str(number))
        op.account(input_tokens=1)
        op.end()

    with optree.session("root"), optree.turn(), optree.llm("shared") as op, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(give, range(THREADS * CALLS)))
    expected = {str(number) for number in range(THREADS * CALLS)}
    assert expected == {entry.message for entry in op.node.logs}
    assert expected == {chunk.text for chunk in op.node.reasoning.chunks}
    assert THREADS * CALLS == len({entry.id for entry in op.node.accounting}) == recording.tree.session.totals.input_tokens
    assert 1 == sum(isinstance(record, r.OpEnd) for record in recording.records)


def test_two_root_sessions_at_once(directory):
    """Two root sessions in one process have nothing in common: each its own txn, file and ops."""
    gate = threading.Barrier(2)
    txns = {}

    @optree.session
    def agent(name):
        txns[name] = optree.current_session().txn
        with optree.turn(user=name):
            for _ in range(20):
                gate.wait(10)
                work(name)

    threads = [threading.Thread(target=agent, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optree.flush("snapshot", 60)
    assert set(txns.values()) == {saved.txn for saved in directory.saved()}
    for name, txn in txns.items():
        session = optree.load(txn, directory).session
        assert [name] * 20 == [op.logs[0].message for _, _, op in optree.walk_ops(session)]
        assert [f"1.{n}" for n in range(1, 21)] == [op.path for _, _, op in optree.walk_ops(session)]


def test_two_sessions_saved_redacted_at_once(finished, directory):
    """Root sessions that end at the same time on several threads are saved redacted, each without the credentials."""
    code, _, err = finished("""
        import threading
        optree.configure(redacted_save=True)
        sys.setswitchinterval(1e-6)
        gate = threading.Barrier(4)

        @optree.session
        def agent():
            with optree.turn(), optree.tool("call") as op:
                op.request(api_key="sk-0123456789abcdefghij")
            gate.wait(10)

        threads = [threading.Thread(target=agent) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert optree.flush("snapshot", 60)
    """)
    assert (0, "") == (code, err)
    assert 4 == len(directory.saved())
    for saved in directory.saved():
        (_, _, op) = next(optree.walk_ops(optree.load(saved.txn, directory).session))
        assert b'{"api_key":"[REDACTED]"}' == bytes(op.request.payload)


def test_a_thought_after_the_end_is_saved_redacted(finished, directory):
    """What an ended op still thinks is its last, whether its line is whole or not: it is not held back for good."""
    code, _, err = finished("""
        optree.configure(redacted_save=True)
        with optree.session("agent"), optree.turn():
            with optree.llm("m") as op:
                op.think("first")
            op.think(" then password=hunter2hunter2")
        assert optree.flush("snapshot", 60)
    """)
    assert (0, "") == (code, err)
    [saved] = directory.saved()
    (_, _, op) = next(optree.walk_ops(optree.load(saved.txn, directory).session))
    assert "first then password=[REDACTED]" == "".join(chunk.text for chunk in op.reasoning.chunks)


def test_open_sessions_go_on_while_a_begin_hangs(runtime, monkeypatch):
    """Where the directory of a session hangs that another thread begins, calls in an open session return, and so does health."""
    make, hangs, go_on = OS.make_directory, threading.Event(), threading.Event()

    def hang(system, path):
        hangs.set()
        assert go_on.wait(LONG)
        return make(system, path)

    with optree.session("open"), optree.turn():
        monkeypatch.setattr(OS, "make_directory", hang)
        thread = threading.Thread(target=optree.session("hangs").__enter__)
        thread.start()
        assert hangs.wait(LONG)
        with optree.tool("goes on") as op:
            op.log("a line")
        assert ["ok", True, True] == [op.node.status, optree.flush(), optree.health()["ok"]]
        assert (True, 1) == (thread.is_alive(), len(runtime.sessions))
        go_on.set()
        thread.join()
    assert 1 == len(runtime.sessions)
