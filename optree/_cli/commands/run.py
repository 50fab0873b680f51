"""`optree run`: a program traced, anew or to go on with a session, and the lines that say what came of it: one a session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from optree._capture import START
from optree._capture.replay import FORK_AT
from optree._cli.options import (
    Auto,
    BillingFile,
    JsonOfRun,
    Otel,
    SessionPlace,
    SessionsDir,
    TraceLlm,
    TraceTools,
    Verbose,
    complete_txn,
    directory,
    flags,
    going_on,
    place,
)
from optree._cli.program import NOT_EXECUTABLE, NOT_FOUND, command_line, run_program
from optree._cli.screen import complain, figures, json_line, tell
from optree._cli.sessions import Row, describe, settled, unfinished
from optree._ids import is_txn, new_txn
from optree._nodes import Totals
from optree._store.files.lock import is_running
from optree._store.files.unusable import usable
from optree._store.opening import RUN, RUN_FILE
from optree._store.reading.directory import TEMPORARY, Directory, Saved, recorded
from optree._store.reading.recovery import load_to_resume
from optree._store.reading.runs import MOST_LOOKED_AT, find_run, run_of
from optree._syscalls import calls
from optree._tracing.config import DISABLED, is_disabled
from optree._tree.text import format_totals
from optree.errors import BusyError, SetupError

REMOVED = {
    "--save": "sessions are always saved; --sessions-dir DIR says where",
    "--save-all": "sessions are always saved, sub-agents in them; --sessions-dir DIR says where",
    "--save-session": "sessions are always saved; --sessions-dir DIR says where",
    "--accounting": "accounting is always written; --billing-file FILE says where",
}
_PROBE_BYTES = 4096
MOST_NAMED = 10
"""Sessions that are named at the end, of a program that recorded many."""
_RESUMED = ("failed", "cancelled", "interrupted")


class RunCommand(TyperCommand):
    """Names the replacement of an option that the original ai-agent had."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command's own part of the command line."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name: Any = getattr(error, "option_name", None)
            if name in REMOVED:
                raise SetupError(f"{name} was removed: {REMOVED[name]}") from error
            raise


def run(
    *,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD", help="The program and its arguments.", show_default=False)
    ] = None,
    sessions_dir: SessionsDir = None,
    billing_file: BillingFile = None,
    verbose: Verbose = False,
    trace_llm: TraceLlm = False,
    trace_tools: TraceTools = False,
    auto: Auto = False,
    otel: Otel = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="TXN", help="Go on with a saved session, as `optree load TXN -- CMD` does.", autocompletion=complete_txn
        ),
    ] = None,
    as_json: JsonOfRun = False,
) -> None:
    """Run a program traced, and save its session.

    Stdin and stdout are the program's, and so is the exit code (128 + n if signal n ended it). Recorded is what its decorators mark.

    At the end, a line on stderr says where each session is, or how to go on with it.

    Example: [bold]optree run --verbose -- python agent.py "why is the sky blue?"[/bold]
    """
    if not command:
        raise SetupError("optree run needs a program: write it behind two dashes, as in: optree run -- python agent.py")
    where = directory(sessions_dir, billing_file)
    session_place = place(resume, where) if resume is not None else None
    tracing = Tracing(verbose, trace_llm, trace_tools, as_json, otel, auto)
    raise typer.Exit(run_traced(command, session_place.directory if session_place else where, tracing, session_place).code)


@dataclass(frozen=True, slots=True)
class Tracing:
    """What the program's environment has, and how the end is reported."""

    verbose: bool = False
    trace_llm: bool = False
    trace_tools: bool = False
    as_json: bool = False
    otel: str | None = None
    """The collector to mirror to."""
    auto: bool = False
    replay: Mapping[str, str] | None = None
    """The variables that name the session whose answers the program gets."""


class Ran(NamedTuple):
    """What became of a program."""

    code: int
    """Its exit code."""
    txns: list[str]
    """The root sessions that it recorded."""


def run_traced(command: list[str], directory: Directory, tracing: Tracing, resume: SessionPlace | None = None) -> Ran:
    """Run *command* traced, in a new session or to go on with *resume*. Raises `BusyError`."""
    if resume is not None and is_running(resume.directory.live(resume.txn)):
        watch = command_line(["optree", "logs", "-f", resume.txn, *flags(resume.directory, billing=False)])
        raise BusyError(f"session {resume.txn} is running; wait for it to end, or watch it with: {watch}")
    if resume is not None:
        load_to_resume(resume.txn, resume.directory)  # what cannot be loaded cannot be gone on with: the program is not started
        _check_room(resume.directory.sessions)
        _say_others(resume)
    txn = resume.txn if resume is not None else new_txn()
    before = recorded(directory, txn)
    try:
        code, begun = _run(command, _environment(txn, directory, tracing, again=resume is not None))
    except OSError as error:
        complain(f"cannot run {command[0]}: {error.strerror or error}")
        return Ran(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE, [])
    noted = [ran_txn for ran_txn in begun if ran_txn != txn]
    settled(directory, [txn, *noted])
    after = recorded(directory, txn)
    saved = after if before is None or after is None or after.modified > before.modified else None
    others = [other for ran_txn in noted if (other := recorded(directory, ran_txn)) is not None]
    _report(_Outcome(txn, code, _named(saved, directory), others, command, directory, begun, tracing.auto), tracing)
    return Ran(code, [*([txn] if saved else []), *(session.txn for session in others)])


def _say_others(resume: SessionPlace) -> None:
    """Say, of a run that recorded several sessions, that a program goes on with one, and which others stay as they broke off."""
    run = find_run(resume.txn, resume.directory, most=MOST_LOOKED_AT)
    if len(run.sessions) <= 1:
        return
    said = f"the first session that the program begins goes on with {resume.txn}, others that it begins are new ones of the same run"
    if others := unfinished(run, resume.directory, but=resume.txn):
        names = ", ".join(row.txn for row in others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
        said += f"; {len(others):,} stay{'s' if len(others) == 1 else ''} interrupted: {names}"
    complain(said)


def _check_room(sessions: Path) -> None:
    """Raise `OptreeError` where nothing can be written: what cannot be recorded cannot be gone on with."""
    path = sessions / f"{TEMPORARY}{os.getpid()}"
    with usable(sessions):
        try:
            path.write_bytes(bytes(_PROBE_BYTES))
        finally:
            with suppress(FileNotFoundError):
                calls.unlink(path)


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, dict[str, int]]:
    """Run a program; returns its exit code, and the root sessions that its processes began, with how many records of each are lost.

    Raises as `run_program` does.
    """
    name = ""  # where no file can be made, nothing is noted
    with suppress(OSError):
        fd, name = mkstemp(prefix="optree-run-")
        os.close(fd)
    begun: dict[str, int] = {}
    try:
        code = run_program(command, environment | {RUN_FILE: name})
        with suppress(OSError):
            for line in Path(name).read_text("utf-8", "replace").splitlines():
                txn, _, lost = line.partition(" ")
                if is_txn(txn):
                    begun[txn] = begun.get(txn, 0) + (int(lost) if lost.isdecimal() else 0)
        return code, begun
    finally:
        with suppress(OSError):
            calls.unlink(name)


@dataclass(frozen=True, slots=True)
class _Named:
    """A session that the program recorded."""

    row: Row
    file: Path | None


@dataclass(frozen=True, slots=True)
class _Outcome:
    txn: str
    code: int
    named: _Named | None
    """The session of that txn, if the program recorded it."""
    others: list[Saved]
    """What else it recorded, in the order of begin."""
    command: Sequence[str]
    directory: Directory
    begun: Mapping[str, int]
    """All root sessions that were begun, with how many records of each are lost."""
    auto: bool = False
    """Whether calls of models were recorded without a change of the program."""

    def listed(self) -> list[_Named]:
        """Return which of the others are named: those with work left, which have a live directory, come first."""
        most = MOST_NAMED - (self.named is not None)
        first = sorted(self.others, key=lambda saved: saved.live is None)[:most]
        return [named for named in (_named(saved, self.directory) for saved in first) if named is not None]

    def resume(self, txn: str) -> str:
        """Return the command that goes on with a session."""
        return going_on(txn, self.directory, auto=self.auto, command=self.command)


def _named(saved: Saved | None, directory: Directory) -> _Named | None:
    return None if saved is None else _Named(describe(saved, directory), saved.live or saved.snapshot)


def _environment(txn: str, directory: Directory, tracing: Tracing, *, again: bool) -> dict[str, str]:
    result = {name: value for name, value in os.environ.items() if name not in ("OPTREE_TXN", "OPTREE_RESUME")}
    result["OPTREE_RESUME" if again else "OPTREE_TXN"] = txn
    result[RUN] = run_of(directory.find(txn)) if again else txn
    result |= tracing.replay or {}
    result["OPTREE_SESSIONS_DIR"] = str(directory.sessions.absolute())
    result["OPTREE_BILLING_FILE"] = str(directory.billing.absolute())
    for name in ("verbose", "trace_llm", "trace_tools"):
        if getattr(tracing, name):
            result[f"OPTREE_{name.upper()}"] = "1"
    if tracing.auto:
        result |= {"OPTREE_AUTO": "1", "PYTHONPATH": os.pathsep.join(filter(None, (START, os.environ.get("PYTHONPATH"))))}
    if tracing.otel is not None:
        result |= {"OPTREE_OTEL": "on", "OPTREE_OTEL_ENDPOINT": tracing.otel}
    return result


def _report(outcome: _Outcome, tracing: Tracing) -> None:
    listed = outcome.listed()
    more = len(outcome.others) - len(listed)
    if tracing.as_json:
        tell(json_line(_plain(outcome, listed, more)))
        return
    named = [*([outcome.named] if outcome.named else []), *listed]
    for session in named:
        sentence = " · ".join(
            filter(
                None,
                (
                    f"session {session.row.txn} {_state_phrase(session.row, outcome)} in {session.file}{_lost(session.row, outcome)}",
                    format_totals(session.row.totals),
                ),
            )
        )
        goes_on = session.row.state in _RESUMED and (
            tracing.replay is None or FORK_AT in tracing.replay
        )  # a replay that goes on would ask models
        complain(f"{sentence}; go on with: {outcome.resume(session.row.txn)}" if goes_on else sentence)
    if more:
        complain(f"and {more:,} more session{'' if more == 1 else 's'} (optree ls)")
    if not named:
        why = _hindrance(outcome.directory)  # then no file may have told what was begun
        reason = f": {why}" if why else f" in {outcome.directory.sessions}"
        unsaved = f"no session could be saved{reason}; name another place with --sessions-dir"
        is_elsewhere = is_disabled() or os.environ.get("OPTREE_PARENT")
        complain(unsaved if outcome.begun or (why and not is_elsewhere) else _nothing(outcome))


def _lost(row: Row, outcome: _Outcome) -> str:
    lost = outcome.begun.get(row.txn, 0)
    return f" but for {lost:,} record{'' if lost == 1 else 's'}, which {'is' if lost == 1 else 'are'} lost" if lost else ""


def _state_phrase(row: Row, outcome: _Outcome) -> str:
    phrases = {
        "ended": "is saved",
        "failed": "failed, and is saved",
        "cancelled": "was cancelled, and is saved",
        "interrupted": f"was interrupted (exit code {outcome.code}), and is saved",
        "running": "is still being written by a process that the program started,",
        "damaged": "is damaged",
    }
    return phrases[row.state]


def _hindrance(directory: Directory) -> str:
    """Return why no session can be saved; empty if nothing hinders that now."""
    if directory.homeless:
        return "you have no home directory"
    existing = next(path for path in (directory.sessions.absolute(), *directory.sessions.absolute().parents) if os.path.exists(path))  # noqa: PTH110 - False where it may not be looked
    why = "is no directory" if not existing.is_dir() else "" if os.access(existing, os.W_OK | os.X_OK) else "cannot be written"
    return why and f"{existing} {why}"


def _nothing(outcome: _Outcome) -> str:
    parent = os.environ.get("OPTREE_PARENT", "").partition(":")[0]
    if parent:
        shown = command_line(["optree", "tree", parent, *flags(outcome.directory, billing=False)])
        return f"the program was started from session {parent}, and what it recorded is there ({shown})"
    if is_disabled():
        return f"the program recorded nothing: {DISABLED}={os.environ[DISABLED]!r} switches optree off"
    way = ", and asked no model that is seen (optree instrument lists what is)" if outcome.auto else ""
    other = "" if outcome.auto else ", or record its calls of models by --auto"
    return (
        f"the program recorded nothing as session {outcome.txn} in {outcome.directory.sessions}{way}: decorate its agent with "
        f"@optree.session, and its steps with @optree.llm and @optree.tool{other}"
    )


def _plain(outcome: _Outcome, listed: Sequence[_Named], more: int) -> dict[str, Any]:
    lost = outcome.begun.get(outcome.txn, 0)
    nothing = {"txn": outcome.txn, "state": "nothing", "lost": lost, "saved": None, "totals": figures(Totals()), "resume": None}
    named = _plain_session(outcome, outcome.named) if outcome.named else nothing
    return named | {"exit": outcome.code, "others": [_plain_session(outcome, session) for session in listed], "more": more}


def _plain_session(outcome: _Outcome, session: _Named) -> dict[str, Any]:
    return {
        "txn": session.row.txn,
        "state": session.row.state,
        "lost": outcome.begun.get(session.row.txn, 0),
        "saved": str(session.file) if session.file else None,
        "totals": figures(session.row.totals),
        "resume": outcome.resume(session.row.txn) if session.row.state in _RESUMED else None,
    }
