"""Version 3: a folder with a file of records a session, only appended to, and each payload in a gzip file of its own; written and read.

    session/<sessionId>.jsonl                                   session_start, turn_start, turn_end (with its ops), session_summary
    payloads/<sessionId>/turn-NNNN/llm-NNNN-sdk-request.json.gz what an op sent and got, named by its record with size and sha256

A failed session says so in its summary; `session_error` is what the original writes when it breaks down itself, and only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from optree._formats import Fault, write_new
from optree._ids import content_id
from optree._nodes import AccountingEntry, OperationNode, Payload, SessionNode, TurnNode
from optree._store.files.compression import compressor
from optree._store.files.lines import BadLine, check_size, decoded, opened
from optree._store.reading.ai_agent.terms import attributes_of_op, attributes_of_turn, ms, named, numbered, outcome, payload
from optree._tree import Tree, walk_sessions
from optree._tree.totals import of_entries
from optree._values import decode, is_list, is_object, objects_of
from optree.errors import FormatError, NotFoundError

VERSION: Final = 3
CALLED_BY_PROGRAM: Final = "api"
"""How a session began of which nothing else is known."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_LONGEST_PATH = 60
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TYPES = ("session_start", "turn_start", "turn_end", "session_summary", "session_error")
_lines = msgspec.json.Decoder(dict[str, Any]).decode_lines


def session_id(session: SessionNode) -> str:
    """Return the id of a session in files' names: its own where that may be one, else made from its path."""
    return session.id if is_file_name(session.id) else derived_id(session.origin_txn_id, session.path)


def is_file_name(identity: str) -> bool:
    """Tell whether a session's id may be part of a file's name."""
    return _SAFE.fullmatch(identity) is not None


def derived_id(txn: str, path: str) -> str:
    """Return the id that a session of ours gets by its path; of one whose path is too long for a file's name, by the path's hash."""
    place = path.replace(".", "-") if len(path) <= _LONGEST_PATH else content_id(path.encode())
    return f"{txn}-{place}" if path else txn


def iso(time: float) -> str:
    """Return a time as records have it."""
    at = _EPOCH + timedelta(milliseconds=min(max(ms(time), 0), _LATEST))
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(tree: Tree, folder: Path) -> list[Path]:
    """Write a tree into a folder, beside what other sessions are there; returns all files, the root's records first."""
    ledgers: list[Path] = []
    payloads: list[Path] = []
    callers: dict[str, tuple[str, str]] = {}
    for session in walk_sessions(tree.session):
        callers |= {op.path: (session_id(session), op.op_id) for turn in session.turns for op in turn.ops if op.child_session is not None}
        if "0" in session.path.split(".")[::2]:  # within a turn 0, for which there are no records
            continue
        writer = _RecordsWriter(tree, session, folder, callers.get(session.path))
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in writer.records())
        ledgers.append(write_new(folder / "session" / f"{writer.id}.jsonl", lines))
        payloads += writer.files
    return ledgers + payloads


