"""`OpTreeSpanProcessor`: the spans of this program become optree sessions while they happen.

    provider.add_span_processor(OpTreeSpanProcessor())

It works beside any exporter, needs no change to the instrumentations, and records nothing of optree's own spans.

What a span stands for is often known at its start, and is recorded then; what it tells later, as its model or its messages, is added when
it is looked at again, a moment later, and at its end. A span that has not told what it stands for waits: for that moment, until something
inside it must be placed (it is a `system` op then), or until its end. Either way its own times are recorded. Spans that no agent, model
or tool has to do with, above and around, never become a session.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, Generic, TypeVar

from msgspec import Struct
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext, StatusCode, format_span_id, format_trace_id

from optree import Session, SessionTreeBuilder, configure, flush
from optree.exporting import (
    BackgroundThread,
    Scope,
    SessionBegin,
    begin_session,
    current_scope,
    forget_session,
    new_rlock,
    pass_on,
    register_at_fork,
    report_problem,
)
from optree_otel.incoming import content
from optree_otel.incoming.conventions import Meaning, meaning_within, tells
from optree_otel.incoming.recorder import SpanPlace, begin, end, end_session, end_turn, outcome, update
from optree_otel.incoming.sessions import root_attributes, root_name, service_name
from optree_otel.incoming.spans import ERROR, OK, UNSET, InEvent, InSpan

OWN_SCOPE: Final = "optree"
_STATUSES: Final = {StatusCode.UNSET: UNSET, StatusCode.OK: OK, StatusCode.ERROR: ERROR}
LOOKS = (0.01, 0.05, 0.2, 1.0)
"""Seconds after which a span is looked at again that has not told yet what it is, or what it asks."""
MOST_OPEN = 100_000
"""Spans that are kept in mind while they are open; of those that nothing is recorded of yet, the oldest are forgotten beyond it."""
T = TypeVar("T")
MOST: Final = 10_000


class OpTreeSpanProcessor(SpanProcessor):
    """Records spans that follow the GenAI, OpenInference or Traceloop conventions as sessions, and those inside them as `system` ops.

    A span that nothing is above begins a session of its own, unless optree's own code is in a session there: then it goes into that. A
    bare model or tool call stands in a session named *agent*, by default after its service. Nothing here raises, on any thread; what
    could not be recorded `optree.health()` says.
    """

    def __init__(self, *, agent: str | None = None) -> None:
        self._live = LiveSpans(agent)
        self._inside = threading.local()
        _after_fork(self._live)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the span knows its parent
        """Begin what the span stands for, if it can be told yet."""
        if not configure().enabled:
            return
        parent = span.parent
        self._guarded(span, lambda: self._live.start(lambda: _read(span), remote=parent is not None and parent.is_remote))

    def on_end(self, span: ReadableSpan) -> None:
        """Record what the span turned out to be, and its end."""
        self._guarded(span, lambda: self._live.end(_read(span)))

    def shutdown(self) -> None:
        """Deliver what is recorded. Open spans stay open: whether they ended is not known."""
        self.force_flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Deliver what is recorded to the operating system; True if that is done."""
        return flush(timeout=timeout_millis / 1e3)

    @property
    def forgotten(self) -> int:
        """Spans that could not be recorded, since their start was never seen or too many were open."""
        return self._live.forgotten

    def _guarded(self, span: ReadableSpan, work: Callable[[], None]) -> None:
        """Do the work, unless it is for a span of ours, or for one that recording itself has started."""
        scope = span.instrumentation_scope
        if (scope is not None and scope.name == OWN_SCOPE) or getattr(self._inside, "on", False):
            return
        self._inside.on = True
        try:
            work()
        except Exception as error:  # noqa: BLE001 - must not reach the traced program
            report_problem(f"a span of {span.name!r} is not recorded: {type(error).__name__}: {error}", happened=True)
        finally:
            self._inside.on = False


def _read(span: ReadableSpan) -> InSpan:
    """Return a span of the SDK as it is now."""
    context = span.get_span_context() or SpanContext(0, 0, is_remote=False)
    parent, scope = span.parent, span.instrumentation_scope
    return InSpan(
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        parent_id="" if parent is None else format_span_id(parent.span_id),
        name=span.name,
        kind=span.kind.value + 1,  # OTLP counts from 1, with 0 for none
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=dict(span.attributes or {}),
        events=[InEvent(event.timestamp, event.name, dict(event.attributes or {})) for event in span.events],
        status=_STATUSES.get(span.status.status_code, UNSET),
        message=span.status.description or "",
        resource=span.resource.attributes,
        scope=scope.name if scope is not None else "",
    )


