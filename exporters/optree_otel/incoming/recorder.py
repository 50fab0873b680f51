"""From spans to records: what the begin and the end of a span put into a tree, with the span's own times.

Files that are imported and programs that run go through these functions alike. A builder gives indices and paths; the records are made
here, since a builder's own methods take the time from its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec import UNSET, Struct

from optree import LogEntry, Op, SessionTreeBuilder, Turn
from optree.builder.core import Core
from optree.builder.figures import PROMPT_CHARACTERS, error_text
from optree.exporting import (
    Entries,
    OpBegin,
    OpEnd,
    OpKind,
    OpSet,
    Record,
    Requested,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionSet,
    Status,
    TurnBegin,
    TurnEnd,
    TurnSet,
    cut,
    is_object,
    text,
)
from optree.tree import apply
from optree.tree.totals import add_op
from optree_otel import names
from optree_otel.incoming import content
from optree_otel.incoming.billing import account
from optree_otel.incoming.meaning import Meaning, model, provider
from optree_otel.incoming.spans import ERROR, InEvent, InSpan

MAX_NESTED: Final = 50
"""Sessions in each other: an agent that is deeper stays an op (a snapshot holds 60)."""
_ERROR_EVENT: Final = "exception"
Node = TypeVar("Node")
Said = TypeVar("Said", bound=Record)
_KINDS: Final[dict[str, OpKind]] = {"agent": "session", "llm": "llm", "tool": "tool", "mcp": "tool"}


class SpanPlace(Struct):
    """Where a span stands, and where what happens within it goes."""

    builder: SessionTreeBuilder
    """The session that holds what happens within."""
    turn: Turn
    within: Op | None = None
    """The op that was current there; None right inside a turn."""
    own: Op | None = None
    """The span's own op; None for a root span, which has a session and a turn instead."""
    above: SpanPlace | None = None
    in_tool: bool = False
    billed: bool = False
    """Its own figures are accounted for."""
    accounted: bool = False
    """Something within it is accounted for: its own figures say the same again."""
    told: dict[str, Any] = {}
    """The attributes that are recorded of it."""
    asked: tuple[list[Any] | None, dict[str, Any]] | None = None
    """The messages and other members of the request that is recorded of it."""
    foreign: bool = True
    """False where the turn is one that the program itself has begun: what it says is not for spans to add to."""


@contextmanager
def step(core: Core) -> Generator[Callable[[Record], None]]:
    """Hold the stream for one structural step; gives what queues a record."""
    held = core.stream.enter()
    try:
        yield core.stream.put
    finally:
        core.stream.leave(held)


def begin_turn(
    builder: SessionTreeBuilder, ts: float, prompts: Mapping[str, str | None], attributes: Mapping[str, Any], *, implicit: bool = False
) -> Turn:
    """Begin a session's next turn."""
    core = builder.core
    block = core.attributes(attributes)
    said = {role: cut(core.text(given), PROMPT_CHARACTERS) for role, given in prompts.items() if given is not None}
    with step(core) as put:
        number = max((turn.index for turn in builder.node.turns), default=0) + 1
        record = TurnBegin(f"{builder.path}.{number}" if builder.path else str(number), ts, said or None, block)
        turn = builder.current_turn = Turn(builder, apply.begin_turn(builder.node, record), 1, implicit=implicit)
        put(record)
    return turn


def end_turn(turn: Turn, ts: float, status: Status, error: str | None, prompt: str | None, assistant: str | None) -> None:
    """End a turn, with the user's prompt if none is recorded yet, and the assistant's last words."""
    core = turn.builder.core
    _prompted(turn, prompt)
    with step(core) as put:
        if assistant is not None:
            turn.node.assistant = {"content": cut(core.text(assistant), PROMPT_CHARACTERS)}
            put(TurnSet(turn.path, turn.node.assistant))
        record = TurnEnd(turn.path, ts, status, error)
        apply.end_turn(turn.node, record)
        put(record)
        if turn.builder.current_turn is turn:
            turn.builder.current_turn = None


def end_session(builder: SessionTreeBuilder, ts: float, status: Status, error: str | None, report: Any) -> None:
    """End a session."""
    final = UNSET if report is None else builder.core.json(report)
    with step(builder.core) as put:
        record = SessionEnd(builder.path, ts, status, error, final)
        apply.end_session(builder.node, record)
        put(record)
    for listener in builder.core.listeners:
        listener(builder.path)


def begin(above: SpanPlace, span: InSpan, what: Meaning) -> SpanPlace:
    """Begin the op that a span stands for; of an agent, with the session in it."""
    if what.role == "frame":
        return SpanPlace(above.builder, above.turn, above.within, None, above, above.in_tool, foreign=above.foreign)
    kind = _KINDS.get(what.role, "system")
    if what.role == "mcp" and above.in_tool:  # the same call, seen from below
        kind = "system"
    name = what.name if kind != "system" else span.name
    told = _told(span, kind)
    op = _begin_op(above, kind, name, span.started_at, told)
    path = above.builder.path
    nested = (path.count(".") + 1) // 2 + 1 if path else 1
    if kind != "session" or nested > MAX_NESTED:
        place = SpanPlace(above.builder, above.turn, op, op, above, above.in_tool or kind == "tool", told=told, foreign=above.foreign)
    else:
        child = _begin_child(above.builder, op, name or "agent", span)
        user, _, _ = content.of_agent(span)
        place = SpanPlace(child, begin_turn(child, span.started_at, {"user": user}, {}), None, op, above, told=told)
    _put_request(place, op, span, what)
    return place


