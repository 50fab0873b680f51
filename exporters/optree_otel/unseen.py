"""What we send is not traced by others: an instrumented `requests` or `grpc` would make spans of our requests, and send those."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_SWITCHES = ("suppress_instrumentation", "suppress_http_instrumentation")
_KEYS = ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
"""The switches' names where OpenTelemetry made them unique."""


def unseen() -> None:
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
