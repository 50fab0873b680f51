import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from time import monotonic

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from optree_otel.otlp.responses import accepted_json, members, retry_after, shown
from optree_otel.otlp.transport import Transport, connect
from optree_otel.settings import Destination
from tests.otel import receiver as faults
from tests.otel.receiver import HANG_SECONDS, PROTOCOLS, Receiver, raw, receiver


def body(*names: str) -> bytes:
    """Return a request with spans of these names."""
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(Span(name=name) for name in names)
    return request.SerializeToString()


@pytest.fixture(params=PROTOCOLS)
def collector(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """Run a receiver of each protocol."""
    with receiver(request.param) as one:
        yield one


@pytest.fixture
def transport(collector: Receiver) -> Iterator[Transport]:
    """Return a transport to it."""
    one = connect(collector.destination())
    yield one
    one.close()


def to_port(protocol: str, port: int) -> Destination:
    """Return a destination on this machine."""
    return Destination(protocol, f"http://127.0.0.1:{port}/v1/traces" if protocol != "grpc" else f"127.0.0.1:{port}", insecure=True)


def test_exact_bytes(collector: Receiver, transport: Transport):
    """What is sent is what arrives, byte for byte, twice over one connection."""
    sent = [body("one"), body("two", "three")]
    assert ["delivered"] * 2 == [transport.send("traces", one, 5).kind for one in sent]
    assert sent == [one.body for one in collector.received]


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_each_signal(collector: Receiver, signal: str):
    """Each signal arrives at its own service or path."""
    with_path = {"endpoint": f"{collector.endpoint}/v1/{signal}"} if collector.protocol != "grpc" else {}
    one = connect(collector.destination(**with_path))
    assert "delivered" == one.send(signal, b"", 5).kind
    assert [signal] == [got.signal for got in collector.received]
    one.close()


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_headers_and_compression(collector: Receiver, compression: str):
    """Headers go along, and a compressed body arrives as it was."""
    if (collector.protocol, compression) == ("grpc", "deflate"):
        compression = "none"
    one = connect(collector.destination(compression=compression, headers=(("x-key", "secret value"),)))
    assert "delivered" == one.send("traces", body("x" * 10_000), 5).kind
    assert ("secret value", body("x" * 10_000)) == (collector.received[0].headers["x-key"], collector.received[0].body)
    one.close()


def test_partial_success(collector: Receiver, transport: Transport):
    """Entries that the collector threw away are counted, with its reason."""
    collector.script(faults.partial(2, "too old"))
    outcome = transport.send("traces", body("one", "two", "three"), 5)
    assert ("delivered", 2, "the collector rejected 2: too old") == (outcome.kind, outcome.rejected, outcome.text)


@pytest.mark.parametrize(
    ("fault", "kind", "after"),
    [
        (faults.unavailable(), "retry", None),
        (faults.throttled(7), "retry", 7.0),
        (faults.too_large(0), "too_large", None),
        (faults.refused(), "refused", None),
        (faults.Fault(200, grpc.StatusCode.PERMISSION_DENIED, "It works!", content_type="text/plain"), "denied", None),
        (faults.status(401, grpc.StatusCode.UNAUTHENTICATED), "denied", None),
        (faults.status(403, grpc.StatusCode.PERMISSION_DENIED), "denied", None),
        (faults.status(404, grpc.StatusCode.UNIMPLEMENTED), "denied", None),
        (faults.status(400, grpc.StatusCode.OUT_OF_RANGE, "decoded message length too large: found 5 bytes"), "too_large", None),
        (faults.status(400, grpc.StatusCode.RESOURCE_EXHAUSTED, "http: request body too large"), "too_large", None),
        (faults.status(500, grpc.StatusCode.INTERNAL, "boom"), "failed", None),
        (faults.status(502, grpc.StatusCode.ABORTED), "retry", None),
        (faults.status(504, grpc.StatusCode.DEADLINE_EXCEEDED), "retry", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers(collector: Receiver, transport: Transport, fault: faults.Fault, kind: str, after: float | None):
    """Each refusal is told apart, and the next request passes."""
    collector.script(fault)
    outcome = transport.send("traces", body("one"), 5)
    assert (kind, after) == (outcome.kind, outcome.after)
    assert outcome.text
    assert "delivered" == transport.send("traces", body("two"), 5).kind


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_signal_not_served(collector: Receiver, transport: Transport, signal: str):
    """A collector that serves traces only is told from a wrong address."""
    collector.script(faults.status(404, grpc.StatusCode.UNIMPLEMENTED))
    sender = transport if collector.protocol == "grpc" else connect(collector.destination(endpoint=f"{collector.endpoint}/v1/{signal}"))
    assert "unsupported" == sender.send(signal, b"", 5).kind
    sender.close()


def test_port_closed(collector: Receiver, transport: Transport):
    """A closed port is tried again, and the collector's return is noticed at once."""
    collector.stop()
    outcome = transport.send("traces", body("one"), 5)
    assert ("retry", True) == (outcome.kind, str(collector.port) in outcome.text)
    collector.start()
    assert "delivered" == transport.send("traces", body("one"), 5).kind


def test_hang(collector: Receiver, transport: Transport):
    """A collector that does not answer costs the timeout."""
    collector.script(faults.Fault(way="hang"))
    started = monotonic()
    assert "retry" == transport.send("traces", body("one"), 0.3).kind
    assert 0.25 < monotonic() - started < HANG_SECONDS / 2
    assert "delivered" == transport.send("traces", body("two"), 5).kind


@pytest.mark.parametrize("way", ["drip", "hang", "close", "html"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_collector_there(protocol: str, way: str):
    """Something that takes the connection and is no collector costs the timeout at most, and is never taken for success."""
    with raw(way) as port:
        one = connect(to_port(protocol, port.port))
        started = monotonic()
        outcome = one.send("traces", body("one"), 1.5)
        assert outcome.kind in {"retry", "denied"}
        assert monotonic() - started < HANG_SECONDS / 2
        one.close()


def test_one_byte_a_second():
    """An answer that comes a byte each second ends at the timeout, though no single read lasts that long."""
    with receiver("http/protobuf") as collector:
        collector.script(faults.Fault(way="drip"))
        one = connect(collector.destination())
        started = monotonic()
        assert "retry" == one.send("traces", body("one"), 2.5).kind
        assert 2 < monotonic() - started < HANG_SECONDS / 2
        one.close()


def test_closed_in_the_middle():
    """A connection that is closed in the middle of the request is tried again."""
    with receiver("http/protobuf") as collector:
        collector.script(faults.Fault(way="close"))
        one = connect(collector.destination())
        assert "retry" == one.send("traces", body("x" * 3_000_000), 5).kind
        assert "delivered" == one.send("traces", body("one"), 5).kind
        one.close()


@pytest.mark.parametrize(
    ("answer", "content_type"), [(b"<!doctype html><html>", "text/html"), (b"<html>", "text/plain"), (b"It works!", "text/plain")]
)
def test_a_page_is_not_otlp(answer: bytes, content_type: str):
    """A web server that answers 200 to everything is told from a collector."""
    with receiver("http/protobuf") as collector:
        collector.always = faults.Fault(200, answer=answer, content_type=content_type)
        one = connect(collector.destination())
        outcome = one.send("traces", body("one"), 5)
        assert "denied" == outcome.kind
        assert "not an OTLP endpoint" in outcome.text
        one.close()


def test_nonsense_over_grpc():
    """A gRPC answer that is no message is told from success."""
    with receiver("grpc") as collector:
        collector.script(faults.Fault(answer=b"\xff\xff\xff"))
        one = connect(collector.destination())
        assert "denied" == one.send("traces", body("one"), 5).kind
        one.close()


def test_redirect():
    """A redirection is not followed, since it may lead a body with content elsewhere; the text says where it leads."""
    with receiver("http/protobuf") as collector:
        collector.script(faults.Fault(302, headers=(("location", "http://elsewhere.invalid/"),)))
        one = connect(collector.destination())
        outcome = one.send("traces", body("one"), 5)
        assert ("denied", True) == (outcome.kind, "elsewhere.invalid" in outcome.text)
        one.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tls(protocol: str, tmp_path: Path):
    """With the authority's file TLS works; without it, and without TLS, the failure says which option helps."""
    with receiver(protocol, tmp_path) as collector:
        trusted = connect(collector.destination(certificate=str(tmp_path / "certificate.pem")))
        assert "delivered" == trusted.send("traces", body("one"), 5).kind
        trusted.close()
        for destination in (collector.destination(), collector.destination(certificate=str(tmp_path / "missing.pem"))):
            one = connect(destination)
            outcome = one.send("traces", body("two"), 5)
            assert "retry" == outcome.kind
            assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in outcome.text or "missing.pem" in outcome.text
            one.close()
    assert ["one"] == [span.name for span in collector.spans()]


def test_tls_to_a_plain_port(collector: Receiver):
    """A collector without TLS that is spoken to with TLS: tried again, and said."""
    secure = (
        {"insecure": False} if collector.protocol == "grpc" else {"endpoint": collector.destination().endpoint.replace("http", "https", 1)}
    )
    one = connect(collector.destination(**secure))
    outcome = one.send("traces", body("one"), 3)
    assert "retry" == outcome.kind
    assert outcome.text
    one.close()


@pytest.mark.parametrize(("asked", "listening"), [PROTOCOLS, PROTOCOLS[::-1]])
def test_the_other_protocol(asked: str, listening: str):
    """HTTP to a gRPC port, and gRPC to an HTTP port, fail within the timeout and deliver nothing."""
    with receiver(listening) as collector:
        one = connect(to_port(asked, collector.port))
        outcome = one.send("traces", body("one"), 3)
        assert ("retry", True) == (outcome.kind, "OTEL_EXPORTER_OTLP_PROTOCOL" in outcome.text)
        assert [] == collector.received
        one.close()


@pytest.mark.parametrize("header", [("x", "line\nbreak"), ("x", "\N{SNOWMAN}")])
def test_impossible_headers(collector: Receiver, header: tuple[str, str]):
    """A header that the protocol does not allow is an outcome that says so, not an exception."""
    one = connect(collector.destination(headers=(header,)))
    outcome = one.send("traces", body("one"), 5)
    assert ("denied", True) == (outcome.kind, "OTEL_EXPORTER_OTLP_HEADERS" in outcome.text)
    one.close()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-4", 0.0), ("nan", None), ("soon", None), (None, None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)],
)
def test_retry_after(value: str | None, seconds: float | None):
    """A Retry-After is seconds or a date; what is neither is passed over."""
    assert seconds == retry_after(value)


def test_fields():
    """The small reader finds what protobuf wrote."""
    message = ExportTraceServiceResponse()
    message.partial_success.rejected_spans = 2**40
    message.partial_success.error_message = "é"
    inner = members(message.SerializeToString())[1][0]
    assert isinstance(inner, bytes)
    assert {1: [2**40], 2: ["é".encode()]} == members(inner)


def test_json_answer():
    """A partial success in JSON, where 64-bit numbers are texts, is understood; other JSON is no answer."""
    outcome = accepted_json(b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"old"}}')
    assert outcome is not None
    assert (3, True) == (outcome.rejected, "old" in outcome.text)
    assert (True, True) == (accepted_json(b"[]") is None, accepted_json(b"<") is None)


def test_shown():
    """A collector's text is cut, on one line, and without credentials."""
    text = shown("denied:\r\n Bearer abcdefgh1jklmnop \x00" + "x" * 10_000)
    assert (300, False, False) == (len(text), "abcdefgh1jklmnop" in text, "\n" in text)


def test_no_password_in_outcomes():
    """What is said of an endpoint names neither its user nor his password."""
    for destination in (
        Destination("http/protobuf", f"http://someone:secret@127.0.0.1:{faults.free_port()}/v1/traces"),
        Destination("http/protobuf", "http://someone:secret@:x/v1/traces"),
        Destination("http/protobuf", "http://secret@no.such.host.invalid/v1/traces"),
    ):
        one = connect(destination)
        outcome = one.send("traces", b"", 2)
        assert ("delivered" != outcome.kind, True, False) == (True, bool(outcome.text), "secret" in outcome.text)
        one.close()


def test_a_reset_by_the_port_of_grpc():
    """Who resets a connection at port 4317 likely speaks gRPC, and the outcome says so."""
    with socket.create_server(("127.0.0.9", 4317)) as server:

        def reset() -> None:
            taken, _ = server.accept()
            taken.recv(1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            taken.close()

        thread = threading.Thread(target=reset)
        thread.start()
        one = connect(Destination("http/protobuf", "http://127.0.0.9:4317/v1/traces"))
        outcome = one.send("traces", b"x" * 100, 5)
        thread.join()
        one.close()
    assert ("retry", True) == (outcome.kind, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in outcome.text)
