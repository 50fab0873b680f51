"""Settling: a session that ended is saved and billed once, whoever comes to it."""

import errno
import os
import shutil
import threading
import time

import pytest
from msgspec import structs

from optree import _records as r
from optree._background import Job
from optree._nodes import AccountingEntry
from optree._store import Directory, SessionStore, journal, load, upkeep
from optree._store import settle as settle_module
from optree._store.files import lock
from optree._store.files import system as system_module
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.reading.directory import journals
from optree._store.reading.formats import read_meta
from optree._store.saving import StoreOptions
from optree._store.settle import LEDGER_BYTES, LEFT_SECONDS, settle, settle_all, was_left
from optree.errors import DamagedError, NotFoundError
from tests.store.faults import Faulty
from tests.store.test_journal import busy

LONG = 30.0
JOURNAL = "j-0000-000001.jsonl"


def billed(directory):
    """Return the ids in the ledger."""
    return sorted(entry["id"] for entry in Ledger(directory.billing).read())


def names(directory):
    """Return what is in the sessions directory."""
    return sorted(path.name for path in directory.sessions.iterdir())


def age(live):
    """Let a live directory be as old as one that nobody will write to any more."""
    for path in (*live.iterdir(), live):
        os.utime(path, (time.time() - 100, time.time() - 100))


@pytest.fixture
def left(begin, killed):
    """Return a directory with a session whose process was killed between its root's end and its last snapshot."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    busy(builder, 2)
    store.snapshot()
    system.arm()
    builder.end_session()
    store.flush("snapshot")
    image = killed()
    system.mend()
    return image


def test_what_its_process_did_not_come_to_is_settled(left):
    """A session that was killed after its root's end is saved and billed by the next who comes, once (S4-82, S4-104)."""
    assert not left.billing.exists()
    assert settle("txn-1", StoreOptions(left))
    assert ["txn-1.json.zst"] == names(left)
    assert ["txn-1:1.1#1", "txn-1:1.2#2"] == billed(left)
    assert not settle("txn-1", StoreOptions(left))
    assert ("ended", "clean") == (load("txn-1", left).state, load("txn-1", left).damage.state)


def test_the_next_session_settles_the_last(left, begin):
    """A session that opens in the directory settles, in the background, what another one left (S4-104)."""
    begin(directory=left, txn="txn-next")
    wait_for(lambda: left.billing.exists() and not left.live("txn-1").exists())
    assert ["txn-1:1.1#1", "txn-1:1.2#2"] == billed(left)


def test_a_kill_between_ledger_and_removal_bills_nothing_twice(begin, killed):
    """Snapshot and ledger are written and the journals are still there: settling removes them and bills nothing again (S4-104)."""

    class Keeping(OS):
        def unlink(self, path):
            if path.suffix == ".jsonl":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            super().unlink(path)

    builder, store = begin(system=Keeping())
    busy(builder, 2)
    builder.end_session()
    assert store.flush("snapshot")
    image = killed()
    assert "txn-1.live" in names(image)
    before = image.billing.read_bytes()
    assert [] == settle_all(StoreOptions(image))
    assert (["txn-1.json.zst"], before, 2) == (names(image), image.billing.read_bytes(), len(before.splitlines()))


def test_only_what_ended_is_settled(begin, directory, killed):
    """A running session is its owner's, an interrupted one is for a resume: both stay as they are."""
    builder, store = begin()
    busy(builder, 2)
    store.flush()
    image = killed()
    for there in (directory, image):
        before = journals(there.live("txn-1"))
        assert not settle("txn-1", StoreOptions(there))
        assert before == journals(there.live("txn-1"))
        assert not there.billing.exists()


def test_what_goes_on_is_told_without_loading_it(begin, again, directory, killed, monkeypatch):
    """A session that ended and was resumed is not loaded by those who look for what to settle, even before its next snapshot."""
    builder, store = begin()
    busy(builder, 2)
    builder.end_session()
    assert store.flush("snapshot")
    assert store.close(LONG)
    ended = directory.snapshot("txn-1").read_bytes()
    _, store = again("txn-1", directory)
    assert store.flush()
    image = killed()
    image.snapshot("txn-1").write_bytes(ended)
    monkeypatch.delattr("optree._store.settle.load")
    assert [] == settle_all(StoreOptions(image))
    assert "txn-1.live" in names(image)


