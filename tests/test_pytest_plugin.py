"""What a user of pytest sees of optree: a fixture that records, and trees in the reports of tests that failed."""

import re
import shutil
import subprocess
import sys

import pytest

from optree._store import Directory
from optree._store.reading.recovery import load

TESTS = """
import optree
import pytest
from optree.testing import shape


@optree.tool
def search(query):
    return 1 / len(query)


@optree.session(agent="researcher")
def research(query):
    with optree.turn(user="why"):
        return search(query)


def test_passes(optree_session):
    research("tides")
    assert ("researcher", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(optree_session.tree)


def test_fails(optree_session):
    research("")


def test_fails_twice(optree_session):
    research("tides")
    research("moon")
    assert optree_session.tree


def test_records_nothing(optree_session):
    assert optree_session.sessions


def test_does_not_record():
    assert not "anything"


@pytest.fixture
def researched(optree_session):
    research("tides")
    raise OSError("the fixture's")


def test_is_not_begun(researched):
    pass
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what pytest says of each test, as it is run by a user, by the test's name."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_agent.py").write_text(TESTS)
    quietly = ["-p", "no:cacheprovider", "--color=no", "-W", "ignore::DeprecationWarning"]  # of other plugins, on newer Pythons
    command = [sys.executable, "-m", "pytest", *quietly, "test_agent.py"]
    run = subprocess.run(command, cwd=folder, env={"PATH": "", "HOME": str(folder)}, capture_output=True, text=True, check=False)
    assert (1, "") == (run.returncode, run.stderr)
    assert ["test_agent.py"] == [path.name for path in folder.iterdir() if path.name != "__pycache__"]
    *parts, summary = run.stdout.replace(" ERROR at setup of ", " ").split("\n___")
    assert "4 failed, 1 passed, 1 error" in summary
    return {part.strip("_ ").partition(" ")[0]: part for part in [*parts, summary]}


def test_the_tree_of_a_failed_test(said):
    """A test that failed shows what was recorded, with how each part ended and why."""
    expected = """
researcher ✗ failed 0 llm · 1 tool ZeroDivisionError: division by zero
└─ 1 turn ✗ failed why
   └─ 1.1 tool search ✗ failed ZeroDivisionError: division by zero"""
    assert expected in re.sub(r" [0-9.]+ ms", "", said["test_fails"])


def test_each_root_session_has_its_tree(said):
    """All root sessions of a test are shown."""
    assert 2 == said["test_fails_twice"].count("- optree session test-")


def test_what_failed_ahead_of_the_test(said):
    """A fixture that failed shows what it recorded."""
    assert 1 == said["test_is_not_begun"].count("- optree session test-")


def test_nothing_recorded(said):
    """That nothing was recorded is said to a test that asked for a recording, and to no other."""
    assert "no session was recorded" in said["test_records_nothing"]
    assert "optree" not in said["test_does_not_record"]


CALLS = """
import httpx
import optree

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}
ANSWER = {"object": "chat.completion", "model": "m", "choices": [CHOICE], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
client = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER)))


def ask(question):
    sent = {"model": "m", "messages": [{"role": "user", "content": question}]}
    client.post("http://llm.example/v1/chat/completions", json=sent)


optree.instrument()
ask("before")


def test_fails(optree_session):
    ask("within")
    raise KeyError("city")


def test_passes(optree_session):
    ask("within")


def test_without():
    ask("behind")
"""


def test_calls_outside_of_sessions(tmp_path):
    """Calls that begin no session have one that ends as their test did; the program's own, which was open before, goes on behind it."""
    (tmp_path / "test_agent.py").write_text(CALLS)
    quietly = ["-p", "no:cacheprovider", "--color=no", "-W", "ignore::DeprecationWarning"]  # of other plugins, on newer Pythons
    command = [sys.executable, "-m", "pytest", *quietly, "test_agent.py"]
    env = {"PATH": "", "HOME": str(tmp_path), "OPTREE_BASE_DIR": str(tmp_path / "base")}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert re.search(r"✗ failed 1 llm.*KeyError: 'city'\n└─ 1 turn ✓ within\n", re.sub(r" [0-9.]+ (ms|s)", "", run.stdout)), run.stdout
    session = load("last", Directory.of(tmp_path / "base")).session
    assert [("before", "ok"), ("behind", "ok")] == [(turn.prompts["user"], turn.status) for turn in session.turns]
    assert [path.name for path in (tmp_path / "base" / "sessions").glob("*.json*")] == [f"{session.id}.json.zst"]


def test_a_test_that_passes_shows_nothing(said):
    """A test that passes shows no tree."""
    assert "test_passes" not in said


