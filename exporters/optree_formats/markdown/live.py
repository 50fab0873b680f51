"""A log that is written while a session runs: a subscriber appends the events that its records make, on a background thread."""

from __future__ import annotations

import atexit
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optree import Session, SessionNode, SessionTreeBuilder
from optree.exporting import Fold, Pooled, Record, RecordSubscription, SessionEnd, text
from optree_formats import AnyPath
from optree_formats.markdown.events import LogEvent, Verbosity
from optree_formats.markdown.of_tree import EventMaker
from optree_formats.markdown.reader import extract_events
from optree_formats.markdown.summary import write_summary
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
        root = builder.node
        self._maker = EventMaker(Fold(root.origin_txn_id))
        self._there: Counter[_Key] = Counter()
        """What the log had before, while the backlog is written."""
        self._lost = 0
        self._last_failure = ""
        self.log = EventLog(
            path,
            root.origin_txn_id,
            verbosity=verbosity,
            start=self._maker.session_start(root),
            reopen=root.ended_at is None,
            resume=self._maker.resumed(root, root.resumed_at[-1]) if root.resumed_at else None,
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
        """Take up the sessions that exist, for a process whose records do not have their begin."""
        fold, pool = self._maker.fold, subscription.tree.pool
        fold.apply(Pooled(blobs=pool.blobs, links=[(link, *rest) for link, rest in pool.links.items()]))
        for path, session in subscription.sessions.items():
            fold.sessions[path] = SessionNode(
                session.id, path, session.trace_id, session.agent_id, session.call_path, session.origin_txn_id, session.started_at, []
            )

    def _catch_up(self, records: list[Record]) -> None:
        """Write what the session has already, as far as the log lacks it."""
        self._there = _known(self.log.path)
        for record in records:
            self._handle(record)
        begun = {str(path) for (_, path, *_), left in self._there.items() if left > 0}
        self._maker.begun |= dict.fromkeys(begun & self._maker.begun.keys(), True)  # written in the log already
        self._there.clear()

    def _handle(self, record: Record) -> None:
        try:
            for event in self._maker.events(record):
                self._append(event)
            if isinstance(record, SessionEnd) and not record.path:
                write_summary(self.log.path)
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


def _known(log: Path) -> Counter[_Key]:
    """Return the keys of a log's events, each with the number of its events. Raises `OSError`."""
    return Counter(key for fields in extract_events(log) for key in _keys(fields))


def _key(fields: dict[str, Any]) -> _Key:
    """Return the key by which an event is recognised in its log."""
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
