"""From a tree back to the records that make it."""

from hypothesis import given
from hypothesis import strategies as st

from optree import _records as r
from optree._builder import SessionTreeBuilder, Stream
from optree._nodes import OperationNode
from optree._tree import Fold, walk_sessions
from optree._tree.unfold import unfold
from optree.testing import Ticking
from tests.strategies import play, programs

BEGINS = {r.SessionBegin: "session", r.TurnBegin: "turn", r.OpBegin: "op"}
ENDS = {r.SessionEnd: "session", r.TurnEnd: "turn", r.OpEnd: "op"}


def folded(tree):
    """Return the tree that the records of a tree make."""
    fold = Fold(tree.session.origin_txn_id)
    for record in unfold(tree):
        fold.apply(record)
    return fold.finish()


def nodes(tree):
    """Yield the nodes of a tree."""
    for session in walk_sessions(tree):
        yield session
        for turn in session.turns:
            yield turn
            yield from turn.ops


@given(programs)
def test_folded_it_is_the_same_tree(program):
    """The records of the tree of any program make that tree again, to the last field."""
    tree = play(program).live
    assert tree == folded(tree)


@given(programs)
def test_ids_that_a_file_gave(program):
    """Ids that do not follow from the txn and the path, as other programs' files have them, come back too."""
    tree = play(program).live
    for number, node in enumerate(nodes(tree)):
        setattr(node, "op_id" if isinstance(node, OperationNode) else "id", f"own-{number}")
    for session in walk_sessions(tree):
        for child in (op.child_session for turn in session.turns for op in turn.ops if op.child_session is not None):
            child.parent_txn_id = session.id
    assert tree == folded(tree)


@given(programs, st.randoms(use_true_random=False))
def test_any_times(program, random):
    """Times that contradict each other change neither the tree that comes back, nor that a node's records are within its begin and end."""
    tree = play(program).live
    for node in nodes(tree):
        node.started_at = random.uniform(0, 100)
        node.ended_at = None if node.ended_at is None else random.uniform(0, 100)
    going_on = {("op", "")}
    for record in unfold(tree):
        kind, path = type(record), getattr(record, "path", "")
        if kind in BEGINS:
            assert around(BEGINS[kind], path) in going_on
            going_on.add((BEGINS[kind], path))
        elif kind in ENDS:
            going_on.remove((ENDS[kind], path))
        elif kind in (r.Requested, r.Responded, r.Accounted) or (kind is r.Entries and record.chunks):
            assert ("op", path) in going_on
    assert tree == folded(tree)


def test_deep_trees():
    """Trees deeper than Python's recursion limit are unfolded too."""
    builder = root = SessionTreeBuilder("a", stream=Stream([]), cycles="mark")
    for number in range(1200):
        builder = builder.attach_child_session(builder.begin_op("session", "a"), f"a{number}")
    assert 1201 == sum(isinstance(record, r.SessionBegin) for record in unfold(root.tree))
    root.core.stream.close()


def test_order_of_time():
    """Records come in the order of time, those of the same time in the order of the tree; an op's late log line comes after its end."""
    root = SessionTreeBuilder("a", now=Ticking(), stream=Stream([]))
    turn = root.begin_turn()
    slow = root.begin_op("llm", "slow", turn=turn)
    quick = root.begin_op("tool", "quick", turn=turn)
    slow.think("well")
    quick.end()
    quick.log("late")
    slow.response("done")
    slow.end()
    turn.end()
    root.end_session()
    assert [
        (r.SessionBegin, ""),
        (r.TurnBegin, "1"),
        (r.OpBegin, "1.1"),
        (r.OpBegin, "1.2"),
        (r.Entries, "1.1"),
        (r.Accounted, "1.2"),
        (r.OpEnd, "1.2"),
        (r.Entries, "1.2"),
        (r.Accounted, "1.1"),
        (r.Responded, "1.1"),
        (r.OpEnd, "1.1"),
        (r.TurnSet, "1"),
        (r.TurnEnd, "1"),
        (r.SessionEnd, ""),
    ] == [(type(record), record.path) for record in unfold(root.tree)]
    root.core.stream.close()


def around(kind, path):
    """Return the kind and the path of what a node is in."""
    above = {"session": "op", "turn": "session", "op": "turn"}[kind]
    return above, path if kind == "session" else path.rpartition(".")[0]
