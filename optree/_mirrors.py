"""What an exporter offers, to a running program and to the command line, and what it is given: a session while it is recorded.

A *mirror* sends sessions elsewhere while they run; a process has one, to which root sessions are attached. A *resender* sends saved ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from optree._builder.core import Core
from optree._builder.stream import Taker
from optree._nodes import OperationNode, Pool, SessionNode, TurnNode
from optree._store import Directory, Loaded
from optree._tree import Tree
from optree._tree.path import parent_label

EXPORTERS = "optree.exporters"
"""The group of entry points in which exporters are found: each names an `Exporter`."""


class Traced:
    """A root session while this process records it, or this process's part of a session that another process began.

    Its nodes are those of the live tree: they go on growing while a mirror reads them.
    """

    def __init__(self, core: Core, directory: Directory, writer: int, *, resumed: bool = False, saved: bool = True) -> None:
        self.txn: str = core.txn
        """The root session's txn."""
        self.directory: Directory = directory
        """Where it is saved."""
        self.writer: str = f"{writer:04d}"
        """The number of this process's journal; ``0000`` in the process that owns the session."""
        self.resumed: bool = resumed
        """True if it was loaded from disk: what had ended before is in the tree, and there is no record of it."""
        self.saved: bool = saved
        """False if the session is in memory only: then a mirror must not write files about it either."""
        self.cores: list[Core] = [core]
        """What its handles share; a process that joined has one for each node that it was started from."""

    @property
    def pool(self) -> Pool:
        """The content that requests refer to."""
        return self.cores[0].pool

    def settle(self) -> None:
        """Bring log lines and reasoning that are still on their way to the nodes of ended operations."""
        stream = self.cores[0].stream
        if stream.behind:
            stream.flush()

    def session(self, path: str) -> SessionNode | None:
        """Return the node of a session that this process records, by its path; None if there is none. The root's path is empty."""
        builders = (core.builders.get(path) for core in self.cores)
        return next((builder.node for builder in builders if builder is not None), None)

    def turn(self, path: str) -> TurnNode | None:
        """Return the node of a turn by its path; None if there is none."""
        session = self.session(parent_label(path))
        return None if session is None else next((turn for turn in reversed(session.turns) if turn.path == path), None)

    def op(self, path: str) -> OperationNode | None:
        """Return the node of an operation by its path; None if it is neither open in this process nor has ended in it."""
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
    """Sends sessions elsewhere while they run, as `optree_otel` does. No method may raise, or wait longer than its *timeout*."""

    def attach(self, session: Traced) -> Taker | None:
        """Take up a session, on the thread that begins it.

        Returns:
            What receives the session's records, on threads of the program; None if the session is not to be sent.
        """
        ...

    def enter(self, txn: str, path: str) -> None:
        """Note that this thread and task of the program is inside a node now."""
        ...

    def leave(self, txn: str, path: str) -> None:
        """Note that this thread and task has left a node."""
        ...

    def traceparent(self, txn: str, path: str) -> str | None:
        """Return the W3C header ``traceparent`` of a node's span; None if the session is not sent."""
        ...

    def flush(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds until all that has ended so far is delivered; returns whether it is."""
        ...

    def close(self, timeout: float) -> bool:
        """Deliver what can be within *timeout* seconds, and stop; returns whether it is all."""
        ...

    def left(self) -> int:
        """Return how many nodes that have ended are not delivered; called after `close`."""
        ...

    def hand_over(self) -> int | None:
        """Have what is left delivered after the end of this process, by another, and return how much; None if there can be no other.

        What another process looks after, since the session is its own, is none of it. To be asked after `close`, at once before the end;
        it takes milliseconds.
        """
        ...

    def after_fork(self) -> None:
        """Start anew in a forked child, where sessions are attached again."""
        ...

    def health(self) -> Mapping[str, Any]:
        """Return ``problems``, texts for people, and counts, for `optree.health`."""
        ...


MakeMirror = Callable[[Mapping[str, Any]], Mirror | None]
"""Makes the mirror from the program's options (`optree.configure(otel={…})`); None if there is nothing to send to."""


class Delivery(Struct, rename="camel"):
    """What became of one session that was sent; counts are of spans."""

    txn: str
    sent: int = 0
    """Acknowledged."""
    left: int = 0
    """Not delivered within the time; they stay pending."""
    lost: int = 0
    """Refused for good, or too much for the receiver."""
    whole: bool = True
    """False if something is left."""
    said: str = ""
    """What went wrong, for people."""


class Resender(Protocol):
    """Sends saved sessions, one after the other, so that one tree at a time is held. A class of it needs *endpoint* and `send`."""

    endpoint: str
    """Where it sends to, without credentials."""

    def send(self, loaded: Loaded, directory: Directory, *, again: bool, until: float) -> Delivery:
        """Send what is missing of a session, or with *again* all of it; waits until that monotonic time at most."""
        ...

    def problems(self) -> list[str]:
        """Return what is wrong with the options or the receiver now."""
        return []

    def pending(self, directory: Directory, *, any_destination: bool = False) -> tuple[list[str], dict[str, int]]:  # noqa: ARG002
        """Return the txns of sessions that are not delivered whole, and how many more wait for each other destination.

        With *any_destination* those are among the first.
        """
        return [], {}

    def forget(self, txn: str, directory: Directory) -> None:  # noqa: ARG002
        """Stop counting a session as pending, since it is gone from the disk."""
        return  # it is no abstract method: a class of it need not have it

    def close(self) -> None:
        """Close the connection; sessions that are not delivered stay pending."""
        return  # as above


class SpanReader(Protocol):
    """Reads files of another tracer. Spans are read from all files before sessions are made of them: a trace may be spread over files."""

    def read_file(self, path: Path) -> tuple[list[Any], list[str]]:
        """Return the spans in a file, and what is to be said about it. Raises `FormatError` if it holds none, `OSError`."""
        ...

    def sessions(self, spans: list[Any], notes: list[str]) -> list[Tree]:
        """Return the sessions that spans tell of; *notes* takes what was left out or mended."""
        ...


class Exporter(Protocol):
    """What an entry point in the group ``optree.exporters`` names, for `optree export`. A class of it needs `resender`.

    The command line asks the rest of optree's own alone. That is also the only one that programs start (`optree.configure(otel=…)`).
    """

    def resender(self, options: Mapping[str, Any]) -> Resender:
        """Return what sends saved sessions. Raises `SetupError` if there is nowhere to send to."""
        ...

    def reader(self) -> SpanReader | None:
        """Return what reads files of that tracer; None if nothing does. Raises `ImportError`."""
        return None

    def pending(self, directory: Directory) -> list[str]:  # noqa: ARG002
        """Return the txns of sessions that are not delivered whole."""
        return []

    def destination(self, txn: str, directory: Directory) -> str | None:  # noqa: ARG002
        """Return where a pending session is to go, without credentials; None if nobody noted it."""
        return None

    def waiting(self, txn: str, directory: Directory) -> int:  # noqa: ARG002
        """Return how many spans of a pending session are to be sent. Raises what `optree.load` raises."""
        return 0

    def probe(self, timeout: float) -> tuple[str, str]:  # noqa: ARG002
        """Return the endpoint that the environment names, and why it takes nothing within *timeout* seconds; empty where there is none."""
        return "", ""
