"""Streams that a function returns and its caller reads: what providers' clients make, watched while the program reads them.

The clients have no hook for it: a stream's iterator is replaced, and the `close` of its response, which each way to close a stream ends in.
A raw response is watched until the program parses it, or reads its body: decision 022.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, Final, NamedTuple

from optree._interrupts import pass_on, suppress

_CLIENTS: Final = ("openai", "anthropic")
_STREAMS: Final = ("Stream", "StreamManager", "ResponseContextManager")
"""Ends of the names of the clients' classes."""
_REQUESTS: Final = ("Manager__api_request", "_request_func", "_api_request")
"""Ends of the names under which a manager holds what it asks for when its block is entered."""
_MOST_PROXIES: Final = 8


class Watcher(NamedTuple):
    """The functions that are called with what the program reads."""

    on_item: Callable[[Any], None]
    """Called with each chunk of a stream."""
    on_answer: Callable[[Any], None]
    """Called with a response whose body is there, or that the program reads in a way of its own."""
    on_end: Callable[[BaseException | None], None]
    """Called once: when all is read or closed, or raises."""


def is_stream(value: object) -> bool:
    """Tell whether a value is a stream of OpenAI's or Anthropic's client, manages one, or is built as theirs are; also behind a proxy.

    A raw response whose body is still to come is one as well.
    """
    value = _unwrapped(value)
    for cls in type(value).__mro__:
        theirs = cls.__module__.partition(".")[0] in _CLIENTS and cls.__name__.endswith(_STREAMS)
        if theirs or (cls.__name__ in ("Stream", "AsyncStream") and hasattr(cls, "__stream__")):
            return True
    try:
        own: dict[str, Any] = vars(value)
        if "http_response" in own and callable(getattr(type(value), "parse", None)):
            return own["http_response"].is_closed is False
        return callable(getattr(type(value), "close", None)) and "response" in own and _gives(own.get("_iterator"))
    except (TypeError, AttributeError) as error:  # it has no members of its own, or others
        pass_on(error)
        return False


def _unwrapped(value: Any) -> Any:
    """Return what other instrumentation has put a proxy around."""
    for _ in range(_MOST_PROXIES):
        try:
            value = object.__getattribute__(value, "__wrapped__")
        except Exception as error:  # noqa: BLE001 - an attribute of wrapt's raises what it likes
            pass_on(error)
            break
    return value


def _gives(items: object) -> bool:
    return hasattr(items, "__next__") or hasattr(items, "__anext__")


def watch(stream: Any, watcher: Watcher) -> bool:
    """Tell *watcher* what the program reads of a stream: it stays what it is to the program.

    False if it is made in another way than is known, and is left alone.
    """
    with suppress(AttributeError, TypeError):
        stream = _unwrapped(stream)
        held: dict[str, Any] = stream.__dict__
        asking = next((name for name in held if name.endswith(_REQUESTS)), None)
        if asking is not None:  # the manager of a stream that is asked for when its block is entered
            held[asking] = _Asking(held[asking], watcher)
            return True
        if "http_response" in held:
            _Response(stream, watcher)
            return True
        raw: Any = held.get("_raw_stream", stream)
        items = raw._iterator  # noqa: SLF001 - the clients have no hook for it
        if _gives(items):
            watched = _Watched(items, watcher)
            raw._iterator = watched  # noqa: SLF001
            if not _before_close(getattr(raw, "response", None), watched.closed):
                _before_close(raw, watched.closed)
            return True
    return False


class _Watched:
    """The items of a stream, for `for` and `async for`. The end is told once, also if the program forgets the stream."""

    def __init__(self, items: Any, watcher: Watcher) -> None:
        self._items, self._on_item = items, watcher.on_item
        self._on_end: Callable[[BaseException | None], None] | None = watcher.on_end
        self._reading = False

    def __iter__(self) -> _Watched:
        return self

    def __aiter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        with self:
            item = next(self._items)
            self._on_item(item)
        return item

    async def __anext__(self) -> Any:
        with self:
            item = await self._items.__anext__()
            self._on_item(item)
        return item

    def __enter__(self) -> None:
        self._reading = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reading = False
        if error is not None:
            self._end(None if isinstance(error, (StopIteration, StopAsyncIteration)) else error)

    def __del__(self) -> None:
        self._end(GeneratorExit())

    def closed(self) -> None:
        """Note that the stream was closed by the program, and not by the client after the last item."""
        if not self._reading:
            self._end(GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)


class _Asking:
    """A manager's request, which it calls or awaits: what comes of it is watched."""

    def __init__(self, request: Any, watcher: Watcher) -> None:
        self._request, self._watcher = request, watcher

    def __call__(self) -> Any:
        with self:
            stream = self._request()
        return self._came(stream)

    def __await__(self) -> Generator[Any, Any, Any]:
        with self:
            awaited: Generator[Any, Any, Any] = self._request.__await__()
            stream = yield from awaited
        return self._came(stream)

    def __enter__(self) -> None:
        """Begin to ask."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._watcher.on_end(error)

    def _came(self, stream: Any) -> Any:
        if not (is_stream(stream) and watch(stream, self._watcher)):
            self._watcher.on_end(None)
        return stream


class _Response:
    """A raw response: a stream that the program parses it into is watched; a body that it reads is the answer."""

    def __init__(self, response: Any, watcher: Watcher) -> None:
        self._response, self._watcher = response, watcher
        self._reading = self._over = False
        http = response.http_response
        response.parse = self._around(response.parse, self._parsed)
        for name in ("read", "aread"):
            setattr(http, name, self._around(getattr(http, name), self._has_read))
        _before_close(http, self._closed)

    def _around(self, call: Callable[..., Any], came: Callable[[Any], None]) -> Callable[..., Any]:
        """Return a method that also hands its result to *came*, whether or not it has to be awaited."""

        @functools.wraps(call)
        def calling(*args: Any, **kwargs: Any) -> Any:
            with self:
                value = call(*args, **kwargs)
            if isawaitable(value):
                return self._awaited(value, came)
            came(value)
            return value

        return calling

    async def _awaited(self, coming: Awaitable[Any], came: Callable[[Any], None]) -> Any:
        with self:
            value = await coming
        came(value)
        return value

    def __enter__(self) -> None:
        self._reading = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reading = False
        if error is not None:
            self._end(error)

    def _parsed(self, value: Any) -> None:
        if not self._over and is_stream(value) and watch(value, self._watcher):
            self._over = True  # the stream tells the end

    def _has_read(self, _body: bytes) -> None:
        self._end(None, answered=True)

    def _closed(self) -> None:
        """Note that the response was closed, by the program or after that has read all of it in pieces."""
        if not self._reading:
            begun = bool(self._response.http_response.is_stream_consumed)
            self._end(None if begun else GeneratorExit(), answered=begun)

    def _end(self, error: BaseException | None, *, answered: bool = False) -> None:
        if not self._over:
            self._over = True
            if answered:
                self._watcher.on_answer(self._response)
            self._watcher.on_end(error)


def _before_close(holder: Any, call: Callable[[], None]) -> bool:
    """Let *call* be called before an object is closed; False if its methods cannot be replaced."""
    replaced = False
    for name in ("close", "aclose"):
        if callable(close := getattr(holder, name, None)):
            with suppress(AttributeError, TypeError):
                setattr(holder, name, _closing(close, call))
                replaced = True
    return replaced


def _closing(close: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(close)
    def closing(*args: Any, **kwargs: Any) -> Any:
        call()
        return close(*args, **kwargs)

    return closing
