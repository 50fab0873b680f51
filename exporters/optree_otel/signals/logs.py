"""Log records: an op's log lines with the ids of its span, heartbeats of what is open, and a call's content as an event.

The bytes are those of `opentelemetry.proto.logs.v1.LogRecord`, as the stock encoder writes them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from optree import LogEntry, OperationNode, SessionNode
from optree.exporting import may_hold_secret
from optree_otel.signals import content, llm, names
from optree_otel.signals.limits import Fitter, Profile
from optree_otel.signals.mapping import outcome, total_attributes
from optree_otel.signals.protobuf import ANY_LENGTH, Attribute, KeyValues, UnfitError, any_value, count, field, some, tag, time
from optree_otel.signals.scope import SpanScope, last_of
from optree_otel.signals.spans import log_event, nanoseconds

SEVERITIES: Final = {"TRC": 1, "VRB": 5, "THK": 6, "FIN": 9, "WRN": 13, "ERR": 17}
"""Severities of log lines as the numbers of OpenTelemetry: TRACE, DEBUG, DEBUG2, INFO, WARN, ERROR."""
DETAILS: Final = "gen_ai.client.inference.operation.details"
"""Name of the event that holds a call's content, where it goes to log records."""
_ATTRIBUTES = KeyValues(6)
_INFO = 9


class OtlpLog(msgspec.Struct):
    """One log record; ids are 16 and 8 bytes, or empty."""

    time_ns: int
    severity: int
    severity_text: str
    body: Any
    attributes: list[Attribute]
    trace_id: bytes = b""
    span_id: bytes = b""
    event_name: str = ""
    observed_ns: int = 0
    flags: int = 0
    dropped_attributes: int = 0


def encode_record(record: OtlpLog, limit: int = ANY_LENGTH) -> bytes:
    """Return the record's bytes; *limit* and what is raised as for `spans.encode_span`."""
    if limit and isinstance(record.body, str) and (len(record.body) * 4 > limit or may_hold_secret(record.body)):
        raise UnfitError("body")
    return b"".join(
        (
            time(1, record.time_ns),
            count(2, record.severity),
            some(3, record.severity_text.encode()),
            field(5, any_value(record.body)),
            _ATTRIBUTES.encode(record.attributes, limit),
            count(7, record.dropped_attributes),
            tag(8, 5) + record.flags.to_bytes(4, "little") if record.flags else b"",
            some(9, record.trace_id),
            some(10, record.span_id),
            time(11, record.observed_ns),
            some(12, record.event_name.encode()),
        )
    )


def encode(record: OtlpLog, profile: Profile) -> bytes:
    """Return the record's bytes, fit for a backend. Never raises."""
    try:
        return encode_record(record, profile.value_bytes)
    except Exception:  # noqa: BLE001, S110 - whatever it was, the careful way finds it
        pass
    fitter = Fitter(profile)
    body = fitter.value("", record.body)
    fit = OtlpLog(
        record.time_ns if 0 <= record.time_ns < 1 << 64 else 0,
        record.severity if 0 <= record.severity < 1 << 5 else 0,
        fitter.text(record.severity_text),
        body,
        [*fitter.attributes(record.attributes), *([(names.CUT_VALUES, fitter.cut)] if fitter.cut else [])],
        record.trace_id if len(record.trace_id) == 16 and any(record.trace_id) else b"",  # noqa: PLR2004 - OTLP's length
        record.span_id if len(record.span_id) == 8 and any(record.span_id) else b"",  # noqa: PLR2004 - OTLP's length
        fitter.text(record.event_name, profile.name_bytes),
    )
    return encode_record(fit)


def log_records(op: OperationNode, scope: SpanScope, first: int = 0) -> list[bytes]:
    """Return an op's log lines from number *first* on as log records of its span, encoded and fit."""
    span_id = scope.span_id(op.op_id)
    about = _about(op, scope)
    return [encode(_line(entry, scope.trace_id, span_id, about), scope.profile) for entry in op.logs[first:]]


def _about(op: OperationNode, scope: SpanScope) -> list[Attribute]:
    return [
        (names.TXN, scope.txn),
        (names.PATH, op.path),
        (names.CONVERSATION, scope.session.id),
        (names.AGENT_NAME, scope.session.agent_id),
    ]


def _line(entry: LogEntry, trace_id: bytes, span_id: bytes, about: list[Attribute]) -> OtlpLog:
    more = about
    if entry.direction is not None or entry.details is not msgspec.UNSET:
        more = [*about, *log_event(entry).attributes[2:]]  # what stands behind severity and message
    at = nanoseconds(entry.timestamp)
    return OtlpLog(at, SEVERITIES.get(entry.severity, _INFO), entry.severity, entry.message, more, trace_id, span_id, "", at)


def heartbeat(session: SessionNode, scope: SpanScope, now: float) -> bytes:
    """Return a sign of life of an open session at *now* (epoch ms): what it has used so far, and the op that it is in."""
    current = next((op for turn in reversed(session.turns) for op in reversed(turn.ops) if op.ended_at is None), None)
    attributes: list[Attribute] = [
        (names.TXN, scope.txn),
        (names.PATH, session.path),
        (names.CONVERSATION, session.id),
        (names.AGENT_NAME, session.agent_id),
        (names.TURNS, len(session.turns)),
        *total_attributes(session.totals),
    ]
    if current is not None:
        attributes.append((names.CURRENT_OP, f"{current.path} {current.name}"))
    if session.latest_status:
        attributes.append((names.LATEST_STATUS, session.latest_status))
    at = nanoseconds(now)
    body = f"{session.agent_id}: {len(session.turns)} turns" + (f", in {current.name}" if current else "")
    return encode(OtlpLog(at, _INFO, "", body, attributes, scope.trace_id, scope.session_span_id, names.HEARTBEAT, at), scope.profile)


def details(op: OperationNode, scope: SpanScope) -> bytes:
    """Return a model call's content as the conventions' event, for those who want it in log records."""
    request = llm.request_of(op)
    call = llm.called(op, op.attributes, request)
    attributes: list[Attribute] = [(names.OPERATION, call.operation), (names.PROVIDER, call.provider), *_about(op, scope)]
    if call.model is not None:
        attributes.append((names.REQUEST_MODEL, call.model))
    attributes += [pair for pair in outcome(op).attributes if pair[0] == names.ERROR_TYPE]
    attributes += [*llm.usage(op.accounting), *content.call_attributes(op, request, scope.pool, scope.profile.value_bytes)]
    at = nanoseconds(last_of(op))
    return encode(OtlpLog(at, _INFO, "", None, attributes, scope.trace_id, scope.span_id(op.op_id), DETAILS, at), scope.profile)
