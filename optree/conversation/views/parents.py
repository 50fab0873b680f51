"""Which call created an agent, where files do not say it (seed 000): by the order of time, and the name in the call's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from optree.conversation.content import answered_by, calls_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.values import is_object


def inferred_calls(events: Sequence[AnyEvent]) -> dict[str, str]:
    """Return the message whose call created an agent, by the id of the creation, for those without a cause.

    It is the last call before that has no result yet and whose argument ``name`` is the agent's name, whole: Jack is not Jackson.
    """
    found: dict[str, str] = {}
    pending: dict[str, list[tuple[str, str, str]]] = {}
    """By name: agent, call and message of the calls without a result."""
    if not any(_is_open(event) for event in events):
        return found
    for event in events:
        if isinstance(event, TranscriptEntry):
            _take(event, pending)
        elif isinstance(event, AgentCreated) and _is_open(event) and (waiting := pending.get(event.name or "")):
            found[event.message_id] = waiting.pop()[2]
    return found


def _is_open(event: AnyEvent) -> bool:
    return isinstance(event, AgentCreated) and not event.cause and event.parent is None and bool(event.name)


def _take(entry: TranscriptEntry, pending: dict[str, list[tuple[str, str, str]]]) -> None:
    for call in calls_of(entry):
        if (name := _named(call.arguments)) is not None:
            pending.setdefault(name, []).append((entry.agent_id, call.id, entry.message_id))
    if answered := set(answered_by(entry)):
        for waiting in pending.values():
            waiting[:] = [one for one in waiting if one[0] != entry.agent_id or one[1] not in answered]


def _named(arguments: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    name = value.get("name") if is_object(value) else None
    return name if isinstance(name, str) else None
