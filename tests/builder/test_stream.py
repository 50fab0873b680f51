import gc
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext

import pytest

from optree import SessionTreeBuilder
from optree import _records as r
from optree._background import Wake
from optree._builder import Stream, addressed, core, entries, figures, handles, session_tree, stream
from optree._builder.stream import BACKLOG_OPS, PERIOD_SECONDS, WAIT_SECONDS, Step, Wants
from optree._nodes import LogEntry
from optree._speed import compiled, plainly
from optree._tree import Fold
from optree._tree.path import last_index
from tests.otel.backends.waiting import wait_for
from tests.strategies import Taker

LONG = 30.0
"""Seconds after which a test gives up: never reached where things work."""
INSIDE = {module.__file__ for module in (addressed, core, entries, figures, handles, session_tree, stream)}


class Counting:
    """Keeps all records; *seen* is set when a record of the awaited type comes."""

    def __init__(self, awaited=r.Entries):
        self.records = []
        self.awaited = awaited
        self.seen = threading.Event()

    def take(self, batch):
        """Keep records."""
        self.records += batch
        if any(isinstance(record, self.awaited) for record in batch):
            self.seen.set()

    def of(self, kind):
        """Return the records of one type."""
        return [record for record in self.records if isinstance(record, kind)]


class Faulty:
    """Raises what it is given, so many times."""

    def __init__(self, error, times=sys.maxsize):
        self.error = error
        self.times = times

    def take(self, _batch):
        """Raise."""
        if self.times:
            self.times -= 1
            raise self.error


@pytest.fixture
def opened():
    """Return a function that opens a stream to takers and a builder on it; all are closed at the end."""
    streams = []

    def opened(*takers, **options):
        streams.append(Stream(takers, **options))
        return SessionTreeBuilder("a", txn="t", stream=streams[-1])

    yield opened
    for one in streams:
        one.close()


def test_structure_is_delivered_at_once(opened):
    """Structure, accounting and messages are with the takers when the call returns (S4-28, S4-29)."""
    taker = Counting()
    builder = opened(taker)
    expected = [r.SessionBegin]
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "p:m")
    expected += [r.TurnBegin, r.OpBegin]
    for step, kinds in [
        (lambda: op.request([{"content": "x"}]), [r.Pooled, r.Requested]),
        (lambda: op.account(input_tokens=1), [r.Accounted]),
        (lambda: builder.append_message("hi"), [r.MessageAdded]),
        (lambda: builder.set_title("x"), [r.SessionSet]),
        (lambda: op.response("y"), [r.Responded]),
        (op.end, [r.OpEnd]),
        (lambda: turn.assistant("z"), [r.TurnSet]),
        (turn.end, [r.TurnEnd]),
        (builder.end_session, [r.SessionEnd]),
    ]:
        step()
        expected += kinds
        assert expected == [type(record) for record in taker.records]


def test_entries_are_delivered_by_themselves(opened):
    """Log lines and reasoning reach the takers without any further call (S4-02, S4-47)."""
    taker = Counting()
    op = opened(taker).begin_op("llm", "m")
    op.log("x")
    assert taker.seen.wait(LONG)
    taker.seen.clear()
    op.think("y")
    assert taker.seen.wait(LONG)
    first, second = taker.of(r.Entries)
    assert ([0, "x"], [0, "y"]) == ([first.logs_at, first.logs[0].message], [second.chunks_at, second.chunks[0].text])


def test_backlog_is_delivered_by_who_logs(opened):
    """Ops with undelivered entries never pile up: whoever logs delivers them."""
    builder = opened(Counting())
    for _ in range(10 * BACKLOG_OPS):
        builder.begin_op("tool", "x").log("y")
        assert len(builder.core.stream._marked) < BACKLOG_OPS


def test_write_all(opened):
    """With `all`, log lines too are with the takers when the call returns."""
    taker = Counting()
    op = opened(taker, write="all").begin_op("tool", "x")
    for number in range(20):
        op.log(str(number))
    assert [(number, str(number)) for number in range(20)] == [(record.logs_at, record.logs[0].message) for record in taker.of(r.Entries)]


def test_write_deferred(opened):
    """With `deferred`, structure reaches the takers by itself, and callers never call them."""
    threads = set()

    class Named(Counting):
        def take(self, batch):
            threads.add(threading.current_thread().name)
            super().take(batch)

    taker = Named(r.SessionEnd)
    opened(taker, write="deferred").end_session()
    assert taker.seen.wait(LONG)
    assert ([r.SessionBegin, r.SessionEnd], {"optree-stream"}) == ([type(record) for record in taker.records], threads)


