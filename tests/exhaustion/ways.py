"""What a process can run out of, each made for real, and how."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import resource
import select
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

STRANGER = 54_321
"""A user who has nothing: no entry in the list of users, no home, no processes."""
Inside = Callable[[str], None]


def _nothing(_base: str) -> None:
    return


def _descriptors(_base: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _memory(_base: str) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (280 << 20),) * 2)  # room for threads' stacks and one of the large texts


def _as_stranger() -> None:
    """Give up all rights, for good."""
    os.setgroups([])
    os.setresgid(STRANGER, STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)


def _processes(_base: str) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    _as_stranger()


def _size(_base: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def _recursion(_base: str) -> None:
    sys.setrecursionlimit(100)  # fewer than the levels of the program: both kinds of it run out, on each version of Python


def _stack(_base: str) -> None:
    threading.stack_size(64 << 10)


_removed = -1
"""A descriptor of the directory that was removed."""


def _gone(base: str) -> None:
    global _removed  # noqa: PLW0603 - the process has one such directory
    _removed = os.open(base, os.O_RDONLY)
    gone = f"{base}-gone"
    Path(base).rename(gone)  # at once
    shutil.rmtree(gone, ignore_errors=True)


def _memory_of_threads(_base: str) -> None:
    """Refuse optree's own threads each 23rd allocation that grows, or that is asked for with zeros.

    Python 3.15.0 frees twice what `list.append` finds no memory for (https://github.com/python/cpython/issues/151818): nothing that grows
    is refused there.
    """
    _in_library("refuse_memory").value = 2 if sys.version_info >= (3, 15) else 1

    def begins(*_: object) -> None:
        sys.setprofile(None)
        if threading.current_thread().name.startswith("optree-"):
            os.getpgrp()

    threading.setprofile(begins)


def _forbidden(base: str) -> None:
    for path in [Path(base), *Path(base).rglob("*")]:
        os.chown(path, 0, 0)
    Path(base).chmod(0o500)
    _as_stranger()


def _a_file(base: str) -> None:
    while not Path(base).is_file():
        _gone(base)
        with suppress(IsADirectoryError):  # it is made anew as soon as it is gone
            Path(base).write_text("in the way")


def _homeless(_base: str) -> None:
    for name in ("HOME", "OPTREE_BASE_DIR"):
        os.environ.pop(name, None)
    _as_stranger()


def _too_long(base: str) -> None:
    os.environ["OPTREE_BASE_DIR"] = base + "/name" * 2000


def _no_working_directory(base: str) -> None:
    where = tempfile.mkdtemp(dir=base)
    os.chdir(where)
    Path(where).rmdir()


def _no_working_directory_relative(base: str) -> None:
    os.environ["OPTREE_BASE_DIR"] = os.path.relpath(base)
    _no_working_directory(base)


def _read_only(base: str) -> None:
    _mount("-o", "remount,ro", base)


def _disk_gone(base: str) -> None:
    """Shut a file system down, as it does itself when its disk fails."""
    fd = os.open(base, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 1))  # EXT4_IOC_SHUTDOWN
    finally:
        os.close(fd)


def _filled(base: str) -> None:
    with suppress(OSError), open(f"{base}/filler", "wb", buffering=0) as file:  # noqa: PTH123
        while True:
            file.write(bytes(1 << 12))


def _no_inodes(base: str) -> None:
    with suppress(OSError):
        for number in range(1 << 20):
            Path(base, f"filler-{number}").touch()


def _temporary_full(base: str) -> None:
    tempfile.tempdir = None
    os.environ["TMPDIR"] = base
    _filled(base)


def _closed_errors(_base: str) -> None:
    sys.stderr.flush()
    os.close(2)


def _full_errors(_base: str) -> None:
    """Have stderr be a pipe that nobody reads, full already."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.dup2(write, 2)
    os.set_inheritable(read, False)


def _stuck_errors(base: str) -> None:
    """Have whoever writes to stderr wait for ever, but for the program's own lines, which go elsewhere."""
    _full_errors(base)
    os.set_blocking(2, True)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _broken_errors(_base: str) -> None:
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(read)
    os.close(write)


def _broken_output(_base: str) -> None:
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(read)
    os.close(write)


def _in_library(name: str) -> ctypes.c_int:
    """Return a variable of the library of `refusing.c`."""
    return ctypes.c_int.in_dll(ctypes.CDLL(None), name)


def _preloaded(name: str) -> Inside:
    """Have that library do something from now on."""

    def inside(_base: str) -> None:
        _in_library(name).value = 1

    return inside


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def _plain(where: Path) -> Iterator[Path]:
    where.mkdir()
    yield where


@contextmanager
def _mounted(where: Path, options: str) -> Iterator[Path]:
    where.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(where))
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def _tmpfs(options: str) -> Callable[[Path], AbstractContextManager[Path]]:
    return lambda where: _mounted(where, options)


