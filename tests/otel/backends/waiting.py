"""Waits until something is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
BETWEEN = 0.02
"""Seconds from one look to the next."""


def wait_for(predicate: Callable[[], T], seconds: float = 20) -> T:
    """Return what *predicate* returns, as soon as that is true.

    Raises:
        TimeoutError: It was not true within *seconds*; the text has what it was last.

    """
    deadline = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not so within {seconds} s, last seen: {found!r}")
        time.sleep(BETWEEN)
    return found
