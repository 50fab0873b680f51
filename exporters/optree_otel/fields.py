"""Reading protobuf without its classes: the fields of a message one by one, as far as it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_LAST_SHIFT = 63


class NotProtobufError(ValueError):
    """The bytes are no protobuf message, or break off; the text says where."""


class Field(NamedTuple):
    """A field: its number, its wire type, and its content as bytes, or as a number where it is a varint."""

    number: int
    wire: int
    data: bytes
    value: int = 0


def fields(data: bytes) -> Iterator[Field]:
    """Yield each field of a message. Raises `NotProtobufError` where it is none any more."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = varint(data, at)
            yield Field(number, wire, b"", value)
            continue
        if wire == LENGTH:
            size, at = varint(data, at)
        elif wire in _WIDTHS:
            size = _WIDTHS[wire]
        else:
            raise NotProtobufError(f"byte {at} begins no field")
        if at + size > len(data):
            raise NotProtobufError(f"{size} bytes are announced, {len(data) - at} are there")
        if number == 0:
            raise NotProtobufError(f"the field before byte {at} has no number")
        yield Field(number, wire, data[at : at + size])
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at *at*, and where it ends."""
    found = shift = 0
    while at < len(data) and shift <= _LAST_SHIFT:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
            return found, at
        shift += 7
    raise NotProtobufError("a number breaks off")
