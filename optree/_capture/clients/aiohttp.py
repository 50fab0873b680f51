"""Requests that aiohttp's client sends, recorded: Gemini's asynchronous client is on it where it is installed, and others.

An answer's body is a `StreamReader`, which the parser writes to and the program reads from. It has no room for an attribute, so it becomes
one of a subclass without any of its own; what that has to know of it stands beside, by its id.
"""

from __future__ import annotations

import asyncio
import functools
from asyncio import Transport
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from optree._capture.calls.begin import SentRequest, begin
from optree._capture.calls.details import phrase_of
from optree._capture.calls.exchange import Exchange
from optree._capture.clients.httpx import is_being_sent
from optree._capture.clients.websockets import aiohttp_connect
from optree._capture.hooks import Hook, await_within
from optree._capture.replay import ACTIVE
from optree._capture.replay.answering import NO_ANSWER, StoredReply
from optree._tracing.faults import guarded
from optree._values import MAX_ITEMS, encode, is_object, plain

_UNPACKED: Final = frozenset({"gzip", "deflate", "br", "zstd"})
"""Encodings that aiohttp takes off itself."""
_LOOK_SECONDS: Final = 0.005
_MODEL: Final = ("messages", "contents", "input", "prompt")
"""A request to a model has one of these."""


class _Reading:
    """What is known of a body that the program reads."""

    __slots__ = ("error", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.error: BaseException | None = None
        """Why the program waited in vain last."""


_reading: dict[int, _Reading] = {}
"""By id of a reader, until its exchange has ended."""


def client(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook aiohttp's session where requests are sent. Nothing is done if not *is_on*."""
    from aiohttp import client_reqrep, streams

    told = {"__slots__": (), "closed": getattr(client_reqrep, "_CONNECTION_CLOSED_EXCEPTION", None)}
    noted = type("StreamReader", (_NotedReader, streams.StreamReader), told)
    function = module.ClientSession._request  # noqa: SLF001 - all its methods come by there
    give = functools.partial(_given, module, function)
    sends = await_within(function, functools.partial(_sending, noted, give, is_on))
    return [(module.ClientSession, "_request", sends), *aiohttp_connect(module, is_on)]


def _sending(
    noted: type[Any],
    give: Callable[..., Any],
    is_on: Callable[[], bool],
    session: Any = None,
    method: Any = None,
    url: Any = None,
    *_args: Any,
    **kwargs: Any,
) -> _ClientSending | None:
    begun = _begun(session, method, url, kwargs.get("data"), kwargs.get("json")) if is_on() else None
    if begun is None:
        return None
    exchange, to = begun
    unpacks = kwargs.get("auto_decompress")
    unpacks = getattr(session, "auto_decompress", True) if unpacks is None else bool(unpacks)
    answer = ACTIVE.answer(exchange.op, to.path, to.query_string, exchange.sent)
    given = None if answer is None else functools.partial(give, session, answer, method, to, kwargs)
    return _ClientSending(exchange, noted, given, unpacks=unpacks)


async def _given(
    module: ModuleType, function: Callable[..., Any], session: Any, answer: StoredReply, method: Any, url: Any, kwargs: dict[str, Any]
) -> Any:
    """Return a recorded answer as a session does that is connected to what gives it, or raise that none came."""
    if answer.status == NO_ANSWER:
        raise (module.ServerTimeoutError if answer.timed_out else module.ClientConnectionError)(answer.body.decode())
    told = {
        "response_class": session._response_class,  # noqa: SLF001 - it has no other name
        "json_serialize": session.json_serialize,
        "raise_for_status": session.raise_for_status,
        "trust_env": False,
    }

    class _Connector(module.BaseConnector):  # type: ignore[misc,name-defined]
        async def _create_connection(self, *_args: Any) -> Any:
            protocol = self._factory()
            protocol.connection_made(_Nowhere(protocol))
            size = len(answer.body) + bool(answer.breaks)
            head = "".join(f"{name}: {value}\r\n" for name, value in {**answer.headers, "content-length": size}.items())
            protocol.data_received(f"HTTP/1.1 {answer.status} {phrase_of(answer.status)}\r\n{head}\r\n".encode() + answer.body)
            return protocol

    recorded = module.ClientSession(connector=_Connector(), **told)
    if not answer.breaks:
        async with recorded:
            return await function(recorded, method, url, **kwargs)
    response = await function(recorded, method, url, **kwargs)
    recorded.detach()  # what has come is still to be read
    _break_off(response.content, _error_of(module, answer))
    return response


def _break_off(content: Any, error: Exception) -> None:
    """Let a body break off once the program has read what came of it: aiohttp drops what is not read by then."""
    if getattr(content, "_buffer", None):
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, _break_off, content, error)
    else:
        content.set_exception(error)


def _error_of(module: ModuleType, answer: StoredReply) -> Exception:
    """Return the exception of aiohttp's that a recorded error tells of."""
    name, _, said = (answer.breaks or "").partition(": ")
    kind: Any = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, module.ClientError)):
        kind, said = module.SocketTimeoutError if answer.timed_out else module.ClientPayloadError, answer.breaks or ""
    try:
        return kind(said)  # type: ignore[no-any-return]
    except TypeError:  # one that wants more
        error: Exception = module.ClientPayloadError(answer.breaks)
        return error


