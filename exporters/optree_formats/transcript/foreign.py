"""Events of runs that others wrote: steps by their paths, ``parallel_block.branch_a`` or ``loop:0/step``, tools by their call ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from msgspec import UNSET, Raw

from optree import OperationNode
from optree.exporting import Fault, OpBegin, OpEnd, OpKind, OpSet, TurnBegin, TurnEnd, TypedDecoder, decode, is_object, raw
from optree_formats.transcript import messages
from optree_formats.transcript.building import Building, attributes, beside_of, blocks_of, hear, held, roles_of
from optree_formats.transcript.wire import (
    CONTENTS,
    EVENT_TYPES,
    EVENTS,
    FIDELITY,
    MEMBERS,
    ORDER,
    PLACES,
    STEP,
    TEXTS,
    TIMES,
    TURNLESS,
    UNLIKE,
    ContentBlock,
    Event,
    NotHeld,
    StepPayload,
    ToolPayload,
    line,
)

_KINDS: dict[str, OpKind] = {"agent": "llm", "call_workflow": "session"}
_TURN = 1
_ABOVE = 64
"""How many steps above its own an op's parent is looked for: it keeps reading linear, however long a path is."""
_members: TypedDecoder[dict[str, Any]] = TypedDecoder(dict[str, Raw])
_AGENTS = ()
"""The key of all open steps of agents: no path."""
ANSWERED = "answered"
"""That the time of an answer is that of its step's end is known at the end only."""
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
        self._reports: dict[Call, list[str]] = {}
        """The same, by call, until the router's is met."""
        self._about: dict[str, tuple[OperationNode, dict[str, Any]]] = {}
        """By op, what stands in its attribute `step`."""

    def take(self, event: Event, ts: float) -> None:
        """Take an event; one that is of no known type becomes an op of the system."""
        handler = {
            "step.started": self._start,
            "step.call_workflow.started": self._start,
            "step.completed": self._complete,
            "step.call_workflow.completed": self._complete,
            "message.user": self._message,
            "message.assistant": self._message,
            "tool.call": self._tool_call,
            "tool.result": self._tool_result,
        }.get(event.type, self._other)
        op = handler(event, ts)
        if op is None:
            return
        if event.child_run_id and not event.type.startswith(("message.", "tool.")):
            self._building.links.setdefault(event.child_run_id, op.path)
        if _has_more(event):
            self._lose(op, MEMBERS)

    def finish(self) -> None:
        """End the turn with its session, if there is one, and give ops what is known of their steps."""
        put, session = self._building.put, self._building.session
        if self._used:
            turn = self._building.turn(_TURN, session.started_at)
            put(TurnBegin(turn.path, turn.started_at, turn.prompts, raw({TURNLESS: True})))
            if session.ended_at is not None:
                put(TurnEnd(turn.path, session.ended_at, session.status, session.error))
        self._name_losses()
        for op, about in self._about.values():
            if "result" in about and not self._building.talk(op.path).answered:
                del about["result"]
                about["unsaid"] = True
            step = {name: value for name, value in about.items() if value or name in ("result", "messagesIteration")}
            if step:
                put(OpSet(op.path, op.started_at, attributes=raw({STEP: step})))

    def _name_losses(self) -> None:
        """Note which parts of their messages the ops do not hold, and report them with the number of ops."""
        for op, about in self._about.values():
            if about.get("unlike") and op.ended_at is not None and self._building.talk(op.path).ts == op.ended_at:
                about["unlike"] = [kind for kind in about["unlike"] if kind != ANSWERED]
            if "unlike" in about:
                about["unlike"] = sorted({TIMES if kind == ANSWERED else kind for kind in about["unlike"]})
        lost = Counter(what for _, about in self._about.values() for what in about.get("unlike", ()))
        if lost:
            losses = ", ".join(f"{UNLIKE[what]} ({number})" for what, number in sorted(lost.items()))
            self._faults.append(NotHeld(0, f"not held of what others wrote: {losses}"))

    def _lose(self, op: OperationNode, *what: str) -> None:
        """Note what an op does not hold."""
        about = self._about[op.path][1]
        about["unlike"] = sorted({*about.get("unlike", ()), *what})

    def _other(self, event: Event, ts: float) -> OperationNode:
        """Keep an event of a type that is not known."""
        op = self._begin(event, ts, "system", event.type, {"type": event.type})
        self._building.give(op.path, ts, response=held(_members(line(event)).get("payload", UNSET)))
        self._building.put(OpEnd(op.path, ts, None, 0.0))
        return op

    def _begin(self, event: Event, ts: float, kind: OpKind, name: str, step: dict[str, Any]) -> OperationNode:
        self._used = True
        turn = self._building.turn(_TURN, self._building.session.started_at)
        above = self._above(event.path) or (self._agents.last(_AGENTS) if kind == "tool" else None)
        path = self._building.op_path(_TURN, len(turn.ops) + 1)
        self._building.put(OpBegin(path, ts, kind, name, None if above is None else above.path, attributes(beside_of(event))))
        op = self._building.fold.ops[path]
        earlier = op.attributes.get(STEP)
        self._about[op.path] = op, {"path": event.path, "iteration": event.iteration, **step, **(earlier if is_object(earlier) else {})}
        return op

    def _above(self, path: str) -> OperationNode | None:
        """Return the open step whose path leads to this one, the nearest."""
        for _ in range(_ABOVE):
            path = path[: max(path.rfind("."), path.rfind("/"), 0)]
            result = self._steps.last(path) if path else None
            if result is not None or not path:
                return result
        return None

    def _start(self, event: Event, ts: float) -> OperationNode:
        payload = event.payload
        known = payload if isinstance(payload, StepPayload) else StepPayload(name=event.path, kind="")
        kind: OpKind = "session" if event.child_run_id else _KINDS.get(known.kind, "system")
        op = self._begin(event, ts, kind, known.name or event.path, {"kind": known.kind})
        self._steps.add(op, event.path, (event.path, event.iteration))
        if kind == "llm":
            self._agents.add(op, event.path, _AGENTS)
            self._building.talk(op.path).trusted = False
        return op

    def _complete(self, event: Event, ts: float) -> OperationNode:
        op = self._steps.last((event.path, event.iteration))
        if op is None:
            self._faults.append(Fault(0, f"seq {event.seq}: step {event.path!r} ends that did not begin; kept"))
            op = self._start(event, ts)
        self._steps.drop(op, event.path, (event.path, event.iteration))
        self._agents.drop(op, event.path, _AGENTS)
        self._building.end_op(op, ts, event.payload, beside_of(event))
        if op.kind == "llm" and op.response is not None:
            self._about[op.path][1]["result"] = decode(op.response.payload)
        return op

    def _message(self, event: Event, ts: float) -> OperationNode:
        op = self._agents.last(event.path) or self._agents.last(_AGENTS)
        if op is None:
            op = self._begin(event, ts, "llm", event.path or "agent", {})
            self._agents.add(op, event.path, _AGENTS)
            self._steps.add(op, event.path, (event.path, event.iteration))
        about, talk = self._about[op.path][1], self._building.talk(op.path)
        first = not talk.asked and not talk.answered
        if first and event.path != about.get("path"):
            about["messages"] = event.path
        if first and event.iteration != about.get("iteration"):
            about["messagesIteration"] = event.iteration
        place = about.get("messages", about.get("path")), about.get("messagesIteration", about.get("iteration"))
        several = talk.asked if event.type == "message.user" else talk.answered
        self._lose(
            op, *_unlike(event, ts, op), *([EVENTS] if several else ()), *([PLACES] if place != (event.path, event.iteration) else ())
        )
        hear(talk, event.payload, beside_of(event), ts)
        return op

    def _tool_call(self, event: Event, ts: float) -> OperationNode | None:
        payload = event.payload
        if not isinstance(payload, ToolPayload):
            return None
        if not _is_routed(payload) and self._routed[_call(payload)] > 0:
            self._routed[_call(payload)] -= 1
            self._doubled.add(payload.call_id)
            self._reports.setdefault(_call(payload), []).append(payload.call_id)
            return None
        op = self._begin(event, ts, "tool", payload.name, {"callId": payload.call_id, "fidelity": payload.fidelity})
        reports = self._reports.get(_call(payload)) if _is_routed(payload) else None
        if reports:
            self._about[op.path][1]["reported"] = reports.pop(0)
        self._building.give(op.path, ts, request=held(payload.input, "tool"))
        self._calls.add(op, payload.call_id)
        return op

    def _tool_result(self, event: Event, ts: float) -> OperationNode | None:
        payload = event.payload
        if not isinstance(payload, ToolPayload):
            return None
        op = self._calls.first(payload.call_id)
        if op is None and payload.call_id in self._doubled:
            self._doubled.discard(payload.call_id)
            return None
        if op is None:
            self._faults.append(Fault(0, f"seq {event.seq}: a result of call {payload.call_id!r}, which is not open; kept"))
            op = self._tool_call(event, ts)
        if op is not None:
            self._calls.drop(op, payload.call_id)
            self._building.end_op(op, ts, payload, beside_of(event))
        return op


