"""Who may touch a log: nobody but its writers, who append. Attempts at more, and traces of it, become ``violation`` events."""

from __future__ import annotations

from os import fspath
from pathlib import Path

from optree_formats import AnyPath
from optree_formats.markdown.events import LogEvent

_TOLD = 20
"""How many lines an event names."""
HARMLESS = frozenset(["append", "read"])


def touches(path: Path, log: Path) -> bool:
    """Tell whether a path names the log, by whichever name, or a directory that it lies in."""
    try:
        if path.samefile(log):
            return True
    except (OSError, ValueError):  # one of them is not there, or is no path
        pass
    try:
        mine, other = log.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link that leads to itself
        return False
    return mine == other or other in mine.parents


def attempted(path: AnyPath, tool: str, action: str) -> LogEvent:
    """Return the event for a tool that would have changed the log."""
    event = LogEvent("violation", {"action": action, "path": fspath(path), **({"tool": tool} if tool else {}), "refused": True})
    return event.comment("", "Session logs are append-only: the call was not made.")


def found(log: Path, what: str, seals: list[int] | None = None) -> LogEvent:
    """Return the event for a log that somebody else has changed; *seals* are the lines of all seals that do not fit."""
    told = {"broken_seals": len(seals), "lines": seals[-_TOLD:]} if seals else {}
    event = LogEvent("violation", {"action": what, "path": log.name, **told, "refused": False})
    if not seals:
        return event.comment("", "Something else than a writer of this log changed what it had written.")
    return event.comment("lines", "The seals on these lines do not fit: between each and the seal before it something was changed.")
