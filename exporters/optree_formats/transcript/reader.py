"""The reader: streams a run's events past whatever is wrong in the file, in bounded memory.

Lines that are exactly as the writer writes them are decoded a block at once; others one by one, in `tolerant`. Both give the same: the
quick way knows no member and no type beyond the seed's, so what could be read in two ways never takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from optree.exporting import BadLine, Fault, LineBlock, TypedDecoder, decoded_lines, open_file
from optree_formats import AnyPath
from optree_formats.transcript.tolerant import WrongError, event_from, event_of, faults_of, looseness, raised
from optree_formats.transcript.wire import EVENT_TYPES, Event, MessagePayload, StepPayload, ToolPayload

_TIMES: TypedDecoder[list[datetime]] = TypedDecoder(list[Annotated[datetime, Meta(tz=True)]])


class OutOfOrder(Fault):
    """A number that does not come next: lines are missing, stand in another order, or two writers numbered them. All are kept."""


def read(path: AnyPath, *, strict: bool = False) -> Iterator[Event | Fault]:
    """Yield the events of a file (plain, gzip or zstd) in the order of its lines, and each fault in its place.

    With *strict* the first fault is raised, as `FormatError`, an unknown type as `UnknownEventTypeError` or `UnknownBlockTypeError`.
    Raises `OSError`, and `FormatError` for a line that is longer than `optree.store.lines` takes.
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
            for found in _read(item, expected):
                if isinstance(found, list):
                    expected = found[-1].seq + 1
                elif strict:
                    raise raised(found)
                yield found


def _check(item: LineBlock[Event] | BadLine) -> None:
    """Raise `FormatError` for the first line that strict reading refuses although it can be read."""
    for number, data in enumerate(item.data.split(b"\n"), item.line):
        said = looseness(data) if data.strip() else ""
        if said:
            raise raised(Fault(number, said))


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
    there = [(number, line) for number, line in enumerate(block.data.split(b"\n"), block.line) if line.strip(b" \t\r")]
    if len(there) == len(block.values):
        return [number for number, _ in there]
    return [number for number, line in there for _ in _decode_values(line)]
