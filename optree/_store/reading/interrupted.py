"""Closing what processes left open that have gone: as `interrupted`, each node at the last time it was seen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Raw

from optree import _records as r
from optree._builder.figures import model_of
from optree._nodes import (
    PARTIAL,
    REPLAY_OF,
    USAGE_AT_START,
    AccountingEntry,
    OperationNode,
    SessionNode,
    TurnNode,
    has_open_attempt,
    placeholder_of,
)
from optree._store.files.system import OS
from optree._store.reading.reader import read_journal
from optree._tree import apply
from optree._tree.path import parent_label
from optree._tree.text import last_seen, op_seen
from optree._tree.totals import add_entry
from optree._tree.walk import walk_sessions
from optree._values import encode, is_object

WHY = "the process ended before this did"
Node = SessionNode | TurnNode | OperationNode
_KINDS: dict[type[r.Record], type[Node]] = {r.SessionBegin: SessionNode, r.TurnBegin: TurnNode, r.OpBegin: OperationNode}


def open_nodes(root: SessionNode) -> list[Node]:
    """Return all nodes without an end, each before those above it."""
    nodes: list[Node] = []
    pending: list[SessionNode] = [root]
    while pending:
        session = pending.pop()
        nodes.append(session)
        for turn in session.turns:
            nodes.append(turn)
            for op in turn.ops:
                nodes.append(op)
                if op.child_session is not None:
                    pending.append(op.child_session)
    return [node for node in reversed(nodes) if node.ended_at is None]


def interrupt(node: Node, alive: float = 0.0) -> r.Record:
    """End a node, those below it having ended; returns the record of that. *alive* is when its process was known to live, in epoch ms."""
    if isinstance(node, OperationNode):
        seen = max(alive, last_seen(node.child_session) if node.child_session else op_seen(node))
        op_end = r.OpEnd(node.path, seen, "interrupted", seen - node.started_at, WHY)
        apply.end_op(node, op_end)
        return op_end
    if isinstance(node, TurnNode):
        turn_end = r.TurnEnd(node.path, max([node.started_at, alive, *(op.ended_at or 0.0 for op in node.ops)]), "interrupted", WHY)
        apply.end_turn(node, turn_end)
        return turn_end
    session_end = r.SessionEnd(node.path, max(alive, last_seen(node)), "interrupted", WHY)
    apply.end_session(node, session_end)
    return session_end


def account_open(root: SessionNode, nodes: Iterable[Node], alive: float = 0.0) -> list[r.Accounted]:
    """Give each model call among open nodes whose attempt has no accounting entry one as a failed call has: its cost is unknown, not 0.

    It has the tokens that the provider told as its stream began, with ``partial`` among its details. Returns the records of that. An
    entry's id is the same whoever makes it.
    """
    calls = [node for node in nodes if isinstance(node, OperationNode) and node.kind == "llm" and has_open_attempt(node)]
    sessions = {session.path: session for session in walk_sessions(root)} if calls else {}
    records: list[r.Accounted] = []
    for op in calls:
        seen = max(alive, op_seen(op))
        entry = AccountingEntry(placeholder_of(op.op_id), seen, "llm", "failed", seen - op.started_at, *model_of(op), error=WHY)
        _account_start(op, entry)
        if isinstance(of := op.attributes.get(REPLAY_OF), str):
            entry.replay_of, entry.cost_usd = of, 0.0
        apply.account(op, entry)
        path = op.path
        while path:
            path = parent_label(parent_label(path))
            add_entry(sessions[path].totals, entry)
        records.append(r.Accounted(op.path, entry))
    return records


def _account_start(op: OperationNode, entry: AccountingEntry) -> None:
    """Take over the tokens that the provider reported before a stream broke off."""
    if is_object(at_start := op.attributes.get(USAGE_AT_START)):
        from optree._providers.usage import read  # not before it is needed: few calls are broken off

        usage = read(at_start, provider=entry.provider, model=entry.model)
        if usage.tokens is not None:
            entry.tokens, entry.details = usage.tokens, Raw(encode({**usage.rest, PARTIAL: True}))


def close_begun(root: SessionNode, journals: Iterable[Path], system: OS) -> int:
    """End what is open and was begun by the writers of these files, who have gone; returns how many nodes that were.

    The files are read only if anything is open.
    """
    opened = open_nodes(root)
    if not opened:
        return 0
    nodes = _begun(journals, system)
    left = [node for node in opened if (type(node), node.path) in nodes]
    account_open(root, left)
    for node in left:
        interrupt(node)
    return len(left)


def _begun(journals: Iterable[Path], system: OS) -> set[tuple[type[Node], str]]:
    """Return what these writers began, by kind and path: a `session` op and the session inside it have the same path."""
    records = (record for path in journals for record in read_journal(path, 0, system).records)
    return {(_KINDS[type(record)], record.path) for record in records if isinstance(record, r.SessionBegin | r.TurnBegin | r.OpBegin)}
