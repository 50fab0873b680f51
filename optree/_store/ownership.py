"""A session that this process owns: LOCK is open and locked or, while the session is idle, closed, and names this process's keeper.

A keeper is a locked file beside the live directories, one for all sessions there that are idle: they take no descriptor. Files are closed
where many sessions are open in a process: it has 256 descriptors on macOS by default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EAGAIN, EMFILE, ENFILE
from pathlib import Path
from time import monotonic
from typing import Final, Protocol, TypeVar

from optree._background import Job
from optree._builder.stream import DELIVERY
from optree._interrupts import new_rlock, pass_on, suppress
from optree._store.files import lock
from optree._store.files.system import OS, FileState
from optree._store.reading.directory import Directory
from optree._store.reading.numbering import given_by_others, saved_vector
from optree._store.upkeep import EACH_SECOND, SYNC_SECONDS
from optree._syscalls import calls

T = TypeVar("T")
PREFIX = ".process-"
"""How the name of a keeper begins."""
FEW = 16
"""Sessions whose files stay open, however long they are idle."""
_MOST = 64
"""Sessions with open files from which on those that were used longest ago are closed at once."""
_WAIT_SECONDS, _NO_WAIT_SECONDS = 0.02, 1.0
_TRIES = 8


class Ownership:
    """Of one session; for one thread at a time."""

    __slots__ = ("_keeper", "_left", "_live", "_noted", "_os", "_path", "fd")

    def __init__(self, live: Path, system: OS) -> None:
        self._live, self._path, self._os = live, live / "LOCK", system
        self.fd = -1
        """LOCK's descriptor; -1 if it is not open."""
        self._keeper: _Keeper | None = None
        self._left: FileState | None = None  # LOCK, as it was closed
        self._noted = 0  # what it says is on the disk then

    @property
    def is_held(self) -> bool:
        """Tell whether the session is this process's."""
        return self.fd >= 0 or self._keeper is not None

    @property
    def rests(self) -> bool:
        """Tell whether a keeper stands for LOCK."""
        return self._keeper is not None

    def take(self, seconds: float = lock.TRY_SECONDS, *, fresh: bool = False) -> bool:
        """Take LOCK; False if another process owns the session. Raises `OSError`."""
        self.fd = with_room(lambda: lock.own(self._path, self._os, seconds, fresh=fresh))
        return self.fd >= 0

    def take_again(self, directory: Directory, txn: str, last: int) -> dict[str, int]:
        """Take LOCK of a session that this process has let go, *last* being the number of its own last record.

        Returns what `saved_vector` does. Raises `OSError`, also if another process has gone on with it.
        """
        taken, known = self.take(), saved_vector(directory, txn)
        if not taken or given_by_others(self._live, known, self._os) > last:
            raise BlockingIOError(EAGAIN, "another process goes on with this session")
        return known

    def rest(self, last: int) -> bool:
        """Let a keeper stand for LOCK, and close it; *last* is the number of the last record that is on the disk.

        False if that cannot be. Raises `OSError`.
        """
        with _guard:
            if (keeper := _keeper_of(self._live.parent, self._os)) is None:
                return False
            keeper.sessions.add(self._live)
        try:
            lock.note_keeper(self.fd, keeper.name, last, self._os)
            if not self._os.is_at(self.fd, self._path) or lock.keeper_at(self.fd, self._os) != keeper.name:
                keeper.leave(self._live)
                return False
        except BaseException:
            keeper.leave(self._live)
            raise
        self._keeper, self._noted, self._left = keeper, last, None
        lock.release([self.fd], self._os)
        self.fd = -1
        self._left = self._os.state(self._path)
        return True

    def take_back(self, last: int) -> bool:
        """Open LOCK again for a session that rests; False if it is another process's by now. *last* as of `rest`.

        Raises `OSError`, also where another process looks at LOCK just now: then it is this one's still.
        """
        if (keeper := self._keeper) is None:
            return False
        if self.fd < 0:
            self.fd = with_room(lambda: lock.own(self._path, self._os, keeper=keeper.name))
            if self.fd < 0 and lock.keeper_of(self._live) == keeper.name:
                raise BlockingIOError(EAGAIN, "another process looks at it", str(self._path))
        if self.fd >= 0 and lock.keeper_at(self.fd, self._os) != keeper.name:  # somebody has removed it
            lock.release([self.fd], self._os)
            self.fd = -1
        self.beat(last, 0)
        self._keeper = None
        keeper.leave(self._live)
        return self.fd >= 0

    def leave_keeper(self, last: int) -> None:
        """Take LOCK back, if that can be, and do without a keeper in any case."""
        with suppress(OSError):
            self.take_back(last)
        if (keeper := self._keeper) is not None:
            self._keeper = None
            keeper.leave(self._live)

    def is_there(self) -> bool:
        """Tell whether LOCK is where it was made, and other processes see whose the session is."""
        try:
            if (keeper := self._keeper) is None or self.fd >= 0:
                return self._os.is_at(self.fd, self._path)
            if self._left != (left := self._os.state(self._path)) and lock.keeper_of(self._live) == keeper.name:
                self._left = left
            is_there = keeper.is_there and self._left == left
        except OSError as error:
            pass_on(error)
            return not isinstance(error, calls.GONE)  # else it cannot be told, and nothing is known to be wrong
        return is_there

    @property
    def missing(self) -> Path | None:
        """Return the path of the keeper that stands for LOCK, if that is what is not there."""
        return None if self._keeper is None or self._keeper.is_there else self._keeper.path

    @property
    def is_open(self) -> bool:
        """Tell whether the descriptor that is locked is still that of its file."""
        fd = self.fd if self._keeper is None or self.fd >= 0 else self._keeper.fd
        return fd < 0 or self._os.is_open(fd)

    def beat(self, last: int, refused: int) -> bool:
        """Note in LOCK that this process lives, see `lock.beat`; of an idle session its keeper does, and LOCK has only what is new."""
        if self.fd < 0 and (keeper := self._keeper) is not None and self._left is not None and last != self._noted:
            with suppress(OSError):
                self._note_again(keeper, self._left, last)
        return lock.beat(self.fd, self._os, last=last, refused=refused)

    def _note_again(self, keeper: _Keeper, left: FileState, last: int) -> None:
        """Note another number in LOCK, which is closed. Raises `OSError`."""
        fd = self._os.reopen(self._path, left, append=False)
        try:
            lock.note_keeper(fd, keeper.name, last, self._os)
        finally:
            self._os.close(fd)
        self._noted, self._left = last, self._os.state(self._path)

    def forget(self) -> None:
        """In a forked child: close its copy."""
        lock.release({self.fd} - {-1}, self._os)
        self.fd, self._keeper = -1, None


