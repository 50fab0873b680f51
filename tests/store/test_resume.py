"""Resuming: the same session goes on, and nothing is counted, named or billed twice."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import optree
from optree import _records as r
from optree._builder import SessionTreeBuilder, Turn
from optree._builder.core import Core
from optree._clock import wall
from optree._nodes import OperationNode, TurnNode
from optree._store import load, resume_session
from optree._store.files import lock
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.reading.directory import journals
from optree._store.reading.formats import read_snapshot
from optree._store.saving import StoreOptions
from optree._store.session_store import SessionStore
from optree._store.settle import settle_all
from optree._tree import apply, flatten, walk_ops, walk_sessions
from optree.errors import BusyError, NotFoundError
from optree.testing import shape
from tests.store.faults import Faulty
from tests.store.golden.make import program
from tests.store.test_journal import busy


def ids(root):
    """Return the ids of all turns and ops; a child session's is that of its op."""
    sessions = list(walk_sessions(root))
    return [
        *(turn.id for session in sessions for turn in session.turns),
        *(op.op_id for _, _, op in walk_ops(root)),
    ]


def billed_once(directory, builder):
    """Tell whether the ledger has each entry of the tree exactly once, and its sum is the tree's."""
    entries = Ledger(directory.billing).read()
    expected = sorted(entry["id"] for entry in flatten(builder.node).accounting)
    assert expected == sorted(entry["id"] for entry in entries)
    assert builder.node.totals.cost_usd == pytest.approx(sum(entry.get("costUsd", 0.0) for entry in entries))
    return len(entries)


def test_what_a_crash_left_open_is_closed_as_interrupted(begin, killed, again):
    """A resumed session goes on under its ids: open nodes end as `interrupted` when they were last seen, new ones follow (S4-99)."""
    builder, store = begin()
    program(builder)
    seen = builder.op("2.1").node.logs[-1].timestamp
    store.flush()
    image = killed()
    resumed, after = again("txn-1", image)
    waiting = resumed.node.turns[1].ops[0]
    assert ("interrupted", "the process ended before this did", seen) == (waiting.status, waiting.error, waiting.ended_at)
    assert ("interrupted", None, 1) == (resumed.node.turns[1].status, resumed.node.ended_at, len(resumed.node.resumed_at))
    resumed.begin_turn(user="go on").end()
    resumed.end_session()
    assert after.flush("snapshot")
    loaded = load("txn-1", image)
    assert msgspec.json.encode(resumed.tree) == msgspec.json.encode(loaded.tree)
    assert ("ended", "clean") == (loaded.state, loaded.damage.state)
    assert len(ids(loaded.session)) == len(set(ids(loaded.session)))
    assert 2 == billed_once(image, resumed)
    assert [image.snapshot("txn-1")] == list(image.sessions.iterdir())


def test_a_session_is_killed_and_resumed_again_and_again(begin, killed, directory, again):
    """Five lives of one session, each but the last killed: all are in the tree once, and the ledger has each entry once (S4-99, S4-104)."""
    builder, store = begin()
    for life in range(4):
        busy(builder, 2)
        builder.begin_op("tool", f"open {life}")
        store.flush()
        directory = killed(directory)
        assert "clean" == load("txn-1", directory).damage.state
        builder, store = again("txn-1", directory)
    builder.end_session()
    assert store.flush("snapshot")
    loaded = load("txn-1", directory)
    assert 4 == len(loaded.session.resumed_at)
    assert [f"open {life}" for life in range(4)] == [op.name for _, _, op in walk_ops(loaded.session) if op.status == "interrupted"]
    assert len(ids(loaded.session)) == len(set(ids(loaded.session)))
    assert 8 == billed_once(directory, builder)


def test_an_ended_session_can_be_resumed(begin, again, directory):
    """A session that ended well is open again, goes on, and ends again; what was billed is not billed twice (S4-99, S4-104)."""
    builder, store = begin()
    busy(builder, 2)
    builder.end_session()
    assert store.flush("snapshot")
    assert store.close(1.0)
    resumed, after = again("txn-1", directory)
    assert (None, None) == (resumed.node.ended_at, resumed.node.success)
    busy(resumed, 3)
    resumed.end_session()
    assert after.flush("snapshot")
    assert ("agent", "ok", 2) == (*shape(load("txn-1", directory).tree)[:2], len(resumed.node.turns))
    assert 5 == billed_once(directory, resumed)
    assert 0.05 == pytest.approx(read_snapshot(directory.snapshot("txn-1")).tree.session.totals.cost_usd)


