"""Which numbers were given in a session's files, so that a new writer goes on from them, and the lines that have them."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from optree import _records as r
from optree._interrupts import from_handler, pass_on, suppress
from optree._store.files.system import OS
from optree._store.reading.directory import SUFFIXES, Directory, journals, owners_journals
from optree._store.reading.formats import meta_of
from optree._store.reading.reader import header_of, read_journal
from optree._syscalls import calls
from optree._values import object_of
from optree.errors import StoreError

_WRITER = re.compile(r"[0-9]{4,9}")
_MOST = 1 << 53
_AT_ONCE = 256
_FREE = range(100_000_000, 900_000_000)


def saved_vector(directory: Directory, txn: str) -> dict[str, int]:
    """Return per writer the number of its last record that a snapshot has. Raises `OSError` for one that is there and cannot be read."""
    vector: dict[str, int] = {}
    for compression in SUFFIXES:
        with suppress(FileNotFoundError, NotADirectoryError):
            for writer, number in vector_of(meta_of(directory.snapshot(txn, compression))).items():
                vector[writer] = max(vector.get(writer, 0), number)
    return vector


def known_vector(directory: Directory, txn: str, *, owner: bool, later: bool) -> dict[str, int]:
    """Return `saved_vector`. With *later*, where that cannot be read, a process that joined gets a number after which its own is free."""
    try:
        return saved_vector(directory, txn)
    except OSError as error:
        if not later or from_handler(error):
            raise
        return {} if owner else {f"{some_number():04d}": 0}


def was_writer(ordinal: int, directory: Directory, txn: str) -> bool:
    """Tell whether a snapshot has records of another process under the number of a writer whose journal was made just now.

    The owner saves what a process that has gone recorded, and removes its journal; a child that is slow to begin finds the number free.
    """
    try:
        return f"{ordinal:04d}" in saved_vector(directory, txn)
    except OSError as error:
        pass_on(error)
        return True


def last_given(live: Path, vector: dict[str, int], system: OS, writer: int = 0, *, later: bool = False) -> int:
    """Return the number of a writer's last record that is in any file; the owner is writer 0.

    With *later* a directory that cannot be looked into is one without files: what is recorded goes into it when it can be.
    """
    own = list[Path]()
    try:
        own += [path for path in journals(live) if path.name.startswith(f"j-{writer:04d}-")]
    except OSError as error:
        if not later or from_handler(error):
            raise
    return max([vector.get(f"{writer:04d}", 0), *(last_number(path, system) for path in own)])


def given_by_others(live: Path, vector: dict[str, int], system: OS) -> int:
    """Return the number of the owner's last record in any file but those that this process began, which are not read. Raises `OSError`."""
    me, others = (os.getpid(), calls.nodename()), list[Path]()
    for path in owners_journals(live):
        header = header_of(path, system)
        if header is None or (header.pid, header.host) != me:
            others.append(path)
    return max([vector.get("0000", 0), *(last_number(path, system) for path in others)])


def last_before_another(live: Path, writer: int, above: int, last: int, system: OS) -> int:
    """Return the number of this process's *last* record, or of the one before another process went on as that writer.

    It has gone on behind the record *above*, and may have read what was written here before it began, and nothing later.
    """
    me, number, paths = (os.getpid(), calls.nodename()), last, list[Path]()
    with suppress(OSError):
        paths = journals(live)
    for path in paths:
        with suppress(OSError, StoreError):  # a file that only a newer optree reads is passed over
            header = read_journal(path, last, system).header
            if header and int(header.writer) == writer and above < header.first <= last and (header.pid, header.host) != me:
                number = min(number, header.first - 1)
    return number


class LostRecords(NamedTuple):
    """What a writer's files have of records that may be lost, the numbers they lack, and the gaps among those."""

    found: list[r.Record]
    numbers: set[int]
    gaps: list[r.Gap]
    uncounted: int
    """How many of the numbers neither are such a gap's, nor are counted in one."""


def lost_since(synced: int, first: int, paths: Iterable[Path], gaps: Iterable[r.Gap], system: OS) -> LostRecords:
    """Return what is lost between the last record that is on the disk and the *first* that is held; *gaps* are all that were written."""
    records: dict[int, r.Record] = {}
    for path in paths:
        with suppress(OSError):
            records |= {record.n: record for record in read_journal(path, synced, system).records}
    found = [records[number] for number in sorted(records) if number < first]
    lost_gaps = [gap for gap in gaps if synced < gap.n < first and gap.n not in records]
    missing = set(range(synced + 1, first)) - {record.n for record in found} - omitted_by(found)
    return LostRecords(found, missing, lost_gaps, len(missing) - len(lost_gaps) - len(omitted_by(lost_gaps)))


def omitted_by(records: Iterable[r.Record]) -> set[int]:
    """Return the numbers of lost records that gaps tell of."""
    gaps = [record for record in records if isinstance(record, r.Gap)]
    return {number for gap in gaps for first, last in gap.omitted for number in range(first, last + 1)}


def rows(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each row of numbers without a hole."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def vector_of(meta: dict[str, Any]) -> dict[str, int]:
    """Return per writer the number of its last record that a snapshot has, by its meta; impossible numbers are left out."""
    saved = object_of(meta.get("journal"))
    return {writer: number for writer, number in saved.items() if _WRITER.fullmatch(writer) and type(number) is int and 0 <= number < _MOST}


def last_number(journal: Path, system: OS) -> int:
    """Return the number of a file's last record; 0 if it has none."""
    file = read_journal(journal, 0, system)
    return file.records[-1].n if file.records else 0


def some_number() -> int:
    """Return a number for a writer that cannot find out which are taken: one of so many that no other writer has it."""
    return _FREE[int.from_bytes(os.urandom(8), "big") % len(_FREE)]


def journal_name(writer: int, segment: int) -> str:
    """Return the name of a writer's journal."""
    return f"j-{writer:04d}-{segment:06d}.jsonl"


def claim(live: Path, writer: int | None, above: int, system: OS, *, fresh: bool = False) -> tuple[int, Path, int]:
    """Make and lock a new journal: a writer's next segment, or (None) the first of the next writer above *above*.

    A *fresh* folder is empty, and no process settles anything there.

    Returns the writer's number, the path, and the descriptor. Raises `OSError` and `StoreError`.
    """
    segments: dict[int, int] = {}
    for path in () if fresh else journals(live):
        number, segment = (int(part) for part in path.stem.split("-")[1:3])
        segments[number] = max(segments.get(number, 0), segment)
    number = max([above, *segments]) + 1 if writer is None else writer
    segment = segments.get(number, 0) + 1
    for _ in range(10_000):
        path = live / journal_name(number, segment)
        try:
            fd = system.create(path)
        except FileExistsError as error:
            pass_on(error)
        except FileNotFoundError as error:  # in a forked child: the parent has just ended the session, and removed the directory
            pass_on(error)
            system.make_directory(live)
            continue
        else:
            try:
                if system.lock(fd, new=True) and (fresh or system.is_at(fd, path)):
                    return number, path, fd  # at once: an interrupt hits a call
            except BaseException:
                system.close(fd)
                raise
            system.close(fd)
            system.make_directory(live)  # a process that settles the session was quicker, and may have removed it
        if writer is None:
            number += 1
        else:
            segment += 1
    raise StoreError(f"no free journal name in {live}: remove old files")


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
    """Return a journal's first line, and its CRC, which is the seed of all later lines'; *first* is the number of its first record."""
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
