"""What is raised on a background thread: the thread goes on or is replaced, it is counted and said, and stderr has no traceback of it."""

import threading

import pytest

from optree import records as r
from optree.builder.subscriber import Subscriber
from optree.store.upkeep import Upkeep
from optree_otel.incoming.later import Later

LONG = 20.0
RAISED = [RuntimeError("a fault of ours"), MemoryError(), NameError("missing"), SystemExit(3)]


@pytest.fixture(autouse=True)
def unseen(monkeypatch):
    """Fail where an exception leaves a thread."""
    left = []
    monkeypatch.setattr(threading, "excepthook", left.append)
    yield
    assert [] == left


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_subscriber_goes_on(error):
    """It counts what was raised, says it, and handles the records that follow."""
    handled = []

    def handle(record):
        if record.dropped == 1:
            raise error
        handled.append(record.dropped)

    subscriber = Subscriber(handle)
    subscriber.take([r.Gap(1.0, number) for number in (1, 2, 3)])
    assert subscriber.flush(LONG)
    assert ([2, 3], 1, repr(error)) == (handled, subscriber.failures, subscriber.last_failure)
    subscriber.close()


@pytest.mark.parametrize("error", RAISED[:3], ids=repr)
@pytest.mark.parametrize("says", [True, False])
def test_snapshots_go_on(error, says):
    """A snapshot that fails is answered and said, and the next is tried; also where there is no memory even to say it."""
    said, tried = [], []

    def save():
        tried.append(1)
        if len(tried) == 1:
            raise error

    def fault(what, raised):
        if not says:
            raise MemoryError
        said.append((what, raised))

    upkeep = Upkeep(lambda: None, lambda: None, save, lambda: None, fault)
    upkeep.start()
    assert (True, True, 2) == (upkeep.ask(LONG), upkeep.ask(LONG), len(tried))
    assert ([("last snapshot", error)] if says else []) == said
    upkeep.stop()
    assert upkeep.join(LONG)


def test_an_upkeep_whose_thread_could_not_start(monkeypatch):
    """Its thread begins with the next snapshot that is asked for."""
    said, saved = [], []

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    upkeep = Upkeep(lambda: None, lambda: None, lambda: saved.append(1), lambda: None, lambda what, error: said.append((what, str(error))))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        upkeep.start()
    assert ([("background thread", "can't start new thread")], False) == (said, upkeep.join(0))
    assert (True, [1]) == (upkeep.ask(LONG), saved)
    upkeep.stop()
    assert upkeep.join(LONG)


@pytest.mark.parametrize("error", RAISED[:3], ids=repr)
def test_later_looks_go_on(error):
    """An item whose work raises does not keep the next from its own."""
    done = threading.Event()

    def work(item):
        if item == "bad":
            raise error
        done.set()

    later = Later(work)
    later.add("bad", 0.0)
    later.add("good", 0.0)
    assert done.wait(LONG)
