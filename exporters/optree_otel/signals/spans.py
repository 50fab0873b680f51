"""Spans, and their bytes: `opentelemetry.proto.trace.v1.Span`, equal to what the stock encoder writes for the same span."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from optree import LogEntry
from optree.exporting import Severity, dumps, may_hold_secret, redact
from optree_otel.signals import names
from optree_otel.signals.protobuf import (
    ANY_LENGTH,
    VARINTS,
    Attribute,
    KeyValues,
    UnfitError,
    compiled_log_lines,
    count,
    field,
    fixed64,
    some,
    tag,
    time,
    varint,
)

INTERNAL: Final = 1
CLIENT: Final = 3
STATUS_UNSET: Final = 0
OK: Final = 1
ERROR: Final = 2

LOCAL_PARENT: Final = 0x100
"""Flags: it is known where the parent is, and it is in this process."""
REMOTE_PARENT: Final = 0x300
"""Flags: the parent is in another process. The low eight bits are those of W3C trace context (1: sampled)."""
ATTRIBUTES: Final = KeyValues(9)
"""Attributes of a span."""
_OF_EVENT = KeyValues(3)
_OF_LINK = KeyValues(4)
_TRACE_ID = b"\x0a\x10"
_SPAN_ID = b"\x12\x08"
_FLAGS = tag(16, 5)
ENDED_WELL: Final = b"\x7a\x00" + _FLAGS + LOCAL_PARENT.to_bytes(4, "little")
"""What the bytes of a span end with that has no status, no links, and its parent in this process."""
_EVENT = tag(11, 2)
_MESSAGE_KEY = field(1, names.LOG_MESSAGE.encode())
_SEVERITIES = get_args(Severity)
_heads: dict[str, dict[int, tuple[bytes, bytes]]] = {severity: {} for severity in _SEVERITIES}


class SpanEvent(msgspec.Struct, gc=False):
    """Something that happened within a span, at *time_ns* (epoch nanoseconds)."""

    time_ns: int
    name: str
    attributes: list[Attribute] = []
    dropped_attributes: int = 0


class Link(msgspec.Struct, gc=False):
    """A reference to another span: 16 and 8 bytes of ids."""

    trace_id: bytes
    span_id: bytes
    attributes: list[Attribute] = []
    dropped_attributes: int = 0
    flags: int = LOCAL_PARENT


class Span(msgspec.Struct, gc=False):
    """One span. Ids are 16 and 8 bytes, times epoch nanoseconds, `parent_id` is empty for a root.

    `logs` become events named `optree.log`, before `events`.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: list[Attribute]
    events: list[SpanEvent] = []
    links: list[Link] = []
    status: int = STATUS_UNSET
    message: str = ""
    logs: Sequence[LogEntry] = ()
    trace_state: str = ""
    flags: int = LOCAL_PARENT
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0


def encode_span(span: Span, limit: int = ANY_LENGTH) -> bytes:
    """Return the span's bytes. With a *limit* only values that all backends take pass; see `KeyValues.encode` for what is raised."""
    name = span.name.encode()
    trace_state = span.trace_state and some(3, span.trace_state.encode())
    out = [
        b"%b%b%b%b" % (_TRACE_ID, span.trace_id, _SPAN_ID, span.span_id),
        trace_state or b"",
        b"\x22%c%b" % (len(span.parent_id), span.parent_id) if span.parent_id else b"",
        b"\x2a%b%b" % (VARINTS[len(name)] if len(name) < len(VARINTS) else varint(len(name)), name) if name else b"",
        b"\x30%c" % span.kind if span.kind else b"",
        b"\x39" + fixed64(span.start_ns) if span.start_ns else b"",
        b"\x41" + fixed64(span.end_ns) if span.end_ns else b"",
        ATTRIBUTES.encode(span.attributes, limit),
        count(10, span.dropped_attributes) if span.dropped_attributes else b"",
    ]
    if span.logs:
        put_logs(out, span.logs, limit)
    for event in span.events:
        out += (_EVENT, _sized(_event(event, limit)))
    if span.dropped_events:
        out.append(count(12, span.dropped_events))
    for link in span.links:
        out.append(field(13, _link(link, limit)))
    out += (count(14, span.dropped_links) if span.dropped_links else b"", _status(span.status, span.message, limit))
    if span.flags:
        out += (_FLAGS, span.flags.to_bytes(4, "little"))
    return b"".join(out)


