"""The snapshot summary of seed 004 (`buildSnapshotFromOpTree`): a line an agent, the totals, the time."""

from __future__ import annotations

from typing import Any

import msgspec

from optree.clock import now_ms
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.tree.walk import Rooted, root_of, walk_sessions

ENDED = "ended"
"""The state of what has an end and no word on how, as in files of other programs."""


def state(node: SessionNode | TurnNode | OperationNode, *, live: bool = True) -> str:
    """Return a node's state for people: its status, or `ENDED`, or `running` (`interrupted` where nothing lives any more).

    Every view and every format that shows an outcome takes it from here.
    """
    if node.status is not None:
        return node.status
    if node.ended_at is not None:
        return ENDED
    return "running" if live else "interrupted"


def snapshot_summary(root: Rooted, *, live: bool = True) -> dict[str, Any]:
    """Return ``{lines, totals, runStartedAt, runElapsedSec}``.

    A line is ``{agentId, callPath, path, status, elapsedSec, title, latestStatus}``.
    """
    root = root_of(root)
    until = now_ms() if live else last_seen(root)
    lines = [
        {
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "path": session.path,
            "status": state(session, live=live),
            "elapsedSec": round(max(0.0, (session.ended_at or until) - session.started_at) / 1e3, 3),
            "title": session.session_title,
            "latestStatus": session.latest_status,
        }
        for session in walk_sessions(root)
    ]
    totals = {**msgspec.to_builtins(root.totals), "unknownCosts": root.totals.unknown_costs, "agentsRun": len(lines)}
    return {"lines": lines, "totals": totals, "runStartedAt": root.started_at, "runElapsedSec": lines[0]["elapsedSec"]}


def last_seen(session: SessionNode) -> float:
    """Return the last time at which anything in a session was seen to happen, or its process to live, in epoch ms."""
    latest = max(session.started_at, session.seen_at or 0.0)
    for one in walk_sessions(session):
        latest = max(latest, one.ended_at or 0.0, *(message.timestamp for message in one.messages[-1:]), 0.0)
        for turn in one.turns:
            latest = max(latest, turn.ended_at or turn.started_at, *(op_seen(op) for op in turn.ops), 0.0)
    return latest


def op_seen(op: OperationNode) -> float:
    """Return the last time at which anything in an op itself was seen to happen, in epoch ms."""
    chunks = op.reasoning.chunks[-1:] if op.reasoning else ()
    times = [op.started_at, op.ended_at or 0.0, *(entry.timestamp for entry in op.logs[-1:]), *(chunk.ts for chunk in chunks)]
    return max([*times, *(entry.timestamp for entry in op.accounting[-1:])])
