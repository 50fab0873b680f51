"""Recovery of a log that is corrupted: the file is set aside under a name that is free, and a new one begins, which says so.

A log counts as corrupted if it does not begin with its title, if it has a zero byte, or if a line is no UTF-8. A torn event is no
corruption, even if the tear went through a character: it is ended, and stays. A history that was rewritten is a violation. A file that
never was a log is left alone.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from optree.exporting import REAL
from optree_formats.markdown.events import LogEvent
from optree_formats.markdown.tail import Tail

SUFFIX = ".corrupted"
NAME = "session-log.md"


def was_log(path: Path, tail: Tail) -> bool:
    """Tell whether a file that is no log was one: by an older title, a protocol or a seal in it, or by a log's name."""
    return tail.ours or path.name.endswith(NAME)


def set_aside(path: Path) -> Path:
    """Rename a log to ``….corrupted``, or ``….corrupted.1`` and so on if there are such already; returns the new path. Raises `OSError`."""
    for number in count():
        backup = path.with_name(f"{path.name}{SUFFIX}{f'.{number}' if number else ''}")
        try:
            os.link(path, backup, follow_symlinks=False)  # fails if the name is taken, which a rename would not
        except FileExistsError:
            continue
        REAL.unlink(path)
        return backup
    raise AssertionError


def event(backup: Path, reason: str) -> LogEvent:
    """Return the event that tells of a recovery."""
    found = LogEvent("recovery", {"from": "corruption", "backup": backup.name, "reason": reason})
    return found.comment("", "Human should review corrupted file")
