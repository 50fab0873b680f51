"""Sessions that end at about the same time are saved in a group: they wait for the disk together, and for each all promises hold."""

import errno
import shutil
import threading
from collections import Counter

import pytest

from optree._background import TURN, Job, side_by_side
from optree._store import Directory, SessionStore, load, upkeep
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree._store.upkeep import SAVING
from tests.store.faults import CALLS, Faulty
from tests.store.test_journal import busy

LONG = 30.0
SESSIONS = 4


class Counting(OS):
    """Counts calls, and tells *seen* of each that changes something, before it is made and after it."""

    def __init__(self, seen=lambda: None):
        self.calls, self.begin = Counter(), lambda: None
        for name in {*CALLS, "close"} - {"read", "pieces", "ends_whole"}:
            setattr(self, name, self._counted(name, getattr(super(), name), seen))

    def _counted(self, name, real, seen):
        def call(*args, **options):
            self.calls[name] += 1
            seen()
            try:
                return real(*args, **options)
            finally:
                seen()

        return call


@pytest.fixture
def ended(begin, monkeypatch):
    """Return a function that ends some sessions while the thread that saves is busy, and waits until that has tried to save them all."""
    monkeypatch.setattr(upkeep, "GROUP_SECONDS", LONG)
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)

    def end(system, number=SESSIONS, stores=None):
        held, free = threading.Event(), threading.Event()
        Job(SAVING, lambda: held.set() or (free.wait(LONG) and None), print).ask(first=True)
        assert held.wait(LONG)
        stores = [] if stores is None else stores
        for _ in range(number):
            builder, store = begin(system=system)
            busy(builder, 1)
            store.flush()
            builder.end_session()
            stores.append(store)
        system.begin()
        free.set()
        assert Job(SAVING, lambda: None, print).wait(LONG)  # it comes behind them
        return stores

    return end


def lines(directory):
    """Return how many lines the ledger has of each session."""
    return Counter(entry["originTxnId"] for entry in Ledger(directory.billing).read())


def test_a_group_waits_for_the_disk_once(ended, directory):
    """The names of several snapshots are synced once, and the ledger is locked, written and synced once for all."""
    system = Counting()
    system.begin = system.calls.clear
    stores = ended(system)
    assert [True] * SESSIONS == [store.finished for store in stores]
    assert (SESSIONS, SESSIONS, 1, 1) == tuple(system.calls[name] for name in ("sync", "rename", "lock_waiting", "datasync"))
    above = len(directory.sessions.parents)  # which are synced once by each process
    assert 2 <= system.calls["sync_directory"] <= 2 + above
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)


@pytest.mark.parametrize("call", ["create", "write_all", "sync", "rename"])
def test_the_error_of_one_session_leaves_the_others_whole(ended, directory, call):
    """Where one session's snapshot cannot be written, the others of its group are saved and billed; it keeps its journal, and is later."""

    class Refusing(OS):
        refused = 0

    def refuse(*args):
        if begun and not Refusing.refused:
            Refusing.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return getattr(OS, call)(system, *args)

    begun = []
    system = Refusing()
    system.begin = lambda: begun.append(1)
    setattr(system, call, refuse)
    stores = ended(system)
    assert [False, True, True, True] == [store.finished for store in stores]
    assert {"txn-2": 1, "txn-3": 1, "txn-4": 1} == lines(directory)
    assert "No space left" in stores[0].problems[0]
    assert stores[0].flush("snapshot", LONG)
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)
    assert [False] * SESSIONS == [directory.live(store.txn).exists() for store in stores]


@pytest.mark.parametrize("call", ["sync_directory", "lock_waiting", "datasync"])
def test_an_error_of_what_is_shared_is_each_ones(ended, directory, call):
    """Where the directory's sync or the ledger fails, each session of the group keeps its journal, and is saved and billed once later."""
    system = Faulty(call, errno.EIO, times=1)
    system.begin = system.arm
    stores = ended(system)
    assert [False] * SESSIONS == [store.finished for store in stores]
    assert [True] * SESSIONS == [directory.live(store.txn).is_dir() for store in stores]
    system.mend()
    assert [True] * SESSIONS == [store.flush("snapshot", LONG) for store in stores]
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)


