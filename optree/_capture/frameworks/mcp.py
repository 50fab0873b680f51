"""Calls of tools through MCP (the Model Context Protocol): on the client's side tool ops, on the server's side what belongs into them.

The client's request names the op that it is made in, in its `_meta`, where the protocol has a place for what is no argument. A server
whose process has these hooks too, and which finds that session in its own base directory, records what its tools do there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Final, Self

from optree._builder import Op
from optree._builder.handles import respond_at_end
from optree._builder.outcome import outcome
from optree._capture.frameworks.nesting import ProgramOp
from optree._capture.hooks import Hook
from optree._tracing import context
from optree._tracing.budgets import names_of
from optree._tracing.context import Holder, Scope
from optree._tracing.failures import FailureClass, class_of_error, class_of_text, error_attributes
from optree._tracing.faults import guarded
from optree._tracing.propagate import place_of, placed_at
from optree._tracing.recorded import CURRENT_REPLAY, exception_of, note_foreign
from optree._tracing.runtime import RUNTIME
from optree._values import cut, dumped, is_list, is_object, text

PARENT: Final = "optree/parent"
"""Member of a request's `_meta` that names the op it is made in."""
ANCESTRY: Final = "optree/ancestry"
"""Member that has the agents down to that op, as `lead->reader`."""
CONTENT: Final = "optree/content"
"""Member that is false where that session is recorded without content."""
BUDGET: Final = "optree/budget"
"""Member that has the names of the budgets around it."""
STATUS_CODE: Final = "rpc.response.status_code"
"""The attribute of an op that was answered by an error of the protocol which has its code."""
_INTERNAL_ERROR: Final = -32603
_MOST_NAME: Final = 200


