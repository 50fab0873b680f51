"""`optree load`: what was saved of a session; with a program, go on with it."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any

import typer

from optree._cli.commands.run import MOST_NAMED, Tracing, run_traced
from optree._cli.options import (
    Auto,
    BillingFile,
    Otel,
    SessionsDir,
    TraceLlm,
    TraceTools,
    Txn,
    Verbose,
    directory,
    flags,
    going_on,
    place,
)
from optree._cli.program import command_line
from optree._cli.screen import DAMAGED, figures, painting, show, show_json, when, working
from optree._cli.sessions import Row, State, is_auto, open_session, resume_of, run_with, state_of, unfinished
from optree._nodes import OperationNode, SessionNode, TurnNode
from optree._store import resume_session
from optree._store.files.unusable import usable
from optree._store.reading.directory import Directory
from optree._store.reading.recovery import Loaded, names_file
from optree._store.reading.runs import MOST_LOOKED_AT, load_run, was_auto
from optree._store.saving import StoreOptions
from optree._tracing.runtime import RUNTIME
from optree._tree.path import Path
from optree._tree.text import duration, format_totals, format_tree, seen_of, took
from optree._values import decode
from optree._visible import one_line
from optree.errors import NotFoundError, OptreeError, SetupError
from optree.redaction import redact

_ENDED = "its process had ended before: ended by optree load --end"
_END_SECONDS = 60.0
_SHOWN = 120
"""Characters of a log line, or of a partial answer's end."""


def load(
    *,
    txn: Txn,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD", help="Go on with the session in this program.", show_default=False)
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End a session that broke off as it is, so that its bill is in the ledger.")] = False,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    auto: Auto = False,
    otel: Otel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines; with CMD it is the last line on stderr.")] = False,
) -> None:
    """Show what was saved of a session, or go on with it.

    Without CMD: its tree, what was going on when it broke off, its damage if any (exit code 3), its totals. Nothing is changed.

    With CMD: the program goes on in the same session and the same trace; the options are those of `optree run`. Of a run that has several
    sessions it goes on with this one; what else it begins are new sessions of the same run.

    With --end: a session that nothing will go on with, as of a service that was stopped, is ended as cancelled, and shown.

    Example: [bold]optree load last[/bold], then [bold]optree load last -- python agent.py[/bold]
    """
    where = directory(sessions_dir, billing_file)
    if command and end:
        raise SetupError("--end ends the session as it is, and CMD goes on with it: leave one out")
    if end:
        _end(txn, where)
    if command:
        session_place = place(txn, where)
        tracing = Tracing(verbose, trace_llm, trace_tools, as_json, otel, auto)
        raise typer.Exit(run_traced(command, session_place.directory, tracing, session_place).code)
    loaded, live = open_session(txn, where)
    others = unfinished(run_with(txn, where, most=MOST_LOOKED_AT), where, but=loaded.txn)
    if as_json:
        show_json(_plain(loaded, live, others, where))
    else:
        _show(loaded, live, others, where)
    if loaded.damage.state == "damaged":
        raise typer.Exit(DAMAGED)


def _end(txn: str, where: Directory) -> None:
    """End a session that broke off: what was going on is closed as interrupted, and its lines go to the ledger."""
    if names_file(txn):
        raise SetupError(f"{one_line(txn)} is a file, and --end changes a session: name its txn (optree ls lists them)")
    loaded, _ = open_session(txn, where)
    if loaded.session.ended_at is not None:
        raise NotFoundError(f"session {loaded.txn} has ended: there is nothing to end")
    with usable(where.sessions):
        builder, store, _ = resume_session(loaded.txn, StoreOptions(where, RUNTIME.config.compression), only_open=True)
    builder.end_session("cancelled", _ENDED)
    with working(f"ending {loaded.txn}"):
        if not store.close(_END_SECONDS):
            raise OptreeError(f"session {loaded.txn} is not saved yet: optree status says what is left")


def _show(loaded: Loaded, live: FilePath | None, others: list[Row], where: Directory) -> None:
    style = painting()
    session, state = loaded.session, state_of(loaded.session, live)
    known_for = took(session, seen_of(session, live=state == "running"))
    least = "at least " if state == "interrupted" else ""
    lasted = "" if known_for is None else f", lasted {least}{duration(known_for / 1e3)}"
    lines = [
        f"session {style('title', loaded.txn)} of {one_line(session.agent_id)}: {style(state, state)}",
        f"started {when(session.started_at)}{lasted}; read from {', '.join(loaded.sources)}",
        *(f"{style('damaged', loaded.damage.state)}: {one_line(line)}" for line in loaded.damage.lines()),
        "",
        format_tree(session, live=state == "running", paint=style),
        "",
    ]
    going_on = _going_on(loaded)
    if going_on:
        lines.append("going on now:" if state == "running" else "going on when it broke off:")
        lines += [f"  {_last_state(node, style)}" for node in going_on]
        lines.append("")
    lines.append(f"totals: {format_totals(session.totals) or 'nothing was accounted'}")
    if state == "running":
        lines.append(f"watch it with: {command_line(['optree', 'logs', '-f', loaded.txn, *flags(where, billing=False)])}")
    else:
        lines.append(f"{'continue it' if state == 'ended' else 'go on'} with: {resume_of(loaded, where)}")
    if (fork := _fork_of(loaded, state, where)) is not None:
        lines.append(f"or begin anew, with the answers of all calls that began before the one that broke off: {fork}")
    if others:
        count = "1 more session" if len(others) == 1 else f"{len(others):,} more sessions"
        lines.append(f"of its run {count} did not end; a program goes on with one, and begins others anew:")
        lines += [f"  {one_line(row.agent)}, since {when(row.started_at)}: {_resume_other(row, where)}" for row in others[:MOST_NAMED]]
        lines += [f"  and {len(others) - MOST_NAMED:,} more"] if len(others) > MOST_NAMED else []
    show("\n".join(lines), fold=True)


