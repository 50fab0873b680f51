"""Views know nothing of tools: patterns of communication that they were not made for come out right."""

import pytest

from optree.conversation import Session, wire
from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.viewer import SessionViewer


class Script:
    """Writes a stream of events, as agents and tools would."""

    def __init__(self, *agents):
        self.events = [AgentCreated(message_id=f"created_{agent}", agent_id=agent) for agent in agents]

    def entry(self, agent, role, content=None, **members):
        """Write an entry; returns its id."""
        return self._add(TranscriptEntry, agent, role=role, content=content, **members)

    def says(self, agent, content):
        """Let an agent say something to nobody yet."""
        return self.entry(agent, "assistant", content)

    def hears(self, agent, content, substance=None):
        """Let an agent hear something."""
        return self.entry(agent, "user", content, substance=substance)

    def calls(self, agent, tool, arguments="{}"):
        """Let an agent call a tool; returns the id of the message."""
        call = {"id": f"call_{len(self.events)}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        return self.entry(agent, "assistant", tool_calls=[call])

    def makes(self, agent, content, cause):
        """Let a tool of an agent make a text for others."""
        return self._add(PieceOfText, agent, content=content, cause=(cause,))

    def view(self):
        """Return the viewer."""
        return SessionViewer(self.events)

    def _add(self, kind, agent, **members):
        event = kind(message_id=f"msg_{len(self.events)}", agent_id=agent, **members)
        self.events.append(event)
        return event.message_id


def contents(lines):
    """Return what the lines of a dialog say."""
    return [line["content"] for line in lines]


def test_broadcast():
    """A broadcast is stored once, whoever hears it, and one line of a dialog (S0-99, S0-25, S0-91)."""
    script = Script("host", "a", "b", "c")
    topic = script.makes("host", "Should we ship?", script.calls("host", "broadcast"))
    for agent in "abc":
        script.hears(agent, "Should we ship?", topic)
    for agent, others, said in (("a", "bc", "Yes."), ("b", "ac", "No.")):
        told = script.says(agent, said)
        for other in others:
            script.hears(other, f"[{agent}]: {said}", told)
    viewer = script.view()
    assert ["Should we ship?", "Yes.", "No."] == contents(viewer.extract_dialog(list("abc"), spoken=True))
    assert ["Should we ship?", "Yes."] == contents(viewer.extract_dialog(["a"], spoken=True))[:2]
    assert ["a", "b", "c"] == [one.agent_id for one in viewer.heard_by(topic)]


def test_whisper():
    """A whisper goes to one agent with the original as its substance, without a text between them (S0-99, S0-92)."""
    script = Script("a", "b", "c")
    told = script.says("a", "psst")
    script.hears("b", "[a whispers]: psst", told)
    viewer = script.view()
    assert ["b"] == [one.agent_id for one in viewer.heard_by(told)]
    assert [] == viewer.extract_dialog(["c"])
    assert [] == viewer.select(event_type="piece_of_text")


def test_translation():
    """A translation is new content, caused by its call, which leads on to who heard it (S0-99, S0-104)."""
    script = Script("a", "b")
    script.says("a", "Guten Tag")
    call = script.calls("a", "translate")
    text = script.makes("a", "Good day", call)
    heard = script.hears("b", "Good day", text)
    viewer = script.view()
    assert [call, text, heard] == [event["message_id"] for event in viewer.trace_message_flow(heard)]
    assert ["Guten Tag", "Good day"] == contents(viewer.extract_dialog(["a", "b"]))


def test_steel_man():
    """A reminder of a hook, and the advocate that it leads to, can be followed by links and by time (S0-95)."""
    script = Script("main", "hook")
    claim = script.says("main", "This is plainly wrong.")
    script.hears("hook", "main said: This is plainly wrong.", claim)
    reminder = script.says("hook", "You disagree: hear the other side at its best.")
    heard = script.hears("main", "Reminder: You disagree: hear the other side at its best.", reminder)
    call = script.calls("main", "task", '{"name": "Advocate"}')
    script.events.append(AgentCreated(message_id="created", agent_id="advocate", name="Advocate", cause=(call,)))
    viewer = script.view()
    assert [reminder, heard] == [event["message_id"] for event in viewer.trace_message_flow(heard)]
    assert ["hook"] == [one.agent_id for one in viewer.heard_by(claim)]
    assert ("advocate", "main") == (viewer.agent_tree()[1].agent_id, viewer.agent_tree()[1].parent)


def test_memory():
    """What a memory hook has heard accumulates in its transcript, and what it injects is a message to the main agent (S0-96)."""
    script = Script("main", "memory")
    for said in ("I like tea.", "I live in Oslo."):
        script.hears("memory", said, script.hears("main", said))
    fact = script.says("memory", "The user likes tea.")
    script.hears("main", "From memory: The user likes tea.", fact)
    viewer = script.view()
    assert ["[Heard]: I like tea.", "[Heard]: I live in Oslo.", "[Said]: The user likes tea."] == (
        viewer.extract_agent_perspective("memory").split("\n")
    )
    assert "[Heard]: From memory: The user likes tea." in viewer.extract_agent_perspective("main")


def test_socratic_teaching():
    """A teacher's strategy is seen in the teacher's transcript, and not from the student's side (S0-97)."""
    script = Script("teacher", "student")
    script.entry("teacher", "system", "Never tell the answer, which is 42.")
    question = script.says("teacher", "What is six times seven?")
    script.hears("student", "What is six times seven?", question)
    viewer = script.view()
    assert "42" in viewer.get_transcript("teacher")[0]["content"]
    student = viewer.extract_agent_perspective("student") + str(viewer.extract_dialog(["student"])) + str(viewer.get_transcript("student"))
    assert "42" not in student


def test_strategy():
    """Goals of a strategist and answers of a tactician are one dialog (S0-98)."""
    script = Script("strategist", "tactician")
    goal = script.says("strategist", "Hold the centre.")
    script.hears("tactician", "Goal: Hold the centre.", goal)
    move = script.says("tactician", "Knight to f3.")
    script.hears("strategist", "Done: Knight to f3.", move)
    assert ["Hold the centre.", "Knight to f3."] == contents(script.view().extract_dialog(["strategist", "tactician"]))


@pytest.mark.parametrize("arguments", ['{"prompt": "Hello"}', "not JSON {", '["Hello"]', ""])
def test_arguments_are_not_read(arguments):
    """Whatever a tool is called and called with, the views are the same: they follow links only (S0-78, S1-51)."""

    def views(tool, given):
        script = Script("a", "b")
        text = script.makes("a", "Hello", script.calls("a", tool, given))
        script.hears("b", "Hello", text)
        viewer = script.view()
        found = viewer.extract_dialog(["a", "b"]), viewer.causality(), viewer.heard_by(text), viewer.propagation(text), viewer.agent_tree()
        return (*found, viewer.trace_message_flow(text)[-1])

    assert views("discuss", '{"speakers": ["b"]}') == views("some-tool-of-tomorrow", arguments)


def test_equal_texts_are_not_one():
    """Two messages with the same words and no link are two contents: nothing is told from texts (S0-78, S0-36)."""
    script = Script("a", "b")
    script.says("a", "yes")
    script.says("b", "yes")
    viewer = script.view()
    assert ["yes", "yes"] == contents(viewer.extract_dialog(["a", "b"]))
    assert {} == viewer.build_causality_index()


def test_the_log_is_what_is_shown():
    """What a viewer gives as events is what was logged, and no view adds to it (S0-36, S0-108)."""
    script = Script("a", "b")
    script.hears("b", "[a]: hi", script.says("a", "hi"))
    viewer = script.view()
    before = [dict(event) for event in viewer.events]
    viewer.timeline(), viewer.hooks(framed=True), viewer.causality(), viewer.agent_tree()
    assert before == SessionViewer(script.events).events
    assert {"message_id", "event_type", "agent_id", "role", "content", "substance"} == set(before[-1])


def test_compiled_result():
    """A result that compiles several messages has them all as parents, and the first in the view of one parent (S1-13)."""
    script = Script("a", "b", "c")
    one, two = script.says("b", "1"), script.says("c", "2")
    call = script.calls("a", "ask")
    text = script._add(PieceOfText, "a", content="1 and 2", cause=(one, f"{two}.call_7", call))
    viewer = script.view()
    assert [one, two, call] == viewer.causality()[text]
    assert one == viewer.build_causality_index()[text]


def test_call_ids_that_come_again():
    """A result belongs to the last call of its id before it, its own agent's rather than another's (S1-18, S0-34)."""
    call = [{"id": "c1", "function": {"name": "t", "arguments": ""}}]
    script = Script("a", "b")
    first = script.entry("a", "assistant", tool_calls=call)
    answer = script.entry("a", "tool", "1", tool_call_id="c1")
    script.entry("b", "assistant", tool_calls=call)
    late = script.entry("a", "tool", "1 again", tool_call_id="c1")
    again = script.entry("a", "assistant", tool_calls=call)
    other = script.entry("a", "tool", "2", tool_call_id="c1")
    index = script.view().build_causality_index()
    assert {answer: first, late: first, other: again} == index


def test_calls_of_another():
    """A result without a call of its own is not linked to another agent's call that has the same id (S1-18, S0-34)."""
    script = Script("a", "b")
    script.entry("a", "assistant", tool_calls=[{"id": "call_0", "function": {"name": "t", "arguments": ""}}])
    script.entry("b", "tool", "r", tool_call_id="call_0")
    assert {} == script.view().causality()


def test_results_in_one_message():
    """A message with the results of two calls ends both, and stands for both (S0-88)."""
    script = Script("a")
    first, second = (
        script.entry("a", "assistant", [{"type": "tool_use", "id": one, "name": "t", "input": {}}]) for one in ("call_x", "call_y")
    )
    both = script.entry("a", "user", [{"type": "tool_result", "tool_use_id": one, "content": "1"} for one in ("call_x", "call_y")])
    viewer = script.view()
    during = {one: [found.message_id for found in viewer.during(one)] for one in (first, second, both)}
    assert {first: [first, second, both], second: [second, both], both: [first, second, both]} == during


def test_delivery_of_nothing():
    """A delivery without content has the original's words only where its author is looked at too (S0-33)."""
    script = Script("jack", "jill")
    script.hears("jill", None, script.says("jack", "the password is 4711"))
    viewer = script.view()
    assert [] == viewer.extract_dialog(["jill"])
    assert "" == viewer.extract_agent_perspective("jill")
    [line] = viewer.extract_dialog(["jack", "jill"], heard=True)
    assert ["the password is 4711"] * 2 == [line["content"], line["heard"][0]["content"]]


def test_heard_in_two_ways():
    """Where an author is not looked at, who heard other words than those that are shown is shown apart (S0-33, S0-102)."""
    script = Script("jack", "jill", "joe", "jim")
    told = script.says("jack", "password: 1234")
    script.hears("jill", "[jack]: password: ***", told)
    joe = script.hears("joe", "[jack]: password: 1234", told)
    script.hears("jim", "[jack]: password: ***", told)
    [line] = script.view().dialog(["jill", "joe", "jim"])
    assert "[jack]: password: ***" == line.content
    assert [joe] == [one.message_id for one in line.apart]


def test_propagation_to_some():
    """Who is not looked at is no hop, and an original of somebody else has the words that were heard (S0-33, S0-106)."""
    script = Script("jack", "jill", "joe")
    told = script.says("jack", "password: 1234")
    script.hears("jill", "password: ***", told)
    script.hears("joe", "password: 1234", told)
    viewer = script.view()
    found = viewer.propagation(told, ["jill"])
    assert ("password: ***", ["jill"]) == (found.content, [hop.agent_id for hop in found.hops])
    assert ["jill"] == [one.agent_id for one in viewer.heard_by(told, ["jill"])]
    assert "password: 1234" == viewer.propagation(told).content
    [change] = viewer.hooks(agents=["jill"])
    assert (None, "password: ***", [("same", "password: ***")]) == (change.original, change.received, change.diff)
    assert [] == viewer.hooks(agents=["jack"])


def test_ids_given_twice():
    """Two messages of one id are two contents, each its own agent's; that is reported (S0-36)."""
    events = [
        TranscriptEntry(message_id="m1", agent_id="boss", role="user", content="for the boss"),
        TranscriptEntry(message_id="m1", agent_id="worker", role="user", content="for the worker"),
    ]
    viewer = SessionViewer(events)
    assert [{"message_id": "m1", "content": "for the worker"}] == viewer.extract_dialog(["worker"])
    assert ["for the boss", "for the worker"] == contents(viewer.extract_dialog(["boss", "worker"]))
    assert [(0, True)] == [(fault.line, "m1 is the id of several events" in fault.said) for fault in viewer.faults]
    assert [] == SessionViewer(events[:1]).faults


def test_conversation_session(tmp_path):
    """A conversation's session, which has events and no tree, has all views (S0-100)."""
    with Session(tmp_path / "session.jsonl") as session:
        session.log_agent_created("agent_001")
        session.log_transcript_entry("agent_001", {"role": "user", "content": "hi"})
        viewer = SessionViewer(session)
    assert "[Heard]: hi" == viewer.extract_agent_perspective("agent_001")
    assert [] == viewer.faults


def test_long_first_line(tmp_path):
    """A file whose first line is longer than what is looked at first is one of events all the same (S0-108)."""
    path = tmp_path / "long.jsonl"
    said = {"m1": "x" * 2_000_000, "m2": "hi"}
    entries = [TranscriptEntry(message_id=one, agent_id="a", role="user", content=content) for one, content in said.items()]
    path.write_bytes(b"".join(wire.line(entry) + b"\n" for entry in entries))
    assert ["m1", "m2"] == [event["message_id"] for event in SessionViewer(path).events]


def test_copy_of_a_copy():
    """A copy of a copy leads to the first original, and says over which copies it came (S0-106)."""
    script = Script("a", "b", "c")
    told = script.says("a", "fire!")
    passed = script.hears("b", "[a]: fire!", told)
    last = script.hears("c", "[b]: smoke!", passed)
    viewer = script.view()
    assert ["b", "c"] == [one.agent_id for one in viewer.heard_by(last)]
    assert [[told], [told, passed]] == [hop.via for hop in viewer.propagation(told).hops]
    assert [passed] == [event["message_id"] for event in viewer.trace_content_references(told)]
    assert [passed, last] == [event["message_id"] for event in viewer.trace_content_references(told, copies=True)]
    assert [False, True] == [hop.changed for hop in viewer.propagation(told).hops]
