"""One file of numbered lines that several processes append to: each line whole, in the order of its number, with no number twice.

The number is given under the same lock as the write, so the order on disk is that of the numbers, whichever process writes. A process
that is killed in the middle of a write leaves a torn last line; the next writer ends it with a newline and goes on, so that it stays to be
seen and damages nothing after it. No writer waits for another for longer than `WAIT_SECONDS` (docs/decisions/006).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from optree._interrupts import RLock, WeakMembers, suppress
from optree._store.files.system import OS, REAL
from optree._syscalls import calls
from optree.errors import BusyError, StoreError

WAIT_SECONDS = 0.25
"""The longest that a call waits for other writers."""
STUCK_SECONDS = 1.0
"""After a wait in vain, no call waits at all for this long."""
_PAUSE = 0.0003
"""Between looks at a lock: short, since a writer that goes on writing leaves it free for a moment only."""
_PIECE = 1 << 20
_TRIES = 8


class LineLog:
    """Appends lines to a file, made if it is missing (0600), in a directory that must be there. Safe for threads, processes and forks.

    `append` does all; ``with log.alone(), log.held(): log.put(line)`` does it in steps.
    """

    def __init__(
        self,
        path: Path,
        numbers: Callable[[bytes], Iterable[int]],
        system: OS = REAL,
        *,
        anew: Callable[[bool], object] = lambda _: None,
    ) -> None:
        """Open the file. *numbers* returns the numbers that a line (without its newline) has used; none for a line it cannot read.

        *anew* is called before the lines of a file that was opened again are given to *numbers*, all from its start: with True if another
        file has the name now, with False in a forked process. Raises `OSError`.
        """
        self.path = path
        self._numbers = numbers
        self._system = system
        self._anew = anew
        self._lock = RLock()
        self._busy = False
        self._stuck_until = 0.0
        self._closed = False
        self._replaced = False
        self._read = 0
        self._tail = 0
        """How many bytes of the last line, which has no newline, were read already."""
        self._latest = 0
        self._fd = system.append(path)
        _logs.add(self)

    @property
    def latest(self) -> int:
        """The highest number that was found or given so far."""
        return self._latest

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other threads of this process off within. Raises `BusyError`."""
        lock, patience = self._lock, self._patience()
        if not lock.acquire(timeout=patience):
            if self._busy or not patience or lock is not self._lock:
                raise self._stuck("another thread")
            self._lock = lock = RLock()  # no thread holds it: an interrupt hit its holder between two steps
            lock.acquire()
        mine = False
        try:
            if self._busy:
                raise BusyError(f"{self.path.name} is being written by what this call interrupts")
            mine = self._busy = True
            yield
        finally:
            if mine:
                if self._closed:
                    self._shut()
                self._busy = False
            lock.release()

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep other processes off within; what they appended is learnt. Inside `alone`. Raises `BusyError`, `OSError`, `StoreError`."""
        try:
            self._lock_file()
            self._learn(last=True)
            yield
        finally:
            if self._fd >= 0:
                self._system.unlock(self._fd)

    def catch_up(self) -> int:
        """Read what other processes appended; returns the highest number there is. Inside `alone`. Raises `OSError`, `StoreError`.

        Where one of them has the file for long, its last line is left for later if that has no newline yet.
        """
        self._opened()
        self._learn(last=False)  # most of a long file is read while others can append
        with suppress(BusyError), self.held():
            pass
        return self._latest

    def put(self, line: bytes) -> None:
        """Append a line. Inside `held`. Raises as `append`."""
        if b"\n" in line:
            raise StoreError(f"{self.path.name}: a line with a line break in it would be two")
        if self._tail:
            self._write(b"\n")
            self._tail = 0
        self._write(line + b"\n")

    def append(self, make: Callable[[int], bytes]) -> int:
        """Append the line that *make* returns for its number, which is the next; returns the number.

        *make* is called with the file locked, and may raise: then nothing is written and the number is not used. Raises `OSError` (what
        was written of the line is taken back where that is possible), `BusyError`, and `StoreError` after `close`.
        """
        with self.alone(), self.held():
            number = self._latest + 1
            self.put(make(number))
            self._latest = number
        return number

    def close(self) -> None:
        """Close the file, or have the thread do it that is at it; the second call does nothing."""
        self._closed = True
        with suppress(BusyError), self.alone():
            pass

    def after_fork(self) -> None:
        """In a forked process: let go of the parent's descriptor, which would keep its lock beyond its death. Another is opened later."""
        self._lock = RLock()
        self._busy = self._replaced = False
        with suppress(OSError):
            self._shut()

    def _shut(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._system.close(fd)

    def _opened(self) -> int:
        """Return the open file; it is opened if it is not, and then known from its start."""
        if self._closed:
            raise StoreError(f"{self.path.name} is closed: open it anew to append to it")
        if self._fd >= 0 and not self._system.is_open(self._fd):  # the program closed it, and may have the number for a file of its own
            self._fd = -1
        if self._fd < 0:
            self._fd = self._system.append(self.path)
            self._read = self._tail = 0
            self._anew(self._replaced)
            self._replaced = False
        return self._fd

    def _lock_file(self) -> None:
        """Lock the file that has the name, which may be another one than before."""
        until = monotonic() + self._patience()
        for _ in range(_TRIES):
            fd = self._opened()
            while not self._system.lock(fd):
                if monotonic() >= until:
                    raise self._stuck("another process")
                sleep(_PAUSE)
            if self._system.is_at(fd, self.path):
                return
            self._replaced = True
            self._shut()
        raise StoreError(f"{self.path} is moved away again and again: nothing is appended to it")

    def _patience(self) -> float:
        return 0.0 if monotonic() < self._stuck_until else WAIT_SECONDS

    def _stuck(self, who: str) -> BusyError:
        if self._patience():
            self._stuck_until = monotonic() + STUCK_SECONDS
        return BusyError(f"{who} has {self.path.name} locked for more than {WAIT_SECONDS} s")

    def _learn(self, *, last: bool) -> None:
        """Take up what has been appended since this process last looked; with *last*, what is behind the last newline is a line too."""
        size = os.fstat(self._fd).st_size
        if size < self._read:
            raise StoreError(f"{self.path} was cut from {self._read} to {size} bytes by somebody else: nothing more is appended to it")
        if self._tail and size > self._read:
            ended = calls.pread(self._fd, 1, self._read) == b"\n"
            self._read += 1 if ended else -self._tail
            self._tail = 0
        torn, at = b"", self._read
        while at < size and (piece := calls.pread(self._fd, min(_PIECE, size - at), at)):
            at += len(piece)
            *lines, torn = (torn + piece).split(b"\n")
            for line in lines:
                self._latest = max(self._latest, 0, *self._numbers(line))
                self._read += len(line) + 1
        if last and torn:
            number = max([0, *self._numbers(torn)])
            if torn.rstrip().endswith(b"}"):  # else it is half an object, whose number is still free
                self._latest = max(self._latest, number)
            self._read += len(torn)
            self._tail = len(torn)

    def _write(self, data: bytes) -> None:
        """Write a line; where the write stops in the middle, cut off the part that was written, so that no reader sees half a line."""
        begun = os.fstat(self._fd).st_size
        try:
            self._system.write_all(self._fd, data)
        except BaseException:  # an interrupt too; a line that is whole by then is learnt from the file
            if begun < os.fstat(self._fd).st_size < begun + len(data):
                self._system.truncate(self._fd, begun)
            raise
        self._read = begun + len(data)


_logs: WeakMembers[LineLog] = WeakMembers()


def _after_fork() -> None:
    for log in list(_logs):
        log.after_fork()


calls.register_at_fork(after_in_child=_after_fork)
