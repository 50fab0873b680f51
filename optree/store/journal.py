"""The journal: one writer's append-only file, valid JSONL, one checksum a line.

A journal never raises for what the disk does: what it cannot write it counts, and it tries a new segment at most every few seconds,
which begins with a `gap` record that says how much is missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import Literal

from optree import records as r
from optree import speed
from optree.errors import StoreError
from optree.store.directory import journals
from optree.store.system import OS, REAL
from optree.syscalls import calls

WRITER_SPAN = 1_000_000
"""Turn and op numbers that writer k gives in sessions it does not own begin at k times this."""
RETRY_SECONDS = 2.0
Sync = Literal["write", "interval", "turn", "op"]


class Journal:
    """Appends records to a file of its own in *live*; a taker of the stream, so one thread at a time is in it."""

    __slots__ = (
        *("live", "txn", "sync_level", "last", "lost", "ordinal", "path", "fd", "problem", "whole", "dirty", "_syncs", "_ready", "_os"),
        *("_write", "_version", "_retry_at", "_unsaid", "_unsynced", "_claimed", "_seed"),
    )

    def __init__(
        self,
        live: Path,
        txn: str,
        version: str,
        *,
        ordinal: int | None,
        above: int = 0,
        first: int = 1,
        sync: Sync = "interval",
        system: OS = REAL,
        lazy: bool = False,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the file; *ordinal* 0 is the owner, None takes the next free number above *above*. Raises `OSError`.

        With *lazy* it stays empty until the first record. *ready* is called before another file is made, and may raise `OSError`.
        """
        self.live = live
        self.txn = txn
        self.sync_level: Sync = sync
        self._syncs = sync in ("turn", "op")
        self.problem = ""
        self.whole = True
        """False while there are records that the disk has not taken."""
        self.dirty = False
        self._unsynced: OSError | None = None
        self.last = first - 1
        """Number of the last record that is with the operating system, or that it refused."""
        self.lost = 0
        """Records that the disk did not take."""
        self._ready = ready
        self._os = system
        self._write = system.write
        self._version = version
        self._retry_at = 0.0
        self._unsaid = 0
        system.make_directory(live)
        self.ordinal, self.path, self.fd = self._claim(ordinal, above)
        self._claimed = self._seed = -1
        if lazy:
            self._claimed, self.fd = self.fd, -1
        else:
            self._begin()

    @property
    def base(self) -> int:
        """What this writer adds to numbers in sessions it does not own; 0 for the owner."""
        return self.ordinal * WRITER_SPAN

    def take(self, batch: list[r.Record]) -> None:
        """Write records, all in one call to the operating system."""
        if self._unsynced is not None:
            self._poison(self._unsynced, [])
        if self.fd < 0 and not self._recover(batch):
            return
        if len(batch) == 1 and not self.ordinal:
            batch[0].n = self.last + 1
            data = r.line(batch[0], self._seed)
        else:
            data = b"".join([self._line(record, n, self._seed) for n, record in enumerate(batch, self.last + 1)])
        try:
            if (done := self._write(self.fd, data)) < len(data):
                self._os.write_all(self.fd, data[done:])
        except OSError as error:
            self._poison(error, batch)
            return
        self.last += len(batch)
        self.dirty = True
        if self._syncs:
            self._sync_structure(batch)

    def sync(self) -> bool:
        """Wait until what was written is on disk; False, and a new segment from the next record on, if the disk says no."""
        if self.fd < 0 or self._unsynced is not None:
            return self.whole and not self.dirty
        self.dirty = False
        try:
            self._os.datasync(self.fd)
        except OSError as error:  # the pages may be marked clean though they are lost: never use this file again
            self._unsynced, self.dirty = error, True
            self.problem = f"{self.path.name}: {error.strerror or error}"
            return False
        return True

    def rest(self) -> None:
        """Close the file, which is removed since all of it is saved elsewhere; the next record begins a new one."""
        self._close_files()
        self.dirty, self._unsynced, self._unsaid = False, None, 0
        self.whole, self._retry_at = True, 0.0

    def is_there(self) -> bool:
        """Tell whether the file is still where it was made."""
        return self._os.is_at(self.fd, self.path)

    def renew(self, gone: int) -> None:
        """Begin a new file at once in place of one that somebody removed, and with it *gone* records that are in no other."""
        self._close_files()
        self.dirty, self._unsynced, self._retry_at = False, None, 0.0
        self.lost += gone
        self._unsaid += gone
        self.take([])

    def close(self) -> None:
        """Close the file; its lock goes with it. One that was never begun is removed."""
        if self._claimed >= 0:
            with contextlib.suppress(OSError):
                self._os.unlink(self.path)
        self.forget()

    def forget(self) -> None:
        """In a forked child: close this process's copy of the descriptor; the parent's lock stays."""
        self._close_files()
        self._retry_at = float("inf")

    def _close_files(self) -> None:
        fds, self.fd, self._claimed = (self.fd, self._claimed), -1, -1
        for fd in fds:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    self._os.close(fd)

    def _line(self, record: r.Record, number: int, seed: int) -> bytes:
        record.n = number
        if self.ordinal:
            _unowned(record)
        return r.line(record, seed)

    def _claim(self, ordinal: int | None, above: int = 0) -> tuple[int, Path, int]:
        writers: dict[int, int] = {}
        for path in journals(self.live):
            number, segment = (int(part) for part in path.stem.split("-")[1:3])
            writers[number] = max(writers.get(number, 0), segment)
        number = max([above, *writers]) + 1 if ordinal is None else ordinal
        segment = writers.get(number, 0) + 1
        for _ in range(10_000):
            path = self.live / f"j-{number:04d}-{segment:06d}.jsonl"
            with contextlib.suppress(FileExistsError):
                fd = self._os.create(path)
                if self._os.lock(fd) and self._os.is_at(fd, path):
                    return number, path, fd
                self._os.close(fd)  # a process that settles the session was quicker, and may remove it
                self._os.make_directory(self.live)
            if ordinal is None:
                number += 1
            else:
                segment += 1
        raise StoreError(f"no free journal name in {self.live}: remove old files")

    def _begin(self) -> None:
        """Write the header."""
        try:
            self._seed = self._head()
        except BaseException:
            self._close_files()
            raise

    def _head(self) -> int:
        segment = int(self.path.stem.rpartition("-")[2])
        header = r.Header(
            r.FORMAT, r.FORMAT, self.txn, f"{self.ordinal:04d}", segment, self.last + 1, time() * 1e3, self._version,
            os.getpid(), calls.nodename(), self.base,
        )  # fmt: skip
        written, seed = r.header_line(header)
        self._os.write_all(self.fd, written)
        self._os.sync_directory(self.live)
        return seed

    def _poison(self, error: OSError, batch: list[r.Record]) -> None:
        """Give the file up. Numbers of the batch are not given again: part of it may stand in the file."""
        self.problem = f"{self.path.name}: {error.strerror or error}"
        gaps = [record.dropped for record in batch if isinstance(record, r.Gap)]
        self.lost += len(batch) - len(gaps)
        self._unsaid += len(batch) - len(gaps) + sum(gaps)
        self.last += len(batch)
        self._close_files()
        self.whole, self._unsynced = False, None
        self._retry_at = monotonic() + RETRY_SECONDS

    def _recover(self, batch: list[r.Record]) -> bool:
        """Go on in a new segment once the disk takes one again; what came meanwhile is counted in a gap."""
        if monotonic() >= self._retry_at:
            try:
                if self._claimed >= 0:
                    self.fd, self._claimed = self._claimed, -1
                else:
                    self._os.make_directory(self.live)
                    self._ready()
                    _, self.path, self.fd = self._claim(self.ordinal)
                self._begin()
            except OSError as error:
                self.problem = f"{self.live.name}: {error.strerror or error}"
                self._close_files()
                self._retry_at = monotonic() + RETRY_SECONDS
            else:
                if self._unsaid:
                    batch.insert(0, r.Gap(time() * 1e3, self._unsaid, self.problem))
                    self._unsaid = 0
                self.whole = True
                return True
        self.whole = False
        self.lost += len(batch)
        self._unsaid += len(batch)
        return False

    def _sync_structure(self, batch: list[r.Record]) -> None:
        ends = (r.TurnEnd, r.SessionEnd) if self.sync_level == "turn" else (r.TurnEnd, r.SessionEnd, r.OpEnd, r.Accounted)
        if any(isinstance(record, ends) for record in batch):
            self.sync()


def _unowned(record: r.Record) -> None:
    """Mark positions as 'at the end': another process may hold the same list."""
    if isinstance(record, r.Entries):
        record.logs_at = record.chunks_at = r.AT_THE_END
        record.text_at = r.AT_THE_END if record.text_at >= 0 else r.BESIDE
    elif isinstance(record, r.MessageAdded):
        record.at = -1


speed.prepare_journal(Journal)
