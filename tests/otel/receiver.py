"""An OTLP receiver of the tests' own: HTTP and gRPC, on loopback, with faults; it keeps the exact bytes and what they mean.

with receiver("grpc") as collector:
    collector.script(throttled(2), accepted())   # one fault a request, in this order; afterwards all is accepted
    ...
    assert collector.wait_for(3)                 # three requests that were accepted
"""

import gzip
import socket
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from optree_otel.settings import Destination, Signal
from tests.otel.loopback_certificate import CERTIFICATE, KEY

MESSAGES: dict[str, Any] = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest, "metrics": ExportMetricsServiceRequest}
_SERVICES = {"traces": "trace.v1.TraceService", "logs": "logs.v1.LogsService", "metrics": "metrics.v1.MetricsService"}
PROTOCOLS = ("http/protobuf", "grpc")
HANG_SECONDS = 60.0


class Received(NamedTuple):
    """One request that was accepted."""

    signal: str
    body: bytes
    """As it came, decompressed."""
    headers: dict[str, str]
    message: Any


class Fault(NamedTuple):
    """What to answer instead of "accepted", over HTTP and over gRPC."""

    status: int = 200
    code: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    trailers: tuple[tuple[str, bytes], ...] = ()
    content_type: str = ""
    """Where empty: protobuf with success, plain text without."""
    answer: bytes | None = None
    """What is answered with success."""
    way: str = "answer"
    """`answer`, `hang`, `drip` (a byte each second) or `close` (in the middle of the request); the last two over HTTP only."""
    when: Callable[[Any], bool] | None = None
    """Only to requests of which this is true."""


def accepted() -> Fault:
    """Return no fault."""
    return Fault()


def unavailable() -> Fault:
    """Return "not now"."""
    return Fault(503, grpc.StatusCode.UNAVAILABLE, "try later")


