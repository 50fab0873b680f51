"""What the senders take their entries from, spans, log lines and figures, and what puts entries there: each record that ends a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from optree.exporting import OpBegin, OpEnd, Record, SessionBegin, SessionEnd, TurnBegin, TurnEnd
from optree_otel.live_trace import HEARTBEAT
from optree_otel.otlp.batches import EncodedItem
from optree_otel.sampling import has_failed
from optree_otel.session_exporter import Key, SessionExporter
from optree_otel.signals.limits import Profile, encode
from optree_otel.signals.logs import details, log_records
from optree_otel.signals.metrics import Meter
from optree_otel.signals.resource import Group, Resources, joined, of_joined, request
from optree_otel.signals.spans import Span, SpanEvent

_ENDS: dict[type[Record], str] = {OpEnd: "op", TurnEnd: "turn", SessionEnd: "session"}
_BEGINS: frozenset[type[Record]] = frozenset({OpBegin, TurnBegin, SessionBegin})


class NodeItem(Struct, frozen=True, gc=False):
    """A node on its way. There may be very many, and the collector does not walk them; the exporter knows nothing of them."""

    exporter: SessionExporter
    key: Key
    fresh: bool = False
    """True if it ended in this process just now: its call is measured, once."""

    def __str__(self) -> str:
        """Return it as messages name it."""
        return " ".join(filter(None, (self.key.kind, self.key.path, f"of session {self.exporter.txn}")))


class Spans:
    """The source of spans; called on their sender's thread.

    *beside* puts a node's log lines and figures on their way, with the service that it is of; *settle* is told of what arrived.
    """

    def __init__(
        self,
        resources: Resources,
        profile: Profile,
        settle: Callable[[SessionExporter], None],
        beside: Callable[[NodeItem, str], None] | None,
    ) -> None:
        self._resources, self._profile, self._settle, self._beside = resources, profile, settle, beside

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return a node's span; its log lines and figures are put on their way too."""
        exporter, key = item.exporter, item.key
        exporter.view.settle()
        encoded = exporter.encoded(key)
        if encoded is None:
            scope = None if exporter.sampled else exporter.scope_of(key)
            if scope is not None and self._beside is not None:  # its calls are measured all the same
                self._beside(item, scope.service)
            self._note(exporter, [key])
            return None
        scope, data = encoded
        if self._beside is not None:
            self._beside(item, scope.service)
        return EncodedItem(exporter.group(scope), data)

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportTraceServiceRequest."""
        return request(grouped(self._resources, entries))

    def shrink(self, item: NodeItem, limit: int) -> EncodedItem | None:
        """Return a smaller span of a node, without its events and with shorter texts."""
        exporter, key = item.exporter, item.key
        node = exporter.node(key)
        scope = exporter.scope_of(key)
        if node is None or scope is None:
            return None
        span: Span = exporter.span(node, scope)
        bare = replace(span, logs=(), events=[SpanEvent(span.end_ns, "optree.shrunk")], dropped_events=len(span.logs) + len(span.events))
        data = encode(bare, replace(self._profile, span_bytes=limit, value_bytes=256))
        return EncodedItem(exporter.group(scope), data) if len(data) <= limit else None

    def delivered(self, items: Sequence[NodeItem]) -> None:
        """Note what the collector has."""
        by_exporter: dict[int, tuple[SessionExporter, list[Key]]] = {}
        for item in items:
            by_exporter.setdefault(id(item.exporter), (item.exporter, []))[1].append(item.key)
        for exporter, keys in by_exporter.values():
            self._note(exporter, keys)

    def lost(self, item: NodeItem, reason: str) -> None:  # noqa: ARG002 - the sender tells the reason in its health
        """Note that a span cannot be delivered: to try again for ever would not help."""
        self._note(item.exporter, [item.key])

    def left(self, items: Sequence[NodeItem]) -> None:
        """Leave these for the next run: their session stays pending."""
        for item in items:
            item.exporter.left += 1
            self._settle(item.exporter)

    def _note(self, exporter: SessionExporter, keys: Sequence[Key]) -> None:
        exporter.sent(keys)
        self._settle(exporter)


class LogLines:
    """The source of log records: one item is an op, whose lines are one entry, or a sign of life, which *heartbeat* encodes."""

    def __init__(self, resources: Resources, heartbeat: Callable[[SessionExporter, float], EncodedItem | None], *, content: bool) -> None:
        self._resources, self._heartbeat, self._content = resources, heartbeat, content

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return an op's log lines, as the fields of a ScopeLogs."""
        exporter, key = item.exporter, item.key
        if key.kind == HEARTBEAT:
            return self._heartbeat(exporter, float(key.path))
        op, scope = exporter.view.op(key.path), exporter.scope_of(key)
        if op is None or scope is None:
            return None
        records = log_records(op, scope)
        if op.kind == "llm" and self._content:
            records.append(details(op, scope))
        return EncodedItem(exporter.group(scope), joined(records)) if records else None

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportLogsServiceRequest."""
        return of_joined(grouped(self._resources, entries))

    def shrink(self, item: NodeItem, limit: int) -> EncodedItem | None:  # noqa: ARG002 - lines are cut already
        """Return nothing: what does not fit is counted as lost."""
        return None

    def delivered(self, items: Sequence[NodeItem]) -> None:
        """Do nothing: what is noted is spans."""

    def lost(self, item: NodeItem, reason: str) -> None:
        """Do nothing: the sender counts it."""

    def left(self, items: Sequence[NodeItem]) -> None:
        """Do nothing: the sender counts it."""


class MetricSource:
    """The source of metrics: each item stands for all that is counted so far."""

    def __init__(self, resources: Resources, meter: Callable[[], Meter]) -> None:
        self._resources, self._meter = resources, meter

    def encode(self, item: float) -> EncodedItem | None:  # noqa: ARG002 - what is sent is as of now
        """Return the place of the figures."""
        return EncodedItem("", b"")

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:  # noqa: ARG002 - several become one
        """Return an ExportMetricsServiceRequest."""
        from time import time_ns

        resources, meter = self._resources, self._meter()
        by_service = meter.encoded(time_ns()).items()
        return request([(resources.encoded(service, instance=meter.instance), metrics) for service, metrics in by_service])

    def shrink(self, item: float, limit: int) -> EncodedItem | None:  # noqa: ARG002 - there is nothing to cut
        """Return nothing."""
        return None

    def delivered(self, items: Sequence[float]) -> None:
        """Do nothing."""

    def lost(self, item: float, reason: str) -> None:
        """Do nothing."""

    def left(self, items: Sequence[float]) -> None:
        """Do nothing."""


def grouped(resources: Resources, entries: Sequence[EncodedItem]) -> list[Group]:
    """Return entries under the resources of their services."""
    groups: dict[Any, list[bytes]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry.body)
    return [(resources.encoded(*group), bodies) for group, bodies in groups.items()]


class Ends:
    """Picks the records that end nodes; called by the program's threads, one at a time. *failed* is told if the whole session has."""

    def __init__(
        self,
        exporter: SessionExporter,
        put: Callable[[NodeItem], None],
        beside: Callable[[list[Record]], None] | None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        self._exporter = exporter
        self._failed = failed
        self._beside = beside
        self._put = put
        self._first: Record | None = None
        self._taken = 0

    def take(self, batch: list[Record]) -> None:
        """Put ended nodes on their way. A batch that an interrupt broke off comes again: then what was taken of it is passed over.

        A node is counted, put, and taken, in this order: where an interrupt comes between, it is counted or sent twice, but not lost,
        and its session does not count as delivered too early.
        """
        if batch[0] is not self._first:
            self._taken = 0
            if self._beside is not None:
                self._beside(batch)
            self._first = batch[0]
        for record in batch[self._taken :] if self._taken else batch:
            kind = _ENDS.get(type(record))
            if kind is not None:
                exporter = self._exporter
                exporter.asked += 1
                path: str = record.path  # type: ignore[attr-defined]
                if kind == "session" and not path:
                    exporter.ended = True
                self._put(NodeItem(exporter, Key(kind, path), fresh=True))  # pyright: ignore[reportUnknownArgumentType] - as above
                if self._failed is not None and isinstance(record, SessionEnd) and has_failed(record):
                    self._failed()
            self._taken += 1


class EndsOfPart(Ends):
    """The same where another process owns the session: no record tells when this process's part is over, so what is open is counted.

    *wake* takes up again what was let go of meanwhile.
    """

    def __init__(
        self,
        exporter: SessionExporter,
        put: Callable[[NodeItem], None],
        beside: Callable[[list[Record]], None] | None,
        wake: Callable[[SessionExporter], None],
    ) -> None:
        super().__init__(exporter, put, beside)
        self._wake = wake

    def take(self, batch: list[Record]) -> None:
        """Put ended nodes on their way. Where a batch comes again, more may count as open than is: then the session is kept."""
        exporter = self._exporter
        exporter.touched = True
        exporter.open += sum(type(record) in _BEGINS for record in batch)
        super().take(batch)
        exporter.open -= sum(type(record) in _ENDS for record in batch)
        if exporter.resting:
            self._wake(exporter)
