"""What a worker left open that was killed is closed when its session has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import optree
from optree import _records as r
from optree._builder.handles import tried_again
from optree._nodes import LogEntry
from optree._store import SessionStore, load, resume_session
from optree._store.ledger import Ledger
from optree._store.reading import interrupted
from optree._store.saving import StoreOptions
from optree._store.settle import settle
from optree._tree import walk_ops, walk_sessions
from tests.store.faults import Faulty
from tests.store.test_journal import busy

LONG = 30.0
WORK = [
    r.OpBegin("1.1000001", 100.0, "session", "worker"),
    r.SessionBegin("1.1000001", 101.0, "worker", "agent->worker"),
    r.TurnBegin("1.1000001.1", 102.0),
    r.OpBegin("1.1000001.1.1", 103.0, "tool", "slow"),
    r.Entries("1.1000001.1.1", -1, [LogEntry(150.0, "VRB", "still there")]),
    r.OpBegin("1.1000001.1.2", 104.0, "tool", "quick"),
    r.OpEnd("1.1000001.1.2", 120.0, "ok", 16.0),
]
"""What a worker writes before it is killed."""


def worked(directory, records=WORK):
    """Join the session, write what a worker does, and go without ending any of it."""
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    for record in records:
        joined.stream.put(msgspec.structs.replace(record))
    assert joined.stream.flush()
    joined.journal.close()
    return joined


def closed(directory):
    """Return the nodes of the worker as they are saved: path, status, when they ended."""
    loaded = load("txn-1", directory)
    assert "clean" == loaded.damage.state
    (op,) = [op for _, _, op in walk_ops(loaded.session) if op.path == "1.1000001"]
    (turn,) = op.child_session.turns
    return [(type(node).__name__, node.path, node.status, node.ended_at) for node in (op, op.child_session, turn, *turn.ops)]


EXPECTED = [
    ("OperationNode", "1.1000001", "interrupted", 150.0),
    ("SessionNode", "1.1000001", "interrupted", 150.0),
    ("TurnNode", "1.1000001.1", "interrupted", 150.0),
    ("OperationNode", "1.1000001.1.1", "interrupted", 150.0),
    ("OperationNode", "1.1000001.1.2", "ok", 120.0),
]


def test_the_owner_closes_what_a_killed_worker_left_open(begin, directory):
    """As the session ends, what a worker that has gone left open ends as interrupted, each node when it was last seen."""
    builder, store = begin()
    busy(builder, 1)
    worked(directory)
    builder.end_session()
    assert store.close(30.0)
    assert EXPECTED == closed(directory)
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]


def test_settling_closes_it_just_so(begin, directory, killed):
    """Who settles the session after its owner was killed saves the same."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    busy(builder, 1)
    worked(directory)
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    image = killed()
    assert settle("txn-1", StoreOptions(image))
    assert EXPECTED == closed(image)


