"""A stream of conversation events as a tree: each agent a session inside the one that created it, its transcript that session's messages.

The files of the seeds hold no times: then the events are a millisecond apart, in their order, from *start* on, and the ``conversation``
attribute of the root says up to when times are such (`tree.summary.untimed_until`). Nor do they say how an agent ended: sessions last up to
the last event in them, and have no outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct

from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.conversation.views.parents import inferred_calls
from optree.conversation.wire import line
from optree.ids import content_id, node_id, trace_id
from optree.nodes import PIECE_OF_TEXT, Message, OperationNode, Pool, SessionNode, TurnNode
from optree.tree import Tree
from optree.values import decode, encode, is_object

TICK = 1.0
"""Milliseconds from one event to the next where they say no times."""
MAX_NESTED = 50
"""Agents in each other: one that is deeper stands beside its parent (a snapshot holds 60 sessions in each other)."""
_NAMED_BY = 16
"""Events at the beginning of a stream that its txn is made of."""
_TITLE = 80


class _Agent(Struct):
    """An agent as its events tell of it."""

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
    said: list[str] = [] if notes is None else notes
    stream = _once(list(events), said)
    name = txn or f"events-{content_id(*map(line, stream[:_NAMED_BY]))}"
    times = _times(stream, start)
    agents = _agents(stream, times)
    above = _above(agents, _parents(stream), said)
    root = _Sessions(name, agents, above).root()
    if stream and all(event.timestamp is None for event in stream):
        attributes = root.attributes
        attributes["conversation"]["untimedUntil"] = times[-1]
        root.attributes_json = Raw(encode(attributes))
    return Tree(root, Pool())


def is_created(session: SessionNode) -> bool:
    """Tell whether an event says that the session's agent came into being; False for one that only has entries in its stream."""
    block = session.attributes.get("conversation")
    return not is_object(block) or block.get("messageId") is not None


def _once(stream: list[AnyEvent], notes: list[str]) -> list[AnyEvent]:
    """Return the events without those that are there a second time; two that differ both stay."""
    seen: dict[str, AnyEvent] = {}
    found: list[AnyEvent] = []
    for event in stream:
        first = seen.setdefault(event.message_id, event)
        if first is not event:
            if first == event:
                notes.append(f"event {event.message_id} is there twice: once is enough")
                continue
            notes.append(f"two events have the id {event.message_id}, and differ: both are kept")
        found.append(event)
    return found


def _times(stream: list[AnyEvent], start: float) -> list[float]:
    """Return a time for each event: its own, or a tick after the event before."""
    found: list[float] = []
    latest = start - TICK
    for event in stream:
        latest = latest + TICK if event.timestamp is None else event.timestamp
        found.append(latest)
    return found


def _agents(stream: list[AnyEvent], times: list[float]) -> dict[str, _Agent]:
    """Return the agents in the order in which they appear, each with its messages. A text of unknown make is of whom its cause tells.

    The user is no agent: what only texts name so stands in the first agent's session, and says whose it is.
    """
    makers = {event.message_id: event.agent_id for event in stream}
    found: dict[str, _Agent] = {}
    is_agent = any(event.agent_id == USER and not isinstance(event, PieceOfText) for event in stream)
    for event, time in zip(stream, times, strict=True):
        named = "" if event.agent_id == USER and not is_agent else event.agent_id
        whose = named or next((maker for cause in event.cause if (maker := _lookup(makers, cause))), "")
        if not whose and isinstance(event, PieceOfText):
            whose = next(iter(found), "")
        agent = found.get(whose)
        if agent is None:
            agent = found[whose] = _Agent(whose, len(found), time)
        if isinstance(event, AgentCreated):
            if agent.created is None:
                agent.created, agent.begun = event, min(time, agent.begun)
        else:
            agent.messages.append(_message(event, time))
    return found or {"": _Agent("", 0, times[0] if times else 0.0)}


def _lookup(makers: dict[str, str], cause: str) -> str | None:
    """Return the agent of a message; a cause may name one tool call of it."""
    return makers.get(cause) or makers.get(cause.rpartition(".")[0])


def _message(event: TranscriptEntry | PieceOfText, time: float) -> Message:
    if isinstance(event, PieceOfText):
        maker = {"agent": USER} if event.agent_id == USER else {}
        return Message(time, PIECE_OF_TEXT, Raw(encode({"content": event.content, **maker})), event.message_id, None, event.cause)
    told = {"tool_calls": event.tool_calls, "tool_call_id": event.tool_call_id, "name": event.name}
    body = {"role": event.role, "content": event.content} | {key: value for key, value in told.items() if value is not None}
    return Message(time, event.role, Raw(encode(body | event.more)), event.message_id, event.substance, event.cause)


def _parents(stream: list[AnyEvent]) -> dict[str, str]:
    """Return the parents of agents as their creation tells: by name, by cause, or by the call that was waiting then (seed 000)."""
    makers = {event.message_id: event.agent_id for event in stream}
    inferred = inferred_calls(stream)
    found: dict[str, str] = {}
    for event in stream:
        if isinstance(event, AgentCreated) and event.agent_id not in found:
            causes = (*event.cause, inferred.get(event.message_id, ""))
            parent = event.parent or next((maker for cause in causes if (maker := _lookup(makers, cause))), None)
            if parent is not None:
                found[event.agent_id] = parent
    return found


