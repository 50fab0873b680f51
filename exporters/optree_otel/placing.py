"""The current span of OpenTelemetry: inside a node it is the node's, so that other instrumentation in the program nests right.

Nothing is loaded for it. Where OpenTelemetry is not in use there is no one to tell.
"""

from __future__ import annotations

import sys
from typing import Any

_KEY = "optree-placed"


def enter(trace_id: bytes, span_id: bytes) -> None:
    """Make a span current in this thread and task."""
    trace = sys.modules.get("opentelemetry.trace")
    context: Any = sys.modules.get("opentelemetry.context")
    if trace is None or context is None:
        return
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    span = trace.NonRecordingSpan(trace.SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), False, flags))
    before = context.get_current()
    context.attach(context.set_value(_KEY, (span_id, before), trace.set_span_in_context(span, before)))


def leave(span_id: bytes) -> None:
    """Put back what was current before `enter`, unless another context has taken its place meanwhile."""
    context: Any = sys.modules.get("opentelemetry.context")
    placed = context.get_value(_KEY) if context is not None else None
    if placed is not None and placed[0] == span_id:
        context.attach(placed[1])
