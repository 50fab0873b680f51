"""Somebody removes the files of a session that runs: it is noticed, said, and written anew."""

import errno
import shutil
import subprocess
import sys
import threading

import msgspec
import pytest

from optree import _records as r
from optree._store import SessionStore, load, upkeep
from optree._store.files import lock
from optree._store.files.system import OS, REAL
from optree._store.journal import Journal
from optree._store.ledger import Ledger
from optree._store.reading.numbering import given_by_others, last_before_another
from optree._store.saving import StoreOptions
from optree._syscalls import calls
from optree._tree import walk_ops
from optree.errors import BusyError
from tests.store.faults import Faulty
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
    wait_for(lambda: store.live.exists() and directory.snapshot("txn-1").exists() and 0 < store._healed == store.journal.lost)
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
    assert REAL.is_at(store._lock.fd, store.live / "LOCK")


def test_a_lock_that_somebody_else_took_meanwhile_is_said(begin, directory):
    """The LOCK file is removed and another process takes a new one: nothing is written on until that has gone, and then all of it is."""
    builder, store = begin()
    busy(builder, 1)
    with store._writing:
        (store.live / "LOCK").unlink()
        other = lock.take(store.live / "LOCK", seconds=5.0)
    try:
        wait_for(lambda: any("another process goes on with this session" in said for said in store.problems))
        before = store.journal.path.stat().st_size
        busy(builder, 1)
        assert (False, False, True) == (store.flush(), store.flush("sync"), 0 < store.unwritten)
        assert before == store.journal.path.stat().st_size
    finally:
        lock.release([other])
    wait_for(store.flush)
    assert 0 == store.unwritten
    builder.end_session()
    assert store.close(LONG)
    loaded = load("txn-1", directory)
    assert (2, "clean") == (len(loaded.session.turns), loaded.damage.state)


SECOND = """
import sys
from optree._store import Directory, resume_session
from optree._store.saving import StoreOptions
builder, store, _ = resume_session("txn-1", StoreOptions(Directory.of(sys.argv[1])))
builder.begin_turn().end()
print(store.flush(), flush=True)
input()
builder.end_session()
print(store.close(30.0), flush=True)
"""


@pytest.mark.parametrize("everything", [True, False])
def test_a_session_with_which_another_process_goes_on_is_that_ones(begin, directory, monkeypatch, everything):
    """LOCK goes, or all files: what the first owner records behind that is not written, is counted, and spoils nothing (S4-131)."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    builder, store = begin()
    builder.begin_turn().end()
    assert store.flush("snapshot")
    shutil.rmtree(store.live) if everything else (store.live / "LOCK").unlink()
    command = [sys.executable, "-c", SECOND, directory.sessions.parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert "True\n" == other.stdout.readline()
        for _ in range(20):
            builder.begin_turn().end()
        assert (False, False, 40) == (store.flush(), store.flush("sync"), store.unwritten)
        builder.begin_turn().end()
        assert (False, False, False, 42) == (store.flush(), store.flush("sync"), store.flush("snapshot"), store.unwritten)
        assert ("True\n", None) == other.communicate("go on\n", LONG)
    builder.end_session()
    assert (False, False, 43) == (store.flush(), store.close(LONG), store.unwritten)
    loaded = load("txn-1", directory)
    assert (2, "clean", "ended") == (len(loaded.session.turns), loaded.damage.state, loaded.state)


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


@pytest.mark.parametrize("call", ["unlink", "remove_directory"])
def test_journals_that_cannot_be_removed_are_later(begin, directory, call):
    """What refuses that is a problem as long as it does: then they go, the session is billed once, and nothing is wrong (S4-131)."""
    system = Faulty(call, errno.EACCES)
    builder, store = begin(system=system)
    busy(builder, 1)
    system.arm()
    builder.end_session()
    wait_for(lambda: system.calls[call] > 2 if call == "unlink" else store.finished)
    assert [call == "unlink"] * 2 == ["removal of journals" in store.current_problems, not store.finished]
    system.mend()
    wait_for(lambda: store.finished)
    assert ({}, 1) == (store.current_problems, system.calls["append"])
    assert store.close(LONG)
    assert ([call == "remove_directory"], 1) == ([store.live.exists()], len(Ledger(directory.billing).read()))


def test_files_that_are_removed_behind_a_snapshot_that_is_not_wholly_there(begin, monkeypatch):
    """A snapshot has its name, but the sync of that failed, and the journal is removed: the numbers there are no other process's."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    system = Faulty("sync_directory", errno.EIO)
    builder, store = begin(system=system, sync="write")
    busy(builder, 1)
    system.arm()
    assert not store.snapshot()
    system.mend()
    shutil.rmtree(store.live)
    store.flush()
    assert ([], True) == ([said for said in store.problems if "another process" in said], store._lock.is_held)
    builder.end_session()
    assert store.close(LONG)


