"""What each record does to the tree. The live builder and the fold over a file call the same functions, so they cannot differ."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

from optree import records as r
from optree.ids import node_id
from optree.nodes import AccountingEntry, LogEntry, OperationNode, Reasoning, ReasoningChunk, SessionNode, TurnNode
from optree.speed import untracked
from optree.tree.path import last_index
from optree.values import decode, raw


def new_session(origin: str, path: str, trace: str, agent: str, call_path: str, ts: float) -> SessionNode:
    """Make the node of a session; *path* is empty for the root."""
    return SessionNode(
        id=node_id(origin, path),
        path=path,
        trace_id=trace,
        agent_id=agent,
        call_path=call_path,
        origin_txn_id=origin,
        started_at=ts,
        turns=untracked([]),
    )


def begin_turn(session: SessionNode, record: r.TurnBegin) -> TurnNode:
    """Add a turn."""
    turn = TurnNode(
        id=node_id(session.origin_txn_id, record.path),
        path=record.path,
        index=last_index(record.path),
        started_at=record.ts,
        ops=untracked([]),
        prompts=record.prompts,
        attributes_json=record.attributes,
    )
    session.turns.append(turn)
    return turn


def begin_op(origin: str, turn: TurnNode, record: r.OpBegin) -> OperationNode:
    """Add an op."""
    path = record.path
    op = OperationNode(f"{origin}:{path}", path, record.kind, record.name, record.ts, (), ())
    if record.parent_op is not None:
        op.parent_op = record.parent_op
    if record.attributes is not UNSET:
        op.attributes_json = record.attributes
    turn.ops.append(op)
    return op


def account(op: OperationNode, entry: AccountingEntry) -> None:
    """Add an accounting entry to an op."""
    op.accounting = (*op.accounting, entry)


def add_entries(op: OperationNode, logs: Sequence[LogEntry], chunks: Sequence[ReasoningChunk]) -> None:
    """Add log lines and reasoning chunks behind an op's."""
    if logs:
        op.logs = (*op.logs, *logs)
    if chunks:
        if op.reasoning is None:
            op.reasoning = Reasoning()
        op.reasoning.chunks = (*op.reasoning.chunks, *chunks)


def end_op(op: OperationNode, record: r.OpEnd) -> None:
    """End an op; what it began with stays, what the end says is merged in."""
    op.ended_at = record.ts
    op.status = record.status
    op.latency = record.latency
    op.error = record.error
    if record.reasoning is not None:
        if op.reasoning is None:
            op.reasoning = Reasoning()
        op.reasoning.final = record.reasoning
    if record.attributes is not UNSET:
        op.attributes_json = merged(op.attributes_json, record.attributes)


def end_turn(turn: TurnNode, record: r.TurnEnd) -> None:
    """End a turn."""
    turn.ended_at = record.ts
    turn.status = record.status
    turn.error = record.error


def end_session(session: SessionNode, record: r.SessionEnd) -> None:
    """End a session; only `ok` counts as success."""
    session.ended_at = record.ts
    session.status = record.status
    session.success = record.status == "ok"
    session.error = record.error
    session.final_report = record.final_report


def resume_session(session: SessionNode, record: r.SessionResume) -> None:
    """Open an ended or interrupted session again."""
    if record.ts not in session.resumed_at:
        session.resumed_at.append(record.ts)
    if session.ended_at is None or session.ended_at <= record.ts:
        session.ended_at = session.status = session.success = session.error = None


def merged(old: Raw | UnsetType, new: Raw | UnsetType) -> Raw | UnsetType:
    """Return two JSON objects as one, the second's members winning."""
    if new is UNSET or old is UNSET:
        return old if new is UNSET else new
    return raw({**decode(old), **decode(new)})
