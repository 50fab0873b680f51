"""A tree that is read from elsewhere: its records are folded, and what is long or repeated in its requests is stored once."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, UnsetType

from optree import _clock as clock
from optree._builder import SessionTreeBuilder
from optree._builder.core import Core
from optree._nodes import Payload
from optree._records import Requested
from optree._tree import Fold, walk_sessions
from optree._tree.path import parent_label


class RecordedTree(Fold):
    """Folds the records of a session in another format, as `SessionTreeBuilder` would have made them while it ran.

    ```python
    from optree.exporting import OpBegin, RecordedTree, SessionBegin

    tree = RecordedTree("imported-1")
    tree.apply(SessionBegin("", 1_700_000_000_000.0, "assistant", "assistant"))
    tree.apply(OpBegin("1.1", 1_700_000_000_500.0, "llm", "gpt-4o"))
    tree.apply(tree.request("1.1", 1_700_000_000_500.0, {"temperature": 0}, [{"role": "user", "content": "Hi"}], kind="llm"))
    tree.finish().session.turns[0].ops[0].name  # 'gpt-4o'
    ```
    """

    def __init__(self, txn: str) -> None:
        super().__init__(txn)
        self._core = Core(txn, None, now=clock.wall, pool=self.pool)

    def request(self, path: str, ts: float, members: object, messages: list[Any] | None = None, *, kind: str = "tool") -> Requested:
        """Return the record of what an op sent; its history and its long members are in the pool by then.

        Args:
            path: The op's.
            ts: When, in epoch milliseconds.
            members: What was sent, without the history; what is no mapping becomes its member ``value``.
            messages: The history of a model's call.
            kind: ``llm``, or ``tool`` for all else.
        """
        _, payload = self._core.pooled(self._core.request(kind, messages, members))
        return Requested(path, ts, payload)

    def response(self, value: object) -> Payload:
        """Return an answer as a record holds it, cut where it is too long."""
        return self._core.response("", value)

    def attributes(self, block: object) -> Raw | UnsetType:
        """Return attributes as a record holds them; a value that is not a mapping becomes their member ``value``."""
        return self._core.attributes(block)

    def builders(self) -> dict[str, SessionTreeBuilder]:
        """Return builders that go on with the sessions that the tree has, once it is finished, by path; nothing is recorded by that."""
        builders: dict[str, SessionTreeBuilder] = {}
        for session in walk_sessions(self.sessions[""]):
            above = builders[parent_label(parent_label(session.path))] if session.path else None
            builders[session.path] = SessionTreeBuilder.over(self._core, session, above)
        return builders
