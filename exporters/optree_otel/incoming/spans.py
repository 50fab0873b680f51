"""A span as it comes in, from whatever file or program: plain values, ids in hex."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from optree.exporting import text

UNSET: Final = 0
OK: Final = 1
ERROR: Final = 2
SERVER: Final = 2
CLIENT: Final = 3
_ZERO: Final = "0"


class InEvent(Struct):
    """Something that happened within a span, at *time_ns* (epoch nanoseconds)."""

    time_ns: int
    name: str
    attributes: dict[str, Any] = {}


class InSpan(Struct):
    """One span. Ids are 32 and 16 hex digits, times epoch nanoseconds; *parent_id* is empty for a root, *end_ns* 0 for an open span."""

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int = 0
    parent_id: str = ""
    kind: int = 0
    attributes: dict[str, Any] = {}
    events: list[InEvent] = []
    status: int = UNSET
    message: str = ""
    resource: Mapping[str, Any] = {}
    scope: str = ""
    number: int = 0
    """Where it stood among the spans of its file, from 1; 0 for one that comes from a program."""

    @property
    def started_at(self) -> float:
        """The start in epoch milliseconds."""
        return self.start_ns / 1_000_000

    @property
    def ended_at(self) -> float:
        """The end in epoch milliseconds, not before the start; the start for a span that has no end."""
        return max(self.end_ns, self.start_ns) / 1_000_000

    @property
    def service(self) -> str:
        """The name of the service that sent it; empty if nobody has set one."""
        name = text(self.resource.get("service.name", ""))
        return "" if name.startswith("unknown_service") else name

    def flaw(self) -> str:
        """Return why it cannot be placed; empty if it can."""
        if not self.trace_id.strip(_ZERO) or not self.span_id.strip(_ZERO):
            return f"span {self.name!r} has a trace or span id of zeros, which says where nothing belongs"
        return ""


class SpansRead(Struct):
    """What was read: the spans, and what is to be said about those that were passed over or mended."""

    spans: list[InSpan] = []
    notes: list[str] = []
