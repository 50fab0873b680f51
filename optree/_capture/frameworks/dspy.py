"""DSPy: a program is a session; modules in it are ops, as are its tools, retrievers, evaluations and optimizers.

Its callbacks are not used: the program sets them, and DSPy runs otherwise where there are some. The methods that these are called around
are hooked instead; and its own transports, which write to sockets, so that no HTTP client sees what they send.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import ModuleType
from typing import Any, Final, cast
from urllib.parse import urlsplit

from optree._capture.calls.begin import GivenStream, Noted, SentRequest, begin
from optree._capture.calls.details import phrase_of
from optree._capture.calls.observed import ClientCall
from optree._capture.frameworks.nesting import CallNode, FrameworkCall, Nesting, Request, chat_answer, given_instead, respond
from optree._capture.hooks import Hook, IsOn, await_within, run_within
from optree._capture.replay import ACTIVE
from optree._capture.replay.answering import NO_ANSWER, StoredReply
from optree._nodes import FROM_CACHE
from optree._providers.messages import json_text
from optree._tracing import context
from optree._tracing.faults import guarded
from optree._tracing.propagate import wrap
from optree._tracing.recorded import CURRENT_REPLAY, Recorded, note_type
from optree._tracing.scopes import OpScope
from optree._values import dumped, is_list, is_object, member, own_members, text

_OWN: Final = "dspy."
_AGENTS: Final = frozenset({"ReAct", "ReActV2", "CodeAct", "RLM", "Avatar"})
"""Modules that call tools by themselves: sessions wherever they are called."""
_REPEATED: Final = ("trajectory", "history")
"""Members of an agent's output that repeat what is in its session."""
_OF_PREDICT: Final = ("config", "demos", "lm", "signature")
"""Arguments of DSPy's own modules that are not inputs."""
_OF_CALL: Final = ("temperature", "max_tokens", "top_p", "n", "seed", "stop", "tools", "tool_choice", "reasoning_effort")
"""Parameters of a call of a model."""
_ENDS: Final = ("finish", "submit")
"""Tools of DSPy's own by which the model ends an agent's work."""
_MOST_SEARCHED: Final = 100
_MOST_DEEP: Final = 4
_NESTING: Final = Nesting()


