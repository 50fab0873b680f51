"""Retention: what becomes of logs after their sessions. Nothing is touched while a session runs, and by default no log ever.

Recent logs (*hot*) stay. Of older ones (*warm*) a compressed copy is put beside the log; of much older ones (*cold*) an archive,
``session-log.md.zst``, which holds every byte and which the reader reads. The log itself is removed only if the policy says so, and only
after what replaces it was read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

import zstandard
from msgspec import Struct

from optree.store.lines import blocks, opened
from optree.store.system import REAL
from optree_formats.markdown.compression import compressed
from optree_formats.markdown.reader import Log, read_log
from optree_formats.markdown.rendering import RULE, header, section
from optree_formats.markdown.replay import state_at
from optree_formats.markdown.seals import LINES, Chain, mark
from optree_formats.markdown.writer import FILE
from optree_formats.new_files import open_new

COMPRESSED = "session-log.compressed.md"
ARCHIVE = f"{FILE}.zst"
_DAY = 86_400_000.0


class Policy(Struct, frozen=True):
    """When logs are compressed and archived, in days since their last event, and whether they are replaced by that."""

    warm_days: float = 7
    cold_days: float = 30
    replace: bool = False
    """Remove the log once its compressed copy, or its archive, is there and was read back."""


class Action(Struct, frozen=True):
    """What is, or would be, done with one log."""

    log: Path
    what: Literal["keep", "compress", "archive"]
    why: str
    made: Path | None = None
    removed: bool = False


def apply(directory: Path, policy: Policy | None = None, now: datetime | None = None, *, dry_run: bool = False) -> list[Action]:
    """Apply a policy to the sessions in a directory such as ``.agent/sessions``; returns what was done, or with *dry_run* would be.

    A log that cannot be read or written is kept, and its action says why. Raises nothing.
    """
    policy = policy or Policy()
    at = (now or datetime.now().astimezone()).timestamp() * 1e3
    return [_safely(log, policy, at, dry_run=dry_run) for log in _logs(directory)]


def compress(log: Path, target: Path) -> Path:
    """Write the compressed form of a log to a new file; returns its path. Raises `SetupError` if it is there, `OSError`."""
    found = read_log(log)
    with open_new(target) as file:
        file.writelines(text.encode(errors="replace") for text in _compressed_text(found, log))
    return target


def archive(log: Path, target: Path) -> Path:
    """Pack a log, every byte of it, with zstd into a file that is put in place as a whole; returns its path. Raises `OSError`."""
    packer = zstandard.ZstdCompressor(level=10, write_checksum=True, write_content_size=True)
    REAL.replace(target, [packer.compress(log.read_bytes())])
    return target


def _logs(directory: Path) -> Iterator[Path]:
    try:
        sessions = sorted(directory.iterdir())
    except OSError:
        return
    for session in sessions:
        if (session / FILE).is_file():
            yield session / FILE


def _safely(log: Path, policy: Policy, at: float, *, dry_run: bool) -> Action:
    try:
        return _one(log, policy, at, dry_run=dry_run)
    except (OSError, EOFError) as error:
        return Action(log, "keep", f"{type(error).__name__}: {error}")


def _one(log: Path, policy: Policy, at: float, *, dry_run: bool) -> Action:
    found = read_log(log)
    kinds = [entry for entry in found.entries if entry.kind]
    if not state_at(kinds).ended:
        return Action(log, "keep", "the session has not ended")
    last = max((entry.at for entry in kinds if entry.at is not None), default=None)
    age = ((log.stat().st_mtime * 1e3 if last is None else last) - at) / -_DAY
    what: Literal["keep", "compress", "archive"] = (
        "archive" if age >= policy.cold_days else "compress" if age >= policy.warm_days else "keep"
    )
    why = f"{age:.1f} days old"
    if what == "keep":
        return Action(log, what, f"{why}: hot")
    target = log.with_name(ARCHIVE if what == "archive" else COMPRESSED)
    if not dry_run:
        if what == "archive":
            archive(log, target)
        elif not target.exists():
            compress(log, target)
        if policy.replace and _stands_for(log, target, found):
            log.unlink()
    return Action(log, what, why, target, removed=policy.replace and (dry_run or not log.exists()))


def _stands_for(log: Path, target: Path, found: Log) -> bool:
    """Tell whether what was made can be read, and holds what it must."""
    if target.name == ARCHIVE:
        with opened(target) as source:
            digest = sha256()
            for _, block in blocks(source):
                digest.update(block)
        return digest.digest() == sha256(log.read_bytes()).digest()
    kept = [entry.kind for entry in read_log(target).entries]
    return all(kept.count(kind) == sum(entry.kind == kind for entry in found.entries) for kind in ("tool_error", "repair", "session_end"))


def _compressed_text(found: Log, log: Path) -> Iterator[str]:
    head = found.head
    whence = f"Compressed: from {log.name}, sha256 {sha256(log.read_bytes()).hexdigest()}"
    chain = Chain()
    pieces = [header(head.session_id or log.parent.name, head.started, head.protocol or "EVENT-LOG/0.2", whence)]
    for event in compressed(found.entries):
        pieces.append(section(event, event.at or 0.0, "verbose"))
        written = "".join(pieces).encode(errors="replace")
        pieces += [mark(chain.seal(written)), RULE]
        for line in LINES.findall("".join(pieces).encode(errors="replace")):
            chain.add(line)
        yield "".join(pieces)
        pieces = []
    yield "".join(pieces)
