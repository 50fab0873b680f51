"""A copy of a tree without credentials, for what leaves this machine's own store."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from optree.errors import StoreError
from optree.nodes import OperationNode, Pool, SessionNode, TurnNode
from optree.tree import Tree
from optree.values import TypedDecoder, encode, raw, redact

Node = TypeVar("Node", SessionNode, TurnNode, OperationNode)
_BLOB = re.compile(rb'"\$blob":"([^"]+)"')
_session: TypedDecoder[SessionNode] = TypedDecoder(SessionNode)
_turn: TypedDecoder[TurnNode] = TypedDecoder(TurnNode)
_op: TypedDecoder[OperationNode] = TypedDecoder(OperationNode)


def redacted(tree: Tree) -> tuple[Tree, bool]:
    """Return a tree with credentials replaced as `optree.values.redact` does, and whether there were any; the tree given stays as it is.

    Raises `StoreError` if it holds a value that cannot be looked through.
    """
    copying = _Copying()
    try:
        root = copying.session(tree.session)
        pool = copying.pool(tree.pool)
    except (msgspec.DecodeError, RecursionError) as error:
        said = f"session {tree.session.origin_txn_id} holds a value that cannot be looked through for credentials ({error})"
        raise StoreError(f"{said}: --verbatim writes it as it is") from error
    return Tree(root, pool), copying.changed


class _Copying:
    """Copies node by node, so that depth does not matter."""

    def __init__(self) -> None:
        self.changed = False
        self._named: set[str] = set()
        """Blobs that payloads name once they are redacted; one under a secret's name is not among them."""

    def session(self, root: SessionNode) -> SessionNode:
        """Copy a session with all below it."""
        made = self._node(replace(root, turns=[]), _session)
        pending = [(root, made)]
        while pending:
            old, new = pending.pop()
            for turn in old.turns:
                new.turns.append(copied := self._node(replace(turn, ops=[]), _turn))
                for op in turn.ops:
                    copied.ops.append(mine := self._node(replace(op, child_session=None), _op))
                    self._note(mine)
                    if op.child_session is not None:
                        mine.child_session = self._node(replace(op.child_session, turns=[]), _session)
                        pending.append((op.child_session, mine.child_session))
        return made

    def pool(self, pool: Pool) -> Pool:
        """Copy what payloads refer to."""
        self._named.update(blob for _, blob in pool.links.values())
        blobs = {name: self._value(value) for name, value in pool.blobs.items() if name in self._named}
        return Pool(blobs, dict(pool.links))

    def _node(self, bare: Node, decode: TypedDecoder[Node]) -> Node:
        """Return a node without those below it, redacted; as it is where there is nothing to replace."""
        before: Any = msgspec.json.decode(msgspec.json.encode(bare))
        after = redact(before)
        if after == before:
            return bare
        self.changed = True
        return decode(encode(after))

    def _value(self, value: Raw) -> Raw:
        before: Any = msgspec.json.decode(value)
        after = redact(before)
        if after == before:
            return value
        self.changed = True
        return raw(after)

    def _note(self, op: OperationNode) -> None:
        for part in (op.request, op.response):
            if part is not None:
                self._named.update(found.decode() for found in _BLOB.findall(bytes(part.payload)))
