"""The wire form of seed 002: one JSON object a line, its members in the seed's order, what is unset left out.

`Event` is the envelope; its payload is a `StepPayload`, `MessagePayload` or `ToolPayload`, a list of `ContentBlock`, None, or any other
JSON value. Members that the seed does not name are kept in `more`, and written again behind those that it does.

A step that others wrote has a path and a kind of its own, in its op's attribute `STEP`, and its run has no turns: the one turn of its
session has the attribute `TURNLESS`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import floor
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, field

from optree.exporting import (
    Fault,
    OpBegin,
    Status,
    TypedDecoder,
    decode,
    encode,
    is_list,
    is_object,
    last_index,
    parent_path,
    pass_on,
    sanitize,
)

EventType = Literal[
    "run.started", "run.completed", "step.started", "step.completed", "step.call_workflow.started", "step.call_workflow.completed",
    "message.user", "message.assistant", "tool.call", "tool.result",
]  # fmt: skip
BlockType = Literal["text", "thinking", "tool_use", "tool_result", "command", "stream"]
Fidelity = Literal["router", "agent_emitted"]
"""`router`: seen where the call passed, so it did happen; `agent_emitted`: reported by the agent."""
EVENT_TYPES: frozenset[str] = frozenset(get_args(EventType))
BLOCK_TYPES: frozenset[str] = frozenset(get_args(BlockType))
NULL = Raw(b"null")
_MORE = "$optree.more"
"""A name that no member has, under which what is in `more` would be written if it were not moved up."""
_MARK = b'"$optree.more":{'
encoder = msgspec.json.Encoder()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANO = 10**9
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The years 1 and 9999; what lies outside is written as the epoch's begin."""
_FORM = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
WORKFLOW: Final = "workflow"
TURN: Final = "turn"
CALL: Final = "call_workflow"
KINDS: Final = {"llm": "agent", "session": CALL, "system": "operation", "tool": "tool"}
"""Kinds of ops, and those of steps."""
_PATH = re.compile(r"turn_(0|[1-9]\d{0,17})(?:\.op_([1-9]\d{0,17}))?", re.ASCII)
STEP: Final = "step"
"""Attribute of an op: its step as others wrote it, with `path`, `iteration`, `kind` and what else `Place` has."""
TURNLESS: Final = "turnless"
"""Attribute of a turn: the run that it comes from has none."""
TIMES, FIDELITY, ORDER, TEXTS = "times", "fidelity", "order", "texts"
CONTENTS, EVENTS, PLACES, MEMBERS = "contents", "events", "places", "members"
UNLIKE: Final = {
    TIMES: "times of messages of other programs' steps",
    FIDELITY: "fidelity of blocks of their messages",
    ORDER: "order and number of blocks of their messages",
    TEXTS: "that blocks of their messages were commands or streams: they are texts",
    CONTENTS: "contents of blocks of their messages as they were",
    EVENTS: "that what was said in a step of theirs were several messages: it is one",
    PLACES: "paths and iterations of further messages of their steps",
    MEMBERS: "members of their events that the format does not have",
}
"""What of steps that others wrote is not held, by the words for it in `unlike` of an op's attribute `STEP`."""


class _Object(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False, kw_only=True):
    """Base: an object with members that are not known in `more`, each as the JSON that it had."""

    more: dict[str, Raw] | None = field(default=None, name=_MORE)


class ContentBlock(_Object, kw_only=True):
    """A piece of a message; which fields are used follows from its type."""

    type: BlockType
    fidelity: Fidelity
    text: str = ""
    thinking: str = ""
    tool_name: str = ""
    tool_id: str = ""
    tool_input: Raw | UnsetType = UNSET
    tool_content: Raw | UnsetType = UNSET
    command: str = ""
    chunk: str = ""


class StepPayload(_Object, kw_only=True):
    """What began or ended: a run or a step of it."""

    name: str
    kind: str
    error: str = ""
    result: Raw | UnsetType = UNSET
    """Any JSON value; of an event that says an end."""


class MessagePayload(_Object, kw_only=True):
    """A message of the user's or the assistant's side."""

    role: Literal["user", "assistant"]
    blocks: list[ContentBlock]


class ToolPayload(_Object, kw_only=True):
    """A tool's call or result; input and output are always written, null where there is none."""

    name: str
    call_id: str
    input: Raw
    output: Raw
    error: str = ""
    fidelity: Fidelity


Payload = StepPayload | MessagePayload | ToolPayload
if TYPE_CHECKING:
    Held: TypeAlias = Any
    Json: TypeAlias = Any
else:
    Held = Raw  # decoded in a second step: the payload itself does not name its type
    Json = Raw  # kept as it was written


class Event(_Object, kw_only=True):
    """One line: the envelope. *seq* is the recorder's to give."""

    seq: Annotated[int, Meta(ge=0)] = field()
    run_id: str
    parent_run_id: str = ""
    child_run_id: str = ""
    type: EventType
    path: str
    iteration: int
    timestamp: str
    payload: Held
    optree: dict[str, Json] | None = None
    """Our member beside the seed's: what of a tree's node has no place in them. The seed lets envelopes grow."""


_members: TypedDecoder[dict[str, Any]] = TypedDecoder(dict[str, Raw])


def line(event: Event) -> bytes:
    """Return an event as a line, without its newline. Text that JSON cannot hold is marked (U+FFFD)."""
    try:
        data = encoder.encode(event)
    except Exception as error:  # noqa: BLE001 - lone surrogates: never lose an event for them
        pass_on(error)
        data = encoder.encode(sanitize(event))
    if _MARK in data:  # or a text that looks so
        data = encoder.encode(_whole(event))
    return data if b"\n" not in data else encode(decode(data))  # values that were kept as they were may have line breaks in them


