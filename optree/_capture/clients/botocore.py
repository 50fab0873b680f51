"""Calls of models that boto3's client for Bedrock makes, recorded: Converse, and models' own interfaces by InvokeModel.

What botocore gives the program is decoded already, but for the body of InvokeModel. A stream is noted event by event, as the program
reads it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from optree._capture.calls.begin import SentRequest, begin_asked, is_wanted
from optree._capture.calls.bodies import object_in
from optree._capture.calls.exchange import Exchange
from optree._capture.calls.requests import bedrock_asked
from optree._capture.hooks import Hook, run_within
from optree._capture.replay import ACTIVE
from optree._capture.replay.answering import NO_ANSWER, StoredReply, bedrock_events
from optree._interrupts import pass_on
from optree._tracing.faults import guarded
from optree._values import decode, encode, is_object, text

_CONVERSE: Final = frozenset({"Converse", "ConverseStream"})
_INVOKE: Final = frozenset({"InvokeModel", "InvokeModelWithResponseStream"})
_JSON: Final = (b"content-type", b"application/json")
_LINES: Final = (b"content-type", b"application/x-ndjson")


def client(module: ModuleType, is_on: Callable[[], bool]) -> list[Hook]:
    """Hook botocore's clients where they call an operation, which sends it again by itself. Nothing is done if not *is_on*."""
    function = module.BaseClient._make_api_call  # noqa: SLF001 - all methods, which are made at run time, come by there
    return [(module.BaseClient, "_make_api_call", run_within(function, functools.partial(_calling, is_on)))]


def _calling(is_on: Callable[[], bool], made_by: Any = None, operation: Any = None, given: Any = None, *_args: Any) -> _Calling | None:
    known = operation in _CONVERSE or operation in _INVOKE
    exchange = _begun(made_by, operation, given) if known and is_on() and is_wanted() else None
    if exchange is None:
        return None
    answer = ACTIVE.answer(exchange.op, operation)
    return _Calling(exchange, operation, None if answer is None else functools.partial(_given, made_by, operation, answer))


def _given(made_by: Any, operation: str, answer: StoredReply) -> dict[str, Any]:
    """Return a recorded answer as the client does, or raise what it raises."""
    if answer.status == NO_ANSWER:
        from botocore.exceptions import EndpointConnectionError, ReadTimeoutError  # type: ignore[import-untyped]

        raise (ReadTimeoutError if answer.timed_out else EndpointConnectionError)(endpoint_url=answer.body.decode())
    value: dict[str, Any] = decode(answer.body)
    told: dict[str, Any] = {"RequestId": answer.headers.get("x-request-id", ""), "HTTPStatusCode": answer.status, "RetryAttempts": 0}
    told["HTTPHeaders"] = answer.headers
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise _error(made_by, operation, value, told)
    if operation == "Converse":
        return {**value, "ResponseMetadata": told}
    if operation == "InvokeModel":
        from botocore.response import StreamingBody  # type: ignore[import-untyped]

        return {"body": StreamingBody(_Recorded(answer.body), len(answer.body)), "contentType": _JSON[1].decode(), "ResponseMetadata": told}
    events = _failing(value, operation) if is_object(value.get("Error")) else bedrock_events(value)
    if operation == "ConverseStream":
        return {"stream": _RecordedEvents(events), "ResponseMetadata": told}
    chunks = ({"chunk": {"bytes": encode(event)}} for event in events)
    return {"body": _RecordedEvents(chunks), "contentType": _JSON[1].decode(), "ResponseMetadata": told}


def _error(made_by: Any, operation: str, value: dict[str, Any], told: dict[str, Any]) -> Exception:
    """Return the exception that a client raises for a recorded refusal, or for the lack of one."""
    if "Error" not in value:
        value = {"Error": {"Code": "ValidationException", "Message": value.get("error", {}).get("message", "")}}
    if (retries := value.pop("RetryAttempts", None)) is not None:
        told |= {"RetryAttempts": retries, "MaxAttemptsReached": True}
    raised: Exception = made_by.exceptions.from_code(value["Error"]["Code"])({**value, "ResponseMetadata": told}, operation)
    return raised


def _failing(error: dict[str, Any], operation: str) -> Iterator[dict[str, Any]]:
    """Raise the error that an event of a stream is, once it is read."""
    from botocore.exceptions import EventStreamError  # type: ignore[import-untyped, unused-ignore]

    raise EventStreamError(error, operation)
    yield error


class _Recorded(io.BufferedIOBase):
    """A recorded body, which is read by `read` as a connection is."""

    def __init__(self, body: bytes) -> None:
        self._body = io.BytesIO(body)

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, by default all."""
        return self._body.read(size)


class _RecordedEvents:
    """A recorded event stream."""

    def __init__(self, events: Iterator[dict[str, Any]]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def close(self) -> None:
        """Give nothing more."""
        self._events = iter(())


@guarded
def _begun(made_by: Any, operation: str, given: Any) -> Exchange | None:
    if made_by.meta.service_model.service_name != "bedrock-runtime" or not is_object(given):
        return None
    told = dict(given)
    model = told.pop("modelId", None)
    if not isinstance(model, str):
        return None
    if operation in _INVOKE:
        found = _body_of(told.pop("body", None))
        if found is None:
            return None
        told = {**{name: value for name, value in told.items() if name not in ("accept", "contentType")}, **found}
    exchange = begin_asked(bedrock_asked(urlsplit(str(made_by.meta.endpoint_url)).hostname or "", model, told))
    if exchange is not None:
        exchange.sends(f"{operation} of {model}")
    return exchange


def _body_of(body: Any) -> dict[str, Any] | None:
    """Return what the body of InvokeModel says; None of a file, which is read once, and of what asks for nothing."""
    data = body.encode() if isinstance(body, str) else bytes(body) if isinstance(body, (bytes, bytearray)) else b""
    return object_in(data)


def _headers_of(told: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return an answer's headers, but for those of what botocore has read already."""
    headers = headers if is_object(headers := told.get("HTTPHeaders")) else {}
    found = [(name, text(value)) for name, value in headers.items() if not name.lower().startswith("content-")]
    if isinstance(named := told.get("RequestId"), str):
        found.append(("x-amzn-requestid", named))
    return [(name.encode(), value.encode()) for name, value in found]


