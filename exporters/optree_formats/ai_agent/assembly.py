"""Sessions of version 3 as trees: a session whose parent is there stands in the op that called it."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from optree.formats import Fault
from optree.ids import is_node_id, is_txn, node_id, trace_id, txn_of
from optree.nodes import AccountingEntry, OperationNode, Payload, Pool, Reasoning, SessionNode, Status, TurnNode
from optree.store.ai_agent.terms import IN_FIELDS, name_of
from optree.store.compression import limit_of
from optree.store.lines import opened
from optree.store.plain_values import block_of, json_of, kind_of, number_of, object_of, objects_of, text_of, texts_of
from optree.store.system import open_regular
from optree.tree import Fold, Tree
from optree.tree.naming import unused
from optree.tree.totals import leave_out_impossible
from optree.usage import parts_of
from optree.values import is_object
from optree_formats.ai_agent.folder import Ledger, Ledgers
from optree_formats.ai_agent.records import CALLED_BY_PROGRAM, derived_id

MAX_NESTED = 50
"""Sessions in each other: one that is deeper becomes a tree of its own (a snapshot holds 60)."""
MAX_PAYLOAD_BYTES = 256 << 20
_CALLED_BY_AGENT = "sub-agent"


def trees(ledgers: Ledgers) -> list[Tree]:
    """Return a tree for each session that has no parent here, in the order of their files."""
    above = _parents(ledgers)
    roots = [name for name in ledgers.found if name not in above]
    txns: dict[str, str] = {}
    for name in roots:
        txns[name] = _txn(ledgers.found[name], {*txns.values(), *roots} - {name})
    made = [_Assembly(ledgers, above, name, txns[name]) for name in roots]
    found = [assembly.tree() for assembly in made]
    left = ledgers.found.keys() - {name for assembly in made for name in assembly.taken}
    for name in sorted(left):
        ledgers.fault(name, "is nested too deeply, or in itself: it becomes a session of its own")
        found.append(_Assembly(ledgers, {}, name, _txn(ledgers.found[name], {*ledgers.found} - {name})).tree())
    return found


def _txn(ledger: Ledger, taken: set[str]) -> str:
    """Return a root's txn: the origin that its records name, or its own id where that is another's, or it is no root of a whole run."""
    origin = ledger.start.get("originId")
    whole = isinstance(origin, str) and is_txn(origin) and origin not in taken and ledger.start.get("parentSessionId") is None
    return str(origin) if whole else txn_of(ledger.name, "ai-agent")


def _parents(ledgers: Ledgers) -> dict[str, tuple[str, str | None]]:
    """Return each session's parent and the op that called it, where its own records or its parent's say so, and the parent is there."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, ledger in ledgers.found.items():
        for _, end in ledger.turns.values():
            for op in objects_of(end.get("ops")) if end is not None else ():
                for child in objects_of(op.get("childSessions")):
                    inner = child.get("sessionId")
                    if isinstance(inner, str) and inner != name and inner in ledgers.found:
                        found.setdefault(inner, (name, str(op.get("opId"))))
    for name, ledger in ledgers.found.items():
        parent = ledger.start.get("parentSessionId")
        if name not in found and isinstance(parent, str):
            if parent in ledgers.found and parent != name:
                found[name] = (parent, None)
            else:
                ledgers.fault(name, f"its parent {parent} has no records here: it becomes a session of its own")
    return found


