"""A process lets go of another's session: what is lost of it is counted as it is when the journal is closed, not before."""

import os
from threading import Event

import pytest

from optree import _records as r
from optree._background import Job
from optree._store import Directory, load, open_session
from optree._store.saving import StoreOptions
from optree._store.upkeep import SAVING, left_synced
from optree._tracing.joined import Leaving
from optree._tracing.runtime import Runtime

LONG = 60.0


def record(store, number, *, flush=True):
    """Record the begin of an op; without *flush* it is not delivered yet."""
    store.stream.put(r.OpBegin(f"1.{1_000_000 + number}", float(number), "tool", "t"))
    assert store.stream.flush() if flush else store.stream


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Return a runtime that has joined a session, its store, and an event: what it lets go of is closed once that is set."""
    directory = Directory.of(tmp_path)
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("OPTREE_CONSOLE", "0")
    builder, owner = open_session("agent", StoreOptions(directory), txn="txn-1")
    builder.begin_turn()
    here, go = Runtime(), Event()
    here.join("txn-1:1", "agent")
    store = here.stores["txn-1"]
    record(store, 1)
    Job(SAVING, lambda: (go.wait(LONG), None)[1], str).ask()
    yield here, store, go
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    owner.close(0.0)


def refuse(store):
    """Let the disk refuse what is recorded from now on; returns what ends that."""
    aside = store.live.with_name("aside")
    store.live.rename(aside)
    store.live.write_bytes(b"")
    store.journal._give_up(OSError(5, "gone"))

    def end():
        store.live.unlink()
        aside.rename(store.live)

    return end


@pytest.mark.parametrize("when", ["before", "by the close"])
def test_what_the_close_of_a_left_session_loses_is_counted(joined, when):
    """The disk takes nothing any more when the journal is closed: the records are lost, whether it is known before or only then."""
    here, store, go = joined
    if when == "by the close":
        here._leave(["txn-1"])
    end = refuse(store)
    record(store, 2, flush=when == "before")
    if when == "before":
        here._leave(["txn-1"])
    assert (when == "before") == here.counts()["lost"]
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    assert (1, 2) == (here.counts()["lost"], here.counts()["records"])
    here._leave([])
    assert (1, 2) == (here.counts()["lost"], here.counts()["records"])
    end()


def test_what_the_close_of_a_left_session_writes_after_all_is_not_lost(joined):
    """The disk takes again what it had refused before the journal is closed."""
    here, store, go = joined
    end = refuse(store)
    record(store, 2)
    here._leave(["txn-1"])
    end()
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    assert 0 == here.counts()["lost"]
    assert [] == [problem for problem in here.problems.current() if "gone" in problem]
    here._leave([])
    assert 0 == here.counts()["lost"]
    assert 2 == load("txn-1", store.options.directory).vector[f"{store.journal.ordinal:04d}"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_session_that_is_being_left_is_the_parents_in_a_forked_child(joined):
    """The child holds no file of it, and counts nothing of it; a process that exits meanwhile closes it."""
    here, store, _ = joined
    here._leave(["txn-1"])
    here._deliver(0.0)
    assert -1 == store.journal.fd
    here.after_fork()
    assert 0 == here.counts()["records"]


def test_a_left_session_that_is_closed_is_forgotten(joined):
    """It stands among those that are not closed until then, and is given out once after it, to be counted: nothing keeps it any more."""
    _, store, go = joined
    leaving, closed = Leaving(), []
    leaving.add(store)
    leaving.close(store, closed.append)
    assert ([store], [], []) == (leaving.stores(closed=False), leaving.take(), closed)
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    assert ([], [store], [store]) == (leaving.stores(closed=False), leaving.stores(), closed)
    assert ([store], [], []) == (leaving.take(), leaving.stores(), leaving.take())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_forked_child_records_into_a_session_that_is_being_left(joined):
    """It is in a journal of the child's own, beside what the parent still records there until it closes its own."""
    here, store, go = joined
    record(store, 2)
    here._leave(["txn-1"])
    child = os.fork()
    if not child:
        here.after_fork()
        record(store, 3)
        os._exit(0 if store.flush("sync", LONG) else 1)
    assert 0 == os.waitpid(child, 0)[1]
    record(store, 4)
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    loaded = load("txn-1", store.options.directory)
    assert ("clean", [1.0, 2.0, 3.0, 4.0]) == (loaded.damage.state, sorted(op.started_at for op in loaded.session.turns[0].ops))


def test_a_session_that_is_being_left_has_no_file_open(joined):
    """Many may wait to be closed, behind a slow disk: none has a descriptor; a late record opens its file again, and nothing is lost."""
    here, store, go = joined
    here._leave(["txn-1"])
    assert (-1, [store], False) == (store.journal.fd, here.leaving.stores(closed=False), left_synced(0.0))
    record(store, 2)
    assert (True, 1, 2) == (store.journal.fd >= 0, store.journal.ordinal, store.journal.last)
    go.set()
    assert Job(SAVING, lambda: None, str).wait(LONG)
    assert (-1, 0, True) == (store.journal.fd, store.unwritten, left_synced(LONG))
    ops = load("txn-1", store.options.directory).session.turns[0].ops
    assert ["1.1000001", "1.1000002"] == [op.path for op in ops]
