"""Agno: runs of its agents, teams and workflows are sessions; steps, tools, hooks and guardrails are ops in them.

Agno has no callback for all runs. So the functions that `run`, `arun` and their streams call are replaced, and each stream has a context of
its own, as a function has that the program decorates. A run that fails raises nothing: Agno says so in the run's result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from inspect import isroutine
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from optree._builder import Op, Turn
from optree._capture.frameworks.agno.calls import CANCELLED, RunPlace, plain
from optree._capture.hooks import Hook, IsOn, of_kind
from optree._nodes import Status
from optree._providers.messages import json_text
from optree._tracing import context
from optree._tracing.context import Holder, Scope
from optree._tracing.faults import SESSION, guarded
from optree._tracing.handles import Session
from optree._tracing.results import OpResult, Result
from optree._tracing.scopes import OpScope, SessionScope, TurnScope
from optree._tracing.wrapping import wrapped
from optree._values import cut, is_list, is_object, own_members, text, text_of
from optree.redaction import redact

_RUNS: Final = (
    "_run", "_run_stream", "_arun", "_arun_stream",
    "_continue_run", "_continue_run_stream", "_acontinue_run", "_acontinue_run_stream",
    "_execute", "_execute_stream", "_aexecute", "_aexecute_stream",
    "_continue_execute", "_continue_execute_stream", "_acontinue_execute", "_acontinue_execute_stream",
    "_continue_run_dispatch_stream_with_member_events",
)  # fmt: skip
"""Functions of agents and teams, and methods of workflows, that are one run each."""
_CONTINUES: Final = "continue_run_dispatch"
"""The function by which a team goes on: before the run it calls the members and the tools that waited for somebody."""
_STEPS: Final = ("Step", "Steps", "Parallel", "Loop", "Condition", "Router")
_WAYS: Final = ("execute", "execute_stream", "aexecute", "aexecute_stream")
_HOOKS: Final = ("execute_pre_hooks", "aexecute_pre_hooks", "execute_post_hooks", "aexecute_post_hooks")
_LATER: Final = (("start_memory_future", "make_memories"), ("start_learning_future", "process_learnings"))
"""What a run calls to have something done in a thread, and the function that does it there."""
_MOST_WAITING: Final = 10_000
_ENDS: Final[Mapping[str, Status]] = {"ERROR": "failed", "CANCELLED": "cancelled"}
"""The status of a run that raised nothing, by the status that Agno gives it."""
_EVENTS: Final[Mapping[str, Status]] = {
    "RunCompleted": "ok", "RunError": "failed", "RunCancelled": "cancelled",
    "TeamRunCompleted": "ok", "TeamRunError": "failed", "TeamRunCancelled": "cancelled",
}  # fmt: skip


def _within(function: Any, node_of: Callable[..., Any]) -> Any:
    """Return the replacement of a function: each call runs in a node of its own, as if the program had decorated the function."""

    @functools.wraps(function)
    def run(*args: Any, **told: Any) -> Any:
        node = node_of(*args, **told)
        return (function if node is None else wrapped(function, lambda _: node))(*args, **told)

    return of_kind(function, run)


def runs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the functions that run an agent, a team or a workflow: plain, as a stream, or in the background."""
    owner, kind = (module.Workflow, "workflow") if hasattr(module, "Workflow") else (module, module.__name__.split(".")[1])

    @guarded
    def run_of(runner: Any = None, *_args: Any, team: Any = None, **told: Any) -> _AgnoRun | None:
        runner = team if runner is None else runner
        return _AgnoRun(runner, kind, told) if is_on() and not _is_run_of(runner) else None

    @guarded
    def continued(runner: Any, *args: Any, stream: bool | None = None, **told: Any) -> _AgnoRun | None:
        is_stream = runner.stream if stream is None else stream  # then its tools run before there is a stream, and are outside of the run
        return None if is_stream or told.get("run_response") is None else run_of(runner, *args, **told)

    own = own_members(owner)
    found = [(owner, name, _within(own[name], run_of)) for name in _RUNS if name in own]
    return [*found, (owner, _CONTINUES, _within(own[_CONTINUES], continued))] if kind == "team" and _CONTINUES in own else found


_runners: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""Agents, teams and workflows that run, by their sessions' builders."""


def _is_run_of(runner: Any) -> bool:
    """Tell whether this is in a run of the runner already, and in no op of it."""
    here = context.here()
    return here is not None and here.op is None and _runners.get(here.session.builder) is runner


