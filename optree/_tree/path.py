"""Path labels: where a node stands, from the indices of the tree alone.

``1.2`` is op 2 of turn 1; ``1.2.3.1`` is, in that op's child session, op 1 of turn 3. Turn 0 is the system turn, ops count
from 1. An op has an even number of parts, a turn an odd one; the root session has the empty path, a child session that of its op.
Paths are absolute, given when a node begins, and never recomputed.
"""

from __future__ import annotations

import re

from msgspec import Struct

from optree.errors import PathError

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class Path(Struct, frozen=True):
    """Where a node stands: the numbers of turns and operations from the root session down, in turns. `str` gives the text back.

    ``1.2`` is operation 2 of turn 1; ``1.2.3.1`` is, in that operation's child session, operation 1 of turn 3.

    ```python
    from optree import Path

    path = Path.parse("1.2.3.1")
    print(path.is_op, path.depth, path.parent)  # True 1 1.2.3
    ```
    """

    parts: tuple[int, ...]
    """The numbers: turn, operation, turn, operation…"""

    @classmethod
    def parse(cls, label: str) -> Path:
        """Return the path that a text stands for; the empty text is the root session.

        Raises:
            PathError: The text is no path.
        """
        if not label:
            return cls(())
        pieces = label.split(".")
        if not all(_NUMBER.fullmatch(piece) for piece in pieces):
            raise PathError(f"{label[:80]!r} is no path: write numbers joined by dots, as in 1.2 or 1.2.3.1")
        path = cls(tuple(map(int, pieces)))
        if 0 in path.parts[1::2]:
            raise PathError(f"{label!r} is no path: ops count from 1")
        return path

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))

    @property
    def is_op(self) -> bool:
        """True for an operation, and for the child session inside it."""
        return bool(self.parts) and len(self.parts) % 2 == 0

    @property
    def is_turn(self) -> bool:
        """True for a turn."""
        return len(self.parts) % 2 == 1

    @property
    def parent(self) -> Path:
        """The path of the node above: of an operation its turn, of a turn its session; the root is its own parent."""
        return Path(self.parts[:-1])

    @property
    def depth(self) -> int:
        """How many sessions lie above the node's own: 0 in the root session."""
        return max(0, (len(self.parts) - 1) // 2)


def parent_label(label: str) -> str:
    """Return the label of the node above, ``""`` for a turn of the root session."""
    return label.rpartition(".")[0]


def last_index(label: str) -> int:
    """Return a node's own index: the turn's in its session, the op's in its turn."""
    return int(label.rpartition(".")[2])
