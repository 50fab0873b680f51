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
    found: list[ReadableSpan] = []
    for group in request.resource_spans:
        resource = Resource(_attributes(group.resource.attributes), group.schema_url)
        for part in group.scope_spans:
            told = part.scope
            scope = InstrumentationScope(told.name, told.version or None, part.schema_url or None, _attributes(told.attributes))
            found += [_span(one, resource, scope) for one in part.spans]
    return found


def _span(told: Any, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id = int.from_bytes(told.trace_id)
    state = TraceState.from_header([told.trace_state]) if told.trace_state else None
    is_remote = told.flags & REMOTE_PARENT == REMOTE_PARENT
    links = [
        Link(
            SpanContext(int.from_bytes(one.trace_id), int.from_bytes(one.span_id), one.flags & REMOTE_PARENT == REMOTE_PARENT, _SAMPLED),
            _attributes(one.attributes, one.dropped_attributes_count),
        )
        for one in told.links
    ]
    events = [Event(one.name, _attributes(one.attributes, one.dropped_attributes_count), one.time_unix_nano) for one in told.events]
    return ReadableSpan(
        told.name,
        SpanContext(trace_id, int.from_bytes(told.span_id), False, _SAMPLED, state),
        SpanContext(trace_id, int.from_bytes(told.parent_span_id), is_remote, _SAMPLED) if told.parent_span_id else None,
        resource,
        _attributes(told.attributes, told.dropped_attributes_count),
        _bounded(events, told.dropped_events_count),
        _bounded(links, told.dropped_links_count),
        _KINDS[int(told.kind)],
        status=_status(told.status),
        start_time=told.start_time_unix_nano,
        end_time=told.end_time_unix_nano,
        instrumentation_scope=scope,
    )


def _status(told: Any) -> Status:
    return Status(StatusCode(told.code), told.message or None) if told.code else _UNSET


def _attributes(pairs: Any, dropped: int = 0) -> Any:
    """Return attributes; where some were dropped, as the SDK's own mapping, which alone says so."""
    found = {pair.key: _value(pair.value) for pair in pairs}
    if not dropped:
        return found
    bounded: Any = BoundedAttributes(attributes=found, immutable=False)
    bounded.dropped += dropped
    return bounded


def _value(told: Any) -> Any:
    kind = told.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(told, kind)
    if kind == "array_value":
        return tuple(_value(one) for one in found.values)
    return _attributes(found.values) if kind == "kvlist_value" else found


def _bounded(items: Sequence[Any], dropped: int) -> Any:
    """Return a list; where some were dropped, as the SDK's own."""
    if not dropped:
        return items
    bounded = cast("Any", BoundedList)(None)
    bounded.extend(items)
    bounded.dropped = dropped
    return bounded
