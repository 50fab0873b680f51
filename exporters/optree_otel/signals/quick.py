"""The span of an op as nearly all are, straight to bytes: it ended well, and holds what any backend takes.

What ops of one kind, name and attribute block have in common is encoded once, as their `_Shape`. What is left of each op is its path, its
times, its figures and its log lines. The bytes are those of `mapping.op_span`, which makes the spans of all other ops.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from optree import OperationNode
from optree.exporting import OpKind, may_hold_secret, remembered
from optree_otel.signals import llm, mapping, names
from optree_otel.signals.limits import PROFILES, encode
from optree_otel.signals.mapping import OK
from optree_otel.signals.protobuf import Attribute, UnfitError, field, fixed64
from optree_otel.signals.scope import SpanScope
from optree_otel.signals.spans import ATTRIBUTES, CLIENT, ENDED_WELL, INTERNAL, nanoseconds, put_logs

_PROFILES: Final = [one for one in PROFILES.values() if one.empty_values and not (one.facts or one.openinference)]
_MOST_OTHERS: Final = 32
"""More attributes than an op has beside those of its shape and its request."""
_KEPT: Final = 1024
_ID, _TRACE = 8, 16
_ANSWERED: Final = frozenset({"response_model", "finish_reasons", "finish_reason", "response_id", "time_to_first_chunk"})
"""Attributes of a call that stand among what it answered."""
_PATH: Final = field(1, names.PATH.encode()) + b"\x12"
_LONGEST_PATH: Final = 64


class _Shape(NamedTuple):
    """What ops of one kind, name and attribute block have in common."""

    head: bytes
    """The span's name and kind."""
    attributes: bytes
    parameters: dict[str, Any]
    """Of a model call, as its attributes give them; a request may give more."""
    names_model: bool
    own: bytes
    """The program's own attributes, which come last."""


def encode_op(op: OperationNode, scope: SpanScope) -> bytes:
    """Return the bytes of an op's span, fit for the scope's backend. Never raises."""
    data = None
    if op.status == "ok" and scope.profile in _PROFILES and not (scope.content or scope.openinference):
        with suppress(Exception):  # whatever it was, the general way finds and marks it
            data = _encoded(op, scope)
    return data or encode(mapping.op_span(op, scope), scope.profile)


def _encoded(op: OperationNode, scope: SpanScope) -> bytes | None:
    """Return the bytes of an op's span; None, or any error, for one that is not like most."""
    profile = scope.profile
    block = b"" if op.attributes_json is UNSET else bytes(op.attributes_json)
    shape = _shape(op.kind, op.name, block, profile.name)
    if shape is None or op.ended_at is None or len(op.logs) > profile.events:
        return None
    attributes: list[Attribute] = []
    if op.kind == "llm":
        if op.request is not None or shape.parameters:
            if not shape.names_model:
                return None
            attributes += llm.parameters(shape.parameters.copy(), llm.request_of(op))
        attributes += llm.usage(op.accounting)
        attributes += llm.answered(op, {})
    elif op.kind == "tool":
        attributes += mapping.tool_figures(op)
    attributes += mapping.figures(op)
    start, end = nanoseconds(op.started_at), nanoseconds(op.ended_at)
    span_id, parent_id = scope.span_id(op.op_id), scope.parent_of(op)
    path = op.path.encode()
    if not (0 < start < end and span_id != parent_id and path.replace(b".", b"").isdigit() and len(path) <= _LONGEST_PATH):
        return None
    trace, session = _session(scope.trace_id, scope.txn, scope.session.id, scope.session.agent_id, profile.value_bytes)
    out = [
        trace,
        span_id,
        b"\x22\x08",
        parent_id,
        shape.head,
        fixed64(start),
        b"\x41",
        fixed64(end),
        b"\x4a%c%b%c\x0a%c%b" % (len(_PATH) + len(path) + 3, _PATH, len(path) + 2, len(path), path),
        session,
        shape.attributes,
        ATTRIBUTES.encode(attributes, profile.value_bytes),
        shape.own,
    ]
    put_logs(out, op.logs, profile.value_bytes)
    out.append(ENDED_WELL)
    data = b"".join(out)
    return data if len(data) <= profile.span_bytes else None


@remembered(_KEPT)
def _session(trace_id: bytes, txn: str, session: str, agent: str, limit: int) -> tuple[bytes, bytes]:
    """Return what a span begins with, and the attributes that all ops of a session have that end well."""
    if len(trace_id) != _TRACE or not any(trace_id):
        raise UnfitError("trace_id")
    pairs = [(names.TXN, txn), (names.CONVERSATION, session), (names.AGENT_NAME, agent), *OK.attributes]
    return b"\x0a\x10%b\x12\x08" % trace_id, ATTRIBUTES.encode(pairs, limit)


@remembered(_KEPT)
def _shape(kind: OpKind, called: str, block: bytes, profile_name: str) -> _Shape | None:
    """Return what these ops have in common; None where they are not like most."""
    profile = PROFILES[profile_name]
    own = mapping.attributes_of(block) if block else {}
    pairs: list[Attribute] = [(names.KIND, kind)]
    names_model = bool(own.get("model"))
    name = called
    if kind == "llm":
        if not _ANSWERED.isdisjoint(own):
            return None
        bare = OperationNode("", "", kind, called, 0.0, (), ())
        call = llm.called(bare, own, {})
        if call.model is None or call.provider == llm.UNKNOWN:  # then it is as the request and the accounting say
            return None
        pairs += call.attributes
        name = call.name(called)
    elif kind == "tool":
        tool, details = mapping.tool(called, own)
        pairs += details
        name = f"execute_tool {tool}"
    elif kind != "system":
        return None
    if kind != "system":
        pairs += mapping.server(own)
    parameters = {key: own.pop(key) for key in list(own) if key in names.REQUEST} if kind == "llm" else {}
    others = mapping.others(own)
    if (
        not 0 < len(name) <= profile.name_bytes // 4
        or may_hold_secret(name)
        or any("." in key.strip(".") for key in own)  # it may be the name of something that is told already
        or len(pairs) + len(others) + _MOST_OTHERS > profile.attributes
    ):
        return None
    try:
        limit = profile.value_bytes
        head = field(5, name.encode()) + b"\x30%c\x39" % (CLIENT if kind == "llm" else INTERNAL)
        return _Shape(head, ATTRIBUTES.encode(pairs, limit), parameters, names_model, ATTRIBUTES.encode(others, limit))
    except ValueError:  # unfit, or a lone surrogate
        return None
