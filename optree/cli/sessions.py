"""Saved sessions as a listing shows them, and loading one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optree.cli.progress import working
from optree.cli.screen import complain, figures, rounded
from optree.clock import now_ms
from optree.errors import DamagedError, FormatError, NotFoundError, OptreeError
from optree.nodes import SessionNode, Totals
from optree.store.directory import Directory, Saved
from optree.store.formats import read_meta
from optree.store.lock import is_running
from optree.store.options import StoreOptions
from optree.store.recovery import Loaded, load
from optree.store.settle import settle_all
from optree.tree.summary import last_seen
from optree.tree.walk import walk_sessions

State = Literal["running", "interrupted", "ended", "failed", "cancelled", "damaged"]
_CANCELLED = ("KeyboardInterrupt", "CancelledError", "GeneratorExit")
"""Errors of sessions that were cancelled, for files whose first frame does not say the status."""


@dataclass(frozen=True, slots=True)
class Row:
    """One session in a listing; times in epoch milliseconds, *duration* in seconds."""

    txn: str
    agent: str
    state: State
    started_at: float
    duration: float
    figures: dict[str, Any]
    size: int
    """Bytes on disk."""
    lossy: bool = False
    """True if something of it could not be read, or was lost before it was resumed."""

    def plain(self) -> dict[str, Any]:
        """Return the row under the names that JSON output has."""
        return {
            "txn": self.txn,
            "agentId": self.agent,
            "state": self.state,
            "startedAt": self.started_at,
            "durationSeconds": round(self.duration, 3),
            "bytes": self.size,
            **self.figures,
        }


def describe(saved: Saved, directory: Directory) -> Row:
    """Return the row of a session: from the first frame of its snapshot if that says all, else from the whole session."""
    meta = read_meta(saved.snapshot) if saved.snapshot is not None and saved.live is None else {}
    if not meta.get("createdAt") or "agentId" not in meta:
        return _from_tree(saved, directory)
    result: dict[str, Any] = meta.get("result") or {}
    summary: dict[str, Any] = meta.get("summary") or {}
    ended = meta.get("endedAt")
    known = {**figures(Totals()), **{key: rounded(value) for key, value in summary.items() if key != "agentsRun"}}
    seconds = max(0.0, (ended or meta.get("savedAt") or meta["createdAt"]) - meta["createdAt"]) / 1e3
    status = result.get("status") or ("cancelled" if result.get("error") in _CANCELLED else None)
    state: State = "interrupted" if ended is None else _ended(status, success=bool(result.get("success")))
    return Row(saved.txn, str(meta["agentId"]), state, meta["createdAt"], seconds, known, bytes_of(saved), bool(meta.get("damage")))


def _from_tree(saved: Saved, directory: Directory) -> Row:
    try:
        loaded = load(saved.snapshot if saved.live is None and saved.snapshot else saved.txn, directory)
    except (OptreeError, OSError, RecursionError):
        return Row(saved.txn, "", "damaged", saved.modified * 1e3, 0.0, {**figures(Totals())}, bytes_of(saved))
    return row_of(loaded, saved)


def row_of(loaded: Loaded, saved: Saved) -> Row:
    """Return the row of a session that is loaded already."""
    session = loaded.session
    state = state_of(session, saved.live)
    end = now_ms() if state == "running" else session.ended_at or last_seen(session)
    seconds = max(0.0, end - session.started_at) / 1e3
    lossy = loaded.damage.state == "damaged"
    return Row(saved.txn, session.agent_id, state, session.started_at, seconds, figures(session.totals), bytes_of(saved), lossy)


def state_of(session: SessionNode, live: Path | None) -> State:
    """Return how a session stands: running while a living process holds its lock."""
    if session.ended_at is not None:
        return _ended(session.status, success=bool(session.success))
    return "running" if live is not None and is_running(live) else "interrupted"


def _ended(status: str | None, *, success: bool) -> State:
    return "ended" if success else "cancelled" if status == "cancelled" else "failed"


def settled(directory: Directory, txn: str | None = None) -> None:
    """Settle a session that has ended, or all of them: what their own processes did not come to. Says what went wrong."""
    options = StoreOptions(directory)
    with working("settling sessions"):
        for problem in settle_all(options, [txn] if txn else None):
            complain(problem)


def bytes_of(saved: Saved) -> int:
    """Return how many bytes a session takes on disk."""
    paths = [saved.snapshot] if saved.snapshot is not None else []
    if saved.live is not None:
        paths += list(saved.live.glob("*"))
    return sum(_bytes(path) for path in paths)


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def open_session(txn: str, directory: Directory) -> tuple[Loaded, Path | None]:
    """Load what a TXN argument means, with a progress bar where that takes long; returns its live directory too, if it has one.

    A file may be of any installed format.
    """
    with working(f"loading {txn}"):
        loaded = _loaded(txn, directory)
    for session in walk_sessions(loaded.session):
        session.totals.cost_usd = rounded(session.totals.cost_usd)
        session.totals.upstream_inference_cost_usd = rounded(session.totals.upstream_inference_cost_usd)
    path = Path(txn)
    if path.is_file() or (path.is_dir() and not loaded.vector):
        return loaded, None
    live = path if path.is_dir() else directory.live(loaded.txn)
    return loaded, live if live.is_dir() else None


def _loaded(txn: str, directory: Directory) -> Loaded:
    try:
        return load(txn, directory)
    except (NotFoundError, FormatError, DamagedError):
        path = Path(txn)
        if not path.exists():
            raise
        from optree.cli.foreign import read_foreign

        found = read_foreign(path)
        if found is not None:
            return found
        if path.is_file() and "/" not in txn:
            return load(f"./{txn}", directory)  # which says what is wrong with the file
        raise
