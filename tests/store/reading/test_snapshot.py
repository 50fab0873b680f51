"""Snapshots: one JSON document in many frames, taken while the tree grows, at the cost of what is new."""

import json
import os
import random
import shutil
import subprocess
import threading

import msgspec
import pytest
import zstandard

from optree._store import load
from optree._store.reading.formats import read_meta, read_snapshot
from optree._store.reading.snapshot import BLOCK, VERSION, SnapshotWriter
from optree._tree import Tree
from optree.testing import shape
from tests.store.faults import Faulty
from tests.store.golden.make import program
from tests.store.test_journal import busy

FRAME = b"\x28\xb5\x2f\xfd"


def document(path):
    """Return a zstd snapshot as JSON, unpacked by a decompressor that knows nothing of optree."""
    with path.open("rb") as file:
        return json.load(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))


def pieces(writer, builder):
    """Return the frames of a snapshot of a builder's tree."""
    return writer.pieces(builder.tree, {"txn": builder.txn}, builder.core.touched)


def same(one, other):
    """Tell whether two trees are the same, to the byte."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def test_a_snapshot_is_one_json_document(begin, directory):
    """A zstd decompressor and a JSON parser read version, meta, session in this order; meta names result, ingress, begin (S4-83, S4-94)."""
    builder, store = begin(attributes={"ingress": {"source": "cli"}})
    program(builder)
    builder.end_session("failed", "too hard", final_report={"session": 1})
    assert store.flush("snapshot")
    found = document(directory.snapshot("txn-1"))
    assert (["version", "meta", "session", "pool"], VERSION) == (list(found), found["version"])
    meta = found["meta"]
    assert {"status": "failed", "success": False, "error": "too hard", "finalReport": {"session": 1}} == meta["result"]
    assert ({"source": "cli"}, builder.node.started_at) == (meta["ingress"], meta["createdAt"])
    child = found["session"]["turns"][0]["ops"][1]["childSession"]
    assert "1.2.1.1" == child["turns"][0]["ops"][0]["path"]


@pytest.mark.skipif(shutil.which("zstd") is None and not os.environ.get("CI"), reason="needs the zstd command: apt install zstd")
def test_the_zstd_command_reads_it(begin, directory):
    """`zstd -dc FILE` writes the document, and finds the checksums of all frames right (S4-96)."""
    builder, store = begin()
    busy(builder, 40)
    assert store.snapshot()
    path = directory.snapshot("txn-1")
    said = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True).stdout
    assert document(path) == json.loads(said)
    subprocess.run(["zstd", "-tq", str(path)], check=True)


def test_meta_is_read_from_the_first_frame_alone(begin, directory, tmp_path):
    """A listing reads the meta of a file of which only the first frame is left, however large it is (S4-83)."""
    builder, store = begin()
    busy(builder)
    report = {"a": 1, "session": {"x": "".join(random.Random(1).choices("abcdefghij", k=400_000))}}
    builder.end_session(final_report=report)
    assert store.flush("snapshot")
    data = directory.snapshot("txn-1").read_bytes()
    cut = tmp_path / "cut.json.zst"
    cut.write_bytes(data[: data.index(FRAME, 4)])
    assert cut.stat().st_size > 1 << 16
    assert report == read_meta(cut)["result"]["finalReport"]


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_each_compression_loads(begin, directory, compression):
    """zstd, gzip and plain JSON are written by option and told apart on load (S4-86, S4-92, S4-96)."""
    builder, store = begin(compression=compression)
    program(builder)
    builder.end_session()
    assert store.flush("snapshot")
    path = directory.snapshot("txn-1", compression)
    assert [path] == list(directory.sessions.iterdir())
    assert same(builder.tree, load("txn-1", directory).tree)
    assert "txn-1" == read_meta(path)["txn"]
    first = {"zstd": FRAME, "gzip": b"\x1f\x8b", "none": b'{"version":1,"meta":'}[compression]
    assert path.read_bytes().startswith(first)


def test_finished_turns_are_the_same_bytes_in_the_next_snapshot(begin):
    """The frames of finished turns stand unchanged in the next snapshot."""
    builder, _ = begin()
    writer = SnapshotWriter()
    for _ in range(4):
        busy(builder)
    first = pieces(writer, builder)
    busy(builder)
    second = pieces(writer, builder)
    assert first[2:9:2] == second[2:9:2]
    turns = [zstandard.ZstdDecompressor().decompress(frame) for frame in second[2:11:2]]
    assert [1, 2, 3, 4, 5] == [json.loads(turn)["index"] for turn in turns]


def test_the_cost_of_a_further_turn_does_not_grow(begin):
    """A snapshot after each of 40 turns encodes what is new: the later half costs about what the earlier half did, not thrice."""
    builder, _ = begin()
    writer = SnapshotWriter()
    costs = []
    for _ in range(40):
        before = writer.encoded
        busy(builder, 8)
        pieces(writer, builder)
        costs.append(writer.encoded - before)
    assert sum(costs[20:]) <= 1.5 * sum(costs[:20])


def test_finished_ops_of_a_long_turn_are_kept_too(begin):
    """Blocks of finished ops of a turn that goes on are not encoded again."""
    builder, _ = begin()
    writer = SnapshotWriter()
    builder.begin_turn()
    costs = []
    for _ in range(20):
        for _ in range(16):
            builder.begin_op("tool", "t").end()
        before = writer.encoded
        pieces(writer, builder)
        costs.append(writer.encoded - before)
    assert costs[-1] <= 1.2 * costs[1]


def test_a_turn_that_goes_on_is_whole(begin):
    """A snapshot of a turn with several blocks of ops, of which the last goes on, is one JSON document, also where frames are reused."""
    builder, _ = begin()
    writer = SnapshotWriter()
    builder.begin_turn()
    for _ in range(3 * BLOCK):
        builder.begin_op("tool", "t").end()
    builder.begin_op("tool", "t")
    for _ in range(2):
        document = json.loads(b"".join(map(zstandard.ZstdDecompressor().decompress, pieces(writer, builder))))
        [turn] = document["session"]["turns"]
        assert [f"1.{number}" for number in range(1, 3 * BLOCK + 2)] == [op["path"] for op in turn["ops"]]


def test_an_op_that_changes_after_its_end_is_encoded_anew(begin, directory):
    """A log line, a cost or a response that comes after an op's end is in the next snapshot, whatever frames were kept."""
    builder, store = begin()
    busy(builder, 40)
    op = builder.op("1.3")
    assert store.snapshot()
    op.log("late line")
    op.account(cost_usd=5.0)
    op.response("late answer")
    assert store.snapshot()
    found = read_snapshot(directory.snapshot("txn-1")).tree.session.turns[0].ops[2]
    assert (["log 2", "late line"], 2) == ([entry.message for entry in found.logs], len(found.accounting))
    assert b'"late answer"' == bytes(found.response.payload)


