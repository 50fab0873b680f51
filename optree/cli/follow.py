"""Following a running session: the new records of all its writers' journals, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import sleep
from zlib import crc32

from optree import records as r
from optree.errors import FormatError
from optree.store.directory import journals
from optree.store.lock import is_running
from optree.store.reader import agreed_seed, of_another
from optree.store.system import open_regular

POLL_SECONDS = 0.05


class Tail:
    """One journal file, read on from where it was left. It stays open: what was written to a removed file can still be read."""

    def __init__(self, path: Path, after: int) -> None:
        """Open the file; records numbered up to *after* are left out. Raises `FileNotFoundError`."""
        self._path, self._file = path, open_regular(path)
        self._after = after
        self._rest = b""
        self._seed: int | None = None
        self._foreign = False

    def read(self) -> Iterator[r.Record]:
        """Yield the records that came since the last call; a line that does not match its checksum is passed over.

        So is a file that is another session's, or another writer's.
        """
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if self._seed is None:
                self._begin(line)
            elif not self._foreign and r.check(line, self._seed) and (record := _parsed(line)) is not None and record.n > self._after:
                yield record

    def _begin(self, line: bytes) -> None:
        """Find out from the first line, or without it, how the others are checked."""
        sound = r.check(line, 0)
        header = _parsed(line) if sound else None
        self._seed = crc32(line + b"\n") if sound else agreed_seed(self._path)
        self._foreign |= bool(of_another(self._path, line, header if isinstance(header, r.Header) else None, self._seed))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def follow(live: Path, vector: Mapping[str, int]) -> Iterator[list[r.Record]]:
    """Yield what is new, as it comes, until the root session ends or its process has gone.

    *vector* says, per writer, which records are known already. Lists may be empty: nothing came within `POLL_SECONDS`.
    """
    tails: dict[Path, Tail] = {}
    try:
        while True:
            lives = is_running(live)  # asked first: what a process wrote before it went is read below
            found = _poll(live, tails, vector)
            yield found
            if not lives or any(isinstance(record, r.SessionEnd) and not record.path for record in found):
                yield _poll(live, tails, vector)
                return
            sleep(POLL_SECONDS)
    finally:
        for tail in tails.values():
            tail.close()


def _poll(live: Path, tails: dict[Path, Tail], vector: Mapping[str, int]) -> list[r.Record]:
    for path in journals(live):
        if path not in tails:
            try:
                tails[path] = Tail(path, vector.get(path.stem.split("-")[1], 0))
            except FileNotFoundError:
                continue
    return [record for tail in tails.values() for record in tail.read()]


def _parsed(line: bytes) -> r.Record | None:
    try:
        return r.parse(line)
    except FormatError:
        return None
