"""Streams that a function returns and its caller reads: what providers' clients make, watched while the program reads them.

The clients have no hook for it: a stream's iterator is replaced, and the `close` of its response, which each way to close a stream ends in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

_CLIENTS: Final = ("openai", "anthropic")
_MOST_PROXIES: Final = 8


def is_stream(value: object) -> bool:
    """Tell whether a value is a stream of OpenAI's or Anthropic's client, manages one, or is built as theirs are; also behind a proxy."""
    value = _unwrapped(value)
    for one in type(value).__mro__:
        theirs = one.__module__.partition(".")[0] in _CLIENTS and one.__name__.endswith(("Stream", "StreamManager"))
        if theirs or (one.__name__ in ("Stream", "AsyncStream") and hasattr(one, "__stream__")):
            return True
    try:
        own: dict[str, Any] = vars(value)
        return callable(getattr(type(value), "close", None)) and "response" in own and _gives(own.get("_iterator"))
    except TypeError:  # it has no members of its own
        return False


def _unwrapped(value: Any) -> Any:
    """Return what other instrumentation has put a proxy around."""
    for _ in range(_MOST_PROXIES):
        try:
            value = object.__getattribute__(value, "__wrapped__")
        except Exception:  # noqa: BLE001 - an attribute of wrapt's raises what it likes
            break
    return value


def _gives(items: object) -> bool:
    return hasattr(items, "__next__") or hasattr(items, "__anext__")


def watch(stream: Any, on_item: Callable[[Any], None], on_end: Callable[[BaseException | None], None]) -> bool:
    """Call *on_item* with each chunk that the program reads of a stream, and *on_end* once: when it is read to its end, closed, or raises.

    The stream stays what it is to the program. False if it is made in another way than is known, and is left alone.
    """
    with suppress(AttributeError, TypeError):
        stream = _unwrapped(stream)
        held: dict[str, Any] = stream.__dict__
        asking = next((name for name in held if name.endswith("Manager__api_request")), None)
        if asking is not None:  # the manager of a stream that is asked for when its block is entered
            held[asking] = _Asking(held[asking], on_item, on_end)
            return True
        raw: Any = held.get("_raw_stream", stream)
        items = raw._iterator  # noqa: SLF001 - the clients have no hook for it
        if _gives(items):
            watched = _Watched(items, on_item, on_end)
            raw._iterator = watched  # noqa: SLF001
            if not _before_close(getattr(raw, "response", None), watched.closed):
                _before_close(raw, watched.closed)
            return True
    return False


class _Watched:
    """The items of a stream, for `for` and `async for`. *on_end* is called once, also if the program forgets the stream."""

    def __init__(self, items: Any, on_item: Callable[[Any], None], on_end: Callable[[BaseException | None], None]) -> None:
        self._items, self._on_item = items, on_item
        self._on_end: Callable[[BaseException | None], None] | None = on_end
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
        """Take that the stream is closed: by the program, not by the client when it has read the last of it."""
        if not self._reading:
            self._end(GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)


class _Asking:
    """A manager's request, which it calls or awaits: the stream that comes of it is watched."""

    def __init__(self, request: Any, on_item: Callable[[Any], None], on_end: Callable[[BaseException | None], None]) -> None:
        self._request, self._on_item, self._on_end = request, on_item, on_end

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
            self._on_end(error)

    def _came(self, stream: Any) -> Any:
        if not watch(stream, self._on_item, self._on_end):
            self._on_end(None)
        return stream


def _before_close(holder: Any, call: Callable[[], None]) -> bool:
    """Have *call* called before an object is closed; False if that cannot be."""
    found = False
    for name in ("close", "aclose"):
        if callable(close := getattr(holder, name, None)):
            with suppress(AttributeError, TypeError):
                setattr(holder, name, _closing(close, call))
                found = True
    return found


def _closing(close: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(close)
    def closing(*args: Any, **kwargs: Any) -> Any:
        call()
        return close(*args, **kwargs)

    return closing
