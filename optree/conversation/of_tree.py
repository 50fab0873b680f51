"""Any tree as a stream of conversation events: who was created, what entered each transcript, which texts were made for others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.conversation.llm_transcript import decoded, transcript
from optree.conversation.provider_messages import entries_of
from optree.conversation.to_tree import is_created
from optree.interrupts import pass_on
from optree.nodes import PIECE_OF_TEXT, Message, OperationNode, Pool, SessionNode
from optree.tree import Tree, walk_sessions
from optree.tree.summary import untimed_until
from optree.values import is_list, is_object

_NAMED = {"role", "content", "tool_calls", "tool_call_id", "name"}
_NUMBER = re.compile(r"(\d{1,18})\Z", re.ASCII)


def events_of(tree: Tree) -> list[AnyEvent]:
    """Return the conversation in a tree, in the order of time, however it was captured.

    A session whose ``conversation`` attribute names its agent, and messages that have ids, come out as they were put in. Other agents have
    the names of their sessions (a second one of a name ``name@path``), and other messages the ids ``msg_NNN`` that follow the highest
    that is there. Where a session has no messages, its transcript is what its model calls sent and got. Nothing is raised.
    """
    sessions = list(walk_sessions(tree.session))
    ids = _agent_ids(sessions)
    lists: list[list[AnyEvent]] = []
    created: set[str] = set()
    above = _parents(sessions)
    for session in sessions:
        agent, own = ids[session.path], list[AnyEvent]()
        if agent not in created and (not _block(session) or is_created(session)):
            created.add(agent)
            own.append(_created(session, agent, ids[above[session.path]] if session.path in above else None))
        for said in _said(session, tree.pool):
            said.agent_id = said.agent_id or agent
            own.append(said)
        lists.append(own)
    found = _merged(lists)
    _number(found)
    until = untimed_until(tree.session) if _block(tree.session) else None
    for event in found if until is not None else ():
        event.timestamp = None if _when(event) <= (until or 0.0) else event.timestamp
    return found


def _said(session: SessionNode, pool: Pool) -> list[TranscriptEntry | PieceOfText]:
    """Return a session's entries and texts, from its messages, or else from its model calls."""
    found: list[TranscriptEntry | PieceOfText] = [event for message in session.messages for event in _of_message(message)]
    if not any(isinstance(event, TranscriptEntry) for event in found) and not _block(session):
        found += transcript(session, pool)
    return found


def _of_message(message: Message) -> list[TranscriptEntry | PieceOfText]:
    body = decoded(message.body)
    links: dict[str, Any] = {"message_id": message.id or "", "cause": tuple(message.cause), "timestamp": message.timestamp}
    if message.role == PIECE_OF_TEXT:
        maker = USER if is_object(body) and body.get("agent") == USER else ""
        return [PieceOfText(agent_id=maker, content=body.get("content", body) if is_object(body) else body, **links)]
    if message.id is None and message.substance is None and not message.cause:
        found = entries_of(body, message.role if message.role != "unknown" else "user")
        for entry in found:
            entry.timestamp = message.timestamp
        return [*found]
    told: dict[str, Any] = body if is_object(body) else {"content": body}
    calls, call, name = told.get("tool_calls"), told.get("tool_call_id"), told.get("name")
    entry = TranscriptEntry(
        role=message.role,
        content=told.get("content"),
        substance=message.substance,
        tool_calls=calls if is_list(calls) else None,
        tool_call_id=None if call is None else str(call),
        name=name if isinstance(name, str) else None,
        more={key: value for key, value in told.items() if key not in _NAMED},
        **links,
    )
    return [entry]


def _created(session: SessionNode, agent: str, parent: str | None) -> AgentCreated:
    block = _block(session)
    if not block:
        return AgentCreated(
            message_id="",
            agent_id=agent,
            name=session.agent_id,
            language_model=_model(session),
            parent=parent,
            timestamp=session.started_at,
        )
    cause: Any = block.get("cause")
    return AgentCreated(
        message_id=_text(block.get("messageId")) or "",
        agent_id=agent,
        name=_text(block.get("name")),
        language_model=_text(block.get("languageModel")),
        cause=tuple(str(one) for one in cause) if is_list(cause) else () if cause is None else (str(cause),),
        parent=_text(block.get("parent")),
        timestamp=session.started_at,
    )


def _model(session: SessionNode) -> str | None:
    """Return the model that a session asked first."""
    first: OperationNode | None = next((op for turn in session.turns for op in turn.ops if op.kind == "llm"), None)
    return None if first is None else first.name


def _agent_ids(sessions: Sequence[SessionNode]) -> dict[str, str]:
    """Return each session's agent id by the session's path; of sessions of one name the first has it, in the order of their begins."""
    given = {session.path: known for session in sessions if (known := _text(_block(session).get("agentId"))) is not None}
    taken = set(given.values())
    found = dict(given)
    for session in sorted(sessions, key=lambda one: one.started_at):
        if session.path not in found:
            name = session.agent_id or "agent"
            identity = name if name not in taken else f"{name}@{session.path}"
            while identity in taken:
                identity += "+"
            taken.add(identity)
            found[session.path] = identity
    return found


def _parents(sessions: Sequence[SessionNode]) -> dict[str, str]:
    """Return the path of each session's parent session, by the session's path."""
    return {op.child_session.path: one.path for one in sessions for turn in one.turns for op in turn.ops if op.child_session is not None}


def _merged(lists: list[list[AnyEvent]]) -> list[AnyEvent]:
    """Return the events of all sessions in the order of time; where that is the same, each session's keep the order that they have."""
    placed = [((_when(event), place), event) for own in lists for place, event in zip(_places(own), own, strict=True)]
    placed.sort(key=itemgetter(0))
    return [event for _, event in placed]


def _places(events: list[AnyEvent]) -> Iterator[float]:
    """Yield for a session's events what orders them among those of others at one time: the highest number in an id so far."""
    numbers = [None if (found := _NUMBER.search(event.message_id)) is None else int(found[1]) for event in events]
    place: float = next((number for number in numbers if number is not None), math.inf)
    for number in numbers:
        place = place if number is None else max(place, number)
        yield place


def _number(events: list[AnyEvent]) -> None:
    """Give ids to events that have none."""
    taken = Counter(event.message_id for event in events)
    numbers = count(max((int(found[1]) for one in taken if (found := _NUMBER.search(one))), default=0) + 1)
    for event in events:
        if not event.message_id:
            event.message_id = f"msg_{next(numbers):03d}"


def _when(event: AnyEvent) -> float:
    return event.timestamp or 0.0


def _block(session: SessionNode) -> dict[str, Any]:
    """Return what a session says of its agent, where the conversation was recorded as such."""
    try:
        block = session.attributes.get("conversation")
    except Exception as error:  # noqa: BLE001 - damaged attributes are none
        pass_on(error)
        return {}
    return block if is_object(block) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
