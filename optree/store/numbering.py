"""Which numbers were given in a session's files, so that a new writer goes on from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from optree.store.directory import SUFFIXES, Directory
from optree.store.formats import read_meta
from optree.store.plain_values import object_of
from optree.store.reader import read_journal
from optree.store.system import OS

_WRITER = re.compile(r"[0-9]{4,9}")
_MOST = 1 << 53


def saved_vector(directory: Directory, txn: str) -> dict[str, int]:
    """Return per writer the number of its last record that a snapshot has."""
    found: dict[str, int] = {}
    for compression in SUFFIXES:
        for writer, number in vector_of(read_meta(directory.snapshot(txn, compression))).items():
            found[writer] = max(found.get(writer, 0), number)
    return found


def vector_of(meta: dict[str, Any]) -> dict[str, int]:
    """Return per writer the number of its last record that a snapshot has, by its meta; what can be none is left out."""
    told = object_of(meta.get("journal"))
    return {writer: number for writer, number in told.items() if _WRITER.fullmatch(writer) and type(number) is int and 0 <= number < _MOST}


def last_number(journal: Path, system: OS) -> int:
    """Return the number of a file's last record; 0 if it has none."""
    found = read_journal(journal, 0, system)
    return found.records[-1].n if found.records else 0
