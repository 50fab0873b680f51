"""Sending one encoded request, and what came of it. The libraries that do it are loaded when the first connection is made."""

from __future__ import annotations

from typing import Protocol

from optree_otel.answers import ExportResult
from optree_otel.destination import Destination, Signal
from optree_otel.loading import load, loading

MAX_BYTES = {"http/protobuf": 15 << 20, "grpc": 3_670_016}
"""Bytes of one request before compression that every collector takes: they refuse 20 MiB over HTTP and 4 MiB over gRPC."""

_PARTS = {
    "http/protobuf": ("encodings.idna", "netrc", "ssl", "http.client", "urllib3", "charset_normalizer", "requests"),
    "grpc": ("asyncio", "concurrent.futures", "grpc._cython.cygrpc", "grpc"),
}
"""What the libraries are made of, and load later or at once."""


class Transport(Protocol):
    """A connection to one destination, for one thread. It may take longer than *timeout* by a little, but not for ever."""

    def send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        """Send an encoded ``Export…ServiceRequest``, within *timeout* seconds. Does not raise."""
        ...

    def close(self) -> None:
        """Close what is open; `send` opens it again."""
        ...


def connect(destination: Destination) -> Transport:
    """Return a transport to *destination*. Slow the first time: to be called on the thread that sends."""
    load(_PARTS[destination.protocol])
    with loading():
        if destination.protocol == "grpc":
            from optree_otel.otlp_grpc import GrpcTransport

            return GrpcTransport(destination)
        from optree_otel.otlp_http import HttpTransport

        return HttpTransport(destination)
