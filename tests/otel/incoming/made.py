"""Spans to test with: made by hand, and as OTLP."""

import itertools
import json
from pathlib import Path

from optree_otel.incoming import InSpan

DATA = Path(__file__).parent / "data"
START = 1_760_000_000_000_000_000  # epoch nanoseconds
MS = 1_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"
LLM = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o"}
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}


class Made:
    """Makes spans, one after the other: each starts 1 ms after the one before and lasts 0.5 s less."""

    def __init__(self, trace=TRACE):
        self.trace = trace
        self._numbers = itertools.count(1)

    def __call__(self, name, attributes=None, above=None, **fields):
        """Return the next span, below *above*."""
        number = next(self._numbers)
        start = START + number * MS
        given = {"start_ns": start, "end_ns": START + 10**12 - number * MS, "number": number} | fields
        return InSpan(self.trace, f"{number:016x}", name, parent_id=above.span_id if above else "", attributes=attributes or {}, **given)


def otlp(*spans):
    """Return spans as an OTLP document in JSON."""
    return {
        "resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "tests"}, "spans": [*map(plain, spans)]}]}]
    }


def plain(span):
    """Return a span as OTLP's JSON has it."""
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": [{"key": key, "value": value(item)} for key, item in span.attributes.items()],
        "events": [
            {
                "timeUnixNano": str(event.time_ns),
                "name": event.name,
                "attributes": [{"key": k, "value": value(v)} for k, v in event.attributes.items()],
            }
            for event in span.events
        ],
        "status": {"code": span.status, "message": span.message},
    }


def value(item):
    """Return a value as OTLP's JSON has it."""
    if isinstance(item, bool):
        return {"boolValue": item}
    if isinstance(item, int):
        return {"intValue": str(item)}
    if isinstance(item, float):
        return {"doubleValue": item}
    if isinstance(item, list):
        return {"arrayValue": {"values": [value(one) for one in item]}}
    return {"stringValue": item if isinstance(item, str) else json.dumps(item)}
