"""Damage: what was lost once is said as long as the session is there, also when the files that showed it are gone."""

import pytest

from optree import _records as r
from optree._nodes import LogEntry
from optree._store import SessionStore, load
from optree._store.reading.directory import journals
from optree._store.reading.formats import read_meta
from optree._store.reading.reader import Flaw
from optree._store.reading.recovery import Damage
from optree._store.saving import StoreOptions
from optree._store.settle import settle
from optree._tree import walk_ops
from tests.store.faults import Faulty
from tests.store.test_journal import busy

LONG = 30.0
THERE = ["txn-1.damaged", "txn-1.json.zst"]


def kept(directory):
    """Return what is said of where the damaged files are."""
    return f"what was damaged is kept as it was: {directory.sessions}/txn-1.damaged"


def corrupt(path, line=3):
    """Change a byte in a line of a journal."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:line], lines[line].replace(b":", b";", 1), *lines[line + 1 :]]))


@pytest.fixture
def damaged(begin, killed):
    """Return a directory with an interrupted session whose journal has a bad line, and what a load says of it."""
    builder, store = begin()
    busy(builder, 2)
    store.flush()
    image = killed()
    corrupt(journals(image.live("txn-1"))[0])
    loaded = load("txn-1", image)
    assert ("damaged", 2) == (loaded.damage.state, len(loaded.damage.lines()))
    return image, [*loaded.damage.lines(), kept(image)]


def test_a_resumed_session_says_what_was_lost_before(damaged, again):
    """The damaged journal is gone with the session's end; its snapshot says what was lost, however often it is resumed and saved."""
    image, said = damaged
    for _ in range(2):
        builder, store = again("txn-1", image)
        busy(builder, 1)
        builder.end_session()
        assert store.close(LONG)
        assert THERE == sorted(path.name for path in image.sessions.iterdir())
        assert said == read_meta(image.snapshot("txn-1"))["damage"]
        loaded = load("txn-1", image)
        assert ("damaged", [f"lost before: {line}" for line in said]) == (loaded.damage.state, loaded.damage.lines())


def test_what_was_lost_is_said_once(damaged, again):
    """While the damaged file is still there beside a snapshot that says it, a load says it once."""
    image, said = damaged
    _, store = again("txn-1", image)
    assert store.close(LONG)
    assert [f"lost before: {line}" for line in said] == load("txn-1", image).damage.lines()


def test_a_clean_session_says_nothing(begin, directory):
    """The snapshot of a session that lost nothing has no damage in its meta."""
    builder, store = begin()
    builder.end_session()
    assert store.close(LONG)
    assert "damage" not in read_meta(directory.snapshot("txn-1"))


def test_a_resumed_session_whose_owner_was_killed_at_its_end_is_settled(damaged, again, killed):
    """What the snapshot says already keeps nobody from settling: the session is saved, billed, and says it still."""
    image, said = damaged
    system = Faulty("rename")
    builder, store = again("txn-1", image, system=system)
    busy(builder, 1)
    system.arm()
    builder.end_session()
    store.flush("snapshot")
    left = killed(image)
    assert settle("txn-1", StoreOptions(left))
    assert THERE == sorted(path.name for path in left.sessions.iterdir())
    assert said == load("txn-1", left).damage.earlier


@pytest.mark.parametrize("owner", [True, False])
def test_what_was_lost_of_a_joined_process_is_said(begin, directory, killed, owner):
    """A bad line in the journal of a process that joined is said by the snapshot that the owner writes; on disk it stays to be seen."""
    builder, store = begin()
    busy(builder, 1)
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    for number in range(3):
        joined.stream.put(r.OpBegin(f"1.{1_000_001 + number}", 1.0, "tool", "far"))
        joined.stream.flush()
    joined.close(LONG)
    corrupt(joined.journal.path, 2)
    bad = joined.journal.path.read_bytes()
    if owner:
        builder.end_session()
        assert store.close(LONG)
        assert THERE == sorted(path.name for path in directory.sessions.iterdir())
        [first, second, third] = read_meta(directory.snapshot("txn-1"))["damage"]
        assert first.startswith("j-0001-000001.jsonl: a line does not match its checksum (at byte ")
        assert second.startswith("j-0001-000001.jsonl: records 2 to 2 are missing")
        assert kept(directory) == third
        assert bad == (directory.sessions / "txn-1.damaged" / joined.journal.path.name).read_bytes()
    else:
        store.flush()
        assert not settle("txn-1", StoreOptions(killed()))


