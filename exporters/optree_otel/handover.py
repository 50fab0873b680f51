"""What a program has not sent when it ends is delivered by a process of its own, which the program starts and does not wait for.

<sessions>/.otel/.delivery/<digest>/lock   locked by the process that delivers, and holds its id
<sessions>/.otel/.delivery/<digest>/<id>   locked by a process that ends, until it is gone and its sessions can be read

There is one for a directory and an addressee, whose digest it is: what a program has left is sent by its own settings and by no other's.
`optree_otel.delivery` is what runs in that process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import optree
from optree import Redaction
from optree.exporting import REAL, REDACTION_VARIABLE, lock_file, lock_shared, redaction_settings, unlock
from optree_otel import detached
from optree_otel.delivered import FOLDER, Addressee
from optree_otel.settings import OPTIONS

LOCK: Final = "lock"
_CODE: Final = """
os.chdir("/")
sys.path[:] = {path!a}
from optree_otel.delivery import main
main({sessions!a})
"""
_END_SECONDS: Final = 5
"""How long the other process idles at most, waiting for the program's end: until then the processor is the program's."""
_FILES: Final = ("_CERTIFICATE", "_CLIENT_KEY")
"""Ends of the names of variables that hold paths, which may be relative: the other process holds no directory."""
_PYTEST: Final = ("PYTEST_VERSION", "PYTEST_CURRENT_TEST")
_held: list[int] = []
"""Descriptors that go with this process: of its own locks, and of the pipe that tells its end."""


def is_possible(wanted: bool | None) -> bool:
    """Tell whether a process can be started that outlives this one; under pytest it must be *wanted*.

    It cannot where `sys.executable` is no Python (frozen and embedded programs), where this is a container's first process, with which
    all others end, and where a function of the program's redacts: the other process has none.
    """
    if wanted is None:
        wanted = "pytest" not in sys.modules and not any(name in os.environ for name in _PYTEST)
    name = Path(sys.executable or "").name.lower()
    is_python = name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False) and os.access(sys.executable, os.X_OK)
    return wanted and is_python and redaction_settings().callback is None and os.getpid() != 1 and detached.IS_POSSIBLE


def hand_over(folders: Iterable[Path], options: Mapping[str, Any], addressee: Addressee) -> int:
    """Have what is pending in directories of sessions delivered once this process has ended. Raises `OSError` if that cannot be.

    A process that delivers there already, to the same addressee, goes on with it. *options* are those of the mirror. Returns how many
    entries lie among the words that are none, and are passed over.
    """
    sessions = [str(folder.absolute()) for folder in folders]
    meeting = [delivery_folder(Path(folder), addressee) for folder in sessions]
    running = [_announce(folder) for folder in meeting]
    if not (running and all(running)):
        _held.append(detached.start(_CODE.format(path=_path(), sessions=sessions), _environ(options), _END_SECONDS))
    return sum(words(folder)[1] for folder in meeting)


def delivery_folder(sessions: Path, addressee: Addressee) -> Path:
    """Return where processes that end and the one that delivers to the same addressee find each other."""
    return sessions / FOLDER / ".delivery" / addressee.digest


def words(folder: Path) -> tuple[list[Path], int]:
    """Return the files by which processes have left word that they end, and how many entries are none and are passed over."""
    with os.scandir(folder) as listing:
        entries = [(entry.path, entry.is_file(follow_symlinks=False)) for entry in listing if entry.name != LOCK]
    return [Path(path) for path, is_file in entries if is_file], sum(not is_file for _, is_file in entries)


def _announce(folder: Path) -> bool:
    """Leave word that this process ends; tells whether a process delivers there already. Raises `OSError`."""
    REAL.make_directory(folder)
    _held.append(lock_file(folder / str(os.getpid())))
    with suppress(FileNotFoundError):
        asked = lock_shared([folder / LOCK])
        if asked is None:
            return True
        unlock(asked)
    return False


def _path() -> list[str]:
    """Return where the other process finds its modules: where this one found them, without what `site` would do in between."""
    own = [str(Path(file).parents[1]) for file in (optree.__file__, __file__)]
    path = [
        absolute for entry in list[object](sys.path) if isinstance(entry, str) and (absolute := _absolute(entry))
    ]  # Python reads no others
    return list(dict.fromkeys([*path, *own]))


def _absolute(path: str) -> str:
    """Return an absolute path; "" for none, for what cannot be one, and for a relative one where there is no directory any more."""
    with suppress(OSError):
        return str(Path(path).absolute()) if path and "\0" not in path else ""
    return ""


def _environ(options: Mapping[str, Any]) -> dict[str, str]:
    result = dict(os.environ)
    for name in OPTIONS:
        if (value := options.get(name)) is not None:
            result[f"OPTREE_OTEL_{name.upper()}"] = str(value)
    result.pop(REDACTION_VARIABLE, None)
    if (chosen := redaction_settings()) != Redaction():
        result[REDACTION_VARIABLE] = chosen.to_json()
    for name, value in result.items():
        if name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith(_FILES):
            result[name] = _absolute(value) or value
    return result
