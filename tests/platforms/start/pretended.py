"""The standard library of another system, as optree's modules see it: without the names that it lacks, with stand-ins for its own.

The stand-ins for Windows's calls (`optree/_syscalls/windows.py`) do with Linux's what Windows does: a lock that is held is refused to its
holder too, and a file that is open, not as optree opens it, cannot be renamed or removed.
"""

import builtins
import ctypes
import errno
import fcntl
import json
import os
import signal
import subprocess
import types
from collections import deque
from pathlib import Path

OURS = {"optree", "optree_otel", "optree_formats"}
_import = builtins.__import__
_seen: dict[str, types.ModuleType] = {}
_told = _system = ""
_absent: frozenset[str] = frozenset()
_lacking: dict[str, list[str]] = {}
_given: dict[str, dict[str, object]] = {}


class Seen(types.ModuleType):
    """A module less some names, and with others; it is the module itself for whoever patches it."""

    def __init__(self, module: types.ModuleType, lacking: list[str], given: dict[str, object]) -> None:
        object.__setattr__(self, "_seen", (module, frozenset(lacking), given))

    def __getattribute__(self, name: str) -> object:
        module, lacking, given = object.__getattribute__(self, "_seen")
        if name in given:
            return given[name]
        if name in lacking:
            raise AttributeError(f"{module.__name__}.{name} is not there on this system")
        return getattr(module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_seen")[0], name, value)


def begin(told: str) -> None:
    """Show optree's modules the system that a file tells of."""
    global _system, _lacking, _absent, _given, _told
    found = json.loads(Path(told).read_text("utf-8"))
    _told, _system, _lacking, _absent = told, found["system"], found["lacking"], frozenset(found["absent"])
    _given = {**(MACOS if _system == "darwin" else WINDOWS), "sys": {"platform": _system}}
    builtins.__import__ = _imported
    subprocess.Popen.__init__ = _started


def _imported(name, globals=None, locals=None, fromlist=(), level=0):  # noqa: A002 - the names of the real one
    package = (globals or {}).get("__package__") or (globals or {}).get("__name__") or ""
    if level or package.partition(".")[0] not in OURS or not (fromlist or "." not in name):
        return _import(name, globals, locals, fromlist, level)
    if name in _absent:
        raise ModuleNotFoundError(f"No module named {name!r}: not on this system", name=name)
    module = types.ModuleType(name) if name == "msvcrt" else _import(name, globals, locals, fromlist, level)
    if name not in _seen and (name in _lacking or name in _given):
        _seen[name] = Seen(module, _lacking.get(name, []), _given.get(name, {}))
    return _seen.get(name, module)


_start = subprocess.Popen.__init__


def _started(self, *arguments, env=None, **given):
    """Have a program that is given a `PYTHONPATH` of its own pretend too."""
    place = str(Path(__file__).parent)
    if env is not None and place not in env.get("PYTHONPATH", ""):
        env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, [place, env.get("PYTHONPATH")])), "OPTREE_TEST_SYSTEM": _told}
    _start(self, *arguments, env=env, **given)


def _without_site(command):
    """Have a Python that is started without `site`, and so finds no `sitecustomize`, pretend too, before what it is to execute."""
    if "-S" not in command:
        return command
    *before, code = command
    place = str(Path(__file__).parent)
    return [*before, f"import sys; sys.path.insert(0, {place!r}); import pretended; pretended.begin({_told!r})\n{code}"]


# macOS

fullsyncs: deque[int] = deque(maxlen=100)
"""The descriptors that were last forced through the drive's cache."""
_F_FULLFSYNC = 51


def _fcntl(fd, command, argument=0):
    if command == _F_FULLFSYNC:
        fullsyncs.append(fd)
        os.fsync(fd)
        return 0
    return fcntl.fcntl(fd, command, argument)


def _posix_spawn(program, command, environ, **given):
    return os.posix_spawn(program, _without_site(command), environ, **given)


MACOS: dict[str, dict[str, object]] = {
    "fcntl": {"F_FULLFSYNC": _F_FULLFSYNC, "fcntl": _fcntl},
    "os": {"posix_spawn": _posix_spawn},
}


# Windows

_LOCK_VIOLATION, _NOT_LOCKED, _SHARING_VIOLATION, _NO_PROCESS = 33, 158, 32, 87
_opened: set[int] = set()
"""Descriptors that were opened so that others may rename and remove the file."""
_locked: set[int] = set()
_last_error = 0


def _fails(code: int) -> int:
    global _last_error
    _last_error = code
    return 0


class _Call:
    """A function that takes ctypes's declarations."""

    def __init__(self, function) -> None:
        self.function = function

    def __call__(self, *arguments):
        return self.function(*arguments)


