"""`Recorder`: writes one run's events to its file, refuses what the seed does not have, and hands each to subscribers once written.

Events that the format does not allow are refused (`InvalidEventError`). A disk that does not take one is no fault of the caller's: `record`
returns False, nothing is handed on, and the logger ``optree.transcript`` says so once a second at most.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from pathlib import Path
from threading import Condition
from time import monotonic
from typing import Any, NamedTuple, cast

import msgspec

from optree import OptreeError, SetupError
from optree.exporting import LineLog, TypedDecoder, encode, new_rlock, now_ms, raw, redact, sanitize, text
from optree_formats import AnyPath
from optree_formats.transcript.wire import (
    EVENT_TYPES,
    ContentBlock,
    Event,
    Fidelity,
    MessagePayload,
    Payload,
    StepPayload,
    ToolPayload,
    encoder,
    line,
    milliseconds,
    rfc3339,
)

Mask = Callable[[Event], Event]
"""Takes an event before it has a number, and returns what is written and handed on in its place."""
_HEAD = b'{"seq":'
_NULL = raw(None)
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
LINKS = ("step.call_workflow.started", "step.call_workflow.completed")
_STEP: TypedDecoder[StepPayload] = TypedDecoder(StepPayload)
_MESSAGE: TypedDecoder[MessagePayload] = TypedDecoder(MessagePayload)
_TOOL: TypedDecoder[ToolPayload] = TypedDecoder(ToolPayload)
_OPTIONAL = {"tool.call": "output", "tool.result": "input"}
"""The member of a tool's payload that may be left out, and is null then."""
BUFFER = 256
"""Events that wait for one subscriber, unless told otherwise."""
WARN_SECONDS = 1.0
LOGGER = logging.getLogger("optree.transcript")