class _RecordsWriter:
    """Makes one session's records, and its payload files as it comes to them."""

    def __init__(self, tree: Tree, session: SessionNode, folder: Path, caller: tuple[str, str] | None) -> None:
        self._pool, self._session, self._folder, self._caller = tree.pool, session, folder, caller
        self._origin = session.origin_txn_id
        self._seq = 0
        self._children: list[dict[str, Any]] = []
        self.id = session_id(session)
        self.files: list[Path] = []

    def records(self) -> list[dict[str, Any]]:
        """Return the records in their order."""
        session = self._session
        result = [self._record("session_start", session.started_at, self._start())]
        for turn in session.turns:
            if turn.index > 0:
                result += self._turn(turn)
        if session.ended_at is not None:
            result.append(self._record("session_summary", session.ended_at, self._summary()))
        return result

    def _record(self, kind: str, time: float, body: dict[str, Any]) -> dict[str, Any]:
        self._seq += 1
        head = {"version": VERSION, "recordType": kind, "seq": self._seq, "ts": iso(time), "originId": self._origin, "sessionId": self.id}
        return {**head, **_set(body)}

    def _start(self) -> dict[str, Any]:
        session, attributes = self._session, self._session.attributes
        ingress = attributes.get("ingress")
        source = ingress.get("source") if is_object(ingress) else None
        titles = {"sessionTitle": session.session_title, "latestStatus": session.latest_status}
        parent, op = self._caller or (None, None)
        return {
            "agentId": session.agent_id,
            "callPath": session.call_path.replace("->", ":"),
            "parentSessionId": parent,
            "parentOpId": op,
            "headendId": "sub-agent" if session.path else source if isinstance(source, str) else CALLED_BY_PROGRAM,
            "capturePayloads": True,
            "attributes": {"ledgerPath": f"session/{self.id}.jsonl", **attributes, **_set(titles)},
        }

    def _turn(self, turn: TurnNode) -> list[dict[str, Any]]:
        attributes = attributes_of_turn(turn)
        assistant, warnings, errors = attributes.pop("assistant", None), _take(attributes, "warnings"), _take(attributes, "errors")
        result = [self._record("turn_start", turn.started_at, {"turn": turn.index, "attributes": attributes or None})]
        if turn.ended_at is None and not turn.ops and assistant is None and turn.error is None:
            return result
        times = [turn.started_at, *(time for op in turn.ops for time in (op.started_at, op.ended_at) if time is not None)]
        body: dict[str, Any] = {
            "turn": turn.index,
            "status": outcome(turn.status, ended=turn.ended_at is not None),
            "ops": [self._op(op, number, turn) for number, op in numbered(turn)],
            "accounting": _sums([entry for op in turn.ops for entry in op.accounting]),
            "warnings": [*warnings, *_messages(turn, "WRN")],
            "errors": [*errors, *_messages(turn, "ERR")],
            "attributes": _set({"assistant": assistant, "error": turn.error}) or None,
        }
        return [*result, self._record("turn_end", turn.ended_at if turn.ended_at is not None else max(times), body)]

    def _op(self, op: OperationNode, number: int, turn: TurnNode) -> dict[str, Any]:
        provider, name = named(op)
        record: dict[str, Any] = {
            "opId": op.op_id,
            "opIndex": number,
            "kind": op.kind,
            "status": outcome(op.status, ended=op.ended_at is not None),
            "startedAt": iso(op.started_at),
            "endedAt": None if op.ended_at is None else iso(op.ended_at),
            "durationMs": None if op.latency is None else ms(op.latency),
            "name": name or None if op.kind != "llm" else None,
            "provider": provider or None,
            "model": name or None if op.kind == "llm" else None,
            "payloadRefs": self._payloads(op, number, turn.index) or None,
            "childSessions": self._child(op),
            "accounting": _sums(op.accounting),
            "attributes": attributes_of_op(op),
            "error": op.error,
        }
        return _set(record)

    def _child(self, op: OperationNode) -> list[dict[str, Any]] | None:
        child = op.child_session
        if child is None:
            return None
        identity = session_id(child)
        child_record: dict[str, Any] = {
            "agentId": child.agent_id,
            "callPath": child.call_path.replace("->", ":"),
            "sessionId": identity,
            "originId": self._origin,
            "parentSessionId": self.id,
            "parentOpId": op.op_id,
            "ledgerPath": f"session/{identity}.jsonl",
            "status": outcome(child.status, ended=child.ended_at is not None),
        }
        child_record = _set(child_record)
        self._children.append(child_record)
        return [child_record]

    def _payloads(self, op: OperationNode, number: int, turn: int) -> list[dict[str, Any]]:
        llm = op.kind == "llm"
        names = ("sdk_request", "sdk_response") if llm else ("tool_request", "tool_response")
        parts: list[tuple[str, Payload | str | None]] = [(names[0], op.request), (names[1], op.response)]
        if op.reasoning is not None:
            thought = op.reasoning.final
            parts.append(("reasoning_stream", "".join(chunk.text for chunk in op.reasoning.chunks) if thought is None else thought))
        place = f"payloads/{self.id}/turn-{turn:04d}/{'llm' if llm else 'tool'}-{number:04d}"
        head = {"opId": op.op_id, "turn": turn, "opIndex": number}
        return [self._put(kind, part, place, head) for kind, part in parts if part is not None]

    def _put(self, kind: str, part: Payload | str, place: str, head: dict[str, Any]) -> dict[str, Any]:
        if isinstance(part, str):
            form, data, stem, extension = "text", part.encode(), "reasoning", "txt"
        else:
            form = "json" if kind.startswith("sdk") else "jsonrpc"
            data = msgspec.json.encode(payload(self._pool, part.payload))
            stem, extension = kind.removeprefix("tool_").replace("_", "-"), form
        packed = compressor("gzip")(data)
        path = f"{place}-{stem}.{extension}.gz"
        self.files.append(write_new(self._folder / path, packed))
        description = {"kind": kind, **head, "format": form, "compression": "gzip", "path": path, "originalBytes": len(data)}
        cut = isinstance(part, Payload) and bool(part.truncated or part.partial)
        integrity = {
            "compressedBytes": len(packed),
            "sha256": sha256(data).hexdigest(),
            "captured": True,
            "truncated": cut,
            "redacted": False,
        }
        return {**description, **integrity}

    def _summary(self) -> dict[str, Any]:
        session = self._session
        report = None if session.final_report is UNSET else decode(session.final_report)
        own = [entry for turn in session.turns for op in turn.ops for entry in op.accounting]
        return {
            "status": outcome(session.status, ended=True),
            "accounting": _sums(own),
            "childSessions": self._children or None,
            "finalReport": None if report is None else {"format": "text" if isinstance(report, str) else "json", "captured": True},
            "error": session.error,
            "attributes": None if report is None else {"finalReport": report},
        }