def test_a_directory_that_is_no_session_is_passed_over(left):
    """A directory whose name no session can have is neither settled nor a problem."""
    (left.sessions / "..live").mkdir()
    (left.sessions / "-a b.live").mkdir()
    assert [] == settle_all(StoreOptions(left))
    assert ["-a b.live", "..live", "txn-1.json.zst"] == names(left)


def test_while_another_process_writes_nothing_is_settled(left):
    """A joined process that still writes keeps the session where it is; as it ends it settles the session itself (S4-94, S4-104)."""
    joined = SessionStore("txn-1", StoreOptions(left), owner=False)
    joined.stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
    assert joined.flush()
    assert not settle("txn-1", StoreOptions(left))
    joined.close(LONG)
    assert ["txn-1:1.1#1", "txn-1:1.1#1000001", "txn-1:1.2#2"] == billed(left)
    assert ["txn-1.json.zst"] == names(left)


def test_a_process_that_leaves_does_not_wait_for_the_ledger(left):
    """Somebody holds the ledger: a process that is leaving gives up after 50 ms, and the next one bills."""
    held = lock.take(left.billing)
    with pytest.raises(BlockingIOError, match="another process is writing to the ledger"):
        settle("txn-1", StoreOptions(left), leaving=True)
    os.close(held)
    assert settle("txn-1", StoreOptions(left), leaving=True)
    assert 2 == len(billed(left))


def test_a_process_that_leaves_settles_only_what_is_small(left, monkeypatch):
    """A large session is left to the next who settles."""
    monkeypatch.setattr("optree._store.settle.SMALL_BYTES", 100)
    assert not settle("txn-1", StoreOptions(left), leaving=True)
    assert settle("txn-1", StoreOptions(left))


def test_sessions_begun_one_after_another_look_once(begin, directory, monkeypatch):
    """Of 20 sessions that are begun in a directory one looks through it for what is to be settled, the others do not."""
    looked, unsettled = [], settle_module.unsettled
    monkeypatch.setattr(settle_module, "unsettled", lambda options: looked.append(options.directory) or unsettled(options))
    for _ in range(20):
        begin()
    assert Job(upkeep.SAVING, lambda: None, str).wait(LONG)  # behind all that was asked for before
    assert [directory] == [one for one in looked if one == directory]  # a thread of another test may look through its own


def test_one_that_cannot_be_settled_holds_up_no_other(begin, killed, monkeypatch):
    """Of two sessions that were let go the first can never be saved: the second is billed all the same, the first once it can be."""
    monkeypatch.setattr(settle_module, "AGAIN_SECONDS", 0.01)
    system = Faulty("rename")
    system.arm()
    for txn in ("txn-1", "txn-2"):
        builder, store = begin(system=system, txn=txn)
        busy(builder, 1)
        builder.end_session()
        assert not store.flush("snapshot")
    image = killed()
    system.mend()
    broken = Faulty("rename", errno.EIO)
    broken.arm()
    try:
        settle_module.settle_later("txn-1", StoreOptions(image, system=broken))
        settle_module.settle_later("txn-2", StoreOptions(image))
        wait_for(lambda: ["txn-2:1.1#1"] == (billed(image) if image.billing.exists() else []))
        assert image.live("txn-1").exists()
    finally:
        broken.mend()
        wait_for(lambda: not settle_module._left)
    assert ["txn-1:1.1#1", "txn-2:1.1#1"] == billed(image)


@pytest.mark.parametrize("settled", [True, False])
def test_what_is_asked_for_while_it_is_settled(settled, tmp_path, monkeypatch):
    """A flush speaks of what came before it: later records make it neither true nor false, and are settled later."""
    options, seen, really = StoreOptions(Directory.of(tmp_path)), [], settle_module.settle

    def settle(txn, told, **given):
        """Be told of later records meanwhile; a thread of another test may settle what stands in its directory."""
        if told is not options:
            return really(txn, told, **given)
        seen.append(txn)
        settle_module.settle_later(txn, told)
        return settled

    monkeypatch.setattr(settle_module, "settle", settle)
    options.directory.live("txn-1").mkdir(parents=True)
    settle_module._left.clear()  # what other tests have left
    settle_module.settle_later("txn-1", options)
    try:
        assert (settled, 1 if settled else 3) == (settle_module.settle_left(LONG), len(seen))
        assert ["txn-1"] == [left.txn for left in settle_module._left.values() if left.options is options]
    finally:
        settle_module._left.clear()