def test_what_is_resumed_only_while_it_is_open_stays_ended(begin, directory, killed):
    """A session that ended between a look at it and its resume is not begun again: it is refused, and stays as it is, saved or not yet."""
    builder, store = begin()
    busy(builder, 2)
    builder.end_session()
    image = killed()
    assert store.flush("snapshot")
    assert store.close(1.0)
    for place in (image, directory):
        before = msgspec.json.encode(load("txn-1", place).tree)
        with pytest.raises(NotFoundError, match="txn-1 has ended"):
            resume_session("txn-1", StoreOptions(place), only_open=True)
        assert before == msgspec.json.encode(load("txn-1", place).tree)
        settle_all(StoreOptions(place))
        assert [place.snapshot("txn-1")] == list(place.sessions.iterdir())
        assert 2 == billed_once(place, builder)


def test_an_ended_session_that_is_resumed_on_a_full_disk_loses_nothing_later(begin, again, directory, killed):
    """The first snapshot after a resume fails: numbers go on from the old one, so that the journal's records count."""
    builder, store = begin()
    busy(builder)
    builder.end_session()
    assert store.flush("snapshot")
    system = Faulty("rename")
    system.arm()
    resumed, after = again("txn-1", directory, system=system)
    busy(resumed, 1)
    after.flush()
    loaded = load("txn-1", killed())
    assert msgspec.json.encode(resumed.tree) == msgspec.json.encode(loaded.tree)
    assert "clean" == loaded.damage.state


def test_a_session_that_is_being_written_is_busy(begin, directory):
    """A second owner gets `BusyError` with advice, and does not disturb the first."""
    builder, store = begin()
    with pytest.raises(BusyError, match=r"session txn-1 is being written by another process.*optree logs"):
        SessionStore("txn-1", StoreOptions(directory))
    busy(builder)
    builder.end_session()
    assert store.flush("snapshot")
    assert [directory.snapshot("txn-1")] == list(directory.sessions.iterdir())


def test_another_process_finds_it_busy_until_it_ends(begin, directory):
    """The lock holds between processes, and is free once the owner is gone."""
    script = (
        "import sys\nfrom optree._store import Directory, resume_session\nfrom optree._store.session_store import StoreOptions\n"
        "builder, store, loaded = resume_session('txn-1', StoreOptions(Directory.of(sys.argv[1])))\n"
        "print(loaded.state)\nbuilder.end_session()\nprint(store.flush('snapshot', 60))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(optree.__file__).parents[1])}
    command = [sys.executable, "-c", script, str(directory.sessions.parent)]
    builder, store = begin()
    busy(builder)
    refused = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "BusyError" in refused.stderr.splitlines()[-1]
    assert store.close(1.0)
    assert "interrupted\nTrue\n" == subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert "ended" == load("txn-1", directory).state


def test_what_another_process_wrote_is_counted_once_through_resumes(begin, directory, opened, again, killed):
    """Entries of a process that had joined stay single: after a resume, a second one, and the end (S4-104)."""
    builder, store = begin()
    turn = builder.begin_turn()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(joined)
    node = apply.new_session("txn-1", "", "trace", "agent", "agent", 0.0)
    core = Core("txn-1", joined.stream, now=wall)
    other = SessionTreeBuilder.over(core, node)
    stand_in = Turn(other, TurnNode(turn.node.id, turn.path, 1, 0.0, []), joined.journal.base + 1)
    op = other.begin_op("llm", "openai:gpt-4o", turn=stand_in)
    op.log("from afar")
    op.account(cost_usd=1.0)
    op.end()
    joined.close(0.0)
    store.flush()
    first = killed()
    resumed, after = again("txn-1", first)
    assert after.snapshot()
    assert after.close(1.0)
    resumed, after = again("txn-1", first)
    busy(resumed, 1)
    resumed.end_session()
    assert after.flush("snapshot")
    loaded = load("txn-1", first)
    far = [op for _, _, op in walk_ops(loaded.session) if op.path == "1.1000001"]
    assert [(["from afar"], 1)] == [([entry.message for entry in op.logs], len(op.accounting)) for op in far]
    assert 2 == billed_once(first, resumed)
    assert 1.01 == pytest.approx(loaded.session.totals.cost_usd)


def test_a_new_process_gets_numbers_that_no_old_one_had(begin, directory, opened, again):
    """Processes that join a resumed session get ranges above those of all earlier ones, also of files that are gone."""
    builder, store = begin()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "t"))
    joined.stream.flush()
    joined.close(30.0)
    builder.begin_turn()
    builder.end_session()
    assert store.flush("snapshot")
    assert not store.live.exists()
    again("txn-1", directory)
    later = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(later)
    assert 2 == later.journal.ordinal


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_a_resumed_session_counts_on_from_its_own_turns(begin, directory, opened, again, killed, ended):
    """After turn 1 comes turn 2, also where a process that had joined began turns and ops in a range of its own meanwhile (S4-99)."""
    builder, store = begin()
    builder.begin_turn().end()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(joined)
    for path in ("1000001", "1000002"):
        joined.stream.put(r.TurnBegin(path, 1.0))
        joined.stream.put(r.OpBegin(f"{path}.1000001", 1.0, "tool", "far"))
        joined.stream.put(r.OpEnd(f"{path}.1000001", 2.0, "ok", 1.0))
        joined.stream.put(r.TurnEnd(path, 2.0, "ok"))
    joined.close(0.0)
    if ended:
        builder.end_session()
    assert store.flush("snapshot" if ended else "write")
    image = directory if ended else killed()
    resumed, after = again("txn-1", image)
    assert ["1", "1000001", "1000002"] == [turn.path for turn in resumed.node.turns]
    with_op = resumed.begin_turn()
    assert ("2", "2.1") == (with_op.path, resumed.begin_op("tool", "next").path)
    resumed.end_session()
    assert after.flush("snapshot")
    loaded = load("txn-1", image)
    assert ["1", "2", "1000001", "1000002"] == sorted((turn.path for turn in loaded.session.turns), key=int)
    assert (("ended", "clean"), len(ids(loaded.session))) == ((loaded.state, loaded.damage.state), len(set(ids(loaded.session))))


