"""Live delivery: each subscriber has a bounded queue, and whoever is slow loses the newest, never the writer's time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from threading import Condition
from time import monotonic
from typing import NamedTuple

from optree.exporting import new_rlock
from optree_formats.transcript.wire import Event

BUFFER = 256
"""Events that wait for one subscriber, unless told otherwise."""
WARN_SECONDS = 1.0
LOGGER = logging.getLogger("optree.transcript")


class Stats(NamedTuple):
    """What a fan-out has done so far."""

    subscribers: int
    """Those that are open now."""
    drops: int
    """Events that subscribers lost, all together."""


class Subscription:
    """A subscriber's end: iterate over it, or `get`. Events are shared with other subscribers, and not to be changed."""

    def __init__(self, buffer: int = BUFFER) -> None:
        self.dropped = 0
        self.closed = False
        self._buffer = buffer
        self._queue: deque[Event] = deque()
        self._ready = Condition()
        self._warned_at = -WARN_SECONDS
        self._unsaid = 0

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they come, until the subscription is closed and empty."""
        while (event := self.get()) is not None:
            yield event

    def get(self, timeout: float | None = None) -> Event | None:
        """Return the next event; None if none comes within *timeout* seconds, or the subscription is closed and empty."""
        with self._ready:
            self._ready.wait_for(lambda: self._queue or self.closed, timeout)
            return self._queue.popleft() if self._queue else None

    def cancel(self) -> None:
        """Close it: no further events come, what waits can still be had. The second call does nothing."""
        with self._ready:
            self.closed = True
            self._ready.notify_all()

    def offer(self, event: Event) -> bool:
        """Queue an event; False if there was no room for it."""
        with self._ready:
            if self.closed:
                return True
            if len(self._queue) < self._buffer:
                self._queue.append(event)
                self._ready.notify()
                return True
            self.dropped += 1
            self._unsaid += 1
        self._warn()
        return False

    def _warn(self) -> None:
        now = monotonic()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            LOGGER.warning("transcript: a subscriber is too slow: %d events dropped, %d in all", self._unsaid, self.dropped)
            self._unsaid = 0


class FanOut:
    """Hands each event to all subscribers, in order. Nothing here waits or raises."""

    def __init__(self, buffer: int = BUFFER) -> None:
        self._buffer = buffer
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = new_rlock()
        self._closed = False
        self._past = 0
        """Drops of subscriptions that are gone."""

    def subscribe(self, buffer: int | None = None) -> Subscription:
        """Return a new subscription to what comes from now on; a closed one after `close`."""
        made = Subscription(self._buffer if buffer is None else buffer)
        with self._lock:
            if self._closed:
                made.cancel()
            else:
                self._drop_cancelled()
                self._subscriptions = (*self._subscriptions, made)
        return made

    def publish(self, event: Event) -> None:
        """Offer an event to all; one without a type is passed over with a warning, and all are after `close`."""
        if not event.type:
            LOGGER.warning("transcript: an event without a type is not handed on")
            return
        for one in self._subscriptions:
            one.offer(event)

    def stats(self) -> Stats:
        """Return how many subscribe, and how much was dropped."""
        with self._lock:
            self._drop_cancelled()
            return Stats(len(self._subscriptions), self._past + sum(one.dropped for one in self._subscriptions))

    def close(self) -> None:
        """Close all subscriptions; the second call does nothing."""
        with self._lock:
            self._closed = True
            for one in self._subscriptions:
                one.cancel()
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        self._past += sum(one.dropped for one in self._subscriptions if one.closed)
        self._subscriptions = tuple(one for one in self._subscriptions if not one.closed)
