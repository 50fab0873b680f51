"""A million log entries in one session: memory, the collector's pauses, and whether the last cost what the first did.

`python -m benchmarks.bench_memory MODE ENTRIES` is one such session, and prints what it found as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time_ns, time_ns
from typing import Any

import msgspec

from benchmarks import work
from benchmarks.floor import FloorJournal, JournalOp, Log, MemoryOp
from benchmarks.measure import in_fresh_process, resident_bytes
from benchmarks.report import Aim, Cell, Report, Table, at_most
from benchmarks.sessions import ENTRIES_PER_OP, LABEL, on_disk
from optree._builder import SessionTreeBuilder

WINDOW = 10_000
MODES = {
    "bare": "one untracked struct and one list an op",
    "floor": "floor, memory",
    "floor-journal": "floor, journal",
    "memory": "optree, memory",
    "journal": "optree, journal (default)",
}
COLUMNS = [
    "variant", "bytes an entry", "ns an entry", "last ÷ first", "share in gc %", "longest pause ms", "more than empty",
    "full collect ms", "tracked objects an entry", "an op",
]  # fmt: skip
Filled = Callable[[int], None]


def measure(*, quick: bool) -> Report:
    """Fill sessions in new processes, one variant after the other."""
    entries, runs = (200_000, 1) if quick else (1_000_000, 3)
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(runs):
        for mode, results in found.items():
            results.append(in_fresh_process("benchmarks.bench_memory", mode, entries))
    middle = {mode: {key: median(result[key] for result in results) for key in results[0]} for mode, results in found.items()}
    keys = ["bytes", "ns", "drift", "gc_share", "longest_pause_ms", "more_ms", "full_collect_ms", "tracked_entry", "tracked_op"]
    rows: list[list[Cell]] = [[MODES[mode], *(figures[key] for key in keys)] for mode, figures in middle.items()]
    note = (
        f"{entries:,} entries in ops of {ENTRIES_PER_OP}, in a new process, collector as it is by default. Bytes are resident memory, with "
        f"the text shared, so what is added to it. Last ÷ first: the last fifth of windows of {WINDOW:,} entries against the first. "
        "More than empty: the longest pause less a full collection of the process before it had any entries."
    )
    return Report("memory", [Table(f"{entries:,} log entries in one session", COLUMNS, rows, note)], _aims(middle, entries))


def _aims(middle: dict[str, dict[str, float]], entries: int) -> list[Aim]:
    found: list[Aim] = []
    for mode, name in (("memory", "memory"), ("journal", "journal")):
        found.append(at_most(f"entry {entries:,} ÷ the first, {name}", middle[mode]["drift"], 1.1))
        found.append(
            at_most(
                f"longest pause of the collector at {entries:,} entries, more than without, {name}",
                middle[mode]["more_ms"],
                10.0,
                "ms",
            )
        )
    return found


class BareOp(msgspec.Struct, gc=False):
    """What the collector sees least of: one list an op."""

    number: int
    logs: list[Log]

    def log(self, message: str) -> None:
        """Append a log line."""
        self.logs.append(Log(self.number, time_ns(), "VRB", message))

    def end(self) -> None:
        """End nothing."""


class Pauses:
    """The collector's pauses, in CPU time of the thread that it stopped."""

    def __init__(self) -> None:
        self.longest = self.total = self._begun = 0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = thread_time_ns()
            return
        pause = thread_time_ns() - self._begun
        self.longest = max(self.longest, pause)
        self.total += pause


def session(fill: Filled, entries: int) -> dict[str, float]:
    """Fill a session in windows, and say what was seen."""
    gc.collect()
    begun = thread_time_ns()
    gc.collect()
    empty = thread_time_ns() - begun
    tracked, resident = len(gc.get_objects()), resident_bytes()
    pauses = Pauses()
    windows: list[int] = []
    for _ in range(entries // WINDOW):
        begun = thread_time_ns()
        fill(WINDOW // ENTRIES_PER_OP)
        windows.append(thread_time_ns() - begun)
    grown = resident_bytes() - resident
    longest, paused = pauses.longest, pauses.total
    begun = thread_time_ns()
    gc.collect()
    collected = thread_time_ns() - begun
    part = max(1, len(windows) // 5)
    return {
        "bytes": grown / entries,
        "ns": sum(windows) / entries,
        "drift": median(windows[-part:]) / median(windows[:part]),
        "gc_share": 100 * paused / sum(windows),
        "longest_pause_ms": longest / 1e6,
        "more_ms": max(0, longest - empty) / 1e6,
        "full_collect_ms": collected / 1e6,
        "tracked_op": (len(gc.get_objects()) - tracked) / (entries / ENTRIES_PER_OP),
    }


def tracked_by_entries(log: Callable[[str], object]) -> float:
    """Return how many objects the collector has to look at for each further entry of an op."""
    log(work.LOG)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(WINDOW):
        log(work.LOG)
    gc.collect()
    return round((len(gc.get_objects()) - before) / WINDOW, 3)


def _floor(entries: int, make: Callable[[int], MemoryOp | BareOp]) -> dict[str, float]:
    tree: list[MemoryOp | BareOp] = []

    def fill(ops: int) -> None:
        for number in range(ops):
            op = make(number)
            tree.append(op)
            log = op.log
            for message in _messages():
                log(message)
            op.end()

    return session(fill, entries) | {"tracked_entry": tracked_by_entries(make(0).log)}


def _optree(entries: int, builder: SessionTreeBuilder) -> dict[str, float]:
    def fill(ops: int) -> None:
        for size in work.turns(ops):
            turn = builder.begin_turn()
            for _ in range(size):
                op = builder.begin_op("llm", LABEL, turn=turn)
                log = op.log
                for message in _messages():
                    log(message)
                op.end()
            turn.end()

    return session(fill, entries) | {"tracked_entry": tracked_by_entries(builder.begin_op("llm", LABEL).log)}


def _messages() -> list[str]:
    return [*work.LOGS, *work.LOGS[: ENTRIES_PER_OP - len(work.LOGS)]]


def main(mode: str, entries: int) -> None:
    """Print what one session gave."""
    if mode == "bare":
        found = _floor(entries, lambda number: BareOp(number, []))
    elif mode == "floor":
        found = _floor(entries, lambda number: MemoryOp(number, 1, "llm", LABEL))
    elif mode == "floor-journal":
        with tempfile.TemporaryDirectory(prefix="optree-bench-") as folder:
            journal = FloorJournal(Path(folder) / "journal")
            found = _floor(entries, lambda number: JournalOp(number, 1, "llm", LABEL, journal))
            journal.close()
    elif mode == "memory":
        found = _optree(entries, SessionTreeBuilder("bench"))
    else:
        with on_disk() as (builder, _):
            found = _optree(entries, builder)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
