"""The compiled hot path: it does what the Python functions do, to the byte, also where something goes wrong."""

import copy
import errno
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from itertools import count
from math import inf
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import settings as examples

from optree import Op, SessionTreeBuilder, __version__
from optree import _speed as speed
from optree import _values as values
from optree._builder import Stream, entries, handles, histories, quick
from optree._builder.handles import respond_at_end
from optree._builder.stream import Wants
from optree._providers import answers, usage
from optree._records import Entries, OpBegin, OpEnd, check
from optree._speed import plainly
from optree._store.files.system import OS
from optree._store.journal import Journal
from optree._store.upkeep import left_synced
from optree._tree.walk import to_plain
from optree.testing import Ticking
from tests.store.faults import Faulty, Short
from tests.strategies import play_on, programs

ROOT = Path(__file__).resolve().parents[2]
TWINS = [
    (Op, "log"),
    (Op, "think"),
    (Op, "chunk"),
    (Op, "account"),
    (Op, "end"),
    (SessionTreeBuilder, "begin_op"),
    (entries, "read_entries"),
    (Stream, "leave"),
    (Stream, "together"),
    (values, "_is_plain"),
    (histories, "is_same"),
]
compiled = pytest.mark.skipif(
    not speed.compiled() and (os.environ.get("OPTREE_PURE") or not os.environ.get("CI")),
    reason="optree is not compiled here: no C compiler or Python headers, or OPTREE_PURE",
)


def lines_of(path):
    """Return the records of a journal as plain values, each held to its checksum; without it, and without the time of gaps."""
    header, *rest = path.read_bytes().splitlines(keepends=True) or [b""]
    seed = crc32(header)
    found = [json.loads(line) if check(line[:-1], seed) else {"t": "torn"} for line in rest]
    return [record | {"c": None, "ts": None if record["t"] == "gap" else record.get("ts")} for record in found]


def recorded(work, system=None):
    """Return what work on a stream leaves: its result, the journal's records, and what the stream and the journal say of themselves."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "monotonic", Ticking())
        options = {} if system is None else {"system": system}
        journal = Journal(Path(folder, "live"), "t", "1", ordinal=0, **options)
        stream = Stream([journal])
        stream._awake = True  # the background thread stays away: deliveries are where the program has them
        result = work(stream)
        stream.close()
        journal.close()
        lines = [line for path in sorted(Path(folder, "live").iterdir()) for line in lines_of(path)]
        told = journal.last, journal.lost, journal.whole, stream.failures, stream.late, len(stream._queue), stream._delivering
        return result, lines, told


def test_ci_has_it():
    """Where the whole check runs, the hot path is compiled, and the twins stand where they belong."""
    if not os.environ.get("CI") or os.environ.get("OPTREE_PURE"):
        pytest.skip("this machine may have no C compiler, or is told to go without")
    assert speed.compiled()
    assert all("Twin" == type(getattr(owner, name)).__name__ for owner, name in TWINS)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_which_functions_have_twins(monkeypatch, is_compiled):
    """Those of the hot path, all told what they work on first; none where nothing is compiled."""
    told, placed = {}, []
    monkeypatch.setattr(speed, "prepare", lambda **types: told.update(types) or is_compiled)
    monkeypatch.setattr(speed, "quicken", lambda owner, *names: placed.extend((owner, name) for name in names))
    quick.install()
    assert sorted(TWINS if is_compiled else [], key=str) == sorted(placed, key=str)
    assert (Op, Stream) == (told["op_type"], told["stream_type"])


@compiled
@given(programs)
@examples(max_examples=200)
def test_any_program_leaves_the_same(program):
    """Whatever is called in whatever order, tree and journal are those of the Python functions."""

    def work(stream):
        builder, accounted = play_on(stream, program)
        return [to_plain(builder.tree), accounted]

    with plainly():
        expected = recorded(work)
    assert expected == recorded(work)


def busy(stream, clock=None):
    """Do all that has a twin, plainly and not; returns the tree."""
    builder = SessionTreeBuilder("a", txn="t", stream=stream, now=clock or Ticking())
    turn = builder.begin_turn()
    for number in range(6):
        op = builder.begin_op("llm", "openai:gpt-5", turn=turn)
        inner = builder.begin_op("tool", "search", turn=turn, parent=op, attributes=None)
        for _ in range(3):
            op.log("a line")
            op.think("a thought")
            op.chunk("a word")
            inner.log("odd \ud800", "WRN", details={"n": number})
        op.account(input_tokens=10, output_tokens=number, cache_read_tokens=number % 2, cost_usd=0.5, latency=1.0)
        op.account(input_tokens=1 << 61, cost_usd=float("nan"))
        op.account(cost_usd=2, model="other")
        inner.end()
        op.end("failed" if number == 3 else "ok")
        op.log("late")
        op.chunk("late")
        op.account(output_tokens=1)
        op.end()
    turn.end()
    builder.begin_op("llm", "openai:gpt-5", turn=turn).end()
    builder.end_session()
    return to_plain(builder.tree)


FAULTS = {
    "none": lambda: None,
    "a byte at a time": lambda: Short(1),
    "a line torn in its middle": lambda: Tearing(12),
    "full from the first": lambda: armed(Faulty("write", errno.ENOSPC, first=1)),
    "full for one write": lambda: armed(Faulty("write", errno.ENOSPC, first=9, times=1)),
    "an error of the disk": lambda: armed(Faulty("write", errno.EIO, first=20)),
}


class Tearing(OS):
    """Writes part of a line, and then has no more room, once."""

    def __init__(self, at):
        self.calls, self.at = count(), at

    def write(self, fd, data):
        """Write, or write a little and fail the next time."""
        call = next(self.calls)
        if call == self.at + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data[:20] if call == self.at else data)


def armed(system):
    """Return a system that fails from now on, its file's header apart."""
    system.arm()
    system.calls["write"] = -1
    return system


