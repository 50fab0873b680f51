"""`optree import`: files of other programs become sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optree.cli.incoming import FilesRead, read_files
from optree.cli.options import BillingFile, Json, SessionsDir, directory
from optree.cli.screen import complain, show, show_json, table, when, working
from optree.errors import OptreeError, SetupError
from optree.formats.installed import exporter_names
from optree.store.directory import Directory
from optree.store.importing import more_there, save
from optree.tree import Tree, walk_ops

_SHOWN = 20


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
        found = read_files(files, source, strict=strict, step=step)
    saved: list[Tree] = []
    left_out: list[tuple[str, str]] = []
    with working("saving sessions", len(found.trees)) as step:
        for tree in found.trees:
            txn = tree.session.origin_txn_id
            try:
                more = more_there(tree, where) if force else ""
                save(tree, where, replace=replace, force=force, source=found.sources.get(txn, ""))
                found.notes += [f"session {txn} had more than what is now in its place: {more}"] if more else []
                saved.append(tree)
            except OptreeError as error:
                left_out.append((txn, str(error)))
            step()
    if as_json:
        refused = [{"txn": txn, "said": said} for txn, said in left_out]
        faults = [{"file": name, "line": fault.line, "said": fault.said} for name, fault in found.faults]
        failed = [{"file": name, "said": said} for name, said in found.failed]
        imported = [_plain(tree) for tree in saved]
        show_json({"imported": imported, "leftOut": refused, "failed": failed, "notes": found.notes, "faults": faults})
    else:
        _show(saved, left_out, found, where)
    if left_out or found.failed or not saved:
        raise typer.Exit(1)


def _show(saved: list[Tree], left_out: list[tuple[str, str]], found: FilesRead, where: Directory) -> None:
    notes = [fault.of(name) for name, fault in found.faults] + found.notes
    for note in notes[:_SHOWN]:
        complain(note)
    if len(notes) > _SHOWN:
        complain(f"and {len(notes) - _SHOWN} more such notes; --json has them all")
    for said in [said for _, said in found.failed + left_out]:
        complain(said)
    if saved:
        rows = [(tree.session.origin_txn_id, tree.session.agent_id, when(tree.session.started_at), str(_count(tree))) for tree in saved]
        show("\n".join(table(("TXN", "AGENT", "STARTED", "OPS"), rows, "   r")), fold=True)
        show(f"imported into {where.sessions}; look at one with: optree tree {saved[-1].session.origin_txn_id}")
    elif not left_out and not found.failed:
        complain("no session was found: nothing in the files tells of an agent, a model or a tool")


def _plain(tree: Tree) -> dict[str, Any]:
    session = tree.session
    return {"txn": session.origin_txn_id, "agentId": session.agent_id, "startedAt": session.started_at, "ops": _count(tree)}


def _count(tree: Tree) -> int:
    return sum(1 for _ in walk_ops(tree.session))
