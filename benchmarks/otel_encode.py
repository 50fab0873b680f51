"""What a span costs on its way to OTLP bytes: our mapping and encoder beside the stock encoder, by turns in one process.

Run it as ``python -m benchmarks.otel_encode``. Times are CPU time of the thread, the least of the rounds; on a machine with other work
they are too high for all, and only the ratio compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.status import Status

from optree.builder import SessionTreeBuilder
from optree.nodes import OperationNode

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

from optree_otel.fitting import encode
from optree_otel.mapping import op_span
from optree_otel.scope import Scope, trace_id
from optree_otel.spans import Span

OPS, LINES, ROUNDS = 200, 15, 25
RESOURCE = Resource({"service.name": "bench"})
SCOPE = InstrumentationScope("optree", "0")
CONTEXT, PARENT = SpanContext(5, 6, is_remote=False), SpanContext(5, 7, is_remote=False)


def recorded() -> tuple[SessionTreeBuilder, list[OperationNode]]:
    """Return a session of model calls with log lines, a request, a response and accounting each."""
    builder = SessionTreeBuilder("bench")
    nodes: list[OperationNode] = []
    for number in range(OPS):
        op = builder.begin_op("llm", "openai:gpt-4o", attributes={"provider": "openai", "model": "gpt-4o"})
        op.request([{"role": "user", "content": f"question {number}"}], temperature=0.2, max_tokens=100)
        for line in range(LINES):
            op.log(f"row {line} of table {number} checked, 12 cells, all fine")
        op.account(input_tokens=800 + number, output_tokens=64, cost_usd=0.0031 * number, actual_model="gpt-4o-2024-08-06")
        op.response({"id": f"r{number}", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
        op.end()
        nodes.append(op.node)
    builder.end_session()
    builder.core.stream.flush()
    return builder, nodes


def stock(span: Span) -> bytes:
    """Return what the stock encoder makes of the same span."""
    events = [
        Event("optree.log", {"optree.log.severity": entry.severity, "optree.log.message": entry.message}, int(entry.timestamp * 1e6))
        for entry in span.logs
    ]
    attributes = dict(span.attributes)
    made = ReadableSpan(
        span.name, CONTEXT, PARENT, RESOURCE, attributes, events, (), SpanKind.CLIENT, None, Status(), span.start_ns, span.end_ns, SCOPE
    )
    return encode_spans([made]).SerializeToString()


def main() -> int:
    """Measure and print; 0 if ours is at least eight times as quick."""
    builder, nodes = recorded()
    scope = Scope(builder.txn, trace_id(builder.txn), builder.node, pool=builder.core.pool)
    spans = [op_span(node, scope) for node in nodes]
    variants: dict[str, Callable[[], object]] = {
        "stock encoder": lambda: [stock(span) for span in spans],
        "our encoder": lambda: [encode(span, scope.profile) for span in spans],
        "node to span": lambda: [op_span(node, scope) for node in nodes],
        "node to bytes": lambda: [encode(op_span(node, scope), scope.profile) for node in nodes],
    }
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, work in variants.items():
            began = thread_time()
            work()
            best[name] = min(best[name], (thread_time() - began) / OPS * 1e6)
    size, count = len(encode(spans[0], scope.profile)), len(spans[0].attributes)
    print(f"one op span: {count} attributes, {LINES} log lines, {size} bytes")
    for name, cost in best.items():
        print(f"{name:15s} {cost:8.1f} µs {1e6 / cost:10,.0f} a second   stock ÷ this: {best['stock encoder'] / cost:5.1f}")
    return 0 if best["stock encoder"] >= 8 * best["our encoder"] else 1


if __name__ == "__main__":
    sys.exit(main())
