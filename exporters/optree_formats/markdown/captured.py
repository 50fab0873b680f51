"""What the original ai-agent keeps of a payload in base64, ``{"format", "encoding": "base64", "value"}``, to be read in a log, and back.

The value stands decoded, and the encoding says so; what would not come back byte for byte stays as it is.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode

from optree.exporting import encode, is_list, is_object

_BASE64, _JSON, _TEXT = "base64", "base64 of JSON", "base64 of text"


def readable(payload: Any) -> Any:
    """Return a payload with what it keeps in base64 decoded: as a value where it is JSON, else as a text."""
    return _each(payload, _opened)


def as_kept(payload: Any) -> Any:
    """Return the payload that `readable` was given."""
    return _each(payload, _closed)


def _each(payload: Any, change: Any) -> Any:
    """Return a payload with a change made to it, or to each of its members."""
    if not is_object(payload):
        return payload
    return change(payload) if "encoding" in payload else {name: change(value) for name, value in payload.items()}


def _opened(found: Any) -> Any:
    if not is_object(found) or found.get("encoding") != _BASE64 or not isinstance(found.get("value"), str):
        return found
    try:
        data = a2b_base64(found["value"], strict_mode=True)
        text = data.decode()
    except ValueError:
        return found
    if _base64(data) != found["value"]:
        return found
    try:
        value = decode(data)
    except (DecodeError, RecursionError):
        value = None
    if (is_object(value) or is_list(value)) and encode(value) == data:
        return {**found, "encoding": _JSON, "value": value}
    return {**found, "encoding": _TEXT, "value": text}


def _closed(found: Any) -> Any:
    if not is_object(found):
        return found
    value = found.get("value")
    if found.get("encoding") == _JSON:
        return {**found, "encoding": _BASE64, "value": _base64(encode(value))}
    if found.get("encoding") == _TEXT and isinstance(value, str):
        return {**found, "encoding": _BASE64, "value": _base64(value.encode())}
    return found


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
