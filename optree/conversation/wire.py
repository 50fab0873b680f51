"""Events as lines of a file, in the two forms of the seeds; reading also the form that smallchat, their origin, writes by now.

    version 1   seed 000: ``content_id`` for the substance, ``caused_by`` at a piece of text, whose maker is not named
    version 2   seed 001: ``substance``, ``cause`` (a text, or a list of several), ``agent_id`` at a piece of text

A line has the spaces that `json.dumps` gives it, so that the seeds' own examples come out byte by byte and `grep` finds what it found.
Lines of all forms may stand in one file. Reading is streaming: whole blocks decode at once, and what is unusual is read apart.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from optree._store.files.lines import AnyPath, BadLine, Fault, blocks, decoded, opened
from optree._values import decode, encode, is_list, is_object, plain, text_of
from optree.conversation.dialects import BOTH, Wide, WideCreated, WideEntry, WideFragment, WidePiece, events_of, usual_lines, wide_lines
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.errors import FormatError
from optree.redaction import redact

SEED_000, SEED_001 = 1, 2
UNUSUAL = (ValueError, RecursionError)
"""What decoding raises for lines that do not fit a form."""

_LINKS = {SEED_000: ("content_id", "caused_by"), SEED_001: ("substance", "cause")}
"""What a line's links are called, by version."""
_DIGITS = re.compile("0|[1-9][0-9]{0,17}")
_format = msgspec.json.format
_KINDS: dict[str, type[Wide]] = {
    "transcript_entry": WideEntry,
    "piece_of_text": WidePiece,
    "fragment": WideFragment,
    "agent_created": WideCreated,
}
_EDITED = "cuts the transcript of {!r} short, which events have no form for: what was cut is still given"
_LONGEST = 80


def line(event: AnyEvent, version: int = SEED_001, *, numbers: bool = False) -> bytes:
    """Return an event as a line of a file, without its newline; never raises.

    Args:
        event: The event. What JSON cannot hold is replaced by a mark.
        version: The form: 2 (``substance``, ``cause``) or 1 (``content_id``, ``caused_by``), which has no place for times, for who made
            a piece of text, and for the causes of entries and agents.
        numbers: Whether ids that are numbers are written as numbers.
    """
    members = _version_1(event) if version == SEED_000 else _version_2(event)
    if numbers:
        members |= {name: _number(members[name]) for name in ("message_id", *_LINKS[SEED_000], *_LINKS[SEED_001]) if name in members}
    return _format(encode(members), indent=0)


def read_events(path: AnyPath, *, strict: bool = False) -> tuple[list[AnyEvent], list[Fault]]:
    """Read a file of events, plain or compressed by gzip or zstd.

    Args:
        path: The path of the file.
        strict: Whether the first fault is raised.

    Returns:
        The events in their order, and what was left out or mended, by line.

    Raises:
        FormatError: The file is none of lines, or *strict* is given and it has a fault.
        OSError: It cannot be read.
    """
    events: list[AnyEvent] = []
    faults: list[Fault] = []
    with opened(path) as source:
        for read in stream_events(source):
            if not isinstance(read, Fault):
                events += read
            elif strict:
                raise FormatError(read.of(path))
            else:
                faults.append(read)
    return events, faults


def stream_events(source: BinaryIO) -> Iterator[list[AnyEvent] | Fault]:
    """Read events from an open file, piece by piece, in bounded memory.

    Args:
        source: The file, opened for bytes.

    Yields:
        Lists of events, and faults, in the order of the file.

    Raises:
        FormatError: A line is too long to be an event.
        OSError: It cannot be read.
    """
    for number, block in blocks(source):
        try:
            events = events_of(usual_lines()(block))
        except UNUSUAL:
            yield from _unusual(number, block)
        else:
            yield events


def read_one(data: bytes, number: int = 1) -> tuple[AnyEvent | None, list[str]]:
    """Return the event on one line, None if there is none, and what was wrong with it. Never raises."""
    if not data.strip():
        return None, []
    try:
        [event] = events_of(usual_lines()(data))
    except UNUSUAL:
        pass
    else:
        return event, []
    try:
        [wide] = wide_lines()(data)
    except UNUSUAL:
        return read_line(data, number)
    return read_line(data, number) if wide.odd() else (wide.event(), [])


def version_of(data: bytes) -> int | None:
    """Return the version whose names the links on a line have; None if it has no link, or is no object."""
    if not any(name.encode() in data for names in _LINKS.values() for name in names):
        return None
    try:
        members = decode(data)
    except UNUSUAL:
        return None
    has = [version for version, names in _LINKS.items() if is_object(members) and any(members.get(name) is not None for name in names)]
    return has[0] if has else None


def _unusual(first: int, block: bytes) -> Iterator[list[AnyEvent] | Fault]:
    """Read a block that holds other forms, unknown members, or bad lines: those in the wide form at once, the rest line by line."""
    for line_read in decoded(io.BytesIO(block), wide_lines()):
        if isinstance(line_read, BadLine):
            yield from _apart(first + line_read.line - 1, line_read.data)
        elif any(value.odd() for value in line_read.values):
            for offset, data in enumerate(line_read.data.split(b"\n")):
                yield from _apart(first + line_read.line - 1 + offset, data)
        else:
            yield [value.event() for value in line_read.values]


