"""What is done beside a session by threads that all sessions of a process share: one does what is due each second, one writes snapshots.

Where journals are many and the disk is slow, others help the first one to force them to the disk, for as long as there are any.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from errno import EMFILE, ENFILE
from itertools import count
from pathlib import Path
from time import monotonic, sleep

from optree._background import Job, Steps, Worker, side_by_side
from optree._interrupts import WeakMembers, pass_on, suppress
from optree._records import Record
from optree._store.files.system import OS, REAL
from optree._syscalls import calls
from optree._threads import BackgroundThread

SYNC_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""The longest that a snapshot waits for a thread that holds the session's lock."""
PAUSES = 20
"""After a snapshot that was not asked for, the next such one comes after this many times what it took, and not within a second."""
EACH_SECOND = Worker("store")
"""Forces journals to the disk, and says that their owners live."""
_HELPERS = 7
"""Threads that force journals to the disk beside that one, where it takes too long by itself."""
_ALONE_SECONDS = 0.25  # the longest that this may take
_NOTHING_SECONDS = 2e-4  # one that takes less had nothing to be forced, or the disk needs no help
_LOOK_SECONDS = 0.01
_SLOT_SECONDS = 0.05
"""Sessions that begin within such a time are looked at together, and those that have ended by then not at all."""
SAVING = Worker("snapshot")
"""Does all that may take long: snapshots, bills, settling."""
_SPARE_DESCRIPTORS = 8  # kept free to save with, where many sessions are open
_GROUP_SIZE = 16
"""Sessions in a group: each has a descriptor for its snapshot."""
_RESERVE_FROM = 16  # the number of open sessions from which on they are kept
_ROOM_SECONDS = 1.0
_CLOSED_AT_ONCE = 3
"""How often late records have their file closed behind them at once."""
_LATE_BACKOFF_SECONDS = 0.1
"""After which it is closed then, at first."""
_BACKOFF_DOUBLINGS = 3
"""How often that is doubled at most: to less than a second, by which what they have is on the disk too."""
_MOST_LATE_OPEN = 32
late_open: set[Late] = set()
"""Those that have such files open, at most so many sessions' at a time, or records that are in no file yet."""
_room_until = 0.0
"""Until then it is assumed that there are descriptors enough for a group."""
_spare: list[int] = []
_open: WeakMembers[Upkeep] = WeakMembers()
_asking: dict[Upkeep, None] = {}
"""Those that were asked for a snapshot, in turn."""
GROUP_SECONDS = 0.05
"""How long snapshots of other sessions are begun beside the first: they wait for the disk together, and a large one delays few of them."""


class _Syncing:
    """Forces journals to the disk, those that are due at a time together."""

    def __init__(self) -> None:
        self._due: deque[Upkeep | _Left] = deque()
        self._job = Job(EACH_SECOND, self.run, str)
        self.after_fork()

    def ask(self, journal: Upkeep | _Left) -> None:
        """Let a journal be forced to the disk behind all else that is due."""
        self._due.append(journal)
        self._job.ask()

    def after_fork(self) -> None:
        """In a forked child: forget the parent's requests and helper threads."""
        self._due.clear()
        self._seconds = 0.0  # that one of them took
        self.missed = 0  # files that were closed before they were on the disk, and forgotten
        self._free = deque(range(_HELPERS))

    def run(self) -> None:
        """Force all that is due to the disk."""
        while self._due:
            if len(self._due) * self._seconds > _ALONE_SECONDS:
                self._get_help()
            begun = monotonic()
            self._sync_one()
            self._seconds = took if (took := monotonic() - begun) > _NOTHING_SECONDS else 0.0

    def _get_help(self) -> None:
        for place in [self._free.pop() for _ in range(min(len(self._due), len(self._free)))]:
            try:
                BackgroundThread(self._help, "sync", place).start()
            except Exception as error:  # noqa: BLE001 - no more threads, or memory: then it takes longer
                pass_on(error)
                self._free.append(place)

    def _help(self, place: int) -> None:
        try:
            while self._due:
                self._sync_one()
        finally:
            self._free.append(place)

    def _sync_one(self) -> None:
        with suppress(IndexError):  # another was quicker
            self._due.popleft().sync()


