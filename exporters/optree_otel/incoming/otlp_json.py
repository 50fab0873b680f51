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

import msgspec

from optree.errors import FormatError
from optree.values import is_list, is_object, text
from optree_otel.incoming.spans import Found, InEvent, InSpan

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


def read_json(name: str, data: bytes) -> Found:
    """Return the spans of a JSON file. Raises `FormatError` if it holds no OTLP at all."""
    found = Found()
    seen = False
    for label, document in _documents(name, data, found.notes):
        for resource_spans in _resource_spans(label, document, found.notes):
            seen = True
            for span in _of_resource(resource_spans):
                _take(found, span)
    if not seen:
        said = f" ({found.notes[0]})" if found.notes else ""
        raise FormatError(f"{name} is JSON, but holds no OTLP spans{said}: it has no 'resourceSpans'")
    return found


def _take(found: Found, parts: tuple[Any, dict[str, Any], str]) -> None:
    span, resource, scope = parts
    number = len(found.spans) + len(found.notes) + 1
    try:
        made = _span(span, resource, scope)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        found.notes.append(f"span {number} is passed over: {error}")
        return
    made.number = number
    found.spans.append(made)


def _documents(name: str, data: bytes, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each document with what to call it; lines that are no JSON are noted."""
    try:
        whole = msgspec.json.decode(data)
    except RecursionError:
        notes.append(f"{name} is nested too deeply to be OTLP")
        return
    except msgspec.DecodeError:
        yield from _lines(data, notes)
        return
    if is_list(whole):
        yield from ((f"document {number}", document) for number, document in enumerate(whole, 1))
    else:
        yield name, whole


def _lines(data: bytes, notes: list[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                notes.append(f"line {number} is no JSON and is passed over: {error}")


def _resource_spans(label: str, document: Any, notes: list[str]) -> list[Any]:
    for _ in range(len(_WRAPPERS)):
        for wrapper in _WRAPPERS:
            if is_object(document) and is_object(document.get(wrapper)):
                document = document[wrapper]
    if not is_object(document):
        notes.append(f"{label} is no OTLP document and is passed over")
        return []
    for key in _RESOURCE_SPANS:
        if is_list(found := document.get(key)):
            return found
    other = next((what for key, what in _OTHERS.items() if key in document), None)
    notes.append(f"{label} holds {other or 'no spans'} and is passed over")
    return []


def _of_resource(resource_spans: Any) -> Iterator[tuple[Any, dict[str, Any], str]]:
    if not is_object(resource_spans):
        yield resource_spans, {}, ""
        return
    resource = resource_spans.get("resource")
    known = attributes(resource.get("attributes")) if is_object(resource) else {}
    for key in _SCOPE_SPANS:
        for scope_spans in _list(resource_spans.get(key)):
            if is_object(scope_spans):
                scope = scope_spans.get("scope") or scope_spans.get("instrumentationLibrary")
                name = text(scope.get("name", "")) if is_object(scope) else ""
                yield from ((span, known, name) for span in _list(scope_spans.get("spans")))


def _span(span: Any, resource: dict[str, Any], scope: str) -> InSpan:
    if not is_object(span):
        raise ValueError("it is no object")
    status = span.get("status")
    status = status if is_object(status) else {}
    return InSpan(
        trace_id=_id(_get(span, "traceId"), 16, "trace id"),
        span_id=_id(_get(span, "spanId"), 8, "span id"),
        parent_id=_parent(_get(span, "parentSpanId")),
        name=text(span.get("name") or ""),
        kind=_enum(span.get("kind"), "SPAN_KIND_", _KINDS),
        start_ns=_time(_get(span, "startTimeUnixNano"), "start"),
        end_ns=_time(_get(span, "endTimeUnixNano"), "end"),
        attributes=attributes(span.get("attributes")),
        events=[
            InEvent(_time(_get(event, "timeUnixNano"), "event's time"), text(event.get("name") or ""), attributes(event.get("attributes")))
            for event in _list(span.get("events"))
            if is_object(event)
        ],
        status=_enum(status.get("code"), "STATUS_CODE_", _STATUSES),
        message=text(status.get("message") or ""),
        resource=resource,
        scope=scope,
    )


def attributes(pairs: Any) -> dict[str, Any]:
    """Return a list of key-value pairs as a dict; what is none is passed over."""
    return {text(pair["key"]): _value(pair.get("value"), 0) for pair in _list(pairs) if is_object(pair) and "key" in pair}


def _value(value: Any, depth: int) -> Any:
    if not is_object(value) or depth > _DEPTH:
        return None
    for name, found in value.items():
        kind = name.partition("Value")[0].partition("_value")[0]
        if kind == "array":
            return [_value(item, depth + 1) for item in _list(found.get("values"))]
        if kind == "kvlist":
            return {text(pair["key"]): _value(pair.get("value"), depth + 1) for pair in _list(found.get("values"))}
        if kind in _PLAIN:
            return _PLAIN[kind](found)
    return None


def _id(value: Any, size: int, what: str) -> str:
    """Return an id as hex: it comes in hex, or in base64 as protobuf's own JSON has it. Empty for none."""
    if not value:
        return ""
    if isinstance(value, str):
        if len(value) == 2 * size and _HEX.fullmatch(value):
            return value.lower()
        try:
            found = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            found = b""
        if len(found) == size:
            return found.hex()
    raise ValueError(f"its {what} {text(value)[:40]!r} is neither {2 * size} hex digits nor {size} bytes in base64")


def _parent(value: Any) -> str:
    found = _id(value, 8, "parent id")
    return found if found.strip("0") else ""


def _time(value: Any, what: str) -> int:
    try:
        found = int(value or 0)
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found < _MAX_NS:
        raise ValueError(f"its {what} {text(value)[:40]!r} is no time in epoch nanoseconds")
    return found


def _enum(value: Any, prefix: str, names: tuple[str, ...]) -> int:
    if isinstance(value, str):
        name = value.removeprefix(prefix)
        return names.index(name) if name in names else int(name) if name.isdecimal() and int(name) < len(names) else 0
    return value if isinstance(value, int) and 0 <= value < len(names) else 0


def _get(holder: dict[str, Any], name: str) -> Any:
    found = holder.get(name)
    return holder.get(re.sub(r"([A-Z])", lambda letter: "_" + letter[0].lower(), name)) if found is None else found


def _list(value: Any) -> list[Any]:
    return value if is_list(value) else []
