"""Locks: who owns a session, and who only asked."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optree import _records as r
from optree._clock import now_ms
from optree._store import SessionStore, load
from optree._store.files import lock
from optree._store.files.lock import last_beat
from optree._store.files.system import OS
from optree._store.journal import Journal
from optree._store.reading.directory import journals
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._syscalls import calls
from optree.errors import BusyError
from tests.store.faults import Faulty
from tests.store.test_journal import busy

FIRST = 0 if calls.open_kept is calls.open_file else 3
"""The lowest descriptor that a file may have which stays open."""


class Removing(OS):
    """Removes the file that is locked first, and the directory if so told, as an owner does that ends in this moment."""

    def __init__(self, *, directory=False):
        self.removed = []
        self.last = None
        self.directory = directory

    def own(self, path):
        """Open, and note which file."""
        self.last = path
        return super().own(path)

    def create(self, path):
        """Make, and note which file."""
        self.last = path
        return super().create(path)

    def lock(self, fd, *, new=False):
        """Lock what is gone."""
        if not self.removed:
            self.removed.append(self.last)
            self.last.unlink()
            if self.directory:
                self.last.parent.rmdir()
        return super().lock(fd, new=new)


def test_a_lock_on_a_removed_file_is_none(tmp_path):
    """The file is removed between the open and the lock: the lock is taken on the one that is there then, so nobody else gets it."""
    path = tmp_path / "LOCK"
    fd = lock.take(path, Removing())
    assert OS().is_at(fd, path)
    assert -1 == lock.take(path, seconds=0.0)
    lock.release([fd])


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(("ordinal", "name"), [(None, "j-0002-000001.jsonl"), (0, "j-0000-000002.jsonl")])
def test_a_journal_that_is_removed_as_it_begins_is_made_again(tmp_path, removed, ordinal, name):
    """A settling process removes a file that nobody has locked yet, and perhaps the directory: its writer makes another one."""
    journal = Journal(tmp_path / "live", "txn-1", "0", ordinal=ordinal, system=Removing(directory=removed))
    assert [tmp_path / "live" / name] == [journal.path] == journals(tmp_path / "live")
    assert OS().is_at(journal.fd, journal.path)
    journal.close()


def test_those_who_ask_do_not_make_a_session_busy(tmp_path):
    """A reader holds the lock for an instant while it asks: an owner that comes then waits it out."""
    path = tmp_path / "LOCK"
    path.touch()
    asking = lock.hold([path])
    threading.Timer(0.01, lock.release, [asking]).start()
    fd = lock.take(path, seconds=30.0)
    assert fd >= 0
    assert lock.is_running(tmp_path)
    lock.release([fd])
    assert not lock.is_running(tmp_path)
    assert lock.is_running(tmp_path / ("x" * 300)) is False


@pytest.mark.usefixtures("no_input")
def test_without_a_standard_input(tmp_path):
    """The lock of a program without a standard input never has its descriptor, but on Windows: it is held, shows life, and is let go."""
    fd = lock.take(tmp_path / "LOCK")
    assert (FIRST, -1) == (min(fd, FIRST), lock.take(tmp_path / "LOCK", seconds=0.0))
    lock.beat(fd)
    assert last_beat(tmp_path) > 0.0
    held = os.dup(fd)
    lock.release([fd])
    assert -1 == lock.take(tmp_path / "LOCK", seconds=0.0)
    lock.release([held])


def test_a_shorter_sign_of_life_leaves_nothing_of_a_longer_one(tmp_path):
    """What the disk had refused is not counted any more once it has taken it."""
    fd = lock.take(tmp_path / "LOCK")
    lock.beat(fd, last=1_000_000, refused=20_000)
    assert [("0000", 1_000_000, 20_000)] == lock.refused(tmp_path)
    lock.beat(fd, last=7)
    assert (7, [("0000", 7, 0)], True) == (lock.last_forced(tmp_path), lock.refused(tmp_path), last_beat(tmp_path) > 0.0)
    lock.release([fd])


@pytest.mark.usefixtures("no_input")
def test_a_session_without_a_standard_input(begin, directory):
    """A program without a standard input records a session as any other; nothing is left open."""
    builder, store = begin()
    assert lock.is_running(store.live)
    busy(builder, 1)
    assert store.flush("sync")
    builder.end_session()
    assert store.close(30.0)
    assert [directory.snapshot("txn-1")] == list(directory.sessions.iterdir())


@pytest.mark.usefixtures("no_input")
def test_what_comes_late_without_a_standard_input(begin, directory):
    """What such a program records after its session is saved and gone is on disk, too."""
    builder, store = begin()
    op = builder.begin_op("llm", "p:m")
    builder.end_session()
    assert store.flush("snapshot")
    op.account(cost_usd=1.0)
    assert store.flush("sync")
    assert store.close(30.0)
    assert 1.0 == load("txn-1", directory).session.totals.cost_usd


@pytest.mark.usefixtures("no_input")
def test_a_journal_without_a_standard_input(tmp_path):
    """The journal of a program without a standard input has another descriptor (but on Windows), and is written as any other."""
    journal = Journal(tmp_path, "txn-1", "0", ordinal=None)
    journal.take([r.TurnBegin("1", 1.0), r.TurnBegin("2", 2.0)])
    assert (FIRST, True, True) == (min(journal.fd, FIRST), journal.sync(), journal.is_there())
    journal.close()
    assert ["1", "2"] == [record.path for record in read_journal(journal.path).records]


def test_a_writer_that_lives_cannot_be_held(tmp_path):
    """All journals are held, or none: one writer lives."""
    first = Journal(tmp_path, "txn-1", "0", ordinal=None)
    second = Journal(tmp_path, "txn-1", "0", ordinal=None)
    first.close()
    assert lock.hold(journals(tmp_path)) is None
    one = lock.take(first.path, seconds=0.0)
    assert one >= 0
    lock.release([one])
    second.close()
    held = lock.hold([*journals(tmp_path), tmp_path / "gone"])
    assert 2 == len(held)
    lock.release(held)


def test_a_store_that_cannot_be_read_again_lets_go(directory):
    """A resume whose load fails leaves no lock, no journal and no live directory."""
    directory.sessions.mkdir(parents=True)
    directory.snapshot("txn-9").write_bytes(b"\x28\xb5\x2f\xfd broken")
    with pytest.raises(Exception, match="txn-9"):
        SessionStore("txn-9", StoreOptions(directory), resume=True)
    assert [directory.snapshot("txn-9")] == list(directory.sessions.iterdir())


@pytest.mark.parametrize("noted", [b"inf", b"9700000000000", b"1e300", b"-5", b"17000000000\xb2", b"1", b"nan", b""])
def test_a_sign_of_life_that_cannot_be_is_none(tmp_path, noted):
    """Of a LOCK that is damaged nothing is believed: no time before the session began, none to come, and nothing but digits (S4-97)."""
    began = int(now_ms()) - 1_000
    (tmp_path / "LOCK").write_bytes(b"%d" % (began + 1))
    assert began + 1 == last_beat(tmp_path, began)
    (tmp_path / "LOCK").write_bytes(noted)
    assert 0.0 == last_beat(tmp_path, began)


def test_a_sign_of_life_later_than_its_file_is_none(tmp_path):
    """A process cannot have noted that it lived then, where nothing was written since a minute before."""
    noted = int(now_ms()) - 1_000
    (tmp_path / "LOCK").write_bytes(b"%d" % noted)
    os.utime(tmp_path / "LOCK", (noted / 1e3 - 60, noted / 1e3 - 60))
    assert 0.0 == last_beat(tmp_path)


@pytest.fixture
def refused_five(begin, killed):
    """Return what a process left whose LOCK says that the disk refused five records, and the number of the last one that is there."""
    builder, store = begin()
    builder.begin_turn().end()
    assert store.flush()
    image, last = killed(), store.journal.last
    fd = lock.take(image.live("txn-1") / "LOCK")
    lock.beat(fd, last=last + 3, refused=5)
    lock.release([fd])
    return image, last


def test_what_the_disk_refused_is_noted_beside_the_sign_of_life(refused_five):
    """A LOCK that says of records that no file has them is believed as long as no file has the last one of them (S4-97)."""
    image, last = refused_five
    assert 0.0 < last_beat(image.live("txn-1"))
    assert ["5 records were never written, since the disk would not take them"] == load("txn-1", image).damage.lost()
    (image.live("txn-1") / "LOCK").write_bytes(b"%d %d 5" % (now_ms(), last))
    assert "clean" == load("txn-1", image).damage.state
    (image.live("txn-1") / "LOCK").write_bytes(b"%d %d x" % (now_ms(), last + 3))
    assert "clean" == load("txn-1", image).damage.state


def test_what_the_disk_refused_stays_noted_when_the_session_is_let_go(begin, directory):
    """A session whose last records the disk refused is let go: journal and LOCK stay, and a load says how many are missing (S4-131)."""
    system = Faulty("write")
    builder, store = begin(system=system)
    builder.begin_turn().end()
    assert store.flush()
    store._beat()
    system.arm()
    builder.begin_turn().end()
    builder.end_session()
    store.wait(60.0)
    assert store.let_go()
    system.mend()
    assert [3, True] == [store.unwritten, store.live.exists()]
    assert ["3 records were never written, since the disk would not take them"] == load("txn-1", directory).damage.lost()


class NoRoom(Faulty):
    """A disk that is full from the moment on at which LOCK was made: it has no byte, and takes none until the disk is mended."""

    armed_lock = True

    def rewrite(self, fd, data, start=0):
        """Refuse, or do it."""
        if self.armed_lock:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().rewrite(fd, data, start)


@pytest.fixture
def no_room(begin):
    """Return such a disk, and a session in it whose last three records it refuses."""
    system = NoRoom("write")
    builder, store = begin(system=system)
    builder.begin_turn().end()
    assert store.flush()
    system.arm()
    builder.begin_turn().end()
    return system, builder, store


def test_what_the_disk_refused_is_noted_where_lock_has_no_byte(no_room, directory, again):
    """A session is let go on a disk that is full since before its first sign of life: a load says what is missing (S4-131)."""
    _, builder, store = no_room
    builder.end_session()
    store.wait(60.0)
    assert store.let_go()
    lost = ["3 records were never written, since the disk would not take them"]
    assert (3, 0, lost) == (store.unwritten, (store.live / "LOCK").stat().st_size, load("txn-1", directory).damage.lost())
    resumed, second = again("txn-1", directory)[:2]
    second._beat()
    assert [] == lock.notes_of_refused(second.live)
    resumed.end_session()
    assert second.close(60.0)
    assert (lost, False) == (load("txn-1", directory).damage.lost(), second.live.exists())


def test_what_the_disk_takes_after_all_is_noted_no_more(no_room, directory):
    """Once there is room again, LOCK has the sign of life, the file that stood for it goes, and nothing is missing (S4-131)."""
    system, builder, store = no_room
    store._beat()
    store._beat()
    assert [f"refused-0000-{store.journal.last}-2"] == [path.name for path in lock.notes_of_refused(store.live)]
    system.mend()
    system.armed_lock = False
    assert store.flush()
    store._beat()
    assert ([], True) == (lock.notes_of_refused(store.live), last_beat(store.live) > 0.0)
    assert "clean" == load("txn-1", directory).damage.state
    builder.end_session()
    assert store.close(60.0)


def test_what_the_disk_refused_stays_noted_when_a_resume_fails(refused_five, again):
    """A process that cannot resume a session leaves LOCK, with the note of the one before it, beside the journal (S4-131)."""
    image, _ = refused_five
    system = Faulty("create", errno.EMFILE)
    system.arm()
    with pytest.raises(OSError, match="Too many"):
        again("txn-1", image, system=system)
    assert ["5 records were never written, since the disk would not take them"] == load("txn-1", image).damage.lost()


def test_a_failed_sync_closes_nothing_under_its_writer(begin):
    """The thread that syncs only notes the fault; the file is closed by whoever writes or flushes next, who then begins another."""
    system = Faulty("datasync", errno.EIO, times=1)
    builder, store = begin(system=system, sync="write")
    system.arm()
    before = store.journal.fd
    assert not store.journal.sync()
    assert not store.journal.sync()
    assert (before, 1) == (store.journal.fd, system.calls["datasync"])
    assert f"{Path(*store.journal.path.parts[-2:])}: Input/output error" == store.journal.problem
    builder.begin_turn()
    assert 2 == len(journals(store.live))
    assert store.flush("sync")


def test_a_late_record_does_not_disturb_a_new_owner(begin, directory, again):
    """A session is saved and gone, and another process goes on with it: what the first one records then is counted as lost."""
    builder, store = begin()
    op = builder.begin_op("llm", "p:m")
    builder.end_session()
    assert store.flush("snapshot")
    resumed, _ = again("txn-1", directory)
    op.account(cost_usd=1.0)
    assert 1 == store.journal.lost
    assert not store.flush()
    busy(resumed, 1)
    with pytest.raises(BusyError):
        SessionStore("txn-1", StoreOptions(directory))


class Ending(OS):
    """Removes the live directory before the first file is made in it, as a parent does that ends the session just after a fork."""

    ended = False

    def create(self, path):
        """Make a file where there was a directory a moment ago."""
        if not self.ended:
            self.ended = True
            path.parent.rmdir()
        return super().create(path)


def test_a_journal_for_a_session_that_has_just_ended(tmp_path):
    """A forked child has a journal, and no problem, where its parent ends the session in that moment."""
    live = tmp_path / "txn-1.live"
    live.mkdir()
    journal = Journal(live, "txn-1", "1", system=Ending())
    assert ("", [journal.path]) == (journal.problem, journals(live))
    journal.close()


FORKED_WHILE_A_THREAD_OPENS = """
import os, sys, threading
from pathlib import Path
from optree._store.files import descriptors
from optree._store.files import lock
from optree._syscalls import calls
from optree._store.files.system import REAL

