"""What goes wrong for a moment while a session's files are read takes nothing of it away: the call fails, and the next one finds all."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from optree import _records as r
from optree._nodes import AccountingEntry
from optree._store import Directory, SessionStore, load
from optree._store import settle as settle_module
from optree._store.reading.directory import journals
from optree._store.saving import StoreOptions
from optree._store.settle import settle
from optree._tree import walk_ops
from optree.errors import StoreError
from tests.store.faults import Faulty
from tests.store.test_journal import busy

CODES = [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES]


def ops(what: str | Path, directory: Directory) -> list[str]:
    """Return the names of the ops that are loaded."""
    return [op.name for _, _, op in walk_ops(load(what, directory).session)]


def bills(directory: Directory) -> list[str]:
    """Return the ids of the entries that are loaded."""
    return sorted(entry.id for _, _, op in walk_ops(load("txn-1", directory).session) for entry in op.accounting)


def copy(directory: Directory, base: Path) -> Directory:
    """Return a copy of a directory."""
    return Directory.of(shutil.copytree(directory.sessions.parent, base))


@pytest.fixture
def two_lives(begin, again, killed):
    """Return a directory with a session that ended, was resumed and killed: its snapshot has the one half, its journal the other."""
    builder, store = begin()
    busy(builder, 2)
    builder.end_session()
    assert store.flush("snapshot")
    first = killed()
    resumed, after = again("txn-1", first)
    busy(resumed, 2)
    after.flush()
    return killed(first)


class Looks:
    """Counts the times that what has a *name* is looked at, and fails the one with the number *at*."""

    def __init__(self) -> None:
        self.name, self.at, self.seen = "", 0, 0

    def arm(self, name: str, at: int) -> None:
        """Count from the beginning."""
        self.name, self.at, self.seen = name, at, 0

    def disarm(self) -> None:
        """Count no more."""
        self.name = ""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Return what lets one `lstat` fail."""
    found, real = Looks(), Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path.name == found.name:
            found.seen += 1
            if found.seen == found.at:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    return found


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["pieces", "read"])
def test_a_resume_without_its_snapshot_is_refused(two_lives, again, call, code):
    """A snapshot that cannot be read now is no damaged one: the session stays as it is, and goes on with all of it the next time."""
    before = ops("txn-1", two_lives)
    system = Faulty(call, code, times=1)
    system.arm()
    with pytest.raises(OSError, match=os.strerror(code)):
        again("txn-1", two_lives, system=system)
    assert ["txn-1.json.zst", "txn-1.live"] == sorted(path.name for path in two_lives.sessions.iterdir())
    resumed, store = again("txn-1", two_lives)
    assert before == [op.name for _, _, op in walk_ops(resumed.node)]
    resumed.end_session()
    assert store.flush("snapshot")
    assert before == ops("txn-1", two_lives)


def test_a_sound_snapshot_is_not_called_damaged(two_lives):
    """A process without a free descriptor is told so, and not that half of the session is lost."""
    system = Faulty("pieces", errno.EMFILE, times=1)
    system.arm()
    with pytest.raises(StoreError, match=os.strerror(errno.EMFILE)):
        load("txn-1", two_lives, system)


@pytest.mark.parametrize("name", ["txn-1.live", "j-0000-000001.jsonl", "txn-1.json.zst"])
def test_what_cannot_be_looked_at_as_a_session_is_resumed_stays(two_lives, again, looks, name, tmp_path):
    """Whichever look at a file fails, the session is not taken for one without that file: none of its ops is lost."""
    before, at = ops("txn-1", two_lives), 0
    while looks.at <= looks.seen:
        image = copy(two_lives, tmp_path / f"at-{(at := at + 1)}")
        looks.arm(name, at)
        with suppress(OSError, StoreError):
            resumed, store = again("txn-1", image)
            resumed.end_session()
            store.flush("snapshot")
            store.close()
        looks.disarm()
        assert (at, before) == (at, ops("txn-1", image))
    assert at > 1


@pytest.mark.parametrize("name", ["txn-1.live", "j-0000-000001.jsonl", "j-0001-000001.jsonl"])
def test_what_cannot_be_looked_at_as_a_session_is_settled_stays(begin, killed, looks, name, tmp_path):
    """Settling removes the journals that the snapshot has, and none that it only did not see."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    busy(builder, 2)
    other = SessionStore("txn-1", store.options, owner=False)
    other.stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
    other.stream.flush()
    system.arm()
    builder.end_session()
    left, at = killed(), 0
    system.mend()
    other.close()
    before = bills(left)
    while looks.at <= looks.seen:
        image = copy(left, tmp_path / f"at-{(at := at + 1)}")
        looks.arm(name, at)
        with suppress(OSError, StoreError):
            settle("txn-1", StoreOptions(image))
        looks.disarm()
        assert (at, before) == (at, bills(image))
    assert at > 1


def test_a_journal_that_the_load_did_not_read_is_not_removed(begin, killed, monkeypatch):
    """What settling removes is what was read, also where more was there to be read."""
    system = Faulty("rename")
    builder, _ = begin(system=system)
    busy(builder, 1)
    system.arm()
    builder.end_session()
    left = killed()
    system.mend()
    late = left.live("txn-1") / "j-0001-000001.jsonl"
    real = settle_module.load

    def loading(*args):
        loaded = real(*args)
        loaded.sources.remove(late.name)
        return loaded

    joined = SessionStore("txn-1", StoreOptions(left), owner=False)
    joined.stream.put(r.Accounted("1.1", AccountingEntry("txn-1:1.1#1000001", 1.0, "llm")))
    joined.stream.flush()
    image = killed(left)
    joined.close()
    late = image.live("txn-1") / late.name
    monkeypatch.setattr(settle_module, "load", loading)
    settle("txn-1", StoreOptions(image))
    assert [late] == journals(image.live("txn-1"))
