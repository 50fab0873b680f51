"""Figures and texts that callers give, made fit for the tree: what is no number counts as none, what is no text is made one."""

from __future__ import annotations

from math import isfinite
from typing import Any

from optree.nodes import AccountingEntry, Tokens
from optree.values import cut, text

PROMPT_CHARACTERS = 16_384
"""Cap of prompts, assistant texts and errors (seed 004 names 8-16 KB)."""
_TEXTS = frozenset({"provider", "model", "actual_provider", "actual_model", "mcp_server", "command", "error"})


def tokens(sent: Any, received: Any, cache_read: Any, cache_write: Any) -> Tokens:
    """Return token counts with their total."""
    if sent.__class__ is received.__class__ is cache_read.__class__ is cache_write.__class__ is int:
        return Tokens(sent, received, cache_read, cache_write, sent + received + cache_read + cache_write)
    sent, received, cache_read, cache_write = whole(sent), whole(received), whole(cache_read), whole(cache_write)
    return Tokens(sent, received, cache_read, cache_write, sent + received + cache_read + cache_write)


def fill(entry: AccountingEntry, more: dict[str, Any]) -> None:
    """Set further fields of an entry by name; names that it does not have are passed over."""
    for key, value in more.items():
        if key in ("characters_in", "characters_out"):
            setattr(entry, key, whole(value))
        elif key == "upstream_inference_cost_usd":
            entry.upstream_inference_cost_usd = None if value is None else number(value)
        elif key in _TEXTS:
            setattr(entry, key, None if value is None else text(value))


def error_text(error: object) -> str | None:
    """Return an error as capped text."""
    return None if error is None else cut(text(error), PROMPT_CHARACTERS)


def whole(value: Any) -> int:
    """Return a count; 0 for what is none."""
    return value if value.__class__ is int else int(number(value))


def number(value: Any) -> float:
    """Return a figure; 0.0 for what is no finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if isfinite(found) else 0.0
