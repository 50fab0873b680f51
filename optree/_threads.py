"""Optree's threads, also where gevent or eventlet monkey-patch `threading`, so that what it starts are greenlets.

If they patch before optree is imported, its threads are greenlets, and the locks that it uses are theirs. If they patch later, optree goes
on with threads: the locks that it has imported hold up a whole thread, with all greenlets in it.
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
IS_PATCHED: Final = not isinstance(start_new_thread, BuiltinFunctionType)
"""True if `threading` was patched before this was imported: what it starts are greenlets."""
without_signals: Final[Callable[[Callable[[], object]], object]] = (lambda start: start()) if IS_PATCHED else calls.with_signals_blocked
"""Starts a thread that is given no signals of the process; a greenlet is in the thread that starts it, whose signals stay as they are."""


def is_patched_since() -> bool:
    """Tell whether `threading` was patched after this was imported."""
    starts = getattr(threading, "_start_joinable_thread", None) or getattr(threading, "_start_new_thread", None)
    return not (IS_PATCHED or isinstance(starts, BuiltinFunctionType))


class BackgroundThread(threading.Thread):
    """A daemon thread that is given none of the signals that are sent to the process: they are for the program's threads."""

    def __init__(self, work: Callable[..., object], name: str, *arguments: object) -> None:
        """Make a thread that calls *work* once it is started."""
        super().__init__(target=work, args=arguments, name=PREFIX + name, daemon=True)
        self._runs = allocate_lock() if is_patched_since() else None
        """Locked while it runs, if `threading` is patched and it is a thread all the same; else None."""
        self._process = 0
        """That it runs in: in a forked child the lock stays as it is."""

    def start(self) -> None:
        """Start it. Raises `RuntimeError` if there can be no more threads."""
        if (runs := self._runs) is None:
            without_signals(super().start)
        elif runs.acquire(False):
            self._process = os.getpid()
            _begin_hub()
            try:
                without_signals(lambda: start_new_thread(self._run_beside, (runs,)))
            except (RuntimeError, MemoryError):
                runs.release()
                raise

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return super().is_alive() if self._runs is None else self._runs.locked() and self._process == os.getpid()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for *timeout* seconds at most."""
        if self._runs is None:
            super().join(timeout)
        elif self.is_alive() and self._runs.acquire(True, -1 if timeout is None else max(0.0, timeout)):
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
    """Make the hub that runs this thread's greenlets: two threads that make theirs at once, as they first sleep, wait for each other."""
    with suppress(Exception):
        if (gevent := sys.modules.get("gevent")) is not None:
            gevent.get_hub()


if sys.platform == "linux" and sys.version_info < (3, 14):
    with suppress(Exception):
        # A daemon thread that wakes up while Python goes down is ended by `pthread_exit`. For that glibc opens this library, and aborts
        # the process where it cannot, as without a descriptor: so it is opened while there is one.
        from _ctypes import dlopen

        dlopen("libgcc_s.so.1", os.RTLD_NOW)