def throttled(seconds: int) -> Fault:
    """Return "too much", with the time to wait."""
    info = RetryInfo(retry_delay=Duration(seconds=seconds))
    status = Status(code=8, message="slow down")
    status.details.add().Pack(info)
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    return Fault(429, grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", (("retry-after", str(seconds)),), trailers)


def too_large(limit: int) -> Fault:
    """Return the refusal of requests of more than *limit* bytes."""
    text = f"grpc: received message larger than max (9 vs. {limit})"
    return Fault(413, grpc.StatusCode.RESOURCE_EXHAUSTED, text, when=lambda message: message.ByteSize() > limit)


def refused(when: Callable[[Any], bool] | None = None) -> Fault:
    """Return "something in it is bad"."""
    return Fault(400, grpc.StatusCode.INVALID_ARGUMENT, "a span id of zeros", when=when)


def partial(rejected: int, text: str) -> Fault:
    """Return a success of which *rejected* spans were thrown away."""
    part = ExportTracePartialSuccess(rejected_spans=rejected, error_message=text)
    answer = ExportTraceServiceResponse(partial_success=part).SerializeToString()
    return Fault(answer=answer)


def status(http: int, code: grpc.StatusCode, text: str = "") -> Fault:
    """Return any refusal."""
    return Fault(http, code, text)


class Receiver:
    """One receiver; `start` and `stop` may be called again, the port stays."""

    def __init__(self, protocol: str, tls: Path | None = None) -> None:
        self.protocol = protocol
        self.tls = tls
        self.port = free_port()
        self.received: list[Received] = []
        self.requests = 0
        """Requests of any outcome."""
        self.always: Fault | None = None
        self.delay = 0.0
        """Seconds before each answer."""
        self.faults: deque[Fault] = deque()
        self.changed = threading.Condition()
        self.stopping = threading.Event()
        self._server: Any = None

    @property
    def endpoint(self) -> str:
        """Return what a user would give."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def destination(self, **changes: Any) -> Destination:
        """Return where traces go to reach this."""
        target = f"{self.endpoint}/v1/traces" if self.protocol == "http/protobuf" else f"127.0.0.1:{self.port}"
        return Destination(**{"protocol": self.protocol, "endpoint": target, "insecure": self.tls is None, "timeout": 5.0, **changes})

    def script(self, *faults: Fault) -> None:
        """Answer the next requests so, one each."""
        self.faults.extend(faults)

    def fault_for(self, signal: str, body: bytes) -> Fault:
        """Return what to answer to a request."""
        self.stopping.wait(self.delay)
        with self.changed:
            self.requests += 1
            self.changed.notify_all()
            fault = self.faults.popleft() if self.faults else self.always or accepted()
        return accepted() if fault.when and not fault.when(MESSAGES[signal].FromString(body)) else fault

    def keep(self, signal: str, body: bytes, headers: dict[str, str]) -> None:
        """Keep an accepted request."""
        with self.changed:
            self.received.append(Received(signal, body, headers, MESSAGES[signal].FromString(body)))
            self.changed.notify_all()

    def wait_for(self, count: int, seconds: float = 10.0, signal: Signal = "traces") -> bool:
        """Wait until *count* requests of a signal were accepted; False if they were not within *seconds*."""
        return self.wait_until(lambda: sum(one.signal == signal for one in self.received) >= count, seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        """Wait until something about the requests is true; False if it is not within *seconds*."""
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def spans(self) -> list[Span]:
        """Return the accepted spans, in the order in which they came."""
        return [
            span
            for one in self.received
            if one.signal == "traces"
            for resource in one.message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def start(self) -> None:
        """Listen."""
        self.stopping.clear()
        self._server = _GrpcServer(self) if self.protocol == "grpc" else _HttpServer(self)

    def stop(self) -> None:
        """Close the port, and let go of what hangs."""
        self.stopping.set()
        server, self._server = self._server, None
        if server is not None:
            server.stop()


class _GrpcServer:
    def __init__(self, to: Receiver) -> None:
        self._to = to
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4 << 20)])
        for signal, service in _SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(self._handle(signal))
            name = f"opentelemetry.proto.collector.{service}"
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
        address = f"127.0.0.1:{to.port}"
        if to.tls:
            self._server.add_secure_port(address, grpc.ssl_server_credentials([(KEY.encode(), CERTIFICATE.encode())]))
        else:
            self._server.add_insecure_port(address)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._pool.shutdown()

    def _handle(self, signal: str) -> Callable[[bytes, Any], bytes]:
        def handle(body: bytes, context: Any) -> bytes:
            fault = self._to.fault_for(signal, body)
            if fault.way == "hang":
                self._to.stopping.wait(HANG_SECONDS)
            if fault.code is not grpc.StatusCode.OK:
                context.set_trailing_metadata(fault.trailers)
                context.abort(fault.code, fault.text)
            self._to.keep(signal, body, {key: str(value) for key, value in context.invocation_metadata()})
            return fault.answer or b""

        return handle


class _HttpServer:
    def __init__(self, to: Receiver) -> None:
        handler = type("Handler", (_HttpHandler,), {"to": to})
        self._server = ThreadingHTTPServer(("127.0.0.1", to.port), handler, bind_and_activate=False)
        self._server.allow_reuse_address = True
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._server.server_bind()
        self._server.server_activate()
        if to.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(to.tls / "certificate.pem", to.tls / "key.pem")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _HttpHandler(BaseHTTPRequestHandler):
    to: Receiver
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = HANG_SECONDS

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        if self.to.faults and self.to.faults[0].way == "close":
            self.to.fault_for("traces", b"")
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        data = self.rfile.read(length)
        body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(self.headers.get("content-encoding", ""), bytes)(data)
        signal = self.path.rpartition("/")[2]
        if signal not in MESSAGES:
            self._answer(404, "text/plain", b"404 page not found", {})
            return
        fault = self.to.fault_for(signal, body)
        if fault.way == "hang":
            self.to.stopping.wait(HANG_SECONDS)
        if fault.way == "drip":
            self._drip()
        elif fault.status != 200 or fault.content_type:
            answer = fault.answer if fault.answer is not None else fault.text.encode()
            self._answer(fault.status, fault.content_type or "text/plain", answer, dict(fault.headers))
        else:
            self.to.keep(signal, body, {key.lower(): value for key, value in self.headers.items()})
            self._answer(200, "application/x-protobuf", fault.answer or b"", {})

    def _answer(self, code: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        self.close_connection = True
        _drip(self.connection, self.to.stopping)

    def log_message(self, *_: Any) -> None: ...


class Raw:
    """A port that takes connections and does no OTLP: `hang`, `drip` (a byte each second), `close`, or `html`."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Close the port and its connections."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            one.close()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                self._open.append(one)
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with suppress(OSError):
            one.recv(10)
            if self._way == "drip":
                _drip(one, self._stopping)
            if self._way == "html":
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>")
            if self._way == "hang":
                self._stopping.wait(HANG_SECONDS)
            one.close()


def _drip(connection: socket.socket, stopping: threading.Event) -> None:
    with suppress(OSError):
        for byte in b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 99\r\n\r\n":
            connection.sendall(bytes([byte]))
            if stopping.wait(1):
                return


@contextmanager
def receiver(protocol: str, tls: Path | None = None) -> Iterator[Receiver]:
    """Run a receiver; *tls* is a directory that its certificate and key are written to."""
    if tls is not None:
        (tls / "certificate.pem").write_text(CERTIFICATE)
        (tls / "key.pem").write_text(KEY)
    one = Receiver(protocol, tls)
    one.start()
    try:
        yield one
    finally:
        one.stop()


@contextmanager
def away(collector: Receiver) -> Iterator[str]:
    """Let nobody listen at a receiver's address meanwhile; gives the address."""
    collector.stop()
    try:
        yield collector.endpoint
    finally:
        collector.start()


@contextmanager
def raw(way: str) -> Iterator[Raw]:
    """Run a port that does no OTLP."""
    one = Raw(way)
    try:
        yield one
    finally:
        one.stop()


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until a condition holds that nobody signals; False if it does not within *seconds*."""
    end = monotonic() + seconds
    waiting = threading.Event()
    while not condition():
        if monotonic() > end:
            return False
        waiting.wait(0.005)
    return True