def _has_more(event: Event) -> bool:
    """Tell whether an event has members that a step does not hold; the payload of one that is of no known type is kept as it is."""
    payload: Any = event.payload
    inner = (payload, *blocks_of(payload)) if event.type in EVENT_TYPES else ()
    return event.more is not None or any(getattr(part, "more", None) is not None for part in inner)


def _unlike(event: Event, ts: float, op: OperationNode) -> set[str]:
    """Return what of a message's event is not written again as it is."""
    blocks = blocks_of(event.payload)
    asked = event.type == "message.user"
    kinds = [block.type for block in blocks]
    losses: set[str] = set() if asked else {ANSWERED}
    if asked and ts != op.started_at:
        losses.add(TIMES)
    if any(block.fidelity != ("router" if asked else "agent_emitted") for block in blocks):
        losses.add(FIDELITY)
    if asked:
        back = [
            block for _, block in messages.sent(messages.request_of(list(zip(roles_of(blocks, beside_of(event)), blocks, strict=True))))
        ]
    else:
        back = messages.answer(messages.answer_of(blocks), messages.thoughts(blocks))
    if kinds != [block.type for block in back]:
        losses |= set() if {*kinds} & {"command", "stream"} else {ORDER}
    elif any(_content(block) != _content(written) for block, written in zip(blocks, back, strict=True)):
        losses.add(CONTENTS)
    return losses | ({TEXTS} if {"command", "stream"} & {*kinds} else set())


