"""A session whose LLM calls each resend the whole history: what it stores, beside what storing each request in full would take.

`python -m benchmarks.bench_growth CALLS` is one such session, and prints what it found as JSON.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tracemalloc
from statistics import linear_regression, median
from time import thread_time_ns
from typing import Any

import msgspec

from benchmarks.measure import SEED, in_fresh_process
from benchmarks.report import Aim, Cell, Report, Table, at_most
from benchmarks.sessions import LABEL, on_disk
from benchmarks.work import VOCABULARY
from optree._builder import SessionTreeBuilder

COLUMNS = ["LLM calls", "journal KB", "snapshot KB", "memory KB", "CPU ms a call", "last calls", "history KB", "each request in full, KB"]
STORED = {"journal": 1, "snapshot": 2, "memory": 3}


def measure(*, quick: bool) -> Report:
    """Record sessions of more and more calls."""
    sizes = (40, 80, 160) if quick else (100, 200, 400, 800)
    found = [in_fresh_process("benchmarks.bench_growth", size) for size in sizes]
    keys = ["journal", "snapshot", "memory", "call_ms", "last_call_ms", "history", "full"]
    rows: list[list[Cell]] = [[size, *(round(result[key], 3) for key in keys)] for size, result in zip(sizes, found, strict=True)]
    note = (
        "Each call adds two messages of about 1 KB and sends all that came before. The snapshot is compressed, the rest is not. "
        f"{_fits(rows)} Last calls: the last tenth. A caller pays for what it hands over, so that CPU may grow with the history."
    )
    return Report("growth", [Table("A history that is sent again with each call", COLUMNS, rows, note)], _aims(rows))


def _aims(rows: list[list[Cell]]) -> list[Aim]:
    return [at_most(f"growth: {name} a call, last doubling ÷ first", bend(rows, column), 1.25) for name, column in STORED.items()]


def bend(rows: list[list[Any]], column: int) -> float:
    """Return how much more each further call stores between the last two sizes than between the first two; 1 is linear."""

    def slope(a: list[Any], b: list[Any]) -> float:
        return (b[column] - a[column]) / (b[0] - a[0])

    return slope(rows[-2], rows[-1]) / slope(rows[0], rows[1])


def _fits(rows: list[list[Any]]) -> str:
    said: list[str] = []
    for name, column in STORED.items():
        slope, start = linear_regression([row[0] for row in rows], [row[column] for row in rows])
        off = max(abs(row[column] / (start + slope * row[0]) - 1) for row in rows)
        said.append(f"{name} {slope:.2f} KB a call + {start:.1f} KB (off by {100 * off:.1f} % at most)")
    return f"Lines fitted: {', '.join(said)}."


def exchange(chance: random.Random) -> list[dict[str, str]]:
    """Return what one call adds: a tool's result, and what the model said."""
    said = [" ".join(chance.choices(VOCABULARY, k=size)) + f" {chance.random()}" for size in (190, 170)]
    return [
        {"role": "tool", "tool_call_id": f"call_{chance.getrandbits(48):x}", "content": said[0]},
        {"role": "assistant", "content": said[1]},
    ]


def record(builder: SessionTreeBuilder, calls: int) -> tuple[list[int], list[Any]]:
    """Record the calls; returns the CPU time of each, and the history in the end."""
    chance = random.Random(SEED)
    history: list[Any] = [{"role": "system", "content": " ".join(chance.choices(VOCABULARY, k=300))}]
    spent: list[int] = []
    for _ in range(calls):
        result, said = exchange(chance)
        history.append(result)
        begun = thread_time_ns()
        turn = builder.begin_turn()
        op = builder.begin_op("llm", LABEL, turn=turn)
        op.request(history, temperature=0.2, max_tokens=4096)
        op.account(input_tokens=len(history) * 200, output_tokens=180, cost_usd=0.001)
        op.response(said)
        op.end()
        turn.end()
        spent.append(thread_time_ns() - begun)
        history.append(said)
    return spent, history


def in_full(history: list[Any]) -> tuple[int, int]:
    """Return the bytes of the history, and of all requests if each had it in full."""
    sizes = [len(msgspec.json.encode(message)) + 1 for message in history]
    requests = sum(sum(sizes[: number + 1]) for number in range(1, len(sizes), 2))
    return sum(sizes), requests


def main(calls: int) -> None:
    """Print what one session gave, in KB and ms."""
    with on_disk() as (builder, store):
        spent, history = record(builder, calls)
        store.flush()
        journal = store.journal.path.stat().st_size
        builder.end_session()
        if not store.flush("snapshot", 120.0):
            raise RuntimeError(f"the snapshot was not written: {list(store.problems)}")
        snapshot = store.options.directory.snapshot(store.txn).stat().st_size
    size, full = in_full(history)
    tail = max(1, calls // 10)
    found = {"journal": journal, "snapshot": snapshot, "memory": held(calls), "history": size, "full": full}
    found = {key: value / 1e3 for key, value in found.items()}
    print(json.dumps(found | {"call_ms": sum(spent) / calls / 1e6, "last_call_ms": median(spent[-tail:]) / 1e6}))


def held(calls: int) -> int:
    """Return the bytes that a session in memory holds, without the caller's own history."""
    tracemalloc.start()
    builder = SessionTreeBuilder("bench")
    _, history = record(builder, calls)
    gc.collect()
    both, _ = tracemalloc.get_traced_memory()
    del builder
    gc.collect()
    own, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del history
    return both - own


if __name__ == "__main__":
    main(int(sys.argv[1]))