def _whole(value: Any) -> Any:
    """Return what is encoded for an object with the members in `more` behind its own."""
    if is_list(value):
        return [_whole(item) for item in value]
    if not isinstance(value, _Object):
        return value
    members = _members(encoder.encode(value))
    members.pop(_MORE, None)
    for name in ("payload", "blocks"):
        if name in members:
            members[name] = _whole(getattr(value, name))
    return {**members, **(value.more or {})}


def is_sound(event: Event) -> bool:
    """Tell whether all values that are kept as they were written can be decoded: that they are JSON does not say so of huge numbers."""
    payload = event.payload
    values: list[Any] = [*(event.optree or {}).values()]
    if isinstance(payload, StepPayload):
        values.append(payload.result)
    elif isinstance(payload, ToolPayload):
        values += (payload.input, payload.output)
    blocks: list[Any] = payload.blocks if isinstance(payload, MessagePayload) else payload if is_list(payload) else []
    for block in blocks:
        values += (block.tool_input, block.tool_content) if isinstance(block, ContentBlock) else ()
    try:
        for value in values:
            if isinstance(value, Raw):
                decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def beside_begin(begin: OpBegin) -> dict[str, Any]:
    """Return the part of an op's begin that the seed's members do not hold."""
    parent = {} if begin.parent_op is None else {"parentOp": begin.parent_op}
    return {**parent, **beside(begin.attributes)}


def beside(block: Raw | UnsetType) -> dict[str, Any]:
    """Return a block of attributes as it stands beside the seed's members."""
    return {} if block is UNSET else {"attributes": block}


def beside_end(payload: StepPayload | ToolPayload, status: Status | None, error: str | None) -> dict[str, Any]:
    """Write an end's error into its payload; returns the part that the seed's members do not hold."""
    if status != "ok":
        payload.error = error or status or ""
    exact = (status == "ok" and error is None) or (status == "failed" and bool(error))
    return {} if exact else {"status": status, "error": error}


def text_block(text: str) -> ContentBlock:
    """Return a prompt as a block."""
    return ContentBlock(type="text", fidelity="router", text=text)


def result_of(value: Raw | UnsetType) -> Raw | UnsetType:
    """Return a step's result; one that is null is left out."""
    return UNSET if value is UNSET or bytes(value).strip() == b"null" else value


def decoded(data: Raw) -> Any:
    """Return a payload's value; as text where it cannot be decoded, as JSON that others wrote may be."""
    try:
        return decode(data)
    except (DecodeError, RecursionError):
        return bytes(data).decode("utf-8", "replace")


def or_null(value: Raw | UnsetType) -> Raw:
    """Return a tool's input or output; null without one."""
    return NULL if value is UNSET else value


def rfc3339(ms: float) -> str:
    """Return epoch milliseconds as text in UTC: as many digits of a second as it takes, nine at most."""
    known = ms if _FIRST_MS <= ms <= _LAST_MS else 0.0
    whole = floor(known)
    seconds, nano = divmod(whole * 10**6 + round((known - whole) * 1e6), _NANO)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    return f"{text}.{nano:09d}".rstrip("0") + "Z" if nano else f"{text}Z"


def milliseconds(text: str) -> float | None:
    """Return a timestamp's epoch milliseconds, whatever its zone; None for text that is no time, or names no zone."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    date, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        return None
    since = moment - _EPOCH
    nano = int(f"{fraction or ''}000000000"[:9])
    return ((since.days * 86_400 + since.seconds) * _NANO + nano) / 10**6


def step_path(path: str) -> str:
    """Return a node's path as that of a step of its run."""
    index = last_index(path)
    return f"turn_{last_index(parent_path(path))}.op_{index}" if path.count(".") % 2 else f"turn_{index}"


def own_path(step: str) -> tuple[int, int] | None:
    """Return the numbers of the turn and the op (0: the turn itself) that a step is; None for a step that others wrote."""
    match = _PATH.fullmatch(step)
    return None if match is None else (int(match[1]), int(match[2] or 0))


class NotHeld(Fault):
    """The part of a valid file that a tree does not hold: it is reported, and strict reading does not refuse it."""


class Place(Struct, frozen=True, rename="camel"):
    """Where the events of a node stand, and what those say who wrote its step; all but the path is empty for steps of ours."""

    path: str
    foreign: bool = False
    iteration: Annotated[int, Meta(ge=0)] = 0
    kind: str = ""
    call_id: str = ""
    fidelity: Fidelity = "router"
    messages: str = ""
    """The path of its messages, where that is another."""
    messages_iteration: Annotated[int, Meta(ge=0)] | None = None
    """That of its messages, where that is another."""
    reported: str = ""
    """The id under which the agent reported the call as well."""
    result: Any = None
    """What it gave, where its response is what was said in it."""
    unsaid: bool = False
    """True if its response is what it gave, and nothing was said in it."""
    type: str = ""
    """Of an event that is of no known type; such an op is that event alone."""


def place_of(attributes: dict[str, Any]) -> Place:
    """Return the place of a step that others wrote; an empty one where the attribute is not one of optree's."""
    step: Any = attributes.get(STEP)
    try:
        place = msgspec.convert({"path": "", **(step if is_object(step) else {}), "foreign": True}, Place)
    except msgspec.ValidationError:
        return Place("", foreign=True)
    return msgspec.structs.replace(place, type="") if place.type in EVENT_TYPES else place


def messages_place(place: Place) -> Place:
    """Return where an op's messages stand."""
    return Place(place.messages or place.path, iteration=place.iteration if place.messages_iteration is None else place.messages_iteration)
