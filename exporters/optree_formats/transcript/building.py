"""One run's session while it is read: each event becomes records, and the messages of an op are put together at the end.

Writers of the program that the format comes from have `workflow_name` and `status` in them, or null. Only the difference is kept, in the
session's attribute `KEPT`, so that whatever else is there comes from the tree.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins

from optree import AccountingEntry, OperationNode, SessionNode, TurnNode
from optree.exporting import (
    Accounted,
    Entries,
    Fold,
    OpEnd,
    OpSet,
    Payload,
    ReasoningChunk,
    Requested,
    Responded,
    Status,
    TurnBegin,
    TypedDecoder,
    decode,
    is_list,
    is_object,
    parts_of_name,
    raw,
)
from optree_formats.transcript import messages
from optree_formats.transcript.wire import WORKFLOW, ContentBlock, Event, MessagePayload, StepPayload, ToolPayload, decoded, line

_STATUSES = ("ok", "failed", "cancelled", "interrupted")
KEPT: Final = "transcript"
"""Attribute of a session: by `started` and `completed`, what others wrote there."""
_OWN = ("name", "kind", "error", "result")
_members: TypedDecoder[dict[str, Any]] = TypedDecoder(dict[str, Raw])


class Talk(Struct):
    """The messages of an op."""

    asked: list[messages.SentBlock] = []
    answered: list[ContentBlock] = []
    ts: float = 0.0
    """When it answered."""
    partial: bool | None = None
    """True if the answer broke off."""
    trusted: bool = True
    """False if a step's result may be less than its message."""


class Building:
    """The records of one run's session, and its nodes so far."""

    def __init__(self, fold: Fold, path: str) -> None:
        self.path = path
        self._above = f"{path}." if path else ""
        self.fold = fold
        self.put = fold.apply
        self.links: dict[str, str] = {}
        """Paths of ops by the ids of the runs that they called."""
        self._talks: dict[str, Talk] = {}

    @property
    def session(self) -> SessionNode:
        """The session, which has begun."""
        return self.fold.sessions[self.path]

    def turn(self, index: int, ts: float) -> TurnNode:
        """Return a turn, begun if it is not there."""
        path = f"{self._above}{index}"
        if path not in self.fold.turns:
            self.put(TurnBegin(path, ts))
        return self.fold.turns[path]

    def op_path(self, turn: int, index: int) -> str:
        """Return the path of an op."""
        return f"{self._above}{turn}.{index}"

    def talk(self, op: str) -> Talk:
        """Return the messages of an op so far."""
        return self._talks.get(op) or self._talks.setdefault(op, Talk())

    def give(self, op: str, ts: float, *, request: Payload | None = None, response: Payload | None = None) -> None:
        """Record what an op sent or got, if it did."""
        if request is not None:
            self.put(Requested(op, ts, request))
        if response is not None:
            self.put(Responded(op, ts, response))

    def end_op(self, op: OperationNode, ts: float, payload: Any, beside: dict[str, Any]) -> None:
        """End an op, with what it gave."""
        output = payload.output if isinstance(payload, ToolPayload) else payload.result if isinstance(payload, StepPayload) else UNSET
        if (response := held(output)) is not None:
            response.partial = beside.get("partial") is True or None
        self.give(op.path, ts, response=response)
        status, error = outcome(payload, beside)
        self.put(OpEnd(op.path, ts, status, max(0.0, ts - op.started_at), error, None, attributes(beside)))

    def finish(self) -> None:
        """Record the messages of ops: their requests, their answers and their thoughts."""
        for path, talk in self._talks.items():
            self._say(self.fold.ops[path], talk)

    def account(self) -> None:
        """Give each call that has ended an entry, as a call without accounting has: it counts, and its cost is unknown, not 0."""
        calls = [op for turn in self.session.turns for op in turn.ops if op.kind in ("llm", "tool") and op.ended_at is not None]
        for op in calls:
            entry = AccountingEntry(f"{op.op_id}#0", op.ended_at or 0.0, "llm" if op.kind == "llm" else "tool", latency=op.latency)
            if op.status in ("failed", "cancelled", "interrupted"):
                entry.status, entry.error = "failed", op.error
            if op.kind == "llm":
                entry.provider, entry.model = parts_of_name(op.name)
            else:
                entry.command = op.name
                entry.characters_in = op.request.size if op.request else 0
                entry.characters_out = op.response.size if op.response else 0
            self.put(Accounted(op.path, entry))

    def _say(self, op: OperationNode, talk: Talk) -> None:
        if talk.asked and op.request is None:
            self.give(op.path, op.started_at, request=held(raw(messages.request_of(talk.asked)), "llm"))
        answer = messages.answer_of(talk.answered)
        if answer is not None and (op.response is None or not talk.trusted) and (response := held(raw(answer))) is not None:
            response.partial = talk.partial
            self.give(op.path, talk.ts, response=response)
        thought = messages.thoughts(talk.answered)
        if thought and op.ended_at is None:
            self.put(Entries(op.path, chunks=[ReasoningChunk(thought, talk.ts)]))
        elif thought:
            self.put(OpSet(op.path, op.ended_at or talk.ts, reasoning=thought))


