"""Files that an export makes: new ones only, for their owner's eyes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from optree.errors import SetupError
from optree.store.system import REAL
from optree.syscalls import calls


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
