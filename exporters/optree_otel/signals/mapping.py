"""From a node of the tree to its span: the canonical trace, by the GenAI conventions, and OpenInference's names beside them.

Each node is one span with its real start and end. Usage stands on model calls only, sums of containers under ``optree.total.``, so that
no backend counts twice. What leaves is made fit by `limits.encode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from optree import OperationNode, SessionNode, Totals, TurnNode
from optree.exporting import (
    ENDED,
    Reasoning,
    add_entry,
    add_op,
    decode,
    dumps,
    is_list,
    is_object,
    redact,
    state,
    totals_of,
    without_quoted,
)
from optree_otel.signals import content, llm, names
from optree_otel.signals.protobuf import Attribute
from optree_otel.signals.scope import SpanScope, op_end, session_end, turn_end
from optree_otel.signals.spans import CLIENT, ERROR, INTERNAL, STATUS_UNSET, Link, Span, SpanEvent, nanoseconds

KINDS = {"llm": "llm", "tool": "tool", "session": "session_op", "system": "system"}
_TOOL_ATTRIBUTES = {"tool_call_id": names.TOOL_CALL_ID, "call_id": names.TOOL_CALL_ID, "description": names.TOOL_DESCRIPTION}
OTHER: Final = "_OTHER"
"""What the conventions call an error of no known type."""
_TYPE = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?=:|$)")
_PARAMETERS = {name: key for key, (name, _) in reversed(names.REQUEST.items())}
_CONTENT = ("error.body", "error.body.type", "response.tool_calls")
"""The attributes of an op that are content: all that a provider said of its failure, and function calls of an answer that broke off."""
_OF_STREAM = ("stream.chunks", "stream.timeline")
"""What an op has of its stream's pieces, which no backend shows."""
_INPUT = (names.INPUT_MESSAGES, names.TOOL_ARGUMENTS)
_OUTPUT = (names.OUTPUT_MESSAGES, names.TOOL_RESULT)


def op_span(op: OperationNode, scope: SpanScope) -> Span:
    """Return the span of an op. One still open ends as `interrupted`, when `op_end` tells."""
    how = outcome(op, whole=scope.content)
    session = scope.session
    own: dict[str, Any] = {} if op.attributes_json is UNSET else attributes_of(op.attributes_json)
    if own and not scope.content:
        for name in _CONTENT:
            own.pop(name, None)
    attributes: list[Attribute] = [
        (names.PATH, op.path),
        (names.TXN, scope.txn),
        (names.CONVERSATION, session.id),
        (names.AGENT_NAME, session.agent_id),
        *how.attributes,
        (names.KIND, KINDS.get(op.kind, "system")),
    ]
    name = _SHAPES.get(op.kind, _system)(op, scope, own, attributes)
    attributes += figures(op)
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
            nanoseconds(op_end(op, scope)),
            attributes,
            status=how.status,
            message=how.message,
            logs=op.logs,
            events=content.reasoning_events(op) if scope.content and op.reasoning is not None else [],
        ),
        scope,
    )


def turn_span(turn: TurnNode, scope: SpanScope, *, links: Sequence[Link] = ()) -> Span:
    """Return the span of a turn. *links* go to other traces, as to the turn before where each has its own."""
    how = outcome(turn, whole=scope.content)
    own: dict[str, Any] = {} if turn.attributes_json is UNSET else attributes_of(turn.attributes_json)
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
            nanoseconds(turn_end(turn, scope)),
            attributes,
            links=list(links),
            status=how.status,
            message=how.message,
        ),
        scope,
    )


def session_span(session: SessionNode, scope: SpanScope, *, links: Sequence[Link] = ()) -> Span:
    """Return the span of a session, or of its latest round where it was resumed; *links* go to other rounds."""
    began = session.resumed_at[scope.round - 1] if 0 < scope.round <= len(session.resumed_at) else session.started_at
    how = outcome(session, whole=scope.content)
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
        _put_session_attributes(attributes_of(session.attributes_json), attributes)
    return _finished(
        Span(
            scope.trace_id,
            scope.session_span_id,
            scope.parent_id,
            f"invoke_agent {session.agent_id}",
            INTERNAL,
            nanoseconds(began),
            nanoseconds(session_end(session, began, scope)),
            attributes,
            events=[SpanEvent(nanoseconds(at), names.RESUMED) for at in session.resumed_at if at > began],
            links=list(links),
            status=how.status,
            message=how.message,
            flags=scope.parent_flags,
        ),
        scope,
    )


