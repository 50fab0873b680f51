"""Recovery of a log that is corrupted: the file is set aside under a name that is free, and a new one begins, which says so.

A log counts as corrupted if it does not begin with its title, if it has a zero byte, or if a line is no UTF-8 (a torn last line too, where
the tear went through a character). A torn event is no corruption: it is ended, and stays. A history that was rewritten is a violation.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from optree.store.lines import blocks, opened
from optree_formats.markdown.events import Event
from optree_formats.markdown.tail import Tail

SUFFIX = ".corrupted"


def corruption(path: Path) -> str:
    """Return what makes a log corrupted; empty if nothing does. Raises `OSError`."""
    tail = Tail()
    with opened(path) as source:
        for _, block in blocks(source):
            tail.add(block)
            if tail.corrupt:
                break
    return tail.corrupt


def set_aside(path: Path) -> Path:
    """Rename a log to ``….corrupted``, or ``….corrupted.1`` and so on if there are such already; returns the new path. Raises `OSError`."""
    for number in count():
        backup = path.with_name(f"{path.name}{SUFFIX}{f'.{number}' if number else ''}")
        try:
            os.link(path, backup, follow_symlinks=False)  # fails if the name is taken, which a rename would not
        except FileExistsError:
            continue
        path.unlink()
        return backup
    raise AssertionError


def event(backup: Path, reason: str) -> Event:
    """Return the event that tells of a recovery."""
    found = Event("recovery", {"from": "corruption", "backup": backup.name, "reason": reason})
    return found.comment("", "Human should review corrupted file")
