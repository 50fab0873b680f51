"""Threads beside the program's, and what becomes of them where gevent or eventlet put tasks in the place of threads.

If they do so before optree is imported, its threads are tasks too, and so is all that these wait by. If they do so later, optree goes on
with threads: what it has imported waits in the way of threads, and would hold up all tasks.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, Final

from optree._interrupts import suppress
from optree._syscalls import calls

PREFIX: Final = "optree-"
"""What the names of optree's threads begin with."""
TASKS: Final = not isinstance(start_new_thread, BuiltinFunctionType)
"""True if there were tasks in the place of threads before this was imported."""
without_signals: Final[Callable[[Callable[[], object]], object]] = (lambda start: start()) if TASKS else calls.with_signals_blocked
"""Starts a thread that is given no signals of the process; a task runs in the thread that starts it, whose signals stay as they are."""


def have_tasks_come() -> bool:
    """Tell whether there are tasks in the place of threads since this was imported."""
    starts = getattr(threading, "_start_joinable_thread", None) or getattr(threading, "_start_new_thread", None)
    return not (TASKS or isinstance(starts, BuiltinFunctionType))


class BackgroundThread(threading.Thread):
    """A daemon thread that is given none of the signals that are sent to the process: they are for the program's threads."""

    def __init__(self, work: Callable[..., object], name: str, *arguments: object) -> None:
        """Make a thread that calls *work* once it is started."""
        super().__init__(target=work, args=arguments, name=PREFIX + name, daemon=True)
        self._runs = allocate_lock() if have_tasks_come() else None
        """Locked while it runs, of a thread that is no task though `threading` starts tasks."""

    def start(self) -> None:
        """Start it. Raises `RuntimeError` if there can be no more threads."""
        if (runs := self._runs) is None:
            without_signals(super().start)
        elif runs.acquire(False):
            _begin_hub()
            without_signals(lambda: start_new_thread(self._run_beside, (runs,)))

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return super().is_alive() if self._runs is None else self._runs.locked()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for *timeout* seconds at most."""
        if self._runs is None:
            super().join(timeout)
        elif self._runs.acquire(True, -1 if timeout is None else max(0.0, timeout)):
            self._runs.release()

    def _run_beside(self, runs: LockType) -> None:
        module: Any = threading
        here = module.get_ident()
        module._active[here] = self  # noqa: SLF001 - as it does itself: for `current_thread` and `enumerate`
        try:
            self.run()
        finally:
            module._active.pop(here, None)  # noqa: SLF001 - as above
            runs.release()


def _begin_hub() -> None:
    """Let this thread's tasks have what runs them: two threads that begin theirs at once, as they first sleep, wait for each other."""
    with suppress(Exception):
        if (gevent := sys.modules.get("gevent")) is not None:
            gevent.get_hub()


if sys.platform == "linux" and sys.version_info < (3, 14):
    with suppress(Exception):
        # A daemon thread that wakes up while Python goes down is ended by `pthread_exit`. For that glibc opens this library, and aborts
        # the process where it cannot, as without a descriptor: so it is opened while there is one.
        from _ctypes import dlopen

        dlopen("libgcc_s.so.1", os.RTLD_NOW)
