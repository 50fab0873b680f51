"""An owner's journal that was cut, zeroed, emptied or removed: what is known of records that were in it is told, and nothing untrue."""

import re
import shutil
from pathlib import Path

import pytest

from optree import _records as r
from optree._store import Directory, SessionStore, load, resume_session
from optree._store.files.system import OS
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree.errors import DamagedError
from tests.store.test_journal import busy

JOURNAL = "j-0000-000001.jsonl"
HEAD, IN_HEAD, ZEROED, EMPTIED, REMOVED = "behind its first line", "in its first line", "zeroed", "emptied", "removed"
WAYS = [HEAD, IN_HEAD, ZEROED, EMPTIED, REMOVED]


def image(directory, path, *, snapshot=True) -> Directory:
    """Copy all that a process would leave that is killed now."""
    found = Directory.of(shutil.copytree(directory.sessions.parent, path, ignore=shutil.ignore_patterns(".tmp-*")))
    if not snapshot:
        found.snapshot("txn-1").unlink(missing_ok=True)
    return found


def cut(path: Path, how: str, keep: int = 1):
    """Damage a journal behind so many lines, or in its first, or all of it."""
    data = path.read_bytes()
    size = {IN_HEAD: 15, EMPTIED: 0}.get(how, len(b"".join(data.splitlines(keepends=True)[:keep])))
    if how == REMOVED:
        path.unlink()
    else:
        path.write_bytes(data[:size] + (bytes(len(data) - size) if how == ZEROED else b""))


def told(directory) -> list[str]:
    """Return what a load says is lost, without where."""
    return [re.sub(r" \(at byte.*", "", line) for line in load("txn-1", directory).damage.lost()]


@pytest.mark.parametrize("how", WAYS)
def test_synced_records_that_are_gone_beside_a_snapshot_are_told(begin, directory, tmp_path, how):
    """What came behind the snapshot was forced to the disk, and the journal has it no more: it is said which records (S4-97)."""
    builder, store = begin()
    busy(builder)
    assert store.snapshot()
    saved = store.journal.last
    busy(builder)
    assert store.flush("sync")
    found = image(directory, tmp_path / "image")
    assert "clean" == load("txn-1", found).damage.state
    cut(found.live("txn-1") / JOURNAL, how)
    assert [f"{JOURNAL}: records {saved + 1} to {store.journal.last} are missing, which were on the disk"] == told(found)
    assert "damaged" == load("txn-1", found).damage.state


def test_synced_records_that_are_gone_without_a_snapshot_are_told(begin, directory, tmp_path):
    """A journal that ends with a whole line has lost what came behind it."""
    builder, store = begin()
    busy(builder)
    assert store.flush("sync")
    found = image(directory, tmp_path / "image", snapshot=False)
    cut(found.live("txn-1") / JOURNAL, HEAD, 8)
    assert [f"{JOURNAL}: records 8 to {store.journal.last} are missing, which were on the disk"] == told(found)
    cut(found.live("txn-1") / JOURNAL, HEAD)
    with pytest.raises(DamagedError, match=f"records 1 to {store.journal.last} are missing"):
        load("txn-1", found)


@pytest.mark.parametrize("how", WAYS)
def test_records_that_may_be_gone_beside_a_snapshot_are_told(begin, directory, tmp_path, how):
    """A snapshot is written when the journal is on the disk: one that has less was cut, and it is not known where it ended (S4-97)."""
    builder, store = begin()
    busy(builder)
    assert store.snapshot()
    saved = store.journal.last
    busy(builder)
    found = image(directory, tmp_path / "image")
    assert "clean" == load("txn-1", found).damage.state
    cut(found.live("txn-1") / JOURNAL, how)
    said = f"records 1 to {saved} are gone from it, which the snapshot has; what came behind them may be missing"
    assert [f"{JOURNAL}: {said}"] == told(found)


def test_a_journal_that_goes_on_in_another_file_tells_what_is_gone_before_it(begin, again, directory, tmp_path):
    """The first file was cut, the session was resumed in a second one: the numbers between them are missing, said once (S4-97)."""
    builder, store = begin()
    busy(builder)
    assert store.flush("sync")
    found = image(directory, tmp_path / "image", snapshot=False)
    resumed, other = again("txn-1", found)
    last = other.journal.last
    busy(resumed)
    assert other.flush("sync")
    after = image(found, tmp_path / "after", snapshot=False)
    assert [] == told(after)
    cut(after.live("txn-1") / JOURNAL, HEAD, 8)
    missing = f"j-0000-000002.jsonl: records 8 to {store.journal.last} are missing"
    assert [missing] == [line for line in told(after) if "records" in line]
    assert last > store.journal.last


