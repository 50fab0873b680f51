"""Events without credentials: in what they hold, by key and by form."""

from __future__ import annotations

from copy import copy
from typing import Any

import msgspec

from optree.exporting import redact
from optree_formats.transcript.recorder import Mask
from optree_formats.transcript.wire import Event, line


def masked(mask: Mask | None) -> Mask:
    """Return a mask that takes credentials out of what *mask* returns."""
    return without_credentials if mask is None else lambda event: without_credentials(mask(event))


def without_credentials(event: Event) -> Event:
    """Return an event with the credentials in its payload, and in what stands beside it, replaced; itself where there are none."""
    members: dict[str, Any] = msgspec.json.decode(line(event))
    before = {name: members.get(name) for name in ("payload", "optree")}
    after = redact(before)
    if after == before:
        return event
    found = copy(event)
    found.payload, found.optree = after["payload"], after["optree"]
    return found
