import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import msgspec
import pytest

import optree
from optree._store.ledger import Ledger
from optree._store.reading.directory import journals
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._store.session_store import SessionStore
from optree._store.settle import settle_all
from tests.interrupts.test_running_out import ALL_DESCRIPTORS
from tests.tracing.conftest import LONG, ROOT


@pytest.mark.parametrize("rounds", [5])
def test_fork_under_running_threads(rounds, finished, saved):
    """A process that forks while other threads trace goes on, and so do its children: no deadlock, nothing lost, nothing twice."""
    code, _, err = finished(
        f"""
        import threading
        sys.setswitchinterval(1e-5)
        stop = threading.Event()

        @optree.tool
        def work(name):
            op = optree.current()
            op.log(name)
            op.account(characters_in=1)

        def busy():
            while not stop.is_set():
                work("thread")

        with optree.session("root"), optree.turn():
            threads = [threading.Thread(target=optree.wrap(busy)) for _ in range(3)]
            [thread.start() for thread in threads]
            for _ in range({rounds}):
                work("parent")
                if (child := os.fork()) == 0:
                    for _ in range(3):
                        work("child")
                    assert optree.flush("sync", 60)
                    os._exit(0)
                work("parent")
                assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            stop.set()
            [thread.join() for thread in threads]
        assert optree.flush("snapshot", 30)
        """,
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},  # it has threads of its own, as Python says
    )
    assert (0, "") == (code, err)
    loaded = saved()
    assert ("ended", "clean", []) == (loaded.state, loaded.damage.state, loaded.open_nodes())
    counted = Counter(entry["message"] for entry in optree.flatten(loaded.session).logs)
    assert (2 * rounds, 3 * rounds) == (counted["parent"], counted["child"])
    ops = loaded.session.turns[0].ops
    assert (len(ops), len(ops)) == (loaded.session.totals.tools_run, sum(counted.values()))
    assert {1} == {len(op.logs) for op in ops}


def test_no_warning_because_of_optrees_threads(finished):
    """Where warnings are errors, a fork raises for the program's own threads (as of Python 3.15), and not for optree's."""
    code, out, err = finished("""
        import threading
        import warnings

        def forks():
            try:
                if (child := os.fork()) == 0:
                    os._exit(3)
            except DeprecationWarning:
                return "raised"
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        filters, stop = list(warnings.filters), threading.Event()
        with optree.session("root"), optree.turn(), optree.tool("x") as op:
            op.log("y")
            optree.flush("sync")
            print(threading.active_count() > 1, forks(), forks())
            thread = threading.Thread(target=stop.wait)
            thread.start()
            print(forks(), filters == warnings.filters)
            stop.set()
            thread.join()
            print(forks())
    """)
    own = "raised" if sys.version_info >= (3, 15) else "3"
    assert (0, ["True 3 3", f"{own} True", "3"], "") == (code, out.splitlines(), err)


def test_no_warning_is_shown_because_of_optrees_threads(finished):
    """Where Python warns of forks beside threads, it does so for the program's own, each time, and not for optree's."""
    code, out, err = finished(
        """
        import threading

        def forks():
            if (child := os.fork()) == 0:
                os._exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        stop = threading.Event()
        with optree.session("root"), optree.turn(), optree.tool("x"):
            forks()
            forks()
            thread = threading.Thread(target=stop.wait)
            thread.start()
            forks()
            forks()
            stop.set()
            thread.join()
            forks()
        """,
        env={"PYTHONWARNINGS": "always"},
    )
    assert (0, ["3"] * 5) == (code, out.split()), err
    assert (2 if sys.version_info >= (3, 12) else 0) == err.count("is multi-threaded")


