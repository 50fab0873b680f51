"""How a session is kept: options for the parts of the store."""

from __future__ import annotations

from msgspec import Struct

from optree._builder.core import Cycles
from optree._builder.stream import Write
from optree._clock import Clock, wall
from optree._store.directory import Directory
from optree._store.journal import Sync
from optree._store.system import OS, REAL


class StoreOptions(Struct, frozen=True):
    """How a session is kept."""

    directory: Directory
    compression: str = "zstd"
    sync: Sync = "interval"
    write: Write = "structure"
    redacted: bool = False
    cycles: Cycles = "mark"
    now: Clock = wall
    system: OS = REAL
