"""What the command line asks of this exporter: to send what is saved, to tell what is pending, and to read files of spans."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

from optree import Directory, Loaded, SetupError, Tree
from optree.exporting import Delivery
from optree_otel import make
from optree_otel.delivered import addressed, forget, pending
from optree_otel.otlp.transport import connect, lacking
from optree_otel.settings import resolve

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class OtelResender:
    """Sends saved sessions through a mirror."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        mirror = make(options)
        if mirror is None:
            why = "; ".join(resolve(options).problems) or "OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER switches it off"
            raise SetupError(f"otel has nowhere to send to: {why}")
        self._mirror = mirror
        target = mirror.settings.traces
        if target is not None and (missing := lacking(target)):
            raise SetupError(missing)
        self.endpoint = "" if target is None else target.shown

    def problems(self) -> list[str]:
        """Return what is wrong with the options or the collector now."""
        return list(self._mirror.health()["problems"])

    def pending(self, directory: Directory, *, any_destination: bool = False) -> tuple[list[str], dict[str, int]]:
        """Return the txns of sessions of which a collector does not have all yet, and how many more wait for each other destination.

        Those that an earlier version left, which noted no destination, are among the first; with *any_destination* all are.
        """
        txns: list[str] = []
        others: Counter[str] = Counter()
        for txn in pending(directory.sessions, also_open=True):
            to = addressed(directory.sessions, txn)
            if any_destination or to is None or to.digest == self._mirror.addressee.digest:
                txns.append(txn)
            elif not directory.is_running(txn):
                others[to.shown] += 1
        return txns, dict(others)

    def forget(self, txn: str, directory: Directory) -> None:
        """Stop counting a session as pending, since it is gone from the disk."""
        forget(directory.sessions, txn)

    def send(self, loaded: Loaded, directory: Directory, *, again: bool, until: float) -> Delivery:
        """Send what is missing of a session, or with *again* all of it; waits until that monotonic time at most."""
        from optree_otel.pending import send

        before = self._counts()
        put = send(self._mirror, loaded, directory, also_open=True, again=again)
        whole = self._mirror.flush(max(0.0, until - monotonic()))
        after = self._counts()
        sent, lost = (after[name] - before[name] for name in ("delivered", "lost"))
        left = min(after["left"] - before["left"], put.spans - sent - lost)  # what waits may hold more than spans
        report = Delivery(loaded.txn, sent, left, lost, whole and not left and not put.missing, put.reason)
        passed_over = put.spans - sent - left - lost
        if passed_over > 0:
            report.said = f"{passed_over} spans were left out: the trace is full; set OPTREE_OTEL_TRACE_PER_TURN=true"
        elif not report.whole and not put.missing:
            report.said = self._mirror.health()["traces"]["last_error"] or "; ".join(self.problems()) or "the collector does not answer"
        return report

    def close(self) -> None:
        """Let go of the connection; what is not delivered stays pending."""
        self._mirror.close(0.0)

    def _counts(self) -> dict[str, int]:
        counts: dict[str, Any] = self._mirror.health()["traces"]
        return {
            "delivered": counts["delivered"],
            "lost": counts["lost"] + counts["rejected"],
            "left": counts["left"] + counts["waiting"],
        }


class OtelSpanReader:
    """Reads OTLP files, and Jaeger's."""

    def read_file(self, path: Path) -> tuple[list[Any], list[str]]:
        """Return the spans in a file, with notes on those that cannot be read."""
        from optree_otel.incoming.reading import read_file

        contents = read_file(path)
        return [*contents.spans], contents.notes

    def sessions(self, spans: list[Any], notes: list[str]) -> list[Tree]:
        """Return the sessions that spans tell of."""
        from optree_otel.incoming.sessions import sessions

        return sessions(spans, notes)


class OtelExporter:
    """OpenTelemetry, as `optree.exporting.Exporter` has it."""

    def resender(self, options: Mapping[str, Any]) -> OtelResender:
        """Return what sends saved sessions."""
        return OtelResender(options)

    def reader(self) -> OtelSpanReader:
        """Return what reads files of spans."""
        return OtelSpanReader()

    def pending(self, directory: Directory) -> list[str]:
        """Return the txns of sessions of which a collector does not have all yet."""
        return pending(directory.sessions)

    def destination(self, txn: str, directory: Directory) -> str | None:
        """Return where a pending session is to go; None if no process noted it."""
        addressee = addressed(directory.sessions, txn)
        return None if addressee is None else addressee.shown

    def waiting(self, txn: str, directory: Directory) -> int:
        """Return how many spans of a pending session are to be sent."""
        from optree_otel.pending import waiting

        return waiting(directory, txn)

    def probe(self, timeout: float) -> tuple[str, str]:
        """Return the endpoint that the environment names, and why it takes nothing now."""
        target = resolve({}).traces if any(os.environ.get(name) for name in _ENDPOINTS) else None
        if target is None:
            return "", ""
        if missing := lacking(target):
            return target.shown, missing
        connection = connect(target)
        outcome = connection.send("traces", b"", timeout)
        connection.close()
        return target.shown, "" if outcome.kind == "delivered" else outcome.text or outcome.kind


EXPORTER: Final = OtelExporter()
