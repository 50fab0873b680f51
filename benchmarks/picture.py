"""The picture for the documentation: what an op costs, and how a session grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report import Run, Table

OURS, FLOOR, PEER = "#2b6cb0", "#a0aec0", "#dd9b51"


def draw(run: Run, file: Path) -> None:
    """Draw it. Raises `ImportError` where matplotlib is missing."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "optree", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    from matplotlib import pyplot as plt

    tables = {table.title: table for report in run.reports for table in report.tables}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")
    _ops(left, tables["One whole op"])
    _growth(right, tables["A history that is sent again with each call"])
    figure.savefig(file, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _ops(axes: Any, table: Table) -> None:
    rows = [row for row in table.rows if row[1] is not None]
    names, costs = [str(row[0]) for row in rows], [float(row[1] or 0) for row in rows]
    colours = [OURS if name.startswith("optree") else FLOOR if name.startswith("floor") else PEER for name in names]
    bars = axes.barh(names, costs, color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_xlabel("µs of the caller's CPU time (logarithmic)")
    axes.set_title("One op: 18 events", loc="left")


def _growth(axes: Any, table: Table) -> None:
    columns = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    calls = columns["LLM calls"]
    shown = {
        "each request in full": ("each request in full, KB", PEER),
        "optree: journal": ("journal KB", OURS),
        "optree: memory": ("memory KB", "#63a4dd"),
        "optree: snapshot": ("snapshot KB", "#1a365d"),
    }
    for name, (column, colour) in shown.items():
        axes.plot(calls, [float(size) / 1e3 for size in columns[column]], marker="o", color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(calls, [str(size) for size in calls])
    axes.set_xlabel("LLM calls, each with the whole history")
    axes.set_ylabel("MB (logarithmic)")
    axes.set_title("What a session stores", loc="left")
    axes.legend(frameon=False)
