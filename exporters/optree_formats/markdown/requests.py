"""What ops send, in a log: each message of a history once, and each long member once; later requests name the op that had it before."""

from __future__ import annotations

from typing import Any

from optree import OperationNode
from optree.exporting import Pool, decode, is_object
from optree_formats.markdown.captured import readable

_HISTORY = {"$history", "count", "bytes"}


class Requests:
    """Remembers what of a pool a log has said."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._links: dict[str, tuple[str, int]] = {}
        """Path of the op, and place in its history, by link."""
        self._blobs: dict[tuple[str, str], str] = {}
        """Path of the op by member and blob."""

    def told(self, op: OperationNode) -> dict[str, Any]:
        """Return the fields that tell of an op's request; none if it has none.

        ``request`` holds its members, ``same_as`` those that stand in another op's, ``messages`` its history from where ``continues`` ends.
        """
        if op.request is None:
            return {}
        payload: Any = readable(decode(op.request.payload))
        if not is_object(payload):
            return {"request": payload}
        members: dict[str, Any] = {}
        same: dict[str, str] = {}
        history: dict[str, Any] = {}
        for key, value in payload.items():
            if key == "messages" and self._is_history(value):
                history = self._history(op.path, value["$history"])
            elif is_object(value) and value.keys() == {"$blob"} and value["$blob"] in self.pool.blobs:
                blob = value["$blob"]
                if (key, blob) in self._blobs:
                    same[key] = self._blobs[key, blob]
                else:
                    self._blobs[key, blob] = op.path
                    members[key] = decode(self.pool.blobs[blob])
            else:
                members[key] = value
        found: dict[str, Any] = {"request": members} if members or not (history or same) else {}
        order = [key for key in payload if key in members or key in same]
        if same:
            found["same_as"] = same
        if same and order != [*members, *same]:
            found["order"] = order
        return {**found, **history}

    def _is_history(self, value: Any) -> bool:
        return is_object(value) and value.keys() == _HISTORY and (value["$history"] in self.pool.links or not value["$history"])

    def _history(self, path: str, head: str) -> dict[str, Any]:
        """Return a history's messages from where another's ends that the log has already."""
        new: list[tuple[str, str]] = []
        link = head
        while link and link in self.pool.links and link not in self._links:
            before, blob = self.pool.links[link]
            new.append((link, blob))
            link = before
        new.reverse()
        known = self._links.get(link)
        start = known[1] if known else 0
        for number, (one, _) in enumerate(new, start + 1):
            self._links[one] = (path, number)
        messages = [decode(self.pool.blobs.get(blob)) for _, blob in new]
        return {**({"continues": {"path": known[0], "count": known[1]}} if known else {}), "messages": messages}
