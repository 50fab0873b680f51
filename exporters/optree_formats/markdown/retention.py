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
from typing import Any, Literal

import zstandard
from msgspec import Struct

from optree import SetupError
from optree.exporting import REAL, is_list, is_object, open_file, open_regular
from optree_formats import AnyPath
from optree_formats.markdown.events import RULE, LogEvent, header, section
from optree_formats.markdown.integrity import FILE, LINES, Chain, mark, verify
from optree_formats.markdown.own_yaml import Comments, Place, add, under
from optree_formats.markdown.reader import Entry, Log, read_log
from optree_formats.markdown.summary import state_at

COMPRESSED = "session-log.compressed.md"
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
    parsed = read_log(log)
    kinds = [entry for entry in parsed.entries if entry.kind]
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
    target = _target(log, what, digest, parsed)
    if not dry_run:
        if not target.exists():
            (archive if what == "archive" else compress)(log, target)
        if policy.replace and _stands_for(target, digest, parsed) and _digest(log) == digest:
            REAL.unlink(log)
    return Action(log, what, why, target, removed=policy.replace and (dry_run or not log.exists()))


def _target(log: Path, what: _What, digest: str, parsed: Log) -> Path:
    """Return the name of what stands for a log already, or the first one that is free."""
    stem, suffix = (log.name.removesuffix(".md"), ".md.zst") if what == "archive" else (COMPRESSED.removesuffix(".md"), ".md")
    for number in count():
        target = log.with_name(f"{stem}{f'.{number}' if number else ''}{suffix}")
        if not os.path.lexists(target) or (target.is_file() and _stands_for(target, digest, parsed)):
            return target
    raise AssertionError


def _stands_for(target: Path, digest: str, parsed: Log) -> bool:
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
    return all(kept.count(kind) == sum(entry.kind == kind for entry in parsed.entries) for kind in ("tool_error", "repair", "session_end"))


def _digest(path: Path) -> str:
    """Return the digest of what a file holds, unpacked."""
    digest = sha256()
    with open_file(path) as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _compressed_text(parsed: Log, log: Path) -> Iterator[str]:
    head = parsed.head
    whence = f"Compressed: from {log.name}, sha256 {_digest(log)}"
    chain = Chain()
    pieces = [header(head.session_id or log.parent.name, head.started, head.protocol or "EVENT-LOG/0.2", whence)]
    for event in fewer_events(parsed.entries):
        pieces.append(section(event, event.at or 0.0, "verbose"))
        written = "".join(pieces).encode(errors="replace")
        pieces += [mark(chain.seal(written)), RULE]
        for line in LINES.findall("".join(pieces).encode(errors="replace")):
            chain.add(line)
        yield "".join(pieces)
        pieces = []
    yield "".join(pieces)


_AT_LEAST = 3
"""How many calls make a run that is collapsed."""
SHORT = 80
"""Characters of a text in a result that stay."""


def fewer_events(entries: Iterable[Entry]) -> list[LogEvent]:
    """Return the events of a log, compressed. Sections without an event are kept as events of type ``note``."""
    kept = list(entries)
    failed = {_call(entry) for entry in kept if entry.kind == "tool_error"}
    tools = {_call(entry): str(entry.fields.get("tool", "")) for entry in kept if entry.kind == "tool_call"}
    done = {_call(entry) for entry in kept if entry.kind == "tool_result"} & tools.keys() - failed
    events: list[LogEvent] = []
    run: list[Entry] = []
    for entry in kept:
        tool = tools[_call(entry)] if entry.kind in ("tool_call", "tool_result") and _call(entry) in done else None
        if tool is None or (run and tools[_call(run[0])] != tool):
            events += _collapsed(run)
            run = []
        if tool is None:
            events.append(_kept(entry))
        else:
            run.append(entry)
    return events + _collapsed(run)


def _call(entry: Entry) -> str:
    return str(entry.fields.get("call_id", ""))


def _kept(entry: Entry) -> LogEvent:
    """Return an event without what is verbose in it."""
    if entry.fault or not entry.kind:
        raw = {"raw": entry.raw} if entry.raw else {}
        event = LogEvent.of_plain(entry.kind or "note", {**entry.fields, **raw}, narrative=entry.narrative, title=entry.title, at=entry.at)
        event.comments = dict(entry.comments)
    else:
        event = entry.event()
    if entry.kind == "tool_result":
        event.fields = {key: _short(value) if key == "result" else value for key, value in event.fields.items()}
        event.fields = {key: value for key, value in event.fields.items() if value is not _GONE}
        _move_comments(event)
    if entry.after:
        event.narrative = f"{event.narrative}\n\n{entry.after}".strip()
    return event


class _Gone:
    """Stands for a value that was too long."""


_GONE = _Gone()


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SHORT and "\n" not in value else _GONE
    if is_object(value):
        kept = {key: _short(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not _GONE}
    if is_list(value):
        return [item for item in map(_short, value) if item is not _GONE]
    return value


def _move_comments(event: LogEvent) -> None:
    """Keep comments whose fields have gone, or whose places have moved, at the end of the event."""
    kept = under(event.comments, event.fields)
    for place, comment in event.comments.items():
        if place not in kept:
            for text in comment.texts():
                add(kept, (), text, "end")
    event.comments = kept


def _collapsed(run: list[Entry]) -> list[LogEvent]:
    calls = [entry for entry in run if entry.kind == "tool_call"]
    if len(calls) < _AT_LEAST:
        return [_kept(entry) for entry in run]
    results = [entry for entry in run if entry.kind == "tool_result"]
    durations = [duration for entry in results if isinstance(duration := entry.fields.get("duration_ms"), (int, float))]
    whys = [str(args.get("why")) for entry in calls if is_object(args := entry.fields.get("args")) and args.get("why")]
    fields: dict[str, Any] = {
        "tool": calls[0].fields.get("tool"),
        "calls": len(calls),
        "succeeded": sum(1 for entry in results if entry.fields.get("success") is True),
        **({"duration_ms": sum(durations)} if durations else {}),
        "call_ids": [_call(entry) for entry in calls],
        "whys": list(dict.fromkeys(whys)),
    }
    narratives = [part for entry in run for part in (entry.narrative, entry.after) if part]
    event = LogEvent("tool_summary", fields, narrative="\n\n".join(narratives), at=run[0].at)
    event.comments = _gathered(run)
    return [event]


def _gathered(run: list[Entry]) -> Comments:
    """Return all comments of a run, at the end of its summary."""
    comments: Comments = {}
    place: Place = ()
    for entry in run:
        for comment in entry.comments.values():
            for text in comment.texts():
                add(comments, place, text, "end")
    return comments
