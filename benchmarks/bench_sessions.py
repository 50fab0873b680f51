"""What a short session costs from begin to end, with few and with many sessions in the directory, with default settings.

Each directory is measured in a process of its own, that begins and ends sessions one after another as fast as it can.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import optree
from benchmarks.bench_default import search
from benchmarks.measure import Job, Rounds, in_fresh_process
from benchmarks.report import Cell, Report, Table, at_most
from optree.store import Directory

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
    return Report("sessions", [table], aims, [] if spans else ["opentelemetry-sdk"])


class _Found(msgspec.Struct):
    """Milliseconds of CPU time a session, with so many sessions *there*."""

    there: int
    caller: float
    process: float
    spans: float | None


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


if __name__ == "__main__":
    print(msgspec.json.encode(_measured(int(sys.argv[1]), quick=sys.argv[2] == "quick")).decode())
