"""A log that is YAML and nothing else: its documents, each as a block of a Markdown log would be. Memory holds one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from optree_formats.markdown.blocks import MAX_BLOCK, Fenced, Numbered
from optree_formats.markdown.events import KINDS

_TYPE = re.compile(r"(?:- )?[\"']?(?:type|event)[\"']?[ \t]*:[ \t]*[\"']?([\w.-]+)[\"']?[ \t]*(?:#.*)?")
_MARK = re.compile(r"(?:---|\.\.\.)(?:\s.*)?")
_SESSION = re.compile(r"#\s*Session[ -]Log\s*[:—–-]\s*(.*)", re.IGNORECASE)
_HEAD_LINES = 200


def is_documents(lines: Iterable[str]) -> bool:
    """Tell by a file's first lines whether it is YAML: it begins as a document does, and an event's type stands in it, unindented.

    A fence is none of YAML, wherever it stands: the one above it may be damaged.
    """
    begun, head = False, list(lines)
    if any(line.startswith("```") for line in head):
        return False
    for line in head:
        said = line.rstrip()
        if not said or (said.startswith("#") and not begun) or said.startswith("%"):
            continue
        if not begun and not _MARK.fullmatch(said) and not re.match(r"(?:- )?[\w\"'][^:]*:(?:\s|$)", said):
            return False
        begun = True
        found = _TYPE.fullmatch(said)
        if found is not None:
            return found[1] in KINDS
    return False


def parted(lines: Iterator[Numbered]) -> tuple[Iterator[Numbered], bool, str]:
    """Return all lines again, whether they are of YAML documents, and the session that a comment above the first one names."""
    first = list(islice(lines, _HEAD_LINES))
    texts = [said.removeprefix("\ufeff") for _, said in first]
    named = next((found[1].strip() for said in texts if (found := _SESSION.fullmatch(said))), "")
    return chain(first, lines), is_documents(texts), named


def documents(lines: Iterable[Numbered]) -> Iterator[Fenced]:
    """Yield each document as a block of YAML."""
    kept: list[str] = []
    begun, room, dropped = 0, MAX_BLOCK, 0
    for number, line in chain(lines, [(0, "---")]):
        said = line.removeprefix("\ufeff") if number == 1 else line
        if not _MARK.fullmatch(said):
            begun = begun or number
            if room < len(said):
                dropped += len(said)
                continue
            room -= len(said) + 1
            kept.append(said)
            continue
        text = "\n".join(kept)
        if any(part.strip() and not part.lstrip().startswith("#") for part in kept):
            yield Fenced(begun, "yaml", text, whole=True, dropped=dropped)
        kept, begun, room, dropped = [], 0, MAX_BLOCK, 0
