"""Records from events: the base of both ways back to a tree. The fold makes the tree, in whichever order they come."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree import Tree, clock
from optree.builder.core import Core
from optree.exporting import Fold, OpKind, Pool, Record, Requested, encode, is_object, pass_on


class Records:
    """Collects records for one tree."""

    def __init__(self, txn: str) -> None:
        self.txn = txn
        self._core = Core(txn, None, now=clock.wall, pool=Pool())
        self._fold = Fold(txn)

    def put(self, record: Record) -> None:
        """Take a record."""
        self._fold.apply(record)

    def request(self, path: str, ts: float, kind: OpKind, members: Any, messages: list[Any] | None) -> None:
        """Take what an op sent; histories and long members go to the pool."""
        if not is_object(members):
            members = {"value": members}
        new, payload = self._core.pooled(self._core.request("llm" if kind == "llm" else "tool", messages, members))
        self.put(new)
        self.put(Requested(path, ts, payload))

    def tree(self) -> Tree:
        """Return the tree."""
        return self._fold.finish()


def block(attributes: Any) -> Raw | UnsetType:
    """Return an attribute block; none for what is no map."""
    return raw(attributes) if is_object(attributes) and attributes else UNSET


def raw(value: Any) -> Raw:
    """Return a plain value as JSON, whole: texts were cut when they were recorded."""
    try:
        return Raw(msgspec.json.encode(value))
    except Exception as error:  # noqa: BLE001 - numbers that JSON cannot hold, of logs that others wrote
        pass_on(error)
        return Raw(encode(value))
