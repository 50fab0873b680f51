"""A whole tree as the events of its runs."""

from __future__ import annotations

from typing import Any

from optree import Tree, walk_sessions
from optree.exporting import unfold
from optree_formats.transcript.runs import run_id_of
from optree_formats.transcript.transcriber import Transcriber
from optree_formats.transcript.wire import Event

RUN_ID = "runId"
"""The attribute of a sub-agent's session that holds its run id, where it was read from a transcript that others wrote."""
_ALONE: dict[str, Any] = {"alone": True}


def transcripts(tree: Tree) -> dict[str, list[Event]]:
    """Return each run's events, by the path of its session: the root's first, parents before children. Each run is numbered from 1."""
    found: dict[str, list[Event]] = {session.path: [] for session in walk_sessions(tree.session)}

    def emit(path: str, event: Event) -> None:
        events = found[path]
        event.seq = len(events) + 1
        events.append(event)

    transcriber = Transcriber(tree.session.origin_txn_id, tree.pool, emit, known(tree))
    for record in unfold(tree):
        transcriber.take(record)
    transcriber.finish(answers=True)
    return found


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