@contextmanager
def _ext4(where: Path) -> Iterator[Path]:
    """A small disk of its own."""
    where.mkdir()
    image = where.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True, capture_output=True)
    _mount("-o", "loop", str(image), str(where))
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def _raises(number: int, act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError as error:
        return error.errno == number
    return False


def _writing_fails(number: int, size: int = 1 << 17) -> Callable[[str], bool]:
    """Return what tells whether a file cannot be written in a directory, for that reason."""

    def holds(base: str) -> bool:
        file = Path(base, "probe")
        try:
            return _raises(number, lambda: file.write_bytes(bytes(size)))
        finally:
            with suppress(OSError):
                file.unlink()

    return holds


def _fork_fails(_base: str) -> bool:
    def fork() -> None:
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)

    return _raises(errno.EAGAIN, fork)


def _thread_fails(_base: str) -> bool:
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return True
    return False


def _memory_fails(_base: str) -> bool:
    try:
        return not bytes(300 << 20)
    except MemoryError:
        return True


def _recursion_fails(_base: str) -> bool:
    def deeper(levels: int) -> int:
        return levels and deeper(levels - 1)

    try:
        return bool(deeper(110))
    except RecursionError:
        return True


def _is_no_pipe(_base: str) -> bool:
    try:
        return not stat.S_ISFIFO(os.fstat(2).st_mode)
    except OSError as error:
        return error.errno == errno.EBADF


def _has_no_home(_base: str) -> bool:
    return "HOME" not in os.environ and os.getuid() not in {user.pw_uid for user in pwd.getpwall()}


def _has_no_room(_base: str) -> bool:
    return select.select([], [2], [], 0)[1] == [] and os.get_blocking(2)


def _was_removed(_base: str) -> bool:
    return os.fstat(_removed).st_nlink == 0


class Way(NamedTuple):
    """One way: what is done before the first session, and what before the second; where the files are."""

    inside: tuple[Inside, Inside]
    place: Callable[[Path], AbstractContextManager[Path]] = _plain
    env: Mapping[str, str] = {}
    needs_root: bool = False
    unreadable: bool = False
    """Whether nothing can be read there afterwards."""
    holds: Callable[[str], bool] = lambda _base: True
    """Tells, in the program and at its end, whether the condition is there."""


def _from_start(inside: Inside) -> tuple[Inside, Inside]:
    return inside, _nothing


def _later(inside: Inside) -> tuple[Inside, Inside]:
    return _nothing, inside


def _both(name: str, inside: Inside, **more: object) -> dict[str, Way]:
    return {
        name: Way(_from_start(inside), **more),  # type: ignore[arg-type]
        f"{name}, later": Way(_later(inside), **more),  # type: ignore[arg-type]
    }


