"""`Session`: what traced code holds while a session is open."""

from __future__ import annotations

from typing import Any

from optree.builder import SessionTreeBuilder
from optree.nodes import OperationNode, SessionNode, Totals
from optree.tree import Tree, walk_ops
from optree.values import decode, is_object

NO_RESULT = "[interrupted: the process ended before this call's result was recorded]"


class Session:
    """An open session: its names, its transcript, its totals. No method raises."""

    __slots__ = ("_earlier", "builder", "resumed")

    def __init__(self, builder: SessionTreeBuilder, *, resumed: bool = False, earlier: SessionNode | None = None) -> None:
        self.builder = builder
        self.resumed = resumed
        """True if this session, or the interrupted one that it repeats, was loaded from disk."""
        self._earlier = earlier

    @property
    def txn(self) -> str:
        """The root session's txn: what `optree load` takes."""
        return self.builder.txn

    @property
    def path(self) -> str:
        """The path of the op that this session is in; empty for the root."""
        return self.builder.path

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.builder.node.agent_id

    @property
    def tree(self) -> Tree:
        """The live tree from this session down; it goes on growing."""
        return self.builder.tree

    @property
    def totals(self) -> Totals:
        """Tokens, money and calls of this session and all below it, as of now."""
        return self.builder.node.totals

    def message(self, message: Any) -> None:
        """Append to the transcript, on disk before this returns: a message as the provider takes it; plain text is the user's."""
        self.builder.append_message(message)

    def title(self, title: str) -> None:
        """Set the session's title, for people."""
        self.builder.set_title(title)

    def status(self, status: str) -> None:
        """Set the latest status, for people."""
        self.builder.set_title(status=status)

    def history(self) -> list[Any]:
        """Return the transcript so far, ready to send to a provider; empty for a session that has none.

        In a resumed run it begins with what was recorded before. Where nothing was given to `message`, it is the history of the last
        LLM call, with its answer. A tool call whose result was lost gets one that says so, since providers refuse it otherwise.
        """
        own = [decode(entry.body) for entry in self.builder.node.messages]
        before = [decode(entry.body) for entry in self._earlier.messages] if self._earlier else []
        found = before + own
        if not found:
            found = self._sent(self.builder.node) or (self._sent(self._earlier) if self._earlier else [])
        return answered(found)

    def _sent(self, node: SessionNode) -> list[Any]:
        calls = [op for session, _, op in walk_ops(node) if session is node and op.kind == "llm" and op.request is not None]
        if not calls:
            return []
        request: dict[str, Any] = decode(calls[-1].request.payload) if calls[-1].request else {}
        messages: list[Any] = self.builder.core.pool.resolve(request.get("messages")) or []
        return [*messages, *_answer(calls[-1])]


def _answer(op: OperationNode) -> list[Any]:
    said = decode(op.response.payload) if op.response is not None else None
    if isinstance(said, str):
        return [{"role": "assistant", "content": said}]
    return [said] if is_object(said) and "role" in said else []


def answered(messages: list[Any]) -> list[Any]:
    """Return messages with a result for every tool call that has none, and without second results for one call."""
    results = {message["tool_call_id"] for message in messages if is_object(message) and "tool_call_id" in message}
    given: set[Any] = set()
    found: list[Any] = []
    for message in messages:
        if not is_object(message):
            found.append(message)
            continue
        call = message.get("tool_call_id")
        if call is not None and call in given:
            continue
        given.add(call)
        found.append(message)
        asked: list[Any] = message.get("tool_calls") or []
        for one in asked:
            identity: Any = one.get("id") if is_object(one) else None
            if identity is not None and identity not in results:
                found.append({"role": "tool", "tool_call_id": identity, "content": NO_RESULT})
    return found
