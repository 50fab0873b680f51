"""A disk, or a ledger alone, that takes nothing any more while sessions come and go."""

import gc
import os
import re
from time import monotonic, sleep

import pytest

import optree
from optree._builder import SessionTreeBuilder
from optree._store import settle
from optree._store.ledger import Ledger
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from tests.tracing.conftest import LONG

KEPT = 64
MANY = 90


def short_session():
    """Record a session that is billed."""
    with optree.session("agent"), optree.turn(), optree.llm(provider="p", model="m") as op:
        op.account(input_tokens=1, output_tokens=1)


def many_ended(runtime):
    """End many sessions, and begin another once each was tried to be saved."""
    for _ in range(MANY):
        short_session()
    for store in list(runtime.stores.values()):
        assert store.wait(LONG)
    short_session()


def trees():
    """Count the sessions that are in memory."""
    gc.collect()
    return sum(isinstance(one, SessionTreeBuilder) for one in gc.get_objects())


def test_a_ledger_that_cannot_be_written_keeps_a_constant_number_of_sessions(directory, runtime, capfd, monkeypatch):
    """All but the last 64 ended sessions are let go, trees and consoles too; whoever settles bills each once (S4-130, S4-131)."""
    monkeypatch.setattr(settle, "AGAIN_SECONDS", 10 * LONG)
    directory.billing.mkdir(parents=True)
    before = trees()
    many_ended(runtime)
    assert (True, True) == (len(runtime.stores) <= KEPT + 1, len(runtime.consoles) <= KEPT + 1)
    assert trees() - before <= KEPT + 2
    assert 0 == optree.health()["lost"]
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("optree: ")]
    todo = "they are saved and billed once that is possible, by the next run too"
    left = f"optree: sessions that have ended are left in {directory.sessions}: {todo}"
    assert [1, 1, 2] == [sum(": ledger of session" in line for line in said), said.count(left), len(said)]
    for store in runtime.stores.values():
        store.close(LONG)
    directory.billing.rmdir()
    assert left.removeprefix("optree: ") in optree.health()["problems"]
    assert [] == settle_all(StoreOptions(directory))
    assert [] == [one for one in optree.health()["problems"] if not any(txn in one for txn in runtime.stores)]
    entries = Ledger(directory.billing).read()
    assert (MANY + 1, MANY + 1) == (len(entries), len({entry["originTxnId"] for entry in entries}))
    assert (MANY + 1, {None}) == (len(directory.saved()), {one.live for one in directory.saved()})


def test_a_ledger_that_is_refused_is_tried_again_by_itself(directory, runtime):
    """Once it can be written, what has ended is billed, once, without a flush or an exit; no snapshot is written again (S4-104)."""
    directory.billing.mkdir(parents=True)
    short_session()
    short_session()
    stores = list(runtime.stores.values())
    assert [True, True] == [store.wait(LONG) for store in stores]
    assert [True, True] == [any("ledger of session" in one for one in store.current_problems.values()) for store in stores]
    saved = {path: path.stat().st_mtime_ns for path in directory.sessions.glob("*.json.zst")}
    directory.billing.rmdir()
    until = monotonic() + LONG
    while not all(store.finished for store in stores) and monotonic() < until:
        sleep(0.01)
    assert sorted(store.txn for store in stores) == sorted(entry["originTxnId"] for entry in Ledger(directory.billing).read())
    assert (2, saved) == (len(saved), {path: path.stat().st_mtime_ns for path in directory.sessions.glob("*.json.zst")})
    assert (True, []) == (optree.health()["ok"], list(directory.sessions.glob("*.live")))


