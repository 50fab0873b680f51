"""The file formats that are installed: objects that entry points in the group ``optree._formats`` name, of any package."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from optree._formats import FORMATS, Format
from optree._mirrors import EXPORTERS
from optree._store.files.lines import head_of
from optree.errors import SetupError

_PARTS = ("name", "suffix", "about", "cannot_hold", "detect", "write", "read")


def installed_formats() -> tuple[list[Format], list[str]]:
    """Return the formats that can be loaded, by name, and for each that cannot, why and what to do."""
    formats: list[Format] = []
    problems: list[str] = []
    for point in sorted(entry_points(group=FORMATS), key=lambda point: point.name):
        try:
            formats.append(_loaded(point))
        except SetupError as error:
            problems.append(str(error))
    return formats, problems


def format_named(name: str) -> Format:
    """Return a format. Raises `SetupError` if there is none of that name, or it cannot be loaded."""
    point = next(iter(entry_points(group=FORMATS, name=name)), None)
    if point is None:
        raise unknown_exporter(name)
    return _loaded(point)


def exporter_names() -> list[str]:
    """Return the names of the exporters and formats that are installed."""
    return sorted({point.name for group in (EXPORTERS, FORMATS) for point in entry_points(group=group)})


def unknown_exporter(name: str) -> SetupError:
    """Return what is to be raised for a name that neither an exporter nor a format has."""
    from difflib import get_close_matches

    names = exporter_names()
    if not names:
        return SetupError("no exporter is installed: pip install 'optree-tracing[otel]'")
    near = get_close_matches(name.lower(), names, 1)
    hint = f"did you mean {near[0]}? (there are {', '.join(names)})" if near else f"choose one of {', '.join(names)}"
    return SetupError(f"there is no exporter or format {name!r}; {hint}")


def detected(path: Path, formats: Iterable[Format]) -> list[Format]:
    """Return the formats that take a file or directory for theirs. Raises `OSError`."""
    head = head_of(path)
    return [form for form in formats if form.detect(path, head)]


def _loaded(point: EntryPoint) -> Format:
    """Return the format behind an entry point. Raises `SetupError` for an object that cannot be imported, or is not a format."""
    try:
        form: Any = point.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(f"format {point.name} cannot be loaded ({error}): {_remedy(point)}") from error
    if lacking := [part for part in _PARTS if not hasattr(form, part)]:
        raise SetupError(f"format {point.name} ({point.value}) is no optree.exporting.Format: it has no {', no '.join(lacking)}")
    return cast("Format", form)


def _remedy(point: EntryPoint) -> str:
    """Return which pip install brings what is missing: the extra that the entry point names, or the one of the format's own name."""
    if point.dist is None:
        return "install what it needs"
    name = point.dist.metadata["Name"]
    extras = point.extras or [extra for extra in point.dist.metadata.get_all("Provides-Extra") or () if extra == point.name]
    extra = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{name}{extra}'"
