"""The beginning of a file, unpacked: formats are recognised by it."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path
from typing import cast

from optree._interrupts import pass_on
from optree._store.lines import opened

HEAD_BYTES = 1 << 16


def head_of(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, unpacked as far as they can be; of a directory none. Raises `OSError` for what cannot be opened."""
    if path.is_dir():
        return b""
    head = b""
    with opened(path) as source:
        while len(head) < limit:
            try:
                piece: bytes = cast("BufferedReader", source).read1(limit - len(head))
            except (OSError, EOFError) as error:  # the packed data is damaged, or breaks off
                pass_on(error)
                break
            if not piece:
                break
            head += piece
    return head
