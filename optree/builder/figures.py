"""Figures and texts that callers give, made fit for the tree: what is no number counts as none, what is no text is made one."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any, get_args

from optree.nodes import AccountingEntry, Status, Tokens, TurnNode
from optree.values import cut, decode, is_object, text

PROMPT_CHARACTERS = 16_384
"""Cap of prompts, assistant texts and errors (seed 004 names 8-16 KB)."""
MAX_COUNT = 1 << 60
"""Largest count: four of them still add up to what a 64-bit integer holds."""
_STATUSES = get_args(Status)
_TEXTS = frozenset({"provider", "model", "actual_provider", "actual_model", "mcp_server", "command", "error"})


def tokens(sent: Any, received: Any, cache_read: Any, cache_write: Any) -> Tokens:
    """Return token counts with their total."""
    if (
        type(sent) is type(received) is type(cache_read) is type(cache_write) is int
        and 0 <= (sent | received | cache_read | cache_write) < MAX_COUNT
    ):
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


def error_text(error: object) -> str:
    """Return an error as capped text."""
    return cut(text(error), PROMPT_CHARACTERS)


def known_status(status: Any) -> tuple[Status, str | None]:
    """Return a status, and what to say of one that is none: it counts as failed."""
    if type(status) is str and status in _STATUSES:
        return status, None  # type: ignore[return-value]
    return "failed", f"ended with status {text(status)[:80]!r}, which is none of {', '.join(_STATUSES)}"


def whole(value: Any) -> int:
    """Return a count, from 0 to `MAX_COUNT`; 0 for what is none."""
    found = value if type(value) is int else int(number(value))
    return found if 0 <= found <= MAX_COUNT else MAX_COUNT if found > 0 else 0


def number(value: Any) -> float:
    """Return a figure; 0.0 for what is no finite number."""
    if type(value) is float and -inf < value < inf:
        return value
    try:
        found = float(value)
    except Exception:  # noqa: BLE001 - a value's own code may raise anything
        return 0.0
    return found if isfinite(found) else 0.0


def last_said(turn: TurnNode) -> str | None:
    """Return the text of a turn's last answer; None if it has none."""
    for op in reversed(turn.ops):
        if op.kind == "llm" and op.response is not None:
            said = decode(op.response.payload)
            if is_object(said):
                said = said.get("content")
            return said if isinstance(said, str) else None
    return None
