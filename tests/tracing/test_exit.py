"""The end of a process: quick, and what it does not come to is settled later."""

import json
import os
import re
import subprocess
import sys

import pytest

import optree
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree._tracing.runtime import EXIT_SECONDS

POOL = """
    import multiprocessing as mp
    from concurrent.futures import ProcessPoolExecutor

    def work(number):
        with optree.llm(provider="p", model="m") as op:
            op.account(cost_usd=1.0)

    if __name__ == "__main__":
        pool = ProcessPoolExecutor(1, mp_context=mp.get_context("spawn"))
        for _ in range(2):
            with optree.session("root") as session, optree.turn():
                work(0)
                pool.submit(optree.wrap(work), 1).result()
        optree.flush("snapshot")
        pool.shutdown()
"""


def costs(directory):
    """Return the ids in the ledger."""
    return [json.loads(line)["id"] for line in directory.billing.read_text().splitlines()]


def test_a_pool_worker_that_outlives_its_session_is_billed(finished, directory):
    """A pool's worker lives on over several sessions: all that it recorded is in the ledger once, and nothing is left (S4-94, S4-104)."""
    code, _, err = finished(POOL)
    assert (0, "") == (code, err)
    settle_all(StoreOptions(directory))
    assert (4, 4) == (len(costs(directory)), len(set(costs(directory))))
    assert [] == [saved.txn for saved in directory.saved() if saved.live is not None]


def test_a_session_that_is_not_saved_at_exit_is_settled_by_the_next(finished, directory):
    """The disk is too slow for the last snapshot: the process ends in time, and the next process in the directory bills it (S4-104)."""
    code, out, _ = finished("""
        import time
        from optree._store.files.system import OS
        def slow(self, path, pieces, aside=None): time.sleep(60)
        OS.replacing = slow
        with optree.session("root"), optree.turn(), optree.llm(provider="p", model="m") as op:
            op.account(cost_usd=1.0)
        import atexit, optree._tracing.runtime as runtime
        begun = time.monotonic()
        runtime.RUNTIME.at_exit()
        print(time.monotonic() - begun)
    """)
    assert 0 == code
    assert float(out) < 5.0
    assert not directory.billing.exists()
    assert 1 == len([saved for saved in directory.saved() if saved.live is not None])
    finished(
        """
        with optree.session("next"):
            end = time.monotonic() + 30
            while not os.path.exists(os.environ["OPTREE_BASE_DIR"] + "/accounting.jsonl") and time.monotonic() < end:
                time.sleep(0.005)
    """,
        head="import os, time\nimport optree\n",
    )
    assert 1 == len(costs(directory))


def test_what_a_disk_that_hangs_has_not_taken_is_said_to_be_lost(finished):
    """Calls that returned since another thread's write took too long are in no file where the process ends meanwhile: stderr says so."""
    code, _, err = finished("""
        import contextvars
        from threading import Event, Thread
        from optree._tracing.runtime import RUNTIME

        class Hanging:
            def __init__(self): self.inside = Event()
            def take(self, batch): self.inside.set(), Event().wait()

        def work():
            with optree.tool("work"):
                pass

        (entered := optree.session("root")).__enter__()
        [store], hanging = RUNTIME.stores.values(), Hanging()
        store.stream.subscribe(hanging)
        Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
        hanging.inside.wait()
        work()
    """)
    assert (0, 1) == (code, len(err.splitlines())), err
    assert re.fullmatch(r"optree: [1-9]\d* records are lost, in .*: the disk did not answer\n", err), err


def test_what_waits_behind_a_disk_that_hangs_as_the_process_ends_is_said_to_be_lost(finished):
    """Log lines of other sessions that the end did not come to, since the disk hangs there, are lost: stderr says how many records."""
    code, _, err = finished("""
        import contextvars
        from threading import Event
        from optree._builder import stream
        from optree._tracing.runtime import RUNTIME

        class Hanging:
            def take(self, batch): Event().wait()

        stream.PERIOD_SECONDS = 60.0
        ops = []
        for number in range(5):
            context = contextvars.copy_context()
            context.run(optree.session(f"agent {number}").__enter__)
            ops.append(context.run(optree.tool("work").__enter__))
        optree.flush()
        list(RUNTIME.stores.values())[1].stream.subscribe(Hanging())
        for op in ops:
            op.log("a line")
    """)
    assert (0, 1) == (code, len(err.splitlines())), err
    assert re.fullmatch(r"optree: [4-5] records are lost, in .*: the disk did not answer\n", err), err


def test_a_fork_leaves_finished_sessions_alone(finished):
    """A process forks after a session is saved: the child makes no file of that session, nor of one that it records nothing in."""
    code, out, _ = finished("""
        import warnings
        warnings.simplefilter("ignore")
        with optree.session("over"):
            pass
        assert optree.flush("snapshot", 60)
        live = optree.Directory.of().sessions
        with optree.session("on") as session:
            if not (pid := os.fork()):
                os._exit(0)
            os.waitpid(pid, 0)
            print(sum(path.stat().st_size > 0 for path in live.glob("*.live/j-*")), len(list(live.glob("*.live"))))
            print(optree.load(session.txn).damage.state)
        print(optree.flush("snapshot"), len(list(live.glob("*.live"))))
    """)
    assert (0, "1 1\nclean\nTrue 0\n") == (code, out)


