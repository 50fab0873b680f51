"""`optree import`: files of other programs become sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from optree._cli.exporters import OTEL, span_reader
from optree._cli.options import BillingFile, Json, SessionsDir, directory, flags
from optree._cli.program import command_line
from optree._cli.screen import complain, show, show_json, table, when, working
from optree._formats import Fault, Format, Read
from optree._formats.installed import detected, exporter_names, format_named, installed_formats
from optree._store.files.lines import check_size
from optree._store.importing import more_there, save
from optree._store.reading.directory import Directory, exists
from optree._tree import Tree, walk_ops, walk_sessions
from optree._tree.walk import name_safely
from optree.errors import FormatError, NotFoundError, OptreeError, SetupError

_SHOWN = 20
_COMPANION = "session-summary.yml"
"""How the file ends that is written beside a Markdown log."""
_TEMPORARY = ".tmp-"
"""In the names that optree and the original ai-agent give files until they are whole."""


def import_(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Files in a format ([bold]optree formats[/bold] lists them), or spans: OTLP as JSON, JSON lines or protobuf, an answer of "
            "Jaeger or Tempo; plain, gzip or zstd.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NAME", help="The format of all files; otherwise their content tells.", autocompletion=exporter_names
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Import nothing if anything in the files is not as it should be.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put imported sessions in the place of those that have the same txn.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --replace: also where the session that is there has more.")] = False,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Make sessions of files in other formats, and of OpenTelemetry spans: optree's own, and those that follow the conventions for agents.

    What had to be passed over or mended is said on stderr, by line. Spans are read together: a trace may be spread over files. A file
    that cannot be read is named, and the others are imported. A session is not replaced by one that has less, unless --force is given.

    Exit code 1 if a file could not be read, a session was left out, since there is one of that txn, or if there is none in the files.

    Example: [bold]optree import spans.json && optree tree last[/bold]
    """
    if force and not replace:
        raise SetupError("--force is for --replace: optree import FILE --replace --force")
    where = directory(sessions_dir, billing_file)
    with working("reading files", len(files)) as step:
        content = read_files(files, source, strict=strict, step=step)
    saved: list[Tree] = []
    left_out: list[tuple[str, str]] = []
    with working("saving sessions", len(content.trees)) as step:
        for tree in content.trees:
            txn = tree.session.origin_txn_id
            try:
                more = more_there(tree, where) if force else ""
                save(tree, where, replace=replace, force=force, source=content.sources.get(txn, ""))
                content.notes += [f"session {txn} had more than what is now in its place: {more}"] if more else []
                saved.append(tree)
            except OptreeError as error:
                left_out.append((txn, str(error)))
            step()
    if as_json:
        refused = [{"txn": txn, "said": reason} for txn, reason in left_out]
        faults = [{"file": name, "line": fault.line, "said": fault.said} for name, fault in content.faults]
        failed = [{"file": name, "said": reason} for name, reason in content.failed]
        imported = [_plain(tree) for tree in saved]
        show_json({"imported": imported, "leftOut": refused, "failed": failed, "notes": content.notes, "faults": faults})
    else:
        _show(saved, left_out, content, where)
    if left_out or content.failed or not saved:
        raise typer.Exit(1)


def _show(saved: list[Tree], left_out: list[tuple[str, str]], content: FilesRead, where: Directory) -> None:
    notes = [fault.of(name) for name, fault in content.faults] + content.notes
    for note in notes[:_SHOWN]:
        complain(note)
    if len(notes) > _SHOWN:
        complain(f"and {len(notes) - _SHOWN} more such notes; --json has them all")
    for reason in [reason for _, reason in content.failed + left_out]:
        complain(reason)
    if saved:
        rows = [(tree.session.origin_txn_id, tree.session.agent_id, when(tree.session.started_at), str(_count(tree))) for tree in saved]
        show("\n".join(table(("TXN", "AGENT", "STARTED", "OPS"), rows, "   r")), fold=True)
        look = command_line(["optree", "tree", saved[-1].session.origin_txn_id, *flags(where, billing=False)])
        show(f"imported into {where.sessions}; look at one with: {look}")
    elif not left_out and not content.failed:
        complain("no session was found: nothing in the files tells of an agent, a model or a tool")


