"""`optree.session(resume=…)`: a program goes on with a session that it names, as a service does with a conversation."""

import json
import subprocess

import pytest

import optree
from optree.testing import capture

SERVICE = """
import atexit, json, threading

atexit.register(optree.flush, "snapshot", 30)

def answer(txn, question, agent="assistant"):
    with optree.session(agent, resume=txn) as session:
        history = session.history()
        session.message({"role": "user", "content": question})
        with optree.turn(user=question), optree.llm(provider="p", model="m") as op:
            op.account(input_tokens=1, output_tokens=1, cost_usd=0.25)
            op.response(question.upper())
        with optree.session("helper"), optree.turn(), optree.tool("look"):
            pass
        session.message({"role": "assistant", "content": question.upper()})
    return session, history
"""


def billed(directory):
    """Return the ids in the ledger."""
    return [json.loads(line)["id"] for line in directory.billing.read_text().splitlines()]


def test_a_conversation_goes_on_in_one_process(finished, saved, directory):
    """Each request has what was said before, and its turns, calls and bill in the same session, at once or later (S4-30, S4-99)."""
    code, out, err = finished(
        SERVICE
        + """
txn = None
for number in range(12):
    session, history = answer(txn, f"question {number}")
    assert (number > 0, 2 * number) == (session.resumed, len(history)), (number, history)
    assert txn in (None, session.txn)
    txn = session.txn
    if number % 3 == 0:
        assert optree.flush("snapshot", 30)
health = optree.health()
print(json.dumps([txn, health["ok"], health["lost"], health["records"]]))
"""
    )
    assert (0, "") == (code, err)
    txn, ok, lost, records = json.loads(out)
    loaded = saved(txn)
    assert ("ended", "clean", True, 0) == (loaded.state, loaded.damage.state, ok, lost)
    root = loaded.session
    assert [f"question {number}" for number in range(12)] == [turn.prompts["user"] for turn in root.turns if turn.prompts]
    assert (12, 3.0, 12, 11) == (root.totals.llm_requests, root.totals.cost_usd, root.totals.tools_run, len(root.resumed_at))
    assert 24 == len(root.messages)
    assert (24, 24) == (len(billed(directory)), len(set(billed(directory))))
    assert 12 * 17 <= records <= 12 * 22  # of this process, each once
    assert [f"{txn}.json.zst"] == [path.name for path in directory.sessions.iterdir()]


def test_conversations_at_once(finished, saved, directory):
    """Threads that go on with ten conversations, none of them twice at a time: each has its own questions, in their order."""
    code, out, err = finished(
        SERVICE
        + """
def talk(name, told):
    txn = None
    for number in range(5):
        session, history = answer(txn, f"{name} {number}")
        assert 2 * number == len(history)
        txn = session.txn
    told.append([name, txn])

told = []
threads = [threading.Thread(target=talk, args=(name, told)) for name in "abcdefghij"]
[one.start() for one in threads]
[one.join() for one in threads]
print(json.dumps(told))
"""
    )
    assert (0, "") == (code, err)
    for name, txn in json.loads(out):
        assert [f"{name} {number}" for number in range(5)] == [turn.prompts["user"] for turn in saved(txn).session.turns if turn.prompts]
    assert (10, 100) == (len(directory.saved()), len(set(billed(directory))))


def test_another_worker_goes_on(script, finished, saved, directory):
    """Workers answer in turn, one is killed in the middle: the next goes on with what it had recorded, and the bill has all."""
    _, out, _ = finished(SERVICE + "print(answer(None, 'first')[0].txn)")
    txn = out.strip()
    worker = script(
        SERVICE
        + f"""
with optree.session("assistant", resume={txn!r}) as session:
    session.message({{"role": "user", "content": "second"}})
    with optree.turn(user="second"), optree.llm(provider="p", model="m") as op:
        op.account(input_tokens=1, output_tokens=1, cost_usd=0.25)
        print("asked", flush=True)
        threading.Event().wait()
"""
    )
    assert "asked\n" == worker.stdout.readline()
    code, out, err = finished(SERVICE + f"session, _ = answer({txn!r}, 'at once')\nprint(session.resumed, session.txn)")
    resumed, other = out.split()
    assert (0, "", "False", False) == (code, err, resumed, other == txn)
    told = saved(other).session.attributes
    assert (txn, f"session {txn} is being written by another process") == (told["continues"], told["not_resumed"].partition(": ")[0])
    worker.kill()
    worker.wait()
    code, out, err = finished(SERVICE + f"session, history = answer({txn!r}, 'third')\nprint(session.resumed, len(history))")
    assert (0, "", "True 3") == (code, err, out.strip())
    root = saved(txn).session
    asked = [(turn.prompts["user"], turn.status) for turn in root.turns if turn.prompts]
    assert [("first", "ok"), ("second", "interrupted"), ("third", "ok")] == asked
    assert (3, 0.75) == (root.totals.llm_requests, root.totals.cost_usd)
    calls = [f"{txn}:{op.path}" for _, _, op in optree.walk_ops(root) if op.kind == "llm"]
    assert calls == sorted(name.partition("#")[0] for name in billed(directory) if name.partition("#")[0] in calls)