class Recorder:
    """One run's file. Safe for threads, and for several processes that have one each on the same file: numbers go on across all of them.

    *target* is the file, or a directory in which it is ``<run id>.jsonl``; it is made at the first event, 0600. Subscribers get what this
    recorder writes. Raises `SetupError` if the directory is not there, `InvalidEventError` for ids that are no UUID v4.
    """

    def __init__(self, target: AnyPath, run_id: str, parent_run_id: str = "", *, mask: Mask | None = None, buffer: int = BUFFER) -> None:
        path = Path(target)
        check_run_id("run_id", run_id)
        if parent_run_id:
            check_run_id("parent_run_id", parent_run_id)
        self.path = path / f"{run_id}.jsonl" if path.is_dir() else path
        if not self.path.parent.is_dir():
            raise SetupError(f"{self.path.parent} is no directory: make it before a transcript is recorded there")
        self.run_id = run_id
        self.parent_run_id = parent_run_id
        self.failures = 0
        """Events that could not be written."""
        self.last_failure = ""
        self._mask = mask
        self._fanout = FanOut(buffer)
        self._lock = new_rlock()
        self._log: LineLog | None = None
        self._closed = False
        self._warned_at = -WARN_SECONDS

    def record(
        self,
        kind: str,
        payload: Payload | Mapping[str, Any] | None = None,
        *,
        path: str = "",
        iteration: int = 0,
        child_run_id: str = "",
        timestamp: str | None = None,
        optree: dict[str, Any] | None = None,
    ) -> bool:
        """Write an event of type *kind*, by default of now; False if it could not be written. Raises `InvalidEventError`."""
        event = Event(
            seq=0,
            run_id=self.run_id,
            parent_run_id=self.parent_run_id,
            child_run_id=child_run_id,
            type=kind,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - `check` refuses others
            path=path,
            iteration=iteration,
            timestamp=rfc3339(now_ms()) if timestamp is None else timestamp,
            payload=payload,
            optree=optree,
        )
        return self.write(event)

    def run_started(self, name: str, kind: str = "workflow", **more: Any) -> bool:
        """Record that the run began."""
        return self.record("run.started", StepPayload(name=name, kind=kind), **more)

    def run_completed(self, name: str, kind: str = "workflow", *, error: str = "", result: Any = None, **more: Any) -> bool:
        """Record that the run ended."""
        return self.record("run.completed", _ended(name, kind, error, result), **more)

    def step_started(self, path: str, name: str, kind: str, *, child_run_id: str = "", **more: Any) -> bool:
        """Record that a step began; with *child_run_id*, that it began the run of that id."""
        known = "step.call_workflow.started" if child_run_id else "step.started"
        return self.record(known, StepPayload(name=name, kind=kind), path=path, child_run_id=child_run_id, **more)

    def step_completed(
        self, path: str, name: str, kind: str, *, error: str = "", result: Any = None, child_run_id: str = "", **more: Any
    ) -> bool:
        """Record that a step ended."""
        known = "step.call_workflow.completed" if child_run_id else "step.completed"
        return self.record(known, _ended(name, kind, error, result), path=path, child_run_id=child_run_id, **more)

    def user(self, path: str, prompt: str, system_prompt: str = "", **more: Any) -> bool:
        """Record what an agent was sent: the resolved prompt and, if there is one, the composed system prompt."""
        blocks = [
            ContentBlock(type="text", fidelity="router", text=content)
            for content in (prompt, system_prompt)
            if content or content is prompt
        ]
        return self.record("message.user", MessagePayload(role="user", blocks=blocks), path=path, **more)

    def assistant(self, path: str, blocks: Sequence[ContentBlock], **more: Any) -> bool:
        """Record what an agent answered; an answer without any block is not recorded."""
        return not blocks or self.record("message.assistant", MessagePayload(role="assistant", blocks=list(blocks)), path=path, **more)

    def tool_call(self, path: str, name: str, call_id: str, value: Any, *, fidelity: Fidelity = "router", **more: Any) -> bool:
        """Record a call with its input."""
        payload = ToolPayload(name=name, call_id=call_id, input=raw(value), output=_NULL, fidelity=fidelity)
        return self.record("tool.call", payload, path=path, **more)

    def tool_result(
        self, path: str, name: str, call_id: str, value: Any, output: Any, *, error: str = "", fidelity: Fidelity = "router", **more: Any
    ) -> bool:
        """Record a call's output, or its error; the input is repeated."""
        payload = ToolPayload(name=name, call_id=call_id, input=raw(value), output=raw(output), error=error, fidelity=fidelity)
        return self.record("tool.result", payload, path=path, **more)

    def subscribe(self, buffer: int | None = None) -> Subscription:
        """Return a subscription to what is written from now on; a closed one after `close`."""
        return self._fanout.subscribe(buffer)

    def stats(self) -> Stats:
        """Return how many subscribe, and how much they lost."""
        return self._fanout.stats()

    def close(self) -> None:
        """Close the file and the subscriptions; the second call does nothing."""
        with self._lock:
            self._closed = True
            if self._log is not None:
                self._log.close()
        self._fanout.close()

    def write(self, event: Event) -> bool:
        """Write an event of this run, with the number that comes next; else as `record`. The caller's event stays as it is."""
        event = self._own(event)
        try:
            if self._mask is not None:
                event = self._own(self._mask(event))
            event.seq = 0
            body = line(event)[len(_HEAD) + 1 :]
            with self._lock:  # for both, so that subscribers see the file's order
                event.seq = self._opened().append(lambda number: b"%b%d%b" % (_HEAD, number, body))
                self._fanout.publish(event)
        except Exception as error:  # noqa: BLE001 - the disk's fault, or the mask's: neither is the workflow's
            self._failed(error)
            return False
        return True

    def _own(self, event: Event) -> Event:
        """Return a copy of an event, its payload one of the seed's; raises `InvalidEventError` for one that may not stand in the file."""
        if event.run_id != self.run_id:
            raise InvalidEventError(f"an event of run {event.run_id!r} does not go into the file of run {self.run_id}")
        mine = copy(event)
        check(mine)
        return mine

    def _opened(self) -> LineLog:
        if self._closed:
            raise SetupError("the recorder is closed")
        if self._log is None:
            self._log = LineLog(self.path, _numbers)
        return self._log

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_failure = f"{type(error).__name__}: {text(error)}"
        now = monotonic()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            LOGGER.warning("transcript %s: %d events not recorded: %s", self.path.name, self.failures, self.last_failure)


