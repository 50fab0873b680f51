"""From spans to records: what the begin and the end of a span put into a tree, with the span's own times.

Files that are imported and programs that run go through these functions alike: a builder records both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Struct

from optree import AccountingEntry, LogEntry, Op, SessionTreeBuilder, Turn
from optree.exporting import (
    Accounted,
    Entries,
    OpEnd,
    OpKind,
    OpSet,
    SessionEnd,
    SessionSet,
    Status,
    TurnEnd,
    TurnSet,
    cut,
    is_object,
    text,
)
from optree_otel.incoming import content
from optree_otel.incoming.conventions import Meaning, answering_model, model, provider, usage
from optree_otel.incoming.spans import ERROR, InEvent, InSpan
from optree_otel.signals import names

MAX_NESTED: Final = 50
"""Sessions in each other: an agent that is deeper stays an op (a snapshot holds 60)."""
_ERROR_EVENT: Final = "exception"
_OF_CONTENT: Final = "gen_ai."
"""What the name of an event begins with that has messages."""
_MOST_CHARACTERS: Final = 16_384
"""Of a prompt, an error, or what an assistant said."""
_KINDS: Final[dict[str, OpKind]] = {"agent": "session", "llm": "llm", "tool": "tool", "mcp": "tool"}
_LOOKED_UP: Final = 64


def end_turn(turn: Turn, ts: float, status: Status, error: str | None, prompt: str | None, assistant: str | None) -> None:
    """End a turn, with the user's prompt if none is recorded yet, and the assistant's last words."""
    _prompted(turn, prompt)
    builder = turn.builder
    if assistant is not None:
        builder.set_assistant(turn, assistant)
    builder.record(TurnEnd(turn.path, ts, status, _cut_text(builder, error)))


def end_session(builder: SessionTreeBuilder, ts: float, status: Status, error: str | None, report: Any) -> None:
    """End a session."""
    final = UNSET if report is None else builder.core.report(report)
    builder.record(SessionEnd(builder.path, ts, status, _cut_text(builder, error), final))


def _cut_text(builder: SessionTreeBuilder, value: str | None) -> str | None:
    """Return a text as the tree holds it: the end of a very long one is cut."""
    return None if value is None else cut(builder.core.text(value), _MOST_CHARACTERS)


def begin(above: SpanPlace, span: InSpan, meaning: Meaning) -> SpanPlace:
    """Begin the op that a span stands for; of an agent, with the session in it."""
    if meaning.role == "frame":
        return SpanPlace(above.builder, above.turn, above.within, None, above, above.in_tool, foreign=above.foreign)
    kind = _KINDS.get(meaning.role, "system")
    if meaning.role == "mcp" and above.in_tool:  # the same call, seen from below
        kind = "system"
    name = meaning.name if kind != "system" else span.name
    attributes = _attributes(span, kind, above.builder)
    op = above.builder.begin_op(kind, name, turn=above.turn, parent=above.within, attributes=attributes, at=span.started_at)
    path = above.builder.path
    nested = (path.count(".") + 1) // 2 + 1 if path else 1
    if kind != "session" or nested > MAX_NESTED:
        place = SpanPlace(
            above.builder, above.turn, op, op, above, above.in_tool or kind == "tool", attributes=attributes, foreign=above.foreign
        )
    else:
        child = above.builder.attach_child_session(op, name or "agent", at=span.started_at)
        user, _, _ = content.of_agent(span)
        place = SpanPlace(child, child.begin_turn(user=user, at=span.started_at), None, op, above, attributes=attributes)
    _put_request(place, op, span, meaning)
    return place


def update(place: SpanPlace, span: InSpan, meaning: Meaning) -> None:
    """Record what an open span has told since its begin: its op's name, its attributes, and what it asks."""
    op = place.own
    if op is None or op.node.ended_at is not None:
        return
    _put_request(place, op, span, meaning)
    _put_name(op, span, meaning, _new_attributes(place, span))


def end(place: SpanPlace, span: InSpan, meaning: Meaning) -> None:
    """Record what a span turned out to be, and its end if it has one."""
    op = place.own
    if op is None:
        return
    builder = op.builder
    status, error = outcome(span)
    error_text = _cut_text(builder, error)
    if place.builder is not op.builder and span.end_ns:
        user, last, report = content.of_agent(span)
        end_turn(place.turn, span.ended_at, status, error_text, user, last)
        end_session(place.builder, span.ended_at, status, error_text, report)
    _put_request(place, op, span, meaning)
    _put_name(op, span, meaning, {})
    reasoning = _put_answer(op, span, meaning)
    block = builder.core.attributes(_new_attributes(place, span))
    _put_events(op, span)
    account(place, span, meaning, status, error_text)
    if span.end_ns and op.node.ended_at is None:
        latency = span.ended_at - span.started_at
        builder.record(OpEnd(op.path, span.ended_at, status, latency, error_text, reasoning, block))
    _stretch(place, span.ended_at)


