"""Locks of the program's thread, when a signal's handler raises around them."""

import ast
import random
import signal
import time
from pathlib import Path

import pytest

from optree.interrupts import new_rlock

ROOT = Path(__file__).resolve().parents[2]
HITS = 300


class LimitError(Exception):
    """A time limit."""


def limit(*_):
    """Raise, as the handler of a time limit does."""
    raise LimitError


def enter(lock, end):
    """Take a lock again and again; a function of its own, since the jump back of a loop in a `try` is not in it on Python 3.13.0."""
    while time.monotonic() < end:
        with lock:
            pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends a signal there")
def test_a_lock_is_free_after_an_exception_out_of_a_handler():
    """Wherever a time limit hits a `with` statement of the lock, the lock is free after it, as on Pythons whose own lock is not."""
    lock, delays, held = new_rlock(), random.Random(1), []
    before = signal.signal(signal.SIGALRM, limit)
    try:
        for _ in range(HITS):
            end = time.monotonic() + 60
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delays.uniform(0.00001, 0.0002))
                    enter(lock, end)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except LimitError:
                held.append(lock._is_owned())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [False] * HITS == held


def test_a_lock_is_re_entrant():
    """It may be taken again by who has it, and is free when it was left as often."""
    lock = new_rlock()
    with lock:
        with lock:
            assert lock._is_owned()
        assert lock._is_owned()
    assert not lock._is_owned()


NOT_THE_PROGRAMS = {
    "optree/cli/screen.py": "a command's",
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
                if any(_name(one) in entered and _made_by(value) in {"Lock", "RLock"} for one, value in pairs):
                    found.add(str(path.relative_to(ROOT)))
    assert set(NOT_THE_PROGRAMS) == found


def _parts(node):
    """Return the parts of a tuple, or the one that there is."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _name(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _made_by(node):
    return _name(node.func) if isinstance(node, ast.Call) else ""
