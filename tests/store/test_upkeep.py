"""Files that are closed before they are on the disk: they are forced to it by their names."""

import errno
import shutil
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from optree import _records as r
from optree._background import Job
from optree._store import journal, upkeep
from optree._store.files.system import OS
from optree._store.reading.reader import read_journal
from tests.store.faults import Faulty
from tests.store.test_journal import Held
from tests.store.test_settle import wait_for

LONG = 30.0


def closed(live, system, **options):
    """Return a journal that was closed before it was on the disk."""
    own = journal.Journal(live, "txn-1", "0", ordinal=0, system=system, **options)
    own.take([r.SessionSet("", 1.0, title="one")])
    own.close()
    return own


@pytest.mark.parametrize("sync", ["interval", "write"])
def test_a_journal_that_is_closed_first_is_synced_by_its_name(tmp_path, sync):
    """What was closed is forced to the disk, at the level `write` when that is asked for, and holds no descriptor then."""
    system = Faulty()
    closed(tmp_path / "live", system, sync=sync)
    assert upkeep.left_synced(30.0)
    assert (1, set()) == (system.calls["datasync"], upkeep._left)


def test_a_closed_journal_whose_sync_fails_is_written_anew(tmp_path, monkeypatch):
    """After a failed sync the file's pages may be lost though marked clean: the next try is another file with the same content."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    system = Faulty("datasync", errno.EIO, first=1, times=1)
    system.arm()
    own = closed(tmp_path / "live", system)
    wait_for(lambda: upkeep.left_synced(30.0))
    assert (1, 1) == (system.calls["datasync"], system.calls["sync"])
    assert ["one"] == [one.title for one in read_journal(own.path, 0, OS()).records]


@pytest.mark.parametrize("sync", ["interval", "write"])
def test_a_closed_journal_that_the_disk_refuses_is_not_waited_for(tmp_path, monkeypatch, sync):
    """Where the disk refuses it for good, each flush says so as soon as it has, and which file it is; once it takes it, all is well."""
    monkeypatch.setattr(upkeep, "_left", set())
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.05)
    calls = [Faulty(name, errno.EIO) for name in ("datasync", "sync")]
    system = Faulty()
    system.datasync, system.sync = calls[0].datasync, calls[1].sync
    for one in calls:
        one.arm()
    own, begun = closed(tmp_path / "txn-1.live", system, sync=sync), monotonic()
    assert (False, False) == (upkeep.left_synced(300.0), upkeep.left_synced(300.0))
    assert monotonic() - begun < 100.0
    said = f"{Path('txn-1.live', own.path.name)}, closed, is not on the disk: Input/output error; it is tried again each second"
    assert [said] == upkeep.left_unsynced()
    for one in calls:
        one.mend()
    wait_for(lambda: not upkeep._left)
    assert (True, []) == (upkeep.left_synced(30.0), upkeep.left_unsynced())
    assert ["one"] == [one.title for one in read_journal(own.path, 0, OS()).records]


def test_a_closed_journal_that_has_gone_is_not_waited_for(tmp_path):
    """Somebody has saved the session, and removed its files."""
    own = closed(tmp_path / "live", OS(), sync="write")
    shutil.rmtree(own.live)
    assert (True, set()) == (upkeep.left_synced(30.0), upkeep._left)
    assert not own.live.exists()


def test_too_many_closed_journals_are_not_said_to_be_synced(tmp_path, monkeypatch):
    """A process keeps a bounded number of them in mind; where there are more, it does not say that all are on the disk."""
    monkeypatch.setattr(upkeep, "_MOST_LEFT", 2)
    monkeypatch.setattr(upkeep._SYNCING, "missed", 0)
    for number, synced in enumerate([True, False]):
        monkeypatch.setattr(upkeep, "_left", set())
        for other in range(2 + number):
            closed(tmp_path / f"{number} {other}", Held(), sync="write")
        assert 2 == len(upkeep._left)
        Held.hung.set()
        assert synced == upkeep.left_synced(30.0)
        Held.hung.clear()


def test_a_snapshot_that_nobody_waits_for_leaves_a_pause(monkeypatch):
    """The next one that is only wanted begins after `PAUSES` times as long as the last one took, where that is more than a second."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.0)  # instead of that second
    saved = []

    def save():
        begun = monotonic()
        while monotonic() < begun + 0.02:
            pass
        saved.append((begun, monotonic()))

    def nothing():
        pass

    one = upkeep.Upkeep(nothing, nothing, save, nothing, lambda what, error: saved.append((what, error)))
    for number in (1, 2):
        one.want()
        wait_for(lambda number=number: len(saved) == number)
    (begun, ended), (next_begun, _) = saved
    assert next_begun - ended >= upkeep.PAUSES * (ended - begun)


def test_a_closed_journal_for_which_there_was_no_descriptor_is_not_written_anew(tmp_path, monkeypatch):
    """The disk was not even asked: the next try is a sync of the file as it is."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    system = Faulty("datasync", errno.EMFILE, first=1, times=1)
    system.arm()
    own = closed(tmp_path / "live", system)
    before = own.path.stat().st_ino
    wait_for(lambda: upkeep.left_synced(30.0))
    assert (2, 0, before) == (system.calls["datasync"], system.calls["sync"], own.path.stat().st_ino)


def test_many_closed_journals_are_synced_before_they_are_too_many(tmp_path, monkeypatch):
    """At the level `write` they wait until somebody asks, up to half of those that can be remembered; more are forced to it at once."""
    monkeypatch.setattr(upkeep, "_MOST_LEFT", 6)
    system = Faulty()
    for number in range(3):
        closed(tmp_path / f"live-{number}", system, sync="write")
    assert Job(upkeep.EACH_SECOND, lambda: None, str).wait(LONG)
    assert (0, 3) == (system.calls["datasync"], len(upkeep._left))
    for number in range(3, 6):
        closed(tmp_path / f"live-{number}", system, sync="write")
        assert Job(upkeep.EACH_SECOND, lambda: None, str).wait(LONG)
    assert (3, 3) == (system.calls["datasync"], len(upkeep._left))
    assert upkeep.left_synced(LONG)


def test_a_session_is_not_let_go_while_it_is_saved():
    """It shall end while a snapshot is written that nobody waits for: its lock is released when that is done."""
    done, begun, go_on = [], Event(), Event()

    def save():
        begun.set()
        assert go_on.wait(LONG)
        done.append("saved")

    kept = upkeep.Upkeep(lambda: None, lambda: None, save, lambda: done.append("left"), lambda *said: done.append(said))
    kept.start()
    kept.want(soon=True)
    assert begun.wait(LONG)
    kept.stop()
    assert Job(upkeep.EACH_SECOND, lambda: None, str).wait(LONG)  # behind what is due now
    assert [] == done
    go_on.set()
    assert kept.join(LONG)
    assert ["saved", "left"] == done