def test_both_sides_are_read_while_they_live(script, directory):
    """Parent and child write a journal each; what both have written is read while neither has ended."""
    process = script(
        """
        with optree.session("root"), optree.turn(), optree.tool("before"):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                with optree.tool("child") as op:
                    op.log("hello from the child")
                    assert optree.flush()
                    os.write(writer, b"x")
                    sys.stdin.read()
                    os._exit(0)
            os.read(reader, 1)
            with optree.tool("parent") as op:
                op.log("hello from the parent")
                assert optree.flush()
                print("ready", flush=True)
                sys.stdin.read()
            os.waitpid(child, 0)
    """,
        stdin=-1,
    )
    assert "ready\n" == process.stdout.readline()
    (found,) = directory.saved()
    owner, other = journals(found.live)
    assert ["0000", "0001"] == [read_journal(path).header.writer for path in (owner, other)]
    loaded = optree.load(found.txn, directory)
    assert [("before", "1.1", None), ("parent", "1.2", "1.1"), ("child", "1.1000001", "1.1")] == [
        (op.name, op.path, op.parent_op) for op in loaded.session.turns[0].ops
    ]
    assert {"hello from the child", "hello from the parent"} == {entry["message"] for entry in optree.flatten(loaded.session).logs}
    assert 5 == len(loaded.open_nodes())
    process.communicate("", timeout=30)
    assert ("ended", "clean") == (optree.load(found.txn, directory).state, optree.load(found.txn, directory).damage.state)


def test_child_leaves_its_parents_blocks(finished, saved):
    """A child that leaves the blocks it was forked in ends none of its parent's nodes; its own it does."""
    code, out, _ = finished("""
        @optree.tool
        def stream():
            yield 1
            yield 2

        @optree.tool
        def work():
            running = stream()
            next(running)
            child = os.fork()
            if child == 0:
                with optree.tool("own"):
                    sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            loaded = optree.load(optree.current_session().txn)
            print(sorted(op.name for _, _, op in optree.walk_ops(loaded.session) if op.ended_at is None), loaded.state)
            return sum(running)

        with optree.session("root"), optree.turn(user="go"):
            work()
    """)
    assert (0, ["5", "['stream', 'work'] interrupted"]) == (code, out.splitlines())
    loaded = saved()
    assert ("ended", True) == (loaded.state, loaded.session.success)
    assert {"work": "ok", "stream": "ok", "own": "failed"} == {op.name: op.status for _, _, op in optree.walk_ops(loaded.session)}
    assert 3 == len(loaded.session.turns[0].ops)


def test_child_returns_out_of_its_parents_blocks(finished, saved):
    """A child that goes on behind the function and the block that it was forked in, as one that serves, ends neither for its parent."""
    code, out, err = finished("""
        @optree.tool
        def work():
            with optree.tool("block"):
                child = os.fork()
                if child:
                    assert 0 == os.waitpid(child, 0)[1]
                    loaded = optree.load(root.txn)
                    print(sorted(op.name for _, _, op in optree.walk_ops(loaded.session) if op.ended_at is None))
            return child

        with optree.session("root") as root, optree.turn():
            if not work():
                with optree.tool("own"):
                    pass
                assert optree.flush("sync", 60)
                os._exit(0)
        assert optree.flush("snapshot", 60)
    """)
    assert (0, ["['block', 'work']"], "") == (code, out.splitlines(), err)
    assert ["block", "own", "work"] == sorted(op.name for _, _, op in optree.walk_ops(saved().session))


AFTER_ITS_END = """
import multiprocessing, os, sys
import optree
optree.configure(console=False)
def work():
    with optree.llm("openai:late") as op:
        op.account(cost_usd=1.0)
    with optree.session("sub"):
        pass
    {ends}
with optree.session("lead"), optree.turn():
    late = optree.wrap(work)
if {saved}:
    optree.flush("snapshot", 60)
    with optree.session("next"):  # forgets the one before
        pass
    optree.flush("snapshot", 60)
process = multiprocessing.get_context("fork").Process(target=late)
process.start()
process.join()
print(process.exitcode)
"""


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("ends", ["print(optree.flush('sync', 60), optree.health()['lost'])", "print(True, 0, flush=True); os._exit(0)"])
def test_what_a_child_records_into_a_session_that_had_ended(saved, ends, finished, directory):
    """A function that was wrapped in it, as a task that goes on behind a request, runs in a forked child: all is there, and billed."""
    code, out, _ = finished(AFTER_ITS_END.format(saved=saved, ends=ends))
    assert (0, ["True 0", "0"]) == (code, out.splitlines())
    (txn,) = [saved.txn for saved in directory.saved() if optree.load(saved.txn, directory).session.agent_id == "lead"]
    loaded = optree.load(txn, directory)
    assert ("ended", "clean", ["openai:late", "sub"]) == (
        loaded.state, loaded.damage.state, [op.name for _, _, op in optree.walk_ops(loaded.session)],
    )  # fmt: skip
    settle_all(StoreOptions(directory))
    assert [1.0] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


