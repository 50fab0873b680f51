"""Sections as text for a terminal: columns, wrapped to its width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from optree.conversation.views.hooks import Part
from optree.conversation.views.sections import Section, SectionRow
from optree.visible import column, columns, one_line, visible

Paint = Callable[[str, str], str]
"""Given a style and a text, returns the text as it shall be shown."""
NARROWEST = 20
_INDENT = 4
_WIDEST = 28
"""Columns that a name takes at most."""
_STYLES = {"said": "agent", "Said": "agent", "calls": "tool", "Action": "tool", "is told": "dim"}
_STARTS = {"same": ("\x00", "", ""), "removed": ("\x01", "[-", "-]"), "added": ("\x02", "{+", "+}")}
_COLOURS = {"\x00": "", "\x01": "failed", "\x02": "ok"}
_CHARACTERS = 1024
"""Of a word at most, on one line: some take no column."""
_WORDS = re.compile(r"\S+\s*|\s+")


def to_text(sections: Sequence[Section], width: int, paint: Paint = lambda _style, text: text) -> str:
    """Return sections as text of *width* columns; long words are broken."""
    return "\n\n".join("\n".join(_section(section, width, paint)) for section in sections)


def _section(section: Section, width: int, paint: Paint) -> Iterator[str]:
    if section.title:
        yield paint("title", visible(" ".join(section.title.split())))
    sizes = [_column(section.rows, cell) for cell in (_when, _key, _who, _what)]
    for row in section.rows:
        yield from (line.rstrip() for line in _lines(row, sizes, width, paint))


def _lines(row: SectionRow, sizes: list[int], width: int, paint: Paint) -> Iterator[str]:
    """Yield a row's lines: what was said stands beside the other columns, or below them where there is no room."""
    lead = [("dim", row.when), ("path", _key(row)), ("agent", _who(row)), (_STYLES.get(row.what, ""), _what(row))]
    cell = [paint(style, text) + " " * (size - columns(text)) for (style, text), size in zip(lead, sizes, strict=True) if size]
    first = "".join(f"  {text}" for text in cell)
    used = sum(size + 2 for size in sizes if size) + 2
    beside = width - used >= NARROWEST
    used = used if beside else _INDENT
    told = _said(row, max(NARROWEST, width - used), paint)
    if not beside or not told:
        yield first
    else:
        yield f"{first}  {told.pop(0)}"
    yield from (" " * used + line for line in told)


def _said(row: SectionRow, room: int, paint: Paint) -> list[str]:
    """Return what a row says, its note behind the last line where it fits, else below."""
    is_diff = not isinstance(row.text, str)
    text = visible(row.text) if isinstance(row.text, str) else _marked(row.text)
    told = list(_painted(wrapped(text, room), paint)) if is_diff else list(wrapped(text, room))
    about = visible(" ".join(row.note.split()))
    note = about if about.startswith("←") or not about else f"({about})"
    if note and told and not is_diff and columns(told[-1]) + 2 + columns(note) <= room:
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
        if columns(line) <= width:
            yield line.rstrip()
            continue
        yield from _broken(line, width)


def _broken(line: str, width: int) -> Iterator[str]:
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    current, used = "", 0
    for word in _WORDS.findall(line):
        size = columns(word.rstrip())
        if used and used + size > width:
            yield current.rstrip()
            current, used = indent, len(indent)
        at = 0
        while used + size > width:
            piece = _fitting(word[at : at + _CHARACTERS], width - used)
            yield current + piece
            at += len(piece)
            size -= columns(piece)
            current, used = "", 0
        current += word[at:]
        used += columns(word[at:])
    if current.strip():
        yield current.rstrip()


def _fitting(word: str, width: int) -> str:
    """Return the beginning of a word that fits, one character at least."""
    used = 0
    for place, char in enumerate(word):
        used += column(char)
        if used > width and place:
            return word[:place]
    return word


def _column(rows: Sequence[SectionRow], cell: Callable[[SectionRow], str]) -> int:
    return max((columns(cell(row)) for row in rows), default=0)


def _when(row: SectionRow) -> str:
    return row.when


def _key(row: SectionRow) -> str:
    return one_line(row.key)


def _who(row: SectionRow) -> str:
    return "  " * row.depth + _short(row.who) if row.who else ""


def _what(row: SectionRow) -> str:
    return _short(row.what)


def _short(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if columns(line) <= _WIDEST else _fitting(line, _WIDEST - 1) + "…"
