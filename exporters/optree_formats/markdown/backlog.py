"""What tells the events of a log from each other: so one that a killed process left gets what it lacks, and nothing twice.

It lacks how the session was resumed, and how that ended which the kill interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optree_formats.markdown.reader import extract_events
from optree_formats.markdown.to_tree import node_path

Key = tuple[object, ...]
_SEVERAL = frozenset(["session_resume", "session_end", "agent_end", "addition"])
"""Types that a node may have more than once."""
_TITLED = frozenset(["session_start", "agent_start", "session_update"])


def known(log: Path) -> Counter[Key]:
    """Return what tells a log's events from each other, each as often as it is there. Raises `OSError`."""
    return Counter(key for fields in extract_events(log) for key in _keys(fields))


def key(fields: dict[str, Any]) -> Key:
    """Return what tells an event from all others of its log."""
    kind, path = fields["type"], node_path(fields)
    if kind == "session_update":
        return kind, path, fields.get("title"), fields.get("latest_status")
    if kind == "message":
        return kind, path, fields.get("timestamp"), fields.get("role"), fields.get("id")
    return (kind, path, fields.get("timestamp")) if kind in _SEVERAL else (kind, path)


def _keys(fields: dict[str, Any]) -> Iterator[Key]:
    if "type" in fields:
        yield key(fields)
    if fields.get("type") in _TITLED and ("title" in fields or "latest_status" in fields):
        yield key({**fields, "type": "session_update"})
