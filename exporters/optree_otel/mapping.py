"""From a node of the tree to its span: the canonical trace, by the GenAI conventions.

Each node is one span with its real start and end. Usage stands on model calls only, sums of containers under ``optree.total.``, so that
no backend counts twice. What leaves is made fit by `optree_otel.fitting.encode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from optree.nodes import OperationNode, Reasoning, SessionNode, Totals, TurnNode
from optree.tree.totals import add_entry
from optree.values import decode, is_list, is_object, redact
from optree_otel import content, llm, names, openinference
from optree_otel.outcome import outcome
from optree_otel.scope import Scope, last_of, latest
from optree_otel.spans import CLIENT, INTERNAL, Event, Link, Span, nanoseconds
from optree_otel.wire import Attribute

_KINDS = {"llm": "llm", "tool": "tool", "session": "session_op", "system": "system"}
_TOTALS = Totals.__struct_fields__


def op_span(op: OperationNode, scope: Scope, *, end: float | None = None) -> Span:
    """Return the span of an op. One still open ends as `interrupted`, at *end* (epoch ms) or when it was last heard of."""
    ended = op.ended_at if op.ended_at is not None else max(op.started_at, last_of(op) if end is None else end)
    how = outcome(op.status, op.error)
    session = scope.session
    own: dict[str, Any] = {} if op.attributes_json is UNSET else _attributes(op.attributes_json)
    attributes: list[Attribute] = [
        (names.KIND, _KINDS.get(op.kind, "system")),
        (names.PATH, op.path),
        (names.TXN, scope.txn),
        (names.CONVERSATION, session.id),
        (names.AGENT_NAME, session.agent_id),
        *how.attributes,
    ]
    name = _SHAPES.get(op.kind, _system)(op, scope, own, attributes)
    if op.accounting:
        _put_money(op, attributes)
    if op.reasoning is not None:
        attributes += _of_reasoning(op.reasoning)
    if own:
        _put_own(own, attributes)
    return _finished(
        Span(
            scope.trace_id,
            scope.span_id(op.op_id),
            scope.parent_of(op),
            name,
            CLIENT if op.kind in ("llm", "session") else INTERNAL,
            nanoseconds(op.started_at),
            nanoseconds(ended),
            attributes,
            status=how.status,
            message=how.message,
            logs=op.logs,
            events=content.reasoning_events(op) if scope.content and op.reasoning is not None else [],
        ),
        scope,
    )


def turn_span(turn: TurnNode, scope: Scope, *, end: float | None = None, links: Sequence[Link] = ()) -> Span:
    """Return the span of a turn; *end* as for an op. *links* go to other traces, as to the turn before where each has its own."""
    ended = turn.ended_at if turn.ended_at is not None else max(turn.started_at, latest([turn]) if end is None else end)
    how = outcome(turn.status, turn.error)
    own: dict[str, Any] = {} if turn.attributes_json is UNSET else _attributes(turn.attributes_json)
    attributes: list[Attribute] = [
        (names.KIND, "turn"),
        (names.PATH, turn.path),
        (names.TXN, scope.txn),
        (names.CONVERSATION, scope.session.id),
        (names.AGENT_NAME, scope.session.agent_id),
        (names.TURN_INDEX, turn.index),
        *how.attributes,
        *total_attributes(turn_totals(turn)),
    ]
    if scope.content:
        attributes += _captured(content.turn_attributes, turn, scope.profile.value_bytes)
    if own:
        _put_own(own, attributes)
    return _finished(
        Span(
            scope.trace_id,
            scope.turn_span_id(turn),
            scope.session_span_id if scope.turn_parent_id is None else scope.turn_parent_id,
            f"turn {turn.index}" if scope.profile.turn_in_name else "turn",
            INTERNAL,
            nanoseconds(turn.started_at),
            nanoseconds(ended),
            attributes,
            links=list(links),
            status=how.status,
            message=how.message,
        ),
        scope,
    )


def session_span(session: SessionNode, scope: Scope, *, end: float | None = None, links: Sequence[Link] = ()) -> Span:
    """Return the span of a session, or of its latest round where it was resumed; *end* as for an op, *links* to other rounds."""
    began = session.resumed_at[scope.round - 1] if 0 < scope.round <= len(session.resumed_at) else session.started_at
    ended = session.ended_at if session.ended_at is not None else max(began, latest(session.turns) if end is None else end)
    how = outcome(session.status, session.error)
    attributes: list[Attribute] = [
        (names.KIND, "session"),
        (names.PATH, session.path),
        (names.TXN, scope.txn),
        (names.OPERATION, "invoke_agent"),
        (names.CONVERSATION, session.id),
        (names.AGENT_NAME, session.agent_id),
        *how.attributes,
        *_of_session(session, scope),
        *total_attributes(session.totals),
    ]
    if session.attributes_json is not UNSET:
        _put_session_attributes(_attributes(session.attributes_json), attributes)
    return _finished(
        Span(
            scope.trace_id,
            scope.session_span_id,
            scope.parent_id,
            f"invoke_agent {session.agent_id}",
            INTERNAL,
            nanoseconds(began),
            nanoseconds(ended),
            attributes,
            events=[Event(nanoseconds(at), names.RESUMED) for at in session.resumed_at if at > began],
            links=list(links),
            status=how.status,
            message=how.message,
            flags=scope.parent_flags,
        ),
        scope,
    )


def _of_session(session: SessionNode, scope: Scope) -> list[Attribute]:
    told: list[Attribute] = [(names.CALL_PATH, session.call_path), (names.TURNS, len(session.turns))]
    if scope.round:
        told.append((names.ROUND, scope.round))
    if session.session_title:
        told.append((names.TITLE, session.session_title))
    if session.latest_status:
        told.append((names.LATEST_STATUS, session.latest_status))
    if session.final_report is not UNSET:
        told.append((names.FINAL_REPORT_SIZE, len(memoryview(session.final_report))))
        if scope.content:
            told.append((names.FINAL_REPORT, content.text_of(session.final_report, scope.profile.value_bytes)))
    return told


def _put_session_attributes(own: dict[str, Any], attributes: list[Attribute]) -> None:
    """Append how the session began, whether its agent is its own ancestor, and what the program says of it."""
    ingress = own.pop("ingress", None)
    if is_object(ingress) and isinstance(ingress.get("source"), str):
        attributes.append((names.INGRESS, ingress["source"]))
    if own.pop("cycle", False):
        attributes.append((names.CYCLE, True))
    _put_own(own, attributes)


def turn_totals(turn: TurnNode) -> Totals:
    """Return the sums over a turn's ops and the sessions inside them."""
    totals = Totals()
    for op in turn.ops:
        for entry in op.accounting:
            add_entry(totals, entry)
        if op.child_session is not None:
            child = op.child_session.totals
            for field in _TOTALS:
                setattr(totals, field, getattr(totals, field) + getattr(child, field))
    return totals