def _plain(tree: Tree) -> dict[str, Any]:
    session = tree.session
    return {"txn": session.origin_txn_id, "agentId": session.agent_id, "startedAt": session.started_at, "ops": _count(tree)}


def _count(tree: Tree) -> int:
    return sum(1 for _ in walk_ops(tree.session))


class FilesRead(Struct):
    """What is in the files."""

    trees: list[Tree] = []
    faults: list[tuple[str, Fault]] = []
    """With the names of the files; those of formats."""
    notes: list[str] = []
    """Notes on spans, and on files that were passed over."""
    failed: list[tuple[str, str]] = []
    """Files of which nothing could be read, each with why."""
    sources: dict[str, str] = {}
    """By txn, the file that a session came from."""
    reads: dict[Path, Read] = {}
    """What was read of each file in a format."""


def read_files(files: Sequence[Path], name: str | None, *, strict: bool, step: Callable[[], None]) -> FilesRead:
    """Read files; *name* is the format of all of them, else their content tells. Spans are read together: a trace may be spread over files.

    A file that cannot be read does not stop the others. If it is the only one, or if *strict*, raises `FormatError` for a file that is
    in no format or, if *strict*, is not as it should be, `SetupError` for one that several formats take, `NotFoundError`, `OSError`.
    """
    result = FilesRead()
    spans: list[Any] = []
    chosen = _Choice(name)
    left = [path for path in files if len(files) > 1 and _left_behind(path, result)]
    paths = [one for named in files if named not in left for one in _expanded(named, chosen, result)]
    for path in paths:
        try:
            _read(path, chosen, result, spans, strict=strict)
        except (OptreeError, OSError) as error:
            if strict or len(paths) == 1:
                raise
            result.failed.append((path.name, str(error)))
        step()
    _drop_parts(result)
    if spans:
        result.trees += span_reader().sessions(spans, result.notes)
    return result


def _read(path: Path, chosen: _Choice, content: FilesRead, spans: list[Any], *, strict: bool) -> None:
    """Read one file, or one folder of a format that is made of folders."""
    check_size(path)
    form = chosen.of(path)
    if form is None and path.name.endswith(_COMPANION):
        content.notes.append(f"{path.name}: passed over, the log that it is about has all of it")
    elif form is None:
        _spans(path, content, spans, chosen, strict=strict)
    else:
        read = form.read(path, strict=strict)
        content.notes += [f"{path.name}: {renamed}" for tree in read.trees for renamed in name_safely(tree)]
        if chosen.named and not any(map(_holds_something, read.trees)) and not detected(path, [form]):
            raise FormatError(f"{path.name} holds nothing of a session as {form.name} has it; without --from its content tells the format")
        content.reads[path.resolve()] = read
        content.trees += read.trees
        content.faults += ((path.name, fault) for fault in read.faults)
        content.sources |= {tree.session.origin_txn_id: path.name for tree in read.trees}


def _drop_parts(content: FilesRead) -> None:
    """Take out what was read twice: files that were named, and read with another as well. Of two that lead to each other one stays."""
    owners: dict[Path, list[Path]] = {}
    for path, read in content.reads.items():
        for part in read.beside:
            owners.setdefault(part.resolve(), []).append(path)
    gone: dict[Path, Path] = {}
    for path in content.reads:
        owner = next((reader for reader in owners.get(path, ()) if reader != path and reader not in gone), None)
        if owner is not None:
            gone[path] = owner
            content.notes.append(f"{path.name}: passed over, it is read with {owner.name}")
    twice = {id(part) for path in gone for part in (*content.reads[path].trees, *content.reads[path].faults)}
    content.trees = [tree for tree in content.trees if id(tree) not in twice]
    content.faults = [(name, fault) for name, fault in content.faults if id(fault) not in twice]


