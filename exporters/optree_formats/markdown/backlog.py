"""What a session has when its log begins to follow it, as the records that made it; and what of that its log has already.

So a log that is begun in the middle has all, and one that a killed process left gets what it lacks: how the session was resumed, and how
that ended which the kill interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optree import records as r
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.tree import Tree, walk_sessions
from optree_formats.markdown.reader import extract_events
from optree_formats.markdown.to_tree import node_path

Key = tuple[object, ...]
_SEVERAL = frozenset(["session_resume", "session_end", "agent_end", "addition"])
"""Types that a node may have more than once."""
_TITLED = frozenset(["session_start", "agent_start", "session_update"])


def records(tree: Tree) -> list[r.Record]:
    """Return what a tree is made of, in the order of time. Takes no longer than a copy of its nodes."""
    found = [timed for session in walk_sessions(tree.session) for timed in _of_session(session)]
    found.sort(key=lambda timed: timed[0])
    return [record for _, record in found]


def known(log: Path) -> Counter[Key]:
    """Return what tells a log's events from each other, each as often as it is there. Raises `OSError`."""
    return Counter(key for fields in extract_events(log) for key in _keys(fields))


def key(fields: dict[str, Any]) -> Key:
    """Return what tells an event from all others of its log."""
    kind, path = fields["type"], node_path(fields)
    if kind == "session_update":
        return kind, path, fields.get("title"), fields.get("latest_status")
    if kind == "message":
        return kind, path, fields.get("timestamp"), fields.get("role"), fields.get("id")
    return (kind, path, fields.get("timestamp")) if kind in _SEVERAL else (kind, path)


def _keys(fields: dict[str, Any]) -> Iterator[Key]:
    if "type" in fields:
        yield key(fields)
    if fields.get("type") in _TITLED and ("title" in fields or "latest_status" in fields):
        yield key({**fields, "type": "session_update"})


def _of_session(session: SessionNode) -> Iterator[tuple[float, r.Record]]:
    path, begun = session.path, session.started_at
    yield (
        begun,
        r.SessionBegin(path=path, ts=begun, agent=session.agent_id, call_path=session.call_path, attributes=session.attributes_json),
    )
    if session.session_title is not None or session.latest_status is not None:
        yield begun, r.SessionSet(path=path, ts=begun, title=session.session_title, latest_status=session.latest_status)
    for ts in session.resumed_at:
        yield ts, r.SessionResume(path=path, ts=ts)
    latest = begun
    for number, message in enumerate(session.messages):
        latest = max(latest, message.timestamp)
        yield latest, r.MessageAdded(path=path, at=number, message=message)
    for turn in session.turns:
        yield from _of_turn(turn)
    if session.ended_at is not None:
        yield max(begun, session.ended_at), r.SessionEnd(path, session.ended_at, session.status, session.error, session.final_report)


def _of_turn(turn: TurnNode) -> Iterator[tuple[float, r.Record]]:
    yield turn.started_at, r.TurnBegin(turn.path, turn.started_at, turn.prompts, turn.attributes_json)
    for op in turn.ops:
        yield from _of_op(op)
    at = turn.started_at if turn.ended_at is None else max(turn.started_at, turn.ended_at)
    if turn.assistant is not None:
        yield at, r.TurnSet(turn.path, turn.assistant)
    if turn.ended_at is not None:
        yield at, r.TurnEnd(turn.path, turn.ended_at, turn.status, turn.error)


def _of_op(op: OperationNode) -> Iterator[tuple[float, r.Record]]:
    path, begun = op.path, op.started_at
    yield begun, r.OpBegin(path, begun, op.kind, op.name, op.parent_op, op.attributes_json)
    if op.request is not None:
        yield begun, r.Requested(path, begun, op.request)
    at = begun if op.ended_at is None else max(begun, op.ended_at)
    chunks = op.reasoning.chunks if op.reasoning is not None else ()
    if op.logs or chunks:
        yield at, r.Entries(path, -1, op.logs, -1, chunks)
    for entry in op.accounting:
        yield at, r.Accounted(path, entry)
    if op.response is not None:
        yield at, r.Responded(path, at, op.response)
    if op.ended_at is not None:
        final = op.reasoning.final if op.reasoning is not None else None
        yield at, r.OpEnd(path, op.ended_at, op.status, op.latency, op.error, final)