@pytest.mark.parametrize("own", [False, True])
def test_a_child_that_begins_its_file_as_the_session_is_to_be_settled(left, own):
    """A flush waits for what this process has recorded; for what others have, only once all of them have gone."""
    system = OS()
    fd = system.create(left.live("txn-1") / "j-0001-000001.jsonl")
    settle_module._left.clear()  # what other tests have left
    try:
        assert was_left(left.live("txn-1"), system)  # between the file and its lock
        assert system.lock(fd, new=True)
        settle_module.settle_later("txn-1", StoreOptions(left), own=own)
        assert (not own) is settle_module.settle_left(LONG)
        os.close(fd)
        assert settle_module.settle_left(LONG)
        assert [] == [path for path in left.sessions.iterdir() if path.is_dir()]
    finally:
        settle_module._left.clear()


def test_later_records_do_not_put_it_off(tmp_path):
    """A session that gets records again and again is settled when it was due at first."""
    options = StoreOptions(Directory.of(tmp_path))
    settle_module._left.clear()  # what other tests have left
    try:
        settle_module.settle_later("txn-1", options)
        [left] = settle_module._left.values()
        due = left.due
        settle_module.settle_later("txn-1", options)
        assert due == left.due
    finally:
        settle_module._left.clear()


def test_the_background_settles_only_what_is_small(left, begin, monkeypatch):
    """An agent does not load a large session that another one left; an explicit settling does, as a command asks for it."""
    monkeypatch.setattr("optree._store.settle.BACKGROUND_BYTES", 100)
    done = threading.Event()
    settling = settle_module.settling

    def watched(*args, **options):
        yield from settling(*args, **options)
        done.set()

    monkeypatch.setattr(settle_module, "settling", watched)
    begin(directory=left, txn="txn-next")
    assert done.wait(LONG)
    assert left.live("txn-1").exists()
    assert [] == settle_all(StoreOptions(left))
    assert not left.live("txn-1").exists()


def test_a_process_that_leaves_does_not_search_a_large_ledger(left):
    """A ledger of more than 64 MiB is not searched at exit: the session stays as it is, and is billed where the ledger is small enough."""
    left.billing.parent.mkdir(parents=True, exist_ok=True)
    left.billing.touch()
    os.truncate(left.billing, LEDGER_BYTES + 1)  # sparse: it takes no room
    before = names(left)
    assert not settle("txn-1", StoreOptions(left), leaving=True)
    assert (before, LEDGER_BYTES + 1) == (names(left), left.billing.stat().st_size)
    os.truncate(left.billing, 0)
    assert settle("txn-1", StoreOptions(left), leaving=True)
    assert 2 == len(billed(left))


def test_damage_stays_to_be_seen(left):
    """A session with a corrupt line is billed and not removed: the damaged file is all that shows what was lost."""
    path = journals(left.live("txn-1"))[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b":", b";"), *lines[4:]]))
    left.snapshot("txn-1").unlink()
    for _ in range(2):
        assert not settle("txn-1", StoreOptions(left))
        assert "damaged" == load("txn-1", left).damage.state
        assert len(billed(left)) == len(set(billed(left))) > 0