def test_a_fork_that_finds_no_room_runs_on(finished):
    """The child cannot make its journal: it runs on, and says so."""
    code, out, err = finished("""
        import warnings
        warnings.simplefilter("ignore")
        from optree._store.files.system import OS
        with optree.session("on"):
            def none(self, path): raise RuntimeError("no room")
            OS.create = none
            if not (pid := os.fork()):
                with optree.tool("t") as op:
                    op.log("on")
                print("runs on", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
    """)
    assert (0, "runs on\n") == (code, out)
    assert "no room" in err


LATE = """
class Holder:
    def __init__(self, op):
        self.op = op
    def __del__(self):
        self.op.log("from __del__")

with contextlib.ExitStack() as stack:
    session, turn = stack.enter_context(optree.session("a")), stack.enter_context(optree.turn())
    holder = Holder(stack.enter_context(optree.tool("t")))
    if WAY == "open":
        stack.pop_all()
if WAY == "gone":
    assert optree.flush("snapshot", 60)
    def go():
        sessions = optree.Directory.of().sessions
        shutil.rmtree(sessions)
        sessions.write_text("a file")
    atexit.register(go)
"""


@pytest.mark.parametrize("way", ["open", "ended", "gone"])
def test_what_is_recorded_after_the_exit(way, tmp_path):
    """A log line of an object that ends with the process is saved all the same, or counted and said where it cannot be."""
    script = f"import atexit, contextlib, shutil, optree\noptree.configure(console=False)\nWAY = {way!r}\n{LATE}"
    env = {**os.environ, "OPTREE_BASE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    if way == "gone":
        assert ": records are in no file (" in ran.stderr
    else:
        assert "" == ran.stderr
        (op,) = [op for *_, op in optree.walk_ops(optree.load("last", optree.Directory.of(tmp_path)).session)]
        assert ["from __del__"] == [entry.message for entry in op.logs]


SESSION_OF_A_FINALIZER = """
import optree

@optree.session(agent="last")
def closing():
    with optree.turn(user="q"), optree.llm(provider="p", model="m") as op:
        op.account(input_tokens=5, cost_usd=1)

class Last:
    def __del__(self, closing=closing):
        closing()

with optree.session("first"):
    pass
last = Last()
"""


def test_a_session_of_a_finalizer(finished, tmp_path):
    """A session that begins while the interpreter goes down is in its journal, with its bill; the next run saves it."""
    code, _, err = finished(SESSION_OF_A_FINALIZER, env={"OPTREE_BASE_DIR": str(tmp_path)})
    assert (0, "") == (code, err)
    directory = optree.Directory.of(tmp_path)
    bills = {one.agent_id: one.totals.cost_usd for one in (optree.load(saved.txn, directory).session for saved in directory.saved())}
    assert {"first": 0, "last": 1} == bills


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's threads need a library to end")
def test_without_descriptors_the_end_of_a_thread_ends_no_program(finished):
    """A thread of optree that wakes up while Python goes down, with no descriptor left, does not abort the process."""
    code, out, err = finished("""
        import resource, sys, time
        from optree._background import Job, Worker
        job = Job(Worker("late"), lambda: None, print)
        assert job.wait(60.0)
        class Last:
            def __del__(self):
                job.ask()
                time.sleep(0.2)  # lets the thread run, to its end
        sys.modules["last"] = Last()
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        print("ran")
    """)
    assert (0, "ran\n", "") == (code, out, err)


WAITS = """
import atexit, contextlib, functools, os, select, subprocess, sys, threading, time
asked, depth = [], []

def counted(owner, name, place):
    wait = getattr(owner, name)

    @functools.wraps(wait)
    def count(*given, **named):
        here = len(depth) > 0 and threading.current_thread() is threading.main_thread()
        if here and len(depth) == 1 and name != "start":  # which waits for the thread's first line
            seconds = given[place] if len(given) > place else next((named[one] for one in ("timeout", "seconds") if one in named), None)
            asked.append(float("inf") if seconds is None else max(0.0, seconds))
        depth.extend([1] if here else [])
        try:
            return wait(*given, **named)
        finally:
            if here:
                depth.pop()

    setattr(owner, name, count)

for one in ((time, "sleep", 0), (threading.Thread, "start", 1), (threading.Thread, "join", 1), (threading.Event, "wait", 1),
            (threading.Condition, "wait", 1), (subprocess.Popen, "wait", 1), (subprocess.Popen, "communicate", 2), (select, "select", 3)):
    counted(*one)
atexit.register(lambda: print(sum(asked)))
import optree
from optree._background import Job, Wake
counted(Job, "wait", 1)
counted(Wake, "wait", 1)
import optree._store.files.system as system
from _thread import allocate_lock
for_ever = allocate_lock()
for_ever.acquire()
system.OS.replacing = system.OS.unlink = lambda *given, **named: for_ever.acquire()
atexit.register(lambda: depth.append(1))  # optree's own hook is below this one
"""


@pytest.mark.parametrize("sessions", [0, 1, 32])
def test_exit_asks_for_no_longer_waits(sessions, finished):
    """What the end of the process asks to wait for a disk that hangs comes to `EXIT_SECONDS` at most, however fast the machine is."""
    code, out, _ = finished(
        f"for _ in range({sessions}):\n    with optree.session('a'), optree.turn(), optree.tool('b') as op: op.log('c')", head=WAITS
    )
    assert 0 == code
    assert (sessions > 0) == (float(out) > 0)
    assert EXIT_SECONDS >= float(out)
