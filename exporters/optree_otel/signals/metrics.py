"""The conventions' metrics of model calls: tokens, durations and times to the first chunk, as cumulative histograms.

Names, units and boundaries: semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md. The bytes are those that the stock encoder
writes for the same points.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from struct import pack
from time import time_ns
from typing import Any, Final

import msgspec

from optree import OperationNode
from optree.exporting import new_rlock, redact
from optree_otel.signals import llm, names
from optree_otel.signals.limits import PROFILES, Fitter, Profile
from optree_otel.signals.mapping import outcome
from optree_otel.signals.protobuf import Attribute, KeyValues, double, field, some, tag, time

TOKEN_BOUNDS: Final = tuple(float(4**power) for power in range(14))
DURATION_BOUNDS: Final = tuple(0.01 * 2**power for power in range(14))
MOST_POINTS: Final = 2000
"""Points of an instrument, as in the stock SDK. What would need another is counted in one with `names.OVERFLOW` instead, so sums stay
right: a cumulative point that was forgotten would begin anew at nought. Source: OpenTelemetry's metrics SDK specification, cardinality
limits."""
_OVERFLOWN: Final[tuple[Attribute, ...]] = ((names.OVERFLOW, True),)
_CUMULATIVE = b"\x10\x02"
_ATTRIBUTES = KeyValues(9)


class MetricInstrument(msgspec.Struct, frozen=True):
    """A histogram's name, description, unit and upper bounds."""

    name: str
    description: str
    unit: str
    bounds: tuple[float, ...]


TOKENS: Final = MetricInstrument(names.TOKEN_USAGE, "Number of input and output tokens used.", "{token}", TOKEN_BOUNDS)
DURATION: Final = MetricInstrument(names.OPERATION_DURATION, "GenAI operation duration.", "s", DURATION_BOUNDS)
FIRST_CHUNK: Final = MetricInstrument(names.TIME_TO_FIRST_CHUNK, "Time to receive the first chunk.", "s", DURATION_BOUNDS)


class Point(msgspec.Struct):
    """The values recorded for one set of attributes: how many lie in each bucket (up to and with its bound), and their sum."""

    buckets: list[int]
    count: int = 0
    sum: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def add(self, value: float, bounds: tuple[float, ...]) -> None:
        """Count one value."""
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value) if self.count else value
        self.buckets[bisect_left(bounds, value)] += 1
        self.count += 1
        self.sum += value


Key = tuple[str, MetricInstrument, tuple[Attribute, ...]]