class _Assembly:
    """Puts one root session together with all below it."""

    def __init__(self, ledgers: Ledgers, above: dict[str, tuple[str, str | None]], root: str, txn: str) -> None:
        self._ledgers, self._root, self._txn = ledgers, root, txn
        if txn not in (root, ledgers.found[root].start.get("originId")):
            ledgers.faults.append(Fault(0, f"{root[:80]!r} cannot name a session: it is called {txn} here"))
        self._below: dict[str, list[tuple[str, str | None]]] = {}
        for name, (parent, op) in above.items():
            self._below.setdefault(parent, []).append((name, op))
        self.taken: set[str] = set()
        self._ids: set[str] = set()
        self._callers: dict[tuple[str, str], OperationNode] = {}
        """Ops by their session's path and the id that its records give them."""

    def tree(self) -> Tree:
        root = self._session(self._ledgers.found[self._root], "", None)
        pending = [(root, self._root, 1)]
        while pending:
            session, name, depth = pending.pop()
            for inner, caller in self._below.get(name, ()):
                if inner in self.taken or depth >= MAX_NESTED:
                    continue
                ledger = self._ledgers.found[inner]
                op = self._callers.get((session.path, caller)) if caller is not None else None
                if op is None or op.child_session is not None:
                    op = _stand_in(session, ledger, self._txn)
                op.child_session = self._session(ledger, op.path, session)
                pending.append((op.child_session, inner, depth + 1))
        return Fold(self._txn, Tree(root, Pool())).finish()

    def _session(self, ledger: Ledger, path: str, parent: SessionNode | None) -> SessionNode:
        self.taken.add(ledger.name)
        start, own = ledger.start, ledger.name
        if own == derived_id(self._txn, path) or not is_node_id(own):
            own = node_id(self._txn, path)
        agent = str(start.get("agentId") or "(unknown)")
        begun = _time(start.get("ts")) or 0.0
        session = SessionNode(
            id=own,
            path=path,
            trace_id=trace_id(self._txn),
            agent_id=agent,
            call_path=str(start.get("callPath") or agent).replace(":", "->"),
            origin_txn_id=self._txn,
            started_at=begun,
            turns=[],
            parent_txn_id=parent.id if parent is not None else None,
        )
        self._describe(session, start)
        for number in sorted(ledger.turns):
            self._turn(session, number, *ledger.turns[number])
        if ledger.end is not None:
            _end(session, ledger.end)
        return session

    def _describe(self, session: SessionNode, start: dict[str, Any]) -> None:
        attributes = object_of(start.get("attributes"))
        attributes.pop("ledgerPath", None)
        session.session_title = text_of(attributes.pop("sessionTitle", None))
        session.latest_status = text_of(attributes.pop("latestStatus", None))
        source = start.get("headendId")
        if isinstance(source, str) and source not in (CALLED_BY_PROGRAM, _CALLED_BY_AGENT) and "ingress" not in attributes:
            attributes["ingress"] = {"source": source}
        session.attributes_json = block_of(attributes)

    def _turn(self, session: SessionNode, number: int, begun: dict[str, Any], ended: dict[str, Any] | None) -> None:
        path = f"{session.path}.{number}" if session.path else str(number)
        attributes = object_of(begun.get("attributes"))
        turn = TurnNode(node_id(self._txn, path), path, number, _time(begun.get("ts")) or session.started_at, [])
        turn.prompts = texts_of(attributes.pop("prompts", None))
        if ended is not None:
            more = object_of(ended.get("attributes"))
            turn.assistant, turn.error = texts_of(more.get("assistant")), text_of(more.get("error"))
            attributes |= {name: ended[name] for name in ("warnings", "errors") if ended.get(name)}
            if ended.get("status") != "running":
                turn.ended_at = _time(ended.get("ts"))
                turn.status = _status(ended)
            for place, block in enumerate(objects_of(ended.get("ops")), 1):
                op = self._op(block, f"{path}.{place}", turn)
                turn.ops.append(op)
                self._callers.setdefault((session.path, str(block.get("opId"))), op)
        turn.attributes_json = block_of(attributes)
        session.turns.append(turn)

    def _op(self, block: dict[str, Any], path: str, turn: TurnNode) -> OperationNode:
        attributes = object_of(block.get("attributes"))
        kind = kind_of(block.get("kind")) or "system"
        key = "model" if kind == "llm" else "name"
        provider, name = (block.get(one) or attributes.get(one) for one in ("provider", key))
        op = OperationNode(
            op_id=unused(block.get("opId"), node_id(self._txn, path), self._ids),
            path=path,
            kind=kind,
            name=name_of(kind, {**attributes, "provider": provider, key: name}),
            started_at=_time(block.get("startedAt")) or turn.started_at,
            logs=(),
            accounting=(),
            latency=number_of(attributes.get("latency", block.get("durationMs"))),
            error=text_of(attributes.get("error")) or text_of(block.get("error")),
        )
        op.status, op.ended_at = _status(block), _time(block.get("endedAt"))
        if op.status is not None:
            op.ended_at = op.ended_at or turn.ended_at
        op.attributes_json = block_of({key: value for key, value in attributes.items() if key not in IN_FIELDS})
        if is_object(block.get("accounting")):
            self._account(op, block["accounting"], provider, name)
        for ref in objects_of(block.get("payloadRefs")):
            self._payload(op, ref)
        return op

    def _account(self, op: OperationNode, block: dict[str, Any], provider: Any, model: Any) -> None:
        names = ("tokensIn", "tokensOut", "tokensCacheRead", "tokensCacheWrite")
        sent, received, read, wrote = (int(max(0.0, number_of(block.get(name)) or 0.0)) for name in names)
        tokens = parts_of(sent, received, read, wrote)
        entry = AccountingEntry(f"{op.op_id}#1", op.ended_at or op.started_at, "llm", tokens=tokens)
        entry.cost_usd = number_of(block.get("costUsd"))
        entry.provider, entry.model = text_of(provider), text_of(model)
        entry.status = "failed" if op.status == "failed" else "ok"
        leave_out_impossible(entry)
        op.accounting = (entry,)

    def _payload(self, op: OperationNode, ref: dict[str, Any]) -> None:
        """Read a payload; the normalised one of the provider's library counts more than the bytes on the wire."""
        kind = str(ref.get("kind"))
        data = self._bytes(ref, op.path)
        if data is None:
            return
        if kind == "reasoning_stream":
            op.reasoning = Reasoning((), data.decode("utf-8", "replace"))
            return
        value = _json(data)
        size = len(msgspec.json.decode(value)) if value[:1] == b'"' else len(value)
        found = Payload(Raw(value), None, size, True if ref.get("truncated") is True else None)
        if kind in ("sdk_request", "tool_request") or (kind == "llm_request" and op.request is None):
            found.kind = "llm" if op.kind == "llm" else "tool"
            op.request = found
        elif kind in ("sdk_response", "tool_response") or (kind == "llm_response" and op.response is None):
            op.response = found

    def _bytes(self, ref: dict[str, Any], where: str) -> bytes | None:
        """Return what a payload's file holds; None, with a fault, if it does not hold what its record says."""
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


