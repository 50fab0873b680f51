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
    text: str


class Text(Struct):
    """A line that is neither."""

    line: int
    text: str


class Fenced(Struct):
    """A fenced block, without its fences and their indentation."""

    line: int
    """Of its first line; the fence is the one before."""
    language: str
    text: str
    whole: bool
    """False if it was torn: no fence closes it."""
    dropped: int = 0
    """Characters that were too many."""


def pieces(lines: Iterable[Numbered]) -> Iterator[Heading | Text | Fenced]:
    """Yield what numbered lines, without their ends, are made of."""
    source = _Lines(lines)
    while (following := source.take()) is not None:
        line, text = following
        opening = _opening(text) if "`" in text or "~" in text else None
        if opening is not None:
            yield _fenced(source, line + 1, opening)
        elif text.lstrip(" ").startswith("#") and (heading := _HEADING.fullmatch(text)) and len(heading[1]) <= _LEVEL:
            yield Heading(line, len(heading[1]), _title(heading[2] or ""))
        else:
            yield Text(line, text)


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
        text = following[1]
        end = close.fullmatch(text) if text.lstrip(" \t").startswith(opening[2]) else None
        if end is not None and len(end[1]) <= indent:
            return Fenced(first, language, _dedented(kept, indent), whole=True, dropped=dropped)
        late = candidate is not None and len(kept) - candidate > _AHEAD
        if late or _EVENT.match(text) or (candidate is not None and _opens(text, indent)):
            source.give_back([following])
            break
        if room < len(text):
            dropped += len(text)
            continue
        if end is not None and candidate is None:
            candidate = len(kept)
        room -= len(text) + 1
        kept.append(following)
    if candidate is not None:
        source.give_back(kept[candidate + 1 :])
        kept = kept[:candidate]
    return Fenced(first, language, _dedented(kept, indent), whole=candidate is not None, dropped=dropped)


def _opens(text: str, indent: int) -> bool:
    match = _opening(text)
    return match is not None and len(match[1]) <= indent and bool(match[3].strip(" \t"))


def _opening(text: str) -> re.Match[str] | None:
    """Return the fence that opens a block; what stands behind it has no backtick."""
    match = _OPEN.fullmatch(text)
    return match if match is not None and "`" not in match[3] else None


def _title(text: str) -> str:
    """Return a heading's text without the marks that may close it."""
    whole = text.rstrip(" \t")
    without = whole.rstrip("#")
    return without.rstrip(" \t") if without != whole and without[-1:] in ("", " ", "\t") else whole


def _dedented(lines: list[Numbered], indent: int) -> str:
    if not indent:
        return "\n".join(text for _, text in lines)
    return "\n".join(text[min(indent, len(text) - len(text.lstrip(" \t"))) :] for _, text in lines)


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
        text = line.rstrip()
        if not text or (text.startswith("#") and not begun) or text.startswith("%"):
            continue
        if not begun and not _MARK.fullmatch(text) and not re.match(r"(?:- )?[\w\"'][^:]*:(?:\s|$)", text):
            return False
        begun = True
        match = _TYPE.fullmatch(text)
        if match is not None:
            return match[1] in KINDS
    return False


def parted(lines: Iterator[Numbered]) -> tuple[Iterator[Numbered], bool, str]:
    """Return all lines again, whether they are of YAML documents, and the session that a comment above the first one names."""
    first = list(islice(lines, _HEAD_LINES))
    texts = [text.removeprefix("\ufeff") for _, text in first]
    named = next((match[1].strip() for text in texts if (match := _SESSION.fullmatch(text))), "")
    return chain(first, lines), is_documents(texts), named


def documents(lines: Iterable[Numbered]) -> Iterator[Fenced]:
    """Yield each document as a block of YAML."""
    kept: list[str] = []
    begun, room, dropped = 0, MAX_BLOCK, 0
    for number, line in chain(lines, [(0, "---")]):
        stripped = line.removeprefix("\ufeff") if number == 1 else line
        if not _MARK.fullmatch(stripped):
            begun = begun or number
            if room < len(stripped):
                dropped += len(stripped)
                continue
            room -= len(stripped) + 1
            kept.append(stripped)
            continue
        text = "\n".join(kept)
        if any(part.strip() and not part.lstrip().startswith("#") for part in kept):
            yield Fenced(begun, "yaml", text, whole=True, dropped=dropped)
        kept, begun, room, dropped = [], 0, MAX_BLOCK, 0