def _content(block: ContentBlock) -> tuple[object, ...]:
    """Return the content of a block; the text of a command or a stream is a text."""
    tool_input, tool_content = (None if value is UNSET else decode(value) for value in (block.tool_input, block.tool_content))
    return messages.plain_text(block), block.tool_name, block.tool_id, tool_input, tool_content, block.tool_content is UNSET


def _is_routed(payload: Any) -> bool:
    return isinstance(payload, ToolPayload) and payload.fidelity == "router"


def _call(payload: ToolPayload) -> Call:
    return payload.name, bytes(payload.input)


class Opened:
    """Ops under keys; an op may stand under several. A key without ops is not kept."""

    def __init__(self) -> None:
        self._ops: dict[Hashable, dict[str, OperationNode]] = {}

    def add(self, op: OperationNode, *keys: Hashable) -> None:
        """Put an op under keys, behind those that are there."""
        for key in keys:
            self._ops.setdefault(key, {})[op.path] = op

    def drop(self, op: OperationNode, *keys: Hashable) -> None:
        """Take an op away from keys, where it stands under them."""
        for key in keys:
            ops = self._ops.get(key, {})
            ops.pop(op.path, None)
            if not ops:
                self._ops.pop(key, None)

    def first(self, key: Hashable) -> OperationNode | None:
        """Return the op under a key that began first."""
        return next(iter(self._ops.get(key, {}).values()), None)

    def last(self, key: Hashable) -> OperationNode | None:
        """Return the op under a key that began last."""
        return next(reversed(self._ops.get(key, {}).values()), None)
