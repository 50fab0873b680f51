"""From spans to sessions: optree's own spans become the tree that they were, others one that their conventions describe.

A root span of an agent is a session with one turn. Roots of the same agent in the same conversation are turns of one session. A bare model
or tool call stands in a session named after its service. Spans in between that mean nothing special are kept as `system` ops.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from msgspec import Struct

from optree import SessionTreeBuilder, Tree
from optree.exporting import text
from optree_otel.incoming import content
from optree_otel.incoming.conventions import Meaning, contradictions, conversation, meaning, meaning_within, tells
from optree_otel.incoming.own import is_own, own_sessions
from optree_otel.incoming.recorder import SpanPlace, begin, end, end_session, end_turn, events_of, outcome
from optree_otel.incoming.spans import InSpan, Key, Trace, arrange

NAMELESS = "agent"


class _Run(Struct):
    """One invocation of an agent: a turn. Without *root*, the top spans stand in a turn that no span tells of."""

    trace: Trace
    root: InSpan | None
    tops: list[InSpan]
    agent: str
    conversation: str

    @property
    def started_ns(self) -> int:
        return min(span.start_ns for span in ([self.root] if self.root is not None else self.tops))

    @property
    def ended_ns(self) -> int:
        """When it ended, not before anything in it; 0 if it has not."""
        tops = self.tops if self.root is None else [self.root]
        return max(_below(self.trace, tops)) if all(span.end_ns for span in tops) else 0


def sessions(spans: Iterable[InSpan], notes: list[str] | None = None) -> list[Tree]:
    """Return the sessions that spans tell of, by their start; *notes* collects notes on spans that were passed over or mended.

    A session of optree keeps its txn; another one's is ``otel-<trace id>``, that of the first trace if it has several, so that the same
    spans give the same session each time.
    """
    remarks: list[str] = [] if notes is None else notes
    everything = list(spans)
    trees, places = own_sessions([span for span in everything if is_own(span)], remarks)
    runs: list[_Run] = []
    for trace in arrange((span for span in everything if not is_own(span)), places.keys(), remarks):
        _put_within(trace, places)
        if not (trace.roots or trace.orphans):
            continue
        if any(tells(span.attributes) for span in trace.spans()):
            runs += _runs(trace)
        else:
            remarks.append(f"trace {trace.trace_id} tells of no agent, model or tool, and is passed over")
    remarks += contradictions(everything)
    result = [*trees, *_sessions(runs)]
    return sorted(result, key=lambda tree: tree.session.started_at)


def root_name(span: InSpan) -> str:
    """Return the agent that a root span stands for; empty for a bare model or tool call, which is an op of no agent."""
    what = meaning(span.name, span.attributes)
    return "" if what.role in ("llm", "tool", "mcp") else what.name or NAMELESS


def root_attributes(span: InSpan) -> dict[str, Any]:
    """Return the attributes of the session that a span begins."""
    known = {"conversation": conversation(span.attributes), "service": span.service, "resource": span.resource}
    ingress = {"source": "opentelemetry", "traceId": span.trace_id, "parentSpanId": span.parent_id}
    return {"ingress": {key: value for key, value in ingress.items() if value}, **{key: value for key, value in known.items() if value}}


def service_name(span: InSpan) -> str:
    """Return the name for a session around a bare call."""
    return span.service or text(span.scope) or NAMELESS


def _runs(trace: Trace) -> list[_Run]:
    """Return a trace's invocations. Spans without their parent stand under the first root, or under the one of them if it is alone."""
    tops = [*trace.roots]
    if not tops and len(trace.orphans) == 1:
        tops = trace.orphans
    elif tops and trace.orphans:
        trace.children.setdefault(tops[0].span_id, []).extend(trace.orphans)
    named = next((name for span in trace.spans() if (name := conversation(span.attributes))), "")
    runs = [_Run(trace, root, [], agent, conversation(root.attributes) or named) for root in tops if (agent := root_name(root))]
    bare = [span for span in tops or trace.orphans if not tops or not root_name(span)]
    if bare:
        runs.append(_Run(trace, None, bare, service_name(bare[0]), named))
    return runs


def _sessions(runs: list[_Run]) -> list[Tree]:
    groups: dict[Key, list[_Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_ns):
        groups.setdefault((run.conversation or run.trace.trace_id, run.agent), []).append(run)
    taken: set[str] = set()
    return [_session(group, taken) for group in groups.values()]


def _session(runs: list[_Run], taken: set[str]) -> Tree:
    first = runs[0].root or runs[0].tops[0]
    txn = f"otel-{first.trace_id}"
    if txn in taken:
        txn = f"{txn}-{first.span_id}"
    taken.add(txn)
    builder = SessionTreeBuilder(runs[0].agent, txn=txn, attributes=root_attributes(first), at=runs[0].started_ns / 1_000_000)
    for run in runs:
        _turn(builder, run)
    last = runs[-1]
    if all(run.ended_ns for run in runs):
        status, error = outcome(last.root or _last(last.tops))
        report = content.of_agent(last.root)[2] if last.root is not None else None
        end_session(builder, max(run.ended_ns for run in runs) / 1_000_000, status, error, report)
    return builder.tree


def _turn(builder: SessionTreeBuilder, run: _Run) -> None:
    root = run.root
    user = last = None
    attributes: dict[str, Any] = {}
    if root is not None:
        user, last, _ = content.of_agent(root)
        attributes = content.remaining(root) | ({"events": events_of(root)} if root.events else {})
    turn = builder.begin_turn(user=user, attributes=attributes, at=run.started_ns / 1_000_000)
    tops = run.tops if root is None else run.trace.children.get(root.span_id, [])
    _put(run.trace, [(span, SpanPlace(builder, turn)) for span in tops])
    if run.ended_ns:
        end_turn(turn, run.ended_ns / 1_000_000, *outcome(root or _last(tops)), user, last)


def _below(trace: Trace, tops: list[InSpan]) -> list[int]:
    """Return when spans ended and all below them, where they have."""
    spans = [*tops]
    for span in spans:
        spans.extend(trace.children.get(span.span_id, ()))
    return [max(span.end_ns, span.start_ns) for span in spans]


def _last(spans: list[InSpan]) -> InSpan:
    """Return the span that ended last: a turn that no span tells of ended as it did."""
    return max(spans, key=lambda span: (span.end_ns, span.start_ns))


def _put(trace: Trace, tops: list[tuple[InSpan, SpanPlace]]) -> None:
    """Record spans and all below them: begins by their start, parents first; then ends, children first."""
    ready = [(span.start_ns, number, span, place) for number, (span, place) in enumerate(tops)]
    heapify(ready)
    number = len(ready)
    begun: list[tuple[SpanPlace, InSpan, Meaning]] = []
    while ready:
        _, _, span, above = heappop(ready)
        what = meaning_within(span)
        place = begin(above, span, what)
        begun.append((place, span, what))
        for child in trace.children.get(span.span_id, ()):
            number += 1
            heappush(ready, (child.start_ns, number, child, place))
    for place, span, what in reversed(begun):
        end(place, span, what)


def _put_within(trace: Trace, places: dict[Key, SpanPlace]) -> None:
    """Record spans of other instrumentation inside optree's own."""
    if trace.anchored:
        _put(trace, [(span, places[trace.trace_id, span.parent_id]) for span in trace.anchored])
