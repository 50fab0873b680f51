"""The files of a session that is written: its live directory, LOCK and this process's journal there, made, looked after and let go.

Journals are forced to the disk here: this process's own, and for the owner also those of writers that have gone. A process that records
something and ends within a second, as a worker of a pool does, does not sync its journal: the owner does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import EAGAIN, EMFILE, ENFILE
from functools import partial
from pathlib import Path
from time import time

from optree._builder import Stream
from optree._interrupts import from_handler, if_free, new_rlock, pass_on, suppress
from optree._store.files import lock
from optree._store.files.system import OS, PASSING
from optree._store.journal import Journal
from optree._store.ownership import Ownership, files_closed, files_opened, make_room
from optree._store.reading.directory import OWNERS, SUFFIXES, NotedProblems, checked, exists, journals, owners_journals
from optree._store.reading.numbering import last_given
from optree._store.reading.reader import is_blank
from optree._store.saving import StoreOptions, sweep
from optree._store.settle import leave, remove
from optree._syscalls import calls
from optree.errors import BusyError

_COARSE_SECONDS = 2.0
"""The coarsest time that a file system gives a directory: two changes within it may have the same."""
_State = tuple[int, int, int, bool]
"""A file's number, size and time, and whether a sync of it has failed that its writer has not made good."""


class Journals:
    """Forces a session's journals to the disk; for any thread."""

    def __init__(
        self, own: Journal, system: OS, *, others: bool, fault: Callable[[OSError], object], forced: Callable[[], object] = lambda: None
    ) -> None:
        """Begin with all that are there, besides one's *own*; without *others* it is for that one only.

        *fault* is called with each error, *forced* when something of one's own was forced to the disk.
        """
        self._own, self._system, self._others, self._fault, self._forced = own, system, others, fault, forced
        self._first = own.path.name
        self._guard = new_rlock()
        self._listed = -1.0
        """The time of the directory when it was listed, if that tells whether something was added since."""
        self._paths: list[Path] = []
        self._synced: dict[Path, _State] = {}
        """What was forced to the disk, as it was before."""
        self._failed: set[Path] = set()
        """Those whose sync failed: what they have may be lost, and yet taken for written."""

    def sync(self, *, gone: bool = False) -> bool:
        """Wait until what was written so far, and the names of the files, are on disk; False if the disk says no.

        With *gone* journals of others are left to writers that live: these do so each second themselves.
        """
        done = self.sync_own()
        return (not self._others or self._sync_others(gone=gone)) and done

    def sync_own(self) -> bool:
        """Wait so for the process's own journal."""
        before = self._own.forced
        done = self._own.sync()
        if self._own.forced != before:
            self._forced()
        return done

    def _sync_others(self, *, gone: bool) -> bool:
        with self._guard:
            forced, failed, looked, more = dict[Path, _State](), list[OSError](), set[Path](), True
            while more:
                more = False
                for path, state in self._changed():
                    if path in looked:  # synced in this pass already: newer bytes wait for the next
                        continue
                    looked.add(path)
                    more = True  # a file that was made meanwhile may have what this one has lost
                    try:
                        if self._force(path, state, gone=gone):
                            forced[path] = (*state[:3], False)
                    except OSError as error:
                        pass_on(error)
                        failed.append(error)
            try:
                if forced.keys() - self._synced.keys():
                    self._system.sync_name(next(iter(forced)))  # which is for all that are new
                self._synced.update(forced)
            except FileNotFoundError as error:  # the session has ended meanwhile, and is saved
                pass_on(error)
            except OSError as error:
                pass_on(error)
                failed.append(error)
        for failure in failed:
            self._fault(failure)
        return not failed

    def _changed(self) -> Iterator[tuple[Path, _State]]:
        """Yield what is not on the disk as it is, for all that this process knows; a file without a byte has just been begun."""
        try:
            changed = self._live.stat().st_mtime
        except calls.GONE as error:
            pass_on(error)
            return
        if changed != self._listed:
            self._paths = [path for path in journals(self._live) if self._is_others(path.name)]
            self._listed = changed if time() - changed > _COARSE_SECONDS else -1.0
        marked = self._paths and not self._is_executable(self._live / "LOCK")  # else all files there seem so, as on vfat
        for path in self._paths:
            try:
                info = path.lstat()
            except calls.GONE as error:
                pass_on(error)
                continue
            unsynced = bool(marked and info.st_mode & stat.S_IXUSR)
            state = info.st_ino, info.st_size, info.st_mtime_ns, unsynced
            if info.st_size and (unsynced or state != self._synced.get(path)):
                yield path, state

    def _is_executable(self, path: Path) -> bool:
        try:
            return bool(path.lstat().st_mode & stat.S_IXUSR)
        except OSError as error:
            pass_on(error)
            return False

    @property
    def _live(self) -> Path:
        return self._own.live

    def _is_others(self, name: str) -> bool:
        """Tell whether a journal is another process's: also that of an owner before this one."""
        return not name.startswith(OWNERS) or name < self._first

    def _force(self, path: Path, state: _State, *, gone: bool) -> bool:
        """Force a file to the disk; False if that is its writer's, who lives. Raises `OSError`."""
        held = lock.hold([path], self._system)
        try:
            if held is None and gone:
                return False
            if path in self._failed or state[3]:
                if held is None:
                    raise BlockingIOError(EAGAIN, "could not be synced, and its writer has not written it again yet", str(path))
                self._system.write_again(path, [(0, state[1])])
            self._system.datasync_at(path)
            if state[3]:
                self._system.mark_unsynced([path], unsynced=False)
        except FileNotFoundError as error:  # what it had is saved meanwhile
            pass_on(error)
            return False
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE, EAGAIN):
                self._failed.add(path)
            raise
        finally:
            lock.release(held or [], self._system)
        self._failed.discard(path)
        return True


