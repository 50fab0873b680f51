"""What stands in the place of a library's functions: it runs them within a watch, which is told of calls and of a stream's pieces."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import closing, nullcontext
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, isgeneratorfunction
from types import FunctionType
from typing import Any, Final, Protocol

from optree._tracing.holding import AsyncItems
from optree._tracing.runtime import RUNTIME
from optree._tracing.wrapping import async_generator
from optree._values import own_members

IsOn = Callable[[], bool]
"""Tells whether a hook does anything."""
Hook = tuple[Any, str, Any]
"""What stands in the place of a function: owner, name and replacement."""
_MARK: Final = "_optree_hook"


class LastIsOn:
    """Tells whether the hooks of a module that were put in last do anything: for what stays there when others take their place."""

    def __init__(self) -> None:
        self.last: IsOn = lambda: False

    def __call__(self) -> bool:
        return self.last()


class Watch(Protocol):
    """What is told of one call of a function: that it begins, and what comes of it."""

    def begin(self) -> None:
        """Note that the function is about to be called."""

    def returned(self, value: Any, /) -> None:
        """Note what the function returns."""

    def raised(self, error: BaseException, /) -> None:
        """Note what it raises. An interrupt may also come in `begin` or in `returned`: then the program has no result."""


class StreamWatch(Protocol):
    """What is told of one stream, while the program reads it."""

    def begin(self) -> None:
        """Note that the first piece is about to be asked for."""

    def take(self, piece: Any, /) -> None:
        """Note a piece, before the program has it."""

    def goes_on(self) -> None:
        """Note that another piece is about to be asked for."""

    def over(self, error: BaseException | None, /) -> None:
        """Note that the stream has ended, or what was raised: a `GeneratorExit` where the program reads no further."""


_Given = Callable[[], Any] | None
"""A watch's `given`, if it has one: called in place of the function."""
Watching = Callable[..., Watch | None]
"""Returns, for a function's arguments, what the call runs within; None for one that is left alone."""


def run_within(function: Callable[..., Any], watching: Watching) -> Callable[..., Any]:
    """Return what stands in the place of a function: it runs within what is *watching* it."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        watch = watching(*args, **kwargs)
        if watch is None:
            return function(*args, **kwargs)
        try:
            watch.begin()
            given: _Given = getattr(watch, "given", None)
            value = function(*args, **kwargs) if given is None else given()
            watch.returned(value)
            return value  # noqa: TRY300 - an interrupt at this place is told as well
        except BaseException as error:
            _unseen(error)
            watch.raised(error)
            raise

    return run


def _unseen(error: BaseException) -> None:
    """Remove our frame from the traceback of an exception that is raised again: some programs show the traceback to a model."""
    if error.__traceback__ is not None:
        BaseException.with_traceback(error, error.__traceback__.tb_next)  # an exception's class may let nothing be set


def await_within(function: Callable[..., Any], watching: Watching) -> Callable[..., Any]:
    """Return what stands in the place of a coroutine function: it runs within what is *watching* it."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        watch = watching(*args, **kwargs)
        if watch is None:
            return await function(*args, **kwargs)
        try:
            watch.begin()
            given: _Given = getattr(watch, "given", None)
            value = await function(*args, **kwargs) if given is None else given()
            if given is not None and isawaitable(value):
                value = await value
            watch.returned(value)
            return value  # noqa: TRY300 - an interrupt at this place is told as well
        except BaseException as error:
            _unseen(error)
            watch.raised(error)
            raise

    return run


def own_hooks(kind: Any, ways: Mapping[str, Callable[..., Any]], watching: Watching) -> list[Hook]:
    """Hook the methods that a class defines itself, each in the way that *ways* has for its name, unless they are hooked already."""
    own = {name: one for name, one in own_members(kind).items() if name in ways and isinstance(one, FunctionType)}
    found = [(kind, name, ways[name](one, watching)) for name, one in own.items() if not hasattr(one, _MARK)]
    for _, _, function in found:
        setattr(function, _MARK, True)
    return found


def read_within(owner: Any, names: tuple[str, ...], recorded: Callable[..., Any], is_on: IsOn, *, keeps_kind: bool = True) -> list[Hook]:
    """Hook functions that return a generator: *recorded* returns, for that and the arguments, what is read in its place.

    Without *keeps_kind* the program reads just that, and the function is a plain one: ADK's generators, and LangChain's, raise errors in
    the event loop if one more is around them and the program ends before it has read all.
    """

    def hooked(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            items = function(*args, **kwargs)
            return (recorded(items, *args, **kwargs) if RUNTIME.config.enabled and is_on() else None) or items

        return of_kind(function, run) if keeps_kind else run

    return [(owner, name, hooked(getattr(owner, name))) for name in names]


def of_kind(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return *run*, which stands in the place of a function, as a function of the same kind: libraries and programs ask for that.

    The kinds are coroutine functions, generator functions and async generator functions. *run* is a plain one that returns the same as
    *function*, or what has the methods of it.
    """

    @functools.wraps(run)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await run(*args, **kwargs)

    @functools.wraps(run)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        items: Generator[Any, Any, Any] = run(*args, **kwargs)
        return (yield from items)

    kinds = ((isasyncgenfunction, async_generator(run)), (isgeneratorfunction, generator), (iscoroutinefunction, coroutine))
    return next((made for is_one, made in kinds if is_one(function)), run)


def watched(pieces: Generator[Any, Any, Any], watch: StreamWatch) -> Generator[Any]:
    """Yield what a generator yields, within a watch, and close it."""
    try:
        watch.begin()
        with closing(pieces):
            for piece in pieces:
                watch.take(piece)
                yield piece
                watch.goes_on()
    except BaseException as error:
        watch.over(error)
        raise
    watch.over(None)


class WatchedItems(AsyncItems):
    """What an async generator yields, within a watch."""

    def __init__(self, items: AsyncGenerator[Any, Any], watch: StreamWatch) -> None:
        super().__init__(items)
        self._watch, self._is_left = watch, False

    def _begin(self) -> None:
        self._told(self._watch.begin)

    def _within(self, *, is_close: bool) -> Any:
        if self._is_left and not is_close:
            self._watch.goes_on()
        return nullcontext()

    def _keep(self, item: Any) -> None:
        self._told(self._watch.take, item)
        self._is_left = True

    def _over(self, error: BaseException | None) -> None:
        self._watch.over(error)

    def _told(self, tell: Callable[..., object], *said: Any) -> None:
        """Tell the watch; an interrupt there ends it."""
        try:
            tell(*said)
        except BaseException as error:
            self._end(error)
            raise
