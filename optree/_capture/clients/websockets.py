"""Websockets to a model, recorded: those of the package `websockets`, of asyncio and of threads, and those of aiohttp's client.

What passes is told by its content: JSON with the types of events of OpenAI's realtime and responses interfaces. All else is left alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from socket import create_connection
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from optree._capture.calls.begin import SentRequest
from optree._capture.calls.bodies import MOST_BYTES, loads
from optree._capture.calls.details import phrase_of
from optree._capture.calls.exchange import Exchange
from optree._capture.clients.realtime import ModelResponse, ModelSocket
from optree._capture.clients.stand_in import hand_over, listen
from optree._capture.hooks import Hook, await_within, run_within
from optree._capture.replay import ACTIVE, DIFFERENCE
from optree._capture.replay.answering import NO_ANSWER, WEBSOCKET, StoredReply, error_events, socket_events
from optree._interrupts import pass_on
from optree._tracing.failures import status_of
from optree._tracing.faults import guarded
from optree._values import is_object

_TYPE: Final = r'"type"\s*:\s*"(?:session|conversation|response|input_audio_buffer|error)\b'
_TYPE_IN_TEXT: Final = re.compile(_TYPE)
_TYPE_IN_BYTES: Final = re.compile(_TYPE.encode())
_BLANKS: Final = 64
_REFUSED: Final = 400
_FAILURES: Final = frozenset({"error", "response.error", "response.failed", "response.done"})
"""Types of events that are the last of a response that failed."""
_ENDS: Final = ("/realtime", "/responses")
"""Ends of the paths of models behind websockets."""
_HERE: Final = "127.0.0.1"
_OF_PLACE: Final = frozenset({
    "host", "port", "sock", "unix", "path", "ssl", "ssl_context", "server_hostname", "proxy", "proxy_ssl", "proxy_server_hostname",
    "proxy_auth", "proxy_headers", "verify_ssl", "fingerprint",
})  # fmt: skip
"""Options of a connection that say where it leads, and how that is known."""
_Place = Callable[[Any], tuple[str, str] | None]
"""Returns host and path of a connection; None of one that is not a client's."""
_sockets: WeakKeyDictionary[Any, ModelSocket] = WeakKeyDictionary()
"""By connection, those to a model."""


