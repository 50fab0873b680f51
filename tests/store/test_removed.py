"""Somebody removes the files of a session that runs: it is noticed, said, and written anew."""

import shutil

import msgspec
import pytest

from optree import records as r
from optree.errors import BusyError
from optree.store import SessionStore, load, lock, upkeep
from optree.store.options import StoreOptions
from optree.store.system import REAL
from optree.tree import walk_ops
from tests.store.test_journal import busy
from tests.store.test_settle import wait_for

LONG = 30.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let the thread look at once."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)


@pytest.mark.parametrize("everything", [True, False])
def test_a_live_directory_that_is_removed_is_made_again(begin, directory, killed, everything):
    """The live directory goes, or all sessions do: a kill a moment later loses nothing that this process recorded."""
    builder, store = begin()
    busy(builder, 3)
    if not everything:
        assert store.snapshot()
        busy(builder, 1)
    assert store.flush()
    shutil.rmtree(directory.sessions if everything else store.live)
    wait_for(lambda: store.problems)
    wait_for(lambda: store.live.exists() and directory.snapshot("txn-1").exists() and store._healed == store.journal.lost)
    assert f"files of session txn-1: they were removed from {store.live} while it runs; they are written anew" == store.problems[0]
    busy(builder, 1)
    assert store.flush()
    loaded = load("txn-1", killed())
    assert ("clean", "interrupted") == (loaded.damage.state, loaded.state)
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(loaded.tree)


def test_it_is_owned_all_the_same(begin, directory):
    """After the removal the session is running for everybody, and nobody else may go on with it; its end leaves one file."""
    builder, store = begin()
    busy(builder, 1)
    shutil.rmtree(store.live)
    wait_for(lambda: store.problems and store.live.exists() and lock.is_running(store.live))
    with pytest.raises(BusyError):
        SessionStore("txn-1", StoreOptions(directory))
    builder.end_session()
    assert store.close(LONG)
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]
    assert "clean" == load("txn-1", directory).damage.state


def test_a_lock_that_is_removed_is_taken_again(begin):
    """Only the LOCK file goes: the journal goes on, and the lock is held under its name again."""
    builder, store = begin()
    busy(builder, 1)
    path = store.journal.path
    (store.live / "LOCK").unlink()
    wait_for(lambda: lock.is_running(store.live))
    busy(builder, 1)
    assert store.flush()
    assert (path, 0) == (store.journal.path, store.journal.lost)
    assert REAL.is_at(store._lock_fd, store.live / "LOCK")


def test_a_lock_that_somebody_else_took_meanwhile_is_said(begin):
    """The LOCK file is removed and another process takes a new one: that is a problem to be said, and no end of the session."""
    builder, store = begin()
    with store._writing:
        (store.live / "LOCK").unlink()
        other = lock.take(store.live / "LOCK", seconds=5.0)
    try:
        wait_for(lambda: any("another process goes on with this session" in said for said in store.problems))
        busy(builder, 1)
        assert store.flush()
    finally:
        lock.release([other])


def test_a_directory_that_cannot_be_made_again_is_said(begin, directory):
    """The sessions directory becomes a file: it is said, the session runs on, and goes on once it can."""
    builder, store = begin()
    busy(builder, 1)
    store.flush()
    shutil.rmtree(directory.sessions)
    directory.sessions.write_text("not a directory")
    wait_for(lambda: store.problems)
    busy(builder, 1)
    directory.sessions.unlink()
    busy(builder, 1)
    wait_for(store.flush)
    builder.end_session()
    assert store.close(LONG)
    assert 3 == len(load("txn-1", directory).session.turns)


@pytest.mark.parametrize("everything", [True, False])
def test_a_joined_process_whose_journal_is_removed_goes_on(begin, directory, opened, everything):
    """Of a process that joined, the journal goes or the whole directory: what it had counts as lost, what it does next is on disk."""
    _, store = begin()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(joined)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "one"))
    assert joined.flush("sync")
    if everything:
        shutil.rmtree(store.live)
    else:
        joined.journal.path.unlink()
    wait_for(lambda: joined.problems)
    assert f"files of session txn-1: they were removed from {store.live} while it runs; they are written anew" == joined.problems[0]
    joined.stream.put(r.OpBegin("1.1000002", 2.0, "tool", "two"))
    assert (False, False, 1) == (joined.flush(), joined.flush("sync"), joined.unwritten)
    assert joined.journal.is_there()
    loaded = load("txn-1", directory)
    assert ["two"] == [op.name for _, _, op in walk_ops(loaded.session)]
    assert "damaged" == loaded.damage.state, loaded.damage


def test_a_second_removal_counts_what_the_first_did_not(begin, directory, opened):
    """The journal of a joined process is removed three times: each loss is counted once, and the last file tells of all of them."""
    begin()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(joined)
    lost = []
    for number in range(1, 4):
        for more in range(number):
            joined.stream.put(r.OpBegin(f"1.100000{number}{more}", 1.0, "tool", "gone"))
        joined.flush("sync")
        joined.journal.path.unlink()
        joined.flush("sync")
        lost.append(joined.unwritten)
    assert [1, 3, 6] == lost
    assert 6 == load("txn-1", directory).damage.dropped


def test_a_second_removal_of_the_owners_journal_counts_so(begin, monkeypatch):
    """Of an owner whose snapshot cannot be written, too: three records are lost, not four."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    builder, store = begin()
    with store._writing:  # no snapshot meanwhile
        for _ in range(2):
            builder.begin_turn()
            store.flush()
            store.journal.path.unlink()
            store.flush()
        assert 3 == store.unwritten


def test_a_sync_notices_a_journal_that_is_removed(begin, directory, opened, monkeypatch):
    """`flush("sync")` itself looks whether the file is there: what is only in a removed one is not said to be on the disk."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    begin()
    joined = SessionStore("txn-1", StoreOptions(directory, sync="write"), owner=False)
    opened.append(joined)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "one"))
    assert joined.flush("sync")
    joined.journal.path.unlink()
    joined.stream.put(r.OpBegin("1.1000002", 2.0, "tool", "two"))
    assert (False, 2) == (joined.flush("sync"), joined.unwritten)
