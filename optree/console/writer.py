"""Lines → a file descriptor: one write a line, and a descriptor that takes no more is left alone."""

from __future__ import annotations

import os

from optree import ascii_marks
from optree.builder.core import Core
from optree.builder.subscriber import Subscriber
from optree.console.lines import LineOptions, LineRenderer
from optree.interrupts import suppress
from optree.nodes import OperationNode, Pool, SessionNode
from optree.records import Record
from optree.syscalls import calls
from optree.tree import walk_sessions


class ConsoleWriter(Subscriber):
    """Prints the lines of one root session to *fd* (2, stderr), on a thread of its own."""

    def __init__(self, txn: str, options: LineOptions, fd: int = 2) -> None:
        super().__init__(self._print, "console")
        self.wants = options.wants
        self._renderer = LineRenderer(txn, options)
        self._renderer.node = self._node
        self._cores: list[Core] = []
        """Where ops are looked up that there is something to say of."""
        self._fd = fd
        self._encoding = calls.terminal_encoding(fd)

    def introduce(self, root: SessionNode, pool: Pool | None = None) -> None:
        """Learn the agents of a session that began before, and what its requests refer to."""
        if pool is not None:
            self._renderer.refer(Pool(dict(pool.blobs), dict(pool.links)))
        for session in walk_sessions(root):
            self._renderer.know(session.path, session.agent_id)

    def look_in(self, core: Core) -> None:
        """Learn who knows the ops of the session, or of this process's part of it."""
        self._cores.append(core)

    def _node(self, path: str) -> OperationNode | None:
        for core in self._cores:
            op = core.ops.get(path)
            if (node := core.ended.get(path) if op is None else op.bare) is not None:
                return node
        return None

    def _print(self, record: Record) -> None:
        for line in self._renderer.render(record):
            with suppress(OSError):
                os.write(self._fd, line.encode(self._encoding, ascii_marks.NAME) + b"\n")
