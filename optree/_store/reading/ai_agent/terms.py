"""What the original ai-agent calls things, in all versions of its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optree._ids import trace_id
from optree._nodes import OperationNode, Pool, SessionNode, TurnNode
from optree._values import decode, is_object

IN_FIELDS = ("provider", "model", "name", "latency", "error")
"""Op attributes of the original that are fields of ours."""
STEP = "step"
"""Turn attribute: which step of version 2 it was."""


def ms(time: float) -> int:
    """Return a time as the original counts it: whole milliseconds."""
    return int(time)


def outcome(status: str | None, *, ended: bool) -> str | None:
    """Return the status of a turn, an op or a session: ``ok``, ``failed`` or ``running``; None if it ended without a status."""
    if not ended:
        return "running"
    return None if status is None else "ok" if status == "ok" else "failed"


def name_of(kind: str, attributes: dict[str, Any]) -> str:
    """Return the name of an op by its attributes: its provider and its model or name, or the label of one of the system."""
    known = (attributes.get("provider"), attributes.get("model" if kind == "llm" else "name"))
    return ":".join(str(part) for part in known if part) or _label(attributes) or kind


def named(op: OperationNode) -> tuple[str, str]:
    """Return the provider of an op, empty if it has none, and its model or name; both empty where kind or label say it all."""
    provider, colon, name = op.name.partition(":")
    if op.name == (_label(op.attributes) or op.kind):
        return "", ""
    return (provider, name) if colon and provider and name else ("", op.name)


def _label(attributes: dict[str, Any]) -> str:
    label = attributes.get("label")
    return label if isinstance(label, str) else ""


def txn_of(session: SessionNode) -> str:
    """Return a session's own transaction id, which the original calls its trace."""
    return session.id if session.trace_id == trace_id(session.origin_txn_id) else session.trace_id


def step_of(turn: TurnNode) -> dict[str, Any] | None:
    """Return what a turn that was a step of version 2 has of it, ``{index, kind}``; None for any other."""
    step = turn.attributes.get(STEP)
    return step if is_object(step) and isinstance(step.get("kind"), str) and step.keys() <= {"index", "kind"} else None


def attributes_of_op(op: OperationNode) -> dict[str, Any]:
    """Return an op's attributes with what the original keeps among them."""
    provider, name = named(op)
    known = {"provider": provider, "model" if op.kind == "llm" else "name": name}
    attributes: dict[str, Any] = {key: value for key, value in known.items() if value}
    attributes |= {key: value for key, value in op.attributes.items() if key not in IN_FIELDS}
    if op.latency is not None:
        attributes["latency"] = ms(op.latency)
    if op.error is not None:
        attributes["error"] = op.error
    return attributes


def attributes_of_turn(turn: TurnNode) -> dict[str, Any]:
    """Return a turn's attributes with its prompts and what the assistant said."""
    attributes = turn.attributes
    for name in ("prompts", "assistant"):
        block = getattr(turn, name)
        if block is not None:
            attributes[name] = block
    return attributes


def payload(pool: Pool, raw: bytes) -> Any:
    """Return a payload with the histories and long texts that it refers to."""
    return pool.resolve(decode(raw))


def numbered(turn: TurnNode) -> Iterator[tuple[int, OperationNode]]:
    """Yield a turn's ops with the numbers that their order gives them."""
    return enumerate(turn.ops, 1)


def children(session: SessionNode) -> Iterator[SessionNode]:
    """Yield a session's own child sessions."""
    return (op.child_session for turn in session.turns for op in turn.ops if op.child_session is not None)
