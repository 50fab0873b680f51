"""The process that delivers what ended programs have left (`optree_otel.handover` starts it): tied to no terminal, silent, and short-lived.

It does for a directory of sessions what the next run with the same settings would do in the background, as soon as the programs are gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from optree import Directory
from optree.exporting import REAL, lock_file, lock_shared, unlock
from optree_otel import detached, make
from optree_otel.delivered import BACKGROUND_BYTES, is_sending
from optree_otel.handover import LOCK, delivery_folder, words
from optree_otel.pending import outlived, sweep

if TYPE_CHECKING:
    from optree_otel.mirror import OtelMirror

SECONDS: Final = 30.0
"""How long it tries to deliver what one program, or several at once, have left."""
LONGEST: Final = 300
"""Seconds after which it ends, whatever it is at."""
END_SECONDS: Final = 10.0
"""How long a program may take to end after it has left word; what it holds for longer is for a later run."""
MOST_BYTES: Final = 4 * BACKGROUND_BYTES
"""The size on disk of a session that is too large to be loaded here."""
AHEAD: Final = 2_000
"""Spans on their way at which the next session waits on disk."""
_LOOK_SECONDS = 0.02


def main(sessions: Sequence[str]) -> None:
    """Deliver what is pending in directories of sessions, one after the other."""
    detached.begin(LONGEST)
    if (mirror := make({})) is not None:
        for folder in sessions:
            with suppress(OSError):  # it is gone, or full
                deliver(mirror, Path(folder))
    os._exit(0)  # what did not arrive stays pending; threads that wait for a collector are not waited for


def deliver(mirror: OtelMirror, sessions: Path) -> None:
    """Deliver what is pending in a directory until no program has left word there; nothing if another process does so. Raises `OSError`."""
    folder = delivery_folder(sessions, mirror.addressee)
    delivers = True
    while delivers and words(folder)[0]:  # asked again after the lock is gone: who found it taken has left word before
        held = lock_file(folder / LOCK)
        if held < 0:
            return
        try:
            REAL.truncate(held, 0)
            REAL.write_all(held, str(os.getpid()).encode())
            while delivers and (left := words(folder)[0]):
                delivers = _round(mirror, sessions, left)
                for path in left:
                    with suppress(FileNotFoundError):
                        REAL.unlink(path)
        finally:
            unlock([held])


def _round(mirror: OtelMirror, sessions: Path, left: Sequence[Path]) -> bool:
    """Wait for the end of programs, and deliver what is pending; False if not all was within `SECONDS`."""
    _wait(lambda: not any(_is_locked(path) for path in left))
    until = monotonic() + SECONDS

    def has_room() -> bool:
        while mirror.traces.waiting >= AHEAD and monotonic() < until:
            sleep(_LOOK_SECONDS)
        return monotonic() < until

    directory = Directory.of(None, sessions, None)
    missed = any(sent.missing for sent in sweep(mirror, directory, go_on=has_room, most=MOST_BYTES))
    if (outliving := outlived(mirror, directory)) or missed:  # a process that is killed can leave no word
        _wait(lambda: not any(is_sending(sessions, txn) for txn in outliving))
        sweep(mirror, directory, go_on=has_room, most=MOST_BYTES)
    while not mirror.flush(1.0):
        if monotonic() >= until or not sessions.is_dir():
            return False
    return True


def _wait(have_gone: Callable[[], bool]) -> None:
    """Wait for the end of processes, for `END_SECONDS` at most."""
    until = monotonic() + END_SECONDS
    while not have_gone() and monotonic() < until:
        sleep(_LOOK_SECONDS)


def _is_locked(path: Path) -> bool:
    try:
        held = lock_shared([path])
    except OSError:  # it cannot be read
        return False
    unlock(held or [])
    return held is None
