"""From OpenTelemetry to optree: files of spans, and spans of a running program, become sessions.

    found = read_file("spans.json")
    for tree in sessions(found.spans, found.notes):
        save(tree, optree.Directory.of())

    provider.add_span_processor(OpTreeSpanProcessor())      # spans of this program, as they happen

In come spans of any library, out go sessions, made by a builder with the spans' times. Nothing here changes a span or a file that is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optree.exporting import save
from optree_otel.incoming.reading import read, read_file
from optree_otel.incoming.sessions import sessions
from optree_otel.incoming.spans import InEvent, InSpan, SpansRead

if TYPE_CHECKING:
    from optree_otel.incoming.processor import OpTreeSpanProcessor

__all__ = ["InEvent", "InSpan", "OpTreeSpanProcessor", "SpansRead", "read", "read_file", "save", "sessions"]


def __getattr__(name: str) -> Any:
    """Import the processor when it is asked for: it needs opentelemetry-sdk, which files do not."""
    if name == "OpTreeSpanProcessor":
        from optree_otel.incoming.processor import OpTreeSpanProcessor

        return OpTreeSpanProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