def _after_fork(live: LiveSpans) -> None:
    """Let a forked child begin with no open spans; a processor that is gone is not kept for it."""
    reference = weakref.ref(live)

    def begin_anew() -> None:
        if (alive := reference()) is not None:
            alive.begin_anew()

    register_at_fork(after_in_child=begin_anew)


class _Open(Struct):
    """A span that has started. *scope* is where optree's own code was then, *look* reads the span again."""

    span: InSpan
    look: Callable[[], InSpan]
    above: _Open | None
    scope: Scope | None
    place: SpanPlace | None = None
    root: SessionTreeBuilder | None = None
    """The session that this span began."""
    ended: bool = False
    lost: bool = False
    """It could not be placed, and what is in it cannot either: there is no second try."""
    looks: int = 0
    highest: _Open | None = None

    @property
    def top(self) -> _Open:
        """The highest span above it that is known; itself if there is none."""
        return self.highest or self


class LiveSpans:
    """The spans that are open, and the sessions that they are in. Any thread may call."""

    def __init__(self, agent: str | None = None) -> None:
        self._agent = agent
        self.forgotten = 0
        """Spans that were still open when there were too many, or whose start was never seen."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all that is open: in a forked child, since its parent's spans end there."""
        self._lock = new_rlock()
        self._traces: dict[str, dict[str, _Open]] = {}
        self._count = 0
        self._most = MOST_OPEN
        self._later = Later(self._look_again)

    def start(self, look: Callable[[], InSpan], *, remote: bool = False) -> None:
        """Take the start of a span, with the attributes that it has by then; *remote* if its parent is in another process."""
        span = look()
        with self._lock:
            members = self._traces.setdefault(span.trace_id, {})
            above = None if remote else members.get(span.parent_id)
            open_span = _Open(span, look, above, current_scope() if above is None else None, highest=None if above is None else above.top)
            members[span.span_id] = open_span
            self._count += 1
            if _is_told(span):
                self._place(open_span)
            if _is_placed(open_span) or open_span.scope is not None or _is_placed(above) or tells(span.attributes):
                self._later.add(open_span, LOOKS[0])
            if self._count > self._most:
                self._forget()

    def end(self, span: InSpan) -> None:
        """Take the end of a span, with all that is known of it."""
        with self._lock:
            members = self._traces.get(span.trace_id, {})
            open_span = members.get(span.span_id)
            if open_span is None or open_span.ended:
                self.forgotten += configure().enabled
                return
            open_span.ended = True
            open_span.span = span
            what = meaning_within(span)
            if open_span.place is None and (what.role != "plain" or open_span.scope is not None or _is_placed(open_span.above)):
                self._place(open_span)
            self._drop(open_span, members)
            if open_span.place is not None:
                end(open_span.place, span, what)
            if open_span.root is not None:
                self._end_root(open_span, open_span.root)

    def _look_again(self, open_span: _Open) -> None:
        """Begin a span that has told meanwhile what it stands for, or add what else it has told."""
        try:
            with self._lock:
                if open_span.ended:
                    return
                open_span.span = open_span.look()
                open_span.looks += 1
                if open_span.place is not None:
                    update(open_span.place, open_span.span, meaning_within(open_span.span))
                elif _is_told(open_span.span):
                    self._place(open_span)
                if open_span.looks < len(LOOKS):
                    self._later.add(open_span, LOOKS[open_span.looks] - LOOKS[open_span.looks - 1])
        except Exception as error:  # noqa: BLE001 - the thread goes on with the next one
            report_problem(f"a span of {open_span.span.name!r} is not recorded: {type(error).__name__}: {error}", happened=True)

    def _place(self, open_span: _Open) -> None:
        """Begin a span's node, after those of all spans above it that have none yet."""
        waiting = [open_span]
        while (above := waiting[-1].above) is not None and above.place is None:
            waiting.append(above)
        for waiting_span in reversed(waiting):
            if waiting_span.place is not None:
                continue
            if waiting_span.lost:
                return
            waiting_span.lost = True
            what = meaning_within(waiting_span.span)
            if waiting_span.above is not None and waiting_span.above.place is not None:
                waiting_span.place = begin(waiting_span.above.place, waiting_span.span, what)
            elif waiting_span.scope is not None:
                waiting_span.place = begin(_within(waiting_span.scope, waiting_span.span), waiting_span.span, what)
            else:
                self._begin_root(waiting_span, what)
            waiting_span.lost = False

    def _begin_root(self, open_span: _Open, what: Meaning) -> None:
        """Begin a session for a span that nothing is above."""
        span = open_span.span
        named = root_name(span)
        agent = named or self._agent or service_name(span)
        session = begin_session(agent, root_attributes(span))
        builder = open_span.root = session.builder
        node = builder.node
        builder.record(SessionBegin(node.path, span.started_at, node.agent_id, node.call_path, node.attributes_json))  # opening took time
        user, _, _ = content.of_agent(span)
        kept = content.remaining(span, texts=builder.core.content) if named else {}
        inside = SpanPlace(builder, builder.begin_turn(user=user if named else None, attributes=kept, at=span.started_at))
        open_span.place = inside if named else begin(inside, span, what)

    def _end_root(self, open_span: _Open, builder: SessionTreeBuilder) -> None:
        span = open_span.span
        status, error = outcome(span)
        user, last, report = content.of_agent(span)
        if open_span.place is not None:
            end_turn(open_span.place.turn, span.ended_at, status, error, user, last)
        end_session(builder, span.ended_at, status, error, report)
        forget_session(builder.txn)

    def _drop(self, open_span: _Open, members: dict[str, _Open]) -> None:
        """Forget what nothing can start in any more: an ended span below one that has ended, and all that has ended below a top."""
        top = open_span.top
        if open_span is top:
            gone = [key for key, member in members.items() if member.ended and member.top is top]
        else:
            gone = [open_span.span.span_id] if open_span.place is None or top.ended else []
        self._remove(gone, members, open_span.span.trace_id)

    def _forget(self) -> None:
        """Forget the oldest spans that nothing is recorded of, until half of what may be open is left."""
        for trace_id, members in list(self._traces.items()):
            gone = [key for key, member in members.items() if member.place is None]
            self.forgotten += len(gone)
            self._remove(gone, members, trace_id)
            if self._count <= MOST_OPEN // 2:
                break
        self._most = max(MOST_OPEN, 2 * self._count)

    def _remove(self, gone: list[str], members: dict[str, _Open], trace_id: str) -> None:
        for key in gone:
            del members[key]
        self._count -= len(gone)
        if not members:
            self._traces.pop(trace_id, None)


