import json

import pytest

from optree.conversation import Agent, Session, SessionLogger, SessionViewer, load_root, load_session, read_events
from optree.errors import SetupError
from tests.conversation.conftest import lines, shape

MODEL = "anthropic/claude-sonnet-4-5-20250929"
TREES = {
    "jack_and_jill": {"agent_root": {"Jack": "agent_jack", "Jill": "agent_jill"}, "agent_jack": {}, "agent_jill": {}},
    "inner_monologue": {"agent_jill": {"Inner": "agent_jill_inner"}, "agent_jill_inner": {}},
    "hook": {"agent_root": {"ResourceMonitor": "agent_resource_hook"}, "agent_resource_hook": {}},
    "external_trigger": {"agent_watcher": {}},
}


def below(agent):
    """Return the sub-agents of an agent and of all below it, by agent id."""
    found = {agent.agent_id: {name: one.agent_id for name, one in agent.subagents.items()}}
    for one in agent.subagents.values():
        found |= below(one)
    return found


def write(path, *events):
    """Write events, each given by what is not usual; ids count from 1."""
    usual = {"event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "x"}
    made = [
        {"message_id": f"msg_{number:03d}"} | (usual if "event_type" not in event else {}) | event for number, event in enumerate(events, 1)
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in made))


def task(call, **arguments):
    """Return an assistant's call of the tool `task`."""
    function = {"name": "task", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call, "function": function}]}


def created(agent_id, **more):
    """Return the creation of an agent."""
    return {"event_type": "agent_created", "agent_id": agent_id, **more}


@pytest.mark.parametrize("seed", ["seed000", "seed001"])
@pytest.mark.parametrize("name", TREES)
def test_examples(example, opened, seed, name):
    """Every example of both seeds loads: the tree of its agents, by inference or by cause, with ids of any form (S0-62, S0-65, S0-68).

    Jack and Jill (S0-86, S1-55), inner monologue (S0-87, S1-56), hook (S0-88, S1-57), external trigger (S0-89, S1-58).
    """
    path = example(f"{seed}_{name}")
    root, session = opened(path)
    assert TREES[name] == below(root)
    assert [] == session.faults
    events, _ = read_events(path)
    for agent_id in TREES[name]:
        said = [event.content for event in events if event.agent_id == agent_id and event.__struct_config__.tag == "transcript_entry"]
        assert said == [message["content"] for message in session.revive(agent_id).transcript]


@pytest.mark.parametrize("seed", ["seed000", "seed001"])
@pytest.mark.parametrize("name", ["inner_monologue", "hook", "external_trigger"])
def test_fragments(example, opened, seed, name):
    """A fragment that does not create its root gets a stand-in for it, and that is said; the file stays as it is (S0-90)."""
    path = example(f"{seed}_{name}")
    before = path.read_bytes()
    root, session = opened(path)
    assert [f"the file does not say that {root.agent_id} was created: it stands in for the root"] == session.notes
    assert before == path.read_bytes()


@pytest.mark.parametrize("seed", ["seed000", "seed001"])
def test_format_example(example, opened, seed):
    """The example of the format, with a call that is cut short and an agent without a cause, loads with both said (S1-54, S0-90)."""
    root, session = opened(example(f"{seed}_format"))
    assert {"agent_root": {"Jack": "agent_jack"}, "agent_jack": {}} == below(root)
    assert [3] == [fault.line for fault in session.faults]
    assert ["the file does not say who created agent_jack: it goes below the root, agent_root"] == session.notes


def test_repeated_results(example, opened):
    """Two results for one call load, and both are in the transcript, in their order (S1-59)."""
    root, _ = opened(example("seed001_jack_and_jill"))
    assert ["Hi, I'm Jack. *extends hand*", "*smiles* Hello Jack, I'm Jill."] == [
        message["content"] for message in root.transcript if message.get("tool_call_id") == "c3"
    ]


def write_models(path, models):
    """Have the agents of a file say these models."""
    events = [event | ({"language_model": models[event["agent_id"]]} if "language_model" in event else {}) for event in lines(path)]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_exactly(example, opened):
    """Transcripts are rebuilt in order with calls, results and their names, models are restored, and so are both counters (S0-63, S0-66).

    One pass does all of it (S0-67, S0-85, S1-52).
    """
    path = example("seed001_jack_and_jill")
    models = {"agent_root": MODEL, "agent_jack": "openai/gpt-5", "agent_jill": "ollama/llama3:8b"}
    write_models(path, models)
    call = {"id": "c9", "type": "function", "function": {"name": "task", "arguments": "{}"}}
    extra = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c9", "name": "task"},
    ]
    _, session = opened(path)
    for message in extra:
        session.log_transcript_entry("agent_jill", message)
    root, session = opened(path)
    assert extra == root.subagents["Jill"].transcript[-2:]
    assert models == {one: session.agents[one].language_model for one in models}
    assert ("agent_001", "msg_023") == (session.allocate_agent_id(), session.log_agent_created("agent_001"))


