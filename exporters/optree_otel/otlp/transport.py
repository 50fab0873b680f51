"""Sending one encoded request, and what came of it. The libraries that do it are loaded for the first connection, by one thread.

A child that is forked while another thread imports a module waits for that module for ever: the import's lock came along, the thread
did not. So a fork waits for the end of what is being loaded, a moment at most.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from time import sleep
from typing import Protocol

from optree.exporting import new_rlock, register_at_fork
from optree_otel.otlp.responses import ExportResult
from optree_otel.settings import Destination, Signal

MAX_BYTES = {"http/protobuf": 15 << 20, "grpc": 3_670_016}
"""Bytes of one request before compression that every collector takes: they refuse 20 MiB over HTTP and 4 MiB over gRPC."""

_PARTS = {
    "http/protobuf": ("encodings.idna", "netrc", "ssl", "http.client", "urllib3", "charset_normalizer", "requests"),
    "grpc": ("asyncio", "concurrent.futures", "grpc._cython.cygrpc", "grpc"),
}
"""What the libraries are made of, and load later or at once."""
_NEEDED = {"http/protobuf": "requests", "grpc": "grpc"}
REMEDY = "install what OpenTelemetry needs with: pip install 'optree-tracing[otel]'"
FORK_SECONDS = 0.2
"""The longest that a fork waits."""
_lock = new_rlock()
_process = os.getpid()


class Transport(Protocol):
    """A connection to one destination, for one thread. It may take longer than *timeout* by a little, but not for ever."""

    def send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:
        """Send an encoded ``Export…ServiceRequest``, within *timeout* seconds. Does not raise."""
        ...

    def flush(self, timeout: float) -> str:
        """Have what was sent, and is held on the way, delivered; returns why not all of it is, "" if it is or nothing is held."""
        ...

    def close(self) -> None:
        """Close what is open; `send` opens it again."""
        ...


def connect(destination: Destination) -> Transport:
    """Return a transport to *destination*. Slow the first time: to be called on the thread that sends."""
    load(_PARTS[destination.protocol])
    with loading():
        if destination.protocol == "grpc":
            from optree_otel.otlp.grpc import GrpcTransport

            return GrpcTransport(destination)
        from optree_otel.otlp.http import HttpTransport

        return HttpTransport(destination)


def lacking(destination: Destination) -> str:
    """Return which library is missing that sends there, and what to do, without loading it; "" if it is there."""
    needed = "opentelemetry" if destination.exporters else _NEEDED[destination.protocol]
    with suppress(ValueError):  # a module that somebody made by hand
        return "" if find_spec(needed) else f"No module named {needed!r}: {REMEDY}"
    return ""


@contextmanager
def loading() -> Generator[None]:
    """Import inside this."""
    with _lock:
        yield


def load(names: tuple[str, ...]) -> None:
    """Import modules, one after the other; a fork has its turn between two of them. One that cannot be imported is passed over."""
    for name in names:
        with _lock, suppress(ImportError):
            import_module(name)
        sleep(0)


def _before() -> None:
    _lock.acquire(timeout=FORK_SECONDS)


def _in_parent() -> None:
    with suppress(RuntimeError):  # it was not to be had in time
        _lock.release()


def after_fork() -> None:
    """Forget, in a forked child, who was loading; to be called before a thread is started there, which may be before our own hook."""
    global _lock, _process  # noqa: PLW0603 - the lock's holder may be a thread that is not here
    if _process != os.getpid():
        _process = os.getpid()
        _lock = new_rlock()


import_module("logging")  # it registers too: who does so later is asked earlier, so before its lock is taken
register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=after_fork)
