"""What an exporter builds on: a session while it is recorded, and what a mirror of it has to offer.

A *mirror* sends sessions elsewhere while they run: `optree_otel` is one. It is made once a process, and told of each root session. A
*format* (`optree.formats`) needs none of this: it writes saved trees to files and reads them back. Both are found by their entry points
in the group ``optree.exporters``: a function that makes a mirror, or an object that is a format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from optree.builder.core import Core
from optree.builder.stream import Taker
from optree.builder.wake import Wake
from optree.ids import node_id, span_id, trace_id
from optree.nodes import OperationNode, Pool, SessionNode, TurnNode
from optree.records import OpBegin, OpEnd, Record, SessionBegin, SessionEnd, TurnBegin, TurnEnd
from optree.store import Directory
from optree.tree.path import parent_label

GROUP = "optree.exporters"


class Traced:
    """A root session while this process records it; of a session that another process owns, this process's part.

    Nodes are those of the live tree: they go on growing, and are looked at from the mirror's own thread.
    """

    def __init__(self, core: Core, directory: Directory, writer: int, *, resumed: bool = False, saved: bool = True) -> None:
        self.txn = core.txn
        self.directory = directory
        self.writer = f"{writer:04d}"
        """``0000`` in the process that owns the session."""
        self.resumed = resumed
        """True if it was loaded from disk: what had ended before is in the tree, and no record tells of it again."""
        self.saved = saved
        """False if the session could not be saved: it is in memory only, and nothing is to be noted of it on disk."""
        self.cores = [core]
        """What its handles share; a process that joined has one for each node that it was started from."""

    @property
    def pool(self) -> Pool:
        """What requests refer to."""
        return self.cores[0].pool

    def settle(self) -> None:
        """Bring entries that are on their way to the nodes of ended ops."""
        stream = self.cores[0].stream
        if stream.behind:
            stream.flush()

    def session(self, path: str) -> SessionNode | None:
        """Return a session of this process by its path; the root's is empty."""
        found = (core.builders.get(path) for core in self.cores)
        return next((builder.node for builder in found if builder is not None), None)

    def turn(self, path: str) -> TurnNode | None:
        """Return a turn by its path."""
        session = self.session(parent_label(path))
        return None if session is None else next((turn for turn in reversed(session.turns) if turn.path == path), None)

    def op(self, path: str) -> OperationNode | None:
        """Return an op by its path, if it has ended or is open in this process."""
        for core in self.cores:
            node = core.ended.get(path)
            if node is not None:
                return node
            handle = core.ops.get(path)
            if handle is not None:
                return handle.bare
        turn = self.turn(parent_label(path))
        return None if turn is None else next((op for op in turn.ops if op.path == path), None)


class Mirror(Protocol):
    """Sends sessions elsewhere while they run. Nothing in it raises, or waits longer than it is told."""

    def attach(self, session: Traced) -> Taker | None:
        """Take up a session, on the thread that begins it; what is returned receives its records, on threads of the program."""
        ...

    def enter(self, txn: str, path: str) -> None:
        """Note that the program is inside this node now, in this thread and task."""
        ...

    def leave(self, txn: str, path: str) -> None:
        """Note that it is no longer."""
        ...

    def traceparent(self, txn: str, path: str) -> str | None:
        """Return the W3C header that names a node's span; None if the session is not mirrored."""
        ...

    def flush(self, timeout: float) -> bool:
        """Wait until all that has ended so far is delivered; False if it is not within *timeout* seconds."""
        ...

    def close(self, timeout: float) -> bool:
        """Deliver what can be within *timeout* seconds; the rest is for the next run."""
        ...

    def left(self) -> int:
        """Return how much of what has ended is not delivered; to be asked after `close`."""
        ...

    def hand_over(self) -> int | None:
        """Have what is left delivered after the end of this process, by another, and return how much; None if there can be no other.

        What another process looks after, since the session is its own, is none of it. To be asked after `close`, at once before the end;
        it takes milliseconds.
        """
        ...

    def after_fork(self) -> None:
        """Start anew in a forked child; its sessions are attached again."""
        ...

    def health(self) -> Mapping[str, Any]:
        """Return ``problems`` (texts) and counts."""
        ...


MakeMirror = Callable[[Mapping[str, Any]], Mirror | None]
"""Makes the mirror from the program's options (`optree.configure(otel={…})`); None if there is nothing to send to."""

__all__ = [
    "GROUP",
    "MakeMirror",
    "Mirror",
    "OpBegin",
    "OpEnd",
    "Record",
    "SessionBegin",
    "SessionEnd",
    "Taker",
    "Traced",
    "TurnBegin",
    "TurnEnd",
    "Wake",
    "node_id",
    "span_id",
    "trace_id",
]