class _Left:
    """A file of a journal that was closed before it was on the disk; it is forced to it by its name, and holds nothing until then."""

    __slots__ = ("_failed", "_is_due", "_path", "_system", "refusals", "why")

    def __init__(self, path: Path, system: OS) -> None:
        self._path, self._system = str(path), system
        self._is_due = self._failed = False
        self.refusals, self.why = 0, ""  # how often the disk refused, and why the last time

    def __str__(self) -> str:
        return os.path.join(*Path(self._path).parts[-2:])

    def ask(self) -> None:
        """Let it be forced to the disk, if that is not due already."""
        if not self._is_due:
            self._is_due = True
            _SYNCING.ask(self)

    def sync(self) -> None:
        """Force it to the disk; a file that is gone was saved by another process. A sync that fails is tried again in a second."""
        try:
            try:
                self._force(Path(self._path))
            finally:
                self._is_due = False
        except FileNotFoundError:
            _left.discard(self)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptor, or a disk that fails
            pass_on(error)
            self._failed = self._failed or (isinstance(error, OSError) and error.errno not in (EMFILE, ENFILE))
            self.why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            self.refusals += 1
            _AGAIN.ask(SYNC_SECONDS)
        else:
            _left.discard(self)

    def _force(self, path: Path) -> None:
        if self._failed:  # its pages may be marked clean though they are lost
            self._system.replace(path, [self._system.read(path)])
            return
        self._system.datasync_at(path)
        self._system.sync_name(path)


_left: set[_Left] = set()
"""Files that were closed and are not on the disk yet."""
_MOST_LEFT = 10_000
"""How many such files are remembered: some 3 MB."""
_NAMED = 10
"""Of those that the disk has refused, so many are named."""
_SYNCING = _Syncing()


def sync_left(paths: list[Path], system: OS, *, soon: bool) -> None:
    """Take files that are closed, which are forced to the disk *soon*, or when all that was recorded shall be (`left_synced`)."""
    while paths:
        if len(_left) >= _MOST_LEFT:
            _SYNCING.missed += 1
        else:
            _left.add(left := _Left(paths[-1], system))
            if soon or len(_left) > _MOST_LEFT // 2:
                left.ask()
        paths.pop()  # at last: after an interrupt it is taken again


def left_synced(seconds: float) -> bool:
    """Wait until what was closed is on the disk; False if the disk refuses it, or is not done in so many seconds, or there were too many.

    Where no thread can be had, this one syncs, however long that takes.
    """
    until, waiting = monotonic() + seconds, {left: left.refusals for left in _left.copy()}
    for left in waiting:
        left.ask()
    if waiting and not EACH_SECOND.start():
        _SYNCING.run()
    while waiting := {left: refusals for left, refusals in waiting.items() if left in _left}:
        if monotonic() >= until or any(left.refusals > refusals for left, refusals in waiting.items()):
            return False
        sleep(_LOOK_SECONDS)
    return not _SYNCING.missed


def left_unsynced() -> list[str]:
    """Return which of these files the disk has refused, and why, as texts for people."""
    refused = [left for left in _left.copy() if left.refusals]
    texts = [f"{left}, closed, is not on the disk: {left.why}; it is tried again each second" for left in refused[:_NAMED]]
    if len(refused) > _NAMED:
        texts.append(f"{len(refused) - _NAMED} more files of journals, closed, are not on the disk")
    if _SYNCING.missed:
        texts.append(f"{_SYNCING.missed} files of journals were closed, and are not known to be on the disk: they were too many")
    return texts


def _ask_again() -> None:
    for left in _left.copy():
        if left.refusals:
            left.ask()


_AGAIN = Job(EACH_SECOND, _ask_again, str)


def _after_fork() -> None:
    _asking.clear()
    _left.clear()
    late_open.clear()
    _SYNCING.after_fork()


calls.register_at_fork(after_in_child=_after_fork)


def _keep_spare() -> None:
    """Take descriptors for saving. Where open sessions had all that there are, none of them could ever be closed."""
    with suppress(OSError):
        _spare.extend(REAL.spare() for _ in range(_SPARE_DESCRIPTORS - len(_spare)))


def _give_spare() -> None:
    while _spare:
        REAL.close(_spare.pop())  # unless the program has closed it, and the number is another file's


def _has_room() -> bool:
    """Tell whether there are descriptors enough for a group; else each session has those that are kept to save with, one after another.

    It is looked at each second: where the last ones have gone meanwhile, a group is done one after another too.
    """
    global _room_until  # noqa: PLW0603 - of the one thread that saves
    if monotonic() < _room_until:
        return True
    taken: list[int] = []
    with suppress(OSError):
        while len(taken) < _GROUP_SIZE + _SPARE_DESCRIPTORS:
            taken.append(REAL.spare())
    for fd in taken:
        REAL.close(fd)
    if is_room := len(taken) == _GROUP_SIZE + _SPARE_DESCRIPTORS:
        _room_until = monotonic() + _ROOM_SECONDS
    return is_room


