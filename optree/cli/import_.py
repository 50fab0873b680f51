"""`optree import`: files of OpenTelemetry spans become sessions."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from optree.cli.options import BillingFile, Json, SessionsDir, directory
from optree.cli.progress import working
from optree.cli.screen import complain, show, show_json, table, when
from optree.errors import OptreeError, SetupError
from optree.store.directory import Directory
from optree.tree import Tree, walk_ops

_SHOWN = 20


def import_(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="OTLP as JSON, JSON lines or protobuf, plain, gzip or zstd; an answer of Jaeger or Tempo."),
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Put imported sessions in the place of those that have the same txn.")] = False,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Make sessions of OpenTelemetry spans: of optree's own, and of those that follow the conventions for agents.

    All files are read together: a trace may be spread over them. What had to be passed over or mended is said on stderr. Exit code 1
    if a session was left out, since there is one of that txn, or if there is none in the files.

    Example: [bold]optree import spans.json && optree tree last[/bold]
    """
    where = directory(sessions_dir, billing_file)
    trees, notes = _read(files)
    saved: list[Tree] = []
    left_out: list[tuple[str, str]] = []
    with working("saving sessions", len(trees)) as step:
        for tree in trees:
            try:
                _incoming().save(tree, where, replace=replace)
                saved.append(tree)
            except OptreeError as error:
                left_out.append((tree.session.origin_txn_id, str(error)))
            step()
    if as_json:
        refused = [{"txn": txn, "said": said} for txn, said in left_out]
        show_json({"imported": [_plain(tree) for tree in saved], "leftOut": refused, "notes": notes})
    else:
        _show(saved, left_out, notes, where)
    if left_out or not saved:
        raise typer.Exit(1)


def _read(files: list[Path]) -> tuple[list[Tree], list[str]]:
    incoming = _incoming()
    spans: list[Any] = []
    notes: list[str] = []
    with working("reading spans", len(files)) as step:
        for path in files:
            found = incoming.read_file(path)
            spans += found.spans
            notes += [f"{path.name}: {note}" for note in found.notes]
            step()
    return incoming.sessions(spans, notes), notes


def _incoming() -> Any:
    """Return what reads spans: it lies above the command line, as every exporter, and is found by its name."""
    try:
        return importlib.import_module("optree_otel.incoming")
    except ImportError as error:
        raise SetupError(f"optree_otel is not installed: pip install 'optree-tracing[otel]' ({error})") from error


def _show(saved: list[Tree], left_out: list[tuple[str, str]], notes: list[str], where: Directory) -> None:
    for note in notes[:_SHOWN]:
        complain(note)
    if len(notes) > _SHOWN:
        complain(f"and {len(notes) - _SHOWN} more such notes; --json has them all")
    for _, said in left_out:
        complain(said)
    if saved:
        rows = [(tree.session.origin_txn_id, tree.session.agent_id, when(tree.session.started_at), str(_count(tree))) for tree in saved]
        show("\n".join(table(("TXN", "AGENT", "STARTED", "OPS"), rows, "   r")))
        show(f"imported into {where.sessions}; look at one with: optree tree {saved[-1].session.origin_txn_id}")
    elif not left_out:
        complain("no session was found: no span tells of an agent, a model or a tool")


def _plain(tree: Tree) -> dict[str, Any]:
    session = tree.session
    return {"txn": session.origin_txn_id, "agentId": session.agent_id, "startedAt": session.started_at, "ops": _count(tree)}


def _count(tree: Tree) -> int:
    return sum(1 for _ in walk_ops(tree.session))
