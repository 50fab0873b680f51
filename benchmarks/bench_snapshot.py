"""What one more turn costs a snapshot, however large the session is, and how long a snapshot holds up a thread that appends.

`python -m benchmarks.bench_snapshot ENTRIES` is one such session, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any

from benchmarks import work
from benchmarks.measure import in_fresh_process
from benchmarks.report import Cell, Report, Table
from benchmarks.sessions import ENTRIES_PER_OP, LABEL, fill, on_disk
from optree._builder import Op
from optree._store import SessionStore
from optree._store.files.system import REAL

TURN_ENTRIES = work.OPS_PER_TURN * ENTRIES_PER_OP
PACE = 0.001
BURST = 16
REPEATS = 5
COLUMNS = [
    "entries", "file MB", "first: CPU ms", "wall ms", "one more turn: KB encoded", "CPU ms", "wall ms", "plain write, wall ms",
    "longest stall ms, wall", "without a snapshot", "bursts late by 10 ms",
]  # fmt: skip


def measure(*, quick: bool) -> Report:
    """Measure sessions of several sizes, each in a process of its own."""
    found = [in_fresh_process("benchmarks.bench_snapshot", size) for size in ((5_000, 20_000) if quick else (10_000, 100_000, 1_000_000))]
    keys = ["entries", "file_mb", "first_cpu", "first_wall", "kb", "cpu", "wall", "plain", "stall", "quiet", "late"]
    rows: list[list[Cell]] = [[result[key] for key in keys] for result in found]
    note = (
        f"One turn holds {TURN_ENTRIES} entries. Stall: a thread appends {BURST} lines each ms while another takes the first snapshot; the "
        "longest by which such a burst came late, and the same with no snapshot, which is the machine's own noise. Plain write: the same "
        "bytes written, synced and renamed with no thought. Wall times need a calm machine."
    )
    return Report("snapshot", [Table("Snapshots", COLUMNS, rows, note)])


class Snapshot(threading.Thread):
    """One snapshot, taken by a thread of its own."""

    def __init__(self, store: SessionStore) -> None:
        super().__init__(name="bench-snapshot")
        self._store = store
        self.cpu = self.wall = 0.0

    def run(self) -> None:
        """Take it, and time it."""
        self.cpu, self.wall = _timed(self._store.snapshot)


def _timed(work_: Callable[[], Any]) -> tuple[float, float]:
    """Return the thread's CPU time and the wall time of a call, in ms."""
    wall, cpu = perf_counter(), thread_time()
    work_()
    return (thread_time() - cpu) * 1e3, (perf_counter() - wall) * 1e3


def paced(op: Op, going_on: Callable[[], bool]) -> list[float]:
    """Append in bursts while something goes on; returns how late each burst ended, in ms."""
    late: list[float] = []
    due = perf_counter()
    while going_on():
        due = max(due + PACE, perf_counter())
        sleep(max(0.0, due - perf_counter()))
        for _ in range(BURST):
            op.log(work.LOG)
        late.append((perf_counter() - due) * 1e3)
    return late


def main(entries: int) -> None:
    """Print what one session gave."""
    with on_disk() as (builder, store):
        fill(builder, entries)
        op = builder.begin_op("llm", LABEL)
        until = perf_counter() + 0.5
        quiet = paced(op, lambda: perf_counter() < until)
        first = Snapshot(store)
        first.start()
        late = paced(op, first.is_alive)
        if builder.current_turn is not None:
            builder.current_turn.end()
        store.snapshot()
        more = [one_more(store) for _ in range(REPEATS)]
        file = store.options.directory.snapshot(store.txn)
        data = file.read_bytes()
        plain = [_timed(lambda: REAL.replace(file.with_name("plain"), [data]))[1] for _ in range(REPEATS)]
    middle = [median(column) for column in zip(*more, strict=True)]
    found = {"entries": entries, "file_mb": len(data) / 1e6, "first_cpu": first.cpu, "first_wall": first.wall}
    found |= {"kb": middle[0] / 1e3, "cpu": middle[1], "wall": middle[2], "plain": median(plain)}
    print(json.dumps(found | {"stall": max(late), "quiet": max(quiet), "late": sum(one > 10 for one in late)}))


def one_more(store: SessionStore) -> tuple[int, float, float]:
    """Record one more turn; returns what the snapshot after it encoded, and its CPU and wall time."""
    if store.builder is None:
        raise RuntimeError("the store keeps no session")
    fill(store.builder, TURN_ENTRIES)
    store.stream.flush()
    writer = store._writer  # noqa: SLF001 - its count of bytes encoded is the figure
    before = writer.encoded
    cpu, wall = _timed(store.snapshot)
    return writer.encoded - before, cpu, wall


if __name__ == "__main__":
    main(int(sys.argv[1]))
