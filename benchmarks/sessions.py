"""Sessions of optree for the benchmarks to write to: in memory, or on disk in a temporary directory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import work
from optree._builder import Op, SessionTreeBuilder, Turn
from optree._builder.stream import Write
from optree._store import Directory, SessionStore, open_session
from optree._store.saving import StoreOptions

LABEL = f"openai:{work.MODEL}"
ENTRIES_PER_OP = 16


@contextlib.contextmanager
def on_disk(write: Write = "structure") -> Iterator[tuple[SessionTreeBuilder, SessionStore]]:
    """Open a session with a journal; its files are removed afterwards."""
    builder, store, folder = opened(write)
    try:
        yield builder, store
    finally:
        removed(store, folder)


def opened(write: Write = "structure") -> tuple[SessionTreeBuilder, SessionStore, Path]:
    """Return a session with a journal in a new temporary directory."""
    folder = Path(tempfile.mkdtemp(prefix="optree-bench-"))
    builder, store = open_session("bench", StoreOptions(Directory.of(folder), write=write))
    return builder, store, folder


def removed(store: SessionStore, folder: Path) -> None:
    """Close a store and remove its files."""
    store.close()
    shutil.rmtree(folder, ignore_errors=True)


def fill(builder: SessionTreeBuilder, entries: int) -> None:
    """Record that many log entries, in ops of 16 and turns of 20 ops; each text is its own."""
    number = 0
    while number < entries:
        turn = builder.begin_turn()
        for _ in range(work.OPS_PER_TURN):
            number = _filled(builder, turn, number, min(ENTRIES_PER_OP, entries - number))
            if number >= entries:
                break
        turn.end()


def _filled(builder: SessionTreeBuilder, turn: Turn, number: int, entries: int) -> int:
    op: Op = builder.begin_op("llm", LABEL, turn=turn)
    for _ in range(entries):
        op.log(work.varied(number))
        number += 1
    op.end()
    return number