def test_what_comes_late_to_an_op_of_a_sub_agent_is_loaded(begin, directory):
    """A log line and a cost that come to a sub-agent's op when its turns are in a snapshot are loaded, after the session's end too."""
    builder, store = begin()
    turn = builder.begin_turn()
    parent = builder.begin_op("session", "child")
    child = builder.attach_child_session(parent, "child")
    inner = child.begin_turn()
    op = child.begin_op("tool", "t")
    op.log("first")
    op.end()
    inner.end()
    child.end_session()
    parent.end()
    turn.end()
    assert store.flush("snapshot")
    op.log("late")
    op.account(cost_usd=1.0)
    builder.end_session()
    assert store.flush("snapshot")
    assert not store.live.exists()
    found = load("txn-1", directory).session.turns[0].ops[0].child_session.turns[0].ops[0]
    assert (["first", "late"], [None, 1.0]) == ([entry.message for entry in found.logs], [entry.cost_usd for entry in found.accounting])


def late_op(builder, turn):
    """Begin an op in a turn that has ended."""
    builder.begin_op("tool", "late", turn=turn).end()


def late_assistant(_builder, turn):
    """Set what the assistant said in a turn that has ended."""
    turn.assistant("late")


def late_message(builder, _turn):
    """Append to the transcript of a sub-agent that has ended."""
    builder.child.append_message("late")