def test_an_owner_finishes_what_a_joined_process_kept_open(begin, directory, monkeypatch):
    """The root ends while a pool worker lives: the owner tries again each second, and lets its lock go at the end (S4-94, S4-104)."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    builder, store = begin()
    busy(builder, 1)
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    builder.end_session()
    assert store.flush("snapshot")
    assert not store.finished
    joined.stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
    joined.close(LONG)
    wait_for(lambda: store.finished and ["txn-1.json.zst"] == names(directory))  # its journals go last
    assert ["txn-1:1.1#1", "txn-1:1.1#1000001"] == billed(directory)
    assert store.close(LONG)
    assert not lock.is_running(store.live)


def test_what_comes_after_the_removal_is_on_disk(begin, directory, killed):
    """An entry that comes after a session is saved and its journals are gone is loaded after a kill, and is billed at the close (S4-82)."""
    builder, store = begin()
    op = builder.begin_op("llm", "p:m")
    op.account(cost_usd=1.0)
    builder.end_session()
    assert store.flush("snapshot")
    assert not store.live.exists()
    assert store.flush("sync")
    op.account(cost_usd=2.0)
    assert store.flush("write")
    assert store.flush("sync")
    image = killed()
    assert 3.0 == load("txn-1", image).session.totals.cost_usd
    assert settle("txn-1", StoreOptions(image))
    assert 2 == len(billed(image))
    assert store.close(LONG)
    assert (2, ["txn-1.json.zst"]) == (len(billed(directory)), names(directory))


def test_a_journal_that_nobody_read_is_not_removed(begin, directory):
    """A process that joins after the owner has looked keeps its file."""
    builder, store = begin()
    busy(builder, 1)
    late = []

    class Joining(OS):
        def replacing(self, path, pieces, aside=None):
            yield from super().replacing(path, pieces, aside)
            if not late and builder.node.ended_at is not None:
                late.append(SessionStore("txn-1", StoreOptions(directory), owner=False))
                late[0].stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
                late[0].stream.flush()

    store._os = Joining()
    store.options = structs.replace(store.options, system=store._os)
    builder.end_session()
    assert store.flush("snapshot")
    assert [late[0].journal.path] == journals(store.live)
    assert store.close(LONG)
    late[0].close(LONG)  # with no time left it stays in the journal, for whoever settles that
    assert ["txn-1:1.1#1", "txn-1:1.1#1000001"] == billed(directory)


def test_a_journal_that_begins_under_a_name_that_was_free_is_not_removed(left):
    """A process that recorded nothing removes its file as a session is settled; one that joins later, as the same writer, keeps its own."""
    first = left.live("txn-1") / "j-0001-000001.jsonl"
    first.touch()
    late = []

    class Joining(OS):
        def open(self, path):
            if path == first:
                path.unlink()
            return super().open(path)

        def replacing(self, path, pieces, aside=None):
            late.append(SessionStore("txn-1", StoreOptions(left), owner=False))
            late[0].stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
            late[0].stream.flush()
            yield from super().replacing(path, pieces, aside)

    assert settle("txn-1", StoreOptions(left, system=Joining()))
    assert [first] == [late[0].journal.path] == journals(left.live("txn-1"))
    late[0].close(LONG)
    assert ["txn-1:1.1#1", "txn-1:1.1#1000001", "txn-1:1.2#2"] == billed(left)


def test_a_ledger_that_failed_half_way_has_each_entry_once(begin, directory):
    """The disk refuses to sync the ledger, and something comes late: the second try writes only what is missing (S4-106)."""
    system = Faulty("datasync", errno.EIO)
    builder, store = begin(system=system, sync="write")
    op = builder.begin_op("llm", "p:m")
    op.account(cost_usd=1.0)
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    system.mend()
    op.log("late")
    assert store.close(LONG)
    assert ["txn-1:1.1#1"] == billed(directory)


def test_a_snapshot_that_is_asked_for_is_written(begin, directory):
    """`flush("snapshot")` of a session that goes on writes one, and says so only then."""
    builder, store = begin()
    busy(builder, 1)
    assert not directory.snapshot("txn-1").exists()
    assert store.flush("snapshot")
    assert read_meta(directory.snapshot("txn-1"))["journal"]["0000"] == store.journal.last


def test_a_closed_store_does_not_claim_what_failed(begin):
    """After a close `flush` tells whether everything was delivered."""
    system = Faulty("write")
    builder, store = begin(system=system)
    system.arm()
    builder.begin_turn()
    store.close(0.0)
    assert not store.flush()


def test_snapshots_after_sub_agents_are_spaced(begin, directory):
    """The first sub-agent's end is followed by a snapshot at once, the next ones within a second by one together."""
    builder, store = begin()
    turn = builder.begin_turn()
    for number in range(30):
        op = builder.begin_op("session", "sub", turn=turn)
        builder.attach_child_session(op, "sub").end_session()
        op.end()
        if not number:
            wait_for(directory.snapshot("txn-1").exists)
    last = store.journal.last
    assert read_meta(directory.snapshot("txn-1"))["journal"]["0000"] < last
    wait_for(lambda: read_meta(directory.snapshot("txn-1"))["journal"]["0000"] == last)


def test_another_compression_replaces_the_old_file(begin, directory, again):
    """A session that is resumed with another compression has one snapshot."""
    builder, store = begin()
    busy(builder, 1)
    builder.end_session()
    assert store.close(LONG)
    resumed, after = again("txn-1", directory, compression="gzip")
    resumed.end_session()
    assert after.close(LONG)
    assert ["txn-1.json.gz"] == names(directory)