def modules(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the calls of modules."""

    @guarded
    def watching(program: Any, /, *args: Any, **kwargs: Any) -> _DspyNode | None:
        callers: Any = module.settings.caller_modules if is_on() else None
        return _module(program, callers[-1] if callers else None, args, kwargs) if is_on() else None

    return _calls(module.Module, watching)


def tools(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the calls of tools: in a replay a copy is called that gives what was recorded."""
    kind, asked = module.Tool, module.ToolCalls.ToolCall
    function, awaited, executes = kind.__call__, kind.acall, asked.execute

    @guarded
    def watching(function: Any, tool: Any, /, *args: Any, **kwargs: Any) -> _DspyNode | None:
        ends_agent = _is_own(tool.func) and tool.name in _ENDS
        if ends_agent or not is_on():
            return None
        node = _tool(tool.name, kwargs)
        if CURRENT_REPLAY.answer_tool is not None:
            node.given = functools.partial(function, _in_place_of(tool), *args, **kwargs)
        return node

    @functools.wraps(executes)
    def execute(call: Any, functions: Any = None) -> Any:
        if functions is None:  # where it is called
            frame: Any = cast("Any", inspect.currentframe()).f_back
            found = frame.f_locals.get(call.name) or frame.f_globals.get(call.name)
        elif is_list(functions):
            found = next((one.func for one in functions if one.name == call.name), None)
        elif is_object(functions):
            found = functions.get(call.name)
        else:
            return executes(call, functions)
        if found is not None and not isinstance(found, kind) and is_on():
            found = _executed(call.name, found)
        return executes(call, {} if found is None else {call.name: found})

    return [
        (kind, "__call__", run_within(function, functools.partial(watching, function))),
        (kind, "acall", await_within(awaited, functools.partial(watching, awaited))),
        (asked, "execute", execute),
    ]


def retrievers(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the retrievers of a module, which are tools that run in a replay too."""

    @guarded
    def watching(retriever: Any, /, *args: Any, **kwargs: Any) -> _DspyNode | None:
        kind = cast("Any", type(retriever))
        asked = _inputs(getattr(kind, "forward", kind.__call__), args, kwargs)
        return _tool(kind.__name__, asked, of="retrievers of DSPy") if is_on() else None

    kinds = [kind for name in ("Retrieve", "Embeddings", "ColBERTv2") if (kind := own_members(module).get(name)) is not None]
    return [hook for kind in kinds for hook in _calls(kind, watching)]


def interpreters(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs a model's code, which is a tool that runs in a replay too."""

    @guarded
    def watching(_interpreter: Any, /, code: Any = None, *_args: Any, **_more: Any) -> _DspyNode | None:
        is_first = code == getattr(sys.modules.get("dspy.primitives.facade"), "SHIM_SETUP", None)  # DSPy's own, ahead of a model's
        return None if is_first or not is_on() else _tool("python", {"code": code}, of="interpreters of DSPy")

    kinds = [kind for name in ("PythonInterpreter", "LocalInterpreter") if (kind := own_members(module).get(name)) is not None]
    return [(kind, "execute", run_within(kind.execute, watching)) for kind in kinds]


def threads(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook what runs a function in threads of its own: they are where it was called."""
    kind = module.ParallelExecutor
    executes = kind.execute

    @functools.wraps(executes)
    def execute(executor: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return executes(executor, wrap(function) if is_on() and context.here() is not None else function, *args, **kwargs)

    return [(kind, "execute", execute)]


def evaluations(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook evaluations of programs."""
    kind = module.Evaluate

    @guarded
    def watching(evaluate: Any, /, *args: Any, **kwargs: Any) -> _DspyNode | None:
        asked = _inputs(kind.__call__, args, kwargs)
        told = {"program": type(asked.get("program")).__name__, "examples": len(asked.get("devset") or evaluate.devset or [])}
        begin = functools.partial(_begin_step, agent="Evaluate", name=f"evaluate {told['program']}", type_="evaluate", asked=told)
        return _DspyNode(begin, lambda result: {"score": result.score}) if is_on() else None

    return _calls(kind, watching)


def optimizers(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook `compile` of DSPy's optimizers."""

    @guarded
    def watching(optimizer: Any, /, *args: Any, **kwargs: Any) -> _DspyNode | None:
        kind = cast("Any", type(optimizer))
        asked = _inputs(kind.compile, args, kwargs)
        told = {"program": type(asked.get("student")).__name__, "examples": len(asked.get("trainset") or [])}
        begin = functools.partial(_begin_step, agent=kind.__name__, name=f"compile {kind.__name__}", type_="compile", asked=told)
        return _DspyNode(begin, lambda _program: None) if is_on() else None

    known = own_members(module)
    kinds = [kind for name in known["__all__"] if isinstance(kind := known[name], type) and "compile" in own_members(kind)]
    return [(kind, "compile", run_within(own_members(kind)["compile"], watching)) for kind in kinds]


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the calls of models."""

    @guarded
    def watching(model: Any, /, prompt: Any = None, *_args: Any, messages: Any = None, **more: Any) -> _DspyCall | None:
        return _DspyCall(model, prompt, messages, more) if is_on() else None

    return _calls(module.BaseLM, watching)


def answers(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the function that DSPy calls with the answer of a model, or of the cache."""
    function = module.finalize

    @functools.wraps(function)
    def finalize(model: Any, call: Any, result: Any) -> Any:
        if is_on() and (under_way := _DspyCall.under_way()) is not None and under_way.model is model:
            under_way.result = result
        return function(model, call, result)

    return [(module, "finalize", finalize)]


def _calls(kind: Any, watching: Callable[..., Any]) -> list[Hook]:
    """Return hooks for the methods by which a class's objects are called."""
    own = own_members(kind)
    awaited = [(kind, "acall", await_within(own["acall"], watching))] if "acall" in own else []
    return [(kind, "__call__", run_within(own["__call__"], watching)), *awaited]


class _DspyNode(CallNode):
    """The node of one call in the tree."""

    nesting = _NESTING

    def __init__(self, begin: Callable[[_DspyNode], object], told: Callable[[Any], Any]) -> None:
        self._begin, self._told = begin, told
        self.given: Callable[[], Any] | None = None
        """Called in place of the function, if it is there."""

    @guarded
    def begin(self) -> None:
        """Begin the node."""
        self._begin(self)

    def record(self, value: Any) -> None:
        """Record what is told of the value: an op's response, or a session's report."""
        scope, told = _NESTING.scope(self), self._told(value)
        if scope is None or told is None:
            return
        if scope.op is not None:
            respond(scope.op, told)
            note_type(scope.op, value)
        else:
            [*only] = told.values() if is_object(told) else (told,)
            scope.session.builder.set_final_report(only[0] if len(only) == 1 else told, with_end=True)


def _module(program: Any, caller: Any, args: Any, kwargs: Mapping[str, Any]) -> _DspyNode | None:
    """Return the node for a call of a module; None for a module that is part of one of DSPy's own."""
    kind = cast("Any", type(program))
    name = None if caller is None else _name_in(caller, program)
    if name is not None and _is_own(kind) and _is_own(_function_of(type(caller))):
        return None
    asked, here = _inputs(_function_of(kind), args, kwargs), context.here()
    if _is_own(kind):
        asked = {member: one for member, one in asked.items() if member not in _OF_PREDICT}
    is_in_tool = name is None and here is not None and here.op is not None and here.op.bare.kind == "tool"
    if caller is None or here is None or is_in_tool or not _AGENTS.isdisjoint(one.__name__ for one in kind.__mro__):
        return _DspyNode(lambda node: _NESTING.begin_agent(node, name or kind.__name__, _question(asked)), _outputs)
    begin = functools.partial(_begin_step, name=f"module {name or kind.__name__}", type_="module", asked=asked, module=kind.__name__)
    return _DspyNode(begin, _outputs)


def _tool(name: Any, sent: Mapping[str, Any], of: str = "") -> _DspyNode:
    """Return the node for a call of a tool."""
    return _DspyNode(lambda node: _NESTING.begin_tool(node, text(name), {one: _told(value) for one, value in sent.items()}, of=of), _told)


def _begin_step(node: _DspyNode, *, name: str, type_: str, asked: Mapping[str, Any], agent: str = "", **known: str) -> None:
    """Begin an op; outside of all sessions, an agent's session."""
    if context.here() is None:
        _NESTING.begin_agent(node, agent, None)
    else:
        _NESTING.begin(node, OpScope("system", name, {"type": type_, **known}), arguments=asked)


def _executed(name: Any, function: Any) -> Any:
    """Return what stands in the place of a function that a program has DSPy call by `execute`, and for which it has made no `Tool`."""
    within = await_within if inspect.iscoroutinefunction(function) else run_within
    runs = function if CURRENT_REPLAY.answer_tool is None else given_instead(function, _given, awaited=within is await_within)

    def watching(**sent: Any) -> _DspyNode:
        return _tool(name, sent)

    return within(runs, watching)


def _in_place_of(tool: Any) -> Any:
    """Return a copy of a tool whose function returns what was recorded, if anything was."""
    made = copy.copy(tool)
    made.__dict__["func"] = given_instead(tool.func, _given)
    return made


def _given(found: Recorded) -> Any:
    """Return what a tool returns for what was recorded, or raise what it raises."""
    return found.result("dspy")


def _is_own(found: Any) -> bool:
    """Tell whether a class or a function is DSPy's."""
    return text(getattr(found, "__module__", "")).startswith(_OWN)


def _function_of(kind: Any) -> Any:
    """Return the function of a module's class that a call runs."""
    return getattr(kind, "forward", None) or kind.aforward


def _name_in(caller: Any, program: Any) -> str | None:
    """Return the name that a module has in the module that calls it; None if it is none of that one's members."""
    for name, one in own_members(caller).items():
        if one is program:
            return name
        inside: Iterable[tuple[Any, Any]] = one.items() if is_object(one) else enumerate(one) if is_list(one) else ()
        if (at := next((at for at, each in islice(inside, _MOST_SEARCHED) if each is program), None)) is not None:
            return f"{name}[{at}]"
    return None


def _inputs(function: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method's call, by name."""
    names = list(inspect.signature(function).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _told(value: Any, depth: int = 0) -> Any:
    """Return a value in which examples, predictions and pydantic's objects are replaced by dicts of their members."""
    if depth > _MOST_DEEP:
        return value
    if (as_dict := _method(value, "toDict")) is not None:
        return as_dict()
    if (dump := _method(value, "model_dump")) is not None:
        return dumped(dump)
    if is_object(value):
        return {name: _told(one, depth + 1) for name, one in value.items()}
    return [_told(one, depth + 1) for one in value] if is_list(value) else value


def _method(value: Any, name: str) -> Any:
    """Return an object's method; None without one, or where asking for it raises, as a class's own code may."""
    return None if isinstance(value, type) else member(value, name)


def _outputs(value: Any) -> Any:
    """Return a module's outputs, without those that repeat its session."""
    told = _told(value)
    return {name: one for name, one in told.items() if name not in _REPEATED} if is_object(told) else told


def _question(asked: Mapping[str, Any]) -> str | None:
    """Return what the user says: the program's only argument if that is a text, else all arguments as JSON."""
    only: Any = next(iter(asked.values())) if len(asked) == 1 else None
    if isinstance(only, str):
        return only
    return json_text(_told(dict(asked))) if asked else None


class _DspyCall(FrameworkCall):
    """One call of a model. All that it sends are attempts of one op."""

    def __init__(self, model: Any, prompt: Any, messages: Any, more: Mapping[str, Any]) -> None:
        self.model = model
        self.result: Any = None
        """The result that DSPy got from the engine, or from its cache."""
        self._asked = prompt, messages, more
        self._client = ClientCall()

    def begin(self) -> None:
        """Begin: what is sent over the wire from now on is an attempt of this call."""
        super().begin()
        self._client.begin()

    def returned(self, value: Any) -> None:
        """Record the answer."""
        self._client.returned(value)
        super().returned(value)

    def raised(self, error: BaseException) -> None:
        """Record that the call failed."""
        super().raised(error)
        self._client.raised(error)

    def request(self) -> Request:
        """Return what is sent."""
        prompt, messages, more = self._asked
        provider, _, name = self.model.model.rpartition("/") if isinstance(self.model.model, str) else ("", "", "")
        sent = {**self.model.kwargs, **more}
        parameters = {name: _told(sent[name]) for name in _OF_CALL if sent.get(name) is not None}
        return provider or None, name, _told(messages or _messages(prompt)), parameters

    def answer(self, value: Any) -> Any:
        """Return what came as an answer of OpenAI's chat; what the cache gave used no tokens."""
        outputs = getattr(self.result, "outputs", value)
        found = chat_answer(self.model.model, map(_message, outputs), _told(getattr(self.result, "usage", None)))
        if getattr(self.result, "cache_hit", False) and (op := self.op()) is not None:
            op.log(FROM_CACHE)
            op.account(input_tokens=0, output_tokens=0, cost_usd=0.0)
        return found


def _messages(prompt: Any) -> list[Any]:
    """Return what a model is asked, a text or a request of DSPy's, as messages."""
    if not hasattr(prompt, "messages"):
        return [{"role": "user", "content": prompt}]
    system = [{"role": "system", "content": prompt.system}] if isinstance(prompt.system, str) else []
    return system + [{"role": one.role, "content": one.text} for one in prompt.messages]


def _message(output: Any) -> dict[str, Any]:
    """Return one of a model's answers as a message."""
    told: dict[str, Any] = _told(output) if is_object(output) else {"text": output}
    more = {name: told[name] for name in ("tool_calls", "reasoning_content") if told.get(name)}
    return {"role": "assistant", "content": told.get("text"), **more}


def plain_transport(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the transport of plain calls where requests are sent. Nothing is done if not *is_on*."""
    kind = module.StdlibTransport
    return [(kind, "stream", run_within(kind.stream, functools.partial(_sending, module, is_on)))]


def awaited_transport(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the transport of awaited calls."""
    kind = module.StdlibAsyncTransport
    function = kind._do_stream  # noqa: SLF001 - both ways to send call it
    return [(kind, "_do_stream", await_within(function, functools.partial(_sending, module, is_on)))]


def _sending(module: ModuleType, is_on: IsOn, _transport: Any, request: Any) -> _TransportSending | None:
    if not is_on():
        return None
    to = urlsplit(text(request.url))
    exchange = begin(request.method, to.hostname or "", to.path, request.body)
    if exchange is None:
        return None
    answer = ACTIVE.answer(exchange.op, to.path, to.query, exchange.sent)
    return _TransportSending(exchange, None if answer is None else functools.partial(_reply, module, answer))


class _TransportSending(SentRequest):
    __slots__ = ()

    @guarded
    def returned(self, response: Any) -> None:
        """Record the answer, and each piece of its body as DSPy reads it."""
        super().returned(response)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        self.exchange.responded(response.status, headers, None)
        response._chunks = Noted(response._chunks, self.exchange)  # noqa: SLF001 - all that is read is read from there


def _reply(module: ModuleType, answer: StoredReply) -> Any:
    """Return a recorded answer as a transport's response, or raise that none came."""
    if answer.status == NO_ANSWER:
        raise _error_of(module, answer.body.decode(), module.ReadTimeout if answer.timed_out else module.ConnectError)
    error = _error_of(module, answer.breaks, module.ReadTimeout if answer.timed_out else module.ReadError) if answer.breaks else None
    head = {"status": answer.status, "reason": phrase_of(answer.status), "headers": list(answer.headers.items()), "http_version": "1.1"}
    chunks = GivenStream(answer.body, error)
    if hasattr(module, "TransportResponse"):
        return module.TransportResponse(**head, chunks=chunks, release=_release)
    return module.AsyncTransportResponse(**head, chunks=chunks, release=_release_awaited)


def _error_of(module: ModuleType, told: str, other: type[Exception]) -> Exception:
    """Return the transport's exception that a recorded error names; the *other* one, where that is none of the transport's."""
    name, _, said = told.partition(": ")
    kind: Any = getattr(module, name, None)
    return kind(said) if isinstance(kind, type) and issubclass(kind, module.TransportError) else other(told)


def _release(_is_read: object) -> None:
    """Do nothing: there is no connection to give back."""


async def _release_awaited(_is_read: object) -> None:
    """Do nothing: there is no connection to give back."""
