"""The timeline view: every event once, in the order of the stream, which is that of time."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from optree.conversation.content import Call, Kind, kind_of, thought_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.conversation.views.stream import Eyes, StreamView, kind


class Moment(Struct, omit_defaults=True):
    """One event, for people."""

    message_id: str
    event_type: str
    agent_id: str
    what: Kind | Literal["made", "created"]
    """What an entry is to its agent; that an agent made a text for others; that an agent was created."""
    content: str = ""
    calls: list[Call] = []
    """Calls that are made here: id, name, arguments."""
    parent: str | None = None
    """Who created the agent."""
    substance: str | None = None
    timestamp: float | None = None


def moment(stream: StreamView, event: AnyEvent, agents: Eyes = None) -> Moment:
    """Return an event as it shows to those who look at *agents*."""
    found = Moment(event.message_id, kind(event), event.agent_id, "made", timestamp=event.timestamp)
    if isinstance(event, AgentCreated):
        found.what = "created"
        found.parent = stream.parents.get(event.agent_id)
        found.content = stream.name(event.agent_id)
    elif isinstance(event, TranscriptEntry):
        found.what = kind_of(event)
        found.content = stream.shown(thought_of(event)) if found.what == "thought" else stream.said(event, agents)
        found.calls = stream.calls(event)
        found.substance = None if event.substance == event.message_id else event.substance
    else:
        found.content = stream.said(event, agents)
    return found
