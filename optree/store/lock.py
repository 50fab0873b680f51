"""Locks on the files of a live directory: LOCK says who owns the session, a journal's own lock that its writer lives."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from optree.clock import now_ms
from optree.interrupts import pass_on, suppress
from optree.store.system import OS, REAL
from optree.syscalls import calls

TRY_SECONDS = 0.05
"""How long a lock is tried for: a reader that looks whether a process has it takes it for an instant."""
_PAUSE_SECONDS = 0.003
_MOST_BYTES = 64
_NOTED = re.compile(rb"([0-9]{1,16})(?: ([0-9]{1,16}) ([0-9]{1,16}))?")
_REFUSED = re.compile(r"refused-([0-9]{4,9})-([0-9]{1,16})-([0-9]{1,16})")
_CLOCKS_APART = 1e3
"""Milliseconds that a file's own time may be behind the clock's: file systems round it down."""


class RefusedNote(NamedTuple):
    """How many records of a writer were in no file when *last* was the number of its last one."""

    writer: str
    last: int
    records: int


def take(
    path: Path, system: OS = REAL, seconds: float = TRY_SECONDS, *, fresh: bool = False, opened: Callable[[Path], int] | None = None
) -> int:
    """Lock a file, which *opened* opens, made if it is missing; returns its descriptor, or -1 if another process has it. Raises `OSError`.

    In a *fresh* folder, which this process made a moment ago, no process settles anything.
    """
    until = monotonic() + seconds
    while True:
        fd = (opened or system.own)(path)
        try:
            if system.lock(fd, new=True) and (fresh or system.is_at(fd, path)):  # else it was removed between the two calls
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


def beat(fd: int, system: OS = REAL, *, last: int = 0, refused: int = 0) -> None:
    """Note in a file whose lock is held that its holder lives: if it is killed, its session is known to have lasted until about now.

    Also the number of its *last* record that is on the disk; or how many the disk has *refused*, when *last* was the last one of all. Where
    that cannot be, or nothing is held (-1), what is recorded tells how long the session lasted.
    """
    if fd >= 0:
        with suppress(OSError):
            note = b"%d %d %d" % (now_ms(), last, refused) if last else b"%d" % now_ms()
            system.rewrite(fd, note.ljust(_MOST_BYTES))


def last_beat(live: Path, since: float = 0.0) -> float:
    """Return when a session's owner last noted that it lives, in epoch ms; 0 where it did not.

    Impossible times count as 0: one before *since*, when the session began, or after the file was last written.
    """
    try:
        beat, written = _noted(live)[0], (live / "LOCK").stat().st_mtime * 1e3
    except OSError as error:
        pass_on(error)
        return 0.0
    return float(beat) if since < beat <= min(now_ms(), written + _CLOCKS_APART) else 0.0


def note_refused(live: Path, writer: int, last: int, refused: int, noted: str, system: OS = REAL) -> str:
    """Note how many records the disk has refused to a process that is not the owner, if any, when *last* was the number of its last one.

    That is the name of a file without a byte, for which a full disk has room. Returns it, or what was *noted* before if it cannot be.
    """
    name = f"refused-{writer:04d}-{last}-{refused}" if refused else ""
    try:
        if noted and name != noted:
            system.rename(live / noted, live / name) if name else system.unlink(live / noted)
        elif name != noted:
            system.close(system.create(live / name))
    except OSError as error:
        pass_on(error)
        return "" if isinstance(error, FileNotFoundError) else noted
    return name


def notes_of_refused(live: Path) -> list[Path]:
    """Return the files of `note_refused`."""
    try:
        return [live / name for name in os.listdir(live) if _REFUSED.fullmatch(name)]
    except calls.GONE as error:
        pass_on(error)
        return []


def refused(live: Path | None) -> list[RefusedNote]:
    """Return what a session's processes have noted of records that the disk refused."""
    if live is None:
        return []
    matches = [_REFUSED.fullmatch(path.name) for path in notes_of_refused(live)]
    notes = [RefusedNote(match[1], int(match[2]), int(match[3])) for match in matches if match]
    with suppress(OSError):
        notes.append(RefusedNote("0000", *_noted(live)[1:]))
    return notes


def last_forced(live: Path | None) -> int:
    """Return the number of the last record of which a session's owner has noted that it is on the disk; 0 if it has not."""
    with suppress(OSError):
        _, last, count = _noted(live) if live is not None else (0, 0, 0)
        return 0 if count else last
    return 0


def never_written(noted: Iterable[RefusedNote], vector: Mapping[str, int]) -> int:
    """Return how many of these records are in no file, when *vector* has per writer the number of the last one that is."""
    return sum(note.records for note in noted if vector.get(note.writer, 0) < note.last)


def has_recorded(live: Path) -> bool:
    """Tell whether a session's owner has noted that it lives, and no record that the disk refused: its journal had a record by then."""
    try:
        beat, _, count = _noted(live)
    except OSError as error:
        pass_on(error)
        return False
    return bool(beat) and not count


def _noted(live: Path) -> tuple[int, int, int]:
    """Return what `beat` noted; zeros where it did not. Raises `OSError`."""
    match = _NOTED.fullmatch(REAL.read(live / "LOCK", _MOST_BYTES).rstrip(b" "))
    beat, last, count = (int(number or 0) for number in match.groups()) if match else (0, 0, 0)
    return beat, last, count


def is_running(live: Path) -> bool:
    """Tell whether a living process owns a session."""
    try:
        held = hold([live / "LOCK"])
    except OSError as error:
        pass_on(error)
        return False
    release(held or [])
    return held is None
