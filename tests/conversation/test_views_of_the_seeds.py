"""The seeds' own examples, seen from each side, in the forms of both seeds."""

from pathlib import Path

import pytest

from optree.conversation.viewer import SessionViewer

DATA = Path(__file__).parent / "data_views"
JACK, JILL, ROOT = "agent_jack", "agent_jill", "agent_root"
SUBSTANCE = {1: "content_id", 2: "substance"}


@pytest.fixture(params=[1, 2])
def seen(request):
    """Return a function that opens an example in one of the two forms."""
    return lambda name: SessionViewer(DATA / f"{name}.v{request.param}.jsonl", version=request.param)


def ids(events):
    """Return the ids of events."""
    return [event["message_id"] for event in events]


def test_loads(seen):
    """A viewer loads all events of a file, in their order, with nothing to complain of (S0-70, S0-86, S1-43)."""
    viewer = seen("jack_and_jill")
    assert ([f"msg_{number:03d}" for number in range(1, 21)], []) == (ids(viewer.events), viewer.faults)


def test_agents(seen):
    """Agents are listed by id with their names, and an agent without a name by its id (S0-71, S1-44)."""
    assert {ROOT: ROOT, JACK: "Jack", JILL: "Jill"} == seen("jack_and_jill").list_agents()


def test_transcript(seen):
    """A transcript holds its agent's entries only, as dicts with the file's names; a piece of text is in none (S0-72, S0-27, S1-45)."""
    viewer = seen("jack_and_jill")
    found = viewer.get_transcript(JACK)
    assert ["msg_005", "msg_013", "msg_015", "msg_020"] == ids(found)
    link = SUBSTANCE[viewer.stream._version]
    expected = {"message_id": "msg_020", "event_type": "transcript_entry", "agent_id": JACK, "role": "user"}
    assert {**expected, "content": "[Jill]: *smiles* Hello Jack, I'm Jill.", link: "msg_018"} == found[-1]
    assert not any("msg_012" in ids(viewer.get_transcript(agent)) for agent in viewer.list_agents())


def test_dialog(seen):
    """A dialog has each content once, with the original's id and words; a piece of text resolves too (S0-73, S0-86, S1-46, S0-25)."""
    assert [
        {"message_id": "msg_005", "content": "You work in HR..."},
        {"message_id": "msg_009", "content": "You are an aspiring author..."},
        {"message_id": "msg_012", "content": "You meet in a cafe. Introduce yourselves."},
        {"message_id": "msg_015", "content": "Hi, I'm Jack. *extends hand*"},
        {"message_id": "msg_018", "content": "*smiles* Hello Jack, I'm Jill."},
    ] == seen("jack_and_jill").extract_dialog([JACK, JILL])


def test_spoken_dialog(seen):
    """What was said and heard alone makes the dialog of an agent set: no instructions, calls and results (S0-02, S0-102, S0-91)."""
    viewer = seen("jack_and_jill")
    assert ["msg_012", "msg_015", "msg_018"] == ids(viewer.extract_dialog({JACK, JILL}, spoken=True))
    assert ["msg_002", "msg_012"] == ids(viewer.extract_dialog([ROOT], spoken=True)) + ids(viewer.extract_dialog([JACK], spoken=True))[:1]


def test_no_content_no_line(seen):
    """Entries without content, such as calls, are no lines of a dialog (S0-73)."""
    assert ["msg_002", "msg_006", "msg_010", "msg_016", "msg_019"] == ids(seen("jack_and_jill").extract_dialog([ROOT]))


def test_what_was_heard(seen):
    """A dialog says on request in which words each agent heard a content (S0-02)."""
    found = {line["message_id"]: line["heard"] for line in seen("jack_and_jill").extract_dialog([JACK, JILL], heard=True)}
    assert [JACK, JILL] == [one["agent_id"] for one in found["msg_012"]]
    [jill] = found["msg_015"]
    expected = {"agent_id": JILL, "message_id": "msg_017", "content": "[Jack]: Hi, I'm Jack. *extends hand*", "changed": False}
    assert expected == jill


def test_perspective(seen):
    """A perspective is what an agent heard, did, got and said, in lines of one form each (S0-74, S0-105, S1-47)."""
    viewer = seen("jack_and_jill")
    assert (
        "[Heard]: You meet in a cafe. Introduce yourselves.\n"
        "[Heard]: [Jack]: Hi, I'm Jack. *extends hand*\n"
        "[Said]: *smiles* Hello Jack, I'm Jill."
    ) == viewer.extract_agent_perspective(JILL)
    assert ["[Heard]: Create Jack and Jill for a cafe discussion", "[Action]: Taking action...", "[Received]: Created subagent: Jack"] == (
        viewer.extract_agent_perspective(ROOT).split("\n")[:3]
    )


