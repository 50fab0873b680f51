"""A session's nodes by their paths, wherever the session is: live in this process, or loaded from disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from optree import OperationNode, SessionNode, Tree, TurnNode
from optree.exporting import Pool


class Key(Struct, frozen=True, gc=False):
    """A node: its kind (``op``, ``turn``, ``session``) and its path. A child session has its op's path."""

    kind: str
    path: str

    def __str__(self) -> str:
        """Return it as it stands in the file of what is delivered."""
        return f"{self.path}/session" if self.kind == "session" else self.path


ROOT = Key("session", "")


class View(Protocol):
    """What the spans of a session are made from."""

    txn: str

    @property
    def pool(self) -> Pool:
        """What requests refer to."""
        ...

    def settle(self) -> None:
        """Bring to the nodes what is on its way."""
        ...

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        ...

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        ...

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        ...


class SavedView:
    """The nodes of a loaded tree."""

    def __init__(self, tree: Tree) -> None:
        self.txn = tree.session.origin_txn_id
        self.pool = tree.pool
        self._sessions: dict[str, SessionNode] = {}
        self._turns: dict[str, TurnNode] = {}
        self._ops: dict[str, OperationNode] = {}
        for key, node in nodes(tree.session):
            if isinstance(node, SessionNode):
                self._sessions[key.path] = node
            elif isinstance(node, TurnNode):
                self._turns[key.path] = node
            else:
                self._ops[key.path] = node

    def settle(self) -> None:
        """Do nothing: it is all there."""

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        return self._sessions.get(path)

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        return self._turns.get(path)

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        return self._ops.get(path)


class Resumed:
    """A session that was loaded and goes on: its nodes of before, then those of this process."""

    def __init__(self, live: View, root: SessionNode) -> None:
        self.txn = live.txn
        self._live = live
        self._before = SavedView(Tree(root, live.pool))

    @property
    def pool(self) -> Pool:
        """What requests refer to."""
        return self._live.pool

    def settle(self) -> None:
        """Bring to the nodes what is on its way."""
        self._live.settle()

    def session(self, path: str) -> SessionNode | None:
        """Return a session by its path."""
        return self._before.session(path) or self._live.session(path)

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        return self._before.turn(path) or self._live.turn(path)

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path."""
        return self._before.op(path) or self._live.op(path)


def nodes(root: SessionNode) -> Iterator[tuple[Key, SessionNode | TurnNode | OperationNode]]:
    """Yield all nodes of a tree, those inside before those around them."""
    found: list[tuple[Key, SessionNode | TurnNode | OperationNode]] = []
    pending = [root]
    while pending:
        session = pending.pop()
        found.append((Key("session", session.path), session))
        for turn in session.turns:
            found.append((Key("turn", turn.path), turn))
            for op in turn.ops:
                found.append((Key("op", op.path), op))
                if op.child_session is not None:
                    pending.append(op.child_session)
    yield from reversed(found)
