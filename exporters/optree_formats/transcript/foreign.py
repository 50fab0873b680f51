"""Events of runs that others wrote: steps by their paths, ``parallel_block.branch_a`` or ``loop:0/step``, tools by their call ids."""

from __future__ import annotations

from collections import Counter
from typing import Any

from optree.nodes import OperationNode, OpKind
from optree.store.lines import Fault
from optree.values import raw
from optree_formats.transcript.building import Building, attributes, end_op, hear, held, told
from optree_formats.transcript.opened import Opened
from optree_formats.transcript.wire import Event, StepPayload, ToolPayload

_KINDS: dict[str, OpKind] = {"agent": "llm", "call_workflow": "session"}
_TURN = 1
_ABOVE = 64
"""How many steps above its own an op's parent is looked for: it keeps reading linear, however long a path is."""
_AGENTS = ()
"""The key of all open steps of agents: no path."""
Call = tuple[str, bytes]
"""A tool's name and input."""


class Foreign:
    """Makes ops of one run's foreign events, all in one turn."""

    def __init__(self, building: Building, events: list[Event], faults: list[Fault]) -> None:
        self._building = building
        self._faults = faults
        self._steps = Opened()
        """Steps that have begun, by path, and by path and iteration."""
        self._agents = Opened()
        """Those of agents, by path, and all of them."""
        self._calls = Opened()
        """Calls without a result, by id."""
        self._routed = Counter(_call(event.payload) for event in events if event.type == "tool.call" and _is_routed(event.payload))
        self._used = False
        self._doubled: set[str] = set()
        """Ids under which agents report what the router saw too."""

    def take(self, event: Event, ts: float) -> None:
        """Take an event; one that is of no known type is left out."""
        handler = {
            "step.started": self._start,
            "step.call_workflow.started": self._start,
            "step.completed": self._complete,
            "step.call_workflow.completed": self._complete,
            "message.user": self._message,
            "message.assistant": self._message,
            "tool.call": self._tool_call,
            "tool.result": self._tool_result,
        }.get(event.type)
        if handler is not None:
            handler(event, ts)

    def finish(self) -> None:
        """End the turn with its session, if there is one."""
        session = self._building.session
        for turn in session.turns if self._used else ():
            if turn.index == _TURN:
                turn.ended_at, turn.status, turn.error = session.ended_at, session.status, session.error

    def _begin(self, event: Event, ts: float, kind: OpKind, name: str, step: dict[str, Any]) -> OperationNode:
        self._used = True
        turn = self._building.turn(_TURN, self._building.session.started_at)
        op = self._building.op(_TURN, len(turn.ops) + 1, ts, kind, name)
        own = attributes(told(event))
        about = {name: value for name, value in {"path": event.path, "iteration": event.iteration, **step}.items() if value}
        op.attributes_json = raw({"step": about}) if not isinstance(own, bytes) and about else own
        above = self._above(event.path) or (self._agents.last(_AGENTS) if kind == "tool" else None)
        op.parent_op = above.path if above is not None and above is not op else None
        return op

    def _above(self, path: str) -> OperationNode | None:
        """Return the open step whose path leads to this one, the nearest."""
        for _ in range(_ABOVE):
            path = path[: max(path.rfind("."), path.rfind("/"), 0)]
            found = self._steps.last(path) if path else None
            if found is not None or not path:
                return found
        return None

    def _start(self, event: Event, ts: float) -> OperationNode:
        payload = event.payload
        known = payload if isinstance(payload, StepPayload) else StepPayload(name=event.path, kind="")
        kind: OpKind = "session" if event.child_run_id else _KINDS.get(known.kind, "system")
        op = self._begin(event, ts, kind, known.name or event.path, {"kind": known.kind})
        self._steps.add(op, event.path, (event.path, event.iteration))
        if kind == "llm":
            self._agents.add(op, event.path, _AGENTS)
            self._building.talk(op).trusted = False
        if event.child_run_id:
            self._building.links.setdefault(event.child_run_id, op)
        return op

    def _complete(self, event: Event, ts: float) -> None:
        op = self._steps.last((event.path, event.iteration))
        if op is None:
            self._faults.append(Fault(0, f"seq {event.seq}: step {event.path!r} ends that did not begin; kept"))
            op = self._start(event, ts)
        self._steps.drop(op, event.path, (event.path, event.iteration))
        self._agents.drop(op, event.path, _AGENTS)
        end_op(op, ts, event.payload, told(event))

    def _message(self, event: Event, ts: float) -> None:
        op = self._agents.last(event.path) or self._agents.last(_AGENTS)
        if op is None:
            op = self._begin(event, ts, "llm", event.path or "agent", {})
            self._agents.add(op, event.path, _AGENTS)
            self._steps.add(op, event.path, (event.path, event.iteration))
        hear(self._building.talk(op), event.payload, told(event), ts)

    def _tool_call(self, event: Event, ts: float) -> OperationNode | None:
        payload = event.payload
        if not isinstance(payload, ToolPayload):
            return None
        if not _is_routed(payload) and self._routed[_call(payload)] > 0:
            self._routed[_call(payload)] -= 1
            self._doubled.add(payload.call_id)
            return None
        op = self._begin(event, ts, "tool", payload.name, {"callId": payload.call_id, "fidelity": payload.fidelity})
        op.request = held(payload.input, "tool")
        self._calls.add(op, payload.call_id)
        return op

    def _tool_result(self, event: Event, ts: float) -> None:
        payload = event.payload
        if not isinstance(payload, ToolPayload):
            return
        op = self._calls.first(payload.call_id)
        if op is None and payload.call_id in self._doubled:
            self._doubled.discard(payload.call_id)
            return
        if op is None:
            self._faults.append(Fault(0, f"seq {event.seq}: a result of call {payload.call_id!r}, which is not open; kept"))
            op = self._tool_call(event, ts)
        if op is not None:
            self._calls.drop(op, payload.call_id)
            end_op(op, ts, payload, told(event))


def _is_routed(payload: Any) -> bool:
    return isinstance(payload, ToolPayload) and payload.fidelity == "router"


def _call(payload: ToolPayload) -> Call:
    return payload.name, bytes(payload.input)
