"""How a session is kept, by options; and saving its tree as its snapshot file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

from msgspec import UNSET, Struct

from optree._background import Steps, side_by_side
from optree._builder.core import Cycles
from optree._builder.stream import Write
from optree._clock import Clock, now_ms, wall
from optree._interrupts import suppress
from optree._nodes import SessionNode
from optree._store.files.compression import unpacked_frames
from optree._store.files.system import OS, PIECE, REAL
from optree._store.journal import Sync
from optree._store.reading.directory import SUFFIXES, TEMPORARY, Directory, exists, is_directory
from optree._store.reading.snapshot import SnapshotWriter
from optree._tree import Tree
from optree._tree.redacted import redacted
from optree._tree.text import last_seen, totals_summary, untimed_until
from optree._values import decode
from optree._version import __version__


class StoreOptions(Struct, frozen=True):
    """How a session is kept."""

    directory: Directory
    compression: str = "zstd"
    sync: Sync = "interval"
    write: Write = "structure"
    redacted: bool = False
    content: bool = True
    cycles: Cycles = "mark"
    now: Clock = wall
    system: OS = REAL


def saving(
    tree: Tree,
    position: dict[str, int],
    touched: set[str],
    options: StoreOptions,
    writer: SnapshotWriter,
    *,
    last: bool,
    lost: Sequence[str] = (),
    only: bool = False,
) -> Steps[None]:
    """Replace a session's snapshot, and remove one in another compression; the *last* is unpacked first. Raises what any of it raises.

    *lost* says what could not be read of the files before it, one line each. With *only* there can be none in another compression.
    """
    root, system, directory = tree.session, options.system, options.directory
    meta = _meta(root, position) | ({"damage": list(lost)} if lost else {})
    if last and root.ended_at is None:
        meta["lastSeenAt"] = last_seen(root)  # while a session runs, its journals tell it
    pieces = writer.pieces(redacted(tree)[0] if options.redacted else tree, meta, touched)
    if last and writer.compression == "zstd":
        for _ in unpacked_frames(pieces):
            pass
    if sum(map(len, pieces)) < PIECE:
        pieces = [b"".join(pieces)]  # in one write
    path, live = directory.snapshot(root.origin_txn_id, writer.compression), directory.live(root.origin_txn_id)
    if not (live_exists := is_directory(live)):
        system.make_directory(directory.sessions)
    yield from system.replacing(path, pieces, live if live_exists else None)
    for compression in () if only else SUFFIXES:
        older = directory.snapshot(root.origin_txn_id, compression)
        if compression != writer.compression and exists(older):
            system.unlink(older)


def save(
    tree: Tree,
    position: dict[str, int],
    options: StoreOptions,
    writer: SnapshotWriter,
    *,
    lost: Sequence[str] = (),
) -> None:
    """Save as `saving` does, for the last time, without other sessions."""
    side_by_side([saving(tree, position, set(), options, writer, last=True, lost=lost)])


def sweep(folder: Path, system: OS, *, older: float = 0.0) -> None:
    """Remove what killed processes left of snapshots that they were writing.

    All of it, if the caller holds the lock of the session whose folder it is. With *older*, files that were not written to for so many
    seconds: a process that writes does so all the time.
    """
    with suppress(OSError):
        for name in os.listdir(folder):  # glob keeps errors, and with them a handler's, from Python 3.13 on
            if name.startswith(TEMPORARY) and (not older or (folder / name).lstat().st_mtime < time() - older):
                system.unlink(folder / name)


def _meta(root: SessionNode, position: dict[str, int]) -> dict[str, Any]:
    return {
        "txn": root.origin_txn_id,
        "agentId": root.agent_id,
        "createdAt": root.started_at,
        "savedAt": now_ms(),
        "endedAt": root.ended_at,
        **({} if (until := untimed_until(root)) is None else {"untimedUntil": until}),
        "result": {
            "status": root.status,
            "success": root.success,
            "error": root.error,
            "finalReport": None if root.final_report is UNSET else decode(root.final_report),
        },
        "ingress": root.attributes.get("ingress"),
        "summary": totals_summary(root),
        "journal": position,
        "optree": __version__,
    }
