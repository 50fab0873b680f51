"""What an exception says about how a node ended."""

from __future__ import annotations

from optree.nodes import Status
from optree.refused import without_body
from optree.values import text


def outcome(error: BaseException | None) -> tuple[Status, str | None]:
    """Return the status and error text of a block that was left with *error* (None: normally)."""
    if error is None:
        return "ok", None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "ok", None
    name = type(error).__name__
    if isinstance(error, (GeneratorExit, KeyboardInterrupt)) or name == "CancelledError":
        return "cancelled", name
    said = without_body(error)  # which may have the user's words in it
    message = text(error) if said is None else said
    return "failed", f"{name}: {message}" if message else name
