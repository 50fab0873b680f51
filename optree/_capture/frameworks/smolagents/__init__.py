"""smolagents: runs are agents' sessions; steps, plans, code and tools are ops in them.

It tells of a run only by callbacks, which a program gives to one agent: so methods are hooked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from inspect import isgeneratorfunction
from types import ModuleType
from typing import Any, Final

from optree._builder import Op, Turn
from optree._capture.frameworks.nesting import CallNode, Nesting, ProgramOp, given_here
from optree._capture.frameworks.smolagents.models import hook_model
from optree._capture.hooks import Hook, IsOn, of_kind, run_within
from optree._nodes import Status
from optree._tracing.faults import guarded
from optree._tracing.handles import Session
from optree._tracing.propagate import wrap
from optree._tracing.recorded import CURRENT_REPLAY, Recorded
from optree._tracing.results import Result
from optree._tracing.scopes import OpScope, SessionScope, TurnScope
from optree._values import is_object, own_members, text, text_of
from optree.redaction import redact

_NESTING: Final = Nesting()
_INTERRUPTED: Final = ("RuntimeError: generator ignored GeneratorExit", "AgentError: Agent interrupted.")
"""Beginnings of the errors of a run whose stream the program closes within a step, and of one that it interrupts."""
_Instruments = tuple[Callable[..., Any], ...]


def agents(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the method that all runs of agents go through, and their steps."""
    kind, python, calling = module.MultiStepAgent, module.CodeAgent, module.ToolCallingAgent

    def running(agent: Any, task: Any = None, *_args: Any, **_told: Any) -> _Instruments:
        hook_model(agent.model)
        return _SmolTurn(agent, task), _SmolSession(agent)

    def stepping(agent: Any, step: Any, *_args: Any, **_told: Any) -> _Instruments:
        hook_model(agent.model)
        return (_SmolStep(f"step {step.step_number}", "step"),)

    def planning(*_args: Any, **_told: Any) -> _Instruments:
        return (_SmolStep("planning", "planning"),)

    def asked(agent: Any, task: Any = None, /, *_args: Any, **told: Any) -> _Asked | None:
        return _Asked(agent, told.get("task", task)) if is_on() else None

    def checking(*_args: Any, **_told: Any) -> _Within | None:
        return _Within("final answer checks", "guardrail") if is_on() else None

    def answering(agent: Any, *_args: Any, **_told: Any) -> _Within | None:
        return _Within("final answer", "step", f"no final answer by step {agent.step_number - 1}") if is_on() else None

    def calling_tool(agent: Any, name: Any = None, arguments: Any = None) -> _SmolCheck | None:
        return _SmolCheck(agent, name, arguments) if is_on() else None

    return [
        (kind, "_run_stream", _around(kind._run_stream, running, is_on)),  # noqa: SLF001 - `run` may return what is read later
        (kind, "_generate_planning_step", _around(kind._generate_planning_step, planning, is_on)),  # noqa: SLF001 - tells of no step before
        *((one, "_step_stream", _around(one._step_stream, stepping, is_on)) for one in (python, calling)),  # noqa: SLF001 - as above
        (kind, "_validate_final_answer", run_within(kind._validate_final_answer, checking)),  # noqa: SLF001 - its checks are any functions
        (kind, "provide_final_answer", run_within(kind.provide_final_answer, guarded(answering))),
        (kind, "__call__", run_within(own_members(kind)["__call__"], guarded(asked))),
        (calling, "execute_tool_call", run_within(calling.execute_tool_call, guarded(calling_tool))),
    ]


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods by which tools are called."""

    @guarded
    def called(tool: Any, /, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> _SmolToolCall | None:
        if not is_on():
            return None
        made = functools.partial(module.handle_agent_output_types, output_type=tool.output_type)
        return _SmolToolCall(text(tool.name), _named(tool, args, kwargs), made if sanitize_inputs_outputs else None)

    return [(kind, "__call__", run_within(own_members(kind)["__call__"], called)) for kind in (module.Tool, module.PipelineTool)]


def executors(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the executors that run code, here or elsewhere."""
    kinds = [kind for name in ("LocalPythonExecutor", "RemotePythonExecutor") if (kind := vars(module).get(name)) is not None]

    @guarded
    def running(_executor: Any, code: Any = None, /, *_args: Any, **told: Any) -> _Code | None:
        return _Code(told.get("code_action", code)) if is_on() else None

    found = [(kind, "__call__", run_within(own_members(kind)["__call__"], running)) for kind in kinds]
    return [*found, (module, "timeout", _carried(module.timeout, is_on))] if hasattr(module, "timeout") else found


