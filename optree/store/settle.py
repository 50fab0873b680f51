"""Settling a session that has ended: its last snapshot, its lines in the ledger, and nothing else left of it.

The owner settles from memory as its root ends. What it did not come to (a kill, an exit that could not wait, a process that wrote on) is
settled from disk, by whoever comes first: any step may be done twice, and does nothing the second time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from optree import records as r
from optree.ids import is_txn
from optree.store import lock
from optree.store.directory import LIVE, SUFFIXES, journals
from optree.store.formats import read_meta
from optree.store.ledger import Ledger
from optree.store.options import StoreOptions
from optree.store.reader import read_journal
from optree.store.recovery import Loaded, load
from optree.store.saving import save, sweep
from optree.store.snapshot import SnapshotWriter
from optree.store.system import OS
from optree.tree import Fold, Tree

SMALL_BYTES = 4 << 20
"""Largest session, on disk, that a process settles as it ends."""
LEDGER_BYTES = 64 << 20
"""Largest ledger that it searches then."""
_END, _RESUME = b'{"t":"session.end","path":""', b'{"t":"session.resume","path":""'


def unsettled(options: StoreOptions) -> list[str]:
    """Return the txns of all sessions with a live directory."""
    try:
        found = [path.name.removesuffix(LIVE) for path in options.directory.sessions.glob(f"*{LIVE}") if not path.is_symlink()]
    except OSError:
        return []
    return [txn for txn in found if is_txn(txn)]


def settle_all(options: StoreOptions, txns: list[str] | None = None) -> list[str]:
    """Settle these sessions, or all there are; returns what went wrong. Never raises."""
    problems: list[str] = []
    for txn in unsettled(options) if txns is None else txns:
        try:
            settle(txn, options, seconds=0.0)
        except Exception as error:  # noqa: BLE001 - the next session may be sound
            problems.append(f"session {txn} cannot be settled: {error}")
    return problems


def settle(txn: str, options: StoreOptions, *, seconds: float = lock.TRY_SECONDS, leaving: bool = False) -> bool:
    """Settle a session from disk; False if it goes on, is interrupted or damaged, or a process still writes to it.

    A process that is *leaving* does only what is quick. Raises what reading, writing and locking raise.
    """
    live, system = options.directory.live(txn), options.system
    if not live.is_dir() or (leaving and not _is_small(txn, options)) or not _seems_ended(txn, options):
        return False
    owned = lock.take(live / "LOCK", system, seconds)
    if owned < 0:
        return False
    held: list[int] | None = None
    try:
        sweep(txn, options)
        paths = journals(live)
        held = lock.hold(paths, system)
        if held is None or not _settle(load(txn, options.directory, system), options, leaving=leaving):
            return False
        remove(live, paths, system)
        return True
    finally:
        lock.release([*(held or []), owned], system)


def join(tree: Tree, paths: list[Path], vector: dict[str, int], system: OS) -> set[str]:
    """Fold what other processes wrote into a tree, and move *vector* on; returns the paths of the ops that it touched."""
    fold, touched = Fold(tree.session.origin_txn_id, tree), set[str]()
    for path in paths:
        writer = path.name.split("-")[1]
        for record in read_journal(path, vector.get(writer, 0), system).records:
            fold.apply(record)
            vector[writer] = record.n
            if isinstance(record, r.OpBegin | r.OpEnd | r.Entries | r.Accounted):
                touched.add(record.path)
    tree.session.totals = fold.tree.session.totals
    return touched


def remove(live: Path, paths: list[Path], system: OS) -> None:
    """Remove the journals that were read, and the live directory, unless another process has put a new one there."""
    for path in [*paths, live / "LOCK"]:
        with suppress(FileNotFoundError):
            system.unlink(path)
    with suppress(OSError):
        system.remove_directory(live)


def _settle(loaded: Loaded, options: StoreOptions, *, leaving: bool) -> bool:
    """Save and bill what was loaded; False if its journals must stay."""
    if loaded.session.ended_at is None:
        return False
    whole = loaded.damage.state != "damaged"
    if whole and (loaded.vector != loaded.meta.get("journal") or not loaded.meta.get("endedAt")):
        save(loaded.tree, loaded.vector, set(), options, SnapshotWriter(_compression(loaded.txn, options)), last=True)
    Ledger(options.directory.billing, options.system).append(loaded.session, again=True, seconds=lock.TRY_SECONDS if leaving else None)
    return whole


def _compression(txn: str, options: StoreOptions) -> str:
    there = (name for name in SUFFIXES if options.directory.snapshot(txn, name).exists())
    return next(there, options.compression)


def _seems_ended(txn: str, options: StoreOptions) -> bool:
    """Tell whether a session's root may have ended, without parsing its journals."""
    ended = any(read_meta(options.directory.snapshot(txn, name)).get("endedAt") for name in SUFFIXES)
    for path in journals(options.directory.live(txn)):
        data = options.system.read(path) if path.name.startswith("j-0000-") else b""
        end, resume = data.rfind(_END), data.rfind(_RESUME)
        ended = ended if end == resume else end > resume
    return ended


def _is_small(txn: str, options: StoreOptions) -> bool:
    directory = options.directory
    paths = [*directory.live(txn).iterdir(), *(directory.snapshot(txn, name) for name in SUFFIXES)]
    return sum(map(_size, paths)) < SMALL_BYTES and _size(directory.billing) < LEDGER_BYTES


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
