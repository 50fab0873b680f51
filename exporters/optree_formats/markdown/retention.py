"""Retention: what becomes of logs after their sessions. Nothing is touched while a session runs, and by default no log ever.

Recent logs (*hot*) stay. Of older ones (*warm*) a compressed copy is put beside the log; of much older ones (*cold*) an archive,
``session-log.md.zst``, which holds every byte and which the reader reads. The log itself is removed only if the policy says so, and only
after what replaces it was read back; no writer can append meanwhile. A copy that has replaced its log is archived in its place. No file
that is there is ever replaced: where one of other content has the name, a number is added.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Literal

import zstandard
from msgspec import Struct

from optree import SetupError
from optree.exporting import REAL, open_file, open_regular
from optree_formats import AnyPath
from optree_formats.markdown.compression import fewer_events
from optree_formats.markdown.reader import Log, read_log
from optree_formats.markdown.rendering import RULE, header, section
from optree_formats.markdown.replay import state_at
from optree_formats.markdown.seals import LINES, Chain, mark, verify
from optree_formats.markdown.writer import FILE

COMPRESSED = "session-log.compressed.md"
ARCHIVE = f"{FILE}.zst"
_COPIES = "session-log.compressed*.md"
_OF = re.compile(rb"^Compressed: from [^\n]*, sha256 ([0-9a-f]{64})\r?$", re.MULTILINE)
_HEAD_BYTES = 1 << 16
_DAY = 86_400_000.0
_What = Literal["keep", "compress", "archive"]


class Policy(Struct, frozen=True):
    """When logs are compressed and archived, in days since their last event, and whether they are replaced by that."""

    warm_days: float = 7
    cold_days: float = 30
    replace: bool = False
    """Remove the log once its compressed copy, or its archive, is there and was read back."""


class Action(Struct, frozen=True):
    """What is, or would be, done with one log."""

    log: Path
    what: _What
    why: str
    made: Path | None = None
    removed: bool = False


def apply(directory: AnyPath, policy: Policy | None = None, now: datetime | None = None, *, dry_run: bool = False) -> list[Action]:
    """Apply a policy to the sessions in a directory such as ``.agent/sessions``; returns what was done, or with *dry_run* would be.

    A log that cannot be read or written, or that is written at this moment, is kept, and its action says why. Raises nothing.
    """
    policy = policy or Policy()
    at = (now or datetime.now().astimezone()).timestamp() * 1e3
    return [_safely(log, policy, at, dry_run=dry_run) for log in _logs(Path(directory))]


def compress(log: AnyPath, target: AnyPath) -> Path:
    """Write the compressed form of a log to a new file; returns its path. Raises `SetupError` if it is there, `OSError`."""
    return _put(Path(target), (text.encode(errors="replace") for text in _compressed_text(read_log(log), Path(log))))


def archive(log: AnyPath, target: AnyPath) -> Path:
    """Pack a log, every byte of it, with zstd into a new file; returns its path. Raises `SetupError` if it is there, `OSError`."""
    packer = zstandard.ZstdCompressor(level=10, write_checksum=True, write_content_size=True)
    return _put(Path(target), [packer.compress(REAL.read(Path(log)))])


def _put(target: Path, pieces: Iterable[bytes]) -> Path:
    """Put a new file in its place as a whole."""
    temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    try:
        REAL.write_whole(temporary, pieces)
        os.link(temporary, target)  # fails if the name is taken, which a rename would not
    except FileExistsError:
        raise SetupError(f"{target} is there already, and stays as it is: give another name, or remove it") from None
    finally:
        with suppress(FileNotFoundError):
            REAL.unlink(temporary)
    REAL.sync_directory(target.parent)
    return target


def _logs(directory: Path) -> Iterator[Path]:
    """Yield the logs of all sessions; of a session without one, the copies that have replaced it."""
    try:
        sessions = sorted(directory.iterdir())
    except OSError:
        return
    for session in sessions:
        if (session / FILE).is_file():
            yield session / FILE
        elif session.is_dir():
            yield from sorted(session.glob(_COPIES))


def _safely(log: Path, policy: Policy, at: float, *, dry_run: bool) -> Action:
    try:
        with _held(log) as held:
            return _one(log, policy, at, dry_run=dry_run) if held else Action(log, "keep", "it is written at this moment")
    except Exception as error:  # noqa: BLE001 - one bad log does not keep the others from being looked after
        return Action(log, "keep", f"{type(error).__name__}: {error}")


@contextmanager
def _held(log: Path) -> Generator[bool, None, None]:
    """Hold a log against its writers, who ask for the same lock; gives False if one has it."""
    fd = REAL.open(log)
    try:
        yield REAL.lock(fd) and REAL.is_at(fd, log)
    finally:
        REAL.close(fd)


def _one(log: Path, policy: Policy, at: float, *, dry_run: bool) -> Action:
    found = read_log(log)
    kinds = [entry for entry in found.entries if entry.kind]
    if not state_at(kinds).ended:
        return Action(log, "keep", "the session has not ended")
    last = max((entry.at for entry in kinds if entry.at is not None), default=None)
    age = ((log.stat().st_mtime * 1e3 if last is None else last) - at) / -_DAY
    what: _What = "archive" if age >= policy.cold_days else "compress" if age >= policy.warm_days else "keep"
    why = f"{age:.1f} days old"
    if what == "keep":
        return Action(log, what, f"{why}: hot")
    if what == "compress" and log.name != FILE:
        return Action(log, "keep", f"{why}: compressed already")
    digest = _digest(log)
    target = _target(log, what, digest, found)
    if not dry_run:
        if not target.exists():
            (archive if what == "archive" else compress)(log, target)
        if policy.replace and _stands_for(target, digest, found) and _digest(log) == digest:
            REAL.unlink(log)
    return Action(log, what, why, target, removed=policy.replace and (dry_run or not log.exists()))


def _target(log: Path, what: _What, digest: str, found: Log) -> Path:
    """Return the name of what stands for a log already, or the first one that is free."""
    stem, suffix = (log.name.removesuffix(".md"), ".md.zst") if what == "archive" else (COMPRESSED.removesuffix(".md"), ".md")
    for number in count():
        target = log.with_name(f"{stem}{f'.{number}' if number else ''}{suffix}")
        if not os.path.lexists(target) or (target.is_file() and _stands_for(target, digest, found)):
            return target
    raise AssertionError


def _stands_for(target: Path, digest: str, found: Log) -> bool:
    """Tell whether a copy or an archive is of this log as it is, can be read, and holds what it must."""
    if target.suffix == ".zst":
        try:
            return _digest(target) == digest
        except EOFError:
            return False
    with open_regular(target) as file:
        of = _OF.search(file.read(_HEAD_BYTES))
    if of is None or of[1].decode() != digest or verify(target):
        return False
    kept = [entry.kind for entry in read_log(target).entries]
    return all(kept.count(kind) == sum(entry.kind == kind for entry in found.entries) for kind in ("tool_error", "repair", "session_end"))


def _digest(path: Path) -> str:
    """Return the digest of what a file holds, unpacked."""
    digest = sha256()
    with open_file(path) as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _compressed_text(found: Log, log: Path) -> Iterator[str]:
    head = found.head
    whence = f"Compressed: from {log.name}, sha256 {_digest(log)}"
    chain = Chain()
    pieces = [header(head.session_id or log.parent.name, head.started, head.protocol or "EVENT-LOG/0.2", whence)]
    for event in fewer_events(found.entries):
        pieces.append(section(event, event.at or 0.0, "verbose"))
        written = "".join(pieces).encode(errors="replace")
        pieces += [mark(chain.seal(written)), RULE]
        for line in LINES.findall("".join(pieces).encode(errors="replace")):
            chain.add(line)
        yield "".join(pieces)
        pieces = []
    yield "".join(pieces)
