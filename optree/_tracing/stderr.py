"""Lines of a process on stderr, which may be closed, another file's by now, or a terminal that knows colours."""

from __future__ import annotations

import os
import sys

from optree._interrupts import suppress
from optree._syscalls import calls
from optree._visible import one_line
from optree.redaction import redact


def say(text: str) -> None:
    """Write a line on stderr, unless that would have to wait for its reader."""
    if sys.__stderr__ is None:  # the descriptor was closed at start, and may be any file's by now
        return
    with suppress(OSError):
        if calls.takes_more(2):
            os.write(2, f"optree: {one_line(redact(text))}\n".encode(calls.terminal_encoding(2), "replace"))