path, begun, fds = Path(sys.argv[1]), threading.Event(), []

def slowly(name, flags, mode):
    fd = calls.open_kept(name, flags, mode)
    begun.set()
    while not descriptors._forking:
        pass
    return fd

def opened(path):
    return descriptors.opened_for_lock(slowly, path, os.O_RDWR | os.O_CREAT)

thread = threading.Thread(target=lambda: fds.append(lock.take(path, opened=opened)))
thread.start()
begun.wait()
"""
FORKED_WHILE_A_THREAD_BILLS = """
import os, sys, threading
from pathlib import Path
from optree._store.ledger import Bill, Ledger
from optree._store.files.system import OS, REAL

path, begun, go_on = Path(sys.argv[1]), threading.Event(), threading.Event()

class Slow(OS):
    def write_all(self, fd, data):
        begun.set()
        go_on.wait()
        super().write_all(fd, data)

def bill(system, txn):
    ledger = Ledger(path, system)
    return ledger.append_all([Bill(ledger, txn, [{"id": "1"}], [b'{"id":"1","originTxnId":"%b"}' % txn.encode()])], 0.0)

thread = threading.Thread(target=bill, args=(Slow(), "a"))
thread.start()
begun.wait()
"""
CHILD = """
told, end = os.pipe()
ready, lives = os.pipe()
if (child := os.fork()) == 0:
    os.close(end)
    os.write(lives, b"1")
    os.read(told, 1)
    os._exit(0)
