"""What went wrong in this process, and in its stores, as texts for people and as counts."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path

from optree._builder import Stream
from optree._builder.guard import FAULTS
from optree._console import ConsoleWriter
from optree._interrupts import suppress
from optree._records import Record
from optree._store import Directory, SessionStore
from optree._store.files.system import disk_waited_for
from optree._store.opening import note_lost
from optree._store.reading.directory import LATE, LATE_UNWRITTEN, may_be_directory, nothing_saved
from optree._store.upkeep import left_unsynced
from optree._syscalls import calls
from optree._tracing.recorded import CURRENT_REPLAY
from optree._visible import one_line
from optree.errors import BusyError, NotFoundError
from optree.redaction import callback_errors, forget_callback_errors, redact

MOST_PROBLEMS = 1000
"""How many problems are kept for `health`, of all sessions together."""
_NAMED = 10
"""How many of the latest sessions with lost records are named."""
_CAUSES = 3
"""How many causes of loss a line names."""
ANSWER_SECONDS = 2.0
"""A disk that takes longer than that for a sync is a problem: what was recorded meanwhile is to be on it within about a second."""
_UNANSWERED = "what was recorded since then is safe from a kill, but not from a loss of power"
_UNWRITTEN = "what its session has recorded since then is in memory alone, and lost with this process"


class Problems:
    """Keeps each problem once, for `health`, and says it on stderr once, however many sessions have it."""

    def __init__(self, stores: Mapping[str, SessionStore], *, has_console: Callable[[], bool]) -> None:
        """Ask those of *stores* that are open; with a console a session's log lines say what its stream met."""
        self.reported: list[str] = []
        self._stores, self._has_console = stores, has_console
        self._on_stderr: set[str] = set()
        """Without the txn of a session."""
        self._resolved: set[str] = set()
        """Those of `reported` that are over, unless a store has them."""
        self._left: dict[str, dict[Path, list[str]]] = {}
        """By the problem that they are, the live directories of sessions that were let go before they were saved and billed, and why."""
        self._lost: dict[tuple[Path, str], _Lost] = {}
        """By place and reason, the sessions that were let go with records that are in no file."""
        self._happened: set[str] = set()
        """Those of `reported` that are about what this process did, and not about how it is set up."""

    def report(self, problem: str, *closed: SessionStore) -> None:
        """Keep a problem, and say it, unless a log line does, of a store that is open or was *closed*."""
        problem = redact(problem)
        if problem not in self.reported and len(self.reported) < MOST_PROBLEMS:
            self.reported.append(problem)
            stores = (*closed, *list(self._stores.values()))
            kind = problem
            for store in stores:
                kind = kind.replace(store.txn, "TXN")
            if kind not in self._on_stderr and not (self._has_console() and any(problem in store.stream.reports for store in stores)):
                self._on_stderr.add(kind)
                say(problem)

    @staticmethod
    def why_not_here(txn: str, stores: Collection[str], directory: Directory) -> str | None:
        """Return why a session that the program names cannot go on here; None if it can, as far as is known."""
        if txn in stores:
            return f"session {txn} is open in this process"
        if CURRENT_REPLAY.answer_tool is not None:
            return f"session {txn} is recorded, and this is a replay"
        return f"session {txn} is not there" if directory.exact(txn) is None else None

    def why_not_resumed(self, txn: str, error: Exception, directory: Directory, *, named: bool) -> str:
        """Return why a session does not go on; report it, if the program *named* it and it is damaged. A disk's problems come again."""
        if not isinstance(error, OSError):
            reason, more = str(error), ""
        else:
            reason = f"{error.filename or directory.sessions}: {error.strerror or error}"
            more = "; mend that and start again, or begin a new session without OPTREE_RESUME"
        if named and not isinstance(error, (BusyError, NotFoundError, OSError)):
            self.report_happened(f"session {txn} cannot go on: {reason}")
        return reason if named else f"{reason}{more}"

    def report_happened(self, problem: str, *closed: SessionStore) -> None:
        """Do as `report` does with what has happened to a session or in a thread: a forked child leaves it to this process."""
        self._happened.add(redact(problem))
        self.report(problem, *closed)

    def report_of_store(self, problem: str) -> None:
        """Say at once what goes wrong in a store that is open, and that knows itself how long it is so."""
        self._resolved.add(redact(problem))
        self.report_happened(problem)

    def after_fork(self) -> None:
        """In a forked child: keep how the process is set up, which is the child's too; what has happened is the parent's to say."""
        self.reported = [problem for problem in self.reported if problem not in self._happened]
        self._happened.clear()
        self._left.clear()
        self._lost.clear()
        FAULTS.clear()
        forget_callback_errors()

    def resolve(self, problem: str, *, over: bool = True) -> None:
        """Note that a problem that was reported is over, or has come back."""
        (self._resolved.add if over else self._resolved.discard)(redact(problem))

    def keep_of(self, store: SessionStore) -> None:
        """Keep the problems of a store that is closed."""
        current = set(current_problems_of(store))
        for problem in problems_of(store):
            self.report_happened(problem, store)
            over = problem not in current and redact(problem) in self.reported
            (self._resolved.add if over else self._resolved.discard)(redact(problem))

    def keep_left(self, store: SessionStore) -> None:
        """Report that a session was let go before it was saved and billed, if it was; that is over once any process has settled it.

        A session with records that are in no file is reported for good: one report for all of a kind, in place of what went wrong in each.
        """
        where = store.options.directory.sessions
        if store.unwritten:
            why = store.unwritable_reason or store.journal.refusal or store.journal.problem
            self._lost.setdefault((where, why), _Lost()).add(store)
            self._resolved.update(map(redact, problems_of(store)))
        if store.unwritten or store.finished:
            return
        problem = f"sessions that have ended are left in {where}: they are saved and billed once that is possible, by the next run too"
        self._left.setdefault(problem, {})[store.live] = [*map(redact, current_problems_of(store))]
        self._resolved.discard(redact(problem))
        self.report_happened(problem)

    @property
    def lost_for(self) -> list[str]:
        """Why records are lost of sessions that were let go."""
        return [why for _, why in list(self._lost)]

    def _look_at_left(self) -> None:
        """Note those that are settled, up to the first that is not, since they may be many."""
        for problem, lives in list(self._left.items()):
            for live in reversed(list(lives)):
                if may_be_directory(live):
                    break
                self._resolved.update(lives.pop(live, ()))
            else:
                self._resolved.add(redact(problem))

    def current(self, of_mirror: Iterable[str] = ()) -> list[str]:
        """Return what is wrong at this moment, with what the mirror says of itself."""
        self._look_at_left()
        stuck = max((store.stream.stuck_for for store in list(self._stores.values())), default=0.0)
        hangs = [
            f"the disk has not {what} for {seconds:.0f} s: {follows}"
            for what, seconds, follows in (("answered", disk_waited_for(), _UNANSWERED), ("taken a write", stuck, _UNWRITTEN))
            if seconds >= ANSWER_SECONDS
        ]
        lost = [loss.describe(*key) for key, loss in list(self._lost.items())]
        reported = [problem for problem in self.reported if problem not in self._resolved]
        late = [store.current_problems[LATE] for store in LATE_UNWRITTEN if LATE in store.current_problems]
        of_stores = [problem for store in list(self._stores.values()) for problem in current_problems_of(store)]
        failed = [f"redact's callback raised for {count} texts, which were replaced whole"] if (count := callback_errors()) else []
        found = [*reported, *lost, *late, *FAULTS.texts(), *of_stores, *left_unsynced(), *hangs, *of_mirror]
        return [*failed, *map(redact, dict.fromkeys(found))]