def test_resuming_a_torn_session_keeps_the_old_bytes(begin, killed, again):
    """A resume after a torn write goes on in a new file; the torn one stays as it is and is reported until the end."""
    builder, store = begin()
    busy(builder)
    store.flush()
    image = killed()
    path = journals(image.live("txn-1"))[0]
    path.write_bytes(path.read_bytes()[:-5])
    torn = path.read_bytes()
    resumed, after = again("txn-1", image)
    resumed.begin_turn(user="new")
    after.flush()
    assert torn == path.read_bytes()
    loaded = load("txn-1", image)
    assert "torn tail" == loaded.damage.state
    assert {"user": "new"} == loaded.session.turns[-1].prompts
    resumed.end_session()
    assert after.flush("snapshot")
    assert "clean" == load("txn-1", image).damage.state


def test_half_written_snapshots_of_a_killed_process_are_swept(begin, killed, again):
    """A temporary file that a killed owner left goes away with the resume; other names stay."""
    begin()
    image = killed()
    (image.live("txn-1") / ".tmp-txn-1.json.zst-99999").write_bytes(b"half")
    (image.sessions / ".tmp-other.json.zst-99999").write_bytes(b"half")
    (image.sessions / "notes.txt").write_text("mine")
    resumed, after = again("txn-1", image)
    resumed.end_session()
    assert after.flush("snapshot")
    assert [".tmp-other.json.zst-99999", "notes.txt", "txn-1.json.zst"] == sorted(path.name for path in image.sessions.iterdir())


def test_a_resume_that_fails_leaves_no_lock(directory, again):
    """A session that does not exist, or cannot be read, gives its error each time, and is not busy afterwards."""
    with pytest.raises(NotFoundError, match="no session 'txn-9': there are none in"):
        again("txn-9", directory)
    assert not directory.sessions.exists()
    directory.sessions.mkdir(parents=True)
    directory.snapshot("txn-9").write_bytes(b"\x28\xb5\x2f\xfd broken")
    for _ in range(2):
        with pytest.raises(optree.DamagedError):
            again("txn-9", directory)


def test_each_op_is_interrupted_at_most_once(begin, killed, again):
    """A resume leaves what had ended as it was."""
    builder, store = begin()
    program(builder)
    store.flush()
    before = {op.path: op for _, _, op in walk_ops(builder.node) if op.ended_at is not None}
    resumed, _ = again("txn-1", killed())
    for op in (op for _, _, op in walk_ops(resumed.node) if isinstance(op, OperationNode) and op.path in before):
        assert (before[op.path].status, before[op.path].ended_at) == (op.status, op.ended_at)


class Settling(OS):
    """Another process settles the session, and removes its live directory, ahead of the first call of one kind for LOCK."""

    def __init__(self, kind):
        self.left = [kind]

    def _settle(self, kind, live):
        if kind in self.left and live.is_dir():
            self.left.clear()
            (live / "LOCK").unlink(missing_ok=True)
            live.rmdir()

    def own(self, path):
        """Open LOCK."""
        self._settle("open", path.parent)
        self.path = path
        return super().own(path)

    def lock(self, fd, *, new=False):
        """Lock it."""
        self._settle("lock", self.path.parent)
        return super().lock(fd, new=new)


@pytest.mark.parametrize("kind", ["open", "lock"])
def test_a_directory_that_is_removed_as_it_is_made_to_go_on(begin, again, directory, kind):
    """Whoever settles the session at that moment: it goes on in a directory that is there, and is nobody else's."""
    builder, store = begin()
    builder.end_session()
    assert store.flush("snapshot", 30)
    store.close()
    system = Settling(kind)
    builder, store = again("txn-1", directory, system=system)
    assert [] == system.left
    assert lock.is_running(store.live)
    assert {} == store.current_problems
    with pytest.raises(BusyError):
        resume_session("txn-1", StoreOptions(directory))
