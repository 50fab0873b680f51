"""OTLP as JSON: one document or one a line, in camelCase or snake_case, ids in hex or base64, also inside Jaeger's and Tempo's answers.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding; Jaeger's ``/api/v3`` puts it in ``result``, Tempo's ``/api/v2``
in ``trace``, and its ``/api/traces`` calls the resource spans ``batches``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from optree.exporting import is_list, is_object, text
from optree_otel.incoming.spans import InEvent, InSpan, list_of

_RESOURCE_SPANS: Final = ("resourceSpans", "resource_spans", "batches")
_SCOPE_SPANS: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "instrumentation_library_spans")
_WRAPPERS: Final = ("result", "trace")
_OTHERS: Final = {
    "resourceLogs": "log records",
    "resourceMetrics": "metrics",
    "resource_logs": "log records",
    "resource_metrics": "metrics",
}
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES: Final = ("UNSET", "OK", "ERROR")
_MAX_NS: Final = 1 << 64
_DEPTH: Final = 64
_PLAIN: Final[dict[str, Callable[[Any], Any]]] = {"string": text, "bool": bool, "int": int, "double": float, "bytes": base64.b64decode}


Parts = tuple[Any, dict[str, Any], str]
"""A span as it stands in a document, the attributes of its resource, and the name of its scope."""


def parts(label: str, document: Any, notes: list[str]) -> list[Parts] | None:
    """Return the spans of a document; None, with a note, if it holds none."""
    resources = _resource_spans(label, document, notes)
    return None if resources is None else [span for resource in resources for span in _of_resource(resource)]


def _resource_spans(label: str, document: Any, notes: list[str]) -> list[Any] | None:
    for _ in range(len(_WRAPPERS)):
        for wrapper in _WRAPPERS:
            if is_object(document) and is_object(document.get(wrapper)):
                document = document[wrapper]
    if not is_object(document):
        notes.append(f"{label} is no OTLP document and is passed over")
        return None
    for key in _RESOURCE_SPANS:
        if is_list(result := document.get(key)):
            return result
    other = next((what for key, what in _OTHERS.items() if key in document), None)
    notes.append(f"{label} holds {other or 'no spans'} and is passed over")
    return None


def _of_resource(resource_spans: Any) -> Iterator[Parts]:
    if not is_object(resource_spans):
        yield resource_spans, {}, ""
        return
    resource = resource_spans.get("resource")
    known = attributes(resource.get("attributes")) if is_object(resource) else {}
    for key in _SCOPE_SPANS:
        for scope_spans in list_of(resource_spans.get(key)):
            if is_object(scope_spans):
                scope = scope_spans.get("scope") or scope_spans.get("instrumentationLibrary")
                name = text(scope.get("name", "")) if is_object(scope) else ""
                yield from ((span, known, name) for span in list_of(scope_spans.get("spans")))


def to_span(span: Any, resource: dict[str, Any], scope: str) -> InSpan:
    """Return a span; raises `ValueError` and the like, with the reason, if it cannot be read."""
    if not is_object(span):
        raise ValueError("it is no object")
    status = span.get("status")
    status = status if is_object(status) else {}
    return InSpan(
        trace_id=identity(_get(span, "traceId"), 16, "trace id"),
        span_id=identity(_get(span, "spanId"), 8, "span id"),
        parent_id=_parent(_get(span, "parentSpanId")),
        name=text(span.get("name") or ""),
        kind=_enum(span.get("kind"), "SPAN_KIND_", _KINDS),
        start_ns=_time(_get(span, "startTimeUnixNano"), "start"),
        end_ns=_time(_get(span, "endTimeUnixNano"), "end"),
        attributes=attributes(span.get("attributes")),
        events=[
            InEvent(_time(_get(event, "timeUnixNano"), "event's time"), text(event.get("name") or ""), attributes(event.get("attributes")))
            for event in list_of(span.get("events"))
            if is_object(event)
        ],
        status=_enum(status.get("code"), "STATUS_CODE_", _STATUSES),
        message=text(status.get("message") or ""),
        resource=resource,
        scope=scope,
    )


def attributes(pairs: Any) -> dict[str, Any]:
    """Return a list of key-value pairs as a dict; an item that is not a pair is passed over."""
    return {text(pair["key"]): _value(pair.get("value"), 0) for pair in list_of(pairs) if is_object(pair) and "key" in pair}


def _value(value: Any, depth: int) -> Any:
    if not is_object(value) or depth > _DEPTH:
        return None
    for name, member in value.items():
        kind = name.partition("Value")[0].partition("_value")[0]
        if kind == "array":
            return [_value(item, depth + 1) for item in list_of(member.get("values"))]
        if kind == "kvlist":
            return {text(pair["key"]): _value(pair.get("value"), depth + 1) for pair in list_of(member.get("values"))}
        if kind in _PLAIN:
            return _PLAIN[kind](member)
    return None


def identity(value: Any, size: int, what: str) -> str:
    """Return an id as hex: it comes in hex, or in base64 as protobuf's own JSON has it. Empty for none."""
    if not value:
        return ""
    if isinstance(value, str):
        if len(value) == 2 * size and _HEX.fullmatch(value):
            return value.lower()
        try:
            decoded = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        if len(decoded) == size:
            return decoded.hex()
    raise ValueError(f"its {what} {text(value)[:40]!r} is neither {2 * size} hex digits nor {size} bytes in base64")


def _parent(value: Any) -> str:
    parent = identity(value, 8, "parent id")
    return parent if parent.strip("0") else ""


def _time(value: Any, what: str) -> int:
    try:
        result = int(value or 0)
    except (TypeError, ValueError):
        result = -1
    if not 0 <= result < _MAX_NS:
        raise ValueError(f"its {what} {text(value)[:40]!r} is no time in epoch nanoseconds")
    return result


def _enum(value: Any, prefix: str, names: tuple[str, ...]) -> int:
    if isinstance(value, str):
        name = value.removeprefix(prefix)
        return names.index(name) if name in names else int(name) if name.isdecimal() and int(name) < len(names) else 0
    return value if isinstance(value, int) and 0 <= value < len(names) else 0


def _get(holder: dict[str, Any], name: str) -> Any:
    value = holder.get(name)
    return holder.get(re.sub(r"([A-Z])", lambda letter: "_" + letter[0].lower(), name)) if value is None else value
