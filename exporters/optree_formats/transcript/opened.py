"""Ops that are open, found by what they are looked for by: in the order in which they began, and each without a search."""

from __future__ import annotations

from collections.abc import Hashable

from optree import OperationNode


class Opened:
    """Ops under keys; an op may stand under several. A key without ops is not kept."""

    def __init__(self) -> None:
        self._ops: dict[Hashable, dict[str, OperationNode]] = {}

    def add(self, op: OperationNode, *keys: Hashable) -> None:
        """Put an op under keys, behind those that are there."""
        for key in keys:
            self._ops.setdefault(key, {})[op.path] = op

    def drop(self, op: OperationNode, *keys: Hashable) -> None:
        """Take an op away from keys, where it stands under them."""
        for key in keys:
            there = self._ops.get(key, {})
            there.pop(op.path, None)
            if not there:
                self._ops.pop(key, None)

    def first(self, key: Hashable) -> OperationNode | None:
        """Return the op under a key that began first."""
        return next(iter(self._ops.get(key, {}).values()), None)

    def last(self, key: Hashable) -> OperationNode | None:
        """Return the op under a key that began last."""
        return next(reversed(self._ops.get(key, {}).values()), None)
