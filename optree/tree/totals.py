"""Totals, kept as entries come: nothing walks the tree for them."""

from __future__ import annotations

from optree.nodes import AccountingEntry, Totals


def add_entry(totals: Totals, entry: AccountingEntry) -> None:
    """Add one accounting entry, in place."""
    failed = entry.status == "failed"
    if entry.cost_usd:
        totals.cost_usd += entry.cost_usd
    if entry.type == "tool":
        totals.tools_run += 1
        totals.tools_failed += failed
        totals.characters_in += entry.characters_in or 0
        totals.characters_out += entry.characters_out or 0
        return
    totals.llm_requests += 1
    if failed:
        totals.llm_failed += 1
    if entry.upstream_inference_cost_usd:
        totals.upstream_inference_cost_usd += entry.upstream_inference_cost_usd
    tokens = entry.tokens
    if tokens is not None:
        totals.input_tokens += tokens.input_tokens
        totals.output_tokens += tokens.output_tokens
        if tokens.cache_read_input_tokens or tokens.cache_write_input_tokens:
            totals.cache_read_input_tokens += tokens.cache_read_input_tokens
            totals.cache_write_input_tokens += tokens.cache_write_input_tokens


def add_failure(totals: Totals, entry: AccountingEntry) -> None:
    """Count an entry as failed that was added as ok."""
    if entry.type == "llm":
        totals.llm_failed += 1
    else:
        totals.tools_failed += 1