def _create_file(name, access, share, _security, disposition, attributes, _template):
    flags = {0x8000_0000: os.O_RDONLY, 0x4000_0000: os.O_WRONLY, 0xC000_0000: os.O_RDWR}[access]
    flags |= {1: os.O_CREAT | os.O_EXCL, 2: os.O_CREAT | os.O_TRUNC, 3: 0, 4: os.O_CREAT, 5: os.O_TRUNC}[disposition]
    flags |= os.O_NOFOLLOW if attributes & 0x0020_0000 else 0
    assert 7 == share
    try:
        fd = os.open(name, flags | os.O_NONBLOCK, 0o600)
    except OSError as error:
        _fails(error.errno or errno.EIO)
        return ctypes.c_void_p(-1).value
    _opened.add(fd)
    _locked.discard(fd)
    return fd


def _lock_file(fd, how, _reserved, low, high, place):
    beyond = place._obj.Offset + (place._obj.OffsetHigh << 32)
    assert (1, 1, 0) == (how & 1, low, high)
    assert beyond >= 1 << 62
    if fd in _locked:
        return _fails(_LOCK_VIOLATION)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if how & 2 else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return _fails(_LOCK_VIOLATION)
    except OSError as error:
        return _fails(error.errno or errno.EIO)
    _locked.add(fd)
    return 1


def _unlock_file(fd, *_place):
    if fd not in _locked:
        return _fails(_NOT_LOCKED)
    _locked.discard(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)
    return 1


def _open_process(access, inherited, pid):
    assert (0x1000, False) == (access, inherited)
    try:
        return os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except FileNotFoundError:
        return _fails(_NO_PROCESS)


def _exit_code(_fd, code):
    code._obj.value = 259  # it runs
    return 1


def _times(fd, begun, *_others):
    begun._obj.dwLowDateTime = int(os.pread(fd, 4096, 0).rpartition(b")")[2].split()[19])
    return 1


class _Kernel:
    def __init__(self, name: str, *, use_last_error: bool) -> None:
        assert (name, use_last_error) == ("kernel32", True)
        self.CreateFileW, self.LockFileEx, self.UnlockFileEx = _Call(_create_file), _Call(_lock_file), _Call(_unlock_file)
        self.CloseHandle = _Call(os.close)
        self.OpenProcess, self.GetExitCodeProcess, self.GetProcessTimes = _Call(_open_process), _Call(_exit_code), _Call(_times)
        self.GetConsoleMode = self.SetConsoleMode = _Call(lambda *_: 1)


def _win_error(code: int) -> OSError:
    error = OSError(errno.EACCES if code == _LOCK_VIOLATION else code, os.strerror(code))
    error.winerror = code
    return error


def _open_osfhandle(handle: int, flags: int) -> int:
    if flags & os.O_APPEND:
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_APPEND)
    return handle


class _Status:
    """What Windows's fstat returns beside the rest."""

    st_file_attributes = 0

    def __init__(self, found: os.stat_result) -> None:
        self._found = found

    def __getattr__(self, name: str) -> object:
        return getattr(self._found, name)


def _close(fd: int) -> None:
    _opened.discard(fd)
    _locked.discard(fd)
    os.close(fd)


def _refuse_open(*paths) -> None:
    """Raise `PermissionError` for a file that this process has open otherwise than optree opens its own."""
    for path in paths:
        try:
            wanted = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                same = number > 2 and number not in _opened and os.path.samestat(os.fstat(number), wanted)
            except OSError:
                continue
            if same:
                raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used by another", str(path))


def _replace(old, new) -> None:
    _refuse_open(old, new)
    os.replace(old, new)


def _unlink(path) -> None:
    _refuse_open(path)
    os.unlink(path)


def _no_flags(command, *arguments, creationflags=0, **given):
    """Start a process; its flags are for Windows."""
    del creationflags
    return subprocess.Popen(_without_site(command), *arguments, **given)


WINDOWS: dict[str, dict[str, object]] = {
    "ctypes": {"WinDLL": _Kernel, "WinError": _win_error, "get_last_error": lambda: _last_error},
    "msvcrt": {"open_osfhandle": _open_osfhandle, "get_osfhandle": lambda fd: fd},
    "os": {
        "O_NOINHERIT": 0, "O_BINARY": 0, "close": _close, "fstat": lambda fd: _Status(os.fstat(fd)), "replace": _replace, "unlink": _unlink,
        "name": "nt",
    },
    "signal": {"SIGBREAK": signal.SIGQUIT},
    "subprocess": {
        "DETACHED_PROCESS": 8, "CREATE_NEW_PROCESS_GROUP": 512, "CREATE_BREAKAWAY_FROM_JOB": 1 << 24, "Popen": _no_flags,
    },
}  # fmt: skip
