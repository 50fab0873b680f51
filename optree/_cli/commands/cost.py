"""`optree cost`: one session's tokens and money, or those of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from optree._cli import sums
from optree._cli.options import BillingFile, Json, SessionsDir, TxnOrNone, WholeRun, directory
from optree._cli.screen import DAMAGED, show, show_json, table
from optree._cli.sessions import open_run, open_session, say_lost, say_run, settled
from optree._cli.sums import Sum, SumLine
from optree._store.ledger import Book
from optree._tree.walk import flatten
from optree._visible import one_line
from optree.errors import SetupError


def cost(
    *,
    txn: TxnOrNone = None,
    all_sessions: Annotated[bool, typer.Option("--all", help="All sessions that have ended, from the ledger.")] = False,
    whole_run: WholeRun = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help=sums.SINCE_HELP),
    ] = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Show what a session cost, or with --run what all cost that the program recorded, or with --all what all of them cost.

    Calls, tokens and money by agent, by provider:model and by tool, of a run by session. By agent is the whole; so are models and tools
    together.

    Example: [bold]optree cost last --run[/bold], [bold]optree cost --all --since 7d[/bold]
    """
    if whole_run and all_sessions:
        raise SetupError("--run is about the sessions of one run, --all about those of the ledger: leave one out")
    if all_sessions and txn is not None:
        raise SetupError(f"{one_line(txn)} names a session, and --all is about all of the ledger: leave one out")
    txn = txn or "last"
    where = directory(sessions_dir, billing_file)
    first = sums.moment(since)
    code = 0
    if whole_run:
        run = open_run(txn, where, verbatim=True)
        for loaded, _ in run.sessions:
            say_lost(loaded)
        entries = [entry for loaded, _ in run.sessions for entry in flatten(loaded.session).accounting]
        book, scope, code = Book(entries), run.id, 0 if run.is_whole else DAMAGED
    elif all_sessions:
        settled(where)
        book = sums.read_ledger(where)
        scope = str(where.billing)
    else:
        loaded, _ = open_session(txn, where, verbatim=True)
        say_lost(loaded)
        book, scope = Book(flatten(loaded.session).accounting), loaded.txn
    lines, poor = sums.readable(book.entries, first)
    pending = sums.pending(where) if all_sessions else 0
    if as_json:
        damage = {"unreadable": len(book.unreadable) + poor, "damagedLines": book.unreadable}
        tail = {"notEnded": pending, **damage, "repeated": book.repeated}
        show_json({"of": scope, "since": first or None, **_plain(lines, whole_run=whole_run), **tail})
    else:
        show("\n".join(_table(lines, whole_run=whole_run)), fold=True)
        sums.say_pending(pending)
    sums.say_repeated(book, where)
    one, more = ("line of", "lines of") if all_sessions else ("accounting entry of session", "accounting entries of session")
    code = sums.say_unreadable(book, poor, f"{one} {scope}", f"{more} {scope}") or code
    if not (all_sessions or whole_run or as_json):
        say_run(txn, scope, where, "cost")
    if code:
        raise typer.Exit(code)


def _groups(lines: Sequence[SumLine], *, whole_run: bool) -> dict[str, dict[str, Sum]]:
    models, tools = sums.of_type(lines, llm=True), sums.of_type(lines, llm=False)
    groups = {"agent": sums.by(lines, sums.agent), "model": sums.by(models, sums.model), "tool": sums.by(tools, sums.tool)}
    return groups | ({"session": sums.by(lines, sums.session)} if whole_run else {})


def _plain(lines: Sequence[SumLine], *, whole_run: bool) -> dict[str, Any]:
    groups = sums.plain(_groups(lines, whole_run=whole_run))
    return {"total": sums.total(lines).plain(), **groups, "credits": sums.credits_plain(lines)}


def _table(lines: Sequence[SumLine], *, whole_run: bool) -> list[str]:
    whole = sums.total(lines)
    shown = table(("", *sums.HEAD), sums.rows(_groups(lines, whole_run=whole_run), whole), " rrrrrrr")
    return [*shown, *sums.notes(lines, whole)]
