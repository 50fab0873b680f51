"""A subscriber: receives records on a thread of those of its kind, behind a bounded queue, so that it can never hold up the program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

from optree._background import Job, Worker
from optree._records import Record

QUEUE_RECORDS = 20_000
_POLL_SECONDS = 0.002
_AT_ONCE = 256
"""Records that one handles before another of its kind has its turn."""
_workers: dict[str, Worker] = {}


class Subscriber:
    """Calls *handle* with each record in order. When it falls behind by `QUEUE_RECORDS`, the newest are dropped and counted."""

    def __init__(self, handle: Callable[[Record], None], name: str = "subscriber") -> None:
        """Make one; those of one *name* share a thread."""
        self._handle = handle
        self._queue: deque[Record] = deque()
        self._busy = False
        worker = _workers.get(name) or _workers.setdefault(name, Worker(name))
        self._job = Job(worker, self._run, self._fault)
        self._closed = False
        self.dropped = 0
        self.failures = 0
        self.last_failure = ""

    def take(self, batch: list[Record]) -> None:
        """Queue records; called by the stream."""
        if self._closed:
            self.dropped += len(batch)
            return
        room = QUEUE_RECORDS - len(self._queue)
        self._queue.extend(batch[:room] if room > 0 else ())
        self.dropped += max(0, len(batch) - room)
        if not self._busy and not self._job.ask():
            self.last_failure = self.last_failure or "there can be no more threads"

    def flush(self, timeout: float = 0.25) -> bool:
        """Wait until all that was taken is handled; False if it is not within *timeout* seconds."""
        end = monotonic() + timeout
        while self._queue or self._busy:
            if monotonic() >= end:
                return False
            sleep(_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Handle what is queued, and drop what comes afterwards."""
        self._closed = True
        if self._queue and not self._job.ask():
            self.dropped += len(self._queue)
            self._queue.clear()

    @property
    def finished(self) -> bool:
        """True once it is closed and has handled everything."""
        return self._closed and not self._queue and not self._busy

    def _fault(self, error: BaseException) -> None:
        self.failures += 1
        self.last_failure = repr(error)

    def _run(self) -> float | None:
        self._busy = True
        try:
            for _ in range(_AT_ONCE):
                if not self._queue:
                    break
                try:
                    self._handle(self._queue.popleft())
                except Exception as error:  # noqa: BLE001 - a subscriber's fault is counted, the next record may do
                    self._fault(error)
        finally:
            self._busy = False
        return 0.0 if self._queue else None
