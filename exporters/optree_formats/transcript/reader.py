"""The reader: streams a run's events past whatever is wrong in the file, in bounded memory, and takes of each line what can be read.

Lines that are exactly as the writer writes them are decoded a block at once; others one by one. Both give the same: the
quick way knows no member and no type beyond the seed's, so what could be read in two ways never takes it.

Types that are not known are kept as they are, and reported by faults of their own kind, so that a caller may take them for warnings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw

from optree import FormatError
from optree.exporting import BadLine, Fault, LineBlock, TypedDecoder, decode, decoded_lines, is_list, open_file
from optree_formats import AnyPath
from optree_formats.transcript.wire import (
    BLOCK_TYPES,
    EVENT_TYPES,
    ContentBlock,
    Event,
    MessagePayload,
    StepPayload,
    ToolPayload,
    milliseconds,
)

_TIMES: TypedDecoder[list[datetime]] = TypedDecoder(list[Annotated[datetime, Meta(tz=True)]])
_OWN_MEMBERS = "unknown field"
_decode_values = msgspec.json.Decoder(Raw).decode_lines
_decode_members: Callable[[bytes], list[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Raw]).decode_lines
_decode_envelopes = msgspec.json.Decoder(Event).decode_lines
_decoders: dict[str, Callable[[Raw], Any]] = {
    "run": msgspec.json.Decoder(StepPayload | None).decode,
    "step": msgspec.json.Decoder(StepPayload).decode,
    "message": msgspec.json.Decoder(MessagePayload).decode,
    "tool": msgspec.json.Decoder(ToolPayload).decode,
}
_payloads = {kind: _decoders[kind.partition(".")[0]] for kind in EVENT_TYPES}
Members = dict[str, Any]
"""An object's members, each as its JSON: what is only passed on is not changed."""
_members: TypedDecoder[Members] = TypedDecoder(dict[str, Raw])
_items: TypedDecoder[list[Any]] = TypedDecoder(list[Raw])
_TEXTS = ("text", "thinking", "tool_name", "tool_id", "command", "chunk")


class OutOfOrder(Fault):
    """A number that does not come next: lines are missing, stand in another order, or two writers numbered them. All are kept."""


def read(path: AnyPath, *, strict: bool = False) -> Iterator[Event | Fault]:
    """Yield the events of a file (plain, gzip or zstd) in the order of its lines, and each fault in its place.

    With *strict* the first fault is raised, as `FormatError`, an unknown type as `UnknownEventTypeError` or `UnknownBlockTypeError`.
    Raises `OSError`, and `FormatError` for a line that is longer than `optree._store.files.lines` takes.
    """
    for batch in batches(path, strict=strict):
        if isinstance(batch, list):
            yield from batch
        else:
            yield batch


def batches(path: AnyPath, *, strict: bool = False) -> Iterator[list[Event] | Fault]:
    """The same, many events at once."""
    expected = 1
    with open_file(path) as source:
        for item in decoded_lines(source, _lines):
            if strict:
                _check(item)
            for batch in _read(item, expected):
                if isinstance(batch, list):
                    expected = batch[-1].seq + 1
                elif strict:
                    raise raised(batch)
                yield batch


def _check(item: LineBlock[Event] | BadLine) -> None:
    """Raise `FormatError` for the first line that strict reading refuses although it can be read."""
    for number, data in enumerate(item.data.split(b"\n"), item.line):
        flaw = looseness(data) if data.strip() else ""
        if flaw:
            raise raised(Fault(number, flaw))


def _quick(data: bytes) -> list[Event]:
    """Return a block's events; raises `msgspec.DecodeError` if one is not quite as the seed has it."""
    events = _decode_envelopes(data)
    for event in events:
        event.payload = _payloads[event.type](event.payload)
    times = [event.timestamp for event in events]
    if times and len(_TIMES(b'["%b"]' % '","'.join(times).encode("utf-8", "surrogatepass"))) != len(times):
        raise msgspec.ValidationError("a timestamp is none")
    return events


def _lines(data: bytes) -> list[Event]:
    """Return a block's events; also of one whose events have members of their own, as those of a later version may all have."""
    try:
        return _quick(data)
    except msgspec.ValidationError as error:
        if _OWN_MEMBERS not in str(error) or data.count(b"\n") <= 1:
            raise
    try:
        events = [event_from(members) for members in _decode_members(data)]
    except WrongError as error:
        raise msgspec.ValidationError(str(error)) from error
    if any(faults_of(0, event) for event in events):
        raise msgspec.ValidationError("a line has a fault")
    return events


