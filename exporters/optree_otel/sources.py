"""What the senders take their entries from: spans, log lines, figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from optree_otel.batches import EncodedItem
from optree_otel.fitting import encode
from optree_otel.live_spans import HEARTBEAT
from optree_otel.logs import details, log_records
from optree_otel.metrics import Meter
from optree_otel.outlet import Outlet
from optree_otel.profiles import Profile
from optree_otel.request import Group, joined, of_joined, request
from optree_otel.resource import Resources
from optree_otel.spans import Span, SpanEvent
from optree_otel.view import Key


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
    """The source of spans; called on their sender's thread.

    *beside* puts a node's log lines and figures on their way, with the service that it is of; *settle* is told of what arrived.
    """

    def __init__(
        self, resources: Resources, profile: Profile, settle: Callable[[Outlet], None], beside: Callable[[NodeItem, str], None] | None
    ) -> None:
        self._resources, self._profile, self._settle, self._beside = resources, profile, settle, beside

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return a node's span; its log lines and figures are put on their way too."""
        outlet, key = item.outlet, item.key
        outlet.view.settle()
        made = outlet.encoded(key)
        if made is None:
            self._note(outlet, [key])
            return None
        scope, data = made
        if self._beside is not None:
            self._beside(item, scope.service)
        return EncodedItem(outlet.group(scope), data)

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportTraceServiceRequest."""
        return request(grouped(self._resources, entries))

    def shrink(self, item: NodeItem, limit: int) -> EncodedItem | None:
        """Return a smaller span of a node, without its events and with shorter texts."""
        outlet, key = item.outlet, item.key
        node = outlet.node(key)
        scope = outlet.scope_of(key)
        if node is None or scope is None:
            return None
        span: Span = outlet.span(node, scope)
        bare = replace(span, logs=(), events=[SpanEvent(span.end_ns, "optree.shrunk")], dropped_events=len(span.logs) + len(span.events))
        data = encode(bare, replace(self._profile, span_bytes=limit, value_bytes=256))
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
            self._settle(item.outlet)

    def _note(self, outlet: Outlet, keys: Sequence[Key]) -> None:
        outlet.sent(keys)
        self._settle(outlet)


class LogLines:
    """The source of log records: one item is an op, whose lines are one entry, or a sign of life, which *heartbeat* encodes."""

    def __init__(self, resources: Resources, heartbeat: Callable[[Outlet, float], EncodedItem | None], *, content: bool) -> None:
        self._resources, self._heartbeat, self._content = resources, heartbeat, content

    def encode(self, item: NodeItem) -> EncodedItem | None:
        """Return an op's log lines, as the fields of a ScopeLogs."""
        outlet, key = item.outlet, item.key
        if key.kind == HEARTBEAT:
            return self._heartbeat(outlet, float(key.path))
        op, scope = outlet.view.op(key.path), outlet.scope_of(key)
        if op is None or scope is None:
            return None
        records = log_records(op, scope)
        if op.kind == "llm" and self._content:
            records.append(details(op, scope))
        return EncodedItem(outlet.group(scope), joined(records)) if records else None

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
