"""Files in another session's place: nothing of them is shown, billed or settled as that session's, and it is said whose they are."""

import shutil

import pytest

from optree import _records as r
from optree._cli.commands.logs import follow
from optree._nodes import AccountingEntry
from optree._store import SessionStore, load
from optree._store.ledger import Ledger
from optree._store.reading.directory import journals
from optree._store.reading.formats import read_meta
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._store.settle import settle, unsettled
from optree._tree import walk_ops
from tests.store.conftest import Opened

OWN, JOINED = "j-0000-000001.jsonl", "j-0001-000001.jsonl"
TXNS = ("txn-1", "txn-2")


def recorded(begin, directory, *, end=False) -> list[Opened]:
    """Record sessions of an op of their own and one of a process that joined, which costs 10 in the first and 100 in the second."""
    opened = [begin(f"agent-{number}") for number in (1, 2)]
    for number, (builder, store) in enumerate(opened, 1):
        builder.begin_turn()
        builder.begin_op("tool", f"own-{number}").end()
        joined = SessionStore(store.txn, StoreOptions(directory), owner=False)
        joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", f"far-{number}"))
        entry = AccountingEntry(f"{store.txn}:1.1000001#1", 1.0, "tool", cost_usd=10.0**number)
        joined.stream.put(r.Accounted("1.1000001", entry))
        joined.close(30.0)
        if end:
            store.stream.put(r.SessionEnd("", 2.0, "ok"))
        store.flush()
    return opened


@pytest.fixture
def two(begin, directory, killed):
    """Return the directory of two sessions that were killed."""
    recorded(begin, directory)
    image = killed()
    both = [load(txn, image) for txn in TXNS]
    assert [("clean", 10.0), ("clean", 100.0)] == [(one.damage.state, one.session.totals.cost_usd) for one in both]
    return image


def swap(one, other):
    """Exchange what two files hold."""
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)


def ops(loaded):
    """Return the names of a session's ops."""
    return sorted(op.name for _, _, op in walk_ops(loaded.session))


def test_swapped_journals_are_shown_in_neither_session(two):
    """Journals of joined processes that stand in each other's session are named, and neither shown nor priced."""
    swap(*(two.live(txn) / JOINED for txn in TXNS))
    for number, (txn, other) in enumerate([TXNS, TXNS[::-1]], 1):
        loaded = load(txn, two)
        assert ([f"own-{number}"], 0.0, "damaged") == (ops(loaded), loaded.session.totals.cost_usd, loaded.damage.state)
        size = (two.live(txn) / JOINED).stat().st_size
        said = f"is of session '{other}', not of this one: nothing of it is taken until it is in its place"
        assert [f"{JOINED}: {said} (at byte 0, {size} bytes)"] == loaded.damage.unsaid()


def test_an_owners_journal_of_another_session_gives_no_root(two):
    """With the owners' journals exchanged, what is left of each session is its own."""
    swap(*(two.live(txn) / OWN for txn in TXNS))
    for number, txn in enumerate(TXNS, 1):
        loaded = load(txn, two)
        assert ([f"far-{number}"], "(unknown)", 10.0**number) == (ops(loaded), loaded.session.agent_id, loaded.session.totals.cost_usd)
        assert [OWN] == [flaw.file for flaw in loaded.damage.flaws]


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        ("txn-2", "j-0002-000001.jsonl", "is of session 'txn-2', not of this one"),
        ("txn-1", "j-0002-000001.jsonl", f"is '{JOINED}' of this session, under another name"),
        ("txn-1", "j-0001-000002.jsonl", f"is '{JOINED}' of this session, under another name"),
        ("txn-1", "j-0001-0000001.jsonl", f"is '{JOINED}' of this session, under another name"),
    ],
)
def test_a_copied_journal_counts_nothing(two, of, name, said):
    """A copy of a journal, of this session or of another, under a name that is not its own adds nothing, and is said."""
    shutil.copy(two.live(of) / JOINED, two.live("txn-1") / name)
    loaded = load("txn-1", two)
    assert (["far-1", "own-1"], 10.0) == (ops(loaded), loaded.session.totals.cost_usd)
    assert [(name, "foreign", f"{said}: nothing of it is taken until it is in its place")] == [
        (flaw.file, flaw.kind, flaw.said) for flaw in loaded.damage.flaws
    ]


