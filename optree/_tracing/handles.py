"""`Session`: what traced code holds while a session is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optree._builder import SessionTreeBuilder
from optree._builder.guard import FAULTS, fault, guarded
from optree._nodes import PIECE_OF_TEXT, OperationNode, SessionNode, Totals, lacks_content
from optree._tree import Tree, walk_ops
from optree._values import decode, is_list, is_object


class Session:
    """An open session, as `with optree.session(…) as session` gives it. No method raises.

    ```python
    import optree

    with optree.session("assistant") as session:
        messages = session.history() or [{"role": "system", "content": "You are brief."}]
        with optree.turn(user="Hello"):
            session.message({"role": "user", "content": "Hello"})
    ```
    """

    __slots__ = ("builder", "earlier", "resumed")

    def __init__(self, builder: SessionTreeBuilder, *, resumed: bool = False, earlier: Sequence[SessionNode] = ()) -> None:
        self.builder: SessionTreeBuilder = builder
        """What builds this session's part of the tree, for what the handle has no method for."""
        self.resumed: bool = resumed
        """True if this session, or the interrupted one that it repeats, was loaded from disk."""
        self.earlier: Sequence[SessionNode] = earlier
        """The interrupted runs of this agent that this one goes on with, oldest first."""

    @property
    def txn(self) -> str:
        """The root session's txn: what `optree load` takes."""
        return self.builder.core.txn

    @property
    def path(self) -> str:
        """The path of the op that this session is in; empty for the root."""
        return self.builder.path

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.builder.node.agent_id

    @property
    def running(self) -> bool:
        """True until the session ends."""
        return self.builder.node.ended_at is None

    @property
    def tree(self) -> Tree:
        """The live tree from this session down; it goes on growing."""
        try:
            return self.builder.tree
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            fault(self, error)
        return self.builder.whole

    @property
    def totals(self) -> Totals:
        """Tokens, money and calls of this session and all below it, as of now."""
        return self.builder.node.totals

    @guarded
    def message(
        self, message: Any, *, message_id: str | None = None, substance: str | None = None, cause: str | Sequence[str] = ()
    ) -> None:
        """Append a message to the transcript; it survives the end of the process once this returns.

        Args:
            message: The message as the provider takes it, such as ``{"role": "user", "content": "Hello"}``; a plain text is the user's.
            message_id: Its id, unique in the whole tree, if others are to refer to it.
            substance: The id of the message whose content this one repeats.
            cause: The ids of the messages that brought this one about; not beside *substance*.
        """
        self.builder.append_message(message, message_id=message_id, substance=substance, cause=cause)

    @guarded
    def title(self, title: str) -> None:
        """Set the session's title, shown by `optree ls` and `optree tree`; the last one counts."""
        self.builder.set_title(title)

    @guarded
    def status(self, status: str) -> None:
        """Set what the session is at just now, in a few words for people; the last one counts."""
        self.builder.set_title(status=status)

    def history(self) -> list[Any]:
        """Return the transcript so far, ready to be sent to a provider.

        In a resumed run it begins with what was recorded before. Where nothing was given to `message`, it is the messages of the last
        LLM call, with its answer. What was recorded with ``content=False`` is not among them.

        A tool call whose result was lost gets a result that says so, since providers refuse it otherwise.

        Returns:
            New messages, oldest first; empty for a session that has none.
        """
        try:
            from optree._providers.messages import answered  # not before it is needed: this module is imported with optree

            runs = [*self.earlier, self.builder.node]
            messages = [decode(entry.body) for node in runs for entry in node.messages if entry.role != PIECE_OF_TEXT]
            for node in reversed(runs):
                messages = messages or self._sent(node)
            if lacks_content(self.builder.chain[-1]):
                from optree._builder.content import with_content

                messages = with_content(messages)
            return answered(messages)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            fault(self, error)
        return []

    def _sent(self, node: SessionNode) -> list[Any]:
        calls = [op for session, _, op in walk_ops(node) if session is node and op.kind == "llm" and op.request is not None]
        if not calls:
            return []
        request: dict[str, Any] = decode(calls[-1].request.payload) if calls[-1].request else {}
        from optree._providers.messages import HISTORY_KEYS  # as in `history`

        sent = self.builder.core.pool.resolve(next((request[key] for key in HISTORY_KEYS if request.get(key) is not None), None))
        messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in (sent if is_list(sent) else [sent])]
        return [*filter(is_object, messages), *_answer(calls[-1])]


def _answer(op: OperationNode) -> list[Any]:
    response = decode(op.response.payload) if op.response is not None else None
    if isinstance(response, str):
        return [{"role": "assistant", "content": response}]
    from optree._providers.messages import answers  # as in `history`

    held = [message for answer in answers(response)[:1] for message in answer.messages]
    return [message for message in held if is_object(message) and ("role" in message or "type" in message)]


def interrupted(parent: Session, agent: str) -> list[SessionNode]:
    """Return the session of this agent under *parent* that a crash broke off and that none goes on with yet, after those it continues.

    Of several, it is the first of the last turn that has one: sub-agents that ran at once get theirs in the order they are called.
    """
    if not parent.resumed:
        return []
    turns = [turn for node in [*parent.earlier, parent.builder.node] for turn in node.turns]
    children = {
        child.path: (turn, child)
        for turn in turns
        for op in turn.ops
        if (child := op.child_session) is not None and child.agent_id == agent
    }
    before = {path: child.attributes.get("continues") for path, (_, child) in children.items()}
    open_ends = [path for path, (_, child) in children.items() if child.status == "interrupted" and path not in before.values()]
    if not open_ends:
        return []
    last = children[open_ends[-1]][0]
    path: str | None = next(path for path in open_ends if children[path][0] is last)
    sessions: list[SessionNode] = []
    while path in children:
        sessions.append(children[path][1])
        path = before[path]
    return sessions[::-1]
