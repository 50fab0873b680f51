"""Locks of the program's thread, when a signal's handler raises around them."""

import ast
import gc
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from optree._interrupts import new_rlock
from optree._store import Directory, open_session
from optree._store.saving import StoreOptions
from optree_formats.transcript.recorder import Subscription
from optree_otel.incoming.processor import MOST, Later
from optree_otel.live import Live
from optree_otel.otlp.batches import Limits
from optree_otel.otlp.responses import DELIVERED
from optree_otel.otlp.sender import Sender
from tests.interrupts.injecting import NOWHERE, Injection, Stop
from tests.otel.receiver import until
from tests.otel.sending import Names, Refusing
from tests.tracing.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
HITS = 300


class LimitError(Exception):
    """A time limit."""


def limit(*_):
    """Raise, as the handler of a time limit does."""
    raise LimitError


def entering():
    """Return what takes a lock, and the lock."""
    lock = new_rlock()

    def enter():
        with lock:
            pass

    return enter, lock


def adding():
    """Return what has something done later, or does not, since too much is, and its lock."""
    later = Later(str)
    later._items.extend([(0.0, 0, "")] * MOST)
    return lambda: later.add("", 0.0), later._changed._lock


def telling():
    """Return what tells a subscriber that nothing comes any more, and its lock."""
    subscription = Subscription()
    return subscription.cancel, subscription._ready._lock


def again(call, end):
    """Call it again and again; a function of its own, since the jump back of a loop in a `try` is not in it on Python 3.13.0."""
    while time.monotonic() < end:
        call()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends a signal there")
@pytest.mark.parametrize("begun", [entering, adding, telling])
def test_a_lock_is_free_after_an_exception_out_of_a_handler(begun):
    """Wherever a time limit hits a `with` statement of the lock, the lock is free after it, as on Pythons whose own lock is not."""
    (call, lock), delays, held = begun(), random.Random(1), []
    gc.collect()
    gc.disable()  # Python drops what a handler raises in a finalizer of another test's objects
    before = signal.signal(signal.SIGALRM, limit)
    try:
        for _ in range(HITS):
            end = time.monotonic() + 60
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delays.uniform(0.00001, 0.0002))
                    again(call, end)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except LimitError:
                held.append(lock._is_owned())
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert [False] * HITS == held


def test_a_lock_is_re_entrant():
    """It may be taken again by who has it, and is free when it was left as often."""
    lock = new_rlock()
    with lock:
        with lock:
            assert lock._is_owned()
        assert lock._is_owned()
    assert not lock._is_owned()


def ended(folder):
    """Return what lets go of a session that has ended, and its locks."""
    builder, store = open_session("agent", StoreOptions(Directory.of(folder)))
    builder.end_session()
    assert store.wait(LONG)
    return store.let_go, [store._writing, store._guard]


def sending(_folder):
    """Return what starts a sender's thread, and its locks."""
    sender = Sender("traces", Names(), Refusing)
    return sender.warm, [sender._starting, sender._trimming]


def looking(_folder):
    """Return what looks for live traces, and its lock."""
    live = Live(None, None, lambda _: None, str, None)
    return live.look, [live._looking]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="where 3.11 runs handlers")
@pytest.mark.parametrize("begun", [ended, sending, looking])
def test_a_lock_that_is_tried_is_free_after_an_exception_out_of_a_handler(begun, tmp_path):
    """Wherever CPython runs a handler that raises in what takes a lock only where that is free, the lock is free after it.

    No signal stays blocked either, as they are while a thread starts.
    """

    def run(place):
        call, locks = begun(tmp_path)
        one = Injection(place, Stop())
        with suppress(Stop):
            one.run(call)
        return one, [lock for lock in locks if is_taken(lock)], signal.pthread_sigmask(signal.SIG_SETMASK, ())

    all_places = run(NOWHERE)[0].handlers
    places = [place + 1 for place, possible in enumerate(all_places) if possible]
    assert len(places) > 3
    assert [] == [one.where for one, left, blocked in map(run, places) if left or blocked]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="where 3.11 runs handlers")
def test_a_put_after_an_exception_out_of_a_handler_is_sent():
    """Wherever a handler raises in the first put of a sender, which starts its thread, the next one is sent, and nobody has to flush."""

    def run(place):
        source = Names()
        sender = Sender("traces", source, lambda: Refusing(DELIVERED), Limits(linger=0.0))
        one = Injection(place, Stop())
        with suppress(Stop):
            one.run(lambda: sender.put("first"))
        sender.put("second")
        sent = until(lambda: "second" in source.done, 5)
        sender.close(0.0)
        return one, sent

    all_places = run(NOWHERE)[0].handlers
    places = [place + 1 for place, possible in enumerate(all_places) if possible]
    assert len(places) > 3
    assert [] == [one.where for one, sent in map(run, places) if not sent]


def is_taken(lock):
    """Tell whether this thread has a lock, or, of one that is not re-entrant, anybody."""
    return lock._is_owned() if hasattr(lock, "_is_owned") else not lock.acquire(timeout=1)


NOT_THE_PROGRAMS = {
    "optree/_cli/screen.py": "a command's",
    "exporters/optree_formats/markdown/writer.py": "a log's that no traced program writes; a forked child asks whether it is locked",
    "exporters/optree_otel/mirror.py": "of the threads that send",
}
"""Files whose locks are entered by no traced program's thread, and whose they are."""


def test_what_a_program_enters_is_such_a_lock():
    """Each lock of optree and of its exporters that a `with` statement takes on the program's thread is one that is left free."""
    found = set()
    for path in sorted([*ROOT.glob("optree/**/*.py"), *ROOT.glob("exporters/**/*.py")]):
        tree = ast.parse(path.read_text())
        entered = {_name(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items} - {""}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                pairs = zip(_parts(target), _parts(node.value), strict=False)
                if any(_name(one) in entered and _made_by(value) in {"Lock", "RLock", "Condition"} for one, value in pairs):
                    found.add(str(path.relative_to(ROOT)))
    assert set(NOT_THE_PROGRAMS) == found


def _parts(node):
    """Return the parts of a tuple, or the one that there is."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _name(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _made_by(node):
    return _name(node.func) if isinstance(node, ast.Call) else ""
