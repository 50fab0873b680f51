"""An imported session on disk: a snapshot and its lines in the ledger, as if it had been recorded and had ended here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from optree._nodes import SessionNode
from optree._store.files.lock import is_running
from optree._store.files.unusable import usable
from optree._store.ledger import Ledger
from optree._store.reading.directory import SUFFIXES, Directory, exists, is_directory
from optree._store.reading.formats import read_snapshot
from optree._store.reading.snapshot import MAX_NESTED, SnapshotWriter
from optree._store.saving import StoreOptions
from optree._store.saving import save as save_snapshot
from optree._store.settle import settle_all
from optree._tree import Tree, walk_ops, walk_sessions
from optree.errors import BusyError, OptreeError, SetupError, StoreError


def save(
    tree: Tree, directory: Directory, *, replace: bool = False, force: bool = False, compression: str = "zstd", source: str = ""
) -> Path:
    """Write a session's snapshot and its bill; returns the snapshot's path. The ledger gets no entry that it has already.

    Raises `SetupError` if a session of that txn is there and *replace* is not set, or has more than this one and *force* is not set (where
    *source* names the file that this one is from), or if a file cannot be written; `BusyError` if it still has journals, `StoreError` if it
    is nested too deeply for a file, `OptreeError` if there is no room, and `OSError` in reading.
    """
    root = tree.session
    txn = root.origin_txn_id
    options = StoreOptions(directory, compression)
    settle_all(options, [txn])  # it may have ended without its process coming to that
    _check(txn, directory, replace=replace)
    more = more_there(tree, directory)
    if more and not force:
        conflict = f"session {txn}, which is there, has more than the one{f' in {source}' if source else ''}: {more}"
        raise SetupError(f"{conflict}; it stays as it is; --force puts this one in its place all the same")
    if any(session.path.count(".") >= 2 * MAX_NESTED for session in walk_sessions(root)):
        raise StoreError(f"session {txn} is not saved: its sub-agents are nested more than {MAX_NESTED} deep, which no snapshot holds")
    ledger = Ledger(directory.billing)
    _take_known_ids(root, ledger)
    snapshot = directory.snapshot(txn, compression)
    with usable(snapshot):
        save_snapshot(tree, {}, options, SnapshotWriter(compression))
    with usable(directory.billing):
        ledger.append(root, again=True, imported=True)
    return snapshot


def more_there(tree: Tree, directory: Directory) -> str:
    """Return what the session that is there under a tree's txn has more of, as in ``22 ops, not 2``; empty if nothing, or none is there."""
    txn = tree.session.origin_txn_id
    paths = [path for path in (directory.snapshot(txn, name) for name in SUFFIXES) if exists(path)]
    try:
        saved = [_counts(read_snapshot(path).tree.session) for path in paths]
    except OptreeError:  # there is nothing in it that could be lost
        return ""
    here = _counts(tree.session)
    lost = [f"{old[name]} {name}, not {here[name]}" for old in saved for name in old if old[name] > here[name]]
    return ", ".join(lost)


def _counts(root: SessionNode) -> Counter[str]:
    """Return how much of each kind a session has."""
    counts: Counter[str] = Counter()
    for session in walk_sessions(root):
        ends = (session.ended_at is not None) + sum(turn.ended_at is not None for turn in session.turns)
        counts.update({"turns": len(session.turns), "messages": len(session.messages), "ends": ends})
    for _, _, op in walk_ops(root):
        parts = sum(part is not None for part in (op.request, op.response, op.reasoning))
        counts.update({"ops": 1, "log lines": len(op.logs), "accounting entries": len(op.accounting)})
        counts.update({"contents of ops": parts, "ends": op.ended_at is not None})
    return counts


def _check(txn: str, directory: Directory, *, replace: bool) -> None:
    live = directory.live(txn)
    if is_directory(live):
        if is_running(live):
            raise BusyError(f"session {txn} is running: import it when it has ended, or elsewhere (--sessions-dir)")
        raise BusyError(
            f"session {txn} was interrupted and has its journals here, which say more: optree load {txn}, or use --sessions-dir"
        )
    snapshots = [directory.snapshot(txn, name) for name in SUFFIXES if exists(directory.snapshot(txn, name))]
    if snapshots and not replace:
        raise SetupError(
            f"session {txn} is there already ({snapshots[0].name}): it stays as it is; --replace puts the imported one in its place"
        )


def _take_known_ids(root: SessionNode, ledger: Ledger) -> None:
    """Give entries of ops that are billed already the ids that the ledger has for them, so that they are not billed again."""
    mark = f"{root.origin_txn_id}:"
    known: dict[str, list[str]] = {}
    for line in ledger.read():
        identity = line.get("id")
        if isinstance(identity, str) and identity.startswith(mark):
            known.setdefault(identity.rpartition("#")[0], []).append(identity)
    for _, _, op in walk_ops(root) if known else ():
        for entry, identity in zip(op.accounting, known.get(op.op_id, []), strict=False):
            entry.id = identity