LATE = """
import time
order = sys.argv[1]
with optree.session("a") as session, optree.turn(user="1"), optree.llm(provider="p", model="m") as op:
    op.log("first")
logged, entered, acknowledged = ["first"], [], []
for step in order:
    if step == "A":
        logged.append(f"late {len(logged)}")
        op.log(logged[-1])
        op.account(input_tokens=1, cost_usd=0.25)
    elif step == "F":
        acknowledged.append(optree.flush("sync"))
    elif step == "[":
        scope = optree.session("a", resume=session.txn)
        assert scope.__enter__().resumed
        entered.append(scope)
    else:
        entered.pop().__exit__(None, None, None)
acknowledged += [optree.flush("sync"), optree.flush("snapshot", 30)]
health = optree.health()
print(json.dumps([session.txn, logged, order.count("A"), all(acknowledged), health["ok"], health["lost"]]))
"""


@pytest.mark.parametrize("order", ["A[]", "[]A", "[A]", "[AF]A", "[][]A", "[A][AF]"])
def test_what_an_earlier_request_records_late(finished, saved, directory, order):
    """It is in the session, and billed, whether another request is in it, or was: a flush says so, and nothing is wrong."""
    code, out, err = finished(f"import json, sys\nsys.argv = ['x', {order!r}]\n" + LATE)
    assert (0, "") == (code, err)
    txn, logged, accounted, *told = json.loads(out)
    assert [True, True, 0] == told
    root = saved(txn).session
    [op] = [op for _, _, op in optree.walk_ops(root) if op.kind == "llm"]
    assert sorted(logged) == sorted(line.message for line in op.logs)
    assert 0.25 * accounted == root.totals.cost_usd
    assert sorted(entry.id for entry in op.accounting) == sorted(billed(directory))
    assert [] == [path.name for path in directory.sessions.iterdir() if path.is_dir()]


def test_an_earlier_request_that_never_ends(finished, saved):
    """A thread of it logs all the while as others go on with the session: each line that a flush has acknowledged is there, once."""
    code, out, err = finished(
        """
        import json, threading
        with optree.session("a") as session, optree.turn(user="1"), optree.tool("t") as op:
            pass
        logged, over = [], threading.Event()

        def log():
            while not over.is_set():
                op.log(str(len(logged)))
                logged.append(str(len(logged)))
                over.wait(0.001)

        thread = threading.Thread(target=log)
        thread.start()
        for _ in range(40):
            with optree.session("a", resume=session.txn):
                pass
        over.set()
        thread.join()
        print(json.dumps([session.txn, logged, optree.flush("sync"), optree.flush("snapshot", 30), optree.health()["lost"]]))
        """
    )
    assert (0, "") == (code, err)
    txn, logged, *told = json.loads(out)
    assert [True, True, 0] == told
    [op] = [op for _, _, op in optree.walk_ops(saved(txn).session) if op.kind == "tool"]
    assert sorted(logged) == sorted(line.message for line in op.logs)


@pytest.mark.parametrize("name", ["nothing-there", "../../etc/passwd", "last", "a" * 1000, "\x1b[2J", "x\0y", 17])
def test_a_name_that_no_session_has(finished, saved, name):
    """Whatever a request names, the program runs: a new session is begun, which says what it should have gone on with."""
    code, out, err = finished(
        SERVICE + f"session, history = answer({name!r}, 'why')\nprint(session.resumed, history)\nprint(optree.health()['ok'])"
    )
    assert (0, "", ["False []", "True"]) == (code, err, out.splitlines())
    told = saved().session.attributes
    assert str(name) == told["continues"]
    assert "is not there" in told["not_resumed"]


def test_a_name_as_long_as_a_document(finished, saved):
    """A name may come from a request: the session that is begun instead keeps no more of it than tells what it was."""
    assert (0, "False []\n", "") == finished(SERVICE + "session, history = answer('a' * 1_000_000, 'why')\nprint(session.resumed, history)")
    told = saved().session.attributes
    assert [True, True] == ["a" * 900 in told[name] and len(told[name]) < 1200 for name in ("continues", "not_resumed")]


