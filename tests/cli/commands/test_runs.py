"""A program that makes several root sessions: all of them are shown, summed and gone on with as one run."""

import json
import shutil
import sys
from operator import itemgetter

import pytest
import zstandard

from tests.cli.conftest import CommandLine

SEVERAL = """
import os, sys
from threading import Barrier, Thread
import optree

def ask(agent, barrier):
    with optree.session(agent):
        with optree.turn(user=agent), optree.llm(provider="p", model="m") as op:
            op.request(messages=[{"role": "user", "content": "hello " + agent}])
            op.account(input_tokens=10, output_tokens=1, cost_usd=0.5)
        barrier.wait()
        barrier.wait()

ended, open_ = sys.argv[1].split(","), sys.argv[2].split(",") if sys.argv[2] else []
for agent in ended:
    ask(agent, Barrier(1))
barrier = Barrier(len(open_) + 1)
for agent in open_:
    Thread(target=ask, args=(agent, barrier), daemon=True).start()
barrier.wait()
optree.flush()
os._exit(3 if open_ else 0)
"""
"""Agents whose sessions end, and agents whose sessions are open together when the program breaks off."""


def recorded(folder, ended, opened=""):
    """Return a command line with a run of the program, with the txns of its sessions by agent, beside one of another."""
    line = CommandLine(folder)
    line.agent.write_text(SEVERAL)
    for agents in (("other", ""), (ended, opened)):
        line.start(sys.executable, line.agent, *agents).communicate()
    line.read("status")
    line.of = {row["agentId"]: row["txn"] for row in line.json("ls")}
    return line


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return a command line with a run whose three sessions have ended."""
    return recorded(tmp_path_factory.mktemp("ended"), "a,b,c")


@pytest.fixture
def killed(tmp_path):
    """Return a command line with a run one of whose sessions ended, and two were broken off."""
    return recorded(tmp_path, "a", "b,c")


def test_a_listing_says_the_run(ended):
    """The sessions of one run have the same in JSON, others another."""
    runs = {row["agentId"]: row["run"] for row in ended.json("ls")}
    assert (1, 2) == (len({runs[agent] for agent in "abc"}), len(set(runs.values())))


def test_a_table_says_the_run(ended):
    """Sessions of a run with several have the txn of its first in a column of their own, which is left out where no run has several."""
    head, *lines = (row.split() for row in ended.read("ls").stdout.splitlines())
    assert ("RUN", {ended.of[agent]: ended.of["a"] for agent in "abc"}) == (head[-1], {row[0]: row[-1] for row in lines[:3]})
    assert "RUN" not in ended.read("ls", "-n", "1").stdout


@pytest.mark.parametrize("command", ["tree", "cost", "logs", "messages"])
def test_that_there_are_more_is_said(ended, command):
    """One line on stderr says how many sessions the run has, and how to see all; of a run with one, and of a file, nothing is said."""
    txn = ended.of["c"]
    expected = f"optree: session {txn} is one of 3 of its run; all of them: optree {command} {txn} --run\n"
    assert expected == ended.read(command, "last").stderr
    assert ["", ""] == [ended.read(command, what).stderr for what in (ended.of["other"], ended.sessions / f"{txn}.json.zst")]


@pytest.mark.parametrize("agent", ["a", "b", "c"])
def test_the_trees_of_a_run(ended, agent):
    """`--run` shows the tree of each session, in the order in which they began, whichever is named."""
    shown = ended.read("tree", ended.of[agent], "--run", "--depth", "0")
    assert ("", 3) == (shown.stderr, shown.stdout.count("1 llm"))
    assert [f"session {ended.of[name]}" for name in "abc"] == [line for line in shown.stdout.splitlines() if line.startswith("session ")]
    found = ended.json("tree", ended.of[agent], "--run")
    assert ["a", "b", "c"] == [one["session"]["agentId"] for one in found["sessions"]]
    assert {found["run"]} == {row["run"] for row in ended.json("ls") if row["agentId"] in "abc"}


def test_the_bill_of_a_run(ended):
    """`optree cost --run` sums all sessions of a run, and each."""
    found = ended.json("cost", "last", "--run")
    assert (3, 1.5) == (found["total"]["calls"], found["total"]["costUsd"])
    assert {ended.of[agent]: 0.5 for agent in "abc"} == {one["name"]: one["costUsd"] for one in found["bySession"]}
    assert ended.read("cost", "last", "--run").stdout.endswith(
        "total                    3       0     30       0        0       3  $1.500000\n"
    )
    assert (1, 0.5) == (ended.json("cost", "last")["total"]["calls"], ended.json("cost", "last")["total"]["costUsd"])
    assert "leave one out" in ended.read("cost", "--run", "--all", code=2).stderr
    assert "leave one out" in ended.read("cost", "last", "--all", code=2).stderr


def test_the_lines_of_a_run(killed):
    """`optree logs --run` shows the lines of all its sessions in the order of time, each with its session's txn; filters hold for all."""
    lines = [json.loads(line) for line in killed.read("logs", "last", "--run", "--json").stdout.splitlines()]
    every = [json.loads(line) for agent in "abc" for line in killed.read("logs", killed.of[agent], "--json").stdout.splitlines()]
    assert sorted(every, key=itemgetter("timestamp")) == sorted(lines, key=itemgetter("timestamp"))
    assert sorted(line["timestamp"] for line in lines) == [line["timestamp"] for line in lines]
    shown = killed.read("logs", "last", "--run", "--path", "1.1", "--grep", "← llm").stdout.splitlines()
    expected = {f"[txn:{killed.of[agent]}] [path:1.1] {agent} [VRB] ← llm p:m" for agent in "abc"}
    assert expected == {line.rpartition(": ")[0] for line in shown}
    assert "leave one out" in killed.read("logs", "last", "--run", "--follow", code=2).stderr
    assert "no node 9.9 in session" in killed.read("logs", "last", "--run", "--path", "9.9", code=1).stderr


