"""Looks at live traces: what must be there by the tree on disk, and what Jaeger finds wrong with a copy of it."""

import json
import os
import urllib.request
from collections.abc import Iterable

from optree import SessionNode
from optree._ids import span_id, trace_id
from tests.otel.backends.ask import ask
from tests.otel.backends.jaeger import Jaeger
from tests.otel.backends.spans import Span
from tests.otel.backends.waiting import wait_for

LIVE = {"OPTREE_OTEL_LIVE": "true"}


def live_id(txn: str) -> str:
    """Return the id of a session's live trace."""
    return trace_id(f"{txn}/live")


def own_id(node: str) -> str:
    """Return the id of a node's anchor, or of the one span of a short op."""
    return span_id(f"{node}/live")


def must_be_there(root: SessionNode) -> set[str]:
    """Return the ids that a live trace must have: of all containers, and of ops that have ended."""
    found: set[str] = set()
    pending = [root]
    while pending:
        session = pending.pop()
        found.add(own_id(f"{session.id}/session" if session.path else session.id))
        for turn in session.turns:
            found.add(own_id(turn.id))
            found |= {own_id(op.op_id) for op in turn.ops if op.kind == "session" or op.ended_at is not None}
            pending += [op.child_session for op in turn.ops if op.child_session is not None]
    return found


def must_be_closed(root: SessionNode) -> set[str]:
    """Return the ids of containers that have ended: each must have a span below it that says so."""
    found: set[str] = set()
    pending = [root]
    while pending:
        session = pending.pop()
        if session.ended_at is not None:
            found.add(own_id(f"{session.id}/session" if session.path else session.id))
        for turn in session.turns:
            found |= {own_id(turn.id)} if turn.ended_at is not None else set()
            found |= {own_id(op.op_id) for op in turn.ops if op.kind == "session" and op.ended_at is not None}
            pending += [op.child_session for op in turn.ops if op.child_session is not None]
    return found


def closed(spans: Iterable[Span]) -> set[str]:
    """Return the ids of anchors that are closed."""
    return {span.parent_id for span in spans if span.attributes["optree.phase"] == "close"}


def orphans(spans: list[Span]) -> list[str]:
    """Return the names of spans whose parent is not there."""
    known = {"", *(span.span_id for span in spans)}
    return [span.name for span in spans if span.parent_id not in known]


def whole(backend, txn: str, root: SessionNode, *, once: bool = True) -> list[Span]:
    """Return the spans of a live trace once all that must be there has arrived; what came twice is the same, with *once* nothing did."""

    def look() -> list[Span]:
        spans = backend.trace(live_id(txn))
        there = must_be_there(root) <= {span.span_id for span in spans} and must_be_closed(root) <= closed(spans)
        return spans if there else []

    spans = wait_for(look)
    by_id: dict[str, list[Span]] = {}
    for span in spans:
        by_id.setdefault(span.span_id, []).append(span)
    repeated = [several for several in by_id.values() if len(several) > 1]
    assert [] == [several[0].name for several in repeated if any(one != several[0] for one in several)]
    if once:
        assert [] == [several[0].name for several in repeated]
    return spans


def warnings(jaeger: Jaeger, trace: str) -> list[str]:
    """Return what Jaeger's pages and its API would warn of in a trace, by way of a copy: a look marks what it looks at."""
    copy = os.urandom(16).hex()
    there = ask(jaeger.address("query"), f"/api/v3/traces/{trace}", raw_traces="true")["result"]
    spans = [span for resource in there["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]
    for span in spans:
        span["traceId"] = copy
    request = urllib.request.Request(f"{jaeger.http}/v1/traces", json.dumps(there).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=20).close()
    jaeger.wait_for_trace(copy, len(spans))
    page = ask(jaeger.address("query"), f"/api/traces/{copy}")["data"][0]
    on_page = [text for span in page["spans"] for text in span["warnings"] or []]
    return [*on_page, *(page["warnings"] or []), *(text for span in jaeger.shown(copy) for text in span.warnings)]