def total_attributes(totals: Totals) -> list[Attribute]:
    """Return the sums of a container as attributes, those that are not 0; input tokens with the cached ones."""
    told = {field: getattr(totals, field) for field in _TOTALS}
    told["input_tokens"] += totals.cache_read_input_tokens + totals.cache_write_input_tokens
    return [(names.TOTALS[field], value) for field, value in told.items() if value]


def _of_reasoning(reasoning: Reasoning) -> list[Attribute]:
    """Return how much of it there was: the text itself is content."""
    characters = sum(len(chunk.text) for chunk in reasoning.chunks) or len(reasoning.final or "")
    return [(names.REASONING_CHUNKS, len(reasoning.chunks)), (names.REASONING_CHARACTERS, characters)]


# One function for each kind of op: it takes what it knows out of *own*, adds attributes, and returns the span's name.


def _llm(op: OperationNode, scope: Scope, own: dict[str, Any], attributes: list[Attribute]) -> str:
    request = llm.request_of(op)
    call = llm.called(op, own, request)
    attributes += [(names.OPERATION, call.operation), (names.PROVIDER, call.provider)]
    if call.model is not None:
        attributes.append((names.REQUEST_MODEL, call.model))
    if request or own:
        attributes += llm.parameters(own, request)
    attributes += llm.usage(op.accounting)
    attributes += llm.answered(op, own)
    if own:
        _put_server(own, attributes)
    if scope.content:
        attributes += _captured(content.call_attributes, op, request, scope.pool, scope.profile.value_bytes)
    return f"{call.operation} {call.model or op.name}"


