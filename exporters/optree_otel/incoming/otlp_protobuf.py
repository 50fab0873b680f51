"""OTLP as protobuf: one message, or a sequence of them behind their lengths, each perhaps compressed.

An ExportTraceServiceRequest, a TracesData and Tempo's Trace have the same bytes: field 1, again and again, is a ResourceSpans. The upper
levels are taken apart here, so that a bad span is passed over alone. The Collector's file exporter puts a length of four bytes in front of
each message (https://github.com/open-telemetry/opentelemetry-collector-contrib/tree/main/exporter/fileexporter), others a varint.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from optree import FormatError, SetupError
from optree.exporting import text, unpack
from optree_otel.incoming.spans import InEvent, InSpan, SpansRead
from optree_otel.signals.protobuf import LENGTH, NotProtobufError, fields, read_varint

_PREFIX: Final = 4


class _Types:
    """The messages of opentelemetry-proto, which has no type hints of its own."""

    def __init__(self) -> None:
        self.resource: Any = import_module("opentelemetry.proto.resource.v1.resource_pb2").Resource
        self.scope: Any = import_module("opentelemetry.proto.common.v1.common_pb2").InstrumentationScope
        self.span: Any = import_module("opentelemetry.proto.trace.v1.trace_pb2").Span
        self.error: type[Exception] = import_module("google.protobuf.message").DecodeError


def read_protobuf(name: str, data: bytes) -> SpansRead:
    """Return the spans of a protobuf file. Raises `FormatError` if it is none, `SetupError` if opentelemetry-proto is not installed."""
    messages = _messages(data)
    if messages is None:
        raise FormatError(f"{name} is no OTLP file: neither JSON with 'resourceSpans' nor a protobuf message of OTLP traces")
    try:
        types = _Types()
    except ImportError as error:
        raise SetupError(f"{name} is protobuf, which needs more: pip install 'optree-tracing[otel]' ({error})") from error
    result = SpansRead()
    for message in messages:
        _take_message(message, types, result)
    return result


def _messages(data: bytes) -> list[bytes] | None:
    """Return the messages of a file; None if its form is not known. A message that breaks off counts as far as it goes."""
    if _is_traces(data):
        return [data]
    for framed in (_behind_varints(data), _behind_four_bytes(data)):
        if framed:
            return framed
    return [data] if _begins_traces(data) else None


def _is_traces(data: bytes) -> bool:
    try:
        return bool(data) and all((member.number, member.wire) == (1, LENGTH) for member in fields(data))
    except NotProtobufError:
        return False


def _begins_traces(data: bytes) -> bool:
    try:
        first = next(fields(data))
        return (first.number, first.wire) == (1, LENGTH) and all(member.number in (1, 2, 3, 1000) for member in fields(first.data))
    except (NotProtobufError, StopIteration):
        return False


def _behind_varints(data: bytes) -> list[bytes]:
    return _framed(data, lambda at: read_varint(data, at))


def _behind_four_bytes(data: bytes) -> list[bytes]:
    return _framed(data, lambda at: (int.from_bytes(data[at : at + _PREFIX], "big"), at + _PREFIX))


def _framed(data: bytes, size_at: Callable[[int], tuple[int, int]]) -> list[bytes]:
    """Return what stands behind lengths; empty if one of the pieces but the last, which may break off, is no message."""
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        try:
            size, at = size_at(at)
        except NotProtobufError:
            return []
        piece = data[at : at + size]
        piece, _ = unpack(piece)
        whole = at + size <= len(data)
        if size and not _is_traces(piece) and (whole or not messages):
            return []
        messages.append(piece)
        at += size
    return messages if any(messages) else []


def _take_message(data: bytes, types: _Types, collected: SpansRead) -> None:
    try:
        for member in fields(data):
            _take_resource(member.data, types, collected)
    except (NotProtobufError, types.error) as error:
        collected.notes.append(f"a message breaks off after span {len(collected.spans)}: {error}")


def _take_resource(data: bytes, types: _Types, collected: SpansRead) -> None:
    resource: dict[str, Any] = {}
    scopes: list[bytes] = []
    for number, wire, value, _ in fields(data):
        if number == 1 and wire == LENGTH:
            resource = _attributes(types.resource.FromString(value).attributes)
        elif number in (2, 1000) and wire == LENGTH:
            scopes.append(value)
    for scope in scopes:
        _take_scope(scope, resource, types, collected)


def _take_scope(data: bytes, resource: dict[str, Any], types: _Types, collected: SpansRead) -> None:
    scope = ""
    for number, wire, value, _ in fields(data):
        if wire != LENGTH:
            continue
        if number == 1:
            scope = types.scope.FromString(value).name
        elif number == 2:  # noqa: PLR2004 - the field of spans
            place = len(collected.spans) + len(collected.notes) + 1
            try:
                span = _span(types.span.FromString(value))
            except (types.error, ValueError, RecursionError) as error:
                collected.notes.append(f"span {place} is passed over: {error}")
                continue
            span.resource, span.scope, span.number = resource, scope, place
            collected.spans.append(span)


def _span(span: Any) -> InSpan:
    for id_name, size, value in (("trace id", 16, span.trace_id), ("span id", 8, span.span_id), ("parent id", 8, span.parent_span_id)):
        if len(value) not in (0, size):
            raise ValueError(f"its {id_name} has {len(value)} bytes, not {size}")
    return InSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() if any(span.parent_span_id) else "",
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[InEvent(event.time_unix_nano, event.name, _attributes(event.attributes)) for event in span.events],
        status=span.status.code,
        message=span.status.message,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {text(pair.key): _value(pair.value) for pair in pairs}


def _value(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(any_value, kind)
    if kind == "array_value":
        return [_value(item) for item in value.values]
    return _attributes(value.values) if kind == "kvlist_value" else value
