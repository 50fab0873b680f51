"""What goes to a terminal, or to a machine: standard streams, colours, control characters, tables, units, JSON, progress."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from optree._nodes import Totals
from optree._visible import coloured, columns, one_line, visible, visible_json
from optree.errors import OptreeError
from optree.redaction import redact

DAMAGED = 3
"""The exit code where what is there is damaged."""


class Closed(io.TextIOBase):
    """A stream that nothing can be written to."""

    def write(self, text: str, /) -> int:  # noqa: ARG002 - it goes nowhere
        """Raise `OutputError`."""
        raise OutputError("stdout cannot be written: it is closed")

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Raise `OutputError`."""
        raise OutputError("stdout cannot be written: it is closed")


def stand_in() -> None:
    """Put a stream in the place of each that is closed: writing to stdout is an error, text on stderr is lost."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, after `>&-`
        sys.stdout = Closed()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = _nowhere()


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - for as long as the process lives


AFTER_SECONDS = 1.0


@contextmanager
def working(what: str, total: int | None = None, after: float = AFTER_SECONDS) -> Generator[Callable[[], None]]:
    """Show *what* while the block takes longer than *after* seconds; it gets a function to call after each of *total* steps."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    bar = _Bar(what, total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar.step
    finally:
        timer.cancel()
        bar.stop()


class _Bar:
    """A bar of rich that a timer starts; its library is imported only then."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._steps = 0
        self._lock = threading.Lock()
        self._stopped = False
        self._step: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._stopped:
                return
            columns = [TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
            columns += [MofNCompleteColumn()] if self._total is not None else []
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            task = progress.add_task(self._what, total=self._total)
            progress.start()
            self._step = lambda steps: progress.update(task, completed=steps)
            self._stop = progress.stop

    def step(self) -> None:
        self._steps += 1
        if self._step is not None:
            self._step(self._steps)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()


STYLES = {
    "agent": "1", "path": "36", "dim": "2", "failed": "31", "damaged": "31", "cancelled": "33", "interrupted": "33", "running": "34",
    "ok": "32", "ended": "32", "llm": "35", "tool": "34", "session": "1", "system": "2", "title": "1",
}  # fmt: skip
_MARK = f"\x1b{os.urandom(8).hex()}"
"""What stands before each colour of our own until it is shown. No text that is shown can know it: no other colour reaches the terminal."""
_PAINTED = re.compile(rf"{_MARK}(\[[0-9;]*m)")
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_NARROW = 24
"""Columns that a terminal has at least, for folding."""
_DRAWN = re.compile(r"(?:\x1b\[[0-9;]*m|[ │├└─·])*")
_GAPS = (re.compile(r"( {2,})"), re.compile(r"((?<!\d) (?! )|(?<=\d) (?! |\d|[a-zµ]{1,4}\b|[kMGT]?B\b))"))
"""Where a line may be folded: between columns first, else at spaces, but not between a number and its unit, or a date and its time."""
_HANG = str.maketrans("├└─·", "│   ")
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def paint(style: str, text: str) -> str:
    """Return the text in the colour of its style, for `show` only."""
    return f"{_MARK}[{STYLES[style]}m{text}{_MARK}[0m" if style in STYLES and text else text


def unpainted(_style: str, text: str) -> str:
    """Return the text as it is."""
    return text


def painting() -> Callable[[str, str], str]:
    """Return what gives a text its colour, where stdout shows colours."""
    return paint if coloured(sys.stdout) else unpainted


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


def show(text: str, *, fold: bool = False, redacted: bool = False) -> None:
    """Print text on stdout: credentials are replaced, and nothing in it acts on the terminal but what `paint` gave it.

    *redacted* says that each value in it went through `redact` before it was cut or joined. With *fold*, lines that are longer than the
    terminal is wide go on in the next one, no value broken; in a pipe they stay whole.
    """
    pieces = _PAINTED.split(text)
    pieces[::2] = (visible(piece if redacted else redact(piece)) for piece in pieces[::2])
    pieces[1::2] = (f"\x1b{colour}" for colour in pieces[1::2])
    shown = "".join(pieces)
    if fold and sys.stdout.isatty():
        width = max(_NARROW, shutil.get_terminal_size().columns)
        shown = "\n".join(folded for line in shown.split("\n") for folded in _folded(line, width))
    write(shown + "\n")


def _folded(line: str, width: int) -> Iterator[str]:
    """Yield a line's parts, each at most *width* columns unless one value is longer; what is drawn of a tree goes on at their left."""
    if _width(line) <= width:
        yield line
        return
    drawn = _DRAWN.match(line)
    lead = drawn[0] if drawn is not None else ""
    hang = _SGR.sub("", lead).translate(_HANG) + "  "
    hang = hang if len(hang) * 2 <= width else "  "
    current = lead
    used = _width(lead)
    for gap, word in _words(line[len(lead) :], width - len(hang), _GAPS):
        size = _width(word)
        if gap and used + len(gap) + size > width:
            yield current
            current, used = hang + word, len(hang) + size
        else:
            current += gap + word
            used += len(gap) + size
    yield current


def _words(line: str, width: int, gaps: Sequence[re.Pattern[str]]) -> Iterator[tuple[str, str]]:
    """Yield the pieces that are not broken, with the spaces before them: columns; where one is wider than *width*, its words."""
    first, *finer = gaps
    gap = ""
    for at, piece in enumerate(first.split(line)):
        if at % 2:
            gap = piece
        elif finer and _width(piece) > width:
            words = list(_words(piece, width, finer))
            yield gap, words[0][1]
            yield from words[1:]
        else:
            yield gap, piece


def _width(line: str) -> int:
    return columns(_SGR.sub("", line))


def show_json(value: Any) -> None:
    """Print a value on stdout as one line of JSON, credentials replaced."""
    write(json_line(value) + "\n")


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, credentials replaced, and escaped what a terminal would not show."""
    return visible_json(msgspec.json.encode(redact(msgspec.json.decode(msgspec.json.encode(value)))).decode())


def complain(text: str) -> None:
    """Say on stderr, in one line, what is wrong, credentials replaced."""
    tell("optree: " + one_line(" ".join(redact(text).split("\n"))))


def tell(line: str) -> None:
    """Write a line on stderr. Where that takes none it is lost, and so are those that follow: nothing else depends on it."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        sys.stderr = _nowhere()  # the interpreter would try to write it once more at its end


def line_of(text: str) -> str:
    """Return a text as one line that can be shown: credentials replaced, then line breaks written out."""
    return one_line(redact(text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Return the lines of a table, credentials replaced; *right* has a letter for each column, `r` for one that is flushed right."""
    cells = [[line_of(cell) for cell in row] for row in [head, *rows]]
    widths = [max(columns(row[column]) for row in cells) for column in range(len(head))]
    sides = right.ljust(len(head))
    lines = ("  ".join(map(_padded, row, widths, sides)) for row in cells)
    return [line.rstrip() for line in lines]


def _padded(cell: str, width: int, side: str) -> str:
    room = " " * (width - columns(cell))
    return room + cell if side == "r" else cell + room


def figures(totals: Totals) -> dict[str, int | float | None]:
    """Return totals under their names in files, zeros too, as they are shown: input with what was cached and written.

    What nobody gave a cost of costs None.
    """
    result = {field.encode_name: rounded(getattr(totals, field.name)) for field in msgspec.structs.fields(Totals)}
    result["inputTokens"] = totals.all_input_tokens
    if totals.unknown_costs and not totals.known_costs:
        result["costUsd"] = None
    return result


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
