"""`optree ls`: the sessions that are there."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from optree._cli.options import Json, SessionsDir, directory
from optree._cli.screen import painting, show, show_json, size, table, when, working
from optree._cli.sessions import Row, check_directory, describe
from optree._tree.totals import cost_cell, pico


def ls(
    *,
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Show the N newest only.")] = None,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """List the sessions, the one that began last first.

    Each with its agent, its state (running, interrupted, ended, failed or damaged; incomplete if something of it is lost), its start,
    duration (of one that was interrupted: at least), tokens, cost and size; where a program recorded several in one run, with the first
    of them: optree tree, cost, logs, messages and export take it with --run.

    Example: [bold]optree ls -n 10[/bold]
    """
    where = directory(sessions_dir)
    check_directory(where, sessions_dir)
    saved = where.saved()[:limit]
    rows: list[Row] = []
    with working("reading sessions", len(saved)) as step:
        for session in saved:
            rows.append(describe(session, where))
            step()
    if as_json:
        show_json([row.plain() for row in rows])
        return
    if not rows:
        show(f"no sessions in {where.sessions}; record one with: optree run -- python your_agent.py")
        return
    firsts = {row.run: row.txn for row in rows}  # the last that is listed began first
    several = {run for run, count in Counter(row.run for row in rows).items() if count > 1}
    cells = [(*_cells(row), *([firsts[row.run] if row.run in several else ""] if several else [])) for row in rows]
    columns = ("TXN", "AGENT", "STATE", "STARTED", "DURATION", "TOKENS", "COST", "SIZE", *(["RUN"] if several else []))
    head, *lines = table(columns, cells, "    rrrr")
    paint = painting()
    lines = [line.replace(f" {_state(row)} ", f" {paint(row.state, _state(row))} ", 1) for line, row in zip(lines, rows, strict=True)]
    show("\n".join([paint("title", head), *lines]), fold=True)


def _cells(row: Row) -> tuple[str, ...]:
    totals = row.totals
    sent = totals.all_input_tokens
    tokens = f"{sent:,}→{totals.output_tokens:,}" if sent or totals.output_tokens else "-"
    cost = cost_cell(pico(totals.cost_usd), totals.known_costs, totals.unknown_costs)
    return row.txn, row.agent, _state(row), when(row.started_at), row.lasted("≥") or "-", tokens, cost, size(row.size)


def _state(row: Row) -> str:
    return f"{row.state}, incomplete" if row.lossy else row.state
