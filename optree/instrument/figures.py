"""What stores and consoles count, and what they say went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from optree.console import ConsoleWriter
from optree.store import SessionStore


def problems_of(store: SessionStore) -> list[str]:
    """Return what went wrong in a store, a text each; why none of its files could be made was said when it began."""
    if store.unmade:
        return [*store.stream.reports]
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


def unmade_of(stores: Sequence[SessionStore]) -> str:
    """Return how much is lost with the process, since no file could be made for it to the end, and why; empty if nothing is."""
    lost = [store for store in stores if store.unmade and store.unwritten]
    records, causes = sum(store.unwritten for store in lost), ", ".join(sorted({store.unmade for store in lost}))
    where = ", ".join(sorted({str(store.options.directory.sessions) for store in lost}))
    return f"{records} records are lost: {where} could not be written to the end ({causes})" if lost else ""
