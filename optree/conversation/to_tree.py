"""A stream of conversation events as a tree: each agent a session inside the one that created it, its transcript that session's messages.

The files of the seeds hold no times: then the events are a millisecond apart, in their order, from *start* on, and the ``conversation``
attribute of the root says up to when times are such (`tree.summary.untimed_until`). Nor do they say how an agent ended: sessions last up to
the last event in them, and have no outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct

from optree import _records as r
from optree._ids import content_id
from optree._nodes import PIECE_OF_TEXT, Message, SessionNode
from optree._tree import Fold, Tree
from optree._values import decode, encode, is_object
from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry, message_of
from optree.conversation.registry import inferred_calls
from optree.conversation.wire import line

TICK = 1.0
"""Milliseconds from one event to the next where they say no times."""
MAX_NESTED = 50
"""Agents in each other: one that is deeper stands beside its parent (a snapshot holds 60 sessions in each other)."""
_NAMED_BY = 16
"""Events at the beginning of a stream that its txn is made of."""
_TITLE = 80


class _Agent(Struct):
    """An agent as its events describe it."""

    agent_id: str
    number: int
    """Where it stands in the order in which agents appear."""
    begun: float
    created: AgentCreated | None = None
    messages: list[Message] = []


def tree_of(events: Iterable[AnyEvent], *, txn: str | None = None, start: float = 0.0, notes: list[str] | None = None) -> Tree:
    """Return the tree of a stream of events; nothing is raised, and *notes* takes what had to be mended.

    The root is the first agent whose parent is not in the stream; others without one stand below it, as children that name no parent.
    Without a *txn* it is made from the first events, so that a stream has the same one each time. *start* is in epoch milliseconds.
    """
    remarks: list[str] = [] if notes is None else notes
    stream = _once(list(events), remarks)
    name = txn or f"events-{content_id(*map(line, stream[:_NAMED_BY]))}"
    times = _times(stream, start)
    agents = _agents(stream, times)
    above = _above(agents, _parents(stream), remarks)
    untimed = stream and all(event.timestamp is None for event in stream)
    return _Sessions(name, agents, above).tree(times[-1] if untimed else None)


def is_created(session: SessionNode) -> bool:
    """Tell whether the session's agent has an event of its creation; False for one that only has entries in its stream."""
    block = session.attributes.get("conversation")
    return not is_object(block) or block.get("messageId") is not None


def _once(stream: list[AnyEvent], notes: list[str]) -> list[AnyEvent]:
    """Return the events without those that are there a second time; two that differ both stay."""
    seen: dict[str, AnyEvent] = {}
    result: list[AnyEvent] = []
    for event in stream:
        first = seen.setdefault(event.message_id, event)
        if first is not event:
            if first == event:
                notes.append(f"event {event.message_id} is there twice: once is enough")
                continue
            notes.append(f"two events have the id {event.message_id}, and differ: both are kept")
        result.append(event)
    return result


def _times(stream: list[AnyEvent], start: float) -> list[float]:
    """Return a time for each event: its own, or a tick after the event before."""
    result: list[float] = []
    latest = start - TICK
    for event in stream:
        latest = latest + TICK if event.timestamp is None else event.timestamp
        result.append(latest)
    return result


def _agents(stream: list[AnyEvent], times: list[float]) -> dict[str, _Agent]:
    """Return the agents in the order in which they appear, each with its messages. A text without a known maker is of its cause's agent.

    The user is no agent: texts that only name the user stand in the first agent's session, with the user as their maker.
    """
    makers = {event.message_id: event.agent_id for event in stream}
    agents: dict[str, _Agent] = {}
    is_agent = any(event.agent_id == USER and not isinstance(event, PieceOfText) for event in stream)
    for event, time in zip(stream, times, strict=True):
        named = "" if event.agent_id == USER and not is_agent else event.agent_id
        whose = named or next((maker for cause in event.cause if (maker := _lookup(makers, cause))), "")
        if not whose and isinstance(event, PieceOfText):
            whose = next(iter(agents), "")
        agent = agents.get(whose)
        if agent is None:
            agent = agents[whose] = _Agent(whose, len(agents), time)
        if isinstance(event, AgentCreated):
            if agent.created is None:
                agent.created, agent.begun = event, min(time, agent.begun)
        else:
            agent.messages.append(_message(event, time))
    return agents or {"": _Agent("", 0, times[0] if times else 0.0)}


def _lookup(makers: dict[str, str], cause: str) -> str | None:
    """Return the agent of a message; a cause may name one tool call of it."""
    return makers.get(cause) or makers.get(cause.rpartition(".")[0])


def _message(event: TranscriptEntry | PieceOfText, time: float) -> Message:
    if isinstance(event, PieceOfText):
        maker = {"agent": USER} if event.agent_id == USER else {}
        return Message(time, PIECE_OF_TEXT, Raw(encode({"content": event.content, **maker})), event.message_id, None, event.cause)
    return Message(time, event.role, Raw(encode(message_of(event))), event.message_id, event.substance, event.cause)


