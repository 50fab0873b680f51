"""`optree replay` and `optree fork`: a program run again with the answers that a saved session has in place of its provider's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from optree._capture.replay import (
    DIFFERENCE,
    FORK_AT,
    GIVEN,
    NOT_THROUGH,
    RAN_FOR,
    REPLAY,
    TOOLS,
    WHY,
    WITHOUT_CONTENT,
    Replay,
    is_cached,
    is_replay,
)
from optree._capture.replay import Tools as ToolsKind
from optree._capture.replay.recorded import RecordedCall
from optree._cli.commands.run import Tracing, run_traced
from optree._cli.options import BillingFile, Otel, SessionsDir, TraceLlm, TraceTools, Txn, Verbose, directory, flags
from optree._cli.program import command_line
from optree._cli.screen import complain
from optree._cli.sessions import say_lost
from optree._nodes import REPLAY_OF, OperationNode
from optree._store.reading.directory import Directory, readable
from optree._store.reading.recovery import Loaded, load, names_file
from optree._store.reading.runs import load_run
from optree._tracing.config import DISABLED, is_disabled
from optree._tracing.runtime import RUNTIME
from optree._tree import Tree
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
    [bold]last[/bold] is no replay itself. All sessions that the program recorded in that run are answered; the new one is recorded as
    sessions of its own. The exit code is the program's, or 1 if a call differed or a recorded one did not come.

    Example: [bold]optree replay last -- python agent.py[/bold]
    """
    _run(txn, None, tools, command, directory(sessions_dir, billing_file), Tracing(verbose, trace_llm, trace_tools, otel=otel, auto=True))


