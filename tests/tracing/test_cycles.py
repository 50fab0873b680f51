import pytest

import optree
from optree._tree import walk_sessions


def agents(**cycle):
    """Return a function that runs agents in one another: ``run("a", "b", "a")`` is A→B→A."""

    def run(first, *rest):
        with optree.session(first):
            return run(*rest) if rest else "end"

    optree.configure(**cycle)
    return run


CYCLES = [("a", "a"), ("a", "b", "a"), ("root", "a", "b", "c", "a")]
cycles = pytest.mark.parametrize("chain", CYCLES, ids="-".join)


@cycles
def test_cycle_is_marked(chain, recording):
    """By default an agent that calls itself, directly or by others, is marked, warned about, and runs (S4-129)."""
    assert "end" == agents()(*chain)
    sessions = list(walk_sessions(recording.tree.session))
    assert [None] * (len(chain) - 1) + [True] == [session.attributes.get("cycle") for session in sessions]
    *_, (_, _, op) = optree.walk_ops(recording.tree.session)
    assert [("WRN", f"agent {chain[-1]} calls itself: {'->'.join(chain)}")] == [(entry.severity, entry.message) for entry in op.logs]


@cycles
def test_cycle_is_refused(chain, recording):
    """With ``cycles="block"`` it is refused with an error that shows the chain and the next step (S4-129)."""
    with pytest.raises(optree.CycleError) as caught:
        agents(cycles="block")(*chain)
    assert f"agent {chain[-1]!r} would call itself: {'->'.join(chain)}" in str(caught.value)
    assert "cycles='mark'" in str(caught.value)
    sessions = list(walk_sessions(recording.tree.session))
    assert [(name, "failed") for name in chain[:-1]] == [(session.agent_id, session.status) for session in sessions]
    *_, (_, _, op) = optree.walk_ops(recording.tree.session)
    assert ("session", chain[-1], "failed", None) == (op.kind, op.name, op.status, op.child_session)


@pytest.mark.parametrize("choice", ["mark", "block"])
def test_nothing_else_is_a_cycle(choice, recording):
    """An agent may be called twice by one parent, or by two branches; deep nesting is fine (S4-129)."""
    run = agents(cycles=choice)
    deep = [f"agent {n}" for n in range(60)]
    with optree.session("root"):
        for _ in range(2):
            assert "end" == run("a", "b")
        assert "end" == run("b", "c")
        assert "end" == run(*deep)
    sessions = list(walk_sessions(recording.tree.session))
    assert 1 + 2 * 2 + 2 + 60 == len(sessions)
    assert {None} == {session.attributes.get("cycle") for session in sessions}
    assert {"ok"} == {session.status for session in sessions}


def test_cycle_over_a_process(finished, saved):
    """The ancestry goes along into another process: an agent that calls itself there is marked too (S4-129)."""
    code, out, _ = finished("""
        import subprocess
        @optree.session(agent="outer")
        def outer():
            with optree.turn():
                if "OPTREE_PARENT" not in os.environ:
                    subprocess.run([sys.executable, __file__], env=optree.child_env(), check=True)
        outer()
    """)
    assert (0, "") == (code, out)
    root, child = walk_sessions(saved().session)
    assert ("outer->outer", True, None) == (child.call_path, child.attributes.get("cycle"), root.attributes.get("cycle"))
