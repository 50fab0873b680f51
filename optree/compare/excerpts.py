"""Values as short texts for people, credentials replaced before anything is cut."""

from __future__ import annotations

from typing import Any

import msgspec

from optree.redaction import redact
from optree.values import is_object, shortened

LONGEST = 120
"""Characters of an excerpt."""
_AROUND = 24
"""Characters that an excerpt shows of what both texts have, before their first difference and behind their last."""


def said(value: Any, name: str = "") -> str:
    """Return a value as one line without credentials; *name* is what it is a member as, which may name a secret."""
    known = next(iter(redact({name: value}).values())) if name else redact(value)
    text = known if isinstance(known, str) else msgspec.json.encode(known).decode("utf-8", "replace")
    return " ".join(text.split())


def said_message(value: Any, *, role: bool = True) -> str:
    """Return a message as one line, its role in front if it is plain text; other values as `said` does."""
    if not is_object(value) or not isinstance(value.get("role"), str) or not value.keys() <= {"role", "content"}:
        return said(value)
    content = said(value.get("content"), "content")
    return f"{value['role']}: {content}" if role else content


def excerpt(text: str) -> str:
    """Return a text's beginning."""
    return shortened(text, LONGEST)


def differing(before: str, after: str) -> tuple[str, str]:
    """Return excerpts of two texts around what differs."""
    if before == after or max(len(before), len(after)) <= LONGEST:
        return excerpt(before), excerpt(after)
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = next((at for at in range(shorter - start) if before[-1 - at] != after[-1 - at]), shorter - start)
    return _around(before, start, len(before) - end), _around(after, start, len(after) - end)


def _around(text: str, start: int, end: int) -> str:
    first, last = max(0, start - _AROUND), min(len(text), end + _AROUND)
    return excerpt(("…" if first else "") + text[first:last] + ("…" if last < len(text) else ""))
