"""That both trace functions, the one in Python and the one in C, raise at the same places."""

import gc
import shutil
import sys
from contextlib import suppress

import pytest

import optree
from optree._tree.path import Path
from optree._tree.walk import walk_ops
from tests.interrupts.injecting import NOWHERE, Injection, Stop
from tests.interrupts.scenarios import agent


def hit(call, place, **options):
    """Return where a call was hit, and whether CPython runs handlers there."""
    one = Injection(place, Stop(), **options)
    raised = False
    try:
        one.run(call)
    except Stop:
        raised = True
    assert (one.raised and not one.dropped) is raised
    return one.where, one.possible, one.returning, one.seen


@pytest.fixture
def _uncollected():
    """No garbage is collected: a generator that was hit before is closed by that, which traces two events more."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Return a call of functions and generators of optree's, some of which raise."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    with optree.session("program") as session, optree.turn(), optree.tool("t"):
        agent("why")
    tree = session.tree

    def run():
        for session, _, op in walk_ops(tree):
            with suppress(ValueError):
                Path.parse(f"{op.path}.no")
            Path.parse(op.path or session.path)

    run()  # what is done once per process is done by then
    return run


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="one of them is compiled")
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="there it is not told of all bytecodes, and not used")
@pytest.mark.parametrize("in_handlers", [False, True])
def test_the_compiled_trace_function_raises_at_the_same_places(monkeypatch, tmp_path, call, in_handlers):
    """The n-th bytecode, call or return is the same one for both, in functions, generators and what raises."""
    every = Injection(NOWHERE, None)
    every.run(call)
    monkeypatch.setattr(Injection, "quick", None)
    expected = [hit(call, place, in_handlers=in_handlers) for place in range(1, every.seen + 1)]
    Injection.compile(tmp_path)
    assert Injection.quick is not None
    assert expected == [hit(call, place, in_handlers=in_handlers) for place in range(1, every.seen + 1)]
    assert {"call", "opcode", *(() if in_handlers else ("return",))} == {where.split()[2] for where, *_ in expected if where}
    assert {True, in_handlers} == {possible for where, possible, *_ in expected if where}


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="there a trace function is told of more bytecodes with each run: places have no numbers"
)
def test_it_is_raised_at_the_next_place_where_a_handler_runs(monkeypatch, call):
    """Where what comes before has drifted, it is raised at the next place where a handler runs, not between two bytecodes."""
    monkeypatch.setattr(Injection, "quick", None)
    every = Injection(NOWHERE, None)
    every.run(call)
    possible = [place for place, is_possible in enumerate(every.handlers, 1) if is_possible]
    expected = [next((one for one in possible if one >= place), every.seen) for place in range(1, every.seen + 1)]
    assert expected == [hit(call, place, in_handlers=True)[-1] for place in range(1, every.seen + 1)]
