"""What each backend takes, and entries made fit for it: within its limits, without credentials, never refused for one bad value.

Nearly all spans are fit as they are, and encoded at once. Only where a value does not fit, or a text may hold a credential, is the
span gone through value by value.

Measured or read from each backend's source: Jaeger 2.13, Tempo 3.0.3, Phoenix 20.26, MLflow 3.17, VictoriaTraces 0.12, and the
OpenTelemetry Collector 0.159, whose receiver gives the limits of a batch (4 MiB over gRPC, 20 MiB over HTTP, both unpacked).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import isfinite
from typing import Any, Final, cast

import msgspec

from optree import LogEntry, SetupError
from optree.exporting import REDACTED, clean, dumps, may_hold_secret, names_secret, plain, redact, remembered
from optree_otel.signals import names
from optree_otel.signals.protobuf import KEY_BYTES, Attribute
from optree_otel.signals.spans import ERROR, LOCAL_PARENT, STATUS_UNSET, Link, Span, SpanEvent, encode_span, log_event

_SMALLEST = 64
_TIME = 1 << 64
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)
_ITEMS = 128
_PLAIN = {str, bool, int, float}
_suspicious = remembered(4096)(may_hold_secret)
"""For names: there are few of them."""
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


def encode(span: Span, profile: Profile) -> bytes:
    """Return a span's bytes, fit for a backend. Never raises; what had to be changed is marked in its attributes."""
    try:
        if _fits(span, profile):
            data = encode_span(span, profile.value_bytes)
            if len(data) <= profile.span_bytes:
                return data
    except Exception:  # noqa: BLE001, S110 - whatever it was, the careful way finds and marks it
        pass
    try:
        return _carefully(span, profile)
    except Exception as error:  # noqa: BLE001 - one bad span must not cost its batch
        return _stub(span, error)


def _fits(span: Span, profile: Profile) -> bool:
    return (
        len(span.logs) + len(span.events) <= profile.events
        and 0 < len(span.name) <= profile.name_bytes // 4
        and not _suspicious(span.name)
        and 0 < span.start_ns < span.end_ns < _TIME
        and len(span.trace_id) == len(_NO_TRACE)
        and span.trace_id != _NO_TRACE
        and len(span.span_id) == len(_NO_SPAN)
        and span.span_id != _NO_SPAN
        and (not span.parent_id or (len(span.parent_id) == len(_NO_SPAN) and span.parent_id not in (_NO_SPAN, span.span_id)))
        and len(span.attributes) <= profile.attributes
        and not span.links
        and profile.empty_values
        and not profile.facts
    )


