"""What stores and consoles count, and what they say went wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from optree.console import ConsoleWriter
from optree.records import Record
from optree.store import Directory, SessionStore
from optree.store.directory import nothing_saved

_CAUSES = 3
"""Of sessions' causes of loss that a line names."""


class Unsaved:
    """Stands where the journal would in a session without files, and counts its records, which are lost."""

    def __init__(self) -> None:
        self.records = 0

    def take(self, batch: list[Record]) -> None:
        """Count them."""
        self.records += len(batch)


def problems_of(store: SessionStore) -> list[str]:
    """Return what went wrong in a store, a text each, also what is over; why none of its files could be made was said when it began."""
    if store.unwritable_reason:
        return [*store.stream.reports]
    return [
        *store.problems,
        *store.stream.reports,
        *filter(None, (_untold(store.journal.problem, store.problems), store.stream.last_failure)),
    ]


def current_problems_of(store: SessionStore) -> list[str]:
    """Return what is wrong in a store at this moment, a text each."""
    if store.unwritable_reason:
        return [nothing_saved(store.options.directory, store.unwritable_reason), *store.stream.reports]
    said = list(store.current_problems.values())
    journal = "" if store.journal.resolved and not store.unwritten else _untold(store.journal.problem, said)
    return [*dict.fromkeys([*said, *store.stream.reports, *filter(None, (journal, store.stream.last_failure))])]


def _untold(problem: str, said: Collection[str]) -> str:
    """Return what went wrong with a journal, unless it was said of the session already that there is no room."""
    why = problem.rpartition(": ")[2]
    return "" if any(f": {why} in " in one for one in said) else problem


def left_behind(store: SessionStore) -> str:
    """Return the text that a session which has ended is in its journal, and was let go before it was saved and billed; empty if it was."""
    if store.unwritten or store.finished:
        return ""
    return f"sessions that have ended are left in {store.options.directory.sessions}: the next run saves and bills them, or optree status"


def counts_of(stores: Sequence[SessionStore], consoles: Sequence[ConsoleWriter]) -> dict[str, int]:
    """Return what was lost, late or dropped, and how much was recorded."""
    return {
        "records": sum(store.journal.last for store in stores),
        "lost": sum(store.unwritten for store in stores),
        "late": sum(store.stream.late for store in stores),
        "failures": sum(store.stream.failures for store in stores),
        "console_dropped": sum(console.dropped for console in consoles),
    }


def lost_of(records: int, stores: Sequence[SessionStore], directory: Directory) -> str:
    """Return how many records are lost with the process, and why; empty if none are; *directory* is where those without files would be."""
    lost = [store for store in stores if store.unwritten]
    said = sorted({cause for store in lost if (cause := store.unwritable_reason or store.journal.problem)})
    causes = ", ".join([*said[:_CAUSES], *(["…"] if len(said) > _CAUSES else [])])
    places = {store.options.directory for store in lost} or {directory}
    where = ", ".join(sorted("the home directory" if place.homeless else str(place.sessions) for place in places))
    return f"{records} records are lost, in {where}{causes and f': {causes}'}" if records else ""
