"""What a span's op is billed: one entry for each call, and each call once, however many spans tell of it."""

from __future__ import annotations

from typing import Final, Literal

from optree import AccountingEntry
from optree.exporting import Accounted, Status
from optree_otel import names
from optree_otel.incoming.meaning import Meaning, answering_model, model, provider
from optree_otel.incoming.place import SpanPlace
from optree_otel.incoming.spans import InSpan
from optree_otel.incoming.usage import usage

_LOOKED_UP: Final = 64


def account(place: SpanPlace, span: InSpan, what: Meaning, status: Status, error: str | None) -> None:
    """Add a span's accounting entry. A call that a call within it accounts for, or one around it, has none."""
    op = place.own
    if op is None:
        return
    entry: AccountingEntry | None = None
    if what.role in ("llm", "agent"):
        if not place.accounted and not _billed_above(place):
            entry = _of_llm(place, span, what)
    elif op.node.kind == "tool":
        entry = _entry(place, span, "tool")
        entry.command = op.node.name
        entry.characters_in = (op.node.request.size if op.node.request else None) or 0
        entry.characters_out = (op.node.response.size if op.node.response else None) or 0
        server = span.attributes.get(names.MCP_SERVER)
        entry.mcp_server = server if isinstance(server, str) else None
    if entry is None:
        return
    if status != "ok":
        entry.status, entry.error = "failed", error
    op.builder.record(Accounted(op.path, entry))
    if entry.type == "llm":
        place.billed = True
        _mark_above(place)


def _of_llm(place: SpanPlace, span: InSpan, what: Meaning) -> AccountingEntry | None:
    """Return the entry of a model call; of an agent only if its span has figures that nothing within it has."""
    took = usage(span.attributes)
    if what.role == "agent" and not took.said:
        return None
    entry = _entry(place, span, "llm")
    entry.tokens, entry.cost_usd, entry.upstream_inference_cost_usd = took.tokens, took.cost_usd, took.upstream_cost_usd
    entry.provider, entry.model = provider(span.attributes) or None, model(span.attributes) or None
    answered = answering_model(span.attributes)
    entry.actual_model = answered if answered and answered != entry.model else None
    return entry


def _entry(place: SpanPlace, span: InSpan, kind: Literal["llm", "tool"]) -> AccountingEntry:
    op = place.own
    builder = place.builder if op is None else op.builder
    identity = f"{builder.txn if op is None else op.id}#{next(builder.core.numbers)}"
    return AccountingEntry(identity, span.ended_at, kind, "ok", span.ended_at - span.started_at)


def _billed_above(place: SpanPlace) -> bool:
    """Tell whether a span around this one has its figures already: it ended before."""
    above = place.above
    for _ in range(_LOOKED_UP):
        if above is None:
            return False
        if above.billed:
            return True
        above = above.above
    return False


def _mark_above(place: SpanPlace) -> None:
    above = place.above
    while above is not None and not above.accounted:
        above.accounted = True
        above = above.above