def _of_session(session: SessionNode, scope: SpanScope) -> list[Attribute]:
    attributes: list[Attribute] = [(names.CALL_PATH, session.call_path), (names.TURNS, len(session.turns))]
    if scope.round:
        attributes.append((names.ROUND, scope.round))
    if session.session_title:
        attributes.append((names.TITLE, session.session_title))
    if session.latest_status:
        attributes.append((names.LATEST_STATUS, session.latest_status))
    if session.final_report is not UNSET:
        attributes.append((names.FINAL_REPORT_SIZE, len(memoryview(session.final_report))))
        if scope.content:
            attributes.append((names.FINAL_REPORT, content.text_of(session.final_report, scope.profile.value_bytes)))
    return attributes


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
        add_op(totals, op.kind)
        for entry in op.accounting:
            add_entry(totals, entry)
        if op.child_session is not None:
            child = op.child_session.totals
            for field in Totals.__struct_fields__:
                setattr(totals, field, getattr(totals, field) + getattr(child, field))
    return totals


def total_attributes(totals: Totals) -> list[Attribute]:
    """Return the sums of a container as attributes, those that are not 0; input tokens with the cached ones.

    A cost of 0 is an attribute only where it was recorded.
    """
    values = {field: getattr(totals, field) for field in names.TOTALS}
    values["input_tokens"] = totals.all_input_tokens
    known = {"cost_usd"} if totals.known_costs else set[str]()
    return [(names.TOTALS[field], value) for field, value in values.items() if value or field in known]


def figures(op: OperationNode) -> list[Attribute]:
    """Return what an op's attempts cost, in US dollars, what else its accounting tells, how much it thought, if its answer broke off."""
    attributes = _money(op) if op.accounting else []
    if op.accounting and op.kind != "llm":
        attributes += llm.usage(op.accounting)
    if op.reasoning is not None:
        attributes += _of_reasoning(op.reasoning)
    if op.response is not None and op.response.partial:
        attributes.append((names.RESPONSE_PARTIAL, True))
    return attributes


def _of_reasoning(reasoning: Reasoning) -> list[Attribute]:
    """Return how much of it there was: the text itself is content."""
    chunks = reasoning.chunks
    characters = sum([len(chunk.text) for chunk in chunks]) or len(reasoning.final or "")
    return [(names.REASONING_CHUNKS, len(chunks)), (names.REASONING_CHARACTERS, characters)]


# One function for each kind of op: it takes what it knows out of *own*, adds attributes, and returns the span's name.


def _llm(op: OperationNode, scope: SpanScope, own: dict[str, Any], attributes: list[Attribute]) -> str:
    request = llm.request_of(op)
    call = llm.called(op, own, request)
    for name in _OF_STREAM:
        own.pop(name, None)
    attributes += call.attributes
    if own:
        attributes += server(own)
    if request or own:
        attributes += llm.parameters(own, request)
    attributes += llm.usage(op.accounting)
    attributes += llm.answered(op, own)
    if scope.content:
        attributes += _captured(content.call_attributes, op, request, scope.pool, scope.profile.value_bytes)
    return call.name(op.name)


def _tool(op: OperationNode, scope: SpanScope, own: dict[str, Any], attributes: list[Attribute]) -> str:
    name, details = tool(op.name, own)
    attributes += details
    if own:
        attributes += server(own)
    attributes += tool_figures(op)
    if scope.content:
        attributes += _captured(content.tool_attributes, op, scope.pool, scope.profile.value_bytes)
    return f"execute_tool {name}"


