"""Whether a call read from the provider's cache what it could have read, and what it cost if not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from optree.compare.call import CallContext
from optree.compare.content import money, own_tokens
from optree.compare.details import change_phrase
from optree.compare.messages import Edit
from optree.compare.prices import Prices
from optree.nodes import OperationNode, Tokens

SHORTEST = 1024
"""Tokens: no provider caches a shorter prefix (OpenAI's and Anthropic's guides on prompt caching; some models want more)."""
BLOCK = 128
"""Tokens: OpenAI reads from its cache in such steps. What is less is no loss."""
_MINUTE = 60_000
Known = Mapping[tuple[str | None, str | None], Prices]
_MAY_BE = "the entry may have expired, or was never written"


class Use(Struct):
    """Two calls, and the bytes of the first one in all, and of what the second one has too."""

    before: OperationNode
    size: int
    op: OperationNode
    shared: int


class Models(Struct):
    """Models of which any call of the session tells of a cache, and those that tell what they wrote to it (OpenAI's do not)."""

    telling: set[str]
    writing: set[str]

    @classmethod
    def of(cls, calls: Iterable[tuple[str, OperationNode]]) -> Models:
        """Return what calls tell, each given with its model."""
        found = cls(set(), set())
        for model, op in calls:
            tokens = own_tokens(op)
            if tokens.cache_write_input_tokens:
                found.writing.add(model)
            if tokens.cache_write_input_tokens or tokens.cache_read_input_tokens:
                found.telling.add(model)
        return found


def judge(found: CallContext, use: Use, prices: Known, models: Models) -> None:
    """Say what became of the cache, in place."""
    found.cause = _first_difference(found)
    sent = _sent(own_tokens(use.before))
    if found.cache_read_input_tokens is None or not sent or not use.size:
        return
    found.estimated = use.shared != use.size
    told = own_tokens(use.before)
    had = told.cache_read_input_tokens + told.cache_write_input_tokens if found.model in models.writing else sent
    found.reusable_tokens = min(sent * use.shared // use.size, had, _sent(own_tokens(use.op)))
    lost = found.reusable_tokens - found.cache_read_input_tokens
    if found.reusable_tokens < SHORTEST or lost < BLOCK:
        found.cache = "kept"
    elif found.parts or (found.messages is not None and found.messages.later):
        found.cache, found.lost_tokens = "broken", lost
    elif found.model in models.telling:
        found.cache, found.lost_tokens = "missed", lost
        found.cause = f"nothing that comes before changed, {_since(use)} after the previous call: {_MAY_BE}"
    if found.cache in ("broken", "missed"):
        found.lost_usd = _cost(lost, own_tokens(use.op), prices, use.op)
        if found.model not in models.telling:
            found.note = "no call of this model tells of a cache: whether there is one is not known"


def _first_difference(found: CallContext) -> str | None:
    """Return what differs first in the order in which a cache reads; None if the call only appended."""
    if found.parts:
        return change_phrase(found.parts[0])
    if found.messages is None or not found.messages.edits:
        return None
    return edit_phrase(found.messages.edits[0])


def edit_phrase(edit: Edit) -> str:
    """Return an edit as a line."""
    what = f"message {edit.at} ({edit.role}) {edit.kind}"
    if edit.kind == "edited":
        return f"{what}: {edit.before} → {edit.after}"
    return f"{what}: {edit.after or edit.before}"


def _sent(tokens: Tokens) -> int:
    return tokens.input_tokens + tokens.cache_read_input_tokens + tokens.cache_write_input_tokens


def _since(use: Use) -> str:
    waited = max(0.0, use.op.started_at - (use.before.ended_at or use.before.started_at))
    return f"{waited / 1e3:.0f} s" if waited < _MINUTE else f"{waited / _MINUTE:.0f} min"


def _cost(lost: int, tokens: Tokens, prices: Known, op: OperationNode) -> float | None:
    """Return what tokens cost more than read from the cache: those that were written to it anew at its price for that."""
    entry = next((entry for entry in op.accounting if entry.tokens is not None), None)
    known = prices.get((entry.provider, entry.model)) if entry is not None else None
    if known is None:
        return None
    written = min(lost, tokens.cache_write_input_tokens)
    if written and known.cache_write is None:
        return None
    return money(written * ((known.cache_write or 0.0) - known.cache_read) + (lost - written) * (known.input - known.cache_read))
