"""Doubles for tests of code that is traced: a clock that ticks, a recording in memory, and a tree's shape.

    from optree.testing import capture, shape

    def test_research():
        with capture() as recording:
            research("why")
        assert ("researcher", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(recording.tree)

Nothing is written: no files, no lines on stderr.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Any
from unittest.mock import patch

from optree.builder import SessionTreeBuilder, Stream
from optree.clock import Clock
from optree.instrument import Session
from optree.instrument.context import CURRENT, Holder
from optree.instrument.runtime import RUNTIME
from optree.nodes import OperationNode, TurnNode
from optree.records import Record
from optree.tree import Tree
from optree.tree.walk import Rooted, root_of

__all__ = ["START", "Recording", "Ticking", "capture", "shape"]

START = 1_700_000_000.0
"""Where a clock starts that is not told otherwise, in epoch seconds: 2023-11-14 22:13:20 UTC."""


class Ticking:
    """A clock that shows *start* when first read, and *step* more at each further reading; both in seconds.

    Readings from several threads differ from each other. Durations (`latency`) do not come from it: they are measured.
    """

    def __init__(self, start: float = START, step: float = 0.001) -> None:
        self.start = start
        self.step = step
        self._reads = count()

    def __call__(self) -> float:
        """Return the time, in epoch seconds."""
        return self.start + next(self._reads) * self.step


class Recording:
    """What was recorded since `capture` began.

    *sessions* are the root sessions in the order of their begin; *records* is everything that happened, as a subscriber receives it.
    """

    def __init__(self, now: Clock) -> None:
        self.sessions: list[Session] = []
        self.records: list[Record] = []
        self._now = now
        self._lock = Lock()

    @property
    def tree(self) -> Tree:
        """The live tree of the only root session; `AssertionError` if there are none or several."""
        if len(self.sessions) != 1:
            raise AssertionError(f"{len(self.sessions)} root sessions were recorded, not one: {[one.agent for one in self.sessions]}")
        return self.sessions[0].tree

    def take(self, batch: list[Record]) -> None:
        """Take records; called by the stream."""
        self.records.extend(batch)

    def open_root(self, agent: str, attributes: Mapping[str, Any], _holder: Holder | None = None) -> Session:
        """Begin a root session; its txn is ``test-1``, the next ``test-2``, and so on."""
        with self._lock:
            txn = f"test-{len(self.sessions) + 1}"
            stream = Stream([self], "all")
            builder = SessionTreeBuilder(agent, txn=txn, attributes=attributes, stream=stream, now=self._now, cycles=RUNTIME.config.cycles)
            session = RUNTIME.sessions[txn] = Session(builder)
            self.sessions.append(session)
        return session

    def close(self) -> None:
        """Let the background threads of the sessions end."""
        for session in self.sessions:
            session.builder.core.stream.close()


@contextmanager
def capture(now: Clock | None = None) -> Generator[Recording, None, None]:
    """Record the root sessions that begin inside the block in memory, with times from *now* (by default a new `Ticking`).

    It counts for the whole process: threads and tasks that begin a session meanwhile are recorded too. Sessions that were open before
    are out of sight inside the block, as is a parent in another process. After the block the recording can still be read.
    """
    recording = Recording(now or Ticking())
    token = CURRENT.set(None)
    try:
        with (
            patch.object(RUNTIME, "open_root", recording.open_root),
            patch.object(RUNTIME, "join", _alone),
            patch.object(RUNTIME, "sessions", dict[str, Session]()),
            patch.object(RUNTIME, "_detached", dict[str, str]()),
            patch.object(RUNTIME, "forked_at", 0.0),
        ):
            yield recording
    finally:
        CURRENT.reset(token)
        recording.close()


def _alone(_parent: str, _ancestry: str) -> None:
    """Find no parent in another process."""


def shape(tree: Rooted | TurnNode | OperationNode) -> tuple[Any, ...]:
    """Return a tree, or a node, as nested tuples ``(label, status, *children)``: for comparison, without times, ids and contents.

    A session's label is its agent, a turn's ``turn <index>``, an op's ``<kind> <name>``. The status of what is still open is None. A tree
    may be given by what holds it: a recording, a session's handle, a saved session.
    """
    if isinstance(tree, TurnNode):
        return (f"turn {tree.index}", tree.status, *map(shape, tree.ops))
    if not isinstance(tree, OperationNode):
        root = root_of(tree)
        return (root.agent_id, root.status, *map(shape, root.turns))
    label = (f"{tree.kind} {tree.name}", tree.status)
    return label if tree.child_session is None else (*label, shape(tree.child_session))
