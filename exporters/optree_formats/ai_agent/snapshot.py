"""Versions 1 and 2: one gzip file with one JSON document, member for member as the original writes it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from optree.errors import StoreError
from optree.ids import trace_id
from optree.nodes import AccountingEntry, LogEntry, OperationNode, Payload, SessionNode, TurnNode
from optree.store.snapshot import MAX_NESTED
from optree.tree import Tree, walk_sessions
from optree.values import decode
from optree_formats.ai_agent.terms import attributes_of_op, attributes_of_turn, children, ms, numbered, payload

MONEY_DECIMALS = 4


def document(tree: Tree, version: int) -> bytes:
    """Return a tree as the JSON of a snapshot of version 1 or 2. Raises `StoreError` if it is nested more deeply than readers go."""
    root = tree.session
    if any(session.path.count(".") >= 2 * MAX_NESTED for session in walk_sessions(root)):
        raise StoreError(
            f"session {root.origin_txn_id} is nested more than {MAX_NESTED} deep, which no file of ai-agent holds: use --to json"
        )
    whole: dict[str, Any] = {"version": version, "reason": "subagent_finish" if root.ended_at is None else "final"}
    if version > 1:
        txn = root.origin_txn_id
        whole |= {"sessionId": root.id, "originId": txn, "originTxnId": txn, "timestamp": ms(root.ended_at or root.started_at)}
    return msgspec.json.encode({**whole, "opTree": _Writer(tree, version).session(root)})


class _Writer:
    def __init__(self, tree: Tree, version: int) -> None:
        self._pool = tree.pool
        self._version = version
        self._agents: dict[str, int] = {}
        for session in reversed(list(walk_sessions(tree.session))):
            self._agents[session.path] = 1 + sum(self._agents[child.path] for child in children(session))

    def session(self, session: SessionNode) -> dict[str, Any]:
        derived = trace_id(session.origin_txn_id)
        found: dict[str, Any] = {
            "id": session.id,
            "traceId": session.id if session.trace_id == derived else session.trace_id,
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "sessionTitle": session.session_title or "",
            "latestStatus": session.latest_status,
            "startedAt": ms(session.started_at),
            "endedAt": None if session.ended_at is None else ms(session.ended_at),
            "success": session.success,
            "error": session.error,
            "attributes": session.attributes or None,
            "totals": self._totals(session),
            "turns": [self._turn(turn, session) for turn in session.turns],
        }
        if self._version > 1:
            found["steps"] = []
            found["finalReport"] = None if session.final_report is UNSET else decode(session.final_report)
        return _set(found)

    def _totals(self, session: SessionNode) -> dict[str, Any]:
        totals = session.totals
        found: dict[str, Any] = {
            "tokensIn": totals.input_tokens,
            "tokensOut": totals.output_tokens,
            "tokensCacheRead": totals.cache_read_input_tokens,
            "tokensCacheWrite": totals.cache_write_input_tokens,
            "costUsd": round(totals.cost_usd, MONEY_DECIMALS) or None,
            "toolsRun": totals.tools_run,
        }
        if self._version > 1:
            found["agentsRun"] = self._agents[session.path]
        return _set(found)

    def _turn(self, turn: TurnNode, session: SessionNode) -> dict[str, Any]:
        found = {
            "id": turn.id,
            "index": turn.index,
            "startedAt": ms(turn.started_at),
            "endedAt": None if turn.ended_at is None else ms(turn.ended_at),
            "attributes": attributes_of_turn(turn) or None,
            "ops": [self._op(op, number, turn, session) for number, op in numbered(turn)],
        }
        return _set(found)

    def _op(self, op: OperationNode, number: int, turn: TurnNode, session: SessionNode) -> dict[str, Any]:
        context = {
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "txnId": session.id,
            "parentTxnId": session.parent_txn_id,
            "originTxnId": session.origin_txn_id,
        }
        path = f"{turn.index}{'.' if self._version == 1 else '-'}{number}"
        place = {"turn": turn.index, "subturn": number, "path": path}
        found: dict[str, Any] = {
            "opId": op.op_id,
            "kind": op.kind,
            "startedAt": ms(op.started_at),
            "endedAt": None if op.ended_at is None else ms(op.ended_at),
            "status": None if op.status is None else "ok" if op.status == "ok" else "failed",
            "attributes": attributes_of_op(op) or None,
            "logs": [_log(entry, op, place, context) for entry in op.logs],
            "accounting": [_accounted(entry, context) for entry in op.accounting],
            "request": self._payload(op.request),
            "response": self._payload(op.response),
        }
        if op.reasoning is not None:
            chunks = [{"text": chunk.text, "ts": ms(chunk.ts)} for chunk in op.reasoning.chunks]
            found["reasoning"] = _set({"chunks": chunks, "final": op.reasoning.final})
        if op.child_session is not None:
            found["childSession"] = self.session(op.child_session)
        return _set(found)

    def _payload(self, part: Payload | None) -> dict[str, Any] | None:
        if part is None:
            return None
        after = _set({"size": part.size, "truncated": part.truncated})
        return {**_set({"kind": part.kind}), "payload": payload(self._pool, part.payload), **after}


def _log(entry: LogEntry, op: OperationNode, place: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "timestamp": ms(entry.timestamp),
        "severity": entry.severity,
        **place,
        "direction": entry.direction,
        "type": "llm" if op.kind == "llm" else "tool",
        "remoteIdentifier": op.name or op.kind,
        "fatal": False,
        "message": entry.message,
        **context,
        "details": None if entry.details is UNSET else decode(entry.details),
    }
    return _set(found)


def _accounted(entry: AccountingEntry, context: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(entry)
    del found["id"]
    found |= {"timestamp": ms(entry.timestamp), "status": entry.status}
    if entry.latency is not None:
        found["latency"] = ms(entry.latency)
    if entry.tokens is not None:
        found["tokens"] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **found["tokens"]}
    return {**found, **_set(context)}


def _set(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without the members that are not set."""
    return {key: value for key, value in block.items() if value is not None}
