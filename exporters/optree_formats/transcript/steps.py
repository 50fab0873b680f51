"""Where a node stands in its run: ``turn_1`` for a turn, ``turn_1.op_2`` for an op. The numbers are those of the node's own path.

A step that others wrote has a path and a kind of its own, in its op's attribute `STEP`, and its run has no turns: the one turn of its
session has the attribute `TURNLESS`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from optree.exporting import Fault, is_object, last_index, parent_path
from optree_formats.transcript.wire import EVENT_TYPES, Fidelity

WORKFLOW: Final = "workflow"
TURN: Final = "turn"
CALL: Final = "call_workflow"
KINDS: Final = {"llm": "agent", "session": CALL, "system": "operation", "tool": "tool"}
"""Kinds of ops, and those of steps."""
_PATH = re.compile(r"turn_(0|[1-9]\d{0,17})(?:\.op_([1-9]\d{0,17}))?", re.ASCII)


def step_path(path: str) -> str:
    """Return a node's path as that of a step of its run."""
    index = last_index(path)
    return f"turn_{last_index(parent_path(path))}.op_{index}" if path.count(".") % 2 else f"turn_{index}"


def own_path(step: str) -> tuple[int, int] | None:
    """Return the numbers of the turn and the op (0: the turn itself) that a step is; None for a step that others wrote."""
    found = _PATH.fullmatch(step)
    return None if found is None else (int(found[1]), int(found[2] or 0))


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


class NotHeld(Fault):
    """What a tree does not hold of a file that is as it should be: said, and no reason for strict reading to refuse it."""


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
    """Return the place of a step that others wrote; an empty one where the attribute is none of ours."""
    told: Any = attributes.get(STEP)
    try:
        place = msgspec.convert({"path": "", **(told if is_object(told) else {}), "foreign": True}, Place)
    except msgspec.ValidationError:
        return Place("", foreign=True)
    return msgspec.structs.replace(place, type="") if place.type in EVENT_TYPES else place


def messages_place(place: Place) -> Place:
    """Return where an op's messages stand."""
    return Place(place.messages or place.path, iteration=place.iteration if place.messages_iteration is None else place.messages_iteration)
