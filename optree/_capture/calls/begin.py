"""Requests that are about to be sent: which call of a model each is an attempt of; what watches one being sent, and its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from optree._builder.core import Encoded
from optree._capture.calls.exchange import MOST_TOGETHER, Exchange
from optree._capture.calls.observed import TOLD, ClientCall, ObservedCall, client_call
from optree._capture.calls.program import PROGRAM
from optree._capture.calls.requests import Asked, read
from optree._interrupts import pass_on
from optree._tracing import context
from optree._tracing.budgets import CarriedRefusal
from optree._tracing.context import Scope
from optree._tracing.faults import fault
from optree._tracing.results import name_model
from optree._tracing.runtime import RUNTIME
from optree._tracing.scopes import OpScope
from optree._values import raw
from optree.errors import BudgetExceeded


def begin(method: str, host: str, path: str, body: bytes) -> Exchange | None:
    """Take a request that is about to be sent; None if it asks no model."""
    try:
        exchange = begin_asked(read(host, path, body) if method == "POST" and is_wanted() else None)
        if exchange is not None and RUNTIME.config.trace_llm:
            exchange.sends(f"POST {path}, {len(body):,} bytes")
        return exchange  # noqa: TRY300 - what is above raises
    except Exception as error:  # noqa: BLE001 - the request is sent, recorded or not
        fault(error)
    return None


def begin_asked(asked: Asked | None) -> Exchange | None:
    """Take what a request asks that is about to be sent; None if that asks no model, or is not recorded. It may raise."""
    if asked is None:
        return None
    if (told := TOLD.get()) is not None:
        told.asks()
    client = client_call()
    try:
        call = _call(asked, client)
    except BudgetExceeded as refusal:
        raise (refusal if client is None else CarriedRefusal(refusal)) from None
    return None if call is None else Exchange(call, asked.parameters, client)


def begin_unasked(asked: Asked) -> Exchange | None:
    """Take that a model answers what no request has asked for, which no budget can refuse: beyond one it is recorded outside of that."""
    try:
        return begin_asked(asked)
    except BudgetExceeded as refusal:
        pass_on(refusal)
    where = context.here()
    if where is None:
        RUNTIME.problems.report("a model answered by itself, beyond a budget and outside of all sessions: that is not recorded")
        return None
    before = context.CURRENT.set(replace(where, budget=None))
    try:
        return begin_asked(asked)
    finally:
        context.CURRENT.reset(before)


def is_wanted() -> bool:
    """Tell whether a request may be recorded: if optree was switched off, as an attempt of a call that is open since before."""
    if RUNTIME.config.enabled or context.here() is not None:
        return True
    client = client_call()
    return client is not None and client.call is not None


def _call(asked: Asked, client: ClientCall | None) -> ObservedCall | None:
    """Return the call that a request belongs to; None if it begins one while optree is switched off."""
    if client is not None and client.call is not None and client.call.is_open:
        return client.call
    where = context.here()
    op = None if where is None else where.op
    if op is not None and op.bare.kind == "llm" and op.bare.ended_at is None and op.bare.response is None:
        before: ObservedCall | None = op.call
        if before is not None:
            if before.is_open:
                return before
            op = None  # it has its call
    else:
        op = None
    if op is not None:
        call = op.call = ObservedCall(op, None)
        name_model(op, asked.model, asked.provider)
        if op.bare.request is None:
            op.builder.set_request(op, asked.parameters, asked.messages)
    elif not RUNTIME.config.enabled:
        return None
    else:
        call = _begun(asked, where)
        if where is not None and where.op is not None and isinstance(where.op.call, ObservedCall):
            where.op.call.below += (call.op,)
    if client is not None:
        client.call = call
    return call


def _begun(asked: Asked, where: Scope | None) -> ObservedCall:
    """Return a call whose op is begun."""
    scope = OpScope("llm", *_named(asked.provider, asked.model, asked.host))
    begun: Scope | None = None

    def begin_op() -> ObservedCall:
        nonlocal begun
        begun = scope.begin(where) if where is not None else PROGRAM.begin(scope, asked)
        own: Any = begun.op
        own.builder.set_request(own, asked.parameters, asked.messages)
        return ObservedCall(own, scope.finish, asked.model)

    try:
        if where is None or where.budget is not None or not 0 < asked.size <= MOST_TOGETHER:  # it may wait, or take long
            return begin_op()
        return where.session.builder.core.stream.together(begin_op)
    except BaseException:  # an interrupt
        scope.undo(begun, where or PROGRAM.here())
        PROGRAM.end_unused()
        raise


@lru_cache(256)
def _named(provider: str, model: str | None, host: str) -> tuple[str, Mapping[str, Any], Encoded]:
    """Return the name of a call's op, its attributes, and these as JSON."""
    known = {"provider": provider, "model": model, "server.address": host}
    known = {name: value for name, value in known.items() if value is not None}
    return ":".join(filter(None, (provider, model))), known, Encoded(raw(known))


class SentRequest:
    """A request to a model, while it is sent: a `Watch`. Its op's span is OpenTelemetry's current one for as long."""

    __slots__ = ("exchange", "given")

    def __init__(self, exchange: Exchange, given: Callable[[], Any] | None) -> None:
        self.exchange = exchange
        self.given = given
        """Called in place of sending it, if it is there."""

    def begin(self) -> None:
        """Note that it is about to be sent: the exchange has begun already."""
        if context.follower is not None and self.exchange.is_own:
            context.follow(self.exchange.op)

    def returned(self, _value: Any, /) -> None:
        """Note that it was sent."""
        if context.follower is not None and self.exchange.is_own:
            context.unfollow(self.exchange.op)

    def raised(self, error: BaseException) -> None:
        """End it: no answer came."""
        if context.follower is not None and self.exchange.is_own:
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
