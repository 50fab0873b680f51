"""Running a program traced, anew or to go on with a session, and the one line that says what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optree.cli.options import SessionPlace
from optree.cli.program import NOT_EXECUTABLE, NOT_FOUND, command_line, run_program
from optree.cli.screen import complain, figures, json_line
from optree.cli.sessions import Row, describe, settled
from optree.errors import BusyError, NotFoundError
from optree.ids import new_txn
from optree.nodes import Totals
from optree.store.directory import Directory, Saved
from optree.store.lock import is_running
from optree.store.recovery import load_to_resume
from optree.tree.text import format_totals


@dataclass(frozen=True, slots=True)
class Tracing:
    """What the program is told by its environment, and how the end is reported."""

    verbose: bool = False
    trace_llm: bool = False
    trace_tools: bool = False
    as_json: bool = False
    otel: str | None = None
    """The collector to mirror to."""


def run_traced(command: list[str], directory: Directory, tracing: Tracing, resume: SessionPlace | None = None) -> int:
    """Run *command* traced, in a new session or to go on with *resume*; returns its exit code. Raises `BusyError`."""
    if resume is not None and is_running(resume.directory.live(resume.txn)):
        raise BusyError(f"session {resume.txn} is running; wait for it to end, or watch it with: optree logs -f {resume.txn}")
    if resume is not None:
        load_to_resume(resume.txn, resume.directory)  # what cannot be loaded cannot be gone on with: the program is not started
    txn = resume.txn if resume is not None else new_txn()
    before = _saved(txn, directory)
    try:
        code = run_program(command, _environment(txn, directory, tracing, again=resume is not None))
    except OSError as error:
        complain(f"cannot run {command[0]}: {error.strerror or error}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    settled(directory, txn)
    after = _saved(txn, directory)
    recorded = after if before is None or after is None or after.modified > before.modified else None
    row = describe(recorded, directory) if recorded is not None else None
    _report(_Outcome(txn, code, row, _where(recorded)), command, directory, tracing)
    return code


@dataclass(frozen=True, slots=True)
class _Outcome:
    txn: str
    code: int
    row: Row | None
    file: Path | None


def _environment(txn: str, directory: Directory, tracing: Tracing, *, again: bool) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name not in ("OPTREE_TXN", "OPTREE_RESUME")}
    found["OPTREE_RESUME" if again else "OPTREE_TXN"] = txn
    found["OPTREE_SESSIONS_DIR"] = str(directory.sessions.absolute())
    found["OPTREE_BILLING_FILE"] = str(directory.billing.absolute())
    for name in ("verbose", "trace_llm", "trace_tools"):
        if getattr(tracing, name):
            found[f"OPTREE_{name.upper()}"] = "1"
    if tracing.otel is not None:
        found |= {"OPTREE_OTEL": "on", "OPTREE_OTEL_ENDPOINT": tracing.otel}
    return found


def _saved(txn: str, directory: Directory) -> Saved | None:
    try:
        found = directory.find(txn)
    except NotFoundError:
        return None
    return found if found.txn == txn else None


def _where(saved: Saved | None) -> Path | None:
    return None if saved is None else saved.live or saved.snapshot


def _report(outcome: _Outcome, command: Sequence[str], directory: Directory, tracing: Tracing) -> None:
    resume = command_line(["optree", "load", outcome.txn, *_flags(directory), "--", *command])
    row = outcome.row
    if tracing.as_json:
        sys.stderr.write(json_line(_plain(outcome, resume)) + "\n")
        return
    if row is None:
        complain(_unsaved(directory) or _nothing(outcome.txn, directory))
        return
    totals = format_totals(row.totals)
    said = " · ".join(filter(None, (f"session {row.txn} {_said(row, outcome)} in {outcome.file}", totals)))
    complain(f"{said}; go on with: {resume}" if row.state in _RESUMED else said)


_RESUMED = ("failed", "cancelled", "interrupted")


def _flags(directory: Directory) -> list[str]:
    """Return the options that name a directory and ledger other than those of the environment."""
    usual = Directory.of()
    sessions = [] if directory.sessions == usual.sessions else ["--sessions-dir", str(directory.sessions)]
    return sessions if directory.billing == usual.billing else [*sessions, "--billing-file", str(directory.billing)]


def _said(row: Row, outcome: _Outcome) -> str:
    said = {
        "ended": "is saved",
        "failed": "failed, and is saved",
        "cancelled": "was cancelled, and is saved",
        "interrupted": f"was interrupted (exit code {outcome.code}), and is saved",
        "running": "is still being written by a process that the program started,",
        "damaged": "is damaged",
    }
    return said[row.state]


def _unsaved(directory: Directory) -> str:
    """Return why no session can be saved, if that is so."""
    there = next(one for one in (directory.sessions.absolute(), *directory.sessions.absolute().parents) if os.path.exists(one))  # noqa: PTH110 - False where it may not be looked
    why = "is no directory" if not there.is_dir() else "" if os.access(there, os.W_OK | os.X_OK) else "cannot be written"
    return f"no session could be saved: {there} {why}; name another place with --sessions-dir" if why else ""


def _nothing(txn: str, directory: Directory) -> str:
    parent = os.environ.get("OPTREE_PARENT", "").partition(":")[0]
    if parent:
        return f"the program was started from session {parent}, and what it recorded is there (optree tree {parent})"
    return (
        f"the program recorded nothing as session {txn} in {directory.sessions}: decorate its agent with @optree.session, "
        "and its steps with @optree.llm and @optree.tool"
    )


def _plain(outcome: _Outcome, resume: str) -> dict[str, Any]:
    row = outcome.row
    return {
        "txn": outcome.txn,
        "state": row.state if row else "nothing",
        "exit": outcome.code,
        "saved": str(outcome.file) if outcome.file else None,
        "totals": figures(row.totals if row else Totals()),
        "resume": resume if row and row.state in _RESUMED else None,
    }
