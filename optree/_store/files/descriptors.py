"""Files that are opened: none is left open by an interrupt, nor shared with a forked child where it is for a lock."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from threading import get_ident
from time import monotonic, sleep
from types import CodeType
from typing import BinaryIO, Final

from optree._interrupts import is_in, pass_on, suppress
from optree._syscalls import calls

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_FORK_SECONDS: Final = 0.2
"""How long a fork waits for threads that open files."""
_LONG_SECONDS: Final = 0.5
"""A thread that opens a file for longer is not waited for: the disk hangs, or an exception out of a handler left the mark behind."""
_PAUSE_SECONDS: Final = 0.0005
_for_locks: dict[int, Descriptor] = {}
"""The descriptors that are open for a lock, by the objects' ids."""
_users: dict[int, int] = {}
"""The threads that use such a descriptor from its opening to its close, by the object's id."""
_opening: dict[int, float] = {}
"""The threads that open a file for its lock, and since when."""
OPENING_SESSIONS: list[CodeType] = []
"""The functions that open a session's files."""
_begun_by_parent: set[int] = set()
"""The thread that was forked within one of these: it goes on there, with what is the parent's."""
_forking: dict[int, float] = {}
"""The threads that fork, and since when."""


class Descriptor(int):
    """A file's descriptor, and which file it was opened for: a program may close it, and get the same number for a file of its own."""

    identity: tuple[int, int]


def is_open(fd: int) -> bool:
    """Tell whether a descriptor is still that of the file that it was opened for."""
    try:
        info = os.fstat(fd)
    except OSError as error:
        pass_on(error)
        return False
    return not isinstance(fd, Descriptor) or fd.identity == (info.st_dev, info.st_ino)


def opened(opening: Callable[..., int], path: str | os.PathLike[str], flags: int, *mode: int, regular: bool = True) -> Descriptor:
    """Open a file, of which an interrupt leaves no descriptor; raises `OSError` where it must be *regular* and is something else."""
    fds: list[int] = []  # filled within one call of C: if a handler raises after it, the descriptor is known here and is closed
    try:
        fds.extend(map(opening, (path,), (flags,), *((argument,) for argument in mode)))
        kept, info = Descriptor(fds[0]), os.fstat(fds[0])
        kind = stat.S_IFMT(info.st_mode)
        if regular and kind != stat.S_IFREG:
            raise OSError(  # noqa: TRY301 - closed below
                errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, and no file", os.fspath(path)
            )
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    kept.identity = info.st_dev, info.st_ino
    return kept


def opened_for_lock(opening: Callable[..., int], path: str | os.PathLike[str], flags: int, *, used: bool = False) -> Descriptor:
    """Open a file, created with mode 0600 if it is missing, for a lock that a forked child does not share.

    What is *used* by this thread alone until it is closed, has the same number there, and fails, where it forks meanwhile, which only a
    signal's handler can do.

    A child's copy of the descriptor would keep the lock beyond this process, and from this process beyond the lock's release.
    """
    me, fds = get_ident(), list[Descriptor]()
    while _is_at(_forking, me):
        sleep(_PAUSE_SECONDS)
    try:
        _opening[me] = monotonic()
        check_process()
        fds.append(opened(opening, path, flags, 0o600))
        check_process()
        if used:
            _users[id(fds[0])] = me
        _for_locks[id(fds[0])] = fds[0]
        _opening.pop(me, None)
    except BaseException:
        for fd in fds:
            os.close(fd)
            forget(fd)
        _opening.pop(me, None)
        raise
    return fds[0]


def check_process() -> None:
    """Raise `OSError` in the middle of what a thread had begun to open, in a child that a signal's handler forked there."""
    if is_begun_by_parent() and is_in(get_ident(), OPENING_SESSIONS):
        raise OSError(errno.ESRCH, "a signal's handler forked this process: the session is its parent's")


def is_begun_by_parent() -> bool:
    """Tell whether this thread was forked in the middle of what it had begun to open, and has not left that yet."""
    return get_ident() in _begun_by_parent


def leave_to_parent() -> None:
    """Let this thread open files again, in such a child."""
    _begun_by_parent.discard(get_ident())


def forget(fd: int) -> None:
    """Stop tracking a descriptor that is closed, or another file's by now."""
    _for_locks.pop(id(fd), None)
    _users.pop(id(fd), None)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`, also for a pipe, a device or a directory, without waiting for its other end."""
    return open(path, "rb", opener=_open_regular)  # which owns the descriptor within that call of C


def _open_regular(path: str, _flags: int) -> int:
    return opened(calls.open_file, path, os.O_RDONLY | calls.O_NONBLOCK | calls.O_NOCTTY)


class SharedFile(FileIO):
    """A file that several processes change, one at a time, by its lock. Forgotten, it is closed: an interrupt leaves none open."""

    def __init__(self, path: Path, flags: int) -> None:
        """Open it. Raises `OSError`."""
        self._fds: list[Descriptor] = []
        try:
            super().__init__(path, "r+", opener=lambda name, _: self._opened(name, flags))
        except BaseException:  # an interrupt, perhaps before Python has taken what is open
            if self.closed:
                for fd in self._fds:
                    os.close(fd)
            self.close()
            raise

    def _opened(self, name: str, flags: int) -> int:
        self._fds.append(opened_for_lock(calls.open_file, name, flags, used=True))
        return self._fds[0]

    def close(self) -> None:
        """Close it."""
        super().close()
        for fd in getattr(self, "_fds", ()):
            forget(fd)

    def __del__(self) -> None:
        self.close()  # ahead of Python, which would warn of it


def _is_at(what: dict[int, float], me: int) -> bool:
    """Tell whether another thread is at something, and not for long."""
    return any(thread != me and monotonic() < since + _LONG_SECONDS for thread, since in what.copy().items())


def _before_fork() -> None:
    _forking[get_ident()] = begun = monotonic()
    while _is_at(_opening, get_ident()) and monotonic() < begun + _FORK_SECONDS:
        sleep(_PAUSE_SECONDS)


def _after_fork_in_parent() -> None:
    _forking.pop(get_ident(), None)


def _after_fork() -> None:
    """In a forked child: close its copies of what is for the parent's locks, also of what only threads know that are not in it."""
    _forking.clear()
    _opening.clear()
    me = get_ident()
    if is_in(me, OPENING_SESSIONS):
        _begun_by_parent.add(me)
    for key, fd in list(_for_locks.items()):
        with suppress(OSError):
            if is_open(fd) and _users.get(key) == me:  # it forked in a handler, and goes on with the file when that is over
                _shut(fd)
            elif is_open(fd):
                os.close(fd)
        forget(fd)


def _shut(fd: int) -> None:
    """Put something in a file's place that takes nothing: what the child does with it fails, and whoever has it closes it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


calls.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
