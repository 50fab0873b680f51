"""`optree run`: run a program traced."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from optree.cli.options import BillingFile, Json, Otel, SessionsDir, TraceLlm, TraceTools, Verbose, complete_txn, directory, place
from optree.cli.traced import Tracing, run_traced
from optree.errors import SetupError

REMOVED = {
    "--save": "sessions are always saved; --sessions-dir DIR says where",
    "--save-all": "sessions are always saved, sub-agents in them; --sessions-dir DIR says where",
    "--save-session": "sessions are always saved; --sessions-dir DIR says where",
    "--accounting": "accounting is always written; --billing-file FILE says where",
}


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
    otel: Otel = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="TXN", help="Go on with a saved session, as `optree load TXN -- CMD` does.", autocompletion=complete_txn
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a program traced, and save its session.

    Stdin and stdout are the program's, and so is the exit code (128 + n if signal n ended it). Recorded is what its decorators mark.

    At the end, a line on stderr says where each session is, or how to go on with it.

    Example: [bold]optree run --verbose -- python agent.py "why is the sky blue?"[/bold]
    """
    if not command:
        raise SetupError("optree run needs a program: write it behind two dashes, as in: optree run -- python agent.py")
    where = directory(sessions_dir, billing_file)
    found = place(resume, where) if resume is not None else None
    tracing = Tracing(verbose, trace_llm, trace_tools, as_json, otel)
    raise typer.Exit(run_traced(command, found.directory if found else where, tracing, found))
