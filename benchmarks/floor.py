"""The floor: the least pure Python that does the logical work. What is compared with it cannot be faster and do the same.

Each event gets a time and is kept in memory as a msgspec Struct that the collector does not track. With a journal, the caller also encodes
it as msgpack into a buffer, and writes that once it holds 64 KiB. No checks, caps, locks, ids, totals or care for errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import time_ns
from zlib import crc32

import msgspec

BUFFER_BYTES = 1 << 16


class Event(msgspec.Struct, gc=False, array_like=True, tag=True):
    """What all events have: the op's number, and the time in nanoseconds."""

    op: int
    ts: int


class Begin(Event):
    """An op began."""

    turn: int
    kind: str
    name: str


class Log(Event):
    """A log line."""

    severity: str
    message: str
    attributes: dict[str, object] | None = None


class Chunk(Event):
    """A piece of reasoning."""

    text: str


class Account(Event):
    """What an attempt cost."""

    model: str
    sent: int
    received: int
    cached: int
    cost: float
    latency: float


class End(Event):
    """An op ended."""

    status: str


class FloorJournal:
    """A file that is appended to when the buffer is full."""

    __slots__ = ("buffer", "encode", "fd")

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.buffer = bytearray()
        self.encode = msgspec.msgpack.Encoder().encode_into

    def write(self) -> None:
        """Hand what is in the buffer to the operating system."""
        os.write(self.fd, self.buffer)
        self.buffer.clear()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.write()
        os.close(self.fd)


class MemoryOp:
    """Handle and node in one."""

    __slots__ = ("accounts", "begun", "chunks", "ended", "kind", "logs", "name", "number", "status", "turn")

    def __init__(self, number: int, turn: int, kind: str, name: str) -> None:
        self.number = number
        self.turn = turn
        self.kind = kind
        self.name = name
        self.begun = time_ns()
        self.ended = 0
        self.status = ""
        self.logs: list[Log] = []
        self.chunks: list[Chunk] = []
        self.accounts: list[Account] = []

    def log(self, message: str, severity: str = "VRB", attributes: dict[str, object] | None = None) -> None:
        """Append a log line."""
        self.logs.append(Log(self.number, time_ns(), severity, message, attributes))

    def think(self, text: str) -> None:
        """Append a piece of reasoning."""
        self.chunks.append(Chunk(self.number, time_ns(), text))

    def account(self, model: str, sent: int, received: int, cached: int, cost: float, latency: float) -> None:
        """Append what an attempt cost."""
        self.accounts.append(Account(self.number, time_ns(), model, sent, received, cached, cost, latency))

    def end(self, status: str = "ok") -> None:
        """End the op."""
        self.ended = time_ns()
        self.status = status


class JournalOp(MemoryOp):
    """The same, and each event in the journal, encoded by the caller."""

    __slots__ = ("buffer", "encode", "journal")

    def __init__(self, number: int, turn: int, kind: str, name: str, journal: FloorJournal) -> None:
        MemoryOp.__init__(self, number, turn, kind, name)
        self.journal = journal
        self.encode = journal.encode
        self.buffer = journal.buffer
        journal.encode(Begin(number, self.begun, turn, kind, name), journal.buffer, -1)

    def log(self, message: str, severity: str = "VRB", attributes: dict[str, object] | None = None) -> None:
        """Append a log line."""
        event = Log(self.number, time_ns(), severity, message, attributes)
        self.logs.append(event)
        self.encode(event, self.buffer, -1)
        if len(self.buffer) > BUFFER_BYTES:
            self.journal.write()

    def think(self, text: str) -> None:
        """Append a piece of reasoning."""
        event = Chunk(self.number, time_ns(), text)
        self.chunks.append(event)
        self.encode(event, self.buffer, -1)
        if len(self.buffer) > BUFFER_BYTES:
            self.journal.write()

    def account(self, model: str, sent: int, received: int, cached: int, cost: float, latency: float) -> None:
        """Append what an attempt cost."""
        event = Account(self.number, time_ns(), model, sent, received, cached, cost, latency)
        self.accounts.append(event)
        self.encode(event, self.buffer, -1)
        if len(self.buffer) > BUFFER_BYTES:
            self.journal.write()

    def end(self, status: str = "ok") -> None:
        """End the op."""
        self.ended = now = time_ns()
        self.status = status
        self.encode(End(self.number, now, status), self.buffer, -1)


class ThroughOp(MemoryOp):
    """The floor of what optree promises: structure as JSON lines with a checksum, written before the call returns; log lines as above."""

    __slots__ = ("buffer", "encode", "journal")

    def __init__(self, number: int, turn: int, kind: str, name: str, journal: FloorJournal) -> None:
        MemoryOp.__init__(self, number, turn, kind, name)
        self.journal = journal
        self.encode = journal.encode
        self.buffer = journal.buffer
        _write_line(journal.fd, Begin(number, self.begun, turn, kind, name))

    log = JournalOp.log
    think = JournalOp.think

    def account(self, model: str, sent: int, received: int, cached: int, cost: float, latency: float) -> None:
        """Append what an attempt cost."""
        event = Account(self.number, time_ns(), model, sent, received, cached, cost, latency)
        self.accounts.append(event)
        _write_line(self.journal.fd, event)

    def end(self, status: str = "ok") -> None:
        """End the op."""
        self.ended = now = time_ns()
        self.status = status
        _write_line(self.journal.fd, End(self.number, now, status))


_json = msgspec.json.Encoder().encode


def _write_line(fd: int, event: Event) -> None:
    line = _json(event)
    os.write(fd, b'%b,"c":"%08x"}\n' % (line, crc32(line)))
