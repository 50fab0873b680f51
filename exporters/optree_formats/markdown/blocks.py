"""Markdown as a log uses it: headings, fenced blocks, and the text between them, line by line and in bounded memory.

Fences are read as CommonMark has them, and more kindly: at any indentation, and a fence that stands deeper than the one that opened is
the block's own text if a better one comes after it. A block that was torn ends where the next event's heading stands.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from msgspec import Struct

from optree_formats.markdown.events import KINDS

MAX_BLOCK = 32 << 20
"""Characters of a block or a text that are kept; the rest is passed over."""
_AHEAD = 500
"""How many lines are looked at for a better end of a block."""
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
_EVENT = re.compile(r"## +\[?(?:\d{4}-\d\d-\d\d|\d\d:\d\d\b)")
_OPEN = re.compile(r"([ \t]*)(`{3,}|~{3,})(.*)")
_LEVEL = 2

Numbered = tuple[int, str]


class Heading(Struct):
    """A heading of the second level, or the document's title."""

    line: int
    level: int
    said: str


class Text(Struct):
    """A line that is neither."""

    line: int
    said: str


class Fenced(Struct):
    """A fenced block, without its fences and their indentation."""

    line: int
    """Of its first line; the fence is the one before."""
    language: str
    said: str
    whole: bool
    """False if it was torn: no fence closes it."""
    dropped: int = 0
    """Characters that were too many."""


def pieces(lines: Iterable[Numbered]) -> Iterator[Heading | Text | Fenced]:
    """Yield what numbered lines, without their ends, are made of."""
    source = _Lines(lines)
    while (following := source.take()) is not None:
        line, said = following
        found = _opening(said) if "`" in said or "~" in said else None
        if found is not None:
            yield _fenced(source, line + 1, found)
        elif said.lstrip(" ").startswith("#") and (heading := _HEADING.fullmatch(said)) and len(heading[1]) <= _LEVEL:
            yield Heading(line, len(heading[1]), _title(heading[2] or ""))
        else:
            yield Text(line, said)


class _Lines:
    """Lines that can be given back."""

    def __init__(self, lines: Iterable[Numbered]) -> None:
        self._lines = iter(lines)
        self._back: deque[Numbered] = deque()

    def take(self) -> Numbered | None:
        return self._back.popleft() if self._back else next(self._lines, None)

    def give_back(self, lines: list[Numbered]) -> None:
        self._back.extendleft(reversed(lines))


def _fenced(source: _Lines, first: int, opening: re.Match[str]) -> Fenced:
    """Read a block to its end."""
    indent = len(opening[1])
    close = re.compile(rf"([ \t]*){re.escape(opening[2][0])}{{{len(opening[2])},}}[ \t]*")
    language = (opening[3].split() or [""])[0].strip("{}.").lower()
    kept: list[Numbered] = []
    room, dropped = MAX_BLOCK, 0
    candidate: int | None = None
    while (following := source.take()) is not None:
        said = following[1]
        end = close.fullmatch(said) if said.lstrip(" \t").startswith(opening[2]) else None
        if end is not None and len(end[1]) <= indent:
            return Fenced(first, language, _dedented(kept, indent), whole=True, dropped=dropped)
        late = candidate is not None and len(kept) - candidate > _AHEAD
        if late or _EVENT.match(said) or (candidate is not None and _opens(said, indent)):
            source.give_back([following])
            break
        if room < len(said):
            dropped += len(said)
            continue
        if end is not None and candidate is None:
            candidate = len(kept)
        room -= len(said) + 1
        kept.append(following)
    if candidate is not None:
        source.give_back(kept[candidate + 1 :])
        kept = kept[:candidate]
    return Fenced(first, language, _dedented(kept, indent), whole=candidate is not None, dropped=dropped)


def _opens(said: str, indent: int) -> bool:
    found = _opening(said)
    return found is not None and len(found[1]) <= indent and bool(found[3].strip(" \t"))


def _opening(said: str) -> re.Match[str] | None:
    """Return the fence that opens a block; what stands behind it has no backtick."""
    found = _OPEN.fullmatch(said)
    return found if found is not None and "`" not in found[3] else None


def _title(said: str) -> str:
    """Return a heading's text without the marks that may close it."""
    whole = said.rstrip(" \t")
    without = whole.rstrip("#")
    return without.rstrip(" \t") if without != whole and without[-1:] in ("", " ", "\t") else whole


def _dedented(lines: list[Numbered], indent: int) -> str:
    if not indent:
        return "\n".join(said for _, said in lines)
    return "\n".join(said[min(indent, len(said) - len(said.lstrip(" \t"))) :] for _, said in lines)


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
