"""Reading journals: the valid part of each file, and an exact account of the rest. A reader never writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from optree import records as r
from optree.errors import FormatError
from optree.store.system import OS, REAL

_HEAD = b'{"t":"journal",'
_TRAILER = re.compile(rb',"c":"[0-9a-f]{8}"\}$')
_TORN_HEADER = "ends inside its first line, before anything was recorded"
MAX_LINE_BYTES = 256 << 20
"""No record comes to that."""


class Flaw(Struct):
    """One place where a file is not as it was written."""

    file: str
    offset: int
    """Bytes from the start of the file."""
    size: int
    """Bytes that could not be read."""
    kind: str
    """`torn tail` (the end of the last write is missing), `corrupt` (bytes changed), `lost records`, `repeated`, `foreign`."""
    said: str

    def __str__(self) -> str:
        return f"{self.file}: {self.said} (at byte {self.offset}, {self.size} bytes)"


class JournalFile(Struct):
    """What one journal file holds."""

    path: Path
    header: r.Header | None = None
    records: list[r.Record] = []
    flaws: list[Flaw] = []
    unknown: int = 0
    """Records of types that this version does not know; they are left out."""


def read_journal(path: Path, after: int = 0, system: OS = REAL) -> JournalFile:
    """Read one journal file; records numbered up to *after* are checked and left out.

    Raises `FormatError` for a file that only a newer optree can read. Everything else that is wrong is in `flaws`.
    """
    found = JournalFile(path)
    lines = _lines(system.pieces(path))
    _, first, size, whole = next(lines, (0, b"", 0, True))
    found.header = _header(path, first) if whole else None
    if found.header is None:
        total, ours = size, False
        for _, line, more, newline in lines:
            total, ours = total + more + newline, ours or _TRAILER.search(line) is not None
        total += whole and total > 0
        kind, said = _without_header(first, whole=whole and total > 0, ours=ours)
        found.flaws.append(Flaw(path.name, 0, total, kind, said))
        return found
    seed = crc32(first + b"\n")
    expected, holes = found.header.first, list[range]()
    for offset, line, size, whole in lines:
        if not whole or not r.check(line, seed):
            found.flaws.append(_flaw(path, offset, size + whole, whole=whole))
            continue
        number = _number(line)
        if 0 < number < expected and not any(number in hole for hole in holes):
            found.flaws.append(Flaw(path.name, offset, size + 1, "repeated", f"record {number} is there again, and passed over"))
            continue
        number = _take(found, line, offset, after)
        if number > expected:
            found.flaws.append(Flaw(path.name, offset, 0, "lost records", f"records {expected} to {number - 1} are missing"))
            holes.append(range(expected, number))
        expected = max(expected, number + 1)
    return found


def _without_header(first: bytes, *, whole: bool, ours: bool) -> tuple[str, str]:
    """Return what a file is whose first line is no header, and how to say it."""
    if not whole and _HEAD.startswith(first[: len(_HEAD)]) and not ours:
        return "torn tail", _TORN_HEADER
    if ours or first.startswith(_HEAD):
        return "corrupt", "its first line is damaged, and without it no other line can be checked"
    return "foreign", "no journal of optree, or one that is damaged from its first byte on"


def _take(found: JournalFile, line: bytes, offset: int, after: int) -> int:
    """Keep the record of a checked line; returns its number."""
    try:
        record = r.parse(line)
    except FormatError as error:
        found.flaws.append(Flaw(found.path.name, offset, len(line) + 1, "corrupt", str(error)))
        return 0
    if record is None:
        found.unknown += 1
        return _number(line)
    if record.n > after:
        found.records.append(record)
    return record.n


def _header(path: Path, line: bytes) -> r.Header | None:
    if not r.check(line, 0):
        return None
    record = r.parse(line)
    if not isinstance(record, r.Header):
        return None
    if record.min_reader > r.FORMAT:
        raise FormatError(
            f"{path.name} was written by optree {record.optree} in journal format {record.format}; this optree reads up to {r.FORMAT}: "
            "install a newer one (pip install -U optree-tracing)"
        )
    return record


def _flaw(path: Path, offset: int, size: int, *, whole: bool) -> Flaw:
    """Describe a bad line: a write that was cut off leaves no newline, so a line that has one was changed afterwards."""
    if whole:
        return Flaw(path.name, offset, size, "corrupt", "a line does not match its checksum")
    return Flaw(path.name, offset, size, "torn tail", "the last write was cut off")


def _lines(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes, int, bool]]:
    """Yield (offset, line without newline, its size, whether the newline was there).

    What cannot be a record, since it has a zero byte or is longer than `MAX_LINE_BYTES`, is counted but not kept: its line is empty.
    """
    start, size, sound, held = 0, 0, True, list[bytes]()
    for piece in pieces:
        *ended, torn = piece.split(b"\n")
        if ended:
            size += len(ended[0])
            yield start, b"".join([*held, ended[0]]) if sound else b"", size, True
            start += size + 1
            for line in ended[1:]:
                yield start, line, len(line), True
                start += len(line) + 1
            size, sound, held = 0, True, []
        size += len(torn)
        sound = sound and size <= MAX_LINE_BYTES and b"\0" not in torn
        held = [*held, torn] if sound else []
    if size:
        yield start, b"".join(held), size, False


def _number(line: bytes) -> int:
    _, _, tail = line.rpartition(b'"n":')
    digits = tail.partition(b",")[0]
    return int(digits) if digits.isdigit() else 0
