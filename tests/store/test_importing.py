"""Imported sessions on disk: saved and billed once, in nobody's place who has more."""

from errno import EACCES
from pathlib import Path

import pytest

from optree._builder import SessionTreeBuilder
from optree._store import load
from optree._store.importing import more_there, save
from optree._store.ledger import Ledger
from optree._store.reading.snapshot import MAX_NESTED
from optree.errors import BusyError, SetupError, StoreError
from tests.store.faults import Faulty


def session(**more):
    """Return a tree with a turn, an op that is accounted for, and two of what is named."""
    builder = SessionTreeBuilder("agent", txn="t")
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "p:m")
    op.account(cost_usd=0.5)
    for _ in range(2):
        if "turns" in more or "ends" in more:
            began = builder.begin_turn()
        if "ends" in more:
            began.end()
        if "ops" in more:
            builder.begin_op("tool", "x", turn=turn)
        if "messages" in more:
            builder.append_message("hi")
        if "log lines" in more:
            op.log("x")
        if "accounting entries" in more:
            op.account(cost_usd=0.5)
    if "contents of ops" in more:
        op.request("a")
        op.response("b")
        op.think("c")
    op.end()
    turn.end()
    return builder


@pytest.mark.parametrize("name", ["zstd", "gzip"])
def test_a_session_that_cannot_be_looked_at_is_not_taken_for_missing(directory, monkeypatch, name):
    """Where `Path.exists` is False for want of a permission, as from Python 3.14 on, nothing is put in a session's place."""
    path = save(session().tree, directory, compression=name)
    before, less, stat = path.read_bytes(), session().tree, Path.stat

    def refusing(one, **options):
        if one == path:
            raise PermissionError(EACCES, "Permission denied", str(one))
        return stat(one, **options)

    def exists(one):
        try:
            return bool(one.stat())
        except OSError:
            return False

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refusing)
        for asks in ("exists", "is_file"):
            patched.setattr(Path, asks, exists)
        for replace in (False, True):
            with pytest.raises(PermissionError, match="Permission denied"):
                save(less, directory, replace=replace)
    assert ([path], before) == (list(directory.sessions.iterdir()), path.read_bytes())


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("turns", "3 turns, not 1"),
        ("messages", "2 messages, not 0"),
        ("ops", "4 ends, not 2, 3 ops, not 1, 3 accounting entries, not 1"),
        ("log lines", "2 log lines, not 0"),
        ("accounting entries", "3 accounting entries, not 1"),
        ("contents of ops", "3 contents of ops, not 0"),
        ("ends", "3 turns, not 1, 4 ends, not 2"),
    ],
)
def test_what_the_one_that_is_there_has_more_of(directory, kind, said):
    """A session does not take the place of one with more of anything, unless it is forced to; what it lacks is said by kind and number."""
    path = save(session(**{kind: 2}).tree, directory)
    before, less = path.read_bytes(), session().tree
    assert said == more_there(less, directory)
    why = f"session t, which is there, has more than the one: {said}; it stays as it is; --force puts this one in its place all the same"
    with pytest.raises(SetupError) as raised:
        save(less, directory, replace=True)
    assert why == str(raised.value)
    with pytest.raises(SetupError, match=r"has more than the one in x\.json: "):
        save(less, directory, replace=True, source="x.json")
    assert before == path.read_bytes()
    assert "" == more_there(session(**{kind: 2}).tree, directory)
    save(less, directory, replace=True, force=True)
    assert "" == more_there(less, directory)


def test_one_that_is_there_stays_unless_it_is_to_be_replaced(directory):
    """A session of that name stays as it is, in whatever compression; the message names its file and what to do."""
    assert directory.snapshot("t", "gzip") == save(session().tree, directory, compression="gzip")
    with pytest.raises(SetupError, match=r"session t is there already \(t.json.gz\): it stays as it is; --replace puts"):
        save(session(ops=2).tree, directory)
    assert directory.snapshot("t") == save(session(ops=2).tree, directory, replace=True)
    assert [directory.snapshot("t")] == list(directory.sessions.iterdir())
    assert 3 == len(load("t", directory).session.turns[0].ops)


def test_one_that_cannot_be_read_is_replaced(directory):
    """In the place of a file of which nothing can be read an import is put, where that is asked for."""
    directory.sessions.mkdir(parents=True)
    directory.snapshot("t").write_bytes(b"\x28\xb5\x2f\xfd broken")
    assert "" == more_there(session().tree, directory)
    save(session().tree, directory, replace=True)
    assert "t" == load("t", directory).txn


def test_one_that_has_its_journals_is_never_replaced(begin, directory, killed):
    """A session that runs, or was interrupted, is left alone: its journals say more than any file."""
    _, store = begin(txn="t")
    with pytest.raises(BusyError, match="session t is running: import it when it has ended, or elsewhere"):
        save(session().tree, directory, replace=True, force=True)
    assert store.flush()
    image = killed()
    with pytest.raises(BusyError, match="session t was interrupted and has its journals here, which say more: optree load t, or use"):
        save(session().tree, image, replace=True, force=True)
    assert [] == [there for there in (directory, image) if there.snapshot("t").exists()]


def test_one_whose_process_did_not_come_to_its_end_is_settled_first(begin, killed):
    """A session that has ended, and whose process was gone before its journals were removed, is as any other that has ended."""
    system = Faulty("rename")
    builder, store = begin(system=system, txn="t")
    system.arm()
    builder.end_session()
    store.flush("snapshot")
    image = killed()
    system.mend()
    with pytest.raises(SetupError, match="session t is there already"):
        save(session().tree, image)
    save(session().tree, image, replace=True)
    assert (1, False) == (len(load("t", image).session.turns[0].ops), image.live("t").exists())


@pytest.mark.parametrize(("levels", "fits"), [(MAX_NESTED + 1, False), (MAX_NESTED, True)])
def test_one_that_is_nested_too_deeply_is_not_saved(directory, levels, fits):
    """What no snapshot holds is refused before anything is written."""
    root = builder = SessionTreeBuilder("agent", txn="t")
    for _ in range(levels):
        builder = builder.attach_child_session(builder.begin_op("session", "sub"), "sub")
    if fits:
        save(root.tree, directory)
        assert same_depth(load("t", directory).session) == levels
        return
    with pytest.raises(StoreError, match=f"session t is not saved: its sub-agents are nested more than {MAX_NESTED} deep"):
        save(root.tree, directory)
    assert not directory.sessions.exists()


def same_depth(root):
    """Return how many sessions stand within one another, below the root."""
    depth = 0
    while (root := root.turns[0].ops[0].child_session if root.turns else None) is not None:
        depth += 1
    return depth


def test_what_is_billed_already_is_not_billed_again(directory):
    """An import of a session whose entries the ledger has under other ids takes these ids: the bill stays as it is."""
    ours, other = session(**{"accounting entries": 2}), SessionTreeBuilder("agent", txn="t2")
    other.begin_op("llm", "p:m").account(cost_usd=9.0)
    for number, entry in enumerate(ours.node.turns[0].ops[0].accounting, 7):
        entry.id = f"t:1.1#{number}"
    ledger = Ledger(directory.billing)
    assert (1, 3) == (ledger.append(other.node), ledger.append(ours.node))
    again = session(**{"accounting entries": 2})
    save(again.tree, directory)
    assert ["t:1.1#7", "t:1.1#8", "t:1.1#9"] == [entry.id for entry in again.node.turns[0].ops[0].accounting]
    assert 4 == len(ledger.path.read_bytes().splitlines())
