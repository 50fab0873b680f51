"""What stands in the place of a library's functions: it runs them within a watch, which is told of calls and of a stream's pieces."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import closing
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, isgeneratorfunction
from types import FunctionType
from typing import Any, Final, Protocol

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


def watched_async(pieces: AsyncGenerator[Any, Any], watch: StreamWatch) -> AsyncGenerator[Any, Any]:
    """Return what an async generator yields, within a watch, and close it."""
    return _WatchedPieces(pieces, watch)


class _WatchedPieces(AsyncGenerator[Any, Any]):
    """An async generator's pieces.

    It is no generator itself: an event loop that ends closes all generators at once, which raises in one that stands around another.
    """

    def __init__(self, pieces: AsyncGenerator[Any, Any], watch: StreamWatch) -> None:
        self._is_begun = self._is_running = self._is_over = False
        self._pieces, self._watch = pieces, watch

    async def __anext__(self) -> Any:
        return await self._read(self._pieces.__anext__)

    async def asend(self, value: Any) -> Any:
        """Send a value in."""
        return await self._read(functools.partial(self._pieces.asend, value))

    async def athrow(self, *error: Any) -> Any:
        """Throw an exception in."""
        return await self._read(functools.partial(self._pieces.athrow, *error))

    async def aclose(self) -> None:
        """Close it."""
        if not self._is_begun or self._is_over or self._is_running:
            await self._pieces.aclose()
            return
        error: BaseException = GeneratorExit()
        self._is_running = True
        try:
            await self._pieces.aclose()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._is_running = False
            self._end(error)

    async def _read(self, step: Callable[[], Awaitable[Any]]) -> Any:
        if self._is_over or self._is_running:  # of one that is running Python says so
            return await step()
        self._is_running = True
        try:
            if self._is_begun:
                self._watch.goes_on()
            else:
                self._is_begun = True
                self._watch.begin()
            piece = await step()
            self._watch.take(piece)
            return piece  # noqa: TRY300 - an interrupt at this place is told as well
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._is_running = False

    def _end(self, error: BaseException | None) -> None:
        self._is_over = True
        self._watch.over(error)

    def __del__(self) -> None:
        if self._is_begun and not self._is_over:
            del self._pieces  # first, for what is open in it
            self._end(GeneratorExit())
