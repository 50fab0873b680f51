"""What the senders take their entries from: spans, log lines, figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from optree import OperationNode
from optree_otel.batches import EncodedItem
from optree_otel.fitting import encode
from optree_otel.live_spans import HEARTBEAT
from optree_otel.logs import details, log_records
from optree_otel.outlet import Outlet
from optree_otel.request import Group, joined, of_joined, request
from optree_otel.resource import Resources
from optree_otel.spans import Span, SpanEvent
from optree_otel.view import Key

if TYPE_CHECKING:
    from optree_otel.mirror import OtelMirror


class NodeItem(Struct, frozen=True, gc=False):
    """A node on its way. There may be very many, and the collector does not walk them; the outlet knows nothing of them."""

    outlet: Outlet
    key: Key
    fresh: bool = False
    """True if it ended in this process just now: its call is measured, once."""

    def __str__(self) -> str:
        """Return it as messages name it."""
        return " ".join(filter(None, (self.key.kind, self.key.path, f"of session {self.outlet.txn}")))


class Spans:
    """The source of spans; called on their sender's thread."""

    def __init__(self, mirror: OtelMirror) -> None:
        self._mirror = mirror

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return a node's span; its log lines and figures are put on their way too."""
        outlet, key = item.outlet, item.key
        outlet.view.settle()
        made = outlet.encoded(key)
        if made is None:
            self._note(outlet, [key])
            return None
        scope, data = made
        if self._mirror.logs is not None or self._mirror.metrics is not None:
            self._beside(item, scope.service)
        return EncodedItem(outlet.group(scope), data)

    def _beside(self, item: NodeItem, service: str) -> None:
        mirror, node = self._mirror, item.outlet.node(item.key)
        if isinstance(node, OperationNode):
            if item.fresh:
                mirror.measure(node, service)
            if mirror.logs is not None and (node.logs or mirror.settings.content in ("event_only", "span_and_event")):
                mirror.logs.put(item)

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportTraceServiceRequest."""
        return request(grouped(self._mirror.resources, entries))

    def shrink(self, item: NodeItem, limit: int) -> EncodedItem | None:
        """Return a smaller span of a node, without its events and with shorter texts."""
        outlet, key = item.outlet, item.key
        node = outlet.node(key)
        scope = outlet.scope_of(key)
        if node is None or scope is None:
            return None
        span: Span = outlet.span(node, scope)
        bare = replace(span, logs=(), events=[SpanEvent(span.end_ns, "optree.shrunk")], dropped_events=len(span.logs) + len(span.events))
        data = encode(bare, replace(self._mirror.profile, span_bytes=limit, value_bytes=256))
        return EncodedItem(outlet.group(scope), data) if len(data) <= limit else None

    def delivered(self, items: Sequence[NodeItem]) -> None:
        """Note what the collector has."""
        by_outlet: dict[int, tuple[Outlet, list[Key]]] = {}
        for item in items:
            by_outlet.setdefault(id(item.outlet), (item.outlet, []))[1].append(item.key)
        for outlet, keys in by_outlet.values():
            self._note(outlet, keys)

    def lost(self, item: NodeItem, reason: str) -> None:  # noqa: ARG002 - the sender tells the reason in its health
        """Note that a span cannot be delivered: to try again for ever would not help."""
        self._note(item.outlet, [item.key])

    def left(self, items: Sequence[NodeItem]) -> None:
        """Leave these for the next run: their session stays pending."""
        for item in items:
            item.outlet.left += 1
            self._mirror.settle(item.outlet)

    def _note(self, outlet: Outlet, keys: Sequence[Key]) -> None:
        outlet.sent(keys)
        self._mirror.settle(outlet)


class LogLines:
    """The source of log records: one item is an op, whose lines are one entry."""

    def __init__(self, mirror: OtelMirror) -> None:
        self._mirror = mirror

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return an op's log lines, as the fields of a ScopeLogs."""
        outlet, key = item.outlet, item.key
        if key.kind == HEARTBEAT:
            live = self._mirror.live
            return live.log_record(outlet, float(key.path)) if live is not None else None
        op, scope = outlet.view.op(key.path), outlet.scope_of(key)
        if op is None or scope is None:
            return None
        records = log_records(op, scope)
        if op.kind == "llm" and self._mirror.settings.content in ("event_only", "span_and_event"):
            records.append(details(op, scope))
        return EncodedItem(outlet.group(scope), joined(records)) if records else None

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportLogsServiceRequest."""
        return of_joined(grouped(self._mirror.resources, entries))

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

    def __init__(self, mirror: OtelMirror) -> None:
        self._mirror = mirror

    def encode(self, item: float) -> EncodedItem | None:  # noqa: ARG002 - what is sent is as of now
        """Return the place of the figures."""
        return EncodedItem("", b"")

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:  # noqa: ARG002 - several become one
        """Return an ExportMetricsServiceRequest."""
        from time import time_ns

        resources, meter = self._mirror.resources, self._mirror.meter
        found = meter.encoded(time_ns()).items()
        return request([(resources.encoded(service, instance=meter.instance), metrics) for service, metrics in found])

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
