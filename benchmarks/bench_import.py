"""What starting Python and importing a library costs, in new processes: CPU time, and the part above a bare interpreter.

So does what `optree run --auto` has each Python of a program do at its start, where that imports no library that is hooked.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from statistics import median

from benchmarks.measure import SEED, child_environ
from benchmarks.report import Cell, Report, Table, at_most
from optree._capture import START

BARE = "pass"
NEEDS = "msgspec + zstandard (optree's own needs)"
NEEDS_MS = 28.0
"""What these two took above bare Python on the machine that the aim is stated for."""
STATEMENTS = {
    "bare Python": BARE,
    "optree": "import optree",
    NEEDS: "import msgspec, zstandard",
    "OTel SDK": "import opentelemetry.sdk.trace",
    "structlog": "import structlog",
    "logging": "import logging",
    "eliot": "import eliot",
}
AUTO = "bare Python, by `optree run --auto`"
DISTRIBUTIONS = {"OTel SDK": ("opentelemetry", "opentelemetry-sdk"), "structlog": ("structlog", "structlog"), "eliot": ("eliot", "eliot")}


def measure(*, quick: bool) -> Report:
    """Measure each statement in processes of its own, in shuffled rounds."""
    absent = {name: package for name, (module, package) in DISTRIBUTIONS.items() if importlib.util.find_spec(module) is None}
    taken: dict[str, list[float]] = {name: [] for name in (*STATEMENTS, AUTO) if name not in absent}
    environ = child_environ()
    environs = {AUTO: environ | {"OPTREE_AUTO": "1", "PYTHONPATH": os.pathsep.join([START, environ.get("PYTHONPATH", "")])}}
    order = list(taken)
    shuffle = random.Random(SEED).shuffle
    for number in range((5 if quick else 21) + 1):
        shuffle(order)
        for name in order:
            spent = cpu_ms(STATEMENTS.get(name, BARE), environs.get(name, environ))
            if number:  # the first round compiles, and warms the disk's cache
                taken[name].append(spent)
    above = {name: median(a - b for a, b in zip(taken[name], taken["bare Python"], strict=True)) for name in taken}
    rows: list[list[Cell]] = [[name, median(spent), above[name]] for name, spent in taken.items()]
    rows += [[f"{name}: missing, not installed", None, None] for name in absent]
    table = Table("Start and import", ["statement", "CPU ms", "above bare Python"], rows, "User and system time of a whole new process.")
    there = median((a - b) / (c - b) for a, b, c in zip(taken["optree"], taken["bare Python"], taken[NEEDS], strict=True)) * NEEDS_MS
    aim = at_most(f"import optree, above bare Python, where msgspec and zstandard take {NEEDS_MS:.0f} ms", there, 50.0, "ms")
    auto = at_most("a start by `optree run --auto`, above bare Python", above[AUTO], 15.0, "ms")
    return Report("import", [table], [aim, auto], list(absent.values()))


def cpu_ms(statement: str, environ: dict[str, str]) -> float:
    """Return the CPU time of a new interpreter that runs the statement."""
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{statement!r} fails with status {status}: run it by hand to see why")
    return (usage.ru_utime + usage.ru_stime) * 1e3
