"""The views of a conversation: agents, perspective, timeline, dialog, propagation, causality and hooks, each a function of its `Stream`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from msgspec import Struct

from optree.conversation.content import Call, Kind, answered_by, calls_of, is_utterance, kind_of, thought_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.conversation.views.stream import Eyes, StreamView, is_seen, kind

LABELS = {"heard": "Heard", "called": "Action", "said": "Said", "received": "Received"}
NO_WORDS = "Taking action..."
LONGEST_WAY = 100
LinkKind = Literal["substance", "cause", "tool_call"]
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS = 400
"""Longer differing middles are shown whole, as taken out and put in: comparing them word by word takes their product in time."""
Part = tuple[Literal["same", "removed", "added"], str]
"""A piece of text, and whether both have it, only the original, or only what was heard."""


class AgentNode(Struct):
    """An agent, and where it stands among the others."""

    agent_id: str
    name: str | None
    parent: str | None
    """Agent id of who created it; None for a root, and where it is not known."""
    depth: int
    language_model: str | None
    message_id: str | None
    """Id of its creation; None for an agent whose creation is not in the stream."""
    cause: list[str]
    """Messages with the call that created it."""
    entries: int
    """Length of its transcript."""


def agent_tree(stream: StreamView) -> list[AgentNode]:
    """Return all agents, each behind its parent and one level deeper, else in the order in which they came.

    Agents that are said to have created each other in a circle count as roots.
    """
    below: defaultdict[str | None, list[str]] = defaultdict(list)
    for agent in stream.agents:
        below[stream.parents.get(agent)].append(agent)
    nodes: dict[str, AgentNode] = {}
    for root in [*below[None], *stream.agents]:
        pending: list[tuple[str, str | None, int]] = [] if root in nodes else [(root, None, 0)]
        while pending:
            agent, parent, depth = pending.pop()
            if agent not in nodes:
                nodes[agent] = _node(stream, agent, parent, depth)
                pending += [(child, agent, depth + 1) for child in reversed(below[agent])]
    return list(nodes.values())


def _node(stream: StreamView, agent: str, parent: str | None, depth: int) -> AgentNode:
    created = stream.agents[agent]
    identity = created.message_id or None
    entries = len(stream.entries(agent))
    return AgentNode(agent, created.name, parent, depth, created.language_model, identity, stream.causes(created), entries)


class Lived(NamedTuple):
    """One thing that an agent lived through."""

    label: str
    text: str
    calls: str = ""
    """The calls that an action makes."""


def perspective(stream: StreamView, agent: str) -> Iterator[Lived]:
    """Yield each entry of an agent's transcript as the agent sees it; its instructions are left out."""
    eyes = (agent,)
    for entry in stream.entries(agent):
        label = LABELS.get(kind_of(entry))
        if thought := thought_of(entry):
            yield Lived("Thought", stream.shown(thought))
        if label == "Action":
            calls = "\n".join(f"{call.name}({call.arguments})" for call in stream.calls(entry))
            yield Lived(label, stream.text(entry, eyes) or NO_WORDS, calls)
        elif label is not None and stream.words(entry, eyes) is not None:
            yield Lived(label, stream.text(entry, eyes))


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
    result = Moment(event.message_id, kind(event), event.agent_id, "made", timestamp=event.timestamp)
    if isinstance(event, AgentCreated):
        result.what = "created"
        result.parent = stream.parents.get(event.agent_id)
        result.content = stream.name(event.agent_id)
    elif isinstance(event, TranscriptEntry):
        result.what = kind_of(event)
        result.content = stream.shown(thought_of(event)) if result.what == "thought" else stream.text(event, agents)
        result.calls = stream.calls(event)
        result.substance = None if event.substance == event.message_id else event.substance
    else:
        result.content = stream.text(event, agents)
    return result


class Heard(Struct):
    """That an agent heard a content, and in which words."""

    agent_id: str
    message_id: str
    content: str
    changed: bool = False
    """Whether the words are not the original's any more, a frame such as ``[Jack]: `` around them apart."""


class DialogLine(Struct, omit_defaults=True):
    """One content of a dialog."""

    message_id: str
    """The original's id."""
    content: str
    author: str = ""
    """Whose content it is; empty where that is not known."""
    role: str = ""
    kind: Kind | None = None
    """What it is in the first of the chosen agents' transcripts that has it."""
    heard: list[Heard] = []
    """How the chosen agents heard it, in order."""
    apart: list[Heard] = []
    """Those of them whose words are not the ones of this line, a frame apart."""


def dialog(stream: StreamView, agents: Eyes, *, original: bool = False, spoken: bool = False) -> Iterator[DialogLine]:
    """Yield each content in the transcripts of some agents once, in the order in which it first entered one of them.

    A content has its author's words if its author is among *agents*, else those that the first of them heard: a text that a hook
    changed on the way is not shown as it was before. With *original* it always has its author's words, as in the seeds.
    With *spoken* only utterances, and what was heard, are shown: no instructions, calls and results.
    """
    eyes = None if original else agents
    lines: dict[int | str, tuple[DialogLine, str]] = {}
    for event in stream.events:
        if not isinstance(event, TranscriptEntry) or not is_seen(event.agent_id, agents):
            continue
        if spoken and not (is_utterance(event) or kind_of(event) == "heard"):
            continue
        source = stream.source(event)
        key = stream.origin(event) if source is None else id(source)
        if key not in lines:
            lines[key] = _line(stream, event, source, eyes)
        line, words = lines[key]
        if event.message_id != line.message_id and stream.words(event, eyes) is not None:
            line.heard.append(one := heard(stream, event, eyes))
            line.apart += [one] if stream.is_apart(event, words, eyes) else []
    yield from (line for line, words in lines.values() if words)