def test_a_session_goes_on_without_what_is_anothers(two, again):
    """A foreign journal is kept, byte for byte, when the session goes on; put back into its own session, nothing is lost there."""
    swap(*(two.live(txn) / JOINED for txn in TXNS))
    foreign = (two.live("txn-1") / JOINED).read_bytes()
    builder, store = again("txn-1", two)
    builder.end_session()
    assert store.close(30.0)
    assert ["own-1"] == ops(load("txn-1", two))
    assert read_meta(two.snapshot("txn-1"))["damage"][0].startswith(f"{JOINED}: is of session 'txn-2', not of this one")
    kept = two.sessions / "txn-1.damaged" / JOINED
    assert foreign == kept.read_bytes()
    shutil.copy(kept, two.live("txn-2") / JOINED)
    assert ("clean", 100.0) == (load("txn-2", two).damage.state, load("txn-2", two).session.totals.cost_usd)


@pytest.mark.parametrize("name", [OWN, JOINED])
def test_settling_mixes_no_sessions(begin, directory, killed, name):
    """What is settled from disk bills no session for another's calls, and leaves files that are not in their place where they are."""
    recorded(begin, directory, end=True)
    image = killed()
    for txn in TXNS:
        image.snapshot(txn).unlink(missing_ok=True)
        assert ["j-0000", "j-0001"] == [path.name[:6] for path in journals(image.live(txn))]
    swap(*(image.live(txn) / name for txn in TXNS))
    before = {path: path.read_bytes() for txn in TXNS for path in journals(image.live(txn))}
    assert [False, False] == [settle(txn, StoreOptions(image)) for txn in TXNS]
    assert before == {path: path.read_bytes() for txn in TXNS for path in journals(image.live(txn))}
    assert [] == [line for line in Ledger(image.billing).read() if line.get("costUsd")]
    assert sorted(TXNS) == sorted(unsettled(StoreOptions(image)))
    swap(*(image.live(txn) / name for txn in TXNS))
    assert [True, True] == [settle(txn, StoreOptions(image)) for txn in TXNS]
    assert [10.0, 100.0] == sorted(line["costUsd"] for line in Ledger(image.billing).read() if line.get("costUsd"))


def test_an_owner_that_ends_takes_no_other_sessions_journal(begin, directory):
    """An owner that joins others' journals at its end leaves out one of another session, says so, and keeps it."""
    (builder, store), (_, other) = recorded(begin, directory)
    foreign = (other.live / JOINED).read_bytes()
    (store.live / "j-0002-000001.jsonl").write_bytes(foreign)
    builder.end_session()
    assert store.close(30.0)
    loaded = load("txn-1", directory)
    assert (["far-1", "own-1"], 10.0) == (ops(loaded), loaded.session.totals.cost_usd)
    assert "j-0002-000001.jsonl: is of session 'txn-2', not of this one" in loaded.damage.earlier[0]
    assert foreign == (directory.sessions / "txn-1.damaged" / "j-0002-000001.jsonl").read_bytes()


def test_following_shows_no_other_sessions_records(two):
    """`optree logs -f` passes over a journal of another session."""
    swap(*(two.live(txn) / JOINED for txn in TXNS))
    assert ["own-1"] == names_followed(two.live("txn-1"))
    first_line(two.live("txn-1") / JOINED, DAMAGES["its end"])
    assert ["own-1"] == names_followed(two.live("txn-1"))


def names_followed(live):
    """Return the names of the ops that following a session shows."""
    return [record.name for found in follow(live, {}) for record in found if isinstance(record, r.OpBegin)]