def test_a_gap_is_healed_by_a_snapshot(begin, directory, killed, monkeypatch):
    """The disk refuses more than is kept and then works again: the next snapshot has what the journal has not (S4-131)."""
    monkeypatch.setattr(journal, "HELD_RECORDS", 0)
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    system = Faulty("write", times=1)
    builder, store = begin(system=system)
    system.arm()
    builder.begin_turn(user="lost")
    builder.begin_turn(user="kept")
    wait_for(directory.snapshot("txn-1").exists)
    image = killed()
    assert ["lost", "kept"] == [turn.prompts["user"] for turn in load("txn-1", image).session.turns]
    assert "clean" == load("txn-1", image).damage.state
    builder.end_session()
    assert store.close(LONG)
    assert ["txn-1.json.zst"] == names(directory)


def test_a_resume_with_a_clock_that_is_behind_is_billed(begin, directory, again):
    """A machine whose clock is a minute behind goes on with a session: it is open again, and its costs are billed (S4-99, S4-104)."""
    builder, store = begin()
    busy(builder, 1)
    builder.end_session()
    assert store.close(LONG)
    ended = builder.node.ended_at
    resumed, after = again("txn-1", directory, now=lambda: time.time() - 60)
    assert resumed.node.ended_at is None
    assert ended < resumed.node.resumed_at[0] < ended + 0.1
    busy(resumed, 1)
    resumed.end_session()
    assert after.close(LONG)
    assert ["txn-1:1.1#1", "txn-1:2.1#1"] == billed(directory)


def wait_for(done):
    """Wait until something that another thread does is done."""
    end = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_snapshot_that_takes_long_holds_up_no_sync(begin, monkeypatch):
    """While a snapshot is being written, what is recorded is forced to the disk all the same: the two have threads of their own."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    class Slow(OS):
        def replacing(self, path, pieces, aside=None):
            begun.set()
            assert go_on.wait(LONG)
            yield from super().replacing(path, pieces, aside)

    builder, store = begin(system=Slow())
    builder.attach_child_session(builder.begin_op("session", "x"), "reader").end_session()
    try:
        assert begun.wait(LONG)
        builder.begin_turn()
        wait_for(lambda: store.journal._synced == store.journal.last)
        assert not store.journal.dirty
    finally:
        go_on.set()


def test_what_killed_processes_left_half_written_goes(begin, killed):
    """Temporary files of snapshots to which nothing was written for an hour go, in the sessions directory and beside journals."""
    _, store = begin()
    store.flush()
    image = killed()
    folders = (image.sessions, image.live("txn-1"))
    for folder in folders:
        for name, age in (("old", LEFT_SECONDS + 60), ("new", LEFT_SECONDS - 60)):
            path = folder / f".tmp-{name}.json.zst-99999"
            path.write_bytes(b"half")
            os.utime(path, (time.time() - age,) * 2)
    outside = image.sessions.parent / "outside"
    outside.mkdir()
    (outside / ".tmp-mine").touch()
    os.utime(outside / ".tmp-mine", (0, 0))
    (image.sessions / "txn-9.live").symlink_to(outside)
    assert [] == settle_all(StoreOptions(image))
    assert [[".tmp-new.json.zst-99999"]] * 2 == [[path.name for path in folder.glob(".tmp-*")] for folder in folders]
    assert (outside / ".tmp-mine").exists()


def test_two_that_settle_at_once(begin, killed):
    """Another process settles a session, and removes its directory, when one comes to its lock: it says so, and no fault of it."""
    builder, store = begin()
    busy(builder, 1)
    with store._writing:  # it is neither saved nor removed while it is copied
        builder.end_session()
        store.journal.sync()
        image = killed()

    class Late(OS):
        def own(self, path):
            if path.name == "LOCK":
                shutil.rmtree(path.parent)
            return super().own(path)

    assert not settle("txn-1", StoreOptions(image, system=Late()))
    assert not image.live("txn-1").exists()


@pytest.mark.parametrize("files", [{}, {"LOCK": b""}, {"LOCK": b"17 3 3", JOURNAL: b""}, {JOURNAL: b'{"t":"journal",'}])
def test_what_a_process_left_that_was_killed_as_it_began(directory, files):
    """A live directory without any record is removed once nobody can be at it, not before, and not while its lock is held."""
    live = directory.live("unbegun")
    live.mkdir(parents=True)
    for name, data in files.items():
        (live / name).write_bytes(data)
    settle_all(StoreOptions(directory))
    assert live.is_dir()
    held = lock.take(live / "LOCK")
    age(live)
    settle_all(StoreOptions(directory))
    assert live.is_dir()
    lock.release([held])
    age(live)
    assert [] == settle_all(StoreOptions(directory))
    assert not live.exists()


def test_a_first_record_that_comes_as_its_directory_is_to_be_removed_is_kept(directory):
    """A process that was slow to begin records, and ends, between the look at its files and the lock on them: they stay."""
    live = directory.live("slow")
    slow = journal.Journal(live, "slow", "0", ordinal=0)
    age(live)

    class Late(OS):
        def own(self, path):
            if slow.fd >= 0:
                slow.take([r.SessionBegin("", 1.0, "slow", "a")])
                slow.close()
            return super().own(path)

    assert not settle("slow", StoreOptions(directory, system=Late()))
    assert [slow.path] == journals(live)


@pytest.mark.parametrize("data", [b"not a journal\n", b'{"t":"journal",' + b"x" * 5000])
def test_what_may_be_a_record_is_kept(directory, data):
    """A file that is no journal, or may have held records, stays where it is, with its directory."""
    live = directory.live("odd")
    live.mkdir(parents=True)
    (live / JOURNAL).write_bytes(data)
    age(live)
    settle_all(StoreOptions(directory))
    assert data == (live / JOURNAL).read_bytes()


@pytest.mark.parametrize("part", [0, 1, 15, 60, None], ids=["no byte", "one byte", "a word", "a piece", "a whole first line"])
def test_a_directory_without_a_record_is_no_session(begin, killed, part):
    """What a process leaves that is killed within its journal's first line, or behind it, is not listed; who asks for it hears why."""
    begin()
    there = killed()
    path = there.live("txn-1") / JOURNAL
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(first[:part])
    assert [] == there.saved()
    with pytest.raises(NotFoundError, match="no session 'last': there are none in"):
        load("last", there)
    why = "no record in" if not part else f"{JOURNAL}: ends inside its first line, before anything was recorded"
    with pytest.raises(DamagedError, match=f"nothing was recorded that can be read .{why}"):
        load("txn-1", there)


