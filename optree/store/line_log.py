"""One file of numbered lines that several processes append to: each line whole, in the order of its number, with no number twice.

The number is given under the same lock as the write, so the order on disk is that of the numbers, whoever writes. A process that is
killed in the middle of a write leaves a torn last line; the next writer ends it with a newline and goes on, so that it stays to be seen
and damages nothing after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

from optree.errors import StoreError
from optree.store.system import OS, REAL

_PIECE = 1 << 20


class LineLog:
    """Appends lines to a file, made if it is missing (0600), in a directory that must be there. Safe for threads and processes."""

    def __init__(self, path: Path, numbers: Callable[[bytes], Iterable[int]], system: OS = REAL) -> None:
        """Open the file. *numbers* returns the numbers that a line (without its newline) has used; none for a line it cannot read.

        Raises `OSError`.
        """
        self.path = path
        self._numbers = numbers
        self._system = system
        self._lock = Lock()
        self._read = 0
        self._latest = 0
        self._fd = system.append(path)

    @property
    def latest(self) -> int:
        """The highest number that was found or given so far."""
        return self._latest

    def catch_up(self) -> int:
        """Read what other processes appended; returns the highest number there is. Raises `OSError`, `StoreError`."""
        with self._lock:
            self._system.lock_waiting(self._open())
            try:
                self._learn()
            finally:
                self._system.unlock(self._fd)
        return self._latest

    def append(self, make: Callable[[int], bytes]) -> int:
        """Append the line that *make* returns for its number, which is the next; returns the number.

        *make* is called with the file locked, and may raise: then nothing is written and the number is not used. Raises `OSError` (what
        was written of the line is taken back where that is possible), and `StoreError` after `close`.
        """
        with self._lock:
            self._system.lock_waiting(self._open())
            try:
                torn = self._learn()
                number = self._latest + 1
                line = make(number)
                if b"\n" in line:
                    raise StoreError(f"{self.path.name}: a line with a line break in it would be two")
                self._write((b"\n" if torn else b"") + line + b"\n")
                self._latest = number
            finally:
                self._system.unlock(self._fd)
        return number

    def close(self) -> None:
        """Close the file; the second call does nothing."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._system.close(fd)

    def _open(self) -> int:
        if self._fd < 0:
            raise StoreError(f"{self.path.name} is closed: open it anew to append to it")
        return self._fd

    def _learn(self) -> bool:
        """Take up what has been appended since this process last looked; True if the file ends in a torn line."""
        size = os.fstat(self._fd).st_size
        if size < self._read:
            raise StoreError(f"{self.path} was cut from {self._read} to {size} bytes by somebody else: nothing more is appended to it")
        torn, at = b"", self._read
        while at < size and (piece := os.pread(self._fd, min(_PIECE, size - at), at)):
            at += len(piece)
            *lines, torn = (torn + piece).split(b"\n")
            for line in lines:
                self._latest = max(self._latest, 0, *self._numbers(line))
        self._read = at - len(torn)
        return bool(torn)

    def _write(self, data: bytes) -> None:
        """Write a line; where that fails in its middle, take back what is there of it, so that no reader sees half a line."""
        begun = os.fstat(self._fd).st_size
        try:
            self._system.write_all(self._fd, data)
        except OSError:
            if os.fstat(self._fd).st_size > begun:
                self._system.truncate(self._fd, begun)
            raise
        self._read = begun + len(data)