class Late:
    """A taker behind a closed journal that gets late records: it closes the files that these opened.

    A few times at once, then on a thread, each time after twice as long: each file that is begun looks through all that are there.
    """

    def __init__(
        self, txn: str, close: Callable[[], bool], step: Callable[[Callable[[bool], object]], object], is_refused: Callable[[], bool]
    ) -> None:
        """*close* is called within a step of the stream, once more where it returns False; on the thread *step* makes one.

        *is_refused* tells whether the disk has refused something that *close* has not said yet: then it is called at once.
        """
        self.txn, self._close, self._step, self._is_refused, self._closed, self._is_well = txn, close, step, is_refused, 0, True
        self._job = Job(EACH_SECOND, self._aside, str)

    def take(self, batch: list[Record]) -> None:  # noqa: ARG002 - the journal before it has tried to write them
        """Close again, now or later; where there can be no thread any more, the process's end does."""
        is_closed = False
        try:
            may_wait = self._closed >= _CLOSED_AT_ONCE and len(late_open) < _MOST_LATE_OPEN and not self._is_refused()
            is_closed = not may_wait and self._close_now()
        finally:  # an interrupt too
            if not is_closed:
                self.close_soon()

    def close_soon(self) -> None:
        """Close on the thread."""
        late_open.add(self)
        self._job.ask(_LATE_BACKOFF_SECONDS * 2.0 ** min(max(0, self._closed - _CLOSED_AT_ONCE), _BACKOFF_DOUBLINGS))

    def _aside(self) -> float | None:
        return None if self._step(self._close_now) else _LATE_BACKOFF_SECONDS * 2.0 ** min(self._closed, _BACKOFF_DOUBLINGS)

    def _close_now(self, _held: object = None) -> bool:
        self._closed += 1
        late_open.discard(self)  # first: what is recorded from here on is to be closed again
        self._is_well = False
        self._is_well = self._close()
        if not self._is_well:
            late_open.add(self)
        return self._is_well

    def close_by(self, until: float) -> bool:
        """Close by a time; False if that takes longer or fails."""
        return self._job.wait(until - monotonic(), first=True) and self._is_well


def late_closed(seconds: float, txn: str = "") -> bool:
    """Close what late records have opened so far, in all sessions or one; False if that takes longer or fails."""
    until = monotonic() + seconds
    return all([late.close_by(until) for late in late_open.copy() if txn in ("", late.txn)])  # noqa: C419 - all of them


