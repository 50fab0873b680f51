"""A log that is written while a session runs: a subscriber turns records into events, on a thread of its own.

Nodes are kept only while they are open. The begin of an op is written with its request, or when the next thing happens in it. What comes
after an op's end is an ``addition`` to it.
"""

from __future__ import annotations

import atexit
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from msgspec import UNSET

from optree import OperationNode, Session, SessionNode, SessionTreeBuilder, TurnNode
from optree.exporting import (
    Accounted,
    Entries,
    MessageAdded,
    OpBegin,
    OpEnd,
    Pool,
    Pooled,
    Record,
    RecordSubscription,
    Requested,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    TurnBegin,
    TurnEnd,
    TurnSet,
    decode,
    parent_path,
    text,
)
from optree.tree import apply
from optree_formats import AnyPath
from optree_formats.markdown.entries import held
from optree_formats.markdown.events import LogEvent, Verbosity
from optree_formats.markdown.of_tree import Teller
from optree_formats.markdown.reader import extract_events
from optree_formats.markdown.stories import NEAR
from optree_formats.markdown.summary import write_summary
from optree_formats.markdown.times import iso
from optree_formats.markdown.to_tree import node_path
from optree_formats.markdown.writer import EventLog

LOGGER = logging.getLogger("optree.markdown")
_Key = tuple[object, ...]
_SEVERAL = frozenset(["session_resume", "session_end", "agent_end", "addition"])
"""Types that a node may have more than once."""
_TITLED = frozenset(["session_start", "agent_start", "session_update"])
_EXIT_SECONDS = 0.25


def follow(
    session: Session | SessionTreeBuilder, path: AnyPath, *, verbosity: Verbosity = "standard", redacted: bool = True
) -> LogFollower:
    """Write a session's whole tree to the log at *path*, see `EventLog`: what it has, and what happens. The summary comes at its end.

    A resumed session goes on in its log, with what that lacks. In a process that has joined a session of another, what this process
    records is written. Credentials are replaced unless *redacted* is off. Raises `SetupError`, also where the log is of another session,
    `OSError` now, and nothing later: an event that is refused is counted, and the first is said to the logger ``optree.markdown``.
    """
    builder = session.builder if isinstance(session, Session) else session
    while builder.parent is not None:
        builder = builder.parent
    return LogFollower(builder, path, verbosity, redacted=redacted)