@compiled
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_disk_are_told_the_same(fault):
    """Where the disk writes too little, or nothing, records are split, lost and counted as the Python functions do it."""
    with plainly():
        expected = recorded(busy, FAULTS[fault]())
    assert expected == recorded(busy, FAULTS[fault]())


CLOCKS = {
    "whole seconds": lambda: lambda: 1_700_000_000,
    "it goes back": lambda: (float(second) for second in range(9000, 0, -1)).__next__,
    "it stands still": lambda: lambda: 0.1,
}


@compiled
@pytest.mark.parametrize("clock", CLOCKS)
def test_odd_clocks(clock):
    """A clock that goes back, stands still, or shows whole seconds gives the same times."""
    with plainly():
        expected = recorded(lambda stream: busy(stream, CLOCKS[clock]()))
    assert expected == recorded(lambda stream: busy(stream, CLOCKS[clock]()))


class Interrupted(OS):
    """Is interrupted in the write that is armed, before or after it is done."""

    def __init__(self, *, after):
        self.after, self.armed = after, False

    def write(self, fd, data):
        """Write, and raise as a signal's handler would."""
        if not self.armed:
            return os.write(fd, data)
        self.armed = False
        if self.after:
            os.write(fd, data)
        raise KeyboardInterrupt


class Refusing:
    """Takes records, and refuses every third."""

    def __init__(self):
        self.taken, self.calls = [], count(1)

    def take(self, batch):
        """Keep what the batch holds, or raise."""
        if next(self.calls) % 3 == 0:
            raise ValueError("not this one")
        self.taken += [type(record).__name__ + ":" + getattr(record, "path", "") for record in batch]


class Choosing(Refusing):
    """The same, of some records."""

    wants = Wants(frozenset({OpBegin, OpEnd, Entries}), severities=frozenset({"WRN"}), failures=True)


@compiled
@pytest.mark.parametrize("ordered", [True, False])
def test_other_takers(ordered):
    """Subscribers get the same records in the same order behind the journal, and what they raise is counted."""

    def work(stream):
        takers = [Refusing(), Refusing(), Choosing()]
        stream.subscribe(takers[0], ordered=ordered)
        stream.subscribe(takers[2], ordered=ordered)
        stream.subscribe(takers[1], ordered=False)
        return busy(stream), [taker.taken for taker in takers]

    with plainly():
        expected = recorded(work)
    assert 30 < expected[2][3]
    assert expected == recorded(work)


