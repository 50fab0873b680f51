"""The thread that delivers one signal. Who hands something in pays for an append to a queue, whatever the collector does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, TypeVar

from msgspec.structs import asdict

from optree.exporting import BackgroundThread, Wake, if_free, pass_on, redact, text
from optree_otel.otel_context import suppress_instrumentation
from optree_otel.otlp.batches import Batches, Limits, Pause, Source
from optree_otel.otlp.responses import ExportResult
from optree_otel.otlp.transport import REMEDY, Transport
from optree_otel.settings import Signal

T = TypeVar("T")
_SLICE = 1.0
"""Seconds after which a thread looks whether the queue is full: it may hold as much more as is put meanwhile."""
_ROOM_SECONDS = 0.05
_inherited: list[Transport] = []
"""Connections of the process that this one was forked from: kept and not touched, since closing them would be felt there."""


class Clock:
    """Time and waiting, as the sender's thread sees them."""

    def now(self) -> float:
        """Return seconds."""
        return monotonic()

    def wait(self, bell: Wake, seconds: float | None) -> None:
        """Wait until the bell rings, at most *seconds*."""
        bell.wait(seconds)


class _Mark:
    """A place in the queue that a flush waits for."""

    __slots__ = ("done", "given_up", "last", "until", "urgent", "whole")

    def __init__(self, timeout: float, *, last: bool = False) -> None:
        self.until = monotonic() + timeout
        self.done = threading.Event()
        self.whole = False
        self.urgent = True
        """It may cut one pause short."""
        self.last = last
        """It is not worth another pause: the process ends."""
        self.given_up = False


