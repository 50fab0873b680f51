"""What collectors answer: partial success, the wish to be left alone for a while, error texts. Read from the bytes.

The messages are those of opentelemetry/proto/collector/*/v1 (the same shape for the three signals), google/rpc/status.proto and
google/rpc/error_details.proto; a few fields are needed of each, so no generated class is loaded for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Literal

from msgspec import DecodeError, Struct
from msgspec.json import decode

from optree.exporting import REDACTED, is_object, redact
from optree_otel.signals.protobuf import VARINT, NotProtobufError, fields

Kind = Literal["delivered", "retry", "failed", "refused", "too_large", "denied", "unsupported"]
MAX_TEXT = 300
_USER = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_TOO_LARGE = ("too large", "larger than max", "message size", "length too large", "exceeds the limit", "exceeds limit")
Members = dict[int, list[int | bytes]]


class ExportResult(Struct, frozen=True):
    """What came of one request.

    `delivered`    the collector has it, but for *rejected* of its entries
    `retry`        not now: send the same again, after *after* seconds if the collector named a time
    `failed`       the collector failed and did not say whose fault it is: try a few times, then take it for refused
    `refused`      something in it is bad: sending the same again is of no use
    `too_large`    sent in smaller requests it may pass
    `denied`       the endpoint takes nothing as things are (credentials, wrong address): *text* says what to do
    `unsupported`  the collector does not serve this signal
    """

    kind: Kind
    text: str = ""
    rejected: int = 0
    after: float | None = None


DELIVERED = ExportResult("delivered")


def members(data: bytes) -> Members:
    """Return the fields of a protobuf message by number: varints as int, all else as bytes. Raises `NotProtobufError`."""
    result: Members = {}
    for number, wire, content, value in fields(data):
        result.setdefault(number, []).append(value if wire == VARINT else content)
    return result


def accepted(body: bytes) -> ExportResult:
    """Return the outcome of an ``Export…ServiceResponse``. Raises `NotProtobufError` if *body* is none."""
    if not body:
        return DELIVERED
    partial = members(_message(members(body), 1))
    return partly(_number(partial, 1), _text(partial, 2))


def accepted_json(body: bytes) -> ExportResult | None:
    """Return the outcome of the same message in JSON; None if *body* is no JSON object."""
    try:
        answer = decode(body)
    except (DecodeError, RecursionError):
        return None
    if not is_object(answer):
        return None
    partial = answer.get("partialSuccess")
    if not is_object(partial):
        return DELIVERED
    counts = [str(value) for key, value in partial.items() if key.startswith("rejected")]
    return partly(next((int(count) for count in counts if count.isascii() and count.isdigit()), 0), str(partial.get("errorMessage") or ""))


def partly(rejected: int, message: str) -> ExportResult:
    """Return the outcome of a request of which *rejected* entries were not taken; a message without any is a warning."""
    if not rejected:
        return ExportResult("delivered", shown(message)) if message else DELIVERED
    return ExportResult("delivered", f"the collector rejected {rejected}: {shown(message) or 'it does not say why'}", rejected)


def status_text(body: bytes, content_type: str) -> str:
    """Return what an error answer says: the message of a ``google.rpc.Status``, or its text."""
    if "protobuf" in content_type:
        try:
            return shown(_text(members(body), 2))
        except NotProtobufError:
            return ""
    if "json" in content_type:
        try:
            answer = decode(body)
        except (DecodeError, RecursionError):
            answer = None
        if is_object(answer) and isinstance(answer.get("message"), str):
            return shown(answer["message"])
    return "" if is_page(body, content_type) else shown(body.decode("utf-8", "replace"))


def is_page(body: bytes, content_type: str) -> bool:
    """Tell whether this is a page for people."""
    return "html" in content_type or body.lstrip()[:1] == b"<"


def is_too_large(text: str) -> bool:
    """Tell whether an error is about the size of the request; collectors say it in various words, under various codes."""
    lowered = text.lower()
    return any(words in lowered for words in _TOO_LARGE)


def retry_delay(metadata: Mapping[str, bytes]) -> float | None:
    """Return the seconds of a ``google.rpc.RetryInfo`` in gRPC's trailing metadata; None if there is none.

    Collectors send it among the details of ``grpc-status-details-bin``, some as an entry of its own.
    """
    try:
        if "google.rpc.retryinfo-bin" in metadata:
            return _delay(metadata["google.rpc.retryinfo-bin"])
        for detail in members(metadata.get("grpc-status-details-bin", b"")).get(3, []):
            packed = members(detail) if isinstance(detail, bytes) else {}
            if _text(packed, 1).endswith("/google.rpc.RetryInfo"):
                return _delay(_message(packed, 2))
    except NotProtobufError:
        return None
    return None


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header, which holds seconds or a date; None if it holds neither."""
    if not value:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if isfinite(seconds) else None
    except ValueError:
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def shown(text: str) -> str:
    """Return a text of somebody else's as one line of bounded length, without credentials."""
    text = str(redact(text))
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * MAX_TEXT]).split())
    line = _USER.sub(REDACTED, line)
    return str(redact(line))[:MAX_TEXT]


def _message(by_number: Members, number: int) -> bytes:
    value = by_number.get(number, [b""])[-1]
    if isinstance(value, int):
        raise NotProtobufError
    return value


def _text(by_number: Members, number: int) -> str:
    return _message(by_number, number).decode("utf-8", "replace")


def _number(by_number: Members, number: int) -> int:
    value = by_number.get(number, [0])[-1]
    return value if isinstance(value, int) and value < 1 << 63 else 0


def _delay(info: bytes) -> float:
    duration = members(_message(members(info), 1))
    return _number(duration, 1) + _number(duration, 2) / 1e9
