"""What is given for an op by its id or path, or as a record, after its end above all."""

import msgspec
import pytest

from optree import SessionTreeBuilder
from optree import _records as r
from optree import _speed as speed
from optree._builder import Stream
from optree._nodes import AccountingEntry, LogEntry, ReasoningChunk
from optree._tree import Fold
from optree.testing import START
from tests.builder.test_outliving import Kept

NOW = START * 1e3


@pytest.fixture
def kept():
    """Return what keeps the records of `root`."""
    return Kept()


@pytest.fixture
def root(kept):
    """Return a builder with an open turn, whose records are kept."""
    builder = SessionTreeBuilder("lead", txn="t", stream=Stream([kept]))
    builder.begin_turn()
    return builder


def loaded(kept):
    """Return the tree that the records make."""
    fold = Fold("t")
    for record in kept.records:
        fold.apply(record)
    return fold.finish()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["llm", "tool"])
def test_a_late_line_does_not_open_an_op_again(kind, compiled, root, kept):
    """A call that went well, and got a line by its id, is not billed as failed when its turn fails."""
    root.end_turn(root.current_turn)
    if compiled:
        root.begin_turn()
        op = root.begin_op(kind, "openai:gpt-5")
    else:
        with speed.plainly():
            root.begin_turn()
            op = root.begin_op(kind, "openai:gpt-5")
    op.account(cost_usd=0.1)
    op.end()
    root.append_log(op.id, "graded")
    root.append_log(op.id, "and again")
    assert {} == root.core.ops
    root.end_turn(root.current_turn, "failed", "a later step")
    root.end_session("failed")
    assert root.core.settle()
    assert [("ok", None)] == [(entry.status, entry.error) for entry in op.node.accounting]
    assert (0, 0) == (root.node.totals.llm_failed, root.node.totals.tools_failed)
    assert ["graded", "and again"] == [line.message for line in op.node.logs]
    assert root.tree == loaded(kept)


def test_late_handles_do_not_grow(root, kept):
    """Lines for thousands of ops that have ended, by their ids, are all there, and no handle stays for each."""
    ops = [root.begin_op("tool", "look") for _ in range(2000)]
    ids = [op.id for op in ops]
    for op in ops:
        op.end()
    del ops, op
    for identity in ids:
        root.append_log(identity, identity)
    assert len(root.core.late) <= 256
    root.end_session()
    assert root.core.settle()
    assert ids == [line.message for op in root.node.turns[0].ops for line in op.logs]
    assert root.tree == loaded(kept)


def test_an_answer_that_is_streamed_by_its_id_after_the_end(root, kept):
    """Its pieces stand one behind the other, with one handle or several."""
    op = root.begin_op("llm", "m")
    op.end("failed")
    for text in ("one ", "two ", "three"):
        root.append_chunk(op.path, text)
    root.end_session()
    assert root.core.settle()
    assert "one two three" == msgspec.json.decode(root.node.turns[0].ops[0].response.payload)
    assert root.tree == loaded(kept)


def test_an_id_of_another_session(root):
    """An op of another session with the same path gets nothing, and is not given."""
    op = root.begin_op("llm", "m")
    other = SessionTreeBuilder("other", txn="u")
    other.begin_turn()
    theirs = other.begin_op("llm", "m")
    assert op.path == theirs.path
    root.append_accounting(theirs.id, cost_usd=9.0)
    assert ((), None, op) == (op.node.accounting, root.op(theirs.id), root.op(op.id))
    assert root.op(op.path) is op


def line(text):
    """Return a log line."""
    return LogEntry(NOW, "VRB", text)


def entry(cost, number=1, status="ok"):
    """Return an accounting entry of a cost."""
    return AccountingEntry(f"t:1.1#{number}", NOW, "llm", status, 1.0, cost_usd=cost)


RECORDED = {
    "reasoning twice": [r.Entries("1.1", 0, (), 0, (ReasoningChunk(text, NOW),)) for text in ("one", "two")],
    "lines twice": [r.Entries("1.1", 0, (line("one"),), 0, ()), r.Entries("1.1", 0, (line("two"),), 0, ())],
    "text": [r.Entries("1.1", 0, (), 0, (), text="hello "), r.Entries("1.1", 0, (line("one"),), 0, (), text="there")],
    "an entry twice": [r.Accounted("1.1", entry(1.0)), r.Accounted("1.1", entry(1.0))],
    "an entry that failed after all": [r.Accounted("1.1", entry(1.0)), r.Accounted("1.1", entry(1.0, status="failed"))],
    "a failure that is not taken back": [r.Accounted("1.1", entry(1.0, status="failed")), r.Accounted("1.1", entry(2.0))],
    "behind a placeholder": [r.Accounted("1.1", AccountingEntry("t:1.1#open", NOW, "llm", "failed", 1.0)), r.Accounted("1.1", entry(1.0))],
}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("records", RECORDED.values(), ids=RECORDED)
def test_records_of_an_op_make_one_tree(records, ended, root, kept):
    """What is recorded as records is in the live tree as in the loaded one, with the same totals."""
    op = root.begin_op("llm", "m")
    if ended:
        op.end("cancelled")
    for record in records:
        root.record(msgspec.json.decode(msgspec.json.encode(record), type=type(record)))
    assert root.core.settle()
    again = loaded(kept)
    assert again.session == root.tree.session
    assert again.session.totals == root.node.totals


@pytest.mark.parametrize(
    "record",
    [r.SessionSet("", NOW, "T"), r.SessionEnd("", NOW, "ok"), r.SessionBegin("", NOW, "a", "a")],
    ids=["set", "end", "begin"],
)
def test_a_record_of_another_session_of_the_tree(record, root, kept):
    """A sub-agent's builder takes none that is the root's: nothing changes, live or loaded."""
    child = root.attach_child_session(root.begin_op("session", "reader"), "reader")
    child.record(record)
    assert (None, None) == (child.node.session_title, child.node.ended_at)
    assert root.tree == loaded(kept)