def _resume_other(row: Row, where: Directory) -> str:
    return going_on(row.txn, where, auto=was_auto(where.find(row.txn)))


def _going_on(loaded: Loaded) -> list[SessionNode | TurnNode | OperationNode]:
    """Return what had no end, deepest first; of a sub-agent its session, not the op that it is in."""
    nodes = loaded.open_nodes()
    sessions = {node.path for node in nodes if isinstance(node, SessionNode)}
    innermost = [node for node in nodes if not isinstance(node, OperationNode) or node.path not in sessions]
    return sorted(innermost, key=lambda node: -len(Path.parse(node.path).parts))


def _fork_of(loaded: Loaded, state: State, where: Directory) -> str | None:
    """Return the command that runs a program again which knows nothing of optree, with the answers of calls before the one that broke off.

    None where there is no such call, or answers ahead of it came over a websocket: a fork gives none of these.
    """
    if state != "interrupted" or not is_auto(loaded):
        return None
    from optree._capture.replay import Replay

    try:
        recorded = Replay({txn: one.tree for txn, one in load_run(loaded.txn, where).items()})
    except OptreeError:  # a file of another place, or a damaged session of the run: what is asked for is shown
        return None
    point = recorded.breaks_off_at()
    if point is None or not recorded.forks_at(point):
        return None
    return command_line(["optree", "fork", point.txn, "--at", point.node.path, *flags(where), "--", "CMD"])


def _last_state(node: SessionNode | TurnNode | OperationNode, style: Any) -> str:
    if isinstance(node, SessionNode):
        description = f"session {node.agent_id}" + (f", {node.latest_status}" if node.latest_status else "")
    elif isinstance(node, TurnNode):
        description = f"turn {node.index}"
    else:
        description = f"{node.kind} {node.name}" + (f", {_last_log(node)}" if node.logs else "") + _partial_answer(node)
    return f"{style('path', node.path or '(root)')} {one_line(description)}, since {when(node.started_at)}"


def _partial_answer(op: OperationNode) -> str:
    """Return the end of the answer that was being streamed."""
    if op.response is None or not op.response.partial:
        return ""
    words = " ".join(redact(decode(op.response.payload)).split())
    return f", said so far “{words if len(words) <= _SHOWN else '…' + words[1 - _SHOWN :]}”"


def _last_log(op: OperationNode) -> str:
    last = op.logs[-1]
    return f"[{last.severity}] {' '.join(last.message.split())[:_SHOWN]}"


def _plain(loaded: Loaded, live: FilePath | None, others: list[Row], where: Directory) -> dict[str, Any]:
    session, state = loaded.session, state_of(loaded.session, live)
    damage = loaded.damage
    flaws = [{"file": flaw.file, "offset": flaw.offset, "bytes": flaw.size, "kind": flaw.kind, "said": flaw.said} for flaw in damage.flaws]
    return {
        "txn": loaded.txn,
        "agentId": session.agent_id,
        "state": state,
        "damage": {"state": damage.state, "said": damage.lines(), "flaws": flaws},
        "sources": loaded.sources,
        "open": [_open(node) for node in _going_on(loaded)],
        "totals": figures(session.totals),
        "resume": None if state == "running" else resume_of(loaded, where),
        "fork": _fork_of(loaded, state, where),
        "others": [
            {"txn": row.txn, "agentId": row.agent, "startedAt": row.started_at, "resume": _resume_other(row, where)} for row in others
        ],
        "session": session,
    }


def _open(node: SessionNode | TurnNode | OperationNode) -> dict[str, Any]:
    if isinstance(node, SessionNode):
        kind, name = "session", node.agent_id
    elif isinstance(node, TurnNode):
        kind, name = "turn", str(node.index)
    else:
        kind, name = node.kind, node.name
    last = _last_log(node) if isinstance(node, OperationNode) and node.logs else None
    return {"path": node.path, "kind": kind, "name": name, "startedAt": node.started_at, "lastLog": last}
