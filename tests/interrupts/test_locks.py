"""Locks of the program's thread, when a signal's handler raises around them."""

import random
import signal
import time

import pytest

from optree.interrupts import new_rlock

HITS = 300


class LimitError(Exception):
    """A time limit."""


def limit(*_):
    """Raise, as the handler of a time limit does."""
    raise LimitError


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
                    while time.monotonic() < end:
                        with lock:
                            pass
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
