"""Spans on their way through opentelemetry-sdk: to its exporters and processors, in place of a collector.

What they get is what would have been sent: a request is made as for a collector, and read again as the SDK's spans. So both ways have
the same spans, and the same rules say when they go, what is tried again, and what counts as delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from optree.exporting import new_rlock, pass_on, text
from optree_otel.exporter_option import STOCK, is_exporter, name
from optree_otel.otlp.responses import DELIVERED, ExportResult, Kind, shown
from optree_otel.otlp.transport import load, loading
from optree_otel.settings import Destination, Signal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_PARTS: Final = ("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "opentelemetry.sdk.trace.export")
_STOCK: Final = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
_MOST_QUEUED: Final = 1 << 16
"""Spans in the SDK's batch processor, which drops what is beyond: far more than are handed over at once."""
_MOST_NOTED: Final = 1 << 14
_inherited: list[object] = []
"""Stock exporters of the process that this one was forked from: kept and not touched, since closing them would be felt there."""


class ExportAnswer(NamedTuple):
    """What became of spans that were handed over: how many were thrown away, and which are to be handed over again."""

    why: str = ""
    rejected: int = 0
    left: Sequence[ReadableSpan] = ()
    kind: Kind = "retry"
    """Of those that are left: ``retry`` until they are taken, or ``failed``: a few times."""


class ExporterAdapter(Protocol):
    """One that takes spans."""

    def take(self, spans: Sequence[ReadableSpan]) -> ExportAnswer:
        """Hand spans over. May raise what the other side raises."""
        ...

    def flush(self, seconds: float) -> bool:
        """Have what was taken delivered; False if the other side says that it is not."""
        ...

    def shutdown(self) -> None:
        """Tell that nothing more comes."""
        ...


class SdkTransport:
    """The adapters of one process, as a transport of all senders of spans. They are called by one thread at a time."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._adapters: list[ExporterAdapter] = []
        self.after_fork()

    def connect(self) -> SdkTransport:
        """Return this to one more sender."""
        load((*_PARTS, *([_STOCK[self._to.protocol]] if STOCK in self._to.exporters else [])))
        with self._lock, loading():
            if not self._adapters:
                self._adapters = [_adapter(exporter, self._to) for exporter in self._to.exporters]
            self._users += 1
        return self

    def after_fork(self) -> None:
        """Start anew in a forked child: with connections of its own, and with the program's objects as they are."""
        _inherited.append(self._adapters)
        self._lock = new_rlock()
        self._adapters = []
        self._users = 0
        self._taken: list[set[int]] = [set() for _ in self._to.exporters]
        """Of what another adapter has still to take, the ids of spans that this one has."""

    def send(self, signal: Signal, body: bytes, timeout: float) -> ExportResult:  # noqa: ARG002 - the adapters have times of their own
        """Hand the spans of a request to each adapter that does not have them yet."""
        from optree_otel.otlp.sdk_spans import read

        try:
            spans = read(body)
        except Exception as error:  # noqa: BLE001 - protobuf's; of several spans the one that spoils them is looked for
            pass_on(error)
            return ExportResult("refused", f"it cannot be read again: {text(error)}")
        with self._lock:
            answers = [self._handed(spans, *pair) for pair in zip(self._adapters, self._taken, strict=True)]
            left = [answer for answer in answers if answer.left]
            why = shown("; ".join(answer.why for answer in answers if answer.why))
            if left:
                return ExportResult("failed" if any(answer.kind == "failed" for answer in left) else "retry", why)
            for taken in self._taken:
                taken.difference_update(_ids(spans))
        rejected = max(answer.rejected for answer in answers)
        return ExportResult("delivered", why, rejected) if why else DELIVERED

    def flush(self, timeout: float) -> str:
        """Have all adapters deliver what they hold."""
        if not self._lock.acquire(timeout=timeout):
            return "an exporter of opentelemetry-sdk is still at work"
        try:
            return "; ".join(problem for adapter in self._adapters if (problem := _flushed(adapter, timeout)))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Shut the adapters down, once no sender needs them any more."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            for adapter in self._adapters:
                with suppress(Exception):  # the pipeline that would report it is gone
                    adapter.shutdown()
            self._adapters = []

    def _handed(self, spans: list[ReadableSpan], adapter: ExporterAdapter, taken: set[int]) -> ExportAnswer:
        fresh = [span for span in spans if _id(span) not in taken] if taken else spans
        if not fresh:
            return ExportAnswer()
        try:
            answer = adapter.take(fresh)
        except Exception as error:  # noqa: BLE001 - anybody's code
            pass_on(error)
            transient = isinstance(error, OSError)  # errors of the network are, those of `requests` too
            return ExportAnswer(f"{adapter}: {type(error).__name__}: {text(error)}", 0, fresh, "retry" if transient else "failed")
        left = _ids(answer.left)
        if len(taken) > _MOST_NOTED:
            taken.clear()
        taken |= _ids(fresh) - left
        return answer


