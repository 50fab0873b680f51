"""Python's garbage collector, held off while a large tree is built."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Collector:
    """Counts who needs it off; the last one out puts it back as the first one found it. A forked child has it back at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_on = False
        os.register_at_fork(after_in_child=self._after_fork)

    def hold(self) -> None:
        with self._lock:
            if not self._holders:
                self._was_on = gc.isenabled()
                gc.disable()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders = max(0, self._holders - 1)
            if not self._holders and self._was_on:
                gc.enable()

    def _after_fork(self) -> None:
        """The threads that held it are not in the child."""
        self._lock = threading.Lock()
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
