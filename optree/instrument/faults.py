"""What recording raises on the program's thread: it is counted and said, and the program goes on without."""

from __future__ import annotations

from contextlib import suppress

from optree.errors import OptreeError
from optree.instrument.runtime import RUNTIME
from optree.interrupts import pass_on
from optree.values import text


def fault(error: Exception) -> None:
    """Count a fault, and say it once; raises it again if it is the program's own, or says how optree is to be used."""
    if isinstance(error, OptreeError):
        raise error
    pass_on(error)
    with suppress(Exception):  # no memory even for that
        RUNTIME.report(f"something is not recorded: {type(error).__name__}: {text(error)}")
