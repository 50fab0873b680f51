"""Time: wall clock for display and order on a page, monotonic clock for durations.

All times in records, trees and files are epoch milliseconds as floats (about 0.25 µs fine); durations are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, time

Clock = Callable[[], float]
"""Returns seconds. The default wall clock is `time.time`; tests give one that ticks."""

wall: Clock = time
monotonic: Clock = perf_counter


def now_ms() -> float:
    """Return the wall time in epoch milliseconds."""
    return time() * 1e3