def _apart(number: int, data: bytes) -> Iterator[list[AnyEvent] | Fault]:
    """Read one line by itself."""
    if not data.strip():
        return
    event, faults = read_line(data, number)
    if event is not None:
        yield [event]
    yield from (Fault(number, fault) for fault in faults)


def _version_1(event: AnyEvent) -> dict[str, Any]:
    """Return the members in the order of seed 000's logger; None where it leaves a member out."""
    match event:
        case TranscriptEntry():
            content = {"content": event.content}
            return _named(event, "agent_id") | _spoken(event, content) | _set(content_id=event.substance)
        case PieceOfText():
            return _named(event) | {"content": event.content} | _set(caused_by=_one_or_all(event.cause))
        case AgentCreated():
            return _named(event, "agent_id") | _set(name=event.name, language_model=event.language_model)


def _version_2(event: AnyEvent) -> dict[str, Any]:
    """Return the members in the order of seed 001's examples."""
    links = _set(cause=_one_or_all(event.cause))
    match event:
        case TranscriptEntry():
            content = _set(content=event.content)
            several = _set(substance=event.substance, cause=list(event.cause) or None)  # a list, which reads without a second look
            members = _named(event, "agent_id") | _spoken(event, content) | several
        case PieceOfText():
            members = _named(event, "agent_id") | {"content": event.content} | links
        case AgentCreated():
            about = _set(name=event.name, language_model=event.language_model, parent=event.parent)
            members = _named(event, "agent_id") | links | about
    return members | _set(timestamp=event.timestamp)


def _named(event: AnyEvent, *agent: str) -> dict[str, Any]:
    members = {"message_id": event.message_id, "event_type": event.__struct_config__.tag}
    return members | {key: event.agent_id for key in agent if event.agent_id}


def _spoken(event: TranscriptEntry, content: dict[str, Any]) -> dict[str, Any]:
    call = _set(tool_call_id=event.tool_call_id)
    return {"role": event.role} | call | content | _set(tool_calls=event.tool_calls, name=event.name, more=event.more or None)


def _number(identity: Any) -> Any:
    """Return an id as a number where it is one, also each of several."""
    if is_list(identity):
        return [_number(one) for one in identity]
    return int(identity) if isinstance(identity, str) and _DIGITS.fullmatch(identity) else identity


def _set(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


def _one_or_all(cause: tuple[str, ...]) -> Any:
    return (cause[0] if len(cause) == 1 else list(cause)) if cause else None


def read_line(data: bytes, number: int) -> tuple[AnyEvent | None, list[str]]:
    """Return the event on a line, None if it cannot be read, and what was wrong with it. Never raises."""
    members, faults = _parsed(data)
    if not is_object(members):
        return None, faults or [f"is no JSON object but {type(members).__name__}: {_short(data)}"]
    kind = members.pop("event_type", None)
    if kind is None and isinstance(members.get("role"), str):  # files that are older than the seeds say so of no entry
        kind = "transcript_entry"
    if kind == "transcript_edit":
        return None, [*faults, _EDITED.format(members.get("agent", members.get("agent_id")))]
    if not isinstance(kind, str) or kind not in _KINDS:
        what = "has no event_type" if kind is None else f"is of a type that is not known, {_short(kind)}"
        return None, [*faults, f"{what}; known are {', '.join(_KINDS)}"]
    value, mended = _typed(_KINDS[kind], members, number)
    faults += mended
    if isinstance(value, WideEntry) and value.both():
        faults.append(BOTH)
    return None if value is None else value.event(), faults


def _parsed(data: bytes) -> tuple[Any, list[str]]:
    """Return a line's JSON; where it is text that JSON should not hold, with marks in its place."""
    try:
        return decode(data), []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = "is nested too deeply" if isinstance(error, RecursionError) else f"is not JSON ({error}): {_short(data)}"
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None, [message]
    return plain(value), ["holds text or numbers that JSON cannot: they were replaced by marks"]


def _typed(kind: type[Wide], line_members: dict[str, Any], number: int) -> tuple[Wide | None, list[str]]:
    """Return the members as the form's type; what does not fit is mended, left out, or kept apart."""
    faults: list[str] = []
    members: dict[str, Any] = {}
    strange: dict[str, Any] = {}
    for key, value in line_members.items():
        if key not in kind.__struct_fields__:
            strange[key] = value
        elif (fitting := _fitting(key, value)) is not None:
            members[key] = fitting
        elif value is not None:
            faults.append(f"left out its {key}, which is {_short(value)}")
    if strange and kind is WideEntry:
        members["more"] = {**members.get("more", {}), **strange}
    elif strange:
        faults.append(f"left out members that are not known here: {', '.join(map(_short, strange))}")
    return _whole(kind, members, number, faults), faults


def _whole(kind: type[Wide], members: dict[str, Any], number: int, faults: list[str]) -> Wide | None:
    """Return a value of the type if nothing is missing that it cannot do without. An id is given to one that has none."""
    if kind in (WideEntry, WideCreated) and not (members.get("agent_id") or members.get("agent")):
        faults.append("left out: it names no agent (agent_id)")
        return None
    if kind is WideEntry and not members.get("role"):
        faults.append("left out: it has no role")
        return None
    if not members.get("message_id"):
        members["message_id"] = f"line_{number}"
        faults.append(f"has no message_id: it is called line_{number}")
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
    return text_of(value)


def _names(value: Any) -> tuple[str, ...] | None:
    names = tuple(map(_name, value if is_list(value) else [value]))
    return tuple(name for name in names if name is not None) if None not in names else None


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
