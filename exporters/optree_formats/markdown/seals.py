"""Seals: a mark behind each event that holds a digest of all that was written before it, so that a rewritten history is found out.

A seal is the digest of the seal before it and of every byte between the two. Changing, removing or inserting anything breaks the next
seal; what was added behind the last one is not sealed yet. There is no key in it: who rewrites a log and also makes all the seals behind
anew is found out only by the last seal, which the session's summary repeats, and which you may keep elsewhere.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import BinaryIO

from optree.exporting import line_blocks, open_file
from optree_formats import AnyPath

MARK = re.compile(rb"^<!-- seal ([0-9a-f]{16}) -->[ \t]*\r?$", re.MULTILINE)
LINES = re.compile(rb"[^\n]*\n|[^\n]+")


def mark(seal: str) -> str:
    """Return a seal as it stands in a log."""
    return f"<!-- seal {seal} -->\n\n"


class Chain:
    """The seals of a log, followed line by line."""

    def __init__(self) -> None:
        self.last = ""
        """The last seal; empty where there is none."""
        self._hash = _hash("")

    def add(self, line: bytes) -> bool:
        """Take the next line, with its line break; False if it is a seal that does not fit."""
        found = MARK.match(line) if line.startswith(b"<!-- seal ") else None
        if found is None:
            self._hash.update(line)
            return True
        fits = self._hash.hexdigest() == found[1].decode()
        self.last = found[1].decode()
        self._hash = _hash(self.last)
        self._hash.update(line[found.end(1) :])
        return fits

    def seal(self, written: bytes) -> str:
        """Return the seal of what has been added, with *written* behind it; nothing is taken by that."""
        after = self._hash.copy()
        after.update(written)
        return after.hexdigest()


def broken(source: BinaryIO) -> list[int]:
    """Return the lines of the seals that do not fit: between each and the seal before it something was changed."""
    chain = Chain()
    lines = (line for _, block in line_blocks(source) for line in LINES.findall(block))
    return [number for number, line in enumerate(lines, 1) if not chain.add(line)]


def verify(path: AnyPath) -> list[int]:
    """Return the lines of a log's broken seals, see `broken`; none if its history is as it was written. Raises `OSError`."""
    with open_file(path) as source:
        return broken(source)


def _hash(key: str) -> blake2b:
    return blake2b(digest_size=8, key=key.encode(), person=b"optree.seal")