def tool(called: str, own: dict[str, Any]) -> tuple[str, list[Attribute]]:
    """Return a tool's name, and what is said of the tool; what it is said by is taken out of *own*."""
    provider = own.pop("provider", None)
    prefix = f"{provider}:"
    name = called[len(prefix) :] if provider and called.startswith(prefix) else called
    attributes: list[Attribute] = [
        (names.OPERATION, "execute_tool"),
        (names.TOOL_NAME, name),
        (names.TOOL_TYPE, str(own.pop("tool_type", None) or "function")),
    ]
    if provider:
        attributes.append((names.TOOL_PROVIDER, str(provider)))
    for own_name, key in _TOOL_ATTRIBUTES.items():
        if (value := own.pop(own_name, None)) is not None:
            attributes.append((key, str(value)))
    return name, attributes


def tool_figures(op: OperationNode) -> list[Attribute]:
    """Return what is said of one call of a tool: the MCP server that ran it, and the sizes of what went in and out."""
    served = next((entry.mcp_server for entry in op.accounting if entry.mcp_server), None)
    attributes: list[Attribute] = [] if served is None else [(names.MCP_METHOD, "tools/call"), (names.MCP_SERVER, served)]
    for payload, size in ((op.request, names.REQUEST_SIZE), (op.response, names.RESPONSE_SIZE)):
        if payload is not None and payload.size is not None:
            attributes.append((size, payload.size))
    return attributes


def _session(op: OperationNode, scope: SpanScope, own: dict[str, Any], attributes: list[Attribute]) -> str:  # noqa: ARG001 - as the others
    agent = op.child_session.agent_id if op.child_session is not None else op.name
    attributes[:] = [pair for pair in attributes if pair[0] != names.AGENT_NAME]
    attributes += [(names.OPERATION, "invoke_agent"), (names.AGENT_NAME, agent)]
    return f"invoke_agent {agent}"


def _system(op: OperationNode, scope: SpanScope, own: dict[str, Any], attributes: list[Attribute]) -> str:  # noqa: ARG001 - as the others
    return op.name


_SHAPES = {"llm": _llm, "tool": _tool, "session": _session, "system": _system}


def _money(op: OperationNode) -> list[Attribute]:
    cost = upstream = None
    for entry in op.accounting:
        if entry.cost_usd is not None:
            cost = (cost or 0.0) + entry.cost_usd
        if entry.upstream_inference_cost_usd:
            upstream = (upstream or 0.0) + entry.upstream_inference_cost_usd
    attributes: list[Attribute] = []
    if cost is not None:
        attributes.append((names.COST, cost))
        if unknown := totals_of(op.accounting).unknown_costs:
            attributes.append((names.UNKNOWN_COSTS, unknown))
    if upstream is not None:
        attributes.append((names.UPSTREAM_COST, upstream))
    if len(op.accounting) > 1:
        attributes.append((names.ATTEMPTS, len(op.accounting)))
    if op.kind == "tool":
        attributes += [
            (names.CHARACTERS_IN, sum(entry.characters_in or 0 for entry in op.accounting)),
            (names.CHARACTERS_OUT, sum(entry.characters_out or 0 for entry in op.accounting)),
        ]
    return attributes


def server(own: dict[str, Any]) -> list[Attribute]:
    """Return the address of what was called, where the op's attributes name it; it is taken out of *own*."""
    address, port = own.pop("server_address", None), own.pop("server_port", None)
    url = own.pop("base_url", None)
    if address is None and isinstance(url, str):
        try:
            parts = urlsplit(url)
            address, port = parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        except ValueError:
            return []
    if not isinstance(address, str) or not address:
        return []
    return [(names.SERVER_ADDRESS, address), *([(names.SERVER_PORT, port)] if type(port) is int else [])]


def _captured(make: Callable[..., list[Attribute]], *arguments: Any) -> list[Attribute]:
    """Return content; a payload that nobody has thought of costs its content, not its span."""
    try:
        return make(*arguments)
    except Exception as error:  # noqa: BLE001 - what providers send is of any shape
        return [(names.CONTENT_ERROR, f"{type(error).__name__}: this content is of no known shape")]


def _put_own(own: dict[str, Any], attributes: list[Attribute]) -> None:
    """Append a program's own attributes, without credentials; a name that ours have already is theirs."""
    taken = {key for key, _ in attributes}
    attributes += [(name, value) for name, value in others(own) if name not in taken]


