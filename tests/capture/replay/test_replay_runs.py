"""A program that makes several root sessions is replayed as one run: each gets its answers, and what is left is said by session."""

import runpy
import shutil
import sys

import pytest

import optree
from optree._cli.program import command_line
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._store.reading.runs import find_run
from optree._tree import walk_ops
from optree.testing import capture, replay
from tests.capture.sdk_calls import CHAT, CHAT_TOOL
from tests.cli.conftest import CommandLine

PROGRAM = """
import json, sys
import httpx
import optree

@optree.tool
def weather(city):
    print("ran")
    return "rain in " + city

def result_of(call):
    return {"role": "tool", "tool_call_id": call["id"], "content": weather(**json.loads(call["function"]["arguments"]))}

@optree.session(agent="forecaster")
def ask(question):
    messages = [{"role": "user", "content": question}]
    with optree.turn(user=question), httpx.Client(base_url=sys.argv[1]) as client:
        while True:
            answer = client.post("/v1/chat/completions", json={"model": "gpt-5", "messages": messages})
            answer.raise_for_status()
            said = answer.json()["choices"][0]["message"]
            if not said.get("tool_calls"):
                return said["content"]
            messages += [said, *map(result_of, said["tool_calls"])]

for question in sys.argv[2:]:
    print(ask(question))
"""
QUESTIONS = ("Athens?", "Rome?", "Oslo?")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, server):
    """Return the folder of a command line with a program whose three sessions were recorded."""
    line = CommandLine(tmp_path_factory.mktemp("ran"))
    line.agent.write_text(PROGRAM)
    server.says(*[CHAT_TOOL, CHAT] * 3)
    line("run", "--auto", "--", sys.executable, "agent.py", server.url, *QUESTIONS)
    return line.folder


@pytest.fixture
def line(ran, tmp_path, provider):
    """Return a command line with that program and its sessions, a provider that was asked nothing since, and the txns as they began."""
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    line = CommandLine(tmp_path)
    line.agent.write_text(PROGRAM)
    provider.says(CHAT)
    line.first, line.second, line.third = line.recorded = sorted(line.txns())
    return line


def again(line, provider, *words, code=0):
    """Run the program with recorded answers; *words*: the command, a session and its options, then the questions behind two dashes."""
    at = words.index("--")
    return line(*words[: at + 1], sys.executable, "agent.py", provider.url, *words[at + 1 :], code=code)


@pytest.mark.parametrize("which", ["last", "first", "second"])
def test_all_sessions_of_the_run_are_answered(line, provider, which):
    """Whichever session is named, each of the program's gets its answers, nothing is sent and no tool runs."""
    txn = line.third if which == "last" else getattr(line, which)
    run = again(line, provider, "replay", which if which == "last" else txn, "--", *QUESTIONS)
    assert (3 * "It rains\n", []) == (run.stdout, provider.requests)
    told = "6 of 6 calls of models were answered as in {} and 2 more of its run; 3 of 3 calls of tools got their results"
    assert run.stderr.endswith(f"optree: {told.format(txn)}\n")
    made = sorted(line.txns() - set(line.recorded))
    trees = [load(one, Directory.of(line.base)).tree for one in made]
    calls = [{op.attributes["replay.of"].partition(":")[0] for _, _, op in walk_ops(tree.session)} for tree in trees]
    assert [{txn} for txn in line.recorded] == calls


def test_what_is_left_is_said_by_session(line, provider):
    """What the program did not ask for is named with the session that it is in, a difference with both, and what to do then."""
    run = again(line, provider, "replay", "last", "--", "Athens?", "Berlin?", code=1)
    assert [] == provider.requests
    _, other = sorted(line.txns() - set(line.recorded))
    left = f"1.1, 1.2, 1.3 of {line.second} and 1.1, 1.2, 1.3 of {line.third}"
    where = f'not as recorded at 1.1 of {line.second}: messages[0].content is "Berlin?", not "Rome?"'
    assert f"; not asked for: {left}; 1 differ, the first at 1.1 of {other}: {where}\n" in run.stderr
    command = command_line([sys.executable, "agent.py", provider.url, "Athens?", "Berlin?"])
    assert run.stderr.endswith(
        f"optree: what changed: optree diff {line.second} {other}\n"
        f"optree: with new answers from there on, if it is to change: optree fork {line.second} --at 1.1 -- {command}\n"
    )


def test_sessions_that_did_not_come(line, provider):
    """Where a whole session is missing there is nothing to compare it with, and all of it is named."""
    run = again(line, provider, "replay", "last", "--", "Athens?", "Rome?", code=1)
    assert f"; not asked for: 1.1, 1.2, 1.3 of {line.third}\n" in run.stderr
    assert ([], False) == (provider.requests, "optree diff" in run.stderr)


