"""An exception out of a handler while a program goes on with a session that it names."""

import sys
from pathlib import Path

import pytest

import optree
from optree._tracing.runtime import RUNTIME
from tests.interrupts.injecting import Injection, Stop

PLACES = 30_000
"""More than such a call has."""


def call(txn=None):
    """Go on with a session, or begin one; returns it."""
    with optree.session("assistant", resume=txn) as session, optree.turn(), optree.llm(provider="p", model="m") as op:
        op.account(input_tokens=1, cost_usd=0.25)
    return session


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the trace function in C is not told of all bytecodes there, and Python's is slow")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files that it hits as they are opened
@pytest.mark.parametrize("share", [701, pytest.param(53, marks=pytest.mark.slow)])
def test_an_exception_in_its_middle(tmp_path, monkeypatch, share):
    """What a handler raises reaches the program, nothing else does; the same process goes on with the session at the first try, whole."""
    Injection.compile(Path(tmp_path))
    monkeypatch.setattr(Injection, "quick", Injection.quick)
    monkeypatch.setattr(RUNTIME, "config", RUNTIME.config)
    optree.configure(base_dir=tmp_path, console=False)
    directory = optree.Directory.of(tmp_path)
    hit = 0
    for place in range(1, PLACES, share):
        txn = call().txn
        injection = Injection(place, Stop("out of a handler"), in_handlers=True)
        try:
            injection.run(lambda name=txn: call(name))
        except Stop:
            hit += 1
        if not injection.raised:
            break
        assert optree.current_session() is None
        again = call(txn)
        assert (txn, True) == (again.txn, again.resumed), injection.where
        assert optree.flush("snapshot", 30)
        root = optree.load(txn, directory).session
        calls = [op for _, _, op in optree.walk_ops(root) if op.kind == "llm"]
        assert ("ok", len(calls) / 4) == (root.status, root.totals.cost_usd), injection.where
        assert 2 <= len(calls) <= 3
    assert hit > 15_000 / share
    assert optree.health()["ok"]
