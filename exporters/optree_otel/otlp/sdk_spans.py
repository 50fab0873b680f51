"""The spans of an encoded request as opentelemetry-sdk has them: ended, sampled, with all that the request says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from optree_otel.signals.spans import REMOTE_PARENT

_KINDS: Final[Sequence[SpanKind]] = (SpanKind.INTERNAL, *SpanKind)
"""OTLP counts from 1, and has 0 for none."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status()


def read(body: bytes) -> list[ReadableSpan]:
    """Return the spans of an ExportTraceServiceRequest, in order. Raises protobuf's `DecodeError` if it is none."""
    request: Any = ExportTraceServiceRequest.FromString(body)
    spans: list[ReadableSpan] = []
    for group in request.resource_spans:
        resource = Resource(_attributes(group.resource.attributes), group.schema_url)
        for part in group.scope_spans:
            proto_scope = part.scope
            scope = InstrumentationScope(
                proto_scope.name, proto_scope.version or None, part.schema_url or None, _attributes(proto_scope.attributes)
            )
            spans += [_span(span, resource, scope) for span in part.spans]
    return spans


def _span(span: Any, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id = int.from_bytes(span.trace_id)
    state = TraceState.from_header([span.trace_state]) if span.trace_state else None
    is_remote = span.flags & REMOTE_PARENT == REMOTE_PARENT
    links = [
        Link(
            SpanContext(int.from_bytes(link.trace_id), int.from_bytes(link.span_id), link.flags & REMOTE_PARENT == REMOTE_PARENT, _SAMPLED),
            _attributes(link.attributes, link.dropped_attributes_count),
        )
        for link in span.links
    ]
    events = [
        Event(event.name, _attributes(event.attributes, event.dropped_attributes_count), event.time_unix_nano) for event in span.events
    ]
    return ReadableSpan(
        span.name,
        SpanContext(trace_id, int.from_bytes(span.span_id), False, _SAMPLED, state),
        SpanContext(trace_id, int.from_bytes(span.parent_span_id), is_remote, _SAMPLED) if span.parent_span_id else None,
        resource,
        _attributes(span.attributes, span.dropped_attributes_count),
        _bounded(events, span.dropped_events_count),
        _bounded(links, span.dropped_links_count),
        _KINDS[int(span.kind)],
        status=_status(span.status),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        instrumentation_scope=scope,
    )


def _status(status: Any) -> Status:
    return Status(StatusCode(status.code), status.message or None) if status.code else _UNSET


def _attributes(pairs: Any, dropped: int = 0) -> Any:
    """Return attributes; where some were dropped, as the SDK's own mapping, which alone says so."""
    attributes = {pair.key: _value(pair.value) for pair in pairs}
    if not dropped:
        return attributes
    bounded: Any = BoundedAttributes(attributes=attributes, immutable=False)
    bounded.dropped += dropped
    return bounded


def _value(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(any_value, kind)
    if kind == "array_value":
        return tuple(_value(item) for item in value.values)
    return _attributes(value.values) if kind == "kvlist_value" else value


def _bounded(items: Sequence[Any], dropped: int) -> Any:
    """Return a list; where some were dropped, as the SDK's own."""
    if not dropped:
        return items
    bounded = cast("Any", BoundedList)(None)
    bounded.extend(items)
    bounded.dropped = dropped
    return bounded
