"""What the events of a run's start and end say otherwise than optree would: kept with its session, and put back when that is written.

Writers of the program that the format comes from have `workflow_name` and `status` in them, or null. Only the difference is kept, in the
session's attribute `KEPT`, so that whatever else is there comes from the tree.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins

from optree.exporting import Status, TypedDecoder, is_object
from optree_formats.transcript.building import outcome
from optree_formats.transcript.steps import WORKFLOW
from optree_formats.transcript.wire import Event, StepPayload, decoded, line

KEPT: Final = "transcript"
"""Attribute of a session: by `started` and `completed`, what others wrote there."""
_OWN = ("name", "kind", "error", "result")
_members: TypedDecoder[dict[str, Any]] = TypedDecoder(dict[str, Raw])


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
    """Return what is kept of a run; nothing where the attribute is none of ours."""
    try:
        return msgspec.convert(attributes.get(KEPT, {}), Kept)
    except msgspec.ValidationError:
        return Kept()


def put_back(found: EventDifference | UnsetType | None, payload: StepPayload) -> Any:
    """Return a payload as it was: what the tree says, with what is kept."""
    if found is UNSET:
        return payload
    if found is None:
        return None
    made: dict[str, Any] = {"name": payload.name, "kind": payload.kind}
    made.update({"error": payload.error} if payload.error else {})
    made.update({} if payload.result is UNSET else {"result": payload.result})
    return {**{name: value for name, value in made.items() if name not in found.without}, **found.members}


def agrees(found: EventDifference | UnsetType | None, status: Status | None, error: str | None, *, reported: bool) -> bool:
    """Tell whether what is kept of an end is true of it still: a session that was resumed since may have ended otherwise."""
    if isinstance(found, EventDifference):
        return "kind" not in found.without or (status, error) == outcome(found.members, {})
    return (status, error, reported) == ("ok", None, False)
