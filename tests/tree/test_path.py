import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree import Path, PathError, walk_ops, walk_sessions
from optree._tree.path import last_index, parent_label
from tests.strategies import paths, play, programs


@given(paths)
def test_round_trip(parts):
    """A path's label decodes to the path (S4-122)."""
    path = Path(parts)
    assert path == Path.parse(str(path))


@given(paths, paths)
def test_bijective(one, other):
    """Two labels are equal only if their paths are (S4-122)."""
    assert (one == other) == (str(Path(one)) == str(Path(other)))


@given(st.text("0123456789.", max_size=12) | st.text(max_size=12))
def test_text_is_a_path_or_refused(label):
    """A text is a path whose label is that text, or it is refused."""
    try:
        path = Path.parse(label)
    except PathError:
        return
    assert label == str(path)


@pytest.mark.parametrize(
    "label",
    [".", "1.", ".1", "1..2", "01", "1.02", "-1", "+1", " 1", "1 ", "a", "1.a", "1.0", "1.2.3.0", "1_0", "\u0661", "1\n", "9" * 20, "²"],
)
def test_refused(label):
    """What is no path is refused, with a message that names it (S4-122)."""
    with pytest.raises(PathError, match="is no path"):
        Path.parse(label)


@pytest.mark.parametrize(
    ("label", "is_turn", "is_op", "depth", "parent"),
    [
        ("", False, False, 0, ""),
        ("0", True, False, 0, ""),
        ("1.2", False, True, 0, "1"),
        ("1.2.3", True, False, 1, "1.2"),
        ("1.2.3.1", False, True, 1, "1.2.3"),
        ("1.2.3.4.0.1", False, True, 2, "1.2.3.4.0"),
    ],
)
def test_questions(label, is_turn, is_op, depth, parent):
    """A path tells what it belongs to, how deep, and what is above (S4-122)."""
    path = Path.parse(label)
    assert (is_turn, is_op, depth, parent) == (path.is_turn, path.is_op, path.depth, str(path.parent))


@given(paths.filter(bool))
def test_labels_agree_with_paths(parts):
    """The quick functions on labels say what the decoded path says."""
    path = Path(parts)
    assert (str(path.parent), parts[-1]) == (parent_label(str(path)), last_index(str(path)))


@given(programs)
def test_paths_name_nodes(program):
    """In any tree one path names one node, tells its kind, and follows from where the node stands (S4-63, S4-122)."""
    root = play(program).live.session
    labels = [label for session, turn, op in walk_ops(root) for label in [op.path]]
    turns = [turn.path for session in walk_sessions(root) for turn in session.turns]
    assert len(labels) + len(turns) == len({*labels, *turns})
    for session, turn, op in walk_ops(root):
        assert (Path.parse(op.path).is_op, Path.parse(turn.path).is_turn) == (True, True)
        assert (session.path, turn.path) == (str(Path.parse(turn.path).parent), str(Path.parse(op.path).parent))
        assert (f"t:{op.path}", f"t:{turn.path}", turn.index) == (op.op_id, turn.id, last_index(turn.path))
        assert op.child_session is None or op.path == op.child_session.path
