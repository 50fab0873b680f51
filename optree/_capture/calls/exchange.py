"""What passes between a program and a model over HTTP, recorded: an `ObservedCall` is one llm op, an `Exchange` one attempt of it.

A hook says what it sees, in this order: `begin`, then `responded` or `raised`, then `note` for each piece of a body that is still to come,
then `ended`. None of them raises, but `begin`, which refuses what a budget does not allow; none keeps anything else from the program. In a
forked child nothing is recorded of an attempt of the parent's, which goes on there.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from threading import RLock
from time import monotonic
from typing import Any, Final, Self
from weakref import WeakMethod, ref

from optree._background import Job, Worker
from optree._builder import Op
from optree._capture.calls.bodies import JSON, MOST_BYTES, Body, object_in
from optree._capture.calls.details import Details, Headers, phrase_of
from optree._capture.calls.observed import IN_HEADERS, AnswerOverWire, ClientCall, JoinedAnswer, ObservedCall, ended_by
from optree._capture.calls.program import PROGRAM
from optree._capture.calls.refusals import STATUS_CODE, Refusal, failure_in, refusal_as_text, refusal_in, refusal_of
from optree._capture.calls.requests import Asked
from optree._interrupts import if_free, new_rlock, suppress
from optree._nodes import Severity, Status
from optree._tracing.controls import before_flush
from optree._tracing.failures import class_of_error, class_of_status, status_of, was_not_sent
from optree._tracing.faults import fault, guarded
from optree._tracing.results import name_model
from optree._tracing.spending import is_changing
from optree._values import is_list, is_object

_REDIRECTED: Final = int(HTTPStatus.MULTIPLE_CHOICES)
"""The least status of those that bring no answer."""
_DRAIN_SECONDS: Final = 0.004
_MOST_SECONDS: Final = 2.0
"""For how long the end of an answer waits for a thread that reads it; then that one ends it."""
_REQUEST_IDS: Final = (b"x-request-id", b"request-id", b"x-amzn-requestid", b"apim-request-id")
_HEADERS: Final = frozenset({b"content-type", b"content-encoding", *_REQUEST_IDS, *IN_HEADERS.values()})
_WORKER: Final = Worker("capture")
_LAST: Final = frozenset({"response.completed", "response.failed", "response.incomplete", "message_stop", "message-end"})
"""Types of a stream's last event."""
MOST_TOGETHER: Final = 1 << 18
"""Bytes of a request, and of an answer, that are read and recorded in a step that other threads wait for."""
_PIECE_BYTES: Final = 1 << 16
"""That are read at once."""
_MOST_WAITING: Final = 4 << 20
"""Bytes of a stream that may wait to be read; the oldest of more are left out: the last events have the figures."""
_reading: deque[Exchange] = deque()
"""Exchanges whose pieces wait for the worker."""
_open: dict[int, ref[Exchange]] = {}
"""By id, exchanges whose bodies are still to come."""


