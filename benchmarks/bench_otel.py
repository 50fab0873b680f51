"""What the OpenTelemetry mirror costs: a span on its way to a collector, beside the stock exporter's, and the program that is mirrored.

The collector is a process of its own that only says yes. Stock is opentelemetry-exporter-otlp, given finished spans of the same content.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from benchmarks import work
from benchmarks.measure import ROOT, Job, Rounds, Variant
from benchmarks.reference import FLOOR, FLOOR_NS, THERE, floor
from benchmarks.report import Aim, Cell, Report, Table, at_least, at_most
from benchmarks.sessions import LABEL, opened, removed
from benchmarks.sink import sink
from optree._builder import Op, SessionTreeBuilder

if TYPE_CHECKING:
    from optree.exporting import Traced
    from optree_otel.mirror import OtelMirror
    from optree_otel.session_exporter import Key

sys.path.insert(0, str(ROOT / "exporters"))

NEEDS = "opentelemetry-exporter-otlp"
MIRROR, STOCK = "optree mirror", "stock OTLPSpanExporter"
THROUGH = 'mirror, exporter="sdk"'
"""The mirror, with the stock exporter inside the SDK's batch processor in place of its own encoder."""
OURS, THEIRS = "optree, bytes only", "stock, bytes only"
OFF, ON, INSIDE = "mirror off", "mirror on", "mirror on, span made current"
BATCH = 512
"""Spans that the stock exporter gets at once, as its batch processor's default is."""
PACE_MS = 2.0
PERIODS = 300
ATTRIBUTES = {"provider": "openai", "model": work.MODEL}


