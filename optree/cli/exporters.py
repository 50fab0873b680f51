"""Exporters as the command line sees them: found by their entry points, and asked to send what is saved."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from time import monotonic
from typing import Any

import msgspec

from optree.errors import SetupError
from optree.exporting import GROUP
from optree.instrument.mirroring import ENDPOINTS
from optree.store.directory import Directory
from optree.store.lock import is_running
from optree.store.recovery import Loaded

OTEL = "otel"
PROBE_SECONDS = 2.0


class Report(msgspec.Struct, rename="camel"):
    """What became of one session; counts are of spans."""

    txn: str
    sent: int = 0
    """Taken by the collector."""
    left: int = 0
    """Not delivered within the time; they stay pending."""
    lost: int = 0
    """Refused by the collector for good, or too much for it."""
    whole: bool = True
    said: str = ""


class Resender:
    """Sends saved sessions through an exporter's mirror, one after the other, so that one tree at a time is held."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise `SetupError` if there is no such exporter, or nowhere to send to."""
        point = _point(name)
        self._module, self._noted = _part(point, "pending"), _part(point, "delivered")
        self._mirror: Any = _loaded(point)(options)
        if self._mirror is None:
            problems: tuple[str, ...] = _part(point, "settings").resolve(options).problems
            why = "; ".join(problems) or "OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER switches it off"
            raise SetupError(f"{name} has nowhere to send to: {why}")

    @property
    def collector(self) -> str:
        """The address that spans go to."""
        return str(self._mirror.settings.traces.shown)

    def problems(self) -> list[str]:
        """Return what is wrong with the options or the collector now."""
        return list(self._mirror.health()["problems"])

    def pending(self, where: Directory, *, any_destination: bool = False) -> tuple[list[str], dict[str, int]]:
        """Return the txns of sessions of which a collector does not have all yet, and how many more wait for each other destination.

        Those that an earlier version left, which noted no destination, are among the first; with *any_destination* all are.
        """
        found: list[str] = []
        others: Counter[str] = Counter()
        for txn in self._noted.pending(where.sessions, also_open=True):
            to = self._noted.addressed(where.sessions, txn)
            if any_destination or to is None or to.digest == self._mirror.addressee.digest:
                found.append(txn)
            elif not is_running(where.live(txn)):
                others[to.shown] += 1
        return found, dict(others)

    def forget(self, txn: str, where: Directory) -> None:
        """Stop counting a session as pending, since it is gone from the disk."""
        self._noted.forget(where.sessions, txn)

    def send(self, loaded: Loaded, where: Directory, *, again: bool, until: float) -> Report:
        """Send what is missing of a session, or with *again* all of it; waits until that monotonic time at most."""
        before = self._counts()
        put = self._module.send(self._mirror, loaded, where, also_open=True, again=again)
        whole = self._mirror.flush(max(0.0, until - monotonic()))
        after = self._counts()
        sent, lost = (after[name] - before[name] for name in ("delivered", "lost"))
        left = min(after["left"] - before["left"], put.spans - sent - lost)  # what waits may hold more than spans
        report = Report(loaded.txn, sent, left, lost, whole and not left, put.said)
        passed_over = put.spans - sent - left - lost
        if passed_over > 0:
            report.said = f"{passed_over} spans were left out: the trace is full; set OPTREE_OTEL_TRACE_PER_TURN=true"
        elif not report.whole:
            report.said = self._mirror.health()["traces"]["last_error"] or "; ".join(self.problems()) or "the collector does not answer"
        return report

    def close(self) -> None:
        """Let go of the connection; what is not delivered stays pending."""
        self._mirror.close(0.0)

    def _counts(self) -> dict[str, int]:
        told: dict[str, Any] = self._mirror.health()["traces"]
        return {
            "delivered": told["delivered"],
            "lost": told["lost"] + told["rejected"],
            "left": told["left"] + told["waiting"],
        }


def exporters() -> list[str]:
    """Return the names of the exporters that are installed."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def unknown(name: str) -> SetupError:
    """Return what is to be raised for a name that no exporter has."""
    from difflib import get_close_matches

    there = exporters()
    if not there:
        return SetupError("no exporter is installed: pip install 'optree-tracing[otel]'")
    near = get_close_matches(name.lower(), there, 1)
    hint = f"did you mean {near[0]}? (optree formats lists all)" if near else f"choose one of {', '.join(there)}"
    return SetupError(f"there is no exporter {name!r}; {hint}")


def pending(where: Directory) -> list[str]:
    """Return the txns of sessions of which a collector does not have all yet; none if they cannot be sent from here anyway."""
    found = next(iter(entry_points(group=GROUP, name=OTEL)), None)
    return [] if found is None else list(_part(found, "delivered").pending(where.sessions))


def addressed(txn: str, where: Directory) -> str | None:
    """Return where a pending session is to go, without credentials; None if nobody noted it."""
    found = _part(_point(OTEL), "delivered").addressed(where.sessions, txn)
    return None if found is None else str(found.shown)


def waiting(txn: str, where: Directory) -> int:
    """Return how many spans of a pending session are to be sent; raises what loading it raises."""
    return int(_part(_point(OTEL), "waiting").waiting(where, txn))


def collector() -> tuple[str, str]:
    """Return the address that the environment names, and why it takes nothing now; texts are empty where there is none."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return "", ""
    point = _point(OTEL)
    target = _part(point, "settings").resolve({}).traces
    if target is None:
        return "", ""
    connection = _part(point, "transport").connect(target)
    outcome = connection.send("traces", b"", PROBE_SECONDS)
    connection.close()
    return str(target.shown), "" if outcome.kind == "delivered" else str(outcome.text or outcome.kind)


def _point(name: str) -> EntryPoint:
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        raise unknown(name)
    return found


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(f"exporter {point.name} cannot be loaded: pip install 'optree-tracing[otel]' ({error})") from error


def _part(point: EntryPoint, name: str) -> Any:
    """Return a module of an exporter: it lies above the command line, and is found by its name."""
    try:
        return importlib.import_module(f"{point.module}.{name}")
    except ImportError as error:
        raise SetupError(f"exporter {point.name} cannot be loaded: pip install 'optree-tracing[otel]' ({error})") from error
