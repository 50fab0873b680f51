"""Agno: runs of its agents, teams and workflows are sessions; steps, tools, hooks and guardrails are ops in them.

It has no hook for all runs, so its own functions are: what `run`, `arun` and their streams come by, with a context of its own for each
stream, as of functions that the program decorates. A run that failed raises nothing: Agno's result of it says so.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, isroutine
from types import ModuleType
from typing import Any, Final, cast

from optree._builder import Op, Turn
from optree._capture.hooks import Hook, IsOn, await_within, run_within
from optree._capture.nesting import Nesting, given_instead, respond
from optree._capture.observed import ended_by
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import CURRENT, Holder, Scope
from optree._tracing.faults import guarded
from optree._tracing.handles import Session
from optree._tracing.recorded import CURRENT_REPLAY
from optree._tracing.results import OpResult, Result
from optree._tracing.scopes import OpScope, SessionScope, TurnScope
from optree._tracing.unrecorded import SESSION
from optree._tracing.wrapping import wrapped
from optree._values import cut, dumped, is_list, is_object, own_members, text
from optree.redaction import redact

_RUNS: Final = (
    "_run", "_run_stream", "_arun", "_arun_stream",
    "_continue_run", "_continue_run_stream", "_acontinue_run", "_acontinue_run_stream",
    "_execute", "_execute_stream", "_aexecute", "_aexecute_stream",
    "_continue_execute", "_continue_execute_stream", "_acontinue_execute", "_acontinue_execute_stream",
)  # fmt: skip
"""Functions of agents and teams, and methods of workflows, that are one run each."""
_STEPS: Final = ("Step", "Steps", "Parallel", "Loop", "Condition", "Router")
_WAYS: Final = ("execute", "execute_stream", "aexecute", "aexecute_stream")
_HOOKS: Final = ("execute_pre_hooks", "aexecute_pre_hooks", "execute_post_hooks", "aexecute_post_hooks")
_LATER: Final = (("start_memory_future", "make_memories"), ("start_learning_future", "process_learnings"))
"""What is called within a run to have something done in a thread, and what does it there."""
_MOST_WAITING: Final = 10_000
_ENDS: Final[Mapping[str, Status]] = {"ERROR": "failed", "CANCELLED": "cancelled"}
"""How a run ended that raised nothing, by what Agno says of it."""
_EVENTS: Final[Mapping[str, Status]] = {
    "RunError": "failed", "TeamRunError": "failed", "RunCancelled": "cancelled", "TeamRunCancelled": "cancelled",
}  # fmt: skip
_SAID: Final = ("RunContent", "TeamRunContent")
_CANCELLED: Final = "RunCancelledException"
_STOPPED: Final = "StopAgentRun"


def _within(function: Any, node_of: Callable[..., Any]) -> Any:
    """Return what stands in the place of a function: each call runs in a node of its own, as of a function that the program decorates."""

    @functools.wraps(function)
    def run(*args: Any, **told: Any) -> Any:
        node = node_of(*args, **told)
        return (function if node is None else wrapped(function, lambda _: node))(*args, **told)

    return run


def runs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs an agent, a team or a workflow, plain or as a stream, also in the background."""
    owner, kind = (module.Workflow, "workflow") if hasattr(module, "Workflow") else (module, module.__name__.split(".")[1])

    @guarded
    def run_of(runner: Any, *_args: Any, **told: Any) -> _AgnoRun | None:
        return _AgnoRun(runner, kind, told) if is_on() else None

    own = own_members(owner)
    return [(owner, name, _within(own[name], run_of)) for name in _RUNS if name in own]