class Exchange:
    """One attempt of a call. Pieces of its body are noted as they pass, and read by the worker, the last by who ends it."""

    _is_over = True
    """True once no more of it is recorded, and until its begin is."""
    _asked = _is_advancing = False
    _status = _number = _noted = _read_to = 0
    _came: float | None = None
    """The monotonic time at which the first of the pieces came that are read next; None of a body that the client has read itself."""
    _kind = ""
    """The answer's content type."""
    _lock: RLock | None = None
    """Held while it is read; None where no pieces come, which the worker might read as well."""
    _limit = MOST_BYTES
    """If more bytes than this were noted, pieces that wait are left out."""
    _body: Body | None = None
    _whole: dict[str, Any] | None = None
    """The answer, if that came as one document and is read already."""
    _refusal: Refusal | None = None
    _ending: tuple[BaseException | None] | None = None
    """What the body ended by, if who reads it just now is to end it."""
    _op_ends = False
    """True if its op is about to end with the turn or session around it."""
    _client: ref[ClientCall] | None = None
    """What it is sent by: another thread may end it."""

    def __init__(self, call: ObservedCall, sent: dict[str, Any], client: ClientCall | None) -> None:
        self._call = call
        self.sent = sent
        """The members of the request but for the messages."""
        self._began = began = monotonic()
        self._details = Details(call.op, began)
        self._chunks: deque[tuple[int, bytes]] = deque()
        """Pieces of the body that wait, each with the number of bytes ahead of it."""
        self._result = AnswerOverWire(call.op, call.model) if call.is_own else JoinedAnswer(call.op)
        if client is not None:
            self._client = ref(client)
        self._is_over = False
        call.begins()
        self._number = call.attempts

    @property
    def op(self) -> Op:
        """The op that it is an attempt of."""
        return self._call.op

    @property
    def is_own(self) -> bool:
        """True if that op was begun for it: there is no block of the program's around it."""
        return self._call.is_own

    def __del__(self) -> None:
        if not self._is_over:
            self.ended(GeneratorExit())

    @property
    def _unread(self) -> dict[str, WeakMethod[Callable[[float], object]]]:
        return self._call.op.builder.core.unread

    @guarded
    def sends(self, line: str) -> None:
        """Take a *line* of what is sent over HTTP, for a call that is traced."""
        if not self._call.is_inherited:
            self._details.sends(line)

    @guarded
    def asks(self, asked: Asked) -> None:
        """Take what is asked where more is known of it than when it was sent."""
        call = self._call
        if call.is_own and not call.is_inherited:
            call.op.builder.set_request(call.op, asked.parameters, asked.messages)
            name_model(call.op, asked.model, None)

    @guarded
    def log(self, line: str, severity: Severity = "VRB", details: Mapping[str, Any] | None = None) -> None:
        """Record a log line."""
        if not self._call.is_inherited:
            self._call.op.log(line, severity, details=details)

    @guarded
    def answers(self) -> None:
        """Take that the first piece of an answer has come; how long that took is an attribute of the op."""
        if not self._call.is_inherited:
            self._details.begins(monotonic())
            self._details.keep()

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take that the request was not answered."""
        self._close(error)

    @guarded
    def retried(self, attempts: int) -> None:
        """Take that the client has sent the request before, so many times."""
        if not self._call.is_inherited:
            self._call.op.log(f"{attempts} attempt{'s' * (attempts != 1)} before failed", "WRN")

    @guarded
    def responded(self, status: int, headers: Headers, content: bytes | None) -> None:
        """Take an answer's head, and its *content*, if that is there already; else each piece of it is noted as it comes."""
        call, body = self._call, None
        if call.is_inherited:
            return
        self._status = status
        self._details.head(status, headers)
        told = {name: value.decode("latin-1") for key, value in headers if (name := key.lower()) in _HEADERS}
        self._kind = kind = told.get(b"content-type", "")
        self._result.head(told)
        call.is_answered |= status < _REDIRECTED  # first: an interrupt may come behind it
        if content is None or (answer := self._document(content)) is None:
            body = Body(kind if status < _REDIRECTED else "", "" if content is not None else told.get(b"content-encoding", ""))
            self._body = body
        else:
            self._whole = answer
        self._noted = len(content or b"")
        if call.is_own and (found := next((told[name] for name in _REQUEST_IDS if name in told), None)):
            call.op.builder.set_op(call.op, request_id=found)
        if status < _REDIRECTED:
            if call.is_refused:
                call.op.builder.set_op(call.op, **{STATUS_CODE: status})
        else:
            call.is_under_way = False  # some clients try again before they have read or closed it
        if body is not None and body.is_stream:
            self._limit = _MOST_WAITING
        if content is None:
            self._lock = new_rlock()
            self._unread[self.op.path] = WeakMethod(self._catch_up)
            _open[id(self)] = ref(self)
            return
        if body is not None:
            self._chunks.append((0, content))
        self._close(None)

    def _document(self, content: bytes) -> dict[str, Any] | None:
        """Return an answer that is one JSON object; None for all else, which is to be read as a `Body`."""
        if self._status >= _REDIRECTED or not self._kind.startswith(JSON) or len(content) > MOST_BYTES:
            return None
        return object_in(content)

    def note(self, piece: bytes) -> None:
        """Take a piece of the body as it came."""
        at = self._noted
        self._chunks.append((at, piece))
        self._noted = at + len(piece)
        if not self._asked:
            self._asked, self._came = True, monotonic()
            _reading.append(self)
            _DRAIN.ask(_DRAIN_SECONDS)
        elif at > self._limit:
            self._leave_out()

    def _leave_out(self) -> None:
        """Let the oldest pieces go that wait, as many as are too many; who reads sees that they are missing."""
        with suppress(IndexError):  # they are being read just now
            while self._noted - self._chunks[0][0] > _MOST_WAITING:
                self._chunks.popleft()

    @guarded
    def ended(self, error: BaseException | None) -> None:
        """Take that no more comes: *error* is why, or None at the body's end; `GeneratorExit` if the program wants no more."""
        self._close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.ended(error)

    def drain(self) -> None:
        """Read what was noted so far."""
        self._asked = False
        if not self._advance(_DRAIN_SECONDS) and not self._is_over and not self._asked:  # another thread is at it
            self._asked = True
            _reading.append(self)

    @guarded
    def _catch_up(self, until: float) -> None:
        """Have the worker read what was noted, since the op is about to end; *until* that monotonic time it is waited for, if it may be.

        Here a handler's exception would break off the reading.
        """
        if self._call.is_inherited:
            return
        self._op_ends = True
        _reading.appendleft(self)
        if not _WORKER.start():
            self._advance(0.0)  # there can be no thread
        elif self._may_wait():
            _DRAIN.wait(max(0.0, until - monotonic()), first=True)
        else:
            _DRAIN.ask(first=True)

    def _may_wait(self) -> bool:
        """Tell whether this thread holds nothing that the reader of answers waits for: finalizers come anywhere."""
        return not (PROGRAM.is_held_here or is_changing() or self._call.op.builder.core.stream.is_in_step)

    def _advance(self, seconds: float, ending: tuple[BaseException | None] | None = None) -> bool:
        """Read what was noted, or end it. False if another thread is at it for *seconds* more, or this one already is.

        Who is at it ends, behind that, what was handed over to it meanwhile.
        """
        if self._lock is None:
            return self._step(ending)
        step = partial(self._step, ending)
        while done := if_free(self._lock, step, 0.0) or (seconds > 0 and self._may_wait() and if_free(self._lock, step, seconds)):
            if self._ending is None or self._is_over or self._call.is_inherited:
                break
        return bool(done)

    def _step(self, ending: tuple[BaseException | None] | None) -> bool:
        if self._call.is_inherited or self._is_over:
            self._chunks.clear()
            return True
        if self._is_advancing:  # called within itself, by a finalizer or a handler
            return False
        try:
            self._is_advancing = True
            if (ending := ending or self._ending) is not None:
                self._end(ending[0])
                self._ending = None  # an exception refers to much
                return True
            self._read(self._noted)
            self._details.keep()
            if self._body is not None and self._body.is_over:
                self._end(None)  # some programs neither read to the end nor close
            elif self._op_ends:
                self._op_ends = False
                self._result.breaks_off()
        finally:
            self._is_advancing = False
        return True

    def _read(self, until: int, *, last: bool = False) -> None:
        body = self._body
        if body is None:
            if self._whole is not None:
                self._take(self._whole)
                self._whole = None  # last: an interrupt has it taken again
            return
        is_more = True
        while is_more or body.waiting is not None:
            try:
                if body.waiting is None:
                    data = self._next(body)
                    is_more = bool(self._chunks) and (last or self._read_to < until)
                    body.waiting = body.feed(data, last=last and not is_more)
                for value in body.waiting:
                    self._take(value)
                body.waiting = None
            except BaseException:
                body.flaw = "an exception broke off the reading of the answer: a part of it is not recorded"
                raise

    def _next(self, body: Body) -> bytes:
        """Return some of the bytes that wait; *body* is told of those before them that were left out."""
        pieces: list[bytes] = []
        start = end = self._read_to
        while self._chunks and end - start < _PIECE_BYTES:
            at, piece = self._chunks.popleft()
            if at != end:
                if pieces:
                    self._chunks.appendleft((at, piece))
                    break
                body.skip(at - end)
                start = at
            pieces.append(piece)
            end = at + len(piece)
        if pieces and body.is_stream:
            self._details.reads(self._came, end)
        self._read_to, self._limit = end, end + (_MOST_WAITING if body.is_stream else MOST_BYTES)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, value: Any) -> None:
        """Take a value of the body: an event of a stream, or the whole."""
        try:
            self._taken(value, self._body)
        except RecursionError:
            self._body = self._body or Body(self._kind, "")
            self._body.flaw = "the answer is nested too deep to be recorded"

    def _taken(self, value: Any, body: Body | None) -> None:
        is_stream = body is not None and body.is_stream
        if is_stream:
            self._details.event(value, self._came)
        if (refusal := refusal_in(value, is_refused=self._status >= _REDIRECTED)) is not None:
            self._refusal = refusal
            if self._status < _REDIRECTED and not is_stream:
                self._result.failed(value)
        elif self._status >= _REDIRECTED:
            return
        elif body is not None and is_stream:
            self._result.take(value)
            self._refusal = failure_in(value) or self._refusal
            if is_object(value) and (_is_last(value) or (value.get("choices") == [] and self._result.is_complete)):  # of OpenAI's chat
                body.is_over = True
        elif is_object(value):
            self._result.returned(value)
        elif is_list(value):  # Gemini's stream, as one document
            for one in value:
                self._result.take(one)

    def _close(self, error: BaseException | None) -> None:
        """Take that no more comes, and end it, or have it ended by the thread that reads it just now."""
        if not self._advance(_MOST_SECONDS, (error,)):
            self._ending = self._ending or (error,)
            self._advance(0.0)  # who was at it may have gone just before

    def _end(self, error: BaseException | None) -> None:
        op = self._call.op
        if self._lock is not None:
            _open.pop(id(self), None)
            if self._number == self._call.attempts:
                self._unread.pop(op.path, None)
        try:
            self._is_over = True
            if op.spending is None and self._whole is not None and self._noted <= MOST_TOGETHER:
                op.builder.core.stream.together(partial(self._finish, error))
            else:
                self._finish(error)
            self._call.ended()
        except BaseException as raised:  # an interrupt, or a fault: what is begun is done whole
            self._is_over, self._call.is_under_way = True, False
            self._break_off(*ended_by(raised))
            raise

    def _break_off(self, status: Status, said: str | None) -> None:
        """End it once more, where an exception came in the middle of that: with what had come, as far as it can still be read."""
        try:
            call = self._call
            if call.is_answered and call.op.bare.ended_at is None:
                self._read(self._noted, last=True)
                if call.is_own and len(call.op.bare.accounting) >= self._number:  # it is accounted for, beside each attempt before it
                    self._result.breaks_off()
                else:
                    self._result.ended(status)
                if self._body is not None and self._body.flaw is not None:
                    self._call.op.log(self._body.flaw, "WRN")
        finally:
            self._call.end(status, said)

    def _finish(self, error: BaseException | None) -> None:
        """Read what was noted last, and end what that ends."""
        self._read(self._noted, last=True)
        self._details.over(self._noted)
        call, body = self._call, self._body
        refusal = self._refusal
        if error is None and body is None and refusal is None and self._status < _REDIRECTED:  # it came whole, and is an answer
            self._result.ended("ok")
            call.end_op("ok", None)
            return
        if isinstance(error, GeneratorExit) and body is not None and (body.is_over or self._result.is_complete):
            error = None
        status, said = ended_by(error)
        if refusal is not None and status != "failed":
            status, said = "failed", refusal.message or "the answer is an error"
        flaw, is_unread = None if body is None else body.flaw, False
        if body is not None and status != "failed" and (found := self._as_text(body, error)) is not None:
            refusal, is_unread = found, self._status < _REDIRECTED
            if is_unread:
                flaw = flaw or "the answer is empty"
                status, said = "failed", f"the answer cannot be read: {flaw}"
        if flaw is not None and (is_unread or refusal is None or refusal.kind is None):
            call.op.log(flaw, "WRN")
        if self._status >= _REDIRECTED or (status == "failed" and not call.is_answered):
            why = f"{self._status} {phrase_of(self._status)}" if self._status else ""
            said = ": ".join(filter(None, (why, (refusal.message if refusal is not None else None) if self._status else said)))
            self._refused(error, said, refusal or refusal_of(error))
            return
        if status == "failed":
            refusal = refusal or refusal_of(error)
            failure = class_of_error(error) if refusal is None else class_of_status(self._status, None, refusal.told)
            call.fails("invalid" if is_unread else failure, refusal)
        self._result.is_over = body is not None and (body.is_over or not body.is_stream)
        self._result.ended(status)
        call.end_op(status, said)

    def _refused(self, error: BaseException | None, said: str, refusal: Refusal | None) -> None:
        """End an attempt that brought no answer, and what that ends; one behind which another was begun ends nothing else."""
        call, told, is_last = self._call, self._status or status_of(error), self._number == self._call.attempts
        if told and is_last:
            call.is_refused = True
            call.op.builder.set_op(call.op, **{STATUS_CODE: told})
        if is_last:
            about = None if refusal is None else refusal.told
            call.fails(class_of_status(told, said, about) if told else class_of_error(error), refusal)
        is_free = told >= _REDIRECTED or was_not_sent(error)
        call.attempt_failed(self._number, said, (monotonic() - self._began) * 1e3, self._details.limits, is_free=is_free)
        client = None if self._client is None else self._client()
        if is_last and (client is None or client.call is not call):  # else it may try again
            call.end_op("failed", said)

    def _as_text(self, body: Body, error: BaseException | None) -> Refusal | None:
        """Return a refusal that is no JSON, or an answer that cannot be read, as its text; None of others, and where it is not known."""
        if self._status >= _REDIRECTED:
            is_text = error is None and bool(body.text or body.is_empty)
        else:
            is_text = body.is_unread or (error is None and (body.is_end_unread or body.is_empty))
        return refusal_as_text(body.text, self._kind) if is_text else None