def _flushed(adapter: ExporterAdapter, seconds: float) -> str:
    try:
        return "" if adapter.flush(seconds) else f"{adapter}: its force_flush says that not all is delivered"
    except Exception as error:  # noqa: BLE001 - anybody's code
        pass_on(error)
        return shown(f"{adapter}: force_flush raised {type(error).__name__}: {text(error)}")


def _id(span: ReadableSpan) -> int:
    context = span.context
    return context.span_id if context is not None else 0


def _ids(spans: Iterable[ReadableSpan]) -> set[int]:
    return {_id(span) for span in spans}


def _adapter(exporter: Any, destination: Destination) -> ExporterAdapter:
    if exporter == STOCK:
        return _Stock(destination)
    return _Exporter(exporter) if is_exporter(exporter) else _Processor(exporter)


class _Taker:
    """An exporter or processor of the SDK, which is given spans: flushed, shut down and named alike."""

    def __init__(self, taker: Any) -> None:
        self._taker = taker

    def __str__(self) -> str:
        return name(self._taker)

    def flush(self, seconds: float) -> bool:
        return self._taker.force_flush(int(seconds * 1e3)) is not False

    def shutdown(self) -> None:
        self._taker.shutdown()


class _Exporter(_Taker):
    """A SpanExporter of the program's."""

    def __init__(self, exporter: Any) -> None:
        super().__init__(exporter)
        self._failure = import_module("opentelemetry.sdk.trace.export").SpanExportResult.FAILURE

    def take(self, spans: Sequence[ReadableSpan]) -> ExportAnswer:
        """Export them. What says nothing has taken them: the SDK does not ask at all."""
        failed = self._taker.export(spans) is self._failure
        return ExportAnswer(f"{self} answered FAILURE", 0, spans) if failed else ExportAnswer()


class _Processor(_Taker):
    """A SpanProcessor of the program's: it gives no answer, so what it has been handed counts as delivered."""

    def take(self, spans: Sequence[ReadableSpan]) -> ExportAnswer:
        """Hand them over one by one; one that raises is rejected."""
        rejected, why = 0, ""
        for span in spans:
            try:
                self._taker.on_end(span)
            except Exception as error:  # noqa: BLE001 - anybody's code
                pass_on(error)
                rejected, why = rejected + 1, f"{self}: on_end raised {type(error).__name__}: {text(error)}"
        return ExportAnswer(why, rejected)


class _Stock(_Taker):
    """The stock OTLP exporter inside the SDK's batch processor. What the processor does not say is seen at the exporter."""

    def __init__(self, destination: Destination) -> None:
        more = {"insecure": destination.insecure} if destination.protocol == "grpc" else {}
        exporter = import_module(_STOCK[destination.protocol]).OTLPSpanExporter(endpoint=destination.endpoint, **more)
        processors = import_module("opentelemetry.sdk.trace.export")
        self._name = f"the stock exporter to {destination.shown}"
        self._watched = _WatchedExporter(exporter, processors.SpanExportResult.SUCCESS)
        super().__init__(processors.BatchSpanProcessor(self._watched, max_queue_size=_MOST_QUEUED))

    def __str__(self) -> str:
        return self._name

    def take(self, spans: Sequence[ReadableSpan]) -> ExportAnswer:
        """Hand them over and have them exported at once: nothing waits there that a kill would take."""
        self._watched.begin()
        for span in spans:
            self._taker.on_end(span)
        self._taker.force_flush()
        left = [span for span in spans if _id(span) not in self._watched.delivered]
        return (
            ExportAnswer(f"{self} has not delivered {len(left)} of {len(spans)} spans: {self._watched.why}", 0, left)
            if left
            else ExportAnswer()
        )


class _WatchedExporter:
    """An exporter, and which spans it has delivered since `begin`."""

    def __init__(self, exporter: Any, success: object) -> None:
        self._exporter, self._success = exporter, success
        self.begin()

    def begin(self) -> None:
        self.delivered: set[int] = set()
        self.why = ""

    def export(self, spans: Sequence[ReadableSpan]) -> Any:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self.why = f"{type(error).__name__}: {text(error)}"
            raise
        if result is self._success:
            self.delivered |= _ids(spans)
        else:
            self.why = "it answered FAILURE; its own log says more"
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
