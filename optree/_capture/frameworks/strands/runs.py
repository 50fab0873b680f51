"""Runs of Strands' agents, graphs and swarms: each is a session, and the run's last event tells how it ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from optree._builder import Turn
from optree._capture.calls.observed import ended_by
from optree._capture.calls.program import program_name
from optree._capture.frameworks.nesting import LEFT
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import Holder, Scope
from optree._tracing.faults import SESSION, guarded
from optree._tracing.handles import Session
from optree._tracing.results import Result
from optree._tracing.scopes import SessionScope, TurnScope
from optree._tracing.wrapping import RecordedItems
from optree._values import dumped, is_list, is_object, text, text_of

_Events = AsyncGenerator[Any, Any]
_NO_NAMES: Final = ("Strands Agents", "default_graph", "default_swarm")
"""The names that Strands gives to agents, graphs and swarms for which the program has none."""
_IN_ORDER: Final = ("end_turn", "tool_use", "cancelled", "completed", "failed")
"""Reasons to stop that tell no more than the session's status and report do."""


class OpenStep(Protocol):
    """An op that is open in a run."""

    def end(self, status: Status, error: str | None) -> None:
        """End the op because the run ends."""


class StrandsRun:
    """One run of an agent, a graph or a swarm."""

    def __init__(self, name: str, source: Any) -> None:
        self.name, self.source = name, source
        self.open: set[OpenStep] = set()
        """Ops that are open in it: of a tool that is cancelled Strands may tell nothing more."""
        self.outcome = _StrandsOutcome(self)

    def around(self, events: _Events, asked: Any, system: Any = None) -> _Events:
        """Return the events, each read within a session and a turn of it."""
        turn = _StrandsTurn(question_of(asked), system if isinstance(system, str) and system else None, self)
        return RecordedItems(RecordedItems(events, turn, _closed), _StrandsSession(self), _closed)

    def ended(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """End the ops that are open in the run, and return how its session or turn ends."""
        status, error = self.outcome.status(status, error)
        for step in list(self.open):
            step.end(*(LEFT if status == "ok" else (status, error)))
        return status, error


def _closed() -> None:
    """Do nothing when the program closes the stream: the run ends as cancelled."""


RUNS: Final[WeakKeyDictionary[Any, StrandsRun]] = WeakKeyDictionary()
"""Runs by the builders of their sessions."""


class _StrandsOutcome(Result):
    """Finds the run's status and report in its last event."""

    __slots__ = ("_is_cancelled", "_result", "_run", "session")

    def __init__(self, run: StrandsRun) -> None:
        self._run = run
        self._result: Any = None
        self._is_cancelled = False
        self.session: Session | None = None

    def take(self, item: Any) -> bool:
        """Look at an event: the last one has the result."""
        self._note(item)
        return True

    @guarded
    def _note(self, event: Any) -> None:
        result = event.get("result") if is_object(event) else None
        if hasattr(result, "interrupts"):  # else it is the program's own, which events have as well
            self._result = result
            if getattr(result, "stop_reason", None) == "cancelled":  # else it stops in order, once its tools have answered
                self._is_cancelled = self._run.source.cancel_signal.is_set()

    def status(self, status: Status, error: str | None) -> tuple[Status, str | None]:
        """Return how the run ends. Once the result is there it decides, also if the program closes the stream then."""
        if self._result is None or status == "failed":
            return status, error
        if self._is_cancelled:
            return "cancelled", "Agent.cancel() was called"
        if is_failed(self._result):
            failures = [one.result for one in self._result.results.values() if isinstance(one.result, BaseException)]
            return "failed", ended_by(failures[-1])[1] if failures else "a node of it failed, or a limit was reached"
        return "ok", None

    @guarded
    def ended(self, status: Status) -> None:  # noqa: ARG002 - it may have failed by its result
        """Record the result as the session's report."""
        session, result, self.session = self.session, self._result, None
        if session is None or result is None:
            return
        reason = getattr(result, "stop_reason", None) or result.status.value
        if reason not in _IN_ORDER:
            session.builder.set_title(attributes={"stop_reason": reason})
        if not result.interrupts:
            output = getattr(result, "structured_output", None)
            report = text(result).removesuffix("\n") if output is None else dumped(output.model_dump)
            session.builder.set_final_report(report, with_end=True)


class _StrandsSession(SessionScope):
    """The session of a run."""

    def __init__(self, run: StrandsRun) -> None:
        super().__init__(run.name, {})
        self._run = run

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        scope = super().begin(before, holder, arguments)
        if scope.session is not SESSION:
            RUNS[scope.session.builder] = self._run
            self._run.outcome.session = scope.session
        return scope

    def finish(self, handle: Session, status: Status, error: str | None) -> None:
        """End the session, after the ops that are open in the run."""
        super().finish(handle, *self._run.ended(status, error))

    def result(self, handle: Session) -> Result:  # noqa: ARG002 - it was given at the beginning
        return self._run.outcome


class _StrandsTurn(TurnScope):
    """The only turn of the session."""

    def __init__(self, user: str | None, system: str | None, run: StrandsRun) -> None:
        super().__init__(user, system, {})
        self._run = run

    def finish(self, handle: Turn, status: Status, error: str | None) -> None:
        """End the turn, after the ops that are open in the run."""
        super().finish(handle, *self._run.ended(status, error))

    def result(self, handle: Turn) -> Result:  # noqa: ARG002 - the session takes them
        return _StrandsEvents()


class _StrandsEvents(Result):
    """Passes over the events: the session's result looks at them."""

    def take(self, item: Any) -> bool:  # noqa: ARG002 - none is kept
        """Pass over an event."""
        return True


def is_failed(result: Any) -> bool:
    """Tell whether a graph's, a swarm's or a node's result says that it failed."""
    return getattr(getattr(result, "status", None), "value", None) == "failed"


def name_of(given: Any, otherwise: str) -> str:
    """Return the run's name: the given one, else in a session that of the graph's node around it, or *otherwise*; else the program's."""
    if given not in _NO_NAMES:
        return text(given)
    where = context.here()
    if where is None:
        return program_name()
    return text((where.op.bare.attributes.get("node") if where.op is not None else None) or otherwise)


def question_of(asked: Any) -> str | None:
    """Return what the user asks: the text, or the texts of the blocks, of the last message, and of answers to interrupts."""
    if isinstance(asked, str) or not is_list(asked):
        return text_of(asked)
    if asked and is_object(asked[-1]) and "role" in asked[-1]:
        return question_of(asked[-1].get("content"))
    blocks = [one for one in asked if is_object(one)]
    said = [one.get("text") or (one["interruptResponse"].get("response") if "interruptResponse" in one else None) for one in blocks]
    return "\n".join(text(one) for one in said if one) or None
