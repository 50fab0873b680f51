"""What a short session costs from begin to end, with few and with many sessions in the directory, and what many hold that are open at once.

With default settings. Each directory is measured in a process of its own, that begins and ends sessions one after another as fast as it
can, and so is what is open at once.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextvars import Context
from pathlib import Path
from statistics import median
from time import monotonic, sleep, thread_time_ns
from typing import Any

import msgspec

import optree
from benchmarks.bench_default import search
from benchmarks.measure import Job, Rounds, in_fresh_process
from benchmarks.report import Cell, Report, Table, at_most
from optree._store import Directory

THERE = (10, 10_000)
SESSION, SPANS = "one session, {} in the directory", "OTel: three spans, no-op processor"


def measure(*, quick: bool) -> Report:
    """Measure each directory in a new process."""
    found = [
        msgspec.convert(in_fresh_process("benchmarks.bench_sessions", number, "quick" if quick else "full"), _Found) for number in THERE
    ]
    rows: list[list[Cell]] = [
        [SESSION.format(f"{one.there:,}"), one.caller, one.process, "session, turn, tool with argument and result: snapshot, bill, removal"]
        for one in found
    ]
    spans = [one.spans for one in found if one.spans is not None]
    if spans:
        rows.append([SPANS, min(spans), None, "the same nesting and attributes: memory, dropped at each span's end"])
    aims = []
    for one in found:
        aims += [
            at_most(f"session begin to end, {one.there:,} in the directory, caller", one.caller, 0.5, "ms"),
            at_most(f"session begin to end, {one.there:,} in the directory, process", one.process, 1.5, "ms"),
        ]
    note = "One after another, default settings, each saved and removed from the live directories at the end of its round. CPU time."
    table = Table("Many short sessions", ["variant", "caller ms", "process ms", "what it does"], rows, note)
    number = 500 if quick else 5_000
    held = msgspec.convert(in_fresh_process("benchmarks.bench_sessions", number, "open"), _Open)
    aims += [
        at_most(f"{number:,} sessions open at once: descriptors, once they are idle", float(held.idle), 64.0, ""),
        at_most(f"{number:,} sessions open at once: threads of optree then", float(held.threads), 4.0, ""),
        at_most("begin of the last hundred ÷ of the second hundred", held.last / held.first, 1.1, "x"),
    ]
    begins = ["begin of the 2nd hundred, caller ms", "of the last hundred"]
    columns = ["open at once", *begins, "descriptors, most", "idle", "threads, syncing", "idle"]
    cells: list[list[Cell]] = [[f"{number:,}", held.first, held.last, held.most, held.idle, held.busy, held.threads]]
    note = "Begun one after another, each with a turn; a descriptor is counted that the process had not before. Medians of CPU time."
    return Report(
        "sessions", [table, Table("Sessions that are open at once", columns, cells, note)], aims, [] if spans else ["opentelemetry-sdk"]
    )


class _Found(msgspec.Struct):
    """Milliseconds of CPU time a session, with so many sessions *there*."""

    there: int
    caller: float
    process: float
    spans: float | None


class _Open(msgspec.Struct):
    """Milliseconds of CPU time that a begin took, descriptors and optree's threads then, and once all are idle and on the disk."""

    first: float
    last: float
    most: int
    idle: int
    busy: int
    threads: int


def fill(directory: Directory, number: int) -> None:
    """Put that many saved sessions into a directory."""
    with optree.session("earlier") as session, optree.turn():
        search("Rayleigh scattering")
    optree.flush("snapshot", 60.0)
    data = directory.snapshot(session.txn).read_bytes()
    for one in range(1, number):
        directory.snapshot(f"earlier-{one}").write_bytes(data)


def _sessions(number: int) -> Job:
    def do() -> None:
        for _ in range(number):
            with optree.session("bench"), optree.turn(user="What scatters?"):
                search("Rayleigh scattering")

    return Job(do, lambda: optree.flush("snapshot", 60.0))


def _spans(tracer: Any, number: int) -> Job:
    def do() -> None:
        for _ in range(number):
            with tracer.start_as_current_span("bench"), tracer.start_as_current_span("turn") as turn:
                turn.set_attribute("user", "What scatters?")
                with tracer.start_as_current_span("search") as span:
                    span.set_attribute("query", "Rayleigh scattering")
                    span.set_attribute("result", "a page about Rayleigh scattering")

    return Job(do)


def _measured(there: int, *, quick: bool) -> _Found:
    from benchmarks.peers import idle_tracer

    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as name:
        optree.configure(base_dir=Path(name), otel="off")
        fill(Directory.of(Path(name)), there)
        variants = {SESSION: _sessions}
        try:
            tracer = idle_tracer()
            variants[SPANS] = lambda number: _spans(tracer, number)
        except ImportError:
            pass
        rounds = Rounds(variants, *((30, 3) if quick else (200, 11)))
    spans = rounds.caller(SPANS) / 1e6 if SPANS in variants else None
    return _Found(there, rounds.caller(SESSION) / 1e6, rounds.process(SESSION) / 1e6, spans)


def _opened(number: int) -> _Open:
    """Begin so many sessions, and let them be idle."""
    before, most, times, scopes = _descriptors(), 0, list[int](), list[tuple[Context, Any]]()
    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as name:
        optree.configure(base_dir=Path(name), otel="off")
        for _ in range(number):
            scope, context = optree.session("bench"), Context()
            begun = thread_time_ns()
            context.run(scope.__enter__)
            times.append(thread_time_ns() - begun)
            context.run(optree.turn(user="What scatters?").__enter__)
            scopes.append((context, scope))
            most = max(most, _descriptors())
        until = monotonic() + 60.0
        while _descriptors() - before > 64 and monotonic() < until:
            sleep(0.1)
        busy, until = _threads(), monotonic() + 60.0
        optree.flush("sync", 600.0)
        while _threads() > 4 and monotonic() < until:
            sleep(0.1)
        threads, idle = _threads(), _descriptors()
        for context, scope in scopes:
            context.run(scope.__exit__, None, None, None)
        optree.flush("snapshot", 600.0)
    return _Open(median(times[100:200]) / 1e6, median(times[-100:]) / 1e6, most - before, idle - before, busy, threads)


def _threads() -> int:
    return sum(thread.name.startswith("optree-") for thread in threading.enumerate())


def _descriptors() -> int:
    return len([*Path("/dev/fd").iterdir()])


if __name__ == "__main__":
    print(
        msgspec.json.encode(
            _opened(int(sys.argv[1])) if sys.argv[2] == "open" else _measured(int(sys.argv[1]), quick=sys.argv[2] == "quick")
        ).decode()
    )