def test_the_messages_of_a_run(ended):
    """`optree messages --run` shows what was said in each session; with an agent, in those that have it; a diagram is of one session."""
    shown = ended.read("messages", "last", "--run").stdout
    assert [f"session {ended.of[name]}" for name in "abc"] == [line for line in shown.splitlines() if line.startswith("session ")]
    assert ["hello a", "hello b", "hello c"] == [line.split("  ")[-1] for line in shown.splitlines() if "hello" in line]
    found = ended.json("messages", ended.of["b"], "--run")
    assert [ended.of[name] for name in "abc"] == [one["txn"] for one in found["sessions"]]
    assert {"txn", *ended.json("messages", ended.of["b"])} == set(found["sessions"][1])
    assert [ended.of["b"]] == [one["txn"] for one in ended.json("messages", "last", "--run", "--agent", "b")["sessions"]]
    assert "no agent nobody" in ended.read("messages", "last", "--run", "--agent", "nobody", code=1).stderr
    assert "name one of them" in ended.read("messages", "last", "--run", "--format", "mermaid", code=2).stderr


def test_the_files_of_a_run(ended):
    """`optree export --run` writes each session of the run, once."""
    folder = ended.folder / "exported"
    ended.read("export", ended.of["a"], ended.of["c"], "--run", "--to", "json", "-o", f"{folder}/")
    assert {ended.of[agent] for agent in "abc"} == {path.name.partition(".")[0] for path in folder.iterdir()}
    assert "name one of them" in ended.read("export", "--pending", "--run", code=2).stderr


@pytest.mark.parametrize("name", ["last", "txn"])
def test_a_file_that_has_the_name_of_a_session(killed, name):
    """A txn, and `last`, mean the saved session and its run, also where the working directory has a file of that name."""
    what = name if name == "last" else killed.of["a"]
    (killed.folder / what).write_text("notes")
    shown = killed("tree", what, "--run", "--depth", "0").stdout
    assert {killed.of[agent] for agent in "abc"} == {line.split()[1] for line in shown.splitlines() if line.startswith("session ")}


def test_a_run_of_which_a_session_is_damaged(killed):
    """What can be read is shown and summed, the session that cannot is named, and the exit code is 3."""
    packed, file = (killed.sessions / f"{killed.of['a']}.json{suffix}" for suffix in (".zst", ""))
    text = zstandard.ZstdDecompressor().stream_reader(packed.read_bytes(), read_across_frames=True).read()
    file.write_bytes(text.partition(b'"session":')[0])
    packed.unlink()
    for command in ("tree", "cost", "logs", "messages"):
        shown = killed.read(command, "last", "--run", code=3)
        assert (True, True) == (file.name in shown.stderr, "b" in shown.stdout)


def test_what_broke_off_is_named(killed):
    """`optree load` names each session of the run that did not end, with the command that goes on with it."""
    shown = killed.read("load", killed.of["c"]).stdout
    assert f"go on with: optree load {killed.of['c']} -- CMD\nof its run 1 more session did not end; " in shown
    assert shown.endswith(f": optree load {killed.of['b']} -- CMD\n")
    others = killed.json("load", killed.of["a"])["others"]
    assert {agent: f"optree load {killed.of[agent]} -- CMD" for agent in "bc"} == {one["agentId"]: one["resume"] for one in others}


def test_going_on_with_one_of_several(killed):
    """Which session goes on, and what becomes of the others, is said before the program starts; what it begins is of the same run."""
    run = killed("load", killed.of["b"], "--", sys.executable, "agent.py", "b,d", "")
    said = f"the first session that the program begins goes on with {killed.of['b']}, others that it begins are new ones of the same run"
    assert f"optree: {said}; 1 stays interrupted: {killed.of['c']}" == run.stderr.splitlines()[0]
    rows = {row["agentId"]: (row["state"], row["run"]) for row in killed.json("ls") if row["agentId"] != "other"}
    assert {"a": "ended", "b": "ended", "c": "interrupted", "d": "ended"} == {agent: state for agent, (state, _) in rows.items()}
    assert 1 == len({run for _, run in rows.values()})
    assert 5 == killed.json("cost", "last", "--run")["total"]["calls"]


def test_a_session_of_which_nothing_can_be_read(killed):
    """A session that was begun since, and does not tell its run, may be of it: that is said, and the exit code is 3."""
    other = killed.of["b"]
    shutil.rmtree(killed.sessions / f"{other}.live")
    (killed.sessions / f"{other}.json.zst").write_bytes(b"garbage!")
    for command in (["cost"], ["logs"], ["export", "--to", "json", "-o", "exported/"]):
        run = killed(command[0], killed.of["a"], "--run", *command[1:], code=3)
        assert f"session {other} may be of this run too" in run.stderr
    assert {killed.of[agent] for agent in "ac"} == {path.name.partition(".")[0] for path in (killed.folder / "exported").iterdir()}
