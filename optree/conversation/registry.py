"""What a session knows of its stream: agents and ids, learned event by event in one pass, and where its events are kept.

Both counters are restored here and nowhere else, so one cannot be resumed without the other. An id counts whatever its form, and also
where it is only referred to: what is given afterwards collides with nothing that is in the stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from optree._builder import Op
from optree._interrupts import new_rlock
from optree._nodes import OpKind
from optree._values import decode, is_object, text_of
from optree.conversation.content import answered_by, calls_of
from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, TranscriptEntry

_MESSAGE = re.compile(r"(?:msg_)?([0-9]{1,600})\Z")  # Python itself may refuse to read a number of more than 640 digits
_AGENT = re.compile(r"agent_([0-9]{1,600})\Z")
MakeEvent = Callable[[str], AnyEvent]
"""Makes an event, given its message id."""


class AgentRecord(Struct):
    """What is known of an agent without reading its transcript."""

    agent_id: str
    """Its id."""
    name: str | None = None
    """What its parent calls it."""
    language_model: str | None = None
    """The name of its model."""
    parent: str | None = None
    """Agent id of the parent; None for the root, and where nothing tells."""
    cause: tuple[str, ...] = ()
    """The message with the call that created it."""
    message_id: str | None = None
    """Id of its creation; None if the stream has only entries of it, and empty if only its tree has it."""
    entries: int = 0
    """How many entries its transcript has."""

    @property
    def label(self) -> str:
        """What people and its parent call it: its name, or its id."""
        return self.name or self.agent_id


class Counters:
    """The highest numbers of messages and of agents; several registries share them where their ids stand in one tree.

    They are raised without a call in between, so that a signal handler that logs too never finds a number half taken.
    """

    def __init__(self, base: int = 0, span: int | None = None) -> None:
        """Count from *base* on; with a *span*, numbers of other writers' ranges do not count."""
        self.lock = new_rlock()
        self.message = base
        self.agent = base
        self._end = None if span is None else base + span

    def next_message(self) -> int:
        """Take the next message's number."""
        self.message = number = self.message + 1
        return number

    def next_agent(self) -> int:
        """Take the next agent's number."""
        self.agent = number = self.agent + 1
        return number

    def saw_message(self, number: int) -> None:
        """Give no message a number that is there."""
        if (self._end is None or number <= self._end) and number > self.message:
            self.message = number

    def saw_agent(self, number: int) -> None:
        """Give no agent a number that is there."""
        if (self._end is None or number <= self._end) and number > self.agent:
            self.agent = number


class Registry:
    """Learns from events in the order of the stream. Keeps about 150 bytes for each: its id and its agent."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.agents: dict[str, AgentRecord] = {}
        """All that ever lived, in the order in which they appear."""
        self.counters = counters or Counters()
        self._owners: dict[str, str] = {}
        self._parents: set[str] = set()
        self._calls = WaitingCalls()

    def learn(self, event: AnyEvent) -> None:
        """Take up an event."""
        self._count(event)
        if isinstance(event, AgentCreated):
            self._created(event)
        elif isinstance(event, TranscriptEntry):
            self._record(event.agent_id).entries += 1
            self._calls.take(event)
        is_users = event.agent_id == USER and event.agent_id not in self.agents  # who is no agent, and has created none
        self._owners.setdefault(event.message_id, "" if is_users else event.agent_id)

    def new_agent_id(self) -> str:
        """Return an id that no agent has, and that will not be given again."""
        return f"agent_{self.counters.next_agent():03d}"

    def count_in(self, counters: Counters) -> None:
        """Go on with other counters, such as a forked process's own; what is known here is not given by them."""
        self.counters = counters
        for message_id in self._owners:
            self._count_message(message_id)
        for agent_id in self.agents:
            self._count_agent(agent_id)

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
            self._count_message(identity)
        self._count_agent(event.agent_id)

    def _count_message(self, message_id: str) -> None:
        if match := _MESSAGE.match(message_id):
            self.counters.saw_message(int(match[1]))

    def _count_agent(self, agent_id: str) -> None:
        if match := _AGENT.match(agent_id):
            self.counters.saw_agent(int(match[1]))

    def _record(self, agent_id: str) -> AgentRecord:
        return self.agents.setdefault(agent_id, AgentRecord(agent_id))

    def _created(self, event: AgentCreated) -> None:
        record = self._record(event.agent_id)
        if record.message_id:  # a second creation of one agent adds what the first left open
            record.name = record.name or event.name
            record.language_model = record.language_model or event.language_model
            return
        record.message_id = event.message_id
        record.name, record.language_model = event.name or record.name, event.language_model or record.language_model
        record.cause = event.cause
        self._count_agent(event.parent or "")
        parent = event.parent or next((owner for cause in event.cause if (owner := self.owner(cause))), None)
        if parent is None and (call := self._calls.creator(event)) is not None:
            parent = call.agent_id
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


