"""`optree export`: saved sessions go to where other programs can see them: to a collector, or to files of a format."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from time import monotonic, time
from typing import Annotated, get_args, get_type_hints

import typer
from msgspec import Struct

from optree._cli.exporters import OTEL, exporter_named, is_exporter
from optree._cli.format_loss import lacking
from optree._cli.options import Json, SessionsDir, WholeRun, complete_txn, directory, flags
from optree._cli.program import command_line
from optree._cli.screen import DAMAGED, OutputError, complain, show, show_json, table, working
from optree._cli.sessions import of_runs, open_session, say_lost
from optree._formats import Format
from optree._formats.installed import exporter_names, format_named
from optree._store.files.lock import is_running
from optree._store.files.system import REAL
from optree._store.files.unusable import usable
from optree._store.reading.directory import Directory, checked
from optree._store.reading.recovery import Loaded
from optree._syscalls import calls
from optree._tracing.config import OtelOptions
from optree._tree import Tree
from optree._tree.redacted import redacted
from optree.errors import BusyError, NotFoundError, OptreeError, SetupError
from optree.exporting import Delivery, Resender

STDOUT = "-"
_PREFIX = ".optree-export-"
_STALE_SECONDS = 86_400
_WAIT_SECONDS = 1.5
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


def export(
    *,
    txns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TXN",
            help="Sessions: their txns or the beginnings of them, [bold]last[/bold], or files' paths.",
            autocompletion=complete_txn,
            show_default=False,
        ),
    ] = None,
    whole_run: WholeRun = False,
    all_pending: Annotated[bool, typer.Option("--pending", help="All sessions that earlier runs could not deliver whole.")] = False,
    any_destination: Annotated[
        bool, typer.Option("--any-destination", help="With --pending: also sessions that were to go elsewhere, or in another form.")
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            help="otel, another exporter that is installed, or a file format ([bold]optree formats[/bold] lists them).",
            autocompletion=exporter_names,
        ),
    ] = OTEL,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PATH", help="For formats: a file, a directory, or - for stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="For formats: replace files that are there.")] = False,
    verbatim: Annotated[
        bool, typer.Option("--verbatim", help="For formats, and exporters of other packages: leave credentials in, as a backup has them.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Send also what is delivered already; it has the same ids.")] = False,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="The collector. Without it as the environment says, else http://localhost:4318."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="NAME", help="http/protobuf or grpc. Without it as the environment says, else http/protobuf."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="What the backend takes: jaeger, tempo, phoenix, victoriatraces, mlflow or logfire; default, as without it, suits all.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to try, in all.")] = 30.0,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Send saved sessions to an OpenTelemetry collector, or with --pending what earlier runs could not deliver; or write them to files.

    Only what the collector does not have yet is sent. What a crash left open goes out as interrupted; a session that is resumed later
    goes on in the same trace. Options and environment are those of the mirror. --pending sends sessions that were mirrored with the same
    settings, and says how many wait for another destination, or with other content: --any-destination sends those here as well.

    With --to and the name of a format each session becomes a file, <txn> and the format's suffix. What a session has and the format does
    not hold is said on stderr. Credentials are replaced in them, unless --verbatim is given.

    Exit code 1 if something could not be delivered within the time: it stays pending.

    Example: [bold]optree export --pending[/bold], [bold]optree export last --run --endpoint http://localhost:4318[/bold], or
    [bold]optree export last --to events -o -[/bold]
    """
    where = directory(sessions_dir)
    _known("protocol", protocol)
    _known("profile", profile)
    if whole_run and not txns:
        raise SetupError("--run is about the sessions of one run: name one of them (optree export last --run)")
    named, is_whole = of_runs(txns or [], where) if whole_run else (txns or [], True)
    if to != OTEL and not is_exporter(to):
        form = format_named(to)
        _for_collectors(
            to, pending=all_pending, any_destination=any_destination, again=again, endpoint=endpoint, protocol=protocol, profile=profile
        )
        _write(named, where, to, Writing(form, output, force=force, verbatim=verbatim), as_json=as_json)
        if not is_whole:
            raise typer.Exit(DAMAGED)
        return
    if output is not None or force or (verbatim and to == OTEL):
        option = "--verbatim" if verbatim else "--force" if force else "--output"
        raise SetupError(f"{option} is for files: name a format with --to (optree formats lists them)")
    _check(txns, all_pending=all_pending, any_destination=any_destination, again=again)
    sender = exporter_named(to).resender({"endpoint": endpoint, "protocol": protocol, "profile": profile})
    wanted, others = sender.pending(where, any_destination=any_destination) if all_pending else (named, {})
    is_verbatim = verbatim or to == OTEL  # which redacts itself, by its options
    reports: list[Delivery] = []
    until = monotonic() + timeout
    with working(f"sending to {sender.endpoint}", len(wanted)) as step, _waiting(sender, timeout):
        for txn in wanted:
            delivery = _sent(txn, where, sender, until, again=again, all_pending=all_pending, whole_run=whole_run, verbatim=is_verbatim)
            reports += [delivery] if delivery is not None else []
            step()
    problems = sender.problems()
    sender.close()
    if as_json:
        show_json({"to": to, "collector": sender.endpoint, "sessions": reports, "others": others, "problems": problems})
    else:
        options = {"--endpoint": endpoint, "--protocol": protocol, "--profile": profile}
        same = [*(word for name, value in options.items() if value is not None for word in (name, value)), *flags(where, billing=False)]
        what = ["--pending"] if to == OTEL else [*wanted, "--to", to, *(["--verbatim"] if verbatim else [])]
        _show(reports, problems, sender.endpoint, command_line(["optree", "export", *what, *same]))
        _tell_others(others, command_line(["optree", "export", "--pending", "--any-destination", *same]))
    if not is_whole or not all(report.whole for report in reports):
        raise typer.Exit(1 if is_whole else DAMAGED)