class LogFollower:
    """Receives a session's records and writes its log."""

    def __init__(self, builder: SessionTreeBuilder, path: AnyPath, verbosity: Verbosity, *, redacted: bool) -> None:
        self._pool = Pool()
        self._teller = Teller(self._pool)
        root = builder.node
        self._sessions: dict[str, SessionNode] = {}
        self._turns: dict[str, TurnNode] = {}
        self._ops: dict[str, OperationNode] = {}
        self._untold: set[str] = set()
        """Paths of ops whose begin is not written yet."""
        self._there: Counter[_Key] = Counter()
        """What the log had before, while the backlog is written."""
        self._lost = 0
        self._last_failure = ""
        self.log = EventLog(
            path,
            root.origin_txn_id,
            verbosity=verbosity,
            start=self._teller.session_start(root, None),
            reopen=root.ended_at is None,
            resume=self._teller.resumed(root, root.resumed_at[-1]) if root.resumed_at else None,
            redacted=redacted,
        )
        self._subscription = RecordSubscription(builder, self._handle, earlier=self._catch_up, begin=self._begin, name="markdown")
        atexit.register(self.close, _EXIT_SECONDS)

    @property
    def failures(self) -> tuple[int, str]:
        """How many records could not be written, and why the last could not; those that were dropped count as well."""
        return self._lost + self._subscription.failures + self._subscription.dropped, self._last_failure or self._subscription.last_failure

    def flush(self, timeout: float = 0.25) -> bool:
        """Wait until what has happened so far is written; False if it is not within *timeout* seconds."""
        return self._subscription.flush(timeout)

    def close(self, timeout: float = 0.25) -> bool:
        """Write what has happened so far and follow no longer; False if not all was written within *timeout* seconds."""
        done = self._subscription.close(timeout)
        if done:
            self.log.close()
        atexit.unregister(self.close)
        return done

    def _begin(self, subscription: RecordSubscription) -> None:
        self._pool.blobs.update(subscription.tree.pool.blobs)
        self._pool.links.update(subscription.tree.pool.links)
        self._sessions |= {path: _copy(node) for path, node in subscription.sessions.items()}

    def _catch_up(self, records: list[Record]) -> None:
        """Write what the session has already, as far as the log lacks it."""
        self._there = _known(self.log.path)
        for one in records:
            self._handle(one)
        self._untold -= {str(path) for (_, path, *_), left in self._there.items() if left > 0}  # begun in the log already
        self._there.clear()

    def _handle(self, record: Record) -> None:
        step = self._STEPS.get(type(record))
        if step is not None:
            self._safely(step, self, record)

    def _safely(self, step: Callable[..., None], *given: Any) -> None:
        try:
            step(*given)
        except Exception as error:  # noqa: BLE001 - one record that cannot be written; the next one may be
            self._lost += 1
            self._last_failure = f"{type(error).__name__}: {text(error)}"
            if self._lost == 1:
                LOGGER.warning("log of %s: an event is left out: %s", self.log.session_id, self._last_failure)

    def _append(self, event: LogEvent) -> None:
        """Append an event that the log does not have."""
        if self._there:
            known = _key(event.fields)
            if self._there[known] > 0:
                self._there[known] -= 1
                return
        self.log.append(event)

    # Sessions and turns

    def _session_begin(self, record: SessionBegin) -> None:
        if not record.path:
            return
        self._tell(record.path)
        above = self._sessions[parent_path(parent_path(record.path))]
        node = apply.new_session(above.origin_txn_id, record.path, above.trace_id, record.agent, record.call_path, record.ts)
        node.attributes_json = record.attributes
        self._sessions[record.path] = node
        self._append(self._teller.session_start(node, above))

    def _session_set(self, record: SessionSet) -> None:
        known = {"title": record.title, "latest_status": record.latest_status}
        place = {"path": record.path} if record.path else {}
        fields = {"timestamp": iso(record.ts), **place, **{key: said for key, said in known.items() if said is not None}}
        self._append(LogEvent.of_plain("session_update", fields, at=record.ts))

    def _session_resume(self, record: SessionResume) -> None:
        self._append(self._teller.resumed(self._sessions[record.path], record.ts))

    def _session_end(self, record: SessionEnd) -> None:
        node = self._sessions[record.path]
        apply.end_session(node, record)
        self._append(self._teller.session_end(node))
        if not record.path:
            write_summary(self.log.path)

    def _message(self, record: MessageAdded) -> None:
        self._append(self._teller.message(self._sessions[record.path], record.message))

    def _turn_begin(self, record: TurnBegin) -> None:
        session = self._sessions[parent_path(record.path)]
        self._turns[record.path] = turn = apply.begin_turn(_copy(session), record)
        self._append(self._teller.turn_start(session, turn))

    def _turn_set(self, record: TurnSet) -> None:
        if (turn := self._turns.get(record.path)) is not None:
            apply.set_turn(turn, record)

    def _turn_end(self, record: TurnEnd) -> None:
        turn = self._turns.pop(record.path, None)
        if turn is None:  # it began before the log did
            return
        apply.end_turn(turn, record)
        self._append(self._teller.turn_end(self._sessions[parent_path(record.path)], turn))

    # Ops

    def _op_begin(self, record: OpBegin) -> None:
        session = self._session_of(record.path)
        turn = self._turns.get(parent_path(record.path)) or apply.begin_turn(_copy(session), TurnBegin(parent_path(record.path), record.ts))
        del turn.ops[:-NEAR]
        self._ops[record.path] = apply.begin_op(session.origin_txn_id, turn, record)
        self._untold.add(record.path)

    def _requested(self, record: Requested) -> None:
        if (op := self._ops.get(record.path)) is not None:
            op.request = record.request
            self._tell(record.path)

    def _responded(self, record: Responded) -> None:
        self._change(record.path, lambda op: setattr(op, "response", record.response))

    def _entries(self, record: Entries) -> None:
        self._change(record.path, lambda op: apply.add_entries(op, record.logs, record.chunks))

    def _accounted(self, record: Accounted) -> None:
        def account(op: OperationNode) -> None:
            op.accounting = tuple(entry for entry in op.accounting if entry.id != record.entry.id)
            apply.account(op, record.entry)

        self._change(record.path, account)

    def _op_end(self, record: OpEnd) -> None:
        op = self._ops.get(record.path)
        if op is None:
            return
        self._tell(record.path)
        del self._ops[record.path]
        block, record.attributes = record.attributes, UNSET
        apply.end_op(op, record)
        event = self._teller.op_end(self._session_of(record.path), op)
        if block is not UNSET:
            event.fields["attributes"] = decode(block)
        self._append(event)

    def _pooled(self, record: Pooled) -> None:
        self._pool.blobs.update(record.blobs)
        self._pool.links.update({link: (before, blob) for link, before, blob in record.links})

    def _change(self, path: str, change: Callable[[OperationNode], Any]) -> None:
        """Change an open op; of one that has ended, log what is added."""
        op = self._ops.get(path)
        if op is not None:
            self._tell(path)
            change(op)
            return
        late = OperationNode(f"{self.log.session_id}:{path}", path, "system", "", 0.0, (), ())
        change(late)
        fields = {"path": path, **held(late)}
        self._append(LogEvent.of_plain("addition", fields, title=f"Addition: {path}"))

    def _tell(self, path: str) -> None:
        """Write the begin of an op, once."""
        if path in self._untold:
            self._untold.discard(path)
            op = self._ops[path]
            turn = self._turns.get(parent_path(path)) or TurnNode("", parent_path(path), 0, 0.0, [])
            self._append(self._teller.op_start(self._session_of(path), turn, op, with_all=False))

    def _session_of(self, path: str) -> SessionNode:
        return self._sessions[parent_path(parent_path(path))]

    _STEPS: ClassVar[dict[type[Record], Callable[[Any, Any], None]]] = {
        SessionBegin: _session_begin,
        SessionSet: _session_set,
        SessionResume: _session_resume,
        SessionEnd: _session_end,
        MessageAdded: _message,
        TurnBegin: _turn_begin,
        TurnSet: _turn_set,
        TurnEnd: _turn_end,
        OpBegin: _op_begin,
        Requested: _requested,
        Responded: _responded,
        Entries: _entries,
        Accounted: _accounted,
        OpEnd: _op_end,
        Pooled: _pooled,
    }


def _copy(node: SessionNode) -> SessionNode:
    """Return a session's node without what is in it."""
    made = apply.new_session(node.origin_txn_id, node.path, node.trace_id, node.agent_id, node.call_path, node.started_at)
    made.session_title, made.attributes_json = node.session_title, node.attributes_json
    return made


def _known(log: Path) -> Counter[_Key]:
    """Return what tells a log's events from each other, each as often as it is there. Raises `OSError`."""
    return Counter(key for fields in extract_events(log) for key in _keys(fields))


def _key(fields: dict[str, Any]) -> _Key:
    """Return what tells an event from all others of its log."""
    kind, path = fields["type"], node_path(fields)
    if kind == "session_update":
        return kind, path, fields.get("title"), fields.get("latest_status")
    if kind == "message":
        return kind, path, fields.get("timestamp"), fields.get("role"), fields.get("id")
    return (kind, path, fields.get("timestamp")) if kind in _SEVERAL else (kind, path)


def _keys(fields: dict[str, Any]) -> Iterator[_Key]:
    if "type" in fields:
        yield _key(fields)
    if fields.get("type") in _TITLED and ("title" in fields or "latest_status" in fields):
        yield _key({**fields, "type": "session_update"})
