import time

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, format_span_id, format_trace_id, set_span_in_context

from tests.otel.backends import spans as received
from tests.otel.backends.waiting import wait_for

ATTRIBUTES = {"text": "Ω", "yes": True, "big": 2**53 + 1, "ratio": 0.5, "whole": 2.0, "words": ["a", "b"], "raw": b"\x00\xff"}
CAUSE = SpanContext(0xA0B1, 0xC2, is_remote=True)
protocols = pytest.mark.parametrize("protocol", ["http", "grpc"])


def send(protocol, server, service, shift=0):
    """Send two spans, one below the other, with the stock SDK; the inner one ends *shift* ns later. Return what was sent."""
    if protocol == "http":
        exporter = HttpExporter(endpoint=f"{server.http}/v1/traces")
    else:
        exporter = GrpcExporter(endpoint=server.grpc, insecure=True)
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("the tests")
    now = time.time_ns()
    outer = tracer.start_span("outer", kind=SpanKind.CLIENT, start_time=now, attributes=ATTRIBUTES, links=[Link(CAUSE, {"why": "cause"})])
    outer.add_event("happened", {"n": 1}, timestamp=now + 5)
    inner = tracer.start_span("inner", context=set_span_in_context(outer), start_time=now + 1)
    inner.set_status(Status(StatusCode.ERROR, "boom"))
    inner.end(now + 9 + shift)
    outer.end(now + 10)
    provider.shutdown()
    trace_id = format_trace_id(outer.get_span_context().trace_id)
    outer_id, inner_id = (format_span_id(span.get_span_context().span_id) for span in (outer, inner))
    common = {"trace_id": trace_id, "service": service, "resource": {"service.name": service}, "scope": "the tests"}
    return [
        received.Span(
            **common,
            span_id=outer_id,
            parent_id="",
            name="outer",
            kind="client",
            start_ns=now,
            end_ns=now + 10,
            status="unset",
            status_message="",
            attributes=ATTRIBUTES,
            events=[received.Event("happened", now + 5, {"n": 1})],
            links=[received.Link(f"{CAUSE.trace_id:032x}", f"{CAUSE.span_id:016x}", {"why": "cause"})],
        ),
        received.Span(
            **common,
            span_id=inner_id,
            parent_id=outer_id,
            name="inner",
            kind="internal",
            start_ns=now + 1,
            end_ns=now + 9 + shift,
            status="error",
            status_message="boom",
            attributes={},
            events=[],
            links=[],
        ),
    ]


def in_order(spans):
    """Sort spans by their start."""
    return sorted(spans, key=lambda span: span.start_ns)


@protocols
def test_jaeger_gives_back_what_it_got(jaeger, protocol):
    """Over either protocol, each span comes back with its times, types, event, link and status as sent."""
    sent = send(protocol, jaeger, f"direct {protocol}")
    assert sent == in_order(jaeger.wait_for_trace(sent[0].trace_id, 2))


def test_jaeger_knows_services_and_span_names(jaeger):
    """What was sent is found by its service, and counted among the services and their span names."""
    sent = send("http", jaeger, "found by name")
    jaeger.wait_for_trace(sent[0].trace_id, 2)
    assert "found by name" in jaeger.services()
    assert ["inner", "outer"] == jaeger.operations("found by name")
    assert [sent[0].trace_id] == list(jaeger.find("found by name"))
    assert {} == jaeger.find("found by name", operation="another")


def test_jaeger_warns_of_a_span_that_ends_before_it_starts(jaeger):
    """What Jaeger mends is told with the span, and only there."""
    sent = send("http", jaeger, "mended", shift=-1000)
    outer, inner = in_order(jaeger.wait_for_trace(sent[0].trace_id, 2))
    assert [] == outer.warnings
    assert ["Negative duration detected"] == [warning.partition(",")[0] for warning in inner.warnings]


def test_jaeger_shows_whole_traces_without_warnings(jaeger):
    """A trace with nothing wrong is shown as it was sent."""
    sent = send("http", jaeger, "shown")
    jaeger.wait_for_trace(sent[0].trace_id, 2)
    assert sent == in_order(jaeger.shown(sent[0].trace_id))


@protocols
def test_the_collector_passes_on_and_writes_down(jaeger, collector, protocol):
    """What went through the Collector is the same in Jaeger and in the Collector's file."""
    between = collector(jaeger.grpc)
    sent = send(protocol, between, f"through the Collector {protocol}")
    assert sent == in_order(jaeger.wait_for_trace(sent[0].trace_id, 2))
    assert sent == in_order(wait_for(lambda: spans if len(spans := between.spans()) == 2 else []))
    assert 2 == len(between.batches())


def test_a_backend_keeps_its_addresses(collector):
    """Stopped, it does not answer; started again, it answers where it did, and its file goes on."""
    server = collector()
    first = send("http", server, "before")
    wait_for(lambda: len(server.spans()) == 2)
    server.stop()
    assert not server.ready()
    server.start()
    second = send("http", server, "after")
    wait_for(lambda: len(server.spans()) == 4)
    assert first + second == in_order(server.spans())


@pytest.mark.tempo
@protocols
def test_tempo_gives_back_what_it_got(tempo, protocol):
    """Over either protocol, each span comes back with its times, types, event, link and status as sent."""
    sent = send(protocol, tempo, f"direct {protocol}")
    assert sent == in_order(tempo.wait_for_trace(sent[0].trace_id, 2))
    assert [] == tempo.trace("ab" * 16)


@pytest.mark.tempo
def test_tempo_finds_by_traceql(tempo):
    """A search finds the spans that are meant, by their ids."""
    outer, inner = send("http", tempo, "searched")
    wait_for(lambda: tempo.search('{ resource.service.name = "searched" } | count() = 2'))
    assert {outer.trace_id: [inner.span_id]} == tempo.search('{ resource.service.name = "searched" && status = error }')
    assert {} == tempo.search('{ resource.service.name = "searched" && name = "another" }')
