"""What stores and consoles count, and what they say went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from optree.console import ConsoleWriter
from optree.store import SessionStore


def problems_of(store: SessionStore) -> list[str]:
    """Return what went wrong in a store, a text each."""
    return [*store.problems, *store.stream.reports, *(said for said in (store.journal.problem, store.stream.last_failure) if said)]


def counts_of(stores: Sequence[SessionStore], consoles: Sequence[ConsoleWriter]) -> dict[str, int]:
    """Return what was lost, late or dropped, and how much was recorded."""
    return {
        "records": sum(store.journal.last for store in stores),
        "lost": sum(store.unwritten for store in stores),
        "late": sum(store.stream.late for store in stores),
        "failures": sum(store.stream.failures for store in stores),
        "console_dropped": sum(console.dropped for console in consoles),
    }
