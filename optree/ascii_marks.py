"""What a terminal that shows ASCII only gets in place of the marks that optree draws: they must stay apart from each other."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

NAME = "optree.ascii"
_STANDS_FOR = {
    "✓": "ok", "✗": "x", "⊘": "-", "⚡": "!", "…": "...", "→": "->", "←": "<-", "·": "-", "–": "-", "—": "-", "×": "x", "÷": "/",
    "├": "|", "└": "`", "│": "|", "─": "-", "┌": ",", "┐": ".", "┘": "'", "“": '"', "”": '"', "≤": "<=", "≥": ">=",
}  # fmt: skip


def keep_going() -> None:
    """Let no output fail for a character that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=NAME)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that cannot be encoded, and where to go on; an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_STANDS_FOR.get(one, "?") for one in error.object[error.start : error.end]), error.end


codecs.register_error(NAME, _stand_in)
