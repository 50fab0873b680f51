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
    """A decoded path; `str` gives the label back."""

    parts: tuple[int, ...]

    @classmethod
    def parse(cls, label: str) -> Path:
        """Decode a label; raises `PathError` for text that is none (empty text is the root session)."""
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
        """True for an op (and for the child session inside it)."""
        return bool(self.parts) and len(self.parts) % 2 == 0

    @property
    def is_turn(self) -> bool:
        """True for a turn."""
        return len(self.parts) % 2 == 1

    @property
    def parent(self) -> Path:
        """The node above: the turn of an op, the session (its op's path) of a turn; the root is its own parent."""
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
