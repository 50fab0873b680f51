import inspect

import pytest

import optree
from optree import SessionTreeBuilder, errors
from optree._builder.core import Core

FAMILY = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", FAMILY)
def test_family(error):
    """Every error is one of the family, public, and explained."""
    assert issubclass(error, optree.OptreeError)
    assert error is getattr(optree, error.__name__)
    assert error.__doc__


def test_drawing():
    """The drawing of the family in the module's text shows each error below the one that it belongs to."""
    drawn = {}
    above = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip(" │├└─").partition(" ")[0]
        if name in [error.__name__ for error in FAMILY]:
            indent = line.index(name)
            above = [(place, parent) for place, parent in above if place < indent]
            drawn[name] = above[-1][1] if above else "Exception"
            above.append((indent, name))
    assert {error.__name__: error.__bases__[0].__name__ for error in FAMILY} == drawn


def test_path_error_is_a_value_error():
    """Code that parses paths may catch what Python itself raises for bad text."""
    with pytest.raises(ValueError, match="write numbers joined by dots"):
        optree.Path.parse("one")


def test_cycle_error_says_the_way_out():
    """A refused cycle names the chain of agents and what to do."""
    root = SessionTreeBuilder("a", cycles="block")
    child = root.attach_child_session(root.begin_op("session", "b"), "b")
    with pytest.raises(optree.CycleError, match=r"'a' would call itself: a->b->a; break the cycle, or use cycles='mark' to record it"):
        child.attach_child_session(child.begin_op("session", "a"), "a")


def test_cycle_is_marked_by_default():
    """By default an agent that calls itself is recorded, marked, and told on its op."""
    assert "mark" == inspect.signature(Core).parameters["cycles"].default
    root = SessionTreeBuilder("a")
    op = root.begin_op("session", "a")
    child = root.attach_child_session(op, "a")
    assert (True, "a->a") == (child.node.attributes["cycle"], child.node.call_path)
    assert [("WRN", "agent a calls itself: a->a")] == [(entry.severity, entry.message) for entry in op.node.logs]


def test_setup_errors_name_the_choices():
    """Misuse of an option is refused with a message that lists what there is."""
    with pytest.raises(optree.SetupError, match=r"no option 'verbos'; the options are .*verbose"):
        optree.configure(verbos=True)
    with pytest.raises(optree.SetupError, match="compression='lzma' is not possible; choose one of zstd, gzip, none"):
        optree.configure(compression="lzma")
