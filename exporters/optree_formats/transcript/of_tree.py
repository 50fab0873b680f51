"""A whole tree as the records that made it, in the order of time, and as the events of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from optree import records as r
from optree.nodes import OperationNode, SessionNode, TurnNode
from optree.tree import Tree, walk_sessions
from optree_formats.transcript.runs import run_id_of
from optree_formats.transcript.transcriber import Said, Transcriber
from optree_formats.transcript.wire import Event

RUN_ID = "runId"
"""The attribute of a sub-agent's session that holds its run id, where it was read from a transcript that others wrote."""
_ALONE: dict[str, Any] = {"alone": True}
Timed = tuple[float, r.Record]


def transcripts(tree: Tree) -> dict[str, list[Event]]:
    """Return each run's events, by the path of its session: the root's first, parents before children. Each run is numbered from 1."""
    found: dict[str, list[Event]] = {session.path: [] for session in walk_sessions(tree.session)}

    def emit(path: str, event: Event) -> None:
        events = found[path]
        event.seq = len(events) + 1
        events.append(event)

    transcriber = Transcriber(tree.session.origin_txn_id, tree.pool, emit, known(tree))
    for record in records(tree):
        transcriber.take(record)
    transcriber.finish()
    return found


def records(tree: Tree) -> list[r.Record]:
    """Return what a transcript is made from, in the order of time; of nodes at the same time, in that of the tree."""
    found: list[Timed] = []
    pending: list[Iterator[Timed | OperationNode]] = [_of_session(tree.session, tree.session.started_at)]
    while pending:
        for item in pending[-1]:
            if isinstance(item, OperationNode):
                pending.append(_of_session(item.child_session, item.started_at) if item.child_session else iter(()))
                break
            found.append(item)
        else:
            pending.pop()
    found.sort(key=lambda timed: timed[0])
    return [record for _, record in found]


def known(tree: Tree) -> dict[str, dict[str, Any]]:
    """Return what is told of nodes at their start, since it is known."""
    found: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for session in walk_sessions(tree.session):
        told = {"title": session.session_title, "latestStatus": session.latest_status}
        given = session.attributes.get(RUN_ID) if session.path else None
        own = given if isinstance(given, str) and run_id_of(given) == given and given not in taken else None
        taken.update([own] if own else ())
        found[session.path] = {
            "run_id": own,
            "told": {name: value for name, value in told.items() if value is not None},
        }
        for turn in session.turns:
            if turn.ended_at is None and turn.assistant is not None:
                found[turn.path] = {"told": {"assistant": turn.assistant}}
            found.update((op.path, _ALONE) for op in turn.ops if op.kind == "session" and op.child_session is None)
    return found


def _of_session(session: SessionNode, begun: float) -> Iterator[Timed | OperationNode]:
    """Yield a session's records, and each op with a session inside in its place. A child stands where its op began: that waits for it."""
    begin = r.SessionBegin(session.path, session.started_at, session.agent_id, session.call_path, session.attributes_json)
    yield begun, begin
    for ts in session.resumed_at:
        yield ts, r.SessionResume(session.path, ts)
    for turn in session.turns:
        yield from _of_turn(turn)
    if session.ended_at is not None:
        yield session.ended_at, r.SessionEnd(session.path, session.ended_at, session.status, session.error, session.final_report)


def _of_turn(turn: TurnNode) -> Iterator[Timed | OperationNode]:
    yield turn.started_at, r.TurnBegin(turn.path, turn.started_at, turn.prompts, turn.attributes_json)
    for op in turn.ops:
        yield from _of_op(op)
    if turn.ended_at is not None:
        if turn.assistant is not None:
            yield turn.ended_at, r.TurnSet(turn.path, turn.assistant)
        yield turn.ended_at, r.TurnEnd(turn.path, turn.ended_at, turn.status, turn.error)


def _of_op(op: OperationNode) -> Iterator[Timed | OperationNode]:
    path, begun = op.path, op.started_at
    yield begun, r.OpBegin(path, begun, op.kind, op.name, op.parent_op, op.attributes_json)
    if op.request is not None:
        yield begun, r.Requested(path, begun, op.request)
    if op.child_session is not None:
        yield op
    at = begun if op.ended_at is None else op.ended_at
    final = op.reasoning.final if op.reasoning is not None else None
    if op.reasoning is not None and op.reasoning.chunks and final is None:
        yield at, r.Entries(path, chunks=op.reasoning.chunks)
    if op.response is not None:
        yield at, r.Responded(path, at, op.response)
    if op.ended_at is not None:
        yield at, r.OpEnd(path, at, op.status, op.latency, op.error, final, UNSET)
    elif op.reasoning is not None or op.response is not None:
        yield at, Said(path, at, final)
