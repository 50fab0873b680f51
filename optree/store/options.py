"""How a session is kept: options for the parts of the store."""

from __future__ import annotations

from msgspec import Struct

from optree.builder.core import Cycles
from optree.builder.stream import Write
from optree.clock import Clock, wall
from optree.store.directory import Directory
from optree.store.journal import Sync
from optree.store.system import OS, REAL


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