def first_line(path, change):
    """Change the first line of a journal, so that its checksum does not fit."""
    first, *rest = path.read_bytes().splitlines(keepends=True)
    changed = change(first)
    assert changed != first
    path.write_bytes(b"".join([changed, *rest]))


DAMAGES = {
    "its end": lambda line: line.replace(b'"pid"', b'"p!d"'),
    "the txn": lambda line: line.replace(b'"txn-', b'"txm-'),
    "all of it": lambda line: b"#" * (len(line) - 1) + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_first_line_hides_no_other_session(two, damage):
    """A journal of another session whose first line is damaged is told by what that line still says, or by its accounting entries."""
    path = two.live("txn-1") / JOINED
    shutil.copy(two.live("txn-2") / JOINED, path)
    first_line(path, DAMAGES[damage])
    loaded = load("txn-1", two)
    assert (["own-1"], 0.0) == (ops(loaded), loaded.session.totals.cost_usd)
    assert [(JOINED, "foreign")] == [(flaw.file, flaw.kind) for flaw in loaded.damage.flaws]
    assert [] == [record for record in read_journal(path).records if isinstance(record, r.Accounted)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_first_line_makes_no_journal_foreign(two, damage):
    """A session's own journal is shown whatever byte of its first line is damaged, the name of the session among them."""
    first_line(two.live("txn-1") / JOINED, DAMAGES[damage])
    loaded = load("txn-1", two)
    assert (["far-1", "own-1"], 10.0) == (ops(loaded), loaded.session.totals.cost_usd)
    assert [(JOINED, "corrupt")] == [(flaw.file, flaw.kind) for flaw in loaded.damage.flaws]


@pytest.fixture
def saved(begin, directory):
    """Return the directory of two sessions that ended."""
    for builder, store in recorded(begin, directory):
        builder.end_session()
        assert store.close(30.0)
    return directory


def test_a_snapshot_under_another_name_says_so(saved):
    """A snapshot in another session's place is said to be one; given by its path it is what it says it is."""
    shutil.copy(saved.snapshot("txn-2"), saved.snapshot("txn-1"))
    loaded = load("txn-1", saved)
    assert ("txn-2", "damaged") == (loaded.txn, loaded.damage.state)
    assert ["txn-1.json.zst holds session txn-2, not txn-1: give it the name of that"] == loaded.damage.unsaid()
    assert ("txn-2", "clean") == (load(saved.snapshot("txn-1")).txn, load(saved.snapshot("txn-1")).damage.state)


def test_a_snapshot_of_another_session_beside_journals_is_passed_over(two, again):
    """With a whole journal beside it, a snapshot of another session is done without, and kept when the session goes on."""
    builder, store = again("txn-2", two)
    builder.end_session()
    assert store.close(30.0)
    foreign = two.snapshot("txn-2").read_bytes()
    two.snapshot("txn-1").write_bytes(foreign)
    loaded = load("txn-1", two)
    assert ("txn-1", ["far-1", "own-1"], 10.0, "damaged") == (loaded.txn, ops(loaded), loaded.session.totals.cost_usd, loaded.damage.state)
    builder, store = again("txn-1", two)
    builder.end_session()
    assert store.close(30.0)
    assert (["far-1", "own-1"], "clean") == (ops(load("txn-1", two)), load("txn-1", two).damage.state)
    assert foreign == (two.sessions / "txn-1.damaged" / "txn-1.json.zst").read_bytes()


@pytest.mark.parametrize("what", ["directory", "link"])
def test_what_is_no_file_in_a_journals_place_is_damage(two, what, tmp_path):
    """A directory, or a link, that has a journal's name is said: what the journal had cannot be read, and the rest is shown."""
    path = two.live("txn-1") / JOINED
    path.rename(tmp_path / "away")
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "away")
    loaded = load("txn-1", two)
    assert (["own-1"], "damaged") == (ops(loaded), loaded.damage.state)
    assert [f"{JOINED}: is no file, but a directory, a link or a pipe (at byte 0, 0 bytes)"] == loaded.damage.unsaid()
