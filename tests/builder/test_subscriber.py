import threading

import pytest

from optree import SessionTreeBuilder, walk_ops
from optree import _records as r
from optree._builder import Stream
from optree._builder.subscriber import QUEUE_RECORDS, Subscriber
from optree._builder.subscription import RecordSubscription

LONG = 30.0
"""Seconds after which a test gives up: never reached where things work."""


def gaps(first, last):
    """Return records that can be told apart."""
    return [r.Gap(1.0, number) for number in range(first, last)]


@pytest.fixture
def gate():
    """Return an event that lets a held handler go on; set at the end in any case."""
    event = threading.Event()
    yield event
    event.set()


def test_order():
    """A subscriber handles every record, in order, on a thread of its own."""
    found, threads = [], set()

    def handle(record):
        found.append(record.dropped)
        threads.add(threading.current_thread().name)

    subscriber = Subscriber(handle, "mine")
    for start in range(0, 1000, 10):
        subscriber.take(gaps(start, start + 10))
    assert subscriber.flush(LONG)
    assert (list(range(1000)), {"optree-mine"}) == (found, threads)


def test_newest_are_dropped(gate):
    """A subscriber that falls behind loses the newest records, counts them, and goes on with the oldest."""
    found, begun = [], threading.Event()

    def handle(record):
        begun.set()
        gate.wait(LONG)
        found.append(record.dropped)

    subscriber = Subscriber(handle)
    subscriber.take(gaps(0, 1))
    assert begun.wait(LONG)
    subscriber.take(gaps(1, QUEUE_RECORDS + 4))
    subscriber.take(gaps(QUEUE_RECORDS + 4, QUEUE_RECORDS + 8))
    assert 3 + 4 == subscriber.dropped
    gate.set()
    assert subscriber.flush(LONG)
    assert list(range(QUEUE_RECORDS + 1)) == found
    subscriber.take(gaps(0, 1))
    assert subscriber.flush(LONG)
    assert (0, 7) == (found[-1], subscriber.dropped)


def test_held_subscriber_does_not_hold_the_program(gate):
    """A subscriber that hangs holds up nothing; flushing it gives up in time."""
    subscriber = Subscriber(lambda _record: gate.wait(LONG))
    builder = SessionTreeBuilder("a", stream=Stream([subscriber]))
    for _ in range(100):
        builder.begin_op("tool", "x").end()
    assert not subscriber.flush(0.01)
    assert (100, 0, 0) == (len(builder.node.turns[0].ops), builder.core.stream.failures, builder.core.stream.late)


def test_faults_are_counted():
    """A handler that raises is counted, its record is not tried again, and the next one is handled."""
    found = []

    def handle(record):
        if record.dropped % 2:
            raise RuntimeError(record.dropped)
        found.append(record.dropped)

    subscriber = Subscriber(handle)
    subscriber.take(gaps(0, 10))
    assert subscriber.flush(LONG)
    assert ([0, 2, 4, 6, 8], 5, "RuntimeError(9)") == (found, subscriber.failures, subscriber.last_failure)


def test_idle_subscriber_is_flushed():
    """A subscriber that got nothing is flushed at once."""
    assert Subscriber(lambda _record: None).flush(0)


def test_live_updates():
    """A subscriber sees every update, also of sub-agents at any depth, as it happens (S4-02, S4-38, S4-39, S4-40, S4-138, S4-142)."""
    paths = []
    subscriber = Subscriber(lambda record: paths.append((type(record).__name__, record.path)))
    root = builder = SessionTreeBuilder("a", stream=Stream([subscriber]))
    for agent in "bc":
        op = builder.begin_op("session", agent)
        builder = builder.attach_child_session(op, agent)
    builder.begin_op("tool", "x").end()
    assert subscriber.flush(LONG)
    assert [
        ("SessionBegin", ""),
        ("TurnBegin", "1"),
        ("OpBegin", "1.1"),
        ("SessionBegin", "1.1"),
        ("TurnBegin", "1.1.1"),
        ("OpBegin", "1.1.1.1"),
        ("SessionBegin", "1.1.1.1"),
        ("TurnBegin", "1.1.1.1.1"),
        ("OpBegin", "1.1.1.1.1.1"),
        ("Accounted", "1.1.1.1.1.1"),
        ("OpEnd", "1.1.1.1.1.1"),
    ] == paths
    assert root.node.turns[0].ops[0].child_session.turns[0].ops[0].child_session is builder.node


def test_a_tree_for_each_run():
    """Who keeps the trees of several runs has each as it grows, and is told which has changed (S4-41)."""
    trees, changed = {}, []

    def keep(builder):
        subscription = RecordSubscription(builder, lambda _record: changed.append(builder.txn), earlier=lambda _records: None)
        trees[builder.txn] = subscription.tree
        return subscription

    first, second = (SessionTreeBuilder(agent, stream=Stream([])) for agent in "ab")
    subscriptions = [keep(first), keep(second)]
    second.begin_op("tool", "x")
    for subscription in subscriptions:
        assert subscription.close(LONG)
    assert {second.txn} == set(changed)
    assert {first.txn: [], second.txn: ["x"]} == {txn: [op.name for _, _, op in walk_ops(tree)] for txn, tree in trees.items()}


def test_what_comes_while_the_earlier_records_are_refused():
    """Where what takes the earlier records raises, that is counted, and the record that came meanwhile is handled all the same."""
    found = []

    def refuse(records):
        raise ValueError(len(records))

    def begin(subscription):  # as another thread that records just then
        subscription._subscriber.take(gaps(5, 6))

    root = SessionTreeBuilder("a", stream=Stream([]))
    subscription = RecordSubscription(root, lambda record: found.append(record.dropped), earlier=refuse, begin=begin)
    assert subscription.close(LONG)
    assert ([5], 1, "ValueError(1)") == (found, subscription.failures, subscription.last_failure)
