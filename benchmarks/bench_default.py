"""What users run by default costs them: `with optree.llm()` and `@optree.tool` with the console on, beside OpenTelemetry's context manager.

Everything runs in a process of its own, since what a process mirrors is found once. `python -m benchmarks.bench_default own ROUNDS UNITS`
prints what optree's variants alone cost, as JSON: two commits are compared by that (`make bench-against`).
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import optree
from benchmarks import work
from benchmarks.measure import Job, Rounds, Variant, in_fresh_process
from benchmarks.reference import FLOOR, FLOOR_NS, THERE, floor
from benchmarks.report import Aim, Cell, Report, Table, at_least, at_most
from optree import _speed as speed

LLM, TOOL, LLM_PURE, TOOL_PURE = "with optree.llm()", "@optree.tool", "with optree.llm(), pure Python", "@optree.tool, pure Python"
SPAN, CALL_SPAN = "OTel span with 16 events", "OTel span with 2 attributes"
MIRRORED, EXPORTED = "with optree.llm(), mirror on", "OTel span, batch processor, OTLP"
HISTORY = "op.request, 1,000 messages of 1 KB that were sent before"
NEEDS = "opentelemetry-exporter-otlp"
DOES = {
    LLM: "default settings: console on, journal in the ordinary directory; structure and accounting written before a call returns",
    TOOL: "the same for a function with one argument and a result, both recorded",
    LLM_PURE: "without the compiled hot path",
    TOOL_PURE: "without the compiled hot path",
    SPAN: "start_as_current_span, no-op processor: memory, dropped at the span's end",
    CALL_SPAN: "the same, a set_attribute for the argument and one for the result",
    MIRRORED: "the same as the first, and its span sent to a collector",
    EXPORTED: "start_as_current_span, BatchSpanProcessor, OTLPSpanExporter to the same collector",
}


def measure(*, quick: bool) -> Report:
    """Measure in a new process."""
    return msgspec.convert(in_fresh_process("benchmarks.bench_default", "quick" if quick else "full"), Report)


def _measured(*, quick: bool) -> Report:
    units, rounds = (100, 5) if quick else (500, 21)
    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        peers, missing = _peers()
        plain = {LLM_PURE: _plainly(LLM, folder), TOOL_PURE: _plainly(TOOL, folder)}
        paths = Rounds(own(folder) | plain | peers | floor(folder), units, rounds)
        history = Rounds({HISTORY: functools.partial(_history, folder)}, 4 if quick else 20, 3 if quick else 7)
        mirrored = _mirrored(folder, units, rounds) if not missing else None
        optree.flush("snapshot", 60.0)
    tables = [_table(paths, mirrored, history)]
    return Report("default", tables, _aims(paths, mirrored, history), missing)


def _aims(paths: Rounds, mirrored: Rounds | None, history: Rounds) -> list[Aim]:
    there = FLOOR_NS / paths.caller(FLOOR)
    found = [
        at_most(f"with optree.llm(), default settings, {THERE}", paths.caller(LLM) * there / 1e3, 15.0, "µs"),
        at_most(f"{HISTORY}, caller", history.caller(HISTORY) / 1e6, 2.0, "ms"),
    ]
    if SPAN in paths.costs:
        found += [
            at_least("OTel span, no-op processor ÷ with optree.llm()", paths.ratio(SPAN, LLM), 5.0),
            at_least("OTel span, no-op processor ÷ with optree.llm(), pure Python", paths.ratio(SPAN, LLM_PURE), 2.0),
            at_least("OTel span with 2 attributes ÷ @optree.tool", paths.ratio(CALL_SPAN, TOOL), 1.0),
        ]
    if mirrored is not None:
        found.append(at_least("OTel span, batch processor, OTLP ÷ with optree.llm(), mirror on", mirrored.ratio(EXPORTED, MIRRORED), 3.0))
    return found


def _table(paths: Rounds, mirrored: Rounds | None, history: Rounds) -> Table:
    rows: list[list[Cell]] = []
    for rounds in filter(None, (paths, mirrored)):
        beside = {LLM: SPAN, LLM_PURE: SPAN, TOOL: CALL_SPAN, TOOL_PURE: CALL_SPAN, MIRRORED: EXPORTED}
        for name in rounds.costs:
            if name in DOES:
                peer = beside.get(name, "")
                ratio = rounds.ratio(peer, name) if peer in rounds.costs else None
                rows.append([name, rounds.caller(name) / 1e3, rounds.process(name) / 1e3, ratio, DOES[name]])
    rows.append([HISTORY, history.caller(HISTORY) / 1e3, history.process(HISTORY) / 1e3, None, "encoded, looked up, referred to"])
    note = (
        "A block has the 18 events of an op: begin, 10 logs, 5 reasoning chunks, 1 accounting record, end; a call has begin, argument, "
        "result and end. CPU time."
    )
    return Table("What users run by default", ["variant", "caller µs", "process µs", "OTel's ÷ this", "what it does"], rows, note)


def own(folder: Path) -> dict[str, Variant]:
    """Return what users run, by name."""
    return {LLM: functools.partial(_in_session, folder, _blocks), TOOL: functools.partial(_in_session, folder, _calls)}


def _in_session(folder: Path, work_of: Callable[[int], None], units: int, **options: Any) -> Job:
    optree.configure(base_dir=folder / "optree", **({"otel": "off"} | options))
    scope = optree.session("bench")
    scope.__enter__()

    def finish() -> None:
        """Save the session and send its spans: else that goes on while another variant is timed."""
        scope.__exit__(None, None, None)
        optree.flush("snapshot", 60.0)
        optree.flush("export", 60.0)

    return Job(lambda: work_of(units), finish)


def _blocks(ops: int) -> None:
    for size in work.turns(ops):
        with optree.turn():
            for _ in range(size):
                with optree.llm(provider="openai", model=work.MODEL) as op:
                    for message in work.LOGS:
                        op.log(message)
                    for chunk in work.CHUNKS:
                        op.think(chunk)
                    op.account(
                        input_tokens=work.INPUT, output_tokens=work.OUTPUT, cache_read_tokens=work.CACHED, cost_usd=work.COST,
                        latency=work.LATENCY,
                    )  # fmt: skip


@optree.tool
def search(query: str) -> str:  # noqa: ARG001 - recorded
    """Look for nothing."""
    return "a page about Rayleigh scattering"


def _calls(ops: int) -> None:
    for size in work.turns(ops):
        with optree.turn():
            for _ in range(size):
                search("Rayleigh scattering")


def _plainly(name: str, folder: Path) -> Variant:
    """Return a variant without the compiled hot path."""

    def prepare(units: int) -> Job:
        with speed.plainly():
            job = own(folder)[name](units)

        def do() -> None:
            with speed.plainly():
                job.work()

        return Job(do, job.flush, job.close)

    return prepare


def _history(folder: Path, calls: int) -> Job:
    messages = [{"role": "user", "content": f"{number} " + "x" * 1000} for number in range(1000)]

    def do(units: int) -> None:
        for _ in range(units):
            with optree.llm(provider="openai", model=work.MODEL) as op:
                op.request(messages=messages)

    job = _in_session(folder, do, calls)
    do(1)
    return job


# OpenTelemetry


def _peers() -> tuple[dict[str, Variant], list[str]]:
    from benchmarks.peers import idle_tracer

    try:
        tracer = idle_tracer()
    except ImportError:
        return {}, ["opentelemetry-sdk"]

    def calls(ops: int) -> Job:
        def do() -> None:
            for size in work.turns(ops):
                with tracer.start_as_current_span("turn"):
                    for _ in range(size):
                        with tracer.start_as_current_span("search") as span:
                            span.set_attribute("query", "Rayleigh scattering")
                            span.set_attribute("result", "a page about Rayleigh scattering")

        return Job(do)

    return {SPAN: functools.partial(_spans, tracer), CALL_SPAN: calls}, []


def _spans(tracer: Any, ops: int, flush: Callable[[], object] = lambda: None) -> Job:
    from benchmarks.peers import fill_span

    def do() -> None:
        for size in work.turns(ops):
            with tracer.start_as_current_span("turn"):
                for _ in range(size):
                    with tracer.start_as_current_span("chat gpt-5") as span:
                        fill_span(span)

    return Job(do, flush)


def _mirrored(folder: Path, units: int, rounds: int) -> Rounds | None:
    """Measure what is sent to a collector; None where the exporter is missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from benchmarks.sink import sink
    except ImportError:
        return None
    with sink() as endpoint:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
        try:
            exported = functools.partial(_spans, provider.get_tracer("bench"), flush=provider.force_flush)
            ours = functools.partial(_in_session, folder, _blocks, otel={"endpoint": endpoint})
            return Rounds({MIRRORED: ours, EXPORTED: exported}, units, rounds)
        finally:
            optree.flush("export", 60.0)
            provider.shutdown()


def main(arguments: list[str]) -> None:
    """Print figures as JSON."""
    if arguments[0] != "own":
        print(msgspec.json.encode(_measured(quick=arguments[0] == "quick")).decode())
        return
    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as name:
        rounds, units = map(int, arguments[1:])
        found = Rounds(own(Path(name)), units, rounds)
        history = Rounds({HISTORY: functools.partial(_history, Path(name))}, 4, rounds)
        costs = {each: one.caller(each) for one in (found, history) for each in one.costs}
        optree.flush("snapshot", 60.0)
    print(json.dumps(costs))


if __name__ == "__main__":
    main(sys.argv[1:])