def test_flush_delivers_all(opened):
    """After a flush nothing is undelivered."""
    taker = Counting()
    builder = opened(taker)
    op = builder.begin_op("tool", "x")
    op.log("x")
    op.think("y")
    assert builder.core.stream.flush()
    assert (1, 1) == (sum(len(record.logs) for record in taker.of(r.Entries)), sum(len(record.chunks) for record in taker.of(r.Entries)))


def test_subscribers_come_and_go(opened):
    """A taker that subscribes gets what comes from then on, until it unsubscribes."""
    builder, taker = opened(Counting()), Counting()
    builder.begin_turn()
    builder.core.stream.subscribe(taker)
    builder.begin_op("tool", "x")
    builder.core.stream.unsubscribe(taker)
    builder.begin_op("tool", "y")
    assert ["x"] == [record.name for record in taker.records]


def test_wanted_lines_come_before_their_ops_end(opened):
    """A taker that says what it wants gets that, in order: of an op's entries those with such a line, of ends those that failed."""
    some = Counting()
    some.wants = Wants(frozenset({r.OpEnd, r.Entries}), severities=frozenset({"WRN"}), failures=True)
    builder = opened(Counting(), some)
    for severity, status in (("VRB", "ok"), ("VRB", "failed"), ("WRN", "ok"), ("WRN", "failed")):
        op = builder.begin_op("tool", "x")
        op.log(status, severity)
        op.end(status)
    assert builder.core.stream.flush()
    expected = [("1.2", r.OpEnd), ("1.3", r.Entries), ("1.4", r.Entries), ("1.4", r.OpEnd)]
    assert expected == [(record.path, type(record)) for record in some.records]


def test_nobody_watches_when_the_last_has_gone(opened):
    """A stream orders entries before their op's end for those who want that, as long as one is there; a forked child begins without."""
    stream = opened(Counting()).core.stream
    first, second, unordered = Counting(), Counting(), Counting()
    for taker in (first, second):
        stream.subscribe(taker)
    stream.subscribe(unordered, ordered=False)
    seen = [stream.watched]
    for taker in (first, second, second):
        stream.unsubscribe(taker)
        seen.append(stream.watched)
    assert [True, True, False, False] == seen
    stream.subscribe(first)
    stream.after_fork((Counting(),))
    assert not stream.watched


def test_faults_of_takers_are_counted(opened):
    """What a taker raises does not reach the traced program; it is counted and told."""
    builder = opened(Faulty(RuntimeError("full")))
    builder.begin_op("tool", "x").end()
    found = builder.core.stream
    assert (4, "RuntimeError: full") == (found.failures, found.last_failure)


def test_faults_of_takers_are_their_own(opened):
    """A taker that raises does not take anything from those behind it."""
    taker = Counting()
    opened(Faulty(RuntimeError()), taker).begin_op("tool", "x")
    assert [r.SessionBegin, r.TurnBegin, r.OpBegin] == [type(record) for record in taker.records]


steps = pytest.mark.parametrize(
    ("step", "number"),
    [
        (lambda builder, _op: builder.begin_op("tool", "x"), 1),
        (lambda _builder, op: op.end(), 2),  # with its accounting
        (lambda _builder, op: op.account(input_tokens=1), 1),
        (lambda builder, _op: builder.append_message("x"), 1),
    ],
    ids=["begin", "end", "account", "message"],
)


@steps
def test_interrupt_of_a_delivery(opened, step, number):
    """An interrupt in the middle of a delivery reaches the program; the record is delivered with the next one."""
    taker, faulty = Counting(), Faulty(KeyboardInterrupt())
    builder = opened(taker)
    op = builder.begin_op("llm", "m")
    found = builder.core.stream
    found.unsubscribe(taker)
    found.subscribe(faulty)
    found.subscribe(taker)
    before = len(taker.records)
    with pytest.raises(KeyboardInterrupt):
        step(builder, op)
    assert before == len(taker.records)
    faulty.times = 0
    found.flush()
    assert before + number == len(taker.records)


@steps
def test_no_memory_in_a_delivery(opened, step, number):
    """A taker that finds no memory for a record gets it with the next one, and the program nothing of it."""
    scarce = []

    class Growing(Counting):
        def take(self, batch):
            if scarce:
                raise scarce.pop()
            super().take(batch)

    taker = Growing()
    builder = opened(taker)
    op = builder.begin_op("llm", "m")
    before = len(taker.records)
    scarce.append(MemoryError())
    step(builder, op)
    assert [] == scarce
    builder.core.stream.flush()
    assert before + number == len(taker.records)