class NopRecorder:
    """Takes what a `Recorder` takes, and does nothing."""

    failures = 0
    last_failure = ""

    def record(self, _kind: str, _payload: object = None, **_more: Any) -> bool:
        """Do nothing."""
        return True

    def _nothing(self, *_: object, **__: Any) -> bool:
        return True

    run_started = run_completed = step_started = step_completed = user = assistant = tool_call = tool_result = write = _nothing

    def subscribe(self, _buffer: int | None = None) -> Subscription:
        """Return a closed subscription."""
        subscription = Subscription()
        subscription.cancel()
        return subscription

    def stats(self) -> Stats:
        """Return zeros."""
        return Stats(0, 0)

    def close(self) -> None:
        """Do nothing."""


def _ended(name: str, kind: str, error: str, result: Any) -> StepPayload:
    payload = StepPayload(name=name, kind=kind, error=error)
    if result is not None:
        payload.result = raw(result)
    return payload


def _numbers(data: bytes) -> Iterable[int]:
    """Return the number of a line of a file that is continued, as a tuple; an empty one for a line that is not an event."""
    head, comma, _ = data.partition(b",")
    if comma and head.startswith(_HEAD) and head[len(_HEAD) :].isdigit():
        return (int(head[len(_HEAD) :]),)
    with suppress(msgspec.DecodeError, TypeError, ValueError, KeyError, RecursionError):
        return (int(msgspec.json.decode(data)["seq"]),)
    return ()


def masked(mask: Mask | None) -> Mask:
    """Return a mask that takes credentials out of what *mask* returns."""
    return without_credentials if mask is None else lambda event: without_credentials(mask(event))


def without_credentials(event: Event) -> Event:
    """Return an event with the credentials in its payload, and in what stands beside it, replaced; itself where there are none."""
    members: dict[str, Any] = msgspec.json.decode(line(event))
    before = {name: members.get(name) for name in ("payload", "optree")}
    after = redact(before)
    if after == before:
        return event
    result = copy(event)
    result.payload, result.optree = after["payload"], after["optree"]
    return result


class InvalidEventError(OptreeError, ValueError):
    """An event that the format does not allow: nothing is written."""


def check(event: Event) -> None:
    """Make an event's payload one of the seed's, a mapping included; raises `InvalidEventError` that says what is wrong with it."""
    if event.type not in EVENT_TYPES:
        message = f"{event.type!r} is no type of event" if event.type else "an event needs a type"
        raise InvalidEventError(f"{message}: choose one of {', '.join(sorted(EVENT_TYPES))}")
    event.payload = payload_of(event.type, event.payload)
    if event.type in LINKS or event.child_run_id:
        check_run_id("child_run_id", event.child_run_id)
    if event.child_run_id and event.type not in LINKS:
        raise InvalidEventError(f"{event.type}: only {' and '.join(LINKS)} have a child_run_id")
    if type(event.path) is not str or type(event.iteration) is not int or event.iteration < 0:
        raise InvalidEventError(f"{event.type}: path is text such as 'a.b', iteration a number from 0")
    if type(event.timestamp) is not str or milliseconds(event.timestamp) is None:
        raise InvalidEventError(f"{event.type}: timestamp is text as RFC 3339 has it, with a zone: 2026-06-08T08:14:42.123Z")


def check_run_id(member: str, value: object) -> None:
    """Raise `InvalidEventError` for text that is no UUID of version 4."""
    if not isinstance(value, str) or _UUID4.fullmatch(value) is None:
        raise InvalidEventError(f"{member} {value!r} is no UUID v4; make one with str(uuid.uuid4())")


def _encoded(value: object) -> bytes:
    """Return a payload as JSON; text that JSON cannot hold, such as half an emoji of a model's stream, is marked (U+FFFD)."""
    if not isinstance(value, msgspec.Struct):
        return encode(value)
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:
        return encoder.encode(sanitize(deepcopy(value)))


