"""Conversations as flat streams of events, a JSON object a line: ``events`` as seed 001 names things, ``events-v1`` as seed 000 does."""

from __future__ import annotations

import re
from pathlib import Path

from optree import FormatError, Tree
from optree.conversation import AnyEvent, events_of, line, stream_events, tree_of
from optree.exporting import Fault, Read, is_txn, open_file, write_new

SEED_000, SEED_001 = 1, 2
"""The versions of the form, as `optree.conversation.line` takes them."""
_TICK = 1.0
"""Milliseconds from one event to the next where they say no times."""
_TYPES = re.compile(rb'"event_type"\s*:\s*"(?:transcript_entry|piece_of_text|fragment|agent_created|transcript_edit)"')
_SEED_000 = re.compile(rb'"(?:content_id|caused_by)"\s*:')
_SEED_001 = re.compile(rb'"(?:substance|cause|agent)"\s*:')
_EXPORTED = re.compile(r"([^.]+)\.events(?:-v1)?\.jsonl(?:\.gz|\.zst)?")
_NOT_CONVERSATION = (
    "turns", "ops", "logs", "accounting", "reasoning", "requests", "responses", "reports", "statuses", "titles", "attributes", "resumes",
    "ends of sessions",
)  # fmt: skip


class Events:
    """One of the two forms; each reads both."""

    def __init__(self, name: str, version: int, about: str, cannot_hold: tuple[str, ...]) -> None:
        self.name = name
        self.suffix = f".{name}.jsonl"
        self.about = about
        self.cannot_hold = cannot_hold
        self._version = version

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell whether it is of this form: by the type of its first events, and by the names of their links."""
        if path.is_dir() or _TYPES.search(head) is None:
            return False
        older = _SEED_000.search(head) is not None and _SEED_001.search(head) is None
        return older == (self._version == SEED_000)

    def write(self, tree: Tree, target: Path) -> list[Path]:
        """Write the conversation in a tree, in the order of time."""
        return [write_new(target, b"".join(line(event, self._version) + b"\n" for event in events_of(tree)))]

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read a stream of events. Its txn is that in the name which an export gives a file, or else made from the events."""
        events: list[AnyEvent] = []
        faults: list[Fault] = []
        with open_file(path) as source:
            for item in stream_events(source):
                if isinstance(item, Fault):
                    faults.append(item)
                    _refuse(path, faults, strict=strict)
                else:
                    events += item
        notes: list[str] = []
        latest = path.stat().st_mtime * 1e3
        tree = tree_of(events, txn=_txn(path), start=float(int(latest)) - len(events) * _TICK, notes=notes)
        faults += (Fault(0, note) for note in notes)
        _refuse(path, faults, strict=strict)
        return Read([tree] if events else [], faults)


def _txn(path: Path) -> str | None:
    """Return the txn in the name that an export gave a file; either suffix counts, for a file without links may be read as either form."""
    match = _EXPORTED.fullmatch(path.name)
    return match[1] if match is not None and is_txn(match[1]) else None


def _refuse(path: Path, faults: list[Fault], *, strict: bool) -> None:
    if strict and faults:
        raise FormatError(faults[0].of(path.name))


EVENTS = Events("events", SEED_001, "conversation events, one a line, linked by substance and cause", _NOT_CONVERSATION)
EVENTS_V1 = Events(
    "events-v1",
    SEED_000,
    "conversation events, one a line, linked by content_id and caused_by, their older names",
    (*_NOT_CONVERSATION, "times", "who created an agent", "causes of entries", "who made a text"),
)