@pytest.mark.parametrize("data", [b"not a journal\n", b'{"t":"journal",' + b"x" * 5000])
def test_a_directory_that_may_have_a_record_is_listed(directory, data):
    """A file that is no journal, or may have held records, is seen as damaged, not passed over."""
    live = directory.live("odd")
    live.mkdir(parents=True)
    (live / JOURNAL).write_bytes(data)
    assert ["odd"] == [saved.txn for saved in directory.saved()]


def test_journals_go_when_the_name_of_the_snapshot_is_on_the_disk(begin, killed):
    """The owner wrote the last snapshot, and came no further than its rename: who settles syncs the name before the journals go."""
    system, done = Faulty("sync_directory", errno.EIO), []
    builder, store = begin(system=system)
    busy(builder, 1)
    assert store.flush("sync")
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    image = killed()
    system.mend()

    class Noting(OS):
        def sync_directory(self, path):
            super().sync_directory(path)
            done.append(path)

        def unlink(self, path):
            done.append(path)
            super().unlink(path)

    assert settle("txn-1", StoreOptions(image, system=Noting()))
    assert image.sessions in done[: done.index(image.live("txn-1") / JOURNAL)]


@pytest.mark.parametrize("within", [1, 12, 28], ids=["first byte", "in the middle", "last byte"])
def test_an_end_at_the_border_of_two_pieces(left, monkeypatch, within):
    """A journal is read in pieces: an end that is part in one and part in the next is seen, and the session is settled."""
    monkeypatch.setattr(system_module, "PIECE", (left.live("txn-1") / JOURNAL).read_bytes().index(b'{"t":"session.end","path":""') + within)
    assert settle("txn-1", StoreOptions(left))
    assert ["txn-1.json.zst"] == names(left)


def test_what_a_joined_process_sets_of_a_turn_that_is_saved(begin, directory):
    """A process sets a turn's prompts when a snapshot of the owner has that turn as it was: the last snapshot has them."""
    builder, store = begin()
    busy(builder, 1)
    assert store.flush("snapshot")
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    joined.stream.put(r.TurnSet("1", prompts={"user": "why not?"}))
    joined.close(LONG)
    builder.end_session()
    assert store.close(LONG)
    assert ([{"user": "why not?"}], ["txn-1.json.zst"]) == (
        [turn.prompts for turn in load("txn-1", directory).session.turns], names(directory),
    )  # fmt: skip
