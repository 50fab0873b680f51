"""What a file format offers: trees out, and in again. Formats are found by their entry points in the group ``optree.exporters``."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from optree.store.lines import Fault
from optree.tree import Tree


class Read(Struct):
    """What a format found in a file."""

    trees: list[Tree]
    """One a root session; ready for `optree.store.importing.save`."""
    faults: list[Fault]
    """What was left out or mended, by line."""
    beside: list[Path] = []
    """Other files that were read with it, as those of sub-agents: what they hold is in the trees."""


class Format(Protocol):
    """A file format that trees are written to and read from. Detection and reading never change what is there."""

    name: str
    """What ``--to`` takes."""
    suffix: str
    """How its files' names end, such as ``.events.jsonl``."""
    about: str
    """One line for people."""
    cannot_hold: tuple[str, ...]
    """What of a tree is not in its files, for people: ``logs``, ``accounting``…; tests prove that all else comes back."""

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by a file's first bytes (unpacked, 64 KiB at most), or a directory's entries, whether it is in this format."""
        ...

    def write(self, tree: Tree, target: Path) -> list[Path]:
        """Write a tree to a new file, and to more beside it where the format wants them; returns all, the main one first.

        Raises `SetupError` if one of them is there, `OSError`.
        """
        ...

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read what a file holds, past its faults; with *strict* the first fault is raised as `FormatError`. Raises `OSError`."""
        ...


__all__ = ["Fault", "Format", "Read"]
