"""The snapshot summary of seed 004 (`buildSnapshotFromOpTree`): a line an agent, the totals, the time."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from optree.clock import now_ms
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.tree.walk import Rooted, root_of, walk_sessions
from optree.values import is_object

ENDED = "ended"
"""The state of what has an end and no word on how, as in files of other programs."""
_SHORTEST = 0.05
"""Milliseconds that read as more than 0.0: of what broke off nothing shorter is told."""


def state(node: SessionNode | TurnNode | OperationNode, *, live: bool = True) -> str:
    """Return a node's state for people: its status, or `ENDED`, or `running` (`interrupted` where nothing lives any more).

    Every view and every format that shows an outcome takes it from here.
    """
    if node.status is not None:
        return node.status
    if node.ended_at is not None:
        return ENDED
    return "running" if live else "interrupted"


class Seen(NamedTuple):
    """What there is to know of times in a tree."""

    live: bool
    """True if its process goes on."""
    until: float
    """When it was last seen to live, in epoch ms."""
    untimed: float | None
    """What `untimed_until` gives."""


def untimed_until(root: SessionNode) -> float | None:
    """Return up to when the times in a root session, of a conversation that has none, are only an order; None if all are times."""
    block = root.attributes.get("conversation")
    found = block.get("untimedUntil") if is_object(block) else None
    return found if isinstance(found, int | float) else None


def seen_of(root: SessionNode, *, live: bool) -> Seen:
    """Return up to when a tree is known, which is now if its process is *live*."""
    return Seen(live, now_ms() if live else last_seen(root), untimed_until(root))


def took(node: SessionNode | TurnNode | OperationNode, seen: Seen) -> float | None:
    """Return how long a node took, in milliseconds; of what broke off, at least. None if nobody knows."""
    ended = seen.until if node.ended_at is None else node.ended_at
    latency = node.latency if isinstance(node, OperationNode) else None
    began = node.started_at if latency is None else ended - latency
    return lasted(began, ended, seen.untimed, broke_off=state(node, live=seen.live) == "interrupted")


def lasted(began: float, ended: float, untimed: float | None, *, broke_off: bool) -> float | None:
    """Return how long something took, never negative; None if nobody knows, as of what broke off and was not seen after its begin."""
    found = max(0.0, ended - began)
    return None if (untimed is not None and ended <= untimed) or (broke_off and found < _SHORTEST) else found


def snapshot_summary(root: Rooted, *, live: bool = True) -> dict[str, Any]:
    """Return what is going on in a tree, for a display that is refreshed: a line an agent, the totals, the time.

    Args:
        root: As for `walk_sessions`.
        live: Whether the process that records it goes on.

    Returns:
        ``{lines, totals, runStartedAt, runElapsedSec}``: epoch milliseconds and seconds. A line is ``{agentId, callPath, path, status,
            elapsedSec, title, latestStatus}``; an ``elapsedSec`` that nobody knows is None.
    """
    root = root_of(root)
    seen = seen_of(root, live=live)
    lines = [
        {
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "path": session.path,
            "status": state(session, live=live),
            "elapsedSec": None if (known := took(session, seen)) is None else round(known / 1e3, 3),
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
