"""Protobuf without its classes: messages written byte for byte as the stock encoder writes them, and read field by field.

A field is its tag (number and wire type), then its value; a nested message is preceded by its length. Source:
https://protobuf.dev/programming-guides/encoding/ and opentelemetry-proto's common.proto. Keys and short texts are encoded once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from msgspec import UNSET

from optree import LogEntry
from optree.exporting import Remembered, may_hold_secret, names_secret, usable_accelerator

Attribute = tuple[str, Any]
"""A key and its value: str, bool, int, float, bytes, None, or a list or mapping of these."""

ANY_LENGTH: Final = 0
"""As a limit: values pass as they are."""
KEY_BYTES: Final = 117
"""Longest key that all backends take: VictoriaTraces keeps 128 bytes of ``span_attr:<key>``."""
_KEPT: Final = 4096
_SHORT: Final = 64
_ONE_BYTE: Final = 1 << 7
"""Where a varint takes a second byte."""
_LONGEST_NUMBER: Final = 11
"""Bytes of an AnyValue of a number, at most."""
_TABLE: Final = 1 << 12
_LOW: Final = [bytes([number | _ONE_BYTE]) for number in range(_ONE_BYTE)]
"""Seven bits that others follow."""
_ONES = [bytes([number]) for number in range(_ONE_BYTE)]
VARINTS: Final = [*_ONES, *(_LOW[number & 127] + _ONES[number >> 7] for number in range(_ONE_BYTE, _TABLE))]
"""The numbers below `_TABLE`."""
fixed64 = Struct("<Q").pack
double = Struct("<d").pack
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_LAST_SHIFT = 63


class UnfitError(ValueError):
    """A value that some backend would not take: the careful way makes it fit."""


def varint(number: int) -> bytes:
    """Return an unsigned integer, seven bits a byte, lowest first."""
    return VARINTS[number] if number < _TABLE else _LOW[number & 127] + varint(number >> 7)


def tag(number: int, wire_type: int) -> bytes:
    """Return what stands before a field's value; wire types: 0 varint, 1 fixed64, 2 length and bytes, 5 fixed32."""
    return varint(number << 3 | wire_type)


def field(number: int, data: bytes) -> bytes:
    """Return a field of text, bytes or a message, also where it is empty."""
    size = len(data)
    return b"%b%b%b" % (VARINTS[number << 3 | 2], VARINTS[size] if size < _TABLE else varint(size), data)


def some(number: int, data: bytes) -> bytes:
    """Return a field of text or bytes; nothing where it is empty, as proto3 says."""
    return field(number, data) if data else b""


def count(number: int, value: int) -> bytes:
    """Return a field of an unsigned integer; nothing for 0."""
    return tag(number, 0) + varint(value) if value else b""


def time(number: int, nanoseconds: int) -> bytes:
    """Return a field of a fixed 64-bit integer; nothing for 0."""
    return tag(number, 1) + fixed64(nanoseconds) if nanoseconds else b""


def any_value(value: object) -> bytes:
    """Return an AnyValue. Raises for text with lone surrogates, integers beyond 64 bits and types that OTLP does not have."""
    if isinstance(value, str):
        return field(1, value.encode())
    if isinstance(value, list):  # asked for before the kinds of containers, which take long to tell
        return field(5, b"".join([field(1, any_value(item)) for item in cast("list[object]", value)]))
    if isinstance(value, bytes):
        return field(7, value)
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in cast("Mapping[object, object]", value).items()]
        return field(6, _MEMBERS.encode(pairs))
    if isinstance(value, Sequence):
        return field(5, b"".join([field(1, any_value(item)) for item in cast("Sequence[object]", value)]))
    return _scalar(value)


def _scalar(value: object) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _signed(value)
    if isinstance(value, float):
        return b"\x21" + double(value)
    if value is None:
        return b""
    raise UnfitError(f"OTLP has no {type(value).__name__}; give text, a number, a boolean, bytes, or a list or mapping of these")


