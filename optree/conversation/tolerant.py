"""One line that fits none of the known forms: what of it can be kept is, and the rest is said. Slow, for the few lines that need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from optree.conversation.dialects import BOTH, Wide, WideCreated, WideEntry, WideFragment, WidePiece
from optree.conversation.events import AnyEvent
from optree.redaction import redact
from optree.values import decode, is_list, is_object, plain

_KINDS: dict[str, type[Wide]] = {
    "transcript_entry": WideEntry,
    "piece_of_text": WidePiece,
    "fragment": WideFragment,
    "agent_created": WideCreated,
}
_EDITED = "cuts the transcript of {!r} short, which events have no form for: what was cut is still given"
_LONGEST = 80


def read_line(data: bytes, number: int) -> tuple[AnyEvent | None, list[str]]:
    """Return the event on a line, None if there is none to be had, and what was wrong with it. Never raises."""
    found, said = _parsed(data)
    if not is_object(found):
        return None, said or [f"is no JSON object but {type(found).__name__}: {_short(data)}"]
    kind = found.pop("event_type", None)
    if kind is None and isinstance(found.get("role"), str):  # files that are older than the seeds say so of no entry
        kind = "transcript_entry"
    if kind == "transcript_edit":
        return None, [*said, _EDITED.format(found.get("agent", found.get("agent_id")))]
    if not isinstance(kind, str) or kind not in _KINDS:
        what = "has no event_type" if kind is None else f"is of a type that is not known, {_short(kind)}"
        return None, [*said, f"{what}; known are {', '.join(_KINDS)}"]
    value, mended = _typed(_KINDS[kind], found, number)
    said += mended
    if isinstance(value, WideEntry) and value.both():
        said.append(BOTH)
    return None if value is None else value.event(), said


def _parsed(data: bytes) -> tuple[Any, list[str]]:
    """Return a line's JSON; where it is text that JSON should not hold, with marks in its place."""
    try:
        return decode(data), []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = "is nested too deeply" if isinstance(error, RecursionError) else f"is not JSON ({error}): {_short(data)}"
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None, [said]
    return plain(found), ["holds text or numbers that JSON cannot: they were replaced by marks"]


def _typed(kind: type[Wide], found: dict[str, Any], number: int) -> tuple[Wide | None, list[str]]:
    """Return the members as the form's type; what does not fit is mended, left out, or kept apart."""
    said: list[str] = []
    members: dict[str, Any] = {}
    strange: dict[str, Any] = {}
    for key, value in found.items():
        if key not in kind.__struct_fields__:
            strange[key] = value
        elif (fitting := _fitting(key, value)) is not None:
            members[key] = fitting
        elif value is not None:
            said.append(f"left out its {key}, which is {_short(value)}")
    if strange and kind is WideEntry:
        members["more"] = {**members.get("more", {}), **strange}
    elif strange:
        said.append(f"left out members that are not known here: {', '.join(map(_short, strange))}")
    return _whole(kind, members, number, said), said


def _whole(kind: type[Wide], members: dict[str, Any], number: int, said: list[str]) -> Wide | None:
    """Return a value of the type if nothing is missing that it cannot do without. An id is given to one that has none."""
    if kind in (WideEntry, WideCreated) and not (members.get("agent_id") or members.get("agent")):
        said.append("left out: it names no agent (agent_id)")
        return None
    if kind is WideEntry and not members.get("role"):
        said.append("left out: it has no role")
        return None
    if not members.get("message_id"):
        members["message_id"] = f"line_{number}"
        said.append(f"has no message_id: it is called line_{number}")
    make: Callable[..., Wide] = kind
    return make(**members)


def _fitting(key: str, value: Any) -> Any:
    """Return what a member's value is as its type; None for null, and for what cannot be it."""
    mend: Callable[[Any], Any] = _MENDED.get(key, _name)
    return None if value is None else mend(value)


def _name(value: Any) -> str | None:
    """Return a text, or a number as one: ids come so."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _names(value: Any) -> tuple[str, ...] | None:
    found = tuple(map(_name, value if is_list(value) else [value]))
    return tuple(name for name in found if name is not None) if None not in found else None


def _objects(value: Any) -> list[dict[str, Any]] | None:
    return value if is_list(value) and all(map(is_object, value)) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if is_object(value) else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_it_is(value: Any) -> Any:
    return value


_MENDED: dict[str, Callable[[Any], Any]] = {
    "cause": _names,
    "caused_by": _names,
    "content": _as_it_is,
    "more": _object,
    "timestamp": _time,
    "tool_calls": _objects,
}
"""What makes a member's value fit; all others are names and texts."""


def _short(value: object) -> str:
    shown = redact(value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(redact(value)))
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
