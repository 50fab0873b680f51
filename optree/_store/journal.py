"""The journal: one writer's append-only file, valid JSONL, one checksum a line.

Once it is made, a journal never raises for what the disk does. What it could not write it keeps and tries again each second, in a new
segment, under the same numbers; of more than `HELD_RECORDS` it counts the rest, and says in a `gap` record how much is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from errno import EAGAIN, EMFILE, ENFILE
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time
from typing import Literal

from optree import _records as r
from optree import _speed as speed
from optree._ids import WRITER_SPAN
from optree._interrupts import from_handler, new_rlock, pass_on, suppress
from optree._store.files.lock import note_refused
from optree._store.files.system import OS, REAL, FileState
from optree._store.ownership import with_room
from optree._store.reading import numbering
from optree._store.reading.directory import exists, refusal_of
from optree._store.upkeep import sync_left
from optree.errors import StoreError

RETRY_SECONDS = 2.0  # after a refusal `take` does not ask the disk for so long; `retry`, each second, does
HELD_RECORDS = 20_000
"""Records that are kept in memory until the disk takes them."""
_NEVER = float("inf")
_LAST_TRIES, _PAUSE_SECONDS = 12, 0.005
Sync = Literal["write", "interval", "turn", "op"]


class Journal:
    """Appends records to a file of its own in *live*. The stream calls it from one thread at a time; only `sync` may run beside that."""

    __slots__ = (
        *("live", "txn", "sync_level", "last", "dropped", "ordinal", "path", "fd", "problem", "dirty", "_syncs", "_ready", "_os", "_write"),
        *("_version", "_retry_at", "_unsaid", "_unsynced", "_claimed", "_seed", "_held", "_again", "_untried", "_named", "_guard"),
        *("_syncing", "_doomed", "_synced", "_given_up", "_suspect", "_rests", "resolved", "_gaps", "_counted", "refusal", "errno"),
        *("_closing", "_noted", "_omitted", "at_the_end", "_paused", "_reopened", "began"),
    )

    def __init__(
        self,
        live: Path,
        txn: str,
        version: str,
        *,
        ordinal: int | None = None,
        above: int = 0,
        first: int = 1,
        sync: Sync = "interval",
        system: OS = REAL,
        lazy: bool = False,
        ready: Callable[[], None] = lambda: None,
        reopened: Callable[[bool], object] = bool,
        make: bool = True,
    ) -> None:
        """Create the file; *ordinal* 0 is the owner, None takes the next free number above *above*. Raises `OSError`, if not *lazy*.

        With *lazy* the file stays empty until the first record, and is made then if it cannot be made now. *ready* is called before a
        file is begun later, and may raise `OSError`; *reopened* after `pause`, with whether the file is there. Without *make* there is no
        file before `make` is called with the first numbers.
        """
        self.live, self.txn = live, txn
        self.sync_level: Sync = sync
        self._syncs = sync in ("turn", "op")
        self.refusal = ""  # the reason of the last refusal by the disk itself
        self.problem, self.errno, self.resolved = "", 0, False  # the last problem, its errno if the system gave one, whether it is over
        self.dirty = False  # True while there are records that may not be on the disk itself
        self._unsynced: OSError | None = None
        self.last = self.began = first - 1  # number of the last record that is with the operating system, or that it refused
        self.dropped = 0  # records that are given up: more than could be kept until the disk takes them
        self._held: deque[r.Record] = deque()  # to be written, under the numbers that they have, as soon as the disk takes them
        self._again: list[Path] = []  # files that could not be synced, of which that has records
        self._untried = 0  # how many of those held, the last ones, are in no file even in part
        self._ready, self._reopened = ready, reopened
        self._paused: FileState | None = None  # the file that the next record opens again
        self._os, self._write, self._version = system, system.write, version
        self._retry_at, self._unsaid = 0.0, 0
        self._guard = new_rlock()  # held for moments: to close no file while it is synced
        self._closing = new_rlock()  # held while a file is closed, which two threads may come to do
        self._syncing = self._rests = 0
        self._doomed: list[int] = []  # descriptors that are closed when no thread syncs
        self._gaps: list[r.Gap] = []  # those that were written
        self._omitted: list[tuple[int, int]] = []  # numbers of lost records that the next gap names
        self._counted = self.last  # number of the last record when files were last removed: what they had is in `dropped`
        self._named, self._noted = False, ""
        self._synced = self.last  # number of the last record that is known to be on the disk
        self._given_up: list[Path] = []  # files that can no longer be written; some of the records in them may not be on the disk
        self._suspect: list[Path] = []  # files that could not be synced: what they have since `_synced` is written again
        self._claimed = self.fd = self._seed = -1
        self.at_the_end = 0  # not 0 if lists may have entries that this process has not seen: positions are 'at the end' then
        if make:
            self.make(ordinal, above, lazy=lazy)

    def make(self, ordinal: int | None, above: int, *, lazy: bool, fresh: bool = False) -> None:
        """Create the file, see above: a step of its own, so that the caller has the journal by then and can close it, whatever happens.

        With *fresh* the live directory was made for it a moment ago.
        """
        try:
            if not fresh:
                self._os.make_directory(self.live)
            claimed = with_room(lambda: numbering.claim(self.live, ordinal, above, self._os, fresh=fresh))
            self.ordinal, self.path, self._claimed = claimed
            self.at_the_end = self.ordinal
        except (OSError, StoreError) as error:
            if not lazy or from_handler(error):
                raise
            self.make_late(ordinal)
            self._fault(self.live, error)
        if not lazy:
            self.fd, self._claimed = self._claimed, -1
            try:
                self._os.write_all(self.fd, self._head())
            except BaseException:
                with suppress(OSError):
                    self._os.unlink(self.path)
                self._close_files()
                raise

    @property
    def base(self) -> int:
        """What this writer adds to numbers in sessions it does not own; 0 for the owner."""
        return self.ordinal * WRITER_SPAN

    @property
    def lost(self) -> int:
        """Records that are in no file: given up, or still to be written."""
        return self.dropped + len(self._held)

    @property
    def unsaid(self) -> int:
        """Those of them that no gap in a file counts."""
        return self._unsaid + len(self._held)

    @property
    def forced(self) -> int:
        """Number of the last record that is on the disk, or was saved elsewhere."""
        return self._synced

    def make_late(self, ordinal: int | None = None) -> None:
        """Make no file before the first record; None is a writer of its own."""
        self.ordinal = self.at_the_end = numbering.some_number() if ordinal is None else ordinal
        self.path = self.live / numbering.journal_name(self.ordinal, 1)

    @property
    def tried(self) -> int:
        """Number of the last record of which anything may be in a file."""
        return self.last - self._untried

    @property
    def whole(self) -> bool:
        """True unless there are records that the disk has not taken, or may have lost."""
        return not (self._held or self._unsaid or self._suspect) and self._unsynced is None

    def take(self, batch: list[r.Record]) -> None:
        """Write records, all in one call to the operating system."""
        if self._unsynced is not None:
            self._give_up(self._unsynced)
        if self._paused is not None:
            self._reopen(self._paused)
        written = self.fd < 0 and self.whole  # by the call that begins the file
        if self.fd < 0 and not self._recover(batch if written else ()):
            self._hold(batch)
            return
        try:
            if len(batch) == 1 and not (written or self.at_the_end):  # nearly always
                batch[0].n = self.last + 1
                data = r.line(batch[0], self._seed)
            else:
                data = b"" if written else self._lines(batch)
            if data and (done := self._write(self.fd, data)) < len(data):
                self._os.write_all(self.fd, data[done:])
        except (OSError, MemoryError, RecursionError) as error:
            pass_on(error)
            self._poison(error, batch)
            return
        self.last += len(batch)
        self.dirty = True
        if self._syncs:
            self._sync_structure(batch)

    def retry(self) -> bool:
        """Write at once what the disk has not taken yet, if it takes it now; in turn with `take`. False if there is something left."""
        if self._unsynced is not None:
            self._give_up(self._unsynced)
        if not self.whole and self.fd < 0 and self._retry_at < _NEVER:
            self._retry_at = 0.0
            self._recover()
        self._note_refused()
        return self.whole

    def sync(self) -> bool:
        """Wait until what was written, and the names of its files, are on disk; False if the disk says no.

        Then there is a new segment from the next record or `retry` on, which has again what was not synced. For any thread.
        """
        rests, last = self._rests, self.last
        if not self.whole or not (self.dirty or self._given_up or self._syncing):  # what another thread syncs is not on the disk yet
            return self.whole
        try:
            self.dirty = False
            return self._force(rests, last)
        except BaseException:  # no memory, an exception out of a handler: it is not known how far it came
            self.dirty = self.dirty or rests == self._rests
            raise

    def _force(self, rests: int, last: int) -> bool:
        """Wait for the disk; *rests* is how often the journal had been put to rest before, *last* the number of the last record then."""
        with self._guard:
            fd, path, named = self.fd, self.path, self._named
            self._syncing += 1
        try:
            if fd >= 0:
                self._os.datasync(fd)
            for given_up in [*self._given_up]:
                self._os.datasync_at(given_up)  # where it was removed, that is noticed elsewhere
                with suppress(ValueError):  # another thread was quicker
                    self._given_up.remove(given_up)
            if not named:
                self._os.sync_name(path)
        except OSError as error:  # the pages may be marked clean though they are lost: never use this file again
            pass_on(error)
            if rests != self._rests or (fd < 0 and isinstance(error, FileNotFoundError)):  # it is saved elsewhere by now, and removed
                self._given_up = [each for each in self._given_up if exists(each)]
                return self.whole and not self.dirty
            if error.errno in (EMFILE, ENFILE):  # the disk was not even asked
                self.dirty = True
                return False
            self._fault(path, error)
            self._suspect += self._given_up
            self._given_up, self._unsynced, self.dirty = [], error, True
            self._os.mark_unsynced([*self._suspect, path] if self.ordinal else (), unsynced=True)
            return False
        finally:
            with self._guard:
                self._syncing -= 1
                doomed, self._doomed = ([], self._doomed) if self._syncing else (self._doomed, [])
            self._close_all(doomed)
        if rests == self._rests and self._unsynced is None and not self._suspect:  # else another thread's sync failed, or the file is gone
            self._named |= path == self.path
            self._synced = last
        return self.whole and not self.dirty

    def rest(self) -> None:
        """Close the file, which is removed next since all of it is saved elsewhere; the next record begins a new one."""
        self._close_files()
        self.resolved = True
        self.dirty, self._unsynced, self._unsaid, self._omitted = False, None, 0, []
        self._retry_at, self._untried = 0.0, 0
        self._held.clear()
        self._given_up, self._suspect, self._again, self._synced = [], [], [], self.last
        self._rests += 1  # at last: a sync that begins before is told that the file has gone

    def is_there(self) -> bool:
        """Tell whether the file is still where it was made."""
        return self._os.is_at(self.fd, self.path) if self._paused is None else self._os.is_as_left(self.path, self._paused)

    @property
    def is_begun(self) -> bool:
        """Tell whether there is a file that the next record goes to."""
        return self.fd >= 0 or self._paused is not None

    def pause(self) -> bool:
        """Close the file, of a session that is idle; the next record opens it again. False if it stays open. Raises `OSError`."""
        with self._guard:
            if self.fd >= 0 and self.whole and not self._syncing and self.is_there():
                if self.dirty and self.path not in self._given_up:
                    self._given_up.append(self.path)
                self._close_files()
                self._paused = self._os.state(self.path)
            return self.fd < 0

    def _reopen(self, state: FileState) -> None:
        """Open the file again, or begin another next."""
        self._paused = None
        try:
            self.fd = with_room(lambda: self._os.reopen(self.path, state, append=True))
        except FileNotFoundError as error:
            pass_on(error)
            self._reopened(False)
        except OSError as error:
            pass_on(error)
            self._give_up(error)
        else:
            self._reopened(True)

    def renew(self, saved: int, why: str, *, there: bool = False) -> None:
        """Begin a new file as soon as may be in place of one that somebody removed, or that is *there* and another process's (see *why*).

        In files that remain are records up to *saved* only, or those behind which another process went on.
        """
        saved = max(self._counted, min(saved, numbering.last_before_another(self.live, self.ordinal, self._counted, self.last, self._os)))
        later_gaps, self._gaps = [gap for gap in self._gaps if gap.n > saved], []
        gone = max(0, self.last - saved - sum(gap.n > self._counted for gap in later_gaps))
        self._untried = max(0, self.last - saved)
        if there:
            self._given_up.append(self.path)
        else:
            self._given_up, self._suspect, self._synced = [], [], self.last
        self._close_files()
        self._counted, self.dirty, self._unsynced, self._retry_at = self.last, False, None, 0.0
        self.dropped += gone
        self._unsaid += gone + sum(gap.dropped for gap in later_gaps)
        self._omitted += [(saved + 1, self.last)] if saved < self.last else []
        self.problem, self.errno, self.resolved = why, 0, False
        self._recover()

    def close(self, tries: int = _LAST_TRIES) -> None:
        """Write what is left, and close the file; its lock goes with it. One that was never begun is removed; later records begin anew."""
        for left in reversed(range(tries)):
            if self.whole or self.retry() or self._retry_at == _NEVER or not left:
                break
            sleep(_PAUSE_SECONDS)
        if self._claimed >= 0 and self.whole:
            with suppress(OSError):
                self._os.unlink(self.path)
        self._note_refused()
        self.sync_later()
        self._close_files()

    def abandon(self, saved: int) -> None:
        """Close the file; what the disk has not taken is lost, but for records up to *saved*, which are elsewhere."""
        gone = sum(record.n > saved for record in self._held)
        self.dropped += gone
        self._unsaid += gone
        self._held.clear()
        self._note_refused()
        self.sync_later()
        self._close_files()

    def sync_later(self) -> None:
        """Let what may not be on the disk yet be forced to it aside, by its name: the journal may be closed and forgotten then."""
        if self.fd >= 0 and (self.dirty or self._syncing) and self.path not in self._given_up:
            self._given_up.append(self.path)
        sync_left(self._given_up, self._os, soon=self.sync_level != "write")

    def forget(self) -> None:
        """In a forked child: close this process's copy of the descriptor; the parent's lock stays."""
        self._syncing = 0  # threads that did are not in the child
        self._close_files()
        self._retry_at = _NEVER

    def _note_refused(self) -> None:
        """Note beside the journal how many records are in no file; the owner does so in LOCK."""
        if self.ordinal and (self.unsaid or self._noted):
            self._noted = note_refused(self.live, self.ordinal, self.last, self.unsaid, self._noted, self._os)

    def _fault(self, path: Path, error: Exception) -> None:
        self.problem, self.resolved = refusal_of(path, error), False
        self.errno = (error.errno or 0) if isinstance(error, OSError) else 0
        self.refusal = error.strerror or "" if isinstance(error, OSError) and error.errno not in (EMFILE, ENFILE, EAGAIN) else ""

    def _close_files(self) -> None:
        with self._guard:
            self._doomed += {self.fd, self._claimed} - {-1}
            self.fd = self._claimed = -1
            self._paused = None
            if self._syncing:
                return
        for fd in [*self._doomed]:
            self._close_all([fd])
            with suppress(ValueError):
                self._doomed.remove(fd)  # behind it: what an interrupt left open is closed by the next call

    def _close_all(self, fds: list[int]) -> None:
        for fd in fds:
            try:
                with self._closing:
                    self._os.close(fd)
            except OSError as error:  # it is closed; where a file system writes only then, what it had may be gone
                pass_on(error)
                self._fault(self.path, error)

    def _lines(self, batch: Sequence[r.Record]) -> bytes:
        return numbering.numbered_lines(batch, self.last, self._seed, at_the_end=bool(self.at_the_end))

    def _head(self) -> bytes:
        """Return the open file's first line, with whose sum all others begin."""
        self._named, self.dirty = False, True
        first = self._held[0].n if self._held else self.last + 1
        head, self._seed = numbering.header_line(self.path, self.txn, self.ordinal, first, self._version, self.base)
        return head

    def _poison(self, error: Exception, batch: list[r.Record]) -> None:
        """Give the file up. Records of the batch keep their numbers: part of it may stand in the file."""
        self._give_up(error)
        self._hold(batch)
        self._untried = 0

    def _give_up(self, error: Exception) -> None:
        """Write to this file no more."""
        self._fault(self.path, error)
        if self.fd >= 0:
            (self._suspect if self._unsynced is not None else self._given_up).append(self.path)
        self._close_files()
        self._unsynced = None
        self._retry_at = monotonic() + RETRY_SECONDS

    def _hold(self, batch: list[r.Record]) -> None:
        """Keep records until the disk takes them, or count them."""
        room = max(0, HELD_RECORDS - len(self._held))
        for record in (batch := [record for record in batch if not 0 < record.n <= self.last])[:room]:  # else it is held already
            self.last += 1
            record.n = self.last
            self._held.append(record)
        self._untried += len(batch[:room])
        self.dropped, self._unsaid = self.dropped + len(batch[room:]), self._unsaid + len(batch[room:])
        self._note_refused()  # at once: a child may go by os._exit, and its owner knows nothing of these

    def _recover(self, batch: Sequence[r.Record] = ()) -> bool:
        """Go on in a new segment once the disk takes one again, with what it has not taken and a gap for what is given up, or a *batch*."""
        if monotonic() < self._retry_at:
            return False
        try:
            if self._claimed < 0:
                self._os.make_directory(self.live)
            self._ready()
            self._take_back()
            if self._claimed < 0:
                _, self.path, self._claimed = with_room(lambda: numbering.claim(self.live, self.ordinal, 0, self._os))
            held, self.fd, self._claimed = len(self._held), self._claimed, -1
            try:
                self._catch_up(batch)
            except BaseException as error:  # an interrupt too: what is written later has a first line before it
                self._not_caught_up(error, begun=len(self._held) < held)
                raise
        except Exception as error:  # noqa: BLE001 - also what a process lacks that is going down: records are kept all the same
            pass_on(error)
            self._fault(self.live, error)
            self._retry_at = monotonic() + RETRY_SECONDS
            return False
        self.resolved = True
        return True

    def _take_back(self) -> None:
        """Take up again what may have been lost since the last sync that succeeded."""
        if not self._suspect:
            return
        first = self._held[0].n if self._held else self.last + 1
        lost = numbering.lost_since(self._synced, first, self._suspect, self._gaps, self._os)
        self._omitted += numbering.rows(lost.numbers)
        self.dropped += lost.uncounted
        self._unsaid += lost.uncounted + sum(gap.dropped for gap in lost.gaps)
        self._gaps = [gap for gap in self._gaps if gap not in lost.gaps]
        self._held.extendleft(reversed(lost.found))
        self._again, self._suspect = [*self._again, *self._suspect], []

    def _catch_up(self, batch: Sequence[r.Record]) -> None:
        """Begin the file that is open, and write what is held, or a batch."""
        for record in self._held if self.at_the_end else ():  # which it may be only since they are held
            if record.n > self.tried:
                numbering.put_at_the_end(record)
        self._untried = 0
        head = self._head()
        if not self._held:
            self._os.write_all(self.fd, head + self._lines(batch))
        numbering.write_held(self._held, head, self._seed, partial(self._os.write_all, self.fd))
        if self._unsaid:
            gap = r.Gap(time() * 1e3, self._unsaid, self.problem, self._omitted, n=self.last + 1)
            self._os.write_all(self.fd, r.line(gap, self._seed))
            self._gaps.append(gap)
            self.last += 1
            self._unsaid, self._omitted = 0, []
        again, self._again = self._again, []
        self._os.mark_unsynced(again, unsynced=False)  # all that they have is in this file

    def _not_caught_up(self, error: BaseException, *, begun: bool) -> None:
        """Empty the open file, to be begun anew, unless it is *begun*: it has records that are held no more. Then go on in another."""
        if not begun:
            self._empty()
        elif isinstance(error, OSError) and not from_handler(error):
            self._give_up(error)
        else:
            self._given_up.append(self.path)
            self._close_files()

    def _empty(self) -> None:
        """Keep an open file whose content is not needed, for the next try."""
        try:
            self._os.truncate(self.fd, 0)
        except OSError as error:
            pass_on(error)
            self._close_files()
        else:
            self.fd, self._claimed = -1, self.fd

    def _sync_structure(self, batch: list[r.Record]) -> None:
        ends = (r.TurnEnd, r.SessionEnd) if self.sync_level == "turn" else (r.TurnEnd, r.SessionEnd, r.OpEnd, r.Accounted)
        if any(isinstance(record, ends) for record in batch):
            self.sync()


speed.prepare_journal(Journal)
