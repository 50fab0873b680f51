"""OpenAI's Agents SDK: its runs are agents' sessions, and what its spans tell of is nested in them.

Its runs and spans are hooked where they begin and end, and not by a trace processor of its: programs replace these, and switch tracing off
for providers other than OpenAI; and to add one makes the SDK's own exporter, which it makes only when it is used.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from optree._capture.calls.observed import ended_by
from optree._capture.calls.program import asked_last
from optree._capture.frameworks.nesting import FrameworkCall, Nesting, Request, arguments_of, chat_answer, given_here, respond
from optree._capture.hooks import Hook, IsOn, await_within
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.failures import FailureClass, class_of_error, error_attributes
from optree._tracing.faults import guarded
from optree._tracing.recorded import CURRENT_REPLAY, exception_of
from optree._tracing.scopes import OpScope, SessionScope
from optree._values import is_list, object_of, text, text_of
from optree.redaction import redact

_OWN_SPAN: Final = "Agent run"
"""Names a span of the SDK's that hides others."""


def runs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the loops of agents, plain and streamed."""
    if not hasattr(module, "AgentRunner"):  # a module of the program's that has the same name
        return []

    def plain(_runner: Any = None, starting_agent: Any = None, input: Any = None, *_args: Any, **_kwargs: Any) -> _RunnerCall | None:  # noqa: A002 - as in the SDK
        return _run_of(starting_agent, input) if is_on() else None

    def streamed(*_args: Any, **told: Any) -> _RunnerCall | None:
        return _run_of(told.get("starting_agent"), told.get("run_state") or told.get("starting_input"), told) if is_on() else None

    return [
        (module.AgentRunner, "run", await_within(module.AgentRunner.run, plain)),
        (module, "start_streaming", await_within(module.start_streaming, streamed)),
    ]


def spans(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what begins and ends a span; one that the SDK does not export too."""
    if not hasattr(module, "SpanImpl"):
        return []
    kinds = (module.SpanImpl, module.NoOpSpan)
    return [
        *((kind, "start", _before(kind.start, _span_began, is_on)) for kind in kinds),
        *((kind, "finish", _before(kind.finish, _span_ended, is_on)) for kind in kinds),
        *((kind, "set_error", _before(kind.set_error, _span_failed, is_on)) for kind in kinds),
    ]