def test_what_was_let_go_is_billed_once_that_is_possible(directory, runtime, monkeypatch):
    """Sessions that were let go are named with the reason, and billed by their process, though no other begins; health is well (S4-104)."""
    monkeypatch.setattr(settle, "AGAIN_SECONDS", 0.05)
    directory.billing.mkdir(parents=True)
    many_ended(runtime)
    assert all(store.wait(LONG) for store in list(runtime.stores.values()))
    live = {path.stem for path in directory.sessions.glob("*.live")}
    problems = optree.health()["problems"]
    assert live == {txn for txn in live if any(f"ledger of session {txn}: " in one for one in problems)}
    assert MANY + 1 == len(live)
    assert (True, True) == (optree.flush(timeout=LONG), optree.flush("sync", LONG))
    directory.billing.rmdir()
    until = monotonic() + LONG
    while (not optree.health()["ok"] or [*directory.sessions.glob("*.live")]) and monotonic() < until:  # billed first, then removed
        sleep(0.01)
    assert (True, []) == (optree.health()["ok"], list(directory.sessions.glob("*.live")))
    entries = Ledger(directory.billing).read()
    assert (MANY + 1, MANY + 1) == (len(entries), len({entry["originTxnId"] for entry in entries}))


def test_what_is_lost_of_sessions_that_were_let_go_is_named(directory, runtime):
    """Health names how much, the latest of them, and why; also once the disk is well, and what it takes then is no problem (S4-131)."""
    directory.sessions.parent.mkdir(parents=True)
    directory.sessions.touch()
    many_ended(runtime)
    begun = monotonic()
    assert (False, False) == (optree.flush(timeout=10 * LONG), optree.flush("sync", 10 * LONG))
    assert monotonic() - begun < 5 * LONG
    gone = MANY + 1 - len(runtime.stores)
    of = f"{gone * 7} records are lost of {gone} sessions that have ended ("
    assert [of] == [one[: len(of)] for one in optree.health()["problems"] if "are lost" in one]
    directory.sessions.unlink()
    until = monotonic() + LONG
    while not all(store.finished for store in runtime.stores.values()) and monotonic() < until:
        sleep(0.01)
    problems = optree.health()["problems"]
    assert (gone * 7, 1) == (optree.health()["lost"], len(problems))
    assert (of, True) == (problems[0][: len(of)], f", …), in {directory.sessions}: " in problems[0])


def test_a_directory_that_cannot_be_made_keeps_a_constant_number_of_sessions(tmp_path, runtime):
    """What was recorded in sessions that can never be saved is not kept in memory, beyond the last 64 (S4-131)."""
    (tmp_path / "file").touch()
    optree.configure(sessions_dir=tmp_path / "file" / "sessions")
    before = trees()
    many_ended(runtime)
    assert trees() - before <= KEPT + 2
    assert (MANY + 1) * 7 == optree.health()["lost"]


REFUSED = """
import resource
def short_session():
    with optree.session('agent'), optree.turn(), optree.tool('work'):
        pass
short_session()
optree.flush('snapshot', 60)
before = len(os.listdir('/proc/self/fd'))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
for _ in range(90):
    short_session()
from optree._tracing.runtime import RUNTIME
for store in list(RUNTIME.stores.values()):
    store.wait(60)
short_session()
print(len(os.listdir('/proc/self/fd')) - before <= 2 * 70, optree.health()['lost'] == 91 * 7)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="descriptors are counted there, and files limited")  # noqa: PTH110
def test_sessions_whose_records_are_refused_give_their_descriptors_back(finished, directory):
    """Beyond the last 64 they are counted as lost, and leave no directories (S4-131)."""
    code, out, err = finished(REFUSED)
    assert (0, "True True\n") == (code, out), err
    assert 1 == len(re.findall(r"(?m)^optree: \d+ records are lost, in ", err)), err
    assert len([path for path in directory.sessions.iterdir() if path.suffix == ".live"]) <= KEPT + 2


LET_GO = """
from pathlib import Path
with optree.session("lead"), optree.turn(), optree.llm("m") as op:
    pass
optree.flush("snapshot", 60)
with optree.session("next"):  # forgets the one before
    pass
optree.flush("snapshot", 60)
"""
LATE = f"""{LET_GO}
there = Path(os.environ["OPTREE_BASE_DIR"], "sessions")
there.rename(there.with_suffix(".aside"))
there.touch()
for _ in range(8):
    op.account(cost_usd=1.0)
health = optree.health()
print(len(health["problems"]), health["lost"], optree.flush("sync", 60))
there.unlink()
there.with_suffix(".aside").rename(there)
while not optree.flush("snapshot", 60):
    pass
