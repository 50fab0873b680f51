"""Runs as a tree. Ours come back as they were; what others wrote becomes one turn a run, each step an op in it.

Of foreign steps, kind ``agent`` becomes an llm op, ``call_workflow`` a session op, all others (``command``, ``parallel``, ``for_each``…)
system ops; tools' calls become tool ops. Where a step stood is in the op's attribute ``step``; its parent is the op that its path leads to.
A call that was reported by the agent, and that the router saw too, is one op: the router's.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from optree import SessionNode, Tree, TurnNode
from optree.exporting import (
    UNKNOWN,
    Fault,
    Fold,
    OpBegin,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    TurnBegin,
    TurnEnd,
    TurnSet,
    decode,
    is_object,
    is_txn,
    node_id,
    raw,
    txn_of,
)
from optree_formats.transcript import messages
from optree_formats.transcript.building import (
    KEPT,
    Building,
    attributes,
    beside_of,
    blocks_of,
    difference,
    hear,
    held,
    outcome,
    roles_of,
    text_of,
)
from optree_formats.transcript.foreign import Foreign
from optree_formats.transcript.of_tree import RUN_ID
from optree_formats.transcript.runs import Family, Run, run_id_of
from optree_formats.transcript.wire import KINDS, Event, StepPayload, ToolPayload, milliseconds, own_path

ARROW = "->"
_BEGINS = frozenset(["step.started", "step.call_workflow.started", "tool.call"])
_OP_KINDS: dict[str, Any] = {step: op for op, step in KINDS.items()}


def tree_of(family: Family) -> Tree:
    """Return a run and all below it as a tree; what does not fit together is added to the family's faults."""
    fold = Fold(_txn(family.root))
    pending = [(family.root, _session(fold, "", family.root, None, family.faults))]
    while pending:
        run, building = pending.pop()
        for child_id, child in run.children.items():
            op = building.links.get(child_id)
            if op is None or op in fold.sessions:
                family.faults.append(
                    Fault(0, f"run {child_id} is left out: no step of {run.run_id} begins it, or one that has begun another")
                )
                continue
            pending.append((child, _session(fold, op, child, building.session, family.faults)))
    return fold.finish()


def _txn(run: Run) -> str:
    """Return the txn of a run's tree: the one that it names, where its run id follows from that; else its run id."""
    for event in run.events:
        named = beside_of(event).get("txn") if event.type == "run.started" else None
        if isinstance(named, str) and is_txn(named) and run_id_of(named) == run.run_id:
            return named
    return txn_of(run.run_id, "run")


def _session(fold: Fold, path: str, run: Run, parent: SessionNode | None, faults: list[Fault]) -> Building:
    """Record one run's session, without its children."""
    latest = next((ms for event in run.events if (ms := milliseconds(event.timestamp)) is not None), 0.0)
    name = _agent(run)
    call_path = name if parent is None else f"{parent.call_path}{ARROW}{name}"
    building = Building(fold, path)
    building.put(SessionBegin(path, latest, name, call_path))
    session = building.session
    foreign = Foreign(building, run.events, faults)
    begun = False
    more: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for event in run.events:
        ts = milliseconds(event.timestamp)
        latest = latest if ts is None else ts
        if event.type == "run.started" and begun:
            building.put(SessionResume(path, latest))
        elif event.type == "run.started":
            beside = beside_of(event)
            building.put(SessionBegin(path, latest, name, call_path, attributes(beside)))
            building.put(_title(path, latest, beside))
            kept.update(difference(event))
            begun = True
        elif event.type == "run.completed":
            beside, payload = beside_of(event), event.payload
            report = payload.result if isinstance(payload, StepPayload) else UNSET
            ended = max([latest, *session.resumed_at])  # a clock may have been set back meanwhile
            building.put(SessionEnd(path, ended, *outcome(payload, beside), report))
            building.put(_title(path, latest, beside))
            kept.update(difference(event))
        elif (place := own_path(event.path)) is not None:
            take_own(building, place, event, latest)
        else:
            foreign.take(event, latest)
    building.finish()
    foreign.finish()
    building.account()
    if kept:
        more[KEPT] = kept
    if parent is not None and run_id_of(node_id(fold.txn, path)) != run.run_id and RUN_ID not in session.attributes:
        more[RUN_ID] = run.run_id
    building.put(SessionSet(path, session.started_at, attributes=raw(more) if more else UNSET))
    return building


