"""The one seam over the operating system's calls that change or sync files: the store goes through an `OS`, so tests can fail each."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from itertools import count
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import NamedTuple, TypeVar

from msgspec import Struct

from optree._background import TURN, Steps, side_by_side
from optree._interrupts import pass_on, suppress
from optree._store.files.descriptors import Descriptor, SharedFile, check_process, forget, is_open, open_regular, opened, opened_for_lock
from optree._syscalls import calls

T = TypeVar("T")
PIECE = 1 << 20
"""Bytes that are read at once."""


PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EINTR),
}
"""Errors of a disk, or a process, that may be over in a while; for others something must be changed."""
_NO_DIRECTORY_SYNC = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.ENOSYS}
_on_disk: set[tuple[int, int]] = set()
"""Directories (device, inode) whose own names, and those of all above them, this process knows to be on disk."""
_MOST_MADE = 64
_made: dict[int, Path] = {}
"""Directories that were made since that was last looked at: they may have the number of one that was removed."""
_numbers = count()
_waiting: dict[int, float] = {}
"""The threads that wait for the disk, and since when."""
calls.register_at_fork(after_in_child=_waiting.clear)


def _wait_for_disk(sync: Callable[[T], object], what: T) -> None:
    """Call what waits for the disk. Raises `OSError`."""
    me = get_ident()
    _waiting[me] = monotonic()
    try:
        sync(what)
    finally:
        _waiting.pop(me, None)


def disk_waited_for() -> float:
    """Return for how many seconds the disk has not answered a thread of this process; 0 if none waits for it."""
    return monotonic() - min(_waiting.copy().values(), default=monotonic())


def _look_at_made() -> list[tuple[Path, tuple[int, int]]]:
    """Return the directories that were made meanwhile, with their identities: their names are not on disk yet."""
    directories = list[tuple[Path, tuple[int, int]]]()
    for number, path in _made.copy().items():
        with suppress(OSError):
            directories.append((path, _identity(path)))
            _on_disk.discard(directories[-1][1])
        _made.pop(number, None)  # another thread may have been quicker
    return directories


def _identity(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino


def _is_directory(path: Path) -> bool:
    """Tell whether a directory has that name, or a link to one; `Path.is_dir` keeps a handler's exception for itself on Python 3.14."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        pass_on(error)
        return False


class FileState(NamedTuple):
    """Which file has a name, how long it is in bytes, and when it was written last, in ns."""

    device: int
    number: int
    size: int
    written: int