@compiled
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["begin_op", "account", "end"])
def test_an_interrupt_within_a_write_costs_nothing(call, after):
    """Ctrl-C in the middle of a write goes on to the program; the record waits for the next step, and the lock is free."""

    def work(stream):
        builder = SessionTreeBuilder("a", txn="t", stream=stream, now=Ticking())
        turn = builder.begin_turn()
        op = builder.begin_op("llm", "openai:gpt-5", turn=turn)
        if call == "end":
            op.account(input_tokens=1)
        calls = {
            "begin_op": lambda: builder.begin_op("llm", "openai:gpt-5", turn=turn),
            "account": lambda: op.account(input_tokens=3, latency=1.0),
            "end": op.end,
        }
        system.armed = True
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
        lock = stream._lock
        assert not lock._is_owned()
        builder.end_session()
        return to_plain(builder.tree)

    system = Interrupted(after=after)
    with plainly():
        expected = recorded(work, system)
    system = Interrupted(after=after)
    assert expected == recorded(work, system)


@compiled
def test_a_call_from_within_a_write():
    """A call that comes while another is being written (a signal's handler, a finalizer) is delivered behind it."""

    class Calling(OS):
        """Calls back once."""

        back = None

        def write(self, fd, data):
            """Call back, then write."""
            back, self.back = self.back, None
            if back is not None:
                back()
            return os.write(fd, data)

    def work(stream):
        builder = SessionTreeBuilder("a", txn="t", stream=stream, now=Ticking())
        turn = builder.begin_turn()
        op = builder.begin_op("llm", "openai:gpt-5", turn=turn)
        system.back = lambda: builder.begin_op("tool", "within", turn=turn).end()
        op.account(input_tokens=3, latency=1.0)
        system.back = lambda: (op.end(), op.account(output_tokens=1))
        op.end()
        builder.end_session()
        return to_plain(builder.tree)

    system = Calling()
    with plainly():
        expected = recorded(work, system)
    system = Calling()
    assert expected == recorded(work, system)


def blocks():
    """Return how many blocks of memory there are once six more sessions are over."""
    for _ in range(3):
        recorded(busy)
        recorded(busy, Short(5))
    assert left_synced(60.0)  # till then the names of closed journals are kept, to be forced to the disk
    gc.collect()
    return sys.getallocatedblocks()


def grown():
    """Return by how many blocks 180 sessions let memory grow: five times at most, until they are fewer than sessions."""
    blocks()
    kept = []
    while len(kept) < 5 and min(kept, default=180) >= 180:
        before = blocks()
        kept.append([blocks() for _ in range(30)][-1] - before)
    return kept


@compiled
def test_nothing_is_kept():
    """180 sessions leave less than a block each behind: every reference that is taken is given back.

    What is leaked grows each time; what other threads and the interpreter keep does not, least of all in a process of its own.
    """
    program = "from tests.store.test_speed import grown; print(min(grown()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 180


@compiled
def test_the_collector_does_not_look_at_nodes():
    """Lists of turns and of ops are none of the collector's, however they grow: their nodes hold nothing that it tracks."""
    builder = SessionTreeBuilder("a")
    for _ in range(50):
        turn = builder.begin_turn()
        for _ in range(50):
            op = builder.begin_op("llm", "openai:gpt-5", turn=turn)
            op.log("x")
            op.account(input_tokens=1)
            op.end()
    gc.collect()
    found = [builder.node.turns, *(turn.ops for turn in builder.node.turns)]
    assert 51 == len(found)
    assert not any(gc.is_tracked(one) for one in found)
    assert not any(gc.is_tracked(op) or gc.is_tracked(op.logs) or gc.is_tracked(op.accounting) for op in turn.node.ops)


@compiled
def test_it_looks_like_the_function_it_stands_for():
    """A twin has its function's name, signature, docstring and module, binds like it, and is refused what it refuses."""
    for owner, name in TWINS:
        twin = getattr(owner, name)
        function = twin.__wrapped__
        assert (function.__name__, function.__qualname__, function.__doc__, function.__module__) == (
            twin.__name__,
            twin.__qualname__,
            twin.__doc__,
            twin.__module__,
        )
        assert inspect.signature(function) == inspect.signature(twin)
    op = SessionTreeBuilder("a").begin_op("tool", "x")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'message'"):
        op.log()
    with pytest.raises(TypeError, match="unexpected keyword argument 'loud'"):
        op.log("x", loud=True)
    with pytest.raises(AttributeError):
        Op.log("not an op", "x")


