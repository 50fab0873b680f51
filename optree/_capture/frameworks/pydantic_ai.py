"""Pydantic AI: its runs are agents' sessions; tools, output functions, and answers that are refused are ops in them.

Hooked are methods of its own, and neither its capabilities nor its instrumentation: a program sees and orders the former, and sets the
latter.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final

from optree._capture.calls.observed import ended_by
from optree._capture.frameworks.nesting import CallNode, FrameworkCall, Nesting, Request, arguments_of, chat_answer, given_here
from optree._capture.hooks import Hook, IsOn, await_within
from optree._tracing.faults import guarded
from optree._tracing.recorded import CURRENT_REPLAY, note_type
from optree._tracing.scopes import OpScope
from optree._values import is_list, text

_NESTING: Final = Nesting()
_DEFERRED: Final = ("CallDeferred", "ApprovalRequired")
"""Exceptions of a tool whose call somebody else is to make, or to allow."""
_TOLD: Final = ("ToolRetryError", "ToolFailedError", "UnexpectedModelBehavior")
"""Exceptions that stand for those which they were raised from."""


def agents(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what all ways to run an agent come by."""
    function = module.Agent.iter

    @functools.wraps(function)
    def run(agent: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(agent, *args, **kwargs)
        return _AgentRun(found, agent, args[0] if args else kwargs.get("user_prompt")) if is_on() else found

    return [(module.Agent, "iter", run)]


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what checks a tool's arguments, and what runs it."""
    manager = module.ToolManager

    @guarded
    def checked(_manager: Any, call: Any = None, *_args: Any, **_kwargs: Any) -> _Check | None:
        return _Check(call.tool_name, call.args) if is_on() else None

    @guarded
    def called(_manager: Any, validated: Any = None, *_args: Any, **_kwargs: Any) -> _Step | None:
        return _Step(validated.call.tool_name, validated.call.args) if validated.args_valid and is_on() else None

    run = "_execute_tool_call_impl"  # what runs one that was deferred comes by here too
    return [
        *_replayed(manager, is_on),
        (manager, "validate_tool_call", await_within(manager.validate_tool_call, checked)),
        (manager, run, await_within(getattr(manager, run), called)),
    ]


def _replayed(manager: Any, is_on: IsOn) -> list[Hook]:
    """Hook `_raw_execute`, inside of Pydantic AI's retries and reports of failures, so that in a replay tools give what was recorded."""
    name = "_raw_execute"
    function = getattr(manager, name, None)
    if function is None:  # in another release: then tools run
        return []

    @functools.wraps(function)
    async def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await function((_answered(self) if CURRENT_REPLAY.answer_tool is not None and is_on() else None) or self, *args, **kwargs)

    return [(manager, name, execute)]


@guarded
def _answered(manager: Any) -> Any:
    """Return a copy of what runs tools, whose tools give what was recorded."""
    made = copy.copy(manager)
    made.toolset = _AnsweredTools(manager.toolset)
    return made


class _AnsweredTools:
    """Tools in a replay."""

    def __init__(self, tools: Any) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)

    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        """Return what was recorded, or what the tool returns."""
        given = given_here()
        return await self._tools.call_tool(*args, **kwargs) if given is None else given.result("pydantic_ai")


