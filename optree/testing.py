"""Doubles for tests of code that is traced: a clock that ticks, a recording in memory, and a tree's shape.

    from optree.testing import capture, shape

    def test_research():
        with capture() as recording:
            research("why")
        assert ("researcher", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(recording.tree)

Nothing is written: no files, no lines on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from optree.builder import SessionTreeBuilder, Stream
from optree.capture import FINDER, instrument, uninstrument
from optree.capture.program import PROGRAM
from optree.capture.replay import ACTIVE, Replay
from optree.clock import Clock
from optree.interrupts import new_rlock
from optree.nodes import OperationNode, TurnNode
from optree.records import Record
from optree.tracing import Session
from optree.tracing.context import CURRENT, Holder
from optree.tracing.controls import load
from optree.tracing.runtime import RUNTIME
from optree.tree import Tree
from optree.tree.walk import Rooted, root_of

__all__ = ["START", "Recording", "Ticking", "capture", "replay", "shape"]

START = 1_700_000_000.0
"""Where a clock starts that is not told otherwise, in epoch seconds: 2023-11-14 22:13:20 UTC."""


class Ticking:
    """A clock that moves on by a step each time it is read, so that the times in a tree are the same in each run.

    No two readings are the same, on several threads too. Durations (`latency`) do not come from it: they are measured.
    """

    def __init__(self, start: float = START, step: float = 0.001) -> None:
        """Make the clock.

        Args:
            start: The first reading, in epoch seconds.
            step: Seconds from one reading to the next.
        """
        self.start = start
        self.step = step
        self._reads = count()

    def __call__(self) -> float:
        """Return the time, in epoch seconds."""
        return self.start + next(self._reads) * self.step


class Recording:
    """What was recorded since `capture` began; it can be read during the block and after it."""

    def __init__(self, now: Clock) -> None:
        self.sessions: list[Session] = []
        """The root sessions, in the order they began."""
        self.records: list[Record] = []
        """All that happened, in order."""
        self._now = now
        self._lock = new_rlock()

    @property
    def tree(self) -> Tree:
        """The tree of the only root session.

        Raises:
            AssertionError: There is none, or there are several.
        """
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
    """Record the root sessions that begin inside the block in memory: no files, no lines on stderr, no OpenTelemetry.

    It holds for the whole process: what other threads and tasks begin meanwhile is recorded too. Inside the block no session is open
    that was open before, and no parent in another process is joined; what was open goes on behind it. A session of calls that are made
    outside of all sessions ends with the block. It records also where optree is switched off. The sessions' txns are
    ``test-1``, ``test-2`` and so on.

    ```python
    import optree
    from optree.testing import capture, shape


    @optree.tool
    def search(query: str) -> str:
        return query.upper()


    def test_search():
        with capture() as recording:
            with optree.session("researcher"):
                search("tides")
        assert ("researcher", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(recording.tree)


    test_search()
    ```

    Args:
        now: Returns the time in epoch seconds; by default a new `Ticking`.

    Yields:
        What is recorded.
    """
    recording = Recording(now or Ticking())
    token = CURRENT.set(None)
    was_enabled = RUNTIME.config.enabled
    RUNTIME.configure(enabled=True)
    try:
        with (
            patch.object(RUNTIME, "open_root", recording.open_root),
            patch.object(RUNTIME, "join", _alone),
            patch.object(RUNTIME, "sessions", dict[str, Session]()),
            patch.object(RUNTIME, "_detached", dict[str, str]()),
            patch.object(RUNTIME, "forked_at", 0.0),
            PROGRAM.apart(),
        ):
            yield recording
    finally:
        RUNTIME.configure(enabled=was_enabled)
        CURRENT.reset(token)
        recording.close()


@contextmanager
def replay(what: str | Path | Tree, at: str | None = None) -> Generator[None, None, None]:
    """Give the program the answers that models gave in a saved session: a run in production becomes a test that needs no network.

    A request that goes through one of the libraries which `optree.instrument` hooks gets what the same request got when the session was
    recorded, and is not sent. One that was not recorded gets an error (HTTP 400) that says where it differs. It holds for the whole
    process.

    ```python
    from optree.testing import capture, replay


    def test_run_of_monday():
        with capture() as recording, replay("tests/runs/monday.json.zst"):
            research("tides")
        assert 3 == recording.tree.session.totals.tools_run
    ```

    Args:
        what: As for `optree.load`: a txn, or a file, such as the snapshot of a session, or what `optree export TXN --to json` writes, which
            has no credentials; or a tree.
        at: The path of an op or turn: what was called before it began gets its answer, all other requests are sent.

    Raises:
        AssertionError: At the end of a block that raises nothing: a request differed, or a recorded one did not come.
        OptreeError: As for `optree.load`; or the session has no op *at*.
    """
    tree = what if isinstance(what, Tree) else load(what).tree
    found = Replay(tree.session.origin_txn_id, tree, at)
    was_on = FINDER in sys.meta_path
    ACTIVE.set(found)
    try:
        instrument()
        yield
    finally:
        ACTIVE.set(None)
        if not was_on:
            uninstrument()
    missing = [f"{path} of {tree.session.origin_txn_id} was not asked for" for path in found.left]
    if said := [*found.differences, *missing]:
        raise AssertionError("; ".join(said))


def _alone(_parent: str, _ancestry: str) -> None:
    """Find no parent in another process."""


def shape(tree: Rooted | TurnNode | OperationNode) -> tuple[Any, ...]:
    """Return the structure of a tree, without times, ids and contents, to be compared with what is expected.

    Args:
        tree: A tree, a node, or what has a tree: a recording, an open session, a saved session.

    Returns:
        Nested tuples ``(label, status, *children)``. A session's label is its agent, a turn's ``turn <index>``, an operation's
            ``<kind> <name>``. The status of what is still open is None.
    """
    if isinstance(tree, TurnNode):
        return (f"turn {tree.index}", tree.status, *map(shape, tree.ops))
    if not isinstance(tree, OperationNode):
        root = root_of(tree)
        return (root.agent_id, root.status, *map(shape, root.turns))
    label = (f"{tree.kind} {tree.name}", tree.status)
    return label if tree.child_session is None else (*label, shape(tree.child_session))
