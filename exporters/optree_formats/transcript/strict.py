"""What the writer refuses: it never writes a type that the seed does not have, nor an event that lacks what the seed requires."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import msgspec

from optree import OptreeError
from optree.exporting import TypedDecoder, encode, sanitize
from optree_formats.transcript.times import milliseconds
from optree_formats.transcript.wire import EVENT_TYPES, Event, MessagePayload, Payload, StepPayload, ToolPayload, encoder

_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
LINKS = ("step.call_workflow.started", "step.call_workflow.completed")
_STEP: TypedDecoder[StepPayload] = TypedDecoder(StepPayload)
_MESSAGE: TypedDecoder[MessagePayload] = TypedDecoder(MessagePayload)
_TOOL: TypedDecoder[ToolPayload] = TypedDecoder(ToolPayload)
_OPTIONAL = {"tool.call": "output", "tool.result": "input"}
"""The member of a tool's payload that may be left out, and is null then."""


class InvalidEventError(OptreeError, ValueError):
    """An event that the format does not allow: nothing is written."""


def check(event: Event) -> None:
    """Make an event's payload one of the seed's, a mapping included; raises `InvalidEventError` that says what is wrong with it."""
    if event.type not in EVENT_TYPES:
        said = f"{event.type!r} is no type of event" if event.type else "an event needs a type"
        raise InvalidEventError(f"{said}: choose one of {', '.join(sorted(EVENT_TYPES))}")
    event.payload = payload_of(event.type, event.payload)
    if event.type in LINKS or event.child_run_id:
        check_run_id("child_run_id", event.child_run_id)
    if event.child_run_id and event.type not in LINKS:
        raise InvalidEventError(f"{event.type}: only {' and '.join(LINKS)} have a child_run_id")
    if type(event.path) is not str or type(event.iteration) is not int or event.iteration < 0:
        raise InvalidEventError(f"{event.type}: path is text such as 'a.b', iteration a number from 0")
    if type(event.timestamp) is not str or milliseconds(event.timestamp) is None:
        raise InvalidEventError(f"{event.type}: timestamp is text as RFC 3339 has it, with a zone: 2026-06-08T08:14:42.123Z")


def check_run_id(member: str, value: object) -> None:
    """Raise `InvalidEventError` for text that is no UUID of version 4."""
    if not isinstance(value, str) or _UUID4.fullmatch(value) is None:
        raise InvalidEventError(f"{member} {value!r} is no UUID v4; make one with str(uuid.uuid4())")


def _encoded(given: object) -> bytes:
    """Return a payload as JSON; text that JSON cannot hold, such as half an emoji of a model's stream, is marked (U+FFFD)."""
    if not isinstance(given, msgspec.Struct):
        return encode(given)
    try:
        return encoder.encode(given)
    except UnicodeEncodeError:
        return encoder.encode(sanitize(deepcopy(given)))


def payload_of(kind: str, payload: object) -> Payload | None:
    """Return the payload of an event of that type, from one or from a mapping; raises `InvalidEventError`."""
    if payload is None and kind.startswith("run."):
        return None
    decoder: TypedDecoder[Any] = _MESSAGE if kind.startswith("message.") else _TOOL if kind.startswith("tool.") else _STEP
    given = payload
    if isinstance(payload, Mapping) and kind in _OPTIONAL:
        given = {_OPTIONAL[kind]: None, **cast("Mapping[str, Any]", payload)}
    try:
        found = decoder(_encoded(given))
    except msgspec.ValidationError as error:
        raise InvalidEventError(f"{kind}: its payload is not as the format has it: {error}") from error
    if isinstance(found, MessagePayload) and found.role != kind.removeprefix("message."):
        raise InvalidEventError(f"{kind}: its payload has the role {found.role!r}")
    if (isinstance(found, StepPayload) and not found.kind) or (isinstance(found, ToolPayload) and not found.call_id):
        raise InvalidEventError(f"{kind}: {'kind' if isinstance(found, StepPayload) else 'call_id'} may not be empty")
    return found  # type: ignore[no-any-return]