def test_waiting_is_bounded(opened):
    """A caller waits a quarter of a second for a taker that hangs in another thread, and goes on; what it records comes later, once."""
    begun, gate = threading.Event(), threading.Event()

    class Hanging(Counting):
        def take(self, batch):
            if any(isinstance(record, r.OpBegin) and record.name == "hang" for record in batch):
                begun.set()
                gate.wait(LONG)
            super().take(batch)

    taker = Hanging()
    builder = opened(taker)
    turn = builder.begin_turn()
    thread = threading.Thread(target=builder.begin_op, args=("tool", "hang"), kwargs={"turn": turn})
    thread.start()
    assert begun.wait(LONG)
    start = time.monotonic()
    op = builder.begin_op("tool", "late", turn=turn)
    waited = time.monotonic() - start
    op.log("x")
    gate.set()
    thread.join(LONG)
    builder.core.stream.flush()
    assert WAIT_SECONDS <= waited + 0.01
    assert builder.core.stream.late >= 1
    assert Counter(["hang", "late"]) == Counter(record.name for record in taker.of(r.OpBegin))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ops", [1, 4])
def test_threads_that_account_while_a_disk_hangs(opened, late, ops):
    """They do not wait, and none of their entries is lost: in the op, in the totals, and in the records."""
    inside, gate, came = threading.Event(), threading.Event(), []

    class Hanging:
        def take(self, batch):
            came.extend(record for record in batch if isinstance(record, r.Accounted))
            if any(isinstance(record, r.SessionSet) for record in batch):
                inside.set()
                assert gate.wait(LONG)

    builder = opened(Hanging())
    accounted = [builder.begin_op("llm", "p:m") for _ in range(ops)]
    for op in accounted if late else ():
        op.account(input_tokens=0)
        op.end()
    hanging = threading.Thread(target=builder.set_title, args=("x",))
    hanging.start()
    assert inside.wait(LONG)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [
            threading.Thread(target=lambda op=op: [op.account(input_tokens=1, cost_usd=0.25) for _ in range(200)])
            for op in accounted * (4 // ops)
        ]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
    finally:
        sys.setswitchinterval(before)
        gate.set()
        hanging.join()
    builder.core.stream.flush()
    entries = [entry.id for op in accounted for entry in op.node.accounting]
    assert 800 + ops * late == len(set(entries)) == len(came)
    assert (800, 200.0) == (builder.node.totals.input_tokens, builder.node.totals.cost_usd)


def test_a_slow_write_is_recovered_from(opened):
    """After one slow write, threads that never pause wait for each other again: the queue drains while they go on, and nothing is lost."""
    gate, hanging, stop = threading.Event(), threading.Event(), threading.Event()

    class Slow(Counting):
        def take(self, batch):
            if hanging.is_set() and not gate.is_set():
                gate.wait(LONG)
            self.records += [type(record) for record in batch]

    def work():
        while not stop.is_set():
            builder.begin_op("tool", "x", turn=turn).end()

    taker = Slow()
    builder = opened(taker)
    turn, stream = builder.begin_turn(), builder.core.stream
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        hanging.set()
        assert wait_for(lambda: stream.late > 1000)
        gate.set()
        assert wait_for(lambda: len(stream._queue) < 10 and not stream._stuck_until)
    finally:
        gate.set()
        stop.set()
        for thread in threads:
            thread.join(LONG)
    stream.flush()
    counts = Counter(taker.records)
    assert 1000 < counts[r.OpBegin] == counts[r.OpEnd] == len(turn.node.ops)


def test_fork_leaves_the_parents_records(opened):
    """In a forked child, what the parent had not delivered is not delivered a second time."""
    builder = opened(Counting())
    op = builder.begin_op("tool", "x")
    for number in range(3):
        op.log(f"parent {number}")
    taker = Counting()
    builder.core.stream.after_fork([taker])
    op.log("child")
    builder.core.stream.flush()
    assert [(3, ["child"])] == [(record.logs_at, [entry.message for entry in record.logs]) for record in taker.of(r.Entries)]


class Batches:
    """Keeps what came at once."""

    def __init__(self):
        self.batches = []

    def take(self, batch):
        """Keep the kinds of the records."""
        self.batches.append([type(record) for record in batch])


def two_ops(builder):
    """Return a function that begins two ops and ends one, which it returns."""

    def work():
        op = builder.begin_op("llm", "m")
        builder.begin_op("tool", "x")
        op.end()
        return op

    return work


@pytest.fixture
def in_turn(opened):
    """A builder in a turn, and what keeps how its records come from there on."""
    taker = Batches()
    builder = opened(taker)
    builder.begin_turn()
    del taker.batches[:]
    return builder, taker


def test_steps_that_are_delivered_together(in_turn):
    """Their records come at once where that is compiled, in their order; its result, or what it raises, is the caller's."""
    builder, taker = in_turn
    work = two_ops(builder)
    together = [r.OpBegin, r.OpBegin, r.Accounted, r.OpEnd]
    assert "ok" == builder.core.stream.together(work).bare.status
    assert ([together] if compiled() else [[r.OpBegin], [r.OpBegin], [r.Accounted, r.OpEnd]]) == taker.batches
    del taker.batches[:]

    def raising():
        work()
        raise KeyError("x")

    with pytest.raises(KeyError):
        builder.core.stream.together(raising)
    assert together == [kind for batch in taker.batches for kind in batch]
    with plainly():
        work()
    assert [r.Accounted, r.OpEnd] == taker.batches[-1]


def test_steps_together_among_others_that_are(in_turn):
    """What is delivered together within such steps comes with these, at their end."""
    builder, taker = in_turn
    inner = two_ops(builder)
    builder.core.stream.together(lambda: (builder.core.stream.together(inner), builder.begin_op("tool", "last")))
    apart = [[r.OpBegin], [r.OpBegin], [r.Accounted, r.OpEnd], [r.OpBegin]]
    assert ([[kind for batch in apart for kind in batch]] if compiled() else apart) == taker.batches


def test_lines_among_steps_together(opened):
    """Where each line is to be written at once, it is, though it is logged among them."""
    taker = Counting()
    builder = opened(taker, write="all")
    builder.core.stream.together(lambda: builder.begin_op("llm", "m").log("x"))
    assert ["x"] == [line.message for record in taker.of(r.Entries) for line in record.logs]


@pytest.mark.parametrize("write", ["structure", "all", "deferred"])
def test_steps_together_within_others(opened, write):
    """In a step, in another one's, and after a delivery that was broken off, all is delivered, once."""
    taker = Counting()
    builder = opened(taker, write=write)
    found = builder.core.stream
    held = found.enter()
    found.together(lambda: found.together(two_ops(builder)))
    found.leave(held)
    found.unsubscribe(taker)
    found.subscribe(faulty := Faulty(KeyboardInterrupt(), 0 if write == "deferred" else 1))
    found.subscribe(taker)
    with pytest.raises(KeyboardInterrupt) if faulty.times else nullcontext():
        found.together(two_ops(builder))
    found.flush()
    found.together(two_ops(builder))
    found.flush()
    numbers = Counter(record.path for record in taker.of(r.OpBegin))
    assert {1} == set(numbers.values())
    assert {op.path for op in builder.node.turns[0].ops} == set(numbers)


def test_another_thread_waits_for_steps_together(opened):
    """What another thread records meanwhile comes behind them."""
    taker = Counting()
    builder = opened(taker)
    turn = builder.begin_turn()
    others = []

    def work():
        builder.begin_op("llm", "first", turn=turn)
        others.append(threading.Thread(target=builder.begin_op, args=("tool", "other"), kwargs={"turn": turn}))
        others[0].start()
        others[0].join(WAIT_SECONDS / 10)
        builder.begin_op("llm", "second", turn=turn)

    builder.core.stream.together(work)
    others[0].join(LONG)
    expected = ["first", "second", "other"] if compiled() else ["first", "other", "second"]
    assert expected == [record.name for record in taker.of(r.OpBegin)]


def test_a_fork_within_steps_together(opened):
    """In the child what the parent had put is the parent's, and what the child puts is delivered there."""
    builder = opened(Counting())
    builder.begin_turn()
    taker = Counting()

    def work():
        builder.begin_op("llm", "parent's")
        builder.core.stream.after_fork([taker])
        builder.begin_op("llm", "child's")

    builder.core.stream.together(work)
    builder.begin_op("llm", "later")
    assert ["child's", "later"] == [record.name for record in taker.of(r.OpBegin)]


# Re-entrancy: what a signal handler, a `__del__` or a tracer logs while another call is going on.


def calls(op, builder):
    """Make each kind of call once."""
    op.log("outer")
    op.think("outer")
    op.account(input_tokens=1)
    op.log("outer", "WRN")
    inner = builder.begin_op("tool", "outer")
    inner.request(query="x")
    inner.log("outer")
    inner.end()
    builder.core.stream.flush()


def interrupted_at(place, act, write):
    """Run `calls` with *act* done at the line *place* inside the builder; return lines run, where it was, builder and taker."""
    taker = Counting()
    one = Stream([taker], write)
    builder = SessionTreeBuilder("a", txn="t", stream=one)
    op = builder.begin_op("llm", "m")
    lines, where = 0, ""
    main = threading.current_thread()

    def trace(frame, event, _argument):
        nonlocal lines, where
        if frame.f_code.co_filename not in INSIDE or threading.current_thread() is not main:
            return None
        if event == "line":
            if lines == place:
                where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                act(op, builder)
            lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        calls(op, builder)
    except Exception as error:  # noqa: BLE001 - what tracing raises is what the test looks for
        where += f" raised {error!r}"
    finally:
        sys.settrace(before)
    return lines, where, builder, taker


ACTS = {
    "log": lambda op, _builder: op.log("inner"),
    "think": lambda op, _builder: op.think("inner"),
    "account": lambda op, _builder: op.account(input_tokens=100),
    "op": lambda _op, builder: builder.begin_op("tool", "inner").end(),
}


@pytest.mark.parametrize("write", ["structure", "all"])
@pytest.mark.parametrize("act", ACTS)
def test_reentrant_calls(act, write):
    """A call that comes at any line inside another call is recorded once, loses nothing, and does not lock up (S4-61)."""
    number, *_ = interrupted_at(-1, ACTS[act], write)
    entries = {"log": [3, 1, 1], "think": [2, 2, 1], "account": [2, 1, 2], "op": [2, 1, 1]}[act]
    ops = ["m", "outer", "inner"] if act == "op" else ["m", "outer"]
    wrong = {}
    for place in range(number):
        _, where, builder, taker = interrupted_at(place, ACTS[act], write)
        structural = [record for record in taker.records if not isinstance(record, r.Entries)]
        undelivered = len(builder.core.stream._queue)
        builder.core.stream.close()
        fold = Fold("t")
        for record in taker.records:
            fold.apply(record)
        fold.finish()
        op = fold.ops["1.1"]
        repeated = [key for key, times in Counter(map(_key, structural)).items() if times > 1]
        expected = {"entries": entries, "ops": sorted(ops), "missing": 0, "repeated": [], "undelivered": 0, "like the live tree": True}
        found = {
            "entries": [len(op.logs), len(op.reasoning.chunks if op.reasoning else []), len(op.accounting)],
            "ops": sorted(one.name for one in fold.ops.values()),
            "missing": fold.missing,
            "repeated": repeated,
            "undelivered": undelivered,
            "like the live tree": _in_order(builder.tree) == _in_order(fold.finish()),
        }
        if where and (expected != found or " raised " in where):  # the last lines are not reached if the thread was awake already
            wrong[where] = {key: value for key, value in found.items() if value != expected[key]}
    assert {} == wrong


def _in_order(tree):
    """Sort ops by their numbers, and accounting by id: of two of which one begins inside the other, either may stand first."""
    for turn in tree.session.turns:
        turn.ops.sort(key=lambda op: last_index(op.path))
        for op in turn.ops:
            op.accounting = tuple(sorted(op.accounting, key=lambda entry: entry.id))
    return tree


def _key(record):
    return (
        type(record).__name__,
        record.path if hasattr(record, "path") else "",
        record.entry.id if isinstance(record, r.Accounted) else getattr(record, "at", 0),
    )


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize("write", ["structure", "all"])
def test_logging_from_a_signal_handler(opened, write):
    """A signal handler that logs while the program logs loses nothing, repeats nothing, and does not lock up (S4-61)."""
    taker = Counting()
    builder = opened(taker, write=write)
    op = builder.begin_op("llm", "m")
    handled = 0

    def handle(_number, _frame):
        nonlocal handled
        handled += 1
        op.log("signal")
        builder.begin_op("tool", "signal").end()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
    logged = 0
    try:
        while handled < 200:
            op.log("main")
            logged += 1
            if logged % 10 == 0:
                builder.begin_op("tool", "main").end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    builder.core.stream.flush()
    expected = Counter(main=logged, signal=handled)
    assert expected == Counter(entry.message for entry in op.node.logs)
    assert expected == Counter(entry.message for record in taker.of(r.Entries) for entry in record.logs)
    assert 1 + logged // 10 + handled == len({record.path for record in taker.of(r.OpBegin)}) == len(taker.of(r.OpBegin))


@pytest.mark.parametrize("write", ["structure", "all"])
def test_logging_from_del(opened, write):
    """An object that logs while it is collected, whatever else is going on, loses nothing and does not lock up (S4-61)."""
    taker = Counting()
    builder = opened(taker, write=write)
    op = builder.begin_op("llm", "m")

    class Last:
        def __init__(self):
            self.circle = self

        def __del__(self):
            op.log("del")
            builder.begin_op("tool", "del").end()

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(5, 2, 2)
    try:
        for number in range(2000):
            Last()
            op.log("main", details={"number": number})
            op.account(input_tokens=1)
    finally:
        gc.set_threshold(*before)
        gc.collect()
    builder.core.stream.flush()
    assert Counter({"main": 2000, "del": 2000}) == Counter(entry.message for entry in op.node.logs)
    assert 4000 == sum(len(record.logs) for record in taker.of(r.Entries))
    assert (2000, 2001) == (len(taker.of(r.Accounted)) - 2000, len({record.path for record in taker.of(r.OpEnd)}) + 1)


def test_call_inside_a_delivery(opened):
    """What is recorded while a record is being delivered, as by a signal handler, is delivered when that call returns too."""

    class Signalled(Counting):
        act = None

        def take(self, batch):
            super().take(batch)
            if self.act is not None:
                act, self.act = self.act, None
                act()

    taker = Signalled()
    builder = opened(taker)
    builder.begin_turn()
    taker.act = lambda: builder.begin_op("tool", "inner")
    builder.begin_op("tool", "outer")
    assert ["outer", "inner"] == [record.name for record in taker.of(r.OpBegin)]


# Threads


def worker(builder, turn, number, times):
    """Begin an op of its own in each round, below an op of its own."""
    parent = builder.begin_op("llm", f"parent {number}", turn=turn)
    for step in range(times):
        op = builder.begin_op("tool", f"{number}:{step}", turn=turn, parent=parent)
        op.log("one")
        parent.log(str(step))
        op.end()
    parent.account(input_tokens=1, output_tokens=2)
    parent.end()


def together(builder, threads, times):
    """Run so many workers at once on one turn."""
    turn = builder.begin_turn()
    start = threading.Barrier(threads)

    def run(number):
        start.wait(LONG)
        worker(builder, turn, number, times)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    turn.end()
    until = time.monotonic() + LONG
    while not builder.core.stream.flush() and time.monotonic() < until:  # on a busy machine its own thread may be long at work
        time.sleep(0.01)


def check(builder, taker, threads, times):
    """Compare what was delivered with what the workers did, to the last entry."""
    begins, ends = taker.of(r.OpBegin), taker.of(r.OpEnd)
    total = threads * (times + 1)
    paths = {record.path for record in begins}
    assert (total, total, total) == (len(begins), len(paths), len(ends))
    assert {f"1.{number}" for number in range(1, total + 1)} == paths == {record.path for record in ends}
    parents = {record.path: record.name for record in begins if record.kind == "llm"}
    for record in begins:
        expected = f"parent {record.name.partition(':')[0]}" if record.kind == "tool" else None
        assert expected == parents.get(record.parent_op)
    logs: dict[str, list[LogEntry]] = {path: [] for path in paths}
    for record in taker.of(r.Entries):
        assert len(logs[record.path]) == record.logs_at
        logs[record.path] += record.logs
    for record in begins:
        expected = [str(step) for step in range(times)] if record.kind == "llm" else ["one"]
        assert expected == [entry.message for entry in logs[record.path]]
    accounted = taker.of(r.Accounted)
    assert (total, total) == (len(accounted), len({record.entry.id for record in accounted}))
    totals = builder.node.totals
    assert (threads, 2 * threads, threads, threads * times) == (
        totals.input_tokens,
        totals.output_tokens,
        totals.llm_requests,
        totals.tools_run,
    )
    assert (0, 0) == (builder.core.stream.failures, len(builder.core.stream._queue))


@pytest.mark.slow
def test_many_threads(opened):
    """64 threads that make 2,000 ops each on one builder: every op once, under its parent, with all its entries (S4-34, S4-42)."""
    taker = Counting()
    builder = opened(taker)
    together(builder, 64, 2000)
    check(builder, taker, 64, 2000)


def test_threads_that_switch_often(opened):
    """The same holds when threads are switched as often as can be (S4-34, S4-42)."""
    taker = Counting()
    builder = opened(taker)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(builder, 16, 100)
    finally:
        sys.setswitchinterval(before)
    check(builder, taker, 16, 100)


def test_threads_on_one_op(opened):
    """Threads that log, think and account on one op lose nothing and give no number twice (S4-61)."""
    taker = Taker()
    builder = opened(taker)
    op = builder.begin_op("llm", "m")

    def run():
        for _ in range(300):
            op.log("x")
            op.think("y")
            op.account(input_tokens=1, cost_usd=0.25)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=run) for _ in range(8)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
    finally:
        sys.setswitchinterval(before)
    builder.core.stream.flush()
    assert (2400, 2400, 2400) == (len(op.node.logs), len(op.node.reasoning.chunks), len({entry.id for entry in op.node.accounting}))
    assert (2400, 600.0, 2400) == (builder.node.totals.input_tokens, builder.node.totals.cost_usd, builder.node.totals.llm_requests)
    fold = Fold("t")
    for line in taker.lines:
        fold.apply(r.parse(line[:-1]))
    assert builder.tree == fold.finish()