def payload_of(kind: str, payload: object) -> Payload | None:
    """Return the payload of an event of that type, from one or from a mapping; raises `InvalidEventError`."""
    if payload is None and kind.startswith("run."):
        return None
    decoder: TypedDecoder[Any] = _MESSAGE if kind.startswith("message.") else _TOOL if kind.startswith("tool.") else _STEP
    value = payload
    if isinstance(payload, Mapping) and kind in _OPTIONAL:
        value = {_OPTIONAL[kind]: None, **cast("Mapping[str, Any]", payload)}
    try:
        result = decoder(_encoded(value))
    except msgspec.ValidationError as error:
        raise InvalidEventError(f"{kind}: its payload is not as the format has it: {error}") from error
    if isinstance(result, MessagePayload) and result.role != kind.removeprefix("message."):
        raise InvalidEventError(f"{kind}: its payload has the role {result.role!r}")
    if (isinstance(result, StepPayload) and not result.kind) or (isinstance(result, ToolPayload) and not result.call_id):
        raise InvalidEventError(f"{kind}: {'kind' if isinstance(result, StepPayload) else 'call_id'} may not be empty")
    return result  # type: ignore[no-any-return]


class Stats(NamedTuple):
    """What a fan-out has done so far."""

    subscribers: int
    """Those that are open now."""
    drops: int
    """Events that subscribers lost, all together."""


class Subscription:
    """A subscriber's end: iterate over it, or `get`. Events are shared with other subscribers, and not to be changed."""

    def __init__(self, buffer: int = BUFFER) -> None:
        self.dropped = 0
        self.closed = False
        self._buffer = buffer
        self._queue: deque[Event] = deque()
        self._lock = new_rlock()
        self._ready = Condition(self._lock)  # which an exception out of a handler leaves locked where it is entered itself
        self._warned_at = -WARN_SECONDS
        self._unsaid = 0

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they come, until the subscription is closed and empty."""
        while (event := self.get()) is not None:
            yield event

    def get(self, timeout: float | None = None) -> Event | None:
        """Return the next event; None if none comes within *timeout* seconds, or the subscription is closed and empty."""
        with self._lock:
            self._ready.wait_for(lambda: self._queue or self.closed, timeout)
            return self._queue.popleft() if self._queue else None

    def cancel(self) -> None:
        """Close it: no further events come, what waits can still be had. The second call does nothing."""
        with self._lock:
            self.closed = True
            self._ready.notify_all()

    def offer(self, event: Event) -> bool:
        """Queue an event; False if there was no room for it."""
        with self._lock:
            if self.closed:
                return True
            if len(self._queue) < self._buffer:
                self._queue.append(event)
                self._ready.notify()
                return True
            self.dropped += 1
            self._unsaid += 1
        self._warn()
        return False

    def _warn(self) -> None:
        now = monotonic()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            LOGGER.warning("transcript: a subscriber is too slow: %d events dropped, %d in all", self._unsaid, self.dropped)
            self._unsaid = 0


class FanOut:
    """Hands each event to all subscribers, in order. Nothing here waits or raises."""

    def __init__(self, buffer: int = BUFFER) -> None:
        self._buffer = buffer
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = new_rlock()
        self._closed = False
        self._past = 0
        """Drops of subscriptions that are gone."""

    def subscribe(self, buffer: int | None = None) -> Subscription:
        """Return a new subscription to what comes from now on; a closed one after `close`."""
        subscription = Subscription(self._buffer if buffer is None else buffer)
        with self._lock:
            if self._closed:
                subscription.cancel()
            else:
                self._drop_cancelled()
                self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def publish(self, event: Event) -> None:
        """Offer an event to all; one without a type is passed over with a warning, and all are after `close`."""
        if not event.type:
            LOGGER.warning("transcript: an event without a type is not handed on")
            return
        for subscription in self._subscriptions:
            subscription.offer(event)

    def stats(self) -> Stats:
        """Return how many subscribe, and how much was dropped."""
        with self._lock:
            self._drop_cancelled()
            return Stats(len(self._subscriptions), self._past + sum(subscription.dropped for subscription in self._subscriptions))

    def close(self) -> None:
        """Close all subscriptions; the second call does nothing."""
        with self._lock:
            self._closed = True
            for subscription in self._subscriptions:
                subscription.cancel()
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        self._past += sum(subscription.dropped for subscription in self._subscriptions if subscription.closed)
        self._subscriptions = tuple(subscription for subscription in self._subscriptions if not subscription.closed)
