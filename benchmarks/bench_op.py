"""What an op and a log line cost the program that is traced: optree beside the floor and its peers, all in the same rounds."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import optree
from benchmarks import work
from benchmarks.floor import FloorJournal, JournalOp, MemoryOp, ThroughOp
from benchmarks.measure import Job, Rounds, Variant
from benchmarks.peers import Peer, installed
from benchmarks.report import Aim, Cell, Report, Table, at_least, at_most
from benchmarks.sessions import LABEL, opened, removed
from optree import _speed as speed
from optree._builder import SessionTreeBuilder
from optree._builder.stream import Write

FLOOR, FLOOR_JOURNAL, FLOOR_THROUGH = "floor, memory", "floor, journal", "floor, structure through"
MEMORY, JOURNAL, ALL, CONTEXT = "optree, memory", "optree, journal (default)", 'optree, write="all"', "optree, journal, with-blocks"
PURE = "optree, journal, pure Python"
OTEL = "OTel SDK, no-op processor"
LOOP = "loop"
LOGS_PER_OP = 1000
"""Log lines timed in one op before the next."""
DOES = {
    FLOOR: "memory; no checks, locks or ids",
    FLOOR_JOURNAL: "memory, and msgpack to a file, written 64 KiB at a time",
    FLOOR_THROUGH: "the same, but structure and accounting as JSON lines with a checksum, each written at once",
    MEMORY: "memory: typed tree, ids, totals",
    JOURNAL: "memory, and structure and accounting written before the call returns, entries within 10 ms",
    PURE: "the same without the compiled hot path",
    ALL: "memory, and everything written before the call returns",
    CONTEXT: "the same through optree.session, turn and llm, which keep the current op in a context variable",
}


def measure(*, quick: bool) -> Report:
    """Measure whole ops and single log lines."""
    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        peers, missing = installed(folder)
        ops = Rounds(_op_variants(folder, peers), 200 if quick else 1000, 5 if quick else 21)
        logs = Rounds(_log_variants(folder, peers), 2000 if quick else 20_000, 7 if quick else 21)
    does = DOES | {peer.name: peer.does for peer in peers}
    tables = [_op_table(ops, does, missing), _log_table(logs, missing)]
    return Report("op", tables, _aims(ops, logs), missing)


def _aims(ops: Rounds, logs: Rounds) -> list[Aim]:
    found = [
        at_most("op.log, no journal ÷ floor in memory", logs.ratio(MEMORY, FLOOR, LOOP), 1.5),
        at_most("op.log, journal ÷ floor in memory", logs.ratio(JOURNAL, FLOOR, LOOP), 2.0),
        at_most("whole op, structure on disk ÷ floor with journal", ops.ratio(JOURNAL, FLOOR_JOURNAL), 1.76),
    ]
    if OTEL in ops.costs:
        found.append(at_least("whole op: OTel SDK, no-op processor ÷ optree with journal", ops.ratio(OTEL, JOURNAL), 5.0))
    return found


def _op_table(ops: Rounds, does: dict[str, str], missing: list[str]) -> Table:
    rows: list[list[Cell]] = [
        [name, ops.caller(name) / 1e3, ops.process(name) / 1e3, ops.ratio(name, FLOOR_JOURNAL), does[name]] for name in ops.costs
    ]
    rows += [[name, None, None, None, "missing: not installed"] for name in missing]
    note = "One op: begin, 10 logs, 5 reasoning chunks, 1 accounting record, end. CPU time."
    return Table("One whole op", ["variant", "caller µs", "process µs", "caller ÷ floor, journal", "what it does"], rows, note)


def _log_table(logs: Rounds, missing: list[str]) -> Table:
    rows: list[list[Cell]] = [
        [name, logs.caller(name, LOOP), logs.process(name), logs.ratio(name, FLOOR, LOOP)] for name in logs.costs if name != LOOP
    ]
    rows += [[f"{name}: missing, not installed", None, None, None] for name in missing]
    note = f"One line of {len(work.LOG)} bytes in an op that is open; the loop's own cost is taken off the caller's. CPU time."
    return Table("One log line", ["variant", "caller ns", "process ns", "caller ÷ floor, memory"], rows, note)


def _op_variants(folder: Path, peers: list[Peer]) -> dict[str, Variant]:
    variants: dict[str, Variant] = {
        FLOOR: _floor_ops,
        FLOOR_JOURNAL: functools.partial(floor_journal_ops, folder, JournalOp),
        FLOOR_THROUGH: functools.partial(floor_journal_ops, folder, ThroughOp),
        MEMORY: _memory_ops,
        JOURNAL: functools.partial(_journal_ops, "structure"),
        PURE: _plain(functools.partial(_journal_ops, "structure")),
        ALL: functools.partial(_journal_ops, "all"),
        CONTEXT: functools.partial(_context_ops, folder),
    }
    return variants | {peer.name: peer.op for peer in peers}


def _log_variants(folder: Path, peers: list[Peer]) -> dict[str, Variant]:
    variants: dict[str, Variant] = {
        LOOP: _loop,
        FLOOR: lambda calls: Job(_lines([MemoryOp(number, 1, "llm", LABEL).log for number in range(_ops(calls))])),
        FLOOR_JOURNAL: functools.partial(_floor_journal_logs, folder),
        MEMORY: lambda calls: Job(_lines(_optree_logs(SessionTreeBuilder("bench"), calls))),
        JOURNAL: functools.partial(_journal_logs, "structure"),
        PURE: _plain(functools.partial(_journal_logs, "structure")),
        ALL: functools.partial(_journal_logs, "all"),
    }
    return variants | {peer.name: peer.log for peer in peers}


def _plain(variant: Variant) -> Variant:
    """Return a variant without the compiled hot path."""

    def prepare(units: int) -> Job:
        with speed.plainly():
            job = variant(units)

        def do() -> None:
            with speed.plainly():
                job.work()

        return Job(do, job.flush, job.close)

    return prepare


# Whole ops


def _floor_op(op: MemoryOp) -> None:
    log = op.log
    for message in work.LOGS:
        log(message)
    think = op.think
    for chunk in work.CHUNKS:
        think(chunk)
    op.account(work.MODEL, work.INPUT, work.OUTPUT, work.CACHED, work.COST, work.LATENCY)
    op.end()


def _floor_ops(ops: int) -> Job:
    tree: list[MemoryOp] = []

    def do() -> None:
        for number in range(ops):
            op = MemoryOp(number, number // work.OPS_PER_TURN, "llm", LABEL)
            tree.append(op)
            _floor_op(op)

    return Job(do)


def floor_journal_ops(folder: Path, kind: type[JournalOp | ThroughOp], ops: int) -> Job:
    """Return the job of recording ops as the floor does, with its journal."""
    tree: list[MemoryOp] = []
    journal = FloorJournal(folder / "floor-ops")

    def do() -> None:
        for number in range(ops):
            op = kind(number, number // work.OPS_PER_TURN, "llm", LABEL, journal)
            tree.append(op)
            _floor_op(op)

    return Job(do, journal.close)


def _optree_op(op: optree.Op) -> None:
    log = op.log
    for message in work.LOGS:
        log(message)
    think = op.think
    for chunk in work.CHUNKS:
        think(chunk)
    op.account(input_tokens=work.INPUT, output_tokens=work.OUTPUT, cache_read_tokens=work.CACHED, cost_usd=work.COST, latency=work.LATENCY)


def _optree_ops(builder: SessionTreeBuilder, ops: int) -> Callable[[], None]:
    def do() -> None:
        for size in work.turns(ops):
            turn = builder.begin_turn()
            for _ in range(size):
                op = builder.begin_op("llm", LABEL, turn=turn)
                _optree_op(op)
                op.end()
            turn.end()

    return do


def _memory_ops(ops: int) -> Job:
    return Job(_optree_ops(SessionTreeBuilder("bench"), ops))


def _journal_ops(write: Write, ops: int) -> Job:
    builder, store, folder = opened(write)
    return Job(_optree_ops(builder, ops), store.flush, lambda: removed(store, folder))


def _context_ops(folder: Path, ops: int) -> Job:
    optree.configure(base_dir=folder / "context", console=False)
    scope = optree.session("bench")
    scope.__enter__()

    def do() -> None:
        for size in work.turns(ops):
            with optree.turn():
                for _ in range(size):
                    with optree.llm(provider="openai", model=work.MODEL) as op:
                        _optree_op(op)

    def close() -> None:
        scope.__exit__(None, None, None)
        optree.flush("snapshot", 60.0)

    return Job(do, optree.flush, close)


# Log lines


def _ops(calls: int) -> int:
    return calls // LOGS_PER_OP


def _lines(logs: list[Callable[[str], Any]]) -> Callable[[], None]:
    def do() -> None:
        for log in logs:
            for _ in repeat(None, LOGS_PER_OP):
                log(work.LOG)

    return do


def _loop(calls: int) -> Job:
    def do() -> None:
        for _ in range(_ops(calls)):
            for _ in repeat(None, LOGS_PER_OP):
                pass

    return Job(do)


def _optree_logs(builder: SessionTreeBuilder, calls: int) -> list[Callable[[str], Any]]:
    return [builder.begin_op("llm", LABEL).log for _ in range(_ops(calls))]


def _floor_journal_logs(folder: Path, calls: int) -> Job:
    journal = FloorJournal(folder / "floor-logs")
    logs = [JournalOp(number, 1, "llm", LABEL, journal).log for number in range(_ops(calls))]
    return Job(_lines(logs), journal.close)


def _journal_logs(write: Write, calls: int) -> Job:
    builder, store, folder = opened(write)
    return Job(_lines(_optree_logs(builder, calls)), store.flush, lambda: removed(store, folder))
