"""Times: epoch milliseconds in a tree, ISO 8601 in UTC in a log; the one gives the other back exactly.

A float of milliseconds has about a quarter of a microsecond, so up to seven digits of a second are written, and no more than it needs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

DAY = 86_400_000.0
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|[+-]\d\d:?\d\d)?")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = 1e18
_LAST = 253_402_300_800_000.0


def iso(ms: float) -> str | float:
    """Return a time as ISO 8601; as the number itself where that would not give it back."""
    if not 0 <= ms < _LAST:
        return ms
    whole, _, parts = f"{ms:.4f}".partition(".")
    seconds, milli = divmod(int(whole), 1000)
    fraction = f"{milli:03d}{parts}".rstrip("0")
    written = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"
    return written if moment(written) == ms else ms


def clock(ms: float) -> str:
    """Return a time of day as headings show it."""
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%H:%M:%S") if 0 <= ms < _LAST else "00:00:00"


def moment(said: object) -> float | None:
    """Return the epoch milliseconds of a time as `iso` writes it, or others do; None for what is none. Without a zone it is UTC."""
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return float(said) if abs(said) < _NEVER else None
    found = _ISO.fullmatch(said.strip()) if isinstance(said, str) else None
    if found is None:
        return None
    try:
        day = datetime(*(int(part or 0) for part in found.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    seconds = int((day - _EPOCH).total_seconds()) - _offset(found[8])
    digits = (found[7] or "").ljust(9, "0")
    return float(f"{seconds * 1000 + int(digits[:3])}.{digits[3:]}") if seconds >= 0 else seconds * 1000.0


def since_midnight(said: str) -> float | None:
    """Return the milliseconds since midnight that a heading's time says; None if it says none."""
    found = _CLOCK.fullmatch(said)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3] or 0) > 60:  # noqa: PLR2004 - a clock's
        return None
    digits = (found[4] or "").ljust(9, "0")
    return float(f"{((int(found[1]) * 60 + int(found[2])) * 60 + int(found[3] or 0)) * 1000 + int(digits[:3])}.{digits[3:]}")


def _offset(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)


def following(time_of_day: float, latest: float) -> float:
    """Return the moment of a time of day that comes behind *latest*: on its day, or the next if that is half a day earlier or more."""
    midnight = latest - latest % DAY
    days = 1 if latest - (midnight + time_of_day) > DAY / 2 else 0
    return midnight + days * DAY + time_of_day
