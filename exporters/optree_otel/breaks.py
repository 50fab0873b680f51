"""When nodes ended that a crash broke off: as far as one can tell, at the last sign of life in them, or around them.

What was open when its process was last known to live (`SessionNode.seen_at`) lasted until then at least. Where nobody has noted that, an op
of which nothing was heard after its start would take no time; it is told to last as long as what it is in was heard of, so that its bar
stands where the run broke off.
"""

from __future__ import annotations

from collections.abc import Sequence

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import parent_path
from optree_otel.scope import SpanScope


def op_end(op: OperationNode, scope: SpanScope) -> float:
    """Return when an op ended, in epoch ms."""
    if op.ended_at is not None and (op.status != "interrupted" or op.ended_at > op.started_at):
        return op.ended_at
    own = max(op.started_at, last_of(op), _seen(op, scope))
    if op.child_session is not None:
        own = max(own, op.child_session.started_at, latest(op.child_session.turns))
    if own > op.started_at:
        return own
    turn = next((one for one in scope.session.turns if one.path == parent_path(op.path)), None)
    return own if turn is None else max(own, _around(turn, scope))


def turn_end(turn: TurnNode, scope: SpanScope) -> float:
    """Return when a turn ended, in epoch ms."""
    if turn.ended_at is not None and turn.status != "interrupted":
        return turn.ended_at
    return max(turn.started_at, _seen(turn, scope), _around(turn, scope))


def session_end(session: SessionNode, began: float, scope: SpanScope) -> float:
    """Return when a session ended that began, or was resumed, at *began*; both in epoch ms."""
    return session.ended_at if session.ended_at is not None else max(began, _seen(session, scope), latest(session.turns))


def _seen(node: OperationNode | TurnNode | SessionNode, scope: SpanScope) -> float:
    """Return when a node that is open still was last known to be; 0 where nobody knows."""
    return 0.0 if node.ended_at is not None or scope.seen_at is None else scope.seen_at


def _around(turn: TurnNode, scope: SpanScope) -> float:
    """Return the last sign of life in a turn, or in its session if both broke off: not of what came after a resume."""
    if not _broke_off(turn):
        return turn.started_at
    last = max(turn.ended_at or 0.0, latest([turn]))
    session = scope.session
    if not _broke_off(session) or any(at > turn.started_at for at in session.resumed_at):
        return last
    if scope.last_sign is None:
        scope.last_sign = session_end(session, session.started_at, scope)
    return max(last, scope.last_sign)


def _broke_off(node: OperationNode | TurnNode | SessionNode) -> bool:
    return node.ended_at is None or node.status == "interrupted"


def latest(turns: Sequence[TurnNode]) -> float:
    """Return the last moment that anything in *turns* is known of, in epoch ms: where an interrupted node ended, as far as one can tell."""
    found = 0.0
    pending = list(turns)
    while pending:
        turn = pending.pop()
        found = max(found, turn.started_at, turn.ended_at or 0.0)
        for op in turn.ops:
            found = max(found, last_of(op))
            if op.child_session is not None and op.ended_at is None:
                child = op.child_session
                found = max(found, child.started_at, child.ended_at or 0.0)
                pending.extend(child.turns)
    return found


def last_of(op: OperationNode) -> float:
    """Return the last moment that is known of an op itself, in epoch ms."""
    if op.ended_at is not None:
        return op.ended_at
    chunks = op.reasoning.chunks if op.reasoning is not None else ()
    return max(
        op.started_at,
        op.logs[-1].timestamp if op.logs else 0.0,
        op.accounting[-1].timestamp if op.accounting else 0.0,
        chunks[-1].ts if chunks else 0.0,
    )