class Meter:
    """What this process has counted since *start_ns*, by service. Any thread may record."""

    def __init__(self, *, start_ns: int | None = None, profile: Profile = PROFILES["default"]) -> None:
        self.start_ns = time_ns() if start_ns is None else start_ns
        self._profile = profile
        self._points: dict[Key, Point] = {}
        self._counts: dict[MetricInstrument, int] = {}
        self._services: dict[str, None] = {}
        self._lock = new_rlock()
        self._recorded = self._exported = 0
        """Calls, in all, and as of the last time that the metrics were encoded."""

    @cached_property
    def instance(self) -> str:
        """Return what tells this process's figures from those of others, at random."""
        from uuid import uuid4

        return str(uuid4())

    @property
    def used(self) -> bool:
        """True if anything is counted."""
        return bool(self._points)

    @property
    def has_news(self) -> bool:
        """True if anything was counted since the metrics were encoded."""
        return self._exported < self._recorded

    def record(self, op: OperationNode, service: str) -> None:
        """Count an ended model call for a service; other ops are passed over. Call it once an op."""
        if op.kind != "llm" or op.ended_at is None:
            return
        about, error, first = _about(op)
        service = str(redact(service))  # two that look the same are one: a resource has one series of figures
        duration = max(0.0, op.ended_at - op.started_at) / 1e3
        usage = dict(llm.usage(op.accounting))
        with self._lock:
            self._recorded += 1
            self._add(service, DURATION, (*about, *error), duration)
            if first is not None:
                self._add(service, FIRST_CHUNK, tuple(about), first)
            for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
                if name in usage:
                    self._add(service, TOKENS, (*about, (names.TOKEN_TYPE, kind)), usage[name])

    def _add(self, service: str, instrument: MetricInstrument, attributes: tuple[Attribute, ...], value: float) -> None:
        key = (service, instrument, attributes)
        point = self._points.get(key)
        if point is None:
            point = self._made(key)
        point.add(value, instrument.bounds)

    def _made(self, key: Key) -> Point:
        """Return a new point; where there are too many, the one for what overflows: of the service, if it is known, else of the first."""
        service, instrument, _ = key
        count = self._counts.get(instrument, 0)
        if count < MOST_POINTS:
            self._counts[instrument] = count + 1
            self._services[service] = None
        else:
            key = (service if service in self._services else next(iter(self._services)), instrument, _OVERFLOWN)
        return self._points.setdefault(key, Point([0] * (len(instrument.bounds) + 1)))

    def encoded(self, now_ns: int) -> dict[str, list[bytes]]:
        """Return for each service its metrics, encoded: the items of a group for `request.request`."""
        by_service: dict[str, dict[MetricInstrument, list[bytes]]] = {}
        with self._lock:
            self._exported = self._recorded
            for (service, instrument, attributes), point in self._points.items():
                pairs = Fitter(self._profile).attributes(list(attributes))
                encoded_point = encode_point(point, instrument, pairs, self.start_ns, now_ns)
                by_service.setdefault(service, {}).setdefault(instrument, []).append(encoded_point)
        return {service: [encode_metric(kind, points) for kind, points in held.items()] for service, held in by_service.items()}


def _about(op: OperationNode) -> tuple[list[Attribute], list[Attribute], float | None]:
    """Return what a call is counted under, the class of its error, and after how many seconds the first chunk of its stream came."""
    request, own = llm.request_of(op), op.attributes
    call = llm.called(op, own, request)
    about: list[Attribute] = [(names.OPERATION, call.operation), (names.PROVIDER, call.provider)]
    if call.model is not None:
        about.append((names.REQUEST_MODEL, call.model))
    answered = dict(llm.answered(op, own))
    if (model := answered.get(names.RESPONSE_MODEL)) is not None:
        about.append((names.RESPONSE_MODEL, model))
    error = [pair for pair in outcome(op).attributes if pair[0] == names.ERROR_TYPE]
    return _hidden(about), _hidden(error), answered.get(names.FIRST_CHUNK)


def _hidden(attributes: list[Attribute]) -> list[Attribute]:
    """Return attributes without credentials: calls whose attributes then are equal are counted together."""
    return [(key, redact(value)) for key, value in attributes]


def encode_metric(instrument: MetricInstrument, points: list[bytes]) -> bytes:
    """Return a histogram of encoded points: `opentelemetry.proto.metrics.v1.Metric`."""
    histogram = b"".join(field(1, point) for point in points) + _CUMULATIVE
    parts = [some(number, text.encode()) for number, text in enumerate((instrument.name, instrument.description, instrument.unit), 1)]
    return b"".join(parts) + field(9, histogram)


def encode_point(point: Point, instrument: MetricInstrument, attributes: list[Any], start_ns: int, now_ns: int) -> bytes:
    """Return a HistogramDataPoint."""
    return b"".join(
        (
            time(2, start_ns),
            time(3, now_ns),
            time(4, point.count),
            tag(5, 1) + double(point.sum),
            field(6, pack(f"<{len(point.buckets)}Q", *point.buckets)),
            field(7, pack(f"<{len(instrument.bounds)}d", *instrument.bounds)),
            _ATTRIBUTES.encode(attributes),
            tag(11, 1) + double(point.least),
            tag(12, 1) + double(point.most),
        )
    )
