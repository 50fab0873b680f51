"""The fold: records in, tree out. Any order across writers and any repetition gives the same tree.

A record whose node's begin was not seen makes the node as a placeholder (`agent` or `name` is ``(unknown)``), which the begin fills in
if it comes later. What stays a placeholder is a loss that readers can see, not a record thrown away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from optree import _records as r
from optree._ids import trace_id
from optree._nodes import AccountingEntry, LogEntry, OperationNode, Pool, Reasoning, ReasoningChunk, SessionNode, Totals, TurnNode
from optree._tree import apply
from optree._tree.path import Path, last_index, parent_label
from optree._tree.totals import add_entry, add_op
from optree._values import decode
from optree.errors import PathError

UNKNOWN = "(unknown)"
Item = TypeVar("Item")


class Tree(Struct, rename="camel"):
    """A whole tree: the root session, with the content that its requests refer to."""

    session: SessionNode
    """The root session."""
    pool: Pool
    """Messages and other content that is stored once; `Pool.resolve` puts it into a decoded request."""


class Fold:
    """Builds a tree record by record; start from a saved *tree* to add a journal's tail to it."""

    def __init__(self, txn: str, tree: Tree | None = None) -> None:
        self.txn = txn
        self.trace = trace_id(txn)
        self.sessions: dict[str, SessionNode] = {}
        self.turns: dict[str, TurnNode] = {}
        self.ops: dict[str, OperationNode] = {}
        self.pool = tree.pool if tree else Pool()
        self.dropped = 0
        """Records that writers say they could not write."""
        self._places: dict[tuple[str, str], int] = {}
        """Where each accounting entry stands in its op, by path and id."""
        self.missing = 0
        """Entries that must have stood before entries that were read."""
        self.misplaced = 0
        """Records whose paths are not valid: no writer of ours makes them."""
        self._growing: dict[str, tuple[list[LogEntry], list[ReasoningChunk]]] = {}
        """Log lines and reasoning of ops, by path, until `finish`."""
        self._streamed: dict[str, list[str]] = {}
        """The text that was streamed as ops' answers, by path, until `finish`."""
        self._streamed_to: dict[str, int] = {}
        """Its characters."""
        self._beside: dict[str, list[str]] = {}
        """The same of ops that another process had begun than the one that streamed it."""
        self._accounted_for: dict[str, list[AccountingEntry]] = {}
        """Accounting entries of ops, by path, until `finish`."""
        self._named: set[str] = set()
        """Ops that got a name after their begin."""
        self._untimed: set[str] = set()
        """Turns of which only such a record has come as has no time."""
        if tree:
            self._index(tree.session)

    def finish(self) -> Tree:
        """Return the tree so far: sorts it by its indices and sums its totals, so call it once after many records, not for each."""
        root = self._session("", 0.0)
        for session in self.sessions.values():
            session.turns.sort(key=lambda turn: turn.index)
        for turn in self.turns.values():
            turn.ops.sort(key=lambda op: last_index(op.path))
        for path in self._untimed:
            self._date(self.turns[path])
        for path in {*self._growing, *self._streamed, *self._beside, *self._accounted_for}:
            self._complete(self.ops[path])
        self._sum()
        return Tree(root, self.pool)

    def take_op(self, path: str) -> OperationNode:
        """Return an op with all that it has so far, and hold it no longer, for callers that need only open ops. Raises `KeyError`."""
        op = self.ops.pop(path)
        self._named.discard(path)
        self._complete(op)
        for entry in op.accounting:
            self._places.pop((path, entry.id), None)
        return op

    def apply(self, record: r.Record) -> None:
        """Take one record; unknown types are ignored."""
        handler = self._HANDLERS.get(type(record))
        if handler is not None:
            try:
                handler(self, record)
            except PathError:
                self.misplaced += 1

    def _complete(self, op: OperationNode) -> None:
        """Put what an op has got since the last `finish` into it."""
        path = op.path
        logs, chunks = self._growing.pop(path, (None, None))
        if logs is not None:
            op.logs = tuple(logs)
        if chunks:
            op.reasoning = op.reasoning or Reasoning()
            op.reasoning.chunks = tuple(chunks)
        if texts := self._streamed.pop(path, None):
            apply.set_partial_response(op, "".join(texts))
            del self._streamed_to[path]
        if texts := self._beside.pop(path, None):
            apply.add_beside(op, "".join(texts))
        if entries := self._accounted_for.pop(path, None):
            op.accounting = apply.without_placeholder(tuple(entries))

    def _index(self, root: SessionNode) -> None:
        pending = [root]
        while pending:
            session = pending.pop()
            self.sessions[session.path] = session
            for turn in session.turns:
                self.turns[turn.path] = turn
                for op in turn.ops:
                    self.ops[op.path] = op
                    self._places.update(((op.path, entry.id), place) for place, entry in enumerate(op.accounting))
                    if op.child_session is not None:
                        pending.append(op.child_session)

    def _sum(self) -> None:
        totals: defaultdict[str, Totals] = defaultdict(Totals)
        accounted: list[tuple[AccountingEntry, list[SessionNode]]] = []
        chains: dict[str, list[SessionNode]] = {}
        for path, op in list(self.ops.items()):
            if op.kind != "tool" and not op.accounting:
                continue
            turn = parent_label(path)
            above = chains.get(turn) or chains.setdefault(turn, self._sessions_of(path))
            for session in above:
                add_op(totals[session.path], op.kind)
            accounted += [(entry, above) for entry in op.accounting]
        accounted.sort(key=_time)  # the order in which the live tree added them: floats give the same sums
        for entry, above in accounted:
            for session in above:
                add_entry(totals[session.path], entry)
        for path, session in self.sessions.items():
            session.totals = totals[path]  # at once: the tree may be a live one, that is looked at meanwhile

    def _sessions_of(self, op_path: str) -> list[SessionNode]:
        result: list[SessionNode] = []
        path = parent_label(parent_label(op_path))
        while True:
            result.append(self._session(path, 0.0))
            if not path:
                return result
            path = parent_label(parent_label(path))

    # Nodes by path, made as placeholders where a record comes before their begin.

    def _session(self, path: str, ts: float) -> SessionNode:
        session = self.sessions.get(path)
        if session is None:
            op = self._op(path, ts) if path else None
            session = apply.new_session(self.txn, path, self.trace, UNKNOWN, UNKNOWN, ts)
            self.sessions[path] = session
            if op is not None:
                op.child_session = session
                session.parent_txn_id = self._session(parent_label(parent_label(path)), ts).id
        return session

    def _turn(self, path: str, ts: float) -> TurnNode:
        return self.turns.get(path) or self._new_turn(r.TurnBegin(path, ts))

    def _new_turn(self, record: r.TurnBegin) -> TurnNode:
        above = _checked(record.path)
        if above not in self.sessions:
            self._grow(above, record.ts)
        turn = self.turns[record.path] = apply.begin_turn(self.sessions[above], record)
        return turn

    def _op(self, path: str, ts: float) -> OperationNode:
        return self.ops.get(path) or self._new_op(r.OpBegin(path, ts, "system", UNKNOWN))

    def _new_op(self, record: r.OpBegin) -> OperationNode:
        above = _checked(record.path)
        if above not in self.turns:
            self._grow(above, record.ts, turn=True)
        op = self.ops[record.path] = apply.begin_op(self.txn, self.turns[above], record)
        return op

    def _grow(self, label: str, ts: float, *, turn: bool = False) -> None:
        """Make a session or a turn with all that is missing above it, from the root down: paths may be deeper than Python recurses."""
        parts = Path.parse(label).parts
        if len(parts) % 2 != turn:
            raise PathError(f"{label!r} is the path of no {'turn' if turn else 'session'}")
        for length in range(len(parts) + 1):
            above = ".".join(map(str, parts[:length]))
            self._turn(above, ts) if length % 2 else self._session(above, ts)

    # One method a record type.

    def _session_begin(self, record: r.SessionBegin) -> None:
        session = self._session(record.path, record.ts)
        session.agent_id = record.agent
        session.call_path = record.call_path
        session.started_at = record.ts
        session.id = session.id if record.id is None else record.id
        session.attributes_json = apply.merged(record.attributes, session.attributes_json)

    def _session_set(self, record: r.SessionSet) -> None:
        apply.set_session(self._session(record.path, record.ts), record)

    def _session_resume(self, record: r.SessionResume) -> None:
        apply.resume_session(self._session(record.path, record.ts), record)

    def _session_end(self, record: r.SessionEnd) -> None:
        session = self._session(record.path, record.ts)
        if record.ts >= max(session.resumed_at, default=record.ts):
            apply.end_session(session, record)

    def _message(self, record: r.MessageAdded) -> None:
        messages = self._session(record.path, record.message.timestamp).messages
        self._place(messages, record.at, [record.message])

    def _turn_begin(self, record: r.TurnBegin) -> None:
        turn = self.turns.get(record.path) or self._new_turn(record)
        self._untimed.discard(record.path)
        turn.started_at = record.ts
        turn.id = turn.id if record.id is None else record.id
        turn.prompts = {**(record.prompts or {}), **(turn.prompts or {})} or None
        turn.attributes_json = record.attributes

    def _turn_set(self, record: r.TurnSet) -> None:
        if record.path not in self.turns:
            self._new_turn(r.TurnBegin(record.path, 0.0))
            self._untimed.add(record.path)
        apply.set_turn(self.turns[record.path], record)

    def _date(self, turn: TurnNode) -> None:
        """Let a turn whose begin was lost begin when something in it was first seen."""
        session = self.sessions[parent_label(turn.path)]
        seen = [op.started_at for op in turn.ops] + ([] if turn.ended_at is None else [turn.ended_at])
        turn.started_at = min(seen, default=session.started_at)
        session.started_at = session.started_at or turn.started_at

    def _turn_end(self, record: r.TurnEnd) -> None:
        apply.end_turn(self._turn(record.path, record.ts), record)

    def _op_begin(self, record: r.OpBegin) -> None:
        op = self.ops.get(record.path) or self._new_op(record)
        op.kind, op.started_at = record.kind, record.ts
        op.name = op.name if record.path in self._named else record.name
        op.op_id = op.op_id if record.id is None else record.id
        op.parent_op = record.parent_op
        op.attributes_json = apply.merged(record.attributes, op.attributes_json)

    def _op_set(self, record: r.OpSet) -> None:
        if record.name is not None:
            self._named.add(record.path)
        apply.set_op(self._op(record.path, record.ts), record)

    def _entries(self, record: r.Entries) -> None:
        first = record.logs[0].timestamp if record.logs else record.chunks[0].ts if record.chunks else 0.0
        op = self._op(record.path, first)
        if record.path not in self._growing:
            self._growing[record.path] = [*op.logs], [*op.reasoning.chunks] if op.reasoning else []
        logs, chunks = self._growing[record.path]
        self._place(logs, record.logs_at, record.logs)
        self._place(chunks, record.chunks_at, record.chunks)
        if record.text:
            self._stream(op, record)

    def _stream(self, op: OperationNode, record: r.Entries) -> None:
        """Put text at its place in an op's answer, as `_place` does entries; characters that are missing before it are marked: one loss."""
        if record.text_at <= r.BESIDE:
            self._beside.setdefault(record.path, []).append(record.text)
            return
        if record.path not in self._streamed:
            before = op.response if op.response is not None and op.response.partial else None
            self._streamed[record.path] = [] if before is None else [decode(before.payload)]
            self._streamed_to[record.path] = sum(map(len, self._streamed[record.path]))
        end = self._streamed_to[record.path]
        if record.text_at > end:
            self.missing += 1
            self._streamed[record.path].append(f"[… {record.text_at - end:,} characters lost]")
            end = record.text_at
        new = record.text[end - record.text_at :] if 0 <= record.text_at < end else record.text
        self._streamed[record.path].append(new)
        self._streamed_to[record.path] = end + len(new)

    def _accounted(self, record: r.Accounted) -> None:
        op = self._op(record.path, record.entry.timestamp)
        key = record.path, record.entry.id
        if record.path not in self._accounted_for:
            self._accounted_for[record.path] = [*op.accounting]
        grown = self._accounted_for[record.path]
        place = self._places.get(key)
        if place is None:
            self._places[key] = len(grown)
            grown.append(record.entry)
        elif not apply.takes_back(grown[place], record.entry):  # the same, that it failed after all, or what it cost
            grown[place] = record.entry

    def _requested(self, record: r.Requested) -> None:
        self._op(record.path, record.ts).request = record.request

    def _responded(self, record: r.Responded) -> None:
        self._op(record.path, record.ts).response = record.response

    def _op_end(self, record: r.OpEnd) -> None:
        op = self._op(record.path, record.ts)
        if op.ended_at is None:
            apply.end_op(op, record)

    def _pooled(self, record: r.Pooled) -> None:
        self.pool.blobs.update(record.blobs)
        for link, previous, blob in record.links:
            self.pool.links[link] = (previous, blob)

    def _gap(self, record: r.Gap) -> None:
        self.dropped += record.dropped

    def _place(self, items: list[Item], at: int, new: Sequence[Item]) -> None:
        """Put *new* at its place, or at the end where *at* is -1, as records of a writer have it that does not own the list alone.

        Entries that are there already are skipped; what lies between the end and *at* was lost, and is counted.
        """
        if at > len(items):
            self.missing += at - len(items)
        items.extend(new[len(items) - at :] if 0 <= at < len(items) else new)

    _HANDLERS: ClassVar[dict[type[r.Record], Callable[[Any, Any], None]]] = {
        r.SessionBegin: _session_begin,
        r.SessionSet: _session_set,
        r.SessionResume: _session_resume,
        r.SessionEnd: _session_end,
        r.MessageAdded: _message,
        r.TurnBegin: _turn_begin,
        r.TurnSet: _turn_set,
        r.TurnEnd: _turn_end,
        r.OpBegin: _op_begin,
        r.OpSet: _op_set,
        r.Entries: _entries,
        r.Accounted: _accounted,
        r.Requested: _requested,
        r.Responded: _responded,
        r.OpEnd: _op_end,
        r.Pooled: _pooled,
        r.Gap: _gap,
    }


def _checked(label: str) -> str:
    """Return the label of the node above; raises `PathError` if the node's own part is not a number."""
    above, _, number = label.rpartition(".")
    if not (number.isascii() and number.isdecimal()):
        raise PathError(f"{label[:80]!r} is no path")
    return above


def _time(accounted: tuple[AccountingEntry, list[SessionNode]]) -> float:
    return accounted[0].timestamp
