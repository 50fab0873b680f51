"""Another look, a moment later, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, Generic, TypeVar

from optree.exporting import pass_on

T = TypeVar("T")
MOST: Final = 10_000


class Later(Generic[T]):
    """Does *work* with each item some seconds after it was added. The thread starts with the first item."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._items: list[tuple[float, int, T]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, item: T, seconds: float) -> None:
        """Take an item; beyond `MOST` none is taken."""
        with self._changed:
            if len(self._items) >= MOST:
                return
            heappush(self._items, (monotonic() + seconds, next(self._numbers), item))
            self._changed.notify()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="optree-otel-later", daemon=True)
        try:
            self._thread.start()
        except Exception as error:  # noqa: BLE001 - no more threads or memory: there is no other look
            pass_on(error)
            self._thread = None

    def _run(self) -> None:
        while True:
            with suppress(Exception):  # the next item may do
                self._work(self._next())

    def _next(self) -> T:
        """Wait for the next item that is due."""
        with self._changed:
            while True:
                wait = self._items[0][0] - monotonic() if self._items else None
                if wait is not None and wait <= 0:
                    return heappop(self._items)[2]
                self._changed.wait(wait)
