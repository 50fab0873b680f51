"""Locks on the files of a live directory: LOCK says who owns the session, a journal's own lock that its writer lives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import monotonic, sleep

from optree.clock import now_ms
from optree.interrupts import pass_on, suppress
from optree.store.system import OS, REAL

TRY_SECONDS = 0.05
"""How long a lock is tried for: a reader that asks who has it takes it for an instant."""
_PAUSE_SECONDS = 0.003
_MOST_DIGITS = 16
_CLOCKS_APART = 1e3
"""Milliseconds that a file's own time may be behind the clock's: file systems round it down."""


def take(path: Path, system: OS = REAL, seconds: float = TRY_SECONDS) -> int:
    """Lock a file, made if it is missing; returns its descriptor, or -1 if another process has it. Raises `OSError`."""
    until = monotonic() + seconds
    while True:
        fd = system.append(path)
        try:
            if system.lock(fd) and system.is_at(fd, path):  # else it was removed between the two calls
                return fd  # at once: an interrupt hits a call
        except BaseException:
            release([fd], system)
            raise
        release([fd], system)
        if monotonic() >= until:
            return -1
        sleep(_PAUSE_SECONDS)


def hold(journals: Iterable[Path], system: OS = REAL) -> list[int] | None:
    """Lock the journals of writers that have gone, with others who do; None if one of them is still writing. Raises `OSError`."""
    held: list[int] = []
    try:
        for path in journals:
            with suppress(FileNotFoundError):
                held.append(system.open(path))
                if not system.lock_shared(held[-1]):
                    release(held, system)
                    return None
    except BaseException:
        release(held, system)
        raise
    return held


def release(fds: Iterable[int], system: OS = REAL) -> None:
    """Let go of what `take` or `hold` returned. Nothing was written there, so a close that fails has lost nothing."""
    for fd in fds:
        with suppress(OSError):
            system.close(fd)


def beat(fd: int, system: OS = REAL) -> None:
    """Note in a file whose lock is held that its holder lives: if it is killed, its session is known to have lasted until about now.

    Where that cannot be, as on a full disk, or nothing is held (-1), what is recorded tells how long the session lasted.
    """
    if fd >= 0:
        with suppress(OSError):
            system.rewrite(fd, b"%d" % now_ms())


def last_beat(live: Path, since: float = 0.0) -> float:
    """Return when a session's owner last noted that it lives, in epoch ms; 0 where it did not.

    What cannot be so is none: a time before *since*, when the session began, or after the file was last written.
    """
    path = live / "LOCK"
    try:
        noted, written = REAL.read(path, _MOST_DIGITS), path.stat().st_mtime * 1e3
    except OSError as error:
        pass_on(error)
        return 0.0
    beat = int(noted) if noted.isdigit() else 0
    return float(beat) if since < beat <= min(now_ms(), written + _CLOCKS_APART) else 0.0


def is_running(live: Path) -> bool:
    """Tell whether a living process owns a session."""
    try:
        held = hold([live / "LOCK"])
    except OSError as error:
        pass_on(error)
        return False
    release(held or [])
    return held is None
