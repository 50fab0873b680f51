"""HTTP connections whose answers have a deadline.

A socket's timeout is for one read: a server that sends a byte each second can hold a reader for ever. Here the timeout that urllib3 sets
for the answer is for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from socket import socket
from time import monotonic
from typing import Any, cast

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection


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
