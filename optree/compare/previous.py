"""Which earlier call a call goes on from.

It is a call of the same agent that had ended when this one began: one that was still running shaped nothing in this request, and its cache
entry was not there yet. Among those it is the one with the longest common prefix, so that parallel branches, and short calls in between (a
title, a summary), do not count as changes; then the one that shares more of what comes behind the prefix; then the one that began last.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import islice
from math import inf

from msgspec import Struct

from optree.compare.histories import ROOT, Histories

_LOOKED_AT = 4
"""Calls with the same prefix of which the one that shares most is looked for."""
_SCANNED = 512
_SAMPLE = 200
"""Messages from the end that are counted to see what two calls share."""


class Span(Struct):
    """When a call ran, in epoch ms, and its history's node. *counts* is false for one that reached no provider."""

    agent: str
    started_at: float
    ended_at: float | None
    head: int | None
    counts: bool = True


def previous_calls(spans: Sequence[Span], histories: Histories) -> list[int | None]:
    """Return for each call the position of the one that it goes on from, None for a first one; *spans* are in the order of their begin."""
    found: list[int | None] = []
    known: defaultdict[str, _Ended] = defaultdict(lambda: _Ended(histories, spans))
    running: list[tuple[float, int]] = []
    for at, span in enumerate(spans):
        while running and running[0][0] <= span.started_at:
            ended = heappop(running)[1]
            known[spans[ended].agent].add(ended)
        found.append(None if span.head is None else known[span.agent].before(span.head))
        if span.head is not None and span.counts:
            heappush(running, (inf if span.ended_at is None else max(span.ended_at, span.started_at), at))
    return found


class _Ended:
    """Calls of one agent that have ended."""

    def __init__(self, histories: Histories, spans: Sequence[Span]) -> None:
        self.histories = histories
        self.spans = spans
        self.calls: list[int] = []
        self.through: dict[int, int] = {}
        """Nodes of their histories, each with a call whose history leads through it."""

    def add(self, call: int) -> None:
        insort(self.calls, call)
        node = self._head(call)
        while node not in self.through:
            self.through[node] = call
            if node == ROOT:
                return
            node = self.histories.parent[node]
        self.through[node] = call

    def before(self, head: int) -> int | None:
        if not self.calls:
            return None
        shared = head
        while shared not in self.through:
            shared = self.histories.parent[shared]
        candidates: list[int] = []
        for call in islice(reversed(self.calls), _SCANNED):
            if self.histories.leads_to(shared, self._head(call)):
                candidates.append(call)
                if len(candidates) == _LOOKED_AT or self._head(candidates[0]) == shared:
                    break
        if not candidates:
            return self.through[shared]
        return candidates[0] if len(candidates) == 1 else self._closest(shared, head, candidates)

    def _closest(self, shared: int, head: int, candidates: list[int]) -> int:
        own = Counter(self._tail(shared, head))
        return max(candidates, key=lambda call: (sum((own & Counter(self._tail(shared, self._head(call)))).values()), call))

    def _tail(self, shared: int, head: int) -> list[str]:
        return [self.histories.item[node] for node in self.histories.after(shared, head, _SAMPLE)]

    def _head(self, call: int) -> int:
        head = self.spans[call].head
        return ROOT if head is None else head
