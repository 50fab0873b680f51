"""The propagation view: who heard a content, when, in which words, and over which copies it came to them."""

from __future__ import annotations

from msgspec import Struct

from optree.conversation.events import TranscriptEntry
from optree.conversation.views.dialog import Heard, heard
from optree.conversation.views.stream import Eyes, StreamView, is_seen

LONGEST_WAY = 100


class Hop(Struct, omit_defaults=True):
    """One step of a content: from a copy to an agent."""

    agent_id: str
    message_id: str
    content: str
    via: list[str]
    """The messages from the original to this one, without it: more than one if it is a copy of a copy."""
    order: int
    """Place in the stream, from 0."""
    timestamp: float | None = None
    changed: bool = False
    """Whether its words are not the original's any more."""


class Propagation(Struct, omit_defaults=True):
    """How a content spread."""

    message_id: str
    """The original's."""
    author: str
    content: str | None
    """The original's if its author is looked at, else as the first of those who are heard it; None if none has it."""
    hops: list[Hop]
    timestamp: float | None = None


def heard_by(stream: StreamView, message_id: str, agents: Eyes = None) -> list[Heard]:
    """Return who of *agents* heard the content of a message, each delivery once, in order; a copy stands for its original."""
    return [heard(stream, entry, agents) for entry in _copies(stream, stream.root(message_id), agents)]


def propagation(stream: StreamView, message_id: str, agents: Eyes = None) -> Propagation:
    """Return how the content of a message spread from its original to *agents*."""
    root = stream.root(message_id)
    source = stream.by_id.get(root)
    hops = [_hop(stream, entry, root, agents) for entry in _copies(stream, root, agents)]
    if source is None:
        return Propagation(root, "", None if agents is None else stream.content_for(root, agents), hops)
    return Propagation(root, source.agent_id, stream.content_for(root, agents), hops, source.timestamp)


def all_heard(stream: StreamView) -> list[str]:
    """Return the ids of the contents that were heard by anyone, in the order of their originals' first copies."""
    return list(stream.copies)


def _copies(stream: StreamView, root: str, agents: Eyes) -> list[TranscriptEntry]:
    return [entry for entry in stream.copies.get(root, []) if is_seen(entry.agent_id, agents)]


def _hop(stream: StreamView, entry: TranscriptEntry, root: str, agents: Eyes) -> Hop:
    told = heard(stream, entry, agents)
    place = stream.position[entry.message_id]
    return Hop(entry.agent_id, entry.message_id, told.content, _via(stream, entry, root), place, entry.timestamp, told.changed)


def _via(stream: StreamView, entry: TranscriptEntry, root: str) -> list[str]:
    """Return the ids from the original to an entry, without it; of a longer way the last `LONGEST_WAY`."""
    chain: list[str] = []
    seen = {entry.message_id}
    current = entry.substance
    while current is not None and current not in seen and len(chain) < LONGEST_WAY:
        seen.add(current)
        chain.append(current)
        event = stream.by_id.get(current)
        current = event.substance if current != root and isinstance(event, TranscriptEntry) else None
    chain.reverse()
    return chain