def outputs(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what checks an answer, and what makes it the output."""
    kind = module.CombinedCapability

    def watching(run: Any, output: Any, given: Any, *, has_function: bool) -> _Step | None:
        if run.partial_output or not is_on():  # of a stream that goes on
            return None
        call = output.tool_call
        kind = _Step if has_function else _Check
        return kind(output.function_name or "output", given, is_tool=False) if call is None else kind(call.tool_name, call.args)

    @guarded
    def checked(_all: Any, run: Any = None, *, output_context: Any = None, output: Any = None, **_more: Any) -> _Step | None:
        return watching(run, output_context, output, has_function=False)

    @guarded
    def processed(_all: Any, run: Any = None, *, output_context: Any = None, output: Any = None, **_more: Any) -> _Step | None:
        return watching(run, output_context, output, has_function=output_context.has_function)

    return [
        (kind, "wrap_output_validate", await_within(kind.wrap_output_validate, checked)),
        (kind, "wrap_output_process", await_within(kind.wrap_output_process, processed)),
    ]


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a model, for those that do it in another way than over HTTP."""

    @guarded
    def asked(model: Any = None, *, request_context: Any = None, **_more: Any) -> _ModelCall | None:
        return _ModelCall(model, request_context.messages, request_context.model_settings) if is_on() else None

    return [(module, "model_request", await_within(module.model_request, asked))]


def streams(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the same for answers that come as a stream."""
    kind = module._ContinuationStreamedResponse  # noqa: SLF001 - what the program reads
    function = kind._open_segment  # noqa: SLF001 - called where it reads

    @functools.wraps(function)
    @asynccontextmanager
    async def open_segment(stream: Any, messages: Any) -> AsyncGenerator[Any]:
        if not is_on() or stream._primed_segment is not None:  # noqa: SLF001 - then it was sent before
            async with function(stream, messages) as found:
                yield found
            return
        call = _ModelCall(stream.model, messages, stream.model_settings)
        try:
            call.begin()
            async with function(stream, messages) as found:
                call.stream = found
                yield found
            call.returned(found.get())
        except BaseException as error:
            call.raised(error)
            raise

    return [(kind, "_open_segment", open_segment)]


class _AgentRun:
    """One run: the session of its agent, and the turn of what is asked."""

    def __init__(self, run: Any, agent: Any, prompt: Any) -> None:
        self._run, self._agent, self._prompt = run, agent, prompt
        self._entered: Any = None

    async def __aenter__(self) -> Any:
        self._begin()
        try:
            self._entered = await self._run.__aenter__()
        except BaseException as error:
            _NESTING.fail(self, error)
            raise
        return self._entered

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        try:
            is_handled = await self._run.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._end(raised)
            raise
        self._end(None if is_handled else error)
        return is_handled

    @guarded
    def _begin(self) -> None:
        given = [*self._agent._system_prompts, *(one.instruction for one in self._agent._instructions)]  # noqa: SLF001 - it shows neither
        system = "\n\n".join(one for one in given if isinstance(one, str))
        _NESTING.begin_agent(self, text(self._agent.name or "agent"), _question(self._prompt), system=system or None)

    @guarded
    def _end(self, error: BaseException | None) -> None:
        if type(error).__name__ == "RunCancelled":
            _NESTING.end(self, "cancelled", ended_by(error)[1])
            return
        result, scope = self._entered.result if error is None else None, _NESTING.scope(self)
        if result is not None and scope is not None:
            scope.session.builder.set_final_report(result.output, with_end=True)
        _NESTING.fail(self, error)


class _Step(CallNode):
    """What is done within a run, as an op."""

    nesting = _NESTING

    def __init__(self, name: str, sent: Any, *, is_tool: bool = True) -> None:
        self._name, self._sent, self._is_tool = name, sent, is_tool

    @guarded
    def begin(self) -> None:
        """Begin the op."""
        if self._is_tool:
            _NESTING.begin_tool(self, self._name, self._sent)
        else:
            _NESTING.begin(self, OpScope("system", self._name, {"type": "output"}), arguments=arguments_of(self._sent))

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take why there is no result."""
        name = type(error).__name__
        if name not in _DEFERRED:
            super().raised(error.__cause__ if name in _TOLD and error.__cause__ is not None else error)
            return
        if (op := _NESTING.op(self)) is not None:
            op.log(f"{name}: {text(error)}" if text(error) else name)
        _NESTING.end(self)

    def record(self, value: Any) -> None:
        """Record the result."""
        super().record(getattr(value, "return_value", value))
        if hasattr(value, "return_value") and (op := _NESTING.op(self)) is not None:  # what else is said of it is not recorded
            note_type(op, value)


class _Check(_Step):
    """What is an op only if it fails."""

    def begin(self) -> None:
        """It may pass."""

    @guarded
    def raised(self, error: BaseException) -> None:
        """Begin the op, and end it as failed."""
        if isinstance(error, Exception):
            super().begin()
            super().raised(error)

    @guarded
    def returned(self, value: Any) -> None:
        """Take what was found: a tool call may be refused without an exception."""
        if (flaw := getattr(value, "validation_error", None)) is not None:
            self.raised(flaw)


class _ModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, messages: Any, settings: Any) -> None:
        self._model, self._messages, self._settings = model, messages, settings
        self.stream: Any = None
        """What the program reads, if it does."""

    def is_running(self) -> bool:
        """Tell whether the model's own code runs, and not the program between the pieces of an answer."""
        return getattr(getattr(self.stream, "_event_iterator", None), "ag_running", True)

    def request(self) -> Request:
        """Return what is sent."""
        return self._model.system, self._model.model_name, _plain(self._messages), self._settings or {}

    def answer(self, value: Any) -> Any:
        """Return the answer, if there is one, with its messages as the conventions of OpenTelemetry have them."""
        if value is None:
            return None
        usage = {name: one for name, one in dataclasses.asdict(value.usage).items() if one}
        return chat_answer(value.model_name, _plain([value]), usage, value.finish_reason)


def _plain(messages: Any) -> list[Any]:
    """Return messages as the conventions of OpenTelemetry have them."""
    return _converter().messages_to_otel_messages(list(messages))  # type: ignore[no-any-return]


@functools.cache
def _converter() -> Any:
    return importlib.import_module("pydantic_ai.models.instrumented").InstrumentationSettings()


def _question(prompt: Any) -> str | None:
    """Return what the user says."""
    parts = prompt if is_list(prompt) else [prompt]
    said = [one if isinstance(one, str) else getattr(one, "content", None) for one in parts]
    return "\n".join(one for one in said if isinstance(one, str)) or None
