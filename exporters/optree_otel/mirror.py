"""The mirror: each node of a running session becomes a span when it ends, and is sent until a collector has it.

The program's threads pay for a look at each record's type, and an append to a queue for those that end a node. The rest happens on
the senders' threads, from the nodes of the live tree: while a collector is away the queue holds references, not bytes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec.structs import replace

from optree import Directory, OperationNode
from optree.exporting import BackgroundThread, Taker, Traced, has_ended, pass_on, redact, text
from optree.exporting import redaction_settings as redaction
from optree_otel import otel_context
from optree_otel.delivered import BACKGROUND_BYTES, Addressee, addressed, is_done, is_sending, pending
from optree_otel.exporter_option import STOCK
from optree_otel.handover import hand_over, is_possible
from optree_otel.live import Live
from optree_otel.live_trace import HEARTBEAT, LiveItem
from optree_otel.otlp import transport
from optree_otel.otlp.batches import EncodedItem, Limits
from optree_otel.otlp.sdk import SdkTransport
from optree_otel.otlp.sender import Sender
from optree_otel.otlp.transport import connect
from optree_otel.sampling import Sampling
from optree_otel.session_exporter import Key, Resumed, SessionExporter, View
from optree_otel.settings import Settings, Signal
from optree_otel.signals.limits import profile
from optree_otel.signals.metrics import Meter
from optree_otel.signals.resource import Resources
from optree_otel.signals.scope import Origin, here
from optree_otel.sources import Ends, EndsOfPart, LogLines, MetricSource, NodeItem, Spans

EXIT_SECONDS = 0.12
"""The longest that the mirror holds the end of a process: to take down what sends takes the interpreter as long again as it has left."""
METRICS_SECONDS = 10.0
LIVE_LINGER = 0.05
"""Seconds that a span of a live trace waits for company: what brings it comes by ten times a second anyway."""
SWEPT_AHEAD = 2_000
"""Spans on their way at which the sessions of earlier runs wait on disk."""


MOST_SHARED = 1_000
"""Sessions that are looked at again at a flush; any more are left to a later run."""


class OtelMirror:
    """Mirrors the sessions of this process; `optree.exporting.Mirror`."""

    def __init__(self, settings: Settings, options: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self._options = options or {}
        self.addressee = settings.addressee(redaction())
        self.profile = profile(settings.profile)
        self.resources = Resources(
            service=settings.service_name, attributes=settings.resource, per_agent=settings.services, profile=self.profile
        )
        self.meter = Meter(profile=self.profile)
        self._sdk = SdkTransport(settings.traces) if settings.traces is not None and settings.traces.exporters else None
        self._sampling = Sampling(settings.sampler)
        self._keeping: list[threading.Thread] = []
        """What puts sessions on their way that have failed, and were not sampled."""
        self.exporters: dict[str, SessionExporter] = {}
        self._resting: WeakValueDictionary[str, SessionExporter] = WeakValueDictionary()
        """Sessions of other processes that are let go of, for as long as something else holds them."""
        self._settling = threading.RLock()
        self.logs: Sender[NodeItem] | None = None
        self.metrics: Sender[float] | None = None
        self.live: Live | None = None
        if settings.logs is not None:
            self.logs = self._sender("logs", LogLines(self.resources, self._heartbeat, content=self._events_hold_content))
        if settings.metrics is not None:
            self.metrics = self._sender("metrics", MetricSource(self.resources, lambda: self.meter))
        beside = self._beside if self.logs is not None or self.metrics is not None else None
        self.traces: Sender[NodeItem] = self._sender("traces", Spans(self.resources, self.profile, self.settle, beside))
        if settings.live:
            beat = self.beat if self.logs is not None else None
            self.live = Live(self.resources, self.profile, self._live_sender, self.settle, beat)
        self._metered = monotonic()
        self._past = 0  # spans over a trace's budget, of sessions that are let go of
        self._left = 0  # spans for a later run, of such sessions
        self.faults = ExportFaults()
        self.large = 0
        """Sessions of earlier runs that are too large to be sent in the background."""
        self.others: dict[str, Addressee | None] = {}
        """Sessions of earlier runs that wait for a program with other settings; None of those that note no addressee."""
        self._closed = False
        self._folders: set[Path] = set()
        """Directories of sessions that this process has a part in."""
        self._handed_over: int | None = None  # spans that a process of its own delivers
        self._passed_over = 0
        """Entries that lie where processes leave word of their end, and are none."""
        self._homes: WeakKeyDictionary[SessionExporter, Directory] = WeakKeyDictionary()
        """Where sessions are that this process began."""
        self._shared: dict[str, Directory] = {}
        """Those of them that are delivered as far as this process has them, and in which others had a part."""
        self._sweeping: threading.Thread | None = None
        self._unswept: list[Directory] = []
        """Where sessions of earlier runs may wait."""
        self._is_child = False  # a forked one

    def attach(self, session: Traced) -> Taker | None:
        """Take up a session; see `optree.exporting.Mirror`. One that cannot be is not sent."""
        with self.faults.caught():
            return self._attached(session)
        return None

    def _attached(self, session: Traced) -> Taker:
        root, owned = session.session(""), session.writer == "0000"
        origin: Origin | None = None
        sampled = True
        with self.faults.caught():
            origin = here(root.attributes, self.settings.parent) if root is not None and owned else None
            sampled = self._sampling.takes(session, root if owned else None, origin, self.settings.parent)
        view = Resumed(session, root) if session.resumed and root is not None else session
        earlier = self.exporters.get(session.txn) if session.resumed else None  # ahead of reading what is noted as delivered
        exporter = self.exporter(view, session, origin, sampled=sampled)
        exporter.follow(earlier)
        self.exporters[session.txn], self._homes[exporter] = exporter, session.directory
        self._folders.add(session.directory.sessions)
        if session.resumed and sampled:
            self.send(exporter, exporter.take_up())
        if owned or not self._is_child:  # else it may be the hook of a fork, which starts no thread
            self.traces.warm()
        if self._sweeping is None:
            self._unswept = [session.directory]
            self._sweeping = _started(self._sweep_all, session.directory)
        beside = self.live.attach(session, exporter) if self.live is not None and sampled else None
        if exporter.joined:
            return EndsOfPart(exporter, self.traces.put, beside, self.wake)
        keeps = None if sampled or not self.settings.sample_failed else lambda: self._keep(view, session, origin)
        return Ends(exporter, self.traces.put, beside, keeps)

    def _keep(self, view: View, session: Traced, origin: Origin | None) -> None:
        """Send a session whole that has failed, though it was not sampled: from now on it counts as pending."""
        with self.faults.caught():
            self._sampling.forget(session.txn)
            kept = self.exporter(view, session, origin)
            kept.ended = kept.late = True
            self.exporters[session.txn] = kept
            self._homes[kept] = session.directory

            def work() -> None:
                with self.faults.caught():
                    view.settle()
                    self.send(kept, kept.missing())
                    self._gathering()  # of those before it: a program may never flush

            thread = _started(work)
            self._keeping = [running for running in [*self._keeping, *([thread] if thread is not None else [])] if running.is_alive()]

    def exporter(self, view: View, session: Traced, origin: Origin | None = None, *, sampled: bool = True) -> SessionExporter:
        """Return the way out of a session."""
        return SessionExporter(
            view,
            session.directory.sessions,
            session.writer,
            resources=self.resources,
            profile=self.profile,
            addressee=self.addressee,
            origin=origin,
            content=self.settings.content in ("span_only", "span_and_event"),
            openinference=self.settings.openinference,
            trace_per_turn=self.settings.trace_per_turn,
            saved=session.saved,
            sampled=sampled,
        )

    def send(self, exporter: SessionExporter, keys: Sequence[Key], beside: Sequence[LiveItem] = ()) -> None:
        """Put nodes on their way that no record tells of; *beside*, on the way to the live trace."""
        self.exporters[exporter.txn] = exporter
        exporter.asked += len(keys)
        for key in keys:
            self.traces.put(NodeItem(exporter, key))
        if self.live is not None:
            self.live.put(beside)

    def beat(self, exporter: SessionExporter, now: float) -> None:
        """Let the logs tell that a session is open still, at *now* (epoch ms)."""
        if self.logs is not None:
            self.logs.put(NodeItem(exporter, Key(HEARTBEAT, str(now))))

    def settle(self, exporter: SessionExporter) -> None:
        """Release a session with no spans on their way: other processes may send the rest of it."""
        if exporter.finished:
            if not exporter.left and not exporter.asked:
                exporter.close()
            exporter.file.release()
            with self._settling:  # senders of several signals come here
                self._let_go(exporter)
        elif exporter.idle and not exporter.resting:
            with self._settling:
                exporter.resting = True
                if exporter.idle:  # asked again after the mark is there: what begins from now on sees it
                    exporter.file.release()
                    self._resting[exporter.txn] = exporter
                    self._let_go(exporter)
                else:
                    exporter.resting = False

    def wake(self, exporter: SessionExporter) -> None:
        """Take up again a session of another process in which this one goes on."""
        with self._settling:
            if exporter.resting:
                exporter.resting = False
                self.exporters[exporter.txn] = exporter
                exporter.begin_again()

    def _let_go(self, exporter: SessionExporter) -> None:
        if self.exporters.get(exporter.txn) is exporter:
            self._past += exporter.over_budget
            self._left += exporter.left if exporter.saved else 0
            exporter.over_budget = 0
            self._sampling.forget(exporter.txn)
            if exporter.shared and exporter in self._homes and len(self._shared) < MOST_SHARED:
                self._shared[exporter.txn] = self._homes[exporter]
            del self.exporters[exporter.txn]

    def enter(self, txn: str, path: str) -> None:
        """Make a node's span the current one of OpenTelemetry."""
        try:
            exporter = self._exporter_of(txn)
            ids = None if exporter is None else exporter.ids(path)
            if exporter is not None and ids is not None:
                otel_context.enter((txn, path), *ids, sampled=exporter.sampled)
        except Exception as error:  # noqa: BLE001 - OpenTelemetry may be half imported, a span anybody's
            pass_on(error)
            self.faults.note(error)

    def leave(self, txn: str, path: str) -> None:
        """Put back what was current before, also where the session is delivered and gone."""
        try:
            otel_context.leave((txn, path))
        except Exception as error:  # noqa: BLE001 - as in `enter`
            pass_on(error)
            self.faults.note(error)

    def traceparent(self, txn: str, path: str) -> str | None:
        """Return the W3C header that names a node's span; None if the session is not mirrored."""
        with self.faults.caught():
            exporter = self._exporter_of(txn)
            ids = None if exporter is None else exporter.ids(path)
            return None if exporter is None or ids is None else f"00-{ids[0].hex()}-{ids[1].hex()}-{exporter.sampled:02x}"
        return None

    def flush(self, timeout: float) -> bool:
        """Wait until all that has ended is acknowledged; then, in the time that is left, what earlier runs and other processes left."""
        until = monotonic() + timeout
        sweeping = [self._sweeping] if self._sweeping is not None and self._sweeping.is_alive() else []
        for thread in self._keeping:
            thread.join(max(0.0, until - monotonic()))
        whole = self._flushed(until)
        for thread in [*sweeping, *self._gathering()]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - monotonic()))
            if not thread.is_alive():  # else it goes on: what others have left is no fault of what this process has
                whole = self._flushed(until) and whole
        return whole

    def _flushed(self, until: float) -> bool:
        whole = self.traces.flush(max(0.0, until - monotonic()))
        for sender in (self.live, self.logs, self._measured()):
            if sender is not None:
                whole = sender.flush(max(0.0, until - monotonic())) and whole
        return whole

    def _gathering(self) -> list[threading.Thread]:
        """Begin to send what other processes, having gone, left of sessions of this one."""
        shared, self._shared = self._shared, {}
        thread = _started(self._gather_all, shared) if shared else None
        return [thread] if thread is not None else []

    def close(self, timeout: float) -> bool:
        """Deliver what can be delivered within *timeout* seconds, or `EXIT_SECONDS` if that is less; False if something is left."""
        timeout = min(timeout, EXIT_SECONDS)
        until = monotonic() + timeout
        if self.live is not None:
            self.live.look(timeout)
        whole = self.traces.close(max(0.0, until - monotonic()))
        for sender in (self.live, self.logs, self._measured()):
            if sender is not None:
                whole = sender.close(max(0.0, until - monotonic())) and whole
        for exporter in list(self.exporters.values()):
            exporter.withdraw()
        self._closed = True
        return whole and not self.left()

    def hand_over(self) -> int | None:
        """Have a process of its own deliver what is left, also of other processes' parts; see `optree.exporting.Mirror`."""
        with self.faults.caught():
            if self._handed_over is None and not self.traces.off and self._can_be_told and is_possible(self.settings.deliver_at_exit):
                ours = [exporter for exporter in list(self.exporters.values()) if not self._is_handed_over_by_its_owner(exporter)]
                count = self._left + _undelivered(ours, saved=True)
                if count or self._has_parts_of_others(ours) or self._has_earlier():
                    self._passed_over = hand_over(self._folders, self._options, self.addressee)
                self._handed_over = count
        return self._handed_over

    def _is_handed_over_by_its_owner(self, exporter: SessionExporter) -> bool:
        """Tell whether a session is another process's that lives: at its end it looks after what all have left.

        Of one that has ended the lock may be held by whoever settles it, this process too.
        """
        if not exporter.joined:
            return False
        home = self._homes[exporter]
        return home.is_running(exporter.txn) and not has_ended(exporter.txn, home)

    def _has_parts_of_others(self, ours: Iterable[SessionExporter]) -> bool:
        """Tell whether other processes had a part in sessions of this one that are not delivered whole: they may have left spans."""
        shared = any(not is_done(home.sessions, txn) for txn, home in list(self._shared.items()))
        return shared or any(exporter.has_others or exporter.late for exporter in ours)

    def _has_earlier(self) -> bool:
        """Tell whether sessions of earlier runs wait that this one, being short, did not come to."""
        return any(
            txn not in self.exporters and (noted := addressed(home.sessions, txn)) is not None and noted.digest == self.addressee.digest
            for home in self._unswept
            for txn in pending(home.sessions)
            if not home.is_running(txn) and not is_sending(home.sessions, txn)
        )

    def left(self) -> int:
        """Return how many spans of ended nodes no collector has yet: after `close`, those that a later run sends."""
        return self._left + _undelivered(self.exporters.values(), saved=True)

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._is_child = True
        transport.after_fork()
        if self._sdk is not None:
            self._sdk.after_fork()
        for sender in (self.traces, self.live, self.logs, self.metrics):
            if sender is not None:
                sender.after_fork()
        for exporter in self.exporters.values():
            exporter.file.release()
        self._left = self._past = self.large = self._passed_over = 0
        self.exporters, self.others, self.faults = {}, {}, ExportFaults()
        self._handed_over = None
        self._shared, self._unswept = {}, []
        self._settling = threading.RLock()
        self._resting.clear()
        self._keeping, self._sampling.left_out = [], 0
        self.meter = Meter(profile=self.profile)

    def health(self) -> Mapping[str, Any]:
        """Return counts a signal, and ``problems``: what is wrong with the options, the collector, or the disk.

        ``others`` counts sessions of earlier runs that wait for a program with other settings, by their address, ``unsampled`` sessions of
        this process that were not sampled, also those that were sent after all, ``delivering`` spans that another process sends.
        """
        problems = list(self.settings.problems)
        report: dict[str, Any] = {}
        for signal, sender in (("traces", self.traces), ("live", self.live), ("logs", self.logs), ("metrics", self.metrics)):
            if sender is not None:
                report[signal] = counts = sender.health()
                problems += [f"OpenTelemetry {signal}: {counts['trouble']}"] if counts["trouble"] else []
        over = self._past + sum(exporter.over_budget for exporter in list(self.exporters.values()))
        if over:
            message = f"{over} spans were left out: a trace of {self.profile.name} holds {self.profile.trace_bytes} bytes"
            problems.append(f"OpenTelemetry traces: {message}; set trace_per_turn")
        failed = next((exporter.file.last_failure for exporter in list(self.exporters.values()) if exporter.file.failures), "")
        problems += [f"OpenTelemetry: what is delivered cannot be noted: {failed}"] if failed else []
        problems += self.faults.problems()
        if self._closed and (lost := _undelivered(self.exporters.values(), saved=False)):
            problems.append(f"OpenTelemetry: {lost} spans were not sent, and no later run can: their session could not be saved")
        if self._passed_over:
            message = (
                f"{self._passed_over} entries below .otel/.delivery in the sessions directory are no files of optree's and are passed over"
            )
            problems.append(f"OpenTelemetry: {message}; remove them")
        if self.large:
            message = f"{self.large} sessions of earlier runs are too large to be sent in the background"
            problems.append(f"OpenTelemetry: {message}; send them with: optree export --pending")
        others = dict(Counter("unknown" if noted is None else noted.shown for noted in list(self.others.values())))
        counts = {"others": others, "unsampled": self._sampling.left_out, "delivering": self._handed_over or 0}
        return {**report, **counts, "problems": problems}

    @property
    def _can_be_told(self) -> bool:
        """Whether another process can send to the same: it has none of this one's objects, and what is missing here is missing there."""
        return (to := self.settings.traces) is None or (all(exporter == STOCK for exporter in to.exporters) and not transport.lacking(to))

    @property
    def _events_hold_content(self) -> bool:
        return self.settings.content in ("event_only", "span_and_event")

    def _beside(self, item: NodeItem, service: str) -> None:
        """Put the log lines and figures of a node on their way, whose span goes now."""
        node = item.exporter.node(item.key)
        if isinstance(node, OperationNode):
            if item.fresh:
                self.measure(node, service)
            if self.logs is not None and item.exporter.sampled and (node.logs or self._events_hold_content):
                self.logs.put(item)

    def _heartbeat(self, exporter: SessionExporter, now: float) -> EncodedItem | None:
        return self.live.log_record(exporter, now) if self.live is not None else None

    def _live_sender(self, source: Any) -> Sender[LiveItem]:
        return self._sender("traces", source, LIVE_LINGER)

    def measure(self, op: OperationNode, service: str) -> None:
        """Count a call in the metrics, which go out now and then."""
        if self.metrics is None:
            return
        self.meter.record(op, service)
        if op.kind == "llm" and monotonic() >= self._metered + METRICS_SECONDS:
            self._metered = monotonic()
            self.metrics.put(self._metered)

    def _measured(self) -> Sender[float] | None:
        """Return the sender of metrics, with what is newest on its way."""
        if self.metrics is not None and self.meter.has_news:
            self.metrics.put(monotonic())
        return self.metrics

    def _exporter_of(self, txn: str) -> SessionExporter | None:
        return self.exporters.get(txn) or self._resting.get(txn)

    def _sender(self, signal: Signal, source: Any, linger: float | None = None) -> Sender[Any]:
        destination = self.settings.destination(signal)
        if destination is None:
            raise ValueError(f"{signal} go nowhere")
        limits = Limits.of(destination)
        opened = self._sdk.connect if self._sdk is not None and signal == "traces" else lambda: connect(destination)
        return Sender(signal, source, opened, limits if linger is None else replace(limits, linger=linger))

    def _sweep_all(self, directory: Directory) -> None:
        """Take up one session of earlier runs after the other, as fast as the collector takes them."""
        with transport.loading():
            from optree_otel.pending import sweep

        sweep(self, directory, go_on=self._has_room, most=BACKGROUND_BYTES)
        if self._has_room():  # else it was broken off
            self._unswept = []

    def _gather_all(self, shared: dict[str, Directory]) -> None:
        with transport.loading():
            from optree_otel.pending import gather

        self._shared |= gather(self, shared)

    def _has_room(self) -> bool:
        """Wait until little is on its way; False once this process ends."""
        return self.traces.wait_for_room(SWEPT_AHEAD)


def _undelivered(exporters: Iterable[SessionExporter], *, saved: bool) -> int:
    return sum(
        max(0, exporter.asked - exporter.acknowledged) for exporter in list(exporters) if exporter.sampled and exporter.saved == saved
    )


def _started(work: Callable[..., None], *arguments: Any) -> threading.Thread | None:
    """Start a thread that sends what other processes left; None if no thread can be started."""
    try:
        thread = BackgroundThread(work, "otel-pending", *arguments)
        thread.start()
    except Exception as error:  # noqa: BLE001 - no more threads or memory
        pass_on(error)
        return None
    return thread


class ExportFaults:
    """How many there were, and the last."""

    def __init__(self) -> None:
        self.count = 0
        self._last = ""

    def note(self, error: Exception) -> None:
        """Count one."""
        self.count += 1
        self._last = str(redact(f"{type(error).__name__}: {text(error)}"))

    @contextmanager
    def caught(self) -> Generator[None]:
        """Catch and count what is raised inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - that is what it is for
            pass_on(error)
            self.note(error)

    def problems(self) -> list[str]:
        """Return a text about them; none if there are none."""
        return [f"OpenTelemetry: {self.count} faults of the mirror itself, the last: {self._last}"] if self.count else []
