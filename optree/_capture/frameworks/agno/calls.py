"""Calls of Agno's models and tools, and look-ups in an agent's knowledge for a prompt.

A call of a model is an op of its own where it is not seen on the wire, since the model does not ask by HTTP.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextvars import ContextVar
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import ModuleType
from typing import Any, Final, cast

from optree._builder import Op
from optree._capture.calls.observed import ended_by
from optree._capture.frameworks.nesting import CallNode, FrameworkCall, Nesting, Request, chat_answer, given_instead, respond
from optree._capture.hooks import Hook, IsOn, WatchedItems, await_within, read_within, run_within, watched
from optree._nodes import Status
from optree._providers.messages import json_text
from optree._tracing import context
from optree._tracing.context import CURRENT, Holder, Scope
from optree._tracing.faults import guarded
from optree._tracing.recorded import CURRENT_REPLAY
from optree._tracing.results import OpResult, Result
from optree._tracing.scopes import OpScope
from optree._tracing.wrapping import wrapped
from optree._values import dumped, own_members, text

_OF_MESSAGE: Final = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Attributes of a message that are sent to a provider."""
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop")
_ASKED_WITH: Final = ("tools", "tool_choice", "response_format")
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "cost")
"""Attributes of Agno's metrics: what a call used."""


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the functions that every call of a model passes, whatever the model's class; Agno calls them again after some failures."""
    kind = module.Model

    @guarded
    def asked(model: Any, **told: Any) -> _AgnoModelCall | None:
        return _AgnoModelCall(model, told) if is_on() else None

    @guarded
    def read(pieces: Any, model: Any = None, **told: Any) -> Any:
        return watched(pieces, _AgnoModelCall(model, told))

    @guarded
    def read_async(pieces: Any, model: Any = None, **told: Any) -> Any:
        return WatchedItems(pieces, _AgnoModelCall(model, told))

    return [
        (kind, "_invoke_with_retry", run_within(kind._invoke_with_retry, asked)),  # noqa: SLF001 - the program's classes have the others
        (kind, "_ainvoke_with_retry", await_within(kind._ainvoke_with_retry, asked)),  # noqa: SLF001 - as above
        *read_within(kind, ("_invoke_stream_with_retry",), read, is_on),
        *read_within(kind, ("_ainvoke_stream_with_retry",), read_async, is_on),
    ]


class _AgnoModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, told: Mapping[str, Any]) -> None:
        self._model, self._told = model, told
        self._said = self._thought = ""
        self._tool_calls: list[Any] = []
        self._usage: dict[str, Any] = {}

    @guarded
    def take(self, piece: Any) -> None:
        """Record a piece of a stream. What the program does until it asks for the next piece is not part of the call."""
        self.pauses()
        self._add(piece)
        op = self.op()
        if op is not None and isinstance(piece.content, str) and piece.content:
            op.chunk(piece.content)
        if op is not None and piece.reasoning_content:
            op.think(text(piece.reasoning_content))

    def _add(self, answer: Any) -> None:
        content = answer.content
        if content is not None:
            self._said += json_text(plain(content))
        self._thought += text(answer.reasoning_content or "")
        self._tool_calls += answer.tool_calls or []
        if (usage := answer.response_usage) is not None:
            for name in _COUNTS:
                if taken := getattr(usage, name, None):
                    self._usage[name] = self._usage.get(name, 0) + taken

    def request(self) -> Request:
        """Return what is sent, without a provider that is but the default of a class that names none."""
        model = self._model
        sent = {name: one for name in _PARAMETERS if (one := getattr(model, name, None)) is not None}
        more = {name: plain(self._told[name]) for name in _ASKED_WITH if self._told.get(name) is not None}
        asked: list[Any] = self._told.get("messages") or []
        is_named = model.provider and model.provider != f"{model.name} ({model.id})"
        return model.provider if is_named else None, model.id, [_message(one) for one in asked], {**sent, **more}

    def answer(self, value: Any) -> Any:
        """Return the answer, or the one that the pieces add up to."""
        if value is not None:
            self._add(value)
        message: dict[str, Any] = {"role": "assistant", "content": self._said or None}
        if self._thought:
            message["reasoning_content"] = self._thought
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        return chat_answer(self._model.id, [message], self._usage)


def _message(sent: Any) -> dict[str, Any]:
    known = ((name, getattr(sent, name, None)) for name in _OF_MESSAGE)
    return {name: value for name, value in known if value is not None}


def plain(value: Any) -> Any:
    """Return the fields of a pydantic object, the JSON schema of a pydantic class, and any other value as it is."""
    found: Any = value
    if isinstance(value, type):
        return found.model_json_schema() if hasattr(value, "model_json_schema") else text(value)
    return dumped(found.model_dump) if hasattr(value, "model_dump") else found


