"""`optree tree`: a session as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optree._cli import sums
from optree._cli.options import Json, SessionsDir, TxnOrLast, WholeRun, directory
from optree._cli.screen import DAMAGED, painting, show, show_json
from optree._cli.sessions import open_run, open_session, say_lost, say_run, state_of
from optree._nodes import SessionNode
from optree._store.reading.recovery import Loaded
from optree._tree.text import format_tree
from optree._tree.walk import flatten, walk_sessions


def tree(
    *,
    txn: TxnOrLast = "last",
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", min=0, help="Show N levels: 1 the turns, 2 their ops, 3 the turns of sub-agents…")
    ] = None,
    whole_run: WholeRun = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show the tree of a session, or with --run of each that the program recorded: a line for each session, turn and op.

    Example: [bold]optree tree last --depth 2[/bold]
    """
    where = directory(sessions_dir)
    if whole_run:
        run = open_run(txn, where)
        if as_json:
            show_json({"run": run.id, "sessions": [_plain(*opened, depth) for opened in run.sessions]})
        else:
            show("\n\n".join(f"session {opened[0].txn}\n{_text(*opened, depth)}" for opened in run.sessions), fold=True, redacted=True)
        raise typer.Exit(0 if run.is_whole else DAMAGED)
    opened = open_session(txn, where)
    if as_json:
        show_json(_plain(*opened, depth))
        return
    show(_text(*opened, depth), fold=True, redacted=True)
    say_run(txn, opened[0].txn, where, "tree")


def _plain(loaded: Loaded, live: Path | None, depth: int | None) -> dict[str, Any]:
    say_lost(loaded)
    _prune(loaded.session, depth)
    document = {"txn": loaded.txn, "state": state_of(loaded.session, live), "lost": loaded.damage.lost()}
    return document | {"session": loaded.session, "pool": loaded.tree.pool}


def _text(loaded: Loaded, live: Path | None, depth: int | None) -> str:
    say_lost(loaded)
    credited = sums.credit_lines(sums.readable(flatten(loaded.session).accounting)[0])
    _prune(loaded.session, depth)
    running = state_of(loaded.session, live) == "running"
    text = format_tree(loaded.session, live=running, paint=painting())
    return "\n".join([text, *credited])


def _prune(root: SessionNode, depth: int | None) -> None:
    """Cut what lies deeper than *depth* levels; a path has one part a level."""
    if depth is None:
        return
    for session in walk_sessions(root):
        level = _level(session.path)
        if level >= depth:
            session.turns = []
        elif level + 1 >= depth:
            for turn in session.turns:
                turn.ops = []


def _level(path: str) -> int:
    return path.count(".") + 1 if path else 0
