"""What a user of pytest sees of optree: a fixture that records, and trees in the reports of tests that failed."""

import re
import subprocess
import sys

import pytest

from optree.store import Directory
from optree.store.recovery import load

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
