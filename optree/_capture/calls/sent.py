"""A request to a model while a client sends it, and the streams that stand in the place of its answer's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

from optree._capture.calls.exchange import Exchange
from optree._tracing import context


class SentRequest:
    """A request to a model, while it is sent: a `Watch`. Its op's span is OpenTelemetry's current one for as long."""

    __slots__ = ("exchange", "given")

    def __init__(self, exchange: Exchange, given: Callable[[], Any] | None) -> None:
        self.exchange = exchange
        self.given = given
        """Called in place of sending it, if it is there."""

    def begin(self) -> None:
        """Note that it is about to be sent: the exchange has begun already."""
        if self.exchange.is_own:
            context.follow(self.exchange.op)

    def returned(self, _value: Any, /) -> None:
        """Note that it was sent."""
        if self.exchange.is_own:
            context.unfollow(self.exchange.op)

    def raised(self, error: BaseException) -> None:
        """End it: no answer came."""
        if self.exchange.is_own:
            context.unfollow(self.exchange.op)
        self.exchange.raised(error)


class Noted:
    """A response's stream, with an exchange that notes what passes. That it is forgotten ends that too."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __getattr__(self, name: str) -> Any:  # as httpx2 asks its own stream how long it took
        return getattr(self.__dict__.get("_stream"), name)

    def __iter__(self) -> Iterator[bytes]:
        with self._exchange as exchange:
            for piece in self._stream:
                exchange.note(piece)
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = self._stream.__aiter__()
        try:
            with self._exchange as exchange:
                async for piece in pieces:
                    exchange.note(piece)
                    yield piece
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

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


class GivenStream:
    """A recorded body in the place of a response's stream: it comes once, and breaks off by an *error* behind that, if there is one."""

    def __init__(self, body: bytes, error: BaseException | None) -> None:
        self._body, self._error = body, error

    def __iter__(self) -> Iterator[bytes]:
        body, self._body = self._body, b""
        if body:
            yield body
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece
