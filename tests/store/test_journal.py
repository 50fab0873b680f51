"""The journal: what is in it when a call has returned, and what it does when the disk says no."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

import optree
from optree import _records as r
from optree._store import Directory, journal, load, upkeep
from optree._store.files.system import OS
from optree._store.reading.directory import journals
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._store.session_store import SessionStore
from tests.store.faults import Faulty, ReadOnly, Short


def busy(builder, tools=5):
    """Do a little of everything; ends what it begins."""
    turn = builder.begin_turn(user="why?")
    for number in range(tools):
        op = builder.begin_op("llm", "openai:gpt-4o")
        op.log(f"log {number}")
        op.think(f"thought {number}")
        op.request([{"role": "user", "content": "why? " * 200}], number=number)
        op.account(input_tokens=10, output_tokens=1, cost_usd=0.01)
        op.response("because")
        op.end()
    turn.end()


def lines(path):
    """Return a file's lines as JSON, each held to its checksum by the rules that the format's page gives."""
    found, seed = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        body, mark, trailer = line.rpartition(b',"c":"')
        assert (b',"c":"', b'%08x"}\n' % crc32(body, seed)) == (mark, trailer)
        found.append(json.loads(line))
        seed = seed or crc32(line)
    return found


def test_every_line_is_json_with_a_checksum_and_a_number(begin):
    """A journal is valid JSONL: each line parses, ends in the CRC seeded by the header, and counts on by one (S4-82)."""
    builder, store = begin()
    busy(builder)
    assert store.flush()
    header, *rest = lines(store.journal.path)
    assert ("journal", 1, 1, "txn-1", "0000", 1, 1) == tuple(
        header[key] for key in ("t", "format", "minReader", "txn", "writer", "segment", "first")
    )
    assert list(range(1, len(rest) + 1)) == [line["n"] for line in rest]
    assert "session.begin" == rest[0]["t"]


def test_a_structural_call_is_on_disk_when_it_returns(begin):
    """Begin, end, accounting, message, request and response are in the file before their call returns (S4-82)."""
    builder, store = begin()
    seen = []

    def last():
        seen.append(lines(store.journal.path)[-1]["t"])

    builder.begin_turn(user="why?")
    last()
    op = builder.begin_op("llm", "openai:gpt-4o")
    last()
    op.request(question="why?")
    last()
    op.account(cost_usd=1.0)
    last()
    op.response("because")
    last()
    op.end()
    last()
    builder.append_message("more")
    last()
    assert ["turn.begin", "op.begin", "request", "accounting", "response", "op.end", "message"] == seen


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_private_whatever_the_umask(begin, directory, umask, request):
    """Files are 0600 and directories 0700, also those that had to be made on the way (S4-89)."""
    before = os.umask(umask)
    request.addfinalizer(lambda: os.umask(before))
    builder, store = begin()
    busy(builder, 1)
    assert store.snapshot()
    base = directory.sessions.parent
    modes = {path.relative_to(base).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in [base, *base.rglob("*")]}
    builder.end_session()
    assert store.flush("snapshot")
    modes["ledger"] = stat.S_IMODE(directory.billing.stat().st_mode)
    live = "sessions/txn-1.live"
    assert {
        ".": 0o700,
        "sessions": 0o700,
        live: 0o700,
        f"{live}/LOCK": 0o600,
        f"{live}/j-0000-000001.jsonl": 0o600,
        "sessions/txn-1.json.zst": 0o600,
        "ledger": 0o600,
    } == modes


def test_a_symlink_is_not_followed(directory, tmp_path):
    """A lock or journal that is a symlink planted by another is refused, and what it points to stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    directory.live("txn-1").mkdir(parents=True)
    (directory.live("txn-1") / "LOCK").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        SessionStore("txn-1", StoreOptions(directory))
    assert "mine" == victim.read_text()


def test_writes_of_one_byte_are_joined(begin, directory):
    """An operating system that takes a byte at a time gets all of them, in order."""
    builder, store = begin(system=Short(1))
    busy(builder, 2)
    assert store.flush()
    assert "clean" == load("txn-1", directory).damage.state
    assert 0 == store.journal.lost
    assert store.journal.last == lines(store.journal.path)[-1]["n"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("first", [1, 2, 7, 20])
def test_one_failed_write_costs_nothing_and_is_said(begin, directory, code, first):
    """After a write that fails once, a new segment goes on with what was refused, under the same numbers (S4-130, S4-131)."""
    system = Faulty("write", code, first, times=1)
    builder, store = begin(system=system)
    system.arm()
    busy(builder)
    assert store.flush()
    loaded = load("txn-1", directory)
    assert 2 == len(journals(store.live))
    assert (0, 0, "clean") == (store.journal.lost, store.unwritten, loaded.damage.state)
    assert list(range(1, store.journal.last + 1)) == [line["n"] for path in journals(store.live) for line in lines(path)[1:]]
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(loaded.tree)
    assert "j-0000-000001.jsonl" in store.journal.problem


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_never_comes_back_never_reaches_the_program(begin, directory, code):
    """Every write fails for ever: no call raises, flush tells, all that is lost is counted (S4-130, S4-131)."""
    system = Faulty("write", code)
    builder, store = begin(system=system)
    before = store.journal.last
    system.arm()
    busy(builder)
    assert not store.flush()
    assert not store.flush("sync")
    assert 5 == len(builder.node.turns[0].ops)
    assert 32 <= store.journal.lost
    assert "j-0000" in store.journal.problem or "txn-1.live" in store.journal.problem
    assert before == load("txn-1", directory).vector["0000"]


def test_recording_goes_on_when_the_disk_has_room_again(begin, directory):
    """Once the disk takes writes again, it gets what it refused and what follows, and nothing is lost (S4-131)."""
    system = Faulty("write", errno.ENOSPC)
    builder, store = begin(system=system)
    system.arm()
    busy(builder)
    assert not store.flush()
    assert 1 <= store.unwritten
    system.mend()
    builder.begin_turn(user="after")
    assert store.flush()
    loaded = load("txn-1", directory)
    assert (0, "clean") == (store.unwritten, loaded.damage.state)
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(loaded.tree)


def test_files_of_vain_tries_do_not_pile_up(begin, directory):
    """However often a full disk refuses a new segment, there is one file of those tries, and it is the next segment."""
    system = Faulty("write", errno.ENOSPC)
    builder, store = begin(system=system)
    system.arm()
    for _ in range(5):
        builder.begin_turn()
        assert not store.flush()
    assert 2 == len(journals(store.live))
    system.mend()
    assert store.flush()
    assert (2, "clean") == (len(journals(store.live)), load("txn-1", directory).damage.state)


def test_more_than_can_be_kept_is_counted(begin, directory, monkeypatch):
    """Of records that the disk refuses for long the first are kept; how many more there were is said by a gap behind them (S4-131)."""
    monkeypatch.setattr(journal, "HELD_RECORDS", 4)
    system = Faulty("write", errno.ENOSPC)
    builder, store = begin(system=system)
    system.arm()
    for number in range(10):
        builder.begin_turn(user=number)
    assert (10, 6) == (store.unwritten, store.journal.dropped)
    system.mend()
    builder.begin_turn(user="kept")
    assert not store.flush()
    loaded = load("txn-1", directory)
    assert [6] == [line["dropped"] for path in journals(store.live) for line in lines(path) if line["t"] == "gap"]
    assert (6, 6, ["0", "1", "2", "3", "kept"]) == (
        store.unwritten,
        loaded.damage.dropped,
        [turn.prompts["user"] for turn in loaded.session.turns if turn.prompts],
    )
    assert "6 records were never written, since the disk would not take them" in loaded.damage.lines()
    assert store.snapshot()
    assert (0, True) == (store.unwritten, store.flush())


def test_a_second_failure_does_not_forget_the_first(begin, directory, monkeypatch):
    """The write that was to say the gap fails as well: the next gap says all of it."""
    monkeypatch.setattr(journal, "HELD_RECORDS", 0)
    system = Faulty("write", errno.ENOSPC, first=1, times=1)
    builder, store = begin(system=system)
    for _ in range(3):
        system.arm()
        builder.begin_turn(user="lost")
        system.first = 2  # the header of the new segment is taken, the gap behind it is not
    system.mend()
    builder.begin_turn(user="kept")
    assert 3 == store.journal.lost
    assert 3 == load("txn-1", directory).damage.dropped


def test_what_follows_a_torn_batch_is_read(begin, directory):
    """A batch of which some lines reached the disk before it was full is written again behind it, and none of it counts twice."""
    system = Short(1 << 20)
    builder, store = begin(system=system)
    turn = builder.begin_turn()
    ops = [builder.begin_op("tool", f"tool {number}", turn=turn) for number in range(20)]
    held = store.stream.enter()  # nobody delivers meanwhile, so all of it is one batch
    for op in ops:
        op.log("word " * 20)
    system.until = system.done + 1500
    store.stream.leave(held)
    store.flush()
    system.until = None
    for number in range(40):
        builder.begin_op("tool", f"after {number}", turn=turn)
    assert store.flush()
    loaded = load("txn-1", directory)
    assert (0, [["word " * 20]] * 20) == (
        store.journal.lost,
        [[entry.message for entry in op.logs] for op in loaded.session.turns[0].ops[:20]],
    )
    assert [f"after {number}" for number in range(40)] == [op.name for op in loaded.session.turns[0].ops[20:]]
    assert {"torn tail"} == {flaw.kind for flaw in loaded.damage.flaws}
    assert 1500 <= sum(path.stat().st_size for path in journals(store.live)[:1])


def test_a_failed_sync_leaves_the_file_for_ever(begin, directory):
    """After a failed sync the file is never written or synced again: its pages may be gone though marked clean. The next has it all."""
    system = Faulty("datasync", errno.EIO, first=1, times=1)
    builder, store = begin(system=system, sync="write")
    builder.begin_turn()
    system.arm()
    first = store.journal.path
    assert not store.flush("sync")
    size = first.stat().st_size
    builder.begin_turn()
    assert store.flush("sync")
    assert first != store.journal.path
    assert size == first.stat().st_size
    assert "Input/output error" in store.journal.problem
    for gone in (False, True):
        if gone:
            first.unlink()
        assert ("clean", 2) == (load("txn-1", directory).damage.state, len(load("txn-1", directory).session.turns))


def test_only_what_was_not_synced_is_written_again(begin):
    """Of a file whose sync fails, the next segment has what came since the last sync that did not."""
    system = Faulty("datasync", errno.EIO, first=1, times=1)
    builder, store = begin(system=system, sync="write")
    builder.begin_turn()
    assert store.flush("sync")
    synced = store.journal.last
    builder.begin_turn()
    system.arm()
    assert not store.flush("sync")
    assert store.flush("sync")
    assert [synced + 1] == [line["n"] for line in lines(store.journal.path)[1:]]


class Halving(OS):
    """Loses the second half of the file whose sync it fails, once it is told to."""

    losing = refusing = False

    def datasync(self, fd):
        """Sync, or cut and refuse, or only refuse."""
        if self.refusing:
            self.refusing = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.losing:
            self.losing = False
            os.ftruncate(fd, os.fstat(fd).st_size // 2)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().datasync(fd)


def test_what_a_failed_sync_has_lost_is_counted(begin, killed, monkeypatch):
    """A file that could not be synced is cut when it is read back: what is in no file is counted and said until a snapshot has it."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 60.0)  # no snapshot of its own accord
    system = Halving()
    builder, store = begin(system=system, sync="write")
    builder.begin_turn()
    assert store.flush("sync")
    busy(builder, 10)
    system.losing = True
    assert not store.flush("sync")
    assert (gone := store.journal.last - read_journal(store.journal.path).last) > 1
    assert not store.flush("sync")
    assert (gone, gone) == (store.journal.dropped, store.unwritten)
    assert [gone] == [line["dropped"] for line in lines(store.journal.path) if line["t"] == "gap"]
    assert [f"{gone} records were never written, since the disk would not take them"] == load("txn-1", killed()).damage.lost()
    assert store.flush("snapshot")
    assert (True, 0) == (store.flush("sync"), store.unwritten)
    assert [] == load("txn-1", killed()).damage.lost()


def test_what_a_failed_sync_has_lost_is_counted_once(begin, killed, monkeypatch):
    """A further sync that fails, and loses nothing, counts nothing again; what else is missing before the gap is told beside it."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 60.0)
    system = Halving()
    builder, store = begin(system=system, sync="write")
    builder.begin_turn()
    assert store.flush("sync")
    first, synced = store.journal.path, store.journal.last
    busy(builder, 10)
    system.losing = True
    assert not store.flush("sync")
    assert not store.flush("sync")
    gone = store.journal.dropped
    system.refusing = True
    busy(builder, 1)
    assert not store.flush("sync")
    store.flush("sync")
    assert (gone, gone) == (store.journal.dropped, store.unwritten)
    assert [gone] == [line["dropped"] for line in lines(store.journal.path) if line["t"] == "gap"]
    image = killed()
    cut = image.live("txn-1") / first.name
    whole = [line for line in cut.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    kept = [line for line in whole if b'"t":"journal"' in line or msgspec.json.decode(line)["n"] < synced]
    cut.write_bytes(b"".join(kept))
    assert [f"records {synced} to {synced} are missing"] == [flaw.said for flaw in load("txn-1", image).damage.flaws]


def test_what_a_full_disk_took_before_is_synced(begin):
    """A file is left since the disk was full: `flush("sync")` is True only once it is on the disk as well."""
    system = Faulty("write", errno.ENOSPC, first=1, times=1)
    builder, store = begin(system=system, sync="write")
    builder.begin_turn()
    system.arm()
    builder.begin_turn()
    assert store.flush()
    system.arm("datasync", errno.EIO)
    system.first, system.times = 2, 1  # that of the first file
    assert not store.flush("sync")
    assert store.flush("sync")
    assert [1, 2, 3] == [line["n"] for line in lines(store.journal.path)[1:]]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_sync_that_is_ended_is_made_again(tmp_path, monkeypatch, error):
    """Whatever ends a sync, the next one asks the disk again: nothing is taken for synced that was not."""
    system = Faulty()
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=system)
    own.take([r.SessionSet("", 1.0, title="one")])
    asked, synced = [], system.datasync

    def datasync(fd):
        asked.append(fd)
        if len(asked) == 1:
            raise error
        synced(fd)

    monkeypatch.setattr(system, "datasync", datasync)
    with pytest.raises(error):
        own.sync()
    assert (True, True, 2) == (own.dirty, own.sync(), len(asked))
    own.close()


def test_a_journal_whose_sync_failed_is_not_closed_as_idle(tmp_path):
    """What the disk may have lost of it is to be written again, by whoever writes or flushes next: until then it stays open."""
    system = Faulty("datasync", errno.EIO, times=1)
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=system)
    own.take([r.SessionSet("", 1.0, title="one")])
    system.arm()
    assert (False, False) == (own.sync(), own.pause())
    assert own.retry()
    own.close()
    assert ["j-0000-000001.jsonl", "j-0000-000002.jsonl"] == [path.name for path in journals(own.live)]
    assert ["one"] == [record.title for record in read_journal(own.path, 0, OS()).records]


class Meeting(OS):
    """Holds the first sync of a file's data until it is told to go on; others are made, or fail."""

    def __init__(self):
        self.begun, self.go_on, self.error = threading.Event(), threading.Event(), None
        self.named = []

    def datasync(self, fd):
        """Wait, if it is the first."""
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(30.0)
        elif self.error is not None:
            raise self.error
        super().datasync(fd)

    def sync_name(self, path):
        """Note the name."""
        self.named.append(path)


def synced_beside(own, work):
    """Do some work while another thread waits for the disk; returns what its sync returned, or raised."""
    found = []

    def sync():
        try:
            found.append(own.sync())
        except Exception as error:  # noqa: BLE001 - what the test looks for
            found.append(error)

    system = own._os
    thread = threading.Thread(target=sync)
    thread.start()
    assert system.begun.wait(30.0)
    work()
    system.go_on.set()
    thread.join(30.0)
    return found


def test_two_threads_sync_a_file_that_took_no_more(tmp_path):
    """Two syncs at once meet a file that was given up: both come to their end, and the new segment's name is on the disk."""
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=Meeting())
    own.take([r.SessionSet("", 1.0, title="one")])
    own._give_up(OSError(errno.ENOSPC, "full"))
    told = []

    def other():
        own._retry_at = 0.0
        own.take([r.SessionSet("", 2.0, title="two")])
        told.append(own.sync())

    assert ([True], [True]) == (synced_beside(own, other), told)
    assert own.path in own._os.named
    own.close()


def test_a_sync_that_succeeds_beside_one_that_fails_vouches_for_nothing(tmp_path):
    """The system tells one of two threads that pages were lost, and the other one nothing: all is written again."""
    system = Meeting()
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=system)
    own.take([r.SessionSet("", 1.0, title="one")])
    before, told = own.path, []

    def other():
        system.error = OSError(errno.EIO, os.strerror(errno.EIO))
        told.append(own.sync())
        system.error = None

    assert ([False], [False]) == (synced_beside(own, other), told)
    assert (True, True) == (own.retry(), own.sync())
    assert (True, ["one"]) == (own.path != before, [one.title for one in read_journal(own.path, 0, OS()).records])
    own.close()


class Held(OS):
    """A disk that hangs until it is told not to."""

    hung = threading.Event()

    def datasync(self, fd):
        """Wait."""
        assert self.hung.wait(30.0)
        super().datasync(fd)


def test_a_disk_that_refuses_is_left_alone_for_a_while(begin, monkeypatch):
    """After a write, or a new file, that failed no other is tried before its time: what comes meanwhile is counted, and costs nothing."""
    system = Faulty("write", errno.ENOSPC)
    builder, store = begin(system=system, sync="write")
    system.arm()
    builder.begin_turn()
    assert store.journal.fd < 0
    monkeypatch.setattr(journal, "RETRY_SECONDS", 1e6)
    system.arm("create")
    for _ in range(3):
        builder.begin_turn()
    assert (1, 4) == (system.calls["create"], store.journal.lost)
    system.mend()
    builder.begin_turn()
    assert (1, 5) == (system.calls["create"], store.journal.lost)


