"""An owner's journal of which nothing is left: damage if it ever had a record, and no session if it had none."""

import os

import pytest

from optree import _records as r
from optree._store import SessionStore, load
from optree._store.reading.directory import journals
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree.errors import DamagedError
from tests.store.test_journal import busy

JOURNAL = "j-0000-000001.jsonl"
GONE = "what the owner recorded is gone: no record is left in it"


@pytest.mark.parametrize("left", [0, 15, None, "removed"], ids=["no byte", "a piece of its first line", "its first line", "removed"])
@pytest.mark.parametrize("snapshot", [False, True], ids=["journals alone", "with a snapshot"])
def test_an_emptied_journal_of_the_owner_is_damage(begin, killed, left, snapshot):
    """The owner had noted that it lives, so its first record was written: that none is there is said, listed, and settled by nobody."""
    builder, store = begin()
    busy(builder)
    assert store.snapshot() if snapshot else store.flush()
    image = killed()
    if not snapshot:
        image.snapshot("txn-1").unlink(missing_ok=True)
    live = image.live("txn-1")
    (live / "LOCK").write_bytes(b"1760000000123".ljust(64))
    path = live / JOURNAL
    if left == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0][:left])
    for one in (live, live / "LOCK", *journals(live)):
        os.utime(one, (1, 1))
    assert [] == settle_all(StoreOptions(image))
    assert ["txn-1"] == [saved.txn for saved in image.saved()]
    if not snapshot:
        with pytest.raises(DamagedError, match=GONE):
            load("last", image)
    elif left == 0:
        damage = load("last", image).damage
        assert ("damaged", [f"{JOURNAL}: {GONE} (at byte 0, 0 bytes)"]) == (damage.state, damage.lines())
    else:  # its owner may have begun it anew, beside a snapshot that has all
        assert "damaged" != load("last", image).damage.state


@pytest.mark.parametrize("beat", [b"", b"1760000000123"], ids=["without a sign of life", "with one"])
def test_what_others_recorded_tells_that_the_owner_had(begin, directory, killed, beat):
    """The journal of another process is read, and that the owner's is empty is damage (S4-97)."""
    _, store = begin()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "t"))
    assert store.flush()
    assert joined.flush()
    image = killed()
    joined.close(0.0)
    (image.live("txn-1") / "LOCK").write_bytes(beat.ljust(64) if beat else b"")
    (image.live("txn-1") / JOURNAL).write_bytes(b"")
    damage = load("txn-1", image).damage
    assert ("damaged", [f"{JOURNAL}: {GONE} (at byte 0, 0 bytes)"]) == (damage.state, damage.lines()[:1])


@pytest.mark.parametrize("note", [b"", b"1760000000123 3 3"], ids=["killed as it began", "refused by the disk"])
def test_an_empty_journal_that_never_had_a_record_is_no_session(directory, note):
    """Before its first line, or where the disk refused that, nothing was written: such a directory is not listed."""
    live = directory.live("txn-1")
    live.mkdir(parents=True)
    (live / "LOCK").write_bytes(note.ljust(64) if note else b"")
    (live / JOURNAL).write_bytes(b"")
    assert [] == directory.saved()


@pytest.mark.parametrize("level", ["sync", "snapshot"])
def test_what_was_forced_in_a_sessions_first_moment_is_known_to_have_been(begin, directory, level):
    """Before its owner's first sign of life is due: a journal that was forced to the disk, and is empty, had records (S4-97)."""
    builder, store = begin()
    busy(builder)
    assert store.flush(level)
    last = store.journal.last
    directory.snapshot("txn-1").unlink(missing_ok=True)
    (store.live / JOURNAL).write_bytes(b"")
    assert ["txn-1"] == [saved.txn for saved in directory.saved()]
    with pytest.raises(DamagedError, match=f"records 1 to {last} are missing, which were on the disk"):
        load("last", directory)
