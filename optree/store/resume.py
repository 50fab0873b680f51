"""What resuming records: the end of everything that a crash left open, and that the session goes on."""

from __future__ import annotations

from collections.abc import Callable

from optree import records as r
from optree.builder import SessionTreeBuilder
from optree.builder.core import Core
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.store.recovery import open_nodes
from optree.tree import apply
from optree.tree.summary import last_seen, op_seen

Put = Callable[[r.Record], None]
_LATER = 0.001
"""Milliseconds: a resume is later than all ends and resumes before it."""
WHY = "the process ended before this did"


def close_interrupted(builder: SessionTreeBuilder, core: Core) -> None:
    """End all open nodes as `interrupted`, each at the last time it was seen, and open the root session again."""
    root = builder.node
    stream = core.stream
    held = stream.enter()
    try:
        for node in open_nodes(root):
            if isinstance(node, OperationNode):
                _end_op(node, stream.put)
            elif isinstance(node, TurnNode):
                _end_turn(node, stream.put)
            elif node is not root:
                _end_session(node, stream.put)
        before = [time + _LATER for time in (root.ended_at or 0.0, *root.resumed_at)]
        record = r.SessionResume("", max(core.now_ms(), *before))  # this machine's clock may be behind
        apply.resume_session(root, record)
        stream.put(record)
    finally:
        stream.leave(held)


def _end_op(op: OperationNode, put: Put) -> None:
    seen = last_seen(op.child_session) if op.child_session else op_seen(op)
    record = r.OpEnd(op.path, seen, "interrupted", seen - op.started_at, WHY)
    apply.end_op(op, record)
    put(record)


def _end_turn(turn: TurnNode, put: Put) -> None:
    seen = max([turn.started_at, *(op.ended_at or 0.0 for op in turn.ops)])
    record = r.TurnEnd(turn.path, seen, "interrupted", WHY)
    apply.end_turn(turn, record)
    put(record)


def _end_session(session: SessionNode, put: Put) -> None:
    record = r.SessionEnd(session.path, last_seen(session), "interrupted", WHY)
    apply.end_session(session, record)
    put(record)
