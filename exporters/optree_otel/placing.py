"""The current span of OpenTelemetry: inside a node it is the node's, so that other instrumentation in the program nests right.

Nothing is loaded for it. Where OpenTelemetry is not in use there is no one to tell.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_KEY = "optree-placed"
Place = tuple[str, str]
"""A node: its session's txn, and its path."""


def enter(place: Place, trace_id: bytes, span_id: bytes) -> None:
    """Make a node's span current in this thread and task."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    context: Any = sys.modules.get("opentelemetry.context")
    if trace is None or context is None:
        return
    span = trace.NonRecordingSpan(trace.SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), False, _sampled()))
    before = context.get_current()
    context.attach(context.set_value(_KEY, (place, before), trace.set_span_in_context(span, before)))


def leave(place: Place) -> None:
    """Put back what was current before `enter`, unless another context has taken its place meanwhile."""
    context: Any = sys.modules.get("opentelemetry.context")
    if context is None:
        return
    placed = context.get_value(_KEY)
    if placed is not None and placed[0] == place:
        context.attach(placed[1])


@cache
def _sampled() -> Any:
    flags: Any = sys.modules["opentelemetry.trace"].TraceFlags
    return flags(flags.SAMPLED)