@pytest.mark.parametrize(("asked", "call"), [("datasync", "fdatasync"), ("sync", "fsync"), ("sync_directory", "fsync_directory")])
def test_each_wait_is_for_the_system(monkeypatch, asked, call):
    """What waits for the disk asks the operating system, and is told what it says: only a power cut would show else."""
    got = []

    def refused(what):
        got.append(what)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(f"optree._store.files.system.calls.{call}", refused)
    with pytest.raises(OSError, match="Input/output error"):
        getattr(OS(), asked)(7)
    assert [7] == got


@pytest.mark.parametrize(("level", "expected"), [("write", 0), ("turn", 2), ("op", 7)])
def test_sync_levels_say_when_the_disk_itself_has_it(begin, level, expected):
    """`turn` syncs at each turn's end, `op` also at each op's end and accounting entry, `write` never."""
    system = Faulty()
    builder, _ = begin(system=system, sync=level)
    for _ in range(2):
        turn = builder.begin_turn()
        op = builder.begin_op("llm", "openai:gpt-4o")
        op.account(cost_usd=1.0)
        op.end()
        if level != "op" or not builder.node.turns[1:]:
            turn.end()
        else:
            builder.begin_op("llm", "again").end()
            turn.end()
    assert expected == system.calls["datasync"]