def _drain() -> float | None:
    """Read what was noted by now of all that waits; returns when the rest is to be read."""
    with suppress(IndexError):  # another thread was quicker
        for _ in range(len(_reading)):
            _reading.popleft().drain()
    return _DRAIN_SECONDS if _reading else None


def _drain_all(seconds: float) -> bool:
    """Have the worker read all that was noted, here where there is none; False if that takes longer than *seconds*."""
    if not _reading and not _DRAIN.is_running:
        return True
    if not _WORKER.is_current and _WORKER.start():
        return _DRAIN.wait(seconds, first=True)
    _drain()
    return True


def _end_open() -> None:
    """End what the program has left open, as it ends: finalizers behind that can import nothing, and read nothing."""
    for known in list(_open.values()):
        if (exchange := known()) is not None:
            exchange.ended(GeneratorExit())


def _is_last(event: dict[str, Any]) -> bool:
    """Tell whether an event is the last of a stream that has anything."""
    if event.get("type") in _LAST or event.get("done") is True:
        return True
    return is_object(told := event.get("metadata")) and is_object(told.get("usage"))  # Bedrock's


_DRAIN: Final = Job(_WORKER, _drain, lambda error: fault(error) if isinstance(error, Exception) else None)
before_flush.append(_drain_all)
atexit.register(_end_open)
PROGRAM.before_exit.append(_end_open)
