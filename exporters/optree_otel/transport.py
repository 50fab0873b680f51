"""Sending one encoded request, and what came of it. The libraries that do it are loaded when the first connection is made."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from optree_otel.destination import Destination, Signal
from optree_otel.loading import load, loading

Kind = Literal["delivered", "retry", "failed", "refused", "too_large", "denied", "unsupported"]
MAX_BYTES = {"http/protobuf": 15 << 20, "grpc": 3_670_016}
"""Bytes of one request before compression that every collector takes: they refuse 20 MiB over HTTP and 4 MiB over gRPC."""

_PARTS = {
    "http/protobuf": ("encodings.idna", "netrc", "ssl", "http.client", "urllib3", "charset_normalizer", "requests"),
    "grpc": ("asyncio", "concurrent.futures", "grpc._cython.cygrpc", "grpc"),
}
"""What the libraries are made of, and load later or at once."""


class Outcome(Struct, frozen=True):
    """What came of one request.

    `delivered`    the collector has it, but for *rejected* of its entries
    `retry`        not now: send the same again, after *after* seconds if the collector named a time
    `failed`       the collector failed and did not say whose fault it is: try a few times, then take it for refused
    `refused`      something in it is bad: sending the same again is of no use
    `too_large`    sent in smaller requests it may pass
    `denied`       the endpoint takes nothing as things are (credentials, wrong address): *text* says what to do
    `unsupported`  the collector does not serve this signal
    """

    kind: Kind
    text: str = ""
    rejected: int = 0
    after: float | None = None


DELIVERED = Outcome("delivered")


class Transport(Protocol):
    """A connection to one destination, for one thread. It may take longer than *timeout* by a little, but not for ever."""

    def send(self, signal: Signal, body: bytes, timeout: float) -> Outcome:
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
