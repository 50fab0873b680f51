"""A signal to one waiting thread, which may be given from anywhere, also from a finalizer in the middle of a wait."""

from __future__ import annotations

from _thread import allocate_lock


class Bell:
    """A binary semaphore: `ring` never blocks, `wait` takes the signal with it.

    `threading.Event` has a plain lock of its own: a finalizer that runs inside its `wait` and sets it waits for itself.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Give the signal; it stays given until somebody takes it."""
        try:
            self._lock.release()
        except RuntimeError:  # it is given already
            return

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal, at most *seconds*, and take it; False if it did not come."""
        return self._lock.acquire(True, -1 if seconds is None else max(0.0, seconds))
