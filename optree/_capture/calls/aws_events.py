"""Frames of AWS's event streams, as Bedrock sends them to clients that are not boto3's, read and written.

The form is that of https://smithy.io/2.0/aws/amazon-eventstream.html: lengths of all and of the headers, headers, payload, and checksums.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final

from optree._values import encode, is_object

AWS_EVENTS: Final = "application/vnd.amazon.eventstream"
"""The content type of such a stream."""
HEAD_BYTES: Final = 12
"""Of a frame's beginning, which says how long it is."""
_SUM_BYTES: Final = 4
_TEXT: Final = 7
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value, by its type; texts and bytes tell their length themselves."""


def size_of(head: bytes) -> int:
    """Return how many bytes a frame has, by its beginning. Raises ValueError."""
    size, headers = struct.unpack_from("!II", head)
    if zlib.crc32(head[:8]) != struct.unpack_from("!I", head, 8)[0] or size < HEAD_BYTES + headers + _SUM_BYTES:
        raise ValueError("no frame begins here")
    return int(size)


def event_in(frame: bytes, loads: Any) -> Any:
    """Return what a frame says: an event of Converse under its name, the JSON in one of InvokeModel, or an error. Raises ValueError."""
    if zlib.crc32(frame[:-_SUM_BYTES]) != struct.unpack("!I", frame[-_SUM_BYTES:])[0]:
        raise ValueError("the frame's checksum is wrong")
    begin = HEAD_BYTES + struct.unpack_from("!I", frame, 4)[0]
    try:
        told = _headers(frame[HEAD_BYTES:begin])
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError("the frame's headers cannot be read") from error
    payload = frame[begin:-_SUM_BYTES]
    if told.get(":message-type") == "error":
        return {"error": {"code": told.get(":error-code"), "message": told.get(":error-message")}}
    said: Any = loads(payload) if payload else {}
    if told.get(":message-type") == "exception":
        return {"error": {"code": told.get(":exception-type"), **(said if is_object(said) else {})}}
    kind = told.get(":event-type")
    if kind == "chunk" and is_object(said) and isinstance(data := said.get("bytes"), str):
        return loads(b64decode(data))
    return {kind: said}


def _headers(data: bytes) -> dict[str, str]:
    """Return the headers that are texts."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name, kind = data[at + 1 : at + 1 + data[at]].decode(), data[at + 1 + data[at]]
        at += data[at] + 2
        if kind not in _SIZES:
            size = struct.unpack_from("!H", data, at)[0]
            at += 2
        else:
            size = _SIZES[kind]
        if kind == _TEXT:
            found[name] = data[at : at + size].decode()
        at += size
    return found


def frames_of(events: Iterable[dict[str, Any]], *, is_converse: bool) -> bytes:
    """Return events as frames: those of Converse have their names, others stand in chunks."""
    if is_converse:
        return b"".join(_frame("event", name, value) for event in events for name, value in event.items())
    return b"".join(_frame("event", "chunk", {"bytes": b64encode(encode(event)).decode()}) for event in events)


def error_frame(error: Any) -> bytes:
    """Return an error, as `event_in` gives it, as a frame."""
    told = error.get("error") if is_object(error) else None
    told = dict(told) if is_object(told) else {}
    return _frame("exception", str(told.pop("code", None) or "modelStreamErrorException"), told)


def _frame(message: str, kind: str, value: Any) -> bytes:
    told = {f":{message}-type": kind, ":content-type": "application/json", ":message-type": message}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", _TEXT, len(data := text.encode())) + data
        for name, text in told.items()
    )
    payload = encode(value)
    head = struct.pack("!II", HEAD_BYTES + len(headers) + len(payload) + _SUM_BYTES, len(headers))
    framed = head + struct.pack("!I", zlib.crc32(head)) + headers + payload
    return framed + struct.pack("!I", zlib.crc32(framed))
