"""One stream a process and root session: puts records in order and hands them to its takers.

The journal is the first taker, subscribers follow. A structural record is delivered before the call that made it returns. Log lines and
reasoning chunks are not: their op marks itself, and a background thread delivers what has come within 10 ms. Entries know their place in
their op, so it does not matter that they come behind later structure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from time import monotonic
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from optree._background import Job, Worker
from optree._interrupts import RLock, from_handler, is_held_here, is_in, pass_on
from optree._nodes import Severity
from optree._records import Entries, OpEnd, Record
from optree._values import text
from optree.redaction import redact

WAIT_SECONDS = 0.25
"""The longest that a caller waits for another thread's write; after it the record stays queued for that thread."""
_LOOK_SECONDS = 2.0
"""A wait in vain that begins later than this after the last one is for another write: in each open session one is tried each second."""
STUCK_SECONDS = 1.0
"""After a wait in vain, steps of other threads do not wait at all for this long."""
PERIOD_SECONDS = 0.004
_IDLE_PERIODS = 4
_BATCH = 512
BACKLOG_OPS = 512
"""Ops with undelivered entries at which the thread that logs delivers them itself: one write for all of them costs it less than
sharing the interpreter with the background thread."""
DELIVERY = Worker("stream")
"""Delivers entries: it waits for no disk, but for a system call on one that hangs."""
T = TypeVar("T")
Write = Literal["structure", "all", "deferred"]
"""What is with the operating system when a call returns: `structure` (with accounting and messages), `all`, or nothing (`deferred`)."""


class Held(Protocol):
    """The lock of a step, as `Stream.enter` gives it."""

    def acquire(self, blocking: bool = ..., timeout: float = ..., /) -> bool:
        """Take it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class Wants(Struct, frozen=True):
    """What a taker wants of a session's records: what it does not want costs the program nothing."""

    kinds: frozenset[type[Record]]
    """The records that it takes."""
    severities: frozenset[Severity] = frozenset()
    """Of log lines and reasoning: those with a line of these. An op that has one has it delivered before its end."""
    failures: bool = False
    """Of ends of operations: those of operations that were not ok."""

    def has(self, record: Record) -> bool:
        """Tell whether a record is wanted."""
        kind = type(record)
        if kind not in self.kinds:
            return False
        if isinstance(record, Entries):
            return not self.severities.isdisjoint([line.severity for line in record.logs])
        return not (self.failures and isinstance(record, OpEnd) and record.status == "ok")


class Taker(Protocol):
    """Receives the records of a session as they are made, in order, from one thread at a time.

    It must not wait, nor record anything itself. What it raises is counted, and goes no further. One that has an attribute `wants`
    (`Wants`) gets only these records, others everything.
    """

    def take(self, batch: list[Record]) -> None:
        """Take some records; the records may be kept, the list may not."""


class Pending(Protocol):
    """Something that holds entries which are not delivered yet."""

    def pending(self, put: Callable[[Record], None]) -> bool:
        """Put them as a record, once; False if there are none any more."""
        ...


