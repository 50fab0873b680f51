"""Reading journals: the valid part of each file, and an exact account of the rest. A reader never writes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from optree import _records as r
from optree._ids import is_txn
from optree._store.files.system import OS, REAL
from optree.errors import FormatError

LIVE = ".live"
"""The ending of a live directory's name."""
_HEAD = b'{"t":"journal",'
_BEGIN = b'{"t":"'
_JOINED = re.compile(rb'"\}.?' + re.escape(_BEGIN), re.DOTALL)
_TRIES = 16
_FEWEST = 2
_WHOSE = re.compile(rb'"txn":"([^"]*)","writer":"([0-9]+)","segment":([0-9]{1,9}),')
"""What the first line says of the file, as it is written."""
_Line = tuple[int, bytes, int, bool]
_AGREED = "the others are checked by what their checksums agree on"
_TORN_HEADER = "ends inside its first line, before anything was recorded"
_HEADER_BYTES = 4096
"""More bytes than any header has."""
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
    omitted: list[tuple[int, int]] = []
    """The first and last number of each row of lost records that a gap in the file names."""
    begins: int = 0
    """The lowest number of a record that is in it; 0 if there is none."""
    last: int = 0
    """Number of the last record, known or not; of a file without records, the number before its first, by the file's header."""

    @property
    def first(self) -> int:
        """Number of the first record; 0 if there is none."""
        return self.header.first if self.header else self.records[0].n if self.records else 0


def is_blank(path: Path, system: OS = REAL) -> bool:
    """Tell whether nothing was recorded in a file yet: it has no more than its header, or a piece of that."""
    if path.stat().st_size > _HEADER_BYTES:
        return False
    file = read_journal(path, 0, system)
    return not file.records and not file.unknown and all(flaw.said == _TORN_HEADER for flaw in file.flaws)


def read_journal(path: Path, after: int = 0, system: OS = REAL) -> JournalFile:
    """Read one journal file; records numbered up to *after* are checked and left out.

    Raises `FormatError` for a file that only a newer optree can read. Everything else that is wrong is in `flaws`.
    """
    file = JournalFile(path)
    lines = _lines(system.pieces(path))
    if (first := next(lines, None)) is None:  # nothing was written to it yet
        return file
    file.header = _header(path, first[1]) if first[3] else None
    seed = crc32(first[1] + b"\n") if file.header else agreed_seed(path, system)
    if whose := of_another(path, first[1], file.header, seed):
        return _foreign(path, whose, system)
    if seed is None:
        file.flaws.append(_without_header(path, first, lines))
        return file
    file.flaws += _headless(file, first[1], seed)
    numbers = _Numbers(file.header.first if file.header else 0)
    for offset, line, size, whole in lines if file.header else chain([first], lines):
        if not whole or not r.check(line, seed):
            at = _record_inside(line, seed) if whole else 0
            file.flaws.append(_flaw(path, offset, at or size + whole, whole=whole))
            if not at:
                continue
            offset, line = offset + at, line[at:]  # noqa: PLW2901 - the newline before it was damaged
        if numbers.has(number := _number(line), offset):
            file.flaws.append(Flaw(path.name, offset, size + 1, "repeated", f"record {number} is there again, and passed over"))
        else:
            numbers.take(_take(file, line, offset, after), offset)
    if numbers.late:
        file.records.sort(key=lambda record: record.n)
    file.flaws += _lost(file, numbers)
    file.begins, file.last = numbers.begins, max(0, numbers.next - 1)
    if file.header is None and (whose := _accounts_of_another(path, file.records)):
        return _foreign(path, whose, system)
    return file


def header_of(path: Path, system: OS = REAL) -> r.Header | None:
    """Return the first line of a journal; None where it is missing or damaged. Raises `OSError` and `FormatError`."""
    first = next(_lines(system.pieces(path)), None)
    return _header(path, first[1]) if first and first[3] else None


def _headless(file: JournalFile, first: bytes, seed: int) -> list[Flaw]:
    """Say that a file has no header, where its first line is a record."""
    is_record = file.header is None and r.check(first, seed)
    return [Flaw(file.path.name, 0, 0, "corrupt", f"its first line is missing; {_AGREED}")] if is_record else []


class _Numbers:
    """Which numbers of records a file has, as its lines are read."""

    def __init__(self, first: int) -> None:
        """Begin with that of the *first* record by the header; 0 without one."""
        self.next = first
        """The number behind the highest so far."""
        self.begins = 0
        self.late: set[int] = set()
        """Those that came behind a higher one."""
        self._is_known = first > 0
        self._holes: dict[range, int] = {}

    def has(self, number: int, offset: int) -> bool:
        """Tell whether a number was taken before; what is lower than all so far was not, where no header says which is the first."""
        lowest, self.next = self.begins or number, self.next or number
        self.begins = min(lowest, number) or lowest
        if not self._is_known and 0 < number < lowest:
            if number + 1 < lowest:
                self._holes[range(number + 1, lowest)] = offset
            return False
        return 0 < number < self.next and (number in self.late or not any(number in hole for hole in self._holes))

    def take(self, number: int, offset: int) -> None:
        """Take a number, of a line at that *offset*; 0 of one that cannot be read."""
        if number > self.next:
            self._holes[range(self.next, number)] = offset
        elif 0 < number < self.next:
            self.late.add(number)
        self.next = max(self.next, number + 1)

    def missing(self) -> Iterator[tuple[range, int]]:
        """Yield the rows of numbers that no line had, each with the offset of the line behind it."""
        late = sorted(self.late)
        for hole, offset in self._holes.items():
            start = hole.start
            for number in [*late[bisect_left(late, start) : bisect_left(late, hole.stop)], hole.stop]:
                if number > start:
                    yield range(start, number), offset
                start = number + 1


