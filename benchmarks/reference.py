"""The machine that absolute aims are stated for: there the floor's op, with its journal, takes 8.5 µs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from benchmarks.bench_op import floor_journal_ops
from benchmarks.floor import JournalOp
from benchmarks.measure import Rounds, Variant

FLOOR = "floor, journal"
FLOOR_NS = 8500.0
THERE = "where the floor's op takes 8.5 µs"
_OPS, _ROUNDS = 1000, 9


def floor(folder: Path) -> dict[str, Variant]:
    """Return the floor's op as a variant: beside others it tells how quick this machine is at this moment."""
    return {FLOOR: functools.partial(floor_journal_ops, folder, JournalOp)}


def slowness() -> float:
    """Return how many times as long as there the floor takes here and now."""
    with tempfile.TemporaryDirectory() as folder:
        return Rounds(floor(Path(folder)), _OPS, _ROUNDS).caller(FLOOR) / FLOOR_NS