def test_one_that_is_open_here(finished, saved):
    """A session that is open in this process goes on where it is; who names it meanwhile gets one of its own, as a sub-agent does."""
    code, out, err = finished(
        SERVICE
        + """
with optree.session("assistant") as session:
    def other():
        print(answer(session.txn, "meanwhile")[0].txn)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with optree.session("sub", resume=session.txn) as sub:
        print(sub.resumed, sub.txn == session.txn)
print(session.txn)
"""
    )
    other, sub, txn = out.splitlines()
    assert (0, "", "False True") == (code, err, sub)
    assert (txn, f"session {txn} is open in this process") == tuple(
        saved(other).session.attributes[name] for name in ("continues", "not_resumed")
    )
    [op] = [op for _, _, op in optree.walk_ops(saved(txn).session) if op.kind == "session"]
    assert "it is a sub-agent's" == op.child_session.attributes["not_resumed"]


def test_one_that_cannot_be_read(finished, saved, directory):
    """A session of which nothing can be read stays as it is; the program runs, in a new one, and `health` says which it is."""
    _, out, _ = finished(SERVICE + "print(answer(None, 'first')[0].txn)")
    [path] = directory.sessions.iterdir()
    path.write_bytes(b"no session")
    program = SERVICE + f"session, _ = answer({out.strip()!r}, 'second')\nprint(session.txn)\nprint(optree.health()['problems'])"
    code, told, err = finished(program)
    txn, problems = told.splitlines()
    assert 0 == code
    assert out.strip() in problems
    assert out.strip() in err
    assert out.strip() == saved(txn).session.attributes["continues"]
    assert b"no session" == path.read_bytes()


def test_a_program_that_is_told_both(finished, saved):
    """What the program names counts; the session of `optree load` is left to the next root session that names none."""
    _, out, _ = finished(SERVICE + "print(answer(None, 'a')[0].txn)\nprint(answer(None, 'b')[0].txn)")
    first, second = out.split()
    program = SERVICE + f"print(answer({first!r}, 'c')[0].txn)\nprint(answer(None, 'd')[0].txn)"
    code, out, _ = finished(program, env={"OPTREE_RESUME": second})
    assert (0, [first, second]) == (code, out.split())
    assert [["a", "c"], ["b", "d"]] == [
        [turn.prompts["user"] for turn in saved(txn).session.turns if turn.prompts] for txn in (first, second)
    ]


def test_in_a_test():
    """Sessions that are captured in memory go on with none; nothing is looked for on the disk."""
    with capture() as recording, optree.session("assistant", resume="mwyl6am5-hd5x77ui") as session:
        pass
    told = recording.tree.session.attributes
    assert (False, "mwyl6am5-hd5x77ui", "sessions of a test are in memory") == (session.resumed, told["continues"], told["not_resumed"])


def test_while_optree_is_off(finished, directory):
    """Nothing is read or begun."""
    code, out, err = finished(SERVICE + "print(answer('x', 'why')[1])", env={"OPTREE_DISABLED": "1"})
    assert (0, "", "[]") == (code, err, out.strip())
    assert [] == directory.saved()


LATE_AT_THE_CLOSE = """
import threading
from optree._store import SessionStore
from optree._store.files import lock
from optree._store.files.system import OS
saving, go_on, sync, close = threading.Event(), threading.Event(), OS.sync, SessionStore.close

def slow(system, fd):
    if threading.current_thread().name == "optree-snapshot":
        saving.set()
        go_on.wait(60)
    sync(system, fd)

def late(store, *seconds):
    SessionStore.close, OS.sync = close, slow
    op.log("late")
    done = close(store, *seconds)
    saving.wait(60)
    op.log("later")
    store.stream.flush()
    print(lock.own(store.live / "LOCK", seconds=0.0))
    return done

with optree.session("a") as session, optree.turn(user="1"), optree.tool("t") as op:
    pass
assert optree.flush("snapshot", 30)
SessionStore.close = late
with optree.session("a", resume=session.txn) as other:
    print(other.resumed, other.builder.node.attributes.get("not_resumed"))
    go_on.set()
assert optree.flush("snapshot", 30)
with optree.session("a", resume=session.txn) as again:
    print(again.txn == session.txn)
print(optree.flush("snapshot", 30), optree.health()["ok"], session.txn)
"""


def test_a_session_that_is_just_being_saved(finished, saved):
    """The thread that saves a late record has the session: else it would save over what comes. A new one says why, and nothing is lost."""
    code, out, err = finished(LATE_AT_THE_CLOSE)
    assert (0, "") == (code, err)
    taken, told, again, ends = out.splitlines()
    assert "-1" == taken
    assert f"False session {ends.split()[-1]} is being saved by this process" in told
    assert ("True", "True True") == (again, ends.rpartition(" ")[0])
    [op] = [op for *_, op in optree.walk_ops(saved(ends.split()[-1]).session)]
    assert ["late", "later"] == [line.message for line in op.logs]


