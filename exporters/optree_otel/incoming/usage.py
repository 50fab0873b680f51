"""What an LLM call took: tokens and money, under whatever names its span has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from optree.nodes import Tokens
from optree_otel import names

_INPUT: Final = (names.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT: Final = (names.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_CACHE_READ: Final = (
    names.CACHE_READ,
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.token_count.prompt_details.cache_input",
)
_CACHE_WRITE: Final = (
    *reversed(names.CACHE_WRITE),
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.details.cache_write_tokens",
    "llm.token_count.prompt_details.cache_write",
)
_COST: Final = (names.COST, "operation.cost", "llm.cost.total", "gen_ai.usage.cost")
_MAX: Final = 1 << 60


class Usage(Struct, frozen=True):
    """Tokens and US dollars of one call; *said* is False where its span says neither."""

    tokens: Tokens
    cost_usd: float | None
    upstream_cost_usd: float | None
    said: bool


def usage(attributes: Mapping[str, Any]) -> Usage:
    """Return what a span says that its call took.

    Conventions count cached tokens among the input, optree apart from it. Where more are cached than were sent, the sender has counted
    them apart already (as Anthropic's own figures are).
    """
    sent, received = _count(attributes, _INPUT), _count(attributes, _OUTPUT)
    read, written = _count(attributes, _CACHE_READ) or 0, _count(attributes, _CACHE_WRITE) or 0
    fresh = sent or 0
    if read + written <= fresh:
        fresh -= read + written
    total = fresh + (received or 0) + read + written
    cost, upstream = _money(attributes, _COST), _money(attributes, (names.UPSTREAM_COST,))
    said = sent is not None or received is not None or cost is not None
    return Usage(Tokens(fresh, received or 0, read, written, total), cost, upstream, said)


def count(value: Any) -> int | None:
    """Return a count; None for what is none."""
    number = _number(value)
    return None if number is None else int(min(max(number, 0), _MAX))


def _count(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((found for key in keys if (found := count(attributes.get(key))) is not None), None)


def _money(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((float(found) for key in keys if (found := _number(attributes.get(key))) is not None), None)


def _number(value: Any) -> int | float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX <= value <= _MAX:
        return None
    return value
