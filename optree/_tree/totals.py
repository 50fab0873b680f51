"""Totals, kept as ops begin and entries come: nothing walks the tree for them. Also the one form in which figures are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optree._nodes import AccountingEntry, Tokens, Totals
from optree._providers.amounts import MAX_COUNT, MAX_DOLLARS

PICO = 10**12
_DIGITS = 6
_STORED = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_UNKNOWN = "unknown"
_EXACT = 1e200


def add_op(totals: Totals, kind: str) -> None:
    """Count an op, in place, as it begins: tools are counted by what ran, also if nothing is accounted for."""
    if kind == "tool":
        totals.tools_run += 1


def add_entry(totals: Totals, entry: AccountingEntry) -> None:
    """Add one accounting entry, in place; a figure that no call can come to, as older files may have it, is in no sum."""
    failed = entry.status == "failed"
    if entry.cost_usd is not None and is_possible_cost(entry.cost_usd):
        totals.known_costs += 1
        totals.cost_usd += entry.cost_usd
    elif has_unknown_cost(entry):
        totals.unknown_costs += 1
    tokens = entry.tokens
    if tokens is not None and are_possible(tokens):
        totals.input_tokens += tokens.input_tokens
        totals.output_tokens += tokens.output_tokens
        totals.cache_read_input_tokens += tokens.cache_read_input_tokens
        totals.cache_write_input_tokens += tokens.cache_write_input_tokens
        totals.reasoning_output_tokens += tokens.reasoning_output_tokens
    if entry.type == "tool":
        totals.tools_failed += failed
        totals.characters_in += entry.characters_in or 0
        totals.characters_out += entry.characters_out or 0
        return
    if not entry.retried:
        totals.llm_requests += 1
        totals.llm_failed += failed
    if entry.upstream_inference_cost_usd and is_possible_cost(entry.upstream_inference_cost_usd):
        totals.upstream_inference_cost_usd += entry.upstream_inference_cost_usd


def add_failure(totals: Totals, entry: AccountingEntry) -> None:
    """Count an entry as failed that was added as ok."""
    if entry.type == "llm":
        totals.llm_failed += 1
    else:
        totals.tools_failed += 1


def take_retried(totals: Totals) -> None:
    """Take a call of a model back that was counted as failed: it is an attempt that is made again."""
    totals.llm_requests -= 1
    totals.llm_failed -= 1


def has_unknown_cost(entry: AccountingEntry) -> bool:
    """Tell whether an entry's cost is unknown; a call of a tool costs nothing unless a cost was given, or it took tokens."""
    if entry.cost_usd is not None and is_possible_cost(entry.cost_usd):
        return False
    tokens = entry.tokens
    return entry.type == "llm" or (tokens is not None and bool(tokens.all_input_tokens or tokens.output_tokens or tokens.total_tokens))


