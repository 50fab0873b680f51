"""Text that others wrote, made fit for a terminal: what would act on it, or hide in it, is written out.

Written out are control characters (C0, C1, so every escape sequence), line and paragraph separators, and whatever takes no room of its own:
marks that turn the direction of text, zero-width characters, tags, variation selectors, fillers (Unicode's category Cf and its property
Default_Ignorable_Code_Point). Emoji keep their joiners and selectors where these stand between or behind emoji.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import unicodedata
from io import TextIOWrapper
from typing import TextIO

from optree._interrupts import pass_on
from optree._patterns import Pattern
from optree._syscalls import calls

_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
_IGNORABLE = (
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_KEPT = f"(?<=[{_EMOJI}])\u200d(?=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f)\u200d(?=[{_EMOJI}])|(?<=[{_EMOJI}])\ufe0f|(?<=[0-9#*])\ufe0f(?=\u20e3)"
_HIDDEN = Pattern(rf"({_KEPT})|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_IGNORABLE}]")
_UNPRINTED = Pattern("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters that Python calls printable and no terminal shows."""
_IN_JSON = Pattern(rf"[\x7f-\x9f{_IGNORABLE}]")
ASCII_MARKS = "optree.ascii"
"""The error handler by which a terminal that shows ASCII only gets other marks than those that optree draws, apart from each other."""
_STANDS_FOR = {
    "✓": "ok", "✗": "x", "⊘": "-", "⚡": "!", "…": "...", "→": "->", "←": "<-", "·": "-", "–": "-", "—": "-", "×": "x", "÷": "/",
    "├": "|", "└": "`", "│": "|", "─": "-", "┌": ",", "┐": ".", "┘": "'", "“": '"', "”": '"', "≤": "<=", "≥": ">=",
}  # fmt: skip


def visible(text: str) -> str:
    """Return a text whose characters can all be seen, newlines and tabs apart; others are written as Python writes them."""
    return text if _is_visible(text) else _HIDDEN.sub(_written, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the same as one line: newlines and tabs are written out too."""
    return text if _is_visible(text) else _HIDDEN.sub(_written, text).replace("\n", "\\n").replace("\t", "\\t")


def visible_json(text: str) -> str:
    """Return equal JSON, with escapes in place of what cannot be seen; control characters have theirs in JSON anyway."""
    return text if _is_visible(text) else _IN_JSON.sub(lambda match: _escaped(match[0]), text)


def columns(text: str) -> int:
    """Return how many columns a terminal takes for a text on one line."""
    return len(text) if text.isascii() and text.isprintable() else sum(map(column, text))


def column(char: str) -> int:
    """Return how many columns a terminal takes for a character: two for wide ones, none for those that join the one before."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _is_visible(text: str) -> bool:
    """Tell quickly that there is nothing to write out."""
    return text.isprintable() and (text.isascii() or _UNPRINTED.search(text) is None)


def _written(match: re.Match[str]) -> str:
    return match[1] or match[0].encode("unicode_escape").decode()


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def coloured(stream: TextIO | None) -> bool:
    """Tell whether *stream* shows colours: NO_COLOR says no, FORCE_COLOR says yes, else terminals do."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        return stream is not None and stream.isatty() and calls.shows_colours(stream)
    except Exception as error:  # noqa: BLE001 - closed, or an object of the program's that has `write` alone
        pass_on(error)
        return False


def keep_going() -> None:
    """Let no output fail for a character that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=ASCII_MARKS)


def _ascii_marks(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that cannot be encoded, and where to go on; an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_STANDS_FOR.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error(ASCII_MARKS, _ascii_marks)
