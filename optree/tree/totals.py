"""Totals, kept as entries come: nothing walks the tree for them."""

from __future__ import annotations

from optree.nodes import AccountingEntry, Totals


def add_entry(totals: Totals, entry: AccountingEntry) -> None:
    """Add one accounting entry, in place."""
    if entry.type == "llm":
        totals.llm_requests += 1
        totals.llm_failed += entry.status == "failed"
        totals.cost_usd += entry.cost_usd or 0.0
        totals.upstream_inference_cost_usd += entry.upstream_inference_cost_usd or 0.0
        tokens = entry.tokens
        if tokens is not None:
            totals.input_tokens += tokens.input_tokens
            totals.output_tokens += tokens.output_tokens
            totals.cache_read_input_tokens += tokens.cache_read_input_tokens
            totals.cache_write_input_tokens += tokens.cache_write_input_tokens
    else:
        totals.tools_run += 1
        totals.tools_failed += entry.status == "failed"
        totals.cost_usd += entry.cost_usd or 0.0
        totals.characters_in += entry.characters_in or 0
        totals.characters_out += entry.characters_out or 0


def add_failure(totals: Totals, entry: AccountingEntry) -> None:
    """Count an entry as failed that was added as ok."""
    if entry.type == "llm":
        totals.llm_failed += 1
    else:
        totals.tools_failed += 1