def _title(path: str, ts: float, beside: dict[str, Any]) -> SessionSet:
    return SessionSet(path, ts, text_of(beside.get("title")), text_of(beside.get("latestStatus")))


def _agent(run: Run) -> str:
    """Return the name of a run's workflow: that of its first start, else of its end."""
    starts = [event for event in run.events if event.type == "run.started"][:1]
    ends = [event for event in run.events if event.type == "run.completed"]
    return next((name for event in [*starts, *ends] if (name := _name(event.payload)) != UNKNOWN), UNKNOWN)


def _name(payload: Any) -> str:
    """Return a workflow's name; older writers have it in an object of their own."""
    name = payload.name if isinstance(payload, StepPayload) else payload.get("workflow_name") if is_object(payload) else None
    return name if isinstance(name, str) else UNKNOWN


def take_own(building: Building, place: tuple[int, int], event: Event, ts: float) -> None:
    """Take an event at the path of a turn or an op; one that only repeats messages is passed over."""
    beside = beside_of(event)
    if "from" in beside:
        return
    if place[1]:
        _at_op(building, building.op_path(*place), event, ts, beside)
    else:
        _at_turn(building, building.turn(place[0], ts), event, ts, beside)


def _named(event: Event) -> tuple[Any, str]:
    """Return the kind and name of the op that an event begins, should it not be there."""
    payload = event.payload
    if isinstance(payload, ToolPayload):
        return "tool", payload.name
    if isinstance(payload, StepPayload):
        return _OP_KINDS.get(payload.kind, "system"), payload.name
    return "llm", UNKNOWN


def _at_turn(building: Building, turn: TurnNode, event: Event, ts: float, beside: dict[str, Any]) -> None:
    payload = event.payload
    if event.type == "step.started":
        building.put(TurnBegin(turn.path, ts, turn.prompts, attributes(beside)))
        building.put(TurnSet(turn.path, _texts(beside.get("assistant"))))
    elif event.type == "step.completed":
        result = decode(payload.result) if isinstance(payload, StepPayload) and payload.result else None
        building.put(TurnSet(turn.path, {"content": result} if isinstance(result, str) else _texts(result)))
        building.put(TurnEnd(turn.path, ts, *outcome(payload, beside)))
    elif blocks := blocks_of(payload):
        by_role = zip(roles_of(blocks, beside), blocks, strict=True)
        building.put(TurnSet(turn.path, prompts={role: messages.plain_text(block) for role, block in by_role}))


def _at_op(building: Building, path: str, event: Event, ts: float, beside: dict[str, Any]) -> None:
    payload, ops = event.payload, building.fold.ops
    of_another = "kind" in beside  # an op of another kind that called a run: the rest is in its own events
    begins = event.type in _BEGINS and not of_another
    if begins:
        building.put(OpBegin(path, ts, *_named(event), text_of(beside.get("parentOp")), attributes(beside)))
    elif path not in ops:
        building.put(OpBegin(path, ts, *_named(event)))
    if event.child_run_id:
        building.links[event.child_run_id] = path
    if event.type.startswith("message."):
        hear(building.talk(path), payload, beside, ts)
    elif of_another:
        return
    elif not begins:
        building.end_op(ops[path], ts, payload, beside)
    if isinstance(payload, ToolPayload) and ops[path].request is None:
        building.give(path, ts, request=held(payload.input, "tool"))


def _texts(value: Any) -> dict[str, str] | None:
    """Return an object whose members are all texts."""
    return value if is_object(value) and all(isinstance(item, str) for item in value.values()) else None
