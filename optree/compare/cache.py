"""Whether a call read from the provider's cache what it could have read, and what it cost if not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from optree.compare.call import CallContext
from optree.compare.content import last_tokens, money
from optree.compare.details import change_phrase
from optree.compare.lifetime import since, wait_of
from optree.compare.messages import Edit
from optree.compare.prices import Prices
from optree.compare.prompts import CERTAIN
from optree.nodes import OperationNode, Tokens

SHORTEST = 1024
"""Tokens: no provider caches a shorter prefix (OpenAI's and Anthropic's guides on prompt caching; some models want more)."""
BLOCK = 128
"""Tokens: OpenAI reads from its cache in such steps. What is less is no loss."""
Known = Mapping[tuple[str | None, str | None], Prices]
_MAY_BE = "the entry may have expired, or was never written"


class Use(Struct):
    """Two calls, the model of the first one, the bytes of it in all, and of what the second one has too. Images count as no bytes.

    *lifetime* is how long the provider keeps an entry at most, in seconds.
    """

    before: OperationNode
    model: str
    size: int
    op: OperationNode
    shared: int
    lifetime: float


class Models(Struct):
    """Models of which any call of the session tells of a cache, and those that tell what they wrote to it (OpenAI's do not)."""

    telling: set[str]
    writing: set[str]

    @classmethod
    def of(cls, calls: Iterable[tuple[str, OperationNode]]) -> Models:
        """Return what calls tell, each given with its model."""
        found = cls(set(), set())
        for model, op in calls:
            for tokens in (entry.tokens for entry in op.accounting if entry.tokens is not None):
                if tokens.cache_write_input_tokens:
                    found.writing.add(model)
                if tokens.cache_write_input_tokens or tokens.cache_read_input_tokens:
                    found.telling.add(model)
        return found


def judge(found: CallContext, use: Use, prices: Known, models: Models) -> None:
    """Say what became of the cache, in place."""
    found.cause = _first_difference(found)
    told, now = last_tokens(use.before), last_tokens(use.op)
    if told is None or now is None or not use.size:
        return
    silent = next((model for model in (found.model, use.model) if model not in models.telling), None)
    if silent is not None:
        if found.cause is not None:
            found.add_note(f"no call of {silent} tells of a cache: whether anything was lost is not known")
        return
    found.estimated = use.shared != use.size
    had = told.cache_read_input_tokens + told.cache_write_input_tokens if use.model in models.writing else told.all_input_tokens
    found.reusable_tokens = min(told.all_input_tokens * use.shared // use.size, had, now.all_input_tokens)
    lost = found.reusable_tokens - now.cache_read_input_tokens
    if found.reusable_tokens < SHORTEST or lost < BLOCK:
        found.cache = "kept"
    elif found.parts or (found.messages is not None and found.messages.later):
        found.cache = "broken"
    elif found.messages is not None and not found.messages.edits and not found.estimated:
        found.cache = "missed"
    else:
        found.add_note("only the end was edited: how much of what comes before it the cache had is not known")
    if found.cache in ("broken", "missed"):
        _lost(found, lost, use)
        found.lost_usd = _cost(lost, now, prices, use.op)


def _lost(found: CallContext, lost: int, use: Use) -> None:
    found.lost_tokens = lost
    waited = wait_of(use.before, use.op)
    found.expired = waited > use.lifetime
    if found.cache == "missed":
        found.cause = f"nothing that comes before changed, {since(waited)} after the previous call: {_MAY_BE}"
    if found.expired:
        found.add_note(f"{since(waited)} after the previous call its entry may have expired: providers keep one {since(use.lifetime)}")


def _first_difference(found: CallContext) -> str | None:
    """Return what differs first, what is surely in a cache's key before what may not be; None if the call only appended.

    An edit behind all that both calls share explains no loss: it comes last.
    """
    certain = [change_phrase(change) for change in found.parts if change.what in CERTAIN]
    doubtful = [change_phrase(change) for change in found.parts if change.what not in CERTAIN]
    messages = found.messages
    edits = [] if messages is None else [edit_phrase(edit) for edit in messages.edits[:1]]
    behind = messages is not None and messages.kept > 0 and not messages.later
    order = [*certain, *doubtful, *edits] if behind else [*certain, *edits, *doubtful]
    return order[0] if order else None


def edit_phrase(edit: Edit) -> str:
    """Return an edit as a line."""
    what = f"message {edit.at} ({edit.role}) {edit.kind}"
    if edit.kind == "edited":
        return f"{what}: {edit.before} → {edit.after}"
    return f"{what}: {edit.after or edit.before}"


def _cost(lost: int, tokens: Tokens, prices: Known, op: OperationNode) -> float | None:
    """Return what tokens cost more than read from the cache: those that were written to it anew at its price for that."""
    entry = next((entry for entry in reversed(op.accounting) if entry.tokens is tokens), None)
    known = prices.get((entry.provider, entry.model)) if entry is not None else None
    if known is None:
        return None
    written = min(lost, tokens.cache_write_input_tokens)
    if written and known.cache_write is None:
        return None
    return money(written * ((known.cache_write or 0.0) - known.cache_read) + (lost - written) * (known.input - known.cache_read))