def invocations(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a function tool: in a replay one is called in its place that gives what was recorded."""
    name = next((one for one in ("_invoke_function_tool_with_metadata", "invoke_function_tool") if hasattr(module, one)), None)
    if name is None:
        return []
    function = getattr(module, name)

    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        if CURRENT_REPLAY.answer_tool is not None and "function_tool" in kwargs and is_on():
            kwargs["function_tool"] = _in_place_of(kwargs["function_tool"]) or kwargs["function_tool"]
        return await function(*args, **kwargs)

    return [(module, name, invoke)]


@guarded
def _in_place_of(tool: Any) -> Any:
    """Return a copy of a tool that does what the tool does, unless its call gets what was recorded."""
    made, function = copy.copy(tool), tool.on_invoke_tool

    @functools.wraps(function)
    async def on_invoke_tool(of: Any, arguments: Any) -> Any:
        given = given_here(arguments)
        if given is None:
            return await function(of, arguments)
        if given.error is None or not given.has_value:
            return given.result("agents")
        _told_as_failed(given.error)
        return given.value

    made.on_invoke_tool = on_invoke_tool
    return made


@guarded
def _told_as_failed(error: str) -> None:
    """Take that the tool that is open here fails, though the model is told a result."""
    here = context.here()
    for span, told in list(_spans.items()):
        if here is not None and told.nesting.op(span) is here.op:
            told.failure, told.why = error, class_of_error(exception_of(error, "agents"))


def traces(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what begins and ends a trace."""
    if not hasattr(module, "TraceImpl"):
        return []
    kind = module.TraceImpl
    return [(kind, "start", _before(kind.start, _trace_began, is_on)), (kind, "finish", _before(kind.finish, _trace_ended, is_on))]


def _before(function: Callable[..., Any], told: Callable[..., None], is_on: IsOn) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_on():
            told(self, *args)
        return function(self, *args, **kwargs)

    return run


class _RunnerCall:
    """One run: the session of the agent that it starts with, and the nodes within it."""

    def __init__(self, agent: Any, asked: Any, streamed: Any) -> None:
        self.agent = text(agent.name)
        self.asked = _question(asked)
        self.handed_from: str | None = None
        """The agent that has handed the conversation on."""
        self.nesting = Nesting()
        self._streamed = streamed
        system = getattr(agent, "instructions", None)
        self._system = text_of(system)
        self._before: _RunnerCall | None = None

    def begin(self) -> None:
        """Begin the session."""
        self._before = _run.get()
        _run.set(self)
        self.nesting.begin_agent(_RUN, self.agent, self.asked, system=self._system)

    def raised(self, error: BaseException) -> None:
        """Take that the run failed."""
        self._end(getattr(self._streamed, "_stored_exception", None) or error)

    @guarded
    def returned(self, value: Any) -> None:
        """Take the result of the run."""
        result = value if self._streamed is None else self._streamed
        output, scope = getattr(result, "final_output", None), self.nesting.scope(_RUN)
        if output is not None and scope is not None:
            scope.session.builder.set_final_report(output, with_end=True)
        self._end(getattr(self._streamed, "_stored_exception", None))

    def _end(self, error: BaseException | None) -> None:
        self.nesting.end(_RUN, *ended_by(error))
        if _run.get() is self:
            _run.set(self._before)


_run: ContextVar[_RunnerCall | None] = ContextVar("optree_agents_run", default=None)
_RUN: Final = "run"
_OUTSIDE: Final = Nesting()
"""What is begun outside of all runs."""


class _Told:
    """What is known of a span from its beginning on."""

    __slots__ = ("around", "call", "failure", "nesting", "run", "why")

    def __init__(self) -> None:
        self.around = sys.exception()
        """In the handling of which it began: not its own."""
        self.failure: str | None = None
        """What went wrong in it, though nothing was raised out of it."""
        self.why: FailureClass | None = None
        """The class of that."""
        self.run = _run.get()
        self.nesting = _OUTSIDE if self.run is None else self.run.nesting
        self.call: _SpanCall | None = None


_spans: Final[WeakKeyDictionary[Any, _Told]] = WeakKeyDictionary()
"""Those that are open."""


@guarded
def _run_of(agent: Any, asked: Any, told: Any = None) -> _RunnerCall | None:
    state = getattr(asked, "_original_input", None)
    if state is not None:  # a run that goes on
        agent, asked = getattr(asked, "_current_agent", None) or agent, state
    return _RunnerCall(agent, asked, None if told is None else told.get("streamed_result"))


def _question(asked: Any) -> str | None:
    return asked if isinstance(asked, str) else asked_last(asked)[1] if is_list(asked) else None


@guarded
def _span_began(span: Any, *_how: Any) -> None:
    data = span.span_data
    kind, told = data.type, _Told()
    _spans[span] = told
    if kind in {"response", "generation"}:
        told.call = _SpanCall(data)
        told.call.begin()
    elif kind == "agent":
        _agent_began(span, data, told)
    elif kind == "function":
        told.nesting.begin(span, OpScope("tool", data.name, {}))
    elif kind == "guardrail":
        told.nesting.begin(span, OpScope("system", f"guardrail {data.name}", {"type": "guardrail"}))
    elif kind == "mcp_tools":
        told.nesting.begin(span, OpScope("system", f"tools of {data.server}", {"type": "mcp_list_tools"}))
    elif kind == "custom" and data.name != _OWN_SPAN:
        told.nesting.begin(span, OpScope("system", data.name, {"data": data.data} if data.data else {}))


def _agent_began(span: Any, data: Any, told: _Told) -> None:
    run = told.run
    if run is None:
        _OUTSIDE.begin_agent(span, data.name, None)
    elif data.name != run.agent:  # else the run's session is its session, also when it gets the conversation back
        more = {} if run.handed_from is None else {"handed_over_by": run.handed_from}
        run.nesting.begin_agent(span, data.name, run.asked, (_RUN, "turn"), **more)


@guarded
def _span_failed(span: Any, error: Any = None, *_how: Any) -> None:
    if (told := _spans.get(span)) is not None:
        told.failure = ended_by(_in_flight(told))[1] or redact(_said_of(error))
        told.why = class_of_error(_in_flight(told))


def _in_flight(told: _Told) -> BaseException | None:
    """Return the exception that is raised or handled in a span."""
    error = sys.exception()
    return None if error is told.around else error


@guarded
def _span_ended(span: Any, *_how: Any) -> None:
    told = _spans.pop(span, None)
    if told is None:
        return
    data = span.span_data
    status, said = ended_by(_in_flight(told))
    if status == "ok" and told.failure is not None:
        status, said = "failed", told.failure
    why = class_of_error(_in_flight(told)) or told.why
    if told.call is not None:
        told.call.how = status, said, why
        told.call.end()
    elif data.type == "handoff":
        _handed_over(span, data, told, status, said)
    else:
        scope = told.nesting.scope(span)
        if scope is not None and scope.op is not None and data.type != "agent":
            _record(scope.op, data)
            if status == "failed" and why is not None:
                scope.op.builder.set_op(scope.op, **error_attributes(why))
        told.nesting.end(span, status, said)


def _record(op: Any, data: Any) -> None:
    """Record what an op of a span's sent and got."""
    if data.type == "function":
        if data.input is not None:
            OpScope("tool", None, {}).called(op, arguments_of(data.input))
        if data.output is not None:
            respond(op, data.output)
    elif data.type == "guardrail":
        op.response({"triggered": data.triggered})
        if data.triggered:
            op.log(f"guardrail {data.name} was triggered", "WRN")
    elif data.type == "mcp_tools":
        op.response(data.result)


def _handed_over(span: Any, data: Any, told: _Told, status: Status, said: str | None) -> None:
    if told.run is not None:
        told.run.handed_from = data.from_agent
    if status != "ok":
        known = {"type": "handoff", "from": data.from_agent, "to": data.to_agent}
        told.nesting.begin(span, OpScope("system", f"handoff to {data.to_agent or '?'}", known))
        told.nesting.end(span, status, said)


class _SpanCall(FrameworkCall):
    """A call of a model, of which all is known when its span ends."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def request(self) -> Request:
        """Return what was sent."""
        data = self._data
        sent: Any = data.input
        model = getattr(data.response, "model", None) if data.type == "response" else data.model
        messages = [{"role": "user", "content": sent}] if isinstance(sent, str) else list(sent or [])
        return None, model, messages, getattr(data, "model_config", None) or {}

    def answer(self, value: Any) -> Any:  # noqa: ARG002 - the span has it
        """Return what came."""
        data = self._data
        if data.type == "response":
            return data.response
        return chat_answer(data.model, data.output, data.usage) if data.output else None


def _said_of(error: Any) -> str:
    """Return the text of a span's error."""
    found = object_of(error)
    told = (found.get("message"), object_of(found.get("data")).get("error"))
    return ": ".join(text(one) for one in told if one)


@guarded
def _trace_began(trace: Any, *_how: Any) -> None:
    """Begin a session for the runs of a trace that the program begins itself."""
    if _run.get() is None and context.here() is None:
        _OUTSIDE.begin(trace, SessionScope(text(trace.name), {}))


@guarded
def _trace_ended(trace: Any, *_how: Any) -> None:
    _OUTSIDE.end(trace, *ended_by(sys.exception()))
