"""`optree tree`: a session as text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from optree._cli import sums
from optree._cli.options import Json, SessionsDir, TxnOrLast, directory
from optree._cli.screen import paint, show, show_json, unpainted
from optree._cli.sessions import open_session, say_lost, state_of
from optree._nodes import SessionNode
from optree._tree.text import format_tree
from optree._tree.walk import flatten, walk_sessions
from optree._visible import coloured


def tree(
    *,
    txn: TxnOrLast = "last",
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", min=0, help="Show N levels: 1 the turns, 2 their ops, 3 the turns of sub-agents…")
    ] = None,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show the tree of a session: a line for each session, turn and op.

    Example: [bold]optree tree last --depth 2[/bold]
    """
    loaded, live = open_session(txn, directory(sessions_dir))
    say_lost(loaded)
    credited = sums.credit_lines(sums.readable(flatten(loaded.session).accounting)[0])
    if depth is not None:
        _prune(loaded.session, depth)
    if as_json:
        document = {"txn": loaded.txn, "state": state_of(loaded.session, live), "lost": loaded.damage.lost()}
        show_json(document | {"session": loaded.session, "pool": loaded.tree.pool})
        return
    running = state_of(loaded.session, live) == "running"
    text = format_tree(loaded.session, live=running, paint=paint if coloured(sys.stdout) else unpainted)
    show("\n".join([text, *credited]), fold=True, redacted=True)


def _prune(root: SessionNode, depth: int) -> None:
    """Cut what lies deeper than *depth* levels; a path has one part a level."""
    for session in walk_sessions(root):
        level = _level(session.path)
        if level >= depth:
            session.turns = []
        elif level + 1 >= depth:
            for turn in session.turns:
                turn.ops = []


def _level(path: str) -> int:
    return path.count(".") + 1 if path else 0
