"""Requests that DSPy sends by its own transports, recorded: these write to sockets, and no HTTP client sees them."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from optree._capture.calls.begin import begin
from optree._capture.calls.details import phrase_of
from optree._capture.calls.sent import GivenStream, Noted, SentRequest
from optree._capture.hooks import Hook, IsOn, await_within, run_within
from optree._capture.replay import ACTIVE
from optree._capture.replay.answering import NO_ANSWER, StoredReply
from optree._tracing.faults import guarded
from optree._values import text


def plain(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the transport of plain calls where requests are sent. Nothing is done if not *is_on*."""
    kind = module.StdlibTransport
    return [(kind, "stream", run_within(kind.stream, functools.partial(_sending, module, is_on)))]


def awaited(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook the transport of awaited calls."""
    kind = module.StdlibAsyncTransport
    function = kind._do_stream  # noqa: SLF001 - both ways to send call it
    return [(kind, "_do_stream", await_within(function, functools.partial(_sending, module, is_on)))]


def _sending(module: ModuleType, is_on: IsOn, _transport: Any, request: Any) -> _TransportSending | None:
    if not is_on():
        return None
    to = urlsplit(text(request.url))
    exchange = begin(request.method, to.hostname or "", to.path, request.body)
    if exchange is None:
        return None
    answer = ACTIVE.answer(exchange.op, to.path, to.query, exchange.sent)
    return _TransportSending(exchange, None if answer is None else functools.partial(_given, module, answer))


class _TransportSending(SentRequest):
    __slots__ = ()

    @guarded
    def returned(self, response: Any) -> None:
        """Record the answer, and each piece of its body as DSPy reads it."""
        super().returned(response)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        self.exchange.responded(response.status, headers, None)
        response._chunks = Noted(response._chunks, self.exchange)  # noqa: SLF001 - all that is read is read from there


def _given(module: ModuleType, answer: StoredReply) -> Any:
    """Return a recorded answer as a transport's response, or raise that none came."""
    if answer.status == NO_ANSWER:
        raise _error_of(module, answer.body.decode(), module.ReadTimeout if answer.timed_out else module.ConnectError)
    error = _error_of(module, answer.breaks, module.ReadTimeout if answer.timed_out else module.ReadError) if answer.breaks else None
    head = {"status": answer.status, "reason": phrase_of(answer.status), "headers": list(answer.headers.items()), "http_version": "1.1"}
    chunks = GivenStream(answer.body, error)
    if hasattr(module, "TransportResponse"):
        return module.TransportResponse(**head, chunks=chunks, release=_release)
    return module.AsyncTransportResponse(**head, chunks=chunks, release=_release_awaited)


def _error_of(module: ModuleType, told: str, other: type[Exception]) -> Exception:
    """Return the transport's exception that a recorded error names; the *other* one, where that is none of the transport's."""
    name, _, said = told.partition(": ")
    kind: Any = getattr(module, name, None)
    return kind(said) if isinstance(kind, type) and issubclass(kind, module.TransportError) else other(told)


def _release(_is_read: object) -> None:
    """Do nothing: there is no connection to give back."""


async def _release_awaited(_is_read: object) -> None:
    """Do nothing: there is no connection to give back."""