AFTER_ITS_END_IN_BOTH = """
import multiprocessing
import optree
optree.configure(console=False)
def work(name):
    with optree.llm("openai:" + name) as op:
        op.account(cost_usd=1.0)
def start():
    process = multiprocessing.get_context("fork").Process(target=late, args=("grandchild",))
    process.start()
    return process
def child():
    started = [start() for _ in range({before})]
    late("child")
    print(optree.flush("sync", 60), flush=True)
    for _ in range({behind}):
        start().join()
    for process in started:
        process.join()
with optree.session("lead"), optree.turn():
    late = optree.wrap(work)
print(optree.flush("snapshot", 60), flush=True)
for _ in range({times}):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    late("parent")
    print(optree.flush("snapshot", 60), flush=True)
"""


@pytest.mark.parametrize(("times", "before", "behind"), [(1, 0, 0), (3, 0, 0), (2, 1, 0), (2, 0, 2), (1, 2, 2)])
def test_what_a_child_and_its_parent_record_after_a_sessions_end(times, before, behind, finished, directory, saved):
    """The child's is saved and billed by itself, and the parent, whose tree has nothing of it, writes no snapshot over that."""
    code, out, _ = finished(AFTER_ITS_END_IN_BOTH.format(times=times, before=before, behind=behind))
    assert (0, {"True"}) == (code, set(out.splitlines()))
    settle_all(StoreOptions(directory))
    calls = Counter(op.name for _, _, op in optree.walk_ops(saved().session))
    grandchildren = times * (before + behind)
    assert {"openai:child": times, "openai:parent": times, **({"openai:grandchild": grandchildren} if grandchildren else {})} == calls
    assert [1.0] * sum(calls.values()) == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


SLOW_CHILD = """
import os
begun, begin = os.pipe()
slow = False
def waits():
    if slow:
        os.read(begun, 1)
os.register_at_fork(after_in_child=waits)  # before what optree does there
import optree
def child(name):
    if not (pid := os.fork()):
        with optree.llm("openai:" + name) as op:
            op.account(cost_usd=1.0)
        print(optree.flush("sync", 60), flush=True)
        os._exit(0)
    return pid
with optree.session("lead"), optree.turn():
    os.waitpid(child("quick"), 0)
    slow = True
    pid = child("slow")
print(optree.flush("snapshot", 60), flush=True)
os.write(begin, b"x")
print(os.waitpid(pid, 0)[1])
"""


def test_a_child_that_begins_once_its_session_is_saved(finished, directory, saved):
    """Its number was another child's, whose records are saved and whose journal is removed: its own records are none of those."""
    code, out, err = finished(SLOW_CHILD, head="")
    assert (0, ["True"] * 3 + ["0"]) == (code, out.splitlines()), err
    settle_all(StoreOptions(directory))
    assert {"openai:quick", "openai:slow"} == {op.name for _, _, op in optree.walk_ops(saved().session)}
    assert [1.0, 1.0] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


ENTRIES_AFTER_ITS_END = """
import os, subprocess, sys
import optree
with optree.session("lead") as session:
    with optree.turn(), optree.llm("openai:m") as op:
        pass
    def record(text):
        {record}
    go, tell = os.pipe()
    early = os.fork() if {early} else 0
    if {early} and not early:
        os.read(go, 1)
        record("child")
        print(optree.flush("sync", 60), flush=True)
        os._exit(0)
print(optree.flush("snapshot", 60), flush=True)
if not {early} and not (early := os.fork()):
    record("child")
    {ends}
os.write(tell, b"x")
os.waitpid(early, 0)
subprocess.run([sys.executable, "-m", "optree", "status"], stdout=subprocess.DEVNULL, check=True)
record("parent")
print(optree.flush("snapshot", 60), optree.health()["lost"])
"""
ENTRY = ["op.log(text)", "op.think(text)", "session.message({'role': 'user', 'content': text})"]


