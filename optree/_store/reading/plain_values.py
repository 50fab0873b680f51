"""Decoded JSON values of other programs, by type: each function returns a value of its type, or an empty one or None in place of others."""

from __future__ import annotations

from typing import Any, get_args

from msgspec import UNSET, Raw, UnsetType

from optree._nodes import OpKind
from optree._values import dumps, encode, is_list, is_object

_MOST = 1e15
"""More than any time in milliseconds, latency or amount of money."""
_NUMBERS = (int, float)
_KINDS: dict[Any, OpKind] = {kind: kind for kind in get_args(OpKind)}


def object_of(value: Any) -> dict[str, Any]:
    """Return a copy of an object; an empty one for any other value."""
    return dict(value) if is_object(value) else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is no list."""
    return [item for item in value if is_object(item)] if is_list(value) else []


def text_of(value: Any) -> str | None:
    """Return a text; None for any other value."""
    return value if isinstance(value, str) else None


def texts_of(value: Any) -> dict[str, str] | None:
    """Return an object whose values are all texts; None for any other value."""
    return value if is_object(value) and all(isinstance(member, str) for member in value.values()) else None


def number_of(value: Any) -> float | None:
    """Return a number that may be a time, a duration or an amount of money; None for any other value."""
    return float(value) if type(value) in _NUMBERS and abs(value) < _MOST else None


def kind_of(value: Any) -> OpKind | None:
    """Return the kind of an op; None for any other value."""
    return _KINDS.get(value) if isinstance(value, str) else None


def json_of(value: Any) -> Raw:
    """Return a decoded value as JSON again, however long its texts are; only numbers beyond 64 bits need marks."""
    try:
        return Raw(dumps(value))
    except OverflowError:
        return Raw(encode(value))


def block_of(value: dict[str, Any]) -> Raw | UnsetType:
    """Return attributes as JSON; unset where there are none."""
    return json_of(value) if value else UNSET
