"""Nothing in tracing raises into the traced program: a fault in each call of the public surface, found by looking at it."""

import functools
import inspect
import sys
from contextlib import nullcontext
from pathlib import Path
from traceback import walk_stack

import httpx
import pytest

import optree
from optree import _speed as speed
from optree._records import OpEnd
from optree._tree.walk import to_plain
from tests.interrupts.scenarios import CALLS, CALLS_WITHIN
from tests.tracing.conftest import runtime  # noqa: F401 - a fixture

READING = {
    *("BusyError", "CycleError", "DamagedError", "FormatError", "NotFoundError", "OptreeError", "PathError", "SetupError", "StoreError"),
    *("AccountingEntry", "LogEntry", "Message", "OperationNode", "SessionNode", "Totals", "TurnNode", "Tree", "Damage", "Loaded"),
    *("Config", "Directory", "Path", "Redaction"),
    *("flatten", "format_tree", "load", "snapshot_summary", "walk_ops", "walk_sessions"),
}
"""Errors, data, and what reads a saved session: no program that is traced calls these to be traced."""
BUDGET = optree.budget.__code__
INNER = {
    *("SessionTreeBuilder.over", "Op.of", "Op.of_ended"),  # take a core, which only optree has
    "Turn.next_op",  # called by begin_op, which is guarded
    # what scopes call, which are guarded
    *(f"Budget.{name}" for name in ("alive", "is_over", "chain", "check", "reserve", "stand_outside", "leaves", "commit", "leave")),
    *("Budget.figures", "Budget.refresh"),  # what its properties call
}
FAULTS_OF_OURS = [RuntimeError("a fault of ours"), MemoryError(), OSError(24, "Too many open files"), RecursionError("deep")]
ARGUMENTS = {
    "SessionTreeBuilder": ("a",),
    "begin_op": ("tool", "t"),
    "attach_child_session": ("1.1", "sub"),
    "append_log": ("1.1", "line"),
    "record": (OpEnd("1.1", 2.0, "ok", 1.0),),
    "append_reasoning": ("1.1", "hm"),
    "append_chunk": ("1.1", "text"),
    "append_accounting": ("1.1", {"input_tokens": 1}),
    "set_request": ("1.1", {"a": 1}, [{"role": "user", "content": "hi"}]),
    "set_response": ("1.1", "there"),
    "append_message": ("hello",),
    "set_final_report": ("done",),
    "set_title": ("t",),
    "set_op": ("1.1",),
    "end_op": ("1.1",),
    "op": ("1.1",),
    **dict.fromkeys(("log", "think", "chunk", "response", "assistant", "message", "title", "status"), ("text",)),
    "wrap": (len,),
    **dict.fromkeys(("instrument_client", "uninstrument_client"), (httpx.Client(),)),
}
"""What a call is given, by its name; those that are not here need nothing, or the open turn."""
PACKAGE = str(Path(optree.__file__).parent)
THIN = ("call", "__aenter__", "_awaited")
"""What stands in the place of a decorated function, and of a coroutine: what it calls is behind the guard, and needs a frame for that."""
OWN = tuple(str(Path(optree.__file__).parent / name) for name in ("_builder/guard.py", "_interrupts.py", "_tracing/faults.py"))


def surface():
    """Return the names of all that a traced program may call: functions, and public methods and properties of what they return."""
    found = []
    for name in optree.__all__:
        value = getattr(optree, name)
        if name in READING:
            continue
        if not inspect.isclass(value):
            found.append(name)
            continue
        found.append(name) if name == "SessionTreeBuilder" else None
        own = [kind for kind in value.__mro__ if kind.__module__.startswith("optree.") and kind.__name__ != "EntryState"]
        members = {member: inspect.getattr_static(value, member) for kind in own for member in vars(kind) if not member.startswith("_")}
        for member, one in members.items():
            if (callable(one) or isinstance(one, (property, classmethod))) and f"{name}.{member}" not in INNER:
                found.append(f"{name}.{member}")
    return found


SURFACE = surface()


class Fault:
    """Raises *error* at the start of the *place*-th of optree's functions that a call comes to, that call's own left out."""

    def __init__(self, place, error):
        self.place, self.error, self.seen, self.where = place, error, 0, ""
        self.is_of_a_limit = False
        """True if it came while a budget was made: that raises, for without it the block that follows would run without a limit."""

    def run(self, function):
        """Call the function, and return what it returns."""
        sys.settrace(self._called)
        try:
            return function()
        finally:
            sys.settrace(None)

    def _called(self, frame, _event, _arg):
        code, caller, above = frame.f_code, frame.f_back.f_code.co_filename, frame.f_back.f_code.co_name
        del frame, _arg  # a handler of signals is known by the frame that it is given
        if (
            PACKAGE not in code.co_filename
            or code.co_filename in OWN
            or PACKAGE not in caller
            or code.co_name == "__del__"
            or above in THIN
        ):
            return
        self.seen += 1
        if self.seen == self.place:
            self.where = f"{Path(code.co_filename).name} {code.co_qualname}"
            self.is_of_a_limit = any(one.f_code is BUDGET for one, _ in walk_stack(sys._getframe(1)))
            raise self.error


