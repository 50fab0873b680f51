"""Message histories as one tree of messages: two calls share a prefix exactly as far as they share a branch.

A pool chains messages to histories already; here its links, and lists that were not pooled, become numbered nodes without what a provider's
cache does not look at. Each link is looked at once, so N calls with growing histories cost O(N).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from optree.compare.lifetime import asked_in
from optree.ids import content_id
from optree.nodes import Pool
from optree.values import decode, is_list, is_object

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
        for one in reversed(chain):
            blob = pool.links[one][1]
            if blob not in self._items:
                stored = bytes(pool.blobs[blob]) if blob in pool.blobs else b""
                body = self._content(stored)
                self._items[blob] = f"lost {blob}" if not body else blob if body is stored else content_id(body)
                self._know(self._items[blob], body, stored)
            node = self._links[one] = self._add(node, self._items[blob])
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
        """Return the node where two histories part; takes as long as what they do not share."""
        while a != b:
            if self.depth[a] >= self.depth[b]:
                a = self.parent[a]
            else:
                b = self.parent[b]
        return a

    def after(self, node: int, head: int, most: int | None = None) -> list[int]:
        """Return the nodes behind *node* up to *head*, oldest first; the *most* last ones of them."""
        found: list[int] = []
        while head != node and len(found) != most:
            found.append(head)
            head = self.parent[head]
        found.reverse()
        return found

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
    """Return how many bytes of JSON are no data in base64: an image's tokens do not depend on them."""
    if _DATA.search(body) is None:
        return len(body)
    return len(body) - sum(len(found[0]) for found in _DATA.finditer(body))


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