def test_new_file(file, opened):
    """A file that is not there, or empty, gives a new root agent, logged, and an empty session (S1-37)."""
    file.touch()
    root, session = opened(file)
    assert [{"message_id": "msg_001", "event_type": "agent_created", "agent_id": "agent_001", "language_model": MODEL}] == lines(file)
    assert ([], {}, [], []) == (root.transcript, root.subagents, session.notes, session.faults)
    again, _ = opened(file)
    assert shape(root) == shape(again)


def test_parent_by_order_and_name(file, opened):
    """Without causes, the parent is who has a call that waits and names the agent: not one that was answered (S0-10, S0-64)."""
    write(
        file,
        created("root"),
        created("a", name="A"),
        {"agent_id": "a", **task("c1", name="Jack")},
        {"agent_id": "a", "role": "tool", "tool_call_id": "c1", "content": "failed"},
        {"agent_id": "root", **task("c1", name="Jack")},
        created("jack", name="Jack"),
        {"agent_id": "root", "role": "tool", "tool_call_id": "c1", "content": "done"},
    )
    root, session = opened(file)
    assert "jack" == root.subagents["Jack"].agent_id
    assert {} == root.subagents["A"].subagents
    assert ["the file does not say who created a: it goes below the root, root"] == session.notes


def test_concurrent_creations(file, opened):
    """Agents that are made at the same time are told apart by the names in the calls (S0-11)."""
    write(
        file,
        created("root"),
        {"agent_id": "root", **task("c1", name="Left")},
        created("left", name="Left"),
        {"agent_id": "root", **task("c2", name="Right")},
        {"agent_id": "left", **task("c3", name="Deep")},
        created("deep", name="Deep"),
        created("right", name="Right"),
    )
    root, _ = opened(file)
    assert {"root": {"Left": "left", "Right": "right"}, "left": {"Deep": "deep"}, "deep": {}, "right": {}} == below(root)


@pytest.mark.parametrize(
    "arguments", [{"name": "Jackson"}, {"name": "X", "system_prompt": "You are Jack"}, {"names": "Jack"}, ["Jack"], "Jack"]
)
def test_names_are_whole(file, opened, arguments):
    """A name counts only as the whole of the call's own name: Jack is not Jackson, nor a word in a prompt (S0-69)."""
    call = {"id": "c2", "function": {"name": "task", "arguments": json.dumps(arguments)}}
    write(
        file,
        created("root"),
        {"agent_id": "root", **task("c1", name="Jack")},
        created("other", name="Other"),
        {"agent_id": "other", "role": "assistant", "tool_calls": [call]},
        created("jack", name="Jack"),
    )
    root, _ = opened(file)
    assert "jack" == root.subagents["Jack"].agent_id


def test_parent_by_cause(file, opened):
    """A cause names the parent's message, one of several, or one call of it, and counts more than names (S1-05, S1-13)."""
    write(
        file,
        created("root"),
        {"agent_id": "root", **task("c.1", name="Jack")},
        {"agent_id": "b"},
        created("one", name="Jack", cause="msg_003"),
        created("two", name="Jill", cause=["gone", "msg_002"]),
        created("three", name="Joe", cause="msg_002.c.1"),
        created("four", name="Jim", cause="nowhere"),
        created("b", name="B"),
    )
    root, session = opened(file)
    found = below(root)
    assert ({"Jack": "one"}, "two", "three", "four") == (found["b"], found["root"]["Jill"], found["root"]["Joe"], found["root"]["Jim"])
    assert 2 == len(session.notes)


def test_circles_and_strangers(file, opened):
    """Parents that are unknown, or that would make a circle, do not stop the loading: such agents go below the root, and that is said."""
    write(
        file,
        created("root"),
        {"agent_id": "a"},
        {"agent_id": "b"},
        created("a", cause="msg_003"),
        created("b", cause="msg_002"),
        created("c", parent="c"),
        created("d", parent="nobody"),
    )
    root, session = opened(file)
    assert {"a", "b", "c", "d", "root"} == set(below(root))
    assert "d was created by nobody, of whom the file says nothing: it goes below the root" in session.notes


def test_two_of_one_name(file, opened):
    """Of two sub-agents with one name the newer has it, and the older is found by its id: none is lost (S0-65)."""
    write(file, created("root"), {"agent_id": "root"}, created("j1", name="J", cause="msg_002"), created("j2", name="J", cause="msg_002"))
    root, _ = opened(file)
    assert {"J": "j2", "j1": "j1"} == {name: one.agent_id for name, one in root.subagents.items()}


