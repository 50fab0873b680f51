"""Which call created an agent, where nothing says it (seed 000): by the order of the stream, and the name in the call's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from optree.conversation.content import answered_by, calls_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.values import decode, is_object


class WaitingCall(NamedTuple):
    """A call that has no result yet, and has a name among its arguments."""

    agent_id: str
    call_id: str
    tool: str
    message_id: str


class WaitingCalls:
    """Takes entries in their order, and tells which call waits for an agent to be created."""

    def __init__(self) -> None:
        self._named: dict[str, list[WaitingCall]] = {}

    def take(self, entry: TranscriptEntry) -> None:
        """Take up the calls of an entry, and those that it answers."""
        for call in calls_of(entry):
            if (name := _name_in(call.arguments)) is not None:
                self._named.setdefault(name, []).append(WaitingCall(entry.agent_id, call.id, call.name, entry.message_id))
        if self._named and (answered := set(answered_by(entry))):
            for name, waiting in [*self._named.items()]:
                waiting[:] = [one for one in waiting if one.agent_id != entry.agent_id or one.call_id not in answered]
                if not waiting:
                    del self._named[name]

    def creator(self, created: AgentCreated) -> WaitingCall | None:
        """Return the call that waits for this agent: the latest of `task` by its name, whole, or else of another tool; it waits no more."""
        if not _is_open(created) or not (waiting := self._named.get(created.name or "")):
            return None
        found = next((call for call in reversed(waiting) if call.tool == "task"), waiting[-1])
        waiting.remove(found)
        return found


def inferred_calls(events: Sequence[AnyEvent]) -> dict[str, str]:
    """Return the message whose call created an agent, by the id of the creation, for those of whom nothing else tells."""
    found: dict[str, str] = {}
    if not any(_is_open(event) for event in events):
        return found
    calls = WaitingCalls()
    for event in events:
        if isinstance(event, TranscriptEntry):
            calls.take(event)
        elif isinstance(event, AgentCreated) and (call := calls.creator(event)) is not None:
            found[event.message_id] = call.message_id
    return found


def _is_open(event: AnyEvent) -> bool:
    return isinstance(event, AgentCreated) and not event.cause and event.parent is None and bool(event.name)


def _name_in(arguments: str) -> str | None:
    if '"name"' not in arguments and "\\" not in arguments:
        return None
    try:
        value: Any = decode(arguments.encode())
    except (ValueError, RecursionError):
        return None
    name = value.get("name") if is_object(value) else None
    return name if isinstance(name, str) else None