def fork(
    *,
    txn: Txn,
    at: Annotated[
        str, typer.Option("--at", metavar="PATH", help="The op or turn from which on models are asked, such as 2.3.", show_default=False)
    ],
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
    if not RUNTIME.config.content:
        raise SetupError(f"no answer can be given: {WITHOUT_CONTENT}")
    before = _found(txn, where)
    named = next(iter(before))
    recorded = Replay(before, at, tools=tools)
    source = str(Path(txn).absolute()) if names_file(txn) else named
    with TemporaryDirectory(prefix="optree-replay-", ignore_cleanup_errors=True) as given:
        environment = {REPLAY: source, TOOLS: tools, GIVEN: given} | ({} if at is None else {FORK_AT: at})
        ran = run_traced(command, where, replace(tracing, replay=environment))
    trees = {name: load(name, where).tree for name in ran.txns}
    ops = _Ops(trees)
    different = [op for op in ops.all if DIFFERENCE in op.attributes]
    missing = recorded.not_made(trees.values())
    unanswered = _live(ops.all)
    live = [op for op in unanswered if not is_cached(op)]
    source_said = named if len(before) == 1 else f"{named} and {len(before) - 1} more of its run"
    phrases = _counted(recorded, ops, source_said, is_fork=at is not None, is_given=tools == "recorded")
    if cached := len(unanswered) - len(live):
        phrases.append(_by_cache(cached, before))
    if missing:
        phrases.append(f"not asked for: {_listed(missing, several=len(before) > 1)}")
    if different:
        phrases.append(f"{len(different)} differ, the first at {ops.place(different[0])}: {different[0].attributes[DIFFERENCE]}")
    complain("; ".join(phrases))
    if changed := _changed(before, trees, {call.txn for call in missing} | {ops.txns[id(op)] for op in different}):
        complain(f"what changed: {command_line(['optree', 'diff', *changed, *flags(where, billing=False)])}")
    if any(op.kind == "tool" for op in different):
        how = ["replay", named] if at is None else ["fork", named, "--at", at]
        complain(f"with tools that run: {command_line(['optree', *how, '--tools', 'live', *flags(where), '--', *command])}")
    first = recorded.first_of(missing, _within(recorded, ops)) if missing or different else None
    is_vain = at is not None or unanswered or any(map(_is_ungiven, different))
    if first is not None and not is_vain and recorded.forks_at(first):
        forked = command_line(["optree", "fork", first.txn, "--at", first.node.path, *flags(where), "--", *command])
        complain(f"with new answers from there on, if it is to change: {forked}")
    raise typer.Exit(ran.code or (_DIFFERENT if different or missing else 0))


def _found(txn: str, where: Directory) -> dict[str, Tree]:
    """Load the sessions of a run, the named one first; `last` is the one that began last and is of no replay."""
    if txn != "last":
        return _trees(load_run(txn, where))
    with readable(where.sessions):
        for saved in where.saved():
            with suppress(NotFoundError):  # it is gone meanwhile
                if is_replay(load(saved.txn, where).tree):
                    continue
                found = _trees(load_run(saved.txn, where))
                if not any(map(is_replay, found.values())):
                    return found
    load(txn, where)  # which says that there is none
    raise NotFoundError(f"all sessions in {where.sessions} are replays: name the one that is to be replayed (optree ls lists them)")


def _trees(run: Mapping[str, Loaded]) -> dict[str, Tree]:
    """Return the trees of sessions, of which it is said what could not be read: their calls may lack answers."""
    for loaded in run.values():
        say_lost(loaded)
    return {txn: loaded.tree for txn, loaded in run.items()}


class _Ops:
    """The calls of models and tools in the sessions that a program recorded."""

    def __init__(self, trees: Mapping[str, Tree]) -> None:
        found = [(txn, op) for txn, tree in trees.items() for _, _, op in walk_ops(tree.session) if op.kind in ("llm", "tool")]
        found.sort(key=lambda one: one[1].started_at)
        self.all = [op for _, op in found]
        """In the order in which they began."""
        self.txns = {id(op): txn for txn, op in found}
        self.answered = {str(op.attributes[REPLAY_OF]) for op in self.all if REPLAY_OF in op.attributes}
        """The names of the recorded calls whose answers they got."""
        self._are_many = len(trees) > 1

    def place(self, op: OperationNode) -> str:
        """Return where an op is: its path, and of several sessions the txn."""
        return f"{op.path} of {self.txns[id(op)]}" if self._are_many else op.path


def _within(recorded: Replay, calls: _Ops) -> set[str]:
    """Return the names of the calls that had been made within calls of tools that got their results: they are not made again."""
    return {name for call in recorded.tools if call.name in calls.answered for name in call.inside}


def _listed(missing: list[RecordedCall], *, several: bool) -> str:
    """Return the paths of calls, by session if there are several."""
    paths: dict[str, list[str]] = {}
    for call in missing[:_SHOWN]:
        paths.setdefault(call.txn, []).append(call.node.path)
    said = [f"{', '.join(listed)}{f' of {txn}' if several else ''}" for txn, listed in paths.items()]
    return " and ".join(said) + (", …" if len(missing) > _SHOWN else "")


def _changed(before: Mapping[str, Tree], after: Iterable[str], differing: set[str]) -> tuple[str, str] | None:
    """Return the first two sessions, as they began one after another in both runs, of which one is *differing*."""
    pairs = zip(sorted(before, key=lambda txn: before[txn].session.started_at), after, strict=False)
    return next((pair for pair in pairs if differing.intersection(pair)), None)


def _calls(ops: list[OperationNode], of: str) -> str:
    return f"{len(ops)} call{'' if len(ops) == 1 else 's'} of {of} {'was' if len(ops) == 1 else 'were'}"


def _live(ops: list[OperationNode]) -> list[OperationNode]:
    """Return the calls of models that got no recorded answer and were not refused."""
    return [op for op in ops if op.kind == "llm" and REPLAY_OF not in op.attributes and DIFFERENCE not in op.attributes]


def _by_cache(cached: int, before: Mapping[str, Tree]) -> str:
    """Say how many calls of models the program's framework answered from its own cache, which is DSPy's."""
    then = sum(op.kind == "llm" and is_cached(op) for tree in before.values() for _, _, op in walk_ops(tree.session))
    calls = f"{cached} call{'' if cached == 1 else 's'} of models {'was' if cached == 1 else 'were'} answered by the program's own cache"
    return f"{calls}, as then" if cached <= then else f"{calls}, and not by the recording: DSPY_CACHEDIR=an empty folder"


def _is_ungiven(op: OperationNode) -> bool:
    return str(op.attributes[DIFFERENCE]).startswith(NOT_THROUGH)


def _counted(recorded: Replay, calls: _Ops, source: str, *, is_fork: bool, is_given: bool) -> list[str]:
    """Say how many calls got recorded answers, and which did not; *is_given*: tools get their results."""
    ops, answered, within = calls.all, calls.answered, _within(recorded, calls)
    models = {call.name for call in recorded.models}
    tools = {call.name for call in recorded.tools if not call.inside or call.name in answered} - within
    asked = models - within
    phrases = [f"{len(answered & asked)} of {len(asked)} calls of models were answered as in {source}"]
    if tools:
        inner = f", within which {len(models & within)} of models had been made" if models & within else ""
        phrases.append(f"{len(answered & tools)} of {len(tools)} calls of tools got their results{inner}")
    if again := [op for op in ops if WHY in op.attributes]:
        phrases.append(f"{len(again)} ran, the first at {calls.place(again[0])}: {again[0].attributes[WHY]}")
    live, told = [op for op in _live(ops) if not is_cached(op)], (REPLAY_OF, RAN_FOR, WHY, DIFFERENCE)
    if is_fork:
        return [*phrases, f"{len(live)} were asked"]
    if others := [op for op in ops if is_given and op.kind == "tool" and not any(name in op.attributes for name in told)]:
        phrases.append(f"{_calls(others, 'tools')} not replayed, the first at {calls.place(others[0])}")
    if live:
        they = "it is" if len(live) == 1 else "they are"
        phrases.append(f"{_calls(live, 'models')} made live: {they} not sent by httpx, aiohttp, botocore or websockets")
    return phrases