def counted():
    """Return how many faults were counted."""
    return optree.health()["failures"]


def call_of(name):
    """Return a call of a name of the surface, and what it may return: None, or types."""
    kind, _, member = name.partition(".")
    session = optree.current_session()
    owner = {"Session": session, "Turn": optree.current().turn, "Op": optree.current(), "SessionTreeBuilder": session.builder}
    owner = optree.budget(usd=1) if kind == "Budget" else owner.get(kind)
    if not member:
        named = {"calls": 9} if name == "budget" else {}  # which must have a limit
        return lambda: getattr(optree, name)(*ARGUMENTS.get(name, ()), **named)
    if isinstance(inspect.getattr_static(type(owner), member), property):
        return lambda: getattr(owner, member)
    given = (optree.current().turn, "said") if member in ("set_assistant", "end_turn") else ARGUMENTS.get(member, ())
    return lambda: getattr(owner, member)(*given)


OF_THE_RUN = {
    *("id", "opId", "traceId", "originTxnId", "parentTxnId", "parentTraceId"),
    *("timestamp", "ts", "startedAt", "endedAt", "latency"),
    "size",  # of a payload that is there, or is not; what could not be read of it may be a member that is not kept
}
"""What may be another in each run: ids and times."""


def recorded(value):
    """Return what two runs of the same call record alike."""
    if isinstance(value, dict):
        return {key: recorded(one) for key, one in value.items() if key not in OF_THE_RUN}
    return [recorded(one) for one in value] if isinstance(value, list) else value


def is_said(tree):
    """Tell whether the tree itself says that one of its values could not be read."""
    return "'$error'" in str(tree)


def flaws_of(name, error, share):
    """Return what is wrong when *error* comes at each place, or one in *share*, of a call within a session, a turn and an op."""
    found, place, most, whole = [], 1 << 30, None, None
    while most is None or place <= most:
        with optree.session("program") as session, optree.turn(), optree.llm("m"):
            run = call_of(name) if name in SURFACE else functools.partial(CALLS_WITHIN[name], optree.current())
            fault = Fault(place, type(error)(*error.args))
            before, ran = counted(), len(CALLS)
            usual = None
            try:
                usual = fault.run(run)
            except BaseException as raised:  # noqa: BLE001 - it is looked at
                found.append(f"{name} at {place} ({fault.where}) raised {raised!r}")
            if fault.is_of_a_limit:
                found.pop()
                place += share
                continue
            times, tree = counted() - before, recorded(to_plain(session.tree))
            whole = tree if whole is None else whole
            if tree != whole and not times and not is_said(tree) and isinstance(error, Exception):
                found.append(f"{name} at {place} ({fault.where}) is not counted, and recorded is {tree}")
            if times > 1:
                found.append(f"{name} at {place} ({fault.where}) is counted {times} times")
            if name.startswith("@") and len(CALLS) - ran != 1:
                found.append(f"{name} at {place} ({fault.where}): the program's function ran {len(CALLS) - ran} times")
            if most is None:
                most, place, kind = fault.seen, 1, type(usual)
            else:
                place += share
                if not (isinstance(usual, kind) or type(usual).__name__.startswith("Unrecorded") or usual is None or name == "wrap"):
                    found.append(f"{name} at {fault.where} returned {usual!r}")
    return found


@pytest.fixture
def unhooked():
    """Leave no hooks in libraries behind."""
    yield
    optree.uninstrument()


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("name", [*SURFACE, *(name for name in CALLS_WITHIN if name.startswith(("with", "@", "async")))])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that Python closes: it drops the fault
@pytest.mark.usefixtures("runtime", "unhooked")
def test_a_fault_in_it_is_not_raised(name, pure):
    """A fault in any function that a public call comes to is not raised; where less is recorded, it is counted, and once at most."""
    optree.configure(console=False)
    with speed.plainly() if pure else nullcontext():
        assert [] == [flaw for error, share in zip(FAULTS_OF_OURS, (5, 23, 29, 13), strict=True) for flaw in flaws_of(name, error, share)]


@pytest.mark.usefixtures("runtime")
def test_ctrl_c_passes():
    """What is no Exception is the program's."""
    optree.configure(console=False)
    assert ["begin_op raised KeyboardInterrupt()"] == [
        f"{flaw.split()[0]} raised {flaw.split('raised ')[1]}" for flaw in flaws_of("begin_op", KeyboardInterrupt(), 1000)
    ]


@pytest.mark.usefixtures("runtime")
def test_it_is_counted_and_said_once():
    """A fault that no session's stream can count is in `health()` once, with its text; what is begun in its place takes everything."""
    optree.configure(console=False)
    before = optree.health()["failures"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optree._builder.session_tree.Core", None)
        builder = optree.SessionTreeBuilder("a")
    op = builder.begin_op("tool", "t", turn=builder.begin_turn())
    op.log("line")
    builder.end_session()
    said = "something is not recorded: TypeError: 'NoneType' object is not callable"
    assert (1, 1, (), {}) == (
        optree.health()["failures"] - before,
        optree.health()["problems"].count(said),
        op.node.logs,
        builder.attach_child_session(op, "b").node.attributes,
    )
