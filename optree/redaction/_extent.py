"""Where in a text a value ends: quoted, in brackets, or in lines of its own.

Texts are read as they are, not parsed: the quotes of JSON inside JSON are told by the backslashes before them, and so a text that was
cut, or has JSON somewhere inside, is looked through like any other.
"""

from __future__ import annotations

from typing import NamedTuple

from optree.patterns import Pattern

REDACTED = "[REDACTED]"
NEAR = 200
"""Characters by which is judged what stands at a place; bounded, so that no text is judged again and again."""
QUOTE = Pattern(r"(?:[bfruBFRU]{1,2})?(\\{0,15})(\"{3}|'{3}|[\"'`])")

_FURTHER = 1024
"""Characters in which the end of a quoted text is looked for behind its first line."""
_TRIPLE = 3
_LONGEST_TRIPLE = 4096
_LONGEST_BLOCK = 8192
"""Characters of a block in a text inside JSON."""
_NO_LINE = Pattern(r"\n[ \t]*\r?\n")
_BEHIND_QUOTE = Pattern(r"[\s,;:.+)}\]]|$")
_STRUCTURE = Pattern(r"[\"\[\]{}]")
_LINES = Pattern(r"(?:([|>])[-+0-9]{0,2}[ \t]{0,8})?(\r?\n|(?:\\{1,15}r)?(\\{1,15})n)([ \t]{1,64})(?=[^\s\\])")
_INDENT = Pattern(r"[ \t]*")
_WHOLE_LINE = Pattern(r"([^\s\\\"'`,;<>]{1,512})(?=[ \t]{0,64}(?:\r?\n|[\\\"]|$))")
_END_OF_LINE = Pattern(r"\\{0,15}[\"'`][ \t]{0,64}(?:\r?\n|\\|\"|$)")


class Credential(NamedTuple):
    """A credential in a text: from where to where, what stands in its place, and where what tells of it begins."""

    start: int
    stop: int
    instead: str
    context: int
    is_open: bool = False
    """More text may show that it is longer."""


def quoted(text: str, at: int, begun: int) -> Credential | None:
    """Return the content of a quoted text, of which *begun* is where what tells of it begins; None where there is none."""
    match = QUOTE.match(text, at)
    if match is None:
        return None
    start, level, quote = match.end(), len(match[1]), match[2]
    is_open = False
    if len(quote) == _TRIPLE:
        stop = text.find(quote, start, start + _LONGEST_TRIPLE)
        if stop < 0:
            is_open = len(text) < start + _LONGEST_TRIPLE
            stop = _end_of_line(text, start)
    else:
        stop = closing(text, start, level, quote)
        if text.startswith("\n", stop):
            stop, is_open = _further(text, stop, level, quote)
    return Credential(start, stop, REDACTED, begun, is_open) if stop > start else None


def closing(text: str, at: int, level: int, quote: str, *, over_lines: bool = False) -> int:
    """Return where a quoted text ends, before its closing quote and the backslashes of that; at the line's end where it has none."""
    begun = at
    while (place := text.find(quote, at)) >= 0:
        if not over_lines and (line := text.find("\n", at, place)) >= 0:
            return line
        if (slashes := _slashes(text, place, begun)) <= level or (slashes - level) // (level + 1) % 2 == 0:
            return max(place - slashes, place - level)
        at = place + 1
    return len(text) if over_lines else _end_of_line(text, at)


def _further(text: str, line: int, level: int, quote: str) -> tuple[int, bool]:
    """Return where a text ends whose quote is not on its first line, and whether more text may show another end.

    That is at the first quote, when it stands like a closing one and before an empty line; else at the end of the first line.
    """
    limit = line + _FURTHER
    empty = _NO_LINE.search(text, line, limit)
    until = limit if empty is None else empty.start()
    at = line
    while (place := text.find(quote, at, until)) >= 0:
        at = place + 1
        if _slashes(text, place, line) == level:
            is_closing = text[place - level - 1] not in " \t([{,:=<" and _BEHIND_QUOTE.match(text, at) is not None
            return (place - level, False) if is_closing else (line, False)
    return line, empty is None and len(text) < limit


def _slashes(text: str, at: int, begun: int) -> int:
    start = at
    while start > begun and text[start - 1] == "\\":
        start -= 1
    return at - start


def _end_of_line(text: str, at: int) -> int:
    return len(text) if (line := text.find("\n", at)) < 0 else line


def end_of_container(text: str, at: int, level: int) -> int:
    """Return where a JSON object or array ends; at the end of the text where it was cut."""
    depth = 0
    while (match := _STRUCTURE.search(text, at)) is not None:
        at = match.end()
        if match[0] == '"':
            at = min(len(text), closing(text, at, level, '"', over_lines=True) + level + 1)
        else:
            depth += 1 if match[0] in "[{" else -1
            if depth <= 0:
                return at
    return len(text)


class Lines(NamedTuple):
    """What YAML gives to a name in lines of their own, with more indent than the name's: as a block (``|``), or as one value."""

    found: Credential
    is_bare: bool = False


def lines(text: str, at: int, begun: int) -> Lines | None:
    """Return what stands in the lines behind a name and its colon, of which *begun* is the name's place; None where nothing does."""
    match = _LINES.match(text, at)
    if match is None:
        return None
    block, newline, slashes, indent = match.groups()
    start, own = match.end(), _indent(text, begun, newline)
    if len(indent) <= own:
        return None
    if block:
        return Lines(_block(text, start, begun, own, newline, len(slashes or "")))
    if QUOTE.match(text, start) is not None:
        found = quoted(text, start, begun)
        return Lines(found) if found is not None and _END_OF_LINE.match(text, found.stop) is not None else None
    whole = _WHOLE_LINE.match(text, start)
    return None if whole is None or whole[1][-1] == ":" else Lines(Credential(start, whole.end(), REDACTED, begun), is_bare=True)


def _indent(text: str, at: int, newline: str) -> int:
    """Return by how much the line of a place is indented."""
    near = max(0, at - NEAR)
    line = text.rfind(newline, near, at)
    before = text[near if line < 0 else line + len(newline) : at]
    return len(before) - len(before.lstrip(" \t"))


def _block(text: str, start: int, begun: int, own: int, newline: str, slashes: int) -> Credential:
    """Return a block: up to a line that is not indented more than *own*; in a text inside JSON up to the closing quote of that."""
    limit = start + closing(text[start : start + _LONGEST_BLOCK], 0, slashes - 1, '"') if slashes else len(text)
    stop = at = start
    while (line := text.find(newline, at, limit)) >= 0:
        stop = line if line > at else stop
        content = _INDENT.match(text, line + len(newline))
        at = line + len(newline) if content is None else content.end()
        if at < limit and not text.startswith(newline, at) and at - line - len(newline) <= own:
            return Credential(start, stop, REDACTED, begun)
    return Credential(start, limit if at < limit else stop, REDACTED, begun, not slashes)
