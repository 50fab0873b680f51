"""What one signal still has to send: batches, each tried until the collector has it or refuses it for good.

One batch is on its way at a time, so what is delivered is delivered in order. A batch that fails is kept encoded; what waits behind it
stays as references in the sender's queue. A batch that is refused is halved until the entry that spoils it stands alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from time import sleep
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from optree.exporting import text
from optree_otel.otlp.responses import ExportResult, Kind
from optree_otel.otlp.transport import MAX_BYTES
from optree_otel.settings import Destination

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
_ENTRY_OVERHEAD = 8
"""Bytes of the tags and lengths around one entry, at most."""
_OVERSHOOT = 1.25
"""A batch may be so much larger than the target by its last entry; a larger entry goes alone."""
_LONGEST_ATTEMPT = 60.0
_LONGEST_WISH = 600.0
_JITTER = 0.3
_DOUBTS = 4
"""How often a collector may fail with the same request before the request is taken for the cause."""
_REFUSED_IN_A_ROW = 8
"""Entries refused one after the other, with none delivered between: then it is not the entries."""
_SMALLEST_TARGET = 1 << 16
_BREATH = 32
"""Entries after which other threads may go on: else they wait for the interpreter's switch interval, 5 ms, each time that they wake."""


class EncodedItem(Struct, frozen=True, gc=False):
    """One entry (a span, a log record), as bytes of its message. The collector does not walk those that wait."""

    group: Hashable
    """What else the request needs to know of it: which resource and scope it stands under."""
    body: bytes


