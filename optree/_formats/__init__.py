"""What a file format offers: trees out, and in again. Formats are found by their entry points in the group `FORMATS`.

What optree reads itself stands here: snapshots as plain JSON, and the files of the original ai-agent. Others are packages of their own. A
file that is read, and a tree that is written, stay as they are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from optree._store.files.lines import Fault
from optree._store.files.system import REAL
from optree._syscalls import calls
from optree._tree import Tree
from optree.errors import FormatError, SetupError

FORMATS = "optree.formats"
"""The group of entry points in which formats are found: each names a `Format`."""


class Read(Struct):
    """What a format found in a file."""

    trees: list[Tree]
    """One a root session; ready for `optree.exporting.save`."""
    faults: list[Fault]
    """What was left out or mended, by line."""
    beside: list[Path] = []
    """Other files that were read with it, as those of sub-agents: what they hold is in the trees."""

    def add(self, path: Path, found: Read) -> None:
        """Add the content of one more file."""
        self.trees += found.trees
        self.beside += [path, *found.beside]
        self.faults += [Fault(fault.line, f"{path.name}: {fault.said}") for fault in found.faults]


class Format(Protocol):
    """A file format that trees are written to and read from. Detection and reading never change what is there."""

    name: str
    """What ``--to`` takes."""
    suffix: str
    """How its files' names end, such as ``.events.jsonl``; empty for one that is only read."""
    about: str
    """One line for people."""
    cannot_hold: tuple[str, ...] = ()
    """What of a tree is not in its files, for people: ``logs``, ``accounting``…; tests prove that all else comes back."""

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - for those that are read
        """Tell by a file's first bytes (unpacked, 64 KiB at most), or a directory's entries, whether it is in this format.

        A format that is only written inherits this, which is never so.
        """
        return False

    def write(self, tree: Tree, target: Path) -> list[Path]:  # noqa: ARG002 - as in `detect`
        """Write a tree to a new file, and to more beside it where the format wants them; returns all, the main one first.

        Raises `SetupError` if one of them is there, `OSError`. A format that is only read inherits this, which raises `SetupError`.
        """
        raise SetupError(f"{self.name} is only read, not written: optree import FILE")

    def read(self, path: Path, *, strict: bool = False) -> Read:  # noqa: ARG002 - as in `detect`
        """Read what a file holds, past its faults; with *strict* the first fault is raised as `FormatError`. Raises `OSError`.

        A format that is only written inherits this, which raises `FormatError`.
        """
        raise FormatError(f"{path.name}: {self.name} is only written, not read")


def open_new(path: Path) -> BinaryIO:
    """Open a file for writing that must not be there yet, its owner's only, as are directories that are made for it.

    Raises `SetupError`, `OSError`.
    """
    REAL.make_directory(path.parent)
    try:
        fd = calls.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SetupError(f"{path} is there already, and stays as it is: give another name, or remove it") from None
    return os.fdopen(fd, "wb")


def write_new(path: Path, data: bytes) -> Path:
    """Write a new file as `open_new` makes it; returns its path."""
    with open_new(path) as file:
        file.write(data)
    return path


__all__ = ["FORMATS", "Fault", "Format", "Read", "open_new", "write_new"]