def _carried(function: Any, is_on: IsOn) -> Any:
    """Return a replacement of `timeout`: the functions that it runs in threads are in the tree where they are called."""

    @functools.wraps(function)
    def timeout(*args: Any, **kwargs: Any) -> Any:
        decorate = function(*args, **kwargs)

        def limited(run: Any) -> Any:
            return decorate(wrap(run) if is_on() else run)

        return limited

    return timeout


def _around(function: Any, instruments: Callable[..., _Instruments], is_on: IsOn) -> Any:
    """Return a replacement of a generator function, which runs it within the nodes that *instruments* returns for its arguments."""
    told = guarded(instruments)

    @functools.wraps(function)
    def items(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        found: Generator[Any, Any, Any] = function(*args, **kwargs)  # another library has wrapped it in a plain function
        return (yield from found)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        decorated = function if isgeneratorfunction(function) else items
        for instrument in (told(*args, **kwargs) or ()) if is_on() else ():
            decorated = instrument(decorated)
        return decorated(*args, **kwargs)

    return of_kind(function, run)


class _Asked:
    """A call of an agent by another one, with the task as that states it."""

    def __init__(self, agent: Any, task: Any) -> None:
        self.agent, self.task = agent, task
        self._before: _Asked | None = None

    def begin(self) -> None:
        """Make this the call that is under way in this context."""
        self._before = _asked.get()
        _asked.set(self)

    def returned(self, value: Any) -> None:  # noqa: ARG002 - the run tells it
        """Make the call around it the one that is under way."""
        _asked.set(self._before)

    def raised(self, error: BaseException) -> None:  # noqa: ARG002 - as above
        """Make the call around it the one that is under way."""
        _asked.set(self._before)


_asked: ContextVar[_Asked | None] = ContextVar("optree_smolagents_asked", default=None)


def _ended(status: Status, error: str | None) -> tuple[Status, str | None]:
    """Return status and error of a run or a part of it: cancelled, if the program has left or interrupted it."""
    is_left = error is not None and error.startswith(_INTERRUPTED)
    return "cancelled" if is_left else status, None if error is None else redact(error)


class _Yielded(Result):
    """The items that a generator yields, of which the last is recorded."""

    __slots__ = ("last", "record")

    def __init__(self, record: Callable[[Any], None] | None = None) -> None:
        self.last: Any = None
        self.record = record

    def take(self, item: Any) -> bool:
        """Keep an item."""
        self.last = item
        return True

    @guarded
    def ended(self, status: Status) -> None:  # noqa: ARG002 - recorded whatever it is
        """Record the last item."""
        if self.record is not None:
            self.record(self.last)


class _SmolSession(SessionScope):
    """The session of a run."""

    def __init__(self, agent: Any) -> None:
        super().__init__(text(getattr(agent, "name", None) or type(agent).__name__), {})

    def _again(self, function: Callable[..., Any]) -> _SmolSession:  # noqa: ARG002 - each run has a scope of its own
        return self

    def result(self, handle: Session) -> Result:
        """Return what records the final answer."""

        def report(last: Any) -> None:
            if type(last).__name__ == "FinalAnswerStep":
                handle.builder.set_final_report(_plain(last.output), with_end=True)

        return _Yielded(report)

    def finish(self, handle: Session, status: Status, error: str | None) -> None:
        """End it."""
        super().finish(handle, *_ended(status, error))


class _SmolTurn(TurnScope):
    """The turn of a run, in the run's session."""

    def __init__(self, agent: Any, task: Any) -> None:
        asked, instructions = _asked.get(), getattr(agent, "instructions", None)
        said = asked.task if asked is not None and asked.agent is agent else task
        super().__init__(text_of(said), text_of(instructions), {})

    def _again(self, function: Callable[..., Any]) -> _SmolTurn:  # noqa: ARG002 - as above
        return self

    def result(self, handle: Turn) -> Result:  # noqa: ARG002 - the session has the result
        return _Yielded()

    def finish(self, handle: Turn, status: Status, error: str | None) -> None:
        """End it."""
        super().finish(handle, *_ended(status, error))


class _SmolStep(ProgramOp):
    """A step of a run, or one that a program calls itself."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__("system", name, {"type": kind})
        self._yielded = _Yielded()

    def _again(self, function: Callable[..., Any]) -> _SmolStep:  # noqa: ARG002 - as above
        return self

    def called(self, handle: Op, arguments: Mapping[str, Any]) -> None:
        """Do nothing: its arguments are not recorded."""

    def result(self, handle: Op) -> Result:
        """Return what records a plan."""

        def record(last: Any) -> None:
            if isinstance(plan := getattr(last, "plan", None), str):
                handle.response(plan)

        self._yielded.record = record
        return self._yielded

    def finish(self, handle: Op, status: Status, error: str | None) -> None:
        """End the step; if its answer is refused, its generator is closed after its action, and the step is no less ok."""
        is_done = status == "cancelled" and type(self._yielded.last).__name__ == "ActionOutput"
        super().finish(handle, *(("ok", None) if is_done else _ended(status, error)))


class _Within(CallNode):
    """An op for what a function does."""

    nesting = _NESTING

    def __init__(self, name: str, kind: str, warning: str | None = None, sent: Mapping[str, Any] | None = None) -> None:
        self._scope, self._warning, self._sent = OpScope("system", name, {"type": kind}), warning, sent

    def begin(self) -> None:
        """Begin it."""
        _NESTING.begin(self, self._scope, arguments=self._sent)
        if self._warning is not None and (op := _NESTING.op(self)) is not None:
            op.log(self._warning, "WRN")

    def record(self, value: Any) -> None:
        """Record a value, of a message its text."""
        if value is not None:
            super().record(_plain(getattr(value, "content", value)))


class _Code(_Within):
    """Code that an agent has written. In a replay it runs, and the tools that it calls get what was recorded."""

    def __init__(self, code: Any) -> None:
        super().__init__("python_interpreter", "code", sent={"code": code})

    def record(self, value: Any) -> None:
        """Record the code's result and what it printed."""
        super().record({"output": _plain(value.output), "logs": value.logs})


class _SmolToolCall(CallNode):
    """A call of a tool."""

    nesting = _NESTING

    given: Callable[[], Any]
    """In a replay, what returns the recorded result."""

    def __init__(self, name: str, sent: Mapping[str, Any], made: Callable[[Any], Any] | None) -> None:
        self._name, self._sent, self._made = name, sent, made

    def begin(self) -> None:
        """Begin its op."""
        _NESTING.begin_tool(self, self._name, self._sent)
        if CURRENT_REPLAY.answer_tool is not None and _NESTING.op(self) is not None and (found := given_here()) is not None:
            self.given = functools.partial(self._give, found)

    def _give(self, found: Recorded) -> Any:
        value = found.result("smolagents")
        return value if self._made is None else self._made(value)

    def record(self, value: Any) -> None:
        """Record the result."""
        super().record(_plain(value))


class _SmolCheck:
    """A tool call that a model asks for. It is a failed op if there is no such tool, or the tool does not take these arguments."""

    def __init__(self, agent: Any, name: Any, arguments: Any) -> None:
        self._name, self._arguments = text(name), arguments
        self._is_known = name in agent.tools or name in agent.managed_agents

    def begin(self) -> None:
        """Do nothing: the call may become an op of its own."""

    def returned(self, value: Any) -> None:
        """Do nothing: the call was an op of its own."""

    @guarded
    def raised(self, error: BaseException) -> None:
        """Record a failed op, if the tool was not called."""
        if not self._is_known or type(error).__name__ == "AgentToolCallError":
            _NESTING.begin_tool(self, self._name, self._arguments)
            _NESTING.fail(self, error)


def _named(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments by name; a mapping that has them all may come in their place."""
    first = args[0] if len(args) == 1 and not kwargs else None
    if is_object(first) and all(name in tool.inputs for name in first):
        return first
    return {**dict(zip(tool.inputs, map(_plain, args), strict=False)), **kwargs}


def _plain(value: Any) -> Any:
    """Return the plain text of smolagents' own class for texts; any other value unchanged."""
    raw = getattr(value, "to_raw", None) if isinstance(value, str) else None
    return value if raw is None else raw()
