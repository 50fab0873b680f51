"""A subscriber: receives records on a thread of its own, behind a bounded queue, so that it can never hold up the traced program."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

from optree.builder.wake import Wake
from optree.records import Record

QUEUE_RECORDS = 20_000
_POLL_SECONDS = 0.002


class Subscriber:
    """Calls *handle* with each record in order. When it falls behind by `QUEUE_RECORDS`, the newest are dropped and counted."""

    def __init__(self, handle: Callable[[Record], None], name: str = "subscriber") -> None:
        self._handle = handle
        self._name = name
        self._queue: deque[Record] = deque()
        self._wake = Wake()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self.dropped = 0
        self.failures = 0
        self.last_failure = ""

    def take(self, batch: list[Record]) -> None:
        """Queue records; called by the stream."""
        if self._closed or not self._started():
            self.dropped += len(batch)
            return
        room = QUEUE_RECORDS - len(self._queue)
        self._queue.extend(batch[:room] if room > 0 else ())
        self.dropped += max(0, len(batch) - room)
        self._wake.set()

    def flush(self, timeout: float = 0.25) -> bool:
        """Wait until all that was taken is handled; False if it is not within *timeout* seconds."""
        end = monotonic() + timeout
        while self._queue or self._busy:
            if monotonic() >= end:
                return False
            sleep(_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Let the thread end once its queue is empty; what comes afterwards is dropped."""
        self._closed = True
        self._wake.set()

    @property
    def finished(self) -> bool:
        """True once it is closed and has handled everything."""
        return self._closed and not self._queue and not self._busy

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"optree-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter is going down
                self._closed = True
                self.last_failure = repr(error)
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while not self._closed or self._queue:
            self._wake.wait()
            self._busy = True
            while self._queue:
                try:
                    self._handle(self._queue.popleft())
                except Exception as error:  # noqa: BLE001 - a subscriber's fault is counted, the next record may do
                    self.failures += 1
                    self.last_failure = repr(error)
            self._busy = False