def test_what_another_process_recorded_first_and_is_gone_is_told(begin, directory, tmp_path):
    """The first file of a joined process was removed, and it had gone on in a second one."""
    _, store = begin()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    for number in range(1, 4):
        joined.stream.put(r.OpBegin(f"1.100000{number}", float(number), "tool", "t"))
    joined.flush()
    path = joined.journal.path
    joined.journal._give_up(OSError(5, "gone"))
    joined.stream.put(r.OpBegin("1.1000009", 9.0, "tool", "t"))
    assert joined.flush()
    assert store.flush()
    found = image(directory, tmp_path / "image")
    joined.close(0.0)
    assert [] == told(found)
    (found.live("txn-1") / path.name).unlink()
    assert [f"{joined.journal.path.name}: records 1 to 3 are missing"] == [line for line in told(found) if "records" in line]


def test_what_is_gone_is_told_once_and_stays_told(begin, directory, tmp_path):
    """A session is resumed whose journal was cut: its snapshots say so, no number is given twice, and nothing is told again."""
    builder, store = begin()
    busy(builder)
    assert store.snapshot()
    busy(builder)
    assert store.flush("sync")
    last = store.journal.last
    found = image(directory, tmp_path / "image")
    cut(found.live("txn-1") / JOURNAL, HEAD)
    lost = told(found)
    resumed, other, _ = resume_session("txn-1", StoreOptions(found))
    assert 1 == len(lost)
    assert read_journal(other.journal.path).header.first == last + 1
    later = image(found, tmp_path / "later")
    assert lost == [re.sub(r" \(at byte.*", "", line) for line in load("txn-1", later).damage.earlier if "missing" in line]
    assert [] == load("txn-1", later).damage.unsaid()
    resumed.end_session()
    other.close(10.0)
    assert (found.sessions / "txn-1.damaged" / JOURNAL).is_file()
    assert set(lost) <= set(told(found))


class Noting(OS):
    """Notes what may be on the disk: each state of LOCK, and how much of the journal was written and forced."""

    def __init__(self):
        self.states = []
        self.forced = 0
        self.live = None

    def note(self):
        """Note what there is."""
        if self.live is not None and (path := self.live / JOURNAL).is_file():
            snapshot = self.live.parent / "txn-1.json.zst"
            lock = (self.live / "LOCK").read_bytes()
            saved = snapshot.read_bytes() if snapshot.is_file() else None
            self.states.append((lock, saved, self.forced, path.stat().st_size))

    def datasync(self, fd):
        """Force to the disk."""
        size = (self.live / JOURNAL).stat().st_size
        self.note()
        super().datasync(fd)
        self.forced = size
        self.note()

    def rewrite(self, fd, data, start=0):
        """Write a note into LOCK."""
        super().rewrite(fd, data, start)
        self.note()

    def rename(self, old, new):
        """Put a snapshot into its place."""
        self.note()
        super().rename(old, new)
        self.note()


@pytest.mark.parametrize("sync", ["interval", "write", "turn"])
def test_what_a_power_cut_leaves_of_any_file_is_no_damage(begin, directory, tmp_path, sync):
    """LOCK as it ever was until then, the journal cut behind what was forced, the snapshot as it is: nothing is said to be lost."""
    system = Noting()
    system.live = directory.live("txn-1")
    builder, store = begin(system=system, sync=sync)
    for number in range(3):
        busy(builder, tools=1)
        store.flush("sync") if number else store.flush()
        busy(builder, tools=1)
        assert store.snapshot()
        store._beat()
    assert len(system.states) > 10
    data = (system.live / JOURNAL).read_bytes()
    locks = []
    live = (made := Directory.of(tmp_path / "image")).live("txn-1")
    live.mkdir(parents=True)
    tried, wrong = set(), []
    for lock, saved, forced, written in system.states:
        locks += [] if lock in locks else [lock]
        for size in {forced, (forced + written) // 2, written}:
            for older in locks:
                if (older, saved, size) in tried or (saved is None and size == 0):
                    continue
                tried.add((older, saved, size))
                (live / "LOCK").write_bytes(older)
                (live / JOURNAL).write_bytes(data[:size])
                made.snapshot("txn-1").unlink(missing_ok=True)
                if saved is not None:
                    made.snapshot("txn-1").write_bytes(saved)
                try:
                    damage = load("txn-1", made).damage
                except DamagedError as error:
                    wrong.append((older, size, str(error)))
                else:
                    wrong += [(older, size, damage.lost())] if damage.state == "damaged" else []
    assert [] == wrong