def update(place: SpanPlace, span: InSpan, what: Meaning) -> None:
    """Record what an open span has told since its begin: its op's name, its attributes, and what it asks."""
    op = place.own
    if op is None or op.node.ended_at is not None:
        return
    _put_request(place, op, span, what)
    _put_name(op, span, what, _news(place, span))


def end(place: SpanPlace, span: InSpan, what: Meaning) -> None:
    """Record what a span turned out to be, and its end if it has one."""
    op = place.own
    if op is None:
        return
    core = op.builder.core
    status, error = outcome(span)
    said = None if error is None else core.text(error_text(error))
    if place.builder is not op.builder and span.end_ns:
        user, last, report = content.of_agent(span)
        end_turn(place.turn, span.ended_at, status, said, user, last)
        end_session(place.builder, span.ended_at, status, said, report)
    _put_request(place, op, span, what)
    _put_name(op, span, what, {})
    reasoning = _put_answer(op, span, what)
    block = core.attributes(_news(place, span))
    with step(core) as put:
        if op.node.ended_at is not None or op.turn.node.ended_at is not None:
            core.touched.add(op.path)
        _put_events(op, span, put)
        account(place, span, what, status, said)
        if span.end_ns and op.node.ended_at is None:
            latency = span.ended_at - span.started_at
            record = OpEnd(op.path, span.ended_at, status, latency, said, reasoning, block)
            apply.end_op(op.node, record)
            put(record)
            core.ops.pop(op.path, None)
            core.ended[op.path] = op.node
        _stretch(place, span.ended_at, put)


def outcome(span: InSpan) -> tuple[Status, str | None]:
    """Return how a span ended, and its error."""
    if span.status != ERROR:
        return "ok", None
    thrown = [event.attributes.get("exception.message") for event in span.events if event.name == _ERROR_EVENT]
    return "failed", span.message or text((thrown and thrown[-1]) or span.attributes.get(names.ERROR_TYPE) or "failed")


def events_of(span: InSpan) -> list[dict[str, Any]]:
    """Return the events of a span that has no op to log them, as plain values."""
    return [{"timestamp": event.time_ns / 1_000_000, "name": event.name, **event.attributes} for event in span.events]


def _stretch(place: SpanPlace, ts: float, put: Callable[[Record], None]) -> None:
    """Let no turn or session that has ended already be shorter than what is in it; within a step."""
    above: SpanPlace | None = place
    while above is not None:
        turn, session = above.turn.node, above.turn.builder.node
        if turn.ended_at is not None and turn.ended_at < ts:
            above.turn.builder.core.touched.add(f"{turn.path}.1")
            _apply(apply.set_turn, turn, TurnSet(turn.path, ended_at=ts), put)
        if session.ended_at is not None and session.ended_at < ts:
            if session.path:
                above.turn.builder.core.touched.add(session.path)
            _apply(apply.set_session, session, SessionSet(session.path, ts, ended_at=ts), put)
        above = above.above


def _prompted(turn: Turn, user: str | None) -> None:
    """Record what the user asked, where the begin of a turn did not tell it."""
    node, core = turn.node, turn.builder.core
    if not user or (node.prompts and "user" in node.prompts):
        return
    with step(core) as put:
        if node.ended_at is not None:
            core.touched.add(f"{node.path}.1")
        _apply(apply.set_turn, node, TurnSet(node.path, prompts={"user": cut(core.text(user), PROMPT_CHARACTERS)}), put)


def _put_prompts(place: SpanPlace, messages: list[Any]) -> None:
    """Take the prompt of the turns that a model call is in from its request, where nothing else has told it: the last that a user said."""
    user = content.asked_by_user(messages)
    above: SpanPlace | None = place
    while user is not None and above is not None:
        if above.foreign:
            _prompted(above.turn, user)
        above = above.above


def _news(place: SpanPlace, span: InSpan) -> dict[str, Any]:
    """Return the attributes that are not recorded yet; they count as recorded from now on."""
    told = _told(span, "system" if place.own is None else place.own.node.kind)
    new = {key: value for key, value in told.items() if key not in place.told or place.told[key] != value}
    place.told = told
    return new


def _put_name(op: Op, span: InSpan, what: Meaning, attributes: Mapping[str, Any]) -> None:
    """Record what an open op is called by now, and more of its attributes. A session's op keeps the name that its agent has."""
    kind, core = op.node.kind, op.builder.core
    name = op.node.name if kind == "session" else span.name if kind == "system" else what.name
    told = core.text(name) if name and name != op.node.name else None
    if op.node.ended_at is not None or (told is None and not attributes):
        return
    with step(core) as put:
        _apply(apply.set_op, op.node, OpSet(op.path, core.now_ms(), told, core.attributes(attributes)), put)


