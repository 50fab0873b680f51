"""Formats that a tree is written to and read from."""

from __future__ import annotations

from os import PathLike

AnyPath = str | PathLike[str]
