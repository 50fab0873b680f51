"""What a program sets, asks and waits for, of all that this process records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Unpack

from optree._builder import Op
from optree._builder.guard import FAULTS, UNRECORDED
from optree._providers.prices import PRICES
from optree._store import Directory, Loaded
from optree._store.reading import recovery
from optree._store.settle import settle_left
from optree._store.upkeep import late_closed, left_synced
from optree._tracing.config import Config, Options
from optree._tracing.context import here
from optree._tracing.faults import SESSION, fault
from optree._tracing.handles import Session
from optree._tracing.runtime import RUNTIME, report_problem
from optree.errors import SetupError

for _problem in PRICES.begin(RUNTIME.config.prices, report_problem):
    report_problem(_problem)


def current() -> Op | None:
    """Return the operation that is open here, in this thread and task; of several nested ones the innermost; None if there is none.

    While optree is switched off, one that takes everything and records nothing stands in place of None.

    ```python
    import optree


    @optree.tool
    def search(query: str) -> str:
        op = optree.current()
        if op is not None:
            op.log("cache miss", severity="WRN")
        return query


    with optree.session("lead"):
        search("tides")
    ```
    """
    try:
        scope = here()
    except RecursionError:
        FAULTS.stack += 1
        return None
    except Exception as error:  # noqa: BLE001 - as in `guarded`, which costs a call more
        fault(error)
        return None
    op = scope.op if scope is not None else None
    return op if op is not None or RUNTIME.config.enabled else UNRECORDED["op"]


def current_session() -> Session | None:
    """Return the session that is open here, in this thread and task; of several nested ones the innermost; None if there is none.

    While optree is switched off, one that takes everything and records nothing stands in place of None.
    """
    try:
        scope = here()
    except RecursionError:
        FAULTS.stack += 1
        return None
    except Exception as error:  # noqa: BLE001 - as above
        fault(error)
        return None
    return scope.session if scope is not None else None if RUNTIME.config.enabled else SESSION


def configure(**options: Unpack[Options]) -> Config:
    """Set options of this process, for the sessions that begin from now on; what is not given stays as it was.

    What is given wins over the environment (``OPTREE_<NAME>``), and that over the defaults. *otel* is given before the first session: later
    it is not taken, which `health` says.

    ```python
    import optree

    optree.configure(sync="turn", compression="gzip", cycles="block")
    ```

    Args:
        **options: The fields of `optree.Config`, each by its name: ``base_dir`` (where sessions are kept), ``console`` (which lines are
            printed), ``sync`` (what waits for the disk), ``redact`` (what is left out), ``otel`` (a mirror in OpenTelemetry) and more.

    Returns:
        All options: as given, else as the environment or the defaults say.

    Raises:
        SetupError: An option does not exist, or cannot have the value.
    """
    try:
        config = RUNTIME.configure(**options)
        if "prices" in options:
            PRICES.use(config.prices)
            if config.enabled:
                PRICES.load()
        return config  # noqa: TRY300 - as all that may raise
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - what is set wrongly is an OptreeError, and raised
        fault(error)
    return RUNTIME.config


def load(what: str | Path, directory: Directory | None = None) -> Loaded:
    """Load a session from disk: one that ended, that a crash broke off, or that another process is recording now.

    A file that is damaged in part is read as far as its checksums fit; `Loaded.damage` says what is missing.

    ```python
    import optree

    with optree.session("lead"), optree.tool("search") as op:
        op.log("found it")
    optree.flush("snapshot")

    loaded = optree.load("last")
    for session, turn, op in optree.walk_ops(loaded):
        print(op.path, op.name, op.status, [entry.message for entry in op.logs])
    ```

    Args:
        what: A txn, the beginning of one, ``last`` for the one that began last, or the path of a snapshot file or live directory.
        directory: Where to look for txns; by default where this process records, as `configure` or the environment says.

    Raises:
        NotFoundError: There is no such session, or several have that beginning.
        FormatError: The file is none of ours, or of a version that only a newer optree reads.
        DamagedError: Nothing of it can be read.
        StoreError: A file or directory may not be read, or the disk fails; the message says which and what to do.
    """
    return recovery.load(what, directory or RUNTIME.directory())


before_flush: list[Callable[[float], bool]] = []
"""Called ahead of a flush, with the seconds that are left: each reads what was noted, and tells whether that is recorded."""


def flush(level: Literal["write", "sync", "snapshot", "export"] = "write", timeout: float = 5.0) -> bool:
    """Wait until all that was recorded so far is delivered.

    Args:
        level: How far: ``write`` to the operating system, so that it survives the end of the process; ``sync`` to the disk, so that it
            survives a loss of power; ``snapshot`` into the snapshot of each session that is open or has ended and is still to be saved
            here; ``export`` to the OpenTelemetry collector, what has ended. ``snapshot`` also tries sessions again that were set aside,
            since too many had ended behind a slow disk (`health` says so). Where one cannot be saved yet, this is False, and it is
            saved once that is possible, by this process or the next.
        timeout: Seconds to wait at most, for all sessions together.

    Returns:
        True if all of it is delivered; False if something is not yet, or was refused, as by a full disk: then it is tried again later.

    Raises:
        SetupError: There is no such level.
    """
    if level not in ("write", "sync", "snapshot", "export"):
        raise SetupError(f"flush({level!r}) is not possible; choose one of write, sync, snapshot, export")
    try:
        until = monotonic() + timeout
        RUNTIME.end_abandoned()
        if level == "export":
            return RUNTIME.mirroring.flush(max(0.0, until - monotonic()))
        are_read = [read(max(0.0, until - monotonic())) for read in before_flush]
        for store in list(RUNTIME.stores.values()) if level == "sync" else ():
            store.stream.flush()
            store.sync_soon()
        done = [store.flush(level, max(0.0, until - monotonic())) for store in list(RUNTIME.stores.values())]
        if level == "sync":
            done += [late_closed(max(0.0, until - monotonic())), left_synced(max(0.0, until - monotonic()))]
        elif level == "snapshot":
            RUNTIME.leaving.settle_ended(list(RUNTIME.stores.values()))
            done.append(settle_left(max(0.0, until - monotonic())))
        return all(are_read) and all(done) and not RUNTIME.unsaved and not RUNTIME.counts()["lost"]
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as in `current`
        fault(error)
    return False


def health() -> dict[str, Any]:
    """Return whether this process's recording works, and what does not.

    Returns:
        A dict with these members:

            - ``ok``: True if there is no problem, and nothing is lost; failures do not count.
            - ``enabled``: False while optree is switched off.
            - ``problems``: what is wrong at this moment, texts for people.
            - ``records``: how many were written.
            - ``lost``: how many are in no file.
            - ``late``: how many calls returned before their record was written.
            - ``failures``: how many steps of optree itself failed.
            - ``console_dropped``: how many lines were not printed.
            - ``sessions``: the txns of those that are open.
            - ``otel``: what was delivered to a collector, and what was not.
    """
    problems: list[str] = ["health() could not look at everything: see failures"]
    counts: dict[str, int] = {"records": 0, "lost": 0, "late": 0, "failures": FAULTS.calls + FAULTS.stack, "console_dropped": 0}
    sessions: list[str] = []
    mirrored: Any = {}
    try:
        sessions = sorted({*RUNTIME.sessions, *(txn for txn, store in list(RUNTIME.stores.items()) if not (store.owner or store.ended))})
        counts = RUNTIME.counts()
        counts["failures"] += FAULTS.calls + FAULTS.stack
        mirrored = RUNTIME.mirroring.health()
        problems = RUNTIME.problems.current(mirrored.get("problems", ()))
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as in `current`
        fault(error)
    is_ok = not problems and not counts["lost"]
    return {"ok": is_ok, "enabled": RUNTIME.config.enabled, "problems": problems, **counts, "sessions": sessions, "otel": mirrored}


def begin_session(agent: str, attributes: Mapping[str, Any]) -> Session:
    """Begin a root session that no `with` statement holds, for the spans of another tracer; end it through its builder."""
    if not RUNTIME.config.enabled:
        return Session(UNRECORDED["builder"])
    return RUNTIME.open_root(agent, attributes)


def forget_session(txn: str) -> None:
    """Forget a root session of `begin_session` that has ended; its last snapshot is written in the background."""
    RUNTIME.close_root(txn)
