"""What a program sets, asks and waits for, of all that this process records."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from optree.errors import SetupError
from optree.instrument.config import Config, Options
from optree.instrument.figures import counts_of
from optree.instrument.runtime import RUNTIME


def configure(**options: Unpack[Options]) -> Config:
    """Set options of this process before its first session; see `Config` for them. Raises `SetupError` for misuse."""
    return RUNTIME.configure(**options)


def flush(level: Literal["write", "sync", "snapshot", "export"] = "write", timeout: float = 5.0) -> bool:
    """Deliver all that is recorded: to the operating system (`write`), to the disk (`sync`), into snapshots (`snapshot`).

    `export` delivers what has ended to the collector. True only if that is done for every open session within *timeout* seconds each.
    """
    if level not in ("write", "sync", "snapshot", "export"):
        raise SetupError(f"flush({level!r}) is not possible; choose one of write, sync, snapshot, export")
    if level == "export":
        return RUNTIME.mirroring.flush(timeout)
    done = [store.flush(level, timeout) for store in list(RUNTIME.stores.values())]
    return all(done) and not RUNTIME.unsaved


def health() -> dict[str, Any]:
    """Return how recording fares: ``ok``, ``problems`` (texts), and counts of what was lost, late or dropped."""
    stores, consoles = list(RUNTIME.stores.values()), list(RUNTIME.consoles.values())
    problems, mirrored = RUNTIME.told(), RUNTIME.mirroring.health()
    counts = {name: number + RUNTIME.past[name] for name, number in counts_of(stores, consoles).items()}
    return {"ok": not problems and not counts["lost"], "problems": problems, **counts, "sessions": sorted(RUNTIME.stores), "otel": mirrored}
