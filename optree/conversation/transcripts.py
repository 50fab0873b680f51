"""Entries of a transcript as the messages that a provider takes, and back."""

from __future__ import annotations

from typing import Any

from optree.conversation.events import NOTHING, TranscriptEntry
from optree.values import is_list, is_object, plain

_NAMED = {"role", "content", "tool_calls", "tool_call_id", "name"}


def message_of(entry: TranscriptEntry) -> dict[str, Any]:
    """Return an entry as the message that it is in its transcript."""
    told = {"tool_calls": entry.tool_calls, "tool_call_id": entry.tool_call_id, "name": entry.name}
    return {"role": entry.role, "content": entry.content} | {key: value for key, value in told.items() if value is not None} | entry.more


def entry_of(told: dict[str, Any], message_id: str, agent_id: str, same: str | None, causes: tuple[str, ...]) -> TranscriptEntry:
    """Return a message of plain values as an entry of an agent's transcript."""
    calls, call, name, role = (told.get(key) for key in ("tool_calls", "tool_call_id", "name", "role"))
    listed = is_list(calls) and all(map(is_object, calls))
    more = {key: value for key, value in told.items() if key not in _NAMED or (key == "tool_calls" and value and not listed)}
    return TranscriptEntry(
        message_id=message_id,
        agent_id=agent_id,
        cause=causes,
        role=role if isinstance(role, str) and role else "unknown",
        content=told.get("content"),
        substance=same,
        tool_calls=calls if listed else None,
        tool_call_id=None if call is None else str(call),
        name=None if name is None else str(name),
        more=more or NOTHING,
    )


def plain_message(message: Any) -> dict[str, Any]:
    """Return a message, of whatever type, as plain values taken now; what is no message becomes the content of one."""
    found = plain(message)
    return found if is_object(found) else {"role": "user", "content": found}
