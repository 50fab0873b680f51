"""The live trace: a second trace of each session, whole and well-formed at every moment, in services of its own (``<service> live``).

The program's threads pay for one append a batch of records. A thread of its own looks at them ten times a second, finds ops that live
long and sessions that are silent, and a sender of its own delivers, so that the canonical trace is what it is without this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from optree.exporting import (
    BackgroundThread,
    OpBegin,
    OpEnd,
    Record,
    Remembered,
    SessionBegin,
    SessionEnd,
    Traced,
    TurnBegin,
    TurnEnd,
    if_free,
    now_ms,
    pass_on,
    text,
)
from optree_otel.live_trace import CLOSE, HEARTBEAT, LONG_SECONDS, OPEN, EncodedSpan, LiveItem, LiveTrace
from optree_otel.otlp.batches import EncodedItem
from optree_otel.session_exporter import ROOT, Key
from optree_otel.signals import logs, names
from optree_otel.signals.limits import Fitter, Profile
from optree_otel.signals.protobuf import KeyValues
from optree_otel.signals.resource import KEPT_RESOURCES, Owner, Resources, joined, request

if TYPE_CHECKING:
    from optree_otel.otlp.sender import Sender
    from optree_otel.session_exporter import SessionExporter

LOOK_SECONDS: Final = 0.1
HEARTBEAT_SECONDS: Final = 10.0
"""From one log record that tells of an open session to the next; and the silence after which a span does, each time twice as long."""
LONGEST_SILENCE: Final = 320.0
LATE_SECONDS: Final = 60.0
"""How long a session is watched after its end, for ops that end late."""
_BEGINS: Final[dict[type[Record], str]] = {SessionBegin: "session", TurnBegin: "turn", OpBegin: "op"}
_ENDS: Final[dict[type[Record], str]] = {SessionEnd: "session", TurnEnd: "turn", OpEnd: "op"}
_RESOURCE = KeyValues(1)
_OF_PROCESS = ("process.", "telemetry.sdk.version", names.VERSION)
"""Left out of the resources of live services: a process that takes the session up sends the same bytes."""


class Watched:
    """A session that is watched."""

    def __init__(self, trace: LiveTrace) -> None:
        self.trace = trace
        self.young: dict[str, float] = {}
        """Open ops that are not anchored, by path, and since when (monotonic)."""
        self.ended = False
        self.beaten = self.heard = monotonic()
        self.silence = HEARTBEAT_SECONDS

    @property
    def over(self) -> bool:
        """True once all spans are sent and the session has ended; for another process's session, once nothing is open in this process."""
        return self.trace.settled and (self.ended or (self.trace.begun is not None and self.trace.exporter.open <= 0))


