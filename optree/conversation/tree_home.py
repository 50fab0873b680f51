"""A session's events in the tree of a traced session: each agent a session of the tree, its transcript that session's messages.

The first agent is the session that the conversation is part of, and has its name for an id. Others are child sessions, inside a `session`
op of their parent's current turn. Where that turn has ended and the agent speaks again, another session goes on with it (`continues`).
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from optree._builder import Op, SessionTreeBuilder
from optree._builder.content import with_content
from optree._builder.core import Core
from optree._builder.outcome import outcome
from optree._ids import WRITER_SPAN
from optree._nodes import PIECE_OF_TEXT, OpKind, Status, lacks_content
from optree._tree import Tree, walk_sessions
from optree._values import is_object
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry, message_of
from optree.conversation.of_tree import events_of
from optree.conversation.registry import Counters, MakeEvent, Registry

Process = tuple[int, int]
"""What is another one in a forked process: its id, and the epoch of the tree's core."""

_counters: WeakKeyDictionary[Core, dict[Process, Counters]] = WeakKeyDictionary()
"""Of each tree: conversations in several of its sessions give no id twice. A parent process's lock may be held for ever in its child."""


def _process(core: Core) -> Process:
    return os.getpid(), core.epoch


def _counters_of(core: Core) -> Counters:
    """Return the counters of this process for a tree, which begin where its writer's range does (decision 005)."""
    return _counters.setdefault(core, {}).setdefault(_process(core), Counters(core.base, WRITER_SPAN))


class _AgentBuilder(SessionTreeBuilder):
    """Builds a sub-agent's session. An agent that waits when its parent's turn ends was not cancelled: its run is over, and was well."""

    def end_session(self, status: Status = "ok", error: str | None = None, *, final_report: Any = None) -> None:
        """End the session, and the op that it is in."""
        known: Status = "ok" if status == "cancelled" and _is_waiting(self) else status
        super().end_session(known, error, final_report=final_report)
        if self.parent is not None:
            self.parent.end_op(self.path, known, error)


def _is_waiting(builder: SessionTreeBuilder) -> bool:
    """Tell whether an agent has done well what it was asked for, and nothing of it is going on: its sub-agents may wait as well."""
    turns, turn = builder.node.turns, builder.current_turn
    ended = [one.status for one in turns if one.ended_at is not None]
    if (ended and ended[-1] != "ok") or (turn is not None and turn.node.ended_at is None and not turn.implicit):
        return False
    going_on = [op.child_session for one in turns for op in one.ops if op.ended_at is None]
    below = [None if child is None else builder.core.builders.get(child.path) for child in going_on]
    return all(one is not None and _is_waiting(one) for one in below)


