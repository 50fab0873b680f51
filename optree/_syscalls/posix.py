"""The calls of Linux, macOS and other POSIX systems. Each may raise `OSError`."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from optree import _speed as speed
from optree._interrupts import pass_on, suppress

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # a part of Python itself, as `signal` is not, which makes enumerations of it

if sys.platform == "win32":
    raise ImportError("Windows has no such calls")

O_NOCTTY, O_NOFOLLOW, O_NONBLOCK = os.O_NOCTTY, os.O_NOFOLLOW, os.O_NONBLOCK

HOME_VARIABLES = ("HOME",)
"""The variables of the environment that say where a user's home is."""
GONE: tuple[type[OSError], ...] = (FileNotFoundError, NotADirectoryError)
"""What is raised for a name that is no longer there."""

pread, pwrite = os.pread, os.pwrite
_poll: Any = getattr(select, "poll", None)
_POLLOUT: int = getattr(select, "POLLOUT", 0)
"""None, and 0, where eventlet has taken them away; it may do so later too."""
rename = os.replace
unlink = os.unlink
register_at_fork = os.register_at_fork

if sys.platform == "darwin":

    def fsync(fd: int) -> None:
        """Wait until the file is on disk: macOS's own fsync leaves it in the drive's cache."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:  # not every file system has it: a network's, for one
            pass_on(error)
            os.fsync(fd)

    fdatasync = fsync
else:
    fsync, fdatasync = os.fsync, os.fdatasync

T = TypeVar("T")
_FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP)
_BLOCKED = signal.valid_signals().difference(_FAULTS)
"""The signals that are sent to a process; those of a fault are for the thread that has it."""
_MOST_DESCRIPTORS = 1024
_STDERR = 2
_NEITHER_READ_NOR_WRITTEN: int = getattr(os, "O_PATH", os.O_RDONLY)
"""A flag to open a directory with, on Linux so that not even reading it is another error than that of a closed descriptor."""
_turn = count()


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a file, which is no standard stream, also where one is closed: what the program writes there meanwhile is not for it."""
    streams: list[int] = []  # those that are closed, held open until the file has another number; writing to them fails as before
    fds: list[int] = []  # filled within one call of C each: if a handler raises after it, the descriptor is known here and is closed
    closed: list[None] = []
    try:
        try:
            for fd in range(_STDERR + 1):
                fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError as error:
            pass_on(error)
            while not streams or streams[-1] <= _STDERR:
                streams.extend(map(os.open, ("/",), (_NEITHER_READ_NOR_WRITTEN,)))
        fds.extend(map(os.open, (path,), (flags,), (mode,)))
        if streams:
            closed.extend(map(os.close, streams))
    except BaseException:
        _close([*fds, *streams[len(closed) :]])
        raise
    return fds[0]


def _open_kept(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a file that stays open, with a descriptor that the program's own files do not get.

    It is in the upper half of those that there are, each time another one: if the program closes it, no other file has it soon.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    half = (most if 0 < most < _MOST_DESCRIPTORS else _MOST_DESCRIPTORS) // 2
    wanted = max(_STDERR + 1, half + next(_turn) % max(half, 1))
    fds: list[int] = []
    closed: list[None] = []
    try:
        fds.extend(map(open_file, (path,), (flags,), (mode,)))
        try:
            fds.extend(map(fcntl.fcntl, fds[:1], (fcntl.F_DUPFD_CLOEXEC,), (wanted,)))
        except OSError as error:
            pass_on(error)  # no such one is free: this one does
            return fds[0]
        closed.extend(map(os.close, fds[:1]))
    except BaseException:
        _close(fds[len(closed) :])
        raise
    return fds[1]


open_kept = speed.opener(_open_kept)


def _close(fds: list[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def start_sync(fd: int) -> None:
    """Let a file's data begin to go to the disk, where the system can do that: a wait for several files is then one wait."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # pages that are not written yet are written, and stay in memory


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def flock(fd: int, *, wait: bool = False) -> bool:
    """Lock a file for one; False if another has it, unless told to *wait*."""
    return _flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def flock_shared(fd: int) -> bool:
    """Lock a file together with others who do this; False if one has it for itself."""
    return _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def funlock(fd: int) -> None:
    """Let others lock the file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def with_signals_blocked(start: Callable[[], T]) -> T:
    """Call a function that starts a thread, which is given no signal that is sent to the process: each goes to a thread of the program.

    It may wait for one (`signal.sigwait`), or have a handler, which Python runs late where not the main thread took the signal.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        started = start()  # a `return` would leave the `try` before a handler's exception behind this call is raised
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return started


def process_start(pid: int) -> str | None:
    """Return when a process began, which tells it from others of its id; empty where the system does not say, None if none runs."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not imported for one call
            fields = file.read().rpartition(b")")[2].split()  # the name before that may hold anything
    except ProcessLookupError as error:
        pass_on(error)
        return None
    except OSError as error:
        pass_on(error)
        return ""
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def is_own(status: os.stat_result) -> bool:
    """Tell whether a file is this user's."""
    return status.st_uid == os.getuid()


def may_name_a_file(_name: str) -> bool:
    """Tell whether a name without separators may be a file's: all may."""
    return True


@cache
def nodename() -> str:
    """Return the machine's name."""
    return os.uname().nodename


def takes_more(fd: int) -> bool:
    """Tell whether a descriptor takes a line now, or that is unknown; a pipe or a terminal that is full makes its writer wait."""
    if _poll is None:
        return True
    poll = _poll()
    poll.register(fd, _POLLOUT)
    return bool(poll.poll(0))


def terminal_encoding(_fd: int) -> str:
    """Return what text for a descriptor is encoded in."""
    return "utf-8"


def shows_colours(_terminal: TextIO) -> bool:
    """Tell whether a terminal understands escape sequences: all do but those that ``TERM`` calls dumb, as an editor's."""
    return os.environ.get("TERM") != "dumb"


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError as error:
        pass_on(error)
        return False
    return True
