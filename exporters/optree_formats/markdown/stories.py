"""The narrative before an event: one line that says what happens, for people who read the log from top to bottom."""

from __future__ import annotations

from typing import Any

from optree import OperationNode, SessionNode
from optree.exporting import Pool, cost_said, decode, is_list, is_object, totals_of
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