WAYS: dict[str, Way] = {
    "nothing": Way((_nothing, _nothing)),
    **_both("descriptors", _descriptors, holds=lambda _: _raises(errno.EMFILE, lambda: os.dup(0))),
    **_both("memory (RLIMIT_AS)", _memory, holds=_memory_fails, env={"LARGE_MB": "150", "MALLOC_ARENA_MAX": "1"}),
    **_both("recursion limit", _recursion, holds=_recursion_fails),
    **_both("small stacks of threads", _stack, holds=lambda _: threading.stack_size() == 64 << 10),
    **_both("processes and threads (RLIMIT_NPROC)", _processes, holds=_fork_fails, needs_root=True),
    **_both("threads refused", _preloaded("refuse_threads"), holds=_thread_fails),
    **_both("fork refused", _preloaded("refuse_forks"), holds=_fork_fails),
    "allocations of background threads": Way(  # not later: they are there from the first session on
        _from_start(_memory_of_threads),
        holds=lambda _: _in_library("refused_allocations").value > 0,
        env={"PYTHONMALLOC": "malloc", "PYTHONFAULTHANDLER": "1"},
    ),
    **_both("clock going backwards", _preloaded("backwards"), holds=lambda _: time.time() > time.time()),
    **_both("disk full (tmpfs)", _filled, holds=_writing_fails(errno.ENOSPC), place=_tmpfs("size=1m"), needs_root=True),
    **_both("disk full (ext4)", _filled, holds=_writing_fails(errno.ENOSPC, 1 << 22), place=_ext4, needs_root=True),
    "disk fills up": Way((_nothing, _nothing), _tmpfs("size=64k"), holds=_writing_fails(errno.ENOSPC, 1 << 13), needs_root=True),
    **_both("inodes", _no_inodes, holds=_writing_fails(errno.ENOSPC, 0), place=_tmpfs("nr_inodes=40"), needs_root=True),
    **_both("quota", _preloaded("over_quota"), holds=_writing_fails(errno.EDQUOT)),
    **_both("file size (RLIMIT_FSIZE)", _size, holds=_writing_fails(errno.EFBIG)),
    "read-only": Way(_from_start(_read_only), _tmpfs("size=4m"), holds=_writing_fails(errno.EROFS), needs_root=True),
    **_both("disk gone (ext4)", _disk_gone, holds=_writing_fails(errno.EIO), place=_ext4, needs_root=True, unreadable=True),
    **_both("directory gone", _gone, holds=_was_removed),
    **_both("no permission", _forbidden, holds=_writing_fails(errno.EACCES), needs_root=True),
    "a file in the way": Way(_from_start(_a_file), holds=os.path.isfile),
    "a file in the way, later": Way(_later(_a_file), holds=os.path.isfile),
    **_both("no home", _homeless, holds=_has_no_home, needs_root=True),
    **_both("name too long", _too_long, holds=lambda _: _raises(errno.ENAMETOOLONG, lambda: Path(os.environ["OPTREE_BASE_DIR"]).stat())),
    **_both("no working directory", _no_working_directory, holds=lambda _: _raises(errno.ENOENT, os.getcwd)),
    **_both("no working directory, a relative base", _no_working_directory_relative, holds=lambda _: _raises(errno.ENOENT, os.getcwd)),
    **_both(
        "/tmp full",
        _temporary_full,
        holds=_writing_fails(errno.ENOSPC),
        place=_tmpfs("size=64k"),
        needs_root=True,
    ),
    **_both("stderr closed", _closed_errors, holds=_is_no_pipe),
    **_both("stderr without reader", _broken_errors, holds=lambda _: _raises(errno.EPIPE, lambda: os.write(2, b"x"))),
    **_both("stderr full", _full_errors, holds=lambda _: _raises(errno.EAGAIN, lambda: os.write(2, b"x"))),
    **_both("stderr full, and it blocks", _stuck_errors, holds=_has_no_room),
    **_both("stdout without reader", _broken_output, holds=lambda _: _raises(errno.EPIPE, lambda: os.write(1, b"x"))),
    "ASCII only": Way(
        (_nothing, _nothing),
        holds=lambda _: sys.stdout.encoding == "ascii",
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    ),
}