@pytest.mark.parametrize("record", ENTRY)
@pytest.mark.parametrize(
    ("early", "ends"),
    [(True, ""), (False, "print(optree.flush('write'), flush=True); os._exit(0)"), (False, "print(True, flush=True); sys.exit(0)")],
)
def test_entries_of_both_sides_after_a_sessions_end(record, early, ends, finished, directory, saved):
    """What a child records, flushed or at its exit, and its parent behind it is there, though another process has saved the child's."""
    code, out, err = finished(ENTRIES_AFTER_ITS_END.format(record=record, early=early, ends=ends))
    assert (0, ["True", "True", "True 0"]) == (code, out.splitlines()), err
    settle_all(StoreOptions(directory))
    assert [True, True] == ["child" in text or "parent" in text for text in entries_of(saved())]


def entries_of(tree):
    """Return the texts of all log lines, reasoning and messages of a tree with one op."""
    session = tree.session
    [op] = [op for _, _, op in optree.walk_ops(session)]
    thought = op.reasoning.chunks if op.reasoning else ()
    return [
        *(line.message for line in op.logs),
        *(chunk.text for chunk in thought),
        *(str(bytes(message.body)) for message in session.messages),
    ]


HOLDER = """
import sys
from pathlib import Path
from optree._store.files import lock
print(lock.take(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""
HELD_AFTER_ITS_END = """
import os, subprocess, sys
from pathlib import Path
import optree
optree.configure(console=False)
with optree.session("lead") as session, optree.turn(), optree.llm("openai:m") as op:
    pass
def record(text):
    {record}
print(optree.flush("snapshot", 60), flush=True)
if not (child := os.fork()):
    record("child")
    print(optree.flush("write"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-m", "optree", "status"], stdout=subprocess.DEVNULL, check=True)
there = Path(os.environ["OPTREE_BASE_DIR"], "sessions")
if {refused}:
    aside = there.rename(there.with_suffix(".aside"))
    there.touch()
    record("parent")
    print(optree.flush("snapshot", 1), flush=True)
    there.unlink()
    aside.rename(there)
else:
    (there / f"{{session.txn}}.live").mkdir(exist_ok=True)
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(there / f"{{session.txn}}.live" / "LOCK")], stdin=-1, stdout=-1)
    other.stdout.readline()
    record("parent")
    print(optree.flush("snapshot", 1), flush=True)
    other.communicate()
while not optree.flush("snapshot", 60):
    pass
health = optree.health()
print(health["ok"], health["lost"], health["problems"])
"""


@pytest.mark.parametrize("record", ENTRY)
@pytest.mark.parametrize("refused", [True, False])
def test_entries_that_were_held_while_another_process_saved(record, refused, finished, directory, saved):
    """What a parent could not write yet when it learned that its child's entries were saved is behind these, and nothing is wrong then."""
    code, out, err = finished(HELD_AFTER_ITS_END.format(record=record, refused=refused).replace("HOLDER", repr(HOLDER)))
    assert (0, ["True", "True", "False", "True 0 []"]) == (code, out.splitlines()), err
    settle_all(StoreOptions(directory))
    assert {"child", "parent"} == {word for word in ("child", "parent") for text in entries_of(saved()) if word in text}


LEFT_BY_A_CHILD = """
import os
import optree
with optree.session("lead"), optree.turn(), optree.llm("openai:m") as op:
    pass
optree.flush("snapshot", 60)
if {closed}:
    with optree.session("next"):
        pass
    optree.flush("snapshot", 60)
if not (child := os.fork()):
    op.account(cost_usd=1.0)
    os._exit(0 if optree.flush("sync", 60) else 1)
print(os.waitpid(child, 0)[1], optree.flush("snapshot", 60), flush=True)
there = os.path.join(os.environ["OPTREE_BASE_DIR"], "sessions")
print([name for name in os.listdir(there) if name.endswith(".live")], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("closed", [True, False])
def test_what_a_child_left_is_saved_by_a_flush(closed, finished, directory):
    """What a child recorded into a session that had ended, before it left without an exit, is in the snapshot that its parent asks for."""
    code, out, err = finished(LEFT_BY_A_CHILD.format(closed=closed))
    assert (0, ["0 True", "[]"]) == (code, out.splitlines()), err
    assert [1.0] == [entry["costUsd"] for entry in Ledger(directory.billing).read() if "costUsd" in entry]


RETRIED_AT_THE_EXIT = """
import os, sys
from pathlib import Path
import optree
with optree.session("lead") as session, optree.turn():
    late = optree.wrap(lambda: optree.llm("openai:late").__enter__().account(cost_usd=1.0))
