"""How long a provider keeps a cache entry that nobody reads, as far as its documentation says so."""

from __future__ import annotations

import re

from optree.nodes import OperationNode

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_LIFETIMES = {"anthropic": 5 * _MINUTE, "claude": 5 * _MINUTE}
"""Seconds, by a word in the provider's or the model's name: Anthropic's default (its guide on prompt caching)."""
_OTHERS = _HOUR
"""Seconds: the most that OpenAI states for entries in memory (its guide on prompt caching)."""
_ASKED = re.compile(rb'"(?:ttl|prompt_cache_retention)":\s*"(1h|24h)"')
_LONGER = {b"1h": _HOUR, b"24h": _DAY}


def lifetime_of(op: OperationNode, model: str, asked: float = 0.0) -> float:
    """Return how long an entry of a call lives at most, in seconds; *asked* is what its request asks for."""
    names = " ".join(filter(None, [model, op.name, *(entry.provider for entry in op.accounting)])).lower()
    return max(asked, next((seconds for word, seconds in _LIFETIMES.items() if word in names), _OTHERS))


def asked_in(body: bytes) -> float:
    """Return the longest lifetime that JSON of a request asks for, in seconds; 0 if it asks for none."""
    return max((_LONGER[found] for found in _ASKED.findall(body)), default=0.0)


def wait_of(before: OperationNode, op: OperationNode) -> float:
    """Return the seconds between the end of one call and the begin of another."""
    ended = before.started_at if before.ended_at is None else before.ended_at
    return max(0.0, op.started_at - ended) / 1e3


def since(seconds: float) -> str:
    """Return a wait as people say it."""
    for unit, name in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= (unit if name != "days" else 2 * unit):
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