def _expanded(path: Path, chosen: _Choice, content: FilesRead) -> list[Path]:
    """Return what is to be read of a path: of a directory all in it that is in a format, and it itself if it is in one; others are named.

    What a writer left behind unfinished, as a name with ``.tmp-`` in it says, is passed over.
    """
    if not path.is_dir():
        return [path]
    form = chosen.of(path)
    if form is not None and chosen.named:
        inside = (
            [] if detected(path, [form]) else [entry for entry in sorted(path.iterdir()) if entry.is_file() and detected(entry, [form])]
        )
        return [entry for entry in inside if not _left_behind(entry, content)] or [path]
    whole = [path] if form is not None else []
    entries = sorted(path.iterdir())
    passed_over = [entry for entry in entries if _left_behind(entry, content)]
    known = [entry for entry in entries if entry not in passed_over and (entry.is_file() or form is None) and _is_read(entry, chosen, form)]
    if form is None and known:
        content.notes += [
            f"{entry.name}: passed over, it is in no format that is known"
            for entry in entries
            if entry not in passed_over and entry not in known
        ]
    return [*whole, *known] or [path]


def _left_behind(path: Path, content: FilesRead) -> bool:
    """Tell whether a file is one that a writer left behind, and note it."""
    if _TEMPORARY not in path.name or not path.is_file():
        return False
    content.notes.append(f"{path.name}: passed over, a writer left it behind unfinished")
    return True


def _is_read(path: Path, chosen: _Choice, form: Format | None) -> bool:
    """Tell whether a file in a directory is to be read: it is in a format, not in that of the directory itself; or empty, to be named."""
    if not _is_readable(path):
        return False
    if path.is_file() and not path.stat().st_size:
        return True
    other = chosen.of(path)
    return other is not None and other is not form


def _is_readable(path: Path) -> bool:
    """Tell whether something in a directory can be looked at: no pipe, no device, no link that leads nowhere or in a circle."""
    try:
        return path.is_dir() or path.is_file()
    except OSError:
        return False


def _holds_something(tree: Tree) -> bool:
    return any(session.messages or session.turns or session.ended_at is not None for session in walk_sessions(tree.session))


class _Choice:
    """Picks the format of each file; None is OpenTelemetry."""

    def __init__(self, name: str | None) -> None:
        self._all: list[Format] = []
        self.problems: list[str] = []
        self._named = format_named(name) if name not in (None, OTEL) else None
        self.named = name is not None
        """True if one format was named for all files."""
        if not self.named:
            self._all, self.problems = installed_formats()

    def of(self, path: Path) -> Format | None:
        if not exists(path):
            raise NotFoundError(f"{path} is no file: name one that optree export, a Collector, Jaeger, Tempo or another tracer has written")
        if self.named:
            return self._named
        claims = detected(path, self._all)
        if len(claims) > 1:
            names = [form.name for form in claims]
            raise SetupError(f"{path.name} may be in several formats, {', '.join(names)}: say which it is, as in --from {names[0]}")
        return claims[0] if claims else None

    def tried(self) -> str:
        """Return what a file was looked at for."""
        lacking = "".join(f"; {problem}" for problem in self.problems)
        return f"tried were {', '.join([*(form.name for form in self._all), OTEL])}{lacking}"


def _spans(path: Path, content: FilesRead, spans: list[Any], chosen: _Choice, *, strict: bool) -> None:
    if path.is_dir():
        raise FormatError(f"{path} is a directory in no format that is known: name the files in it ({chosen.tried()})")
    try:
        read_spans, notes = span_reader().read_file(path)
    except FormatError as error:
        raise FormatError(f"{error} ({chosen.tried()}; --from NAME says which it is)") from error
    if strict and notes:
        raise FormatError(f"{path.name}: {notes[0]}")
    spans += read_spans
    content.notes += [f"{path.name}: {note}" for note in notes]
