"""What a benchmark says, as data, as text for a terminal, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

Cell = str | float | int | None
BEGIN, END = "<!-- figures: written by `python -m benchmarks` -->", "<!-- end of figures -->"


class Table(Struct):
    """Rows under columns; None is a figure that there is not."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""


class Aim(Struct):
    """A figure that was aimed at, and what was measured."""

    name: str
    measured: float
    relation: Literal["<=", ">="]
    bound: float
    unit: str
    reached: bool


def at_most(name: str, measured: float, bound: float, unit: str = "x") -> Aim:
    """Return an aim that is reached by a small figure."""
    return Aim(name, round(measured, 3), "<=", bound, unit, measured <= bound)


def at_least(name: str, measured: float, bound: float, unit: str = "x") -> Aim:
    """Return an aim that is reached by a large figure."""
    return Aim(name, round(measured, 3), ">=", bound, unit, measured >= bound)


class Report(Struct):
    """What one benchmark found. *missing* names peers that are not installed; *pressure* is in percent."""

    name: str
    tables: list[Table]
    aims: list[Aim] = []
    missing: list[str] = []
    pressure: float | None = None
    seconds: float = 0.0


class Run(Struct):
    """One run of the command: what the JSON file holds."""

    format: int
    date: str
    machine: str
    about: dict[str, str]
    quick: bool
    reports: list[Report]


def aims_table(reports: Sequence[Report]) -> Table:
    """Return all aims beside what was measured."""
    rows: list[list[Cell]] = []
    for aim in (aim for report in reports for aim in report.aims):
        sign = "≤" if aim.relation == "<=" else "≥"
        rows.append(
            [aim.name, f"{sign} {cell(aim.bound)} {aim.unit}", f"{cell(aim.measured)} {aim.unit}", "✓" if aim.reached else "✗ missed"]
        )
    return Table("Aims", ["figure", "aim", "measured", "reached"], rows)


def cell(value: Cell) -> str:
    """Return a figure with about three digits that count."""
    if value is None:
        return "–"
    if isinstance(value, str | int):
        return value if isinstance(value, str) else f"{value:,}"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 or size == 0 else 3
    return f"{value:,.{digits}f}"


def markdown(table: Table) -> str:
    """Return a table in Markdown, its columns aligned so that it can be read as it is."""
    body = [[cell(value) for value in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *body, strict=True)]
    right = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(widths))]
    lines = [_line(row, widths, right) for row in (table.columns, *body)]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + (":" if ends else "-") for width, ends in zip(widths, right, strict=True)) + "|")
    return "\n".join([f"### {table.title}", "", *lines, *(["", table.note] if table.note else [])])


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = [text.rjust(width) if ends else text.ljust(width) for text, width, ends in zip(row, widths, right, strict=True)]
    return f"| {' | '.join(cells)} |"


def text(run: Run) -> str:
    """Return the whole run for people, in Markdown."""
    about = ", ".join(f"{key} {value}" for key, value in run.about.items())
    quick = " A quick run: shorter, smaller and noisier than the real one." if run.quick else ""
    blocks = [f"{run.date}, {run.machine}: {about}.{quick}"]
    if any(report.aims for report in run.reports):
        blocks.append(markdown(aims_table(run.reports)))
    for report in run.reports:
        blocks += [markdown(table) for table in report.tables]
        blocks.append(_footer(report))
    return "\n\n".join(blocks)


def _footer(report: Report) -> str:
    pressure = "CPU pressure unknown" if report.pressure is None else f"CPU pressure {cell(report.pressure)} %"
    missing = f" Missing, not installed: {', '.join(report.missing)}." if report.missing else ""
    return f"*{report.name}: {report.seconds:.0f} s, {pressure}.{missing}*"


def rewrite(page: Path, figures: str) -> None:
    """Put the figures between the page's two markers. Raises `ValueError` if they are not there."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} has no markers for the figures: put {BEGIN!r} and {END!r} where they belong")
    page.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", "utf-8")


def slug(said: str) -> str:
    """Return a text as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", said.lower()).strip("-")
