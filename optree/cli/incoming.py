"""Files that are to be imported, told apart by their content: in a format that is installed, or spans of OpenTelemetry."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from gzip import BadGzipFile
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from optree.cli.exporters import OTEL
from optree.cli.installed import detected, format_named, installed
from optree.errors import FormatError, NotFoundError, SetupError
from optree.formats import Fault, Format
from optree.store.compression import is_packed, limit_of, too_large
from optree.store.lines import opened
from optree.tree import Tree, walk_sessions

_COMPANION = "session-summary.yml"
"""How the file ends that is written beside a Markdown log."""


class Found(Struct):
    """What is in the files."""

    trees: list[Tree] = []
    faults: list[tuple[str, Fault]] = []
    """With the names of the files; those of formats."""
    notes: list[str] = []
    """What is to be said about spans."""


def read_files(files: Sequence[Path], name: str | None, *, strict: bool, step: Callable[[], None]) -> Found:
    """Read files; *name* is the format of all of them, else their content tells. Spans are read together: a trace may be spread over files.

    Raises `FormatError` for a file that is in no format or, if *strict*, is not as it should be, `SetupError` for one that several formats
    take for theirs, `NotFoundError`, `OSError`.
    """
    found = Found()
    spans: list[Any] = []
    chosen = _Choice(name)
    for path in (one for named in files for one in _expanded(named, chosen, found)):
        _check_size(path)
        form = chosen.of(path)
        if form is None and path.name.endswith(_COMPANION):
            found.notes.append(f"{path.name}: passed over, the log that it is about has all of it")
        elif form is None:
            _spans(path, found, spans, chosen, strict=strict)
        else:
            read = form.read(path, strict=strict)
            if name is not None and not any(map(_holds_something, read.trees)):
                raise FormatError(f"{path.name} holds nothing of a session as {name} has it; without --from its content tells the format")
            found.trees += read.trees
            found.faults += ((path.name, fault) for fault in read.faults)
        step()
    if spans:
        found.trees += _incoming().sessions(spans, found.notes)
    return found


def _expanded(path: Path, chosen: _Choice, found: Found) -> list[Path]:
    """Return what is to be read of a path: of a directory that is in no format itself, all in it that are in one; others are named."""
    if not path.is_dir() or chosen.of(path) is not None:
        return [path]
    there = sorted(path.iterdir())
    known = [one for one in there if chosen.of(one) is not None]
    found.notes += [f"{one.name}: passed over, it is in no format that is known" for one in there if known and one not in known]
    return known or [path]


def _holds_something(tree: Tree) -> bool:
    return any(session.messages or session.turns or session.ended_at is not None for session in walk_sessions(tree.session))


def _check_size(path: Path) -> None:
    """Raise `FormatError` for a packed file that unpacks to more than is read: in bounded memory, whatever its format."""
    if not path.is_file() or not is_packed(path):
        return
    packed, found = path.stat().st_size, 0
    with suppress(EOFError, zlib.error, BadGzipFile), opened(path) as source:  # damage is the format's to report
        while piece := cast("BufferedReader", source).read1(1 << 20):
            found += len(piece)
            if found > limit_of(packed):
                raise too_large(path.name, packed)


class _Choice:
    """Picks the format of each file; None is OpenTelemetry."""

    def __init__(self, name: str | None) -> None:
        self._all: list[Format] = []
        self.problems: list[str] = []
        self._named = format_named(name) if name not in (None, OTEL) else None
        self._any = name is None
        if self._any:
            self._all, self.problems = installed()

    def of(self, path: Path) -> Format | None:
        if not path.exists():
            raise NotFoundError(f"{path} is no file: name one that optree export, a Collector, Jaeger, Tempo or another tracer has written")
        if not self._any:
            return self._named
        claims = detected(path, self._all)
        if len(claims) > 1:
            names = [one.name for one in claims]
            raise SetupError(f"{path.name} may be in several formats, {', '.join(names)}: say which it is, as in --from {names[0]}")
        return claims[0] if claims else None

    def tried(self) -> str:
        """Return what a file was looked at for."""
        lacking = "".join(f"; {problem}" for problem in self.problems)
        return f"tried were {', '.join([*(one.name for one in self._all), OTEL])}{lacking}"


def _spans(path: Path, found: Found, spans: list[Any], chosen: _Choice, *, strict: bool) -> None:
    if path.is_dir():
        raise FormatError(f"{path} is a directory in no format that is known: name the files in it ({chosen.tried()})")
    try:
        read = _incoming().read_file(path)
    except FormatError as error:
        raise FormatError(f"{error} ({chosen.tried()}; --from NAME says which it is)") from error
    if strict and read.notes:
        raise FormatError(f"{path.name}: {read.notes[0]}")
    spans += read.spans
    found.notes += [f"{path.name}: {note}" for note in read.notes]


def _incoming() -> Any:
    """Return what reads spans: it lies above the command line, as every exporter, and is found by its name."""
    try:
        return importlib.import_module("optree_otel.incoming")
    except ImportError as error:
        raise SetupError(f"optree_otel is not installed: pip install 'optree-tracing[otel]' ({error})") from error