class Stream:
    """The queues, their lock, and the job of the thread that delivers records for which no thread waits.

    A structural step is ``held = stream.enter()``, ``try:`` changes and `put`, ``finally: stream.leave(held)``. What is slow, or other
    people's code, is done before `enter`, or in `alone`: a lock that is held for long without either is taken for lost and replaced.
    """

    __slots__ = (
        *(
            "put",
            "watched",
            "awaited",
            "late",
            "failures",
            "last_failure",
            "reports",
            "_takers",
            "_ordered",
            "_write",
            "_queue",
            "_marked",
            "_lock",
            "_through",
        ),
        *("_delivering", "_working", "_stuck_since", "_stuck_until", "_awake", "_idle", "_flushes", "_seen", "_job", "_closed", "numbers"),
    )

    def __init__(self, takers: Sequence[Taker], write: Write = "structure") -> None:
        self._takers: tuple[tuple[Taker, Wants | None], ...] = ()
        """With what each wants; None is everything."""
        self._ordered: tuple[Taker, ...] = ()
        self.watched = False
        """True if a taker other than the journal takes all records, and wants an op's entries before its end."""
        self.awaited: frozenset[Severity] = frozenset()
        """Severities of lines that a taker wants before the end of their op."""
        self._serve(takers, takers[1:])
        self._write = write
        self._queue: deque[Record] = deque()
        self._marked: deque[Pending] = deque()
        self._lock: Held = RLock()
        self._through = write != "deferred"
        self._delivering: bool | int = False
        """True, or the thread's number, while a thread delivers."""
        self._working = 0
        """The number of the thread that was in `alone` last."""
        self._stuck_since = self._stuck_until = 0.0
        self._awake = False
        """Set by the thread itself: it looks for what is queued before it sleeps again."""
        self._idle = 0
        """For how many periods nothing has come."""
        self._flushes = self._seen = 0
        self._job = Job(DELIVERY, self._run, self.fault)
        self._closed = False
        self.late = 0
        """Steps whose call returned before they were delivered, since another thread held the disk too long."""
        self.failures = 0
        """Steps and deliveries that failed."""
        self.last_failure = ""
        self.reports: list[str] = []
        """Values that could not be recorded as they were given, a text each, once."""
        self.numbers: dict[str, Iterator[int]] = {}
        """By path of a session or turn that this process does not own: numbers of what it begins there, whichever core begins it."""
        self.put = self._queue.append
        """Queue a structural record; between `enter` and `leave`."""

    def enter(self) -> Held | None:
        """Take the lock for one structural step; None if it could not be had within `WAIT_SECONDS`: go on without it."""
        lock = self._lock
        return lock if lock.acquire(False) else self._wait()

    def leave(self, held: Held | None) -> None:
        """Deliver the structural records that are queued, and release the lock."""
        if held is not None:
            try:
                if self._through and not (self._delivering and self._is_delivering()):
                    self._deliver()
            finally:
                held.release()
        if self._queue and not self._awake and self._delivering is not True:  # else the compiled path, which delivers it
            self._rouse()

    @property
    def is_in_step(self) -> bool:
        """True if this thread is in a step."""
        return is_held_here(self._lock)

    def together(self, work: Callable[[], T]) -> T:
        """Call *work*, and return its result. The compiled path delivers all records of its steps at its end, in one write.

        Until then other threads wait for theirs: *work* waits for no disk, and takes no lock under which somebody records.
        """
        return work()

    def step(self, change: Callable[[Callable[[Record], None]], None]) -> None:
        """Make one structural step: call *change* with `put`. A fault stays inside; after an interrupt it is called once more.

        So what it does may be done twice: what is begun is done whole, and an exception out of a signal's handler goes on then.
        """
        held = self.enter()
        try:
            change(self.put)
        except BaseException as error:
            if isinstance(error, Exception) and not from_handler(error):
                self.fault(error)
                return
            change(self.put)
            raise
        finally:
            self.leave(held)

    def alone(self, work: Callable[[bool], T]) -> T:
        """Call *work*, which may take long (as at the disk), in a step, with whether the lock was taken, and return its result."""
        held = self.enter()
        try:
            if held is not None:
                self._working = get_ident()
            return work(held is not None)
        finally:
            self.leave(held)

    def defer(self, source: Pending) -> None:
        """Queue a source of entries; the background thread delivers it within about 10 ms."""
        self._marked.append(source)
        if not self._awake:
            self._rouse()
        if self._write == "all" or len(self._marked) >= BACKLOG_OPS:
            self.flush()

    def flush(self) -> bool:
        """Deliver all that is queued now; False if another thread held the lock too long."""
        held = self.enter()
        if held is None:
            return False
        try:
            if self._delivering and self._is_delivering():  # called from within a delivery, which goes on when this returns
                return False
            try:
                self._delivering = get_ident()
                self._flushes += 1
                for _ in range(len(self._marked)):
                    self._marked[0].pending(self.put)
                    self._marked.popleft()
            finally:
                self._delivering = False
            self._deliver()
        finally:
            held.release()
        return True

    def subscribe(self, taker: Taker, *, ordered: bool = True) -> None:
        """Add a taker; it gets what comes from now on. With *ordered* an op's entries come before its end."""
        self._serve([*self._served(), taker], [*self._ordered, taker] if ordered else self._ordered)

    @property
    def behind(self) -> bool:
        """True while there are entries that are not delivered, or that may just be."""
        return bool(self._marked or self._delivering)

    @property
    def stuck_for(self) -> float:
        """For how many seconds the thread that delivers has waited for the disk, as far as another has noticed; 0 if it does not."""
        if not self._stuck_since:
            return 0.0
        since, lock = self._stuck_since, self._lock
        if lock.acquire(False):
            self._stuck_since = 0.0
            lock.release()
            return 0.0
        return monotonic() - since

    @property
    def stuck(self) -> int:
        """How many records wait behind that thread though their calls have returned."""
        return len(self._queue) if self._queue and self.stuck_for else 0

    @property
    def waiting(self) -> int:
        """How many records are not delivered yet: those that are queued, and one for the entries of each op that has new ones."""
        return len(self._queue) + len(self._marked)

    def unsubscribe(self, taker: Taker) -> None:
        """Remove a taker."""
        self._serve(*([other for other in takers if other is not taker] for takers in (self._served(), self._ordered)))

    def _served(self) -> list[Taker]:
        return [taker for taker, _ in self._takers]

    def _serve(self, takers: Sequence[Taker], ordered: Sequence[Taker]) -> None:
        """Deliver to these takers; of those that are *ordered*, entries come before their op's end."""
        wants = [_wants(taker) for taker in ordered]
        self._ordered, self._takers = tuple(ordered), tuple((taker, _wants(taker)) for taker in takers)
        self.awaited = frozenset[Severity]().union(*(want.severities for want in wants if want is not None))
        self.watched = None in wants

    def close(self) -> None:
        """Deliver what is queued, and what comes later at once."""
        self.flush()
        self._closed, self._awake = True, False
        self._job.cancel()

    def after_fork(self, takers: Sequence[Taker]) -> None:
        """Start anew in a forked child: what was queued is the parent's to deliver, and no thread came along."""
        for source in self._marked:
            source.pending(_nowhere)
        self._marked.clear()
        self._queue.clear()
        self.numbers.clear()
        self._serve(takers, takers[1:])
        self._lock = RLock()
        self._delivering = self._awake = False
        self.late = self.failures = 0
        self.last_failure, self.reports = "", []
        self._job = Job(DELIVERY, self._run, self.fault)

    def go_to(self, takers: Sequence[Taker]) -> None:
        """Deliver to these takers alone from now on; within a step."""
        self._serve(takers, takers[1:])

    def fault(self, error: BaseException | str) -> None:
        """Count a step that failed; `health()` reports it."""
        self.failures += 1
        self.last_failure = redact(error if isinstance(error, str) else f"{type(error).__name__}: {text(error)}")

    def report(self, what: str) -> None:
        """Note a value that could not be recorded as it was given; `health()` reports it."""
        self.reports.append(redact(what))

    def _wait(self) -> Held | None:
        """Wait for the lock, for a bounded time, and not again soon after it was in vain."""
        if monotonic() >= self._stuck_until:
            lock = self._lock
            if lock.acquire(True, WAIT_SECONDS):
                return lock
            # No thread is in a step: an interrupt hit the lock's holder between two.
            if lock is self._lock and not (self._delivering and self._is_delivering()) and not is_in(self._working, _ALONE):
                self._lock = RLock()
                return self.enter()
            now = monotonic()
            if not self._stuck_since or now > self._stuck_until + _LOOK_SECONDS:  # else it is for the same one
                self._stuck_since = now - WAIT_SECONDS
            self._stuck_until = now + STUCK_SECONDS
        self.late += 1
        return None

    def _deliver(self) -> None:
        """Give the records that are queued to each taker; the fault of one is its own.

        What other threads queue meanwhile, since they could not wait, is theirs to deliver: else this thread might never return.
        """
        queue = self._queue
        most = len(queue) + _BATCH
        while queue and most > 0:  # asked again after the mark is gone: a call from within may have queued just before
            try:
                self._delivering = get_ident()
                while queue and most > 0:
                    batch = [queue[0]] if len(queue) == 1 else [queue[place] for place in range(min(len(queue), _BATCH))]
                    most -= len(batch)
                    begun = monotonic() if self._stuck_until else 0.0
                    for taker, wants in self._takers:
                        wanted = batch[:] if wants is None else [record for record in batch if wants.has(record)]
                        try:
                            if wanted:
                                try:
                                    taker.take(wanted)
                                except MemoryError:  # of the call itself, it may be: twice does no harm
                                    taker.take(wanted)
                        except Exception as error:  # noqa: BLE001 - must not reach the traced program
                            pass_on(error)
                            self.fault(error)
                    try:
                        for _ in batch:  # last: what an interrupt leaves in the queue the next thread delivers; twice does no harm
                            queue.popleft()
                    except IndexError as error:  # in a forked child
                        pass_on(error)
                    if begun and monotonic() - begun < WAIT_SECONDS / 4:  # the taker is quick again
                        self._stuck_until = 0.0
            finally:
                self._delivering = False

    def _is_delivering(self) -> bool:
        """Tell whether the thread that is marked as delivering is at it: an interrupt may have left the mark behind."""
        thread = self._delivering
        return is_in(thread, _DELIVERIES) if thread is not True else True

    def _rouse(self) -> None:
        """Wake the thread; without one the next step or the exit delivers."""
        if self._closed:  # there is no thread any more
            self.flush()
            return
        self._job.ask()

    def _run(self) -> float | None:
        """Deliver what has been queued for a period; on the thread, again and again until nothing comes."""
        if not self._awake:
            self._awake, self._idle = not self._closed, 0
        elif self._marked or self._queue:
            self._idle = 0
            if self._flushes == self._seen:  # else what is queued now is younger than one period
                self.flush()
        else:
            self._idle += 1
            if self._idle > _IDLE_PERIODS:
                self._awake = False
                if not (self._marked or self._queue):  # asked again after the mark is gone: an entry may have come between
                    return None
                self._awake, self._idle = True, 0
        self._seen = self._flushes
        if self._closed:
            self._awake = False
            return None
        return PERIOD_SECONDS


_DELIVERIES = frozenset({vars(Stream)[name].__code__ for name in ("_deliver", "flush")})
_ALONE = frozenset({vars(Stream)["alone"].__code__})


def _wants(taker: Taker) -> Wants | None:
    return getattr(taker, "wants", None)


def _nowhere(_record: Record) -> None:
    """Take a record that another process delivers."""


class Step:
    """One structural step: the stream's lock is held within, and what was put is delivered at its end. A fault stays inside."""

    __slots__ = ("_held", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> Callable[[Record], None]:
        self._held = self._stream.enter()
        return self._stream.put

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._stream.leave(self._held)
        if isinstance(error, Exception) and not from_handler(error):
            self._stream.fault(error)
            return True
        return False
