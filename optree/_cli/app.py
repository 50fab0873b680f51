"""The commands together, and what becomes of their errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from errno import ENOSPC
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from optree import redaction
from optree._cli.commands.cost import cost
from optree._cli.commands.diff import diff, diff_context
from optree._cli.commands.export import export
from optree._cli.commands.import_ import import_
from optree._cli.commands.instrument import instrument
from optree._cli.commands.ledger import ledger
from optree._cli.commands.load import load
from optree._cli.commands.logs import logs
from optree._cli.commands.ls import ls
from optree._cli.commands.messages import messages
from optree._cli.commands.replay import fork, replay
from optree._cli.commands.run import RunCommand, run
from optree._cli.commands.show import show
from optree._cli.commands.status import status
from optree._cli.commands.tree import tree
from optree._cli.exporters import formats
from optree._cli.screen import DAMAGED, OutputError, complain, flush
from optree._tracing import health
from optree._version import __version__
from optree._visible import keep_going
from optree.errors import BusyError, OptreeError, PathError, SetupError, StoreError

OK, FAILED, USAGE = 0, 1, 2


class Commands(TyperGroup):
    """Turns errors into one line on stderr and an exit code; a reader that has gone away is no error."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            _refuse_settings_that_cannot_be()
            result = super().invoke(ctx)
            flush()
        except (BrokenPipeError, SystemExit) as error:
            _discard_if_unread(error)
            raise typer.Exit(OK) from None
        except (OptreeError, OSError) as error:
            raise _failed(error) from error
        except typer.TyperException as error:
            raise _misused(error) from error
        except RecursionError as error:
            complain("the session is nested too deeply for this; look at the upper part with: optree tree --depth N")
            raise typer.Exit(DAMAGED) from error
        return result

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line."""
        try:
            return super().make_context(*args, **kwargs)
        except (BrokenPipeError, SystemExit) as error:
            _discard_if_unread(error)
            raise typer.Exit(OK) from None
        except (OptreeError, OSError) as error:  # help and version are printed here
            raise _failed(error) from error
        except typer.TyperException as error:
            raise _misused(error) from error


def _discard_if_unread(error: BaseException) -> None:
    """Write no more, as the reader of stdout has gone; raise another end of the process again, which rich makes of that in a help too."""
    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
        raise error
    _discard()


def _refuse_settings_that_cannot_be() -> None:
    """End the command if ``OPTREE_REDACT`` is not valid: it would show what its user wants hidden. A warning was written by now."""
    if redaction.VARIABLE in os.environ and any(problem.startswith(redaction.VARIABLE) for problem in health()["problems"]):
        raise typer.Exit(USAGE)


def _failed(error: Exception) -> typer.Exit:
    """Say what is wrong; returns the end of the command."""
    if isinstance(error, OutputError) or _is_full(error):
        _discard()
    if isinstance(error, PermissionError) and error.filename:
        complain(f"{error.filename} cannot be opened: you have no permission; change that, or name another place")
    else:
        complain(f"stdout cannot be written: {os.strerror(ENOSPC)}" if _is_full(error) else str(error))
    return typer.Exit(exit_code(error))


def _misused(error: typer.TyperException) -> typer.Exit:
    """Say what is wrong with the command line, and where its help is; returns the end of the command."""
    context: Any = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    if message:  # else help was shown: nothing was asked for
        command = context.command_path if context is not None else "optree"
        complain(f"{message[:1].lower()}{message[1:]} ({command} --help)")
    return typer.Exit(error.exit_code)


def _is_full(error: Exception) -> bool:
    """Tell whether it is stdout that is full: for files the error is reported where they are written."""
    return isinstance(error, OSError) and error.errno == ENOSPC


def _discard() -> None:
    """Let what is buffered for stdout go nowhere: the interpreter would try to write it once more at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    """Return what the command line exits with for an error."""
    if isinstance(error, (SetupError, PathError)):
        return USAGE
    unreadable = isinstance(error, StoreError | OSError) and not isinstance(error, BusyError) and not _is_full(error)
    return DAMAGED if unreadable else FAILED


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done · 1 the program or the question failed, or nothing was found · 2 wrong usage · 3 damaged or unreadable.",
)


def _version(value: bool) -> None:
    if value:
        from optree._speed import compiled

        typer.echo(f"optree {__version__} ({'compiled' if compiled() else 'pure Python'})")
        raise typer.Exit


@app.callback()
def _optree(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,  # noqa: ARG001 - its callback does it
) -> None:
    """What an LLM agent does, as one live tree that survives a crash.

    TXN is the name of a session, the beginning of it, [bold]last[/bold], or the path of a session file.
    """
    keep_going()


def _help(command: Callable[..., None]) -> str:
    """Return what a command's docstring says, a paragraph in a line: Typer fills none but the first itself. A list keeps its lines."""
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(text if text.startswith("[bold]") else text.replace("\n", " ") for text in paragraphs)


app.command("run", cls=RunCommand, context_settings={"allow_interspersed_args": False}, help=_help(run))(run)
for _name, _command in (
    *(("load", load), ("replay", replay), ("fork", fork), ("ls", ls), ("tree", tree), ("show", show), ("logs", logs), ("cost", cost)),
    *(("ledger", ledger), ("messages", messages), ("diff", diff), ("diff-context", diff_context), ("status", status)),
    *(("export", export), ("import", import_), ("formats", formats), ("instrument", instrument)),
):
    app.command(_name, help=_help(_command))(_command)