class _Lost:
    """What is lost of sessions that were let go, in one place and for one reason."""

    def __init__(self) -> None:
        self._records = self._sessions = 0
        self._latest: deque[str] = deque(maxlen=_NAMED)

    def add(self, store: SessionStore) -> None:
        """Count a session."""
        self._records += store.unwritten
        self._sessions += 1
        self._latest.appendleft(store.txn)

    def describe(self, where: Path, why: str) -> str:
        """Return the loss as a text for people."""
        more = ", …" if self._sessions > len(self._latest) else ""
        of = f"{self._sessions} sessions that have ended ({', '.join(self._latest)}{more})"
        return f"{self._records} records are lost of {of}, in {where}: {why}"


def problems_of(store: SessionStore) -> list[str]:
    """Return what went wrong in a store, also what is over; why none of its files could be made was reported when it began."""
    if store.unwritable_reason:
        return [*store.stream.reports]
    journal = store.journal.problem if not _has_said_no_room(store, store.failed) else ""
    return [*store.problems, *store.stream.reports, *filter(None, (journal, store.stream.last_failure))]


def current_problems_of(store: SessionStore) -> list[str]:
    """Return what is wrong in a store at this moment."""
    if store.unwritable_reason:
        return [nothing_saved(store.options.directory, store.unwritable_reason), *store.stream.reports]
    current = dict(store.current_problems)
    is_over = store.journal.resolved and not store.unwritten
    journal = "" if is_over or _has_said_no_room(store, current) else store.journal.problem
    return [*dict.fromkeys([*current.values(), *store.stream.reports, *filter(None, (journal, store.stream.last_failure))])]


