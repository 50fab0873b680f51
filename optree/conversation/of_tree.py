"""Any tree as a stream of conversation events: agents, their transcripts from their model calls, and texts made for others.

A request sends the whole history again. Pooled histories share their links, so only links that are new are read: the work grows with
what was said. A history that begins anew, since it was compacted, adds what is new in it; what was there stays.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from msgspec import UNSET

from optree._interrupts import pass_on
from optree._nodes import PIECE_OF_TEXT, Message, OperationNode, Payload, Pool, SessionNode, TurnNode
from optree._providers.messages import HISTORY_KEYS, json_text
from optree._tree import Tree, walk_sessions
from optree._tree.text import untimed_until
from optree._values import decode, is_list, is_object, object_of
from optree.conversation.content import (
    SYSTEM_KEYS,
    answered_by,
    answers_of,
    calls_of,
    entries_of,
    history_in,
    instructions_in,
    is_thought,
    text_of,
    with_thoughts,
)
from optree.conversation.dialects import USER
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.conversation.to_tree import is_created

_NAMED = {"role", "content", "tool_calls", "tool_call_id", "name"}
_NUMBER = re.compile(r"(\d{1,18})\Z", re.ASCII)
Key = tuple[Any, ...]
"""By what an entry is known again when a later request sends it: role, text, calls, and the call that it answers."""


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
        for entry in _session_events(session, tree.pool):
            entry.agent_id = entry.agent_id or agent
            own.append(entry)
        lists.append(own)
    result = _merged(lists)
    _number(result)
    until = untimed_until(tree.session) if _block(tree.session) else None
    for event in result if until is not None else ():
        event.timestamp = None if _when(event) <= (until or 0.0) else event.timestamp
    return result


def _session_events(session: SessionNode, pool: Pool) -> list[TranscriptEntry | PieceOfText]:
    """Return a session's entries and texts, from its messages, or else from its model calls."""
    result: list[TranscriptEntry | PieceOfText] = [event for message in session.messages for event in _of_message(message)]
    if not any(isinstance(event, TranscriptEntry) for event in result) and not _block(session):
        result += transcript(session, pool)
    return result


def _of_message(message: Message) -> list[TranscriptEntry | PieceOfText]:
    body = decoded(message.body)
    links: dict[str, Any] = {"message_id": message.id or "", "cause": tuple(message.cause), "timestamp": message.timestamp}
    if message.role == PIECE_OF_TEXT:
        maker = USER if is_object(body) and body.get("agent") == USER else ""
        return [PieceOfText(agent_id=maker, content=body.get("content", body) if is_object(body) else body, **links)]
    if message.id is None and message.substance is None and not message.cause:
        entries = entries_of(body, message.role if message.role != "unknown" else "user")
        for entry in entries:
            entry.timestamp = message.timestamp
        return [*entries]
    members: dict[str, Any] = body if is_object(body) else {"content": body}
    calls, call, name = members.get("tool_calls"), members.get("tool_call_id"), members.get("name")
    entry = TranscriptEntry(
        role=message.role,
        content=members.get("content"),
        substance=message.substance,
        tool_calls=calls if is_list(calls) else None,
        tool_call_id=None if call is None else str(call),
        name=name if isinstance(name, str) else None,
        more={key: value for key, value in members.items() if key not in _NAMED},
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
        cause=tuple(str(identity) for identity in cause) if is_list(cause) else () if cause is None else (str(cause),),
        parent=_text(block.get("parent")),
        timestamp=session.started_at,
    )


def _model(session: SessionNode) -> str | None:
    """Return the model that a session asked first."""
    first: OperationNode | None = next((op for turn in session.turns for op in turn.ops if op.kind == "llm"), None)
    return None if first is None else first.name


def _agent_ids(sessions: Sequence[SessionNode]) -> dict[str, str]:
    """Return each session's agent id by the session's path; of sessions of one name the first has it, in the order of their begins."""
    named = {session.path: known for session in sessions if (known := _text(_block(session).get("agentId"))) is not None}
    taken = set(named.values())
    result = dict(named)
    for session in sorted(sessions, key=lambda node: node.started_at):
        if session.path not in result:
            name = session.agent_id or "agent"
            identity = name if name not in taken else f"{name}@{session.path}"
            while identity in taken:
                identity += "+"
            taken.add(identity)
            result[session.path] = identity
    return result


def _parents(sessions: Sequence[SessionNode]) -> dict[str, str]:
    """Return the path of each session's parent session, by the session's path."""
    return {
        op.child_session.path: session.path
        for session in sessions
        for turn in session.turns
        for op in turn.ops
        if op.child_session is not None
    }


def _merged(lists: list[list[AnyEvent]]) -> list[AnyEvent]:
    """Return the events of all sessions in the order of time; where that is the same, each session's keep the order that they have."""
    placed = [((_when(event), place), event) for own in lists for place, event in zip(_places(own), own, strict=True)]
    placed.sort(key=itemgetter(0))
    return [event for _, event in placed]