REPLAYED = """
import json
import os
import pathlib

import httpx
import optree
import pytest
from optree.testing import capture, replay, shape

SECRET = "sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFy"
QUESTION = os.environ.get("QUESTION", "Weather?")


def note(what):
    with open("live", "a") as file:
        file.write(what + "\\n")


def model(request):
    asked = json.loads(request.content)["messages"][-1]["content"]
    note(asked)
    choice = {"index": 0, "message": {"role": "assistant", "content": f"{asked} It rains"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 2, "cost": 0.5}
    return httpx.Response(200, json={"object": "chat.completion", "model": "gpt-5", "choices": [choice], "usage": usage})


client = httpx.Client(transport=httpx.MockTransport(model))


def ask(question):
    sent = {"model": "gpt-5", "messages": [{"role": "user", "content": question}]}
    head = {"authorization": "Bearer " + SECRET}
    answer = client.post("https://api.openai.com/v1/chat/completions", json=sent, headers=head)
    return answer.json()["choices"][0]["message"]["content"]


@optree.tool
def look(city, key=SECRET):
    note("look " + city)
    return {"city": city, "said": "password=correct-horse-battery"[:4]}


@optree.session(agent="weatherman")
def run(*questions):
    with optree.turn(user="go"):
        first = ask("first")
        look("Athens")
        return [first, *(ask(question) for question in questions)]


def test_fixture(optree_replay):
    assert run(QUESTION) == ["first It rains", QUESTION + " It rains"]
    assert 2 == optree_replay.tree.session.totals.llm_requests


def test_block():
    with replay("block.json"):
        run(QUESTION, "deploy with " + SECRET)


def test_calls_without_a_session(optree_session):
    with replay(pathlib.Path("calls.json")):
        ask(QUESTION)
        ask("again")


@pytest.mark.optree_replay("named/one.json", at=os.environ.get("AT"), tools="live")
def test_marked(optree_replay):
    run(QUESTION)


@pytest.mark.skipif("FAILS" not in os.environ, reason="it fails")
def test_that_fails(optree_replay):
    run(QUESTION)
    assert not "right"


@pytest.mark.skipif("SEVERAL" not in os.environ, reason="it fails")
def test_of_several(optree_replay):
    run(QUESTION)
    run(QUESTION)
"""


class Project:
    """A folder with tests that replay recordings."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "test_agent.py").write_text(REPLAYED)

    def __call__(self, *arguments, **env):
        """Return what pytest says, and what was asked live."""
        (self.folder / "live").write_text("")
        quietly = ["-p", "no:cacheprovider", "--color=no", "-W", "ignore::DeprecationWarning", "--strict-markers"]
        command = [sys.executable, "-m", "pytest", *quietly, "test_agent.py", *arguments]
        env = {"PATH": "", "HOME": str(self.folder), "OPTREE_BASE_DIR": str(self.folder / "base"), **env}
        run = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        return run.stdout, (self.folder / "live").read_text().split("\n")[:-1]

    def files(self):
        """Return the recordings by name, with what is in them."""
        found = {str(path.relative_to(self.folder)): path.read_text() for path in self.folder.rglob("*.json")}
        return {name: text for name, text in sorted(found.items()) if not name.startswith("base")}


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    """Return a project whose recordings were written."""
    project = Project(tmp_path_factory.mktemp("replayed"))
    said, _ = project("--optree-update")
    assert "4 passed, 2 skipped" in said, said
    return project.folder


@pytest.fixture
def project(updated, tmp_path):
    """Return a project with recordings."""
    shutil.copytree(updated, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


FILES = ["block.json", "calls.json", "named/one.json", "recordings/test_agent/test_fixture.json"]


def test_a_recording_that_is_not_there(tmp_path):
    """A test without its recording fails, and is told the option that writes it; nothing is asked."""
    said, live = Project(tmp_path)("-k", "fixture or block")
    assert "1 failed, 4 deselected, 1 error" in said, said
    assert "block.json is not there: pytest --optree-update runs the test with models and tools, and writes it" in said
    assert re.search(r"ERROR at setup of test_fixture _+\n\S+test_fixture\.json is not there: .* writes it\n---", said), said
    assert [] == live


def test_recordings_are_written(updated):
    """With the option each test runs live, and its recording is written beside it, as `optree export TXN --to json` writes it."""
    project = Project(updated)
    assert FILES == list(project.files())
    assert ["json"] == list({suffix.rpartition(".")[2] for suffix in FILES})
    sessions = {name: load(updated / name).session for name in FILES}
    assert ["weatherman", "weatherman", "weatherman"] == [sessions[name].agent_id for name in FILES if name != "calls.json"]
    assert {"ok"} == {session.status for session in sessions.values()}
    assert [] == [path.name for path in updated.rglob(".*")]


ALIKE = """
import pytest
from test_agent import ask, run


class TestRain:
    def test_same(self, optree_replay):
        run("rain")


class TestSun:
    class TestMoon:
        def test_same(self, optree_replay):
            run("moon")

    def test_same(self, optree_replay):
        run("sun")


@pytest.mark.parametrize("question", ["a b", "a-b", "a/b", "a%2Fb", "x" * 300, "x" * 301])
def test_each(question, optree_replay):
    run(question)
