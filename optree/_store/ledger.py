"""The ledger: accounting entries of all sessions, one JSON line each, each exactly once, appended by any number of processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from errno import EAGAIN
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from optree._nodes import SessionNode, is_placeholder
from optree._records import check, is_summed, summed
from optree._store.files import lock
from optree._store.files.system import OS, REAL
from optree._tree.totals import stored_parts
from optree._tree.walk import flatten
from optree._values import encode, is_object, object_of

_NAMED = re.compile(rb'\{"id":"[^"\\]+"')


class Book(Struct):
    """What a ledger holds."""

    entries: list[dict[str, Any]] = []
    repeated: int = 0
    """Lines that repeat another line, or are the first part of one, as a kill leaves it: the session was billed once more."""
    conflicting: list[tuple[dict[str, Any], dict[str, Any]]] = []
    """Pairs of different lines with the same session and id: the earlier, which alone is in *entries*, and the later."""
    unreadable: list[int] = []
    """The numbers of lines that are not a JSON object, or whose checksum is wrong; lines count from 1."""


class Ledger:
    """Appends to one file, under its lock, in one write that begins at a line's start."""

    def __init__(self, path: Path, system: OS = REAL) -> None:
        self.path = path
        self.system = system

    def append(self, session: SessionNode, *, again: bool = False, imported: bool = False, seconds: float | None = None) -> int:
        """Append the entries of a session's whole tree; returns how many. Raises `OSError`; with *seconds*, if its lock takes longer.

        With *again* (a resumed session) the file is searched first, and what is there already is not written a second time. With
        *imported* neither is what a line without an id says, as the original ai-agent writes them.
        """
        bill = self.bill(session, again=again, imported=imported)
        return self.append_all([bill], seconds) if bill.lines else 0

    def bill(self, session: SessionNode, *, again: bool, imported: bool = False) -> Bill:
        """Return the entries of a session's whole tree, to be appended with others; the rest as of `append`."""
        entries = flatten(session).accounting
        return Bill(self, session.origin_txn_id, entries, [summed(encode(entry)[:-1]) for entry in entries], again, imported)

    def append_all(self, bills: Sequence[Bill], seconds: float | None = None) -> int:
        """Append what several sessions have, in one write; returns how many entries. Raises as `append`; part of it may be there then."""
        self.system.make_directory(self.path.parent)
        fd = self._locked(seconds)
        try:
            new = [line for bill in bills for line in self._new(bill)]
            if new:
                text = b"".join(new)
                self._write(fd, text if self.system.ends_whole(fd) else b"\n" + text)
            self.system.datasync(fd)
            self.system.sync_name(self.path)
            return len(new)
        finally:
            self.system.close(fd)

    def _write(self, fd: int, text: bytes) -> None:
        """Write lines to the locked file; where a write stops in the middle, cut off the part that was written: no line stays torn."""
        begun = os.fstat(fd).st_size
        try:
            self.system.write_all(fd, text)
        except OSError:
            if begun < os.fstat(fd).st_size < begun + len(text):
                self.system.truncate(fd, begun)
            raise

    def _new(self, bill: Bill) -> list[bytes]:
        """Return the lines that are not there yet; those that are go to the disk with them, again."""
        if not (bill.again or bill.imported):
            return bill.lines
        present = self._places(bill.txn) if bill.again else dict[str, tuple[int, int]]()
        if present:  # an earlier try may have failed, or its process have died, before they were on the disk
            self.system.write_again(self.path, _together(present.values()))
        billed = self._billed() if bill.imported else Bare()
        every = zip(bill.entries, bill.lines, strict=True)
        return [line for entry, line in every if entry["id"] not in present and not billed.claim(entry)]

    def read(self) -> list[dict[str, Any]]:
        """Return all entries, each once; other lines are passed over."""
        return self.book().entries

    def book(self) -> Book:
        """Return all entries, each once.

        A line repeats another if it has its session and id and says the same; without an id, as the original's, if it has its bytes.
        The placeholder for a call of which nothing was known yet is replaced by any other of the call.
        """
        book, seen, called = Book(), dict[object, dict[str, Any]](), set[tuple[object, str]]()
        lines = self._lines()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = _entry(line)
            if entry is None:
                book.unreadable.append(number)
                continue
            key = line.strip() if is_bare(entry) else (_plain(entry.get("originTxnId")), entry["id"])
            first = seen.setdefault(key, entry)
            if first is entry:
                book.entries.append(entry)
                made_again = entry.get("retried") is True and entry.get("status") == "failed"
                if not is_bare(entry) and not is_placeholder(entry["id"]) and not made_again:
                    called.add((_plain(entry.get("originTxnId")), entry["id"].rpartition("#")[0]))
            elif first == entry:
                book.repeated += 1
            else:
                book.conflicting.append((first, entry))
        if halves := _halves(lines, book.unreadable):
            book.unreadable = [number for number in book.unreadable if number not in halves]
            book.repeated += len(halves)
        book.entries = [entry for entry in book.entries if not _is_replaced(entry, called)]
        return book

    def _locked(self, seconds: float | None) -> int:
        """Return the open file with its lock."""
        if seconds is not None:
            fd = lock.take(self.path, self.system, seconds, opened=self.system.append)
            if fd < 0:
                raise BlockingIOError(EAGAIN, "another process is writing to the ledger", str(self.path))
            return fd
        while True:
            fd = self.system.append(self.path)
            try:
                self.system.lock_waiting(fd)
                if self.system.is_at(fd, self.path):  # else the file was replaced or removed meanwhile
                    return fd
            except BaseException:
                self.system.close(fd)
                raise
            self.system.close(fd)

    def _places(self, txn: str) -> dict[str, tuple[int, int]]:
        """Return the ids of the session's entries that are there, with the place of each line and of the line breaks around it.

        The file may be large: only the session's lines are looked at.
        """
        data, mark, at = self.system.read(self.path), f'"{txn}'.encode(), 0
        places: dict[str, tuple[int, int]] = {}
        while (at := data.find(mark, at)) >= 0:
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            at = end if end >= 0 else len(data)
            entry = _entry(data[begin:at])
            if entry is not None and not is_bare(entry) and entry.get("originTxnId") == txn:
                places[entry["id"]] = max(0, begin - 1), min(at + 1, len(data))
        return places

    def _billed(self) -> Bare:
        """Return the entries of lines without an id; lines that are the same byte by byte are of one call."""
        lines = dict.fromkeys(line.strip() for line in self._lines() if b'"id":' not in line)
        return Bare(entry for line in lines if (entry := _entry(line)) is not None)

    def _lines(self) -> list[bytes]:
        try:
            return self.system.read(self.path).split(b"\n")
        except FileNotFoundError:
            return []