def _read(item: LineBlock[Event] | BadLine, expected: int) -> Iterator[list[Event] | Fault]:
    """Yield what a block or a line holds, with faults before the events that they are about."""
    if isinstance(item, BadLine):
        event, faults = event_of(item.line, item.data)
        yield from faults
        if event is not None:
            yield from _ordered([event], expected, lambda: [item.line])
    elif item.values:
        yield from _ordered(item.values, expected, lambda: _line_numbers(item))


def _ordered(events: list[Event], expected: int, line_numbers: Callable[[], list[int]]) -> Iterator[list[Event] | Fault]:
    """Yield events, and a fault before each whose number does not come next."""
    last = expected + len(events) - 1
    if [event.seq for event in events] != list(range(expected, last + 1)):
        begun, lines = 0, line_numbers()
        for place, event in enumerate(events):
            if event.seq != expected:
                if place > begun:
                    yield events[begun:place]
                begun = place
                yield OutOfOrder(lines[place], f"seq is {event.seq} where {expected} comes next; kept")
            expected = event.seq + 1
        events = events[begun:]
    yield events


def _line_numbers(block: LineBlock[Event]) -> list[int]:
    """Return for each value of a block the number of its line; a line may hold several."""
    filled = [(number, line) for number, line in enumerate(block.data.split(b"\n"), block.line) if line.strip(b" \t\r")]
    if len(filled) == len(block.values):
        return [number for number, _ in filled]
    return [number for number, line in filled for _ in _decode_values(line)]


class UnknownEventType(Fault):
    """An event of a type that the seed does not have; it is kept."""


class UnknownBlockType(Fault):
    """A content block of a type that the seed does not have; it is kept."""


class UnknownEventTypeError(FormatError):
    """`UnknownEventType`, in strict reading."""


class UnknownBlockTypeError(FormatError):
    """`UnknownBlockType`, in strict reading."""


def raised(fault: Fault) -> FormatError:
    """Return a fault as the error that strict reading raises."""
    errors: dict[type[Fault], type[FormatError]] = {UnknownEventType: UnknownEventTypeError, UnknownBlockType: UnknownBlockTypeError}
    return errors.get(type(fault), FormatError)(f"line {fault.line}: {fault.said}" if fault.line else fault.said)


class WrongError(Exception):
    """Why a line is not read."""