def _apply(change: Callable[[Node, Said], None], node: Node, record: Said, put: Callable[[Record], None]) -> None:
    change(node, record)
    put(record)


def _begin_op(above: SpanPlace, kind: OpKind, name: str, ts: float, attributes: Mapping[str, Any]) -> Op:
    builder, turn = above.builder, above.turn
    core = builder.core
    block = core.attributes(attributes)
    with step(core) as put:
        path = f"{turn.path}.{turn.next_op()}"
        parent = above.within.path if above.within is not None else None
        record = OpBegin(path, ts, kind, name, parent, block)
        if turn.node.ended_at is not None:
            core.touched.add(path)
        op = core.ops[path] = Op.of_ended(builder, turn, apply.begin_op(core.txn, turn.node, record))
        for session in builder.chain:
            add_op(session.totals, kind)
        put(record)
    return op


def _begin_child(builder: SessionTreeBuilder, op: Op, agent: str, span: InSpan) -> SessionTreeBuilder:
    above, core = builder.node, builder.core
    node = apply.new_session(core.txn, op.path, above.trace_id, agent, f"{above.call_path}->{agent}", span.started_at)
    node.parent_txn_id = above.id
    known = {"parentTraceId": node.trace_id, "parentCallPath": above.call_path, "toolName": agent}
    attributes: dict[str, Any] = {"ingress": {"source": "sub-agent", "subAgent": known}}
    if agent in builder.ancestry():
        attributes["cycle"] = True
    node.attributes_json = core.attributes(attributes)
    with step(core) as put:
        op.node.child_session = node
        put(SessionBegin(node.path, node.started_at, agent, node.call_path, node.attributes_json))
    return SessionTreeBuilder.over(core, node, builder)


def _told(span: InSpan, kind: OpKind) -> dict[str, Any]:
    kept = content.remaining(span)
    if kind == "llm":
        known = {"provider": provider(span.attributes), "model": model(span.attributes)}
        return {**{key: value for key, value in known.items() if value}, **kept}
    return kept


def _put_request(place: SpanPlace, op: Op, span: InSpan, what: Meaning) -> None:
    """Record what an op asks, if that is told and not recorded yet."""
    if what.role == "llm":
        said = content.of_llm(span)
        messages, members = said.messages, said.members
        if messages is not None or members:
            members = {"model": model(span.attributes), **members}
    elif what.role in ("tool", "mcp", "plain", "chain"):
        arguments, _ = content.of_tool(span.attributes)
        messages, members = None, {} if arguments is None else arguments if is_object(arguments) else {"arguments": arguments}
    else:
        return
    if (messages is None and not members) or place.asked == (messages, members):
        return
    place.asked = messages, members
    core = op.builder.core
    encoded = core.request("llm" if what.role == "llm" else "tool", messages, members)
    with step(core) as put:
        new, payload = core.pooled(encoded)
        op.node.request = payload
        if new.blobs or new.links:
            put(new)
        put(Requested(op.path, span.started_at, payload))
    if messages:
        _put_prompts(place, messages)


def _put_answer(op: Op, span: InSpan, what: Meaning) -> str | None:
    """Record the response of an op; returns the reasoning of an LLM call."""
    if what.role == "llm":
        said = content.of_llm(span)
        _put_response(op, span, said.answer or None)
        return None if said.reasoning is None else op.builder.core.text(said.reasoning)
    if what.role in ("tool", "mcp", "plain", "chain"):
        _put_response(op, span, content.of_tool(span.attributes)[1])
    return None


def _put_response(op: Op, span: InSpan, value: Any) -> None:
    if value is None:
        return
    payload = op.builder.core.response(value)
    with step(op.builder.core) as put:
        op.node.response = payload
        put(Responded(op.path, span.ended_at, payload))


def _put_events(op: Op, span: InSpan, put: Callable[[Record], None]) -> None:
    """Record a span's events as log lines."""
    lines = [_line(event, op.builder.core) for event in span.events if event.name != content.DETAILS]
    if lines:
        put(Entries(op.path, len(op.node.logs), tuple(lines)))
        apply.add_entries(op.node, lines, [])


def _line(event: InEvent, core: Core) -> LogEntry:
    block = event.attributes
    if event.name == _ERROR_EVENT:
        thrown = (block.get("exception.type"), block.get("exception.message"))
        message = ": ".join(text(part) for part in thrown if part) or _ERROR_EVENT
        rest = {key: value for key, value in block.items() if key not in ("exception.type", "exception.message")}
        return LogEntry(event.time_ns / 1_000_000, "ERR", message, None, core.attributes(rest))
    details = core.attributes(block) if block else UNSET
    return LogEntry(event.time_ns / 1_000_000, "VRB", text(event.name), None, details)
