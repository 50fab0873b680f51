"""Which numbers were given in a session's files, so that a new writer goes on from them."""

from __future__ import annotations

from pathlib import Path

from optree.store.directory import SUFFIXES, Directory
from optree.store.formats import read_meta
from optree.store.reader import read_journal
from optree.store.system import OS


def saved_vector(directory: Directory, txn: str) -> dict[str, int]:
    """Return per writer the number of its last record that a snapshot has."""
    found: dict[str, int] = {}
    for compression in SUFFIXES:
        for writer, number in read_meta(directory.snapshot(txn, compression)).get("journal", {}).items():
            found[writer] = max(found.get(writer, 0), number)
    return found


def last_number(journal: Path, system: OS) -> int:
    """Return the number of a file's last record; 0 if it has none."""
    found = read_journal(journal, 0, system)
    return found.records[-1].n if found.records else 0
