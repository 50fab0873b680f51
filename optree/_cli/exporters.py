"""Exporters as the command line sees them: found by their entry points, and asked what `optree.exporting.Exporter` promises."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from optree._cli.options import Json
from optree._cli.screen import complain, show, show_json, table
from optree._formats.installed import installed_formats, unknown_exporter
from optree._store.reading.directory import Directory
from optree.errors import SetupError
from optree.exporting import EXPORTERS, Exporter, SpanReader

OTEL = "otel"
PROBE_SECONDS = 2.0


def exporter_named(name: str) -> Exporter:
    """Return an exporter. Raises `SetupError` if there is none of that name, it cannot be loaded, or is none."""
    point = _point(name)
    if point is None:
        raise unknown_exporter(name)
    try:
        exporter = point.load()
    except (ImportError, AttributeError) as error:
        raise _unloadable(name, error) from error
    if not hasattr(exporter, "resender"):
        raise SetupError(f"exporter {name} ({point.value}) is no optree.exporting.Exporter: it has no resender")
    return cast("Exporter", exporter)


def is_exporter(name: str) -> bool:
    """Tell whether an exporter of that name is installed."""
    return _point(name) is not None


def span_reader() -> SpanReader:
    """Return what reads files of spans. Raises `SetupError` if nothing does."""
    exporter = exporter_named(OTEL)
    try:
        reader = exporter.reader()
    except ImportError as error:
        raise _unloadable(OTEL, error) from error
    if reader is None:
        raise SetupError("exporter otel reads no files")
    return reader


def pending(where: Directory) -> list[str]:
    """Return the txns of sessions of which a collector does not have all yet; none if they cannot be sent from here anyway."""
    return [] if _point(OTEL) is None else exporter_named(OTEL).pending(where)


def destination(txn: str, where: Directory) -> str | None:
    """Return where a pending session is to go, without credentials; None if it was not noted."""
    return exporter_named(OTEL).destination(txn, where)


def waiting(txn: str, where: Directory) -> int:
    """Return how many spans of a pending session are to be sent; raises what loading it raises."""
    return exporter_named(OTEL).waiting(txn, where)


def collector() -> tuple[str, str]:
    """Return the address that the environment names, and why it takes nothing now; texts are empty where there is none."""
    return exporter_named(OTEL).probe(PROBE_SECONDS)


def _point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=EXPORTERS, name=name)), None)


def _unloadable(name: str, error: Exception) -> SetupError:
    remedy = ": pip install 'optree-tracing[otel]'" if name == OTEL else ""
    return SetupError(f"exporter {name} cannot be loaded{remedy} ({error})")


def formats(*, as_json: Json = False) -> None:
    """List the file formats for `optree export --to NAME` and `optree import`, with how their files' names end and what they leave out.

    One without such an end is only read. Formats of other packages are among them; one that lacks a library is named with what to install.

    Example: [bold]optree formats[/bold]
    """
    installed, problems = installed_formats()
    if as_json:
        listed = [{"name": form.name, "suffix": form.suffix, "about": form.about, "cannotHold": [*form.cannot_hold]} for form in installed]
        show_json({"formats": listed, "problems": problems})
        return
    show("\n".join(table(("NAME", "SUFFIX", "ABOUT"), [(form.name, form.suffix or "-", form.about) for form in installed])), fold=True)
    for form in [form for form in installed if form.suffix]:
        show(f"\n{form.name} leaves out: {', '.join(form.cannot_hold) or 'nothing'}", fold=True)
    for problem in problems:
        complain(problem)