def stored_parts(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokens out of a file, which holds them in parts that add up, under our names there; a total that is missing is the sum.

    The original ai-agent says `cachedTokens` too for those from the cache. Where the total proves that the input includes the cached and
    the written, as OpenAI counts, they are taken out of it. Values that are not counts are left to the caller.
    """
    parts = {name: block.get(name) or 0 for name in _STORED}
    parts["cacheReadInputTokens"] = parts["cacheReadInputTokens"] or block.get("cachedTokens") or 0
    if all(type(part) is int and part >= 0 for part in parts.values()):
        sent, received, cached, written = parts.values()
        if cached + written <= sent and block.get("totalTokens") == sent + received:
            parts["inputTokens"] = sent - cached - written
    total = block.get("totalTokens") or sum(part for part in parts.values() if type(part) is int)
    return {**parts, "totalTokens": total, "reasoningOutputTokens": block.get("reasoningOutputTokens") or 0}


def flaws_of_parts(parts: Mapping[str, Any]) -> list[str]:
    """Return what contradicts itself in tokens that `stored_parts` gave, a sentence each."""
    if any(type(part) is not int for part in parts.values()):
        return []
    flaws = [f"{name} {part:,} is below 0" for name, part in parts.items() if part < 0]
    total, adds = parts["totalTokens"], sum(parts[name] for name in _STORED)
    return [*flaws, f"totalTokens {total:,}, and its parts add up to {adds:,}"] if total != adds else flaws


def leave_out_impossible(entry: AccountingEntry) -> list[str]:
    """Remove from an entry of another program the figures that no call can come to; returns their names."""
    impossible = [name for name in ("cost_usd", "upstream_inference_cost_usd") if not is_possible_cost(getattr(entry, name))]
    impossible += [name for name in ("characters_in", "characters_out") if not 0 <= (getattr(entry, name) or 0) <= MAX_COUNT]
    impossible += [] if are_possible(entry.tokens) else ["tokens"]
    for name in impossible:
        setattr(entry, name, None)
    return impossible


def is_possible_cost(cost: float | None) -> bool:
    """Tell whether a call can cost that."""
    return cost is None or -MAX_DOLLARS <= cost <= MAX_DOLLARS


def are_possible(tokens: Tokens | None) -> bool:
    """Tell whether a call can take these tokens."""
    if tokens is None:
        return True
    parts = (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_input_tokens, tokens.cache_write_input_tokens)
    return max(parts) <= MAX_COUNT >= tokens.reasoning_output_tokens and tokens.total_tokens <= MAX_COUNT


def of_entries(entries: Iterable[AccountingEntry]) -> Totals:
    """Return the sums of some entries."""
    totals = Totals()
    for entry in entries:
        add_entry(totals, entry)
    return totals


def tokens_said(tokens: Tokens | Totals) -> str:
    """Return tokens as ``1,200→64 tok (1,000 cached, 200 written)``: input with what was cached and written; empty for none."""
    sent, received = tokens.all_input_tokens, tokens.output_tokens
    if not sent and not received:
        return ""
    beside = {
        "cached": tokens.cache_read_input_tokens,
        "written": tokens.cache_write_input_tokens,
        "reasoning": tokens.reasoning_output_tokens,
    }
    details = ", ".join(f"{number:,} {name}" for name, number in beside.items() if number)
    return f"{sent:,}→{received:,} tok" + (f" ({details})" if details else "")


def cost_said(cost: float, known: int, unknown: int) -> str:
    """Return a cost as ``$0.003100``, ``$0.003100 + 2 unknown`` or ``cost unknown``; empty if there is nothing that costs."""
    return f"cost {shown}" if (shown := _cost(pico(cost), known, unknown)) == _UNKNOWN else shown


def cost_cell(amount: int, known: int, unknown: int) -> str:
    """Return a cost, given in trillionths, as it stands in a column of costs: ``unknown`` without the word, ``-`` for nothing."""
    return _cost(amount, known, unknown) or "-"


def _cost(amount: int, known: int, unknown: int) -> str:
    if not known:
        return _UNKNOWN if unknown else ""
    return dollars_of(amount) + (f" + {unknown:,} unknown" if unknown else "")


def pico(cost: float) -> int:
    """Return money in whole trillionths of a dollar: sums of these are exact."""
    return round(cost * PICO) if abs(cost) < _EXACT else int(cost) * PICO  # cost * PICO would overflow, as in an older file


def dollars(amount: float) -> str:
    """Return money with all digits that it has, six at least and twelve at most; nothing at all is ``$0``."""
    return dollars_of(pico(amount))


def dollars_of(amount: int) -> str:
    """Return money that is given in trillionths."""
    whole, part = divmod(abs(amount), PICO)
    if not amount:
        return "$0"
    digits = f"{part:012d}"
    return f"{'-' if amount < 0 else ''}${whole:,}.{digits[:_DIGITS]}{digits[_DIGITS:].rstrip('0')}"
