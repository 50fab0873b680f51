"""What a file calls its sessions and nodes, and what they are called where it cannot stay so."""

import pytest

from optree import SessionTreeBuilder
from optree._ids import is_txn, txn_of
from optree._nodes import Pool
from optree._tree.fold import Tree
from optree._tree.walk import called, name_safely, walk_ops, walk_sessions
from optree.testing import Ticking

EVIL = "../../evil"


def tree(txn: str = "t") -> Tree:
    """Return the tree of a session with one sub-agent and its tool."""
    root = SessionTreeBuilder("researcher", txn="t", now=Ticking(step=1.0))
    root.begin_turn()
    child = root.attach_child_session(root.begin_op("session", "reader"), "reader")
    child.begin_op("tool", "search")
    made = Tree(root.node, Pool())
    for session in walk_sessions(made.session):
        session.origin_txn_id = txn
        session.id = session.id.replace("t", txn, 1)
        session.parent_txn_id = txn if session.path else None
        for turn in session.turns:
            turn.id = turn.id.replace("t", txn, 1)
            for op in turn.ops:
                op.op_id = op.op_id.replace("t", txn, 1)
    return made


def ids(made: Tree) -> list[str | None]:
    """Return all ids of a tree: of its sessions and their parents, turns and ops."""
    sessions = list(walk_sessions(made.session))
    return [
        *(session.id for session in sessions),
        *(session.parent_txn_id for session in sessions),
        *(session.origin_txn_id for session in sessions),
        *(turn.id for session in sessions for turn in session.turns),
        *(op.op_id for *_, op in walk_ops(made.session)),
    ]


def test_good_names_stay():
    """What may name sessions stays, and nothing is said."""
    made = tree("from-a-file")
    before = ids(made)
    assert [] == name_safely(made)
    assert before == ids(made)


def test_a_bad_txn_is_replaced_everywhere():
    """A txn that is a path becomes the same other one in all ids that follow from it."""
    made = tree(EVIL)
    txn = txn_of(EVIL)
    assert [f"'../../evil' cannot name a session: it is called {txn} here"] == name_safely(made)
    assert is_txn(txn)
    assert [txn, f"{txn}:1.1", None, txn, txn, txn, f"{txn}:1", f"{txn}:1.1.1", f"{txn}:1.1", f"{txn}:1.1.1.1"] == ids(made)


def test_the_kind_begins_the_name():
    """What is made here begins with the kind of the file."""
    made = tree(EVIL)
    name_safely(made, "v1")
    assert made.session.origin_txn_id == txn_of(EVIL, "v1")
    assert made.session.origin_txn_id.startswith("v1-")


def test_ids_that_do_not_follow_from_the_txn_stay():
    """Turns and ops that a file calls in a way of its own keep their ids when the txn is replaced."""
    made = tree(EVIL)
    turn = made.session.turns[0]
    turn.id, turn.ops[0].op_id = "turn-7", "call_1"
    name_safely(made)
    assert ("turn-7", "call_1") == (turn.id, turn.ops[0].op_id)


def test_a_session_named_in_a_bad_way():
    """An id with a slash is replaced by the one that follows from the path, which is said, and those who name it as their parent follow."""
    made = tree("t")
    child = next(session for session in walk_sessions(made.session) if session.path)
    made.session.id = "a/b" * 40
    child.parent_txn_id = made.session.id
    assert [f"{('a/b' * 40)[:80]!r} cannot be the id of a session: it is called t here"] == name_safely(made)
    assert ("t", "t") == (made.session.id, child.parent_txn_id)


def test_a_good_id_that_is_none_of_ours_stays():
    """A session's id of the file's own making stays if it may be one."""
    made = tree("t")
    made.session.id = "session-9"
    assert [] == name_safely(made)
    assert "session-9" == made.session.id


@pytest.mark.parametrize(("told", "kept"), [("other-run", "other-run"), ("../up", None), ("a b", None)])
def test_a_parent_of_another_file(told, kept):
    """A parent that no session of this file is stays if it may be an id, and is left out else."""
    made = tree("t")
    made.session.parent_txn_id = told
    name_safely(made)
    assert kept == made.session.parent_txn_id


def test_a_child_of_another_txn_follows_the_root():
    """All sessions of a file have the root's txn, where theirs cannot name one; a good one of their own stays."""
    made = tree("t")
    child = next(session for session in walk_sessions(made.session) if session.path)
    child.origin_txn_id = EVIL
    name_safely(made)
    assert "t" == child.origin_txn_id
    child.origin_txn_id = "other"
    name_safely(made)
    assert "other" == child.origin_txn_id


def test_a_long_name_is_cut_in_what_is_said():
    """Of a name that cannot be kept, 80 characters are said."""
    assert [f"{'x/' * 40!r} cannot name a session: it is called new here"] == called("x/" * 60, "new")
