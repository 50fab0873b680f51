"""A stream of events with its links looked up: all that the views ask about it. Links are followed, never guessed by comparing texts.

Links may lead nowhere or in circles, and every walk ends. Ids may come twice: links lead to the first event of an id, and another of the
same id is a content of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import msgspec

from optree.conversation import wire
from optree.conversation.content import Call, calls_of, text_of
from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.conversation.registry import inferred_calls
from optree.errors import NotFoundError

Change = Literal["none", "framed", "changed"]
"""That a content arrived as it was, with something put around it as in ``[Jack]: Hello``, or in other words."""
T = TypeVar("T")
PARTIAL = "[partial]"
"""What stands behind an answer that broke off."""
Hide = Callable[[Any], Any]
"""Given plain values, returns a copy of them without what is to be hidden."""
Eyes = Collection[str] | None
"""Ids of the agents whose transcripts are looked at; None for all there is."""


class StreamView:
    """Events in their order, and what they refer to."""

    def __init__(self, events: Iterable[AnyEvent], version: int = wire.SEED_001, hide: Hide | None = None) -> None:
        """Take events; *version* is the seed whose names their dicts have, 000 (1) or 001 (2).

        *hide* takes out of all that is shown what is not for the reader's eyes; comparisons are made before it.
        """
        self.events: list[AnyEvent] = list(events)
        self._version = version
        self._hide = hide
        self._roots: dict[str, str] = {}
        self.by_id: dict[str, AnyEvent] = {}
        for event in self.events:
            self.by_id.setdefault(event.message_id, event)

    # Agents

    @cached_property
    def agents(self) -> dict[str, AgentCreated]:
        """How each agent was created, by agent id, in the order in which they appear; one that only speaks gets a bare one.

        The user is no agent: who is only the author of texts, and has that name, is not among them.
        """
        result: dict[str, AgentCreated] = {}
        for event in self.events:
            if event.agent_id == USER and isinstance(event, PieceOfText):
                continue
            known = result.get(event.agent_id)
            if event.agent_id and (known is None or (isinstance(event, AgentCreated) and not known.message_id)):
                result[event.agent_id] = event if isinstance(event, AgentCreated) else AgentCreated(message_id="", agent_id=event.agent_id)
        return result

    @cached_property
    def parents(self) -> dict[str, str]:
        """The agent that created each agent: as recorded, by the cause's agent, or in seed 000's files by the call that created it."""
        result: dict[str, str] = {}
        for agent, created in self.agents.items():
            parent = created.parent if created.parent in self.agents else None
            calls = [event for cause in self.causes(created) if (event := self.by_id.get(cause)) is not None]
            parent = parent or (calls[0].agent_id if calls else None)
            if parent and parent in self.agents and parent != agent:
                result[agent] = parent
        return result

    def agent(self, named: str) -> str:
        """Return the id of the agent that an id or a name means; raises `NotFoundError`, which lists those that are there."""
        if named in self.agents:
            return named
        matches = [agent for agent, created in self.agents.items() if created.name == named]
        if len(matches) == 1:
            return matches[0]
        known = ", ".join(self.agents) or "none"
        message = f"{len(matches)} agents are named {named}: {', '.join(matches)}" if matches else f"no agent {named}: there are {known}"
        raise NotFoundError(message)

    def event(self, message_id: str) -> AnyEvent:
        """Return the event of an id; raises `NotFoundError`."""
        if message_id in self.by_id:
            return self.by_id[message_id]
        first = ", ".join(list(self.by_id)[:3])
        raise NotFoundError(f"no message {message_id}: there are {len(self.by_id)}{f', the first {first}' if first else ''}")

    def name(self, agent: str) -> str:
        """Return what people call an agent: its name, or its id."""
        created = self.agents.get(agent)
        return (created.name if created is not None else None) or agent or "?"

    # Substance

    def root(self, message_id: str) -> str:
        """Return the id of the original whose content a message represents: its own if it is new content.

        A copy of a copy leads to the first original. A chain that leads out of the stream ends at the id that is not there; one that
        turns in a circle ends at the member that stands first.
        """
        chain: list[str] = []
        on_chain: set[str] = set()
        current = message_id
        while current not in self._roots and current not in on_chain:
            chain.append(current)
            on_chain.add(current)
            event = self.by_id.get(current)
            substance = event.substance if isinstance(event, TranscriptEntry) else None
            if substance is None:
                self._roots[current] = current
                break
            current = substance
        if current not in self._roots:
            circle = chain[chain.index(current) :]
            first = min(circle, key=lambda chained: self.position[chained])
            self._roots.update(dict.fromkeys(circle, first))
        root = self._roots[current]
        for chained in chain:
            self._roots.setdefault(chained, root)
        return root

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each id stands in the stream."""
        result: dict[str, int] = {}
        for place, event in enumerate(self.events):
            result.setdefault(event.message_id, place)
        return result

    @cached_property
    def copies(self) -> dict[str, list[TranscriptEntry]]:
        """The entries that represent each original, by the original's id, in their order; without the original itself."""
        by_origin: defaultdict[str, list[TranscriptEntry]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, TranscriptEntry) and event.substance is not None and (origin := self.origin(event)) != event.message_id:
                by_origin[origin].append(event)
        return dict(by_origin)

    def origin(self, entry: TranscriptEntry) -> str:
        """Return the id of the original of an entry, which may be the second of its id: then its own substance counts."""
        first = self.by_id.get(entry.message_id)
        if first is entry or first == entry:
            return self.root(entry.message_id)
        same = entry.substance or entry.message_id
        return same if same == entry.message_id else self.root(same)

    def source(self, entry: TranscriptEntry) -> AnyEvent | None:
        """Return the original of an entry: itself if it is new content; None if it is not there."""
        origin = self.origin(entry)
        first = self.by_id.get(origin)
        return first if origin != entry.message_id or first == entry else entry

    def twice(self) -> list[str]:
        """Return the ids that several events have."""
        return [message_id for message_id, count in Counter(event.message_id for event in self.events).items() if count > 1]

    def author(self, message_id: str) -> str:
        """Return the agent whose content a message represents; empty where that is not known."""
        event = self.by_id.get(self.root(message_id))
        return "" if event is None else event.agent_id

    # Words

    def text(self, event: AnyEvent, agents: Eyes = None) -> str:
        """Return the text of an event; an entry that only refers to another has the other's text, if *agents* have its author.

        An answer that broke off while it was streamed is marked so.
        """
        content = self.shown(self.words(event, agents) or "")
        return f"{content} {PARTIAL}" if isinstance(event, TranscriptEntry) and event.more.get("partial") is True else content

    def content_for(self, message_id: str, agents: Eyes = None) -> str | None:
        """Return the words of the content that a message represents, as some agents may be shown them.

        They are the original's if its author is among *agents*, else those that the first of them heard: a hook may have taken out
        what they were not to see. None where none of them has it.
        """
        words = self.words_for(message_id, agents)
        return None if words is None else self.shown(words)

    def words_for(self, message_id: str, agents: Eyes = None) -> str | None:
        """Return the same with what is to be hidden, for comparing it."""
        root = self.root(message_id)
        source = self.by_id.get(root)
        if source is not None and is_seen(source.agent_id, agents):
            return None if isinstance(source, AgentCreated) else text_of(source.content)
        heard = (self.words(entry, agents) for entry in self.copies.get(root, ()) if is_seen(entry.agent_id, agents))
        return next((words for words in heard if words is not None), None)

    def words(self, event: AnyEvent, agents: Eyes = None) -> str | None:
        """Return an event's words with what is to be hidden; None for a creation, and for a reference whose text is not to be seen."""
        if isinstance(event, TranscriptEntry) and event.content is None and (source := self.source(event)) is not event:
            return None if source is None or not is_seen(source.agent_id, agents) else self._original(source.message_id)
        return None if isinstance(event, AgentCreated) else text_of(event.content)

    def original(self, message_id: str) -> str | None:
        """Return the text of an event; None if it is not there."""
        words = self._original(message_id)
        return None if words is None else self.shown(words)

    def change(self, entry: TranscriptEntry) -> Change | None:
        """Return how an entry's words stand to those of its original; None where the original is not there."""
        source = self.source(entry)
        before = None if source is None else self.words(source)
        return None if before is None else change(before, self.words(entry) or "")

    def is_apart(self, entry: TranscriptEntry, line: str, agents: Eyes = None) -> bool:
        """Tell whether an entry's words are not those of a line that shows the same content, frames around either apart."""
        words, source = self.words(entry, agents), self.source(entry)
        if words is None or change(line, words) != "changed":
            return False
        before = None if source is None else self.words(source)
        return before is None or "changed" in (change(before, line), change(before, words))

    def shown(self, value: T) -> T:
        """Return a plain value without what is to be hidden."""
        return value if self._hide is None else cast("T", self._hide(value))

    def calls(self, entry: TranscriptEntry) -> list[Call]:
        """Return the tool calls that an entry makes, for showing them."""
        return [Call(self.shown(call.id), self.shown(call.name), self.shown(call.arguments)) for call in calls_of(entry)]

    def _original(self, message_id: str) -> str | None:
        event = self.by_id.get(message_id)
        return None if event is None or isinstance(event, AgentCreated) else text_of(event.content)

    # Causes

    def causes(self, event: AnyEvent) -> list[str]:
        """Return the ids of the messages that an event names as its causes; a call's own id behind a message's is left out.

        An agent of seed 000's files names none: then it is the call that created it, as far as time and name tell.
        """
        causes = list(dict.fromkeys(self.message_of(cause) for cause in event.cause))
        if not causes and isinstance(event, AgentCreated) and (call := self._creating.get(event.message_id)):
            return [call]
        return [cause for cause in causes if cause != event.message_id]

    def message_of(self, cause: str) -> str:
        """Return the message of a cause: ``msg_7.call_1`` names a call of ``msg_7``."""
        if cause in self.by_id:
            return cause
        head = cause
        while "." in head:
            head = head.rpartition(".")[0]
            if head in self.by_id:
                return head
        return cause

    @cached_property
    def _creating(self) -> dict[str, str]:
        return inferred_calls(self.events)

    # As the seeds have them

    def plain(self, event: AnyEvent) -> dict[str, Any]:
        """Return an event as the dict that a line of a file holds."""
        result: dict[str, Any] = self.shown(msgspec.json.decode(wire.line(event, self._version)))
        return result

    def all_plain(self, events: Sequence[AnyEvent]) -> list[dict[str, Any]]:
        """Return events as dicts."""
        return [self.plain(event) for event in events]

    def entries(self, agent: str) -> list[TranscriptEntry]:
        """Return an agent's transcript."""
        return self._transcripts.get(agent, [])

    @cached_property
    def _transcripts(self) -> dict[str, list[TranscriptEntry]]:
        transcripts: defaultdict[str, list[TranscriptEntry]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, TranscriptEntry):
                transcripts[event.agent_id].append(event)
        return dict(transcripts)


def is_seen(agent: str, agents: Eyes) -> bool:
    """Tell whether an agent is among those that are looked at."""
    return agents is None or agent in agents


def change(before: str, after: str) -> Change:
    """Return how a text became another. It is framed if it stands whole in it, not as part of a longer word: No is not in Nobody."""
    if before == after:
        return "none"
    place = after.find(before)
    while place >= 0:
        if not (_joined(after, place) or _joined(after, place + len(before))) or not before:
            return "framed"
        place = after.find(before, place + 1)
    return "changed"


def _joined(text: str, place: int) -> bool:
    """Tell whether the characters before and at a place belong to one word."""
    return 0 < place < len(text) and _is_word(text[place - 1]) and _is_word(text[place])


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def kind(event: AnyEvent) -> str:
    """Return an event's type, as files name it."""
    return (
        "transcript_entry" if isinstance(event, TranscriptEntry) else "piece_of_text" if isinstance(event, PieceOfText) else "agent_created"
    )
