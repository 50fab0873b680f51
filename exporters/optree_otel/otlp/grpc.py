"""OTLP over gRPC, with `grpcio`: one unary call whose request and answer are bytes already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc as _grpc  # type: ignore[import-untyped]
from msgspec.structs import replace

from optree import __version__
from optree_otel.otlp.responses import ExportResult, accepted, is_too_large, retry_delay, shown
from optree_otel.settings import SIGNALS, Destination, Signal
from optree_otel.signals.protobuf import NotProtobufError

grpc: Any = _grpc
"""The library has no types."""
_SERVICES = {"traces": "trace.v1.TraceService", "logs": "logs.v1.LogsService", "metrics": "metrics.v1.MetricsService"}
_METHODS = {signal: f"/opentelemetry.proto.collector.{_SERVICES[signal]}/Export" for signal in SIGNALS}
_OPTIONS = (
    ("grpc.primary_user_agent", f"optree/{__version__} OTel-OTLP-Exporter-Python"),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")
_SIZE = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "INVALID_ARGUMENT", "INTERNAL"})
_NOW = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
_CREDENTIALS = "give its credentials in OTEL_EXPORTER_OTLP_HEADERS"
_DENIED = {
    "UNAUTHENTICATED": _CREDENTIALS,
    "PERMISSION_DENIED": _CREDENTIALS,
    "UNIMPLEMENTED": "it is not an OTLP endpoint: give a collector's, such as http://host:4317",
}


class GrpcTransport:
    """Calls the export methods of one target. The channel is made by the first `send`, in the process that uses it."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._channel: Any = None
        self._impossible = [name for name, value in destination.headers if not _is_possible(name, value)]
        self._metadata = tuple((name, value.encode() if name.endswith("-bin") else value) for name, value in destination.headers)

    def send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        """Call with *body*. Does not raise."""
        outcome = self._tried(signal, body, timeout)
        return replace(outcome, text=self._to.cleared(outcome.text)) if outcome.text else outcome

    def _tried(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        if self._impossible:  # the library would write to stderr
            names = shown(", ".join(map(repr, self._impossible)))
            return ExportResult("denied", f"header {names} cannot be sent with gRPC: correct OTEL_EXPORTER_OTLP_HEADERS")
        try:
            call = self._open().unary_unary(_METHODS[signal])
            answer = call(body, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            return self._failure(signal, error)
        except Exception as error:  # noqa: BLE001 - an unreadable certificate, no more threads: the library may raise anything
            self.close()
            return ExportResult("retry", f"{self._to.shown}: {type(error).__name__}: {shown(str(error))}")
        try:
            return accepted(answer)
        except NotProtobufError:
            return ExportResult(
                "denied", f"{self._to.shown} answered something that is no OTLP; give a collector's endpoint, such as http://host:4317"
            )

    def flush(self, timeout: float) -> str:  # noqa: ARG002 - nothing is held
        """Do nothing: what was sent is answered."""
        return ""

    def close(self) -> None:
        """Close the channel; `send` opens another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> Any:
        if self._channel is None:
            compression = grpc.Compression.Gzip if self._to.compression == "gzip" else grpc.Compression.NoCompression
            if self._to.insecure:
                self._channel = grpc.insecure_channel(self._to.endpoint, options=_OPTIONS, compression=compression)
            else:
                self._channel = grpc.secure_channel(self._to.endpoint, self._credentials(), options=_OPTIONS, compression=compression)
        return self._channel

    def _credentials(self) -> Any:
        files = (self._to.certificate, self._to.client_key, self._to.client_certificate)
        return grpc.ssl_channel_credentials(*(_content(name) for name in files))

    def _failure(self, signal: Signal, error: Any) -> ExportResult:
        code: str = error.code().name
        details = shown(error.details() or "")
        message = f"{self._to.shown} answered {code}: {details}"
        if code in _SIZE and is_too_large(details):
            return ExportResult("too_large", message)
        if code in _NOW:
            if code == "UNAVAILABLE":  # gRPC waits longer and longer before it connects anew; we keep our own time
                self.close()
            return ExportResult("retry", f"{message}{self._hint(details)}", after=retry_delay(_trailers(error)))
        if code == "UNIMPLEMENTED" and "ecompress" in details:
            return ExportResult("denied", f"{message}; set OTEL_EXPORTER_OTLP_COMPRESSION=none")
        if code == "UNIMPLEMENTED" and signal != "traces":
            return ExportResult(
                "unsupported", f"{self._to.shown} answered {code}: this collector takes no {signal}, they are not sent to it"
            )
        if code in _DENIED:
            return ExportResult("denied", f"{message}; {_DENIED[code]}")
        return ExportResult("refused" if code == "INVALID_ARGUMENT" else "failed", message)

    def _hint(self, details: str) -> str:
        lowered = details.lower()
        if "http1" in lowered or "http/1" in lowered or "http2 settings" in lowered or "settings frame" in lowered:
            return "; it does not speak gRPC: use OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or a collector's gRPC port, 4317"
        if "ssl" in lowered or "certificate" in lowered or "handshake" in lowered:
            return "; use http:// if it has no TLS, or name its authority's file in OTEL_EXPORTER_OTLP_CERTIFICATE"
        return ""


def _is_possible(name: str, value: str) -> bool:
    """Tell whether HTTP/2 as gRPC uses it allows a header; one whose name ends in -bin may have any value."""
    return bool(_NAME.fullmatch(name)) and (name.endswith("-bin") or bool(_VALUE.fullmatch(value)))


def _content(name: str | None) -> bytes | None:
    return Path(name).read_bytes() if name else None


def _trailers(error: Any) -> dict[str, bytes]:
    return {key: value for key, value in error.trailing_metadata() or () if isinstance(value, bytes)}
