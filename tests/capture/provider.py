"""A provider on this machine that answers as it is told: what SDKs call in these tests."""

import contextlib
import json
import socket
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS = "text/event-stream"
JSON = "application/json"
AWS_EVENTS = "application/vnd.amazon.eventstream"


class Reply:
    """One answer: its *pieces* are sent one by one; with *short* of the bytes that its head promises missing."""

    def __init__(self, *pieces, status=200, kind=JSON, headers=None, short=0, hold=None):
        self.pieces = [piece if isinstance(piece, bytes) else json.dumps(piece).encode() for piece in pieces]
        self.status, self.kind, self.headers, self.short = status, kind, headers or {}, short
        self.hold = hold
        """Waited for ahead of the last piece."""


def events(*values, done=True, names=False):
    """Return a reply of server-sent events."""
    name = (lambda value: b"event: " + value["type"].encode() + b"\n") if names else lambda _value: b""
    pieces = [name(value) + b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
    return Reply(*pieces, *([b"data: [DONE]\n\n"] if done else []), kind=EVENTS)


def aws_event(kind, payload, message_type="event"):
    """Return an event as AWS frames it."""
    name = ":exception-type" if message_type == "exception" else ":event-type"
    told = {name: kind, ":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode() for key, value in told.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    framed = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return framed + struct.pack("!I", zlib.crc32(framed))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args):
        super().__init__(*args)
        self.open = {}

    def process_request_thread(self, request, client_address):
        """Serve a connection, for as long as its client keeps it."""
        self.open[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self.open[request]

    def server_close(self):
        """End all connections, and the threads that serve them: a process with threads is warned when it forks."""
        super().server_close()
        for request, thread in list(self.open.items()):
            with contextlib.suppress(OSError):  # the client was quicker
                request.shutdown(socket.SHUT_RDWR)
            thread.join(10.0)


class Provider:
    """Gives its replies in turn, the last one again and again; keeps what it was sent."""

    def __init__(self):
        self.replies, self.requests = [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *said):
                """Say nothing."""

            def do_GET(self):
                if "/responses/" in self.path:
                    self.do_POST()
                else:
                    self.send_error(501)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.requests.append((self.path, body))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                size = sum(map(len, reply.pieces)) + reply.short
                self.send_response(reply.status)
                self.send_header("content-type", reply.kind)
                self.send_header("content-length", str(size))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for at, piece in enumerate(reply.pieces):
                        if reply.hold is not None and at == len(reply.pieces) - 1:
                            reply.hold.wait(30)
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:  # the caller wants no more
                    self.close_connection = True
                if reply.short:
                    self.close_connection = True

        Handler.do_DELETE = Handler.do_GET
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def says(self, *replies):
        """Set the replies to come."""
        self.replies = list(replies)

    def close(self):
        """End it."""
        self.server.shutdown()
        self.server.server_close()
