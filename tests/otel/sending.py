"""What the sender's tests send, and stand-ins for clock and transport."""

import threading
from collections.abc import Callable, Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from optree.exporting import Wake
from optree_otel.otlp.batches import EncodedItem
from optree_otel.otlp.responses import ExportResult
from optree_otel.otlp.sender import Clock

SIZE = 200


class Names:
    """A source of spans that have a name and SIZE bytes; what becomes of them is noted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.missed: list[str] = []
        self.reasons: list[str] = []
        self.away: list[str] = []

    def encode(self, item: str) -> EncodedItem | None:
        """Return a span of that name."""
        if item == "unencodable":
            raise ValueError(item)
        return None if item == "nothing" else EncodedItem(0, Span(name=item, trace_state="x" * SIZE).SerializeToString())

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return a request."""
        request = ExportTraceServiceRequest()
        request.resource_spans.add().scope_spans.add().spans.extend(Span.FromString(entry.body) for entry in entries)
        return request.SerializeToString()

    def shrink(self, item: str, limit: int) -> EncodedItem | None:
        """Return a short span for an item that is named so."""
        return EncodedItem(0, Span(name=item, trace_state="cut").SerializeToString()) if limit > 30 and item.startswith("large") else None

    def delivered(self, items: Sequence[str]) -> None:
        """Note them."""
        self.done.extend(items)

    def lost(self, item: str, reason: str) -> None:
        """Note it."""
        self.missed.append(item)
        self.reasons.append(reason)

    def left(self, items: Sequence[str]) -> None:
        """Note them."""
        self.away.extend(items)


class Simulated(Clock):
    """A clock that jumps to the end of every wait, and calls *at_wait* with the time it then is."""

    def __init__(self, at_wait: Callable[[float], None]) -> None:
        self.time = 0.0
        self.at_wait = at_wait

    def now(self) -> float:
        """Return the simulated time."""
        return self.time

    def wait(self, bell: Wake, seconds: float | None) -> None:
        """Jump to the end; wait for the bell where there is none."""
        if seconds is None:
            bell.wait()
            return
        self.time += seconds
        self.at_wait(self.time)


class Refusing:
    """A transport that answers as it is told; each request's size in entries is noted."""

    def __init__(self, *answers: ExportResult) -> None:
        self.answers = list(answers)
        self.sizes: list[int] = []
        self.signals: list[str] = []

    def send(self, signal: str, body: bytes, _timeout: float) -> ExportResult:
        """Answer."""
        self.signals.append(signal)
        self.sizes.append(len(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def flush(self, _timeout: float) -> str:
        """Say that nothing is held."""
        return ""

    def close(self) -> None:
        """Do nothing."""


class Holding(Refusing):
    """A transport that delivers once it is told to go on."""

    def __init__(self) -> None:
        super().__init__(ExportResult("delivered"))
        self.reached, self.go_on = threading.Event(), threading.Event()

    def send(self, signal: str, body: bytes, timeout: float) -> ExportResult:
        """Wait, and answer."""
        self.reached.set()
        self.go_on.wait(20)
        return super().send(signal, body, timeout)


def names(count: int) -> list[str]:
    """Return so many names."""
    return [f"span-{number}" for number in range(count)]
