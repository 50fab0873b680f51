"""OTLP over HTTP, with `requests`: http/protobuf, one connection that is kept, and answers with a deadline.

A socket's timeout is for one read: a server that sends a byte each second can hold a reader for ever. Here the timeout that urllib3 sets
for the answer is for all of it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from http.client import BadStatusLine, HTTPResponse, LineTooLong
from io import BufferedReader, RawIOBase
from socket import socket
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import requests
from msgspec.structs import replace
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from optree import __version__
from optree_otel.otlp.responses import (
    ExportResult,
    accepted,
    accepted_json,
    is_page,
    is_too_large,
    retry_after,
    shown,
    status_text,
)
from optree_otel.settings import Destination, Signal
from optree_otel.signals.protobuf import NotProtobufError

MAX_ANSWER_BYTES = 1 << 16
GZIP_LEVEL = 1
"""Spans repeat themselves: level 6 takes three times as long and saves a tenth."""
_IMPOSSIBLE = (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader, requests.exceptions.InvalidSchema, UnicodeError)
_WHOSE = re.compile(r"^\w+\(host=.*?\): ")
"""urllib3 begins its texts with the object that had the error."""
_GRPC_PORT = 4317
_NOW = frozenset({408, 425, 429, 502, 503, 504})
_CREDENTIALS = frozenset({401, 403, 407})
_NOT_SERVED = frozenset({404, 405, 501})
_BAD_CONTENT = frozenset({400, 422})


class HttpTransport:
    """Posts to one URL."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._session: requests.Session | None = None
        self._headers = {"content-type": "application/x-protobuf", "user-agent": f"optree/{__version__} OTel-OTLP-Exporter-Python"}
        if destination.compression != "none":
            self._headers["content-encoding"] = destination.compression
        self._headers.update(destination.headers)
        client = (destination.client_certificate, destination.client_key)
        self._client = client if client[0] and client[1] else destination.client_certificate

    def send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        """Post *body*. Does not raise."""
        outcome = self._tried(signal, body, timeout)
        return replace(outcome, text=self._to.cleared(outcome.text)) if outcome.text else outcome

    def _tried(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        try:
            return self._send(signal, body, timeout)
        except requests.exceptions.SSLError as error:
            self.close()
            advice = "name the file of its authority in OTEL_EXPORTER_OTLP_CERTIFICATE if that is a private one"
            return ExportResult("retry", f"{self._to.shown}: no trusted TLS connection ({shown(_reason(error))}); {advice}")
        except _IMPOSSIBLE as error:
            return ExportResult("denied", f"{self._to.shown}: {shown(str(error))}; check the endpoint and OTEL_EXPORTER_OTLP_HEADERS")
        except Exception as error:  # noqa: BLE001 - the network and its libraries may raise anything
            self.close()
            return ExportResult("retry", f"{self._to.shown}: {shown(_reason(error))}{self._hint(error)}")

    def flush(self, timeout: float) -> str:  # noqa: ARG002 - nothing is held
        """Do nothing: what was sent is answered."""
        return ""

    def close(self) -> None:
        """Close the connection; `send` opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _hint(self, error: Exception) -> str:
        if "ConnectionResetError" in _reason(error) and urlsplit(self._to.endpoint).port == _GRPC_PORT:
            return "; port 4317 is usually gRPC's: use 4318, or OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
        return ""

    def _send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        until = monotonic() + timeout
        if self._session is None:
            self._session = requests.Session()
            for scheme in ("http://", "https://"):
                self._session.mount(scheme, DeadlineAdapter(pool_connections=1, pool_maxsize=1))
        with self._session.post(
            self._to.endpoint,
            data=self._compressed(body),
            headers=self._headers,
            timeout=max(0.001, until - monotonic()),
            verify=self._to.certificate or True,
            cert=self._client,  # type: ignore[arg-type,unused-ignore]
            allow_redirects=False,
            stream=True,
        ) as response:
            answer = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
            if response.raw.read(1):  # not all was read: this connection cannot be used again
                response.raw.close()
            return self._outcome(signal, response, answer)

    def _compressed(self, body: bytes) -> bytes:
        if self._to.compression == "gzip":
            return gzip.compress(body, GZIP_LEVEL, mtime=0)
        return zlib.compress(body, GZIP_LEVEL) if self._to.compression == "deflate" else body

    def _outcome(self, signal: Signal, response: requests.Response, answer: bytes) -> ExportResult:
        code = response.status_code
        kind = response.headers.get("content-type", "").lower()
        if 200 <= code < 300:  # noqa: PLR2004 - the codes of success
            return self._success(answer, kind)
        message = f"{self._to.shown} answered {code}: {status_text(answer, kind) or response.reason}"
        if code == 413 or (code in _BAD_CONTENT and is_too_large(message)):  # noqa: PLR2004 - Content Too Large
            return ExportResult("too_large", message)
        if code in _NOW:
            return ExportResult("retry", message, after=retry_after(response.headers.get("retry-after")))
        if code in _BAD_CONTENT:
            return ExportResult("refused", message)
        if code in _NOT_SERVED and signal != "traces":
            return ExportResult(
                "unsupported", f"{self._to.shown} answered {code}: this collector takes no {signal}, they are not sent to it"
            )
        return ExportResult("failed", message) if code >= 500 else ExportResult("denied", f"{message}; {_advice(code, response)}")  # noqa: PLR2004

    def _success(self, answer: bytes, kind: str) -> ExportResult:
        outcome = None
        if not answer or "protobuf" in kind or not kind:
            with suppress(NotProtobufError):
                outcome = accepted(answer)
        elif "json" in kind:
            outcome = accepted_json(answer)
        if outcome is not None:
            return outcome
        what = "a web page" if is_page(answer, kind) else f"something that is no OTLP ({kind or 'no content type'})"
        return ExportResult(
            "denied", f"{self._to.shown} answered {what}: it is not an OTLP endpoint; give a collector's, such as http://host:4318"
        )


def _advice(code: int, response: requests.Response) -> str:
    if code in _CREDENTIALS:
        return "give its credentials in OTEL_EXPORTER_OTLP_HEADERS, such as authorization=Bearer%20..."
    if code in _NOT_SERVED:
        return "OTLP is not served there: give a collector's endpoint, such as http://host:4318 (/v1/traces is added)"
    if 300 <= code < 400:  # noqa: PLR2004 - the codes of redirection
        return f"it redirects to {shown(response.headers.get('location', 'nowhere'))}: give that endpoint"
    if code == 415:  # noqa: PLR2004 - Unsupported Media Type
        return "it does not take protobuf with this compression: try OTEL_EXPORTER_OTLP_COMPRESSION=none, or another protocol"
    return "check the endpoint"


def _reason(error: Exception) -> str:
    """Return what is wrong, from inside an error of requests, which wraps those of urllib3, which wrap those of the system."""
    cause: BaseException = error
    for _ in range(5):
        inner = getattr(cause, "reason", None) or next((part for part in cause.args if isinstance(part, BaseException)), None)
        if not isinstance(inner, BaseException):
            break
        cause = inner
    if isinstance(cause, (BadStatusLine, LineTooLong)):
        return "it does not speak HTTP/1.1; if it is a gRPC port (usually 4317), use OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    return f"{type(cause).__name__}: {_WHOSE.sub('', str(cause))}"


class DeadlineAdapter(HTTPAdapter):
    """A `requests` adapter that makes such connections. Retries and redirects are not its business."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pools, as requests does, with our connections."""
        super().init_poolmanager(*args, **kwargs)  # type: ignore[no-untyped-call,unused-ignore]
        _make_timed(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Make the pools to a proxy, as requests does, with our connections."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        _make_timed(manager)
        return manager


class _Reads(RawIOBase):
    """Reads from a socket until a moment."""

    def __init__(self, raw: RawIOBase, sock: socket, until: float) -> None:
        self._raw = raw
        self._sock = sock
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        self._sock.settimeout(left)
        read: Callable[[Any], int | None] = cast("Any", self._raw).readinto
        return read(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout = sock.gettimeout()
        if timeout is not None:
            raw = self.fp.detach()
            self.fp = BufferedReader(_Reads(raw, sock, monotonic() + timeout))


class _Connection(HTTPConnection):
    response_class = _Answer


class _SecureConnection(HTTPSConnection):
    response_class = _Answer


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection  # pyright: ignore[reportAssignmentType]


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection  # pyright: ignore[reportAssignmentType]


def _make_timed(manager: PoolManager) -> None:
    pools: dict[str, type[HTTPConnectionPool | HTTPSConnectionPool]] = {"http": _Pool, "https": _SecurePool}
    manager.pool_classes_by_scheme = pools