@contextmanager
def _waiting(sender: Resender, timeout: float) -> Generator[None]:
    """Say what is waited for, and how long at most, if it takes longer than a moment."""

    def say() -> None:
        why = "; ".join(sender.problems()) or "no answer yet"
        complain(f"waiting for {sender.endpoint}, up to {timeout:g} s in all (--timeout): {why}")

    timer = Timer(_WAIT_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _write(txns: list[str], where: Directory, to: str, writing: Writing, *, as_json: bool) -> None:
    """Write sessions in a format."""
    if not txns:
        raise SetupError(f"name a session: optree export last --to {to}")
    if writing.output == STDOUT and as_json:
        raise SetupError("--json and the file cannot both go to stdout: name a file with --output")
    done: dict[str, Written] = {}
    try:
        with working(f"writing {to}", len(txns)) as step:
            for txn in txns:
                loaded, live = open_session(txn, where, verbatim=True)
                say_lost(loaded)
                if live is not None and is_running(live):
                    complain(f"session {loaded.txn} is running: written is what there is so far")
                if loaded.txn in done:
                    complain(f"{txn} is left out: it is session {loaded.txn}, which was named before")
                else:
                    done[loaded.txn] = export_to_file(loaded, writing, several=len(txns) > 1)
                    _tell(done[loaded.txn], to)
                step()
    finally:  # what is written is there, also if the next one is refused
        for written in done.values() if not as_json else ():
            if written.files:
                show(written.files[0] + (f" and {len(written.files) - 1} more" if len(written.files) > 1 else ""))
    if as_json:
        show_json({"to": to, "sessions": list(done.values())})


def _tell(written: Written, to: str) -> None:
    """Say what the files lack of the session."""
    if written.lacking:
        complain(f"{to} does not hold all of {written.txn}; left out: {', '.join(written.lacking)}")
    if written.redacted:
        complain(f"{written.txn}: credentials are replaced; for a backup that has them: --verbatim")
    if written.beside:
        complain(f"{written.txn}: left out on stdout: {written.beside} more file{'' if written.beside == 1 else 's'}; --output DIR has all")


def _known(name: str, value: str | None) -> None:
    """Refuse what an option of the mirror cannot be."""
    choices = [choice for part in get_args(get_type_hints(OtelOptions)[name]) for choice in get_args(part)]
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{value!r}: choose from {', '.join(choices)}", param_hint=f"--{name}")


def _for_collectors(to: str, **options: object) -> None:
    """Refuse options that mean nothing for files."""
    misplaced = [name for name, value in options.items() if value]
    if misplaced:
        raise SetupError(f"--{misplaced[0].replace('_', '-')} is for collectors; {to} writes files")


def _check(txns: list[str] | None, *, all_pending: bool, any_destination: bool, again: bool) -> None:
    if not txns and not all_pending:
        raise SetupError("name a session (optree export last), or send what earlier runs could not: optree export --pending")
    if txns and all_pending:
        raise SetupError("give either sessions or --pending, not both")
    if any_destination and not all_pending:
        raise SetupError("--any-destination wants --pending: a session that you name is sent where you say anyway")
    if again and all_pending:
        raise SetupError("--again wants the sessions named: optree export TXN --again")


def _sent(
    txn: str, where: Directory, sender: Resender, until: float, *, again: bool, all_pending: bool, whole_run: bool, verbatim: bool
) -> Delivery | None:
    """Return what became of one session; None of a pending one that its own process sends, or that is gone. A named one may raise."""
    if all_pending and is_running(where.live(txn)):
        return None
    if all_pending and monotonic() >= until:
        return Delivery(txn, whole=False, said="not tried: the time is up")
    try:
        loaded, live = _opened(txn, where, verbatim=verbatim)
    except NotFoundError:
        if not all_pending:
            raise
        sender.forget(txn, where)
        return None
    except (OptreeError, OSError) as error:
        if not all_pending:
            raise
        return Delivery(txn, whole=False, said=str(error))
    if live is not None and is_running(live):
        why = f"session {loaded.txn} is running; export it when it has ended, or run it mirrored: optree run --otel URL -- CMD"
        if not whole_run:
            raise BusyError(why)
        return Delivery(loaded.txn, whole=False, said=why)
    return _delivered(sender, loaded, where, until, again=again)


def _opened(txn: str, where: Directory, *, verbatim: bool) -> tuple[Loaded, Path | None]:
    """Load a session, and replace the credentials in it unless it is to be sent *verbatim*."""
    loaded, live = open_session(txn, where, verbatim=True)
    if not verbatim:
        loaded.tree = redacted(loaded.tree)[0]
    say_lost(loaded)
    return loaded, live


def _delivered(sender: Resender, loaded: Loaded, where: Directory, until: float, *, again: bool) -> Delivery:
    try:
        return sender.send(loaded, where, again=again, until=until)
    except (OptreeError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - an exporter of another package may raise anything
        return Delivery(loaded.txn, whole=False, said=f"{type(error).__name__}: {error}")


def _tell_others(others: dict[str, int], here: str) -> None:
    """Report the sessions that are not sent since they were to go elsewhere."""
    if others:
        named = "; ".join(f"{where} ({number})" for where, number in others.items())
        message = f"not sent, since mirrored with other settings: {sum(others.values())}, for {named}"
        complain(f"{message}; to send them here all the same: {here}")


def _show(reports: list[Delivery], problems: list[str], collector: str, again: str) -> None:
    listed = [report for report in reports if report.sent or report.said or not report.whole]
    if listed:
        rows = [(report.txn, str(report.sent), str(report.left), str(report.lost), report.said) for report in listed]
        show("\n".join(table(("TXN", "SENT", "LEFT", "LOST", ""), rows, " rrr")), fold=True)
    for problem in problems:
        complain(problem)
    if not listed:
        show("nothing is pending")
    elif not all(report.whole for report in reports):
        complain(f"not all could be delivered to {collector}; try again with: {again}")
    elif any(report.sent for report in reports):
        show(f"delivered to {collector}")


class Writing(Struct, frozen=True):
    """How sessions are to be written."""

    form: Format
    output: str | None
    """A file, a directory, or ``-`` for stdout; None for the directory we are in."""
    force: bool = False
    """Replace files that are there."""
    verbatim: bool = False
    """Leave credentials in."""


class Written(Struct, rename="camel"):
    """What became of one session."""

    txn: str
    files: list[str]
    """Paths, the main one first; none where it went to stdout."""
    lacking: list[str]
    """What the session has and the files do not."""
    redacted: bool
    """True if credentials were replaced."""
    beside: int = 0
    """How many files there are beside the one that went to stdout."""


def export_to_file(loaded: Loaded, writing: Writing, *, several: bool) -> Written:
    """Write a session in a format. Nothing is there before all is.

    Raises `SetupError` if a file is there already and is not to be replaced, or cannot be written, `StoreError` for what no file of the
    format holds, `OptreeError` if there is no room.
    """
    lost = lacking(loaded.tree, writing.form)
    tree, changed = (loaded.tree, False) if writing.verbatim else redacted(loaded.tree)
    if writing.output == STDOUT:
        if several:
            raise SetupError("one session goes to stdout; name a directory for several: --output DIR")
        return Written(loaded.txn, [], lost, changed, _to_stdout(tree, checked(loaded.txn), writing.form))
    with usable(Path(writing.output or ".")):
        target = _target(checked(loaded.txn), writing.form, writing.output, several=several)
    with usable(target), _workplace(target.parent) as folder:
        paths = writing.form.write(tree, folder / target.name)
        files = [_place(path, folder, target.parent) for path in paths]
        for path in filter(os.path.lexists, files):
            if not path.is_file():
                raise SetupError(f"{path} is there already, and is no file: name another")
            if not writing.force:
                raise SetupError(f"{path} is there already, and stays as it is: --force replaces it")
        for path, file in zip(paths, files, strict=True):
            REAL.make_directory(file.parent)
            path.chmod(0o600)
            REAL.rename(path, file)
    return Written(loaded.txn, [str(file) for file in files], lost, changed)


def _place(source: Path, folder: Path, parent: Path) -> Path:
    """Return where a file goes that a format made in *folder*: below *parent*, through no link that lies there already."""
    inner = Path(os.path.normpath(source.relative_to(folder))) if source.is_relative_to(folder) else source
    if inner.is_absolute() or ".." in inner.parts or source.is_symlink():
        raise SetupError(f"the format made {str(source)[:80]!r}, which is elsewhere than it was told: nothing is written")
    for above in list(inner.parents)[:-1]:
        if (parent / above).is_symlink():
            raise SetupError(f"{parent / above} is a link, and nothing is written through it: name another place")
    return parent / inner


@contextmanager
def _workplace(parent: Path) -> Generator[Path, None, None]:
    """Make a directory to write in, and remove it; also those that exports left here that were killed, a day after."""
    REAL.make_directory(parent)
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(*calls.GONE):  # another export has ended meanwhile
            info = path.lstat()
            if calls.is_own(info) and info.st_mtime < time() - _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        yield Path(folder)


def _target(txn: str, form: Format, output: str | None, *, several: bool) -> Path:
    if output is None:
        return Path(f"{txn}{form.suffix}")
    path = Path(output)
    if several and path.is_file():
        raise SetupError(f"{path} is a file: name a directory for several sessions")
    if several or output.endswith(_SEPARATORS) or (path.is_dir() and not path.name.endswith(form.suffix)):
        return path / f"{txn}{form.suffix}"
    return path


def _to_stdout(tree: Tree, txn: str, form: Format) -> int:
    """Write the main file to stdout; returns how many there are beside it."""
    place = Path(tempfile.gettempdir())
    with usable(place), _workplace(place) as folder:
        paths = form.write(tree, folder / f"{txn}{form.suffix}")
        try:
            with paths[0].open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error
    return len(paths) - 1
