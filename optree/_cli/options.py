"""Arguments and options that several commands share, and how a shell completes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from optree._cli.program import command_line
from optree._store.reading.directory import SUFFIXES, Directory, exists
from optree._store.reading.formats import read_meta, read_snapshot
from optree._visible import one_line
from optree.errors import NotFoundError, SetupError
from optree.redaction import redact

_COMPLETED = 50


def complete_txn(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the sessions that *incomplete* may mean, those first that began last, each with its agent."""
    saved = [session for session in directory(ctx.params.get("sessions_dir")).saved() if session.txn.startswith(incomplete)][:_COMPLETED]
    agents = [(session.txn, _agent(session.snapshot) if session.snapshot else "not ended") for session in saved]
    return [("last", "the session that began last"), *agents] if "last".startswith(incomplete) else agents


def _agent(snapshot: Path) -> str:
    """Return a session's agent as a shell may show it beside a completion: rich does not take brackets in it for markup."""
    return one_line(redact(str(read_meta(snapshot).get("agentId", "")))).replace("[", "\\[")


SessionsDir = Annotated[
    Path | None,
    typer.Option(
        "--sessions-dir",
        metavar="DIR",
        help="Where sessions are kept. Without it OPTREE_SESSIONS_DIR, else ~/.optree/sessions.",
        readable=False,
    ),
]
BillingFile = Annotated[
    Path | None,
    typer.Option(
        "--billing-file",
        metavar="FILE",
        help="The ledger. Without it OPTREE_BILLING_FILE, else accounting.jsonl in ~/.optree.",
        readable=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
JsonOfRun = Annotated[bool, typer.Option("--json", help="Make the last line on stderr JSON, for machines.")]
Txn = Annotated[
    str,
    typer.Argument(
        metavar="TXN",
        help="A session: its txn or the beginning of it, [bold]last[/bold], or a file's path.",
        autocompletion=complete_txn,
        show_default=False,
    ),
]
_LAST = typer.Argument(
    metavar="TXN",
    help="A session: its txn or the beginning of it, [bold]last[/bold] (as without it), or a file's path.",
    autocompletion=complete_txn,
    show_default=False,
)
TxnOrLast = Annotated[str, _LAST]
TxnOrNone = Annotated[str | None, _LAST]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each request and response on stderr.")]
TraceLlm = Annotated[
    bool, typer.Option("--trace-llm", help="Print the payloads of LLM ops, with HTTP's details of captured calls; capped, no credentials.")
]
TraceTools = Annotated[bool, typer.Option("--trace-tools", help="Print the payloads of tool ops, capped and without credentials.")]
WholeRun = Annotated[bool, typer.Option("--run", help="All root sessions that the program recorded in that run.")]

Auto = Annotated[
    bool,
    typer.Option("--auto", help="Record the calls of models that the program makes, without a change of it."),
]
Otel = Annotated[
    str | None,
    typer.Option("--otel", metavar="URL", help="Mirror the session to the OpenTelemetry collector there, such as http://localhost:4318."),
]


def directory(sessions_dir: Path | None = None, billing_file: Path | None = None) -> Directory:
    """Return the sessions directory and the ledger: flags win over environment, environment over the home directory."""
    return Directory.of(None, sessions_dir, billing_file)


def flags(where: Directory, *, billing: bool = True) -> list[str]:
    """Return the options that name a directory and, for a command that takes it, a ledger other than those of the environment."""
    usual = Directory.of()
    sessions = [] if where.sessions == usual.sessions else ["--sessions-dir", str(where.sessions)]
    return sessions if not billing or where.billing == usual.billing else [*sessions, "--billing-file", str(where.billing)]


def going_on(txn: str, where: Directory, *, auto: bool, command: Sequence[str] = ("CMD",)) -> str:
    """Return the command that goes on with a session; *auto*: calls of models were recorded without a change of the program."""
    return command_line(["optree", "load", txn, *flags(where), *(["--auto"] if auto else []), "--", *command])


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """One session in its directory."""

    txn: str
    directory: Directory


def place(txn: str, where: Directory) -> SessionPlace:
    """Return the session that a TXN argument means, to write into it; raises `NotFoundError`, `SetupError`."""
    path = Path(txn)
    suffix = next((suffix for suffix in (".live", *SUFFIXES.values()) if path.name.endswith(suffix)), None)
    if "/" not in txn and suffix is None:
        return SessionPlace(where.find(txn).txn, where)
    if not exists(path):
        raise NotFoundError(f"{path} is no file: give a txn (optree ls lists them) or the path of a snapshot")
    if suffix is None:
        read_snapshot(path)
        raise SetupError(f"{txn} is a session, but cannot be written to: its name does not end in {', '.join(SUFFIXES.values())}")
    beside = Directory(path.resolve().parent, where.billing)
    return SessionPlace(beside.find(path.name.removesuffix(suffix)).txn, beside)