def _sums(entries: list[AccountingEntry] | tuple[AccountingEntry, ...]) -> dict[str, Any] | None:
    """Return the sums of model calls; None without any. A cost that was not given is left out."""
    calls = [entry for entry in entries if entry.type == "llm"]
    if not calls:
        return None
    sums = of_entries(calls)
    figures: dict[str, Any] = {
        "tokensIn": sums.input_tokens,
        "tokensOut": sums.output_tokens,
        "tokensCacheRead": sums.cache_read_input_tokens,
        "tokensCacheWrite": sums.cache_write_input_tokens,
        "costUsd": sums.cost_usd if sums.known_costs else None,
    }
    return _set(figures)


def _messages(turn: TurnNode, severity: str) -> list[str]:
    return [entry.message for op in turn.ops for entry in op.logs if entry.severity == severity]


def _take(attributes: dict[str, Any], name: str) -> list[str]:
    """Take a list of texts out of attributes, as reading puts it there."""
    result = attributes.get(name)
    if not is_list(result) or not all(isinstance(value, str) for value in result):
        return []
    del attributes[name]
    return result


def _set(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without the members that are not set."""
    return {key: value for key, value in block.items() if value is not None}


class SessionRecords(Struct):
    """The records of a session's file."""

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
        self.sessions: dict[str, SessionRecords] = {}
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

    def fault(self, where: str, message: str, line: int = 0) -> None:
        """Note what is wrong; raises it if everything is to be right."""
        if self._strict:
            raise FormatError(Fault(line, message).of(where))
        self.faults.append(Fault(line, f"{where}: {message}"))

    def _read(self, paths: list[Path], sessions: Path) -> None:
        """Read files, and the files of child sessions that they name."""
        if not paths:
            raise NotFoundError(f"{sessions} has no files of records (*.jsonl): name the folder that 'session' and 'payloads' are in")
        known = set(paths)
        for path in paths:
            ledger = self._ledger(path)
            if ledger is None:
                continue
            if ledger.name in self.sessions:
                self.fault(path.name, f"session {ledger.name} has another file already: this one is passed over")
                continue
            self.sessions[ledger.name] = ledger
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
            for block in decoded(source, _lines):
                if isinstance(block, BadLine):
                    self.fault(path.name, f"is no record: {block.said}", block.line)
                    continue
                for index, record in enumerate(block.values):
                    flaw = _flaw(record)
                    if flaw:
                        self.fault(path.name, flaw, block.line_of(index))
                    else:
                        yield block.line + index, record

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
