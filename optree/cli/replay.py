"""`optree replay` and `optree fork`: a program run again with the answers that a saved session has in place of its provider's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from optree.capture.replay import DIFFERENCE, FORK_AT, REPLAY, Replay
from optree.cli.options import BillingFile, Otel, SessionsDir, TraceLlm, TraceTools, Txn, Verbose, directory
from optree.cli.program import command_line
from optree.cli.run import Tracing, run_traced
from optree.cli.screen import complain
from optree.errors import SetupError
from optree.nodes import REPLAY_OF
from optree.store.directory import Directory, exists
from optree.store.recovery import load
from optree.tracing.config import DISABLED, is_disabled
from optree.tree.walk import walk_ops

_DIFFERENT = 1
_SHOWN = 10
Command = Annotated[list[str] | None, typer.Argument(metavar="-- CMD", help="The program and its arguments.", show_default=False)]


def replay(
    *,
    txn: Txn,
    command: Command = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    otel: Otel = None,
) -> None:
    """Run a program with the answers that models gave in a saved session. No request is sent to a model.

    A request gets what the same request got then. One that was not recorded is refused, with where it differs. Tools run. The run is
    recorded as a session of its own. The exit code is the program's, or 1 if a request differed or a recorded one did not come.

    Example: [bold]optree replay last -- python agent.py[/bold]
    """
    _run(txn, None, command, directory(sessions_dir, billing_file), Tracing(verbose, trace_llm, trace_tools, otel=otel, auto=True))


def fork(
    *,
    txn: Txn,
    at: Annotated[str, typer.Option("--at", metavar="PATH", help="The op or turn from which on models are asked.", show_default=False)],
    command: Command = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    otel: Otel = None,
) -> None:
    """Run a program as [bold]optree replay[/bold] does up to an op or turn of the session; from there on models are asked.

    What was called before that op began gets what it got then; every other request is sent.

    Example: [bold]optree fork last --at 2.3 -- python agent.py[/bold]
    """
    _run(txn, at, command, directory(sessions_dir, billing_file), Tracing(verbose, trace_llm, trace_tools, otel=otel, auto=True))


def _run(txn: str, at: str | None, command: list[str] | None, where: Directory, tracing: Tracing) -> None:
    if not command:
        raise SetupError("it needs a program: write it behind two dashes, as in: optree replay last -- python agent.py")
    if is_disabled():
        raise SetupError(f"{DISABLED} switches optree off: without it no answer can be given")
    loaded = load(txn, where)
    recorded = Replay(loaded.txn, loaded.tree, at).left
    source = str(Path(txn).absolute()) if exists(Path(txn)) else loaded.txn
    environment = {REPLAY: source} | ({} if at is None else {FORK_AT: at})
    ran = run_traced(command, where, replace(tracing, replay=environment))
    ops = [op for name in ran.txns for _, _, op in walk_ops(load(name, where).session) if op.kind == "llm"]
    answered = {str(op.attributes[REPLAY_OF]).rpartition(":")[2] for op in ops if REPLAY_OF in op.attributes}
    different = [op for op in ops if DIFFERENCE in op.attributes]
    missing = [path for path in recorded if path not in answered]
    phrases = [f"{len(answered)} of {len(recorded)} calls of models were answered as in {loaded.txn}"]
    if at is not None:
        phrases.append(f"{len(ops) - len(answered)} were asked")
    if missing:
        phrases.append(f"not asked for: {', '.join(missing[:_SHOWN])}{', …' if len(missing) > _SHOWN else ''}")
    if different:
        phrases.append(f"{len(different)} differ, the first at {different[0].path}: {different[0].attributes[DIFFERENCE]}")
    complain("; ".join(phrases))
    if ran.txns and (different or missing):
        complain(f"what changed: optree diff {loaded.txn} {ran.txns[0]}")
    if missing and at is None:
        complain(
            f"with new answers from there on, if it is to change: optree fork {loaded.txn} --at {missing[0]} -- {command_line(command)}"
        )
    raise typer.Exit(ran.code or (_DIFFERENT if different or missing else 0))
