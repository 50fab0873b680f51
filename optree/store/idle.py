"""Where a process has many sessions open, the files of those that are idle are closed: descriptors are few, 256 on macOS by default."""

from __future__ import annotations

from typing import Protocol

from optree.background import Job
from optree.store.upkeep import EACH_SECOND
from optree.syscalls import calls

FEW = 16
"""Sessions whose files stay open, however long they are idle."""
_MOST = 64
"""Sessions with open files from which on those that were used longest ago are closed at once."""
_WAIT_SECONDS = 0.02


class HasFiles(Protocol):
    """What this knows of a session."""

    def rest(self) -> bool:
        """Close its files, which the next record opens again; False if something was recorded since this was asked last."""
        ...


_open: dict[HasFiles, None] = {}
"""Those with open files, in the order in which they are looked at."""


def files_opened(session: HasFiles) -> None:
    """Take up a session whose files were opened."""
    _open[session] = None
    if len(_open) > _MOST:
        _CLOSING.ask(first=True)


def make_room() -> None:
    """Wait a moment for others' files to be closed where sessions begin faster than that: the program needs descriptors too."""
    if len(_open) > 2 * _MOST:
        _CLOSING.wait(_WAIT_SECONDS, first=True)


def files_closed(session: HasFiles) -> None:
    """Forget a session whose files were closed."""
    _open.pop(session, None)


def are_many() -> bool:
    """Tell whether sessions that are idle should have their files closed."""
    return len(_open) > FEW


def _close_some() -> None:
    """Close files of sessions in turn, each after it was left alone since its last turn."""
    for session in 2 * list(_open):
        if len(_open) <= _MOST:
            return
        if session in _open and not session.rest():
            _open.pop(session, None)
            _open[session] = None


_CLOSING = Job(EACH_SECOND, _close_some, str)
calls.register_at_fork(after_in_child=_open.clear)
