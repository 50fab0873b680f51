"""A background thread that is there whenever it is needed, whatever raises in it or in the middle of its start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import sleep

from optree.interrupts import pass_on

PAUSE_SECONDS = 0.05
"""Between a fault and the next try: one that comes again at once must not take a processor."""


class Worker:
    """Runs *body* on one thread at a time; what it raises is given to *fault*, and it is run again."""

    def __init__(self, name: str, body: Callable[[], None], fault: Callable[[BaseException], None]) -> None:
        self._name = f"optree-{name}"
        self._body = body
        self._fault = fault
        self._works = threading.Lock()
        self.alive = False
        """Set by the thread itself: a start that was interrupted may have made one, or not."""

    def start(self) -> bool:
        """See that the thread is there; False if none can be had now."""
        if self.alive:
            return True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except Exception as error:  # noqa: BLE001 - no more threads or memory, or the interpreter is going down
            pass_on(error)
            return False
        return True

    def _run(self) -> None:
        if not self._works.acquire(False):
            return
        self.alive = True
        try:
            while True:
                try:
                    self._body()
                except BaseException as error:  # noqa: BLE001 - a thread that dies takes with it all that it was for
                    self._tell(error)
                    sleep(PAUSE_SECONDS)
                else:
                    return
        finally:
            self.alive = False
            self._works.release()

    def _tell(self, error: BaseException) -> None:
        with suppress(BaseException):  # no memory even for that
            self._fault(error)