_NESTING: Final = Nesting()
_SAID: Final = ("RunContent", "TeamRunContent")
"""Events of a run within a tool whose content is part of the tool's result."""
CANCELLED: Final = "RunCancelledException"
"""Raised where a run is cancelled by Agno's own means."""
_STOPPED: Final = "StopAgentRun"
"""Raised by a tool that ends the run in order."""


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods that call a tool, and the function that logs its exception: Agno keeps no more than the text of that."""
    kind, log = module.FunctionCall, own_members(module).get("log_exception")

    @guarded
    def called(call: Any) -> _AgnoToolCall | None:
        return _AgnoToolCall(call) if is_on() else None

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


class _AgnoToolCall:
    """One call of a tool. If its result is a generator, the call lasts until that is read."""

    def __init__(self, call: Any) -> None:
        self.call, self.errors = call, list[BaseException]()
        self._before: _AgnoToolCall | None = None
        self._function: Any = None

    @guarded
    def begin(self) -> None:
        """Begin the op. In a replay the recorded result stands in for the program's function; the tool's own hooks run as ever."""
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
        """Record how the call ended, and its result."""
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
                respond(op, plain(found))
            _NESTING.end(self)

    @guarded
    def raised(self, error: BaseException) -> None:
        """Record the exception that ended the call."""
        self._leave()
        name = type(error).__name__
        if name == _STOPPED:
            if (op := _NESTING.op(self)) is not None:
                op.log(f"{name}: {text(error)}")
            _NESTING.end(self)
        elif name == CANCELLED:
            _NESTING.end(self, "cancelled", ended_by(error)[1])
        else:
            _NESTING.fail(self, error)

    def _leave(self) -> None:
        _tool.set(self._before)
        if self._function is not None:
            self.call.function = self._function

    def _rest(self, items: Any) -> Any:
        """Return the pieces of a result: each is read within the op."""
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


_tool: ContextVar[_AgnoToolCall | None] = ContextVar("optree_agno_tool", default=None)
"""The call of a tool that is running here."""


def _is_stream(function: Any) -> bool:
    return isgeneratorfunction(function) or isasyncgenfunction(function)


class RunPlace(OpScope):
    """Runs a function in the scope of a node that was begun elsewhere and is ended there."""

    def __init__(self, scope: Scope) -> None:
        super().__init__("tool", None, {})
        self._scope = scope

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:  # noqa: ARG002
        """Return a scope that places what runs in the other node."""
        there = self._scope
        return Scope(there.session, there.turn, there.op, before, holder, self.finish, before and before.piece, there.budget)

    def called(self, handle: Any, arguments: Mapping[str, Any]) -> None:
        """Record nothing: the node has its arguments already."""

    def finish(self, handle: Any, status: Status, error: str | None) -> None:
        """End nothing: the node is ended where it was begun."""

    def result(self, handle: Any) -> Result:  # noqa: ARG002 - as of the others
        """Return an object that records no result."""
        return Result()


class _ToolPieces(RunPlace):
    """Reads the pieces of a tool's result in the tool's op, which ends with the last one."""

    def __init__(self, scope: Scope, tool: _AgnoToolCall) -> None:
        super().__init__(scope)
        self._tool = tool

    def finish(self, handle: Any, status: Status, error: str | None) -> None:  # noqa: ARG002 - it is the tool's
        """End the tool's op."""
        _NESTING.end(self._tool, "cancelled" if (error or "").startswith(CANCELLED) else status, error)

    def result(self, handle: Op) -> Result:
        """Return the object that records the pieces."""
        return _Pieces(handle)


class _Pieces(OpResult):
    """Records the pieces of a tool's result: texts, or events of a run within the tool, whose contents Agno makes the result of."""

    __slots__ = ()

    def take(self, item: Any) -> bool:
        """Record a piece."""
        event = getattr(item, "event", None)
        said = item if event is None else item.content if event in _SAID else None
        return super().take(said if said is None or isinstance(said, str) else text(plain(said))) or True


def knowledge(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the look-ups in an agent's knowledge that fill its prompt; a look-up that the model asks for is the call of a tool already."""

    @guarded
    def asked(_agent: Any, query: Any = None, *_args: Any, **_told: Any) -> _LookUp | None:
        here = context.here() if is_on() else None
        return None if here is None or (here.op is not None and here.op.bare.kind == "tool") else _LookUp(query)

    names = (("get_relevant_docs_from_knowledge", run_within), ("aget_relevant_docs_from_knowledge", await_within))
    own = own_members(module)
    return [(module, name, within(own[name], asked)) for name, within in names if name in own]


class _LookUp(CallNode):
    """One look-up in an agent's knowledge."""

    nesting = _NESTING

    def __init__(self, query: Any) -> None:
        self._query = query

    def begin(self) -> None:
        """Begin the op of the look-up."""
        _NESTING.begin_tool(self, "knowledge", {"query": self._query}, of="knowledge of Agno")
