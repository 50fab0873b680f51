"""Locks on the files of a live directory: LOCK says who owns the session, a journal's own lock that its writer lives."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from optree.store.system import OS, REAL

TRY_SECONDS = 0.05
"""How long a lock is tried for: a reader that asks who has it takes it for an instant."""
_PAUSE_SECONDS = 0.003


def take(path: Path, system: OS = REAL, seconds: float = TRY_SECONDS) -> int:
    """Lock a file, made if it is missing; returns its descriptor, or -1 if another process has it. Raises `OSError`."""
    until = monotonic() + seconds
    while True:
        fd = system.append(path)
        try:
            if system.lock(fd) and system.is_at(fd, path):  # else it was removed between the two calls
                taken, fd = fd, -1
                return taken
        finally:
            if fd >= 0:
                system.close(fd)
        if monotonic() >= until:
            return -1
        sleep(_PAUSE_SECONDS)


def hold(journals: Iterable[Path], system: OS = REAL) -> list[int] | None:
    """Lock the journals of writers that have gone, with others who do; None if one of them is still writing. Raises `OSError`."""
    held: list[int] = []
    for path in journals:
        with suppress(FileNotFoundError):
            held.append(system.open(path))
            if not system.lock_shared(held[-1]):
                release(held, system)
                return None
    return held


def release(fds: Iterable[int], system: OS = REAL) -> None:
    """Let go of what `take` or `hold` returned."""
    for fd in fds:
        system.close(fd)


def is_running(live: Path) -> bool:
    """Tell whether a living process owns a session."""
    try:
        held = hold([live / "LOCK"])
    except OSError:
        return False
    release(held or [])
    return held is None
