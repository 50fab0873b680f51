"""What Windows has in place of POSIX's calls. Each may raise `OSError`.

Files are opened so that others may rename and remove them meanwhile, as on POSIX systems; a file that another program has open without
that, such as a virus scanner's, is tried for again and again for a moment.
"""

from __future__ import annotations

import ctypes
import msvcrt
import os
import sys
from collections.abc import Callable
from ctypes import wintypes
from errno import ELOOP
from stat import FILE_ATTRIBUTE_REPARSE_POINT
from time import monotonic, sleep
from typing import ParamSpec, TextIO, TypeVar

if sys.platform != "win32":
    raise ImportError("these are the calls of Windows")

P = ParamSpec("P")
T = TypeVar("T")

O_NOCTTY = O_NONBLOCK = 0
O_NOFOLLOW = 1 << 28
"""A flag that the C library does not know: links are refused by `open_file`."""
HOME_VARIABLES = ("USERPROFILE", "HOMEDRIVE", "HOMEPATH")
"""The variables of the environment that say where a user's home is."""
GONE: tuple[type[OSError], ...] = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What is raised for a name that is no longer there, or goes as soon as the file is closed."""
PATIENCE_SECONDS = 0.25
"""How long a file is tried for that another program has open."""
_PAUSE_SECONDS = 0.005

_GENERIC_READ, _GENERIC_WRITE = 0x8000_0000, 0x4000_0000
_SHARE_ALL = 0x7
_CREATE_NEW, _CREATE_ALWAYS, _OPEN_EXISTING, _OPEN_ALWAYS, _TRUNCATE_EXISTING = range(1, 6)
_ATTRIBUTE_NORMAL, _OPEN_REPARSE_POINT = 0x80, 0x0020_0000
_NO_WAIT, _EXCLUSIVE = 0x1, 0x2
_LOCK_VIOLATION, _NOT_LOCKED, _PENDING = 33, 158, 997
_INVALID = ctypes.c_void_p(-1).value
_ENABLE_ESCAPES = 0x4
_QUERY, _RUNS, _NO_PROCESS = 0x1000, 259, 87
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))})


class _Place(ctypes.Structure):
    """Windows's OVERLAPPED: of it, where in a file a lock begins."""

    _fields_ = (
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", wintypes.DWORD),
        ("OffsetHigh", wintypes.DWORD),
        ("hEvent", wintypes.HANDLE),
    )


_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateFileW.restype = wintypes.HANDLE
_kernel.CreateFileW.argtypes = [
    wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p, wintypes.DWORD, wintypes.DWORD, wintypes.HANDLE,
]  # fmt: skip
_kernel.CloseHandle.argtypes = [wintypes.HANDLE]
_kernel.OpenProcess.restype = wintypes.HANDLE
_kernel.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
_kernel.GetExitCodeProcess.argtypes = [wintypes.HANDLE, ctypes.POINTER(wintypes.DWORD)]
_kernel.GetProcessTimes.argtypes = [wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 4]
_kernel.LockFileEx.restype = _kernel.UnlockFileEx.restype = wintypes.BOOL
_kernel.LockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 4, ctypes.POINTER(_Place)]
_kernel.UnlockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 3, ctypes.POINTER(_Place)]
_kernel.GetConsoleMode.argtypes = [wintypes.HANDLE, ctypes.POINTER(wintypes.DWORD)]
_kernel.SetConsoleMode.argtypes = [wintypes.HANDLE, wintypes.DWORD]


def open_file(path: str | os.PathLike[str], flags: int, _mode: int = 0o600) -> int:
    """Open a file as `os.open` does, binary, not for child processes, and so that others may rename and remove it meanwhile."""
    name = os.fspath(path)
    attributes = _ATTRIBUTE_NORMAL | (_OPEN_REPARSE_POINT if flags & O_NOFOLLOW else 0)
    handle = _kernel.CreateFileW(name, _access(flags), _SHARE_ALL, None, _disposition(flags), attributes, None)
    if handle is None or handle == _INVALID:
        error = ctypes.WinError(ctypes.get_last_error())
        raise OSError(error.errno, error.strerror, name, error.winerror)
    try:
        fd = msvcrt.open_osfhandle(handle, flags & os.O_APPEND | os.O_NOINHERIT)
    except BaseException:
        _kernel.CloseHandle(handle)
        raise
    if flags & O_NOFOLLOW and os.fstat(fd).st_file_attributes & FILE_ATTRIBUTE_REPARSE_POINT:
        os.close(fd)
        raise OSError(ELOOP, "it is a link, and links are not followed here", name)
    return fd


open_kept = open_file


def _access(flags: int) -> int:
    if flags & os.O_RDWR:
        return _GENERIC_READ | _GENERIC_WRITE
    return _GENERIC_WRITE if flags & os.O_WRONLY else _GENERIC_READ


