"""Reading version 3: the records of each session, and sessions put into each other by what their records say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from optree.errors import FormatError, NotFoundError
from optree.formats import Fault
from optree.formats.ai_agent.records import VERSION, is_file_name
from optree.store.lines import BadLine, check_size, decoded, opened
from optree.store.plain_values import objects_of

_TYPES = ("session_start", "turn_start", "turn_end", "session_summary", "session_error")
_lines = msgspec.json.Decoder(dict[str, Any]).decode_lines


class SessionRecords(Struct):
    """What a session's file of records says."""

    name: str
    """The session's id."""
    start: dict[str, Any]
    turns: dict[int, tuple[dict[str, Any], dict[str, Any] | None]]
    """By number: the records of a turn's start and of its end."""
    end: dict[str, Any] | None
    """The record that ends the session."""


class Ledgers:
    """Reads files of records; *faults* is what was passed over in them."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self._strict = strict
        self.faults: list[Fault] = []
        self.found: dict[str, SessionRecords] = {}
        folder = path if path.is_dir() else path.parent
        sessions = folder / "session" if (folder / "session").is_dir() else folder
        self.base = sessions.parent if sessions.name == "session" else sessions
        """What payloads' paths start from."""
        self.packed: dict[Path, int] = {}
        """Payload files that were read, with their sizes."""
        self.unpacked = 0
        """Bytes that were read from them in all."""
        self.files = [path] if path.is_file() else sorted(filter(Path.is_file, sessions.glob("*.jsonl")))
        """Those that were named, then those of children."""
        self._read(self.files, sessions)

    def fault(self, where: str, said: str, line: int = 0) -> None:
        """Note what is wrong; raises it if everything is to be right."""
        if self._strict:
            raise FormatError(Fault(line, said).of(where))
        self.faults.append(Fault(line, f"{where}: {said}"))

    def _read(self, paths: list[Path], sessions: Path) -> None:
        """Read files, and the files of child sessions that they name."""
        if not paths:
            raise NotFoundError(f"{sessions} has no files of records (*.jsonl): name the folder that 'session' and 'payloads' are in")
        known = set(paths)
        for path in paths:
            ledger = self._ledger(path)
            if ledger is None:
                continue
            if ledger.name in self.found:
                self.fault(path.name, f"session {ledger.name} has another file already: this one is passed over")
                continue
            self.found[ledger.name] = ledger
            for child in _children(ledger):
                beside = sessions / f"{child}.jsonl"
                if is_file_name(child) and beside not in known and beside.is_file():
                    known.add(beside)
                    paths.append(beside)

    def _ledger(self, path: Path) -> SessionRecords | None:
        ledger = SessionRecords("", {}, {}, None)
        seen: dict[int, dict[str, Any]] = {}
        for line, record in self._records(path):
            number = record.get("seq")
            first = seen.setdefault(number, record) if type(number) is int else record
            if first is not record and first == record:
                self.fault(path.name, f"record {record.get('seq')} is there twice: once is enough", line)
                continue
            self._take(ledger, record, path.name, line)
        if not ledger.name:
            self.fault(path.name, "has no record of a session")
            return None
        return ledger

    def _records(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        check_size(path)
        with opened(path) as source:
            for found in decoded(source, _lines):
                if isinstance(found, BadLine):
                    self.fault(path.name, f"is no record: {found.said}", found.line)
                    continue
                for index, record in enumerate(found.values):
                    flaw = _flaw(record)
                    if flaw:
                        self.fault(path.name, flaw, found.line_of(index))
                    else:
                        yield found.line + index, record

    def _take(self, ledger: SessionRecords, record: dict[str, Any], where: str, line: int) -> None:
        kind, turn = record["recordType"], record.get("turn", 0)
        if ledger.name and record["sessionId"] != ledger.name:
            self.fault(where, f"is a record of another session, {record['sessionId']}", line)
            return
        ledger.name = record["sessionId"]
        if kind == "session_start":
            ledger.start = ledger.start or record
        elif kind == "turn_start":
            ledger.turns.setdefault(turn, (record, None))
        elif kind == "turn_end":
            begun, ended = ledger.turns.get(turn, (record, None))
            if ended is not None and ended.get("status") != "running":
                self.fault(where, f"turn {turn} ends a second time: its first end counts", line)
                return
            ledger.turns[turn] = (begun, record)
        elif ledger.end is None:
            ledger.end = record


def _flaw(record: dict[str, Any]) -> str:
    """Return why a record cannot be used; empty if it can."""
    kind, version, turn = record.get("recordType"), record.get("version"), record.get("turn")
    if version != VERSION:
        return f"has version {version!r}, and this reads {VERSION}"
    if kind not in _TYPES:
        return f"is of a type that is not known, {kind!r}; known are {', '.join(_TYPES)}"
    if not isinstance(record.get("sessionId"), str) or not record["sessionId"]:
        return "names no session"
    if kind.startswith("turn") and (type(turn) is not int or not 0 < turn < 10**9):
        return f"is of a turn {turn!r}, and turns count from 1"
    return ""


def _children(ledger: SessionRecords) -> list[str]:
    """Return the sessions that a session's records name as its children."""
    blocks = [op for _, end in ledger.turns.values() if end is not None for op in objects_of(end.get("ops"))]
    blocks += [ledger.end] if ledger.end is not None else []
    names = [child.get("sessionId") for block in blocks for child in objects_of(block.get("childSessions"))]
    return [name for name in names if isinstance(name, str) and name]
