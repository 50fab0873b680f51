"""The functions of HTTP clients and of SDKs that calls of models pass, recorded: what stands in their place runs them within a watch."""

from __future__ import annotations

import builtins
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, closing
from datetime import timedelta
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, isgeneratorfunction
from types import ModuleType
from typing import Any, Protocol
from weakref import ref

from optree._capture.answering import NO_ANSWER, StoredReply
from optree._capture.exchange import Exchange, begin
from optree._capture.observed import ClientCall
from optree._capture.replay import ACTIVE
from optree._tracing.faults import guarded
from optree._tracing.runtime import RUNTIME

IsOn = Callable[[], bool]
"""Tells whether a hook does anything."""
Hook = tuple[Any, str, Any]
"""What stands in the place of a function: owner, name and replacement."""
_sending: dict[int, ref[_Sending]] = {}
"""By id, requests that are being sent, and by that of their bodies: a hook that another library's is put around, and one around that, see
each once, and so do those of two clients of which one sends through the other."""


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


def http_client(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook httpx or httpx2 where requests are sent: all its ways, and all SDKs on it, come by there. Nothing is done if not *is_on*."""
    sync = type("Noted", (Noted, module.SyncByteStream), {})  # httpx asks for its class
    awaited = type("Noted", (Noted, module.AsyncByteStream), {})
    return [
        (module.Client, "send", run_within(module.Client.send, functools.partial(_send, module, sync, is_on))),
        (module.AsyncClient, "send", await_within(module.AsyncClient.send, functools.partial(_send, module, awaited, is_on))),
    ]


def sdk_client(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook a client as Stainless generates it (OpenAI, Anthropic, Groq and others): all that one of its calls sends is one op's."""

    def watching(*_args: Any, **_kwargs: Any) -> ClientCall | None:
        return ClientCall() if is_on() else None

    return [
        (module.SyncAPIClient, "request", run_within(module.SyncAPIClient.request, watching)),
        (module.AsyncAPIClient, "request", await_within(module.AsyncAPIClient.request, watching)),
    ]


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


def read_within(owner: Any, names: tuple[str, ...], recorded: Callable[..., Any], is_on: IsOn, *, keeps_kind: bool = True) -> list[Hook]:
    """Hook functions that return a generator: *recorded* returns, for that and the arguments, what is read in its place.

    Without *keeps_kind* the program reads just that, and the function is a plain one: ADK's generators raise errors in the event loop if
    one more is around them and the program ends before it has read all.
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

    @functools.wraps(run)
    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items: AsyncGenerator[Any, Any] = run(*args, **kwargs)
        step: Callable[[], Any] = items.__anext__
        while True:
            try:
                item = await step()
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                await items.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - thrown in by the program: it is for the inner generator to handle
                step = functools.partial(items.athrow, error)
            else:
                step = functools.partial(items.asend, sent)

    kinds = ((isasyncgenfunction, async_generator), (isgeneratorfunction, generator), (iscoroutinefunction, coroutine))
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


async def watched_async(pieces: AsyncGenerator[Any, Any], watch: StreamWatch) -> AsyncGenerator[Any]:
    """Yield what an async generator yields, within a watch, and close it."""
    try:
        watch.begin()
        async with aclosing(pieces):
            async for piece in pieces:
                watch.take(piece)
                yield piece
                watch.goes_on()
    except BaseException as error:
        watch.over(error)
        raise
    watch.over(None)


def _send(
    module: ModuleType, noted: type[Any], is_on: IsOn, _client: Any = None, request: Any = None, *_args: Any, **kwargs: Any
) -> _Sending | None:
    content = getattr(request, "_content", None)  # `content` raises where the body is a stream
    sending = _sending.get(id(request))
    if type(content) is not bytes or (sending is not None and sending() is not None) or not is_on():
        return None
    exchange = begin(request.method, request.url.host, request.url.path, content)
    if exchange is None:
        return None
    answer = ACTIVE.answer(exchange.op, request.url.path, request.url.query.decode("latin-1"), exchange.sent)
    given = None if answer is None else functools.partial(_given, module, request, answer, is_stream=bool(kwargs.get("stream")))
    return _Sending((id(request), id(content)), exchange, noted, given)


def is_being_sent(body: bytes) -> bool:
    """Tell whether that very body is of a request that another client sends, as httpx does through aiohttp."""
    sending = _sending.get(id(body))
    return sending is not None and sending() is not None


def _given(module: ModuleType, request: Any, answer: StoredReply, *, is_stream: bool) -> Any:
    """Return a recorded answer as the client's response, or raise that none came; *is_stream*: the program reads it itself."""
    if answer.status == NO_ANSWER:
        raise _error_of(module, request, answer.body.decode(), module.ReadTimeout if answer.timed_out else module.ConnectError)
    if answer.breaks is None or not (answer.breaks or is_stream):
        response = module.Response(answer.status, headers=answer.headers, content=answer.body, request=request)
    else:
        other = module.ReadTimeout if answer.timed_out else module.ReadError
        error = _error_of(module, request, answer.breaks, other) if answer.breaks else None
        if error is not None and not is_stream:
            raise error
        broken: Any = type("Broken", (Broken, module.SyncByteStream, module.AsyncByteStream), {})(answer.body, error)
        response = module.Response(answer.status, headers=answer.headers, stream=broken, request=request)
    response.elapsed = timedelta()
    return response


def _error_of(module: ModuleType, request: Any, told: str, other: type[BaseException]) -> BaseException:
    """Return the client's exception that a recorded error tells of; the *other* one, where that was none of this client's."""
    name, _, said = told.partition(": ")
    kind: Any = getattr(module, name, None)
    if isinstance(kind, type) and issubclass(kind, module.TransportError):
        return kind(said, request=request)  # type: ignore[no-any-return]
    kind = getattr(builtins, name, None)  # of a transport of the program's own
    error: BaseException = kind(said) if isinstance(kind, type) and issubclass(kind, OSError) else other(told, request=request)  # type: ignore[call-arg]
    return error


class Broken:
    """A response's stream that breaks off by an error, or ends before the answer does."""

    def __init__(self, body: bytes, error: BaseException | None) -> None:
        self._body, self._error = body, error

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body
        if self._error is not None:
            raise self._error


class SentRequest:
    """A request to a model, while it is sent: a `Watch`, but for what is returned."""

    __slots__ = ("exchange", "given")

    def __init__(self, exchange: Exchange, given: Callable[[], Any] | None) -> None:
        self.exchange = exchange
        self.given = given
        """Called in place of sending it, if it is there."""

    def begin(self) -> None:
        """Do nothing: the exchange has begun already."""

    def raised(self, error: BaseException) -> None:
        """End it: no answer came."""
        self.exchange.raised(error)


class _Sending(SentRequest):
    """One that is known as long as this lives at the longest, be it left in order or not."""

    __slots__ = ("__weakref__", "_noted", "_sent")

    def __init__(self, sent: tuple[int, int], exchange: Exchange, noted: type[Any], given: Callable[[], Any] | None) -> None:
        super().__init__(exchange, given)
        self._sent, self._noted = sent, noted

    def begin(self) -> None:
        """Note that the request, and its body, are being sent."""
        known: ref[_Sending] = ref(self)
        for one in self._sent:
            _sending[one] = known

    def raised(self, error: BaseException) -> None:
        """End the exchange, and note that nothing is being sent."""
        self._forget()
        super().raised(error)

    def _forget(self) -> None:
        for one in self._sent:
            _sending.pop(one, None)

    @guarded
    def returned(self, response: Any) -> None:
        """Record the answer: its body, or each piece of it as the program reads it."""
        self._forget()
        content = getattr(response, "_content", None)
        self.exchange.responded(response.status_code, response.headers.raw, content)
        if content is None:
            response.stream = self._noted(response.stream, self.exchange)


class Noted:
    """A response's stream, with an exchange that notes what passes. That it is forgotten ends that too."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __iter__(self) -> Iterator[bytes]:
        with self._exchange as exchange:
            for piece in self._stream:
                exchange.note(piece)
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._exchange as exchange:
            async for piece in self._stream:
                exchange.note(piece)
                yield piece

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._exchange.ended(GeneratorExit())

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._exchange.ended(GeneratorExit())
