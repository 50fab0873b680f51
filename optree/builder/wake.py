"""A signal to one waiting thread that may be given from anywhere: a finalizer, a signal handler, in the middle of a wait.

`threading.Event` may not: its own lock is a plain one, and a finalizer that runs inside `set` or `wait` and calls `set` waits for itself.
"""

from __future__ import annotations

from _thread import allocate_lock

from optree.interrupts import pass_on


class Wake:
    """A signal from one thread to another, a binary semaphore: `set` never waits, and may be called in a signal's handler."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Give the signal; it stays given until somebody takes it."""
        try:
            self._lock.release()
        except RuntimeError as error:  # it is given already
            pass_on(error)
            return

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal and take it.

        Args:
            seconds: How long to wait at most; None is for ever.

        Returns:
            False if the signal did not come.
        """
        return self._lock.acquire(True, -1 if seconds is None else max(0.0, seconds))