def _carefully(span: Span, profile: Profile) -> bytes:
    limits = profile
    while True:
        data = encode_span(fitted(span, limits))
        if len(data) <= profile.span_bytes or limits.value_bytes <= _SMALLEST:
            return data
        limits = msgspec.structs.replace(limits, value_bytes=limits.value_bytes // 4, events=limits.events // 4)


def fitted(span: Span, profile: Profile) -> Span:
    """Return a span like *span* that any backend of the profile takes; its attributes name what was changed."""
    fitter = Fitter(profile)
    trace_id = fitter.identity("trace_id", span.trace_id, len(_NO_TRACE))
    span_id = fitter.identity("span_id", span.span_id, len(_NO_SPAN))
    parent_id = span.parent_id
    if parent_id and (len(parent_id) != len(_NO_SPAN) or parent_id in (_NO_SPAN, span_id)):
        fitter.invalid("parent_id", parent_id.hex())
        parent_id = b""
    start, end = fitter.times(span.start_ns, span.end_ns)
    events = [fitter.event(event) for event in fitter.kept(span)]
    links = fitter.links(span, trace_id, parent_id)
    attributes = fitter.attributes(span.attributes[: profile.attributes])
    name = fitter.text(span.name, profile.name_bytes) if span.name else fitter.unnamed()
    return msgspec.structs.replace(
        span,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=start,
        end_ns=end,
        attributes=[*attributes, *fitter.facts(span, links), *fitter.marks(span)],
        logs=(),
        events=events,
        links=links,
        message=fitter.text(span.message),
        trace_state=span.trace_state if span.trace_state.isascii() else "",
        kind=span.kind if span.kind in range(6) else 1,
        status=span.status if span.status in (STATUS_UNSET, 1, ERROR) else STATUS_UNSET,
        flags=span.flags if 0 <= span.flags < 1 << 32 else LOCAL_PARENT,
        dropped_events=span.dropped_events + fitter.dropped_events,
        dropped_attributes=span.dropped_attributes + max(0, len(span.attributes) - profile.attributes),
        dropped_links=span.dropped_links + len(span.links) - len(links),
    )


class Fitter:
    """Makes the values of one span fit, and counts what it changed."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cut = 0
        self.dropped_events = 0
        self._marks: list[Attribute] = []

    def invalid(self, what: str, was: object) -> None:
        """Mark that something was not as it must be, and how it was."""
        self._marks.append((names.INVALID + what, str(was)))

    def identity(self, what: str, value: bytes, size: int) -> bytes:
        """Return an id that is one: in place of another, one that follows from it."""
        if len(value) == size and any(value):
            return value
        self.invalid(what, value[:64].hex())
        return blake2b(value, digest_size=size, person=b"optree.bad.id").digest()

    def times(self, start: int, end: int) -> tuple[int, int]:
        """Return times of which the end is after the start: Jaeger warns of a span without duration, and makes it last 1 ns."""
        if 0 < start <= end < _TIME:
            return start, max(end, start + 1)
        self.invalid("time", f"{start}..{end}")
        start = start if 0 < start < _TIME else end if 0 < end < _TIME else 1
        return start, end if start < end < _TIME else start + 1

    def unnamed(self) -> str:
        """Return a name for what has none."""
        self.invalid("name", "")
        return "(unnamed)"

    def kept(self, span: Span) -> list[SpanEvent]:
        """Return the events that are kept: of too many, warnings and errors before others, later ones before earlier."""
        events: list[SpanEvent | LogEntry] = [*span.logs, *span.events]
        self.dropped_events = max(0, len(events) - self.profile.events)
        if self.dropped_events:
            order = sorted(range(len(events)), key=lambda place: (not _is_severe(events[place]), -place))
            events = [events[place] for place in sorted(order[: self.profile.events])]
        return [log_event(entry) if isinstance(entry, LogEntry) else entry for entry in events]

    def event(self, event: SpanEvent) -> SpanEvent:
        """Return an event that fits; in Jaeger an attribute called ``event`` would hide its name."""
        time = event.time_ns if 0 <= event.time_ns < _TIME else 0
        attributes = [("event_" if key == "event" else key, value) for key, value in self.attributes(event.attributes)]
        return SpanEvent(time, self.text(event.name, self.profile.name_bytes) or "(unnamed)", attributes, event.dropped_attributes)

    def links(self, span: Span, trace_id: bytes, parent_id: bytes) -> list[Link]:
        """Return the links that do no harm: Jaeger takes one within the trace for the parent of a span that has none."""
        return [
            msgspec.structs.replace(link, attributes=self.attributes(link.attributes))
            for link in span.links
            if len(link.trace_id) == len(_NO_TRACE)
            and len(link.span_id) == len(_NO_SPAN)
            and any(link.trace_id)
            and any(link.span_id)
            and not (link.trace_id == trace_id and (not parent_id or link.span_id == parent_id))
        ]

    def facts(self, span: Span, links: list[Link]) -> list[Attribute]:
        """Return kind and links as attributes, for a backend that drops them where they belong."""
        if not self.profile.facts:
            return []
        attributes = [(names.SPAN_KIND, _KINDS[span.kind] if span.kind in range(len(_KINDS)) else "unspecified")]
        if links:
            attributes.append((names.LINKS, self.text(",".join(f"{link.trace_id.hex()}:{link.span_id.hex()}" for link in links))))
        return attributes

    def marks(self, span: Span) -> list[Attribute]:
        """Return the attributes that name the changes."""
        attributes = [*self._marks]
        if dropped := self.dropped_events + span.dropped_events:
            attributes.append((names.DROPPED_EVENTS, dropped))
        if len(span.attributes) > self.profile.attributes:
            attributes.append((names.DROPPED_ATTRIBUTES, len(span.attributes) - self.profile.attributes))
        if self.cut:
            attributes.append((names.CUT_VALUES, self.cut))
        return attributes

    def attributes(self, pairs: list[Attribute]) -> list[Attribute]:
        """Return attributes with values that fit, each key once: the last one of a name holds."""
        by_key = {self.key(key): self.value(str(key), value) for key, value in pairs}
        return [(key, value) for key, value in by_key.items() if value not in ("", None) or (self.profile.empty_values and value == "")]

    def key(self, key: str) -> str:
        """Return a key that fits."""
        return cut_bytes(redact(clean(str(key))), self.profile.key_bytes) or "(unnamed)"

    def value(self, key: str, value: Any) -> Any:
        """Return a value of a type that every backend keeps: bytes and maps as text, and no NaN."""
        if value is None or isinstance(value, bool) or names_secret(key):
            return value if value is None or isinstance(value, bool) else REDACTED
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return int(value) if -(1 << 63) <= value < 1 << 63 else self.text(hex(value))
        if isinstance(value, float):
            return float(value) if isfinite(value) else repr(float(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(cast("bytes", value))
            return self.text(base64.b64encode(data[: self.profile.value_bytes]).decode())
        return self._container(value)

    def _container(self, value: object) -> Any:
        """Return a list of values of one plain type that is short in all as it is, anything else as JSON."""
        source = value
        if isinstance(value, (list, tuple)):
            sequence = cast("Sequence[object]", value)
            kinds = {type(item) for item in sequence}
            if len(kinds) <= 1 and kinds <= _PLAIN and len(sequence) <= _ITEMS:
                items = [self.value("", item) for item in sequence]
                if sum(_size(str(item)) for item in items) <= self.profile.value_bytes:
                    return items
        data = plain(dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else source)
        return self.text(dumps(redact(data)).decode())

    def text(self, value: str, limit: int | None = None) -> str:
        """Return a text without credentials, cut where it is longer than *limit* bytes (default: the profile's for values)."""
        limit = limit or self.profile.value_bytes
        redacted = redact(clean(value))
        shortened = cut_bytes(redacted, limit)
        self.cut += shortened is not redacted
        return shortened


def cut_bytes(text: str, limit: int) -> str:
    """Return a text of at most *limit* bytes: a longer one is cut at a character, and says how many bytes are missing."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    if len(data) <= limit:
        return text
    room = max(0, limit - len(f"…[+{len(data)} bytes]".encode()))
    head = data[:room].decode(errors="ignore")
    return f"{head}…[+{len(data) - len(head.encode())} bytes]"


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _is_severe(event: SpanEvent | LogEntry) -> bool:
    return isinstance(event, SpanEvent) or event.severity in ("WRN", "ERR")


def _stub(span: Span, error: Exception) -> bytes:
    """Return what can be said of a span that cannot be encoded at all."""
    message = f"{type(error).__name__}: this span could not be encoded"
    return encode_span(
        Span(
            blake2b(repr(span.trace_id).encode(), digest_size=16).digest() if not _is_id(span.trace_id, 16) else span.trace_id,
            blake2b(repr(span.span_id).encode(), digest_size=8).digest() if not _is_id(span.span_id, 8) else span.span_id,
            span.parent_id if _is_id(span.parent_id, 8) else b"",
            "(unencodable)",
            1,
            *Fitter(PROFILES["default"]).times(span.start_ns, span.end_ns),
            [(names.UNENCODABLE, message)],
        )
    )


def _is_id(value: object, size: int) -> bool:
    return type(value) is bytes and len(value) == size and any(value)


class Profile(msgspec.Struct, frozen=True):
    """Limits of one backend, and how spans are shaped for it."""

    name: str
    value_bytes: int = 2_000
    """Longest text of an attribute or status; longer ones are cut at a character, with ``…[+N bytes]`` at their end."""
    key_bytes: int = KEY_BYTES
    name_bytes: int = 256
    events: int = 128
    """Events of a span; beyond, older and less severe ones are left out and counted."""
    attributes: int = 128
    span_bytes: int = 1 << 20
    trace_bytes: int | None = None
    """What one trace may hold in all; sessions beyond it want a trace per turn."""
    turn_in_name: bool = True
    """Whether a turn's number stands in its span's name: not where each name makes an index of its own."""
    openinference: bool = False
    facts: bool = False
    """Whether service, span kind and links stand among the attributes as well, since the backend drops them elsewhere."""
    empty_values: bool = True
    """Whether empty texts are kept."""


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("default"),
        Profile("jaeger", value_bytes=64_000, events=1_000),
        Profile("tempo", trace_bytes=4_500_000),
        Profile("phoenix", value_bytes=256_000, events=1_000, openinference=True, facts=True),
        Profile("victoriatraces", events=120, turn_in_name=False, empty_values=False),
        Profile("mlflow", value_bytes=256_000, events=1_000, span_bytes=4 << 20),
        Profile("logfire", value_bytes=64_000, events=1_000),
    )
}
"""Profiles by name. `default` is what all of them take."""


def profile(name: str = "default") -> Profile:
    """Return the profile of that name; raises `SetupError` for one that does not exist."""
    result = PROFILES.get(name)
    if result is None:
        raise SetupError(f"no profile {name!r}; choose one of {', '.join(PROFILES)}")
    return result