class Bill(Struct):
    """What a session has to be billed for, with others of the same ledger (`optree._background.Shared`)."""

    ledger: Ledger
    txn: str
    entries: list[dict[str, Any]]
    lines: list[bytes]
    """Each entry as a line."""
    again: bool = False
    imported: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is the same for all bills of a ledger."""
        return Bill, id(self.ledger.system), self.ledger.path

    def do(self, same: Sequence[Bill]) -> None:
        """Append them all. Raises `OSError`."""
        self.ledger.append_all(same)


class Bare:
    """Entries of lines without an id, as the original ai-agent writes them: each is the bill of one entry that says the same."""

    def __init__(self, entries: Iterable[dict[str, Any]] = ()) -> None:
        self._left: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for entry in entries:
            self._left.setdefault(_facts(entry, entry.get("txnId") or entry.get("originTxnId")), []).append(entry)

    def claim(self, entry: dict[str, Any]) -> bool:
        """Remove a line that is the bill of this entry; False if there is none left. A line may lack the sub-agent's session."""
        for txn in (entry.get("txnId"), entry.get("originTxnId"), None) if self._left else ():
            if matches := self._left.get(_facts(entry, txn)):
                matches.pop(0)
                return True
        return False

    def left(self) -> list[dict[str, Any]]:
        """Return the entries that were not claimed."""
        return [entry for entries in self._left.values() for entry in entries]


def is_bare(entry: dict[str, Any]) -> bool:
    """Tell whether an entry has no id."""
    return not isinstance(entry.get("id"), str)


def _is_replaced(entry: dict[str, Any], called: set[tuple[object, str]]) -> bool:
    """Tell whether an entry is the placeholder for a call that has others; *called* are those that have, as sessions and ops' ids."""
    if is_bare(entry) or not is_placeholder(entry["id"]):
        return False
    return (_plain(entry.get("originTxnId")), entry["id"].rpartition("#")[0]) in called


def _together(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places in a file, in their order, with those as one that touch each other."""
    merged: list[tuple[int, int]] = []
    for begin, end in places:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged


def _facts(entry: dict[str, Any], txn: Any) -> tuple[object, ...]:
    """Return what makes an entry, of a session's *txn*, the same as another, wherever the two stand.

    Times are in whole milliseconds, as the original has them.
    """
    tokens: Any = entry.get("tokens")
    counts = stored_parts(object_of(tokens))
    time: Any = entry.get("timestamp")
    facts = (
        txn,
        int(time) if isinstance(time, (int, float)) else None,
        *(entry.get(name) for name in ("type", "status", "agentId", "provider", "model", "mcpServer", "command")),
        *(entry.get(name) or 0 for name in ("latency", "charactersIn", "charactersOut", "costUsd")),
        *(counts[name] for name in ("inputTokens", "outputTokens", "cacheWriteInputTokens", "cacheReadInputTokens")),
    )
    return tuple(map(_plain, facts))


def _halves(lines: Sequence[bytes], unreadable: Sequence[int]) -> set[int]:
    """Return the numbers of those *unreadable* lines that name their entry, and are the first part of a line that can be read."""
    named: dict[bytes, list[int]] = {}
    for number in unreadable:
        if found := _NAMED.match(lines[number - 1]):
            named.setdefault(found[0], []).append(number)
    found_in = ((line, _NAMED.match(line)) for line in (lines if named else ()))
    pairs = ((line, number) for line, found in found_in if found for number in named.get(found[0], ()))
    return {number for line, number in pairs if line.startswith(lines[number - 1]) and _entry(line) is not None}


def _plain(value: Any) -> object:
    """Return a value of a line as one that can be a dict's key."""
    return value if value is None or isinstance(value, (str, int, float)) else encode(value)


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line, without its checksum, if it has one; None for what is not an object, or has a wrong checksum."""
    line = line.strip()
    if is_summed(line) and not check(line):
        return None
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not is_object(entry):
        return None
    entry.pop("c", None)
    return entry
