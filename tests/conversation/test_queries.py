import asyncio
import json
import os
import shutil
import subprocess

import pytest

from optree.conversation import load_session, restored
from tests.conversation.conftest import DATA, Scripted, lines


@pytest.fixture(params=[1, 2], ids=["seed 000", "seed 001"])
def talk(request, file):
    """Return a file in the form of either seed, with a talk in it that we wrote."""
    model = Scripted("Hi, I'm Jack.", "Hello Jack.")
    root, session = load_session(file, lambda *given: restored(*given, model=model), version=request.param)
    root.harken("Create Jack and Jill")
    asyncio.run(root.act(("task", {"name": "Jack"}), ("task", {"name": "Jill"})))
    asyncio.run(root.discuss("Meet", ["Jack", "Jill"]))
    session.close()
    return file


def jq(path, query):
    """Return what `jq` finds in a file."""
    if shutil.which("jq") is None:
        if os.environ.get("CI"):
            pytest.fail("CI runs the queries with jq, which is not there: apt-get install jq", pytrace=False)
        pytest.skip("jq is not installed: apt-get install jq")
    run = subprocess.run(["jq", "-c", query, path], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def grep(path, text):
    """Return the lines of a file that hold a text."""
    return subprocess.run(["grep", "-F", text, path], capture_output=True, text=True, check=True).stdout.splitlines()


UTTERANCES = 'select(.event_type=="transcript_entry" and .role=="assistant" and .content and (.tool_calls | not))'


@pytest.mark.parametrize("seed", ["seed000", "seed001"])
def test_utterances_of_the_examples(seed):
    """The seeds' filter for utterances finds exactly what the agents said to each other (S0-31, S1-15)."""
    said = jq(DATA / f"{seed}_jack_and_jill.jsonl", f"{UTTERANCES} | .message_id")
    assert ["msg_015", "msg_018"] == said


def test_utterances(talk):
    """In a file that we wrote the same filter finds exactly the utterances (S0-31, S0-111)."""
    assert ["Hi, I'm Jack.", "Hello Jack."] == jq(talk, f"{UTTERANCES} | .content")


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ('select(.event_type=="agent_created")', 3),
        ('select(.event_type=="piece_of_text")', 1),
        ('select(.event_type=="transcript_entry" and .role=="tool")', 3),
        ('select(.agent_id=="agent_002")', 4),
        ('select(.role=="user" and .agent_id=="agent_003")', 2),
        ("select(.tool_calls)", 2),
        ('select((.tool_calls // [])[] | .function.name == "discuss")', 1),
    ],
)  # fmt: skip
def test_filters(talk, query, count):
    """Raw events can be filtered by type, agent, role and calls (S0-108, S0-111, S1-01)."""
    assert count == len(jq(talk, query))


def test_who_heard_what(talk):
    """Links can be followed by a query: who has an entry that represents the piece of text (S0-25, S0-108)."""
    [piece] = jq(talk, 'select(.event_type=="piece_of_text") | .message_id')
    same = f'select((.content_id // .substance)=="{piece}") | .agent_id'
    assert ["agent_002", "agent_003"] == jq(talk, same)


def test_grep(talk):
    """One line holds one event, so grep finds whole events, by the same text as in the seeds' examples (S0-61, S0-111)."""
    assert [line for line in lines(talk) if line.get("role") == "tool"] == [json.loads(line) for line in grep(talk, '"role": "tool"')]
    assert 1 == len(grep(talk, '"event_type": "piece_of_text"'))
    assert ["Hello Jack.", "[Jill]: Hello Jack."] == [json.loads(line)["content"] for line in grep(talk, "Hello Jack.")][:2]
