"""The mirror of this process: made when the first session begins, given every session, asked at flush, exit and health."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from optree._builder.core import Core
from optree._builder.stream import Stream
from optree._interrupts import pass_on
from optree._mirrors import MakeMirror, Mirror, Traced
from optree._store import Directory
from optree._tracing import context
from optree.errors import SetupError

PACKAGE = "optree_otel"
"""By name, since it lies above; its entry point would be slow to look up on the thread that begins a session."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def check_options(options: object) -> None:
    """Raise `SetupError` for options of the mirror that are not possible. Where it is not installed, that is said when a session begins."""
    if not isinstance(options, Mapping):
        return
    try:
        wrong: list[str] = import_module(PACKAGE).wrong_options(options)
    except ImportError as error:
        pass_on(error)
        return
    if wrong:
        raise SetupError(f"otel: {'; '.join(wrong)}")


class Mirroring:
    """Holds the mirror, if one is wanted and there is one."""

    def __init__(self, report: Callable[[str], None], report_happened: Callable[[str], None]) -> None:
        self._report, self._report_happened = report, report_happened
        self._mirror: Mirror | None = None
        self._taken: tuple[str, Mapping[str, Any]] | None = None
        """What was wanted when the first session began."""
        self._traced: dict[str, Traced] = {}

    def follow(
        self,
        otel: str | Mapping[str, Any],
        core: Core,
        stream: Stream,
        directory: Directory,
        writer: int,
        *,
        resumed: bool = False,
        saved: bool = True,
    ) -> None:
        """Let the mirror have a session from now on, if *otel* (``auto``, ``on``, ``off``, or options) and the environment say so."""
        wanted, options = _wanted(otel)
        if wanted != "off" and self._taken is None:
            self._taken = wanted, dict(options)
            self._mirror = self._make(wanted, options)
            context.follower = self._mirror
        self.compare(otel)
        if self._mirror is None or wanted == "off":
            return
        traced = self._traced.get(core.txn)
        if traced is not None and stream is traced.cores[0].stream and writer:
            traced.cores.append(core)
            return
        traced = self._traced[core.txn] = Traced(core, directory, writer, resumed=resumed, saved=saved)
        try:
            taker = self._mirror.attach(traced)
        except Exception as error:  # noqa: BLE001 - an exporter's fault must not reach the program
            pass_on(error)
            self._report_happened(f"OpenTelemetry: session {core.txn} is not sent: {type(error).__name__}: {error}")
            return
        if taker is not None:
            stream.subscribe(taker, ordered=False)

    def compare(self, otel: str | Mapping[str, Any]) -> None:
        """Report it if another mirror is wanted now than the first session has begun with."""
        if otel != "off" and self._taken is not None and self._taken != _wanted(otel):
            self._report("OpenTelemetry: configure(otel=…) is not taken once a session has begun: give it before the first one")

    @property
    def is_on(self) -> bool:
        """True if a session was to be sent, and there is where to."""
        return self._mirror is not None

    def forget(self, txn: str) -> None:
        """Forget a session that is over; the mirror keeps what it has to send."""
        self._traced.pop(txn, None)

    def flush(self, timeout: float) -> bool:
        """Wait until all is delivered; True as well if nothing is mirrored."""
        return self._mirror is None or self._mirror.flush(timeout)

    def close(self, timeout: float) -> None:
        """Deliver what can be delivered within *timeout* seconds."""
        if self._mirror is not None:
            self._mirror.close(timeout)

    def hand_over(self, say: Callable[[str], None]) -> None:
        """Let another process deliver the spans that are left, and *say* so; report it if none can. Called after or instead of `close`."""
        if self._mirror is None:
            return
        if handed_over := self._mirror.hand_over():
            say(f"OpenTelemetry: {handed_over} spans are being delivered by a process of their own")
        elif handed_over is None and (left := self._mirror.left()):
            self._report_happened(
                f"OpenTelemetry: {left} spans are not sent yet: the next run with the same settings sends them, or optree export --pending"
            )

    def after_fork(self) -> list[Traced]:
        """Start anew in a forked child; returns the sessions that were mirrored."""
        before = list(self._traced.values())
        self._traced.clear()
        if self._mirror is not None:
            self._mirror.after_fork()
        return before

    def health(self) -> Mapping[str, Any]:
        """Return the mirror's own health."""
        return {} if self._mirror is None else self._mirror.health()

    def _make(self, wanted: str, options: Mapping[str, Any]) -> Mirror | None:
        if wanted == "auto" and not options and not any(os.environ.get(name) for name in ENDPOINTS):
            return None
        try:
            make: MakeMirror = import_module(PACKAGE).make
            mirror = make(options)
            for problem in () if mirror is None else mirror.health().get("problems", ()):
                self._report(problem)  # settings in the environment that are not possible
            return mirror  # noqa: TRY300 - as all that may raise
        except Exception as error:  # noqa: BLE001 - an exporter's fault must not reach the program
            pass_on(error)
            self._report(f"OpenTelemetry: nothing is sent: {type(error).__name__}: {error}")
            return None


def _wanted(otel: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return (otel, {}) if isinstance(otel, str) else ("on", otel)
