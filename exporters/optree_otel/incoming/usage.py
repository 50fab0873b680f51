"""What an LLM call took: tokens and money, under whatever names its span has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from optree.exporting import Tokens, read_usage, text, usage_dollars
from optree.exporting import usage_count as read_count
from optree_otel import names
from optree_otel.incoming.spans import InSpan

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
_REASONING: Final = (
    names.REASONING_TOKENS,
    "gen_ai.usage.reasoning_tokens",
    "gen_ai.usage.details.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)
_TOTAL: Final = ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total")
_DIGITS: Final = re.compile(r"[\d,]+")
_COST: Final = (names.COST, "operation.cost", "llm.cost.total", "gen_ai.usage.cost")
_FIGURES: Final = {
    "input_tokens": _INPUT,
    "output_tokens": _OUTPUT,
    "cache_read_tokens": _CACHE_READ,
    "cache_write_tokens": _CACHE_WRITE,
    "reasoning_tokens": _REASONING,
    "total_tokens": _TOTAL,
    "cost_usd": _COST,
    "upstream_inference_cost_usd": (names.UPSTREAM_COST,),
}
"""What spans call the figures that `optree.usage.read` takes by name."""


class Taken(Struct, frozen=True):
    """Tokens and US dollars of one call; *said* is False where its span says neither."""

    tokens: Tokens
    cost_usd: float | None
    upstream_cost_usd: float | None
    said: bool
    flaws: list[str]
    """What the span says and cannot be so, a sentence each."""


def usage(attributes: Mapping[str, Any]) -> Taken:
    """Return what a span says that its call took.

    Its input tokens are with the cached ones, as the conventions have it, unless its total or a contradiction shows otherwise. Its
    provider does not tell: of Anthropic's calls, older instrumentations pass on bare figures, newer ones add them up.
    """
    flaws: list[str] = []
    figures = {name: found for name, keys in _FIGURES.items() if (found := _first(attributes, keys, flaws)) is not None}
    took = read_usage(figures=figures)
    said = bool({"input_tokens", "output_tokens"} & figures.keys()) or took.cost_usd is not None
    return Taken(took.tokens or Tokens(), took.cost_usd, took.upstream_cost_usd, said, flaws + took.flaws)


def contradictions(spans: Iterable[InSpan]) -> list[str]:
    """Return what spans say of usage and cannot be so: once each, with the first span that says it and how many more do."""
    found: dict[str, list[str]] = {}
    for span in spans:
        for flaw in usage(span.attributes).flaws:
            found.setdefault(_DIGITS.sub("", flaw), []).append(f"span {span.number} ({span.name!r}): {flaw}")
    return [first + (f"; so in {len(more):,} more" if more else "") for first, *more in found.values()]


def count(value: Any) -> int | None:
    """Return a count; None for what is none."""
    return read_count(value, "", [])


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...], flaws: list[str]) -> int | float | None:
    """Return the first of some attributes that is a figure; *flaws* gets those that are none."""
    for key in keys:
        value = attributes.get(key)
        if (found := usage_dollars(value, key, [])) is not None:
            return found
        if value is not None:
            flaws.append(f"{key}={text(value)[:40]!r} is no figure, and is left out")
    return None