_TRIES = 20
"""A directory that is removed as its lock is taken is made again this often."""


class SessionFiles(NotedProblems):
    """The files of one session; what goes into a journal, and when a snapshot is written, `SessionStore` knows."""

    journal: Journal
    stream: Stream
    ended = _closed = False  # the root session has ended; the store is closed
    unwritable_reason = ""  # why no file could be made from the start, as long as that is so
    _fresh = False  # True if the live directory was made for this session as it began: there is nothing in it to go on from
    _covered, _begun = 0, 0  # numbers of the last record that the last snapshot has, that the last one that was begun has

    def __init__(self, txn: str, options: StoreOptions, *, owner: bool, unused: bool, first: bool, again: bool, later: bool) -> None:
        """Make no file yet. Raises `SetupError` for a txn that is none, and for a live directory that is a link."""
        super().__init__(checked(txn), options.directory)
        self.process = os.getpid()
        self.options, self.owner, self._os = options, owner, options.system
        self._unused, self._first, self._later = unused, first, later or not owner
        self.live = options.directory.live(txn) if owner else options.directory.live_to_write(txn)
        self.again = again  # entries of the session may be in the ledger already
        self._lock = Ownership(self.live, self._os)
        self._seen = -1  # number of the journal's last record when `rest` was asked for last
        self._refused_note = lock.owners_note(self.live) if again else ""  # the name of the file that notes what the disk has refused
        self._guard, self._writing = new_rlock(), new_rlock()

    @property
    def unwritten(self) -> int:
        """Records that are in no file at this moment."""
        raise NotImplementedError

    def _own_again(self) -> None:
        """Own the session again, which was let go. Raises `OSError`."""
        raise NotImplementedError

    def _make_files(self) -> None:
        """Make the directory and take its lock."""
        try:
            if not self._unused:
                self.options.directory.live_to_write(self.txn)
            taken = self._take_lock()
        except OSError as error:
            if not self._later or from_handler(error):
                raise
            self.unwritable_reason = "" if error.errno in PASSING else self.options.directory.why(error)
            if not self.unwritable_reason:
                self._problem("files", error)
            return
        if not taken:
            raise BusyError(f"session {self.txn} is being written by another process: wait, or watch it (optree logs -f {self.txn})")
        if not self._fresh:
            sweep(self.live, self._os)

    def _take_lock(self) -> bool:
        """Make the directory and take its lock; of a session that goes on other processes may remove both meanwhile, as settled."""
        for _ in range(_TRIES if self.again else 1):
            try:
                self._fresh = bool(self._os.make_directory(self.live)) and not self.again
                if self._unused and not self._fresh:
                    self.options.directory.live_to_write(self.txn)
                return not (self._first and not self._fresh) and self._lock.take(fresh=self._fresh) and not self._was_begun()
            except FileNotFoundError as error:
                pass_on(error)
                if not self.again:
                    raise
        return False

    def _was_begun(self) -> bool:
        """Tell whether a process that was given the same name was quicker, and has ended the session: its live directory was removed."""
        if was_begun := self._first and any(exists(self.options.directory.snapshot(self.txn, name)) for name in SUFFIXES):
            remove(self.live, [], self._os)
            self._release_lock()
        return was_begun

    def _unmake(self, error: BaseException) -> None:
        """Remove the files and locks that were made, if any: the session cannot be begun."""
        if (journal := getattr(self, "journal", None)) is not None:
            journal.rest()
        if self.owner and self.process == os.getpid() and not isinstance(error, BusyError):
            with suppress(OSError):
                taken = self._lock.fd >= 0 or self._lock.take(0.0)
                if taken and not self.again:
                    self._remove_unbegun()
                elif taken:
                    remove(self.live, [], self._os)
        self._release_lock()

    def _remove_unbegun(self, *own: Path) -> None:
        """Remove journals without a record, and these, if that is possible."""
        with suppress(OSError):
            remove(self.live, [path for path in owners_journals(self.live) if path in own or is_blank(path, self._os)], self._os)

    def _take_again(self) -> dict[str, int]:
        """Take the lock of a session that was let go; returns what its snapshot has."""
        try:
            return self._lock.take_again(self.options.directory, self.txn, max(self.journal.tried, self._begun))
        except BlockingIOError:
            self._release_lock()
            raise

    def _release_lock(self) -> None:
        with self._guard:  # two threads may come here
            files_closed(self)
            if self.process != os.getpid():  # the directory is the parent's
                self._lock.forget()
                return
            if self._lock.rests:
                self._lock.leave_keeper(self.journal.forced)
            if self._lock.fd >= 0 or not self.owner:  # else it may be another's by now
                leave(self.live, [self._lock.fd] if self._lock.fd >= 0 else [], self._os)
            self._lock.fd = -1  # last: what an interrupt left open is closed when the store is discarded

    def _beat(self) -> None:
        if_free(self._guard, self._note)

    def _note(self) -> None:
        """Note in LOCK that this process lives, and what the disk has; what it has refused in a file's name, where LOCK has no room."""
        refused = min(self.unwritten, self.journal.unsaid)
        is_noted = self._lock.beat(self.journal.last if refused else self.journal.forced, refused)
        if self._lock.is_held and (refused or self._refused_note):
            more = 0 if is_noted else refused
            self._refused_note = lock.note_refused(self.live, 0, self.journal.last, more, self._refused_note, self._os)

    def _look_for_files(self, held: bool) -> None:
        """Begin new files where those that are written were removed, their descriptors were closed, or another process owns the session."""
        journal = self.journal
        if held and journal.is_begun and (self._lock.is_held or not self.owner):
            is_there = journal.is_there()
            if is_there and self._is_owned():
                self.current_problems.pop("files", None)
            else:
                self._renew_files(is_there)

    def _is_owned(self) -> bool:
        with self._guard:  # the thread that writes a snapshot may just open LOCK again
            return not self.owner or self._lock.is_there()

    def _renew_files(self, is_there: bool) -> None:
        """Begin new files; *is_there*: the journal is where it was made.

        The owner's snapshot has what they had (see `_tick`); what a process had written that joined is lost, and counted.
        """
        journal, snapshot = self.journal, self.options.directory.snapshot(self.txn, self.options.compression)
        try:
            still = (journal.fd < 0 or self._os.is_open(journal.fd)) and self._lock.is_open
            gone = f"{missing} was removed" if (missing := self._lock.missing) else f"they were removed from {self.live}"
            why = f"{gone if still else 'the program closed their descriptors'} while it runs; they are written anew"
            self._problem("files", FileNotFoundError(why))
            saved = max(last_given(self.live, {}, self._os, journal.ordinal), self._covered if exists(snapshot) else 0)
            self._release_lock()
            if is_there:
                self._own_again()
            else:
                journal.renew(saved, f"files of session {self.txn}: {why}")
        except OSError as error:
            self._problem("files", error)
            if self.owner and not self._lock.is_held and journal.is_begun:  # what is written without the lock another process may remove
                journal.renew(journal.last, str(error), there=True)

    def _opened_again(self, is_there: bool) -> None:
        """Go on with the journal of a session that was idle, if its files are there and it is still this process's. Never raises."""
        self._tried("files", partial(self._go_on, is_there))

    def _go_on(self, is_there: bool) -> None:
        if is_there and self._is_owned():
            files_opened(self)
            make_room()
        else:
            self._renew_files(is_there)

    @property
    def _is_idle(self) -> bool:
        """Tell whether its files are closed, and have all that was recorded."""
        return self._lock.rests and self.journal.fd < 0 and self.journal.whole

    def rest(self, *, one: bool = False) -> bool:
        """Close the files of a session that is idle, or waits to be saved, or *one* of them; what needs them opens them again.

        False if something was recorded since this was asked last, or that cannot be now.
        """
        before, self._seen = self._seen, self.journal.last
        may_rest = self.owner and before == self._seen and not (self._closed or self.unwritten)
        return may_rest and bool(if_free(self._writing, partial(self.stream.alone, partial(self._rest, one=one))))

    def _rest(self, held: bool, *, one: bool) -> bool:
        journal = self.journal
        with self._guard, suppress(OSError):
            if held and journal.last == self._seen and journal.whole and self._lock.is_held:
                was_open = journal.fd >= 0
                if not journal.pause() or (one and was_open):  # first: a keeper that is to be made may need its descriptor
                    return journal.fd < 0
                if self._lock.fd < 0 or self._lock.rest(journal.forced):
                    files_closed(self)
                    return True
        return False

    def close_file(self) -> None:
        """Close the journal of a session that is to be closed aside, where many may wait; a later record opens it again.

        What it has is forced to the disk by its name. One whose last records the disk has not taken stays open.
        """
        with suppress(OSError):
            self.stream.alone(lambda held: held and self.journal.pause())
        self.journal.sync_later()
