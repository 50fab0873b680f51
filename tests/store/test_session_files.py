"""The journals of a session on their way to the disk: the owner's, and those of other processes that have gone."""

import errno
import os
import time

import pytest

from optree import _records as r
from optree._store import SessionStore, session_files
from optree._store.files.system import OS
from optree._store.saving import StoreOptions
from tests.store.test_journal import busy

LONG = 60.0


class Noting(OS):
    """A disk that notes the files whose data is asked for by name, and refuses them as often as it is told."""

    def __init__(self):
        self.synced, self.written, self.failing, self.code = [], [], 0, errno.EIO

    def datasync_at(self, path):
        """Note it, or fail."""
        if self.failing:
            self.failing -= 1
            raise OSError(self.code, os.strerror(self.code))
        super().datasync_at(path)
        self.synced.append(path)

    def write_again(self, path, parts):
        """Note it."""
        self.written.append(path)
        super().write_again(path, parts)


@pytest.fixture
def shared(begin, directory):
    """Return a disk, a session that syncs only when it is asked to, and another process's store of it with a record."""
    system = Noting()
    builder, store = begin(system=system, sync="write")
    busy(builder, 1)
    store.stream.flush()
    other = SessionStore("txn-1", StoreOptions(directory, sync="write"), owner=False)
    other.stream.put(r.SessionSet("", 1.0, title="one"))
    other.stream.flush()
    yield system, store, other
    other.close(0.0)


def test_who_has_gone_is_synced_once(shared):
    """What a process left that has gone is forced to the disk by the next sync, and not again; while it lives it does so itself."""
    system, store, other = shared
    assert store._journals.sync(gone=True)
    assert [] == system.synced
    other.journal.forget()
    assert store._journals.sync(gone=True)
    assert store._journals.sync(gone=True)
    assert [other.journal.path] == system.synced


def test_a_flush_asks_for_what_a_living_process_wrote(shared):
    """`flush("sync")` is for all that was recorded in the session by then, also by a process that goes on."""
    system, store, other = shared
    assert store.flush("sync")
    other.stream.put(r.SessionSet("", 1.0, title="two"))
    other.stream.flush()
    assert [store.flush("sync"), store.flush("sync")] == [True, True]
    assert [other.journal.path] * 2 == system.synced


def test_a_journal_whose_sync_failed_is_written_again(shared):
    """The disk refuses a journal of a process that has gone: that is said, and a later sync counts when it was written once more."""
    system, store, other = shared
    other.journal.forget()
    before, system.failing = other.journal.path.read_bytes(), 1
    assert not store.flush("sync")
    assert ["files of session txn-1: [Errno 5] Input/output error"] == list(store.problems)
    assert store.flush("sync")
    assert ([other.journal.path], before) == (system.written, other.journal.path.read_bytes())


def test_a_journal_whose_sync_failed_is_its_writers_as_long_as_that_lives(shared):
    """Nothing is written into the file of a process that lives; what was refused is not on the disk until it goes."""
    system, store, other = shared
    system.failing = 1
    assert [False, False] == [store.flush("sync"), store.flush("sync")]
    assert [] == system.written
    other.journal.forget()
    assert store.flush("sync")
    assert [other.journal.path] == system.written


class RefusingOnce(OS):
    """A disk that refuses the first sync of a descriptor."""

    refused = False

    def datasync(self, fd):
        """Fail, or do it."""
        if not self.refused:
            self.refused = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().datasync(fd)


def test_a_sync_that_another_process_was_refused_is_known(shared):
    """What a process knows may be lost, the session's owner does not call safe, until that has written it again."""
    system, store, other = shared
    other.journal._os = RefusingOnce()
    assert not other.journal.sync()
    assert [False, False] == [store.flush("sync"), store.flush("sync")]
    assert other.journal.retry()
    assert [True, True] == [store.flush("sync"), store.flush("sync")]
    assert [] == system.written


