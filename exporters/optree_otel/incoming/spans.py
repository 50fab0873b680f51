"""Spans as they come in, from whatever file or program, and which of them stands under which."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from optree.exporting import is_list, text

UNSET: Final = 0
OK: Final = 1
ERROR: Final = 2
CLIENT: Final = 3
_ZERO: Final = "0"
Key = tuple[str, str]
"""Trace id and span id."""
_SHOWN: Final = 12


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
        """The name of the service that sent it; empty if none is set."""
        name = text(self.resource.get("service.name", ""))
        return "" if name.startswith("unknown_service") else name

    def flaw(self) -> str:
        """Return why it cannot be placed; empty if it can."""
        if not self.trace_id.strip(_ZERO) or not self.span_id.strip(_ZERO):
            return f"span {self.name!r} has a trace or span id of zeros, which says where nothing belongs"
        return ""


class SpansRead(Struct):
    """The spans that were read, and notes on those that were passed over or mended."""

    spans: list[InSpan] = []
    notes: list[str] = []


class Trace(Struct):
    """The spans of one trace. Each of them stands in exactly one of the lists."""

    trace_id: str
    roots: list[InSpan] = []
    """Spans that name no parent."""
    orphans: list[InSpan] = []
    """Spans whose parent is not there."""
    anchored: list[InSpan] = []
    """Spans whose parent is one of those that were given as known."""
    children: dict[str, list[InSpan]] = {}
    """Spans by their parent's id."""

    def spans(self) -> list[InSpan]:
        """Return all spans, each after its parent."""
        result = [*self.roots, *self.orphans, *self.anchored]
        for span in result:
            result.extend(self.children.get(span.span_id, ()))
        return result


def arrange(spans: Iterable[InSpan], known: Collection[Key], notes: list[str]) -> list[Trace]:
    """Return the traces, in the order of their first spans; *known* are parents that are placed already.

    Spans without ids are passed over, of two with one id the second; where parents form a circle it is cut before its earliest span.
    """
    traces = [_trace(trace_id, members, known, notes) for trace_id, members in _by_trace(spans, notes).items()]
    return sorted(traces, key=lambda trace: min(span.start_ns for span in trace.spans()))


def _by_trace(spans: Iterable[InSpan], notes: list[str]) -> dict[str, dict[str, InSpan]]:
    result: dict[str, dict[str, InSpan]] = {}
    for span in spans:
        if flaw := span.flaw():
            notes.append(f"span {span.number} is passed over: {flaw}")
            continue
        members = result.setdefault(span.trace_id, {})
        first = members.setdefault(span.span_id, span)
        if first is not span and msgspec.structs.replace(span, number=first.number) != first:
            notes.append(f"span {span.number} ({span.name!r}) is passed over: span {first.number} has the same id and says something else")
    return result


def _trace(trace_id: str, members: dict[str, InSpan], known: Collection[Key], notes: list[str]) -> Trace:
    trace = Trace(trace_id)
    for span in members.values():
        if not span.parent_id:
            trace.roots.append(span)
        elif span.parent_id in members:
            trace.children.setdefault(span.parent_id, []).append(span)
        elif (trace_id, span.parent_id) in known:
            trace.anchored.append(span)
        else:
            trace.orphans.append(span)
    if trace.orphans:
        where = "they stand under its root" if trace.roots else "they stand at its top"
        named = ", ".join(repr(span.name) for span in trace.orphans[:3])
        notes.append(f"trace {trace_id[:_SHOWN]}: {len(trace.orphans)} spans name parents that are not there ({named}…); {where}")
    _cut_circles(trace, members, notes)
    return trace


def _cut_circles(trace: Trace, members: dict[str, InSpan], notes: list[str]) -> None:
    reached = {span.span_id for span in trace.spans()}
    left = sorted((span for span in members.values() if span.span_id not in reached), key=_start)
    for span in left:
        if span.span_id in reached:
            continue
        on_circle = _first_on_circle(span, members)
        notes.append(
            f"trace {trace.trace_id[:_SHOWN]}: the parents of span {on_circle.number} ({on_circle.name!r}) form a circle: cut there"
        )
        trace.children[on_circle.parent_id].remove(on_circle)
        trace.orphans.append(on_circle)
        pending = [on_circle]
        while pending:
            current = pending.pop()
            reached.add(current.span_id)
            pending.extend(trace.children.get(current.span_id, ()))


def _first_on_circle(span: InSpan, members: dict[str, InSpan]) -> InSpan:
    """Return the earliest span of the circle that the parents of *span* lead into."""
    seen: set[str] = set()
    while span.span_id not in seen:
        seen.add(span.span_id)
        span = members[span.parent_id]
    circle = [span]
    while circle[-1].parent_id != span.span_id:
        circle.append(members[circle[-1].parent_id])
    return min(circle, key=_start)


def _start(span: InSpan) -> tuple[int, int]:
    return span.start_ns, span.number


def list_of(value: Any) -> list[Any]:
    """Return a list; an empty one for any other value."""
    return value if is_list(value) else []