class _AgnoRun(TurnScope):
    """One run: the turn of what is asked, in a session of its own."""

    def __init__(self, runner: Any, kind: str, told: Mapping[str, Any]) -> None:
        self._run: Any = told.get("run_response") or told.get("workflow_run_response")
        known = ((name, getattr(told.get("run_context") or self._run, name, None)) for name in ("session_id", "run_id", "user_id"))
        self._ids = {f"agno.{name}": one for name, one in known if one}
        super().__init__(_question(getattr(self._run, "input", None)), _instructions(runner), {})
        self._runner, self._agent = runner, SessionScope(text(runner.name or kind), self._ids)
        self._session: Session | None = None
        self._stale = getattr(self._run, "content", None)  # of a run that goes on: what it came to before
        self._how: tuple[Status, Any] = "ok", None

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        """Begin the session, and the turn in it."""
        above = self._agent.begin(before, holder)
        if above.session is SESSION:
            return above
        try:
            scope = super().begin(above, holder, arguments)
        except BaseException:
            self._agent.undo(above, before)
            raise
        self._session, scope.before, scope.piece = above.session, before, before and before.piece
        _runners[above.session.builder] = self._runner
        return scope

    def _end(self, handle: Turn, status: Status, error: str | None) -> None:
        session, content = self._session, getattr(self._run, "content", None)
        how, said = self._how
        report = said if content is self._stale else content
        if status == "ok":
            status = _ENDS.get(text(getattr(getattr(self._run, "status", None), "value", ""))) or how
            error = None if status == "ok" else _said_of(said or report)
        if session is None:
            return
        _runners.pop(session.builder, None)
        if status == "ok" and report is not None:
            session.builder.set_final_report(plain(report), with_end=True)
        try:
            super()._end(handle, status, error)
        finally:
            self._agent.finish(session, status, error)

    def result(self, handle: Turn) -> Result:  # noqa: ARG002 - there is one
        """Return the object that gets the run's result, or the events of its stream."""
        return _RunResult(self)

    @guarded
    def returned(self, found: Any) -> None:
        """Keep the run's result: the session ends by it."""
        if hasattr(found, "status") and hasattr(found, "content"):
            self._run = found

    @guarded
    def took(self, event: Any) -> None:
        """Note how the run ended by an event of its own stream; events of members are passed over."""
        if getattr(event, "run_id", None) == self._ids.get("agno.run_id"):
            self.returned(event)
            if (status := _EVENTS.get(getattr(event, "event", ""))) is not None:
                self._how = status, getattr(event, "reason", None) or getattr(event, "content", None)


class _RunResult(Result):
    """Passes what a run gives on to the run; nothing of it is recorded as the turn's response."""

    __slots__ = ("_run",)

    def __init__(self, run: _AgnoRun) -> None:
        self._run = run

    def take(self, item: Any) -> bool:
        """Pass an event on to the run."""
        self._run.took(item)
        return True

    def returned(self, value: Any) -> None:
        """Pass the result on to the run."""
        self._run.returned(value)


