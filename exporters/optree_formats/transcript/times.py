"""Timestamps as RFC 3339 has them, in UTC, and epoch milliseconds: there and back without a loss for the times of a tree."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import floor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANO = 10**9
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The years 1 and 9999; what lies outside is written as the epoch's begin."""
_FORM = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(ms: float) -> str:
    """Return epoch milliseconds as text in UTC: as many digits of a second as it takes, nine at most."""
    known = ms if _FIRST_MS <= ms <= _LAST_MS else 0.0
    whole = floor(known)
    seconds, nano = divmod(whole * 10**6 + round((known - whole) * 1e6), _NANO)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    return f"{text}.{nano:09d}".rstrip("0") + "Z" if nano else f"{text}Z"


def milliseconds(text: str) -> float | None:
    """Return a timestamp's epoch milliseconds, whatever its zone; None for text that is no time, or names no zone."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    date, clock, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        return None
    since = moment - _EPOCH
    nano = int(f"{fraction or ''}000000000"[:9])
    return ((since.days * 86_400 + since.seconds) * _NANO + nano) / 10**6
