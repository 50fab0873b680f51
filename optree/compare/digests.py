"""Requests and responses in short: ids that two of them share if their content is the same, pooled or in its place."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from optree.compare.histories import ROOT, Histories, decoded
from optree.ids import content_id
from optree.messages import opened
from optree.nodes import Payload, Pool
from optree.values import decode, is_list, is_object


class Content(Protocol):
    """What counts as content of a message's JSON, and of an op's request and response, given with the op's kind."""

    def body(self, body: bytes) -> bytes:
        """Return what counts of a message."""
        ...

    def request(self, name: str, value: Any, kind: str) -> Any:
        """Return what counts of a member of a request."""
        ...

    def response(self, value: Any, kind: str) -> Any:
        """Return what counts of a response."""
        ...


class Digests:
    """Digests of one session's payloads. *histories* may be shared with another session: what both have is looked at once."""

    def __init__(self, pool: Pool, stable: Content, histories: Histories) -> None:
        self.pool, self.stable, self.histories = pool, stable, histories
        self._heads = {ROOT: ""}
        self._blobs: dict[tuple[str, str, str], str] = {}

    def members(self, payload: Payload | None, kind: str) -> dict[str, str]:
        """Return the content id of each member of a request, by name; of what is no object one member without a name."""
        if payload is None:
            return {}
        found = opened(decode(payload.payload))
        return {name: self._member(name, value, kind) for name, value in (found if is_object(found) else {"": found}).items()}

    def response(self, payload: Payload, kind: str) -> str:
        """Return the content id of a response."""
        return content_id(sorted_json(self.stable.response(opened(decode(payload.payload)), kind)))

    def history(self, value: Any) -> int | None:
        """Return the node of a pooled history; None for any other value."""
        head = value.get("$history") if is_object(value) else None
        return self.histories.linked(head, self.pool) if isinstance(head, str) else None

    def whole(self, name: str, value: Any, kind: str) -> Any:
        """Return what counts of a member, with what it refers to in its place; what only looks like a reference stays as it is."""
        try:
            found = self.pool.resolve(value)
        except (TypeError, AttributeError, ValueError):
            found = value
        return self.stable.request(name, found, kind)

    def _member(self, name: str, value: Any, kind: str) -> str:
        node = self.history(value)
        if node is not None:
            return f"history {self._chain(node)}"
        blob = value.get("$blob") if is_object(value) and len(value) == 1 else None
        if not isinstance(blob, str):
            return self._in_place(name, value, kind)
        key = (name, kind, blob)
        if key not in self._blobs:
            known = decoded(self.pool.blobs.get(blob))
            self._blobs[key] = f"lost {blob}" if known is None else self._in_place(name, known, kind)
        return self._blobs[key]

    def _in_place(self, name: str, value: Any, kind: str) -> str:
        if name == "messages" and is_list(value):
            return f"history {self._chain(self.histories.listed(value))}"
        return content_id(sorted_json(self.stable.request(name, value, kind)))

    def _chain(self, node: int) -> str:
        """Return the content id of a history: it does not depend on which history came first."""
        way: list[int] = []
        while node not in self._heads:
            way.append(node)
            node = self.histories.parent[node]
        head = self._heads[node]
        for one in reversed(way):
            head = self._heads[one] = content_id(head.encode(), self.histories.item[one].encode())
        return head


def sorted_json(value: Any) -> bytes:
    """Return a plain value as JSON, the same whatever the order of its members."""
    return msgspec.json.encode(value, order="sorted")
