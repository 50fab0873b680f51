"""`optree status`: how the sessions directory fares."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from optree._cli.exporters import collector, destination, pending, waiting
from optree._cli.options import BillingFile, Json, SessionsDir, directory, flags, going_on
from optree._cli.program import command_line
from optree._cli.screen import show, show_json, size, working
from optree._cli.sessions import Row, State, check_directory, describe, settled
from optree._store import Directory
from optree._store.files.lock import is_running
from optree._store.reading.runs import was_auto
from optree.errors import NotFoundError, OptreeError

SHOWN = 5


def status(*, sessions_dir: SessionsDir = None, billing_file: BillingFile = None, as_json: Json = False) -> None:
    """Show how the sessions directory fares: its size, what is running, what was interrupted, where the ledger is.

    Of sessions that are mirrored to OpenTelemetry also what no collector has yet, and whether the one that the environment names answers.

    A session that ended, and that its own process could not save and bill to the end, is settled first.

    Example: [bold]optree status[/bold]
    """
    where = directory(sessions_dir, billing_file)
    check_directory(where, sessions_dir)
    settled(where)
    saved = where.saved()
    rows: list[Row] = []
    with working("reading sessions", len(saved)) as step:
        for session in saved:
            rows.append(describe(session, where))
            step()
        report = _plain(where, rows) | _mirrored(where)
    if as_json:
        show_json(report)
    else:
        show("\n".join(_lines(report, rows, where)), fold=True)


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


def _lines(report: dict[str, Any], rows: list[Row], where: Directory) -> list[str]:
    unwritable = "" if report["writable"] else " (cannot be written)"
    lines = [
        f"sessions     {report['sessions']}, {size(report['bytes'])}, in {report['sessionsDir']}{unwritable}",
        f"running      {_named(report['running'])}",
        f"interrupted  {_named([_interrupted(row) for row in rows if row.state == 'interrupted'])}",
        f"damaged      {_named(report['damaged'])}",
        *([f"incomplete   {_named(report['incomplete'])} (optree load TXN says what was lost)"] if report["incomplete"] else []),
        f"ledger       {size(report['billingBytes']) if report['billingBytes'] else 'none yet'}, {report['billingFile']}",
    ]
    lines += _unsent(report["pending"], report["collector"])
    txn = next(iter(report["interrupted"]), None)
    hints = [] if txn is None else [f"go on with   {going_on(txn, where, auto=was_auto(where.find(txn)))}"]
    send = command_line(["optree", "export", "--pending", *flags(where, billing=False)])
    hints += [f"send them    {send}"] if report["pending"] else []
    return lines + hints


def _interrupted(row: Row) -> str:
    known_for = row.lasted()
    return f"{row.txn} ({known_for})" if known_for else row.txn


def _mirrored(where: Directory) -> dict[str, Any]:
    """Return what of mirrored sessions is not delivered, and whether the collector that the environment names takes anything."""
    unsent = [
        {"txn": txn, "spans": spans, "destination": destination(txn, where)} for txn in pending(where) if (spans := _spans(txn, where)) != 0
    ]
    endpoint, trouble = collector() if unsent else ("", "")
    return {"pending": unsent, "collector": {"endpoint": endpoint, "trouble": trouble} if endpoint else None}


def _spans(txn: str, where: Directory) -> int | None:
    """Return how many spans of a session wait to be sent; 0 if its own process is at it, or it was removed, None if it cannot be read."""
    try:
        return 0 if is_running(where.live(txn)) else waiting(txn, where)
    except NotFoundError:
        return 0
    except (OptreeError, OSError, RecursionError):
        return None


def _unsent(pending: list[dict[str, Any]], collector: dict[str, str] | None) -> list[str]:
    if not pending:
        return []
    named = [f"{item['txn']} ({'unreadable' if item['spans'] is None else item['spans']})" for item in pending]
    lines = [f"not sent     {_named(named)} spans of mirrored sessions"]
    to = Counter(item["destination"] or "an unknown destination" for item in pending).most_common(SHOWN)
    answers = {collector["endpoint"]: f": {collector['trouble'] or 'answers'}"} if collector is not None else {}
    lines += [f"{'waiting for' if at == 0 else '':12} {where} ({count}){answers.pop(where, '')}" for at, (where, count) in enumerate(to)]
    return lines + [f"collector    {where}{answer}" for where, answer in answers.items()]


def _named(txns: list[str]) -> str:
    more = f" and {len(txns) - SHOWN} more" if len(txns) > SHOWN else ""
    return f"{len(txns)}: {', '.join(txns[:SHOWN])}{more}" if txns else "none"


def _writable(path: Path) -> bool:
    """Tell whether sessions can be written to a directory, or where it will be made."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