class _AgnoRun(TurnScope):
    """One run: the turn of what is asked, in a session of its own."""

    def __init__(self, runner: Any, kind: str, told: Mapping[str, Any]) -> None:
        self._run: Any = told.get("run_response") or told.get("workflow_run_response")
        ids = {f"agno.{name}": one for name in ("session_id", "run_id", "user_id") if (one := getattr(told["run_context"], name, None))}
        super().__init__(_question(getattr(self._run, "input", None)), _instructions(runner), {})
        self._agent = SessionScope(text(runner.name or kind), ids)
        self._session: Session | None = None
        self._how: tuple[Status, Any] | None = None

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        """Begin both."""
        above = self._agent.begin(before, holder)
        if above.session is SESSION:
            return above
        try:
            scope = super().begin(above, holder, arguments)
        except BaseException:
            self._agent.undo(above, before)
            raise
        self._session, scope.before, scope.piece = above.session, before, before and before.piece
        return scope

    def _end(self, handle: Turn, status: Status, error: str | None) -> None:
        session, report = self._session, getattr(self._run, "content", None)
        if status == "ok":
            status, said = self._how or (_ENDS.get(text(getattr(getattr(self._run, "status", None), "value", "")), "ok"), report)
            error = None if status == "ok" else _said_of(said)
        if session is None:
            return
        if status == "ok" and report is not None:
            session.builder.set_final_report(_plain(report), with_end=True)
        try:
            super()._end(handle, status, error)
        finally:
            self._agent.finish(session, status, error)

    def result(self, handle: Turn) -> Result:  # noqa: ARG002 - there is one
        """Return what takes the result, or the events of a stream."""
        return _RunResult(self)

    @guarded
    def took(self, found: Any) -> None:
        """Take what the run gives: at last its result, or an event that it failed."""
        if hasattr(found, "status") and hasattr(found, "content"):
            self._run = found
        elif (status := _EVENTS.get(getattr(found, "event", ""))) is not None:
            self._how = status, getattr(found, "reason", None) or getattr(found, "content", None)


class _RunResult(Result):
    """What a run gives, of which nothing is kept."""

    __slots__ = ("_run",)

    def __init__(self, run: _AgnoRun) -> None:
        self._run = run

    def take(self, item: Any) -> bool:
        """Take an event."""
        self._run.took(item)
        return True

    def returned(self, value: Any) -> None:
        """Take the result."""
        self._run.took(value)


