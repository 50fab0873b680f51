"""A collector that only says yes: a process of its own that answers 200 to every OTLP request over HTTP.

Run as ``python -m benchmarks.sink`` it prints its port, and ends when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Generator

from benchmarks.measure import ROOT, child_environ

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_YES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


@contextlib.contextmanager
def sink() -> Generator[str, None, None]:
    """Run one; yields its endpoint."""
    command = [sys.executable, "-m", "benchmarks.sink"]
    with subprocess.Popen(command, env=child_environ(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process that was started with pipes has none")
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def _serve(connection: socket.socket) -> None:
    buffer = bytearray(1 << 16)
    with connection, contextlib.suppress(ConnectionError):
        while head := connection.recv(1 << 16):
            while b"\r\n\r\n" not in head:
                head += connection.recv(1 << 16)
            head, _, body = head.partition(b"\r\n\r\n")
            found = _LENGTH.search(head)
            left = (int(found[1]) if found else 0) - len(body)
            while left > 0:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            connection.sendall(_YES)


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def main() -> None:
    """Serve until nobody wants it."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
