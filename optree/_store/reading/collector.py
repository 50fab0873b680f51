"""Python's garbage collector, held off while a large tree is built."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

from optree._interrupts import new_rlock
from optree._syscalls import calls


class _Collector:
    """Counts who needs it off; the last one out puts it back as the first one found it. A forked child has it back at once.

    A signal handler, or an object's end, may come in between any two steps and need it off too: on the same thread, so the lock lets it
    in, and the steps are in an order in which it leaves everything as it was.
    """

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._holders = 0
        self._was_on = False
        calls.register_at_fork(after_in_child=self._after_fork)

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def release(self) -> None:
        with self._lock:
            if self._holders == 1 and self._was_on:
                gc.enable()
            self._holders = max(0, self._holders - 1)

    def _after_fork(self) -> None:
        """The threads that held it are not in the child."""
        if self._holders and self._was_on:
            gc.enable()
        self._holders = 0


_COLLECTOR = _Collector()


@contextmanager
def without_collector() -> Generator[None]:
    """Keep the garbage collector off; any number of threads may be inside, and at the end it is as it was."""
    _COLLECTOR.hold()
    try:
        yield
    finally:
        _COLLECTOR.release()