def others(own: dict[str, Any]) -> list[Attribute]:
    """Return a program's own attributes, without credentials: those that no name of the conventions stands for."""
    hidden: dict[str, Any] = redact(own)
    named = {key if "." in key.strip(".") else names.ATTRIBUTE + key: value for key, value in hidden.items() if value is not None}
    return [(name, _flat(value)) for name, value in named.items()]


def _flat(value: Any) -> Any:
    """Return a value that stands in an attribute: containers as JSON, but for a list of texts."""
    if is_list(value) and all(isinstance(item, str) for item in value):
        return value
    return dumps(value).decode() if is_list(value) or is_object(value) else value


def attributes_of(block: msgspec.Raw | bytes) -> dict[str, Any]:
    """Return a block of attributes; nothing for one that cannot be read."""
    try:
        attributes = decode(block)
    except msgspec.DecodeError:
        return {}
    return attributes if is_object(attributes) else {}


def _finished(span: Span, scope: SpanScope) -> Span:
    """Add what other readers look for."""
    if span.end_ns == span.start_ns:
        span.end_ns += 1  # Jaeger warns of spans without duration, and makes them so
    if scope.openinference or scope.profile.openinference:
        span.attributes += openinference_attributes(span.attributes)
    if scope.profile.facts and scope.service:
        span.attributes.append((names.SERVICE, scope.service))
    return span


class Outcome(NamedTuple):
    """A span's status and message, and the attributes that tell the rest."""

    status: int
    message: str
    attributes: list[Attribute]


OK: Final = Outcome(STATUS_UNSET, "", [(names.STATUS, "ok")])


def outcome(node: SessionNode | TurnNode | OperationNode, *, whole: bool = False) -> Outcome:
    """Return what a span says of its node's end; one without an end was interrupted, one without a status says nothing.

    Of its error what it quotes of a body is left out, where that is not wanted *whole*.
    """
    status, error = state(node, live=False), node.error
    error = error if whole or not error else without_quoted(error)
    if status == "ok":
        return OK
    if status == ENDED:
        return Outcome(STATUS_UNSET, "", [(names.ERROR, error)] if error else [])
    if status == "cancelled":
        attributes: list[Attribute] = [(names.STATUS, status)]
        return Outcome(STATUS_UNSET, "", [*attributes, (names.ERROR, error)] if error else attributes)
    if status == "failed":
        return Outcome(ERROR, error or "failed", [(names.STATUS, status), (names.ERROR_TYPE, _class(node) or error_type(error))])
    attributes = [(names.STATUS, "interrupted"), (names.ERROR_TYPE, "interrupted")]
    return Outcome(ERROR, "interrupted", [*attributes, (names.ERROR, error)] if error else attributes)


def _class(node: SessionNode | TurnNode | OperationNode) -> str | None:
    """Return the class of failure that an op has."""
    class_name = attributes_of(node.attributes_json).get(names.ERROR_TYPE) if node.attributes_json is not UNSET else None
    return class_name if isinstance(class_name, str) else None


def error_type(error: str | None) -> str:
    """Return the class that an error text begins with (``TimeoutError: …``), else `OTHER`."""
    match = _TYPE.match(error) if error else None
    return match.group() if match is not None else OTHER


def openinference_attributes(attributes: list[Attribute]) -> list[Attribute]:
    """Return what OpenInference says where *attributes* say it by the conventions."""
    known = dict(attributes)
    result: dict[str, Any] = {names.OPENINFERENCE[key]: value for key, value in attributes if key in names.OPENINFERENCE}
    result[names.OI_KIND] = names.OI_KINDS.get(str(known.get(names.KIND)), "CHAIN")
    if names.INPUT_TOKENS in known:
        result[names.OI_TOTAL_TOKENS] = known[names.INPUT_TOKENS] + known.get(names.OUTPUT_TOKENS, 0)
    parameters = {_PARAMETERS[key]: value for key, value in attributes if key in _PARAMETERS}
    if parameters:
        result[names.OI_PARAMETERS] = dumps(parameters).decode()
    for keys, (value_name, type_name) in ((_INPUT, names.OI_INPUT), (_OUTPUT, names.OI_OUTPUT)):
        value = next((known[key] for key in keys if key in known), None)
        if value is not None:
            result |= {value_name: value, type_name: "application/json"}
    return [(key, value) for key, value in result.items() if key not in known]
