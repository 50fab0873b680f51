"""Decorating functions of all four kinds: plain, coroutine, generator, async generator.

A generator runs in pieces, in whoever's context asks for the next one, perhaps another task's. So no token is held across a `yield`:
the scope is put in place before each piece and taken out after it, by value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from optree.errors import SetupError
from optree.instrument import context
from optree.instrument.context import CURRENT, Scope
from optree.instrument.outcome import outcome
from optree.nodes import Status
from optree.values import MAX_TEXT, decode, encode

F = TypeVar("F", bound=Callable[..., Any])
_METHODS: tuple[Any, ...] = (staticmethod, classmethod)
KEPT_BYTES = MAX_TEXT // 2
"""JSON of a generator's items that is kept for the op's response; what comes after it is counted."""


class Names(NamedTuple):
    """What a function calls its positional arguments."""

    positional: list[str]
    rest: str = "args"


class Instrument(Protocol):
    """What a decorator needs of `scopes`."""

    def begin(self, before: Scope | None) -> tuple[Any, Scope]:
        """Open a node."""
        ...

    def finish(self, handle: Any, status: Status, error: str | None) -> None:
        """End it."""
        ...

    def called(self, handle: Any, arguments: Mapping[str, Any]) -> None:
        """Take the arguments."""
        ...

    def returned(self, handle: Any, value: Any) -> None:
        """Take the result."""
        ...


def wrapped(function: F, again: Callable[[Callable[..., Any]], Any]) -> F:
    """Return *function* decorated; each call gets the instrument that *again* makes for it."""
    if isinstance(function, _METHODS):
        method: Any = function
        around: F = type(method)(wrapped(method.__func__, again))
        return around
    if inspect.isclass(function):
        raise SetupError(f"the class {function.__name__} cannot be traced as a whole: decorate its method that runs")
    names = _parameters(function)
    make: Callable[..., Any]
    if inspect.isasyncgenfunction(function):
        make = _async_generator
    elif inspect.isgeneratorfunction(function):
        make = _generator
    elif inspect.iscoroutinefunction(function):
        make = _coroutine
    else:
        make = _function
    decorated: F = make(function, again(function), names)
    return decorated


def _function(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Piece(instrument, names, args, kwargs) as piece:
            return piece.result(function(*args, **kwargs))

    return call


def _coroutine(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _Piece(instrument, names, args, kwargs) as piece:
            return piece.result(await function(*args, **kwargs))

    return call


def _generator(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)  # first: wrong arguments must not leave a node open
        stream = _Stream(instrument, names, args, kwargs)
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731 - replaced by send and throw below
        try:
            while True:
                try:
                    with stream:
                        item = step()
                except StopIteration as stop:
                    stream.end(None, stop.value)
                    return stop.value
                stream.keep(item)
                try:
                    sent = yield item
                except GeneratorExit:
                    with stream:
                        inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the inner generator's to handle
                    step = functools.partial(inner.throw, error)
                else:
                    step = functools.partial(inner.send, sent)
        except BaseException as error:
            stream.end(error)
            raise

    return call


def _async_generator(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)  # first: wrong arguments must not leave a node open
        stream = _Stream(instrument, names, args, kwargs)
        step: Callable[[], Any] = inner.__anext__
        try:
            while True:
                try:
                    with stream:
                        item = await step()
                except StopAsyncIteration:
                    stream.end(None)
                    return
                stream.keep(item)
                try:
                    sent = yield item
                except GeneratorExit:
                    with stream:
                        await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the inner generator's to handle
                    step = functools.partial(inner.athrow, error)
                else:
                    step = functools.partial(inner.asend, sent)
        except BaseException as error:
            stream.end(error)
            raise

    return call


class _Piece:
    """One call of a function or coroutine: opened where the call runs, ended with it."""

    __slots__ = ("_before", "_handle", "_instrument", "_scope")

    def __init__(self, instrument: Instrument, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._instrument = instrument
        self._before = CURRENT.get()
        self._handle, self._scope = instrument.begin(self._before)
        instrument.called(self._handle, _bound(names, args, kwargs))

    def __enter__(self) -> Self:
        context.enter(self._scope)
        return self

    def result(self, value: Any) -> Any:
        """Record and return what the function returned."""
        self._instrument.returned(self._handle, value)
        return value

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if CURRENT.get() is self._scope:
            context.leave(self._scope, self._before)
        self._instrument.finish(self._handle, *outcome(error))


class _Stream:
    """One run of a generator; entered around each of its pieces."""

    __slots__ = ("_before", "_handle", "_instrument", "_items", "_more", "_room", "_scope")

    def __init__(self, instrument: Instrument, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._instrument = instrument
        self._handle, self._scope = instrument.begin(CURRENT.get())
        self._before: Scope | None = None
        self._items: list[Any] = []
        self._more = 0
        self._room = KEPT_BYTES
        instrument.called(self._handle, _bound(names, args, kwargs))

    def __enter__(self) -> Self:
        self._before = CURRENT.get()
        context.enter(self._scope)
        return self

    def __exit__(self, *_error: object) -> None:
        self._scope = CURRENT.get() or self._scope  # the generator may be inside a block of its own when it yields
        context.leave(self._scope, self._before)

    def keep(self, item: Any) -> None:
        """Keep an item for the response."""
        if self._room <= 0:
            self._more += 1
            return
        data = encode(item)  # as it is now: the next item may be the same object, changed
        self._room -= len(data)
        self._items.append(decode(data))

    def end(self, error: BaseException | None, value: Any = None) -> None:
        """End the node, with what was yielded as its result."""
        found: Any = self._items
        if found and not self._more and all(type(item) is str for item in found):
            found = "".join(found)
        if self._more:
            found = {"items": found, "more": self._more}
        self._instrument.returned(self._handle, found if value is None else {"items": found, "returned": value})
        self._instrument.finish(self._handle, *outcome(error))


def _parameters(function: Callable[..., Any]) -> Names:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Names([])
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return Names(positional, next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), "args"))


def _bound(names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name; `self` and `cls` are left out, further positional ones go under the name of the ``*args``."""
    found = dict(zip(names.positional, args, strict=False))
    if names.positional[:1] in (["self"], ["cls"]):
        found.pop(names.positional[0], None)
    if len(args) > len(names.positional):
        found[names.rest] = list(args[len(names.positional) :])
    return {**found, **kwargs}
