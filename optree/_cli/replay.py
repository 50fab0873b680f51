"""`optree replay` and `optree fork`: a program run again with the answers that a saved session has in place of its provider's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from optree._capture.replay import DIFFERENCE, FORK_AT, NOT_THROUGH, RAN_FOR, REPLAY, TOOLS, WHY, Replay, is_replay
from optree._capture.replay import Tools as ToolsKind
from optree._cli.options import BillingFile, Otel, SessionsDir, TraceLlm, TraceTools, Txn, Verbose, directory
from optree._cli.program import command_line
from optree._cli.run import Tracing, run_traced
from optree._cli.screen import complain
from optree._nodes import REPLAY_OF, OperationNode
from optree._store.directory import Directory, exists, readable
from optree._store.recovery import Loaded, load
from optree._tracing.config import DISABLED, is_disabled
from optree._tree.walk import walk_ops
from optree.errors import NotFoundError, SetupError

_DIFFERENT = 1
_SHOWN = 10
Tools = Annotated[ToolsKind, typer.Option("--tools", help="Whether tools get what was recorded, or run: recorded or live.")]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- CMD", help="The program and its arguments.", show_default=False)]


def replay(
    *,
    txn: Txn,
    command: Command = None,
    tools: Tools = "recorded",
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    otel: Otel = None,
) -> None:
    """Run a program with what models and tools gave in a saved session, in place of asking and running them.

    A request gets what the same request got then, a call of a tool its result. One that was not recorded is refused, with where it differs.
    Models that are not asked by httpx, aiohttp, botocore or websockets are asked live, and some tools run, which is said.
    [bold]last[/bold] is no replay itself. The run is recorded as a session of its own. The exit code is the program's, or 1 if a call
    differed or a recorded one did not come.

    Example: [bold]optree replay last -- python agent.py[/bold]
    """
    _run(txn, None, tools, command, directory(sessions_dir, billing_file), Tracing(verbose, trace_llm, trace_tools, otel=otel, auto=True))


def fork(
    *,
    txn: Txn,
    at: Annotated[str, typer.Option("--at", metavar="PATH", help="The op or turn from which on models are asked.", show_default=False)],
    command: Command = None,
    tools: Tools = "recorded",
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    otel: Otel = None,
) -> None:
    """Run a program as [bold]optree replay[/bold] does up to an op or turn of the session; from there on models are asked, and tools run.

    What was called before that op began gets what it got then; every other request is sent, and every other tool runs.

    Example: [bold]optree fork last --at 2.3 -- python agent.py[/bold]
    """
    _run(txn, at, tools, command, directory(sessions_dir, billing_file), Tracing(verbose, trace_llm, trace_tools, otel=otel, auto=True))


def _run(txn: str, at: str | None, tools: ToolsKind, command: list[str] | None, where: Directory, tracing: Tracing) -> None:
    if not command:
        raise SetupError("it needs a program: write it behind two dashes, as in: optree replay last -- python agent.py")
    if is_disabled():
        raise SetupError(f"{DISABLED} switches optree off: without it no answer can be given")
    loaded = _found(txn, where)
    recorded = Replay(loaded.txn, loaded.tree, at, tools=tools)
    source = str(Path(txn).absolute()) if exists(Path(txn)) else loaded.txn
    environment = {REPLAY: source, TOOLS: tools} | ({} if at is None else {FORK_AT: at})
    ran = run_traced(command, where, replace(tracing, replay=environment))
    trees = [load(name, where).tree for name in ran.txns]
    ops = sorted((op for tree in trees for _, _, op in walk_ops(tree.session) if op.kind in ("llm", "tool")), key=lambda op: op.started_at)
    different = [op for op in ops if DIFFERENCE in op.attributes]
    missing = recorded.not_made(trees)
    live = _live(ops)
    phrases = _counted(recorded, ops, loaded.txn, is_fork=at is not None, is_given=tools == "recorded")
    if missing:
        phrases.append(f"not asked for: {', '.join(missing[:_SHOWN])}{', …' if len(missing) > _SHOWN else ''}")
    if different:
        phrases.append(f"{len(different)} differ, the first at {different[0].path}: {different[0].attributes[DIFFERENCE]}")
    complain("; ".join(phrases))
    again = command_line(command)
    if ran.txns and (different or missing):
        complain(f"what changed: optree diff {loaded.txn} {ran.txns[0]}")
    if any(op.kind == "tool" for op in different):
        how = f"replay {loaded.txn}" if at is None else f"fork {loaded.txn} --at {at}"
        complain(f"with tools that run: optree {how} --tools live -- {again}")
    if missing and at is None and not live and not any(map(_is_ungiven, different)) and recorded.forks_at(missing[0]):  # else it is in vain
        complain(f"with new answers from there on, if it is to change: optree fork {loaded.txn} --at {missing[0]} -- {again}")
    raise typer.Exit(ran.code or (_DIFFERENT if different or missing else 0))


def _found(txn: str, where: Directory) -> Loaded:
    """Load a session; `last` is the one that began last and is no replay."""
    if txn != "last":
        return load(txn, where)
    with readable(where.sessions):
        for saved in where.saved():
            with suppress(NotFoundError):  # it is gone meanwhile
                if not is_replay((loaded := load(saved.txn, where)).tree):
                    return loaded
    load(txn, where)  # which says that there is none
    raise NotFoundError(f"all sessions in {where.sessions} are replays: name the one that is to be replayed (optree ls lists them)")


def _calls(ops: list[OperationNode], of: str) -> str:
    return f"{len(ops)} call{'' if len(ops) == 1 else 's'} of {of} {'was' if len(ops) == 1 else 'were'}"


def _live(ops: list[OperationNode]) -> list[OperationNode]:
    return [op for op in ops if op.kind == "llm" and REPLAY_OF not in op.attributes and DIFFERENCE not in op.attributes]


def _is_ungiven(op: OperationNode) -> bool:
    return str(op.attributes[DIFFERENCE]).startswith(NOT_THROUGH)


def _counted(recorded: Replay, ops: list[OperationNode], txn: str, *, is_fork: bool, is_given: bool) -> list[str]:
    """Say how many calls got recorded answers, and which did not; *is_given*: tools get their results."""
    answered = {str(op.attributes[REPLAY_OF]).rpartition(":")[2] for op in ops if REPLAY_OF in op.attributes}
    models, tools = set(recorded.models), set(recorded.tools)
    phrases = [f"{len(answered & models)} of {len(models)} calls of models were answered as in {txn}"]
    if tools:
        phrases.append(f"{len(answered & tools)} of {len(tools)} calls of tools got their results")
    if again := [op for op in ops if WHY in op.attributes]:
        phrases.append(f"{len(again)} ran, the first at {again[0].path}: {again[0].attributes[WHY]}")
    live, told = _live(ops), (REPLAY_OF, RAN_FOR, WHY, DIFFERENCE)
    if is_fork:
        return [*phrases, f"{len(live)} were asked"]
    if others := [op for op in ops if is_given and op.kind == "tool" and not any(name in op.attributes for name in told)]:
        phrases.append(f"{_calls(others, 'tools')} not replayed, the first at {others[0].path}")
    if live:
        they = "it is" if len(live) == 1 else "they are"
        phrases.append(f"{_calls(live, 'models')} made live: {they} not sent by httpx, aiohttp, botocore or websockets")
    return phrases
