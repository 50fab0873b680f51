import pytest

from benchmarks import exits
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import delivered_whole, run, trace_of, unsent
from tests.otel.receiver import away, receiver

BUSY_SECONDS = 10.0
"""Far more than any machine needs to end a process, and far less than what the silent collectors would hold it for."""


@pytest.mark.slow
@pytest.mark.parametrize("way", exits.BRIEF)
def test_an_exit_is_not_held(way):
    """Whatever state the collector is in, the process ends nearly as soon as without a mirror.

    `python -m benchmarks.exits` measures it in all ways against the quarter of a second that is promised; a busy machine takes longer.
    """
    found = list(exits.matrix([way], exits.PAUSES[:1]))
    assert list(exits.STATES) == [one.state for one in found]
    assert [] == [one for one in found if one.longer > BUSY_SECONDS]


def test_the_next_run_delivers(tmp_path):
    """What a run without collector could not send, a later one does in the background, though it has nothing to do with it."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            [txn] = run(["brief"], tmp_path, gone)
        assert [txn] == unsent(tmp_path)
        run(["brief", "flush"], tmp_path, collector.endpoint)
        assert 4 == len([span for span in collector.spans() if span.trace_id.hex() == trace_of(txn)])
    assert delivered_whole(tmp_path, txn)
    assert wait_for(lambda: not unsent(tmp_path))