@pytest.mark.parametrize("call", ["create", "make_directory", "write", "own"])
def test_a_journal_that_cannot_begin_raises_at_once_and_lets_go(directory, call):
    """A store that cannot make its files raises `OSError` and holds no lock: the next try may succeed."""
    system = Faulty(call, errno.EACCES)
    system.arm()
    with pytest.raises(OSError, match="Permission denied"):
        SessionStore("txn-1", StoreOptions(directory, system=system))
    store = SessionStore("txn-1", StoreOptions(directory))
    assert store.journal.fd >= 0
    store.close()


def test_a_read_only_disk_does_not_stop_the_run(directory, capfd):
    """An agent on a read-only file system runs on, with one line on stderr (S4-131)."""
    options = StoreOptions(directory, system=ReadOnly())
    with pytest.raises(OSError, match="Read-only"):
        SessionStore("txn-1", options)
    assert not directory.sessions.exists()
    assert "" == capfd.readouterr().err


def test_a_file_in_the_place_of_the_directory_does_not_stop_the_run(tmp_path):
    """Where sessions cannot be kept the decorated program runs to its end, and stderr says why and what to do (S4-130, S4-131)."""
    (tmp_path / "sessions").write_text("a file")
    script = (
        "import optree\nwith optree.session('a'), optree.turn(), optree.tool('t') as op:\n    op.log('on')\nprint(optree.health()['ok'])"
    )
    env = {**os.environ, "OPTREE_BASE_DIR": str(tmp_path), "PYTHONPATH": str(Path(optree.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert "False\n" == ran.stdout
    assert "OPTREE_SESSIONS_DIR" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_another_process_gets_a_journal_and_numbers_of_its_own(begin, directory, opened):
    """A process that joins writes to its own file, with numbers from a range of its own and positions 'at the end'."""
    begin()
    joined = [SessionStore("txn-1", StoreOptions(directory), owner=False) for _ in range(2)]
    opened += joined
    assert [1, 2] == [store.journal.ordinal for store in joined]
    assert [1_000_000, 2_000_000] == [store.journal.base for store in joined]
    assert ["j-0000-000001.jsonl", "j-0001-000001.jsonl", "j-0002-000001.jsonl"] == [
        path.name for path in journals(directory.live("txn-1"))
    ]


def test_numbers_go_on_over_segments(begin, again, killed):
    """A resumed session's segment begins with the next number, and old bytes stay as they were."""
    builder, store = begin()
    busy(builder)
    store.flush()
    image = killed()
    path = journals(image.live("txn-1"))[0]
    before, last = path.read_bytes(), read_journal(path).records[-1].n
    _, resumed = again("txn-1", image)
    header = lines(resumed.journal.path)[0]
    assert (last + 1, 2) == (header["first"], header["segment"])
    assert before == path.read_bytes()


def test_the_sessions_directory_may_be_removed_under_a_session(begin, directory: Directory):
    """A program whose sessions directory is deleted meanwhile runs on, and flush does not claim what is not."""
    builder, store = begin()
    shutil.rmtree(directory.sessions)
    busy(builder)
    builder.end_session()
    store.flush("snapshot")
    assert 1 == len(builder.node.turns)
    assert "ended" == load("txn-1", directory).state


class Interrupted(OS):
    """Is hit once by a signal's handler that raises, in the middle of a write."""

    hit = False

    def write_all(self, fd, data):
        """Write half."""
        if not self.hit:
            self.hit = True
            super().write_all(fd, data[: len(data) // 2])
            raise KeyboardInterrupt
        super().write_all(fd, data)


def test_an_interrupt_in_its_first_line_leaves_no_file_without_one(tmp_path):
    """A signal's handler raises as the file of a lazy journal is begun: the next record begins it anew, with its first line."""
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, lazy=True, system=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        own.take([r.SessionSet("", 1.0, title="one")])
    own.take([r.SessionSet("", 2.0, title="two")])
    own.close()
    found = read_journal(own.path, 0, OS())
    assert (["two"], "") == ([record.title for record in found.records], own.problem)


class Resting(OS):
    """Begins to sync a journal where it is closed, and comes to the file's name when that is gone."""

    def __init__(self):
        self.own, self.synced = None, []
        self.at_name, self.gone = threading.Event(), threading.Event()

    def close(self, fd):
        """Let another thread begin."""
        if self.own is not None:
            own, self.own = self.own, None
            self.thread = threading.Thread(target=lambda: self.synced.append(own.sync()))
            self.thread.start()
            assert self.at_name.wait(30.0)
        super().close(fd)

    def sync_name(self, path):
        """Wait until the file is gone."""
        self.at_name.set()
        assert self.gone.wait(30.0)
        super().sync_name(path)


def test_a_sync_that_begins_while_the_journal_is_put_to_rest_misses_no_file(tmp_path):
    """The file is closed and removed, all of it is saved elsewhere: whoever began to sync it meanwhile finds nothing wrong."""
    system = Resting()
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=system)
    own.take([r.SessionSet("", 1.0, title="one")])
    system.own = own
    own.rest()
    own.path.unlink()
    own.live.rmdir()
    system.gone.set()
    system.thread.join(30.0)
    assert ([True], "") == (system.synced, own.problem)


class ClosingTwice(OS):
    """Has another thread close a journal's file that is known to be open, and is closed next."""

    def __init__(self):
        self.own, self.closed = None, []

    def is_open(self, fd):
        """Tell it once the other thread has closed the file too, or waits."""
        found = super().is_open(fd)
        self.closed += [fd] if found else []
        if self.own is not None:
            own, self.own = self.own, None
            self.thread = threading.Thread(target=own.rest)
            self.thread.start()
            self.thread.join(0.2)
        return found


def test_two_threads_close_a_journal(tmp_path):
    """Its file is closed once: the second close would be of whatever file has the descriptor by then, or a bad descriptor's."""
    system = ClosingTwice()
    own = journal.Journal(tmp_path / "live", "txn-1", "0", ordinal=0, system=system)
    own.take([r.SessionSet("", 1.0, title="one")])
    fd, system.own, system.closed = own.fd, own, []
    own.rest()
    system.thread.join(30.0)
    assert ([fd], "") == (system.closed, own.problem)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("first", range(1, 5))
def test_a_directory_whose_sync_failed_is_synced_by_the_next(tmp_path, first, code):
    """One directory of those above a file cannot be synced, once: the next sync of the file's name leaves none out."""
    system, synced = Faulty("sync_directory", code, first, 1), set()
    sync = system.sync_directory
    system.sync_directory = lambda path: (sync(path), synced.add(path))
    system.sync_name(tmp_path / "above")  # what is above is known then
    three = tmp_path / "one" / "two" / "three"
    system.make_directory(three)
    synced.clear()
    system.arm()
    with pytest.raises(OSError, match=os.strerror(code)):
        system.sync_name(three / "file")
    system.sync_name(three / "file")
    assert {three, *three.parents[:3]} == synced


def test_a_record_that_stands_twice_in_a_batch(tmp_path):
    """An interrupt may have put it again: both lines have numbers of their own, and none is missing."""
    written = journal.Journal(tmp_path, "txn-1", "0")
    record = r.TurnBegin("1", 1.0)
    written.take([record, record])
    written.take([r.TurnEnd("1", 2.0, "ok")])
    written.close()
    file = read_journal(written.path)
    assert ([], [1, 2, 3]) == (file.flaws, [one.n for one in file.records])