def test_nothing_readable(file, opened):
    """A file of bad lines only gives a new root, and says so."""
    file.write_text('{"message_id": torn\n')
    root, session = opened(file)
    assert ("agent_001", [1]) == (root.agent_id, [fault.line for fault in session.faults])
    assert ["no agent could be read from the file: a new root was made"] == session.notes


def test_smallchat(example, opened):
    """A log of the later schema loads: parents by name and cause, nobody for the user, and its numbers are gone on with (S1-62)."""
    root, session = opened(example("smallchat"))
    assert {"primary": {"Jack": "jack"}, "jack": {}} == below(root)
    assert ([], [17]) == (session.notes, [fault.line for fault in session.faults])
    assert "10" == session.log_transcript_entry("jack", {"role": "user", "content": "Hi"})


def test_load_root(example):
    """In seed 000's shape, loading gives the root agent alone, with loggers attached, and agents made later get new ids (S0-62, S0-67)."""
    path = example("seed000_jack_and_jill")
    with path.open("a") as file:
        file.write('{"message_id": "msg_021", "event_type": "agent_created", "agent_id": "agent_777", "name": "Joe"}\n')
    root = load_root(path)
    assert {"Jack", "Jill", "Joe"} == set(root.subagents)
    assert all(isinstance(agent.logger, SessionLogger) for agent in (root, *root.subagents.values()))
    assert "agent_778" == Agent().agent_id
    root.harken("go on")
    assert ("msg_022", "go on", "agent_root") == tuple(lines(path)[-1][key] for key in ("message_id", "content", "agent_id"))


def test_thousands_of_messages(file, opened):
    """A session of thousands of messages loads whole (S0-109, S0-110)."""
    _, session = opened(file)
    for number in range(5_000):
        session.log_transcript_entry("agent_001", {"role": "user", "content": f"message {number}"})
    root, _ = opened(file)
    assert [f"message {number}" for number in range(5_000)] == [message["content"] for message in root.transcript]
    assert [file] == list(file.parent.iterdir())


def test_who_created_is_told_alike(file):
    """Loading and the views name the same creator: who waits for a `task` of that name, before calls of other tools."""

    def call(agent, number, tool):
        asked = {"id": f"c{number}", "function": {"name": tool, "arguments": '{"name":"Jack"}'}}
        return {"message_id": f"m{number}", "event_type": "transcript_entry", "agent_id": agent, "role": "assistant", "tool_calls": [asked]}

    told = [
        {"message_id": "m1", "event_type": "agent_created", "agent_id": "root"},
        call("root", 2, "task"),
        {"message_id": "m3", "event_type": "agent_created", "agent_id": "other", "name": "other"},
        call("other", 4, "lookup"),
        {"message_id": "m5", "event_type": "agent_created", "agent_id": "jack", "name": "Jack"},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in told))
    _, session = load_session(file)
    session.close()
    assert "root" == session.list_agents()["jack"].parent
    assert ["root"] == [node.parent for node in SessionViewer(file).agent_tree() if node.agent_id == "jack"]


def test_an_empty_list_of_calls_comes_back(file):
    """A message with an empty list of calls comes back with it (S0-63)."""
    said = {"role": "assistant", "content": "x", "tool_calls": []}
    root, session = load_session(file)
    session.log_transcript_entry(root.agent_id, said)
    session.close()
    assert [said] == load_session(file)[0].transcript


@pytest.mark.parametrize("opener", [load_session, load_root, Session, SessionLogger])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "it is a directory; name a file"),
        ("link", "it is a symbolic link; name the file itself"),
        ("file/x", "a file stands where its directory would be; name another place"),
        ("no/x", "its directory is not there; make it first, or name another place"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, opener, name, said):
    """What cannot be a session's file is refused in words that say what to do, and nothing is made."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(SetupError) as raised:
        opener(str(tmp_path / name))
    assert f"{tmp_path / name} cannot be written: {said}" == str(raised.value)
    assert {"file", "link"} == {path.name for path in tmp_path.iterdir()}


class Named:
    """A path as another library has it."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        """Return it."""
        return str(self.path)


@pytest.mark.parametrize("form", [str, Named])
def test_any_form_of_a_path(example, form):
    """Files are named by texts, paths, and what stands for one."""
    path = form(example("seed001_jack_and_jill"))
    events, _ = read_events(path)
    assert len(events) == len(SessionViewer(path).events)
    assert "agent_root" == load_session(path)[0].agent_id == load_root(path).agent_id
    with Session.load(path) as session:
        assert len(events) == len(session.events())
    assert 1 < SessionLogger(path).message_counter
