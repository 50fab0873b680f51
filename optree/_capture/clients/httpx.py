"""Requests that httpx and httpx2 send, recorded: all SDKs on them come by there; and calls of SDKs, each of which may send several."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from types import ModuleType
from typing import Any, Final
from weakref import ref

from optree._capture.calls.background import Retrieval
from optree._capture.calls.begin import GivenStream, Noted, SentRequest, begin
from optree._capture.calls.exchange import Exchange
from optree._capture.calls.observed import ClientCall
from optree._capture.calls.requests import is_beside
from optree._capture.hooks import Hook, IsOn, await_within, run_within
from optree._capture.replay import ACTIVE
from optree._capture.replay.answering import NO_ANSWER, StoredReply
from optree._tracing.faults import guarded
from optree.errors import SetupError

_SDK_CLIENTS: Final = ("SyncAPIClient", "AsyncAPIClient")
"""What Stainless calls the classes of clients that it generates."""
_MARK: Final = "_optree_recorded"
"""A member of a class that `_recorded` has made: the one that it stands in the place of."""
_sending: dict[int, ref[_Sending]] = {}
"""By id, requests that are being sent, and by that of their bodies: a hook that another library's is put around, and one around that, see
each once, and so do those of two clients of which one sends through the other."""


def http_client(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook httpx or httpx2 where requests are sent: all its ways, and all SDKs on it, come by there. Nothing is done if not *is_on*."""
    return [(kind, "send", _send_of(kind, module, is_on)) for kind in (module.Client, module.AsyncClient)]


def sdk_client(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook a client as Stainless generates it (OpenAI, Anthropic, Groq and others): all that one of its calls sends is one op's."""
    return [(kind, "request", _request_of(kind, is_on)) for kind in (module.SyncAPIClient, module.AsyncAPIClient)]


def _send_of(kind: Any, module: ModuleType, is_on: IsOn) -> Callable[..., Any]:
    """Return what stands in the place of `send` of a client's class."""
    is_awaited = issubclass(kind, module.AsyncClient)
    streams = module.AsyncByteStream if is_awaited else module.SyncByteStream
    noted = type("Noted", (Noted, streams), {})  # httpx asks for its class
    return (await_within if is_awaited else run_within)(kind.send, functools.partial(_send, module, noted, is_on))


def _request_of(kind: Any, is_on: IsOn) -> Callable[..., Any]:
    """Return what stands in the place of `request` of an SDK's client's class."""
    is_awaited = any(one.__name__ == _SDK_CLIENTS[1] for one in kind.__mro__)
    return (await_within if is_awaited else run_within)(kind.request, lambda *_args, **_kwargs: ClientCall() if is_on() else None)


def instrument_client(client: Any) -> None:
    """Record what one client sends, of httpx, httpx2 or an SDK that is built on them. Raises `SetupError` for others."""
    sending, module = _sending_client(client)
    kind = client.__class__
    if any(one.__name__ in _SDK_CLIENTS for one in kind.__mro__) and not hasattr(kind, _MARK):
        client.__class__ = _recorded(kind, None)
    kind = sending.__class__
    if not hasattr(kind, _MARK):
        sending.__class__ = _recorded(kind, module)


def uninstrument_client(client: Any) -> None:
    """Let nothing more be recorded of what one client sends."""
    for one in (client, _sending_client(client)[0]):
        if (kind := getattr(one, _MARK, None)) is not None:
            one.__class__ = kind


@functools.cache
def _recorded(kind: Any, module: ModuleType | None) -> type[Any]:
    """Return a subclass of a client's class, of the same name, whose calls of models are recorded; without *module* an SDK's."""
    hooked = {"request": _request_of(kind, _always)} if module is None else {"send": _send_of(kind, module, _always)}
    return type(kind.__name__, (kind,), {**hooked, "__module__": kind.__module__, "__qualname__": kind.__qualname__, _MARK: kind})


def _always() -> bool:
    return True


def _sending_client(client: Any) -> tuple[Any, ModuleType]:
    """Return the client of httpx or httpx2 that one sends by, and that package."""
    for one in (client, getattr(client, "_client", None)):
        for module in filter(None, map(sys.modules.get, ("httpx", "httpx2"))):
            if isinstance(one, (module.Client, module.AsyncClient)):
                return one, module
    kind = client.__class__
    raise SetupError(f"a {kind.__module__}.{kind.__qualname__} is no client of httpx or httpx2, nor an SDK's that sends by one")


def _send(
    module: ModuleType, noted: type[Any], is_on: IsOn, _client: Any = None, request: Any = None, *_args: Any, **kwargs: Any
) -> _Sending | _Retrieving | None:
    content = getattr(request, "_content", None)  # `content` raises where the body is a stream
    sending = _sending.get(id(request))
    if type(content) is not bytes or (sending is not None and sending() is not None) or not is_on():
        return None
    url = request.url
    exchange = begin(request.method, url.host, path := url.path, content)
    if exchange is None:
        if is_beside(path):
            ACTIVE.sends(path)
        return _Retrieving.of(request.method, path)
    answer = ACTIVE.answer(exchange.op, path, url.query.decode("latin-1"), exchange.sent)
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
    error = None
    if answer.breaks:
        error = _error_of(module, request, answer.breaks, module.ReadTimeout if answer.timed_out else module.ReadError)
    if is_stream:
        given: Any = type("GivenStream", (GivenStream, module.SyncByteStream, module.AsyncByteStream), {})(answer.body, error)
        response = module.Response(answer.status, headers=answer.headers, stream=given, request=request)
    elif error is not None:
        raise error
    else:
        response = module.Response(answer.status, headers=answer.headers, content=answer.body, request=request)
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


class _Sending(SentRequest):
    """One that is known as long as this lives at the longest, be it left in order or not."""

    __slots__ = ("__weakref__", "_noted", "_sent")

    def __init__(self, sent: tuple[int, int], exchange: Exchange, noted: type[Any], given: Callable[[], Any] | None) -> None:
        super().__init__(exchange, given)
        self._sent, self._noted = sent, noted

    def begin(self) -> None:
        """Note that the request, and its body, are being sent."""
        super().begin()
        request, body = self._sent
        _sending[request] = _sending[body] = ref(self)

    def raised(self, error: BaseException) -> None:
        """End the exchange, and note that nothing is being sent."""
        self._forget()
        super().raised(error)

    def _forget(self) -> None:
        request, body = self._sent
        _sending.pop(request, None)
        _sending.pop(body, None)

    @guarded
    def returned(self, response: Any) -> None:
        """Record the answer: its body, or each piece of it as the program reads it."""
        self._forget()
        super().returned(response)
        content = getattr(response, "_content", None)
        self.exchange.responded(response.status_code, response.headers.raw, content)
        if content is None:
            response.stream = self._noted(response.stream, self.exchange)


class _Retrieving(Retrieval):
    """One that httpx sends."""

    @guarded
    def returned(self, response: Any) -> None:
        """Take what came."""
        if response.status_code == HTTPStatus.OK:
            self.answered(getattr(response, "_content", None))