def test_it_can_be_left_out():
    """With OPTREE_PURE=1 the Python functions are in place, and do the work."""
    code = (
        "import optree, types; from optree import _speed as speed; print(speed.compiled(), isinstance(optree.Op.log, types.FunctionType))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"OPTREE_PURE": "1"}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "False True" == run.stdout.strip()


@pytest.mark.parametrize(("version", "contract"), [("0.0.9", speed.CONTRACT), (__version__, speed.CONTRACT - 1), (__version__, None)])
def test_what_was_compiled_for_another_version_is_left_alone(version, contract):
    """A compiled module of another version, or of the same before the two sides changed, is not used."""
    module = ModuleType("_twins")
    module.version = version
    if contract is not None:
        module.CONTRACT = contract
    assert not speed.usable(module)
    assert not speed.usable(None)


@pytest.mark.slow
def test_the_unit_tests_pass_without_it():
    """The Python functions define what happens: the unit tests of tree and stream hold for them alone as well."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "tests/builder/test_stream.py",
            "tests/builder/test_builder.py",
            "tests/store/test_journal.py",
        ],
        env=os.environ | {"OPTREE_PURE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == run.returncode, run.stdout[-3000:]


DEEP = [[[[[[[[[["x"]]]]]]]]]]
VALUES = [
    *("x", "\ud800", "é", 0, -1, True, None, 1.5, float("nan"), float("inf"), 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1),
    *(
        [],
        {},
        (),
        [1, [2]],
        {"a": {"b": [1.0]}},
        {1: 2},
        {"headers": 1},
        {"X-HEADERS": {}},
        {"header": 1},
        {"": 1},
        {"s": 1},
        {"éheaders": 1},
    ),
    *(b"x", {1}, object(), Path("x"), DEEP[0], DEEP, [{"x-headers": 1}], "x" * (1 << 20), "x" * (1 << 20) + "x", [float("nan")]),
]


@compiled
def test_what_is_written_as_it_is():
    """The twin tells of every kind of value what the Python function tells."""
    with plainly():
        expected = [values._is_plain(value, 0, [room]) for value in VALUES for room in (inf, 1.0)]
    assert {True, False} == set(expected)
    assert expected == [values._is_plain(value, 0, [room]) for value in VALUES for room in (inf, 1.0)]


@compiled
def test_which_values_are_the_same():
    """The twin tells of any two values what the Python function tells, copies of them and such as differ in a type or an order alike."""
    several = [
        *VALUES,
        1.0,
        -0.0,
        0.0,
        False,
        2**70,
        {"a": {"b": [1]}},
        {"b": 1, "a": 2},
        {"a": 2, "b": 1},
        [[1], 2],
        ["x", 1],
        {"a": None},
    ]
    pairs = [(one, other) for one in several for other in [*several, histories.copied(one), json.loads('"ab"')]]
    with plainly():
        expected = [histories.is_same(*pair) for pair in pairs]
    assert {True, False} == set(expected)
    assert expected == [histories.is_same(*pair) for pair in pairs]


def calls(stream):
    """Record calls of tools as the decorator does; returns the tree."""
    builder = SessionTreeBuilder("a", txn="t", stream=stream, now=Ticking())
    turn = builder.begin_turn()
    host = builder.begin_op("session", "b", turn=turn)
    child = builder.attach_child_session(host, "b")
    inner = child.begin_turn()
    for request in ({"query": "x"}, {}, {"long": "x" * 600}, {"odd": {1, 2}}, None):
        for response in ("said", {"a": [1.5, None]}, "x" * 3000, None):
            for where, session in ((turn, builder), (inner, child)):
                op = session.begin_op("tool", "search", turn=where, request=request)
                respond_at_end(op, response)
                op.end("ok", None)
                respond_at_end(op, "late")
                op.end()
    for kind in ("tool", "llm", "system"):
        for status in ("ok", "failed"):
            op = builder.begin_op(kind, "openai:gpt-5", turn=turn, request={"a": 1}, attributes={"b": 2})
            op.log("a line")
            if status == "failed":
                op.log("a warning", "WRN")
            respond_at_end(op, 1)
            op.end(status, None)
    accounted = builder.begin_op("tool", "search", turn=turn)
    accounted.account(cost_usd=0.5)
    respond_at_end(accounted, "x")
    accounted.end()
    builder.end_session()
    return to_plain(builder.tree)


USAGES = [
    {"prompt_tokens": 812, "completion_tokens": 64, "total_tokens": 876, "prompt_tokens_details": {"cached_tokens": 512}},
    {"input_tokens": 9, "output_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens_details": {"reasoning_tokens": 30}},
    {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25, "service_tier": "flex", "completion_tokens_details": {"audio_tokens": 1}},
    {"prompt_tokens": 5, "cost": 1, "cost_details": {"upstream_inference_cost": 0.5}},
    {"prompt_tokens": 5, "completion_tokens": -2},
    {"prompt_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 9}},
    {"prompt_tokens": 1 << 61},
    {"cost": float("inf")},
    {"a": {1, 2}},
    {},
]


def answered(stream):
    """Record calls of models whose usage was read before, and whose response comes with the end; returns the tree."""
    builder = SessionTreeBuilder("a", txn="t", stream=stream, now=Ticking())
    turn = builder.begin_turn()
    host = builder.begin_op("session", "b", turn=turn)
    child = builder.attach_child_session(host, "b")
    inner = child.begin_turn()
    for name in ("openai:gpt-5", "anthropic:claude-5", "plan"):
        for given_usage in USAGES:
            for where, session in ((turn, builder), (inner, child)):
                op = session.begin_op("llm", name, turn=where)
                op.log("a line")
                op.account(usage.read(given_usage))
                respond_at_end(op, {"said": given_usage.get("cost")})
                op.end("ok", None)
                op.account(usage.read(given_usage))
                respond_at_end(op, "late")
                op.end()
    streamed = builder.begin_op("llm", "openai:gpt-5", turn=turn)
    streamed.chunk("a word")
    streamed.account(usage.read(USAGES[0]), actual_model="gpt-5-mini")
    respond_at_end(streamed, "a word more")
    streamed.end()
    builder.end_session()
    return to_plain(builder.tree)


@compiled
@pytest.mark.parametrize("work", [calls, answered])
@pytest.mark.parametrize("system", [None, Short, Faulty])
def test_calls(system, work):
    """Calls of tools, with arguments and results, and of models, whose usage was read before, are what the Python functions make."""
    make = {None: lambda: None, Short: lambda: Short(40), Faulty: lambda: Faulty("write", errno.ENOSPC, 7)}[system]
    with plainly():
        expected = recorded(work, make())
    assert 100 < len(expected[1])
    assert expected == recorded(work, make())


class Named(dict):
    """A dict of another type."""


@compiled
@pytest.mark.parametrize(
    "value",
    [
        {"a": None, "b": [1, None, {"c": None, "d": [{"x": None}, []]}], "e": {}, "f": (None, {"a": None})},
        [None, {"a": None}, [[{"a": None}]], Named(a=None)],
        Named(a=None, b=[{"c": None}]),
        {"a": Named(a=None), "b": {1: None, 2: {"c": None}}},
        *(None, 1, "x", (None,)),
    ],
)
def test_an_answer_without_nulls(value):
    """The twin leaves the members out that the Python function does, and what it is given as it is."""
    assert "Twin" == type(answers._bare).__name__
    before = copy.deepcopy(value)
    with plainly():
        expected = answers._bare(value)
    assert repr(expected) == repr(answers._bare(value))
    assert repr(before) == repr(value)


@compiled
def test_an_answer_nested_without_end():
    """Both give up one that is nested too deep by the same exception."""
    deep = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        answers._bare(deep)


@pytest.mark.parametrize("plain", [True, False])
def test_a_call_is_two_writes(plain):
    """A call of a tool is written twice: its begin with its arguments, and its result with what it took and its end."""
    written = []

    class Writes(OS):
        def write(self, fd, data):
            written.append([json.loads(line)["t"] for line in data.splitlines()])
            return super().write(fd, data)

    def work(stream):
        builder = SessionTreeBuilder("a", txn="t", stream=stream)
        turn = builder.begin_turn()
        del written[:]
        op = builder.begin_op("tool", "search", turn=turn, request={"query": "x"})
        respond_at_end(op, "a page")
        op.end()
        return list(written)

    with plainly() if plain else nullcontext():
        [begin, end] = recorded(work, Writes())[0]
    assert (["op.begin", "request"], ["response", "accounting", "op.end"]) == (begin, end)
