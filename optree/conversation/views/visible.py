"""Control characters as text: what agents said cannot drive a terminal, and takes the columns that it seems to take."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_BYTE = 256


def visible(text: str) -> str:
    """Return a text with its control characters written out, newlines and tabs apart."""
    return _CONTROL.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < _BYTE else f"\\u{number:04x}"