os.read(ready, 1)
"""


def _ran(program, path):
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout or done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked there")
def test_a_forked_child_has_no_part_in_a_lock_that_a_thread_takes_just_then(tmp_path):
    """The lock is free as soon as who took it closes the file, though a child lives that was forked while it was being opened."""
    program = (
        FORKED_WHILE_A_THREAD_OPENS + CHILD + "thread.join()\nREAL.close(fds[0])\nprint(fds[0] >= 0, lock.take(path, seconds=0.0) >= 0)"
    )
    assert "True True\n" == _ran(program, tmp_path / "LOCK")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked there")
def test_a_forked_child_does_not_keep_the_ledger_from_others(tmp_path):
    """A child that was forked while another thread was billing does not have the ledger locked beyond that; it bills, too."""
    child = CHILD.replace("os.read(told, 1)", "os.read(told, 1)\n    bill(REAL, 'child')")
    program = (
        FORKED_WHILE_A_THREAD_BILLS + child + "go_on.set()\nthread.join()\nprint(bill(REAL, 'b'))\nos.close(end)\nos.waitpid(child, 0)"
    )
    path = tmp_path / "accounting.jsonl"
    assert "1\n" == _ran(program, path)
    assert ["a", "b", "child"] == [json.loads(line)["originTxnId"] for line in path.read_text().splitlines()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked there")
def test_a_fork_waits_for_a_slow_disk_no_longer_than_a_moment(tmp_path):
    """Where a file takes long to be opened, the process is forked all the same."""
    program = (
        FORKED_WHILE_A_THREAD_OPENS.replace("descriptors._forking", "forked") + CHILD + "forked.append(child)\nthread.join()\nprint(True)"
    )
    assert "True\n" == _ran("forked = []\n" + program, tmp_path / "LOCK")
