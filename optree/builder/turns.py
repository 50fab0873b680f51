"""The handle of an open turn."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from optree.nodes import Status, TurnNode

if TYPE_CHECKING:
    from optree.builder.session_tree import SessionTreeBuilder


class Turn:
    """An open turn. Its ops get their numbers here."""

    __slots__ = ("_counter", "_epoch", "builder", "implicit", "node", "path")

    def __init__(self, builder: SessionTreeBuilder, node: TurnNode, first_op: int, *, implicit: bool = False) -> None:
        self.builder = builder
        self.node = node
        self.path = node.path
        self.implicit = implicit
        """True for a turn that was opened for an op, since none was open."""
        self._counter = count(first_op)
        self._epoch = builder.core.epoch

    def next_op(self) -> int:
        """Return the number of the next op; in a forked child numbers come from a range of its own."""
        core = self.builder.core
        if self._epoch != core.epoch:
            self._epoch = core.epoch
            self._counter = count(core.base + 1)
        return next(self._counter)

    def assistant(self, content: object) -> None:
        """Set what the assistant said in this turn, before its tool calls or at the end."""
        self.builder.set_assistant(self, content)

    def end(self, status: Status = "ok", error: str | None = None) -> None:
        """End the turn; the second call does nothing."""
        self.builder.end_turn(self, status, error)