def test_entries_are_nothing_to_the_collector(opened):
    """200,000 log lines add nothing that the garbage collector has to walk."""
    op = opened(Counting()).begin_op("llm", "m")
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200_000):
        op.log("x")
    op.builder.core.stream.flush()
    assert 0 == sum(map(gc.is_tracked, op.node.logs))
    assert len(gc.get_objects()) - before < 2000


class Held(Counting):
    """Holds a delivery until it is let go, and says when it is there."""

    def __init__(self):
        super().__init__()
        self.there, self.go = threading.Event(), threading.Event()

    def take(self, batch):
        """Wait within the delivery of an op named ``held``."""
        if any(isinstance(record, r.OpBegin) and record.name == "held" for record in batch):
            self.there.set()
            assert self.go.wait(LONG)
        super().take(batch)


@pytest.fixture
def stuck(opened):
    """Return a builder on a stream that another thread holds in a delivery, and its taker."""
    taker = Held()
    builder = opened(taker)
    op = builder.begin_op("tool", "before")
    thread = threading.Thread(target=builder.begin_op, args=("tool", "held"))
    thread.start()
    assert taker.there.wait(LONG)
    yield builder, op, taker
    taker.go.set()
    thread.join(LONG)


class Waits:
    """Notes the times for which a lock is waited for."""

    def __init__(self, lock):
        self.seconds = []
        self.lock = lock
        self.release = lock.release

    def acquire(self, blocking=True, timeout=-1):  # noqa: FBT002 - as a lock's
        """Take the lock, or not."""
        self.seconds += [timeout] if blocking else []
        return self.lock.acquire(blocking, timeout)