class TreeHome:
    """Keeps events in a tree."""

    def __init__(self, builder: SessionTreeBuilder) -> None:
        """Go on with what the session's tree has already, also where it was loaded from disk."""
        self.registry = Registry(_counters_of(builder.core))
        self._root = builder
        self._process = _process(builder.core)
        self._builders: dict[str, SessionTreeBuilder] = {}
        self._mine: set[str] = set()
        """Agents whose session this process began."""
        self._learn()
        self.root_id = next(iter(self.registry.agents))
        """The id of the session itself, which is the conversation's first agent: given to no other."""
        self._builders[self.root_id] = builder
        self._makes_root = False

    def is_new(self) -> bool:
        """Tell whether no message and no agent of a conversation was recorded; turns and model calls do not count."""
        return not any(session.messages or _agent_of(session.attributes) for session in walk_sessions(self._root.node))

    @contextmanager
    def making_root(self) -> Generator[None]:
        """Give the session's own id to an agent that is created in the block."""
        self._makes_root = True
        try:
            yield
        finally:
            self._makes_root = False

    def add(self, make: MakeEvent) -> str:
        """Keep an event in the session of its agent; returns its id."""
        with self._lock():
            event = make(f"msg_{self.registry.counters.next_message():03d}")
            self.registry.learn(event)
            if isinstance(event, AgentCreated):
                self._create(event)
            else:
                body = {"role": PIECE_OF_TEXT, "content": event.content} if isinstance(event, PieceOfText) else message_of(event)
                same = event.substance if isinstance(event, TranscriptEntry) else None
                self._builder(event.agent_id).append_message(body, message_id=event.message_id, substance=same, cause=event.cause)
            return event.message_id

    def refresh(self) -> None:
        """Nothing is to be done: the tree is this process's."""

    def events(self) -> Sequence[AnyEvent]:
        """Return all that is in the tree, in the order of time."""
        return events_of(self._root.tree)

    def recorded(self, messages: list[Any]) -> list[Any]:
        """Return those of an agent's messages that were recorded with content: no model can go on with others."""
        return with_content(messages) if lacks_content(self._root.chain[-1]) else messages

    def new_agent_id(self) -> str:
        """Return an id that no agent has; the session's own while its first agent is made."""
        with self._lock():
            made_root, self._makes_root = self._makes_root, False
            return self.root_id if made_root else self.registry.new_agent_id()

    @contextmanager
    def turn(self, agent_id: str) -> Generator[None]:
        """Put what happens within into the agent's turn: the open one, or one of its own."""
        builder = self._builder(agent_id)
        own = builder.begin_turn() if builder.current_turn is None or builder.current_turn.implicit else None
        try:
            yield
        except BaseException as error:
            if own is not None:
                own.end(*outcome(error))
            raise
        if own is not None:
            own.end()

    @contextmanager
    def op(self, agent_id: str, kind: OpKind, name: str) -> Generator[Op]:
        """Put what happens within into an op of the agent's turn."""
        op = self._builder(agent_id).begin_op(kind, name, attributes={"model": name} if kind == "llm" and ":" not in name else None)
        try:
            yield op
        except BaseException as error:
            op.end(*outcome(error))
            raise
        op.end()

    def leave(self, agent_id: str) -> None:
        """End the agent's session, if this process began it; should the agent come back, another goes on with it."""
        with self._lock():
            builder = self._builders.get(agent_id)
            if agent_id in self._mine and builder is not None:
                builder.end_session()

    def close(self) -> None:
        """End the sessions of all agents but the first, which is the traced program's own."""
        for agent_id in reversed([*self._builders]):
            self.leave(agent_id)

    def _lock(self) -> AbstractContextManager[object]:
        """Return the lock of the tree's counters; in a forked process with counters of its own, and no sessions begun yet."""
        process = _process(self._root.core)
        if process != self._process:
            self._process = process
            self.registry.count_in(_counters_of(self._root.core))
            self._mine.clear()
        return self.registry.counters.lock

    def _learn(self) -> None:
        """Learn what the tree has below this session; of what is above and beside it, the ids."""
        whole = self._root
        while whole.parent is not None:
            whole = whole.parent
        for builder, registry in ((whole, Registry(self.registry.counters)), (self._root, self.registry)):
            for event in _real(builder.tree):
                registry.learn(event)

    def _create(self, event: AgentCreated) -> None:
        record = self.registry.agents[event.agent_id]
        if record.parent is None and event.agent_id != self.root_id:  # its place in the tree is to say the same as its links
            record.parent = event.parent = self.root_id
        block = {"agentId": event.agent_id, "messageId": event.message_id, "name": event.name, "languageModel": event.language_model}
        links = {"cause": list(event.cause) or None, "parent": event.parent}
        known = {key: value for key, value in (block | links).items() if value is not None}
        if event.agent_id == self.root_id:  # it is there: the traced program began it
            self._root.set_title(attributes={"conversation": known})
        else:
            self._begin(event.agent_id, {"conversation": known})

    def _builder(self, agent_id: str) -> SessionTreeBuilder:
        """Return the builder of the agent's open session, begun here if there is none."""
        result = self._builders.get(agent_id)
        if result is not None and (result is self._root or result.node.ended_at is None):
            return result
        earlier = [session for session in walk_sessions(self._root.node) if _agent_of(session.attributes) == agent_id]
        goes_on = {"continues": earlier[-1].path} if earlier else {}
        return self._begin(agent_id, {"conversation": {"agentId": agent_id}, **goes_on})

    def _begin(self, agent_id: str, attributes: dict[str, Any]) -> SessionTreeBuilder:
        record = self.registry.agents.get(agent_id)
        above = record.parent if record is not None else None
        parent = self._builder(above) if above is not None and above in self.registry.agents else self._root
        name = record.label if record is not None else agent_id
        child = parent.attach_child_session(parent.begin_op("session", name), name, attributes=attributes)
        builder = self._builders[agent_id] = _AgentBuilder.over(child.core, child.node, parent)
        self._mine.add(agent_id)
        return builder


def _real(tree: Tree) -> Iterator[AnyEvent]:
    """Yield a tree's events, without the ids that only the view of it gives to those that have none."""
    ids: set[str | None] = set()
    for session in walk_sessions(tree.session):
        block = session.attributes.get("conversation")
        ids.update(message.id for message in session.messages)
        ids.add(block.get("messageId") if is_object(block) else None)
    for event in events_of(tree):
        event.message_id = event.message_id if event.message_id in ids else ""
        yield event


def _agent_of(attributes: dict[str, Any]) -> str | None:
    block = attributes.get("conversation")
    return block.get("agentId") if is_object(block) else None