class Upkeep:
    """Calls *begin* once, within 0.1 s, then *tick* each second, *save* when that is asked for or wanted, and *leave* last.

    *fault* gets what any of them raises, and it is tried again when it is due. What *save* returns is done beside other sessions'.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        tick: Callable[[], None],
        save: Callable[[], Steps[None] | None],
        leave: Callable[[], None],
        fault: Callable[[str, Exception], object],
    ) -> None:
        self._begin, self._tick, self._save, self._leave, self._fault = begin, tick, save, leave, fault
        self._ticking = Job(EACH_SECOND, self._run, self._raised)
        self._saving = Job(SAVING, self._serve, self._raised)
        self._numbers = count(1)
        self._asked = self._answered = 0
        self._not_before = 0.0  # when a snapshot may be written that no thread waits for
        self._wanted = False  # True while such a one shall be written
        self._started = self._ran = self._stopped = self._gone = False
        self._sync: Callable[[], object] | None = None

    def start(self) -> None:
        """Let what is due each second begin, unless it has; again, where there could be no thread."""
        if not (self._started or self._stopped):
            self._started = self._is_there(EACH_SECOND)
            self._not_before = monotonic() + SYNC_SECONDS  # one that ends soon is written once
            self._ticking.ask(min(SYNC_SECONDS, 2 * _SLOT_SECONDS - monotonic() % _SLOT_SECONDS))
            _open.add(self)
            if len(_open) == _RESERVE_FROM:
                _keep_spare()  # at once: others may take all that there are before the thread that saves has its turn
            elif len(_open) > _RESERVE_FROM and not _spare:
                Job(SAVING, _keep_spare, str).ask()  # behind what is just being saved with them

    def within(self, seconds: float, work: Callable[[], bool]) -> bool:
        """Call *work*, in which the disk may hang, and return its result; False if that takes longer than so many seconds.

        Where no thread can be had, it is done here, however long that takes.
        """
        results: list[bool] = []
        if not self._is_there(EACH_SECOND):
            return work()
        job = Job(EACH_SECOND, lambda: results.append(work()), self._raised)
        if not job.wait(seconds, first=True):
            job.cancel()
        return results == [True]

    def sync_soon(self, sync: Callable[[], object]) -> None:
        """Let a journal be forced to the disk, beside those of other sessions; once, until the disk has answered."""
        if self._sync is None:
            try:
                self._sync = sync
                _SYNCING.ask(self)
            except BaseException:  # out of a handler: asked again when it is due next
                self._sync = None
                raise

    def sync(self) -> None:
        """Force it to the disk, on this thread."""
        if self._sync is not None:
            try:
                self._guarded("files", self._sync)
            finally:  # whatever ends it: it is due again in a second
                self._sync = None

    def ask(self, timeout: float = 0.0) -> bool:
        """Ask for a snapshot, and wait until it is tried; False if it is not within *timeout* seconds."""
        self.start()
        self._asked = max(self._asked, number := next(self._numbers))
        _asking[self] = None
        return self.wait(timeout, number)

    def want(self, *, soon: bool = False) -> None:
        """Let a snapshot be written: at once if it shall be *soon*, else when it is time for one."""
        self._wanted = True
        if soon:
            self._not_before = 0.0
        self._saving.ask(max(0.0, self._not_before - monotonic()))

    def wait(self, timeout: float, number: int | None = None) -> bool:
        """Wait until all snapshots that were asked for are tried, or those up to this *number*: other threads go on asking."""
        if self._answered < (last := self._asked if number is None else number) and self._is_there(SAVING):
            _ = self._saving.wait(timeout) if timeout > 0 else self._saving.ask()
        return self._answered >= last

    def stop(self) -> None:
        """Let it end once what was asked for is done."""
        self._stopped = True
        if self._started:
            self._ticking.ask()

    def end(self) -> None:
        """Let it be over now: nothing is left to do."""
        self._stopped = self._gone = True
        self._over()

    def _over(self) -> None:
        _open.discard(self)
        _asking.pop(self, None)
        self._ticking.cancel()
        self._saving.cancel()

    def join(self, seconds: float) -> bool:
        """Wait for its end; False if it never began."""
        until = monotonic() + seconds
        while self._started and not self._gone and self._ticking.wait(until - monotonic()):
            pass
        return self._started

    def _is_there(self, worker: Worker) -> bool:
        if not (started := worker.start()):
            error = worker.refused or RuntimeError()
            if not str(error).endswith("at interpreter shutdown"):  # Python 3.12.0 and 3.12.1 refuse it already to what runs at exit
                self._fault("background thread", error)
        return started

    def _run(self) -> float | None:
        """Do what is due each second."""
        if not self._stopped:
            self._guarded("files" if self._ran else "start", self._tick if self._ran else self._begin)
            self._ran = True
            return SYNC_SECONDS - monotonic() % min(_SLOT_SECONDS, SYNC_SECONDS)  # with others: the thread wakes for all of them once
        if not self._gone:
            if self._saving.is_running or self._answered < self._asked:
                self._saving.ask()
                return _LOOK_SECONDS
            self._guarded("end", self._leave)
            self._gone = True
            self._over()
        return None

    def _serve(self) -> float | None:
        """Write a snapshot, if it is time for one."""
        asked, begun = self._asked, monotonic()
        if asked == self._answered:
            if self._stopped or not self._wanted:  # the snapshot was written in another one's group
                return None
            if begun < self._not_before:
                return self._not_before - begun
        _asking.pop(self, None)
        if asked > self._answered and _asking and _has_room():
            side_by_side(self._group(begun + GROUP_SECONDS))
            return None
        _give_spare()
        try:
            side_by_side([self._saved()])
        finally:
            if len(_open) >= _RESERVE_FROM:
                _keep_spare()
        return None

    def _group(self, until: float) -> Iterator[Steps[None]]:
        """Yield the work of this one and of others that were asked for, each as its turn comes."""
        group: list[Upkeep] = [self]
        latest: Upkeep | None = self
        yield self._saved()
        while latest is not None and len(group) < _GROUP_SIZE and monotonic() < until:
            latest = next((asking for asking in list(_asking) if asking not in group), None)  # one that asks again has another turn
            if latest is not None:
                group.append(latest)
                _asking.pop(latest, None)
                yield latest._saved()  # noqa: SLF001 - of this class

    def _saved(self) -> Steps[None]:
        """Write the snapshot that is due."""
        asked, begun, self._wanted = self._asked, monotonic(), False
        try:
            if (steps := self._save()) is not None:
                yield from steps
        except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
            self._report("last snapshot", error)
        finally:
            now = monotonic()
            self._not_before = now + max(SYNC_SECONDS, PAUSES * (now - begun))
            self._answered = max(self._answered, asked)

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._fault("background thread", error)

    def _guarded(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
            self._report(what, error)

    def _report(self, what: str, error: Exception) -> None:
        pass_on(error)
        with suppress(Exception):  # no memory even for that
            self._fault(what, error)
