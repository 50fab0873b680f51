import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from optree.exporting import OpEnd, SessionEnd
from optree_otel.mirror import Ends, OtelMirror
from optree_otel.settings import resolve


class Interrupted:
    """A queue; an interrupt comes once, before or after an item is put."""

    def __init__(self, when):
        self.when, self.items = when, []

    def put(self, item):
        """Put an item."""
        when, self.when = self.when, ""
        if when == "before":
            raise KeyboardInterrupt
        self.items.append(item)
        if when == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_loses_nothing(when):
    """A batch that is broken off comes again: each node is put, and no more are acknowledged than were counted."""
    exporter, queue = SimpleNamespace(asked=0, ended=False), Interrupted(when)
    ends = Ends(exporter, queue.put, None)
    batch = [OpEnd("1.1", "ok", 1.0), SessionEnd("", "ok", 2.0)]
    with pytest.raises(KeyboardInterrupt):
        ends.take(batch)
    ends.take(batch)
    assert {"1.1", ""} == {item.key.path for item in queue.items}
    assert len(queue.items) <= exporter.asked <= 3
    assert exporter.ended


class Looked(dict):
    """Two who look at once both see what is there."""

    barrier = threading.Barrier(2)

    def get(self, key, default=None):
        """Return a value when the other looks too, or a moment later."""
        found = super().get(key, default)
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.3)
        return found


def test_two_senders_let_go_of_a_session_once():
    """Neither raises, and what was left out is counted once."""
    mirror = OtelMirror(resolve({"endpoint": "http://127.0.0.1:1"}, {}))
    counts = {"left": 2, "asked": 2, "acknowledged": 0, "over_budget": 3}
    exporter = SimpleNamespace(finished=True, saved=True, shared=False, file=SimpleNamespace(release=int), txn="t", **counts)
    mirror.exporters = Looked(t=exporter)
    errors = []

    def settle():
        try:
            mirror.settle(exporter)
        except Exception as error:  # noqa: BLE001 - the test tells it
            errors.append(error)

    threads = [threading.Thread(target=settle) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ([], 2) == (errors, mirror.left())
    assert any(problem.startswith("OpenTelemetry traces: 3 spans were left out") for problem in mirror.health()["problems"])