print(optree.health()["problems"], optree.health()["lost"])
"""


@pytest.mark.skipif(os.name == "nt", reason="an open directory cannot be renamed there")
def test_late_records_that_are_refused(finished, directory, saved):
    """They are one problem, said once, and count as lost until they are written, which a flush does."""
    code, out, err = finished(LATE)
    assert (0, ["1 8 False", "[] 0"], 1) == (code, out.splitlines(), err.count("what came after its end of session")), err
    [lead] = [one.txn for one in directory.saved() if optree.load(one.txn, directory).session.agent_id == "lead"]
    assert 8.0 == saved(lead).session.totals.cost_usd


LATE_SYNCS = f"""{LET_GO}
from optree._store.files.system import OS
refuses, synced, datasync, sync = REFUSES, {{}}, OS.datasync, OS.sync
def counted(self, fd, call=datasync):
    if refuses:
        raise OSError(5, "Input/output error")
    before = os.fstat(fd)
    call(self, fd)
    synced[before.st_ino] = before.st_size
OS.datasync, OS.sync = counted, lambda self, fd: counted(self, fd, sync)
for _ in range(8):
    op.account(cost_usd=1.0)
done, problems = optree.flush("sync", 60), optree.health()["problems"]
there = [path.stat() for path in Path(os.environ["OPTREE_BASE_DIR"]).glob("sessions/*.live/j-*")]
print(done, all(synced.get(one.st_ino) == one.st_size for one in there), any("Input/output error" in text for text in problems), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("refuses", "expected"), [(False, "True True False"), (True, "False False True")])
def test_late_records_that_a_flush_forces_to_the_disk(refuses, expected, finished):
    """They are on the disk when `flush("sync")` is True, those too whose file is still open; where it is False `health` says why."""
    code, out, err = finished(LATE_SYNCS.replace("REFUSES", str(refuses)))
    assert (0, expected + "\n") == (code, out), err


TAKEN_AT_LAST = """
import resource
ops = []
for _ in range(MANY):
    with optree.session("web"), optree.turn(), optree.llm("m") as op:
        ops.append(op)
optree.flush("snapshot", 60)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
for op in ops:
    op.account(cost_usd=1.0)
print(optree.flush("sync", 60))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_a_disk_that_takes_again_just_before_the_exit(finished, directory):
    """What it had refused of sessions that had ended is written at the exit, for as long as that takes."""
    code, out, err = finished(TAKEN_AT_LAST.replace("MANY", "200"))
    assert (0, "False\n") == (code, out)
    assert not re.search(r"(?m)are lost|^optree: \S+\.live: ", err), err  # nothing is wrong any more
    assert {1.0} == {optree.load(one.txn, directory).session.totals.cost_usd for one in directory.saved()}


REFUSED_TO_A_CHILD = """
import resource
with optree.session("lead"), optree.turn(), optree.llm("m") as op:
    op.account(cost_usd=1.0)
optree.flush("snapshot", 60)
if not (child := os.fork()):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    op.account(cost_usd=1.0)
    op.account(cost_usd=1.0)
    print(optree.flush("sync"), flush=True)
    {ends}
os.waitpid(child, 0)
print(optree.flush("snapshot", 60), optree.health()["ok"])
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there, and no fork")
@pytest.mark.parametrize("ends", ["os._exit(0)", "sys.exit()"])
def test_what_was_refused_to_a_child_is_told_with_its_session(ends, finished, directory):
    """A session of which a child's records were never written is settled, billed, and says how many are lost."""
    code, out, err = finished(REFUSED_TO_A_CHILD.format(ends=ends))
    assert (0, ["False", "True True"]) == (code, out.splitlines()), err
    [lead] = directory.saved()
    loaded = optree.load(lead.txn, directory)
    assert (None, 1.0) == (lead.live, loaded.session.totals.cost_usd)
    assert ["2 records were never written, since the disk would not take them"] == loaded.damage.lost()
    assert [1.0] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


