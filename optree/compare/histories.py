"""Message histories as one tree of messages: two calls share a prefix exactly as far as they share a branch.

A pool chains messages to histories already; here its links, and lists that were not pooled, become numbered nodes without what a provider's
cache does not look at. Each link is looked at once, so N calls with growing histories cost O(N).
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from optree._ids import content_id
from optree._nodes import OperationNode, Pool
from optree._values import decode, is_list, is_object

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
    return max((_LONGER[lifetime] for lifetime in _ASKED.findall(body)), default=0.0)


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


ROOT = 0
"""The node of an empty history."""
_DATA = re.compile(
    rb'(?:data:[\w.+-]{1,80}/[\w.+-]{1,80}[^,"\s]{0,160};base64,|"(?:data|b64_json|file_data|\$bytes)":\s*")[\w+/=%\\-]{64,}'
)
"""Data URLs, and members that hold base64: Anthropic's and Gemini's `data`, OpenAI's `file_data`, the mark of recorded bytes."""
_MARKER = "cache_control"
"""Anthropic's marks say where a cache entry may end; they move along with the conversation and are no content."""


class Histories:
    """The tree. A history is its last message's node; *depth* counts messages, *size* bytes of their JSON, up to and with a node.

    *text* counts bytes without data in base64; *asked* is the longest lifetime of a cache entry that a message asks for, in seconds.
    *content* is given a message's JSON and returns that of what counts of it.
    """

    def __init__(self, content: Callable[[bytes], bytes] | None = None) -> None:
        self._content = content or bare
        self.parent = [ROOT]
        self.depth = [0]
        self.size = [0]
        self.text = [0]
        self.asked = [0.0]
        self.item = [""]
        """Content id of each node's message."""
        self.bodies: dict[str, bytes] = {}
        """JSON of messages by content id."""
        self._nodes: dict[tuple[int, str], int] = {}
        self._links: dict[str, int] = {"": ROOT}
        self._items: dict[str, str] = {}
        self._known: dict[str, tuple[int, int, float]] = {}
        self._enter: list[int] = []
        self._count: list[int] = []

    def linked(self, link: str, pool: Pool) -> int:
        """Return the node of a pooled history. What comes before a link that is lost is one empty message."""
        chain: list[str] = []
        seen: set[str] = set()
        while link not in self._links and link in pool.links and link not in seen:
            seen.add(link)
            chain.append(link)
            link = pool.links[link][0]
        node = self._links[link] if link in self._links else self._add(ROOT, self._know(f"lost {link}", b"", b""))
        for chained in reversed(chain):
            blob = pool.links[chained][1]
            if blob not in self._items:
                stored = bytes(pool.blobs[blob]) if blob in pool.blobs else b""
                body = self._content(stored)
                self._items[blob] = f"lost {blob}" if not body else blob if body is stored else content_id(body)
                self._know(self._items[blob], body, stored)
            node = self._links[chained] = self._add(node, self._items[blob])
        return node

    def listed(self, messages: list[Any]) -> int:
        """Return the node of a history that is in its place."""
        node = ROOT
        for message in messages:
            written = msgspec.json.encode(message)
            body = self._content(written)
            node = self._add(node, self._know(content_id(body), body, written))
        return node

    def _know(self, item: str, body: bytes, stored: bytes) -> str:
        """Keep what is to know of a message, once."""
        if item not in self._known:
            self._known[item] = (len(body), text_bytes(body), asked_in(stored))
            self.bodies[item] = body
        return item

    def _add(self, parent: int, item: str) -> int:
        node = self._nodes.get((parent, item))
        if node is None:
            node = self._nodes[parent, item] = len(self.parent)
            self.parent.append(parent)
            self.depth.append(self.depth[parent] + 1)
            size, text, asked = self._known[item]
            self.size.append(self.size[parent] + size)
            self.text.append(self.text[parent] + text)
            self.asked.append(max(self.asked[parent], asked))
            self.item.append(item)
        return node

    def number(self) -> None:
        """Number the nodes so that `leads_to` takes no walk; once, after all histories are in."""
        self._count = [1] * len(self.parent)
        for node in range(len(self.parent) - 1, 0, -1):  # a parent is always older than what follows it
            self._count[self.parent[node]] += self._count[node]
        self._enter = [0] * len(self.parent)
        free = [1] * len(self.parent)
        for node in range(1, len(self.parent)):
            above = self.parent[node]
            self._enter[node] = free[above]
            free[above] += self._count[node]
            free[node] = self._enter[node] + 1

    def leads_to(self, node: int, head: int) -> bool:
        """Tell whether a history up to *node* is a prefix of that up to *head*; `number` comes first."""
        return self._enter[node] <= self._enter[head] < self._enter[node] + self._count[node]

    def shared(self, a: int, b: int) -> int:
        """Return the node where two histories part, in a time that grows with the messages that they do not share."""
        while a != b:
            if self.depth[a] >= self.depth[b]:
                a = self.parent[a]
            else:
                b = self.parent[b]
        return a

    def after(self, node: int, head: int, most: int | None = None) -> list[int]:
        """Return the nodes behind *node* up to *head*, oldest first; the *most* last ones of them."""
        result: list[int] = []
        while head != node and len(result) != most:
            result.append(head)
            head = self.parent[head]
        result.reverse()
        return result

    def message(self, node: int) -> Any:
        """Return a node's message; None for one that is lost or damaged."""
        return decoded(self.bodies.get(self.item[node]))


