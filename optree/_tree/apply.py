"""What each record does to the tree. The live builder and the fold over a file call the same functions, so they cannot differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from optree import _records as r
from optree._ids import node_id
from optree._nodes import (
    SNAPSHOT,
    AccountingEntry,
    LogEntry,
    OperationNode,
    Payload,
    Reasoning,
    ReasoningChunk,
    SessionNode,
    TurnNode,
    is_placeholder,
    was_made_again,
)
from optree._speed import untracked
from optree._tree.path import last_index
from optree._values import MAX_TEXT, decode, encode, object_of, raw


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


def set_op(op: OperationNode, record: r.OpSet) -> None:
    """Give an op its final name, and more attributes."""
    op.name = op.name if record.name is None else record.name
    op.attributes_json = merged(op.attributes_json, record.attributes)
    _set_reasoning(op, record.reasoning)


def set_turn(turn: TurnNode, record: r.TurnSet) -> None:
    """Add to a turn what was recorded after its begin, or its end."""
    turn.assistant = turn.assistant if record.assistant is None else record.assistant
    turn.prompts = turn.prompts if record.prompts is None else {**(turn.prompts or {}), **record.prompts}
    turn.ended_at = _later(turn.ended_at, record.ended_at)


def set_session(session: SessionNode, record: r.SessionSet) -> None:
    """Add to a session what was recorded after its begin, or its end."""
    session.session_title = record.title if record.title is not None else session.session_title
    session.latest_status = record.latest_status if record.latest_status is not None else session.latest_status
    session.attributes_json = merged(session.attributes_json, record.attributes)
    if record.prices is not UNSET:
        before: dict[str, Any] = {} if session.attributes_json is UNSET else decode(session.attributes_json)
        known: Any = before.get(SNAPSHOT)
        session.attributes_json = raw({**before, SNAPSHOT: {**object_of(known), **decode(record.prices)}})
    if record.final_report is not UNSET:
        session.final_report = record.final_report
    session.ended_at = _later(session.ended_at, record.ended_at)


def account(op: OperationNode, entry: AccountingEntry) -> bool:
    """Add an accounting entry to an op; False if a placeholder is left out for it: then the totals have to be summed anew."""
    every = (*op.accounting, entry)
    op.accounting = without_placeholder(every)
    return len(op.accounting) == len(every)


def takes_back(before: AccountingEntry, after: AccountingEntry) -> bool:
    """Tell whether a later record of an entry has less than an earlier one: it is an old record that comes again."""
    return (before.status != "ok" == after.status) or (before.cost_usd is not None and after.cost_usd is None)


def without_placeholder(entries: tuple[AccountingEntry, ...]) -> tuple[AccountingEntry, ...]:
    """Return an op's accounting entries; the placeholder for a call of which nothing was known is left out where another tells of it."""
    if len(entries) == 1 or all(is_placeholder(entry.id) or was_made_again(entry) for entry in entries):
        return entries
    return tuple(entry for entry in entries if not is_placeholder(entry.id))


def add_entries(op: OperationNode, logs: Sequence[LogEntry], chunks: Sequence[ReasoningChunk]) -> None:
    """Add log lines and reasoning chunks behind an op's."""
    if logs:
        op.logs = (*op.logs, *logs)
    if chunks:
        if op.reasoning is None:
            op.reasoning = Reasoning()
        op.reasoning.chunks = (*op.reasoning.chunks, *chunks)


def set_partial_response(op: OperationNode, text: str) -> None:
    """Take the text that was streamed so far as an op's answer, in part, unless it has a whole one."""
    if op.response is None or op.response.partial:
        data = encode(text)
        truncated = True if len(data) > MAX_TEXT and b"[TRUNCATED] Original size" in data else None
        op.response = Payload(Raw(data), None, len(text), truncated, True)


def add_beside(op: OperationNode, streamed: str) -> None:
    """Append text of an op's answer that another process streamed; where the answer is not text, add it as a log line."""
    before = op.response
    known = "" if before is None else decode(before.payload)
    if before is not None and not isinstance(known, str):
        add_entries(op, [LogEntry(op.ended_at or op.started_at, "WRN", f"another process streamed of the answer too: {streamed}")], ())
        return
    data = encode(f"{known}{streamed}")
    op.response = Payload(Raw(data), None, len(known) + len(streamed), None, True if before is None else before.partial)


def end_op(op: OperationNode, record: r.OpEnd) -> None:
    """End an op; what it began with stays, what the end says is merged in."""
    op.ended_at = record.ts
    op.status = record.status
    op.latency = record.latency
    op.error = record.error
    _set_reasoning(op, record.reasoning)
    if record.attributes is not UNSET:
        op.attributes_json = merged(op.attributes_json, record.attributes)


def end_turn(turn: TurnNode, record: r.TurnEnd) -> None:
    """End a turn."""
    turn.ended_at = record.ts
    turn.status = record.status
    turn.error = record.error


def end_session(session: SessionNode, record: r.SessionEnd) -> None:
    """End a session; only `ok` counts as success, and nothing is known of one without a status."""
    session.ended_at = record.ts
    session.status = record.status
    session.success = None if record.status is None else record.status == "ok"
    session.error = record.error
    if record.final_report is not UNSET:
        session.final_report = record.final_report


def resume_session(session: SessionNode, record: r.SessionResume) -> None:
    """Open an ended or interrupted session again."""
    if record.ts not in session.resumed_at:
        session.resumed_at.append(record.ts)
    if session.ended_at is None or session.ended_at <= record.ts:
        session.ended_at = session.status = session.success = session.error = None


def _set_reasoning(op: OperationNode, final: str | None) -> None:
    if final is not None:
        if op.reasoning is None:
            op.reasoning = Reasoning()
        op.reasoning.final = final


def _later(ended: float | None, reported: float | None) -> float | None:
    """Return the later of two ends of a node that has ended; *ended* if the node is open or no other end was reported."""
    return ended if ended is None or reported is None else max(ended, reported)


def merged(old: Raw | UnsetType, new: Raw | UnsetType) -> Raw | UnsetType:
    """Return two JSON objects as one, the second's members winning."""
    if new is UNSET or old is UNSET:
        return old if new is UNSET else new
    return raw({**decode(old), **decode(new)})
