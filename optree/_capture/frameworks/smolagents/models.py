"""Models of smolagents' agents: a call that is not seen on the wire becomes an op from its arguments and its result."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Generator, Mapping
from types import ModuleType
from typing import Any, Final

from optree._builder import Op
from optree._capture.frameworks.nesting import FrameworkCall, Request, chat_answer
from optree._capture.hooks import Hook, IsOn, LastIsOn, of_kind, own_hooks, run_within
from optree._tracing.faults import guarded
from optree._values import is_object, own_members, subclasses, text

_OF_PYTHON: Final = ("builtins", "itertools")
_is_on: Final = LastIsOn()


def models(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the methods that call a model, in all classes that exist; later classes are hooked when a model of theirs is made."""
    base, _is_on.last = module.Model, is_on
    function = own_members(base)["__init__"]

    @functools.wraps(function)
    def made(model: Any, /, *args: Any, **kwargs: Any) -> None:
        if is_on():
            hook_model(model)
        function(model, *args, **kwargs)

    return [(base, "__init__", made), *(hook for kind in (base, *subclasses(base)) for hook in own_hooks(kind, _WAYS, _asked))]


@guarded
def _asked(model: Any, messages: Any = None, /, *_args: Any, **told: Any) -> _SmolModelCall | None:
    """Return a call of a model. This is not nested in another function, since programs pickle classes of theirs with the hooks in them."""
    call = _SmolModelCall.under_way()
    if not _is_on() or (call is not None and call.model is model):  # called by the same method of a derived class
        return None
    return _SmolModelCall(model, told.pop("messages", messages), told)


@guarded
def hook_model(model: Any) -> None:
    """Hook the classes of a model of the program's. They keep their hooks after `uninstrument`, which then do nothing."""
    base = importlib.import_module("smolagents.models").Model
    kinds = type(model).__mro__ if _is_on() else ()
    for kind in [one for one in kinds if issubclass(one, base)] or kinds:  # a mixin beside smolagents' own class is left alone
        for owner, name, function in own_hooks(kind, _WAYS, _asked):
            setattr(owner, name, function)


def _stream_within(function: Any, watching: Callable[..., _SmolModelCall | None]) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = watching(*args, **kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            call.begin()
            deltas: Any = function(*args, **kwargs)
            if type(deltas).__module__ in _OF_PYTHON and hasattr(deltas, "__next__"):
                call.pauses()
                return _noted(deltas, call)
            call.returned(None)
            return deltas  # noqa: TRY300 - an object of the program's own, which may be more than its pieces
        except BaseException as error:
            call.raised(error)
            raise

    return of_kind(function, run)


def _noted(deltas: Any, call: _SmolModelCall) -> Generator[Any, Any, Any]:
    """Yield what a stream yields; what is sent, thrown and returned passes too."""
    step = functools.partial(next, deltas)
    try:
        while True:
            call.goes_on()
            try:
                delta = step()
            except StopIteration as end:
                call.returned(None)
                return end.value
            call.came(delta)
            call.pauses()
            try:
                sent = yield delta
                step = functools.partial(next, deltas) if sent is None else functools.partial(deltas.send, sent)
            except GeneratorExit:
                if hasattr(deltas, "close"):
                    deltas.close()
                raise
            except BaseException as error:
                if not hasattr(deltas, "throw"):
                    raise
                step = functools.partial(deltas.throw, error)
    except BaseException as error:
        call.raised(error)
        raise


_WAYS: Final[Mapping[str, Callable[..., Any]]] = {"generate": run_within, "generate_stream": _stream_within}


class _SmolModelCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, messages: Any, told: Mapping[str, Any]) -> None:
        self.model, self._messages, self._told = model, messages, told
        self._deltas: list[Any] = []

    @guarded
    def came(self, delta: Any) -> None:
        """Record a piece of the answer."""
        if (op := self.op()) is not None:
            self._deltas.append(delta)
            if delta.content:
                op.chunk(delta.content)

    def op(self) -> Op | None:
        """Return the op of a call that is not seen on the wire; one that has begun gets the whole answer, whatever is seen later."""
        return self._op or super().op()

    def request(self) -> Request:
        """Return what is sent, with the tools as their schemas."""
        told, model = dict(self._told), self.model
        tools, stop = told.pop("tools_to_call_from", None) or (), told.pop("stop_sequences", None)
        schema = importlib.import_module("smolagents.models").get_tool_json_schema
        sent = {"stop": stop, "tools": [schema(tool) for tool in tools] or None, **told}
        name = text(getattr(model, "model_id", None) or type(model).__name__)
        messages = [_message(one) for one in self._messages or ()]
        return None, name, messages, {key: one for key, one in sent.items() if one is not None}

    def answer(self, value: Any) -> Any:
        """Return the answer, or the one that the pieces add up to."""
        has_usage = any(delta.token_usage for delta in self._deltas)
        if value is None and self._deltas:
            value = importlib.import_module("smolagents.models").agglomerate_stream_deltas(self._deltas)
            value.token_usage = value.token_usage if has_usage else None
        if value is None:
            return None
        usage = getattr(value, "token_usage", None)
        spent = None if usage is None else {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        return chat_answer(getattr(self.model, "model_id", None), [_message(value)], spent)

    def partial(self) -> Any:
        """Return what the pieces add up to if they tell of tokens: else the chunks are recorded, and the tokens unknown."""
        return self.answer(None) if any(delta.token_usage for delta in self._deltas) else None


_ROLES: Final = {"tool-call": "assistant", "tool-response": "user"}
"""The provider's roles for those that are smolagents' own."""


def _message(one: Any) -> dict[str, Any]:
    """Return a message as providers take it."""
    if is_object(one):
        return one
    role = getattr(one.role, "value", one.role)
    calls = [dataclasses.asdict(call) for call in one.tool_calls or ()]
    return {"role": _ROLES.get(role, role), "content": one.content, **({"tool_calls": calls} if calls else {})}