def test_a_fork_within_one_of_several_sessions(line, provider):
    """A fork gives what was begun before its op, in all sessions of the run, and asks for the rest."""
    run = again(line, provider, "fork", line.second, "--at", "1.3", "--", *QUESTIONS)
    assert (3 * "It rains\n", 2) == (run.stdout, len(provider.requests))
    told = "3 of 3 calls of models were answered as in {} and 2 more of its run; 2 of 2 calls of tools got their results; 2 were asked"
    assert run.stderr.endswith(f"optree: {told.format(line.second)}\n")


def test_a_fork_where_a_kill_broke_off(line, provider):
    """`optree load` names the fork that goes on behind the call that a kill broke off: nothing is asked again that was answered."""
    line.agent.write_text(PROGRAM.replace('print("ran")', "import os, pathlib; pathlib.Path('kill').exists() and os.kill(os.getpid(), 9)"))
    (line.folder / "kill").touch()
    provider.says(CHAT_TOOL)
    command = [sys.executable, "agent.py", provider.url, "Athens?"]
    line("run", "--auto", "--", *command, code=137)
    [txn] = line.txns() - set(line.recorded)
    fork = f"optree fork {txn} --at 1.2 -- CMD"
    assert (
        f"\nor begin anew, with the answers of all calls that began before the one that broke off: {fork}\n"
        in line.read("load", txn).stdout
    )
    assert [fork, None] == [line.json("load", one)["fork"] for one in (txn, line.first)]
    (line.folder / "kill").unlink()
    provider.says(CHAT)
    run = line("fork", txn, "--at", "1.2", "--", *command)
    assert ("It rains\n", 2) == (run.stdout, len(provider.requests))
    assert f"1 of 1 calls of models were answered as in {txn}; " in run.stderr


WITHIN = """
import os, pathlib, sys
import httpx
import optree

@optree.tool
def last(city):
    if pathlib.Path("kill").exists() and city == "Rome":
        os.kill(os.getpid(), 9)

@optree.tool
def outer(city):
    client.post("/v1/chat/completions", json={"model": "gpt-5", "messages": [{"role": "user", "content": city}]})
    last(city)

@optree.session
def agent(cities):
    with optree.turn(user=cities[0]):
        if cities[1:]:
            agent(cities[1:])
        outer(cities[0])

client = httpx.Client(base_url=sys.argv[1])
agent(["Rome", "Oslo"])
"""


def test_a_fork_where_a_kill_broke_off_a_tool_within_another(line, provider):
    """The fork is at the call that broke off, not at the tool around it: what was answered within that is not asked again."""
    line.agent.write_text(WITHIN)
    (line.folder / "kill").touch()
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url, code=137)
    [txn] = line.txns() - set(line.recorded)
    found = load(txn, Directory.of(line.base))
    [broken] = [op for _, _, op in walk_ops(found.session) if (op.name, op.ended_at) == ("last", None)]
    fork = line.json("load", txn)["fork"]
    assert (f"optree fork {txn} --at {broken.path} -- CMD", 2) == (fork, len(provider.requests))
    (line.folder / "kill").unlink()
    line(*fork.split()[1:-1], sys.executable, "agent.py", provider.url)
    assert 2 == len(provider.requests)


ABREAST = """
import os, pathlib, sys
from threading import Event, Thread
import httpx
import optree

kills, begun = pathlib.Path("kill").exists(), Event()

@optree.tool
def slow():
    begun.set()
    if kills:
        Event().wait()

@optree.session
def one():
    with optree.turn(user="one"):
        slow()

@optree.session
def two():
    with optree.turn(user="two"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", json={"model": "gpt-5", "messages": [{"role": "user", "content": "two"}]})
        if kills:
            os.kill(os.getpid(), 9)

thread = Thread(target=one, daemon=True)
thread.start()
begun.wait()
two()
thread.join()
"""


def test_a_fork_where_a_kill_broke_off_another_session_of_the_run(line, provider):
    """Whichever session of the run is shown, the fork is at its first call without an answer: a fork behind that could not answer it."""
    line.agent.write_text(ABREAST)
    (line.folder / "kill").touch()
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url, code=137)
    agents = {row["agentId"]: row["txn"] for row in line.json("ls") if row["txn"] not in line.recorded}
    forks = [line.json("load", txn)["fork"] for txn in agents.values()]
    assert [f"optree fork {agents['one']} --at 1.1 -- CMD"] * 2 == forks
    (line.folder / "kill").unlink()
    line(*forks[0].split()[1:-1], sys.executable, "agent.py", provider.url)


