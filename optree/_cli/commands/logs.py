"""`optree logs`: the console lines of a session, saved or running."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from pathlib import Path
from time import sleep
from typing import Annotated, get_args
from zlib import crc32

import typer

from optree import _records as r
from optree._cli.options import Json, SessionsDir, TxnOrLast, WholeRun, directory
from optree._cli.screen import DAMAGED, complain, flush, json_line, write
from optree._cli.sessions import OpenedRun, find_node, open_run, open_session, resume_of, say_lost, say_run
from optree._console import Line, LineOptions, LineRenderer
from optree._nodes import SessionNode, Severity
from optree._store.files.descriptors import open_regular
from optree._store.files.lock import is_running
from optree._store.reading.directory import Directory, journals
from optree._store.reading.reader import agreed_seed, of_another
from optree._store.reading.recovery import Loaded
from optree._tree.path import Path as NodePath
from optree._tree.unfold import unfold
from optree._visible import coloured
from optree.errors import FormatError, NotFoundError, SetupError

POLL_SECONDS = 0.05


class JournalTail:
    """One journal file, read on from where it was left. It stays open: what was written to a removed file can still be read."""

    def __init__(self, path: Path, after: int) -> None:
        """Open the file; records numbered up to *after* are left out. Raises `FileNotFoundError`."""
        self._path, self._file = path, open_regular(path)
        self._after = after
        self._rest = b""
        self._seed: int | None = None
        self._foreign = False

    def read(self) -> Iterator[r.Record]:
        """Yield the records that came since the last call; a line that does not match its checksum is passed over.

        So is a file that is another session's, or another writer's.
        """
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if self._seed is None:
                self._begin(line)
            elif not self._foreign and r.check(line, self._seed) and (record := _parsed(line)) is not None and record.n > self._after:
                yield record

    def _begin(self, line: bytes) -> None:
        """Find out from the first line, or without it, how the others are checked."""
        sound = r.check(line, 0)
        header = _parsed(line) if sound else None
        self._seed = crc32(line + b"\n") if sound else agreed_seed(self._path)
        self._foreign |= bool(of_another(self._path, line, header if isinstance(header, r.Header) else None, self._seed))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def follow(live: Path, vector: Mapping[str, int]) -> Iterator[list[r.Record]]:
    """Yield what is new, as it comes, until the root session ends or its process has gone.

    *vector* says, per writer, which records are known already. Lists may be empty: nothing came within `POLL_SECONDS`.
    """
    tails: dict[Path, JournalTail] = {}
    try:
        while True:
            lives = is_running(live)  # asked first: what a process wrote before it went is read below
            records = _poll(live, tails, vector)
            yield records
            if not lives or any(isinstance(record, r.SessionEnd) and not record.path for record in records):
                yield _poll(live, tails, vector)
                return
            sleep(POLL_SECONDS)
    finally:
        for tail in tails.values():
            tail.close()


def _poll(live: Path, tails: dict[Path, JournalTail], vector: Mapping[str, int]) -> list[r.Record]:
    for path in journals(live):
        if path not in tails:
            try:
                tails[path] = JournalTail(path, vector.get(path.stem.split("-")[1], 0))
            except FileNotFoundError:
                continue
    return [record for tail in tails.values() for record in tail.read()]


def _parsed(line: bytes) -> r.Record | None:
    try:
        return r.parse(line)
    except FormatError:
        return None


SEVERITIES = get_args(Severity)


def logs(
    *,
    txn: TxnOrLast = "last",
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until the session ends.")] = False,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            "--severity",
            metavar="SEV",
            help=f"Only these, again or with commas for several: {', '.join(SEVERITIES)}. Payloads (TRC) are shown only when asked for.",
        ),
    ] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="PREFIX", help="Only this node and what is below it, as in 1.2.")] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="PATTERN", help="Only lines in which this regular expression is found.")
    ] = None,
    whole_run: WholeRun = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show the lines of a session, or with --run of all that the program recorded, in the order of time, as a running agent prints them.

    Example: [bold]optree logs -f last --severity WRN,ERR[/bold]
    """
    if whole_run and follow_on:
        raise SetupError("--run is about sessions as they are saved, --follow goes on with one: leave one out")
    wanted = _Wanted(_severities(severity), str(NodePath.parse(path)) if path else "", _pattern(grep))
    where = directory(sessions_dir)
    if whole_run:
        _show_run(open_run(txn, where, verbatim=True), wanted, as_json=as_json)
        return
    loaded, live = open_session(txn, where, verbatim=True)
    say_lost(loaded)
    goes_on = follow_on and live is not None and loaded.session.ended_at is None
    if wanted.path and not goes_on:
        find_node(loaded.session, wanted.path)
    printer = _Printer(loaded, wanted, as_json=as_json, whole=not goes_on)
    printer.show(unfold(loaded.tree))
    if goes_on and live is not None:
        _follow(printer, loaded, live, where)
    elif not as_json:
        say_run(txn, loaded.txn, where, "logs")


