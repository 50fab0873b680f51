"""`optree cost`: one session's tokens and money, or those of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from optree._cli import sums
from optree._cli.options import BillingFile, Json, SessionsDir, TxnOrLast, directory
from optree._cli.screen import show, show_json, table
from optree._cli.sessions import open_session, say_lost, settled
from optree._cli.sums import Sum, SumLine
from optree._store.ledger import Book
from optree._tree.walk import flatten


def cost(
    *,
    txn: TxnOrLast = "last",
    all_sessions: Annotated[bool, typer.Option("--all", help="All sessions that have ended, from the ledger.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help=sums.SINCE_HELP),
    ] = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    as_json: Json = False,
) -> None:
    """Show what a session cost, or with --all what all of them cost.

    Calls, tokens and money by agent, by provider:model and by tool. By agent is the whole; so are models and tools together.

    Example: [bold]optree cost --all --since 7d[/bold]
    """
    where = directory(sessions_dir, billing_file)
    first = sums.moment(since)
    if all_sessions:
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
        show_json({"of": scope, "since": first or None, **_plain(lines), **tail})
    else:
        show("\n".join(_table(lines)), fold=True)
        sums.say_pending(pending)
    sums.say_repeated(book, where)
    one, more = ("line of", "lines of") if all_sessions else ("accounting entry of session", "accounting entries of session")
    if code := sums.say_unreadable(book, poor, f"{one} {scope}", f"{more} {scope}"):
        raise typer.Exit(code)


def _groups(lines: Sequence[SumLine]) -> dict[str, dict[str, Sum]]:
    models, tools = sums.of_type(lines, llm=True), sums.of_type(lines, llm=False)
    return {"agent": sums.by(lines, sums.agent), "model": sums.by(models, sums.model), "tool": sums.by(tools, sums.tool)}


def _plain(lines: Sequence[SumLine]) -> dict[str, Any]:
    return {"total": sums.total(lines).plain(), **sums.plain(_groups(lines)), "credits": sums.credits_plain(lines)}


def _table(lines: Sequence[SumLine]) -> list[str]:
    shown = table(("", *sums.HEAD), sums.rows(_groups(lines), sums.total(lines)), " rrrrrrr")
    return [*shown, *sums.credit_lines(lines), *sums.replay_lines(lines)]
