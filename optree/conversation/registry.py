"""What is known of a stream's agents and ids: all that a session needs to go on, learned event by event in one pass.

Both counters are restored here and nowhere else, so one cannot be resumed without the other. An id counts whatever its form, and also
where it is only referred to: what is given afterwards collides with nothing that is in the stream.
"""

from __future__ import annotations

import re
from threading import RLock
from typing import Any

from msgspec import Struct

from optree.conversation.content import Call, answered_by, calls_of
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry
from optree.values import decode, is_object

_MESSAGE = re.compile(r"(?:msg_)?([0-9]{1,18})\Z")
_AGENT = re.compile(r"agent_([0-9]{1,18})\Z")


class AgentRecord(Struct):
    """What is known of an agent without reading its transcript."""

    agent_id: str
    name: str | None = None
    language_model: str | None = None
    parent: str | None = None
    """Agent id of the parent; None for the root, and where nothing tells."""
    cause: tuple[str, ...] = ()
    message_id: str | None = None
    """Id of its creation; None if the stream has only entries of it."""
    entries: int = 0
    """How many entries its transcript has."""

    @property
    def label(self) -> str:
        """What people and its parent call it: its name, or its id."""
        return self.name or self.agent_id


class Counters:
    """The highest numbers of messages and of agents; several registries share them where their ids stand in one tree."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.message = 0
        self.agent = 0


class Registry:
    """Learns from events in the order of the stream. Keeps about 150 bytes for each: its id and its agent."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.agents: dict[str, AgentRecord] = {}
        """All that ever lived, in the order in which they appear."""
        self.counters = counters or Counters()
        self._owners: dict[str, str] = {}
        self._parents: set[str] = set()
        self._calls: dict[tuple[str, str], Call] = {}
        """Calls that have no result yet, by agent and id."""

    def learn(self, event: AnyEvent) -> None:
        """Take up an event."""
        self._count(event)
        if isinstance(event, AgentCreated):
            self._created(event)
        elif isinstance(event, TranscriptEntry):
            self._record(event.agent_id).entries += 1
            self._follow_calls(event)
        self._owners.setdefault(event.message_id, event.agent_id)

    def new_agent_id(self) -> str:
        """Return an id that no agent has, and that will not be given again."""
        self.counters.agent += 1
        return f"agent_{self.counters.agent:03d}"

    def children(self, agent_id: str) -> list[AgentRecord]:
        """Return the agents that an agent created, oldest first."""
        return [record for record in self.agents.values() if record.parent == agent_id]

    def owner(self, message_id: str) -> str | None:
        """Return the agent of a message; ``<message>.<call>`` names one call of it."""
        while message_id:
            if message_id in self._owners:
                return self._owners[message_id] or None
            message_id = message_id.rpartition(".")[0]
        return None

    def _count(self, event: AnyEvent) -> None:
        same = event.substance if isinstance(event, TranscriptEntry) else None
        for identity in (event.message_id, *((same,) if same else ()), *(cause.partition(".")[0] for cause in event.cause)):
            if found := _MESSAGE.match(identity):
                self.counters.message = max(self.counters.message, int(found[1]))
        self._count_agent(event.agent_id)

    def _count_agent(self, agent_id: str) -> None:
        if found := _AGENT.match(agent_id):
            self.counters.agent = max(self.counters.agent, int(found[1]))

    def _record(self, agent_id: str) -> AgentRecord:
        return self.agents.setdefault(agent_id, AgentRecord(agent_id))

    def _created(self, event: AgentCreated) -> None:
        record = self._record(event.agent_id)
        if record.message_id is not None:  # a second creation of one agent adds what the first left open
            record.name = record.name or event.name
            record.language_model = record.language_model or event.language_model
            return
        record.message_id = event.message_id
        record.name, record.language_model, record.cause = event.name, event.language_model, event.cause
        self._count_agent(event.parent or "")
        parent = event.parent or next((owner for cause in event.cause if (owner := self.owner(cause))), None)
        if parent is None and not event.cause:
            parent = self._caller_of(event.name)
        record.parent = parent if parent != event.agent_id and not self._is_above(event.agent_id, parent) else None
        if record.parent is not None:
            self._parents.add(record.parent)

    def _is_above(self, agent_id: str, below: str | None) -> bool:
        """Tell whether an agent is an ancestor of another: such a link would make a circle."""
        while agent_id in self._parents and below is not None and below in self.agents:
            below = self.agents[below].parent
            if below == agent_id:
                return True
        return False

    def _follow_calls(self, entry: TranscriptEntry) -> None:
        for call in calls_of(entry):
            self._calls[entry.agent_id, call.id] = call
        for identity in answered_by(entry):
            self._calls.pop((entry.agent_id, identity), None)

    def _caller_of(self, name: str | None) -> str | None:
        """Return who waits for an agent of this name to be created (seed 000): the latest call of `task`, or else of another tool."""
        waiting = [] if name is None else [(call.name, agent) for (agent, _), call in self._calls.items() if _names(call.arguments, name)]
        tasks = [agent for tool, agent in waiting if tool == "task"] or [agent for _, agent in waiting]
        return tasks[-1] if tasks else None


def _names(arguments: str, name: str) -> bool:
    """Tell whether a call's arguments have this name: the whole of it, and as their name."""
    try:
        found: Any = decode(arguments.encode())
    except (ValueError, RecursionError):
        return False
    return is_object(found) and found.get("name") == name
