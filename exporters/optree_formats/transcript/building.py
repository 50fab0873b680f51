"""One run's session while it is read: its nodes are made as they are named, and what was said in an op is put together at the end."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import (
    UNKNOWN,
    OpBegin,
    OpKind,
    Payload,
    Reasoning,
    ReasoningChunk,
    Status,
    TurnBegin,
    decode,
    is_list,
    is_object,
    last_index,
    raw,
    trace_id,
)
from optree.tree import apply
from optree_formats.transcript import messages
from optree_formats.transcript.wire import ContentBlock, Event, MessagePayload, StepPayload, ToolPayload

_STATUSES = ("ok", "failed", "cancelled", "interrupted")


class Talk(Struct):
    """What was said in an op."""

    asked: list[messages.Said] = []
    answered: list[ContentBlock] = []
    ts: float = 0.0
    """When it answered."""
    partial: bool | None = None
    """True if the answer broke off."""
    trusted: bool = True
    """False if what a step gave as its result may be less than what it said."""


class Building:
    """The session of one run."""

    def __init__(self, txn: str, path: str, started_at: float) -> None:
        self.txn = txn
        self.session: SessionNode = apply.new_session(txn, path, trace_id(txn), UNKNOWN, UNKNOWN, started_at)
        self.links: dict[str, OperationNode] = {}
        """Ops by the ids of the runs that they called."""
        self._turns: dict[int, TurnNode] = {}
        self._ops: dict[str, OperationNode] = {}
        self._talks: dict[str, Talk] = {}

    def turn(self, index: int, ts: float) -> TurnNode:
        """Return a turn, made if it is not there."""
        turn = self._turns.get(index)
        if turn is None:
            path = f"{self.session.path}.{index}" if self.session.path else str(index)
            turn = self._turns[index] = apply.begin_turn(self.session, TurnBegin(path, ts))
        return turn

    def op(self, turn: int, index: int, ts: float, kind: OpKind = "system", name: str = UNKNOWN) -> OperationNode:
        """Return an op, made if it is not there."""
        above = self.turn(turn, ts)
        path = f"{above.path}.{index}"
        op = self._ops.get(path)
        if op is None:
            op = self._ops[path] = apply.begin_op(self.txn, above, OpBegin(path, ts, kind, name))
        return op

    def talk(self, op: OperationNode) -> Talk:
        """Return what was said in an op so far."""
        return self._talks.setdefault(op.path, Talk())

    def finish(self) -> SessionNode:
        """Return the session, its turns and ops in order."""
        self.session.turns.sort(key=_index_of_turn)
        for turn in self.session.turns:
            turn.ops.sort(key=_index_of_op)
        for path, talk in self._talks.items():
            _say(self._ops[path], talk)
        return self.session


def told(event: Event) -> dict[str, Any]:
    """Return what stands beside the seed's members; attributes stay as they are written."""
    return {name: value if name == "attributes" else decode(value) for name, value in (event.optree or {}).items()}


def attributes(beside: dict[str, Any]) -> Raw | UnsetType:
    """Return the attributes among it."""
    found = beside.get("attributes", UNSET)
    return found if isinstance(found, Raw) and bytes(found).startswith(b"{") else UNSET


def outcome(payload: Any, beside: dict[str, Any]) -> tuple[Status | None, str | None]:
    """Return how something ended; None where its writer did not know."""
    if "status" in beside and beside["status"] in (*_STATUSES, None):
        error = beside.get("error")
        return beside["status"], error if isinstance(error, str) else None
    error = payload.error if isinstance(payload, (StepPayload, ToolPayload)) else payload.get("error") if is_object(payload) else None
    said = error if isinstance(error, str) and error else None
    failed = said is not None or (is_object(payload) and payload.get("status") in ("failed", "error", "failure"))
    return "failed" if failed else "ok", said


def end_op(op: OperationNode, ts: float, payload: Any, beside: dict[str, Any]) -> None:
    """End an op, with what it gave."""
    op.ended_at = ts
    op.latency = max(0.0, ts - op.started_at)
    op.status, op.error = outcome(payload, beside)
    op.attributes_json = apply.merged(op.attributes_json, attributes(beside))
    given = payload.output if isinstance(payload, ToolPayload) else payload.result if isinstance(payload, StepPayload) else UNSET
    if (response := held(given)) is not None:
        response.partial = beside.get("partial") is True or None
        op.response = response


def held(value: Raw | UnsetType, kind: str | None = None) -> Payload | None:
    """Return a value as a payload; None for null."""
    if value is UNSET or bytes(value) == b"null":
        return None
    data = bytes(value)
    return Payload(value, kind, len(decode(data)) if data.startswith(b'"') else len(data))


def hear(talk: Talk, payload: Any, beside: dict[str, Any], ts: float) -> None:
    """Take a message up into what was said."""
    blocks = blocks_of(payload)
    if isinstance(payload, MessagePayload) and payload.role == "assistant":
        talk.answered += blocks
        talk.ts = ts
        talk.partial = beside.get("partial") is True or None
    else:
        talk.asked += zip(roles_of(blocks, beside), blocks, strict=True)


def roles_of(blocks: list[ContentBlock], beside: dict[str, Any]) -> list[str]:
    """Return the role of each block of a user's message."""
    given = beside.get("roles")
    return [str(role) for role in given] if is_list(given) and len(given) == len(blocks) else messages.roles(blocks)


def blocks_of(payload: Any) -> list[ContentBlock]:
    """Return the blocks of a message; none of what is no message."""
    found: Any = payload.blocks if isinstance(payload, MessagePayload) else payload
    return [block for block in found if isinstance(block, ContentBlock)] if is_list(found) else []


def _say(op: OperationNode, talk: Talk) -> None:
    """Give an op its request, its answer and its thoughts."""
    if talk.asked and op.request is None:
        op.request = held(raw(messages.request_of(talk.asked)), "llm")
    said = messages.answer_of(talk.answered)
    if said is not None and (op.response is None or not talk.trusted):
        op.response = held(raw(said))
        if op.response is not None:
            op.response.partial = talk.partial
    if thought := messages.thoughts(talk.answered):
        op.reasoning = Reasoning((ReasoningChunk(thought, talk.ts),)) if op.ended_at is None else Reasoning(final=thought)


def _index_of_turn(turn: TurnNode) -> int:
    return turn.index


def _index_of_op(op: OperationNode) -> int:
    return last_index(op.path)