def test_what_takes_long_alone_has_its_lock_until_its_end(opened, monkeypatch):
    """Another thread waits for it in vain, and does not take the lock for one that an interrupt has left."""
    monkeypatch.setattr(stream, "WAIT_SECONDS", 0.01)
    found = opened(Counting()).core.stream
    there, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=found.alone, args=(lambda _held: (there.set(), go.wait(LONG)),))
    thread.start()
    try:
        assert there.wait(LONG)
        assert not found.alone(bool)
    finally:
        go.set()
        thread.join(LONG)
    assert found.alone(bool)


def test_one_wait_for_all_that_a_call_does(stuck, monkeypatch):
    """A call that takes several steps waits for a stuck disk once, a quarter of a second, and the next ones soon after not at all."""
    monkeypatch.setattr(stream, "STUCK_SECONDS", LONG)  # however long the machine takes for these steps
    builder, op, _ = stuck
    builder.core.stream._lock = waits = Waits(builder.core.stream._lock)
    op.end()
    builder.current_turn.end()
    builder.end_session()
    assert [0.25] == waits.seconds


def test_what_came_too_late_is_delivered_all_the_same(stuck):
    """What is put while another thread holds the disk is delivered when it lets go, though nothing else is recorded."""
    _, op, taker = stuck
    taker.awaited = r.Responded
    op.response("late")
    assert [] == taker.of(r.Responded)
    taker.go.set()
    assert taker.seen.wait(LONG)