"""


def test_each_test_has_its_recording(tmp_path):
    """Tests of one name in several classes, and parameters that differ in characters no file's name may have, have files of their own."""
    project = Project(tmp_path)
    (tmp_path / "test_alike.py").write_text(ALIKE)
    assert "9 passed" in project("--optree-update", "test_alike.py", "-k", "alike")[0]
    said, live = project("test_alike.py", "-k", "alike")
    assert (True, []) == ("9 passed" in said, live), said
    names = [name.rpartition("/")[2] for name in project.files()]
    assert 9 == len(set(names))
    assert {"TestRain.test_same.json", "TestSun.test_same.json", "TestSun.TestMoon.test_same.json", "test_each[a%20b].json"} < set(names)


def test_recordings_have_no_credentials(updated):
    """No credential is in a recording, be it in a request, in arguments, or in a header; nor what names this machine."""
    whole = "".join(Project(updated).files().values())
    assert "[REDACTED]" in whole
    for secret in ("sk-proj-Zm9v", "authorization", "Bearer", str(updated), '"pid"'):
        assert secret not in whole


def test_recordings_are_replayed(project):
    """Then the tests pass, and nothing is asked; with the option again nothing is asked or written either."""
    before = project.files()
    for options in ((), ("--optree-update",)):
        said, live = project(*options, "-k", "not marked")
        assert "3 passed" in said, said
        assert ([], before) == (live, project.files())


def test_a_test_that_differs(project):
    """A test that asks something else fails where it differs, and is told the option."""
    before = project.files()
    said, live = project("-k", "not marked", QUESTION="Snow?")
    assert "3 failed" in said, said
    assert 'messages[0].content is "Snow?", not "Weather?"' in said
    assert 3 == said.count("E       optree replay: ")  # the program has failed by what it got
    assert "if it is to change: pytest --optree-update records block.json anew" in said
    assert ([], before) == (live, project.files())


def test_a_recording_is_written_anew(project):
    """With the option it is written anew: what is the same comes from the recording, from the first difference on all is live."""
    before = project.files()
    said, live = project("--optree-update", "-k", "fixture", QUESTION="Snow?")
    assert "1 passed" in said, said
    assert ["Snow?"] == live
    name = FILES[-1]
    after = project.files()
    assert [name] == [one for one in before if before[one] != after[one]]
    session = load(project.folder / name).session
    assert (2, 1.0, 2) == (session.totals.llm_requests, session.totals.cost_usd, session.totals.known_costs)
    assert "replay" not in after[name]
    said, live = project("-k", "fixture", QUESTION="Snow?")
    assert ("1 passed" in said, []) == (True, live), said


def test_calls_that_come_no_more(project):
    """A recording with calls that the test does not make any more is written anew too."""
    source = project.folder / "test_agent.py"
    source.write_text(REPLAYED.replace("def test_block", "run = lambda *_, run=run: run()\n\n\ndef test_block"))
    said, live = project("-k", "block")
    assert re.search(r"1\.4 of \S+ was not asked for; if it is to change: pytest --optree-update records block.json anew", said), said
    said, live = project("--optree-update", "-k", "block")
    assert ("1 passed" in said, []) == (True, live), said
    assert 1 == load(project.folder / "block.json").session.totals.llm_requests


def test_a_test_that_fails_writes_nothing(project):
    """A test that fails for another reason writes no recording, and is told of no difference."""
    before = project.files()
    said, _ = project("--optree-update", "-k", "that_fails", FAILS="1")
    assert "1 failed" in said, said
    assert before == project.files()
    assert "optree session test-1" in said


def test_several_sessions_are_not_written(project):
    """A test of several root sessions is told that a recording holds one."""
    before = project.files()
    said, _ = project("--optree-update", "-k", "of_several", SEVERAL="1")
    assert "2 root sessions were recorded, and" in said, said
    assert before == project.files()


def test_a_marker(project):
    """A marker names another file, a fork, and tools that run."""
    said, live = project("-k", "marked", AT="1.3", QUESTION="Snow?")
    assert ("1 passed" in said, ["look Athens", "Snow?"]) == (True, live), said
    said, live = project("-k", "marked")
    assert ("1 passed" in said, ["look Athens"]) == (True, live), said


def test_calls_that_a_replay_could_not_answer(tmp_path):
    """No recording is written of a test with calls of models of which no request was captured: that is said, with their paths."""
    project = Project(tmp_path)
    call = '@optree.llm(model="small-1")\ndef guess(question):\n    return question.upper()\n\n\n@optree.session(agent="weatherman")'
    source = REPLAYED.replace('@optree.session(agent="weatherman")', call).replace('look("Athens")', 'guess("Rain?")')
    (tmp_path / "test_agent.py").write_text(source)
    said, _ = project("--optree-update", "-k", "block")
    assert "block.json was not written: its calls of models at 1.2 would be made live in each test" in said, said
    assert {} == project.files()