def test_a_snapshot_that_is_removed_too_has_nothing(begin, directory, monkeypatch):
    """All files go, the snapshot with them: what it had is lost until there is another one, and is counted."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    builder, store = begin()
    busy(builder, 1)
    assert store.snapshot()
    shutil.rmtree(directory.sessions)
    assert (False, store.journal.last) == (store.flush(), store.unwritten)
    assert (True, 0) == (store.snapshot(), store.unwritten)


class Looking(OS):
    """Takes its time to look for a file, on one thread."""

    def __init__(self):
        self.begun, self.go_on, self.thread = threading.Event(), threading.Event(), None

    def is_at(self, fd, path):
        """Look, later."""
        if threading.current_thread() is self.thread:
            self.begun.set()
            self.go_on.wait(LONG)
        return super().is_at(fd, path)


def test_files_that_the_store_itself_removes_meanwhile_are_not_missed(begin, directory):
    """A flush looks for the files, for long; the session ends then: its files go when that look is over, nothing is said or left."""
    system = Looking()
    builder, store = begin(system=system)
    busy(builder, 1)
    system.thread = threading.Thread(target=store.flush)
    system.thread.start()
    assert system.begun.wait(LONG)
    builder.end_session()
    saved_meanwhile = store.flush("snapshot", 1.0)
    system.go_on.set()
    system.thread.join(LONG)
    wait_for(lambda: store.finished)
    assert store.close(LONG)
    assert (False, []) == (saved_meanwhile, list(store.problems))
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]
    assert "clean" == load("txn-1", directory).damage.state


class Billing(OS):
    """Waits where the ledger is opened."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def append(self, path):
        """Open, later."""
        if path.name == "accounting.jsonl":
            self.begun.set()
            self.go_on.wait(LONG)
        return super().append(path)


def test_a_session_that_is_saved_and_billed_is_not_over_before_its_files_are_gone(begin, directory):
    """Another thread is at work in the session when its files could go: it is closed by nobody until they have gone, later."""
    system, taken, free = Billing(), threading.Event(), threading.Event()
    builder, store = begin(system=system)
    busy(builder, 1)
    builder.end_session()
    assert system.begun.wait(LONG)
    other = threading.Thread(target=store.stream.alone, args=(lambda held: (taken.set(), free.wait(LONG), held),))
    other.start()
    assert taken.wait(LONG)
    system.go_on.set()
    wait_for(lambda: store._billed)
    assert not store.finished
    free.set()
    other.join(LONG)
    wait_for(lambda: store.finished)
    assert store.close(LONG)
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]


def test_a_process_of_another_host_is_another_one(tmp_path, monkeypatch):
    """In containers that share a disk each has the same number: who goes on there is told by its host."""
    live, record = tmp_path / "live", r.SessionSet("", 1.0, title="one")
    for host, first in ((calls.nodename(), 1), ("elsewhere", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(calls, "nodename", lambda host=host: host)
            journal = Journal(live, "txn-1", "0", ordinal=0, first=first)
            journal.take([record])
            journal.close()
        assert (0 if first == 1 else 5) == given_by_others(live, {}, REAL)


GOES_ON = """
import sys
from pathlib import Path
from optree import _records as r
from optree._store.journal import Journal
live, first = Path(sys.argv[1]), int(sys.argv[2])
journal = Journal(live, "txn-1", "0", ordinal=0, first=first)
journal.take([r.SessionSet("", 1.0, title="one")])
journal.close()
"""


def test_of_several_processes_that_went_on_the_first_one_counts(tmp_path):
    """What this process wrote behind the first record of another, as the same writer, may have been read by none."""
    live = tmp_path / "live"
    for first in (5, 9):
        subprocess.run([sys.executable, "-c", GOES_ON, live, str(first)], check=True)
    asked = [(0, 0, 12), (0, 5, 12), (0, 9, 12), (0, 0, 4), (0, 0, 5), (1, 0, 12)]  # writer, behind which record, its own last
    assert [4, 8, 12, 4, 4, 12] == [last_before_another(live, *one, REAL) for one in asked]