def _is_placed(open_span: _Open | None) -> bool:
    return open_span is not None and open_span.place is not None


def _is_told(span: InSpan) -> bool:
    """Tell whether a span says by now what it stands for."""
    return meaning_within(span).role != "plain"


def _within(scope: Scope, span: InSpan) -> SpanPlace:
    """Return the place of what happens where optree's own code is; where no turn is open, in one that begins with the span."""
    session: Session = scope.session
    builder = session.builder
    turn = scope.turn or builder.current_turn
    if turn is None:
        turn = builder.begin_turn(implicit=True, at=max(span.started_at, builder.node.started_at))
    return SpanPlace(builder, turn, scope.op if scope.op is not None and scope.op.turn is turn else None, foreign=turn.implicit)


class Later(Generic[T]):
    """Does *work* with each item some seconds after it was added. The thread starts with the first item."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._items: list[tuple[float, int, T]] = []
        self._numbers = count()
        self._lock = new_rlock()
        self._changed = threading.Condition(self._lock)  # which an exception out of a handler leaves locked where it is entered itself
        self._thread: threading.Thread | None = None

    def add(self, item: T, seconds: float) -> None:
        """Take an item; beyond `MOST` none is taken."""
        with self._lock:
            if len(self._items) >= MOST:
                return
            heappush(self._items, (monotonic() + seconds, next(self._numbers), item))
            self._changed.notify()
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                self._thread = BackgroundThread(self._run, "otel-later")
                self._thread.start()
            except Exception as error:  # noqa: BLE001 - no more threads or memory: there is no other look
                pass_on(error)
                self._thread = None

    def _run(self) -> None:
        while True:
            with suppress(Exception):  # the next item may do
                self._work(self._next())

    def _next(self) -> T:
        """Wait for the next item that is due."""
        with self._lock:
            while True:
                wait = self._items[0][0] - monotonic() if self._items else None
                if wait is not None and wait <= 0:
                    return heappop(self._items)[2]
                self._changed.wait(wait)