def _signed(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise UnfitError(f"an integer of {value.bit_length()} bits; OTLP takes 64")
    return varint(value if value >= 0 else value + (1 << 64))


class KeyValues(Remembered):
    """Writes attributes as field *number* of a message. What it has written of short texts is kept, at most some thousand."""

    __slots__ = ("_fronts", "_kept", "_keys", "_tag")

    def __init__(self, number: int) -> None:
        super().__init__()
        self._tag = tag(number, 2)
        self._keys: dict[str, tuple[bytes, int]] = {}
        self._fronts: dict[str, list[bytes]] = {}
        self._kept: dict[Attribute, bytes] = {}

    def encode(self, pairs: Iterable[Attribute], limit: int = ANY_LENGTH) -> bytes:
        """Return the attributes, encoded, in their order.

        With a *limit* in bytes only what may leave and all backends take passes: finite numbers, texts within it that hold no
        credential, lists of such texts, keys that are short and name no secret. Else `UnfitError`, or what Python raises.
        """
        kept, fronts = self._kept, self._fronts
        if compiled_attributes is not None and (data := compiled_attributes(pairs, kept, fronts)) is not None:
            return data
        out: list[bytes] = []
        for pair in pairs:
            key, value = pair
            kind = type(value)  # pyright: ignore[reportUnknownVariableType] - of any type
            if kind is int or kind is float:
                item = _number(key, value, limit)
                out += ((fronts.get(key) or self._front(key, limit))[len(item)], item)
            elif kind is not str:
                if limit and kind is not bool:
                    _check(key, value, limit)
                out.append(self._key_value(key, any_value(value), limit))
            elif (known := kept.get(pair)) is not None:
                out.append(known)
            else:
                out.append(self._text(pair, limit))
        return b"".join(out)

    def clear(self) -> None:
        """Forget what was written: the rules of redaction have changed."""
        for kept in (self._keys, self._fronts, self._kept):
            kept.clear()

    def _text(self, pair: Attribute, limit: int) -> bytes:
        key, value = pair
        data = value.encode()
        size = len(data)
        if limit and (size > limit or may_hold_secret(value)):
            raise UnfitError(key)
        encoded = self._key_value(key, field(1, data), limit)
        if limit and size < _SHORT:
            self._keep(pair, encoded)
        return encoded

    def _front(self, key: str, limit: int) -> list[bytes]:
        """Return what stands before a number, by its size."""
        encoded = [self._key_value(key, bytes(size), limit)[: -size or None] for size in range(_LONGEST_NUMBER + 1)]
        if key in self._keys:
            if len(self._fronts) >= _KEPT:
                self._fronts.clear()
            self._fronts[key] = encoded
        return encoded

    def _keep(self, pair: Attribute, encoded: bytes) -> None:
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        self._kept[pair] = encoded

    def _key_value(self, key: str, item: bytes, limit: int) -> bytes:
        size = len(item)
        head, head_size = self._keys.get(key) or self._head(key, limit)
        if head_size + size + 1 < _ONE_BYTE:
            return b"%b%c%b%c%b" % (self._tag, head_size + size + 1, head, size, item)
        length = varint(size)
        return b"%b%b%b%b%b" % (self._tag, varint(head_size + len(length) + size), head, length, item)

    def _head(self, key: str, limit: int) -> tuple[bytes, int]:
        """Return what stands before a value, and its size; it is kept for keys that may leave."""
        data = key.encode()
        head = some(1, data) + b"\x12"
        if len(data) > KEY_BYTES or not data or may_hold_secret(key) or names_secret(key):
            if limit:
                raise UnfitError(key)
            return head, len(head)
        if len(self._keys) >= _KEPT:
            self._keys.clear()
        self._keys[key] = head, len(head)
        return head, len(head)


_MEMBERS: Final = KeyValues(1)
"""Members of a mapping."""


def _number(key: str, value: float, limit: int) -> bytes:
    """Return an AnyValue of an int or a float."""
    if type(value) is int:
        return b"\x18" + (VARINTS[value] if 0 <= value < _TABLE else _signed(value))
    if limit and not isfinite(value):
        raise UnfitError(key)
    return b"\x21" + double(value)


def _check(key: str, value: Any, limit: int) -> None:
    """Let through nothing but lists of plain texts that are short in all."""
    if type(value) is not list:
        raise UnfitError(key)
    items = cast("list[object]", value)
    if sum(len(item) * 4 if type(item) is str and not may_hold_secret(item) else limit + 1 for item in items) > limit:
        raise UnfitError(key)


class NotProtobufError(ValueError):
    """The bytes are no protobuf message, or break off; the text says where."""


class Field(NamedTuple):
    """A field: its number, its wire type, and its content as bytes, or as a number where it is a varint."""

    number: int
    wire: int
    data: bytes
    value: int = 0


def fields(data: bytes) -> Iterator[Field]:
    """Yield each field of a message. Raises `NotProtobufError` where the bytes are no valid field."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield Field(number, wire, b"", value)
            continue
        if wire == LENGTH:
            size, at = read_varint(data, at)
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


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at *at*, and where it ends."""
    result = shift = 0
    while at < len(data) and shift <= _LAST_SHIFT:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
            return result, at
        shift += 7
    raise NotProtobufError("a number breaks off")


if TYPE_CHECKING:
    from optree_otel import _quick
else:
    try:
        from optree_otel import _quick
    except ImportError:
        _quick = None

compiled_attributes: Callable[[Any, Mapping[Any, bytes], Mapping[str, list[bytes]]], bytes | None] | None = (
    _quick.attributes if usable_accelerator(_quick) else None
)
"""The bytes of attributes, given the pairs, what was written of short texts, and what stands before numbers by key and size."""


def compiled_log_lines(fronts: dict[str, bytes], key: bytes) -> Callable[[Any, int], bytes | None] | None:
    """Return the function that writes log lines as events, given what stands between time and text by severity, and the text's key."""
    if not usable_accelerator(_quick):
        return None
    try:
        _quick.prepare(LogEntry, UNSET, fronts, key)
    except (TypeError, AttributeError):  # another msgspec than any known: it keeps fields elsewhere
        return None
    return _quick.log_lines