def _above(agents: dict[str, _Agent], told: dict[str, str], notes: list[str]) -> dict[str, str | None]:
    """Return the parent of each agent; None of one that has none here. What is no tree is cut where it comes round."""
    found: dict[str, str | None] = {}
    tops: dict[str, str] = {}
    for name in agents:
        parent = told.get(name)
        if parent is not None and parent not in agents:
            notes.append(f"agent {name} was created by {parent}, who is not in the stream")
            parent = None
        if parent is not None and _top(tops, parent) == name:  # an agent whose parent is not looked at yet is the top of all below it
            notes.append(f"agent {name} would be created by {parent}, which it created itself: that link is cut")
            parent = None
        found[name] = parent
        if parent is not None:
            tops[name] = parent
    return found


def _top(above: dict[str, str], name: str) -> str:
    """Return the agent that stands above all others above *name*; the way there is shortened, so that the next walk is quick."""
    trail: list[str] = []
    while name in above:
        trail.append(name)
        name = above[name]
    above.update(dict.fromkeys(trail, name))
    return name


class _Sessions:
    """Makes the sessions of agents."""

    def __init__(self, txn: str, agents: dict[str, _Agent], above: dict[str, str | None]) -> None:
        self._txn = txn
        self._agents = agents
        self._root = next(name for name in agents if above[name] is None)
        self._below: dict[str, list[_Agent]] = {}
        for name, agent in agents.items():
            if name != self._root:
                self._below.setdefault(above[name] or self._root, []).append(agent)

    def root(self) -> SessionNode:
        """Return the root session with all below it."""
        root = self._session(self._agents[self._root], "", None)
        root.session_title = _title(root)
        made = [root]
        pending = [(root, self._root, 1)]
        while pending:
            session, name, depth = pending.pop()
            below = self._below.get(name, ())
            if not below:
                continue
            path = f"{session.path}.1" if session.path else "1"
            turn = TurnNode(node_id(self._txn, path), path, 1, session.started_at, [])
            session.turns.append(turn)
            for agent in self._flattened(below) if depth >= MAX_NESTED else below:
                child = self._child(turn, agent, session)
                made.append(child)
                if depth < MAX_NESTED:
                    pending.append((child, agent.agent_id, depth + 1))
        for session in reversed(made):  # those below before those above
            _end(session)
        return root

    def _flattened(self, agents: list[_Agent]) -> list[_Agent]:
        """Return agents with all below them, in the order in which they appear."""
        found = [*agents]
        for agent in found:
            found += self._below.get(agent.agent_id, ())
        return sorted(found, key=lambda agent: agent.number)

    def _child(self, turn: TurnNode, agent: _Agent, parent: SessionNode) -> SessionNode:
        path = f"{turn.path}.{len(turn.ops) + 1}"
        op = OperationNode(node_id(self._txn, path), path, "session", _name(agent), agent.begun, (), ())
        op.child_session = self._session(agent, path, parent)
        turn.ops.append(op)
        return op.child_session

    def _session(self, agent: _Agent, path: str, parent: SessionNode | None) -> SessionNode:
        name, made = _name(agent), agent.created
        block: dict[str, Any] = {"agentId": agent.agent_id}
        if made is not None:
            block["messageId"] = made.message_id
            told = {"name": made.name, "languageModel": made.language_model, "cause": list(made.cause) or None, "parent": made.parent}
            block |= {key: value for key, value in told.items() if value is not None}
        return SessionNode(
            id=node_id(self._txn, path),
            path=path,
            trace_id=trace_id(self._txn),
            agent_id=name,
            call_path=name if parent is None else f"{parent.call_path}->{name}",
            origin_txn_id=self._txn,
            started_at=agent.begun,
            turns=[],
            parent_txn_id=None if parent is None else parent.id,
            attributes_json=Raw(encode({"conversation": block})),
            messages=agent.messages,
        )


def _end(session: SessionNode) -> None:
    """End a session, and what holds those below it, with the last event in them; nobody says how."""
    for turn in session.turns:
        for op in turn.ops:
            op.ended_at = op.child_session.ended_at if op.child_session is not None else None
        turn.ended_at = max(op.ended_at or 0.0 for op in turn.ops)
    times = [session.started_at, *(message.timestamp for message in session.messages), *(turn.ended_at or 0.0 for turn in session.turns)]
    session.ended_at = max(times)


def _name(agent: _Agent) -> str:
    named = agent.created.name if agent.created is not None else None
    return named or agent.agent_id or "agent"


def _title(root: SessionNode) -> str | None:
    """Return what the root's user asked first, as the session's title."""
    for message in root.messages:
        if message.role == "user":
            said = decode(message.body).get("content")
            return " ".join(said.split())[:_TITLE] or None if isinstance(said, str) else None
    return None