class Live(Remembered):
    """Live traces of the sessions of this process, and the source of their sender.

    *settle* is told when something of a session arrived; *beat* has the logs tell that a session is open still, where there are logs.
    """

    def __init__(
        self,
        resources: Resources,
        profile: Profile,
        make: Callable[[Any], Sender[LiveItem]],
        settle: Callable[[SessionExporter], None],
        beat: Callable[[SessionExporter, float], None] | None,
    ) -> None:
        super().__init__()
        self._resources, self._profile, self._settle, self._beat_in_logs = resources, profile, settle, beat
        self.sender = make(self)
        self._watched: dict[str, Watched] = {}
        self._encoded: dict[tuple[str, Owner], bytes] = {}
        self._trouble = ""
        self._start_anew()

    def clear(self) -> None:
        """Encode resources anew: the rules of redaction have changed."""
        self._encoded.clear()

    def attach(self, session: Traced, exporter: SessionExporter) -> Callable[[list[Record]], None]:
        """Take up a session; what is returned takes its records, on threads of the program."""
        trace = self._trace(exporter, joined=session.writer != "0000")
        watched = Watched(trace)
        if trace.begun is None:
            if session.resumed:
                self.put(self._asked(trace, CLOSE, trace.missing()))
            self.put(self._asked(trace, OPEN, [ROOT]))
        self._watched[exporter.txn] = watched
        self._rouse()
        if trace.begun is None:
            return trace.records.extend

        def take(batch: list[Record]) -> None:
            trace.records.extend(batch)
            self._watched.setdefault(exporter.txn, watched)  # it may have been let go of

        return take

    def missing(self, exporter: SessionExporter, *, also_open: bool) -> list[LiveItem]:
        """Return what is missing of a session that an earlier run began to show live: to be put on its way."""
        trace = self._trace(exporter)
        return self._asked(trace, CLOSE, trace.missing(also_open=also_open)) if trace.known else []

    def put(self, items: Sequence[LiveItem]) -> None:
        """Put items on their way."""
        for item in items:
            self.sender.put(item)

    def flush(self, timeout: float) -> bool:
        """Wait until all that has begun or ended is acknowledged."""
        self.look(timeout)
        return self.sender.flush(timeout)

    def close(self, timeout: float) -> bool:
        """Deliver what can be delivered within *timeout* seconds."""
        self.look(timeout)
        self._stopped.set()
        return self.sender.close(timeout)

    def after_fork(self) -> None:
        """Start anew in a forked child; its sessions are attached again."""
        self.sender.after_fork()
        self._watched = {}
        self._start_anew()

    def health(self) -> dict[str, Any]:
        """Return the sender's health, with what went wrong here."""
        health = self.sender.health()
        return {**health, "trouble": health["trouble"] or self._trouble}

    @property
    def over_budget(self) -> int:
        """Short ops that were left out, since the backend takes no more of one trace."""
        return sum(watched.trace.over_budget for watched in list(self._watched.values()))

    def log_record(self, exporter: SessionExporter, now: float) -> EncodedItem | None:
        """Return a sign of life at *now* (epoch ms) as a log record, with the ids of the live trace."""
        watched, session = self._watched.get(exporter.txn), exporter.view.session("")
        scope = watched.trace.scope("") if watched is not None else None
        if scope is None or session is None or session.ended_at is not None:
            return None
        return EncodedItem(exporter.group(scope), joined([logs.heartbeat(session, scope, now)]))

    # The source of spans, on the sender's thread.

    def encode(self, item: LiveItem) -> EncodedItem | None:
        """Return an item's span, behind the anchors that it needs."""
        item.trace.exporter.view.settle()
        spans = item.trace.spans(item)
        if not spans:
            self._arrived([item])
            return None
        return EncodedItem(tuple(spans), b"".join(span.body for span in spans))

    def frame(self, entries: Sequence[EncodedItem]) -> bytes:
        """Return an ExportTraceServiceRequest."""
        groups: dict[tuple[str, Owner], list[bytes]] = {}
        for entry in entries:
            spans: tuple[EncodedSpan, ...] = entry.group  # type: ignore[assignment]
            for group, body in spans:
                groups.setdefault(group, []).append(body)
        return request([(self._resource(*group), bodies) for group, bodies in groups.items()])

    def shrink(self, item: LiveItem, limit: int) -> EncodedItem | None:  # noqa: ARG002 - what a profile lets pass is never so large
        """Return nothing."""
        return None

    def delivered(self, items: Sequence[LiveItem]) -> None:
        """Note what the collector has."""
        by_exporter: dict[int, tuple[SessionExporter, list[str]]] = {}
        for item in items:
            by_exporter.setdefault(id(item.trace), (item.trace.exporter, []))[1].extend(item.trace.notes(item))
        for exporter, notes in by_exporter.values():
            exporter.file.add(notes)
        self._arrived(items)

    def lost(self, item: LiveItem, reason: str) -> None:  # noqa: ARG002 - the sender tells the reason in its health
        """Note that something cannot be delivered; anchors that were with it go with what comes next."""
        item.trace.undo(item)
        self._arrived([item])

    def left(self, items: Sequence[LiveItem]) -> None:
        """Leave these for the next run: their session stays pending."""
        for item in items:
            item.trace.left += item.what != HEARTBEAT
            self._settle(item.trace.exporter)

    def _arrived(self, items: Sequence[LiveItem]) -> None:
        for item in items:
            if item.what != HEARTBEAT:
                item.trace.acknowledged += 1
        for exporter in {id(item.trace): item.trace.exporter for item in items}.values():
            exporter.finish()
            self._settle(exporter)

    def _resource(self, service: str, owner: Owner) -> bytes:
        result = self._encoded.get((service, owner))
        if result is None:
            if len(self._encoded) >= KEPT_RESOURCES:
                self._encoded.pop(next(iter(self._encoded)), None)
            attributes = self._resources.attributes(service, owner)
            pairs = Fitter(self._profile).attributes([pair for pair in attributes.items() if not pair[0].startswith(_OF_PROCESS)])
            result = self._encoded[service, owner] = _RESOURCE.encode(pairs)
        return result

    # Called by the thread that watches the traces, or by one that flushes.

    def _trace(self, exporter: SessionExporter, *, joined: bool = False) -> LiveTrace:
        trace = exporter.live = LiveTrace(exporter, self._resources, joined=joined)
        return trace

    def _asked(self, trace: LiveTrace, what: str, keys: Sequence[Key]) -> list[LiveItem]:
        trace.asked += len(keys)
        return [LiveItem(trace, what, key) for key in keys]

    def _start_anew(self) -> None:
        self._looking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def _rouse(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._stopped.is_set():
            try:
                self._thread = BackgroundThread(self._run, "otel-live")
                self._thread.start()
            except Exception as error:  # noqa: BLE001 - no more threads or memory, or it is late for any: a flush looks as well
                pass_on(error)
                self._thread = None

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me and not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may do
                with suppress(Exception):  # no memory even for that
                    self._trouble = f"{type(error).__name__}: {text(error)}"

    def look(self, seconds: float = -1.0) -> None:
        """Put on its way what has come since the last look; *seconds* is how long to wait for another thread that does, -1 for ever."""
        if_free(self._looking, self._look, seconds)

    def _look(self) -> None:
        now = monotonic()
        for watched in list(self._watched.values()):
            self._take(watched, now)
            self._anchor_long(watched, now)
            if watched.trace.begun is None and not watched.ended:
                self._beat(watched, now)
            if watched.over and now - watched.heard > LATE_SECONDS:
                txn = watched.trace.exporter.txn
                self._watched.pop(txn, None)
                if watched.trace.records:  # some came just now
                    self._watched[txn] = watched

    def _take(self, watched: Watched, now: float) -> None:
        records = watched.trace.records
        while records:
            record = records[0]  # it stays until what it asks for is counted
            begins, ends = _BEGINS.get(type(record)), _ENDS.get(type(record))
            if begins is not None:
                self._begun(watched, record, Key(begins, record.path), now)  # type: ignore[attr-defined]
            elif ends is not None:
                key = Key(ends, record.path)  # type: ignore[attr-defined]
                if ends == "op":
                    watched.young.pop(key.path, None)
                    watched.trace.over.add(key.path)
                watched.ended = watched.ended or key == ROOT
                self._news(watched, CLOSE, key, now)
            records.popleft()

    def _begun(self, watched: Watched, record: Record, key: Key, now: float) -> None:
        trace = watched.trace
        if trace.begun is not None:
            trace.begun.add(str(key))
        if isinstance(record, OpBegin) and record.kind != "session":
            watched.young[key.path] = now
        else:
            self._news(watched, OPEN, key, now)

    def _anchor_long(self, watched: Watched, now: float) -> None:
        """Anchor ops that live long. The oldest stand first."""
        while watched.young:
            path, since = next(iter(watched.young.items()))
            if now - since < LONG_SECONDS:
                return
            del watched.young[path]
            self._news(watched, OPEN, Key("op", path), now)

    def _beat(self, watched: Watched, now: float) -> None:
        """Give signs of life of an open session."""
        if now - watched.beaten >= HEARTBEAT_SECONDS and self._beat_in_logs is not None:
            watched.beaten = now
            self._beat_in_logs(watched.trace.exporter, now_ms())
        if now - watched.heard >= watched.silence:
            watched.heard, watched.silence = now, min(watched.silence * 2, LONGEST_SILENCE)
            self.sender.put(LiveItem(watched.trace, HEARTBEAT, now=now_ms()))

    def _news(self, watched: Watched, what: str, key: Key, now: float) -> None:
        self.put(self._asked(watched.trace, what, [key]))
        watched.heard, watched.silence = now, HEARTBEAT_SECONDS