optree.flush("snapshot", 60)
there = Path(os.environ["OPTREE_BASE_DIR"], "sessions")
aside = there.with_suffix(".aside")
if not (child := os.fork()):
    there.rename(aside)
    there.touch()
    late()
    print(optree.flush("sync", 60), optree.health()["lost"] > 0)
    there.unlink()
    aside.rename(there)
    sys.exit(0)
os.waitpid(child, 0)
"""


def test_what_was_refused_to_a_child_is_tried_again_at_its_exit(finished, directory, saved):
    """A disk that has refused what a child recorded into a session that had ended, and is well again by the child's exit, has it."""
    code, out, _ = finished(RETRIED_AT_THE_EXIT)
    assert (0, "False True\n") == (code, out)
    settle_all(StoreOptions(directory))
    assert ["openai:late"] == [op.name for _, _, op in optree.walk_ops(saved().session)]


OUT_OF_DESCRIPTORS = f"""
import os, threading
import optree
from optree import _background as background
with optree.session("lead"):
{textwrap.indent(ALL_DESCRIPTORS, "    ")}
    found = [background._is_over(os.getpid())]
    thread = threading.Thread(target=lambda: found.append(background._has_others()))
    thread.start()
    thread.join()
    for fd in held:
        os.close(fd)
    print(found, background._is_over(os.getpid()))
"""


def test_a_thread_is_not_taken_for_over_without_descriptors(finished):
    """Where the system cannot be asked, as no descriptor is left, a thread goes on: its process is not ended."""
    code, out, err = finished(OUT_OF_DESCRIPTORS)
    assert (0, "[False, True] False\n") == (code, out), err


FORKED_BY_A_THREAD = """
import os, sys, threading, warnings
import optree
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside another thread
optree.configure(console=False)

def forks():
    if child := os.fork():
        pids.append(child)
        return
    with optree.tool("child"):
        {more}
    {ends}
def goes_on():
    with optree.tool("later"):
        os.read(end, 1)
pids, (end, go) = [], os.pipe()
with optree.session("lead"):
    thread = threading.Thread(target=forks)
    thread.start()
    thread.join()
    os.write(go, b"x")
    with optree.tool("parent"):
        print(os.waitpid(pids[0], 0)[1])
"""


@pytest.mark.parametrize("starts", ["_thread.start_new_thread(works, ())", "threading.Thread(target=works, name='optree-mine').start()"])
def test_a_child_that_a_thread_forked_ends_not_before_its_threads(starts, finished):
    """Those that are no `Thread`, or have names as optree's have, go on too: the child's exit status is what they make it."""
    works = """
        from optree import _background as background
        looked, look = threading.Semaphore(0), background._has_others
        background._has_others = lambda: (looked.release(), look())[1]
        def works():
            for _ in range(5):  # so often it is looked whether this thread has ended
                looked.acquire()
            os._exit(7)
    """
    source = FORKED_BY_A_THREAD.format(ends="return", more=starts).replace("def goes_on", f"{textwrap.dedent(works)}\ndef goes_on")
    code, out, err = finished(source.replace("import os,", "import _thread, os,"))
    assert (0, [str(7 << 8)]) == (code, out.splitlines()), err


@pytest.mark.parametrize("ends", ["return", "sys.exit(5)", "raise ValueError"])
@pytest.mark.parametrize("more", ["pass", "threading.Thread(target=optree.wrap(goes_on)).start()"])
def test_a_child_that_a_thread_forked_ends_with_its_threads(ends, more, finished, saved):
    """It ends as without optree, when the function of that thread has returned and its other threads have, and all is recorded by then."""
    code, out, _ = finished(FORKED_BY_A_THREAD.format(ends=ends, more=more))
    assert (0, "0\n") == (code, out)
    assert {"child", "parent", *(["later"] if more != "pass" else [])} == {op.name for _, _, op in optree.walk_ops(saved().session)}


def test_parents_lock_is_kept(finished):
    """A child that ends does not release its parent's session: no other process may take it."""
    code, _, err = finished("""
        from optree._store import resume_session
        from optree._store.saving import StoreOptions

        with optree.session("root") as root, optree.turn():
            child = os.fork()
            if child == 0:
                with optree.tool("child"):
                    pass
                sys.exit()
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            try:
                resume_session(root.txn, StoreOptions(optree.Directory.of()))
            except optree.BusyError as error:
                assert "another process" in str(error)
            else:
                raise AssertionError("the lock is gone")
    """)
    assert (0, "") == (code, err)


def test_what_was_pending_is_the_parents(finished, saved):
    """Log lines that were not written yet when the process forked are written once."""
    code, _, err = finished("""
        with optree.session("root"), optree.turn(), optree.tool("work") as op:
            for number in range(50):
                op.log(str(number))
                op.think(str(number))
                if number % 10 == 0 and os.fork() == 0:
                    op.log(f"child {number}")
                    assert optree.flush()
                    os._exit(0)
            for _ in range(5):
                os.wait()
    """)
    assert (0, "") == (code, err)
    (op,) = saved().session.turns[0].ops
    messages = [entry.message for entry in op.logs]
    assert [str(number) for number in range(50)] == [message for message in messages if not message.startswith("child")]
    assert {f"child {number}" for number in range(0, 50, 10)} == {message for message in messages if message.startswith("child")}
    assert [str(number) for number in range(50)] == [chunk.text for chunk in op.reasoning.chunks]


def test_messages_of_both_sides(finished, saved):
    """Messages that a forked child and its parent record into the same session are all there, each side's in its order."""
    code, _, err = finished("""
        with optree.session("root") as root, optree.turn():
            root.message({"role": "user", "content": "before"})
            child = os.fork()
            for number in range(5):
                root.message({"role": "user", "content": f"{'parent' if child else 'child'} {number}"})
            if not child:
                assert optree.flush("sync", 60)
                os._exit(0)
            assert 0 == os.waitpid(child, 0)[1]
        assert optree.flush("snapshot", 60)
    """)
    assert (0, "") == (code, err)
    loaded = saved()
    texts = [msgspec.json.decode(message.body)["content"] for message in loaded.session.messages]
    sides = {side: [f"{side} {number}" for number in range(5)] for side in ("parent", "child")}
    assert ("clean", "before", sides) == (
        loaded.damage.state, texts[0], {side: [text for text in texts if text.startswith(side)] for side in sides},
    )  # fmt: skip
    assert 11 == len(texts)


def test_fork_in_a_child_process(finished, saved):
    """A process that joined a session and forks gives numbers that neither it nor its parent gives."""
    code, _, err = finished("""
        import subprocess
        from textwrap import dedent
        CHILD = dedent('''
            import os, optree
            @optree.tool
            def work(name):
                optree.current().log(name)
            work("child")
            if (grandchild := os.fork()) == 0:
                work("grandchild")
                work("grandchild")
                assert optree.flush()
                os._exit(0)
            work("child")
            assert os.waitpid(grandchild, 0)[1] == 0
        ''')
        with optree.session("root"), optree.turn():
            subprocess.run([sys.executable, "-c", CHILD], env=optree.child_env(), check=True)
    """)
    assert (0, "") == (code, err)
    ops = saved().session.turns[0].ops
    assert {"child": 2, "grandchild": 2} == Counter(op.logs[0].message for op in ops)
    assert ["1.1000001", "1.1000002", "1.2000001", "1.2000002"] == [op.path for op in ops]


def test_sessions_of_its_own_in_a_child(finished, directory):
    """A child that is forked outside of any session has sessions of its own."""
    code, _, err = finished("""
        with optree.session("before"):
            pass
        for name in ("one", "two"):
            if os.fork() == 0:
                with optree.session(name):
                    pass
                assert optree.flush("snapshot", 60)
                os._exit(0)
        assert [0, 0] == [os.wait()[1] for _ in range(2)]
    """)
    assert (0, "") == (code, err)
    assert {"before", "one", "two"} == {optree.load(saved.txn, directory).session.agent_id for saved in directory.saved()}


