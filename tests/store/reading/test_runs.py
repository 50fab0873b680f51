"""Which root sessions one run of a program recorded is known, whichever process of it did."""

import shutil
import sys
from pathlib import Path
from time import time_ns

import pytest

from optree import _ids as ids
from optree._store import Directory
from optree._store.opening import RUN
from optree._store.reading import runs
from optree._store.reading.runs import find_run, load_run, run_of
from tests.cli.conftest import CommandLine

PROGRAM = """
import multiprocessing, os, subprocess, sys
import optree

def record(agent):
    with optree.session(agent), optree.tool("look"):
        pass

def child(*environment):
    subprocess.run([sys.executable, "-c", "import optree\\nwith optree.session('child'): pass"], env=dict(*environment), check=True)

if __name__ == "__main__":
    record("first")
    how = sys.argv[1]
    if how in ("fork", "spawn"):
        process = multiprocessing.get_context(how).Process(target=record, args=("child",))
        process.start()
        process.join()
    elif how == "child_env":
        child(optree.child_env())
    elif how == "apart":
        child(os.environ)
    elif how == "open":
        optree.session("child").__enter__()
        optree.flush()
        os._exit(0)
    record("last")
"""


@pytest.fixture
def line(tmp_path):
    """Return a command line with a program that records several root sessions."""
    line = CommandLine(tmp_path)
    line.agent.write_text(PROGRAM)
    return line


def agents_of(run, where):
    """Return the agents of a run's sessions, in their order."""
    return [load_run(str(saved.live or saved.snapshot), where)[saved.txn].session.agent_id for saved in run.sessions]


@pytest.mark.parametrize(
    ("command", "how", "expected"),
    [
        ((), "fork", ["first", "child", "last"]),
        ((), "child_env", ["first", "child", "last"]),
        ((), "spawn", ["first", "last"]),
        ((), "apart", ["first", "last"]),
        (("run", "--"), "fork", ["first", "child", "last"]),
        (("run", "--"), "spawn", ["first", "child", "last"]),
        (("run", "--"), "apart", ["first", "child", "last"]),
        ((), "open", ["first", "child"]),
    ],
)
def test_the_sessions_of_a_run(line, command, how, expected):
    """A run has the sessions of its process and of those it forks; what is started anew is of it by `optree run` and `child_env`."""
    program = [sys.executable, str(line.agent), how]
    process = line.start(*(line.command(*command, *program) if command else program))
    process.communicate()
    line.read("status")
    assert 0 == process.returncode
    where = Directory.of(line.base)
    first = where.saved()[-1]
    found = find_run(first.txn, where)
    assert expected == agents_of(found, where)
    assert expected[-1] == next(iter(load_run(found.sessions[-1].txn, where).values())).session.agent_id
    others = {saved.txn for saved in where.saved()} - {saved.txn for saved in found.sessions}
    assert [[txn] for txn in others] == [[saved.txn for saved in find_run(txn, where).sessions] for txn in others]


def test_runs_of_one_program_are_apart(line):
    """Each start of a program is a run of its own, and a file's path means the session in it alone."""
    for _ in range(2):
        line.start(sys.executable, line.agent, "none").communicate()
    where = Directory.of(line.base)
    line.read("status")
    newest, *_, oldest = where.saved()
    assert (2, 2) == (len(find_run("last", where).sessions), len(find_run(oldest.txn, where).sessions))
    assert ([newest.txn], 2) == (list(load_run(newest.snapshot, where)), len(load_run("last", where)))


def test_a_clock_that_is_set_back_in_a_run(line, monkeypatch):
    """Sessions that began up to a minute before their run did, as a clock that was set back since tells it, are of the run."""
    ahead = time_ns() + ids.SOON // 2 * 1_000_000
    monkeypatch.setattr(ids, "time_ns", lambda: ahead)
    run = ids.new_txn()
    line.start(sys.executable, line.agent, "fork", env=line.env | {RUN: run}).communicate()
    where = Directory.of(line.base)
    line.read("status")
    found = find_run("last", where)
    assert (run, ["first", "child", "last"]) == (found.id, agents_of(found, where))
    assert all(ids.txn_time(saved.txn) < ids.txn_time(run) for saved in found.sessions)


def test_a_session_that_does_not_say_its_run(line):
    """A file of an earlier version is a run by itself; a session whose files tell nothing is one too."""
    corpus = Path(__file__).parents[2] / "corpus" / "0.1.0"
    line.sessions.mkdir(parents=True)
    for folder in ("zstd", "live"):
        for path in (corpus / folder).iterdir():
            (shutil.copytree if path.is_dir() else shutil.copy)(path, line.sessions / path.name)
    where = Directory.of(line.base)
    saved = where.saved()
    assert [one.txn for one in saved] == [run_of(one) for one in saved]
    assert [[one.txn] for one in saved] == [[each.txn for each in find_run(one.txn, where).sessions] for one in saved]


def test_a_journal_that_is_damaged(line):
    """Of a session whose journal does not begin as it should the run is not known, and it is a run by itself."""
    line.start(sys.executable, line.agent, "open").communicate()
    where = Directory.of(line.base)
    last = where.saved()[0]
    assert 2 == len(find_run(last.txn, where).sessions)
    (last.live / "j-0000-000001.jsonl").write_bytes(b"{}\nno record\n")
    assert [last.txn] == [saved.txn for saved in find_run(last.txn, where).sessions]


def test_a_run_of_very_many_sessions(line, monkeypatch):
    """Of a run with very many sessions, as a service's, the named one is loaded alone, and none is looked at for what is said beside."""
    line.start(sys.executable, line.agent, "fork").communicate()
    where = Directory.of(line.base)
    line.read("status")
    first, *others = [saved.txn for saved in find_run("last", where).sessions]
    assert (1 + len(others), [first]) == (len(load_run(first, where)), [one.txn for one in find_run(first, where, most=1).sessions])
    monkeypatch.setattr(runs, "MOST_TOGETHER", len(others))
    assert [first] == list(load_run(first, where))


def test_sessions_of_before_are_not_looked_at(line, monkeypatch):
    """Sessions that had begun before a run do not count among those that are looked at for it, however many there are."""
    monkeypatch.setattr(runs, "SOON", 0.0)
    for _ in range(2):
        line.start(sys.executable, line.agent, "once").communicate()
    where = Directory.of(line.base)
    assert (4, 2) == (len(where.saved()), len(find_run("last", where, most=2).sessions))
