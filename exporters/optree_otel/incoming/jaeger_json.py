"""A Jaeger's own JSON: what its page downloads, and what ``/api/traces`` answers. Times are in microseconds.

``{"data": [{"traceID", "spans": [{"traceID", "spanID", "operationName", "references", "startTime", "duration", "tags", "logs",
"processID"}], "processes": {"p1": {"serviceName", "tags"}}}]}``; a tag or a log's field is ``{"key", "type", "value"}``.
Sources: jaegertracing/jaeger, internal/uimodel/model.go; what becomes of OpenTelemetry's fields there (status, kind, scope, an event's
name): opentelemetry.io/docs/specs/otel/trace/sdk_exporters/jaeger.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

from optree.exporting import is_list, is_object, text
from optree_otel.incoming.otlp_json import identity
from optree_otel.incoming.spans import ERROR, OK, UNSET, InEvent, InSpan, list_of

_TYPED: Final[dict[str, Callable[[Any], Any]]] = {"bool": lambda value: value in (True, "true"), "int64": int, "float64": float}
_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = {"OK": OK, "ERROR": ERROR}
_SCOPES: Final = ("otel.scope.name", "otel.library.name")
_TOLD: Final = ("span.kind", "otel.status_code", "otel.status_description", "error", *_SCOPES)
"""Tags that stand for fields of a span."""
_MAX_US: Final = (1 << 64) // 1000
Traces = list[tuple[Any, dict[str, Any]]]
"""Spans, each with the processes of its trace."""


def traces(document: Any) -> Traces | None:
    """Return the spans of a Jaeger's answer, or of one trace of it; None for any other document."""
    if not is_object(document):
        return None
    items = document.get("data") if "data" in document else [document]
    if not is_list(items) or not all(is_object(trace) and is_list(trace.get("spans")) and "traceID" in trace for trace in items):
        return None
    return [(span, processes if is_object(processes := trace.get("processes")) else {}) for trace in items for span in trace["spans"]]


def to_span(span: Any, processes: dict[str, Any]) -> InSpan:
    """Return a span; raises `ValueError` and the like, with the reason, if it cannot be read."""
    if not is_object(span):
        raise ValueError("it is no object")
    tags = _tags(span.get("tags"))
    start = _time(span.get("startTime"), "start")
    trace = _id(span.get("traceID"), 32, "trace id")
    process = processes.get(text(span.get("processID"))) or span.get("process")
    status = _STATUSES.get(text(tags.get("otel.status_code", "")).upper(), ERROR if tags.get("error") in (True, "true") else UNSET)
    return InSpan(
        trace_id=trace,
        span_id=_id(span.get("spanID"), 16, "span id"),
        parent_id=_parent(span, trace),
        name=text(span.get("operationName") or ""),
        kind=_KINDS.index(kind) if (kind := text(tags.get("span.kind", ""))) in _KINDS else 0,
        start_ns=start * 1000,
        end_ns=(start + _time(span.get("duration"), "duration")) * 1000,
        attributes={key: value for key, value in tags.items() if key not in _TOLD},
        events=[_event(log) for log in list_of(span.get("logs")) if is_object(log)],
        status=status,
        message=text(tags.get("otel.status_description") or ""),
        resource=_resource(process),
        scope=text(next((tags[key] for key in _SCOPES if key in tags), "")),
    )


def _resource(process: Any) -> dict[str, Any]:
    if not is_object(process):
        return {}
    return {**_tags(process.get("tags")), "service.name": text(process.get("serviceName") or "")}


def _event(log: dict[str, Any]) -> InEvent:
    fields = _tags(log.get("fields"))
    return InEvent(_time(log.get("timestamp"), "log's time") * 1000, text(fields.pop("event", "")), fields)


def _parent(span: dict[str, Any], trace: str) -> str:
    """Return the span above: what it is a child of, else what it follows, in its own trace."""
    references = [reference for reference in list_of(span.get("references")) if is_object(reference)]
    references += [{"refType": "CHILD_OF", "traceID": trace, "spanID": span["parentSpanID"]}] if span.get("parentSpanID") else []
    for kind in ("CHILD_OF", "FOLLOWS_FROM"):
        for reference in references:
            if reference.get("refType") == kind and _id(reference.get("traceID"), 32, "parent's trace id") == trace:
                parent = _id(reference.get("spanID"), 16, "parent id")
                return parent if parent.strip("0") else ""
    return ""


def _tags(pairs: Any) -> dict[str, Any]:
    return {text(pair["key"]): _value(pair) for pair in list_of(pairs) if is_object(pair) and "key" in pair}


def _value(pair: dict[str, Any]) -> Any:
    kind, value = pair.get("type"), pair.get("value")
    if kind == "binary":
        return base64.b64decode(text(value))
    convert = _TYPED.get(text(kind))
    return value if convert is None else convert(value)


def _id(value: Any, digits: int, what: str) -> str:
    """Return an id as hex of full length: it may come without its leading zeros."""
    return identity(value.zfill(digits) if isinstance(value, str) and value else value, digits // 2, what)


def _time(value: Any, what: str) -> int:
    result = value if isinstance(value, int) else -1
    if not 0 <= result < _MAX_US:
        raise ValueError(f"its {what} {text(value)[:40]!r} is no time in microseconds")
    return result
