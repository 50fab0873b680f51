"""The way back from a tree to records: what takes the records of a running session takes those of a saved one too."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import groupby

from msgspec import UNSET

from optree import _records as r
from optree._ids import node_id
from optree._nodes import OperationNode, SessionNode, TurnNode
from optree._tree.fold import Tree
from optree._tree.text import op_seen

_Timed = tuple[float, r.Record]
_Walk = Generator[tuple[SessionNode, float], float | None, float]
"""Yields each child session with the time at which its op began, is sent the latest time in it, and returns the latest time in all."""


def unfold(tree: Tree) -> list[r.Record]:
    """Return the records that make a tree, in the order of time: folded, they give an equal tree, but for `seen_at`.

    What is in a node comes after its begin, and before its end, even if its times say otherwise; only log lines may come after the end of
    their op, and they, like all of an op that has no end, after the end of its turn and session. Records of the same time are in the order
    of the tree. The reasoning chunks of an op are one record, at the time of the first; its log lines are one as long as nothing else comes
    between them.
    """
    timed: list[_Timed] = []
    walks = [_session(tree.session, tree.session.started_at, timed)]
    latest: float | None = None
    while walks:  # and no recursion: a tree may be deeper than Python's limit
        try:
            child, begun = walks[-1].send(latest)
            walks.append(_session(child, begun, timed))
            latest = None
        except StopIteration as ended:
            walks.pop()
            latest = ended.value
    timed.sort(key=_time)
    result = [*_joined(record for _, record in timed)]
    if tree.pool.blobs or tree.pool.links:
        result.insert(0, r.Pooled(blobs=tree.pool.blobs, links=[(link, *rest) for link, rest in tree.pool.links.items()]))
    return result


def _session(session: SessionNode, earliest: float, timed: list[_Timed]) -> _Walk:
    path, begun = session.path, max(earliest, session.started_at)
    own = _own_id(session.id, session.origin_txn_id, path)
    timed.append((begun, r.SessionBegin(path, session.started_at, session.agent_id, session.call_path, session.attributes_json, own)))
    report = session.final_report if session.ended_at is None else UNSET  # else its end has it
    if session.session_title is not None or session.latest_status is not None or report is not UNSET:
        change = r.SessionSet(path, session.started_at, session.session_title, session.latest_status, final_report=report)
        timed.append((begun, change))
    latest = begun
    for ts in session.resumed_at:
        latest = max(latest, ts)
        timed.append((latest, r.SessionResume(path, ts)))
    moment = begun
    for at, message in enumerate(session.messages):
        moment = max(moment, message.timestamp)
        timed.append((moment, r.MessageAdded(path, at, message)))
    latest = max(latest, moment)
    for turn in session.turns:
        latest = max(latest, (yield from _turn(turn, session.origin_txn_id, begun, timed)))
    if session.ended_at is not None:
        latest = max(latest, session.ended_at)
        timed.append((latest, r.SessionEnd(path, session.ended_at, session.status, session.error, session.final_report)))
    return latest


def _turn(turn: TurnNode, txn: str, earliest: float, timed: list[_Timed]) -> _Walk:
    latest = begun = max(earliest, turn.started_at)
    own = _own_id(turn.id, txn, turn.path)
    timed.append((begun, r.TurnBegin(turn.path, turn.started_at, turn.prompts, turn.attributes_json, own)))
    for op in turn.ops:
        latest = max(latest, (yield from _op(op, txn, begun, timed)))
    if turn.ended_at is not None:
        latest = max(latest, turn.ended_at)
    if turn.assistant is not None:
        timed.append((latest, r.TurnSet(turn.path, turn.assistant)))
    if turn.ended_at is not None:
        timed.append((latest, r.TurnEnd(turn.path, turn.ended_at, turn.status, turn.error)))
    return latest


def _op(op: OperationNode, txn: str, earliest: float, timed: list[_Timed]) -> _Walk:
    path, begun = op.path, max(earliest, op.started_at)
    own = _own_id(op.op_id, txn, path)
    timed.append((begun, r.OpBegin(path, op.started_at, op.kind, op.name, op.parent_op, op.attributes_json, own)))
    if op.request is not None:
        timed.append((begun, r.Requested(path, op.started_at, op.request)))
    inside = None if op.child_session is None else (yield op.child_session, begun)
    latest = max(begun, inside or begun, op.ended_at or begun)
    ended = latest if op.ended_at is not None else max(latest, op_seen(op))
    if op.reasoning is not None and op.reasoning.chunks:
        timed.append((min(max(begun, op.reasoning.chunks[0].ts), ended), r.Entries(path, chunks=op.reasoning.chunks)))
    moment = begun
    for at, entry in enumerate(op.logs):
        moment = max(moment, entry.timestamp)
        timed.append((moment, r.Entries(path, at, [entry])))
    moment = begun
    for cost in op.accounting:
        moment = min(max(moment, cost.timestamp), ended)
        timed.append((moment, r.Accounted(path, cost)))
    if op.response is not None:
        timed.append((ended, r.Responded(path, ended, op.response)))
    final = None if op.reasoning is None else op.reasoning.final
    if op.ended_at is not None:
        timed.append((ended, r.OpEnd(path, op.ended_at, op.status, op.latency, op.error, final)))
    elif final is not None:
        timed.append((ended, r.OpSet(path, ended, reasoning=final)))
    return latest


def _own_id(identity: str, txn: str, path: str) -> str | None:
    return None if identity == node_id(txn, path) else identity


def _joined(records: Iterable[r.Record]) -> Iterator[r.Record]:
    """Yield records, those of one op's log lines as one where nothing is between them."""
    for entries, group in groupby(records, _lines_of):
        if entries is None:
            yield from group
            continue
        first = next(group)
        if isinstance(first, r.Entries):
            first.logs = [*first.logs, *(entry for record in group if isinstance(record, r.Entries) for entry in record.logs)]
        yield first


def _lines_of(record: r.Record) -> str | None:
    return record.path if isinstance(record, r.Entries) and record.logs else None


def _time(timed: _Timed) -> float:
    return timed[0]
