"""Events of runs that optree wrote: what stands at a turn's path or an op's goes back to where it came from."""

from __future__ import annotations

from typing import Any

from optree import OperationNode, TurnNode
from optree.exporting import decode, is_object
from optree_formats.transcript import messages
from optree_formats.transcript.building import Building, attributes, blocks_of, end_op, hear, held, outcome, roles_of, told
from optree_formats.transcript.steps import KINDS
from optree_formats.transcript.wire import Event, StepPayload, ToolPayload

_OP_KINDS: dict[str, Any] = {step: op for op, step in KINDS.items()}


def take(building: Building, place: tuple[int, int], event: Event, ts: float) -> None:
    """Take an event at the path of a turn or an op; what only repeats what messages tell is passed over."""
    beside = told(event)
    if "from" in beside:
        return
    if place[1]:
        _at_op(building.op(*place, ts, *_named(event)), building, event, ts, beside)
    else:
        _at_turn(building.turn(place[0], ts), event, ts, beside)


def _named(event: Event) -> tuple[Any, str]:
    """Return the kind and name of the op that an event begins, should it not be there."""
    payload = event.payload
    if isinstance(payload, ToolPayload):
        return "tool", payload.name
    if isinstance(payload, StepPayload):
        return _OP_KINDS.get(payload.kind, "system"), payload.name
    return "llm", "(unknown)"


def _at_turn(turn: TurnNode, event: Event, ts: float, beside: dict[str, Any]) -> None:
    payload = event.payload
    if event.type == "step.started":
        turn.started_at = ts
        turn.attributes_json = attributes(beside)
        turn.assistant = _texts(beside.get("assistant"))
    elif event.type == "step.completed":
        turn.ended_at = ts
        turn.status, turn.error = outcome(payload, beside)
        result = decode(payload.result) if isinstance(payload, StepPayload) and payload.result else None
        turn.assistant = {"content": result} if isinstance(result, str) else _texts(result)
    elif blocks := blocks_of(payload):
        said = zip(roles_of(blocks, beside), blocks, strict=True)
        turn.prompts = {**(turn.prompts or {}), **{role: messages.plain_text(block) for role, block in said}}


def _at_op(op: OperationNode, building: Building, event: Event, ts: float, beside: dict[str, Any]) -> None:
    payload = event.payload
    if event.child_run_id:
        building.links[event.child_run_id] = op
    if event.type.startswith("message."):
        hear(building.talk(op), payload, beside, ts)
    elif "kind" in beside:  # an op of another kind that called a run: its own events tell the rest
        return
    elif event.type in ("step.started", "step.call_workflow.started", "tool.call"):
        op.kind, op.name = _named(event)
        op.started_at = ts
        op.attributes_json = attributes(beside)
        op.parent_op = parent if isinstance(parent := beside.get("parentOp"), str) else None
    else:
        end_op(op, ts, payload, beside)
    if isinstance(payload, ToolPayload) and op.request is None:
        op.request = held(payload.input, "tool")


def _texts(value: Any) -> dict[str, str] | None:
    """Return an object whose members are all texts."""
    return value if is_object(value) and all(isinstance(item, str) for item in value.values()) else None