class _Nowhere(Transport):
    """A connection to nobody."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: object) -> None:
        """Send nothing."""

    def is_closing(self) -> bool:
        """Tell whether it was closed."""
        return self._protocol is None

    def close(self) -> None:
        """Take that nobody uses it any more."""
        if self._protocol is not None:
            self._protocol.connection_lost(None)
            self._protocol = None

    abort = close

    def pause_reading(self) -> None:
        """It has been read."""

    resume_reading = pause_reading


@guarded
def _begun(session: Any, method: Any, url: Any, data: Any, json: Any) -> tuple[Exchange, Any] | None:
    """Return an exchange, and the address that it goes to."""
    if not isinstance(method, str) or method.upper() != "POST":
        return None
    if is_object(json):
        data = encode(plain(json, MAX_ITEMS)) if any(name in json for name in _MODEL) else None
    body = data.encode() if isinstance(data, str) else bytes(data) if isinstance(data, (bytes, bytearray)) else None
    if body is None or is_being_sent(body):
        return None
    to = session._build_url(url)  # noqa: SLF001 - it may be relative
    exchange = begin("POST", to.host or "", to.path, body)
    return None if exchange is None else (exchange, to)


class _ClientSending(SentRequest):
    __slots__ = ("_noted", "_unpacks")

    def __init__(self, exchange: Exchange, noted: type[Any], given: Callable[[], Any] | None, *, unpacks: bool) -> None:
        super().__init__(exchange, given)
        self._noted, self._unpacks = noted, unpacks

    @guarded
    def returned(self, response: Any) -> None:
        """Take the answer, and each piece of its body as the program reads it."""
        super().returned(response)
        headers, exchange, reader, noted = response.raw_headers, self.exchange, response.content, self._noted
        if self._unpacks:
            headers = [(name, value) for name, value in headers if name.lower() != b"content-encoding" or not _is_unpacked(value)]
        has_body = type(reader) is noted.__bases__[1]  # else there is none, or a reader is somebody else's
        exchange.responded(response.status, headers, None if has_body else b"")
        if has_body:
            _reading[id(reader)] = _Reading(exchange)
            reader.__class__ = noted
            if reader.at_eof() or reader.exception() is not None:
                _end(reader, reader.exception())


def _is_unpacked(encoding: bytes) -> bool:
    return encoding.decode("latin-1").strip().lower() in _UNPACKED


class _NotedReader:
    """What stands before a reader's class: each piece that is read is noted."""

    __slots__ = ()
    closed: object = None
    """The exception that a reader has whose answer the program closes."""

    def _read_nowait_chunk(self, n: int) -> bytes:
        reader: Any = super()
        piece: bytes = reader._read_nowait_chunk(n)  # noqa: SLF001 - all that is read comes by there
        reading = _reading.get(id(self))
        if reading is not None:
            reading.exchange.note(piece)
            if reader.at_eof():
                _end(self, None)
        return piece

    async def _wait(self, func_name: str) -> None:
        reader: Any = super()
        try:
            await reader._wait(func_name)  # noqa: SLF001 - as above
        except BaseException as error:
            if (reading := _reading.get(id(self))) is not None:
                reading.error = error  # it may be read again
            raise

    def feed_eof(self) -> None:
        reader: Any = super()
        reader.feed_eof()
        if reader.at_eof():
            _end(self, None)

    def set_exception(self, exc: Any, *args: Any, **kwargs: Any) -> None:
        reader: Any = super()
        reader.set_exception(exc, *args, **kwargs)
        reading = _reading.get(id(self))
        if reading is not None:
            _end(self, (reading.error or GeneratorExit()) if exc is self.closed else exc)

    def __del__(self) -> None:
        if (reading := _reading.get(id(self))) is not None:
            _end(self, reading.error or GeneratorExit())


def _end(reader: object, error: BaseException | None) -> None:
    """Take that no more comes."""
    reading = _reading.pop(id(reader), None)
    if reading is not None:
        reading.exchange.ended(error)
