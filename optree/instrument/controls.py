"""What a program sets, asks and waits for, of all that this process records."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from optree.errors import SetupError
from optree.instrument.config import Config, Options
from optree.instrument.figures import counts_of
from optree.instrument.runtime import RUNTIME


def configure(**options: Unpack[Options]) -> Config:
    """Set options of this process, for the sessions that begin from now on; what is not given stays as it was.

    What is given wins over the environment (``OPTREE_<NAME>``), and that over the defaults.

    ```python
    import optree

    optree.configure(sync="turn", compression="gzip", cycles="block")
    ```

    Args:
        **options: The fields of `optree.Config`, each by its name.

    Returns:
        All options as they are now.

    Raises:
        SetupError: An option does not exist, or cannot have the value.
    """
    return RUNTIME.configure(**options)


def flush(level: Literal["write", "sync", "snapshot", "export"] = "write", timeout: float = 5.0) -> bool:
    """Wait until all that was recorded so far is delivered.

    Args:
        level: How far: ``write`` to the operating system, so that it survives the end of the process; ``sync`` to the disk, so that it
            survives a loss of power; ``snapshot`` into the snapshot of each open session; ``export`` to the OpenTelemetry collector, what
            has ended.
        timeout: Seconds to wait at most, for each open session.

    Returns:
        True if all of it is delivered; False if something is not yet, or was refused, as by a full disk: then it is tried again later.

    Raises:
        SetupError: There is no such level.
    """
    if level not in ("write", "sync", "snapshot", "export"):
        raise SetupError(f"flush({level!r}) is not possible; choose one of write, sync, snapshot, export")
    if level == "export":
        return RUNTIME.mirroring.flush(timeout)
    done = [store.flush(level, timeout) for store in list(RUNTIME.stores.values())]
    return all(done) and not RUNTIME.unsaved


def health() -> dict[str, Any]:
    """Return whether this process's recording works, and what does not.

    Returns:
        A dict. ``ok``: there is no problem, and nothing is lost. ``problems``: texts for people. ``records``: how many were written.
            ``lost``: records that are in no file. ``late``: calls that returned before their record was written. ``failures``: steps of
            optree itself that failed. ``console_dropped``: lines not printed. ``sessions``: the txns of those that are open. ``otel``: what
            was delivered to a collector, and what was not.
    """
    stores, consoles = list(RUNTIME.stores.values()), list(RUNTIME.consoles.values())
    problems, mirrored = RUNTIME.told(), RUNTIME.mirroring.health()
    counts = {name: number + RUNTIME.past[name] for name, number in counts_of(stores, consoles).items()}
    return {"ok": not problems and not counts["lost"], "problems": problems, **counts, "sessions": sorted(RUNTIME.stores), "otel": mirrored}
