"""Sessions of version 3 as trees: a session whose parent is there stands in the op that called it."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from optree import _records as r
from optree._formats import Fault
from optree._formats.ai_agent.records import CALLED_BY_PROGRAM, Ledgers, SessionRecords, derived_id
from optree._ids import is_node_id, is_txn, node_id, txn_of
from optree._nodes import AccountingEntry, Payload, Status, kind_of
from optree._providers.usage import parts_of
from optree._store.files.compression import limit_of
from optree._store.files.descriptors import open_regular
from optree._store.files.lines import opened
from optree._store.reading.ai_agent.terms import IN_FIELDS, name_of
from optree._tree import Fold, Tree
from optree._tree.fold import UNKNOWN
from optree._tree.totals import leave_out_impossible
from optree._tree.walk import unused
from optree._values import block_of, is_object, json_of, number_of, object_of, objects_of, text_of, texts_of

MAX_NESTED = 50
"""Sessions in each other: one that is deeper becomes a tree of its own (a snapshot holds 60)."""
MAX_PAYLOAD_BYTES = 256 << 20
_CALLED_BY_AGENT = "sub-agent"


def trees(ledgers: Ledgers) -> list[Tree]:
    """Return a tree for each session that has no parent here, in the order of their files."""
    above = _parents(ledgers)
    roots = [name for name in ledgers.sessions if name not in above]
    txns: dict[str, str] = {}
    for name in roots:
        txns[name] = _txn(ledgers.sessions[name], {*txns.values(), *roots} - {name})
    assemblies = [_Assembly(ledgers, above, name, txns[name]) for name in roots]
    result = [assembly.tree() for assembly in assemblies]
    remaining = ledgers.sessions.keys() - {name for assembly in assemblies for name in assembly.taken}
    for name in sorted(remaining):
        ledgers.fault(name, "is nested too deeply, or in itself: it becomes a session of its own")
        result.append(_Assembly(ledgers, {}, name, _txn(ledgers.sessions[name], {*ledgers.sessions} - {name})).tree())
    return result


def _txn(ledger: SessionRecords, taken: set[str]) -> str:
    """Return a root's txn: the origin that its records name, or its own id where that is another's, or it is no root of a whole run."""
    origin = ledger.start.get("originId")
    whole = isinstance(origin, str) and is_txn(origin) and origin not in taken and ledger.start.get("parentSessionId") is None
    return str(origin) if whole else txn_of(ledger.name, "ai-agent")


def _parents(ledgers: Ledgers) -> dict[str, tuple[str, str | None]]:
    """Return each session's parent and the op that called it, where its own records or its parent's say so, and the parent is there."""
    result: dict[str, tuple[str, str | None]] = {}
    for name, ledger in ledgers.sessions.items():
        for _, end in ledger.turns.values():
            for op in objects_of(end.get("ops")) if end is not None else ():
                for child in objects_of(op.get("childSessions")):
                    inner = child.get("sessionId")
                    if isinstance(inner, str) and inner != name and inner in ledgers.sessions:
                        result.setdefault(inner, (name, str(op.get("opId"))))
    for name, ledger in ledgers.sessions.items():
        parent = ledger.start.get("parentSessionId")
        if name not in result and isinstance(parent, str):
            if parent in ledgers.sessions and parent != name:
                result[name] = (parent, None)
            else:
                ledgers.fault(name, f"its parent {parent} has no records here: it becomes a session of its own")
    return result


class _Assembly:
    """Records one root session with all below it."""

    def __init__(self, ledgers: Ledgers, above: dict[str, tuple[str, str | None]], root: str, txn: str) -> None:
        self._ledgers, self._root, self._txn = ledgers, root, txn
        if txn not in (root, ledgers.sessions[root].start.get("originId")):
            ledgers.faults.append(Fault(0, f"{root[:80]!r} cannot name a session: it is called {txn} here"))
        self._below: dict[str, list[tuple[str, str | None]]] = {}
        for name, (parent, op) in above.items():
            self._below.setdefault(parent, []).append((name, op))
        self.taken: set[str] = set()
        self._fold = Fold(txn)
        self._ids: set[str] = set()
        self._callers: dict[tuple[str, str], str] = {}
        """Paths of ops by their session's path and the id that its records give them."""

    def tree(self) -> Tree:
        self._session(self._ledgers.sessions[self._root], "")
        pending = [("", self._root, 1)]
        while pending:
            path, name, depth = pending.pop()
            for inner, caller in self._below.get(name, ()):
                if inner in self.taken or depth >= MAX_NESTED:
                    continue
                ledger = self._ledgers.sessions[inner]
                op = self._callers.get((path, caller)) if caller is not None else None
                if op is None or op in self._fold.sessions:
                    op = self._stand_in(path, ledger)
                self._session(ledger, op)
                pending.append((op, inner, depth + 1))
        return self._fold.finish()

    def _stand_in(self, path: str, ledger: SessionRecords) -> str:
        """Record an op for a child of which its parent's own records do not tell: in the turn that was going on when it began."""
        session = self._fold.sessions[path]
        begun = _time(ledger.start.get("ts")) or session.started_at
        fitting = [turn for turn in session.turns if turn.started_at <= begun] or session.turns[:1]
        turn = fitting[-1].path if fitting else f"{path}.1" if path else "1"
        if not fitting:
            self._fold.apply(r.TurnBegin(turn, begun))
        op = f"{turn}.{len(self._fold.turns[turn].ops) + 1}"
        self._fold.apply(r.OpBegin(op, begun, "session", str(ledger.start.get("agentId") or UNKNOWN)))
        return op

    def _session(self, ledger: SessionRecords, path: str) -> None:
        self.taken.add(ledger.name)
        start, own, put = ledger.start, ledger.name, self._fold.apply
        derived = own == derived_id(self._txn, path) or not is_node_id(own)
        agent, begun = str(start.get("agentId") or UNKNOWN), _time(start.get("ts")) or 0.0
        attributes = {**object_of(start.get("attributes"))}
        attributes.pop("ledgerPath", None)
        title, latest = text_of(attributes.pop("sessionTitle", None)), text_of(attributes.pop("latestStatus", None))
        source = start.get("headendId")
        if isinstance(source, str) and source not in (CALLED_BY_PROGRAM, _CALLED_BY_AGENT) and "ingress" not in attributes:
            attributes["ingress"] = {"source": source}
        call_path = str(start.get("callPath") or agent).replace(":", "->")
        put(r.SessionBegin(path, begun, agent, call_path, block_of(attributes), None if derived else own))
        put(r.SessionSet(path, begun, title, latest))
        for number in sorted(ledger.turns):
            self._turn(path, f"{path}.{number}" if path else str(number), begun, *ledger.turns[number])
        if (end := ledger.end) is not None:
            status = _status(end) if end["recordType"] == "session_summary" else "failed"
            report = object_of(end.get("attributes")).get("finalReport", end.get("finalReport"))
            final = UNSET if report is None else json_of(report)
            put(r.SessionEnd(path, _time(end.get("ts")) or begun, status, text_of(end.get("error")), final))

    def _turn(self, session: str, path: str, started: float, first: dict[str, Any], last: dict[str, Any] | None) -> None:
        put, began = self._fold.apply, _time(first.get("ts")) or started
        attributes, more = {**object_of(first.get("attributes"))}, object_of((last or {}).get("attributes"))
        prompts = texts_of(attributes.pop("prompts", None))
        attributes |= {name: last[name] for name in ("warnings", "errors") if last is not None and last.get(name)}
        put(r.TurnBegin(path, began, prompts, block_of(attributes)))
        put(r.TurnSet(path, texts_of(more.get("assistant"))))
        if last is None:
            return
        seen = _time(last.get("ts")) or began
        for place, block in enumerate(objects_of(last.get("ops")), 1):
            self._op(block, f"{path}.{place}", began, seen)
            self._callers.setdefault((session, str(block.get("opId"))), f"{path}.{place}")
        if last.get("status") != "running":
            put(r.TurnEnd(path, seen, _status(last), text_of(more.get("error"))))

    def _op(self, block: dict[str, Any], path: str, started: float, seen: float) -> None:
        """Record an op of a turn that *started* then; one of which no more is known than how it ended has done so before *seen*."""
        put, derived = self._fold.apply, node_id(self._txn, path)
        attributes = object_of(block.get("attributes"))
        kind = kind_of(block.get("kind")) or "system"
        key = "model" if kind == "llm" else "name"
        provider, name = (block.get(member) or attributes.get(member) for member in ("provider", key))
        own = unused(block.get("opId"), derived, self._ids)
        status, begun, ended = _status(block), _time(block.get("startedAt")) or started, _time(block.get("endedAt"))
        label = name_of(kind, {**attributes, "provider": provider, key: name})
        kept = block_of({key: value for key, value in attributes.items() if key not in IN_FIELDS}) if attributes else UNSET
        put(r.OpBegin(path, begun, kind, label, None, kept, None if own == derived else own))
        ended = seen if ended is None and status is not None else ended
        if is_object(block.get("accounting")):
            entry = AccountingEntry(f"{own}#1", ended or begun, "llm", "failed" if status == "failed" else "ok")
            put(r.Accounted(path, _accounted(entry, block["accounting"], provider, name)))
        thought = self._payloads(path, kind, refs, begun) if (refs := objects_of(block.get("payloadRefs"))) else None
        latency = number_of(attributes.get("latency", block.get("durationMs")))
        error = text_of(attributes.get("error")) or text_of(block.get("error"))
        if ended is not None:
            put(r.OpEnd(path, ended, status, latency, error, thought))
        elif (
            end_attributes := {name: value for name, value in (("latency", latency), ("error", error)) if value is not None}
        ) or thought is not None:
            put(r.OpSet(path, begun, None, block_of(end_attributes), thought))  # an error or a latency without an end becomes an attribute

    def _payloads(self, path: str, kind: str, refs: list[dict[str, Any]], ts: float) -> str | None:
        """Record payloads, and return the reasoning; what the provider's library had counts more than the bytes on the wire."""
        payloads: dict[str, Payload] = {}
        thought = None
        for ref in refs:
            name, data = str(ref.get("kind")), self._bytes(ref, path)
            if data is None:
                continue
            if name == "reasoning_stream":
                thought = data.decode("utf-8", "replace")
                continue
            seen_at, _, part = name.partition("_")
            if seen_at not in ("sdk", "tool", "llm") or part not in ("request", "response"):
                continue
            value = _json(data)
            size = len(msgspec.json.decode(value)) if value[:1] == b'"' else len(value)
            asked = ("llm" if kind == "llm" else "tool") if part == "request" else None
            payload = Payload(Raw(value), asked, size, True if ref.get("truncated") is True else None)
            payloads[part] = payload if seen_at != "llm" else payloads.get(part, payload)
        if "request" in payloads:
            self._fold.apply(r.Requested(path, ts, payloads["request"]))
        if "response" in payloads:
            self._fold.apply(r.Responded(path, ts, payloads["response"]))
        return thought

    def _bytes(self, ref: dict[str, Any], where: str) -> bytes | None:
        """Return the content of a payload's file; None, with a fault, if it does not fit its record."""
        path = ref.get("path")
        if ref.get("captured") is not True or not isinstance(path, str):
            return None
        file = self._ledgers.base / path
        if not _within(file, self._ledgers.base / "payloads"):
            self._ledgers.fault(where, f"its payload {path[:120]!r} lies elsewhere than payloads do, and is not read")
            return None
        try:
            data = self._contents(file, packed=ref.get("compression") == "gzip")
        except (OSError, EOFError, ValueError) as error:
            self._ledgers.fault(where, f"its payload {path[:120]} cannot be read: {error}")
            return None
        if ref.get("sha256") not in (None, sha256(data).hexdigest()):
            self._ledgers.fault(where, f"its payload {path[:120]} is not what was recorded: its sha256 differs")
            return None
        return data

    def _contents(self, file: Path, *, packed: bool) -> bytes:
        """Return what a file holds. Raises `OSError`, and `ValueError` where it, or all together, unpack to more than is read."""
        ledgers = self._ledgers
        with opened(file) if packed else open_regular(file) as source:
            ledgers.packed.setdefault(file, file.stat().st_size)
            most = min(MAX_PAYLOAD_BYTES, limit_of(sum(ledgers.packed.values())) - ledgers.unpacked)
            data = source.read(most + 1)
        if len(data) > most:
            raise ValueError("there is too much in it" if most < MAX_PAYLOAD_BYTES else f"it is larger than {MAX_PAYLOAD_BYTES} bytes")
        ledgers.unpacked += len(data)
        return data


def _within(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):
        return False


def _json(data: bytes) -> bytes:
    """Return a payload as JSON: as it is where it is JSON, else as a text."""
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(data.decode("utf-8", "replace"))
    return data


def _accounted(entry: AccountingEntry, block: dict[str, Any], provider: Any, model: Any) -> AccountingEntry:
    """Return the entry of a model's call with the figures of its record."""
    names = ("tokensIn", "tokensOut", "tokensCacheRead", "tokensCacheWrite")
    entry.tokens = parts_of(*(int(max(0.0, number_of(block.get(name)) or 0.0)) for name in names))
    entry.cost_usd = number_of(block.get("costUsd"))
    entry.provider, entry.model = text_of(provider), text_of(model)
    leave_out_impossible(entry)
    return entry


def _status(record: dict[str, Any]) -> Status | None:
    """Return how a node ended; None where its record does not say."""
    status = record.get("status")
    return None if status in (None, "running") else "ok" if status == "ok" else "failed"


def _time(value: Any) -> float | None:
    """Return a record's time in epoch milliseconds; None for a value that is not a time."""
    try:
        return float(int(datetime.fromisoformat(value).timestamp() * 1000 + 0.5)) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
