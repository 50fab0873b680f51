"""The narrative before an event: one line that says what happens, for people who read the log from top to bottom."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Literal

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import Pool, cost_said, decode, is_list, is_object, last_index, totals_of
from optree_formats.markdown.rendering import quoted


def turn_story(session: SessionNode, user: str | None) -> str:
    """Tell what the user wants."""
    if not user or not user.strip():
        return ""
    return f"{quoted(session.agent_id)} is told: {quoted(user)}" if session.path else f"The user says: {quoted(user)}"


def op_story(session: SessionNode, op: OperationNode, pool: Pool) -> str:
    """Tell what an op is about to do."""
    if op.kind == "session":
        return f"{quoted(session.agent_id)} calls the agent {quoted(op.name)}."
    if op.kind != "llm" or op.request is None:
        return ""
    payload: Any = decode(op.request.payload)
    found = payload.get("messages") if is_object(payload) else None
    if is_object(found) and isinstance(count := found.get("count"), int):
        last = _last(pool, found.get("$history"))
        told = f": {quoted(last)}" if last.strip() else "."
        return f"{'1 message goes' if count == 1 else f'{count} messages go'} to the model, the last{told}" if count else ""
    return ""


def result_story(op: OperationNode) -> str:
    """Tell how an op ended."""
    parts = [_status(op)]
    tokens = [entry.tokens for entry in op.accounting if entry.tokens is not None]
    if op.kind == "llm" and any(one.total_tokens for one in tokens):
        sums = totals_of(op.accounting)
        cost = cost_said(sums.cost_usd, sums.known_costs, sums.unknown_costs)
        parts.append(f"{sums.all_input_tokens} tokens in, {sums.output_tokens} out, {cost}")
    said = op.error or answer_text(op)
    return ", ".join(parts) + (f": {quoted(said)}" if said.strip() else ".")


def answer_text(op: OperationNode) -> str:
    """Return the text of what an op got back: a text, a message, or a list of content blocks; empty if it is something else."""
    return _text(decode(op.response.payload)) if op.response is not None else ""


def _text(answer: Any) -> str:
    if is_object(answer):
        answer = answer.get("content", answer.get("text"))
    if is_list(answer):
        answer = next((item.get("text") for item in answer if is_object(item) and isinstance(item.get("text"), str)), "")
    return answer if isinstance(answer, str) else ""


def _status(op: OperationNode) -> str:
    said = {"ok": "Done", "failed": "Failed", "cancelled": "Cancelled", "interrupted": "Interrupted"}.get(op.status or "", "Ended")
    if op.latency is None:
        return said
    seconds = op.latency >= 1000  # noqa: PLR2004 - a second
    return f"{said} after {op.latency / 1000:.1f} s" if seconds else f"{said} after {op.latency:.0f} ms"


def _last(pool: Pool, head: Any) -> str:
    _, blob = pool.links.get(head, ("", "")) if isinstance(head, str) else ("", "")
    return _text(decode(pool.blobs.get(blob)))


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