def event_of(number: int, data: bytes) -> tuple[Event | None, list[Fault]]:
    """Return the event of a line, and what is wrong with it; None for a line without an event."""
    try:
        event = event_from(_members(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WrongError) as error:
        return None, [Fault(number, f"left out: {'nested too deeply' if isinstance(error, RecursionError) else error}")]
    return event, faults_of(number, event)


def event_from(members: Members) -> Event:
    """Return the event of a line's members. Raises `WrongError`, `msgspec.DecodeError`, `RecursionError`."""
    event = _event(members)
    event.payload = payload_of(members.get("payload"))
    return event


def faults_of(number: int, event: Event) -> list[Fault]:
    """Return the faults of an event that is kept."""
    faults: list[Fault] = []
    if event.type not in EVENT_TYPES:
        faults.append(UnknownEventType(number, f"unknown type of event {event.type!r}; kept"))
    unknown = [block.type for block in _blocks(event.payload) if block.type not in BLOCK_TYPES]
    faults += [UnknownBlockType(number, f"unknown type of block {kind!r}; kept") for kind in unknown]
    if event.payload is None and not event.type.startswith("run."):
        faults.append(Fault(number, "has no payload; kept"))
    return faults


def looseness(data: bytes) -> str:
    """Return what strict reading refuses in a line although it can be read; empty if nothing, or if it cannot."""
    try:
        event: Any = json.loads(data, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(event, _Pairs):
        return ""
    payload = dict(event).get("payload")
    if is_list(payload) and not isinstance(payload, _Pairs):
        return "payload is an array, not an object"
    if not isinstance(payload, _Pairs):
        return _odd(event, _ENVELOPE)
    kind = str(dict(event).get("type"))
    blocks = dict(payload).get("blocks", [])
    if kind.startswith("message.") and (isinstance(blocks, _Pairs) or not is_list(blocks)):
        return "blocks is no array"
    parts = [(event, _ENVELOPE), (payload, _OF_PAYLOADS.get(kind.partition(".")[0], frozenset()))]
    parts += [(block, _OF_BLOCKS) for block in blocks if isinstance(block, _Pairs)] if is_list(blocks) else []
    return next((flaw for part, known in parts if (flaw := _odd(part, known))), "")


class _Pairs(list[tuple[str, Any]]):
    """An object as its members stand in a line, also those that are there twice."""


def _odd(members: _Pairs, known: frozenset[str]) -> str:
    """Return what is wrong with an object's members."""
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            return f"has the member {name!r} twice"
        seen.add(name)
        if name not in known and name.lower() in known:
            return f"has a member {name!r}, which is {name.lower()} in another case"
    return ""


def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__)


_ENVELOPE, _OF_BLOCKS = _names(Event), _names(ContentBlock)
_OF_PAYLOADS = {"run": _names(StepPayload), "step": _names(StepPayload), "message": _names(MessagePayload), "tool": _names(ToolPayload)}


def payload_of(value: Raw | None) -> Any:
    """Return a payload by the seed's rule: an array is of blocks; then by the members role, call_id, kind; else the value itself."""
    data = b"null" if value is None else bytes(value)
    if data.startswith(b"["):
        items = _items(data)
        return [_block(item) for item in map(_members, items)] if all(map(_is_block, items)) else decode(data)
    if not data.startswith(b"{"):
        return decode(data)
    members = _members(data)
    if "role" in members:
        return _message(members)
    if "call_id" in members:
        return _tool(members)
    return _step(members) if "kind" in members else decode(data)


def _event(value: Members) -> Event:
    rest = dict(value)
    own = _members(rest.pop("optree")) if bytes(rest.get("optree", b"")).startswith(b"{") else None
    rest.pop("payload", None)
    seq, iteration = _taken(rest, "seq", int), _taken(rest, "iteration", int, 0)
    if seq < 0:
        raise WrongError("seq is negative")
    timestamp = _taken(rest, "timestamp", str)
    if milliseconds(timestamp) is None:
        raise WrongError(f"timestamp {timestamp[:40]!r} is no time with a zone as RFC 3339 has it")
    names = {name: _taken(rest, name, str, "") for name in ("parent_run_id", "child_run_id", "path")}
    kind = _taken(rest, "type", str)
    if not kind:
        raise WrongError("its type is empty")
    return Event(
        seq=seq,
        run_id=_taken(rest, "run_id", str),
        type=kind,
        iteration=iteration,
        timestamp=timestamp,
        payload=None,
        optree=own,
        more=rest or None,
        **names,
    )


def _message(members: Members) -> MessagePayload:
    rest = dict(members)
    role, blocks = _taken(rest, "role", str, ""), rest.pop("blocks", Raw(b"[]"))
    items = [] if bytes(blocks) == b"null" else _items(blocks) if bytes(blocks).startswith(b"[") else [blocks]
    if not all(map(_is_block, items)):
        raise WrongError("the payload's blocks are not all objects with a type")
    content_blocks = [_block(item) for item in map(_members, items)]
    return MessagePayload(role=role, blocks=content_blocks, more=rest or None)


def _tool(members: Members) -> ToolPayload:
    rest = dict(members)
    tool_input, tool_output = (rest.pop(name, Raw(b"null")) for name in ("input", "output"))
    texts = {name: _taken(rest, name, str, "") for name in ("name", "call_id", "error", "fidelity")}
    return ToolPayload(input=tool_input, output=tool_output, more=rest or None, **texts)


def _step(members: Members) -> StepPayload:
    rest = dict(members)
    texts = {name: _taken(rest, name, str, "") for name in ("name", "kind", "error")}
    return StepPayload(result=rest.pop("result", UNSET), more=rest or None, **texts)


def _block(members: Members) -> ContentBlock:
    rest = dict(members)
    texts = {name: _taken(rest, name, str, "") for name in ("type", "fidelity", *_TEXTS)}
    tool_input, tool_content = (rest.pop(name, UNSET) for name in ("tool_input", "tool_content"))
    return ContentBlock(tool_input=tool_input, tool_content=tool_content, more=rest or None, **texts)


def _is_block(value: Raw) -> bool:
    return bytes(value).startswith(b"{") and bytes(_members(value).get("type", b"")).startswith(b'"')


def _blocks(payload: Any) -> list[ContentBlock]:
    blocks: list[Any] = payload.blocks if isinstance(payload, MessagePayload) else payload if is_list(payload) else []
    return [block for block in blocks if isinstance(block, ContentBlock)]


def _taken(rest: Members, name: str, kind: Callable[..., Any], default: Any = None) -> Any:
    """Take a member out; a default stands for one that is missing or null."""
    result: Any = decode(rest.pop(name, None))
    if result is None and default is not None:
        return default
    if result is None:
        raise WrongError(f"has no {name}")
    if type(result) is not kind:
        raise WrongError(f"{name} is of the wrong type: {str(result)[:40]!r}")
    return result