def _places(events: list[AnyEvent]) -> Iterator[float]:
    """Yield for a session's events what orders them among those of others at one time: the highest number in an id so far."""
    numbers = [None if (match := _NUMBER.search(event.message_id)) is None else int(match[1]) for event in events]
    place: float = next((number for number in numbers if number is not None), math.inf)
    for number in numbers:
        place = place if number is None else max(place, number)
        yield place


def _number(events: list[AnyEvent]) -> None:
    """Give ids to events that have none."""
    taken = Counter(event.message_id for event in events)
    numbers = count(max((int(match[1]) for identity in taken if (match := _NUMBER.search(identity))), default=0) + 1)
    for event in events:
        if not event.message_id:
            event.message_id = f"msg_{next(numbers):03d}"


def _when(event: AnyEvent) -> float:
    return event.timestamp or 0.0


def _block(session: SessionNode) -> dict[str, Any]:
    """Return the attributes that describe a session's agent, where the conversation was recorded as such."""
    try:
        block = session.attributes.get("conversation")
    except Exception as error:  # noqa: BLE001 - damaged attributes count as missing
        pass_on(error)
        return {}
    return object_of(block)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def transcript(session: SessionNode, pool: Pool) -> list[TranscriptEntry]:
    """Return the entries of a session in which no messages were recorded, without ids, in the order in which they came about."""
    calls = sorted((op for turn in session.turns for op in turn.ops if op.kind == "llm"), key=lambda op: op.started_at)
    collected = _Transcript(pool)
    if not any(_sends(op) for op in calls):
        for turn in session.turns:
            collected.prompt(turn, repeated=any(op.request is not None for op in calls))
    for op in calls:
        if op.request is not None:
            collected.request(decoded(op.request.payload), op.started_at)
        collected.answer(op)
    return _with_results(collected.entries, session)


class _Transcript:
    """What an agent sent and got so far."""

    def __init__(self, pool: Pool) -> None:
        self.entries: list[TranscriptEntry] = []
        self._pool = pool
        self._places: defaultdict[Key, list[int]] = defaultdict(list)
        self._behind: dict[str, int] = {}
        """Per link of a pooled history that was seen, the place behind its message."""
        self._known: dict[str, list[TranscriptEntry]] = {}
        """The entries of each message in the pool that was read."""

    def request(self, payload: Any, at: float) -> None:
        """Take what a request sends."""
        payload = self._whole(payload)
        for entry in entries_of(
            {"role": "system", "content": instructions} if (instructions := instructions_in(payload)) is not None else None
        ):
            if _key(entry) not in self._places:
                self._add(entry, at)
        history = history_in(payload)
        if is_object(history) and "$history" in history:
            self._pooled(str(history["$history"]), at)
        elif history is not None:
            messages = history if is_list(history) else [history]
            self._history([(None, entries_of(message)) for message in messages], 0, at)

    def _whole(self, payload: Any) -> Any:
        """Return a request with its history and instructions, where they were long; messages of a pooled history stay a reference."""
        if not is_object(payload):
            return payload
        long = [key for key in (*HISTORY_KEYS, *SYSTEM_KEYS) if is_object(value := payload.get(key)) and "$blob" in value]
        return {**payload, **{key: self._pool.resolve(payload[key]) for key in long}}

    def answer(self, op: OperationNode) -> None:
        """Take what came back; what was streamed as reasoning goes with it."""
        if op.response is None:
            return
        entries = _answers(op.response, self._pool)
        reasoning = "" if op.reasoning is None else op.reasoning.text
        for entry in entries:
            if op.response.partial:
                entry.more = {**entry.more, "partial": True}
            if reasoning and entry.role == "assistant" and "reasoning_content" not in entry.more:
                entry.more, reasoning = {**entry.more, "reasoning_content": reasoning}, ""
            self._add(entry, op.started_at if op.ended_at is None else op.ended_at)

    def prompt(self, turn: TurnNode, *, repeated: bool) -> None:
        """Take the turn's own prompts and answer: all that is known where no request holds a message.

        Where there are requests (*repeated*), the prompts are what each of them sent again, and count once.
        """
        prompts = turn.prompts or {}
        for role in ("system", "user"):
            entry = TranscriptEntry(message_id="", role=role, content=prompts.get(role))
            if entry.content and not (repeated and _key(entry) in self._places):
                self._add(entry, turn.started_at)
        answered = any(op.kind == "llm" and op.response is not None and _answers(op.response, self._pool) for op in turn.ops)
        if turn.assistant and not answered and (content := turn.assistant.get("content")):
            ended = turn.started_at if turn.ended_at is None else turn.ended_at
            self._add(TranscriptEntry(message_id="", role="assistant", content=content), ended)

    def _pooled(self, head: str, at: float) -> None:
        """Take a pooled history, from the last link on that was seen before."""
        new: list[tuple[str | None, list[TranscriptEntry]]] = []
        passed: set[str] = set()
        while head in self._pool.links and head not in self._behind and head not in passed:
            passed.add(head)
            previous, blob = self._pool.links[head]
            new.append((head, self._message(blob)))
            head = previous
        new.reverse()
        self._history(new, self._behind.get(head, 0), at)

    def _message(self, blob: str) -> list[TranscriptEntry]:
        if blob not in self._known:
            data = self._pool.blobs.get(blob)
            self._known[blob] = [] if data is None else entries_of(decoded(data))
        return self._known[blob]

    def _history(self, messages: list[tuple[str | None, list[TranscriptEntry]]], place: int, at: float) -> None:
        """Add the messages that are not there already: they are looked for in their order, from a place on."""
        limit, reached = len(self.entries), place
        for link, entries in _joined(messages):
            for entry in entries:
                places = self._places.get(_key(entry), [])
                position = bisect_left(places, place)
                if position < len(places) and places[position] < limit:
                    place = places[position] + 1
                    reached = max(reached, place)
                else:
                    self._add(_copy(entry), at)
                    reached = len(self.entries)
            if link is not None:
                self._behind[link] = reached

    def _add(self, entry: TranscriptEntry, at: float) -> None:
        entry.timestamp = at
        self._places[_key(entry)].append(len(self.entries))
        self.entries.append(entry)