class Home(Protocol):
    """Keeps events and gives them their ids. Only what cannot work from the start raises; later a fault is reported once."""

    registry: Registry
    """What is known of all agents and ids."""

    def add(self, make: MakeEvent) -> str:
        """Keep the event that *make* returns for the next message id; returns that id."""
        ...

    def refresh(self) -> None:
        """Take up what other processes added."""
        ...

    def events(self) -> Sequence[AnyEvent]:
        """Return all that was kept, in its order."""
        ...

    def recorded(self, messages: list[Any]) -> list[Any]:
        """Return those of an agent's messages that were kept with their content."""
        ...

    def new_agent_id(self) -> str:
        """Return an id that no agent has."""
        ...

    def turn(self, agent_id: str) -> AbstractContextManager[None]:
        """Put what happens within into a turn of the agent, where this home has turns."""
        ...

    def op(self, agent_id: str, kind: OpKind, name: str) -> AbstractContextManager[Op | None]:
        """Put what happens within into an op of the agent, where this home has ops."""
        ...

    def leave(self, agent_id: str) -> None:
        """The agent is not held in memory any more."""
        ...

    def close(self) -> None:
        """End what is open; the second call does nothing."""
        ...


class WaitingCall(NamedTuple):
    """A call that has no result yet, and has a name among its arguments."""

    agent_id: str
    call_id: str
    tool: str
    message_id: str


class WaitingCalls:
    """Takes entries in their order, and finds the call that waits for an agent to be created."""

    def __init__(self) -> None:
        self._named: dict[str, list[WaitingCall]] = {}

    def take(self, entry: TranscriptEntry) -> None:
        """Take up the calls of an entry, and those that it answers."""
        for call in calls_of(entry):
            if (name := _name_in(call.arguments)) is not None:
                self._named.setdefault(name, []).append(WaitingCall(entry.agent_id, call.id, call.name, entry.message_id))
        if self._named and (answered := set(answered_by(entry))):
            for name, waiting in [*self._named.items()]:
                waiting[:] = [
                    candidate for candidate in waiting if candidate.agent_id != entry.agent_id or candidate.call_id not in answered
                ]
                if not waiting:
                    del self._named[name]

    def creator(self, created: AgentCreated) -> WaitingCall | None:
        """Return the call that waits for this agent: the latest of `task` by its name, whole, or else of another tool; it waits no more."""
        if not _is_open(created) or not (waiting := self._named.get(created.name or "")):
            return None
        result = next((call for call in reversed(waiting) if call.tool == "task"), waiting[-1])
        waiting.remove(result)
        return result


def inferred_calls(events: Sequence[AnyEvent]) -> dict[str, str]:
    """Return the message whose call created an agent, by the id of the creation, for those of whom nothing else tells."""
    result: dict[str, str] = {}
    if not any(_is_open(event) for event in events):
        return result
    calls = WaitingCalls()
    for event in events:
        if isinstance(event, TranscriptEntry):
            calls.take(event)
        elif isinstance(event, AgentCreated) and (call := calls.creator(event)) is not None:
            result[event.message_id] = call.message_id
    return result


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
    return text_of(name)
