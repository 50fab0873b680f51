"""Bytes of spans and requests: those that the stock encoder writes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as StockEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as StockLink
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import optree
from optree._nodes import LogEntry
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES
from optree_otel.signals.protobuf import KeyValues, UnfitError, varint
from optree_otel.signals.resource import request
from optree_otel.signals.spans import LOCAL_PARENT, REMOTE_PARENT, Link, Span, SpanEvent, encode_span

LIMIT = PROFILES["default"].value_bytes
RESOURCE = Resource({"service.name": "researcher", "process.pid": 77})
SCOPE = InstrumentationScope("optree", optree.__version__)
KINDS = [SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER]

text = st.text(max_size=300)
scalars = st.one_of(text, st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.binary(max_size=9), st.none())
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=10)
attributes = st.dictionaries(text, values, max_size=6)
times = st.integers(0, (1 << 64) - 1)
trace_ids = st.integers(1, (1 << 128) - 1)
span_ids = st.integers(1, (1 << 64) - 1)
events = st.lists(st.tuples(text, attributes, times), max_size=3)
links = st.lists(st.tuples(trace_ids, span_ids, attributes, st.booleans()), max_size=3)


def resource_bytes() -> bytes:
    """Encode the resource that the stock spans have."""
    return KeyValues(1).encode(list(RESOURCE.attributes.items()))


@settings(deadline=None)
@given(
    ids=st.tuples(trace_ids, span_ids, st.none() | span_ids, st.booleans()),
    name=text,
    kind=st.sampled_from(KINDS),
    interval=st.tuples(times, times),
    given_attributes=attributes,
    given_events=events,
    given_links=links,
    status=st.sampled_from(list(StatusCode)),
    message=text,
)
def test_a_span_has_the_bytes_of_the_stock_encoder(ids, name, kind, interval, given_attributes, given_events, given_links, status, message):
    """All that a span can hold, of all types, is written as the stock encoder writes it, resource and scope included."""
    trace_id, span_id, parent, remote = ids
    stock = ReadableSpan(
        name,
        SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1)),
        SpanContext(trace_id, parent, is_remote=remote) if parent else None,
        RESOURCE,
        given_attributes,
        [StockEvent(called, held, at) for called, held, at in given_events],
        [StockLink(SpanContext(trace, span, is_remote=far), held) for trace, span, held, far in given_links],
        kind,
        None,
        Status(status, message if status is StatusCode.ERROR else None),
        interval[0],
        interval[1],
        SCOPE,
    )
    ours = Span(
        trace_id.to_bytes(16),
        span_id.to_bytes(8),
        parent.to_bytes(8) if parent else b"",
        name,
        KINDS.index(kind) + 1,
        *interval,
        list(stock.attributes.items()),
        [SpanEvent(event.timestamp, event.name, list(event.attributes.items())) for event in stock.events],
        [
            Link(trace.to_bytes(16), span.to_bytes(8), list(link.attributes.items()), 0, REMOTE_PARENT if far else LOCAL_PARENT)
            for (trace, span, _, far), link in zip(given_links, stock.links, strict=True)
        ],
        status=status.value,
        message=stock.status.description or "",
        flags=REMOTE_PARENT if parent and remote else LOCAL_PARENT,
    )
    assert encode_spans([stock]).SerializeToString() == request([(resource_bytes(), [encode_span(ours)])])


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5000), st.sampled_from(["VRB", "WRN", "ERR"])), max_size=6))
def test_log_lines_are_the_events_that_they_stand_for(lines):
    """The quick way of log lines writes what the general way of events writes."""
    logs = [LogEntry(1_795_000_000_000.5 + number, severity, message) for number, (message, severity) in enumerate(lines)]
    as_events = [
        SpanEvent(int(entry.timestamp * 1e6), names.LOG, [(names.LOG_SEVERITY, entry.severity), (names.LOG_MESSAGE, entry.message)])
        for entry in logs
    ]
    base = (b"t" * 16, b"s" * 8, b"", "chat", 3, 1, 2, [])
    assert encode_span(Span(*base, events=as_events)) == encode_span(Span(*base, logs=logs))


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_a_varint_reads_back(number):
    """Seven bits a byte, lowest first, as many bytes as are needed."""
    data = varint(number)
    assert number == sum((byte & 127) << 7 * place for place, byte in enumerate(data))
    assert max(1, -(-number.bit_length() // 7)) == len(data)


def test_services_are_groups_of_one_request():
    """Each resource is a ResourceSpans with one scope, and its spans are in order."""
    spans = [encode_span(Span(b"t" * 16, bytes([number]) * 8, b"", f"span {number}", 1, 1, 2, [])) for number in range(1, 4)]
    resources = [KeyValues(1).encode([("service.name", name)]) for name in ("planner", "reader")]
    found = ExportTraceServiceRequest.FromString(request([(resources[0], spans[:2]), (resources[1], spans[2:])]))
    told = [
        (
            group.resource.attributes[0].value.string_value,
            group.scope_spans[0].scope.name,
            [span.name for span in group.scope_spans[0].spans],
        )
        for group in found.resource_spans
    ]
    assert [("planner", "optree", ["span 1", "span 2"]), ("reader", "optree", ["span 3"])] == told


@pytest.mark.parametrize("value", ["x" * (LIMIT + 1), float("nan"), b"bytes", {"a": 1}, ["x" * LIMIT], [1], "Bearer abcdefgh12345"])
def test_what_some_backend_would_not_take_is_told_apart(value):
    """With a limit, a value that needs care is refused rather than written."""
    with pytest.raises(UnfitError):
        KeyValues(9).encode([("key", value)], LIMIT)


def test_a_text_seen_without_a_limit_is_still_looked_at():
    """What is kept of texts already written holds only those that were found fit to leave."""
    writer, pair = KeyValues(9), ("key", "sk-abcdefghijklmnopqrst")
    writer.encode([pair])
    with pytest.raises(UnfitError):
        writer.encode([pair], LIMIT)


def test_many_different_texts_are_not_all_kept():
    """Memory stays bounded whatever passes."""
    writer = KeyValues(9)
    for number in range(20_000):
        writer.encode([(f"key {number}", f"value {number}")], LIMIT)
    assert 4096 >= max(len(writer._kept), len(writer._keys))