def _tool(op: OperationNode, scope: Scope, own: dict[str, Any], attributes: list[Attribute]) -> str:
    provider = own.pop("provider", None)
    prefix = f"{provider}:"
    name = op.name[len(prefix) :] if provider and op.name.startswith(prefix) else op.name
    attributes += [
        (names.OPERATION, "execute_tool"),
        (names.TOOL_NAME, name),
        (names.TOOL_TYPE, str(own.pop("tool_type", None) or "function")),
    ]
    if provider:
        attributes.append((names.TOOL_PROVIDER, str(provider)))
    for given, told in _TOOL_ATTRIBUTES.items():
        if (value := own.pop(given, None)) is not None:
            attributes.append((told, str(value)))
    server = next((entry.mcp_server for entry in op.accounting if entry.mcp_server), None)
    if server is not None:
        attributes += [(names.MCP_METHOD, "tools/call"), (names.MCP_SERVER, server)]
    for payload, size in ((op.request, names.REQUEST_SIZE), (op.response, names.RESPONSE_SIZE)):
        if payload is not None and payload.size is not None:
            attributes.append((size, payload.size))
    if own:
        _put_server(own, attributes)
    if scope.content:
        attributes += _captured(content.tool_attributes, op, scope.pool, scope.profile.value_bytes)
    return f"execute_tool {name}"


def _session(op: OperationNode, scope: Scope, own: dict[str, Any], attributes: list[Attribute]) -> str:  # noqa: ARG001 - as the others
    agent = op.child_session.agent_id if op.child_session is not None else op.name
    attributes[:] = [pair for pair in attributes if pair[0] != names.AGENT_NAME]
    attributes += [(names.OPERATION, "invoke_agent"), (names.AGENT_NAME, agent)]
    return f"invoke_agent {agent}"


def _system(op: OperationNode, scope: Scope, own: dict[str, Any], attributes: list[Attribute]) -> str:  # noqa: ARG001 - as the others
    return op.name


_SHAPES = {"llm": _llm, "tool": _tool, "session": _session, "system": _system}
_TOOL_ATTRIBUTES = {"tool_call_id": names.TOOL_CALL_ID, "call_id": names.TOOL_CALL_ID, "description": names.TOOL_DESCRIPTION}


def _put_money(op: OperationNode, attributes: list[Attribute]) -> None:
    """Append what an op's attempts cost, in US dollars, and what else its accounting tells."""
    costs = [entry.cost_usd for entry in op.accounting if entry.cost_usd is not None]
    if costs:
        attributes.append((names.COST, float(sum(costs))))
    upstream = [entry.upstream_inference_cost_usd for entry in op.accounting if entry.upstream_inference_cost_usd]
    if upstream:
        attributes.append((names.UPSTREAM_COST, float(sum(upstream))))
    if len(op.accounting) > 1:
        attributes.append((names.ATTEMPTS, len(op.accounting)))
    if op.kind == "tool":
        attributes += [
            (names.CHARACTERS_IN, sum(entry.characters_in or 0 for entry in op.accounting)),
            (names.CHARACTERS_OUT, sum(entry.characters_out or 0 for entry in op.accounting)),
        ]


def _put_server(own: dict[str, Any], attributes: list[Attribute]) -> None:
    """Append the address of what was called, where the op's attributes name it."""
    address, port = own.pop("server_address", None), own.pop("server_port", None)
    url = own.pop("base_url", None)
    if address is None and isinstance(url, str):
        try:
            parts = urlsplit(url)
            address, port = parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        except ValueError:
            return
    if isinstance(address, str) and address:
        attributes.append((names.SERVER_ADDRESS, address))
        if type(port) is int:
            attributes.append((names.SERVER_PORT, port))


def _captured(make: Callable[..., list[Attribute]], *given: Any) -> list[Attribute]:
    """Return content; a payload that nobody has thought of costs its content, not its span."""
    try:
        return make(*given)
    except Exception as error:  # noqa: BLE001 - what providers send is of any shape
        return [(names.CONTENT_ERROR, f"{type(error).__name__}: this content is of no known shape")]


def _put_own(own: dict[str, Any], attributes: list[Attribute]) -> None:
    """Append a program's own attributes, without credentials; a name that ours have already is theirs."""
    taken = {key for key, _ in attributes}
    hidden: dict[str, Any] = redact(own)
    for key, value in hidden.items():
        name = key if "." in key.strip(".") else names.ATTRIBUTE + key
        if name not in taken and value is not None:
            attributes.append((name, _flat(value)))


def _flat(value: Any) -> Any:
    """Return a value that stands in an attribute: containers as JSON, but for a list of texts."""
    if is_list(value) and all(isinstance(item, str) for item in value):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value


def _attributes(block: msgspec.Raw) -> dict[str, Any]:
    try:
        found = decode(block)
    except msgspec.DecodeError:
        return {}
    return found if is_object(found) else {}


def _finished(span: Span, scope: Scope) -> Span:
    """Add what other readers look for."""
    if scope.openinference or scope.profile.openinference:
        span.attributes += openinference.beside(span.attributes)
    if scope.profile.facts and scope.service:
        span.attributes.append((names.SERVICE, scope.service))
    return span