class _Keeper:
    """A locked file, for as long as a session needs it."""

    def __init__(self, directory: Path, system: OS) -> None:
        """Make it. Raises `OSError`."""
        self.name = f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
        self.sessions = set[Path]()
        self.path, self._os = directory / self.name, system
        self.fd = lock.take(self.path, system)
        self.beat()
        if self.fd < 0:
            system.unlink(self.path)

    @property
    def is_there(self) -> bool:
        """Tell whether other processes find it, and see that it is locked."""
        return self.fd >= 0 and self._os.is_at(self.fd, self.path)

    def beat(self) -> None:
        """Note in it that this process lives."""
        lock.beat(self.fd, self._os)

    def leave(self, live: Path) -> None:
        """Stand for a session no more; the last one removes the file."""
        with _guard:
            self.sessions.discard(live)
            if self.sessions or self.fd < 0:
                return
            with suppress(OSError):
                self._os.unlink(self.path)
            lock.release([self.fd], self._os)
            self.fd = -1


_guard: Final = new_rlock()
_keepers: dict[Path, _Keeper] = {}
"""By the directory of sessions."""


def _keeper_of(directory: Path, system: OS) -> _Keeper | None:
    """Return the keeper for a directory of sessions, a new one if there is none; None if it cannot be locked. Raises `OSError`."""
    if (keeper := _keepers.get(directory)) is None or not keeper.is_there:
        keeper = _keepers[directory] = _Keeper(directory, system)
        _BEATING.ask(SYNC_SECONDS)
    return keeper if keeper.is_there else None