def test_a_model_call_of_a_killed_worker_is_accounted_for(begin, directory, killed):
    """Its cost is unknown, in the leaves, in the totals of all sessions above, and in the ledger, once, whoever closes it (S4-57)."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    worked(directory, [*WORK, r.OpBegin("1.1000001.1.3", 105.0, "llm", "openai:gpt-4o")])
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    image = killed()
    assert settle("txn-1", StoreOptions(image))
    session = load("txn-1", image).session
    [entry] = [entry for *_, op in walk_ops(session) for entry in op.accounting]
    assert ("failed", "openai", "gpt-4o", None) == (entry.status, entry.provider, entry.model, entry.cost_usd)
    assert [(1, 1)] * 2 == [(one.totals.unknown_costs, one.totals.llm_failed) for one in walk_sessions(session)]
    assert [entry.id] == [line["id"] for line in Ledger(image.billing).read()]


def test_an_attempt_behind_a_refused_one_is_accounted_for(begin, killed):
    """A call whose first attempt was refused is killed in the second: it is one call, of unknown cost (S4-57)."""
    builder, _ = begin()
    op = builder.begin_op("llm", "openai:gpt-4o", turn=builder.begin_turn())
    op.account(status="failed", cost_usd=0.0)
    tried_again(op, op.node.accounting[0])
    loaded = load("txn-1", killed())
    [known] = [found for *_, found in walk_ops(loaded.session)]
    assert [("failed", True, 0.0), ("failed", False, None)] == [(one.status, one.retried, one.cost_usd) for one in known.accounting]
    assert (1, 1) == (loaded.session.totals.unknown_costs, loaded.session.totals.llm_requests)
    resumed, store, _ = resume_session("txn-1", StoreOptions(directory := killed()))
    resumed.end_session()
    assert store.close(30.0)
    billed = Ledger(directory.billing).read()
    assert [0.0, None] == [entry.get("costUsd") for entry in billed]


def test_what_the_owner_left_open_stays_open(begin, directory, killed):
    """An op of the owner that came late and was not ended has no end that anybody knows."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    busy(builder, 1)
    worked(directory)
    store.stream.put(r.OpBegin("1.9", 5.0, "tool", "late"))
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    image = killed()
    assert settle("txn-1", StoreOptions(image))
    assert ["1.9"] == [node.path for node in load("txn-1", image).open_nodes()]


def test_while_a_worker_lives_nothing_of_it_is_closed(begin, directory):
    """The session has ended and one worker still writes: its nodes, and those of all others, stay open until it has gone."""
    builder, store = begin()
    busy(builder, 1)
    worked(directory)
    living = SessionStore("txn-1", StoreOptions(directory), owner=False)
    builder.end_session()
    assert store.flush("snapshot")
    assert ["1.1000001.1.1", "1.1000001.1", "1.1000001", "1.1000001"] == [node.path for node in load("txn-1", directory).open_nodes()]
    living.close(LONG)
    assert store.close(30.0)
    settle("txn-1", StoreOptions(directory))  # where the owner's end did not come to it
    assert not directory.live("txn-1").exists()
    assert EXPECTED == closed(directory)


def test_journals_are_read_once_where_nothing_is_open(begin, directory, monkeypatch):
    """What a worker wrote that ended all it began is parsed by who settles the session, not a second time for what may be open."""
    seen: list[str] = []
    reading = interrupted.read_journal
    monkeypatch.setattr(interrupted, "read_journal", lambda path, *rest: seen.append(path.name) or reading(path, *rest))
    builder, store = begin()
    busy(builder, 1)
    worked(directory, [WORK[0], r.OpEnd("1.1000001", 120.0, "ok", 20.0)])
    builder.end_session()
    assert store.close(30.0)
    settle("txn-1", StoreOptions(directory))
    assert ([], False) == (seen, directory.live("txn-1").exists())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system: what it is about cannot happen")
def test_a_forked_worker_that_is_killed(tmp_path):
    """A pool worker is killed in the middle of its op: the saved tree has nothing open."""
    script = (
        "import os, signal, optree\n"
        "with optree.session('root'), optree.turn():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        with optree.session('worker'), optree.turn(), optree.tool('slow') as op:\n"
        "            op.log('x')\n"
        "            optree.flush()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        f"    assert {signal.SIGKILL.value} == os.waitpid(child, 0)[1]\n"
        "assert optree.flush('snapshot', 30)\n"
    )
    root = str(Path(optree.__file__).parents[1])
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPTREE_")}
    env |= {"OPTREE_BASE_DIR": str(tmp_path), "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    loaded = load("last", optree.Directory.of(tmp_path))
    assert ("ended", "clean", []) == (loaded.state, loaded.damage.state, loaded.open_nodes())
    assert {"worker": "interrupted", "slow": "interrupted"} == {op.name: op.status for _, _, op in walk_ops(loaded.session)}