def steps(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods that run a step of a workflow, or a group of steps."""

    @guarded
    def step_of(step: Any, step_input: Any = None, *_args: Any, **_told: Any) -> _AgnoOp | None:
        if not is_on():
            return None
        kind = type(step).__name__.lower()
        given = {name: one for name in ("input", "previous_step_content") if (one := getattr(step_input, name, None)) is not None}
        sent = {name: plain(one) for name, one in given.items()} if kind == "step" else {}
        name = getattr(step, "name", None)
        return _AgnoOp(kind if name is None or name.lower() == kind else f"{kind} {text(name)}", kind, sent)

    kinds = [kind for name in _STEPS if (kind := own_members(module).get(name)) is not None and kind.__module__ == module.__name__]
    return [(kind, way, _within(own_members(kind)[way], step_of)) for kind in kinds for way in _WAYS if way in own_members(kind)]


class _AgnoOp(OpScope):
    """The op of a step of a workflow, or of a hook or guardrail that an agent calls before or after a run."""

    def __init__(self, name: str, kind: str, sent: Mapping[str, Any]) -> None:
        super().__init__("system", name, {"type": kind})
        self._sent = sent
        self.failure: str | None = None

    def called(self, handle: Op, arguments: Mapping[str, Any]) -> None:  # noqa: ARG002 - most are objects of Agno's
        """Record a step's input as the op's request."""
        if self._sent:
            super().called(handle, self._sent)

    def result(self, handle: Op) -> Result:
        """Return the object that records the output."""
        return _StepResult(handle, self)

    def _end(self, handle: Op, status: Status, error: str | None) -> None:
        if status == "ok" and self.failure is not None:
            status, error = "failed", _said_of(self.failure)
        elif (error or "").startswith(CANCELLED):
            status = "cancelled"
        super()._end(handle, status, error)


class _StepResult(OpResult):
    """Records the output of a step; a stream yields it among its events."""

    __slots__ = ("_step",)

    def __init__(self, op: Op, step: _AgnoOp) -> None:
        super().__init__(op)
        self._step = step

    def take(self, item: Any) -> bool:
        """Record the output if the item is one; events are passed over."""
        if hasattr(item, "success"):
            self.returned(item)
        return True

    def returned(self, value: Any) -> None:
        """Record the output as the op's response, and whether the step says that it failed."""
        if value is None:
            return
        if getattr(value, "success", True) is False:
            self._step.failure = text(getattr(value, "error", None) or "it had no success")
        if (content := getattr(value, "content", value)) is not None:
            self._op.response(plain(content))


def guards(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the functions that call an agent's hooks and guardrails: each of these is wrapped so that its call is an op."""

    def hooked(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **told: Any) -> Any:
            if is_on():
                told = _with_ops(told) or told
            return function(*args, **told)

        return of_kind(function, run)

    own = own_members(module)
    names = [name for known in _HOOKS for name in (known, f"_{known}") if name in own]
    return [(module, name, hooked(own[name])) for name in names]


@guarded
def _with_ops(told: Mapping[str, Any]) -> dict[str, Any] | None:
    hooks = told.get("hooks")
    return {**told, "hooks": [_recorded_hook(one) for one in hooks]} if hooks else None


def _recorded_hook(function: Any) -> Any:
    """Return a hook whose call is an op. It keeps `__self__`: Agno recognizes a guardrail by the object that the hook is a method of."""
    if not isroutine(function) or getattr(function, "_agno_run_in_background", False):
        return function
    owner = getattr(function, "__self__", None)
    is_guardrail = any(kind.__name__ == "BaseGuardrail" for kind in type(owner).__mro__)
    name, kind = (type(owner).__name__, "guardrail") if is_guardrail else (function.__name__, "hook")
    made: Any = wrapped(function, lambda _: _AgnoOp(f"{kind} {name}", kind, {}))
    if owner is not None:
        made.__self__ = owner
    return made


def later(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what a run does in a thread of its own, such as making memories: the calls of models in there belong to the run."""
    places: dict[int, Scope] = {}

    def starts(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **told: Any) -> Any:
            messages = id(told.get("run_messages", args[1] if len(args) > 1 else None))
            if is_on() and len(places) < _MOST_WAITING and (here := context.here()) is not None:
                places[messages] = here
            found = function(*args, **told)
            if found is None:
                places.pop(messages, None)
            return found

        return run

    def place_of(*_args: Any, run_messages: Any = None, **_told: Any) -> RunPlace | None:
        scope = places.pop(id(run_messages), None)
        return None if scope is None else RunPlace(scope)

    own, found = own_members(module), list[Hook]()
    for start, does in ((f"{mark}{start}", f"{mark}{does}") for mark in ("", "_") for start, does in _LATER):
        if start in own and does in own:
            found += [(module, start, starts(own[start])), (module, does, _within(own[does], place_of))]
    return found


def _said_of(failure: Any) -> str | None:
    """Return the text of a failure, cut, without credentials."""
    return None if failure is None else redact(cut(text(failure)))


def _question(asked: Any) -> str | None:
    """Return what the user asks: the text, the text of the message, or of the last of several that has one, or the object as JSON."""
    asked = getattr(asked, "input_content", asked)
    if asked is None or isinstance(asked, str):
        return asked
    if is_list(asked):
        found = [one if isinstance(one, str) else _content_of(one) for one in asked]
        return next((one for one in reversed(found) if one is not None), None) or json_text(plain(asked))
    return _content_of(asked) or json_text(plain(asked))


def _content_of(message: Any) -> str | None:
    found = message.get("content") if is_object(message) else getattr(message, "content", None)
    return text_of(found)


def _instructions(runner: Any) -> str | None:
    """Return the system prompt of an agent or a team: the parts of it that are texts."""
    prompt = getattr(runner, "system_message", None)
    given = getattr(runner, "instructions", None)
    parts = [prompt] if isinstance(prompt, str) else [getattr(runner, "description", None), *(given if is_list(given) else [given])]
    return "\n".join(one for one in parts if isinstance(one, str)) or None