def test_a_request_right_behind_late_records(finished, saved):
    """It goes on with the session, though the last records of the one before are not saved yet."""
    code, out, err = finished("""
        with optree.session("a") as session, optree.turn(user="1"), optree.tool("t") as op:
            pass
        resumed = []
        for number in range(5):
            assert optree.flush("snapshot", 30)
            op.log(str(number))
            assert optree.flush()
            with optree.session("a", resume=session.txn) as again:
                resumed.append(again.resumed)
        print(resumed, optree.flush("snapshot", 30), session.txn)
    """)
    assert (0, "") == (code, err)
    told, txn = out.rstrip().rsplit(" ", 1)
    assert "[True, True, True, True, True] True" == told
    assert list("01234") == sorted(line.message for *_, op in optree.walk_ops(saved(txn).session) for line in op.logs)


def test_a_request_while_the_one_before_still_logs(finished, saved):
    """Each goes on with the session, though a thread of the request before logs and flushes all the while; all lines are there."""
    code, out, err = finished("""
        import threading
        def log(op):
            for number in range(6):
                op.log(f"late {number}")
                optree.flush()
                threading.Event().wait(0.001)

        txn, resumed, threads = None, [], []
        for number in range(30):
            with optree.session("a", resume=txn) as session, optree.turn(user="q"):
                resumed += [session.resumed] if txn else []
                session.message({"role": "user", "content": f"q{number}"})
                with optree.tool("t") as op:
                    pass
                threads.append(threading.Thread(target=log, args=(op,)))
                threads[-1].start()
            txn = session.txn
        for thread in threads:
            thread.join()
        print(resumed.count(True), optree.flush("snapshot", 30), optree.health()["lost"], txn)
    """)
    assert (0, "") == (code, err)
    told, txn = out.rstrip().rsplit(" ", 1)
    assert "29 True 0" == told
    ops = [op for *_, op in optree.walk_ops(saved(txn).session)]
    assert [[f"late {number}" for number in range(6)]] * 30 == [sorted(line.message for line in op.logs) for op in ops]
    assert 30 == len(saved(txn).session.messages)


SLOW = """
import sys, time
from optree._store.files.system import OS
sync = OS.sync

def slow(system, fd):
    time.sleep(0.1)  # a disk that takes long
    sync(system, fd)

OS.sync = slow
for line in sys.stdin:
    with optree.session("a", resume=line.strip() or None) as session, optree.turn(user="q"):
        history = len(session.history())
        session.message({"role": "user", "content": "q"})
    print(session.txn, history, flush=True)
"""


def test_requests_that_come_to_two_processes_in_turn(script):
    """Each goes on with what the other has just ended, and is saving to a slow disk: none is without its history."""
    processes, txn, told = [script(SLOW, stdin=subprocess.PIPE) for _ in range(2)], "", []
    for number in range(8):
        process = processes[number % 2]
        process.stdin.write(f"{txn}\n")
        process.stdin.flush()
        txn, history = process.stdout.readline().split()
        told.append((txn, int(history)))
    assert [(txn, number) for number in range(8)] == told
    for process in processes:
        assert ("", "") == process.communicate()


HANGS = """
import threading
from optree._store.files.system import OS
with optree.session("a") as session, optree.turn(user="1"), optree.tool("t"):
    pass
assert optree.flush("snapshot", 30)
go_on, sync = threading.Event(), OS.sync

def hangs(system, fd):
    go_on.wait(60)
    sync(system, fd)

OS.sync = hangs
with optree.session("a", resume=session.txn) as again, optree.session("new", detached=True) as new:
    print(again.resumed, flush=True)
go_on.set()
print(optree.flush("snapshot", 30))
"""


def test_a_resume_on_a_disk_that_hangs(finished):
    """It does not wait for the disk, and holds up no other begin."""
    assert (0, "True\nTrue\n", "") == finished(HANGS)


TAKEN = """
import json, subprocess, sys
from optree._store import session_store

def take(lock, work, seconds=0.0):
    session_store.if_free = if_free
    op.log("late")
    optree.flush()
    return if_free(lock, work, seconds)

with optree.session("a") as session, optree.turn(user="1"), optree.tool("t") as op:
    pass
assert optree.flush("snapshot", 30)
other = subprocess.Popen([sys.executable, "-c", OTHER, session.txn], stdin=-1, stdout=-1, text=True)
other.stdout.readline()
if_free, session_store.if_free = session_store.if_free, take
with optree.session("a", resume=session.txn) as again:
    print(again.resumed)
print(optree.flush(), optree.health()["lost"])
other.communicate("")
print(optree.flush(), optree.health()["lost"])
"""
OTHER = """
import optree, sys
with optree.session("a", resume=sys.argv[1]):
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_late_record_while_another_process_has_the_session(finished):
    """One that comes just as this process tries to go on is told as lost, as any that no file takes, and is not forgotten."""
    code, out, err = finished(f"OTHER = {OTHER!r}" + TAKEN)
    assert (0, "False\nFalse 1\nFalse 1\n") == (code, out), err
