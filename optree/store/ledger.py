"""The ledger: accounting entries of all sessions, one JSON line each, each exactly once, appended by any number of processes."""

from __future__ import annotations

from errno import EAGAIN
from pathlib import Path
from typing import Any

import msgspec

from optree.nodes import SessionNode
from optree.store import lock
from optree.store.system import OS, REAL
from optree.tree.walk import flatten
from optree.values import encode, is_object


class Ledger:
    """Appends to one file, under its lock, in one write that begins at a line's start."""

    def __init__(self, path: Path, system: OS = REAL) -> None:
        self.path = path
        self._os = system

    def append(self, session: SessionNode, *, again: bool = False, seconds: float | None = None) -> int:
        """Append the entries of a session's whole tree; returns how many. Raises `OSError`; with *seconds*, if its lock takes longer.

        With *again* (a resumed session) the file is searched first, and what is there already is not written a second time.
        """
        entries = flatten(session).accounting
        if not entries:
            return 0
        self._os.make_directory(self.path.parent)
        fd = self._locked(seconds)
        try:
            there = self._there(session.origin_txn_id) if again else set[str]()
            new = [entry for entry in entries if entry["id"] not in there]
            text = b"".join(encode(entry) + b"\n" for entry in new)
            if text:
                self._os.write_all(fd, text if self._os.ends_whole(fd) else b"\n" + text)
                self._os.datasync(fd)
            return len(new)
        finally:
            self._os.close(fd)

    def read(self) -> list[dict[str, Any]]:
        """Return all entries; lines that are none are passed over."""
        return [entry for line in self._lines() if (entry := _entry(line)) is not None]

    def _locked(self, seconds: float | None) -> int:
        """Return the open file with its lock."""
        if seconds is not None:
            fd = lock.take(self.path, self._os, seconds)
            if fd < 0:
                raise BlockingIOError(EAGAIN, "another process is writing to the ledger", str(self.path))
            return fd
        fd = self._os.append(self.path)
        try:
            self._os.lock_waiting(fd)
        except BaseException:
            self._os.close(fd)
            raise
        return fd

    def _there(self, txn: str) -> set[str]:
        """Return the ids of the session's entries that are there. The file may be large: only its lines are looked at."""
        data, mark, at = self._os.read(self.path), f'"{txn}'.encode(), 0
        found: set[str] = set()
        while (at := data.find(mark, at)) >= 0:
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            at = end if end >= 0 else len(data)
            entry = _entry(data[begin:at])
            if entry is not None and "id" in entry:
                found.add(entry["id"])
        return found

    def _lines(self) -> list[bytes]:
        try:
            return self._os.read(self.path).splitlines()
        except FileNotFoundError:
            return []


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return entry if is_object(entry) else None
