import pytest

from benchmarks import exits
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import delivered_whole, run, trace_of, unsent

BUSY = 3


@pytest.mark.parametrize("way", exits.BRIEF)
def test_an_exit_is_not_held(way):
    """Whatever state the collector is in, the process ends nearly as soon as without a mirror.

    `python -m benchmarks.exits` measures it in all ways against the quarter of a second that is promised; a busy machine takes longer.
    """
    found = list(exits.matrix([way], exits.PAUSES[:1]))
    assert list(exits.STATES) == [one.state for one in found]
    assert [] == [one for one in found if one.longer > BUSY * exits.BOUND]


def test_the_next_run_delivers(jaeger, tmp_path):
    """What a run without collector could not send, a later one does in the background, though it has nothing to do with it."""
    [txn] = run(["brief"], tmp_path, "http://127.0.0.1:1")
    assert [txn] == unsent(tmp_path)
    run(["brief", "flush"], tmp_path, jaeger.http)
    assert 4 == len(jaeger.wait_for_trace(trace_of(txn), 4))
    assert delivered_whole(tmp_path, txn)
    assert wait_for(lambda: not unsent(tmp_path))