def _parents(stream: list[AnyEvent]) -> dict[str, str]:
    """Return the parents of agents as their creation tells: by name, by cause, or by the call that was waiting then (seed 000)."""
    makers = {event.message_id: event.agent_id for event in stream}
    inferred = inferred_calls(stream)
    result: dict[str, str] = {}
    for event in stream:
        if isinstance(event, AgentCreated) and event.agent_id not in result:
            causes = (*event.cause, inferred.get(event.message_id, ""))
            parent = event.parent or next((maker for cause in causes if (maker := _lookup(makers, cause))), None)
            if parent is not None:
                result[event.agent_id] = parent
    return result


def _above(agents: dict[str, _Agent], parents: dict[str, str], notes: list[str]) -> dict[str, str | None]:
    """Return the parent of each agent; None for one without a parent here. A circle is cut where it closes."""
    result: dict[str, str | None] = {}
    tops: dict[str, str] = {}
    for name in agents:
        parent = parents.get(name)
        if parent is not None and parent not in agents:
            notes.append(f"agent {name} was created by {parent}, who is not in the stream")
            parent = None
        if parent is not None and _top(tops, parent) == name:  # an agent whose parent is not looked at yet is the top of all below it
            notes.append(f"agent {name} would be created by {parent}, which it created itself: that link is cut")
            parent = None
        result[name] = parent
        if parent is not None:
            tops[name] = parent
    return result


def _top(above: dict[str, str], name: str) -> str:
    """Return the agent that stands above all others above *name*; the way there is shortened, so that the next walk is quick."""
    trail: list[str] = []
    while name in above:
        trail.append(name)
        name = above[name]
    above.update(dict.fromkeys(trail, name))
    return name


class _Sessions:
    """Records the sessions of agents, those that were created below those that created them."""

    def __init__(self, txn: str, agents: dict[str, _Agent], above: dict[str, str | None]) -> None:
        self._fold = Fold(txn)
        self._agents = agents
        self._root = next(name for name in agents if above[name] is None)
        self._below: dict[str, list[_Agent]] = {}
        for name, agent in agents.items():
            if name != self._root:
                self._below.setdefault(above[name] or self._root, []).append(agent)

    def tree(self, untimed_until: float | None) -> Tree:
        """Return the root session with all below it."""
        put, root = self._fold.apply, self._agents[self._root]
        known = {} if untimed_until is None else {"untimedUntil": untimed_until}
        pending = [(root, "", _name(root), 1)]
        begun: list[tuple[_Agent, str, int]] = []
        while pending:
            agent, path, call_path, depth = pending.pop()
            attributes = Raw(encode({"conversation": _agent_attributes(agent) | ({} if path else known)}))
            put(r.SessionBegin(path, agent.begun, _name(agent), call_path, attributes))
            for message in agent.messages:
                put(r.MessageAdded(path, r.AT_THE_END, message))
            below = self._children(agent, depth)
            begun.append((agent, path, len(below)))
            if below:
                put(r.TurnBegin(_turn(path), agent.begun))
            for number, child in enumerate(below, 1):
                inside = f"{_turn(path)}.{number}"
                put(r.OpBegin(inside, child.begun, "session", _name(child)))
                pending.append((child, inside, f"{call_path}->{_name(child)}", depth + 1))
        put(r.SessionSet("", root.begun, title=_title(root.messages)))
        self._end(begun)
        return self._fold.finish()

    def _children(self, agent: _Agent, depth: int) -> list[_Agent]:
        """Return whose sessions stand in an agent's; as deep as it goes, these are all below it, in the order in which they appear."""
        result = [*self._below.get(agent.agent_id, ())] if depth <= MAX_NESTED else []
        if depth < MAX_NESTED:
            return result
        for child in result:
            result += self._below.get(child.agent_id, ())
        return sorted(result, key=lambda child: child.number)

    def _end(self, begun: list[tuple[_Agent, str, int]]) -> None:
        """End each session, and the nodes around those below it, with the last event in them; their status is not known."""
        put = self._fold.apply
        ended: dict[str, float] = {}
        for agent, path, below in reversed(begun):  # those below before those above
            turn = _turn(path)
            inside = [ended[f"{turn}.{number}"] for number in range(1, below + 1)]
            for number, ts in enumerate(inside, 1):
                put(r.OpEnd(f"{turn}.{number}", ts, None))
            if inside:
                put(r.TurnEnd(turn, max(inside), None))
            ended[path] = max([agent.begun, *inside, *(message.timestamp for message in agent.messages)])
            put(r.SessionEnd(path, ended[path], None))


def _turn(session: str) -> str:
    return f"{session}.1" if session else "1"


def _agent_attributes(agent: _Agent) -> dict[str, Any]:
    """Return the members of the event of an agent's creation, for the attributes of its session."""
    block: dict[str, Any] = {"agentId": agent.agent_id}
    if (created := agent.created) is not None:
        block["messageId"] = created.message_id
        members = {
            "name": created.name,
            "languageModel": created.language_model,
            "cause": list(created.cause) or None,
            "parent": created.parent,
        }
        block |= {key: value for key, value in members.items() if value is not None}
    return block


def _name(agent: _Agent) -> str:
    named = agent.created.name if agent.created is not None else None
    return named or agent.agent_id or "agent"


def _title(messages: list[Message]) -> str | None:
    """Return the first message of the root's user, as the session's title."""
    for message in messages:
        if message.role == "user":
            content = decode(message.body).get("content")
            return " ".join(content.split())[:_TITLE] or None if isinstance(content, str) else None
    return None