def heard(stream: StreamView, entry: TranscriptEntry, agents: Eyes = None) -> Heard:
    """Return how an agent heard the content that an entry represents."""
    return Heard(entry.agent_id, entry.message_id, stream.text(entry, agents), changed=stream.change(entry) == "changed")


def _line(stream: StreamView, entry: TranscriptEntry, source: AnyEvent | None, eyes: Eyes) -> tuple[DialogLine, str]:
    """Return a line with its words, as they are compared. An entry whose id another has too is its own original."""
    origin = stream.origin(entry)
    words = stream.words(entry, eyes) if source is entry else stream.words_for(origin, eyes)
    author = "" if source is None else source.agent_id
    return DialogLine(origin, stream.shown(words or ""), author, entry.role, kind_of(entry)), words or ""


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
    hearing = heard(stream, entry, agents)
    place = stream.position[entry.message_id]
    return Hop(entry.agent_id, entry.message_id, hearing.content, _via(stream, entry, root), place, entry.timestamp, hearing.changed)


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


class CausalLink(Struct, frozen=True):
    """One way in which a message came from another."""

    message_id: str
    parent: str
    """May be an id that is not in the stream."""
    kind: LinkKind


def links(stream: StreamView) -> list[CausalLink]:
    """Return all links, in the order of the messages that they belong to; of one message its substance first, then causes, then calls."""
    result: list[CausalLink] = []
    calls: dict[tuple[str, str], str] = {}
    for event in stream.events:
        result += _links(stream, event, calls)
        if isinstance(event, TranscriptEntry):
            for call in calls_of(event):
                calls[event.agent_id, call.id] = event.message_id
    return list(dict.fromkeys(result))


def _links(stream: StreamView, event: AnyEvent, calls: dict[tuple[str, str], str]) -> list[CausalLink]:
    """Return one event's links. A result's call is the agent's last one of that id before it: another agent's may have the same id."""
    own = event.message_id
    entry = event if isinstance(event, TranscriptEntry) else None
    same = entry.substance if entry is not None else None
    result = [CausalLink(own, same, "substance")] if same is not None and same != own else []
    result += [CausalLink(own, cause, "cause") for cause in stream.causes(event)]
    for call in answered_by(entry) if entry is not None else ():
        calling = calls.get((event.agent_id, call))
        if calling is not None and calling != own:
            result.append(CausalLink(own, calling, "tool_call"))
    return result


def graph(causal_links: list[CausalLink]) -> dict[str, list[str]]:
    """Return all parents of each message that has any."""
    by_message: dict[str, list[str]] = {}
    for link in causal_links:
        parents = by_message.setdefault(link.message_id, [])
        if link.parent not in parents:
            parents.append(link.parent)
    return by_message


def one_parent(causal_links: list[CausalLink]) -> dict[str, str]:
    """Return one parent of each message that has any: the content that it represents, else its first cause, else its call."""
    by_message: dict[str, str] = {}
    for link in causal_links:
        by_message.setdefault(link.message_id, link.parent)
    return by_message


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
    """Return what came between a tool call's message and its last result, both included: the agents that the call asked, and their answers.

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


class Intervention(Struct):
    """A content that reached an agent in other words."""

    message_id: str
    """What was heard."""
    agent_id: str
    substance: str
    """The original's id."""
    author: str
    original: str | None
    """None where its author is not among the chosen agents."""
    received: str
    framed: bool
    """Whether the original stands whole in what was heard, as in ``[Jack]: Hello``: something was put around it."""
    diff: list[Part]
    """Without the original, what was heard as it is."""


def interventions(stream: StreamView, agents: Eyes = None, *, framed: bool = False) -> Iterator[Intervention]:
    """Yield each delivery whose words are not the original's; with *framed* also those where something was only put around them.

    Of *agents*, it is what they heard, with the original where its author is one of them. A delivery whose original is not in the
    stream cannot be compared, and is left out.
    """
    for root, entries in stream.copies.items():
        for entry in entries:
            change = stream.change(entry) if is_seen(entry.agent_id, agents) else None
            if change == "changed" or (framed and change == "framed"):
                author = stream.by_id[root].agent_id
                original = stream.original(root) if is_seen(author, agents) else None
                received = stream.text(entry, agents)
                parts: list[Part] = [("same", received)] if original is None else difference(original, received)
                yield Intervention(entry.message_id, entry.agent_id, root, author, original, received, change == "framed", parts)


def difference(before: str, after: str) -> list[Part]:
    """Return how a text became another, in words; parts of *before* and of *after* join up to them."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    head = _shared(old, new)
    tail = _shared(old[head:][::-1], new[head:][::-1])
    before_it: Part = ("same", "".join(old[:head]))
    behind_it: Part = ("same", "".join(old[len(old) - tail :]))
    parts = [before_it, *_middle(old[head : len(old) - tail], new[head : len(new) - tail]), behind_it]
    return [part for part in parts if part[1]]


def _middle(old: list[str], new: list[str]) -> Iterator[Part]:
    if len(old) > _MOST_WORDS or len(new) > _MOST_WORDS or not old or not new:
        yield "removed", "".join(old)
        yield "added", "".join(new)
        return
    for verb, first, last, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if verb == "equal":
            yield "same", "".join(old[first:last])
        else:
            yield "removed", "".join(old[first:last])
            yield "added", "".join(new[start:stop])


def _shared(first: list[str], second: list[str]) -> int:
    """Return how many items two lists begin with in common."""
    return next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