def asyncio_connection(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook connections of websockets in asyncio. Nothing is done if not *is_on*."""
    return _connection(module.Connection, is_on, await_within)


def sync_connection(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook connections of websockets in threads."""
    return _connection(module.Connection, is_on, run_within)


def aiohttp_client(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook websockets of aiohttp's client."""
    owner = module.ClientWebSocketResponse
    sends = functools.partial(_sending, is_on, _place_in_aiohttp)
    return [
        (owner, "send_str", await_within(owner.send_str, functools.partial(sends, owner.send_str))),
        (owner, "send_bytes", await_within(owner.send_bytes, functools.partial(sends, owner.send_bytes))),
        (owner, "receive", await_within(owner.receive, functools.partial(_aiohttp_receiving, is_on))),
        (owner, "close", await_within(owner.close, functools.partial(_closing, is_on))),
    ]


def _connection(owner: Any, is_on: Callable[[], bool], within: Callable[..., Callable[..., Any]]) -> list[Hook]:
    return [
        (owner, "send", within(owner.send, functools.partial(_sending, is_on, _place, owner.send))),
        (owner, "recv", within(owner.recv, functools.partial(_receiving, is_on))),
        (owner, "close", within(owner.close, functools.partial(_closing, is_on))),
    ]


def asyncio_connect(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook how websockets connects in asyncio: in a replay, to a stand-in for a model; and where it is refused."""
    is_17 = hasattr(module.connect, "open_tcp_connection")  # or newer
    name, options = ("open_tcp_connection", "create_connection_kwargs") if is_17 else ("create_connection", "connection_kwargs")
    function, handshake = getattr(module.connect, name), module.ClientConnection.handshake

    def watching(connect: Any) -> _Connecting | None:
        return _connecting(connect.uri, functools.partial(given, connect), _refuse) if is_on() else None

    async def given(connect: Any, port: int) -> Any:
        connect.uri, connect.proxy = _plain(connect.uri), None
        if is_17:
            connect.ws_uri = module.parse_uri(connect.uri)
        left = {key: value for key, value in getattr(connect, options).items() if key not in _OF_PLACE}
        setattr(connect, options, left | {"host": _HERE, "port": port})
        return await function(connect)

    def shaking(connection: Any, *_args: Any, **_kwargs: Any) -> _Connecting | None:
        return _opening(connection.protocol.uri) if is_on() else None

    return [
        (module.connect, name, await_within(function, watching)),
        (module.ClientConnection, "handshake", await_within(handshake, shaking)),
    ]


def sync_connect(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook the same where threads connect."""
    function = module.connect

    def watching(uri: str, **kwargs: Any) -> _Connecting | None:
        return _connecting(uri, functools.partial(given, uri, kwargs), _refuse) if is_on() else None

    def given(uri: str, kwargs: dict[str, Any], port: int) -> Any:
        left = {name: value for name, value in kwargs.items() if name not in _OF_PLACE}
        return function(_plain(uri), **left, sock=create_connection((_HERE, port)), proxy=None)

    return [(module, "connect", run_within(function, watching))]


def aiohttp_connect(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook the same of aiohttp's session."""
    function = module.ClientSession._ws_connect  # noqa: SLF001 - all its ways come by there

    def watching(session: Any, url: Any, **kwargs: Any) -> _Connecting | None:
        if not is_on():
            return None
        whole = session._build_url(url)  # noqa: SLF001 - as above
        return _connecting(whole, functools.partial(given, session, kwargs), functools.partial(refuse, whole))

    async def given(session: Any, kwargs: dict[str, Any], port: int) -> Any:
        left = {name: value for name, value in kwargs.items() if name not in _OF_PLACE}
        return await function(session, f"http://{_HERE}:{port}/", **left)

    def refuse(url: Any, answer: StoredReply) -> None:
        request = module.RequestInfo(url, "GET", answer.headers, url)
        raise module.WSServerHandshakeError(request, (), message="Invalid response status", status=answer.status, headers=answer.headers)

    return [(module.ClientSession, "_ws_connect", await_within(function, watching))]


def _refuse(answer: StoredReply) -> None:
    """Refuse a handshake as the package websockets says it."""
    from websockets.datastructures import Headers
    from websockets.exceptions import InvalidStatus
    from websockets.http11 import Response

    raise InvalidStatus(Response(answer.status, phrase_of(answer.status), Headers(answer.headers), answer.body))


def _plain(uri: str) -> str:
    """Return an address without TLS, which a stand-in has not."""
    return f"ws://{uri.partition('://')[2]}"


def _model_at(host: str | None, path: str, query: str) -> ModelSocket | None:
    return ModelSocket(host or "", f"{path}?{query}") if path.rstrip("/").endswith(_ENDS) else None


@guarded
def _opening(uri: Any) -> _Connecting | None:
    """Return what a handshake runs within, at an address of the package websockets'; None of one that is no model's."""
    socket = _model_at(uri.host, uri.path, uri.query)
    return None if socket is None else _Connecting(socket)


@guarded
def _connecting(uri: Any, connect: Callable[[int], Any], refuse: Callable[[StoredReply], None]) -> _Connecting | None:
    """Return what connecting to an address runs within; None of one that is no model's.

    In a replay that is to *connect* to a stand-in's port, or to *refuse* it as it was refused.
    """
    parts = urlsplit(str(uri))
    socket = _model_at(parts.hostname, parts.path, parts.query)
    if socket is None:
        return None
    if ACTIVE.refuses_socket() and (exchange := socket.refused()) is not None:
        answer = ACTIVE.answer(exchange.op, WEBSOCKET)
        return _Connecting(socket, None if answer is None else functools.partial(refuse, answer), exchange)
    session = ACTIVE.socket_session(realtime=socket.is_realtime)
    if session is None:
        return _Connecting(socket)
    socket.stands_in(session if socket.is_realtime else None)
    return _Connecting(socket, lambda: connect(listen(socket.session)))


class _Connecting:
    """A connection to a model, while it is opened; *given* stands in place of it."""

    def __init__(self, socket: ModelSocket, given: Callable[[], Any] | None = None, exchange: Exchange | None = None) -> None:
        self._socket, self.given, self._exchange = socket, given, exchange

    def begin(self) -> None:
        """Nothing is to be known of it yet."""

    def returned(self, connection: Any) -> None:
        """Know the connection to a stand-in; another is known by what passes."""
        if self._socket.is_stand_in:
            _sockets[connection] = self._socket
        if self._exchange is not None:
            self._exchange.ended(None)

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take that there is none: if the model refuses it, that is a call that failed."""
        status = status_of(error)
        exchange = self._exchange or (self._socket.refused() if status >= _REFUSED else None)
        if exchange is None:
            return
        response: Any = getattr(error, "response", error)  # aiohttp's exception has a head, and no body
        headers: Any = getattr(response, "headers", None) or {}
        items = getattr(headers, "raw_items", None) or headers.items  # of those of websockets `items` raises if a name stands twice
        pairs: Any = items()
        told = [(name.encode(), value.encode()) for name, value in pairs]
        body = getattr(response, "body", None)
        exchange.responded(status, told, None if body is None else bytes(body))
        exchange.ended(GeneratorExit())  # if its body is not known


def _place(connection: Any) -> tuple[str, str] | None:
    if connection.protocol.side.name != "CLIENT":
        return None
    request = connection.request
    return urlsplit(f"//{request.headers['Host']}").hostname or "", request.path


def _place_in_aiohttp(connection: Any) -> tuple[str, str] | None:
    url = connection._response.url  # noqa: SLF001 - there is no other way
    return url.host or "", url.raw_path_qs


def _event(data: Any) -> tuple[dict[str, Any], bytes] | None:
    """Return the event that a message is, and its JSON; None of one that is no such event."""
    if isinstance(data, str):
        if not data[:_BLANKS].lstrip().startswith("{") or _TYPE_IN_TEXT.search(data) is None:
            return None
    elif not isinstance(data, bytes) or not data[:_BLANKS].lstrip().startswith(b"{") or _TYPE_IN_BYTES.search(data) is None:
        return None
    if len(data) > MOST_BYTES:
        return None
    try:
        data = data.encode() if isinstance(data, str) else data
        event = loads(data)
    except (ValueError, RecursionError) as error:
        pass_on(error)
        return None
    return (event, data) if is_object(event) and isinstance(event.get("type"), str) else None


def _socket(connection: Any, kind: str, place: _Place, *, sent: bool) -> ModelSocket | None:
    """Return what is known of a connection; None of one that is not known to be a model's."""
    socket = _sockets.get(connection)
    if socket is None and ModelSocket.is_told(kind, sent=sent) and (found := place(connection)) is not None:
        socket = _sockets.setdefault(connection, ModelSocket(*found))
    return socket


def _sending(
    is_on: Callable[[], bool],
    place: _Place,
    function: Callable[..., Any],
    connection: Any = None,
    message: Any = None,
    *_args: Any,
    **more: Any,
) -> Any:
    return _sent(connection, more.get("data", message), place, function) if is_on() else None


@guarded
def _sent(connection: Any, message: Any, place: _Place, function: Callable[..., Any]) -> _SentEvent | _RefusedEvent | None:
    found = _event(message)
    if found is None:
        return None
    event, _ = found
    socket = _socket(connection, event["type"], place, sent=True)
    response = None if socket is None else socket.sends(event)
    if response is None or socket is None:
        error = ACTIVE.event_error(event) if socket is not None and socket.is_stand_in else None
        return None if error is None else _RefusedEvent(error, event, functools.partial(function, connection))
    answer = ACTIVE.answer(response.exchange.op, WEBSOCKET) if socket.is_stand_in else None
    if answer is None:
        return _SentEvent(socket, response, ACTIVE.refusal(response.exchange.op, "websockets"))
    closes = answer.status == NO_ANSWER or DIFFERENCE in response.exchange.op.bare.attributes  # else a program would wait for more
    handed = hand_over(_events(answer, event), closes=closes)
    return _SentEvent(socket, response, functools.partial(function, connection, handed.decode() if isinstance(message, str) else handed))


def _events(answer: StoredReply, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events by which a model gives a recorded answer to an event, or the error that it is; none where the connection broke."""
    if answer.status == NO_ANSWER:
        return []
    told = loads(answer.body)
    lane = {"stream_id": request["stream_id"]} if "stream_id" in request else {}
    if answer.status < _REFUSED:
        is_failure = is_object(told) and told.get("type") in _FAILURES
        return [event | lane for event in error_events(told)] if is_failure else socket_events(told, request)
    error = {name: value for name, value in told["error"].items() if name != "event_id"} if is_object(told.get("error")) else told
    if type(error.get("code")) is int:  # which no event has
        error |= {"code": str(error["code"])}
    if "event_id" in request:
        error |= {"event_id": request["event_id"]}
    return [{"type": "error", "status": answer.status, "error": error} | lane]


class _SentEvent(SentRequest):
    """An event that asks for a response, while it is sent."""

    __slots__ = ("_response", "_socket")

    def __init__(self, socket: ModelSocket, response: ModelResponse, given: Callable[[], Any] | None) -> None:
        super().__init__(response.exchange, given)
        self._socket, self._response = socket, response

    def raised(self, error: BaseException) -> None:
        """Forget the response that it asks for."""
        self._socket.not_sent(self._response)
        super().raised(error)


class _RefusedEvent:
    """An event that asks for no response, in place of which a stand-in is handed the error that it got."""

    def __init__(self, error: dict[str, Any], event: dict[str, Any], send: Callable[[str], Any]) -> None:
        told = error.get("error")
        named = {"error": told | {"event_id": event.get("event_id")}} if is_object(told) else {}
        self.given = functools.partial(send, hand_over([error | named], closes=False).decode())

    def begin(self) -> None:
        """Nothing is to be known of it."""

    def returned(self, value: object) -> None:
        """Take that it was handed over."""

    def raised(self, error: BaseException) -> None:
        """Take that it was not."""


def _receiving(is_on: Callable[[], bool], connection: Any = None, *_args: Any, **_kwargs: Any) -> _Received | None:
    return _Received(connection) if is_on() else None


class _Received:
    """A message that the program waits for."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Nothing is known of it yet."""

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take that the connection has ended, if that is why none comes."""
        is_closed = any(one.__name__ == "ConnectionClosed" for one in type(error).__mro__)
        if is_closed and (socket := _sockets.get(self._connection)) is not None:
            socket.ended(_closed(type(error).__name__, str(error)))

    @guarded
    def returned(self, message: Any) -> None:
        """Take it."""
        _came(self._connection, message, _place)


def _came(connection: Any, message: Any, place: _Place) -> None:
    if (found := _event(message)) is not None:
        event, data = found
        socket = _socket(connection, event["type"], place, sent=False)
        if socket is not None:
            socket.came(event, data)


def _closed(name: str, said: str) -> ConnectionError:
    """Return the exception by which a connection ended: by that name, as one of the network."""
    named: type[ConnectionError] = type(name, (ConnectionError,), {})
    return named(said)


def _aiohttp_receiving(is_on: Callable[[], bool], connection: Any = None, *_args: Any, **_kwargs: Any) -> _AiohttpReceived | None:
    return _AiohttpReceived(connection) if is_on() else None


class _AiohttpReceived:
    """A message of aiohttp's that the program waits for."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Take that the program waits."""
        self._receives(is_on=True)

    def raised(self, error: BaseException) -> None:  # noqa: ARG002 - what ends a connection comes as a message
        """Take that it waits no more."""
        self._receives(is_on=False)

    @guarded
    def _receives(self, *, is_on: bool) -> None:
        if (socket := _sockets.get(self._connection)) is not None:
            socket.is_receiving = is_on

    @guarded
    def returned(self, message: Any) -> None:
        """Take it, or what it says of the connection's end."""
        self._receives(is_on=False)
        kind = message.type.name
        if kind in ("TEXT", "BINARY"):
            _came(self._connection, message.data, _place_in_aiohttp)
        elif kind in ("CLOSE", "CLOSED", "CLOSING", "ERROR") and (socket := _sockets.get(self._connection)) is not None:
            why = f"the websocket was closed: {self._connection.close_code}"
            socket.ended(GeneratorExit() if kind == "CLOSING" else _closed("ConnectionError", why))


@guarded
def _closing(is_on: Callable[[], bool], connection: Any = None, *_args: Any, **_kwargs: Any) -> None:
    """Take that the program closes a connection. aiohttp closes one itself too, while the program waits for a message, which says so."""
    socket = _sockets.get(connection) if is_on() else None
    if socket is not None and not socket.is_receiving:
        socket.ended(GeneratorExit())