@pytest.mark.parametrize(("order", "lost"), [((1, 2, 3, 4), ""), ((2, 1, 3, 4), ""), ((2, 3, 4), "records 1 to 1 are missing")])
def test_a_joined_process_whose_journal_has_no_first_line(begin, directory, killed, order, lost):
    """That it is gone is said, and which records are; what is left is shown, in whatever order it stands."""
    busy(begin()[0], 1)
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    for number in (1, 2, 3, 4):
        joined.stream.put(r.OpBegin(f"1.{1_000_000 + number}", 1.0, "tool", f"far-{number}"))
        joined.stream.flush()
    joined.close(LONG)
    image = killed()
    path = image.live("txn-1") / joined.journal.path.name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    loaded = load("txn-1", image)
    names = [op.name for _, _, op in walk_ops(loaded.session) if op.name.startswith("far-")]
    assert [f"far-{number}" for number in sorted(order)] == sorted(names)
    gone = "its first line is missing; the others are checked by what their checksums agree on"
    assert [(path.name, said) for said in (gone, lost) if said] == [(flaw.file, flaw.said) for flaw in loaded.damage.flaws]


def test_a_snapshot_that_the_journals_replace_is_no_lasting_loss(begin, killed, again):
    """A broken snapshot whose session is whole in its journal is reported until a new one is written, and not after it."""
    builder, store = begin()
    busy(builder, 20)
    assert store.snapshot()
    image = killed()
    path = image.snapshot("txn-1")
    bad = path.read_bytes()[:100]
    path.write_bytes(bad)
    assert "damaged" == load("txn-1", image).damage.state
    resumed, after = again("txn-1", image)
    resumed.end_session()
    assert after.close(LONG)
    assert ("clean", 20) == (load("txn-1", image).damage.state, len(load("txn-1", image).session.turns[0].ops))
    assert bad == (image.sessions / "txn-1.damaged" / path.name).read_bytes()


def test_two_damaged_files_of_one_name_are_both_kept(damaged, again):
    """A session that is damaged, goes on, and is damaged again keeps what there was each time."""
    image, _ = damaged
    path = image.snapshot("txn-1")
    found = []
    for _ in range(2):
        _, store = again("txn-1", image)
        store.builder.end_session()
        assert store.close(LONG)
        found.append(path.read_bytes()[:-30])
        path.write_bytes(found[-1])
    _, store = again("txn-1", image)
    assert store.close(LONG)
    folder = image.sessions / "txn-1.damaged"
    assert found == [(folder / name).read_bytes() for name in (path.name, f"{path.name}.2")]


def test_records_of_no_path_are_counted(begin, directory):
    """A record whose path is none is counted as damage, and is said."""
    _, store = begin()
    store.stream.put(r.Entries("1.x", 0, [LogEntry(1.0, "VRB", "lost")]))
    assert store.flush()
    damage = load("txn-1", directory).damage
    assert ("damaged", 1) == (damage.state, damage.misplaced)
    assert ["1 records belong to nodes that cannot be: their paths are none"] == damage.lines()


def test_a_torn_tail_is_no_lasting_loss():
    """The cut end of a killed process is shown, and is not carried on."""
    damage = Damage([Flaw("j", 10, 5, "torn tail", "the last write was cut off")])
    assert ("torn tail", [], ["j: the last write was cut off (at byte 10, 5 bytes)"]) == (damage.state, damage.lost(), damage.lines())


@pytest.mark.parametrize("replaced", [True, False])
def test_what_a_journal_has_of_a_damaged_snapshot_is_told_and_not_lost(replaced):
    """What is missing from a snapshot is said, and counts as lost where no journal has it; what was lost before comes first."""
    damage = Damage(snapshot="s.json.zst breaks off", replaced=replaced, dropped=2, earlier=["one line"], renamed=["an id was none"])
    lost = ["one line", *([] if replaced else ["s.json.zst breaks off"])]
    assert lost == damage.lost()[: len(lost)]
    lines = ["lost before: one line", *(["s.json.zst breaks off"] if replaced else []), "an id was none"]
    assert lines == damage.lines()[: len(lines)]
    assert "damaged" == damage.state
    assert ("s.json.zst breaks off" in damage.unsaid()) != replaced
    assert 2 - replaced == len(damage.unsaid())
