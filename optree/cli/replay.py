"""A tree as the records that would make it, in the order of time: what prints a running session prints a saved one too."""

from __future__ import annotations

from collections.abc import Iterator

from optree import records as r
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.tree.path import Path
from optree.tree.summary import op_seen
from optree.tree.walk import walk_sessions

Placed = tuple[float, int, int, r.Record]
"""Time, then at one time: begins, contents, ends; then begins from above and ends from below."""
_BEGIN, _FIRST, _WITHIN, _LAST, _END = range(5)


def replay(root: SessionNode) -> list[r.Record]:
    """Return records that console lines can be rendered from; the reasoning of an op is one record."""
    placed: list[Placed] = []
    for session in walk_sessions(root):
        placed += _session(session)
        for turn in session.turns:
            placed += _turn(turn)
            for op in turn.ops:
                placed += _op(op)
    placed.sort(key=lambda one: one[:3])
    return [record for *_, record in placed]


def _session(session: SessionNode) -> Iterator[Placed]:
    level = len(Path.parse(session.path).parts)
    yield session.started_at, _BEGIN, level, r.SessionBegin(session.path, session.started_at, session.agent_id, session.call_path)
    for ts in session.resumed_at:
        yield ts, _BEGIN, level, r.SessionResume(session.path, ts)
    if session.ended_at is not None:
        record = r.SessionEnd(session.path, session.ended_at, session.status, session.error)
        yield session.ended_at, _END, -level, record


def _turn(turn: TurnNode) -> Iterator[Placed]:
    level = len(Path.parse(turn.path).parts)
    yield turn.started_at, _BEGIN, level, r.TurnBegin(turn.path, turn.started_at, turn.prompts)
    if turn.ended_at is not None:
        last = max([turn.ended_at, *(op_seen(op) for op in turn.ops)])
        yield last, _END, -level, r.TurnEnd(turn.path, turn.ended_at, turn.status, turn.error)


def _op(op: OperationNode) -> Iterator[Placed]:
    level = len(Path.parse(op.path).parts)
    end = op.ended_at if op.ended_at is not None else op_seen(op)
    yield op.started_at, _BEGIN, level, r.OpBegin(op.path, op.started_at, op.kind, op.name)
    if op.request is not None:
        yield op.started_at, _FIRST, level, r.Requested(op.path, op.started_at, op.request)
    if op.reasoning is not None and op.reasoning.chunks:
        yield op.reasoning.chunks[0].ts, _WITHIN, level, r.Entries(op.path, chunks=op.reasoning.chunks)
    for at, entry in enumerate(op.logs):
        yield entry.timestamp, _WITHIN, level, r.Entries(op.path, logs_at=at, logs=[entry])
    for cost in op.accounting:
        yield min(cost.timestamp, end), _WITHIN, level, r.Accounted(op.path, cost)
    if op.response is not None:
        yield end, _LAST, level, r.Responded(op.path, end, op.response)
    if op.ended_at is not None:
        yield end, _END, -level, r.OpEnd(op.path, end, op.status, op.latency, op.error)
