"""A copy of a tree without credentials, for what is shown, and for what leaves this machine's own store."""

from __future__ import annotations

import re
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import fields, replace

from optree._nodes import Message, OperationNode, Pool, Reasoning, SessionNode, TurnNode
from optree._tree.fold import Tree
from optree._values import raw
from optree.errors import StoreError
from optree.redaction import redact, redact_pieces

S = TypeVar("S", bound=Struct)
_BLOB = re.compile(rb'"\$blob":"([^"]+)"')
_KEPT = frozenset({"path", "parent_op", "op_id", "trace_id", "origin_txn_id", "parent_txn_id", "turns", "ops", "child_session"})
"""Fields that are not looked at: what optree itself made up, and the nodes below, which are copied one by one."""


def redacted(tree: Tree) -> tuple[Tree, bool]:
    """Return a tree with credentials replaced as `optree.redaction.redact` does, and whether there were any; the tree given stays as it is.

    Ids, paths, times and figures stay. Raises `StoreError` if it holds a value that cannot be looked through.
    """
    copying = _Copying()
    try:
        root = copying.session(tree.session)
        pool = copying.pool(tree.pool)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"session {tree.session.origin_txn_id} holds a value that cannot be looked through for credentials ({error})"
        raise StoreError(f"{message}: --verbatim writes it as it is") from error
    return Tree(root, pool), copying.changed


def outline(root: SessionNode) -> SessionNode:
    """Return a session and all below it with credentials replaced in names, texts, errors, reasoning, and the attributes of turns.

    JSON that was recorded as such (requests, responses, messages, details…) is as it was: code that shows some of it redacts that.
    """
    return _Copying(contents=False).session(root)


@cache
def _looked_at(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields of a node or entry that may hold text of the program or of a user."""
    names = (field.name for field in fields(kind) if field.name not in _KEPT and _holds_text(field.type))
    return tuple(name for name in names if name != "id" or kind is Message)


def _holds_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return False
    return kind not in (float, int, bool, NoneType, UnsetType, ...) if not get_args(kind) else any(map(_holds_text, get_args(kind)))


class _Copying:
    """Copies node by node, so that depth does not matter; entries and values in which nothing is replaced are shared."""

    def __init__(self, *, contents: bool = True) -> None:
        self.changed = False
        self._contents = contents
        self._named: set[str] = set()
        """Blobs that payloads name once they are redacted; one under a secret's name is not among them."""

    def session(self, root: SessionNode) -> SessionNode:
        """Copy a session with all below it."""
        root_copy = self._fields(replace(root, turns=[]))
        pending = [(root, root_copy)]
        while pending:
            old, new = pending.pop()
            for turn in old.turns:
                new.turns.append(copied := self._fields(replace(turn, ops=[])))
                for op in turn.ops:
                    copied.ops.append(mine := self._fields(replace(op)))
                    self._note(mine)
                    if op.child_session is not None:
                        mine.child_session = self._fields(replace(op.child_session, turns=[]))
                        pending.append((op.child_session, mine.child_session))
        return root_copy

    def pool(self, pool: Pool) -> Pool:
        """Copy what payloads refer to."""
        self._named.update(blob for _, blob in pool.links.values())
        return Pool({name: self._raw(value) for name, value in pool.blobs.items() if name in self._named}, dict(pool.links))

    def _fields(self, node: S) -> S:
        """Return a node or entry with what is secret replaced in its fields; the same one if nothing is."""
        changes: dict[str, Any] = {}
        for name in _looked_at(type(node)):
            before = getattr(node, name)
            if before is not None and before is not UNSET:
                after = self._field(before) if type(before) is not Raw or self._contents or type(node) is TurnNode else before
                if after is not before:
                    changes[name] = after
        return replace(node, **changes) if changes else node

    def _field(self, value: Any) -> Any:
        if type(value) is Raw:
            return self._raw(value)
        if isinstance(value, Reasoning):
            return self._reasoning(value)
        if isinstance(value, Struct):
            return self._fields(value)
        return self._value(value) if isinstance(value, (str, dict)) else self._items(value)

    def _items(self, items: list[Any] | tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
        copies = [self._field(item) for item in items]
        same = all(new is old for new, old in zip(copies, items, strict=True))
        return items if same else type(items)(copies)

    def _reasoning(self, reasoning: Reasoning) -> Reasoning:
        """Replace also what lies over several chunks."""
        before = [chunk.text for chunk in reasoning.chunks]
        after = redact_pieces(before)
        final = None if reasoning.final is None else self._value(reasoning.final)
        if after == before and final == reasoning.final:
            return reasoning
        self.changed = True
        chunks = (replace(chunk, text=text) for chunk, text in zip(reasoning.chunks, after, strict=True))
        return Reasoning(tuple(chunks), final)

    def _raw(self, value: Raw) -> Raw:
        before: Any = msgspec.json.decode(value)
        after = self._value(before)
        if b'"base64"' in bytes(value):
            from optree._providers.messages import kept_hidden  # not before it is needed: this module is imported with optree

            after = kept_hidden(after, self._value)
        return value if after is before else raw(after)

    def _value(self, value: Any) -> Any:
        after = redact(value)
        if after == value:
            return value
        self.changed = True
        return after

    def _note(self, op: OperationNode) -> None:
        for part in (op.request, op.response):
            if part is not None:
                self._named.update(blob.decode() for blob in _BLOB.findall(bytes(part.payload)))