def measure(*, quick: bool) -> Report:
    """Measure what spans cost to send, what the program pays, and how long it is kept waiting."""
    try:
        _stock("exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        return Report("otel", [], [], [NEEDS])
    with sink() as endpoint, _only(endpoint):
        spans = _spans(endpoint, 500 if quick else 2000, 3 if quick else 9)
        with tempfile.TemporaryDirectory() as folder:
            calls = Rounds(_calls(endpoint) | floor(Path(folder)), 200 if quick else 1000, 5 if quick else 21)
        waits = _waits(endpoint, 4000 if quick else 20_000, 1 if quick else 3)
    return Report("otel", [_span_table(spans), _call_table(calls), _wait_table(waits)], _aims(spans, calls, waits))


def _aims(spans: Rounds, calls: Rounds, waits: dict[str, list[float]]) -> list[Aim]:
    ratio = median(a.process / b.process for a, b in zip(spans.costs[STOCK], spans.costs[MIRROR], strict=True))
    sent = median(base.process / mirror.process for base, mirror in zip(spans.costs[FLOOR], spans.costs[MIRROR], strict=True))
    paid = calls.caller(ON, OFF) / work.EVENTS_PER_OP / 1e3 * FLOOR_NS / calls.caller(FLOOR)
    return [
        at_least(f"op spans to a local collector, a core-second, {THERE}", sent * 1e9 / FLOOR_NS, 30_000, "spans"),
        at_least("a span: stock exporter ÷ optree's mirror", ratio, 5.0),
        at_most(f"the mirror's cost for the calling thread, a record, {THERE}", paid, 0.3, "µs"),
        at_most("longest delay of a paced thread while spans are sent", median(waits["sending"]), 10.0, "ms"),
    ]


@contextlib.contextmanager
def _only(endpoint: str) -> Generator[None, None, None]:
    """Let OpenTelemetry's variables say this endpoint and nothing else."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OTEL_")}
    os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            del os.environ[name]
        os.environ.update(before)


def _mirror(endpoint: str, exporter: str = "otlp") -> OtelMirror:
    from optree_otel import make

    made = make({"endpoint": endpoint, "exporter": exporter})
    if made is None:
        raise RuntimeError("there is no mirror to measure")
    return made


def _traced(builder: SessionTreeBuilder, folder: Path) -> Traced:
    from optree._store import Directory
    from optree.exporting import Traced

    return Traced(builder.core, Directory.of(folder), 0)


def _op(builder: SessionTreeBuilder, turn: Any) -> Op:
    op = builder.begin_op("llm", LABEL, turn=turn, attributes=ATTRIBUTES)
    for message in work.LOGS:
        op.log(message)
    for chunk in work.CHUNKS:
        op.think(chunk)
    op.account(input_tokens=work.INPUT, output_tokens=work.OUTPUT, cache_read_tokens=work.CACHED, cost_usd=work.COST, latency=work.LATENCY)
    return op


def _record(builder: SessionTreeBuilder, ops: int, around: Callable[[Op], None] | None = None) -> None:
    for size in work.turns(ops):
        turn = builder.begin_turn()
        for _ in range(size):
            op = _op(builder, turn)
            if around is not None:
                around(op)
            op.end()
        turn.end()


# Spans


def _spans(endpoint: str, ops: int, rounds: int) -> Rounds:
    """Send the ops of one recorded session, again and again."""
    builder, store, folder = opened()
    _record(builder, ops)
    builder.end_session()
    traced = _traced(builder, folder)
    traced.settle()
    mirror, through = _mirror(endpoint), _mirror(endpoint, "sdk")
    try:
        return Rounds(_span_variants(mirror, through, traced) | floor(folder), ops, rounds)
    finally:
        mirror.close(1.0)
        through.close(1.0)
        removed(store, folder)


def _span_variants(mirror: OtelMirror, through: OtelMirror, traced: Traced) -> dict[str, Variant]:
    from optree_otel.signals.quick import encode_op

    keys = _keys(traced)
    exporter = mirror.exporter(traced, traced)
    nodes = [node for node in map(traced.op, (key.path for key in keys)) if node is not None]
    scope = exporter.scope("")
    if scope is None or len(nodes) != len(keys):
        raise RuntimeError("not all that was recorded is there")
    spans = [_stock_span(exporter.span(node, scope)) for node in nodes]
    encode_spans = _stock("exporter.otlp.proto.common.trace_encoder").encode_spans
    exporter = _stock("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
    batches = [spans[begin : begin + BATCH] for begin in range(0, len(spans), BATCH)]

    def sent(by: OtelMirror) -> Job:
        fresh = by.exporter(traced, traced)
        return Job(lambda: by.send(fresh, keys), lambda: _all_there(by))

    return {
        MIRROR: lambda _: sent(mirror),
        THROUGH: lambda _: sent(through),
        STOCK: lambda _: Job(lambda: _each(exporter.export, batches)),
        OURS: lambda _: Job(lambda: _each(lambda node: encode_op(node, scope), nodes)),
        THEIRS: lambda _: Job(lambda: _each(lambda batch: encode_spans(batch).SerializeToString(), batches)),
    }


def _stock(module: str) -> Any:
    return importlib.import_module(f"opentelemetry.{module}")


def _each(do: Callable[[Any], object], items: list[Any]) -> None:
    for item in items:
        do(item)


def _all_there(mirror: OtelMirror) -> None:
    if not mirror.flush(120.0):
        raise RuntimeError("the collector did not get all spans")


def _keys(traced: Traced) -> list[Key]:
    from optree_otel.session_exporter import Key

    root = traced.session("")
    return [Key("op", op.path) for turn in root.turns for op in turn.ops] if root is not None else []


def _stock_span(span: Any) -> Any:
    """Return a span of OpenTelemetry's SDK with the content of ours."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind
    from opentelemetry.trace.status import Status

    events = [
        Event("optree.log", {"optree.log.severity": line.severity, "optree.log.message": line.message}, int(line.timestamp * 1e6))
        for line in span.logs
    ]
    trace = int.from_bytes(span.trace_id)
    return ReadableSpan(
        span.name,
        SpanContext(trace, int.from_bytes(span.span_id), is_remote=False),
        SpanContext(trace, int.from_bytes(span.parent_id), is_remote=False),
        Resource({"service.name": "bench"}),
        dict(span.attributes),
        events,
        kind=SpanKind.CLIENT,
        status=Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("optree", "0"),
    )


def _span_table(spans: Rounds) -> Table:
    stock = {MIRROR: STOCK, THROUGH: STOCK, STOCK: STOCK, OURS: THEIRS, THEIRS: THEIRS, FLOOR: FLOOR}
    rows: list[list[Cell]] = []
    for name, costs in spans.costs.items():
        ratio = median(a.process / b.process for a, b in zip(spans.costs[stock[name]], costs, strict=True))
        rows.append([name, spans.process(name) / 1e3, 1e9 / spans.process(name), ratio])
    note = "An op with 10 log lines, 5 reasoning chunks and 1 accounting record. CPU time of the whole process; traces only."
    return Table("One op's span to a local collector, HTTP", ["variant", "µs", "spans a core-second", "stock ÷ this"], rows, note)


# The program


def _calls(endpoint: str) -> dict[str, Variant]:
    def off(ops: int) -> Job:
        builder, store, folder = opened()
        return Job(lambda: _record(builder, ops), store.flush, lambda: removed(store, folder))

    def on(ops: int, *, inside: bool = False) -> Job:
        builder, store, folder = opened()
        mirror = _mirror(endpoint)
        traced = _traced(builder, folder)
        taker = mirror.attach(traced)
        if taker is not None:
            builder.core.stream.subscribe(taker, ordered=False)

        def around(op: Op) -> None:
            mirror.enter(traced.txn, op.path)
            mirror.leave(traced.txn, op.path)

        def flush() -> None:
            store.flush()
            mirror.flush(60.0)

        def close() -> None:
            mirror.close(1.0)
            removed(store, folder)

        return Job(lambda: _record(builder, ops, around if inside else None), flush, close)

    return {OFF: off, ON: on, INSIDE: lambda ops: on(ops, inside=True)}


def _call_table(calls: Rounds) -> Table:
    rows: list[list[Cell]] = []
    for name in calls.costs:
        if name == FLOOR:
            rows.append([name, calls.caller(name) / 1e3, None, None, calls.process(name) / 1e3])
            continue
        more = calls.caller(name, OFF)
        rows.append([name, calls.caller(name) / 1e3, more / 1e3, more / 1e3 / work.EVENTS_PER_OP, calls.process(name) / 1e3])
    note = f"An op has {work.EVENTS_PER_OP} records. The mirror's own thread, which sends, is in the process's time alone. CPU time."
    return Table("What the program pays for an op", ["variant", "caller µs", "more than off", "a record", "process µs"], rows, note)


# Delays


def _waits(endpoint: str, ops: int, rounds: int) -> dict[str, list[float]]:
    """Return the longest delay in each round of a thread that wakes at a pace, in ms: with nothing else to do, and while spans are sent."""
    builder, store, folder = opened()
    _record(builder, ops)
    builder.end_session()
    traced = _traced(builder, folder)
    traced.settle()
    keys = _keys(traced)
    mirror = _mirror(endpoint)
    waits: dict[str, list[float]] = {"idle": [], "sending": []}
    try:
        for _ in range(rounds):
            waits["idle"].append(_longest(lambda count: count < PERIODS))
            mirror.send(mirror.exporter(traced, traced), keys)
            arrived = threading.Thread(target=lambda: _all_there(mirror))
            arrived.start()
            waits["sending"].append(_longest(lambda _, sending=arrived: sending.is_alive()))  # type: ignore[misc]
            arrived.join()
    finally:
        mirror.close(1.0)
        removed(store, folder)
    return waits


def _longest(go_on: Callable[[int], bool]) -> float:
    """Wake every `PACE_MS`; return how much too late it was at most, in ms."""
    longest, count = 0.0, 0
    while go_on(count):
        due = perf_counter() + PACE_MS / 1e3
        sleep(PACE_MS / 1e3)
        longest = max(longest, (perf_counter() - due) * 1e3)
        count += 1
    return longest


def _wait_table(waits: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [[name, min(found), median(found), max(found)] for name, found in waits.items()]
    note = f"A thread that sleeps {PACE_MS:.0f} ms at a time: how much too late it woke at most in a round. Wall time."
    return Table("The longest delay of the program, ms", ["while", "least", "median", "most"], rows, note)
