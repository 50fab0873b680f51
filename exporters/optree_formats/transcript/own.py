"""Events of runs that optree wrote: what stands at a turn's path or an op's goes back to where it came from."""

from __future__ import annotations

from typing import Any

from optree import TurnNode
from optree.exporting import UNKNOWN, OpBegin, TurnBegin, TurnEnd, TurnSet, decode, is_object
from optree_formats.transcript import messages
from optree_formats.transcript.building import Building, attributes, blocks_of, hear, held, outcome, roles_of, text_of, told
from optree_formats.transcript.steps import KINDS
from optree_formats.transcript.wire import Event, StepPayload, ToolPayload

_BEGINS = frozenset(["step.started", "step.call_workflow.started", "tool.call"])
_OP_KINDS: dict[str, Any] = {step: op for op, step in KINDS.items()}


def take(building: Building, place: tuple[int, int], event: Event, ts: float) -> None:
    """Take an event at the path of a turn or an op; what only repeats what messages tell is passed over."""
    beside = told(event)
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
        said = zip(roles_of(blocks, beside), blocks, strict=True)
        building.put(TurnSet(turn.path, prompts={role: messages.plain_text(block) for role, block in said}))


def _at_op(building: Building, path: str, event: Event, ts: float, beside: dict[str, Any]) -> None:
    payload, ops = event.payload, building.fold.ops
    of_another = "kind" in beside  # an op of another kind that called a run: its own events tell the rest
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
