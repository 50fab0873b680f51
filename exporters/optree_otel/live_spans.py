"""The spans of a live trace: anchors of what is open, closes, whole ops, and signs of life.

An anchor takes no time and owns the id that its children name. What stands in it is known when its node begins and never changes, so
that it is the same bytes whenever it is made. Usage and money of single calls stand in the canonical trace only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import parts_of_name, redact, state
from optree_otel import mapping, names, openinference
from optree_otel.llm import UNKNOWN
from optree_otel.scope import SpanScope, span_id
from optree_otel.spans import CLIENT, INTERNAL, LOCAL_PARENT, Link, Span, nanoseconds
from optree_otel.wire import Attribute

Node = SessionNode | TurnNode | OperationNode
SALT: Final = "/live"
"""What tells the ids of a live trace from those of the canonical one."""
OPEN, CLOSE, WHOLE, HEARTBEAT = "open", "close", "whole", "heartbeat"
_SHORTEST = 1
"""Nanoseconds of an anchor: Jaeger warns of a span that takes no time."""
_IN_CANONICAL = ("gen_ai.usage.", "llm.token_count.", "llm.cost.", names.COST, names.UPSTREAM_COST)


def anchor(node: Node, scope: SpanScope, links: Sequence[Link] = ()) -> Span:
    """Return the span that stands for a node from its begin on."""
    name, told = _known(node, scope)
    attributes: list[Attribute] = [
        (names.PATH, node.path),
        (names.TXN, scope.txn),
        (names.CONVERSATION, scope.session.id),
        *told,
        *_named(node),
        (names.PHASE, OPEN),
    ]
    at = nanoseconds(node.started_at)
    kind = CLIENT if isinstance(node, OperationNode) and node.kind in ("llm", "session") else INTERNAL
    span = Span(scope.trace_id, owner_id(node, scope), _above(node, scope), name, kind, at, at + _SHORTEST, attributes, links=list(links))
    return _finished(span, scope)


def close(node: Node, scope: SpanScope, number: int = 0, since: float | None = None) -> Span:
    """Return the summary of a node that was anchored: its real times, its status and its sums.

    A session that was resumed after its end is closed again: *number* tells its closes apart, *since* (epoch ms) is when it went on.
    """
    span = _canonical(node, scope)
    own = owner_id(node, scope)
    start = span.start_ns if since is None else nanoseconds(since)
    told = [*span.attributes, *_named(node), (names.PHASE, CLOSE), *([(names.ROUND, number)] if since is not None else [])]
    return replace(
        span,
        name=f"{span.name}: {state(node, live=False)}",
        span_id=scope.close_id(own, number),
        parent_id=own,
        start_ns=start,
        end_ns=max(start, span.end_ns),
        attributes=told,
        flags=LOCAL_PARENT,
    )


def whole(op: OperationNode, scope: SpanScope) -> Span:
    """Return the one span of an op that was over before anybody would have looked at it."""
    span = _canonical(op, scope)
    return replace(span, attributes=[*span.attributes, (names.PHASE, WHOLE)])


def heartbeat(node: Node, scope: SpanScope, now: float, current: OperationNode | None) -> Span:
    """Return a sign of life under the innermost open *node*, at *now* (epoch ms): which op it is in, and the sums so far."""
    own, at = owner_id(node, scope), nanoseconds(now)
    attributes: list[Attribute] = [
        (names.TXN, scope.txn),
        (names.PATH, node.path),
        (names.AGENT_NAME, scope.session.agent_id),
        (names.PHASE, HEARTBEAT),
        *([(names.CURRENT_OP, f"{current.path} {current.name}")] if current is not None else []),
        *mapping.total_attributes(scope.session.totals),
    ]
    name = HEARTBEAT if current is None else f"{HEARTBEAT}: in {current.name}"
    return Span(scope.trace_id, span_id(f"{own.hex()}/{at}"), own, name, INTERNAL, at, at + _SHORTEST, attributes)


def owner_id(node: Node, scope: SpanScope) -> bytes:
    """Return the id that a node's children name as their parent."""
    if isinstance(node, OperationNode):
        return scope.span_id(node.op_id)
    return scope.turn_span_id(node) if isinstance(node, TurnNode) else scope.session_span_id


def _above(node: Node, scope: SpanScope) -> bytes:
    if isinstance(node, OperationNode):
        return scope.parent_of(node)
    return scope.session_span_id if isinstance(node, TurnNode) else scope.parent_id


def _known(node: Node, scope: SpanScope) -> tuple[str, list[Attribute]]:
    """Return a node's name and the attributes that are certain when it begins."""
    agent = scope.session.agent_id
    if isinstance(node, SessionNode):
        told: list[Attribute] = [(names.OPERATION, "invoke_agent"), (names.CALL_PATH, node.call_path)]
        return f"invoke_agent {agent}", [(names.KIND, "session"), (names.AGENT_NAME, agent), *told]
    if isinstance(node, TurnNode):
        name = f"turn {node.index}" if scope.profile.turn_in_name else "turn"
        return name, [(names.KIND, "turn"), (names.AGENT_NAME, agent), (names.TURN_INDEX, node.index)]
    return _known_op(node, agent)


def _known_op(op: OperationNode, agent: str) -> tuple[str, list[Attribute]]:
    if op.kind == "session":
        return f"invoke_agent {op.name}", [(names.KIND, "session_op"), (names.OPERATION, "invoke_agent"), (names.AGENT_NAME, op.name)]
    told: list[Attribute] = [(names.KIND, op.kind), (names.AGENT_NAME, agent)]
    if op.kind == "llm":
        provider, model = parts_of_name(redact(op.name))
        known = names.PROVIDERS.get(provider.lower(), provider) if provider else UNKNOWN
        told += [(names.OPERATION, "chat"), (names.PROVIDER, known), *([(names.REQUEST_MODEL, model)] if model else [])]
        return f"chat {model or op.name}", told
    if op.kind == "tool":
        return f"execute_tool {op.name}", [*told, (names.OPERATION, "execute_tool"), (names.TOOL_NAME, op.name)]
    return op.name, told


def _named(node: Node) -> list[Attribute]:
    """Return an op's own name, where its span has another."""
    return [(names.NAME, node.name)] if isinstance(node, OperationNode) else []


def _canonical(node: Node, scope: SpanScope) -> Span:
    """Return a node's span as in the canonical trace, without what is summed there."""
    if isinstance(node, OperationNode):
        span = mapping.op_span(node, scope)
    else:
        span = mapping.turn_span(node, scope) if isinstance(node, TurnNode) else mapping.session_span(node, scope)
    span.attributes = [pair for pair in span.attributes if not pair[0].startswith(_IN_CANONICAL)]
    return span


def _finished(span: Span, scope: SpanScope) -> Span:
    if scope.openinference or scope.profile.openinference:
        span.attributes += openinference.beside(span.attributes)
    if scope.profile.facts and scope.service:
        span.attributes.append((names.SERVICE, scope.service))
    return span
