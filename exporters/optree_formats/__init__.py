"""Formats that a tree is written to and read from.

In come trees, the records of running sessions, and files; out go files and trees. What is needed of optree comes through its public names
and `optree.exporting`; a tree that is given is not changed, and neither is a file that is read.
"""

from __future__ import annotations

from os import PathLike

AnyPath = str | PathLike[str]