def test_a_lock_that_is_written_in_python(in_turn):
    """Such a lock, as gevent and eventlet put in the place of the compiled one, says 1 where a thread has it already: it is given back."""
    builder, _ = in_turn
    builder.core.stream._lock = lock = threading._PyRLock()
    builder.core.stream.together(two_ops(builder))
    assert not lock._is_owned()


def test_what_another_thread_holds_is_not_waited_for_without_end(stuck):
    """Whoever asks for what was recorded is told that it may not all be there; with patience it is, once the disk is free."""
    builder, op, taker = stuck
    op.log("x")
    core = builder.core
    before = core.stream.late
    assert (False, False, False) == (core.settle(), op.settle(), core.stream.flush())
    assert before + 3 <= core.stream.late  # the background thread may have come too
    threading.Timer(0.0, taker.go.set).start()
    assert core.settle(LONG)
    assert ["x"] == [entry.message for entry in op.bare.logs]


def test_faults_in_a_step_are_counted(opened):
    """What goes wrong within one stays in it, and is delivered as far as it came; an interrupt goes on."""
    builder = opened(taker := Counting())
    found = builder.core.stream
    before = len(taker.records)
    with Step(found) as put:
        put(r.Gap(1.0, 1))
        raise ValueError("sk-proj-abcdefghijklmnop1234567890abcdef")
    with pytest.raises(KeyboardInterrupt), Step(found):
        raise KeyboardInterrupt
    assert (1, "ValueError: [REDACTED]", before + 1) == (found.failures, found.last_failure, len(taker.records))
    assert found.flush()