def _has_said_no_room(store: SessionStore, steps: Iterable[str]) -> bool:
    """Tell whether the session has said, of one of these steps, that there is no room where its journal found none."""
    failed = (store.journal.errno, store.options.directory.sessions)
    return store.journal.errno in (ENOSPC, EDQUOT) and any(store.failed.get(step) == failed for step in list(steps))


class Unsaved:
    """Stands where the journal would in a session without files, and counts its records, which are lost."""

    def __init__(self) -> None:
        self.records = 0

    def take(self, batch: list[Record]) -> None:
        """Count the records."""
        self.records += len(batch)


def counts_of(stores: Sequence[SessionStore], consoles: Sequence[ConsoleWriter]) -> dict[str, int]:
    """Return what was lost, late or dropped, and how much was recorded."""
    return {
        "records": sum(store.journal.last - store.journal.began for store in stores),
        "lost": sum(store.unwritten for store in stores),
        "late": sum(store.stream.late for store in stores),
        "failures": sum(store.stream.failures for store in stores),
        "console_dropped": sum(console.dropped for console in consoles),
    }


def flush_in_turn(streams: list[Stream]) -> None:
    """Deliver what these have; each is taken out of the list once that is done."""
    for stream in [*streams]:
        stream.flush()
        streams.remove(stream)


def note_losses(
    records: int, stores: Sequence[SessionStore], directory: Directory, before: Iterable[str], unflushed: Iterable[Stream]
) -> str:
    """Note how many records of each session are lost with the process; returns how many are, and why, empty if none are.

    *directory* is where sessions without files would be; *before* has the causes of earlier losses; *unflushed* are those that the end did
    not come to, behind a write that hangs.
    """
    last = {*unflushed}
    waiting = {store: store.stream.waiting if store.stream in last else store.stream.stuck for store in stores}
    for store in stores:
        note_lost(store.txn, store.unwritten + waiting[store])
    lost, stuck = [store for store in stores if store.unwritten or waiting[store]], sum(waiting.values())
    reasons = sorted({*before, *(cause for store in lost if (cause := store.unwritable_reason or store.journal.problem))})
    reasons += ["the disk did not answer"] if stuck else []
    causes = ", ".join([*reasons[:_CAUSES], *(["…"] if len(reasons) > _CAUSES else [])])
    places = {store.options.directory for store in lost} or {directory}
    where = ", ".join(sorted("the home directory" if place.homeless else str(place.sessions) for place in places))
    return f"{records + stuck} records are lost, in {where}{causes and f': {causes}'}" if records + stuck else ""


def say(text: str) -> None:
    """Write a line on stderr, unless that would have to wait for its reader."""
    if sys.__stderr__ is None:  # the descriptor was closed at start, and may be any file's by now
        return
    with suppress(OSError):
        if calls.takes_more(2):
            os.write(2, f"optree: {one_line(redact(text))}\n".encode(calls.terminal_encoding(2), "replace"))