def steps(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs a step of a workflow, and what holds several."""

    @guarded
    def step_of(step: Any, step_input: Any = None, *_args: Any, **_told: Any) -> _AgnoOp | None:
        if not is_on():
            return None
        kind = type(step).__name__.lower()
        given = {name: one for name in ("input", "previous_step_content") if (one := getattr(step_input, name, None)) is not None}
        sent = {name: _plain(one) for name, one in given.items()} if kind == "step" else {}
        name = getattr(step, "name", None)
        return _AgnoOp(kind if name is None or name.lower() == kind else f"{kind} {text(name)}", kind, sent)

    kinds = [kind for name in _STEPS if (kind := own_members(module).get(name)) is not None and kind.__module__ == module.__name__]
    return [(kind, way, _within(own_members(kind)[way], step_of)) for kind in kinds for way in _WAYS if way in own_members(kind)]


class _AgnoOp(OpScope):
    """A step of a workflow, or what an agent calls ahead of a run or behind it."""

    def __init__(self, name: str, kind: str, sent: Mapping[str, Any]) -> None:
        super().__init__("system", name, {"type": kind})
        self._sent = sent
        self.failure: str | None = None

    def called(self, handle: Op, arguments: Mapping[str, Any]) -> None:  # noqa: ARG002 - most are objects of Agno's
        """Record what it is given."""
        if self._sent:
            super().called(handle, self._sent)

    def result(self, handle: Op) -> Result:
        """Return what takes its output."""
        return _StepResult(handle, self)

    def _end(self, handle: Op, status: Status, error: str | None) -> None:
        if status == "ok" and self.failure is not None:
            status, error = "failed", _said_of(self.failure)
        elif (error or "").startswith(_CANCELLED):
            status = "cancelled"
        super()._end(handle, status, error)


class _StepResult(OpResult):
    """The output of a step, which a stream has among its events."""

    __slots__ = ("_step",)

    def __init__(self, op: Op, step: _AgnoOp) -> None:
        super().__init__(op)
        self._step = step

    def take(self, item: Any) -> bool:
        """Take an event, or the output."""
        if hasattr(item, "success"):
            self.returned(item)
        return True

    def returned(self, value: Any) -> None:
        """Take the output."""
        if value is None:
            return
        if getattr(value, "success", True) is False:
            self._step.failure = text(getattr(value, "error", None) or "it had no success")
        if (content := getattr(value, "content", value)) is not None:
            self._op.response(_plain(content))


def guards(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls the hooks and guardrails of an agent, with others in their place that are ops."""

    def hooked(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **told: Any) -> Any:
            if is_on():
                told = _with_ops(told) or told
            return function(*args, **told)

        return run

    own = own_members(module)
    names = [name for known in _HOOKS for name in (known, f"_{known}") if name in own]
    return [(module, name, hooked(own[name])) for name in names]


@guarded
def _with_ops(told: Mapping[str, Any]) -> dict[str, Any] | None:
    hooks = told.get("hooks")
    return {**told, "hooks": [_recorded_hook(one) for one in hooks]} if hooks else None


def _recorded_hook(function: Any) -> Any:
    """Return a hook that is an op; Agno knows guardrails by the object that they are methods of."""
    if not isroutine(function) or getattr(function, "_agno_run_in_background", False):
        return function
    owner = getattr(function, "__self__", None)
    is_guardrail = any(kind.__name__ == "BaseGuardrail" for kind in type(owner).__mro__)
    name, kind = (type(owner).__name__, "guardrail") if is_guardrail else (function.__name__, "hook")
    made: Any = wrapped(function, lambda _: _AgnoOp(f"{kind} {name}", kind, {}))
    if owner is not None:
        made.__self__ = owner
    return made


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a tool, and what it tells of an exception, which is no more than a text afterwards."""
    kind, log = module.FunctionCall, own_members(module).get("log_exception")

    @guarded
    def called(call: Any) -> _ToolCall | None:
        return _ToolCall(call) if is_on() else None

    hooks: list[Hook] = [
        (kind, "execute", run_within(kind.execute, called)),
        (kind, "aexecute", await_within(kind.aexecute, called)),
    ]
    if not callable(log):  # in another release: then failures have but their texts
        return hooks

    @functools.wraps(log)
    def logged(said: Any, *args: Any, **more: Any) -> Any:
        if isinstance(said, BaseException) and (tool := _tool.get()) is not None:
            tool.errors.append(said)
        return log(said, *args, **more)

    return [*hooks, (module, "log_exception", logged)]


_NESTING: Final = Nesting()


class _ToolCall:
    """One call of a tool. One that gives its result in pieces goes on while these are read."""

    def __init__(self, call: Any) -> None:
        self.call, self.errors = call, list[BaseException]()
        self._before: _ToolCall | None = None
        self._function: Any = None

    @guarded
    def begin(self) -> None:
        """Begin its op. In a replay the program's function gives what was recorded, within all hooks of the tool."""
        self._before = _tool.get()
        _tool.set(self)
        function = self.call.function
        _NESTING.begin_tool(self, text(function.name), self.call.arguments)
        if CURRENT_REPLAY.answer_tool is not None and function.entrypoint is not None and not _is_stream(function.entrypoint):
            made = function.model_copy()
            is_awaited = iscoroutinefunction(function.entrypoint)
            made.entrypoint = given_instead(function.entrypoint, lambda given: given.result("agno"), awaited=is_awaited)
            self._function, self.call.function = function, made

    @guarded
    def returned(self, value: Any) -> None:
        """Take what it came to."""
        self._leave()
        found = value.result
        if value.status == "failure":
            said = text(value.error)
            error = next((one for one in self.errors if text(one) == said), None)
            if error is not None:
                _NESTING.fail(self, error)
            else:
                _NESTING.refuse(self, said)
        elif isinstance(found, (Iterator, AsyncIterator)):
            value.result = self._rest(found)
            self.call.result = value.result
        else:
            if (op := _NESTING.op(self)) is not None:
                respond(op, _plain(found))
            _NESTING.end(self)

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take why there is no result."""
        self._leave()
        name = type(error).__name__
        if name == _STOPPED:
            if (op := _NESTING.op(self)) is not None:
                op.log(f"{name}: {text(error)}")
            _NESTING.end(self)
        elif name == _CANCELLED:
            _NESTING.end(self, "cancelled", ended_by(error)[1])
        else:
            _NESTING.fail(self, error)

    def _leave(self) -> None:
        _tool.set(self._before)
        if self._function is not None:
            self.call.function = self._function

    def _rest(self, items: Any) -> Any:
        """Return the pieces of a result, each read within the op."""
        scope = _NESTING.scope(self)
        if scope is None:
            return items
        if CURRENT.get() is scope:
            context.leave(scope)

        def rest() -> Generator[Any]:
            yield from items

        async def rest_async() -> AsyncGenerator[Any]:
            try:
                async for item in items:
                    yield item
            finally:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()

        node = _ToolPieces(scope, self)
        return wrapped(cast("Any", rest if isinstance(items, Iterator) else rest_async), lambda _: node)()


_tool: ContextVar[_ToolCall | None] = ContextVar("optree_agno_tool", default=None)
"""The one whose function is under way."""


def _is_stream(function: Any) -> bool:
    return isgeneratorfunction(function) or isasyncgenfunction(function)


class _Place(OpScope):
    """What runs in a scope that was begun elsewhere, and is ended there."""

    def __init__(self, scope: Scope) -> None:
        super().__init__("tool", None, {})
        self._scope = scope

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:  # noqa: ARG002
        """Be there."""
        there = self._scope
        return Scope(there.session, there.turn, there.op, before, holder, self.finish, before and before.piece, there.budget)

    def called(self, handle: Any, arguments: Mapping[str, Any]) -> None:
        """It was told before."""

    def finish(self, handle: Any, status: Status, error: str | None) -> None:
        """There is nothing to end."""

    def result(self, handle: Any) -> Result:  # noqa: ARG002 - as of the others
        """Record nothing."""
        return Result()


class _ToolPieces(_Place):
    """The pieces of a tool's result; its op ends with them."""

    def __init__(self, scope: Scope, tool: _ToolCall) -> None:
        super().__init__(scope)
        self._tool = tool

    def finish(self, handle: Any, status: Status, error: str | None) -> None:  # noqa: ARG002 - it is the tool's
        """End the op."""
        _NESTING.end(self._tool, "cancelled" if (error or "").startswith(_CANCELLED) else status, error)

    def result(self, handle: Op) -> Result:
        """Return what takes the pieces."""
        return _Pieces(handle)


class _Pieces(OpResult):
    """Pieces of a tool's result: texts, or the events of a run within it, of which Agno takes what is said for the result."""

    __slots__ = ()

    def take(self, item: Any) -> bool:
        """Take one."""
        event = getattr(item, "event", None)
        said = item if event is None else item.content if event in _SAID else None
        return super().take(said if said is None or isinstance(said, str) else text(_plain(said))) or True


def later(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what is done in a thread beside a run, as memories are made: its calls are within the run."""
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

    def place_of(*_args: Any, run_messages: Any = None, **_told: Any) -> _Place | None:
        scope = places.pop(id(run_messages), None)
        return None if scope is None else _Place(scope)

    own, found = own_members(module), list[Hook]()
    for start, does in ((f"{mark}{start}", f"{mark}{does}") for mark in ("", "_") for start, does in _LATER):
        if start in own and does in own:
            found += [(module, start, starts(own[start])), (module, does, _within(own[does], place_of))]
    return found


def knowledge(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what looks up what a prompt is filled with; a look-up that the model asks for is a tool's call already."""

    @guarded
    def asked(_agent: Any, query: Any = None, *_args: Any, **_told: Any) -> _LookUp | None:
        here = context.here() if is_on() else None
        return None if here is None or (here.op is not None and here.op.bare.kind == "tool") else _LookUp(query)

    names = (("get_relevant_docs_from_knowledge", run_within), ("aget_relevant_docs_from_knowledge", await_within))
    own = own_members(module)
    return [(module, name, within(own[name], asked)) for name, within in names if name in own]


class _LookUp:
    """One look-up in an agent's knowledge."""

    def __init__(self, query: Any) -> None:
        self._query = query

    def begin(self) -> None:
        """Begin its op."""
        _NESTING.begin_tool(self, "knowledge", {"query": self._query}, of="knowledge of Agno")

    @guarded
    def returned(self, value: Any) -> None:
        """Take what was found."""
        if (op := _NESTING.op(self)) is not None:
            respond(op, value)
        _NESTING.end(self)

    def raised(self, error: BaseException) -> None:
        """Take that nothing was."""
        _NESTING.fail(self, error)


def _said_of(failure: Any) -> str | None:
    """Return what is said of a failure, without credentials."""
    return None if failure is None else redact(cut(text(failure)))


def _plain(value: Any) -> Any:
    """Return the members of an object of pydantic's, and other values as they are."""
    return dumped(value.model_dump) if hasattr(value, "model_dump") and not isinstance(value, type) else value


def _question(asked: Any) -> str | None:
    """Return what the user says: a text, that of a message or of the last of several, or an object as JSON."""
    asked = getattr(asked, "input_content", asked)
    if asked is None or isinstance(asked, str):
        return asked
    if is_list(asked):
        found = [one if isinstance(one, str) else _content_of(one) for one in asked]
        return next((one for one in reversed(found) if one is not None), None) or _json(asked)
    return _content_of(asked) or _json(asked)


def _content_of(message: Any) -> str | None:
    found = message.get("content") if is_object(message) else getattr(message, "content", None)
    return found if isinstance(found, str) else None


def _json(value: Any) -> str:
    return json.dumps(_plain(value), default=text, ensure_ascii=False)


def _instructions(runner: Any) -> str | None:
    """Return what an agent or a team is told ahead of all, as far as it is text."""
    prompt = getattr(runner, "system_message", None)
    given = getattr(runner, "instructions", None)
    parts = [prompt] if isinstance(prompt, str) else [getattr(runner, "description", None), *(given if is_list(given) else [given])]
    return "\n".join(one for one in parts if isinstance(one, str)) or None
