"""The causality view: what each message came from, as a graph, and with one parent each."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from optree.conversation.content import answered_by, calls_of
from optree.conversation.events import AnyEvent, TranscriptEntry
from optree.conversation.views.stream import StreamView

LinkKind = Literal["substance", "cause", "tool_call"]


class CausalLink(Struct, frozen=True):
    """One way in which a message came from another."""

    message_id: str
    parent: str
    """May be an id that is not in the stream."""
    kind: LinkKind


def links(stream: StreamView) -> list[CausalLink]:
    """Return all links, in the order of the messages that they belong to; of one message its substance first, then causes, then calls."""
    found: list[CausalLink] = []
    calls: dict[tuple[str, str], str] = {}
    for event in stream.events:
        found += _links(stream, event, calls)
        if isinstance(event, TranscriptEntry):
            for call in calls_of(event):
                calls[event.agent_id, call.id] = event.message_id
    return list(dict.fromkeys(found))


def _links(stream: StreamView, event: AnyEvent, calls: dict[tuple[str, str], str]) -> list[CausalLink]:
    """Return one event's links. A result's call is the agent's last one of that id before it: another agent's may have the same id."""
    own = event.message_id
    entry = event if isinstance(event, TranscriptEntry) else None
    same = entry.substance if entry is not None else None
    found = [CausalLink(own, same, "substance")] if same is not None and same != own else []
    found += [CausalLink(own, cause, "cause") for cause in stream.causes(event)]
    for call in answered_by(entry) if entry is not None else ():
        calling = calls.get((event.agent_id, call))
        if calling is not None and calling != own:
            found.append(CausalLink(own, calling, "tool_call"))
    return found


def graph(found: list[CausalLink]) -> dict[str, list[str]]:
    """Return all parents of each message that has any."""
    made: dict[str, list[str]] = {}
    for link in found:
        parents = made.setdefault(link.message_id, [])
        if link.parent not in parents:
            parents.append(link.parent)
    return made


def one_parent(found: list[CausalLink]) -> dict[str, str]:
    """Return one parent of each message that has any: the content that it represents, else its first cause, else its call."""
    made: dict[str, str] = {}
    for link in found:
        made.setdefault(link.message_id, link.parent)
    return made


def flow(stream: StreamView, index: dict[str, str], message_id: str) -> list[AnyEvent]:
    """Return the events that lead to a message, oldest first, itself last; none if it is not there. A circle ends where it closes."""
    chain: list[AnyEvent] = []
    seen: set[str] = set()
    current: str | None = message_id
    while current is not None and current not in seen and (event := stream.by_id.get(current)) is not None:
        seen.add(current)
        chain.append(event)
        current = index.get(current)
    chain.reverse()
    return chain


def during(stream: StreamView, message_id: str) -> list[AnyEvent]:
    """Return what came between a tool call's message and its last result, both included: whom the call was put to, and what they said.

    Given a result, its call is meant; given the results of several, all of them. Only the order of time is looked at.
    """
    event = stream.by_id.get(message_id)
    if not isinstance(event, TranscriptEntry):
        return [] if event is None else [event]
    results = [(link.message_id, link.parent) for link in links(stream) if link.kind == "tool_call"]
    calling = {call for result, call in results if result == message_id} or {message_id}
    first = min(stream.position[call] for call in calling)
    last = max((stream.position[result] for result, call in results if call in calling), default=first)
    return stream.events[first : max(first, last) + 1]
