"""Functions that SDKs run themselves when a model asks for them: Anthropic's tools, Gemini's automatic calls, OpenAI's tool runner.

Each call is a tool's op. A function that `@optree.tool` decorates has its op already, and a program's block for the same tool is it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

from optree._builder import Op
from optree._capture.frameworks.nesting import CallNode, Nesting, arguments_of, given_here, given_instead, respond
from optree._capture.hooks import Hook, IsOn, await_within, run_within
from optree._tracing import context
from optree._tracing.faults import guarded
from optree._tracing.recorded import Recorded
from optree._tracing.scopes import OpScope
from optree._tracing.wrapping import INSTRUMENT
from optree._values import own_members

_RUNS: Final = Nesting()
"""The calls that are open."""


def anthropic_functions(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a function of `@beta_tool`: the tool runners do, and programs that have their own loop."""
    return _calls(module, "BetaFunctionTool", "BetaAsyncFunctionTool", is_on)


def anthropic_memories(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the same of memory tools."""
    return _calls(module, "BetaAbstractMemoryTool", "BetaAsyncAbstractMemoryTool", is_on)


def _calls(module: ModuleType, plain: str, awaited: str, is_on: IsOn) -> list[Hook]:
    tool_error: Any = getattr(module, "ToolError", ())  # which older releases do not have

    @guarded
    def watching(tool: Any, *args: Any, **kwargs: Any) -> _FunctionRun | None:
        sent = args[0] if args else kwargs.get("input")
        return _AnthropicRun(tool.name, sent, tool_error) if is_on() and _is_wanted(getattr(tool, "func", None)) else None

    kinds = ((own_members(module)[plain], run_within), (own_members(module)[awaited], await_within))
    return [(kind, "call", within(own_members(kind)["call"], watching)) for kind, within in kinds]


def gemini_functions(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls Python functions that are given as tools, in its own thread where that is an asynchronous client."""
    found = list[Hook]()
    for name, within in (("invoke_function_from_dict_args", run_within), ("invoke_function_from_dict_args_async", await_within)):
        invoke = own_members(module)[name]

        @guarded
        def watching(
            args: Any, function_to_invoke: Any, *, invoke: Any = invoke, awaited: bool = within is await_within
        ) -> _FunctionRun | None:
            function = function_to_invoke
            if not is_on() or not _is_wanted(function):
                return None
            return _GeminiRun(args, function, invoke, module.errors.FunctionInvocationError, awaited=awaited)

        found.append((module, name, within(invoke, watching)))
    return found


def openai_functions(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what calls a registered function of a Responses tool runner."""

    @guarded
    def watching(runner: Any, _run: Any, item: Any) -> _FunctionRun | None:
        function = runner._functions[item.name].execute  # noqa: SLF001 - where a runner has them
        return _OpenAIRun(item) if is_on() and _is_wanted(function) else None

    kinds = ((module.ResponsesToolRunner, run_within), (module.AsyncResponsesToolRunner, await_within))
    return [(kind, "_execute_function", within(own_members(kind)["_execute_function"], watching)) for kind, within in kinds]


def _is_wanted(function: Callable[..., Any] | None) -> bool:
    """Tell whether a call is to have an op: its function begins none itself."""
    return function is None or not _is_tool(inspect.unwrap(function, stop=_is_tool))


def _block_of(name: str) -> Op | None:
    """Return the op of a block that the program has opened for a tool's call, unless another call was that already."""
    here = context.here()
    op = None if here is None or _RUNS.holds(here) else here.op
    is_block = op is not None and (op.bare.kind, op.bare.name, op.bare.response, op.bare.ended_at) == ("tool", name, None, None)
    return op if is_block else None


def _is_tool(function: Callable[..., Any]) -> bool:
    """Tell whether `@optree.tool` decorates a function."""
    instrument = getattr(function, INSTRUMENT, None)
    return isinstance(instrument, OpScope) and instrument.kind == "tool"


@guarded
def _fill(op: Op, sent: Any) -> None:
    OpScope("tool", None, {}).called(op, arguments_of(sent))


class _FunctionRun(CallNode):
    """One call of a function."""

    nesting = _RUNS

    def __init__(self, name: str, sent: Any) -> None:
        self._name, self._sent = name, sent
        self._block: Op | None = None

    def begin(self) -> None:
        """Begin its op, with what the model has sent; or take the block that the program has opened for it, which ends by itself."""
        self._block = _block_of(self._name)
        if self._block is None:
            _RUNS.begin_tool(self, self._name, self._sent)
        else:
            _fill(self._block, self._sent)

    @property
    def given(self) -> Callable[[], Any] | None:
        """Return what gives the recorded result in a replay; None for a function that runs. Raises `OptreeError` for one that differs."""
        found = None if _RUNS.op(self) is None else given_here()
        return None if found is None else partial(self.give, found)

    def give(self, found: Recorded) -> Any:
        """Return what was recorded, or raise it."""
        raise NotImplementedError

    def record(self, value: Any) -> None:
        """Record the result."""
        op = self._block or _RUNS.op(self)
        if op is not None and (op is not self._block or op.bare.response is None):  # what the program says itself stands
            respond(op, value)


class _AnthropicRun(_FunctionRun):
    """A call of one of Anthropic's tools; a `ToolError` may have blocks for the model."""

    def __init__(self, name: str, sent: Any, tool_error: Any) -> None:
        super().__init__(name, sent)
        self._tool_error = tool_error

    def give(self, found: Recorded) -> Any:
        if found.error is not None and found.has_value:
            raise self._tool_error(found.value)
        return found.result("anthropic")

    @guarded
    def raised(self, error: BaseException) -> None:
        try:
            if isinstance(error, self._tool_error) and not isinstance(told := getattr(error, "content", None), str):
                self.record(told)
        finally:
            super().raised(error)


class _GeminiRun(_FunctionRun):
    """A call of a function whose exception the SDK puts into one of its own, with the arguments as it has converted them."""

    def __init__(
        self, sent: Any, function: Callable[..., Any], invoke: Callable[..., Any], around: type[BaseException], *, awaited: bool
    ) -> None:
        super().__init__(function.__name__, sent)
        self._function, self._invoke, self._around, self._is_awaited = function, invoke, around, awaited

    def give(self, found: Recorded) -> Any:
        instead = given_instead(self._function, lambda given: given.result("google"), lambda: found, awaited=self._is_awaited)
        return self._invoke(self._sent, instead)

    def raised(self, error: BaseException) -> None:
        super().raised(error.__context__ if isinstance(error, self._around) and error.__context__ is not None else error)


class _OpenAIRun(_FunctionRun):
    """A call of a registered function."""

    def __init__(self, item: Any) -> None:
        super().__init__(item.name, item.arguments)
        self._call_id = item.call_id

    def give(self, found: Recorded) -> Any:
        return {"type": "function_call_output", "call_id": self._call_id, "output": found.result("openai")}

    def record(self, value: Any) -> None:
        super().record(value["output"])
