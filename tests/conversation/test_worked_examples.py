"""The seeds' worked examples on the demo's real model: what is checked is who heard what; the words are the model's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import optree
from optree.conversation import AgentCreated, PieceOfText, TranscriptEntry, load_session, read_events

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def played(tmp_path_factory, real_model):  # noqa: ARG001 - it runs on that
    """Run the examples, once; returns their directory."""
    folder = tmp_path_factory.mktemp("played")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "OPTREE_", "OTEL_"))}
    environment |= {"PYTHONPATH": str(ROOT), "OPTREE_BASE_DIR": str(folder / "base")}
    command = [sys.executable, ROOT / "examples" / "conversations.py", "--events", folder / "events.jsonl"]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == run.returncode, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def events(played):
    """Return all events of the run."""
    found, faults = read_events(played / "events.jsonl")
    assert [] == faults
    return found


@pytest.fixture(scope="module")
def ids(events):
    """Return the agents' ids by name."""
    return {event.name: event.agent_id for event in events if isinstance(event, AgentCreated)}


@pytest.fixture(scope="module")
def entries(events, ids):
    """Return a function that gives an agent's entries of one role."""

    def of(name, role):
        return [event for event in events if isinstance(event, TranscriptEntry) and event.agent_id == ids[name] and event.role == role]

    return of


def said_by(entries, name):
    """Return what an agent said: its entries without tool calls."""
    return [entry for entry in entries(name, "assistant") if not entry.tool_calls]


def heard_by(entries, name, message):
    """Return how an agent heard a message."""
    return [entry.content for entry in entries(name, "user") if entry.substance == message.message_id]


def test_jack_and_jill(events, entries, ids):
    """Jack and Jill hear one prompt, and each the other's real words, marked with the name (S0-37, S0-53, S0-86, S1-55)."""
    prompt = next(event for event in events if isinstance(event, PieceOfText))
    jacks, jills = said_by(entries, "Jack")[0], said_by(entries, "Jill")[0]
    assert [["You meet in a cafe. Introduce yourselves."]] * 2 == [heard_by(entries, name, prompt) for name in ("Jack", "Jill")]
    assert all(isinstance(entry.content, str) and entry.content.strip() for entry in (jacks, jills))
    assert [f"[Jack]: {jacks.content}"] == heard_by(entries, "Jill", jacks)
    assert [f"[Jill]: {jills.content}"] == heard_by(entries, "Jack", jills)
    assert [] == heard_by(entries, "Jack", jacks)
    result = next(entry for entry in entries("root", "tool") if entry.name == "discuss")
    assert (jacks.message_id, jills.message_id) == result.cause
    created = [event for event in events if isinstance(event, AgentCreated) and event.name in ("Jack", "Jill")]
    owners = {event.message_id: event.agent_id for event in events}
    assert {ids["root"]} == {owners[cause] for event in created for cause in event.cause}


def test_inner_monologue(entries, ids, events):
    """The inner voice is Jill's child, and what it says reaches her alone (S0-87, S0-92, S1-56)."""
    [thought] = said_by(entries, "Inner")
    owners = {event.message_id: event.agent_id for event in events}
    inner = next(event for event in events if isinstance(event, AgentCreated) and event.name == "Inner")
    assert [ids["Jill"]] == [owners[cause] for cause in inner.cause]
    hearers = {event.agent_id for event in events if isinstance(event, TranscriptEntry) and event.substance == thought.message_id}
    assert {ids["Jill"]} == hearers
    [result] = [entry for entry in entries("Jill", "tool") if entry.name == "discuss"]
    assert (thought.content, thought.message_id) == (result.content, result.substance)


def test_hook_denial(entries):
    """The hook's question, its agent's reasoning and the error of the call are all there to be read (S0-88, S0-94, S1-57)."""
    [question] = [entry.content for entry in entries("ResourceMonitor", "user")]
    assert "Agent 'root' is attempting to create subagent 'Searcher4'. Current subagent count: 3. Approve?" == question
    [reasoning] = said_by(entries, "ResourceMonitor")
    assert reasoning.content.strip()
    refused = [entry.content for entry in entries("root", "tool") if entry.content.startswith("Error")]
    assert ["Error: Action blocked by hook 'ResourceMonitor': Maximum subagents (3) already reached."] == refused


def test_redaction(entries):
    """What a hook redacted is readable in both versions, under one substance (S0-33, S1-17)."""
    secret = said_by(entries, "Jack")[-1]
    assert ("The password: 1234", ["[Jack]: The password: [REDACTED]"]) == (secret.content, heard_by(entries, "Jill", secret))


def test_external_trigger(entries):
    """An event from outside is a message of the user, that the agent answers (S0-89, S0-93, S1-58)."""
    [event] = entries("Watcher", "user")
    [answer] = said_by(entries, "Watcher")
    assert ("File changed: data.json", None) == (event.content, event.substance)
    assert answer.content.strip()


def test_traced(played, ids):
    """The run is one traced session: each agent's sessions lie in it, with the model's calls and their tokens, and nothing is open."""
    loaded = optree.load("last", optree.Directory.of(played / "base"))
    assert ("ended", "clean") == (loaded.state, loaded.damage.state)
    assert set(ids) == {session.agent_id for session in optree.walk_sessions(loaded.session)}
    assert {"ok"} == {session.status for session in optree.walk_sessions(loaded.session)}
    assert 7 == loaded.session.totals.llm_requests
    assert loaded.session.totals.output_tokens > 0


def test_events_load(played, ids):
    """The events that the run left are a session that loads, with the whole tree of its agents (S0-62, S1-37)."""
    root, session = load_session(played / "events.jsonl")
    session.close()
    assert ([], [], "root") == (session.faults, session.notes, root.name)
    assert {"Jack", "Jill", "ResourceMonitor", "Watcher"} == set(root.subagents)
    assert {"Inner": ids["Inner"]} == {name: one.agent_id for name, one in root.subagents["Jill"].subagents.items()}