def test_what_is_said_once_has_an_end(opened):
    """Of a program that does a thousand things wrong, the first thousand are said, each once: what is kept of it does not grow."""
    core = opened(Counting()).core
    assert 1000 == sum(core.first_time(str(number % 1100)) for number in range(2200))


def test_a_fault_and_a_report_are_without_credentials(opened):
    """What `health()` says of them is shown."""
    found = opened(Counting()).core.stream
    found.fault("token sk-proj-abcdefghijklmnop1234567890abcdef")
    found.report("key ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    assert (1, "token [REDACTED]", ["key [REDACTED]"]) == (found.failures, found.last_failure, found.reports)


def test_entries_wait_ten_milliseconds_at_most():
    """The background thread looks twice within the time that is promised."""
    assert 0.01 >= 2 * PERIOD_SECONDS


def test_the_thread_rests_while_nothing_comes(opened):
    """It does not wake the machine up hundreds of times a second; what comes then is delivered all the same."""
    taker = Counting()
    op = opened(taker).begin_op("tool", "x")
    op.log("first")
    found = op.builder.core.stream
    assert wait_for(lambda: not (found._awake or found.behind))
    taker.seen.clear()
    op.log("second")
    assert taker.seen.wait(LONG)


def test_a_signal_waits_to_be_taken():
    """It is taken once, and waiting for one that does not come ends."""
    wake = Wake()
    assert not wake.wait(0)
    wake.set()
    wake.set()
    assert [True, False, False] == [wake.wait(0), wake.wait(0.001), wake.wait(-1)]
    wake._lock = waits = Waits(wake._lock)
    for seconds in (0.001, 0, -1):
        wake.wait(seconds)
    assert [0.001, 0.0, 0.0] == waits.seconds


def test_lost_lock_is_replaced(opened):
    """If an interrupt makes a thread keep the lock for ever, others wait once and go on."""
    taker = Counting()
    builder = opened(taker)
    thread = threading.Thread(target=builder.core.stream.enter)  # and never leave
    thread.start()
    thread.join(LONG)
    before = len(taker.records)
    builder.append_message("x")
    builder.append_message("y")
    assert (before + 2, 0) == (len(taker.records), builder.core.stream.late)


def test_wake_from_within_a_wait():
    """A signal can be given while its receiver is anywhere in its wait, and by a finalizer or handler in the middle of giving it."""
    wake, got = Wake(), []

    def receive():
        for _ in range(2):
            wake.wait()
            got.append(1)

    thread = threading.Thread(target=receive)
    thread.start()
    wake.set()
    wake.set()
    while len(got) < 1:
        thread.join(0.001)
    wake.set()
    thread.join(LONG)
    assert [1, 1] == got


def test_lines_come_before_the_end_for_those_who_watch(opened):
    """Who takes records beside the journal gets an op's lines before its end, in the order of events (S4-115)."""
    builder = opened(Counting(), watcher := Counting())
    op = builder.begin_op("llm", "m")
    op.log("first")
    op.think("second")
    op.end()
    builder.core.stream.flush()
    kinds = [type(record) for record in watcher.records]
    assert [1, 1] == [len(watcher.of(r.Entries)[0].logs), len(watcher.of(r.Entries)[0].chunks)]
    assert kinds.index(r.Entries) < kinds.index(r.OpEnd) == len(kinds) - 1


@pytest.mark.parametrize("answers", ["by itself", "with its end"])
def test_lines_come_before_the_answer_for_those_who_watch(opened, answers):
    """Who takes records beside the journal gets what an op logged before its answer ahead of that, recorded by itself or with the end."""
    builder = opened(Counting(), watcher := Counting())
    op = builder.begin_op("llm", "m")
    op.log("first")
    if answers == "by itself":
        op.response("second")
    else:
        op._returned = builder.core.response("llm", "second")
    op.end("failed", "third")
    builder.core.stream.flush()
    kinds = [type(record) for record in watcher.records]
    assert kinds.index(r.Entries) < kinds.index(r.Responded) < kinds.index(r.OpEnd)


def test_an_interrupt_while_entries_are_read_costs_none(monkeypatch):
    """Ctrl-C in the middle of a delivery, and the op goes on: what it had and what comes are delivered once."""
    taker = Counting()
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([taker]))
    op = builder.begin_op("tool", "x")
    reading = entries.read_entries

    def interrupted(_batch):
        monkeypatch.setattr(entries, "read_entries", reading)
        raise KeyboardInterrupt

    stream = builder.core.stream
    held = stream.enter()  # the stream's own thread waits: it would deliver what is meant for this one
    op.log("before")
    monkeypatch.setattr(entries, "read_entries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.flush()
    stream.leave(held)
    op.log("after")
    assert ["before", "after"] == [entry.message for entry in op.node.logs]
    builder.core.stream.close()