def _show_run(run: OpenedRun, wanted: _Wanted, *, as_json: bool) -> None:
    """Print the lines of all sessions of a run, one after another by their time."""
    if wanted.path:
        _check_in_one([loaded.session for loaded, _ in run.sessions], wanted.path)
    every = list[Iterator[tuple[float, str]]]()
    for loaded, _ in run.sessions:
        say_lost(loaded)
        every.append(_Printer(loaded, wanted, as_json=as_json, whole=True).lines(unfold(loaded.tree)))
    for _, line in merge(*every, key=itemgetter(0)):
        write(line)
    flush()
    if not run.is_whole:
        raise typer.Exit(DAMAGED)


def _check_in_one(sessions: list[SessionNode], path: str) -> None:
    """Raise `NotFoundError` unless one of the sessions has a node at that path."""
    for session in sessions[:-1]:
        with suppress(NotFoundError):
            find_node(session, path)
            return
    for session in sessions[-1:]:
        find_node(session, path)


def _follow(printer: _Printer, loaded: Loaded, live: Path, where: Directory) -> None:
    ended = False
    for records in follow(live, loaded.vector):
        printer.show(records)
        ended = ended or any(isinstance(record, r.SessionEnd) and not record.path for record in records)
    beside = Directory(live.parent, where.billing)
    final, _ = open_session(loaded.txn, beside, verbatim=True)
    printer.whole = True
    printer.show([record for record in unfold(final.tree) if not printer.knows(record)])  # of journals that came and went unseen
    printer.show([r.Entries("")])  # what was held back
    if not ended and final.session.ended_at is None:
        complain(f"session {loaded.txn} was interrupted; go on with: {resume_of(final, beside)}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    severities: frozenset[str]
    path: str
    pattern: re.Pattern[str] | None

    def has(self, line: Line) -> bool:
        below = not self.path or line.path == self.path or line.path.startswith(f"{self.path}.")
        return below and line.severity in self.severities and (self.pattern is None or self.pattern.search(line.bare) is not None)


class _Printer:
    """Prints the lines of records that are wanted."""

    def __init__(self, loaded: Loaded, wanted: _Wanted, *, as_json: bool, whole: bool) -> None:
        payloads = "TRC" in wanted.severities
        self._txn = txn = loaded.session.origin_txn_id
        self._wanted = wanted
        self._json = as_json
        self.whole = whole
        """That an op's reasoning is all in one record: no more of it comes."""
        options = LineOptions(verbose=True, trace_llm=payloads, trace_tools=payloads, colour=coloured(sys.stdout))
        self._renderer = LineRenderer(txn, options, loaded.tree.pool)
        self._seen: set[str] = set()

    def show(self, records: list[r.Record]) -> None:
        """Print what is wanted of some records."""
        for _, line in self.lines(records):
            write(line)
        flush()

    def lines(self, records: list[r.Record]) -> Iterator[tuple[float, str]]:
        """Yield what is wanted of some records, each line with its time."""
        for record in (single for each in records for single in _singles(each)):
            self._seen.add(getattr(record, "path", ""))
            lines = [*self._renderer.lines(record)]
            if self.whole and isinstance(record, r.Entries):
                lines += self._renderer.rest(record.path)
            for line in filter(self._wanted.has, lines):
                time = _time(record)
                shown = {"txn": self._txn, "timestamp": time, "path": line.path, "severity": line.severity, "line": line.bare}
                yield time, (json_line(shown) if self._json else line.text) + "\n"

    def knows(self, record: r.Record) -> bool:
        """Tell whether something of the record's node was shown before."""
        return getattr(record, "path", "") in self._seen


def _singles(record: r.Record) -> Iterator[r.Record]:
    """Yield the record as such that make one line of entries each."""
    if not isinstance(record, r.Entries):
        yield record
        return
    if record.chunks or not record.logs:
        yield r.Entries(record.path, chunks=record.chunks)
    for entry in record.logs:
        yield r.Entries(record.path, logs=[entry])


def _time(record: r.Record) -> float:
    if isinstance(record, r.Entries):
        return record.chunks[0].ts if record.chunks else record.logs[0].timestamp if record.logs else 0.0
    return getattr(record, "ts", 0.0)


def _severities(options: list[str] | None) -> frozenset[str]:
    if not options:
        return frozenset(SEVERITIES) - {"TRC"}
    named = [word.strip() for option in options for word in option.split(",")]
    unknown = [word for word in named if word.upper() not in SEVERITIES]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(SEVERITIES)}", param_hint="--severity")
    return frozenset(word.upper() for word in named)


def _pattern(expression: str | None) -> re.Pattern[str] | None:
    try:
        return None if expression is None else re.compile(expression)
    except re.error as error:
        raise typer.BadParameter(f"{expression!r} is no regular expression: {error}", param_hint="--grep") from error
