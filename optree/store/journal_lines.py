"""The lines of a journal, as they are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time

from optree import records as r
from optree.syscalls import calls

_AT_ONCE = 256


def put_at_the_end(record: r.Record) -> None:
    """Mark positions as 'at the end': another process may hold the same list."""
    if isinstance(record, r.Entries):
        record.logs_at = record.chunks_at = r.AT_THE_END
        record.text_at = r.AT_THE_END if record.text_at >= 0 else r.BESIDE
    elif isinstance(record, r.MessageAdded):
        record.at = -1


def numbered_lines(batch: Sequence[r.Record], last: int, seed: int, *, at_the_end: bool) -> bytes:
    """Return the lines of records, numbered from *last* + 1 on; an interrupt may have put one twice: each time it has another number."""
    lines: list[bytes] = []
    for number, record in enumerate(batch, last + 1):
        if at_the_end and not record.n:  # else it was tried before
            put_at_the_end(record)
        record.n = number
        lines.append(r.line(record, seed))
    return b"".join(lines)


def header_line(path: Path, txn: str, writer: int, first: int, version: str, base: int) -> tuple[bytes, int]:
    """Return a journal's first line, and its sum, with which those of all others begin; *first* is the number of its first record."""
    segment = int(path.stem.rpartition("-")[2])
    pid, host = os.getpid(), calls.nodename()
    return r.header_line(r.Header(r.FORMAT, r.FORMAT, txn, f"{writer:04d}", segment, first, time() * 1e3, version, pid, host, base))


def write_held(held: deque[r.Record], head: bytes, seed: int, write: Callable[[bytes], object]) -> None:
    """Write records that have their numbers, in parts, behind a *head*; each is held until it is written. Raises what *write* does."""
    most = _AT_ONCE
    while held:
        part = [held[place] for place in range(min(most, len(held)))]
        try:
            lines = b"".join([head, *(r.line(record, seed) for record in part)])
        except MemoryError:
            if most == 1:
                raise
            most = 1
            continue
        write(lines)
        head = b""
        for _ in part:
            held.popleft()