def put_logs(out: list[bytes], logs: Sequence[LogEntry], limit: int) -> None:
    """Append log lines as events. Those with nothing but a text share all bytes around it with others of the same length.

    With a *limit* as in `encode_span`.
    """
    if limit and may_hold_secret("\n".join([entry.message for entry in logs])):
        raise UnfitError(names.LOG)
    if _log_lines is not None and (data := _log_lines(logs, limit)) is not None:
        out.append(data)
        return
    heads = _heads
    longest = limit or math.inf
    for entry in logs:
        if entry.direction is None and entry.details is msgspec.UNSET:
            data = entry.message.encode()
            size = len(data)
            if size > longest:
                raise UnfitError(names.LOG_MESSAGE)
            try:
                before, between = heads[entry.severity][size]
            except KeyError:
                before, between = _head(entry.severity, size)
            out += (before, fixed64(int(entry.timestamp * 1e6)), between, data)
        else:
            out += (_EVENT, _sized(_event(log_event(entry), limit)))


def _head(severity: str, size: int) -> tuple[bytes, bytes]:
    """Return what stands before the time, and between time and text, of a log line of *size* bytes."""
    value = b"\x0a" + varint(size)
    key = _MESSAGE_KEY + b"\x12" + varint(len(value) + size) + value
    message = b"\x1a" + varint(len(key) + size) + key
    around = _front(severity) + message
    head = (_EVENT + varint(9 + len(around) + size) + b"\x09", around)
    if severity in _SEVERITIES and size < len(VARINTS):
        _heads[severity][size] = head
    return head


def _front(severity: str) -> bytes:
    """Return what stands between the time of a log line and its text."""
    return field(2, names.LOG.encode()) + _OF_EVENT.encode([(names.LOG_SEVERITY, severity)])


_log_lines = compiled_log_lines({severity: _front(severity) for severity in _SEVERITIES}, _MESSAGE_KEY)


def log_event(entry: LogEntry) -> SpanEvent:
    """Return a log line as an event; its details as JSON, without credentials."""
    attributes: list[Attribute] = [(names.LOG_SEVERITY, entry.severity), (names.LOG_MESSAGE, entry.message)]
    if entry.direction is not None:
        attributes.append((names.LOG_DIRECTION, entry.direction))
    if entry.details is not msgspec.UNSET:
        details = dumps(redact(msgspec.json.decode(entry.details)))
        attributes.append((names.LOG_DETAILS, details.decode()))
    return SpanEvent(nanoseconds(entry.timestamp), names.LOG, attributes)


def nanoseconds(milliseconds: float) -> int:
    """Return a time of the tree (epoch milliseconds) as OTLP has it; 0 for a number that is not a time."""
    try:
        nanos = int(milliseconds * 1e6)
    except (ValueError, OverflowError):
        return 0
    return nanos if 0 <= nanos < 1 << 64 else 0


def _event(event: SpanEvent, limit: int) -> bytes:
    return b"%b%b%b%b" % (
        time(1, event.time_ns),
        some(2, event.name.encode()),
        _OF_EVENT.encode(event.attributes, limit),
        count(4, event.dropped_attributes),
    )


def _link(link: Link, limit: int) -> bytes:
    return b"%b%b%b%b%b" % (
        some(1, link.trace_id),
        some(2, link.span_id),
        _OF_LINK.encode(link.attributes, limit),
        count(5, link.dropped_attributes),
        tag(6, 5) + link.flags.to_bytes(4, "little") if link.flags else b"",
    )


def _status(status: int, message: str, limit: int) -> bytes:
    data = message.encode()
    if limit and data and (len(data) > limit or may_hold_secret(message)):
        raise UnfitError("status")
    return field(15, some(2, data) + (b"\x18%c" % status if status else b"")) if data or status else b"\x7a\x00"


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data
