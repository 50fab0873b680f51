"""Doubles for tests of code that is traced: a clock that ticks, a recording in memory, and a tree's shape.

    from optree.testing import capture, shape

    def test_research():
        with capture() as recording:
            research("why")
        assert ("researcher", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(recording.tree)

Nothing is written: no files, no lines on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from optree._builder import SessionTreeBuilder, Stream
from optree._capture import FINDER, instrument, uninstrument
from optree._capture.calls.program import PROGRAM
from optree._capture.replay import ACTIVE, WITHOUT_CONTENT, Replay, as_recorded
from optree._clock import Clock
from optree._formats.plain_json import JSON
from optree._interrupts import new_rlock
from optree._nodes import OperationNode, TurnNode
from optree._records import Record
from optree._store.files.system import REAL
from optree._store.opening import current_run
from optree._store.reading.directory import exists
from optree._store.reading.runs import load_run
from optree._tracing import Session
from optree._tracing.context import CURRENT, Holder
from optree._tracing.runtime import RUNTIME
from optree._tree import Tree
from optree._tree.redacted import redacted
from optree._tree.walk import Rooted, root_of, walk_ops
from optree.errors import NotFoundError, OptreeError

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

    def open_root(
        self,
        agent: str,
        attributes: Mapping[str, Any],
        holder: Holder | None = None,  # noqa: ARG002 - as of the runtime
        resume: str | None = None,
    ) -> Session:
        """Begin a root session; its txn is ``test-1``, the next ``test-2``, and so on. None goes on: there is nothing on the disk."""
        if resume is not None:
            attributes = {**attributes, "continues": resume, "not_resumed": "sessions of a test are in memory"}
        with self._lock:
            txn = f"test-{len(self.sessions) + 1}"
            stream = Stream([self], "all")
            conf = RUNTIME.config
            builder = SessionTreeBuilder(
                agent, txn=txn, attributes=attributes, stream=stream, now=self._now, cycles=conf.cycles, content=conf.content
            )
            session = RUNTIME.sessions[txn] = Session(builder)
            self.sessions.append(session)
        for noted in _NOTED:
            noted[session.builder] = session
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
def replay(
    what: str | Path | Tree, at: str | None = None, *, tools: Literal["recorded", "live"] = "recorded"
) -> Generator[None, None, None]:
    """Give the program what models and tools gave in a saved session: a run in production becomes a test that needs no network.

    A request that goes through one of the libraries which `optree.instrument` hooks gets what the same request got when the session was
    recorded, and is not sent; a tool that is called again gets its result, and does not run. A request that was not recorded gets an error
    (HTTP 400) that says where it differs, a tool raises `optree.OptreeError`. Models that are not asked by httpx, aiohttp, botocore or
    websockets are asked live, and some tools run, as those of the Claude Agent SDK. It holds for the whole process.

    With ``pytest --optree-update`` a file ``….json`` that is not there is written, and so is one whose calls differ: from the first
    difference on models are asked and tools run. It is written where the block raises nothing, without credentials.

    ```python
    import optree
    from optree.testing import capture, replay


    @optree.tool
    def search(query):
        return query.upper()


    @optree.session(agent="researcher")
    def research(question):
        return search(question)


    with capture() as monday:  # or a session that ran anywhere: replay("tests/runs/monday.json")
        research("tides")


    def test_run_of_monday():
        with capture() as recording, replay(monday.tree):
            assert research("tides") == "TIDES"
        assert 1 == recording.tree.session.totals.tools_run


    test_run_of_monday()
    ```

    Args:
        what: As for `optree.load`: a txn, which means all root sessions that the program recorded in that run; or a file, such as the
            snapshot of a session, or what `optree export TXN --to json` writes, which has no credentials; or a tree.
        at: The path of an op or turn: what was called before it began gets its answer, all other requests are sent, and other tools run.
        tools: ``live``: tools run.

    Raises:
        AssertionError: At the end of a block that raises nothing: a call differed, or a recorded one did not come; or to be written are
            several sessions, or none, or calls of models that a replay could not answer. What the block raises has a note of what differed.
        OptreeError: As for `optree.load`; or the session has no op *at*; or ``content=False`` was configured.
    """
    _check_content()
    file = None if isinstance(what, Tree) or Path(what).suffix != ".json" else Path(what)
    is_updated = UPDATING.on and file is not None
    if file is not None and not exists(file):
        if not is_updated:
            raise NotFoundError(f"{file} is not there: {_UPDATE} runs the test with models and tools, and writes it")
        found = None
    else:
        trees = {what.session.origin_txn_id: what} if isinstance(what, Tree) else _trees(what)
        found = Replay(trees, at, tools=tools, to_difference=is_updated)
    hint = "" if file is None else f"; if it is to change: {_UPDATE} records {file} anew"
    was_on = FINDER in sys.meta_path
    ACTIVE.set(found)
    ACTIVE.asked = set[str]() if is_updated else None
    try:
        instrument()
        with _noted() as sessions, PROGRAM.apart() if is_updated else nullcontext():
            yield
    except Exception as error:
        if found is not None and found.differences and not is_updated:  # which may be why
            error.add_note(f"optree replay: {'; '.join(found.differences)}{hint}")
        raise
    finally:
        ACTIVE.set(None)
        asked, ACTIVE.asked = ACTIVE.asked or set(), None
        if not was_on:
            uninstrument()
    said: list[str] = []
    if found is not None:
        for session in sessions:
            found.watch(session.builder)
        said = [*found.differences, *(f"{call} was not asked for" for call in found.left)]
    if is_updated and file is not None and (found is None or said):
        _write(file, sessions, asked)
    elif said:
        raise AssertionError("; ".join(said) + hint)


class _Updating:
    """Whether recordings are written: `pytest --optree-update`."""

    on = False


UPDATING = _Updating()


def _check_content() -> None:
    if not RUNTIME.config.content:
        raise OptreeError(f"no answer can be given: {WITHOUT_CONTENT}")


_UPDATE = "pytest --optree-update"
_NOTED: list[dict[SessionTreeBuilder, Session]] = []
"""What takes the root sessions that begin."""


@contextmanager
def _noted() -> Generator[Collection[Session]]:
    """Note the root sessions that begin in the block, be they captured or not."""
    noted = dict[SessionTreeBuilder, Session]()
    begin = RUNTIME.open_root

    def open_root(agent: str, attributes: Mapping[str, Any], holder: Holder | None = None, resume: str | None = None) -> Session:
        session = begin(agent, attributes, holder, resume)
        noted[session.builder] = session
        return session

    _NOTED.append(noted)
    try:
        with patch.object(RUNTIME, "open_root", open_root):
            yield noted.values()
    finally:
        _NOTED[:] = [one for one in _NOTED if one is not noted]


def _write(file: Path, sessions: Collection[Session], asked: Collection[str]) -> None:
    """Write the only session as it would be exported, without credentials; *asked*: ids of the calls of models that can be answered."""
    if len(sessions) != 1:
        raise AssertionError(f"{len(sessions)} root sessions were recorded, and {file} holds one: begin one session within the replay")
    [session] = sessions
    ops = [op for _, _, op in walk_ops(session.tree.session) if op.kind == "llm"]
    if live := [op.path for op in ops if f"{session.txn}:{op.path}" not in asked]:
        why = "no request by httpx, aiohttp, botocore or websockets was captured of them, and a replay could not answer them"
        raise AssertionError(f"{file} was not written: its calls of models at {', '.join(live)} would be made live in each test: {why}")
    made = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        JSON.write(session.tree, made)
        [tree] = JSON.read(made).trees  # a copy
        REAL.unlink(made)
        JSON.write(redacted(as_recorded(tree))[0], made)
        REAL.replace(file, [made.read_bytes()])
    finally:
        with suppress(FileNotFoundError):
            REAL.unlink(made)


def _trees(what: str | Path) -> dict[str, Tree]:
    """Return the sessions of the run that recorded a session, that one first; that alone if it is this run, which is not over."""
    loaded = load_run(what, RUNTIME.directory(), but=current_run())
    return {txn: one.tree for txn, one in loaded.items()}


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
