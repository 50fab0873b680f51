"""A span as a backend gives it back, whichever backend it is: plain Python values out of OTLP's JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")


class Event(Struct):
    """An event of a span; its time in nanoseconds since the epoch."""

    name: str
    time_ns: int
    attributes: dict[str, Any]


class Link(Struct):
    """A link to another span; ids in hex."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any]


class Span(Struct):
    """A span; ids in hex, times in nanoseconds since the epoch, attributes of the types that they were sent with."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a span without parent."""
    name: str
    kind: str
    """One of `KINDS`."""
    service: str
    start_ns: int
    end_ns: int
    status: str
    """One of `STATUSES`."""
    status_message: str
    attributes: dict[str, Any]
    events: list[Event]
    links: list[Link]
    resource: dict[str, Any]
    """The attributes of what sent it, `service.name` among them."""
    scope: str
    """The name of the library that made it."""
    warnings: list[str] = field(default_factory=list[str])
    """What the backend complains about; filled by Jaeger only."""


def spans_of(traces: dict[str, Any]) -> list[Span]:
    """Return the spans of an object with `resourceSpans`, as OTLP's JSON has it, in its order."""
    return [
        _span(span, resource, str(scope.get("scope", {}).get("name", "")))
        for part in traces.get("resourceSpans", [])
        for resource in [attributes(part.get("resource", {}))]
        for scope in part.get("scopeSpans", [])
        for span in scope.get("spans", [])
    ]


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Return what an object of OTLP's JSON has in `attributes`; of a key that is there twice, the last value."""
    return {pair["key"]: value_of(pair.get("value", {})) for pair in holder.get("attributes", [])}


def value_of(value: dict[str, Any]) -> Any:
    """Return an `AnyValue` as str, bool, int, float, bytes, list, dict, or None where it is empty."""
    for name, found in value.items():
        return _READ[name](found)
    return None


_READ: dict[str, Callable[[Any], Any]] = {
    "stringValue": str,
    "boolValue": bool,
    "intValue": int,
    "doubleValue": float,
    "bytesValue": base64.b64decode,
    "arrayValue": lambda array: [value_of(item) for item in array.get("values", [])],
    "kvlistValue": lambda pairs: {pair["key"]: value_of(pair.get("value", {})) for pair in pairs.get("values", [])},
}


def _span(span: dict[str, Any], resource: dict[str, Any], scope: str) -> Span:
    status = span.get("status", {})
    return Span(
        trace_id=_hex(span["traceId"]),
        span_id=_hex(span["spanId"]),
        parent_id=_hex(span.get("parentSpanId", "")),
        name=span.get("name", ""),
        kind=_word(span.get("kind", 0), KINDS),
        service=str(resource.get("service.name", "")),
        start_ns=int(span.get("startTimeUnixNano", 0)),
        end_ns=int(span.get("endTimeUnixNano", 0)),
        status=_word(status.get("code", 0), STATUSES),
        status_message=status.get("message", ""),
        attributes=attributes(span),
        events=[Event(event.get("name", ""), int(event.get("timeUnixNano", 0)), attributes(event)) for event in span.get("events", [])],
        links=[Link(_hex(link["traceId"]), _hex(link["spanId"]), attributes(link)) for link in span.get("links", [])],
        resource=resource,
        scope=scope,
    )


def _hex(found: str) -> str:
    """Return an id in hex; Tempo writes ids in base64, of which the lengths are others."""
    return found if len(found) in {0, 16, 32} else base64.b64decode(found).hex()


def _word(code: int | str, words: tuple[str, ...]) -> str:
    """Return the word of an enumeration's number or of its name, such as SPAN_KIND_CLIENT."""
    return words[code] if isinstance(code, int) else code.rpartition("_")[2].lower()