def bare(body: bytes) -> bytes:
    """Return a value's JSON without cache marks; damaged JSON as it is."""
    if _MARKER.encode() not in body:
        return body
    try:
        return msgspec.json.encode(_unmarked(msgspec.json.decode(body)))
    except ValueError:  # msgspec's DecodeError is one
        return body


def text_bytes(body: bytes) -> int:
    """Return how many bytes of JSON are not data in base64: an image's tokens do not depend on its bytes."""
    if _DATA.search(body) is None:
        return len(body)
    return len(body) - sum(len(match[0]) for match in _DATA.finditer(body))


def decoded(body: bytes | msgspec.Raw | None) -> Any:
    """Return the value behind JSON; None if there is none, or it is damaged."""
    try:
        return decode(body) if body else None
    except ValueError:
        return None


def _unmarked(value: Any) -> Any:
    if is_object(value):
        return {key: _unmarked(item) for key, item in value.items() if key != _MARKER}
    return [_unmarked(item) for item in value] if is_list(value) else value


_LOOKED_AT = 4
"""Calls with the same prefix of which the one that shares most is looked for."""
_SCANNED = 512
_SAMPLE = 200
"""Messages from the end that are counted to see what two calls share."""


class CallSpan(Struct):
    """When a call ran, in epoch ms, and its history's node. *counts* is false for one that reached no provider."""

    agent: str
    started_at: float
    ended_at: float | None
    head: int | None
    counts: bool = True


def previous_calls(spans: Sequence[CallSpan], histories: Histories) -> list[int | None]:
    """Return for each call the position of the one that it goes on from, None for a first one; *spans* are in the order of their begin."""
    result: list[int | None] = []
    known: defaultdict[str, _Ended] = defaultdict(lambda: _Ended(histories, spans))
    running: list[tuple[float, int]] = []
    for at, span in enumerate(spans):
        while running and running[0][0] <= span.started_at:
            ended = heappop(running)[1]
            known[spans[ended].agent].add(ended)
        result.append(None if span.head is None else known[span.agent].before(span.head))
        if span.head is not None and span.counts:
            heappush(running, (inf if span.ended_at is None else max(span.ended_at, span.started_at), at))
    return result


class _Ended:
    """Calls of one agent that have ended."""

    def __init__(self, histories: Histories, spans: Sequence[CallSpan]) -> None:
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
