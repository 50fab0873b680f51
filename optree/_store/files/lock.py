"""Locks on the files of a live directory: LOCK says who owns the session, a journal's own lock that its writer lives.

LOCK is open and locked in the process that owns the session, or names a file beside the live directory, the keeper, that is: one of a
process for all its sessions that are idle, whose own files it has closed (see `ownership`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from optree._clock import now_ms
from optree._interrupts import pass_on, suppress
from optree._store.files.system import OS, REAL
from optree._syscalls import calls

TRY_SECONDS = 0.05
"""How long a lock is tried for: a reader that looks whether a process has it takes it for an instant."""
_PAUSE_SECONDS = 0.003
_MOST_BYTES = 128
_NOTED = re.compile(rb"([0-9]{1,16})(?: ([0-9]{1,16}) ([0-9]{1,16})(?: (\.process-[0-9]{1,10}-[0-9a-f]{16}))?)?")
_REFUSED = re.compile(r"refused-([0-9]{4,9})-([0-9]{1,16})-([0-9]{1,16})")
_CLOCKS_APART = 1e3
"""Milliseconds that a file's own time may be behind the clock's: file systems round it down."""


class RefusedNote(NamedTuple):
    """How many records of a writer were in no file when *last* was the number of its last one."""

    writer: str
    last: int
    records: int


class _Note(NamedTuple):
    """What the owner has noted in LOCK: when it lived, in epoch ms, and as `beat` says; zeros where it has not."""

    beat: int
    last: int
    refused: int
    keeper: str


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


def own(path: Path, system: OS = REAL, seconds: float = TRY_SECONDS, *, fresh: bool = False, keeper: str = "") -> int:
    """Take a session's LOCK as `take` does; returns -1 too if it names a living process's keeper, other than this *keeper* of one's own."""
    fd = take(path, system, seconds, fresh=fresh)
    if fd < 0 or fresh:
        return fd  # at once: an interrupt hits a call
    try:
        named = keeper_at(fd, system)
        if named in ("", keeper):
            return fd
        held = hold([path.parent.parent / named], system)
        release(held or [], system)
        if held is not None:
            return fd
    except BaseException:
        release([fd], system)
        raise
    release([fd], system)
    return -1


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


def beat(fd: int, system: OS = REAL, *, last: int = 0, refused: int = 0) -> bool:
    """Note in a file whose lock is held that its holder lives: if it is killed, its session is known to have lasted until about now.

    Also the number of its *last* record that is on the disk; or how many the disk has *refused*, when *last* was the last one of all. Where
    that cannot be, or nothing is held (-1), it is False, and what is recorded tells how long the session lasted.
    """
    if fd >= 0:
        with suppress(OSError):
            note = b"%d %d %d" % (now_ms(), last, refused) if last else b"%d" % now_ms()
            system.rewrite(fd, note.ljust(_MOST_BYTES))
            return True
    return False


def note_keeper(fd: int, keeper: str, last: int, system: OS = REAL) -> None:
    """Note as `beat` does, and that the session stays this process's while its *keeper* is locked. Raises `OSError`."""
    system.rewrite(fd, (b"%d %d 0 %b" % (now_ms(), last, keeper.encode())).ljust(_MOST_BYTES))


def last_beat(live: Path, since: float = 0.0) -> float:
    """Return when a session's owner last noted that it lives, in epoch ms; 0 where it did not.

    Impossible times count as 0: one before *since*, when the session began, or after the file was last written.
    """
    last = 0.0
    with suppress(OSError):
        keeper = keeper_of(live)
        for path in (live / "LOCK", live.parent / keeper) if keeper else (live / "LOCK",):
            beat, written = _noted(path).beat, path.stat().st_mtime * 1e3
            if since < beat <= min(now_ms(), written + _CLOCKS_APART):
                last = max(last, float(beat))
    return last


def note_refused(live: Path, writer: int, last: int, refused: int, noted: str, system: OS = REAL) -> str:
    """Note how many records the disk has refused to a process, if any, when *last* was the number of its last one.

    That is the name of a file without a byte, for which a full disk has room: the owner's too, where LOCK has no byte yet.
    Returns it, or what was *noted* before if it cannot be.
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


def owners_note(live: Path) -> str:
    """Return the name of the one that an earlier process of the owner has left; empty if there is none."""
    return next((path.name for path in notes_of_refused(live) if path.name.startswith("refused-0000-")), "")


def refused(live: Path | None) -> list[RefusedNote]:
    """Return what a session's processes have noted of records that the disk refused."""
    if live is None:
        return []
    matches = [_REFUSED.fullmatch(path.name) for path in notes_of_refused(live)]
    notes = [RefusedNote(match[1], int(match[2]), int(match[3])) for match in matches if match]
    with suppress(OSError):
        noted = _noted(live / "LOCK")
        owners = [RefusedNote("0000", noted.last, noted.refused), *(note for note in notes if note.writer == "0000")]
        return [*(note for note in notes if note.writer != "0000"), max(owners, key=lambda note: note.last)]
    return notes


def last_forced(live: Path | None) -> int:
    """Return the number of the last record of which a session's owner has noted that it is on the disk; 0 if it has not."""
    with suppress(OSError):
        noted = _noted(live / "LOCK") if live is not None else None
        return noted.last if noted and not noted.refused else 0
    return 0


def never_written(noted: Iterable[RefusedNote], vector: Mapping[str, int]) -> int:
    """Return how many of these records are in no file, when *vector* has per writer the number of the last one that is."""
    return sum(note.records for note in noted if vector.get(note.writer, 0) < note.last)


def has_recorded(live: Path) -> bool:
    """Tell whether a session's owner has noted that it lives, and no record that the disk refused: its journal had a record by then."""
    try:
        noted = _noted(live / "LOCK")
    except OSError as error:
        pass_on(error)
        return False
    return bool(noted.beat) and not noted.refused


def keeper_of(live: Path) -> str:
    """Return the name of the keeper that a session's LOCK names; empty if there is none. Raises `OSError`."""
    with suppress(FileNotFoundError):
        return _noted(live / "LOCK").keeper
    return ""


def keeper_at(fd: int, system: OS = REAL) -> str:
    """Return it for a LOCK that is open. Raises `OSError`."""
    return _parsed(system.pread(fd, _MOST_BYTES, 0)).keeper


def _noted(path: Path) -> _Note:
    """Return what was noted in LOCK, or a keeper. Raises `OSError`."""
    return _parsed(REAL.read(path, _MOST_BYTES))


def _parsed(note: bytes) -> _Note:
    match = _NOTED.fullmatch(note.rstrip(b" "))
    if match is None:
        return _Note(0, 0, 0, "")
    return _Note(int(match[1]), int(match[2] or 0), int(match[3] or 0), (match[4] or b"").decode())


def is_running(live: Path) -> bool:
    """Tell whether a living process owns a session."""
    return is_locked(live / "LOCK") or is_kept(live)


def is_kept(live: Path) -> bool:
    """Tell whether LOCK names a living process's keeper."""
    with suppress(OSError):
        return bool(keeper := keeper_of(live)) and is_locked(live.parent / keeper)
    return False


def is_locked(path: Path) -> bool:
    """Tell whether a living process has a file locked."""
    try:
        held = hold([path])
    except OSError as error:
        pass_on(error)
        return False
    release(held or [])
    return held is None