def _beat() -> float | None:
    """Note each second that this process lives."""
    for directory, keeper in list(_keepers.items()):
        if keeper.is_there:
            keeper.beat()
        elif not keeper.sessions:
            _keepers.pop(directory, None)
    return SYNC_SECONDS if _keepers else None


_BEATING = Job(EACH_SECOND, _beat, str)


def remove_unused(directory: Path, system: OS, live: list[Path]) -> None:
    """Remove keepers of processes that have gone, which none of the *live* directories names."""
    unnamed: set[str] = set()
    with suppress(OSError):
        left = {name for name in os.listdir(directory) if name.startswith(PREFIX)}
        unnamed = left - {lock.keeper_of(path) for path in live} if left else left
    for name in unnamed:
        with suppress(OSError):  # of this one: it may be gone, or another user's
            if (fd := lock.take(directory / name, system, 0.0, opened=system.open)) >= 0:
                system.unlink(directory / name)
            lock.release({fd} - {-1}, system)


class HasFiles(Protocol):
    """What this knows of a session."""

    def rest(self, *, one: bool = False) -> bool:
        """Close its files, or *one*, which the next record opens again; False if something was recorded since this was asked last."""
        ...


_no_wait_until = 0.0
_open: dict[HasFiles, None] = {}
"""Those with open files, in the order in which they are looked at."""


def files_opened(session: HasFiles) -> None:
    """Take up a session whose files were opened."""
    _open[session] = None
    if len(_open) > _MOST:
        _CLOSING.ask(first=True)


def make_room() -> None:
    """Wait a moment for others' files to be closed where sessions begin faster than that: the program needs descriptors too."""
    if len(_open) > 2 * _MOST:
        _wait_for(_CLOSING)


def _wait_for(closing: Job) -> None:
    global _no_wait_until  # noqa: PLW0603 - of all threads: a disk on which a close hangs holds up few of them
    if monotonic() < _no_wait_until:
        closing.ask(first=True)
    elif not closing.wait(_WAIT_SECONDS, first=True):
        _no_wait_until = monotonic() + _NO_WAIT_SECONDS


def files_closed(session: HasFiles) -> None:
    """Forget a session whose files were closed."""
    _open.pop(session, None)


def are_many() -> bool:
    """Tell whether sessions that are idle should have their files closed."""
    return len(_open) > FEW


def with_room(opening: Callable[[], T]) -> T:
    """Open a file; where there is no descriptor left, behind one that an idle session gives up, for as long as there are. Raises `OSError`.

    One at a time: what the program takes meanwhile, that session has not.
    """
    for _ in range(_TRIES):
        try:
            return opening()
        except OSError as error:
            pass_on(error)
            if error.errno not in (EMFILE, ENFILE) or not _open:
                raise
        if DELIVERY.is_current:
            _close_one()
        else:
            _wait_for(_CLOSING_ONE)
    return opening()


def _close_some() -> None:
    """Close files of sessions in turn, each after it was left alone since its last turn."""
    for session in 2 * list(_open):
        if len(_open) <= _MOST:
            return
        if session in _open and not session.rest():
            _open.pop(session, None)
            _open[session] = None


def _close_one() -> None:
    for session in 2 * list(_open):
        if session in _open and session.rest(one=True):
            return


_CLOSING = Job(DELIVERY, _close_some, str)
_CLOSING_ONE = Job(DELIVERY, _close_one, str)


def _after_fork() -> None:
    _keepers.clear()
    _open.clear()


calls.register_at_fork(after_in_child=_after_fork)
