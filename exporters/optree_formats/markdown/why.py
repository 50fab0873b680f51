"""Why a tool was called, and how it failed, from what a tree knows of it: the log wants both said."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Literal

from optree import OperationNode, TurnNode
from optree.exporting import last_index
from optree_formats.markdown.stories import answer_text

NOT_STATED = "not stated"
Source = Literal["args", "attributes", "assistant", "nobody"]
_CODES = (
    ("NOT_FOUND", ("not found", "notfound", "no such file")),
    ("PERMISSION_DENIED", ("permission", "forbidden", "denied", "unauthorized")),
    ("TIMEOUT", ("timeout", "timed out")),
    ("QUOTA_EXCEEDED", ("quota", "rate limit", "too many requests")),
    ("INVALID_ARGS", ("valueerror", "typeerror", "invalid", "keyerror", "validationerror")),
)
_LONGEST = 300
NEAR = 50
"""How many ops before a call are looked at for what the assistant said."""


def _index(op: OperationNode) -> int:
    return last_index(op.path)


def why_of(turn: TurnNode, op: OperationNode, args: dict[str, Any]) -> tuple[str, Source]:
    """Return why a tool was called, and who said so: its arguments, its attributes, the assistant before the call, or nobody."""
    said = args.get("why")
    if isinstance(said, str) and said.strip():
        return said, "args"
    said = op.attributes.get("why")
    if isinstance(said, str) and said.strip():
        return said, "attributes"
    before = _said_before(turn, op)
    return (before, "assistant") if before else (NOT_STATED, "nobody")


def code_of(op: OperationNode) -> str:
    """Return the error code that an op's error comes closest to."""
    if op.status in ("cancelled", "interrupted"):
        return str(op.status).upper()
    said = (op.error or "").lower()
    return next((code for code, marks in _CODES if any(mark in said for mark in marks)), "FAILED")


def _said_before(turn: TurnNode, op: OperationNode) -> str:
    """Return the first line of the last text that a model gave in the turn before the op began."""
    ops = turn.ops
    here = bisect_left(ops, last_index(op.path), key=_index)
    for other in reversed(ops[max(0, here - NEAR) : here]):
        if other.kind == "llm" and other.response is not None and other.ended_at is not None and other.ended_at <= op.started_at:
            lines = answer_text(other).strip().split("\n", 1)
            return lines[0][:_LONGEST].strip()
    return ""
