"""A subscriber: receives records on a thread of its own, behind a bounded queue, so that it can never hold up the traced program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

from optree.builder.wake import Wake
from optree.builder.worker import Worker
from optree.records import Record

QUEUE_RECORDS = 20_000
_POLL_SECONDS = 0.002


class Subscriber:
    """Calls *handle* with each record in order. When it falls behind by `QUEUE_RECORDS`, the newest are dropped and counted."""

    def __init__(self, handle: Callable[[Record], None], name: str = "subscriber") -> None:
        self._handle = handle
        self._queue: deque[Record] = deque()
        self._wake = Wake()
        self._busy = False
        self._worker = Worker(name, self._run, self._fault)
        self._closed = False
        self.dropped = 0
        self.failures = 0
        self.last_failure = ""

    def take(self, batch: list[Record]) -> None:
        """Queue records; called by the stream."""
        if self._closed:
            self.dropped += len(batch)
            return
        if not self._worker.start():
            self.last_failure = self.last_failure or "there can be no more threads"
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
        if self._queue and not self._worker.start():
            self.dropped += len(self._queue)
            self._queue.clear()
        self._wake.set()

    @property
    def finished(self) -> bool:
        """True once it is closed and has handled everything."""
        return self._closed and not self._queue and not self._busy

    def _fault(self, error: BaseException) -> None:
        self.failures += 1
        self.last_failure = repr(error)

    def _run(self) -> None:
        self._busy = False  # also after a fault in it
        while not self._closed or self._queue:
            if not self._queue:
                self._wake.wait()
            self._busy = True
            while self._queue:
                try:
                    self._handle(self._queue.popleft())
                except Exception as error:  # noqa: BLE001 - a subscriber's fault is counted, the next record may do
                    self._fault(error)
            self._busy = False