GONE_AT_ONCE = """
import resource
with optree.session("lead"), optree.turn(), optree.llm("m") as op:
    op.account(cost_usd=1.0)
    optree.flush("snapshot", 60)
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with optree.session("sub"), optree.llm("m") as inner:
            inner.account(cost_usd=1.0)
        {ends}
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there, and no fork")
@pytest.mark.parametrize("ends", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_what_was_refused_to_a_child_that_goes_at_once_is_told(ends, finished, directory):
    """It is noted as the first record is refused: a child that goes before the next try leaves damage that is said."""
    code, _, err = finished(GONE_AT_ONCE.format(ends=ends))
    assert 0 == code, err
    [lead] = directory.saved()
    assert ["9 records were never written, since the disk would not take them"] == optree.load(lead.txn, directory).damage.lost()


SLOW_AT_LAST = """
import resource, time
from optree._store.files.system import OS
write_all = OS.write_all
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
def slowly(self, fd, data):
    time.sleep(0.3)
    return write_all(self, fd, data)
with optree.session("lead"), optree.turn():
    optree.flush("snapshot", 60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    for _ in range(400):
        with optree.llm("m") as op:
            op.account(cost_usd=1.0)
    print(optree.flush("sync", 60))
    OS.write_all = slowly
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    {ends}
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
@pytest.mark.parametrize("ends", ["pass", "sys.exit()"])
def test_a_slow_disk_that_takes_again_just_before_the_exit(ends, finished, directory, saved):
    """What it had refused is written at the exit, each write of which takes longer than an exit is delayed for anything else."""
    code, out, err = finished(SLOW_AT_LAST.format(ends=ends))
    assert (0, "False\n") == (code, out)
    assert "are lost" not in err
    settle_all(StoreOptions(directory))
    assert 400.0 == saved().session.totals.cost_usd


KILLED = """
import resource
from time import monotonic, sleep
def said():
    with open('said') as file:
        return sum('nothing is saved in' in line for line in file)
os.dup2(os.open('said', os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
optree.configure(console=False)
sessions = [optree.session(f'agent {n}') for n in range(3)]
import contextvars
contexts = [contextvars.Context() for _ in sessions]
for context, session in zip(contexts, sessions):
    context.run(session.__enter__)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for context in contexts:
    for _ in range(40):
        context.run(lambda: optree.tool(len)('abc'))
until = monotonic() + 30
while not said() and monotonic() < until:
    sleep(0.01)
optree.flush('sync')
print(optree.health()['lost'] > 0, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size there")
def test_a_disk_that_takes_no_more_is_said_while_the_agent_runs(finished, tmp_path, directory):
    """Also of an agent that is killed stderr says why nothing is saved, where and what to do, once for all its sessions (S4-131)."""
    code, out, _ = finished(KILLED)
    assert (-9, "True\n") == (code, out)
    said = [line for line in (tmp_path / "said").read_text().splitlines() if "nothing is saved" in line]
    todo = "the agent runs on (set OPTREE_SESSIONS_DIR to one that can be written)"
    assert [f"optree: nothing is saved in {directory.sessions}: File too large; {todo}"] == said


HEALED = """
import contextlib, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
with optree.session('before'):
    pass
optree.flush('snapshot', 60)  # all is imported
with optree.session('agent'), optree.turn():
    with optree.llm(provider='p', model='m') as op:
        op.account(cost_usd=0.5)
    optree.flush('snapshot', 60)  # nobody has a file open that is closed below
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(1))
    os.close(taken.pop())  # one is enough for the snapshot, and not for the ledger
said = [(optree.flush('snapshot', 60), optree.health()['problems'])]
taken.append(os.dup(1))
said.append((optree.flush('snapshot', 60), optree.health()['problems']))
for fd in taken:
    os.close(fd)
print(optree.flush('snapshot', 60), optree.health()['ok'], optree.health()['problems'])
print(*[f'{done} {what}' for done, problems in said for what in problems], sep='\\n')
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of descriptors there")
def test_a_last_snapshot_that_is_saved_after_all_is_no_problem_any_more(finished):
    """Want of descriptors keeps a session that has ended from being saved and billed, in two ways; once it is, health is well (S4-131)."""
    code, out, err = finished(HEALED)
    healed, *said = out.splitlines()
    assert (0, "True True []") == (code, healed), (out, err)
    assert {"False ledger", "False last snapshot"} == {line.partition(" of session")[0] for line in said}
