"""What a session's builder does for an op that is given by its handle, its id or its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from optree import _records as r
from optree._builder.entries import Put
from optree._builder.figures import AccountFigures
from optree._builder.guard import guarded
from optree._builder.handles import Op
from optree._builder.histories import PooledHistory
from optree._builder.turns import Turn
from optree._nodes import AccountingEntry, SessionNode, Status
from optree._tree import apply
from optree._tree.path import parent_label
from optree._tree.totals import add_entry
from optree._tree.walk import recount
from optree._values import text
from optree.redaction import redact

if TYPE_CHECKING:
    from optree._builder.core import Core


_OF_OPS = (r.OpSet, r.Entries, r.Accounted, r.OpEnd)
_OF_SESSIONS = (r.SessionBegin, r.SessionSet, r.SessionEnd, r.MessageAdded)
_MOST_LATE = 256
"""Ops that have ended and whose handles are kept, for what comes by their ids: it goes through one handle while it is being delivered."""


class ByAddress:
    """The part of `SessionTreeBuilder` that finds ops. An op that is not known is reported, not raised."""

    core: Core
    node: SessionNode
    current_turn: Turn | None

    @guarded
    def record(self, record: r.Record) -> None:
        """Record what happened in this session at a time in the past, as *record* says it: nothing is added to it, or ends by it.

        It is the end of a node, or what is in it; or the begin of the session, whose time is corrected. For other begins there is *at*.
        """
        held = self.core.stream.enter()
        try:
            if self._take(record):
                self.core.stream.put(record)
            else:
                self._unknown(getattr(record, "path", record))
        finally:
            self.core.stream.leave(held)
        for listener in self.core.listeners if isinstance(record, r.SessionEnd) else ():
            listener(self.node.path)

    def _take(self, record: r.Record) -> bool:
        """Change what a record is about; False if it is not there."""
        if isinstance(record, _OF_OPS):
            return self._take_of_op(record)
        if isinstance(record, _OF_SESSIONS) and record.path != self.node.path:
            return False
        if isinstance(record, r.SessionBegin):
            self.node.started_at = record.ts
        elif isinstance(record, r.SessionSet):
            self._late_session()
            apply.set_session(self.node, record)
        elif isinstance(record, r.SessionEnd):
            apply.end_session(self.node, record)
        elif isinstance(record, r.MessageAdded):
            self._late_session()
            record.at = len(self.node.messages)
            self.node.messages.append(record.message)
        else:
            return isinstance(record, (r.TurnSet, r.TurnEnd)) and self._take_of_turn(record)
        return True

    def _take_of_turn(self, record: r.TurnSet | r.TurnEnd) -> bool:
        turn = next((turn for turn in reversed(self.node.turns) if turn.path == record.path), None)
        if turn is None:
            return False
        if turn.ended_at is not None:
            self.core.touched.add(f"{turn.path}.1")
        if isinstance(record, r.TurnSet):
            apply.set_turn(turn, record)
        else:
            apply.end_turn(turn, record)
            self.current_turn = None if self.current_turn is not None and self.current_turn.node is turn else self.current_turn
        return True

    def _take_of_op(self, record: r.OpSet | r.Entries | r.Accounted | r.OpEnd) -> bool:
        op = self._op(record.path)
        if op is None:
            return False
        self._late(op)
        if isinstance(record, r.OpSet):
            apply.set_op(op.bare, record)
        elif isinstance(record, r.Entries):
            reasoning = op.node.reasoning
            record.logs_at, record.chunks_at = len(op.bare.logs), 0 if reasoning is None else len(reasoning.chunks)
            apply.add_entries(op.bare, record.logs, record.chunks)
            if record.text:
                op.chunk(record.text)  # which records it, at its place
                record.text = ""
        elif isinstance(record, r.Accounted):
            self._account(op, record.entry)
        else:
            if op.turn.node.ended_at is not None:
                self.core.touched.add(op.path)
            apply.end_op(op.bare, record)
            self.core.ops.pop(op.path, None)
            self.core.ended[op.path] = op.bare
        return True

    def _account(self, op: Op, entry: AccountingEntry) -> None:
        """Add an accounting entry to an op, or put it in place of the one that has its id, unless that has more."""
        self.core.price(entry, op.builder.chain)
        known = next((one for one in op.bare.accounting if one.id == entry.id), None)
        if known is None and apply.account(op.bare, entry):
            for session in op.builder.chain:
                add_entry(session.totals, entry)
            return
        if known is not None and not apply.takes_back(known, entry):
            op.bare.accounting = tuple(entry if one is known else one for one in op.bare.accounting)
        recount(op.builder.chain)

    def _late_session(self) -> None:
        """Tell the snapshots that an ended sub-agent's session has changed all the same."""
        if self.node.path and self.node.ended_at is not None:
            self.core.touched.add(self.node.path)

    @guarded
    def op(self, op: Op | str) -> Op | None:
        """Return an operation's handle by its id or path; None if this process did not record it."""
        return self._op(op)

    def _op(self, op: Op | str) -> Op | None:
        if type(op) is not str:
            return op if isinstance(op, Op) else None
        txn, _, path = op.rpartition(":")
        if txn and txn != self.core.txn:
            return None
        return self.core.ops.get(path) or self.core.late.get(path) or self._handle_of_ended(path)

    def _handle_of_ended(self, path: str) -> Op | None:
        """Return a new handle for an op that has ended, for what comes late."""
        node = self.core.ended.get(path)
        builder = self.core.builders.get(parent_label(parent_label(path)))
        if node is None or builder is None:
            return None
        turn = next(turn for turn in builder.node.turns if turn.path == parent_label(path))
        late = self.core.late
        while len(late) >= _MOST_LATE:
            late.pop(next(iter(late)), None)
        handle = late[path] = Op.of_ended(builder, Turn(builder, turn, 1), node)
        return handle

    @guarded
    def append_log(self, op: Op | str, message: str, severity: Any = "VRB", **more: Any) -> None:
        """Append a log line to an operation; see `Op.log`."""
        if (handle := self._op(op)) is not None:
            handle.log(message, severity, **more)
        else:
            self._unknown(op)

    @guarded
    def append_reasoning(self, op: Op | str, text: str) -> None:
        """Append a chunk of reasoning to an operation; see `Op.think`."""
        if (handle := self._op(op)) is not None:
            handle.think(text)
        else:
            self._unknown(op)

    @guarded
    def append_chunk(self, op: Op | str, text: str) -> None:
        """Append a chunk of the answer's text to an operation; see `Op.chunk`."""
        if (handle := self._op(op)) is not None:
            handle.chunk(text)
        else:
            self._unknown(op)

    @guarded
    def append_accounting(self, op: Op | str, usage: object = None, **figures: Unpack[AccountFigures]) -> None:
        """Append an accounting entry to an operation; see `Op.account`."""
        if (handle := self._op(op)) is not None:
            handle.account(usage, **figures)
        else:
            self._unknown(op)

    @guarded
    def set_op(self, op: Op | str, **attributes: Any) -> None:
        """Give an operation more attributes, merged into those that it has."""
        if (handle := self._op(op)) is None:
            self._unknown(op)
            return
        record = r.OpSet(handle.path, self.core.now_ms(), None, self.core.attributes(attributes))

        def change(put: Put) -> None:
            apply.set_op(handle.bare, record)
            self._late(handle)
            put(record)

        self.core.stream.step(change)

    @guarded
    def set_request(
        self, op: Op | str, payload: Mapping[str, Any], messages: list[Any] | PooledHistory | None = None, *, at: float | None = None
    ) -> None:
        """Set what an operation sends: *payload*, and the *messages* of an LLM call; see `Op.request`. *at*: when, if not now."""
        if (handle := self._op(op)) is None:
            self._unknown(op)
            return
        encoded = self.core.request("llm" if handle.bare.kind == "llm" else "tool", messages, payload)

        new = r.Pooled()

        def change(put: Put) -> None:
            try:
                _, request = self.core.pooled(encoded, new)
            finally:
                if new.blobs or new.links:
                    put(new)
            handle.bare.request = request
            self._late(handle)
            put(r.Requested(handle.path, self.core.time(at), request))

        self.core.stream.step(change)

    @guarded
    def set_response(self, op: Op | str, payload: Any, *, at: float | None = None) -> None:
        """Set what an operation got back; see `Op.response`. Of very long text the end is cut, with a notice. *at*: when, if not now."""
        if (handle := self._op(op)) is None:
            self._unknown(op)
            return
        response = self.core.response(handle.bare.kind, payload)

        def change(put: Put) -> None:
            if self.core.stream.watched:  # as ahead of its end
                handle.pending(put)
            handle.bare.response = response
            self._late(handle)
            put(r.Responded(handle.path, self.core.time(at), response))

        self.core.stream.step(change)

    @guarded
    def end_op(self, op: Op | str, status: Status = "ok", error: str | None = None, **attributes: Any) -> None:
        """End an operation; see `Op.end`."""
        if (handle := self._op(op)) is not None:
            handle.end(status, error, **attributes)
        else:
            self._unknown(op)

    def _late(self, op: Op) -> None:
        if op.bare.ended_at is not None:
            self.core.touched.add(op.path)

    def _unknown(self, op: object) -> None:
        self.core.stream.fault(f"no op {redact(text(op))[:80]!r} in session {self.core.txn}: what was given for it is not recorded")