class Sender(Generic[T]):
    """Delivers what is put, in order, from a thread of its own.

    The thread is a daemon and starts with the first `put`; *connect* is called on it. Nothing here raises or waits for the collector,
    but `flush` and `close`, which wait as long as they are told.
    """

    def __init__(
        self, signal: Signal, source: Source[T], connect: Callable[[], Transport], limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        self._signal: Signal = signal
        self._connect = connect
        self._limits = limits or Limits()
        self._clock = clock or Clock()
        self._queue: deque[T | _Mark] = deque()
        self._batches: Batches[T] = Batches(source, self._send, self._limits)
        self._source = source
        self._transport: Transport | None = None
        self._bell = Wake()
        self._awake = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._guard: threading.Thread | None = None
        self._trimming = threading.Lock()
        self._closed = False
        self._flushing: list[_Mark] = []
        self._missing_at_flush = 0
        """Entries that did not arrive, as of the last flush."""

    def put(self, item: T) -> None:
        """Queue an item; it is sent within about *linger* seconds."""
        self._queue.append(item)
        if not self._awake:
            self._rouse()

    def warm(self) -> None:
        """Load what sends, on the thread: it takes longer than a short program has."""
        if self._thread is None:
            self._rouse()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was put before is acknowledged.

        False if it is not within *timeout* seconds, or if something of it (since the last flush that ended) was lost, rejected, or taken
        out of the full queue. A signal that the collector does not serve is not waited for: True, see `health`.
        """
        return self._flush(_Mark(timeout), timeout)

    def _flush(self, mark: _Mark, timeout: float) -> bool:
        if not self._queue and self._thread is None:
            return True
        if threading.current_thread() is self._thread:  # called by what the thread itself calls: it cannot wait for itself
            return False
        self._flushing.append(mark)
        self._queue.append(mark)
        try:
            return self._rouse() and mark.done.wait(max(0.0, timeout)) and mark.whole
        finally:
            mark.given_up = True
            self._flushing.remove(mark)

    def close(self, timeout: float = 0.25) -> bool:
        """Flush, and let the thread end; what is put afterwards is not sent.

        Takes *timeout* seconds at most, and no longer than one attempt where that fails.
        """
        whole = False if self._closed else self._flush(_Mark(timeout, last=True), timeout)
        self._closed = True
        self._bell.set()
        return whole

    def after_fork(self) -> None:
        """Start anew in a forked child: what is queued is the parent's to send, and neither thread nor connection came along."""
        if self._transport is not None:
            _inherited.append(self._transport)
        self._queue.clear()
        self._flushing.clear()
        self._batches = Batches(self._source, self._send, self._limits)
        self._transport = self._thread = self._guard = None
        self._bell = Wake()
        self._starting = threading.Lock()
        self._trimming = threading.Lock()
        self._awake = False
        self._missing_at_flush = 0

    def wait_for_room(self, count: int) -> bool:
        """Wait until fewer than *count* entries are queued or on their way; False once this is closed."""
        pause = threading.Event()
        while self.waiting >= count and not self._closed:
            pause.wait(_ROOM_SECONDS)
        return not self._closed

    @property
    def off(self) -> str:
        """Why this signal is sent no more; "" if it is."""
        return self._batches.off

    @property
    def waiting(self) -> int:
        """Entries that are queued or on their way."""
        return len(self._queue) + self._batches.held

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept encoded."""
        return self._batches.held_bytes

    def health(self) -> dict[str, Any]:
        """Return the counts (see `Counts`), `waiting`, and the texts `last_error`, `trouble` (why nothing passes now) and `off`."""
        batches = self._batches
        texts = {"last_error": batches.last_error, "trouble": batches.trouble, "off": batches.off}
        texts = {name: str(redact(value)) for name, value in texts.items()}
        return {**asdict(batches.counts), "waiting": self.waiting, **texts}

    def _rouse(self) -> bool:
        """Ring for the thread, and start it if there is none; False if there can be none."""
        if self._closed:
            self._queue.clear()
            return False
        try:
            self._awake = True
            if not self._has_thread():
                if_free(self._starting, self._start)
            self._bell.set()
        except BaseException:  # a handler's: the next put tries again
            self._awake = False
            raise
        return self._thread is not None

    def _has_thread(self) -> bool:
        """Tell whether there is a thread: a handler that raises in the middle of its start may leave none."""
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        """Start the thread, unless another caller did."""
        if not self._has_thread():
            try:
                self._thread = BackgroundThread(self._run, f"otel-{self._signal}")
                self._thread.start()
            except Exception as error:  # noqa: BLE001 - no threads or memory, or Python is ending: the saved tree has the nodes
                pass_on(error)
                self._thread, self._awake = None, False
                self._batches.counts.left += len(self._taken(len(self._queue) - self._limits.queue))

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me and not self._closed:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next batch may do
                with suppress(Exception):  # no memory even for that
                    self._batches.fault(error)
                with suppress(Exception):
                    self._pause(Pause(_SLICE, firm=True))
        if self._thread is me:
            self._end()

    def _end(self) -> None:
        """Let go of everything; a put from now on lets go of itself."""
        self._awake = False
        self._queue.clear()
        self._let_go()

    def _let_go(self) -> None:
        """Close the transport, before the process goes on to its end."""
        self._closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _turn(self) -> None:
        """Do one thing: sleep, or gather a batch, or send one."""
        self._trim()
        self._answer_marks()
        if self._closed:
            return
        if self._batches.off:
            self._batches.give_up(self._taken(len(self._queue)))
        if self._batches.empty:
            if self._transport is None:
                self._warm()
            if not self._queue:
                self._sleep()
                return
            if len(self._queue) < self._limits.max_items and not self._flushing:
                self._clock.wait(self._bell, self._limits.linger)
            self._batches.gather(self._take)
        if not self._batches.empty and (pause := self._batches.attempt()) is not None:
            self._pause(pause)

    def _warm(self) -> None:
        """Load what sends: that takes long, so it is done while entries wait for company."""
        suppress_instrumentation()
        with suppress(Exception):  # the first attempt tells what is wrong
            self._transport = self._connect()

    def _sleep(self) -> None:
        self._awake = False
        if not self._queue:  # asked again after the mark is gone: a put may have come between
            self._clock.wait(self._bell, None)
        self._awake = True

    def _pause(self, pause: Pause) -> None:
        until = self._clock.now() + pause.seconds
        while not self._closed and (left := until - self._clock.now()) > 0:
            if not pause.firm and self._hurried():
                return
            for mark in [mark for mark in list(self._flushing) if mark.last]:
                self._let_go()
                mark.done.set()
            self._clock.wait(self._bell, min(left, _SLICE))
            self._trim()

    def _hurried(self) -> bool:
        """Tell whether a flush is waiting that has not cut a pause short yet."""
        hurried = [mark for mark in list(self._flushing) if mark.urgent]
        for mark in hurried:
            mark.urgent = False
        return bool(hurried)

    def _send(self, body: bytes, timeout: float) -> ExportResult:
        suppress_instrumentation()
        self._be_guarded()
        try:
            if self._transport is None:
                self._transport = self._connect()
            return self._transport.send(self._signal, body, timeout)
        except ImportError as error:
            return ExportResult("denied", f"{text(error)}: {REMEDY}")
        except Exception as error:  # noqa: BLE001 - a transport does not raise; one that does must not end the thread
            return ExportResult("retry", f"{type(error).__name__}: {text(error)}")

    def _take(self) -> T | None:
        """Take the next item; None at a mark or at the end."""
        if not self._queue or isinstance(self._queue[0], _Mark):
            return None
        item = self._queue.popleft()
        return None if isinstance(item, _Mark) else item

    def _taken(self, count: int) -> list[T]:
        """Take up to *count* items from the newest end; marks among them stay."""
        taken: list[T | _Mark] = [self._queue.pop() for _ in range(min(count, len(self._queue)))]
        self._queue.extend(item for item in reversed(taken) if isinstance(item, _Mark))
        return [item for item in reversed(taken) if not isinstance(item, _Mark)]

    def _trim(self) -> None:
        """Drop the newest entries of a queue that is too long, so that the delivered ones have no gap before their end."""
        too_many = len(self._queue) - self._limits.queue
        if too_many > 0 and self._trimming.acquire(blocking=False):
            try:
                self._batches.give_up(self._taken(too_many))
            finally:
                self._trimming.release()

    def _be_guarded(self) -> None:
        """Have the queue looked at while an attempt is under way, which may take a minute: what is put meanwhile costs nothing more."""
        if self._guard is None:
            try:
                self._guard = BackgroundThread(self._keep_guard, f"otel-{self._signal}-guard")
                self._guard.start()
            except Exception:  # noqa: BLE001 - the next attempt may have one
                self._guard = None

    def _keep_guard(self) -> None:
        me, pause = threading.current_thread(), threading.Event()
        while self._guard is me and self._awake and not self._closed:
            pause.wait(_SLICE)
            with suppress(Exception):  # the next look may do
                self._trim()
        if self._guard is me:
            self._guard = None

    def _answer_marks(self) -> None:
        """Answer those who wait for what is delivered by now."""
        while self._queue and isinstance(mark := self._queue[0], _Mark) and (self._batches.empty or mark.given_up):
            self._queue.popleft()
            self._answer(mark)

    def _answer(self, mark: _Mark) -> None:
        counts = self._batches.counts
        missing = counts.lost + counts.rejected + counts.left
        if not mark.given_up:
            mark.whole = self._passed_on(mark.until) and (missing == self._missing_at_flush or bool(self._batches.off))
            self._missing_at_flush = missing
        if mark.last:
            self._let_go()
        mark.done.set()

    def _passed_on(self, until: float) -> bool:
        """Have what the transport holds itself delivered."""
        problem = "" if self._transport is None else self._transport.flush(max(0.0, until - monotonic()))
        self._batches.last_error = problem or self._batches.last_error
        return not problem