@pytest.mark.parametrize("redacted", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_that_both_sides_stream(redacted, ends, finished, saved):
    """A process that is forked in the middle of a stream: what it streams and what its parent streams are in the answer, each once."""
    code, _, err = finished(f"""
        optree.configure(redacted_save={redacted})
        with optree.session("root"), optree.turn(), optree.llm("m") as op:
            op.chunk("P1\\nP2 ")
            assert optree.flush()
            if (child := os.fork()) == 0:
                op.chunk("C1 C2\\n")
                assert optree.flush()
                {ends} and op.end()
                os._exit(0)
            os.waitpid(child, 0)
            op.chunk("P3 P4")
        assert optree.flush("snapshot", 30)
    """)
    assert (0, "") == (code, err)
    loaded = saved()
    [op] = loaded.session.turns[0].ops
    assert ("clean", None) == (loaded.damage.state, op.response.partial)
    assert "P1\nP2 P3 P4C1 C2\n" == msgspec.json.decode(op.response.payload)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_parent_that_is_killed_while_its_child_streams(own, resumed, script, directory, saved):
    """What both had streamed by then is loaded, the child's answer goes on to its end, also beside a resume, and the resume has it all."""
    parent = script(
        f"""
        import signal
        with optree.session("root"), optree.turn(), optree.llm("m") as op:
            op.chunk("P1 ")
            if os.fork() == 0:
                stream = optree.llm("c").__enter__() if {own} else op
                stream.chunk("C1 ")
                sys.stdin.readline()
                os.kill(os.getppid(), signal.SIGKILL)
                stream.chunk("C2 ")
                print(optree.flush(), flush=True)
                sys.stdin.readline()
                stream.chunk("C3")
                stream.end()
                print(optree.flush("sync", 60), optree.health()["lost"], flush=True)
                os._exit(0)
            op.chunk("P2 ")
            print(optree.flush(), flush=True)
            signal.pause()
        """,
        stdin=subprocess.PIPE,
    )

    def texts():
        return {op.name: msgspec.json.decode(op.response.payload) for _, _, op in optree.walk_ops(saved().session)}

    def answers():
        print(file=parent.stdin, flush=True)
        said = parent.stdout.readline()
        return said, saved().damage.state, texts()

    def resume():
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        program = "import optree\nwith optree.session('root'), optree.turn(): pass\nassert optree.flush('snapshot', 60)"
        command = [sys.executable, "-m", "optree", "load", saved().session.origin_txn_id, "--", sys.executable, "-c", program]
        subprocess.run(command, env=environ, capture_output=True, check=True)

    assert "True\n" == parent.stdout.readline()
    assert ("True\n", "clean", {"m": "P1 P2 ", "c": "C1 C2 "} if own else {"m": "P1 P2 C1 C2 "}) == answers()
    assert -signal.SIGKILL == parent.wait(LONG)
    if resumed:
        resume()
    whole = {"m": "P1 P2 ", "c": "C1 C2 C3"} if own else {"m": "P1 P2 C1 C2 C3"}
    assert ("True 0\n", "clean", whole) == answers()
    if not resumed:
        resume()
    assert [] == settle_all(StoreOptions(directory))
    assert ("ended", [], whole) == (saved().state, saved().open_nodes(), texts())


HELD = """
    import signal
    import threading
    from importlib.machinery import PathFinder

    begun, go_on = threading.Event(), threading.Event()

    class Held:
        def find_spec(self, name, path=None, target=None):
            if name != {module!r} or begun.is_set():
                return None
            spec = PathFinder.find_spec(name, path)
            load = spec.loader.exec_module

            def wait_and_load(module):
                begun.set()
                go_on.wait(60)
                load(module)

            spec.loader.exec_module = wait_and_load
            return spec

    sys.meta_path.insert(0, Held())
    """


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("optree._tracing.spending", "with optree.budget(calls=5) as budget: assert {'calls': 5} == budget.limits"),
        ("optree._store.files.shared", "with optree.budget(calls=5) as budget: assert {'calls': 5} == budget.limits"),
        (
            "optree._providers.streams",
            "with optree.session('a'), optree.turn(): assert {'model': 'm'} == optree.llm(lambda: {'model': 'm'})()",
        ),
        ("zstandard", "with optree.session('a'): pass\n    assert optree.flush('snapshot', 30)"),
    ],
)
def test_what_another_thread_was_importing_for_optree_at_the_fork(module, call, finished):
    """A forked child imports it anew: it waits for no thread that is not in it, be it the program's or optree's own."""
    code, out, err = finished(
        textwrap.dedent(HELD.format(module=module))
        + textwrap.dedent(f"""
def work():
    {call}

assert {module!r} not in sys.modules
thread = threading.Thread(target=work)
thread.start()
assert begun.wait(60)
if (child := os.fork()) == 0:
    signal.alarm(30)
    work()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
thread.join()
work()
"""),
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},
    )
    assert (0, "0\n", "") == (code, out, err)


