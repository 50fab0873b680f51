"""Whatever holds a tree is taken where a tree is walked, summed up or shown; what holds none is named in the error."""

import msgspec
import pytest

import optree
from optree._nodes import Pool
from optree._store import Damage, Loaded
from optree._tracing.config import Config, Options
from optree._tree import Tree
from optree.compare import compare
from optree.compare.cache import context_changes
from optree.errors import SetupError
from optree.testing import capture, shape

FUNCTIONS = [
    lambda one: [op.name for _, _, op in optree.walk_ops(one)], lambda one: [node.agent_id for node in optree.walk_sessions(one)],
    optree.format_tree, lambda one: optree.flatten(one).logs, lambda one: optree.snapshot_summary(one)["totals"], shape,
]  # fmt: skip
WITH_POOL = [lambda one: compare(one, one).same, context_changes]


@pytest.fixture
def holders():
    """Return the same tree in all that may hold one."""
    with capture() as recording, optree.session(agent="a") as session, optree.turn(user="b"), optree.llm(provider="p", model="m") as op:
        op.request(messages=[{"role": "user", "content": "why"}])
        op.log("c")
    tree = recording.tree
    loaded = Loaded("test-1", tree, Damage(), [], {}, {})
    return [tree, recording, session, session.builder, loaded]


@pytest.mark.parametrize("function", FUNCTIONS, ids=["ops", "sessions", "text", "flat", "summary", "shape"])
def test_all_that_holds_a_tree_is_taken(holders, function):
    """A tree, its root, a session's handle, a builder, a saved session and a recording give the same."""
    found = [function(one) for one in (*holders, holders[0].session)]
    assert found
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("function", WITH_POOL, ids=["compare", "context"])
def test_all_that_holds_a_tree_is_compared(holders, function):
    """Comparisons take all that holds a tree with its pool."""
    found = [msgspec.json.encode(function(one)) for one in holders]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("function", [*FUNCTIONS, *WITH_POOL])
@pytest.mark.parametrize("what", ["last", None, 3, object(), {"tree": 1}, Pool(), optree])
def test_what_holds_no_tree_is_named(function, what):
    """Anything else gives a TypeError at the call, which names its type and what is taken."""
    with pytest.raises(TypeError, match=f"{type(what).__name__} holds no tree: give a tree, .*optree.load"):
        function(what)


def test_walks_complain_when_they_are_called():
    """A walk over what holds no tree fails where it is called, not where its first step is taken."""
    for walk in (optree.walk_ops, optree.walk_sessions):
        with pytest.raises(TypeError):
            walk("last")


def test_options_are_those_of_the_config():
    """What type checkers allow `configure` is what it takes."""
    assert set(Config.__struct_fields__) == set(Options.__annotations__)


@pytest.mark.parametrize(
    "call", [lambda: optree.configure(consol=False), lambda: optree.flush("exprot"), lambda: optree.configure(console="off")]
)
def test_misuse_is_refused(call):
    """What no type checker has looked at is refused when it runs, with what is possible."""
    with pytest.raises(SetupError):
        call()


def test_a_tree_without_content_is_a_tree():
    """An empty tree is taken as any other."""
    with capture() as recording, optree.session(agent="a"):
        pass
    assert ("a", "ok") == shape(recording) == shape(Tree(recording.tree.session, Pool()))
