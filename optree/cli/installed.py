"""The file formats that are installed: objects that entry points in the group ``optree.exporters`` name, anybody's."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from optree.cli.exporters import OTEL, unknown
from optree.errors import SetupError
from optree.exporting import GROUP
from optree.formats import Format
from optree.store.heads import head_of

_PARTS = ("name", "suffix", "about", "cannot_hold", "detect", "write", "read")


def installed() -> tuple[list[Format], list[str]]:
    """Return the formats that can be loaded, by name, and for each that cannot, why and what to do."""
    found: list[Format] = []
    problems: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name == OTEL:
            continue
        try:
            loaded = _loaded(point)
        except SetupError as error:
            problems.append(str(error))
        else:
            found += [loaded] if loaded is not None else []
    return found, problems


def format_named(name: str) -> Format:
    """Return a format. Raises `SetupError` if there is none of that name, or it cannot be loaded."""
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    loaded = _loaded(point) if point is not None else None
    if loaded is None:
        raise unknown(name)
    return loaded


def detected(path: Path, formats: Iterable[Format]) -> list[Format]:
    """Return the formats that take a file or directory for theirs. Raises `OSError`."""
    head = head_of(path)
    return [one for one in formats if one.detect(path, head)]


def _loaded(point: EntryPoint) -> Format | None:
    """Return the format behind an entry point; None if it is something else. Raises `SetupError` for what cannot be imported."""
    try:
        found: Any = point.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(f"format {point.name} cannot be loaded ({error}): {_remedy(point)}") from error
    return cast("Format", found) if all(hasattr(found, part) for part in _PARTS) else None


def _remedy(point: EntryPoint) -> str:
    """Return which pip install brings what is missing: the extra that the entry point names, or the one of the format's own name."""
    if point.dist is None:
        return "install what it needs"
    name = point.dist.metadata["Name"]
    extras = point.extras or [extra for extra in point.dist.metadata.get_all("Provides-Extra") or () if extra == point.name]
    extra = f"[{','.join(extras)}]" if extras else ""
    return f"pip install '{name}{extra}'"