def _lost(file: JournalFile, numbers: _Numbers) -> list[Flaw]:
    """Say which numbers are missing and where, but for those of which the writer knew: a gap counts them."""
    return [
        Flaw(file.path.name, offset, 0, "lost records", f"records {hole[0]} to {hole[-1]} are missing")
        for hole, offset in numbers.missing()
        if not any(low <= hole[0] and hole[-1] <= high for low, high in file.omitted)
    ]


def of_another(path: Path, first: bytes, header: r.Header | None, seed: int | None) -> str:
    """Return whose file this is by its first line, if that is not whose its directory and name say; empty if it is, or cannot be told.

    A damaged first line (no *header*) is believed, unless with the txn and number of its place it gives the seed of the other lines.
    """
    if not path.parent.name.endswith(LIVE):
        return ""
    match = None if seed is not None and r.check(first, seed) else _WHOSE.search(first)  # the line is a record, not a header
    if header is not None:
        txn, writer, segment = header.txn, header.writer, header.segment
    elif match is not None:
        txn, writer, segment = match[1].decode("utf-8", "replace"), match[2].decode(), int(match[3])
    else:
        return ""
    here, name = path.parent.name.removesuffix(LIVE), f"j-{writer}-{segment:06d}.jsonl"
    if (txn, name) == (here, path.name):
        return ""
    if header is None and match is not None:
        _, own, number = path.stem.split("-")
        ours = b'"txn":"%b","writer":"%b","segment":%d,' % (here.encode(), own.encode(), int(number))
        if crc32(first[: match.start()] + ours + first[match.end() :] + b"\n") == seed:
            return ""
    return f"is of session {txn[:64]!r}, not of this one" if txn != here else f"is {name[:64]!r} of this session, under another name"


def _accounts_of_another(path: Path, records: list[r.Record]) -> str:
    """Return whose file this is by the ids of its accounting entries, as `of_another` does: the first line says nothing."""
    txn = path.parent.name.removesuffix(LIVE)
    for record in records if txn != path.parent.name else ():
        if isinstance(record, r.Accounted):
            entry_txn, mark, _ = record.entry.id.partition(f":{record.path}#")
            if mark and entry_txn != txn and is_txn(entry_txn):
                return f"is of session {entry_txn!r}, not of this one"
    return ""


def _foreign(path: Path, whose: str, system: OS) -> JournalFile:
    """Return a file of which nothing is taken, since it belongs elsewhere."""
    size = sum(map(len, system.pieces(path)))
    return JournalFile(path, flaws=[Flaw(path.name, 0, size, "foreign", f"{whose}: nothing of it is taken until it is in its place")])


def agreed_seed(path: Path, system: OS = REAL) -> int | None:
    """Return the seed of the checksums of a journal whose first line is damaged: the one with which most of its other lines are right.

    None unless at least two lines, and more than half, have this seed: for each single line there is a seed with which it is right.
    """
    lines = _lines(system.pieces(path))
    next(lines, None)
    votes = Counter(seed for _, line, _, whole in lines if whole and (seed := r.seed_of(line)) is not None)
    return next((seed for seed, most in votes.most_common(1) if most >= _FEWEST and 2 * most > votes.total()), None)


def _without_header(path: Path, first: _Line, lines: Iterable[_Line]) -> Flaw:
    """Say what a file is whose first line is no header, and of which no other line can be checked."""
    _, data, total, whole = first
    ours = False
    for _, line, size, newline in lines:
        total, ours = total + size + newline, ours or r.seed_of(line) is not None
    total += whole and total > 0
    if not (whole and total) and _HEAD.startswith(data[: len(_HEAD)]) and not ours:
        return Flaw(path.name, 0, total, "torn tail", _TORN_HEADER)
    if ours or data.startswith(_HEAD):
        return Flaw(path.name, 0, total, "corrupt", "its first line is damaged, and without it too few other lines can be checked")
    return Flaw(path.name, 0, total, "foreign", "no journal of optree, or one that is damaged from its first byte on")


def _record_inside(line: bytes, seed: int) -> int:
    """Return where in a bad line a sound record begins, as where the newline before it was damaged; 0 if there is none."""
    places = (match.end() - len(_BEGIN) for match in islice(_JOINED.finditer(line), _TRIES))
    return next((place for place in places if r.check(line[place:], seed)), 0)


def _take(file: JournalFile, line: bytes, offset: int, after: int) -> int:
    """Keep the record of a checked line; returns its number."""
    try:
        record = r.parse(line)
    except FormatError as error:
        file.flaws.append(Flaw(file.path.name, offset, len(line) + 1, "corrupt", str(error)))
        return 0
    if record is None:
        file.unknown += 1
        return _number(line)
    if isinstance(record, r.Gap):
        file.omitted += record.omitted
    if record.n > after:
        file.records.append(record)
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
    if whole and not offset:
        return Flaw(path.name, offset, size, "corrupt", f"its first line is damaged; {_AGREED}")
    if whole:
        return Flaw(path.name, offset, size, "corrupt", "a line does not match its checksum")
    return Flaw(path.name, offset, size, "torn tail", "the last write was cut off")


def _lines(pieces: Iterable[bytes]) -> Iterator[_Line]:
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
