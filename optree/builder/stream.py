"""One stream a process and root session: puts records in order and hands them to whoever takes them.

The journal is the first taker, subscribers follow. A structural record is delivered before the call that made it returns. Log lines and
reasoning chunks are not: their op marks itself, and a background thread delivers what has come within 10 ms. Entries know their place in
their op, so it does not matter that they come behind later structure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import sleep
from typing import Literal, Protocol

from optree.records import Record
from optree.values import text

WAIT_SECONDS = 0.25
"""The longest that a caller waits for another thread's write; after it the record stays queued for that thread."""
PERIOD_SECONDS = 0.004
_IDLE_PERIODS = 50
_BATCH = 512


BACKLOG_OPS = 64
"""Ops with undelivered entries at which the thread that logs delivers them itself: one write for all of them costs it less than
sharing the interpreter with the background thread."""
Write = Literal["structure", "all", "deferred"]
"""What is with the operating system when a call returns: `structure` (with accounting and messages), `all`, or nothing (`deferred`)."""


class Taker(Protocol):
    """Receives every record, in order, from one thread at a time. Must not block and must not call back into the stream.

    It may raise: the stream counts that and goes on. The journal's `take` returns when the records are with the operating system.
    """

    def take(self, batch: list[Record]) -> None:
        """Take records; the list must not be kept, the records may."""


class Pending(Protocol):
    """Something that holds entries which are not delivered yet."""

    def pending(self) -> Record | None:
        """Return them as a record, once; None if there are none any more."""


class Stream:
    """The queues, their lock, and the thread that delivers what nobody waits for."""

    def __init__(self, takers: Sequence[Taker], write: Write = "structure") -> None:
        self._takers: tuple[Taker, ...] = tuple(takers)
        self._write = write
        self._queue: deque[Record] = deque()
        self._marked: deque[Pending] = deque()
        self._lock = threading.RLock()
        self._through = write != "deferred"
        self._delivering = False
        self._wake = threading.Event()
        self._awake = False
        self._flushes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self.late = 0
        """Structural records whose call returned before they were delivered, since another thread held the disk too long."""
        self.failures = 0
        """Batches that a taker did not take."""
        self.last_failure = ""
        self.put = self._queue.append
        """Queue a structural record; between `enter` and `leave`."""

    def enter(self) -> bool:
        """Take the lock for one structural step; False if it could not be had within `WAIT_SECONDS`: go on without it."""
        if self._lock.acquire(False) or self._lock.acquire(True, WAIT_SECONDS):
            return True
        self.late += 1
        return False

    def leave(self, held: bool) -> None:
        """Deliver the structural records that are queued, and release the lock."""
        if held:
            try:
                if self._through and not self._delivering:
                    self._deliver()
            finally:
                self._lock.release()
        if not self._through and not self._awake:
            self._rouse()

    def commit(self, record: Record, held: bool) -> None:
        """Put one structural record and deliver it: what `put` and `leave` do, without their detour. `release` must follow."""
        if self._delivering or self._queue or not held or not self._through:
            self.put(record)
            self.leave(self.enter())
            return
        self._delivering = True
        try:
            self._hand_out([record])
        finally:
            self._delivering = False
        if self._queue:  # put by a finalizer or a signal handler meanwhile
            self._deliver()

    def release(self, held: bool) -> None:
        """Release the lock without delivering: for steps that put nothing."""
        if held:
            self._lock.release()

    def defer(self, source: Pending) -> None:
        """Queue a source of entries; the background thread delivers it within about 10 ms."""
        self._marked.append(source)
        if not self._awake:
            self._rouse()
        if self._write == "all" or len(self._marked) >= BACKLOG_OPS:
            self.flush()

    def flush(self) -> bool:
        """Deliver all that is queued now; False if another thread held the lock too long."""
        if not self.enter():
            return False
        try:
            if self._delivering:  # called from within a delivery, which goes on when this returns
                return False
            self._delivering = True
            try:
                self._flushes += 1
                for _ in range(len(self._marked)):
                    if (record := self._marked.popleft().pending()) is not None:
                        self._queue.append(record)
            finally:
                self._delivering = False
            self._deliver()
        finally:
            self._lock.release()
        return True

    def subscribe(self, taker: Taker) -> None:
        """Add a taker; it gets what comes from now on."""
        self._takers = (*self._takers, taker)

    def unsubscribe(self, taker: Taker) -> None:
        """Remove a taker."""
        self._takers = tuple(one for one in self._takers if one is not taker)

    def close(self) -> None:
        """Deliver what is queued and let the thread end."""
        self.flush()
        self._closed = True
        self._wake.set()

    def after_fork(self, takers: Sequence[Taker]) -> None:
        """Start anew in a forked child: what was queued is the parent's to deliver, and no thread came along."""
        for source in self._marked:
            source.pending()
        self._marked.clear()
        self._queue.clear()
        self._takers = tuple(takers)
        self._lock = threading.RLock()
        self._delivering = self._awake = False
        self._wake = threading.Event()
        self._thread = None

    def _deliver(self) -> None:
        queue = self._queue
        while queue:  # asked again after the mark is gone: a call from within may have queued just before
            self._delivering = True
            try:
                while queue:
                    batch = [queue.popleft()]
                    while queue and len(batch) < _BATCH:
                        batch.append(queue.popleft())
                    self._hand_out(batch)
            finally:
                self._delivering = False

    def _hand_out(self, batch: list[Record]) -> None:
        """Give records to each taker; the fault of one is its own."""
        for taker in self._takers:
            try:
                taker.take(batch)
            except Exception as error:  # noqa: BLE001 - must not reach the traced program
                self.fault(error)
            except BaseException:  # an interrupt in the middle: whoever comes next delivers it; twice does no harm
                self._queue.extendleft(reversed(batch))
                raise

    def fault(self, error: Exception | str) -> None:
        """Count a step that failed; `health()` says it."""
        self.failures += 1
        self.last_failure = error if isinstance(error, str) else f"{type(error).__name__}: {text(error)}"

    def _rouse(self) -> None:
        self._awake = True
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="optree-stream", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is going down: the exit path delivers
                self._thread = None
        self._wake.set()

    def _run(self) -> None:
        thread = self._thread
        while not self._closed and self._thread is thread:
            self._wake.wait()
            self._wake.clear()
            idle = 0
            while idle < _IDLE_PERIODS and not self._closed and self._thread is thread:
                seen = self._flushes
                sleep(PERIOD_SECONDS)
                idle = 0 if self._marked or self._queue else idle + 1
                if idle == 0 and self._flushes == seen:  # else what is queued now is younger than one period
                    self.flush()
            self._awake = False
            if self._marked or self._queue:
                self._rouse()
