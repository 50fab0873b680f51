"""Runs of agents that a program reads as a stream of events: each is a session with one turn, and its events tell how it ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from optree._builder import Turn
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import Holder, Scope
from optree._tracing.faults import SESSION, guarded
from optree._tracing.handles import Session
from optree._tracing.results import Result
from optree._tracing.scopes import SessionScope, TurnScope
from optree._tracing.wrapping import RecordedItems

Events = AsyncGenerator[Any, Any]


class StreamedRun:
    """One run; a subclass is a framework's."""

    def __init__(self, agent: str, attributes: Mapping[str, Any], outcome: RunOutcome) -> None:
        self.agent, self.attributes, self.outcome = agent, attributes, outcome

    @classmethod
    def here(cls) -> Self | None:
        """Return the run of this class whose session is the innermost one here."""
        where = context.here()
        run = None if where is None else _runs.get(where.session.builder)
        return run if isinstance(run, cls) else None

    def around(self, events: Events, user: str | None, system: Any) -> Events:
        """Return the events, each read within a session and a turn of it."""
        turn = _RunTurn(user, system if isinstance(system, str) and system else None, self)
        return RecordedItems(RecordedItems(events, turn, self.closed), _RunSession(self), self.closed)

    def closed(self) -> None:
        """Take that the program, or what the run is part of, wants no more events."""

    def ended(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """End the ops that are open in the run, and return how its turn or session ends."""
        raise NotImplementedError

    def turn_ends(self, turn: Turn, status: Status, error: str | None) -> None:
        """Record what is left to be told in the run's turn, which is about to end so."""


class RunOutcome(Result):
    """The result of a run's session: a subclass finds the report in the events, of which none is kept."""

    __slots__ = ("session",)

    def __init__(self) -> None:
        self.session: Session | None = None

    def note(self, event: Any) -> None:
        """Look at an event."""
        raise NotImplementedError

    def report(self, session: Session) -> None:
        """Record what the run came to, whatever its status."""
        raise NotImplementedError

    def take(self, item: Any) -> bool:
        """Take an event."""
        self._noted(item)
        return True

    @guarded
    def _noted(self, item: Any) -> None:
        self.note(item)

    @guarded
    def ended(self, status: Status) -> None:  # noqa: ARG002 - a run that failed has a report too
        """Record the report of the session."""
        session, self.session = self.session, None
        if session is not None:
            self.report(session)


_runs: Final[WeakKeyDictionary[Any, StreamedRun]] = WeakKeyDictionary()
"""By the builders of their sessions."""


class _RunSession(SessionScope):
    """The session of a run."""

    def __init__(self, run: StreamedRun) -> None:
        super().__init__(run.agent, run.attributes)
        self._run = run

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        scope = super().begin(before, holder, arguments)
        if scope.session is not SESSION:
            _runs[scope.session.builder] = self._run
            self._run.outcome.session = scope.session
        return scope

    def finish(self, handle: Session, status: Status, error: str | None) -> None:
        """End the session, after what is open in the run."""
        super().finish(handle, *self._run.ended(status, error))

    def result(self, handle: Session) -> Result:  # noqa: ARG002 - it was given at the beginning
        return self._run.outcome


class _RunTurn(TurnScope):
    """The only turn of the session."""

    def __init__(self, user: str | None, system: str | None, run: StreamedRun) -> None:
        super().__init__(user, system, {})
        self._run = run

    def finish(self, handle: Turn, status: Status, error: str | None) -> None:
        """End the turn, after what is open in the run."""
        status, error = self._run.ended(status, error)
        if not self.inherited(handle):
            self._run.turn_ends(handle, status, error)
        super().finish(handle, status, error)

    def result(self, handle: Turn) -> Result:  # noqa: ARG002 - the session's takes them
        return _PassedOver()


class _PassedOver(Result):
    """Events that the session's result looks at."""

    def take(self, item: Any) -> bool:  # noqa: ARG002 - none is kept
        """Pass over an event."""
        return True