def test_causality(seen):
    """Each message leads to its content, cause or call: a result to its call, a copy to its original, a text to its call (S0-75, S1-48)."""
    index = seen("jack_and_jill").build_causality_index()
    assert {
        "msg_006": "msg_003", "msg_010": "msg_007", "msg_012": "msg_011", "msg_013": "msg_012", "msg_014": "msg_012",
        "msg_016": "msg_011", "msg_017": "msg_015", "msg_019": "msg_011", "msg_020": "msg_018",
    } == {key: parent for key, parent in index.items() if key not in ("msg_004", "msg_008")}  # fmt: skip


def test_causality_of_agents(seen):
    """An agent's creation leads to the call that created it, named in seed 001, told by time and name in seed 000 (S0-104, S1-48)."""
    found = seen("jack_and_jill").causality()
    assert (["msg_003"], ["msg_007"]) == (found["msg_004"], found["msg_008"])


def test_flow(seen):
    """A flow goes from a copy over the text to the call that made it, oldest first (S0-76, S0-104, S1-49)."""
    viewer = seen("jack_and_jill")
    assert ["msg_011", "msg_012", "msg_013"] == ids(viewer.trace_message_flow("msg_013"))
    assert ["msg_015", "msg_017"] == ids(viewer.trace_message_flow("msg_017"))
    assert [] == viewer.trace_message_flow("msg_999")


def test_references(seen):
    """The references of a content are the entries that represent it, and no others (S0-77, S1-50)."""
    viewer = seen("jack_and_jill")
    assert ["msg_013", "msg_014"] == ids(viewer.trace_content_references("msg_012"))
    assert [] == viewer.trace_content_references("msg_013")


def test_who_heard_what(seen):
    """Each content tells who heard it, and a copy tells the same as its original (S0-79)."""
    viewer = seen("jack_and_jill")
    assert [JACK, JILL] == [one.agent_id for one in viewer.heard_by("msg_012")]
    assert viewer.heard_by("msg_015") == viewer.heard_by("msg_017")
    assert [] == viewer.heard_by("msg_016")


def test_information_flow(seen):
    """Jack's words reach Jill framed by his name, over one link, and spread no further (S0-37, S0-103, S0-106)."""
    found = seen("jack_and_jill").propagation("msg_017")
    assert ("msg_015", JACK, "Hi, I'm Jack. *extends hand*") == (found.message_id, found.author, found.content)
    [hop] = found.hops
    assert (JILL, "msg_017", ["msg_015"], False) == (hop.agent_id, hop.message_id, hop.via, hop.changed)
    assert "[Jack]: Hi, I'm Jack. *extends hand*" == hop.content


def test_agent_tree(seen):
    """Root created Jack and Jill: by the cause's agent, or by time and name where no cause is named (S0-86, S0-101, S1-55)."""
    tree = seen("jack_and_jill").agent_tree()
    assert [(ROOT, 0, None), (JACK, 1, ROOT), (JILL, 1, ROOT)] == [(one.agent_id, one.depth, one.parent) for one in tree]
    assert [8, 4, 4] == [one.entries for one in tree]


def test_timeline(seen):
    """A timeline has all events of all kinds in the order of the stream (S0-100, S0-35, S1-18)."""
    found = seen("jack_and_jill").timeline()
    assert [f"msg_{number:03d}" for number in range(1, 21)] == [one.message_id for one in found]
    assert ["created", "heard", "called", "created", "system", "received"] == [one.what for one in found[:6]]
    assert "made" == found[11].what


def test_filters(seen):
    """Raw events are filtered by type, agent and role, alone and together (S0-108)."""
    viewer = seen("jack_and_jill")
    assert ["msg_001", "msg_004", "msg_008"] == ids(viewer.select(event_type="agent_created"))
    assert ["msg_005", "msg_013", "msg_015", "msg_020"] == ids(viewer.select(event_type="transcript_entry", agent_id=JACK))
    assert ["msg_006", "msg_010", "msg_016", "msg_019"] == ids(viewer.select(role="tool"))
    assert ["msg_015"] == ids(viewer.select(agent_id=JACK, role="assistant"))
    assert viewer.events == viewer.select()


def test_two_results_of_one_call(seen):
    """Two results of one call are both shown, and both lead to it (S1-59)."""
    viewer = seen("jack_and_jill")
    assert {"msg_016", "msg_019"} <= set(ids(viewer.get_transcript(ROOT)))
    assert ["msg_011", "msg_011"] == [viewer.build_causality_index()[one] for one in ("msg_016", "msg_019")]
    assert ["msg_011", "msg_019"] == [viewer.during("msg_016")[place].message_id for place in (0, -1)]


def test_same_delivery_twice(seen):
    """What was delivered twice to one agent, in two examples that go on from each other, is one line of a dialog (S1-60)."""
    version = seen("jack_and_jill").stream._version
    events = [event for name in ("jack_and_jill", "inner_monologue") for event in seen(name).events]
    viewer = SessionViewer(events, version=version)
    assert ["msg_017", "msg_033"] == ids(viewer.trace_content_references("msg_015"))
    dialog = viewer.extract_dialog([JILL, "agent_jill_inner"], heard=True)
    [line] = [line for line in dialog if line["message_id"] == "msg_015"]
    assert ["msg_017", "msg_033"] == [one["message_id"] for one in line["heard"]]


