"""The handle of an open turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from optree._builder.guard import guarded
from optree._nodes import Status, TurnNode

if TYPE_CHECKING:
    from optree._builder.session_tree import SessionTreeBuilder


class Turn:
    """An open turn, as `with optree.turn(…) as turn` and `SessionTreeBuilder.begin_turn` give it. No method raises."""

    __slots__ = ("_counter", "_epoch", "builder", "implicit", "node", "path")

    def __init__(self, builder: SessionTreeBuilder, node: TurnNode, first_op: int, *, implicit: bool = False, epoch: int = -1) -> None:
        self.builder: SessionTreeBuilder = builder
        """What builds the turn's session."""
        self.node: TurnNode = node
        """The turn's node in the tree; it goes on growing."""
        self.path: str = node.path
        """The turn's path in the whole tree, such as ``2`` or ``1.3.1``."""
        self.implicit: bool = implicit
        """True for a turn that was opened for an op, since none was open."""
        self._counter: Iterator[int] = count(first_op)
        self._epoch = epoch if epoch >= 0 else builder.core.epoch

    def next_op(self) -> int:
        """Return the number of the next op; in a forked child numbers come from a range of its own."""
        core = self.builder.core
        if self._epoch != core.epoch:
            self._epoch = core.epoch
            self._counter = core.numbers_in(self.path)
        return next(self._counter)

    @guarded
    def assistant(self, content: object) -> None:
        """Set what the assistant said in this turn, before its tool calls or at the end; the last one counts.

        Without it, it is the text of the turn's last answer.
        """
        self.builder.set_assistant(self, content)

    @guarded
    def end(self, status: Status = "ok", error: str | None = None) -> None:
        """End the turn, and the operations still open in it. A second call does nothing. Blocks and decorators do this by themselves.

        Args:
            status: ``ok``, ``failed``, ``cancelled`` or ``interrupted``.
            error: What went wrong.
        """
        self.builder.end_turn(self, status, error)
