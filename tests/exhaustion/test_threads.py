"""What is raised on a background thread: the thread goes on or is replaced, it is counted and said, and stderr has no traceback of it."""

import ctypes
import threading
import weakref

import pytest

from optree import _background as background
from optree import _records as r
from optree._background import Job, Worker
from optree._builder.subscriber import Subscriber
from optree._store import upkeep
from optree._store.upkeep import Upkeep
from optree_otel.incoming.processor import Later
from tests.otel.backends.waiting import wait_for

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

    kept = Upkeep(lambda: None, lambda: None, save, lambda: None, fault)
    kept.start()
    assert (True, True, 2) == (kept.ask(LONG), kept.ask(LONG), len(tried))
    assert ([("last snapshot", error)] if says else []) == said
    kept.stop()
    assert kept.join(LONG)


def test_an_upkeep_whose_thread_could_not_start(monkeypatch):
    """It says so, and what is due begins with the next snapshot that is asked for."""
    said, saved = [], []

    def refused(*_):
        raise RuntimeError("can't start new thread")

    for name in ("EACH_SECOND", "SAVING"):
        monkeypatch.setattr(upkeep, name, Worker(f"test-{name}"))
    kept = Upkeep(lambda: None, lambda: None, lambda: saved.append(1), lambda: None, lambda what, error: said.append((what, str(error))))
    with monkeypatch.context() as patch:
        patch.setattr(background, "start_new_thread", refused)
        kept.start()
    assert ([("background thread", "can't start new thread")], False) == (said, kept.join(0))
    assert (True, [1]) == (kept.ask(LONG), saved)
    kept.stop()
    assert kept.join(LONG)


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_job_that_raises(error):
    """What a job raises is told, and it is done again; others of the same thread go on."""
    worker, raised, done = Worker("test"), [], []

    def work():
        done.append(1)
        if len(done) == 1:
            raise error

    job, other = Job(worker, work, raised.append), Job(worker, lambda: None, raised.append)
    assert (True, True, True) == (job.wait(LONG), other.wait(LONG), wait_for(lambda: len(done) == 2))
    assert [error] == raised


def test_a_thread_that_cannot_be_named(monkeypatch):
    """Where a thread may be had, but `threading` can make none, the work is done all the same."""
    monkeypatch.setattr(threading.Thread, "start", lambda _thread: int("none"))
    assert Job(Worker("test"), lambda: None, print).wait(LONG)


def test_a_thread_that_died_is_replaced():
    """What is asked for later is done by another one."""
    worker, threads = Worker("test"), []
    job = Job(worker, lambda: threads.append(threading.get_ident()), print)
    assert job.wait(LONG)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[0]), ctypes.py_object(SystemExit))
    assert wait_for(lambda: job.wait(0.1))
    assert wait_for(lambda: job.wait(0.1))


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


def test_a_thread_that_is_refused_keeps_nothing_of_the_program(monkeypatch):
    """What the functions hold that asked for a thread in vain is freed as they return."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    class Held:
        """What a program's function holds."""

    worker = Worker("refused")
    job = Job(worker, lambda: None, str)
    monkeypatch.setattr(background, "start_new_thread", refuse)

    def program():
        held = Held()
        assert not job.ask()
        return weakref.ref(held)

    assert program()() is None
    assert "can't start new thread" == str(worker.refused)
