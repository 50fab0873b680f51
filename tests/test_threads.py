"""Optree's threads where gevent or eventlet patch `threading`, so that what it starts are greenlets."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

LONG = 60
LIBRARIES = ["gevent", "eventlet"]
NEEDED = os.environ.get("CI") and sys.version_info < (3, 15)  # for which they have no wheels
FAMILIES = {
    "gevent": "from gevent import monkey; monkey.patch_all(); import gevent; run = lambda work: gevent.spawn(work).join()",
    "eventlet": "import eventlet; eventlet.monkey_patch(); run = lambda work: eventlet.spawn(work).wait()",
    # What is started as a thread is a greenlet that gets no turn, since nothing here waits as greenlets do.
    "none runs": "import threading as t; t._start_new_thread = t._start_joinable_thread = lambda *_, **__: 0; run = lambda work: work()",
}
WORK = """
import os, time

def work():
    for _ in range(3):
        with optree.session("a"), optree.tool("t") as op:
            op.log("line")
            time.sleep(0.01)
    print(optree.flush("sync", 30), optree.flush("snapshot", 30), optree.health()["ok"])

run(work)
"""
FORK = """
import os, time

def work():
    with optree.session("a"):
        if not (child := os.fork()):
            with optree.tool("t"):
                time.sleep(0.5)
            print("done", flush=True)
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

run(work)
"""
LEFT = """
import os, time
from optree._threads import BackgroundThread

thread = BackgroundThread(lambda: time.sleep(60), "left")
thread.start()
if not (child := os.fork()):
    thread.join(30)
    os._exit(thread.is_alive())
print(thread.is_alive(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
NONE_LEFT = """
from optree import _threads

def refused(*_):
    raise RuntimeError("can't start new thread")

start, _threads.start_new_thread = _threads.start_new_thread, refused
thread = _threads.BackgroundThread(lambda: None, "late")
try:
    thread.start()
except RuntimeError:
    print(thread.is_alive())
_threads.start_new_thread = start
thread.start()
thread.join(30)
print(thread.is_alive())
"""


def output(family, program, tmp_path, *, comes_later):
    """Return what a program prints that patches `threading`, before it imports optree or, with *comes_later*, after."""
    if family in LIBRARIES and find_spec(family) is None and not NEEDED:
        pytest.skip(f"{family} is not installed here: pip install {family}")
    lines = ["import optree", FAMILIES[family]] if comes_later else [FAMILIES[family], "import optree"]
    code = "\n".join([*lines, textwrap.dedent(program)])
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {**os.environ, "OPTREE_BASE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False, env=environment)
    assert 0 == done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("family", FAMILIES)
def test_greenlets_that_come_later(tmp_path, family):
    """A program that patches only after it imported optree runs on, and its sessions are saved while it does."""
    assert ["True"] * 3 == output(family, WORK, tmp_path, comes_later=True)


@pytest.mark.parametrize("family", LIBRARIES)
def test_greenlets_that_were_there(tmp_path, family):
    """One that patches before has all that it recorded saved."""
    assert ["True"] * 3 == output(family, WORK, tmp_path, comes_later=False)


@pytest.mark.parametrize("comes_later", [False, True])
@pytest.mark.parametrize("family", LIBRARIES)
def test_a_fork_in_a_greenlet(tmp_path, family, comes_later):
    """What a greenlet forks is not ended by optree: it does its work, and ends as it wants."""
    assert ["done", "3"] == output(family, FORK, tmp_path, comes_later=comes_later)


def test_a_thread_that_a_fork_leaves_behind(tmp_path):
    """In a forked child a thread of its parent's does not run, though `threading` does not know of it, and nobody waits for it."""
    assert ["True", "0"] == output("none runs", LEFT, tmp_path, comes_later=True)


def test_a_thread_that_cannot_be_started(tmp_path):
    """Where there can be no more threads, one does not count as running, and can be started later."""
    assert ["False", "False"] == output("none runs", NONE_LEFT, tmp_path, comes_later=True)


@pytest.mark.parametrize("comes_later", [False, True])
def test_what_eventlet_takes_away(tmp_path, comes_later):
    """Without `select.poll`, which eventlet takes away, what optree has to say is said all the same."""
    (tmp_path / "base").touch()
    lines = ["import optree", "import select; del select.poll, select.POLLOUT"]
    code = "\n".join([*(lines if comes_later else reversed(lines)), "with optree.session('a'): pass"])
    environment = {**os.environ, "OPTREE_BASE_DIR": str(tmp_path / "base")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=False, env=environment)
    assert (0, "optree: nothing is saved in", 0) == (done.returncode, done.stderr[:27], done.stderr.count("Traceback"))