class _Calling(SentRequest):
    """One call, with all that botocore sends for it."""

    __slots__ = ("_operation",)

    def __init__(self, exchange: Exchange, operation: str, given: Callable[[], Any] | None) -> None:
        super().__init__(exchange, given)
        self._operation = operation

    @guarded
    def returned(self, answer: Any) -> None:
        """Take the answer, or what the program reads of it."""
        super().returned(answer)
        exchange = self.exchange
        told: dict[str, Any] = answer.get("ResponseMetadata") or {}
        status: int = told.get("HTTPStatusCode") or HTTPStatus.OK
        headers = _headers_of(told)
        if retried := told.get("RetryAttempts"):
            exchange.retried(retried)
        if self._operation == "Converse":
            said = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
            exchange.responded(status, [_JSON, *headers], encode(said))
            return
        member, watch = _WATCHED[self._operation]
        exchange.responded(status, [_JSON if self._operation == "InvokeModel" else _LINES, *headers], None)
        try:
            watch(answer[member], exchange)
        except (AttributeError, KeyError, TypeError) as error:  # a stand-in, or another release: what it says is not seen
            pass_on(error)
            exchange.ended(None)


class _Events:
    """What stands before an event stream's class: each event is noted as the program gets it."""

    def __iter__(self) -> Iterator[Any]:
        events: Any = super()
        reading: Any = self
        with reading._optree as exchange:  # noqa: SLF001 - of `_watch`
            for event in events.__iter__():
                _note_event(exchange, event)
                yield event

    def close(self) -> None:
        events: Any = super()
        reading: Any = self
        try:
            events.close()
        finally:
            reading._optree.ended(GeneratorExit())  # noqa: SLF001 - of `_watch`


@guarded
def _note_event(exchange: Exchange, event: Any) -> None:
    """Note an event of Converse as it is, one of InvokeModel by the JSON in it."""
    chunk = event.get("chunk") if is_object(event) else None
    data = chunk.get("bytes") if is_object(chunk) else None
    exchange.note((data if isinstance(data, bytes) else encode(event)) + b"\n")


class _Raw:
    """What stands before the class of a body's connection: what is read there is noted."""

    def read(self, *args: Any, **kwargs: Any) -> Any:
        raw: Any = super()
        return _read(self, raw.read, *args, **kwargs)

    def read1(self, *args: Any, **kwargs: Any) -> Any:
        raw: Any = super()
        return _read(self, raw.read1, *args, **kwargs)

    def readinto(self, buffer: Any) -> Any:
        raw: Any = super()
        return raw.readinto(buffer)  # which reads

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        raw: Any = super()
        reading: Any = self
        pieces = raw.stream(*args, **kwargs)
        while (piece := _read(self, next, pieces, None)) is not None:
            yield piece
        reading._optree.ended(None)  # noqa: SLF001 - of `_watch`

    def close(self) -> None:
        raw: Any = super()
        reading: Any = self
        try:
            raw.close()
        finally:
            if not reading._optree_busy:  # noqa: SLF001 - of `_watch`
                reading._optree.ended(GeneratorExit())  # noqa: SLF001 - of `_watch`


def _read(reading: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read, and note what that gives: once, where one method reads by another."""
    if reading._optree_busy:  # noqa: SLF001 - of `_watch`
        return function(*args, **kwargs)
    exchange: Exchange = reading._optree  # noqa: SLF001 - of `_watch`
    reading._optree_busy = True  # noqa: SLF001 - of `_watch`
    try:
        piece = function(*args, **kwargs)
    except BaseException as error:
        exchange.ended(error)
        raise
    finally:
        reading._optree_busy = False  # noqa: SLF001 - of `_watch`
    if piece:
        exchange.note(piece)
    size = args[0] if args else kwargs.get("amt")
    if function is not next and (size is None or size < 0 or (not piece and size)):
        exchange.ended(None)
    return piece


def _watch(stands_before: type[Any], one: Any, exchange: Exchange) -> None:
    """Put a class before that of one object, which may be told by its class no more than before."""
    known: type[Any] = one.__class__
    one._optree, one._optree_busy = exchange, False  # noqa: SLF001 - by a name that nobody has
    one.__class__ = type(known.__name__, (stands_before, known), {"__module__": known.__module__})


_WATCHED: Final[dict[str, tuple[str, Callable[[Any, Exchange], None]]]] = {
    "ConverseStream": ("stream", functools.partial(_watch, _Events)),
    "InvokeModelWithResponseStream": ("body", functools.partial(_watch, _Events)),
    "InvokeModel": ("body", lambda body, exchange: _watch(_Raw, body._raw_stream, exchange)),  # noqa: SLF001 - which `with` gives out
}
"""By operation: the member of its answer that the program reads, and what watches that."""