def outcome(span: InSpan) -> tuple[Status, str | None]:
    """Return how a span ended, and its error."""
    if span.status != ERROR:
        return "ok", None
    thrown = [event.attributes.get("exception.message") for event in span.events if event.name == _ERROR_EVENT]
    return "failed", span.message or text((thrown and thrown[-1]) or span.attributes.get(names.ERROR_TYPE) or "failed")


def events_of(span: InSpan) -> list[dict[str, Any]]:
    """Return the events of a span that has no op to log them, as plain values."""
    return [{"timestamp": event.time_ns / 1_000_000, "name": event.name, **event.attributes} for event in span.events]


def _stretch(place: SpanPlace, ts: float) -> None:
    """Let no turn or session that has ended already be shorter than what is in it."""
    above: SpanPlace | None = place
    while above is not None:
        turn, builder = above.turn.node, above.turn.builder
        if turn.ended_at is not None and turn.ended_at < ts:
            builder.record(TurnSet(turn.path, ended_at=ts))
        if builder.node.ended_at is not None and builder.node.ended_at < ts:
            builder.record(SessionSet(builder.path, ts, ended_at=ts))
        above = above.above


def _prompted(turn: Turn, user: str | None) -> None:
    """Record what the user asked, where the begin of a turn did not tell it."""
    if user and not (turn.node.prompts and "user" in turn.node.prompts):
        prompt = cut(turn.builder.core.said(user), _MOST_CHARACTERS)
        turn.builder.record(TurnSet(turn.path, prompts={"user": prompt}))


def _put_prompts(place: SpanPlace, messages: list[Any]) -> None:
    """Take the prompt of the turns that a model call is in from its request, where nothing else has told it: the last that a user said."""
    user = content.asked_by_user(messages)
    above: SpanPlace | None = place
    while user is not None and above is not None:
        if above.foreign:
            _prompted(above.turn, user)
        above = above.above


def _new_attributes(place: SpanPlace, span: InSpan) -> dict[str, Any]:
    """Return the attributes that are not recorded yet; they count as recorded from now on."""
    attributes = _attributes(span, "system" if place.own is None else place.own.node.kind, place.builder)
    new = {key: value for key, value in attributes.items() if key not in place.attributes or place.attributes[key] != value}
    place.attributes = attributes
    return new


def _put_name(op: Op, span: InSpan, meaning: Meaning, attributes: Mapping[str, Any]) -> None:
    """Record what an open op is called by now, and more of its attributes. A session's op keeps the name that its agent has."""
    kind, core = op.node.kind, op.builder.core
    name = op.node.name if kind == "session" else span.name if kind == "system" else meaning.name
    new_name = core.text(name) if name and name != op.node.name else None
    if op.node.ended_at is not None or (new_name is None and not attributes):
        return
    op.builder.record(OpSet(op.path, core.now_ms(), new_name, core.attributes(attributes)))


def _attributes(span: InSpan, kind: OpKind, builder: SessionTreeBuilder) -> dict[str, Any]:
    kept = content.remaining(span, texts=builder.core.content)
    if kind == "llm":
        known = {"provider": provider(span.attributes), "model": model(span.attributes)}
        return {**{key: value for key, value in known.items() if value}, **kept}
    return kept


def _put_request(place: SpanPlace, op: Op, span: InSpan, meaning: Meaning) -> None:
    """Record the request of an op, if the span has it and it is not recorded yet."""
    if meaning.role == "llm":
        call = content.of_llm(span)
        messages, members = call.messages, call.members
        if messages is not None or members:
            members = {"model": model(span.attributes), **members}
    elif meaning.role in ("tool", "mcp", "plain", "chain"):
        arguments, _ = content.of_tool(span.attributes)
        messages, members = None, {} if arguments is None else arguments if is_object(arguments) else {"arguments": arguments}
    else:
        return
    if (messages is None and not members) or place.asked == (messages, members):
        return
    place.asked = messages, members
    op.builder.set_request(op, members, messages, at=span.started_at)
    if messages:
        _put_prompts(place, messages)


def _put_answer(op: Op, span: InSpan, meaning: Meaning) -> str | None:
    """Record the response of an op; returns the reasoning of an LLM call."""
    if meaning.role == "llm":
        call = content.of_llm(span)
        _put_response(op, span, call.answer or None)
        return None if call.reasoning is None else op.builder.core.said(call.reasoning)
    if meaning.role in ("tool", "mcp", "plain", "chain"):
        _put_response(op, span, content.of_tool(span.attributes)[1])
    return None


def _put_response(op: Op, span: InSpan, value: Any) -> None:
    if value is not None:
        op.builder.set_response(op, value, at=span.ended_at)


def _put_events(op: Op, span: InSpan) -> None:
    """Record a span's events as log lines."""
    lines = [_line(event, op.builder) for event in span.events if event.name != content.DETAILS]
    if lines:
        op.builder.record(Entries(op.path, logs=lines))


def _line(event: InEvent, builder: SessionTreeBuilder) -> LogEntry:
    core, block = builder.core, event.attributes
    if not core.content and event.name != _ERROR_EVENT:
        block = {} if event.name.startswith(_OF_CONTENT) else content.without_texts(block)
    if event.name == _ERROR_EVENT:
        thrown = (block.get("exception.type"), block.get("exception.message"))
        message = ": ".join(text(part) for part in thrown if part) or _ERROR_EVENT
        rest = {key: value for key, value in block.items() if key not in ("exception.type", "exception.message")}
        return LogEntry(event.time_ns / 1_000_000, "ERR", message, None, core.attributes(rest))
    details = core.attributes(block) if block else UNSET
    return LogEntry(event.time_ns / 1_000_000, "VRB", text(event.name), None, details)


def account(place: SpanPlace, span: InSpan, meaning: Meaning, status: Status, error: str | None) -> None:
    """Add a span's accounting entry. A call that a call within it accounts for, or one around it, has none."""
    op = place.own
    if op is None:
        return
    entry: AccountingEntry | None = None
    if meaning.role in ("llm", "agent"):
        if not place.accounted and not _billed_above(place):
            entry = _of_llm(place, span, meaning)
    elif op.node.kind == "tool":
        entry = _entry(place, span, "tool")
        entry.command = op.node.name
        entry.characters_in = (op.node.request.size if op.node.request else None) or 0
        entry.characters_out = (op.node.response.size if op.node.response else None) or 0
        server = span.attributes.get(names.MCP_SERVER)
        entry.mcp_server = server if isinstance(server, str) else None
    if entry is None:
        return
    if status != "ok":
        entry.status, entry.error = "failed", error
    op.builder.record(Accounted(op.path, entry))
    if entry.type == "llm":
        place.billed = True
        _mark_above(place)


def _of_llm(place: SpanPlace, span: InSpan, meaning: Meaning) -> AccountingEntry | None:
    """Return the entry of a model call; of an agent only if its span has figures that nothing within it has."""
    took = usage(span.attributes)
    if meaning.role == "agent" and not took.has_figures:
        return None
    entry = _entry(place, span, "llm")
    entry.tokens, entry.cost_usd, entry.upstream_inference_cost_usd = took.tokens, took.cost_usd, took.upstream_cost_usd
    entry.provider, entry.model = provider(span.attributes) or None, model(span.attributes) or None
    answered = answering_model(span.attributes)
    entry.actual_model = answered if answered and answered != entry.model else None
    return entry


def _entry(place: SpanPlace, span: InSpan, kind: Literal["llm", "tool"]) -> AccountingEntry:
    op = place.own
    builder = place.builder if op is None else op.builder
    identity = f"{builder.txn if op is None else op.id}#{next(builder.core.numbers)}"
    return AccountingEntry(identity, span.ended_at, kind, "ok", span.ended_at - span.started_at)


def _billed_above(place: SpanPlace) -> bool:
    """Tell whether a span around this one has its figures already: it ended before."""
    above = place.above
    for _ in range(_LOOKED_UP):
        if above is None:
            return False
        if above.billed:
            return True
        above = above.above
    return False


def _mark_above(place: SpanPlace) -> None:
    above = place.above
    while above is not None and not above.accounted:
        above.accounted = True
        above = above.above


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
    attributes: dict[str, Any] = {}
    """The attributes that are recorded of it."""
    asked: tuple[list[Any] | None, dict[str, Any]] | None = None
    """The messages and other members of the request that is recorded of it."""
    foreign: bool = True
    """False where the turn is one that the program itself has begun: what it says is not for spans to add to."""
