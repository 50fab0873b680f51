"""Walking, flattening, and the tree as plain values. Explicit stacks throughout: a tree may be deeper than Python's recursion limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from optree.nodes import AccountingEntry, LogEntry, OperationNode, SessionNode, TurnNode
from optree.records import sanitize
from optree.tree.fold import Tree


class Flat(NamedTuple):
    """A session's entries as flat lists, each entry naming where it belongs."""

    logs: list[dict[str, Any]]
    accounting: list[dict[str, Any]]


def walk_sessions(root: SessionNode) -> Iterator[SessionNode]:
    """Yield the session and all below it, in the order of their paths."""
    pending = [root]
    while pending:
        session = pending.pop()
        yield session
        children = [op.child_session for turn in session.turns for op in turn.ops if op.child_session is not None]
        pending.extend(reversed(children))


def walk_ops(root: SessionNode) -> Iterator[tuple[SessionNode, TurnNode, OperationNode]]:
    """Yield every op with its turn and session, session by session."""
    for session in walk_sessions(root):
        for turn in session.turns:
            for op in turn.ops:
                yield session, turn, op


def flatten(root: SessionNode) -> Flat:
    """Return all logs and accounting entries as self-describing dicts, depth first, then stably by time. Same tree, same lists."""
    logs: list[dict[str, Any]] = []
    accounting: list[dict[str, Any]] = []
    for session, turn, op in walk_ops(root):
        context = {
            "path": op.path,
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "txnId": session.id,
            "parentTxnId": session.parent_txn_id,
            "originTxnId": session.origin_txn_id,
        }
        kind = "llm" if op.kind == "llm" else "tool"
        for entry in op.logs:
            place = {"turn": turn.index, "type": kind, "remoteIdentifier": op.name}
            logs.append({**_plain(entry), **place, **context})
        accounting.extend({**_accounted(entry), **context} for entry in op.accounting)
    logs.sort(key=_time)
    accounting.sort(key=_time)
    return Flat(logs, accounting)


def _plain(entry: LogEntry | AccountingEntry) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(entry), type=dict[str, Any])


def _accounted(entry: AccountingEntry) -> dict[str, Any]:
    """Return an entry with what each line of a ledger has, also where it is the default."""
    found: dict[str, Any] = {**_plain(entry), "status": entry.status}
    if entry.tokens is not None:
        found["tokens"] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **found["tokens"]}
    return found


def to_plain(tree: Tree) -> dict[str, Any]:
    """Return a tree as plain values, as a saved file shows it."""
    try:
        data = msgspec.json.encode(tree)
    except Exception:  # noqa: BLE001 - texts that JSON cannot hold, in a tree that no journal has seen yet
        data = msgspec.json.encode(sanitize(tree))
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def _time(entry: dict[str, Any]) -> float:
    timestamp: float = entry["timestamp"]
    return timestamp