def test_inner_monologue(seen):
    """Inner's answer reaches Jill only, as her tool's result: it is in no other transcript (S0-87, S0-92)."""
    viewer = seen("inner_monologue")
    said = "Be friendly but not over-eager. A simple greeting with a smile."
    holders = {event["agent_id"] for event in viewer.select(event_type="transcript_entry") if event.get("content") == said}
    assert {"agent_jill", "agent_jill_inner"} == holders
    assert f"[Received]: {said}\n[Said]: *smiles* Hello Jack, I'm Jill." in viewer.extract_agent_perspective(JILL)
    assert "Hi, I'm Jack" not in viewer.extract_agent_perspective("agent_jill_inner")


def test_inner_monologue_as_one(seen):
    """Jill with her inner voice is one set of agents: what she heard, her thoughts, and what she said (S0-02, S0-87)."""
    contents = [line["content"] for line in seen("inner_monologue").extract_dialog([JILL, "agent_jill_inner"], spoken=True)]
    assert [
        "[Jack]: Hi, I'm Jack. *extends hand*",
        "Jack just introduced himself. What should I say?",
        "Be friendly but not over-eager. A simple greeting with a smile.",
        "*smiles* Hello Jack, I'm Jill.",
    ] == contents


def test_inner_parent(seen):
    """The inner voice is Jill's child (S1-56)."""
    assert [(JILL, 0), ("agent_jill_inner", 1)] == [(one.agent_id, one.depth) for one in seen("inner_monologue").agent_tree()]


def test_hook_denial(seen):
    """What a hook was asked and how it decided stands between the call and the error that it led to (S0-88, S0-94, S1-57)."""
    viewer = seen("hook")
    assert ["msg_102", "msg_103", "msg_104", "msg_105"] == [one.message_id for one in viewer.during("msg_105")]
    assert ["msg_102", "msg_105"] == ids(viewer.trace_message_flow("msg_105"))
    assert "[Said]: DENY. Maximum subagents (3) already reached." in viewer.extract_agent_perspective("agent_resource_hook")
    assert [(ROOT, 0), ("agent_resource_hook", 1)] == [(one.agent_id, one.depth) for one in viewer.agent_tree()]


def test_external_trigger(seen):
    """An event from outside is what an agent heard, like any other (S0-89, S0-93, S1-58)."""
    viewer = seen("external_trigger")
    assert (
        "[Heard]: File changed: data.json\n[Said]: I'll reload the data and notify the main agent."
    ) == viewer.extract_agent_perspective("agent_watcher")


@pytest.mark.parametrize("name", ["inner_monologue", "hook", "external_trigger"])
def test_fragments(seen, name):
    """Streams that begin without a root, with links to what is not there, have all views (S0-90)."""
    viewer = seen(name)
    assert [] == viewer.faults
    assert (
        len(viewer.events)
        == len(viewer.timeline())
        == sum(one.entries for one in viewer.agent_tree())
        + len([event for event in viewer.events if event["event_type"] != "transcript_entry"])
    )
    assert all(ids(viewer.trace_message_flow(one))[-1] == one for one in ids(viewer.events))


def test_redaction(seen):
    """What a hook changed on the way stays readable on both sides, under one content, as a diff (S0-33, S0-107, S1-17)."""
    [change] = seen("redaction").hooks()
    assert ("msg_002", "msg_001", JILL, JACK) == (change.message_id, change.substance, change.agent_id, change.author)
    assert ("password: 1234", "password: [REDACTED]") == (change.original, change.received)
    assert [("same", "password: "), ("removed", "1234"), ("added", "[REDACTED]")] == change.diff


def test_redaction_in_a_dialog(seen):
    """A dialog without the author has the words that were heard, unless the original's are asked for (S0-33)."""
    viewer = seen("redaction")
    assert [{"message_id": "msg_001", "content": "password: [REDACTED]"}] == viewer.extract_dialog([JILL])
    assert [{"message_id": "msg_001", "content": "password: 1234"}] == viewer.extract_dialog([JILL], original=True)
    assert [{"message_id": "msg_001", "content": "password: 1234"}] == viewer.extract_dialog([JILL, JACK])


def test_created_without_a_cause():
    """An agent whose creation names no cause, though it is not the first, is one more root (S1-54)."""
    events = [
        {"message_id": "msg_001", "event_type": "agent_created", "agent_id": ROOT},
        {"message_id": "msg_003", "event_type": "transcript_entry", "agent_id": ROOT, "role": "assistant", "tool_calls": []},
        {"message_id": "msg_004", "event_type": "agent_created", "agent_id": JACK, "name": "Jack"},
        {"message_id": "msg_005", "event_type": "transcript_entry", "agent_id": JACK, "role": "assistant", "content": "Hi"},
    ]
    viewer = SessionViewer(events)
    assert [(ROOT, 0), (JACK, 0)] == [(one.agent_id, one.depth) for one in viewer.agent_tree()]
    assert [{"message_id": "msg_005", "content": "Hi"}] == viewer.extract_dialog([JACK])
