"""What goes to a terminal, or to a machine: colours, control characters, tables, units, JSON."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

import msgspec

from optree.errors import OptreeError
from optree.nodes import Totals
from optree.values import redact

STYLES = {
    "agent": "1", "path": "36", "dim": "2", "failed": "31", "damaged": "31", "cancelled": "33", "interrupted": "33", "running": "34",
    "ok": "32", "ended": "32", "llm": "35", "tool": "34", "session": "1", "system": "2", "title": "1",
}  # fmt: skip
_SGR = r"\x1b\[[0-9;]*m"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_CONTROL_BUT_COLOUR = re.compile(rf"({_SGR})|{_CONTROL.pattern}")
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND, _MINUTE, _HOUR = 1000, 60, 3600


def coloured(stream: TextIO) -> bool:
    """Tell whether *stream* shows colours: NO_COLOR says no, FORCE_COLOR says yes, else terminals do."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint(style: str, text: str) -> str:
    """Return the text in the colour of its style."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style in STYLES and text else text


def unpainted(_style: str, text: str) -> str:
    """Return the text as it is."""
    return text


class OutputError(OptreeError):
    """Stdout takes no more."""


def write(text: str) -> None:
    """Write text on stdout; raises `OutputError`, or `BrokenPipeError` if its reader has gone."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(_unwritten(error)) from error


def flush() -> None:
    """Write what is buffered for stdout; raises as `write` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(_unwritten(error)) from error


def _unwritten(error: OSError) -> str:
    return f"stdout cannot be written: {error.strerror or error}"


def show(text: str, *, colour: bool = False) -> None:
    """Print text on stdout: credentials are replaced, and control characters of the traced program cannot reach the terminal."""
    text = redact(text)
    text = _CONTROL_BUT_COLOUR.sub(lambda found: found[1] or _shown(found), text) if colour else _CONTROL.sub(_shown, text)
    write(text + "\n")


def show_json(value: Any) -> None:
    """Print a value on stdout as one line of JSON, credentials replaced."""
    write(json_line(value) + "\n")


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, credentials replaced."""
    return msgspec.json.encode(redact(msgspec.json.decode(msgspec.json.encode(value)))).decode()


def complain(text: str) -> None:
    """Say on stderr, in one line, what is wrong, credentials replaced."""
    sys.stderr.write("optree: " + _CONTROL.sub(_shown, " ".join(redact(text).split("\n"))) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Return the lines of a table; columns named in *right* (a letter a column, `r` for right) are flushed to the right."""
    cells = [[_CONTROL.sub(_shown, cell).replace("\n", " ") for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    sides = right.ljust(len(head))
    lines = (
        "  ".join(cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in zip(row, widths, sides, strict=True))
        for row in cells
    )
    return [line.rstrip() for line in lines]


def figures(totals: Totals) -> dict[str, int | float]:
    """Return totals under their names in files, zeros too."""
    return {field.encode_name: rounded(getattr(totals, field.name)) for field in msgspec.structs.fields(Totals)}


def rounded(figure: Any) -> Any:
    """Return a sum of money without the dust that adding binary fractions leaves: 12 decimals, at most 12 digits."""
    return round(float(f"{figure:.12g}"), 12) if isinstance(figure, float) else figure


def size(count: int) -> str:
    """Return a number of bytes for people."""
    number, unit = float(count), 0
    while number >= _THOUSAND and unit < len(_UNITS) - 1:
        number, unit = number / _THOUSAND, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def when(milliseconds: float) -> str:
    """Return a time, given in epoch milliseconds, as local time to the second."""
    try:
        return datetime.fromtimestamp(milliseconds / 1e3).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"


def duration(seconds: float) -> str:
    """Return seconds for people."""
    if seconds < _MINUTE:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), _MINUTE)
    return f"{minutes} min {rest:02d} s" if seconds < _HOUR else f"{minutes // 60} h {minutes % 60:02d} min"


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"  # noqa: PLR2004 - two hex digits hold that much
