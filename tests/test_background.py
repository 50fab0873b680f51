"""Threads that run beside the program, and the jobs that they do."""

import os
import signal
import subprocess
import sys

import pytest

from optree._background import Job, Worker

LONG = 20.0


def test_a_job_that_waits_for_another_of_its_thread():
    """The thread that does it cannot do the other meanwhile: it is told at once that this is not done, which is done next."""
    worker, told = Worker("test-background"), []
    other = Job(worker, lambda: told.append("other"), told.append)
    job = Job(worker, lambda: told.append(other.wait(4 * LONG)), told.append)
    assert job.wait(LONG)
    assert other.wait(LONG)
    assert [False, "other"] == told[:2]


FORKS_BESIDE = """
import os, threading
from optree._background import Job, Worker
parent, begun, go_on = os.getpid(), threading.Event(), threading.Event()

def work():
    if os.getpid() == parent:
        begun.set()
        go_on.wait()

job = Job(Worker("test"), work, print)
job.ask()
begun.wait()
if not (child := os.fork()):
    print(job.is_running, job.wait(60), job.is_running, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], job.is_running, flush=True)
go_on.set()
print(job.wait(60), job.is_running)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process forks there")
def test_a_job_that_is_done_while_the_process_forks():
    """In the child it is not being done, as its thread is not there, and can be asked for; in the parent it goes on."""
    ran = subprocess.run([sys.executable, "-c", FORKS_BESIDE], capture_output=True, text=True, check=False, timeout=3 * LONG)
    assert (0, ["False True False", "0 True", "True False"]) == (ran.returncode, ran.stdout.splitlines()), ran.stderr


AWAITED = """
import os, signal
import optree
optree.configure(otel={"endpoint": "http://127.0.0.1:1"} if EXPORTS else "off")

@optree.session(agent="root")
def agent():
    with optree.turn(user="go"), optree.tool("ask"):
        pass

agent()
optree.flush(timeout=0.1)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait({signal.SIGTERM}).name, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "sigwait"), reason="this system has no signal that a thread could wait for")
@pytest.mark.parametrize("exports", [False, True])
def test_signals_are_for_the_programs_threads(exports, tmp_path):
    """A program that blocks a signal and waits for it gets it, and is not ended by it in one of optree's threads."""
    environ = os.environ | {"OPTREE_BASE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", AWAITED.replace("EXPORTS", str(exports))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG, check=False)
    assert (0, "SIGTERM\n") == (done.returncode, done.stdout), done.stderr


REPLACED = """
import _thread, signal, threading
masks = []

def replaced(start):
    def task(*arguments, **options):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return start(*arguments, **options)
    return task

for module, name in [(_thread, "start_new_thread"), (threading, "_start_new_thread"), (threading, "_start_joinable_thread")]:
    if hasattr(module, name):
        setattr(module, name, replaced(getattr(module, name)))
import optree
with optree.session("root"), optree.turn(), optree.tool("ask"):
    pass
print(optree.flush("snapshot", 30), len(masks) > 2, set(map(len, masks)), len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system has no signals that could be blocked")
def test_threads_that_are_none(tmp_path):
    """Where gevent or eventlet replaced threads by tasks, which run in the thread that starts them, no signal is blocked for one."""
    environ = os.environ | {"OPTREE_BASE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", REPLACED], env=environ, capture_output=True, text=True, timeout=LONG, check=False)
    assert (0, "True True {0} 0\n") == (done.returncode, done.stdout), done.stderr
