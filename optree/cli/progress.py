"""A progress bar for what takes long: on stderr, only on a terminal, only after a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

AFTER_SECONDS = 1.0


@contextmanager
def working(what: str, total: int | None = None, after: float = AFTER_SECONDS) -> Generator[Callable[[], None]]:
    """Show *what* while the block takes longer than *after* seconds; it gets a function to call after each of *total* steps."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    bar = _Bar(what, total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar.step
    finally:
        timer.cancel()
        bar.stop()


class _Bar:
    """A bar of rich that a timer starts; its library is imported only then."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._steps = 0
        self._lock = threading.Lock()
        self._stopped = False
        self._step: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._stopped:
                return
            columns = [TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
            columns += [MofNCompleteColumn()] if self._total is not None else []
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            task = progress.add_task(self._what, total=self._total)
            progress.start()
            self._step = lambda steps: progress.update(task, completed=steps)
            self._stop = progress.stop

    def step(self) -> None:
        self._steps += 1
        if self._step is not None:
            self._step(self._steps)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()
