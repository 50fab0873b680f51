"""Spans of a running program into live sessions: each is recorded as it starts and ends, where it belongs.

What a span stands for is often known at its start, and is recorded then; what it tells later, as its model or its messages, is added when
it is looked at again, a moment later, and at its end. A span that has not told what it stands for waits: for that moment, until something
inside it must be placed (it is a `system` op then), or until its end. Either way its own times are recorded. Spans that no agent, model
or tool has to do with, above and around, never become a session.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from optree import Session, SessionTreeBuilder
from optree.exporting import Scope, SessionBegin, begin_session, current_scope, forget_session, new_rlock, report_problem
from optree_otel.incoming import content
from optree_otel.incoming.later import Later
from optree_otel.incoming.meaning import Meaning, meaning_within, tells
from optree_otel.incoming.place import SpanPlace
from optree_otel.incoming.recorder import begin, end, end_session, end_turn, outcome, update
from optree_otel.incoming.sessions import root_attributes, root_name, service_name
from optree_otel.incoming.spans import InSpan

LOOKS = (0.01, 0.05, 0.2, 1.0)
"""Seconds after which a span is looked at again that has not told yet what it is, or what it asks."""
MOST_OPEN = 100_000
"""Spans that are kept in mind while they are open; of those that nothing is recorded of yet, the oldest are forgotten beyond it."""


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
            one = _Open(span, look, above, current_scope() if above is None else None, highest=None if above is None else above.top)
            members[span.span_id] = one
            self._count += 1
            if _is_told(span):
                self._place(one)
            if _is_placed(one) or one.scope is not None or _is_placed(above) or tells(span.attributes):
                self._later.add(one, LOOKS[0])
            if self._count > self._most:
                self._forget()

    def end(self, span: InSpan) -> None:
        """Take the end of a span, with all that is known of it."""
        with self._lock:
            members = self._traces.get(span.trace_id, {})
            one = members.get(span.span_id)
            if one is None or one.ended:
                self.forgotten += 1
                return
            one.ended = True
            one.span = span
            what = meaning_within(span)
            if one.place is None and (what.role != "plain" or one.scope is not None or _is_placed(one.above)):
                self._place(one)
            self._drop(one, members)
            if one.place is not None:
                end(one.place, span, what)
            if one.root is not None:
                self._end_root(one, one.root)

    def _look_again(self, one: _Open) -> None:
        """Begin a span that has told meanwhile what it stands for, or add what else it has told."""
        try:
            with self._lock:
                if one.ended:
                    return
                one.span = one.look()
                one.looks += 1
                if one.place is not None:
                    update(one.place, one.span, meaning_within(one.span))
                elif _is_told(one.span):
                    self._place(one)
                if one.looks < len(LOOKS):
                    self._later.add(one, LOOKS[one.looks] - LOOKS[one.looks - 1])
        except Exception as error:  # noqa: BLE001 - the thread goes on with the next one
            report_problem(f"a span of {one.span.name!r} is not recorded: {type(error).__name__}: {error}")

    def _place(self, one: _Open) -> None:
        """Begin a span's node, after those of all spans above it that have none yet."""
        waiting = [one]
        while (above := waiting[-1].above) is not None and above.place is None:
            waiting.append(above)
        for each in reversed(waiting):
            if each.place is not None:
                continue
            if each.lost:
                return
            each.lost = True
            what = meaning_within(each.span)
            if each.above is not None and each.above.place is not None:
                each.place = begin(each.above.place, each.span, what)
            elif each.scope is not None:
                each.place = begin(_within(each.scope, each.span), each.span, what)
            else:
                self._begin_root(each, what)
            each.lost = False

    def _begin_root(self, one: _Open, what: Meaning) -> None:
        """Begin a session for a span that nothing is above."""
        span = one.span
        named = root_name(span)
        agent = named or self._agent or service_name(span)
        session = begin_session(agent, root_attributes(span))
        builder = one.root = session.builder
        node = builder.node
        builder.record(SessionBegin(node.path, span.started_at, node.agent_id, node.call_path, node.attributes_json))  # opening took time
        user, _, _ = content.of_agent(span)
        kept = content.remaining(span) if named else {}
        inside = SpanPlace(builder, builder.begin_turn(user=user if named else None, attributes=kept, at=span.started_at))
        one.place = inside if named else begin(inside, span, what)

    def _end_root(self, one: _Open, builder: SessionTreeBuilder) -> None:
        span = one.span
        status, error = outcome(span)
        user, last, report = content.of_agent(span)
        if one.place is not None:
            end_turn(one.place.turn, span.ended_at, status, error, user, last)
        end_session(builder, span.ended_at, status, error, report)
        forget_session(builder.txn)

    def _drop(self, one: _Open, members: dict[str, _Open]) -> None:
        """Forget what nothing can start in any more: an ended span below one that has ended, and all that has ended below a top."""
        top = one.top
        if one is top:
            gone = [key for key, each in members.items() if each.ended and each.top is top]
        else:
            gone = [one.span.span_id] if one.place is None or top.ended else []
        self._remove(gone, members, one.span.trace_id)

    def _forget(self) -> None:
        """Forget the oldest spans that nothing is recorded of, until half of what may be open is left."""
        for trace_id, members in list(self._traces.items()):
            gone = [key for key, each in members.items() if each.place is None]
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


def _is_placed(one: _Open | None) -> bool:
    return one is not None and one.place is not None


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