def test_a_ledger_that_is_full_in_the_middle_of_a_group(ended, directory):
    """Of lines that were written in part before the disk was full, none is there twice in the end, and none is missing."""
    system = OS()
    system.begin = lambda: None
    real, parts = system.write_all, []

    def write_all(fd, data):
        if data.count(b"originTxnId") == SESSIONS and not parts:
            parts.append(len(data))
            OS.write(fd, data[: len(data) * 5 // 8])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, data)

    system.write_all = write_all
    stores = ended(system)
    assert [False] * SESSIONS == [store.finished for store in stores]
    assert [True] * SESSIONS == [store.flush("snapshot", LONG) for store in stores]
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)


def test_a_kill_anywhere_in_a_group(ended, directory, tmp_path):
    """Killed before or behind any call, all sessions of the group are whole, and billed once by whoever comes next (S4-82, S4-104)."""
    images, begun = [], []

    def copy():
        if begun and SAVING.is_current:
            images.append(shutil.copytree(directory.sessions.parent, tmp_path / f"killed-{len(images)}"))

    system = Counting(copy)
    system.begin = lambda: begun.append(1)
    stores = ended(system)
    trees = {store.txn: load(store.txn, directory).tree for store in stores}
    assert [store.builder.node.ended_at for store in stores] == [tree.session.ended_at for tree in trees.values()]
    assert len(images) > 20 * SESSIONS
    assert 1 < len({tuple(sorted(path.name for path in (image / "sessions").iterdir())) for image in images})
    for image in images:
        killed = Directory.of(image)
        assert [] == settle_all(StoreOptions(killed))
        for txn, tree in trees.items():
            loaded = load(txn, killed)
            assert (tree, []) == (loaded.tree, loaded.damage.lines())
            assert not killed.live(txn).exists()
        assert dict.fromkeys(trees, 1) == lines(killed)


def test_a_group_with_fewer_descriptors_than_sessions(ended, directory):
    """Where a file of the group cannot be opened for want of descriptors, it is written when the others have closed theirs."""
    open_now = set()

    class Few(OS):
        begin = staticmethod(dict)

        def create(self, path):
            if path.name.startswith(".tmp-") and len(open_now) >= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            fd = super().create(path)
            if path.name.startswith(".tmp-"):
                open_now.add(int(fd))
            return fd

        def close(self, fd):
            super().close(fd)
            open_now.discard(int(fd))

    stores = ended(Few(), 2 * SESSIONS)
    assert [True] * 2 * SESSIONS == [store.finished for store in stores]
    assert {f"txn-{one}": 1 for one in range(1, 2 * SESSIONS + 1)} == lines(directory)


def test_who_asks_again_meanwhile_is_not_saved_twice_at_once(ended, directory):
    """A session that is asked for again while its group is being saved, as by the end of its process, has another turn for that."""
    again = []

    class Asking(OS):
        def begin(self):
            again.append(1)

        def create(self, path):
            if again and path.name.startswith(".tmp-"):
                for store in stores:
                    store._upkeep.ask()
            return super().create(path)

    stores = []
    ended(Asking(), stores=stores)
    assert [(True, [])] * SESSIONS == [(store.flush("snapshot", LONG), [*store.problems]) for store in stores]
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)


def test_a_group_takes_no_more_than_there_are_descriptors(ended, directory, monkeypatch):
    """Where few descriptors are left, sessions are saved one after another, each with those that are kept for it."""
    monkeypatch.setattr(upkeep, "_has_room", lambda: False)
    system = Counting()
    system.begin = system.calls.clear
    stores = ended(system)
    assert [True] * SESSIONS == [store.finished for store in stores]
    assert (SESSIONS, SESSIONS) == (system.calls["sync"], system.calls["lock_waiting"])
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 1)} == lines(directory)


def test_a_process_that_joined_is_in_no_group(begin, ended, directory):
    """A session with journals of other processes is saved by itself, and so are those behind it."""
    builder, store = begin()
    other = SessionStore("txn-1", StoreOptions(directory), owner=False)
    other.close(0.0)
    busy(builder, 1)
    builder.end_session()
    stores = ended(Counting())
    assert store.wait(LONG)
    assert [True] * (SESSIONS + 1) == [one.finished for one in (store, *stores)]
    assert {f"txn-{one}": 1 for one in range(1, SESSIONS + 2)} == lines(directory)


class Once:
    """Something shared that notes for how many it was done, and fails if told to."""

    def __init__(self, done, key, error=None):
        self.done, self.key, self.error = done, key, error

    def do(self, same):
        """Note it."""
        self.done.append((self.key, len(same)))
        if self.error:
            raise self.error


def test_what_works_share_is_done_once():
    """Works go on when what they wait for is done, once for those with one key; they return in the order in which they end."""
    done = []

    def work(name, *keys):
        for key in keys:
            yield Once(done, key)
        return name

    assert ["c", "a", "b"] == side_by_side([work("a", "x", "y"), work("b", "x", "y"), work("c", "x")])
    assert [("x", 3), ("y", 2)] == done


def test_what_fails_for_all_is_raised_in_each():
    """An error of what is shared is raised where each work waits; one that catches it goes on."""
    done, error = [], OSError(errno.EIO, "broken")

    def work():
        try:
            yield Once(done, "x", error)
        except OSError as caught:
            yield TURN
            return caught
        return None

    assert [error, error] == side_by_side([work(), work()])
    assert [("x", 2)] == done


def test_a_work_that_raises_leaves_none_half_done():
    """What one work raises ends all: the others are closed where they wait, and what they hold is let go."""
    closed = []

    def holding():
        try:
            yield TURN
        finally:
            closed.append(1)

    def raising():
        yield TURN
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        side_by_side([raising(), holding(), holding()])
    assert [1, 1] == closed