def _disposition(flags: int) -> int:
    if flags & os.O_CREAT:
        return _CREATE_NEW if flags & os.O_EXCL else _CREATE_ALWAYS if flags & os.O_TRUNC else _OPEN_ALWAYS
    return _TRUNCATE_EXISTING if flags & os.O_TRUNC else _OPEN_EXISTING


def pread(fd: int, size: int, offset: int) -> bytes:
    """Read at a place in a file; its position, where nothing else reads, moves. Files that are appended to are written at their end."""
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)


def pwrite(fd: int, data: bytes, offset: int) -> int:
    """Write at a place in a file that is not appended to; its position moves."""
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, data)


fsync = fdatasync = os.fsync


def start_sync(_fd: int) -> None:
    """Do nothing: there is no call for it."""


def fsync_directory(_path: str | os.PathLike[str]) -> None:
    """Do nothing: the file system keeps a journal of names, and there is no call for it."""


def rename(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Replace *new* by *old*; tried again for `PATIENCE_SECONDS` where another program has one of them open."""
    _patiently(os.replace, old, new)


def unlink(path: str | os.PathLike[str]) -> None:
    """Remove a file; tried again for `PATIENCE_SECONDS` where another program has it open."""
    _patiently(os.unlink, path)


def _patiently(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    until = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            call(*args, **kwargs)
        except PermissionError:
            if monotonic() >= until:
                raise
            sleep(_PAUSE_SECONDS)
        else:
            return


def flock(fd: int, *, wait: bool = False) -> bool:
    """Lock a file for one; False if another has it, unless told to *wait*."""
    while not (locked := _lock(fd, _EXCLUSIVE)) and wait:
        sleep(_PAUSE_SECONDS)
    return locked


def flock_shared(fd: int) -> bool:
    """Lock a file together with others who do this; False if one has it for itself."""
    return _lock(fd, 0)


def funlock(fd: int) -> None:
    """Let others lock the file."""
    if not _kernel.UnlockFileEx(msvcrt.get_osfhandle(fd), 0, 1, 0, ctypes.byref(_beyond())):
        code = ctypes.get_last_error()
        if code != _NOT_LOCKED:
            raise ctypes.WinError(code)


def _lock(fd: int, how: int) -> bool:
    if _kernel.LockFileEx(msvcrt.get_osfhandle(fd), how | _NO_WAIT, 0, 1, 0, ctypes.byref(_beyond())):
        return True
    code = ctypes.get_last_error()
    if code in (_LOCK_VIOLATION, _PENDING):
        return False
    raise ctypes.WinError(code)


def _beyond() -> _Place:
    """Return the byte that is locked: far beyond every file's end, since what is locked here cannot be read by others."""
    return _Place(Offset=0xFFFF_FFFE, OffsetHigh=0x7FFF_FFFF)


def with_signals_blocked(start: Callable[[], T]) -> T:
    """Call a function that starts a thread, to which this system sends no signals."""
    return start()


def process_start(pid: int) -> str | None:
    """Return when a process began, which tells it from others of its id; empty where the system does not say, None if none runs."""
    handle = _kernel.OpenProcess(_QUERY, False, pid)
    if not handle:
        return None if ctypes.get_last_error() == _NO_PROCESS else ""
    try:
        code, times = wintypes.DWORD(), [wintypes.FILETIME() for _ in range(4)]
        if not (_kernel.GetExitCodeProcess(handle, ctypes.byref(code)) and _kernel.GetProcessTimes(handle, *map(ctypes.byref, times))):
            return ""
        return str(times[0].dwHighDateTime << 32 | times[0].dwLowDateTime) if code.value == _RUNS else None
    finally:
        _kernel.CloseHandle(handle)


def is_own(_status: os.stat_result) -> bool:
    """Return True: Windows removes a file only for a user who may remove it."""
    return True


def may_name_a_file(name: str) -> bool:
    """Tell whether a name without separators may be a file's: devices' names may not, whatever their ending."""
    return name.partition(".")[0].rstrip(" ").lower() not in _DEVICES


def nodename() -> str:
    """Return the machine's name."""
    return os.environ.get("COMPUTERNAME", "")


def register_at_fork(**_hooks: Callable[[], object]) -> None:
    """Do nothing: no process is forked."""


def takes_more(_fd: int) -> bool:
    """Tell whether a descriptor takes a line now: that cannot be known here."""
    return True


def terminal_encoding(fd: int) -> str:
    """Return what text for a descriptor is encoded in: the console's code page, else UTF-8."""
    return os.device_encoding(fd) or "utf-8" if os.isatty(fd) else "utf-8"


def shows_colours(terminal: TextIO) -> bool:
    """Tell whether a console understands escape sequences; asks it to."""
    try:
        handle, mode = msvcrt.get_osfhandle(terminal.fileno()), wintypes.DWORD()
    except (OSError, ValueError):
        return False
    return bool(_kernel.GetConsoleMode(handle, ctypes.byref(mode)) and _kernel.SetConsoleMode(handle, mode.value | _ENABLE_ESCAPES))