def test_a_fork_waits_for_what_another_thread_imports_for_optree(finished):
    """The child has what that thread ended meanwhile, and does not import it a second time, which not all modules bear."""
    code, out, err = finished(
        textwrap.dedent(HELD.format(module="zstandard"))
        + textwrap.dedent("""
import logging
with optree.session('a'): pass
assert begun.wait(60)
os.register_at_fork(before=go_on.set)
if (child := os.fork()) == 0:
    os._exit(3 + sys.modules["zstandard"].__spec__._initializing)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""),
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},
    )
    assert (0, "3\n", "") == (code, out, err)


IMPORTED_LATER = """
from importlib.abc import Loader
from importlib.machinery import ModuleSpec

class Later(Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "tomllib" else None

    def exec_module(self, module):
        import {module}

sys.meta_path.insert(0, Later())
assert not {{"{module}", "tomllib"}} & {{*sys.modules}}
thread = threading.Thread(target=__import__, args=("tomllib",))  # as optree's functions do
thread.start()
assert begun.wait(60)
"""
"""Another thread imports one for optree which, in its middle, imports a module that takes long."""


def test_a_package_of_which_parts_are_there_is_imported_anew_as_a_whole(finished):
    """Where another thread was importing a package for optree for longer, the child has all of it, as the program does."""
    code, out, err = finished(
        textwrap.dedent(HELD.format(module="asyncio.unix_events"))
        + IMPORTED_LATER.format(module="asyncio")
        + textwrap.dedent("""
if (child := os.fork()) == 0:
    signal.alarm(30)
    import asyncio
    os._exit(asyncio.run(asyncio.sleep(0, 3)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
thread.join()
"""),
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},
    )
    assert (0, "3\n", "") == (code, out, err)


def test_logging_that_another_thread_was_importing_for_optree_at_the_fork(finished):
    """A fork does not wait for that module, which would have it called behind a fork of which it was not told before."""
    code, out, err = finished(
        textwrap.dedent(HELD.format(module="logging"))
        + IMPORTED_LATER.format(module="logging")
        + textwrap.dedent("""
sys.setswitchinterval(60)  # the other thread goes on only where this one waits
os.register_at_fork(before=go_on.set)
if (child := os.fork()) == 0:
    signal.alarm(30)
    import logging
    logging.getLogger("child").debug("it logs")
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""),
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},
    )
    assert (0, "3\n", "") == (code, out, err)


def test_what_another_thread_was_importing_for_the_program_at_the_fork(finished, tmp_path):
    """That stays as Python leaves it: the program's own module is there, half imported, and does not run a second time."""
    (tmp_path / "own.py").write_text("import optree\nprint('runs')\n")
    code, out, err = finished(
        textwrap.dedent(HELD.format(module="own"))
        + textwrap.dedent("""
thread = threading.Thread(target=__import__, args=("own",))
thread.start()
assert begun.wait(60)
module = sys.modules["own"]
if (child := os.fork()) == 0:
    with optree.session("a"):
        os._exit(3 if sys.modules.get("own") is module else 4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
go_on.set()
thread.join()
"""),
        env={"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"},
    )
    assert (0, "3\nruns\n", "") == (code, out, err)


def test_a_session_whose_begin_was_interrupted_is_not_the_childs(directory, monkeypatch):
    """A child that is forked before the parent has put an interrupted begin away makes no journal there: no folder is left of it."""

    def interrupted(_store, _builder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SessionStore, "attach", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optree.session("hit").__enter__()
    child = os.fork()
    if not child:
        os._exit(0)
    assert 0 == os.waitpid(child, 0)[1]
    with optree.session("next"):
        pass
    assert optree.flush("snapshot", LONG)
    assert [] == [path.name for path in directory.sessions.iterdir() if path.suffix == ".live"]
