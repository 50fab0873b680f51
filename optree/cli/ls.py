"""`optree ls`: the sessions that are there; `optree status`: how the sessions directory fares."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from optree.cli.exporters import collector, destination, pending, waiting
from optree.cli.options import BillingFile, Json, SessionsDir, directory
from optree.cli.screen import paint, show, show_json, size, table, when, working
from optree.cli.sessions import Row, State, describe, settled
from optree.errors import NotFoundError, OptreeError
from optree.store import Directory
from optree.store.directory import exists
from optree.store.lock import is_running
from optree.tree.totals import cost_cell, pico
from optree.visible import coloured

SHOWN = 5


def ls(
    *,
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Show the N newest only.")] = None,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """List the sessions, the one that began last first.

    Each with its agent, its state (running, interrupted, ended, failed or damaged), its start, duration (of one that was interrupted: at
    least), tokens, cost and size.

    Example: [bold]optree ls -n 10[/bold]
    """
    where = directory(sessions_dir)
    _check(where, named=sessions_dir is not None or bool(os.environ.get("OPTREE_SESSIONS_DIR")))
    saved = where.saved()[:limit]
    rows: list[Row] = []
    with working("reading sessions", len(saved)) as step:
        for one in saved:
            rows.append(describe(one, where))
            step()
    if as_json:
        show_json([row.plain() for row in rows])
        return
    if not rows:
        show(f"no sessions in {where.sessions}; record one with: optree run -- python your_agent.py")
        return
    head, *lines = table(
        ("TXN", "AGENT", "STATE", "STARTED", "DURATION", "TOKENS", "COST", "SIZE"), [_cells(row) for row in rows], "    rrrr"
    )
    if coloured(sys.stdout):
        head = paint("title", head)
        lines = [line.replace(f" {row.state} ", f" {paint(row.state, row.state)} ", 1) for line, row in zip(lines, rows, strict=True)]
    show("\n".join([head, *lines]), fold=True)


def _check(where: Directory, *, named: bool) -> None:
    """Raise `NotFoundError` for what is no directory, and for one that was named but is not there."""
    path = where.sessions
    if where.homeless:
        raise NotFoundError("you have no home directory, where sessions would be; name theirs with --sessions-dir or OPTREE_SESSIONS_DIR")
    if exists(path) and not path.is_dir():
        raise NotFoundError(f"{path} is no directory; name the directory of the sessions with --sessions-dir")
    if named and not exists(path):
        raise NotFoundError(f"{path} does not exist; it is made when a session is recorded: optree run -- python your_agent.py")


def _cells(row: Row) -> tuple[str, ...]:
    totals = row.totals
    sent = totals.all_input_tokens
    tokens = f"{sent:,}→{totals.output_tokens:,}" if sent or totals.output_tokens else "-"
    cost = cost_cell(pico(totals.cost_usd), totals.known_costs, totals.unknown_costs)
    return row.txn, row.agent, row.state, when(row.started_at), row.lasted("≥") or "-", tokens, cost, size(row.size)


def status(*, sessions_dir: SessionsDir = None, billing_file: BillingFile = None, as_json: Json = False) -> None:
    """Show how the sessions directory fares: its size, what is running, what was interrupted, where the ledger is.

    Of sessions that are mirrored to OpenTelemetry also what no collector has yet, and whether the one that the environment names answers.

    A session that ended, and that its own process could not save and bill to the end, is settled first.

    Example: [bold]optree status[/bold]
    """
    where = directory(sessions_dir, billing_file)
    settled(where)
    saved = where.saved()
    rows: list[Row] = []
    with working("reading sessions", len(saved)) as step:
        for one in saved:
            rows.append(describe(one, where))
            step()
        found = _plain(where, rows) | _mirrored(where)
    if as_json:
        show_json(found)
    else:
        show("\n".join(_lines(found, rows)), fold=True)


def _plain(where: Directory, rows: list[Row]) -> dict[str, Any]:
    def of(state: State) -> list[str]:
        return [row.txn for row in rows if row.state == state]

    return {
        "sessionsDir": str(where.sessions),
        "writable": _writable(where.sessions),
        "sessions": len(rows),
        "bytes": sum(row.size for row in rows),
        "running": of("running"),
        "interrupted": of("interrupted"),
        "damaged": of("damaged"),
        "incomplete": [row.txn for row in rows if row.lossy],
        "billingFile": str(where.billing),
        "billingBytes": where.billing.stat().st_size if where.billing.is_file() else 0,
    }


def _lines(found: dict[str, Any], rows: list[Row]) -> list[str]:
    unwritable = "" if found["writable"] else " (cannot be written)"
    lines = [
        f"sessions     {found['sessions']}, {size(found['bytes'])}, in {found['sessionsDir']}{unwritable}",
        f"running      {_named(found['running'])}",
        f"interrupted  {_named([_interrupted(row) for row in rows if row.state == 'interrupted'])}",
        f"damaged      {_named(found['damaged'])}",
        *([f"incomplete   {_named(found['incomplete'])} (optree load TXN says what was lost)"] if found["incomplete"] else []),
        f"ledger       {size(found['billingBytes']) if found['billingBytes'] else 'none yet'}, {found['billingFile']}",
    ]
    lines += _unsent(found["pending"], found["collector"])
    hints = [f"go on with   optree load {found['interrupted'][0]} -- CMD"] if found["interrupted"] else []
    hints += ["send them    optree export --pending"] if found["pending"] else []
    return lines + hints


def _interrupted(row: Row) -> str:
    known_for = row.lasted()
    return f"{row.txn} ({known_for})" if known_for else row.txn


def _mirrored(where: Directory) -> dict[str, Any]:
    """Return what of mirrored sessions is not delivered, and whether the collector that the environment names takes anything."""
    found = [
        {"txn": txn, "spans": spans, "destination": destination(txn, where)} for txn in pending(where) if (spans := _spans(txn, where)) != 0
    ]
    endpoint, trouble = collector() if found else ("", "")
    return {"pending": found, "collector": {"endpoint": endpoint, "trouble": trouble} if endpoint else None}


def _spans(txn: str, where: Directory) -> int | None:
    """Return how many spans of a session wait to be sent; 0 if its own process is at it, None if the session cannot be read."""
    try:
        return 0 if is_running(where.live(txn)) else waiting(txn, where)
    except (OptreeError, OSError, RecursionError):
        return None


def _unsent(pending: list[dict[str, Any]], collector: dict[str, str] | None) -> list[str]:
    if not pending:
        return []
    named = [f"{one['txn']} ({'unreadable' if one['spans'] is None else one['spans']})" for one in pending]
    lines = [f"not sent     {_named(named)} spans of mirrored sessions"]
    to = Counter(one["destination"] or "an unknown destination" for one in pending)
    lines += [f"{'waiting for' if at == 0 else '':12} {where} ({count})" for at, (where, count) in enumerate(to.most_common(SHOWN))]
    if collector is not None:
        lines.append(f"collector    {collector['endpoint']}: {collector['trouble'] or 'answers'}")
    return lines


def _named(txns: list[str]) -> str:
    more = f" and {len(txns) - SHOWN} more" if len(txns) > SHOWN else ""
    return f"{len(txns)}: {', '.join(txns[:SHOWN])}{more}" if txns else "none"


def _writable(path: Path) -> bool:
    """Tell whether sessions can be written to a directory, or where it will be made."""
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
