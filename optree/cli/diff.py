"""`optree diff`: two sessions, aligned and compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from optree.cli.options import Json, SessionsDir, complete_txn, directory
from optree.cli.screen import complain, paint, show, show_json, unpainted
from optree.cli.sessions import open_session
from optree.store.unusable import usable
from optree.syscalls import calls
from optree.tree import Tree
from optree.visible import coloured

DIFFERENT = 1


def diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="The session before: as TXN everywhere.", autocompletion=complete_txn, show_default=False)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The session after: as TXN everywhere.", autocompletion=complete_txn, show_default=False)
    ],
    everything: Annotated[bool, typer.Option("--all", help="Show also what is the same.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Compare also what a provider makes anew each time: ids, times.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page that any browser shows.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the sessions differ.")] = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Compare two sessions: ops, turns and sub-agents that were added, removed, changed or moved, and what that cost.

    Times alone change nothing; they are shown as differences.

    Example: [bold]optree diff mwr0ix0c last --html diff.html[/bold]
    """
    from optree.compare import compare, format_comparison, format_page

    found = compare(_tree(a, sessions_dir), _tree(b, sessions_dir), everything=everything, exact=exact)
    if html is not None:
        with usable(html):
            _write(html, format_page(found, everything=everything))
    if as_json:
        show_json(found)
    elif html is None:
        style = paint if coloured(sys.stdout) else unpainted
        show(format_comparison(found, everything=everything, paint=style), fold=True)
    if exit_code and not found.same:
        raise typer.Exit(DIFFERENT)


def _write(path: Path, page: str) -> None:
    """Write a page; a new file is its owner's only, since the page has what the sessions have. Raises `OSError`."""
    with os.fdopen(calls.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(page.encode("utf-8", "replace"))


def _tree(txn: str, sessions_dir: Path | None) -> Tree:
    loaded, _ = open_session(txn, directory(sessions_dir), verbatim=True)
    if lost := loaded.damage.lost():
        complain(f"{loaded.txn} is not whole: {'; '.join(lost)}")
    return loaded.tree