def test_one_session_alone(line, provider):
    """A file's path means the session in it alone, as it was recorded."""
    file = f"base/sessions/{line.second}.json.zst"
    run = again(line, provider, "replay", file, "--", "Rome?")
    assert ("It rains\n", []) == (run.stdout, provider.requests)
    assert run.stderr.endswith(f"2 of 2 calls of models were answered as in {line.second}; 1 of 1 calls of tools got their results\n")


def test_last_is_of_no_replay(line, provider):
    """`last` passes over all sessions of a replay, also over those in which nothing was called."""
    line.agent.write_text(f"{PROGRAM}\nimport optree\nwith optree.session('nothing is called here'):\n    pass\n")
    again(line, provider, "replay", "last", "--", *QUESTIONS)
    run = again(line, provider, "replay", "last", "--", *QUESTIONS)
    assert f"6 of 6 calls of models were answered as in {line.third} and 2 more of its run" in run.stderr


def test_a_test_replays_a_run_by_its_txn(line, provider, monkeypatch):
    """`optree.testing.replay` takes all sessions of the run that a txn names; what is left is said by session."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(line.base))
    monkeypatch.setattr(sys, "argv", ["agent.py", provider.url])
    program = runpy.run_path(str(line.agent))
    with capture(), replay(line.first):
        assert ["It rains"] * 3 == [program["ask"](question) for question in QUESTIONS]
    with pytest.raises(AssertionError) as raised, capture(), replay(line.first):
        program["ask"]("Athens?")
    left = [f"{path} of {txn} was not asked for" for txn in (line.second, line.third) for path in ("1.1", "1.2", "1.3")]
    assert ("; ".join(left), []) == (str(raised.value), provider.requests)


def test_a_test_replays_what_it_recorded_itself(tmp_path, monkeypatch):
    """A session of this very process, whose run is not over, is replayed alone."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    ran = []

    @optree.tool
    def look(city):
        ran.append(city)
        return city.upper()

    for city in ("Athens", "Rome"):
        with optree.session("agent") as session:
            look(city)
    optree.flush("snapshot")
    with capture(), replay(session.txn), optree.session("agent"):
        assert "ROME" == look("Rome")
    assert ["Athens", "Rome"] == ran
    assert 2 == len(find_run(session.txn, Directory.of(tmp_path)).sessions)


def test_a_replay_goes_on_with_no_recorded_session(line, monkeypatch):
    """A program that goes on with a session by its name gets a new one in a replay: what was recorded stays as it is."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(line.base))
    path = line.sessions / f"{line.first}.json.zst"
    before = path.read_bytes()
    with pytest.raises(AssertionError), replay(line.first), optree.session("forecaster", resume=line.first) as session:
        pass
    assert optree.flush("snapshot")
    assert (True, before) == (session.txn != line.first, path.read_bytes())


def test_a_program_under_replay_goes_on_with_no_recorded_session(line):
    """It is the same under `optree replay`, which loads optree in the program before that names the session."""
    path = line.sessions / f"{line.first}.json.zst"
    before = path.read_bytes()
    line.agent.write_text(f"import optree\nwith optree.session('forecaster', resume='{line.first}') as session:\n    print(session.txn)\n")
    shown = line("replay", line.first, "--", sys.executable, "agent.py", code=1)
    assert ([shown.stdout.strip()], before) == ([txn for txn in line.txns() if txn not in line.recorded], path.read_bytes())


@pytest.mark.parametrize("command", ["replay", "fork"])
def test_a_replay_without_content_gives_no_answers(line, provider, command):
    """Where content is off, calls cannot be told from each other: nothing is answered, nothing is sent and no tool runs."""
    where = ["--at", "1.2"] if command == "fork" else []
    asked = [sys.executable, "agent.py", provider.url, *QUESTIONS]
    run = line(command, line.first, *where, "--", *asked, env={"OPTREE_CONTENT": "off"}, code=2)
    assert "no answer can be given: calls are told by what is asked in them" in run.stderr
    line.agent.write_text(PROGRAM.replace("import optree\n", "import optree\noptree.configure(content=False)\n", 1))
    run = line(command, line.first, *where, "--", *asked, code=1)
    assert ("", []) == (run.stdout, provider.requests)
    optree.configure(content=False)
    with pytest.raises(optree.OptreeError, match="no answer can be given"), replay(line.base / "sessions" / f"{line.first}.json.zst"):
        pass