def _stand_in(session: SessionNode, ledger: Ledger, txn: str) -> OperationNode:
    """Add an op for a child of which the parent's own records do not tell: in the turn that was going on when it began."""
    begun = _time(ledger.start.get("ts")) or session.started_at
    fitting = [turn for turn in session.turns if turn.started_at <= begun] or session.turns[:1]
    if not fitting:
        path = f"{session.path}.1" if session.path else "1"
        fitting = [TurnNode(node_id(txn, path), path, 1, begun, [])]
        session.turns.append(fitting[0])
    turn = fitting[-1]
    path = f"{turn.path}.{len(turn.ops) + 1}"
    op = OperationNode(node_id(txn, path), path, "session", str(ledger.start.get("agentId") or "(unknown)"), begun, (), ())
    turn.ops.append(op)
    return op


def _end(session: SessionNode, record: dict[str, Any]) -> None:
    attributes = object_of(record.get("attributes"))
    session.ended_at = _time(record.get("ts")) or session.started_at
    session.status = _status(record) if record["recordType"] == "session_summary" else "failed"
    session.success = None if session.status is None else session.status == "ok"
    session.error = text_of(record.get("error"))
    report = attributes.get("finalReport", record.get("finalReport"))
    session.final_report = UNSET if report is None else json_of(report)


def _status(record: dict[str, Any]) -> Status | None:
    """Return how a node ended; None where its record does not say."""
    status = record.get("status")
    return None if status in (None, "running") else "ok" if status == "ok" else "failed"


def _time(value: Any) -> float | None:
    """Return a record's time in epoch milliseconds; None if it is none."""
    try:
        return float(int(datetime.fromisoformat(value).timestamp() * 1000 + 0.5)) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