def beside_of(event: Event) -> dict[str, Any]:
    """Return the members of an event beside the seed's; attributes stay as they are written."""
    return {name: value if name == "attributes" else decode(value) for name, value in (event.optree or {}).items()}


def text_of(value: Any) -> str | None:
    """Return a text; None for a value that is not a text."""
    return value if isinstance(value, str) else None


def attributes(beside: dict[str, Any]) -> Raw | UnsetType:
    """Return the attributes among the members beside the seed's."""
    value = beside.get("attributes", UNSET)
    return value if isinstance(value, Raw) and bytes(value).startswith(b"{") else UNSET


def outcome(payload: Any, beside: dict[str, Any]) -> tuple[Status | None, str | None]:
    """Return how something ended; None where its writer did not know."""
    if "status" in beside and beside["status"] in (*_STATUSES, None):
        error = beside.get("error")
        return beside["status"], text_of(error)
    error = payload.error if isinstance(payload, (StepPayload, ToolPayload)) else payload.get("error") if is_object(payload) else None
    message = error if isinstance(error, str) and error else None
    failed = message is not None or (is_object(payload) and payload.get("status") in ("failed", "error", "failure"))
    return "failed" if failed else "ok", message


def held(value: Raw | UnsetType, kind: str | None = None) -> Payload | None:
    """Return a value as a payload; None for null."""
    if value is UNSET or bytes(value) == b"null":
        return None
    data = bytes(value)
    return Payload(value, kind, len(decode(data)) if data.startswith(b'"') else len(data))


def hear(talk: Talk, payload: Any, beside: dict[str, Any], ts: float) -> None:
    """Add a message to the messages of an op."""
    blocks = blocks_of(payload)
    if isinstance(payload, MessagePayload) and payload.role == "assistant":
        talk.answered += blocks
        talk.ts = ts
        talk.partial = beside.get("partial") is True or None
    else:
        talk.asked += zip(roles_of(blocks, beside), blocks, strict=True)


def roles_of(blocks: list[ContentBlock], beside: dict[str, Any]) -> list[str]:
    """Return the role of each block of a user's message."""
    listed = beside.get("roles")
    return [str(role) for role in listed] if is_list(listed) and len(listed) == len(blocks) else messages.roles(blocks)


def blocks_of(payload: Any) -> list[ContentBlock]:
    """Return the blocks of a message; none for a payload that is not a message."""
    blocks: Any = payload.blocks if isinstance(payload, MessagePayload) else payload
    return [block for block in blocks if isinstance(block, ContentBlock)] if is_list(blocks) else []


class EventDifference(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Of a payload that is an object: members that are not the tree's, and those of the tree's that it does not have."""

    members: dict[str, Any] = {}
    without: list[str] = []


class Kept(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a run; None for null."""

    started: EventDifference | UnsetType | None = UNSET
    completed: EventDifference | UnsetType | None = UNSET
    started_more: dict[str, Any] = {}
    """Members beside the payload that the format does not have."""
    completed_more: dict[str, Any] = {}


def difference(event: Event) -> dict[str, Any]:
    """Return what is to be kept of the event of a run's start or end, by its name; nothing for one as optree writes it."""
    name = event.type.removeprefix("run.")
    more = {f"{name}_more": {key: decoded(value) for key, value in event.more.items()}} if event.more else {}
    return {**_of_payload(name, event), **more}


def _of_payload(name: str, event: Event) -> dict[str, Any]:
    payload = decoded(_members(line(event))["payload"])
    if payload is None:
        return {name: None}
    if not is_object(payload):
        return {}
    if isinstance(event.payload, StepPayload):
        members = {key: value for key, value in payload.items() if key not in _OWN or (key == "kind" and value != WORKFLOW)}
    else:  # nothing of it but a name and an outcome is in the tree
        members = payload
    without = [key for key in ("name", "kind", "error") if key not in payload and (members is payload or key == "name")]
    return {name: to_builtins(EventDifference(members, without))} if members or without else {}


def kept_of(attributes: dict[str, Any]) -> Kept:
    """Return what is kept of a run; nothing where the attribute is not one of optree's."""
    try:
        return msgspec.convert(attributes.get(KEPT, {}), Kept)
    except msgspec.ValidationError:
        return Kept()


def put_back(kept: EventDifference | UnsetType | None, payload: StepPayload) -> Any:
    """Return a payload as it was: the tree's members, with those that are kept."""
    if kept is UNSET:
        return payload
    if kept is None:
        return None
    result: dict[str, Any] = {"name": payload.name, "kind": payload.kind}
    result.update({"error": payload.error} if payload.error else {})
    result.update({} if payload.result is UNSET else {"result": payload.result})
    return {**{name: value for name, value in result.items() if name not in kept.without}, **kept.members}


def agrees(kept: EventDifference | UnsetType | None, status: Status | None, error: str | None, *, reported: bool) -> bool:
    """Tell whether the kept members of an end still hold: a session that was resumed since may have ended otherwise."""
    if isinstance(kept, EventDifference):
        return "kind" not in kept.without or (status, error) == outcome(kept.members, {})
    return (status, error, reported) == ("ok", None, False)