def test_a_sync_that_a_process_was_refused_which_has_gone_is_made_good(shared):
    """Of a process that has gone since, the owner writes the file again in its place, once, and then its sync counts."""
    system, store, other = shared
    other.journal._os = RefusingOnce()
    assert not other.journal.sync()
    path = other.journal.path
    before = path.read_bytes()
    other.journal.forget()
    assert [True, True] == [store.flush("sync"), store.flush("sync")]
    assert ([path], before, 0o600) == (system.written, path.read_bytes(), path.stat().st_mode & 0o777)


def test_a_file_system_that_shows_all_files_as_executable_marks_none(shared):
    """Where modes tell nothing, as on vfat, LOCK seems to be executable too: a journal that does is one like others."""
    _, store, other = shared
    for path in (other.journal.path, store.live / "LOCK"):
        path.chmod(0o700)
    assert [True, True] == [store.flush("sync"), store.flush("sync")]


def test_too_few_descriptors_lose_nothing(shared):
    """A file that could not be opened was not refused by the disk: it is synced as it is once there is a descriptor."""
    system, store, other = shared
    system.failing, system.code = 1, errno.EMFILE
    assert [False, True] == [store.flush("sync"), store.flush("sync")]
    assert ([], [other.journal.path]) == (system.written, system.synced)


def test_a_session_without_other_processes_is_listed_only_when_something_was_added(begin, monkeypatch):
    """Each second costs such a session a look at its directory's time, and no list of its files."""
    listed = []
    builder, store = begin(sync="write")
    busy(builder, 1)
    store.stream.flush()
    os.utime(store.live, (1.0, 1.0))
    found = session_files.journals
    monkeypatch.setattr(session_files, "journals", lambda live: listed.append(live) or found(live))
    assert [True] * 3 == [store._journals.sync(gone=True) for _ in range(3)]
    assert [store.live] == listed


def test_a_journal_that_is_made_in_the_same_tick_is_synced(shared, directory, opened):
    """The directory has the time that it had when it was listed, since that is coarse: what was made meanwhile is found all the same."""
    system, store, other = shared
    tick = time.time() + LONG  # is the present one for as long as the test may take
    os.utime(store.live, (tick, tick))
    assert store._journals.sync()
    late = SessionStore("txn-1", StoreOptions(directory, sync="write"), owner=False)
    opened.append(late)
    late.stream.put(r.SessionSet("", 1.0, title="late"))
    late.stream.flush()
    os.utime(store.live, (tick, tick))
    assert store._journals.sync()
    assert [other.journal.path, late.journal.path] == system.synced


def test_what_an_owner_before_this_one_wrote_is_synced(begin, again, killed):
    """A session is resumed whose owner was killed before a sync: `flush("sync")` is for that owner's records too."""
    builder, _ = begin(sync="write")
    busy(builder, 1)
    system, image = Noting(), killed()
    _, store = again("txn-1", image, system=system, sync="write")
    assert store.flush("sync")
    assert [image.live("txn-1") / "j-0000-000001.jsonl"] == system.synced


def test_a_file_that_is_made_during_the_sync_is_synced_too(shared, directory):
    """Another process that makes a refused sync good meanwhile, in a file of its own, is on the disk when this one says so."""
    system, store, other = shared
    third = SessionStore("txn-1", StoreOptions(directory, sync="write"), owner=False)
    third.stream.put(r.SessionSet("", 1.0, title="two"))
    third.stream.flush()
    second = other.journal.path.with_name("j-0001-000002.jsonl")
    real = system.datasync_at

    def datasync_at(path):
        if path == other.journal.path:  # as if its writer went on there
            second.write_bytes(other.journal.path.read_bytes())
        real(path)

    system.datasync_at = datasync_at
    for one in (other, third):
        one.journal.forget()
    assert store._journals.sync()
    assert {other.journal.path, third.journal.path, second} == set(system.synced)
    third.close(0.0)


def test_a_session_that_ends_during_the_sync_is_synced(shared):
    """Its end saves all of it and removes the files, before the sync has come to their names: that sync is no failure."""
    system, store, other = shared
    other.journal.forget()
    real, left = system.sync_name, []

    def sync_name(path):
        if path == other.journal.path:
            store.builder.end_session()
            assert store.wait(LONG)
            left.append(store.live.exists())
        real(path)

    system.sync_name = sync_name
    assert store._journals.sync()
    assert ([False], []) == (left, list(store.problems))