class OS:
    """The real calls. Every method may raise `OSError`."""

    def create(self, path: Path) -> int:
        """Create a new file for appending, private to its owner; fails if it is there. Returns a descriptor."""
        return opened_for_lock(calls.open_kept, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | calls.O_NOFOLLOW)

    def append(self, path: Path) -> int:
        """Open a file for appending, made if it is missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | calls.O_NOFOLLOW | calls.O_NONBLOCK
        return opened_for_lock(calls.open_kept, path, flags)

    def state(self, path: Path) -> FileState:
        """Return which file has a name, and how it was left: its number alone may be a later one's."""
        info = os.stat(path, follow_symlinks=False)
        return FileState(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    def reopen(self, path: Path, state: FileState, *, append: bool) -> int:
        """Open a file again, to *append* to it or note something in it; raises `FileNotFoundError` too if it is not as it was left."""
        if self.is_as_left(path, state):
            fd = opened_for_lock(calls.open_kept, path, os.O_WRONLY | (os.O_APPEND if append else 0) | calls.O_NOFOLLOW | calls.O_NONBLOCK)
            try:
                if fd.identity == state[:2]:
                    _ = append and self.lock(fd, new=True)  # False where somebody looks at it just now: LOCK counts
                    return fd  # at once: an interrupt hits a call
            except BaseException:
                self.close(fd)
                raise
            self.close(fd)
        raise FileNotFoundError(errno.ENOENT, "it was changed, or is another file", str(path))

    def own(self, path: Path) -> int:
        """Open a file whose lock says who owns something, and in which the owner writes notes by `rewrite`; made if it is missing."""
        return opened_for_lock(calls.open_kept, path, os.O_RDWR | os.O_CREAT | calls.O_NOFOLLOW | calls.O_NONBLOCK)

    def open(self, path: Path) -> int:
        """Open a file for its lock only."""
        return opened_for_lock(calls.open_kept, path, os.O_RDONLY | calls.O_NOFOLLOW | calls.O_NONBLOCK)

    def open_shared(self, path: Path, *, new: bool = False) -> FileIO:
        """Open a file that several processes change, or make a *new* one. Forgotten, it is closed: an interrupt leaves none open."""
        flags = os.O_RDWR | calls.O_NOFOLLOW | calls.O_NONBLOCK | (os.O_CREAT | os.O_EXCL if new else 0)
        return SharedFile(path, flags)

    def spare(self) -> int:
        """Open a descriptor that is kept so that a file can be opened later."""
        return opened(calls.open_kept, os.devnull, os.O_RDONLY, regular=False)

    def is_open(self, fd: int) -> bool:
        """Tell whether a descriptor is still that of the file that it was opened for."""
        return is_open(fd)

    def _needs_open(self, fd: int) -> None:
        if not self.is_open(fd):
            raise OSError(errno.EBADF, "the program closed the file's descriptor")

    write: Callable[[int, bytes], int] = staticmethod(os.write)
    """Write once; may write less than all. The function itself, since every record passes here."""

    def write_all(self, fd: int, data: bytes) -> None:
        """Write everything, in as many writes as it takes."""
        self._needs_open(fd)
        done = self.write(fd, data)
        while done < len(data):
            data = data[done:]
            done = self.write(fd, data)

    def rewrite(self, fd: int, data: bytes, start: int = 0) -> None:
        """Replace the few bytes that a file holds from *start* on, always as many.

        Not if it has another name too: then it may be the file of another program.
        They are written in their place, by one call: where a disk is full a file that has any needs no more room, and they stay until then.
        """
        self._needs_open(fd)
        if os.fstat(fd).st_nlink == 1:
            calls.pwrite(fd, data, start)

    def write_again(self, path: Path, parts: Iterable[tuple[int, int]]) -> None:
        """Write parts of a file, each from one place to another, as they are once more, in their place.

        Where a sync has failed their pages may be marked clean though they are lost: the next sync passes over what is as it was then.
        """
        fd = opened(calls.open_kept, path, os.O_RDWR | calls.O_NOFOLLOW | calls.O_NONBLOCK)
        try:
            for begin, end in parts:
                at = begin
                while at < end and (piece := calls.pread(fd, min(PIECE, end - at), at)):
                    at += calls.pwrite(fd, piece, at)
        finally:
            self.close(fd)

    def read(self, path: Path, most: int = -1) -> bytes:
        """Return a file's bytes, or the first *most* of them."""
        with open_regular(path) as file:
            return file.read(most)

    def pread(self, fd: int, size: int, start: int) -> bytes:
        """Return at most *size* bytes of an open file from *start* on."""
        return calls.pread(fd, size, start)

    def may_name_a_file(self, name: str) -> bool:
        """Tell whether a name without separators may be a file's."""
        return calls.may_name_a_file(name)

    def pieces(self, path: Path) -> Iterator[bytes]:
        """Yield a file's bytes, `PIECE` at a time."""
        with open_regular(path) as file:
            while piece := file.read(PIECE):
                yield piece

    def ends_whole(self, fd: int) -> bool:
        """Tell whether a file is empty or ends with a newline, so that a line can be added."""
        size = os.fstat(fd).st_size
        return size == 0 or calls.pread(fd, 1, size - 1) == b"\n"

    def datasync(self, fd: int) -> None:
        """Wait until the file's data is on disk."""
        self._needs_open(fd)
        _wait_for_disk(calls.fdatasync, fd)

    def datasync_at(self, path: Path) -> None:
        """Wait until the data of the file with that name is on disk, if there is one."""
        try:
            fd = opened(calls.open_kept, path, os.O_RDWR | calls.O_NOFOLLOW | calls.O_NONBLOCK)
        except FileNotFoundError as error:
            pass_on(error)
            return
        try:
            self.datasync(fd)
        finally:
            self.close(fd)

    def sync(self, fd: int) -> None:
        """Wait until the file and its metadata are on disk."""
        self._needs_open(fd)
        _wait_for_disk(calls.fsync, fd)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on disk."""
        _wait_for_disk(calls.fsync_directory, path)

    def sync_name(self, path: Path) -> None:
        """Wait until the name of a file is on disk, and the names of the directories that it is in.

        Those above the first are asked for once by each process, and passed over where they may not be read.
        """
        self.sync_directory(path.parent)
        new = [key for made, key in _look_at_made() if made.parent == path.parent.parent]
        directory = Path(os.path.realpath(path.parent, strict=True))  # else it keeps what a handler raises
        unknown: list[tuple[Path, tuple[int, int]]] = []
        while (key := _identity(directory)) not in _on_disk and directory.parent != directory:
            unknown.append((directory, key))
            directory = directory.parent
        for place, (directory, key) in reversed([*enumerate(unknown)]):  # the top first: all above those that are known are known too
            try:
                self.sync_directory(directory.parent)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY_SYNC:
                    raise
            _on_disk.update([] if place else new, [key])  # one call is for all that were made there

    def rename(self, old: Path, new: Path) -> None:
        """Replace *new* by *old*, at once."""
        check_process()
        calls.rename(old, new)

    def mark_unsynced(self, paths: Iterable[Path], *, unsynced: bool) -> None:
        """Tell other processes by a journal's mode whether a sync of it has failed that was not made good since (not on Windows)."""
        for path in paths:
            with suppress(OSError):
                path.chmod(0o700 if unsynced else 0o600)

    def keep(self, path: Path, other: Path) -> None:
        """Give a file another name beside its own, or make a copy where there can be no such name; both are on disk then."""
        try:
            os.link(path, other, follow_symlinks=False)
        except OSError as error:
            pass_on(error)
            if error.errno in PASSING:
                raise
            self.write_whole(other, self.pieces(path))
        self.sync_name(other)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        check_process()
        calls.unlink(path)

    def make_directory(self, path: Path) -> bool:
        """Make a directory and those above it, private to their owner; False if it is there."""
        check_process()
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            pass_on(error)
            return self._make_directories(path)
        _made[next(_numbers)] = path
        if len(_made) > _MOST_MADE:  # where nothing is synced
            _look_at_made()
        return True

    def _make_directories(self, path: Path) -> bool:
        missing = [] if _is_directory(path) else [path]
        while missing and not _is_directory(missing[-1].parent):
            missing.append(missing[-1].parent)
        is_new = False
        for directory in reversed(missing):
            try:
                os.mkdir(directory, 0o700)
                is_new = True
            except FileExistsError:
                if not _is_directory(directory):
                    raise
                is_new = False
            _made[next(_numbers)] = directory
        return is_new

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        check_process()
        path.rmdir()

    def lock(self, fd: int, *, new: bool = False) -> bool:
        """Lock a file, perhaps *new*ly opened, for this writer without waiting; False if another has it."""
        if not new:
            self._needs_open(fd)
        return calls.flock(fd)

    def lock_shared(self, fd: int) -> bool:
        """Lock a file against its writer, together with others who do, without waiting; False if its writer has it."""
        self._needs_open(fd)
        return calls.flock_shared(fd)

    def is_at(self, fd: int, path: Path) -> bool:
        """Tell whether an open file is the one that has this name now."""
        try:
            info = os.stat(path, follow_symlinks=False)
            if isinstance(fd, Descriptor):
                return fd.identity == (info.st_dev, info.st_ino) and self.is_open(fd)
            return os.path.samestat(os.fstat(fd), info)
        except calls.GONE as error:
            pass_on(error)
            return False

    def is_as_left(self, path: Path, state: FileState) -> bool:
        """Tell whether a name is still that of a file that was closed, and as long; of its time some file systems say another at a sync."""
        try:
            return self.state(path)[:3] == state[:3]
        except calls.GONE as error:
            pass_on(error)
            return False

    def lock_waiting(self, fd: int) -> None:
        """Lock a file, waiting for the process that has it."""
        self._needs_open(fd)
        calls.flock(fd, wait=True)

    def unlock(self, fd: int) -> None:
        """Let others lock the file."""
        if self.is_open(fd):
            calls.funlock(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to its first *size* bytes."""
        self._needs_open(fd)
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        """Close a descriptor, unless it is another file's by now; locks that it held are released when its last copy is closed."""
        try:
            if self.is_open(fd):
                os.close(fd)
        finally:
            forget(fd)

    def replace(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Replace a file's content as a whole, and wait until it is on disk with its name."""
        side_by_side([self.replacing(path, pieces)])

    def replacing(self, path: Path, pieces: Iterable[bytes], aside: Path | None = None) -> Steps[None]:
        """Replace a file's content as a whole: temporary file (in the directory *aside*, if given), sync, rename, sync of the name.

        Beside others all files are written before the first is waited for, so that one write to the disk can be for all.
        """
        temporary = temporary_for(path)
        if aside is not None:
            temporary = aside / temporary.name
        together = True
        try:
            fd = self._created(temporary)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            yield TURN  # until then the others have theirs open
            fd, together = self._created(temporary), False
        try:
            try:
                for piece in pieces:
                    self.write_all(fd, piece)
                if together:
                    calls.start_sync(fd)
                    yield TURN
                self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self.unlink(temporary)  # on a full disk it takes the room that is left
            raise
        yield NameSync(self, path)

    def write_whole(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a file anew, and wait until it is on disk; half of it may be left if that fails."""
        fd = self._created(path)
        try:
            for piece in pieces:
                self.write_all(fd, piece)
            self.sync(fd)
        finally:
            self.close(fd)

    def _created(self, path: Path) -> int:
        """Create a file anew, in place of one that an earlier try has left."""
        try:
            return self.create(path)
        except FileExistsError as error:
            pass_on(error)
            self.unlink(path)
            return self.create(path)


def temporary_for(path: Path) -> Path:
    """Return where a file is written before it is put in its place; this process's own."""
    return path.with_name(f".tmp-{path.name}-{os.getpid()}")


class NameSync(Struct, frozen=True):
    """The sync of a file's name, which several files of a directory can share (`optree._background.Shared`)."""

    system: OS
    path: Path

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is the same for all names of a directory."""
        return NameSync, id(self.system), self.path.parent

    def do(self, same: Sequence[NameSync] = ()) -> None:  # noqa: ARG002 - one call is for all
        """Wait until the names are on disk. Raises `OSError`."""
        self.system.sync_name(self.path)


REAL = OS()
