"""What the original ai-agent calls things, in all versions of its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optree.nodes import OperationNode, Pool, SessionNode, TurnNode
from optree.values import decode

IN_FIELDS = ("provider", "model", "name", "latency", "error")
"""Op attributes of the original that are fields of ours."""


def ms(time: float) -> int:
    """Return a time as the original counts it: whole milliseconds."""
    return int(time)


def outcome(status: str | None, *, ended: bool) -> str:
    """Return the status of a turn, an op or a session: ``ok``, ``failed`` or ``running``."""
    return "running" if not ended else "ok" if status == "ok" else "failed"


def named(op: OperationNode) -> tuple[str, str]:
    """Return the provider of an op, empty if it has none, and its model or name; both empty where the kind says it all."""
    provider, colon, name = op.name.partition(":")
    if op.name == op.kind:
        return "", ""
    return (provider, name) if colon and provider and name else ("", op.name)


def attributes_of_op(op: OperationNode) -> dict[str, Any]:
    """Return an op's attributes with what the original keeps among them."""
    provider, name = named(op)
    known = {"provider": provider, "model" if op.kind == "llm" else "name": name}
    found: dict[str, Any] = {key: value for key, value in known.items() if value}
    found |= {key: value for key, value in op.attributes.items() if key not in IN_FIELDS}
    if op.latency is not None:
        found["latency"] = ms(op.latency)
    if op.error is not None:
        found["error"] = op.error
    return found


def attributes_of_turn(turn: TurnNode) -> dict[str, Any]:
    """Return a turn's attributes with its prompts and what the assistant said."""
    found = turn.attributes
    for name in ("prompts", "assistant"):
        block = getattr(turn, name)
        if block is not None:
            found[name] = block
    return found


def payload(pool: Pool, raw: bytes) -> Any:
    """Return a payload with the histories and long texts that it refers to."""
    return pool.resolve(decode(raw))


def numbered(turn: TurnNode) -> Iterator[tuple[int, OperationNode]]:
    """Yield a turn's ops with the numbers that their order gives them."""
    return enumerate(turn.ops, 1)


def children(session: SessionNode) -> Iterator[SessionNode]:
    """Yield a session's own child sessions."""
    return (op.child_session for turn in session.turns for op in turn.ops if op.child_session is not None)
