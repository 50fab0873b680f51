"""What a session's builder does for an op that is given by its handle, its id or its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from optree import records as r
from optree.builder.entries import Put
from optree.builder.figures import AccountFigures
from optree.builder.guard import guarded
from optree.builder.handles import Op
from optree.builder.turns import Turn
from optree.nodes import Status
from optree.redaction import redact
from optree.tree import apply
from optree.tree.path import parent_label
from optree.values import text

if TYPE_CHECKING:
    from optree.builder.core import Core


class ByAddress:
    """The part of `SessionTreeBuilder` that finds ops. An op that is not known is reported, not raised."""

    core: Core

    @guarded
    def op(self, op: Op | str) -> Op | None:
        """Return an operation's handle by its id or path; None if this process did not record it."""
        return self._op(op)

    def _op(self, op: Op | str) -> Op | None:
        if type(op) is not str:
            return op if isinstance(op, Op) else None
        path = op.rpartition(":")[2]
        return self.core.ops.get(path) or self._handle_of_ended(path)

    def _handle_of_ended(self, path: str) -> Op | None:
        """Return a new handle for an op that has ended, for what comes late."""
        node = self.core.ended.get(path)
        builder = self.core.builders.get(parent_label(parent_label(path)))
        if node is None or builder is None:
            return None
        turn = next(turn for turn in builder.node.turns if turn.path == parent_label(path))
        handle = self.core.ops[path] = Op.of_ended(builder, Turn(builder, turn, 1), node)
        return handle

    @guarded
    def append_log(self, op: Op | str, message: str, severity: Any = "VRB", **more: Any) -> None:
        """Append a log line to an operation; see `Op.log`."""
        if (found := self._op(op)) is not None:
            found.log(message, severity, **more)
        else:
            self._unknown(op)

    @guarded
    def append_reasoning(self, op: Op | str, text: str) -> None:
        """Append a chunk of reasoning to an operation; see `Op.think`."""
        if (found := self._op(op)) is not None:
            found.think(text)
        else:
            self._unknown(op)

    @guarded
    def append_chunk(self, op: Op | str, text: str) -> None:
        """Append a chunk of the answer's text to an operation; see `Op.chunk`."""
        if (found := self._op(op)) is not None:
            found.chunk(text)
        else:
            self._unknown(op)

    @guarded
    def append_accounting(self, op: Op | str, usage: object = None, **figures: Unpack[AccountFigures]) -> None:
        """Append an accounting entry to an operation; see `Op.account`."""
        if (found := self._op(op)) is not None:
            found.account(usage, **figures)
        else:
            self._unknown(op)

    @guarded
    def set_op(self, op: Op | str, **attributes: Any) -> None:
        """Give an operation more attributes, merged into those that it has."""
        if (found := self._op(op)) is None:
            self._unknown(op)
            return
        record = r.OpSet(found.path, self.core.now_ms(), None, self.core.attributes(attributes))

        def change(put: Put) -> None:
            apply.set_op(found.bare, record)
            self._late(found)
            put(record)

        self.core.stream.step(change)

    @guarded
    def set_request(self, op: Op | str, payload: Mapping[str, Any], messages: list[Any] | None = None) -> None:
        """Set what an operation sends: *payload*, and the *messages* of an LLM call; see `Op.request`."""
        if (found := self._op(op)) is None:
            self._unknown(op)
            return
        encoded = self.core.request("llm" if found.bare.kind == "llm" else "tool", messages, payload)

        new = r.Pooled()

        def change(put: Put) -> None:
            try:
                _, request = self.core.pooled(encoded, new)
            finally:
                if new.blobs or new.links:
                    put(new)
            found.bare.request = request
            self._late(found)
            put(r.Requested(found.path, self.core.now_ms(), request))

        self.core.stream.step(change)

    @guarded
    def set_response(self, op: Op | str, payload: Any) -> None:
        """Set what an operation got back; see `Op.response`. Of very long text the end is cut, with a notice."""
        if (found := self._op(op)) is None:
            self._unknown(op)
            return
        response = self.core.response(payload)

        def change(put: Put) -> None:
            found.bare.response = response
            self._late(found)
            put(r.Responded(found.path, self.core.now_ms(), response))

        self.core.stream.step(change)

    @guarded
    def end_op(self, op: Op | str, status: Status = "ok", error: str | None = None, **attributes: Any) -> None:
        """End an operation; see `Op.end`."""
        if (found := self._op(op)) is not None:
            found.end(status, error, **attributes)
        else:
            self._unknown(op)

    def _late(self, op: Op) -> None:
        if op.bare.ended_at is not None:
            self.core.touched.add(op.path)

    def _unknown(self, op: object) -> None:
        self.core.stream.fault(f"no op {redact(text(op))[:80]!r} in session {self.core.txn}: what was given for it is not recorded")
