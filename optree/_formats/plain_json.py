"""A whole tree as one JSON document, in the form of a snapshot but for its compression: nothing is left out."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from optree._formats import Fault, Read, write_new
from optree._store.reading.formats import read_snapshot
from optree._store.reading.snapshot import SnapshotWriter
from optree._tree import Fold, Tree
from optree._tree.text import snapshot_summary
from optree.errors import FormatError, StoreError

_HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"meta"\s*:\s*\{')


class PlainJson:
    """Our own form, for `jq` and other programs."""

    name = "json"
    suffix = ".json"
    about = "everything, as one JSON document: a snapshot that is not compressed"
    cannot_hold: tuple[str, ...] = ()

    def detect(self, path: pathlib.Path, head: bytes) -> bool:
        """Tell by how a snapshot begins; a compressed one is one too."""
        return not path.is_dir() and _HEAD.match(head) is not None

    def write(self, tree: Tree, target: pathlib.Path) -> list[pathlib.Path]:
        """Write a tree. Raises `StoreError` if it is nested more deeply than JSON is read."""
        try:
            pieces = SnapshotWriter("none", reuse=False, sums=False).pieces(tree, _meta(tree), set())
        except ValueError as error:
            raise StoreError(f"session {tree.session.origin_txn_id}: {error}") from error
        return [write_new(target, b"".join(pieces))]

    def read(self, path: pathlib.Path, *, strict: bool = False) -> Read:
        """Read a tree; one that breaks off as far as it goes."""
        snapshot = read_snapshot(path)
        flaws = [*([snapshot.damage.removeprefix(f"{path.name} ")] if snapshot.damage else []), *snapshot.renamed]
        if strict and flaws:
            raise FormatError(f"{path.name}: {flaws[0]}")
        tree = Fold(snapshot.tree.session.origin_txn_id, snapshot.tree).finish()
        return Read([tree], [Fault(0, flaw) for flaw in flaws])


def _meta(tree: Tree) -> dict[str, Any]:
    """Return what a listing shows; nothing of when and by whom it was written, so that the same tree gives the same bytes."""
    root = tree.session
    return {
        "txn": root.origin_txn_id,
        "agentId": root.agent_id,
        "createdAt": root.started_at,
        "endedAt": root.ended_at,
        "result": {"status": root.status, "success": root.success, "error": root.error},
        "summary": snapshot_summary(root)["totals"],
    }


JSON = PlainJson()
