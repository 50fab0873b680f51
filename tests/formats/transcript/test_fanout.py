import logging
import threading

from optree_formats.transcript import FanOut, recorder
from optree_formats.transcript.wire import Event
from tests.formats.transcript.lines import RUN, TIME


def made(seq, kind="run.started"):
    """Return an event."""
    return Event(seq=seq, run_id=RUN, type=kind, path="", iteration=0, timestamp=TIME, payload=None)


def test_order_and_drops():
    """Each subscriber gets events in order and, with its buffer full, loses the newest; the counts say so (S2-76, S2-77, S2-78, S2-81)."""
    found = FanOut(buffer=2)
    small, large = found.subscribe(), found.subscribe(10)
    for seq in range(1, 6):
        found.publish(made(seq))
    assert (2, 3) == found.stats()
    assert (3, 0) == (small.dropped, large.dropped)
    found.close()
    assert [[1, 2], [1, 2, 3, 4, 5]] == [[one.seq for one in each] for each in (small, large)]


def test_default_buffer():
    """A buffer holds 256 events unless told otherwise (S2-77)."""
    found = FanOut()
    subscription = found.subscribe()
    for seq in range(257):
        found.publish(made(seq))
    assert (256, 1) == (recorder.BUFFER, subscription.dropped)


def test_one_warning_a_second(caplog, monkeypatch):
    """However many events a slow subscriber loses, it is said once a second, for each subscriber (S2-81)."""
    now = [100.0]
    monkeypatch.setattr(recorder, "monotonic", lambda: now[0])
    found = FanOut(buffer=1)
    for _ in range(2):
        found.subscribe()
    for seq in range(50):
        found.publish(made(seq))
    assert 2 == len(warnings(caplog))
    now[0] += 1.0
    found.publish(made(51))
    assert 4 == len(warnings(caplog))
    assert "49 events dropped, 50 in all" in warnings(caplog)[-1]


def warnings(caplog):
    """Return what was warned of."""
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_cancelled():
    """Cancelling, twice, ends a subscription: what waits can be had, nothing comes, its drops stay counted (S2-82, S2-97)."""
    found = FanOut(buffer=1)
    subscription = found.subscribe()
    for seq in (1, 2):
        found.publish(made(seq))
    subscription.cancel()
    subscription.cancel()
    found.publish(made(3))
    assert [1] == [one.seq for one in subscription]
    assert (0, 1) == found.stats()


def test_closed():
    """After closing, twice, publishing does no harm, and who subscribes gets a closed subscription (S2-82, S2-97)."""
    found = FanOut()
    found.close()
    found.close()
    found.publish(made(1))
    assert (True, [], (0, 0)) == (found.subscribe().closed, [*found.subscribe()], found.stats())


def test_event_without_a_type(caplog):
    """An event without a type is not handed on, and that is said (S2-97)."""
    found = FanOut()
    subscription = found.subscribe()
    found.publish(made(1, ""))
    found.close()
    assert ([], ["transcript: an event without a type is not handed on"]) == ([*subscription], warnings(caplog))


def test_waiting_subscriber():
    """A subscriber that waits in another thread gets what comes, and ends when it is closed (S2-76, S2-82)."""
    found = FanOut()
    subscription = found.subscribe()
    got = []
    thread = threading.Thread(target=lambda: got.extend(one.seq for one in subscription))
    thread.start()
    for seq in (1, 2, 3):
        found.publish(made(seq))
    found.close()
    thread.join(10)
    assert ([1, 2, 3], False) == (got, thread.is_alive())


def test_timeout():
    """Waiting can be bounded."""
    assert None is FanOut().subscribe().get(0.001)