def _joined(messages: list[tuple[str | None, list[TranscriptEntry]]]) -> Iterator[tuple[str | None, list[TranscriptEntry]]]:
    """Yield the entries of a history's messages; a thought that a message of its own holds goes with the message behind it."""
    held: list[TranscriptEntry] = []
    for link, entries in messages:
        merged = [*with_thoughts([*held, *entries])]
        spoken = next((place for place in range(len(merged), 0, -1) if not is_thought(merged[place - 1])), 0)
        held = merged[spoken:]
        yield link, merged[:spoken]
    yield None, held


def _with_results(entries: list[TranscriptEntry], session: SessionNode) -> list[TranscriptEntry]:
    """Add results from the ops that ran, for calls whose results no later request sent."""
    answered = {call for entry in entries for call in answered_by(entry)}
    called = [(entry, call) for entry in entries if entry.role == "assistant" for call in calls_of(entry)]
    if all(call.id in answered for _, call in called):
        return entries
    ran: defaultdict[str, deque[OperationNode]] = defaultdict(deque)
    for turn in session.turns:
        for op in turn.ops:
            if op.kind in ("tool", "session"):
                ran[op.name.rpartition(":")[2]].append(op)
    result = list(entries)
    for entry, call in called:
        ops = ran.get(call.name.rpartition(":")[2])
        while ops and ops[0].started_at < (entry.timestamp or 0.0):
            ops.popleft()
        run = ops.popleft() if ops else None
        if run is not None and run.ended_at is not None and call.id not in answered:
            result.append(_result(run, call.id, call.name))
    return result


def _result(op: OperationNode, call: str, name: str) -> TranscriptEntry:
    value = decoded(op.response.payload) if op.response is not None else _report(op)
    output = op.error if value is None and op.error else value
    content = text_of(output) if output is None or isinstance(output, str) else json_text(output)
    return TranscriptEntry(message_id="", role="tool", content=content, tool_call_id=call, name=name, timestamp=op.ended_at)


def _report(op: OperationNode) -> Any:
    """Return what a sub-agent gave as its result."""
    child = op.child_session
    return None if child is None or child.final_report is UNSET else decoded(child.final_report)


def _sends(op: OperationNode) -> bool:
    """Tell whether an op's request holds any message: the original ai-agent's may hold figures alone."""
    payload = None if op.request is None else decoded(op.request.payload)
    return history_in(payload) is not None or instructions_in(payload) is not None


def _answers(response: Payload, pool: Pool) -> list[TranscriptEntry]:
    return answers_of(pool.resolve(decoded(response.payload)))


def _key(entry: TranscriptEntry) -> Key:
    return (entry.role, text_of(entry.content).strip(), tuple(_calls(entry)), entry.tool_call_id)


def _calls(entry: TranscriptEntry) -> Iterator[tuple[str, str]]:
    return ((call.id, call.name) for call in calls_of(entry))


def _copy(entry: TranscriptEntry) -> TranscriptEntry:
    """Return an entry of its own: one message of the pool may come several times, and in several transcripts."""
    return TranscriptEntry(
        message_id="",
        role=entry.role,
        content=entry.content,
        tool_calls=entry.tool_calls,
        tool_call_id=entry.tool_call_id,
        name=entry.name,
        more=entry.more,
    )


def decoded(data: Any) -> Any:
    """Return the value behind JSON bytes; None where they are damaged."""
    try:
        return decode(data)
    except Exception as error:  # noqa: BLE001 - a damaged payload is not to take the rest with it
        pass_on(error)
        return None
