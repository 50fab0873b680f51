"""`OpTreeSpanProcessor`: the spans of this program become optree sessions while they happen.

    provider.add_span_processor(OpTreeSpanProcessor())

It works beside any exporter, needs no change to the instrumentations, and records nothing of optree's own spans.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext, StatusCode, format_span_id, format_trace_id

from optree import flush
from optree.exporting import register_at_fork, report_problem
from optree_otel.incoming.live import LiveSpans
from optree_otel.incoming.spans import ERROR, OK, UNSET, InEvent, InSpan

OWN_SCOPE: Final = "optree"
_STATUSES: Final = {StatusCode.UNSET: UNSET, StatusCode.OK: OK, StatusCode.ERROR: ERROR}


class OpTreeSpanProcessor(SpanProcessor):
    """Records spans that follow the GenAI, OpenInference or Traceloop conventions as sessions, and those inside them as `system` ops.

    A span that nothing is above begins a session of its own, unless optree's own code is in a session there: then it goes into that. A
    bare model or tool call stands in a session named *agent*, by default after its service. Nothing here raises, on any thread; what
    could not be recorded `optree.health()` says.
    """

    def __init__(self, *, agent: str | None = None) -> None:
        self._live = LiveSpans(agent)
        self._inside = threading.local()
        _after_fork(self._live)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the span knows its parent
        """Begin what the span stands for, if it can be told yet."""
        parent = span.parent
        self._guarded(span, lambda: self._live.start(lambda: _read(span), remote=parent is not None and parent.is_remote))

    def on_end(self, span: ReadableSpan) -> None:
        """Record what the span turned out to be, and its end."""
        self._guarded(span, lambda: self._live.end(_read(span)))

    def shutdown(self) -> None:
        """Deliver what is recorded. What is open stays open: whether it ended, nobody knows."""
        self.force_flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver what is recorded to the operating system; True if that is done."""
        return flush(timeout=timeout_millis / 1e3)

    @property
    def forgotten(self) -> int:
        """Spans that could not be recorded, since their start was never seen or too many were open."""
        return self._live.forgotten

    def _guarded(self, span: ReadableSpan, work: Callable[[], None]) -> None:
        """Do the work, unless it is for a span of ours, or for one that recording itself has started."""
        scope = span.instrumentation_scope
        if (scope is not None and scope.name == OWN_SCOPE) or getattr(self._inside, "on", False):
            return
        self._inside.on = True
        try:
            work()
        except Exception as error:  # noqa: BLE001 - must not reach the traced program
            report_problem(f"a span of {span.name!r} is not recorded: {type(error).__name__}: {error}")
        finally:
            self._inside.on = False


def _read(span: ReadableSpan) -> InSpan:
    """Return a span of the SDK as it is now."""
    context = span.get_span_context() or SpanContext(0, 0, is_remote=False)
    parent, scope = span.parent, span.instrumentation_scope
    return InSpan(
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        parent_id="" if parent is None else format_span_id(parent.span_id),
        name=span.name,
        kind=span.kind.value + 1,  # OTLP counts from 1, with 0 for none
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=dict(span.attributes or {}),
        events=[InEvent(event.timestamp, event.name, dict(event.attributes or {})) for event in span.events],
        status=_STATUSES.get(span.status.status_code, UNSET),
        message=span.status.description or "",
        resource=span.resource.attributes,
        scope=scope.name if scope is not None else "",
    )


def _after_fork(live: LiveSpans) -> None:
    """Let a forked child begin with no open spans; a processor that is gone is not kept for it."""
    reference = weakref.ref(live)

    def begin_anew() -> None:
        if (found := reference()) is not None:
            found.begin_anew()

    register_at_fork(after_in_child=begin_anew)