def late_turn(builder, _turn):
    """Begin a turn in a sub-agent's session that has ended."""
    builder.child.begin_turn(user="late").end()


def late_status(builder, _turn):
    """Set the status of a sub-agent that has ended."""
    builder.child.set_title("late")


@pytest.mark.parametrize("late", [late_op, late_assistant, late_message, late_turn, late_status])
def test_what_comes_late_into_a_finished_turn_is_not_hidden_by_its_frame(begin, directory, late):
    """Whatever is recorded in a turn or sub-agent that has ended is in the next snapshot: it covers the journal's record of it."""
    builder, store = begin()
    turn = builder.begin_turn()
    op = builder.begin_op("session", "child")
    builder.child = builder.attach_child_session(op, "child")
    builder.child.begin_turn().end()
    builder.child.end_session()
    op.end()
    turn.end()
    assert store.snapshot()
    late(builder, turn)
    assert store.snapshot()
    assert same(builder.tree, load("txn-1", directory).tree)


def test_names_that_look_like_the_format_do_no_harm(begin, directory):
    """Attributes, prompts and reports that hold the format's own words are kept as they are."""
    trap = {"turns": [], "ops": [], "messages": [], "session": {}, "pool": {}, "meta": {"journal": {"0000": 7}}}
    builder, store = begin("agent", attributes=trap)
    turn = builder.begin_turn(user='"turns":[],"ops":[]', attributes=trap)
    op = builder.begin_op("session", '"turns":[]', attributes=trap)
    builder.attach_child_session(op, "child", attributes=trap).begin_turn(attributes=trap)
    assert store.snapshot()
    assert same(builder.tree, load("txn-1", directory).tree)
    op.end()
    turn.end()
    builder.end_session(final_report=trap)
    assert store.flush("snapshot")
    assert same(builder.tree, load("txn-1", directory).tree)
    assert trap == load("txn-1", directory).session.attributes


