"""`optree logs`: the console lines of a session, saved or running."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from optree import records as r
from optree.cli.follow import follow
from optree.cli.options import Json, SessionsDir, TxnOrLast, directory
from optree.cli.screen import complain, flush, json_line, write
from optree.cli.sessions import find_node, open_session
from optree.console.lines import Line, LineOptions, LineRenderer
from optree.nodes import Severity
from optree.store.directory import Directory
from optree.store.recovery import Loaded
from optree.tree.path import Path as NodePath
from optree.tree.unfold import unfold
from optree.visible import coloured

SEVERITIES = get_args(Severity)


def logs(
    *,
    txn: TxnOrLast = "last",
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until the session ends.")] = False,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            "--severity", metavar="SEV", help=f"Only these: {', '.join(SEVERITIES)}. Payloads (TRC) are shown only when asked for."
        ),
    ] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="PREFIX", help="Only this node and what is below it, as in 1.2.")] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="PATTERN", help="Only lines in which this regular expression is found.")
    ] = None,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show the lines of a session, in the order of time, in the form that a running agent prints.

    Example: [bold]optree logs -f last --severity WRN,ERR[/bold]
    """
    wanted = _Wanted(_severities(severity), str(NodePath.parse(path)) if path else "", _pattern(grep))
    where = directory(sessions_dir)
    loaded, live = open_session(txn, where, verbatim=True)
    goes_on = follow_on and live is not None and loaded.session.ended_at is None
    if wanted.path and not goes_on:
        find_node(loaded.session, wanted.path)
    printer = _Printer(loaded, wanted, as_json=as_json, whole=not goes_on)
    printer.show(unfold(loaded.tree))
    if goes_on and live is not None:
        _follow(printer, loaded, live, where)


def _follow(printer: _Printer, loaded: Loaded, live: Path, where: Directory) -> None:
    ended = False
    for records in follow(live, loaded.vector):
        printer.show(records)
        ended = ended or any(isinstance(record, r.SessionEnd) and not record.path for record in records)
    final, _ = open_session(loaded.txn, Directory(live.parent, where.billing), verbatim=True)
    printer.whole = True
    printer.show([record for record in unfold(final.tree) if not printer.knows(record)])  # of journals that came and went unseen
    printer.show([r.Entries("")])  # what was held back
    if not ended and final.session.ended_at is None:
        complain(f"session {loaded.txn} was interrupted; go on with: optree load {loaded.txn} -- CMD")


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
        for record in (single for each in records for single in _singles(each)):
            self._seen.add(getattr(record, "path", ""))
            for line in self._renderer.lines(record):
                self._print(record, line)
            if self.whole and isinstance(record, r.Entries):
                for line in self._renderer.rest(record.path):
                    self._print(record, line)
        flush()

    def knows(self, record: r.Record) -> bool:
        """Tell whether something of the record's node was shown before."""
        return getattr(record, "path", "") in self._seen

    def _print(self, record: r.Record, line: Line) -> None:
        if not self._wanted.has(line):
            return
        shown = {"txn": self._txn, "timestamp": _time(record), "path": line.path, "severity": line.severity, "line": line.bare}
        write((json_line(shown) if self._json else line.text) + "\n")


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


def _severities(given: list[str] | None) -> frozenset[str]:
    if not given:
        return frozenset(SEVERITIES) - {"TRC"}
    named = [one.strip() for each in given for one in each.split(",")]
    unknown = [one for one in named if one.upper() not in SEVERITIES]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(SEVERITIES)}", param_hint="--severity")
    return frozenset(one.upper() for one in named)


def _pattern(given: str | None) -> re.Pattern[str] | None:
    try:
        return None if given is None else re.compile(given)
    except re.error as error:
        raise typer.BadParameter(f"{given!r} is no regular expression: {error}", param_hint="--grep") from error