class Source(Protocol[T_contra]):
    """Supplies the entries, and is told which arrived and which were lost. Called on the sender's thread; an error is counted."""

    def encode(self, item: T_contra) -> EncodedItem | None:
        """Return the entry of an item; None if there is nothing to send for it."""
        ...

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return the request that holds the entries."""
        ...

    def shrink(self, item: T_contra, limit: int) -> EncodedItem | None:
        """Return a smaller entry for an item, of *limit* bytes at most, with marks where it was cut; None if that cannot be."""
        ...

    def delivered(self, items: Sequence[T_contra]) -> None:
        """Note that the collector has these."""
        ...

    def lost(self, item: T_contra, reason: str) -> None:
        """Note that this cannot be delivered: it cannot be encoded, or the collector refuses it."""
        ...

    def left(self, items: Sequence[T_contra]) -> None:
        """Note that these are not delivered and no longer queued: the queue is full, or the collector does not serve this signal."""
        ...


class Limits(Struct, frozen=True):
    """How much at once, and how often. Bytes are of one request before compression, times are seconds."""

    max_bytes: int = MAX_BYTES["grpc"]
    target_bytes: int = 1_000_000
    max_items: int = 512
    linger: float = 0.2
    """How long an entry may wait for company."""
    queue: int = 200_000
    """References that are queued at most, but for those of the last second."""
    attempt: float = 10.0
    first_backoff: float = 1.0
    last_backoff: float = 30.0
    denied_backoff: float = 60.0

    @classmethod
    def of(cls, destination: Destination) -> Limits:
        """Return the limits for a destination."""
        return cls(max_bytes=MAX_BYTES[destination.protocol], attempt=min(destination.timeout, _LONGEST_ATTEMPT))


class Counts(Struct):
    """What happened so far, in entries where it says nothing else."""

    sent: int = 0
    """Entries that went into a first attempt."""
    delivered: int = 0
    rejected: int = 0
    """Entries that the collector took and threw away (partial success)."""
    lost: int = 0
    """Entries that cannot be delivered."""
    left: int = 0
    """Entries that were taken out of the queue undelivered; the saved tree has them."""
    requests: int = 0
    retried: int = 0
    """Requests that came to nothing and were or will be sent again."""
    bytes: int = 0
    """Bytes of delivered requests, before compression."""


class Pause(NamedTuple):
    """How long to wait before the next attempt."""

    seconds: float
    firm: bool
    """The collector asked for it: not to be cut short."""


class Part(Generic[T]):
    """Entries that are sent together."""

    __slots__ = ("entries", "items", "size", "tries")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.entries: list[EncodedItem] = []
        self.size = 0
        self.tries = 0

    def add(self, item: T, entry: EncodedItem) -> None:
        """Add one entry."""
        self.items.append(item)
        self.entries.append(entry)
        self.size += len(entry.body) + _ENTRY_OVERHEAD

    def halves(self) -> tuple[Part[T], Part[T]]:
        """Return the first half and the second."""
        middle = len(self.items) // 2
        first, second = Part[T](), Part[T]()
        for position, (item, entry) in enumerate(zip(self.items, self.entries, strict=True)):
            (first if position < middle else second).add(item, entry)
        return first, second


class Batches(Generic[T]):
    """The entries on their way. Not for more than one thread."""

    def __init__(
        self, source: Source[T], send: Callable[[bytes, float], ExportResult], limits: Limits, jitter: Callable[[], float] = random.random
    ) -> None:
        self._source = source
        self._send = send
        self._limits = limits
        self._jitter = jitter
        self._target = min(limits.target_bytes, limits.max_bytes)
        self._parts: deque[Part[T]] = deque()
        self._failures = 0
        self._refused_in_a_row = 0
        self.counts = Counts()
        self.last_error = ""
        self.trouble = ""
        """Why nothing passes at the moment; "" if it does."""
        self.off = ""
        """Why this signal is sent no more."""
        self._after: dict[Kind, Callable[[Part[T], ExportResult], Pause | None]] = {
            "delivered": self._delivered,
            "retry": self._again,
            "failed": self._doubtful,
            "refused": self._refused,
            "too_large": self._too_large,
            "denied": self._denied,
            "unsupported": self._unsupported,
        }

    @property
    def empty(self) -> bool:
        """True if nothing is on its way."""
        return not self._parts

    @property
    def held(self) -> int:
        """Entries on their way."""
        return sum(len(part.items) for part in list(self._parts))

    @property
    def held_bytes(self) -> int:
        """Bytes that they take."""
        return sum(part.size for part in list(self._parts))

    def gather(self, take: Callable[[], T | None]) -> None:
        """Encode one batch of what *take* returns, until it is large enough or *take* returns None."""
        part = Part[T]()
        target, most = self._target, min(self._target * _OVERSHOOT, self._limits.max_bytes)
        encoded, items = self._encoded, part.items
        while len(items) < self._limits.max_items and part.size < target and (item := take()) is not None:
            entry = encoded(item)
            if entry is None:
                continue
            if not len(items) % _BREATH:
                sleep(0)
            if items and part.size + len(entry.body) > most:
                self._parts.append(part)
                part = Part[T]()
                part.add(item, entry)
                break
            part.add(item, entry)
        if part.items:
            self._parts.append(part)

    def attempt(self) -> Pause | None:
        """Send the first part; returns how long to wait before the next attempt, None to go on at once."""
        part = self._parts[0]
        self.counts.requests += 1
        self.counts.sent += 0 if part.tries else len(part.items)
        part.tries += 1
        try:
            body = self._source.frame(part.entries)
        except Exception as error:  # noqa: BLE001 - one entry that cannot be framed is found as one that is refused
            outcome = ExportResult("refused", f"it cannot be encoded: {type(error).__name__}: {text(error)}")
        else:
            outcome = self._send(body, self._limits.attempt)
            self.counts.bytes += len(body) if outcome.kind == "delivered" else 0
        if outcome.text:
            self.last_error = outcome.text
        return self._after[outcome.kind](part, outcome)

    def give_up(self, items: Sequence[T]) -> None:
        """Count items that are queued no more, and tell their source."""
        if items:
            self.counts.left += len(items)
            self._tell(self._source.left, items)

    def fault(self, error: Exception) -> None:
        """Note an error that did not come from the collector."""
        self.last_error = f"{type(error).__name__}: {text(error)}"

    def clear(self) -> None:
        """Forget what is on its way."""
        self._parts.clear()
        self.trouble = ""

    def _encoded(self, item: T) -> EncodedItem | None:
        """Return the entry of an item, cut to what a request may hold; None if there is none to send."""
        try:
            entry = self._source.encode(item)
            if entry is not None and len(entry.body) + _ENTRY_OVERHEAD > self._limits.max_bytes:
                size = len(entry.body)
                entry = self._source.shrink(item, self._limits.max_bytes - _ENTRY_OVERHEAD)
                if entry is None or len(entry.body) + _ENTRY_OVERHEAD > self._limits.max_bytes:
                    self._lose(item, f"it has {size} bytes, a request holds {self._limits.max_bytes}")
                    return None
        except Exception as error:  # noqa: BLE001 - one bad entry must not take its batch along
            self._lose(item, f"it cannot be encoded: {type(error).__name__}: {text(error)}")
            return None
        return entry

    def _delivered(self, part: Part[T], outcome: ExportResult) -> None:
        self._parts.popleft()
        self._failures = self._refused_in_a_row = 0
        self.trouble = ""
        self.counts.rejected += outcome.rejected
        self.counts.delivered += max(0, len(part.items) - outcome.rejected)
        self._tell(self._source.delivered, part.items)

    def _again(self, _part: Part[T], outcome: ExportResult) -> Pause:
        self.counts.retried += 1
        self.trouble = outcome.text
        if outcome.after is not None:
            return Pause(min(outcome.after, _LONGEST_WISH), firm=True)
        longest = min(self._limits.last_backoff, self._limits.first_backoff * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return Pause(longest * (1 - _JITTER * self._jitter()), firm=False)

    def _doubtful(self, part: Part[T], outcome: ExportResult) -> Pause | None:
        return self._again(part, outcome) if part.tries < _DOUBTS else self._refused(part, outcome)

    def _refused(self, part: Part[T], outcome: ExportResult) -> Pause | None:
        if len(part.items) > 1:
            self._halve(part)
            return None
        self._parts.popleft()
        self._lose(part.items[0], outcome.text)
        self._refused_in_a_row += 1
        if self._refused_in_a_row < _REFUSED_IN_A_ROW:
            return None
        self.trouble = f"the collector refuses everything: {outcome.text}"
        return Pause(self._limits.denied_backoff, firm=False)

    def _too_large(self, part: Part[T], outcome: ExportResult) -> Pause | None:
        if len(part.items) > 1:
            self._target = min(self._target, max(_SMALLEST_TARGET, part.size // 2))
            self._halve(part)
            return None
        self._parts.popleft()
        size = len(part.entries[0].body)
        try:
            smaller = self._source.shrink(part.items[0], size // 2)
        except Exception as error:  # noqa: BLE001 - it is lost then, and its neighbours are not
            self.fault(error)
            smaller = None
        if smaller is None or len(smaller.body) >= size:
            self._lose(part.items[0], outcome.text)
            return None
        again = Part[T]()
        again.tries = part.tries
        again.add(part.items[0], smaller)
        self._parts.appendleft(again)
        return None

    def _denied(self, _part: Part[T], outcome: ExportResult) -> Pause:
        self.counts.retried += 1
        self.trouble = outcome.text
        return Pause(self._limits.denied_backoff, firm=False)

    def _unsupported(self, _part: Part[T], outcome: ExportResult) -> None:
        self.off = outcome.text
        self.give_up([item for part in self._parts for item in part.items])
        self.clear()

    def _halve(self, part: Part[T]) -> None:
        self._parts.popleft()
        halves = part.halves()
        for half in halves:
            half.tries = part.tries
        self._parts.extendleft(reversed(halves))

    def _lose(self, item: T, reason: str) -> None:
        self.counts.lost += 1
        self.last_error = f"{text(item)} is lost to the collector: {reason}"
        self._tell(lambda items: self._source.lost(items[0], reason), [item])

    def _tell(self, callback: Callable[[Sequence[T]], None], items: Sequence[T]) -> None:
        try:
            callback(items)
        except Exception as error:  # noqa: BLE001 - the source's own fault
            self.fault(error)
