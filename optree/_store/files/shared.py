"""A few bytes that several processes change by turns: a small file of fixed size, under its lock.

It has two places, which are written by turns, each with a number and a checksum: a write that a kill has cut off is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from errno import EAGAIN, EBADMSG, EFBIG
from io import FileIO
from pathlib import Path
from time import monotonic, sleep
from zlib import crc32

from optree._interrupts import pass_on, suppress
from optree._store.files.system import OS, REAL

PLACE_BYTES = 1 << 15
LOCK_SECONDS = 1.0
"""How long a change waits for others' changes, each of which takes some 0.1 ms."""
_PAUSE_SECONDS = 0.0005
_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9]{16}) ([0-9]{8})\n")
_HEAD_BYTES = 35


class SharedBytes:
    """The file at *path*, there or not. Methods raise `OSError`."""

    def __init__(self, path: Path, system: OS = REAL) -> None:
        self.path, self._os = path, system

    def create(self, data: bytes) -> None:
        """Make the file, part of which may be left if that fails; a disk that is full later has room for all changes."""
        self._os.make_directory(self.path.parent)
        with self._os.open_shared(self.path, new=True) as file:
            self._os.write_all(file.fileno(), _packed(1, data).ljust(PLACE_BYTES) + b" " * PLACE_BYTES)

    def change(self, function: Callable[[bytes], bytes], seconds: float = LOCK_SECONDS) -> None:
        """Replace the content by what *function* returns for it; where it raises, all stays as it is."""
        until = monotonic() + seconds
        _in_one_process(lambda: self._changed(function, until))

    def _changed(self, function: Callable[[bytes], bytes], until: float) -> bool:
        """Replace it once; False if the file was removed or replaced before it was locked."""
        process = os.getpid()
        with self._os.open_shared(self.path) as file:
            fd = file.fileno()
            while not self._os.lock(fd):
                if monotonic() >= until:
                    raise BlockingIOError(EAGAIN, "another process has it locked", str(self.path))
                sleep(_PAUSE_SECONDS)
            try:
                if not self._os.is_at(fd, self.path):
                    return False
                number, data = self._read(file)
                changed = function(data)
                if changed != data:
                    number += 1
                    self._os.rewrite(fd, _packed(number, changed), PLACE_BYTES * (number % 2 == 0))
                return True
            finally:
                if os.getpid() == process:
                    self._os.unlock(fd)  # of a fork's copy too, which closing would leave locked

    def read(self) -> bytes:
        """Return the content."""
        content: list[bytes] = []

        def read() -> bool:
            with self._os.open_shared(self.path) as file:
                content[:] = [self._read(file)[1]]
            return True

        _in_one_process(read)
        return content[0]

    def _read(self, file: FileIO) -> tuple[int, bytes]:
        data = self._os.pread(file.fileno(), 2 * PLACE_BYTES, 0)
        places = [place for start in (0, PLACE_BYTES) if (place := _unpacked(data[start : start + PLACE_BYTES]))]
        if not places:
            raise OSError(EBADMSG, "it is damaged", str(self.path))
        return max(places)

    def remove(self) -> None:
        """Remove the file, and its directory if nothing else is in it; where that cannot be, they stay."""
        with suppress(OSError):
            self._os.unlink(self.path)
        with suppress(OSError):
            self._os.remove_directory(self.path.parent)


def _in_one_process(work: Callable[[], bool]) -> None:
    """Do some work until it is True; once more in a child that a signal's handler forked meanwhile: the open file is its parent's."""
    done = False
    while not done:
        process = os.getpid()
        try:
            done = work() and os.getpid() == process
        except OSError as error:
            pass_on(error)
            if os.getpid() == process:
                raise


def _packed(number: int, data: bytes) -> bytes:
    if len(data) > PLACE_BYTES - _HEAD_BYTES:
        raise OSError(EFBIG, "more processes share it than there is room for")
    body = b"%016d %08d\n%b" % (number, len(data), data)
    return b"%08x %b" % (crc32(body), body)


def _unpacked(place: bytes) -> tuple[int, bytes] | None:
    """Return the number and the bytes of a place; None of one that was not written whole."""
    head = _HEAD.match(place)
    if head is None:
        return None
    end = _HEAD_BYTES + int(head[3])
    is_whole = int(head[1], 16) == crc32(place[9:end]) and len(place) >= end
    return (int(head[2]), place[_HEAD_BYTES:end]) if is_whole else None