def test_a_snapshot_taken_while_threads_write_plus_the_tail_is_the_tree(begin, directory, killed):
    """Snapshots at any moment, and the journal behind them, give the tree as it was (S4-94)."""
    builder, store = begin()
    turns = [builder.begin_turn() for _ in range(3)]

    def work(turn):
        for number in range(60):
            op = builder.begin_op("llm", "openai:gpt-4o", turn=turn)
            op.log(f"log {number}")
            op.account(cost_usd=0.5, input_tokens=1)
            op.end()
        turn.end()

    threads = [threading.Thread(target=work, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    taken = 0
    while any(thread.is_alive() for thread in threads) or not taken:
        assert store.snapshot()
        taken += 1
        if taken % 5 == 1:
            assert load("txn-1", killed()).damage.state in {"clean", "torn tail"}  # the copy may end within a write
    for thread in threads:
        thread.join()
    assert store.flush()
    loaded = load("txn-1", directory)
    assert "clean" == loaded.damage.state
    assert 0 < read_snapshot(directory.snapshot("txn-1")).meta["journal"]["0000"]
    assert same(builder.tree, loaded.tree)
    assert (90.0, 180) == (loaded.session.totals.cost_usd, loaded.session.totals.llm_requests)


def test_a_snapshot_after_each_sub_agent_and_at_the_end(begin, directory):
    """A sub-agent's end writes a snapshot, the root's end the last one, without a call to save (S4-82, S4-85)."""
    builder, store = begin()
    builder.begin_turn()
    op = builder.begin_op("session", "child")
    child = builder.attach_child_session(op, "child")
    assert not directory.snapshot("txn-1").exists()
    child.end_session()
    assert store.flush("snapshot")
    assert "child" == read_snapshot(directory.snapshot("txn-1")).tree.session.turns[0].ops[0].child_session.agent_id
    builder.end_session()
    assert store.flush("snapshot")
    assert read_meta(directory.snapshot("txn-1"))["endedAt"] == builder.node.ended_at
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_snapshot_is_replaced_as_a_whole_or_not_at_all(begin, directory, call):
    """Whichever call fails, the old snapshot is there and whole, the problem is said, and the next one succeeds (S4-90, S4-130, S4-131)."""
    system = Faulty(call)
    builder, store = begin(system=system)
    busy(builder)
    assert store.snapshot()
    old = directory.snapshot("txn-1").read_bytes()
    busy(builder)
    store.flush()
    system.arm()
    assert not store.snapshot()
    said = f"No space left on device in {directory.sessions}; the agent runs on (make room there: what is not saved yet is saved then)"
    assert f"snapshot of session txn-1: {said}" == store.problems[-1]
    if call != "sync_directory":
        assert old == directory.snapshot("txn-1").read_bytes()
    assert "ok" == load("txn-1", directory).session.turns[1].status
    system.mend()
    assert store.snapshot()
    assert same(builder.tree, read_snapshot(directory.snapshot("txn-1")).tree)


def test_the_last_snapshot_that_fails_keeps_the_journals(begin, directory):
    """Where the last snapshot cannot be written, flush says so, and the journals stay: they have all of it (S4-131)."""
    system = Faulty("rename")
    builder, store = begin(system=system)
    busy(builder)
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    assert not store.close(1.0)
    loaded = load("txn-1", directory)
    assert ("ended", "clean") == (loaded.state, loaded.damage.state)
    assert same(builder.tree, loaded.tree)


def test_a_snapshot_that_failed_half_way_leaves_nothing_in_the_next(begin, monkeypatch):
    """A fault in the middle of encoding does not end up in the file that is written next."""
    builder, _ = begin()
    program(builder)
    writer = SnapshotWriter()
    expected = b"".join(pieces(SnapshotWriter(), builder))
    monkeypatch.setattr(writer, "_pool", lambda tree: tree.nothing)
    with pytest.raises(AttributeError):
        pieces(writer, builder)
    monkeypatch.undo()
    assert expected == b"".join(pieces(writer, builder))


def test_the_writer_remembers_nothing_when_told_so(begin):
    """Without reuse every snapshot is encoded anew, as a redacted one must be."""
    builder, _ = begin()
    busy(builder)
    writer = SnapshotWriter(reuse=False)
    pieces(writer, builder)
    before = writer.encoded
    pieces(writer, builder)
    assert 2 * before == writer.encoded


def test_a_deep_chain_of_sub_agents_is_saved(begin, directory):
    """Sub-agents 60 levels deep are in the file, each in its parent's op (S4-94)."""
    builder, store = begin()
    here = builder
    for number in range(60):
        here.begin_turn()
        here = here.attach_child_session(here.begin_op("session", f"agent {number}"), f"agent {number}")
    assert store.snapshot()
    loaded = load("txn-1", directory)
    assert shape(Tree(builder.node, builder.core.pool)) == shape(loaded.tree)


def test_a_snapshot_of_ops_that_log_all_the_time_lacks_no_line_that_it_claims(begin, killed):
    """What a snapshot's position covers is in its nodes, also while threads log: nothing is missing when it is loaded (S4-94)."""
    builder, store = begin()
    ops = [builder.begin_op("tool", f"t{number}") for number in range(6)]
    over = threading.Event()

    def work(op):
        while not over.wait(0.0005):
            for _ in range(50):
                op.log("line")

    threads = [threading.Thread(target=work, args=(op,)) for op in ops]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            assert store.snapshot(), store.problems
            assert 0 == load("txn-1", killed()).damage.missing
    finally:
        over.set()
        for thread in threads:
            thread.join()
