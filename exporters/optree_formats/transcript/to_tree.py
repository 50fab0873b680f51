"""Runs as a tree. Ours come back as they were; what others wrote becomes one turn a run, each step an op in it.

Of foreign steps, kind ``agent`` becomes an llm op, ``call_workflow`` a session op, all others (``command``, ``parallel``, ``for_each``…)
system ops; tools' calls become tool ops. Where a step stood is in the op's attribute ``step``; its parent is the op that its path leads to.
A call that was reported by the agent, and that the router saw too, is one op: the router's.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from optree import SessionNode, Tree
from optree.exporting import UNKNOWN, Fault, Pool, SessionEnd, SessionResume, is_object, is_txn, node_id, raw, txn_of
from optree.tree import Fold, apply
from optree_formats.transcript import own
from optree_formats.transcript.building import Building, attributes, outcome, told
from optree_formats.transcript.foreign import Foreign
from optree_formats.transcript.kept import KEPT, difference
from optree_formats.transcript.of_tree import RUN_ID
from optree_formats.transcript.runs import Family, Run, run_id_of
from optree_formats.transcript.steps import own_path
from optree_formats.transcript.times import milliseconds
from optree_formats.transcript.wire import Event, StepPayload

ARROW = "->"


def tree_of(family: Family) -> Tree:
    """Return a run and all below it as a tree; what does not fit together is added to the family's faults."""
    root = _session(_txn(family.root), "", family.root, None, family.faults)
    pending = [(family.root, root)]
    while pending:
        run, building = pending.pop()
        for child_id, child in run.children.items():
            op = building.links.get(child_id)
            if op is None or op.child_session is not None:
                family.faults.append(
                    Fault(0, f"run {child_id} is left out: no step of {run.run_id} begins it, or one that has begun another")
                )
                continue
            below = _session(building.txn, op.path, child, building.session, family.faults)
            op.child_session = below.session
            pending.append((child, below))
    return Fold(root.txn, Tree(root.session, Pool())).finish()


def _txn(run: Run) -> str:
    """Return the txn of a run's tree: the one that it names, where its run id follows from that; else its run id."""
    for event in run.events:
        named = told(event).get("txn") if event.type == "run.started" else None
        if isinstance(named, str) and is_txn(named) and run_id_of(named) == run.run_id:
            return named
    return txn_of(run.run_id, "run")


def _session(txn: str, path: str, run: Run, parent: SessionNode | None, faults: list[Fault]) -> Building:
    """Build one run's session, without its children."""
    latest = next((ms for event in run.events if (ms := milliseconds(event.timestamp)) is not None), 0.0)
    building = Building(txn, path, latest)
    foreign = Foreign(building, run.events, faults)
    begun = False
    kept: dict[str, Any] = {}
    for event in run.events:
        ts = milliseconds(event.timestamp)
        latest = latest if ts is None else ts
        if event.type == "run.started":
            _start(building.session, event, latest, again=begun)
            kept.update({} if begun else difference(event))
            begun = True
        elif event.type == "run.completed":
            _complete(building.session, event, latest)
            kept.update(difference(event))
        elif (place := own_path(event.path)) is not None:
            own.take(building, place, event, latest)
        else:
            foreign.take(event, latest)
    session = building.finish()
    foreign.finish()
    if kept:
        session.attributes_json = raw({**session.attributes, KEPT: kept})
    _place(session, run, parent)
    return building


def _start(session: SessionNode, event: Event, ts: float, *, again: bool) -> None:
    """Begin a session, or open it again."""
    if again:
        apply.resume_session(session, SessionResume(session.path, ts))
        return
    beside = told(event)
    session.agent_id = _name(event.payload)
    session.started_at = ts
    session.attributes_json = attributes(beside)
    _title(session, beside)


def _complete(session: SessionNode, event: Event, ts: float) -> None:
    beside, payload = told(event), event.payload
    status, error = outcome(payload, beside)
    report = payload.result if isinstance(payload, StepPayload) else UNSET
    apply.end_session(session, SessionEnd(session.path, ts, status, error, report))
    if session.agent_id == UNKNOWN:
        session.agent_id = _name(payload)
    _title(session, beside)


def _title(session: SessionNode, beside: dict[str, Any]) -> None:
    title, status = beside.get("title"), beside.get("latestStatus")
    session.session_title = title if isinstance(title, str) else session.session_title
    session.latest_status = status if isinstance(status, str) else session.latest_status


def _name(payload: Any) -> str:
    """Return a workflow's name; older writers have it in an object of their own."""
    found = payload.name if isinstance(payload, StepPayload) else payload.get("workflow_name") if is_object(payload) else None
    return found if isinstance(found, str) else UNKNOWN


def _place(session: SessionNode, run: Run, parent: SessionNode | None) -> None:
    """Give a session its names in the tree."""
    session.call_path = session.agent_id if parent is None else f"{parent.call_path}{ARROW}{session.agent_id}"
    session.parent_txn_id = None if parent is None else parent.id
    if parent is not None and run_id_of(node_id(session.origin_txn_id, session.path)) != run.run_id and RUN_ID not in session.attributes:
        session.attributes_json = raw({**session.attributes, RUN_ID: run.run_id})
