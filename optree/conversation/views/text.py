"""Sections as text for a terminal: columns, wrapped to its width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from optree.conversation.views.hooks import Part
from optree.conversation.views.sections import Row, Section
from optree.conversation.views.visible import visible

Paint = Callable[[str, str], str]
"""Given a style and a text, returns the text as it shall be shown."""
NARROWEST = 20
_INDENT = 4
_WIDEST = 28
"""Columns that a name takes at most."""
_STYLES = {"said": "agent", "Said": "agent", "calls": "tool", "Action": "tool", "is told": "dim"}
_STARTS = {"same": ("\x00", "", ""), "removed": ("\x01", "[-", "-]"), "added": ("\x02", "{+", "+}")}
_COLOURS = {"\x00": "", "\x01": "failed", "\x02": "ok"}
_WORDS = re.compile(r"\S+\s*|\s+")


def to_text(sections: Sequence[Section], width: int, paint: Paint = lambda _style, text: text) -> str:
    """Return sections as text of *width* columns; long words are broken."""
    return "\n\n".join("\n".join(_section(section, width, paint)) for section in sections)


def cells(text: str) -> int:
    """Return how many columns a terminal takes for a text on one line."""
    return len(text) if text.isascii() and text.isprintable() else sum(map(_cell, text))


def _cell(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _section(section: Section, width: int, paint: Paint) -> Iterator[str]:
    if section.title:
        yield paint("title", visible(" ".join(section.title.split())))
    columns = [_column(section.rows, cell) for cell in (_when, _key, _who, _what)]
    for row in section.rows:
        yield from (line.rstrip() for line in _lines(row, columns, width, paint))


def _lines(row: Row, columns: list[int], width: int, paint: Paint) -> Iterator[str]:
    """Yield a row's lines: what was said stands beside the other columns, or below them where there is no room."""
    lead = [("dim", row.when), ("path", _key(row)), ("agent", _who(row)), (_STYLES.get(row.what, ""), _what(row))]
    cell = [paint(style, text) + " " * (size - cells(text)) for (style, text), size in zip(lead, columns, strict=True) if size]
    first = "".join(f"  {text}" for text in cell)
    used = sum(size + 2 for size in columns if size) + 2
    beside = width - used >= NARROWEST
    used = used if beside else _INDENT
    told = _said(row, max(NARROWEST, width - used), paint)
    if not beside or not told:
        yield first
    else:
        yield f"{first}  {told.pop(0)}"
    yield from (" " * used + line for line in told)


def _said(row: Row, room: int, paint: Paint) -> list[str]:
    """Return what a row says, its note behind the last line where it fits, else below."""
    is_diff = not isinstance(row.text, str)
    text = visible(row.text) if isinstance(row.text, str) else _marked(row.text)
    told = list(_painted(wrapped(text, room), paint)) if is_diff else list(wrapped(text, room))
    about = visible(" ".join(row.note.split()))
    note = about if about.startswith("←") or not about else f"({about})"
    if note and told and not is_diff and cells(told[-1]) + 2 + cells(note) <= room:
        return [*told[:-1], f"{told[-1]}  {paint('dim', note)}"]
    return [*told, *(paint("dim", line) for line in wrapped(note, room))]


def _marked(parts: list[Part]) -> str:
    """Return a diff as text: what went and what came in marks, each behind a control character that tells its style."""
    return "".join(f"{_STARTS[kind][0]}{_STARTS[kind][1]}{visible(text)}{_STARTS[kind][2]}" for kind, text in parts)


def _painted(lines: Iterator[str], paint: Paint) -> Iterator[str]:
    """Yield lines of a marked text in their styles, which may go over several lines."""
    style = ""
    for line in lines:
        found = ""
        for piece in re.split("([\\x00-\\x02])", line):
            if piece in _COLOURS:
                style = _COLOURS[piece]
            else:
                found += paint(style, piece) if style else piece
        yield found


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield a text's lines, each at most *width* columns; empty for no text."""
    for line in text.expandtabs(4).split("\n") if text else ():
        if cells(line) <= width:
            yield line.rstrip()
            continue
        yield from _broken(line, width)


def _broken(line: str, width: int) -> Iterator[str]:
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    current, used = "", 0
    for word in _WORDS.findall(line):
        size = cells(word.rstrip())
        if used and used + size > width:
            yield current.rstrip()
            current, used = indent, len(indent)
        while used + size > width:
            piece = _fitting(word, width - used)
            yield current + piece
            word = word[len(piece) :]  # noqa: PLW2901 - what is left of it
            size, current, used = cells(word.rstrip()), "", 0
        current += word
        used += cells(word)
    if current.strip():
        yield current.rstrip()


def _fitting(word: str, width: int) -> str:
    """Return the beginning of a word that fits, one character at least."""
    used = 0
    for place, char in enumerate(word):
        used += _cell(char)
        if used > width and place:
            return word[:place]
    return word


def _column(rows: Sequence[Row], cell: Callable[[Row], str]) -> int:
    return max((cells(cell(row)) for row in rows), default=0)


def _when(row: Row) -> str:
    return row.when


def _key(row: Row) -> str:
    return visible(row.key).replace("\n", "\\n")


def _who(row: Row) -> str:
    return "  " * row.depth + _short(row.who) if row.who else ""


def _what(row: Row) -> str:
    return _short(row.what)


def _short(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if cells(line) <= _WIDEST else _fitting(line, _WIDEST - 1) + "…"
