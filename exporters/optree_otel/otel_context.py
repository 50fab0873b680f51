"""OpenTelemetry's context: inside a node the current span is the node's, and what we send is not traced by others.

Nothing is loaded for it. Where OpenTelemetry is not in use there is no one to tell.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any

_KEY = "optree-placed"
Place = tuple[str, str]
"""A node: its session's txn, and its path."""
_SWITCHES = ("suppress_instrumentation", "suppress_http_instrumentation")
_KEYS = ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
"""The switches' names where OpenTelemetry made them unique."""


def enter(place: Place, trace_id: bytes, span_id: bytes, *, sampled: bool = True) -> None:
    """Make a node's span current in this thread and task; one that is not *sampled* is sent by nobody, and nothing below it."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    context: Any = sys.modules.get("opentelemetry.context")
    if trace is None or context is None:
        return
    span = trace.NonRecordingSpan(trace.SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), False, _flags(sampled)))
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
def _flags(sampled: bool) -> Any:
    flags: Any = sys.modules["opentelemetry.trace"].TraceFlags
    return flags(flags.SAMPLED if sampled else flags.DEFAULT)


def suppress_instrumentation() -> None:
    """Switch other instrumentation off in this thread, for good: to be called by threads that do nothing but send."""
    context: Any = sys.modules.get("opentelemetry.context")
    if context is None:
        return
    with suppress(Exception):  # OpenTelemetry may be half imported
        current = context.get_current()
        missing = [key for key in (*_SWITCHES, *(getattr(context, name, "") for name in _KEYS)) if key and not current.get(key)]
        for key in missing:
            current = context.set_value(key, True, current)
        if missing:
            context.attach(current)