def client(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook the client's session where tools are called, whatever the transport. Nothing is done if not *is_on*."""
    function = module.ClientSession.call_tool
    takes_meta = "meta" in inspect.signature(function).parameters

    @functools.wraps(function)
    async def call_tool(*args: Any, **kwargs: Any) -> Any:
        call = _begun(*args, **kwargs) if RUNTIME.config.enabled and is_on() else None
        if call is None:
            return await function(*args, **kwargs)
        with call.scope, call:
            if (result := call.recorded(module)) is None:
                result = await function(*args, **(call.named(kwargs) if takes_meta else kwargs))
            call.returned(result)
        return result

    return [(module.ClientSession, "call_tool", call_tool)]


def server(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook a server where it takes a request: one that names a session which lives here is answered within it."""
    function = module.ServerRunner._on_request  # noqa: SLF001 - servers that were made before are seen here too

    @functools.wraps(function)
    async def on_request(*args: Any, **kwargs: Any) -> Any:
        place = _place(*args, **kwargs) if is_on() else None
        if place is None:
            return await function(*args, **kwargs)
        with place:
            return await function(*args, **kwargs)

    return [(module.ServerRunner, "_on_request", on_request)]


@guarded
def _place(_runner: Any, _dispatched: Any = None, _method: Any = None, params: Any = None, *_args: Any, **_kwargs: Any) -> Any:
    told = params.get("_meta") if is_object(params) else None
    if not is_object(told) or PARENT not in told:
        return None
    return placed_at(told[PARENT], told.get(ANCESTRY), told.get(BUDGET), content=told.get(CONTENT))


@guarded
def _begun(session: Any, name: Any = None, arguments: Any = None, *_args: Any, **_kwargs: Any) -> _ToolCall:
    found = getattr(getattr(session, "server_info", None), "name", None)
    server = found[:_MOST_NAME] if isinstance(found, str) and found else None
    tool = text(name)[:_MOST_NAME]
    here = context.here()
    op = None if here is None else here.op
    return _ToolCall(server, tool, arguments) if op is None or not _is_of(op, tool) else _JoinedTool(op, server, tool, arguments)


def _is_of(op: Op, tool: str) -> bool:
    """Tell whether an op of the program's is that of a tool's call, and has neither a call nor a result yet."""
    bare = op.bare
    named = bare.kind == "tool" and (bare.name == tool or bare.name.endswith(f":{tool}"))
    return named and op.call is None and bare.response is None and bare.ended_at is None


class _Scope(ProgramOp):
    """The op of one call."""

    def __init__(self, server: str | None, tool: str, arguments: Any) -> None:
        super().__init__("tool", f"{server}:{tool}" if server else tool, {"provider": server} if server else {})
        self._sent = _sent(arguments)

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:  # noqa: ARG002
        return super().begin(before, holder, self._sent)


def _sent(arguments: Any) -> dict[str, Any]:
    return {} if arguments is None else arguments if is_object(arguments) else {"arguments": arguments}


class _ToolCall:
    """One call of a tool, within its op."""

    def __init__(self, server: str | None, tool: str, arguments: Any) -> None:
        self.scope: Any = _Scope(server, tool, arguments)
        self._server, self._tool, self._arguments = server, tool, arguments
        self._op: Op | None = None

    def __enter__(self) -> Self:
        self._entered()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._raised(error)

    @guarded
    def _entered(self) -> None:
        here = context.here()
        self._op = op = None if here is None else here.op
        if op is not None and op.bare.request is None:  # a tool's arguments may have any names
            op.builder.set_request(op, {"arguments": sent} if "messages" in (sent := _sent(self._arguments)) else sent)

    def recorded(self, module: ModuleType) -> Any:
        """Return the result that the call gets in a replay, or raise what it gets; None for one that is sent."""
        given = None if CURRENT_REPLAY.answer_tool is None or self._op is None else CURRENT_REPLAY.answer_tool(self._op, is_remote=True)
        if given is None:
            return None
        if given.error is not None and not given.has_value:
            raise _error_of(given.error, given.attributes)
        told = {"content": [{"type": "text", "text": given.value}]} if isinstance(given.value, str) else given.value
        return module.types.CallToolResult.model_validate({**told, "isError": given.error is not None})

    def named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the client's call with the place in its `_meta`; what the program has there itself stays."""
        return self._with_place(kwargs) or kwargs

    @guarded
    def _with_place(self, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        here, given = context.here(), kwargs.get("meta")
        if here is None or not (given is None or isinstance(given, Mapping)):
            return None
        parent, ancestry, traceparent = place_of(here)
        known = {} if here.session.builder.core.content else {CONTENT: False}
        budget = {BUDGET: names} if (names := names_of(here.budget)) else {}
        return {**kwargs, "meta": {"traceparent": traceparent, PARENT: parent, ANCESTRY: ancestry, **known, **budget, **(given or {})}}

    @guarded
    def returned(self, result: Any) -> None:
        """Take the server's result."""
        op = self._op
        if op is None:
            return
        told: Any = dumped(functools.partial(result.model_dump, by_alias=True, exclude_none=True))
        self._respond(op, _payload(told))
        if not is_object(told) or "content" not in told:
            note_foreign(op, type(result).__qualname__)
        failed = is_object(told) and told.get("isError") is True
        said = cut(_text_of(told)) if failed else ""
        error = f"tool_error: {op.builder.core.said(said)}" if failed else None
        self._account(op, "failed" if failed else "ok", error)
        if error is not None:
            self._classify(op, class_of_text(said))
            self._failed(op, error)

    @guarded
    def _raised(self, error: BaseException) -> None:
        if self._op is not None:
            if type(code := getattr(error, "code", None)) is int:
                self._op.builder.set_op(self._op, **{STATUS_CODE: str(code)})
            self._account(self._op, "failed", outcome(error)[1])
            self._classify(self._op, class_of_error(error))

    def _classify(self, op: Op, why: FailureClass | None) -> None:
        if why is not None:
            op.builder.set_op(op, **error_attributes(why))

    def _respond(self, op: Op, payload: Any) -> None:
        op.response(payload)

    def _failed(self, op: Op, said: str) -> None:
        op.end("failed", said)

    def _account(self, op: Op, status: Any, error: str | None) -> None:
        sizes = [0 if payload is None else payload.size or 0 for payload in (op.bare.request, op.bare.response)]
        op.account(status=status, mcp_server=self._server, command=self._tool, characters_in=sizes[0], characters_out=sizes[1], error=error)


class _JoinedTool(_ToolCall):
    """One call within an op of the program's for the same tool, which records what it wants to itself."""

    def __init__(self, op: Op, server: str | None, tool: str, arguments: Any) -> None:
        super().__init__(server, tool, arguments)
        op.call = self
        self.scope = nullcontext()
        self.failure: FailureClass | None = None
        """Why it failed, for the end of the op."""
        self.error: str | None = None
        """What the server says of that."""

    def recorded(self, module: ModuleType) -> Any:  # noqa: ARG002 - as in its base
        """Return None: the program's tool ran, and so does its call."""
        return None

    def _respond(self, op: Op, payload: Any) -> None:
        respond_at_end(op, payload)  # unless the program gives another

    def _classify(self, op: Op, why: FailureClass | None) -> None:  # noqa: ARG002 - which may yet end well
        self.failure = why

    def _failed(self, op: Op, said: str) -> None:
        op.log(said, "ERR", "response")  # what that means is for the program to say, or the framework's op of the tool
        self.error = said

    def _account(self, op: Op, status: Any, error: str | None) -> None:
        """Leave that to the end of the op."""


def _error_of(said: str, known: Mapping[str, Any]) -> BaseException:
    """Return the exception of an op that failed, with the code that the protocol has for it."""
    name, _, message = said.partition(": ")
    if name != "MCPError":
        return exception_of(said, "mcp")
    code = known.get(STATUS_CODE)
    made: BaseException = importlib.import_module("mcp").MCPError(int(code) if isinstance(code, str) else _INTERNAL_ERROR, message)
    return made


def _payload(told: Any) -> Any:
    """Return what a result says: a text alone as it is, else the result's members, without those of the protocol."""
    if not is_object(told):
        return told
    content = told.get("content")
    only = content[0] if is_list(content) and len(content) == 1 else None
    if "structuredContent" not in told and is_object(only) and only.get("type") == "text" and isinstance(said := only.get("text"), str):
        return said
    return {name: value for name, value in told.items() if name not in ("_meta", "resultType", "isError")}


def _text_of(told: Any) -> str:
    """Return the texts of a result."""
    blocks: list[Any] = told["content"] if is_list(told.get("content")) else []
    return "\n".join(block["text"] for block in blocks if is_object(block) and isinstance(block.get("text"), str))
