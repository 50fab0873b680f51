"""A session's journals, on their way to the disk: this process's own, and for the owner also those of writers that have gone.

A process that records something and ends within a second, as a worker of a pool does, does not sync its journal: the owner does.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from errno import EAGAIN, EMFILE, ENFILE
from pathlib import Path
from time import time

from optree._interrupts import new_rlock, pass_on
from optree._store.files import lock
from optree._store.files.system import OS
from optree._store.journal import Journal
from optree._store.reading.directory import OWNERS, journals
from optree._syscalls import calls

_COARSE_SECONDS = 2.0
"""The coarsest time that a file system gives a directory: two changes within it may have the same."""
_State = tuple[int, int, int, bool]
"""A file's number, size and time, and whether a sync of it has failed that its writer has not made good."""


class Journals:
    """Forces them to the disk; for any thread."""

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
        """Do so for one's own."""
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
