"""How fast a session is loaded, from its journal and from its snapshot.

`python -m benchmarks.bench_load ENTRIES WRITE` is one such session, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from statistics import median
from time import perf_counter, thread_time
from typing import Literal

from benchmarks.measure import in_fresh_process
from benchmarks.report import Cell, Report, Table
from benchmarks.sessions import fill, on_disk
from optree._store import Directory, load
from optree._tree import walk_ops

COLUMNS = ["from", "entries", "MB", "records", "records/s, CPU", "entries/s, CPU", "entries/s, wall"]
REPEATS = 3


def measure(*, quick: bool) -> Report:
    """Load one session from all that holds it."""
    entries = 10_000 if quick else 200_000
    deferred = in_fresh_process("benchmarks.bench_load", entries, "structure")
    through = in_fresh_process("benchmarks.bench_load", entries, "all")
    shown = {
        "journal (default: many entries a record)": deferred["journal"],
        'journal, write="all" (one entry a record)': through["journal"],
        "snapshot": deferred["snapshot"],
    }
    rows: list[list[Cell]] = []
    for name, (megabytes, records, cpu, wall) in shown.items():
        rows.append([name, entries, megabytes, records or None, records / cpu if records else None, entries / cpu, entries / wall])
    note = "Read, checksums checked, decoded and folded to a tree by `optree.load`, which then holds every entry. File in the page cache."
    return Report("load", [Table("Loading a session", COLUMNS, rows, note)])


def timed_load(txn: str, directory: Directory, entries: int) -> tuple[float, float]:
    """Return the CPU and wall seconds of a load that gave all entries; the median of several."""
    cpus: list[float] = []
    walls: list[float] = []
    for _ in range(REPEATS):
        wall, cpu = perf_counter(), thread_time()
        loaded = load(txn, directory)
        cpus.append(thread_time() - cpu)
        walls.append(perf_counter() - wall)
        found = sum(len(op.logs) for _, _, op in walk_ops(loaded.session))
        if found != entries or loaded.damage.state != "clean":
            raise RuntimeError(f"{found} of {entries} entries were loaded, {loaded.damage.state}: {loaded.damage.lines()}")
        del loaded
    return median(cpus), median(walls)


def main(entries: int, write: Literal["structure", "all"]) -> None:
    """Print what one session gave: MB, records, CPU seconds, wall seconds."""
    with on_disk(write) as (builder, store):
        fill(builder, entries)
        store.flush()
        directory = store.options.directory
        size = store.journal.path.stat().st_size / 1e6
        journal = [size, store.journal.last, *timed_load(store.txn, directory, entries)]
        builder.end_session()
        if not store.flush("snapshot", 120.0):
            raise RuntimeError(f"the snapshot was not written: {list(store.problems)}")
        size = directory.snapshot(store.txn).stat().st_size / 1e6
        snapshot = [size, 0, *timed_load(store.txn, directory, entries)]
    print(json.dumps({"journal": journal, "snapshot": snapshot}))


if __name__ == "__main__":
    main(int(sys.argv[1]), "all" if sys.argv[2] == "all" else "structure")
