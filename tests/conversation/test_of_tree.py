"""The conversation in a tree that was captured as sessions, turns and calls."""

import pytest

import optree
from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.of_tree import events_of
from optree.conversation.viewer import SessionViewer
from optree.testing import capture
from tests.growth import SQUARE, growth

SYSTEM = {"role": "system", "content": "Be brief."}
RULES = "Be brief. " * 100


def user(text):
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(text):
    """Return an assistant's message."""
    return {"role": "assistant", "content": text}


def ask(messages, answer, **request):
    """Record a model call."""
    with optree.llm(provider="openai", model="gpt-4o") as op:
        op.request(messages=messages, **request)
        op.response(answer)


def recorded(program):
    """Return the events of what a program records as one session."""
    with capture() as recording:
        program()
    return events_of(recording.tree)


def said(events, agent=None):
    """Return role and content of the entries, of one agent or of all."""
    return [(one.role, one.content) for one in events if isinstance(one, TranscriptEntry) and agent in (None, one.agent_id)]


def test_growing_history():
    """Histories that send all again are one transcript, each message once; two equal messages stay two (S0-09)."""

    def program():
        history = [SYSTEM, user("yes")]
        with optree.session("agent"), optree.turn():
            ask(history, "A")
            history += [assistant("A"), user("yes")]
            ask(history, "A")
            history += [assistant("A"), user("yes"), user("yes")]
            ask(history, "B")

    events = recorded(program)
    expected = ["Be brief.", "yes", "A", "yes", "A", "yes", "yes", "B"]
    assert expected == [content for _, content in said(events)]
    assert [f"msg_{number:03d}" for number in range(1, 10)] == [event.message_id for event in events]
    assert sorted(event.timestamp for event in events) == [event.timestamp for event in events]


@pytest.mark.parametrize(
    "sent",
    [
        {"messages": [user("q")], "system": [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}]},
        {"messages": [user("q")], "system": RULES},
        {"input": [user("q")], "instructions": RULES},
        {"contents": [user("q")], "systemInstruction": {"parts": [{"text": RULES}]}},
        {"messages": {"system": RULES, "messages": [user("q")]}},
    ],
    ids=["anthropic, for the cache", "anthropic", "responses", "gemini", "a whole body"],
)
def test_long_instructions(sent):
    """Instructions beside the history that are so long that they are in the pool are told in words, once."""

    def program():
        with optree.session("agent"), optree.turn():
            for answer in ("a", "b"):
                with optree.llm(provider="openai", model="gpt-4o") as op:
                    op.request(**sent)
                    op.response(answer)

    assert [("system", RULES), ("user", "q"), ("assistant", "a"), ("assistant", "b")] == said(recorded(program))


def test_compacted_history():
    """A history that was compacted adds what is new in it: what was there stays, and what was kept is not repeated."""

    def program():
        with optree.session("agent"), optree.turn():
            ask([SYSTEM, user("1"), assistant("one"), user("2")], "two")
            ask([SYSTEM, user("summary of 1"), user("2"), assistant("two"), user("3")], "three")
            ask([SYSTEM, user("summary of 1"), user("2"), assistant("two"), user("3"), assistant("three"), user("1")], "one")

    contents = [content for _, content in said(recorded(program))]
    assert ["Be brief.", "1", "one", "2", "two", "summary of 1", "3", "three", "1", "one"] == contents


def test_failed_attempt():
    """A call that failed and is made again sends nothing new (S0-09)."""

    def program():
        with optree.session("agent"), optree.turn():
            with optree.llm("m") as op:
                op.request(messages=[user("q")])
                op.end("failed", "429")
            ask([user("q")], "a")

    assert [("user", "q"), ("assistant", "a")] == said(recorded(program))


def test_parallel_calls():
    """Calls of one agent at the same time, with histories of their own, share what they have in common (S0-09)."""

    def program():
        with optree.session("agent"), optree.turn():
            ask([SYSTEM, user("left")], "L")
            ask([SYSTEM, user("right")], "R")
            ask([SYSTEM, user("left"), assistant("L"), user("more")], "LL")

    contents = [content for _, content in said(recorded(program))]
    assert ["Be brief.", "left", "L", "right", "R", "more", "LL"] == contents


def test_tool_results():
    """Results that the next request sends count once; where no request follows, they come from the op that ran (S0-34)."""

    @optree.tool
    def search(query):
        return f"found {query}"

    def calls(number):
        function = {"name": "search", "arguments": f'{{"query": "{number}"}}'}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}

    def program():
        with optree.session("agent"), optree.turn():
            ask([user("q")], calls(1))
            result = {"role": "tool", "tool_call_id": "c1", "content": search("1")}
            ask([user("q"), calls(1), result], calls(2))
            search("2")

    events = [event for event in recorded(program) if isinstance(event, TranscriptEntry)]
    assert [("user", None), ("assistant", None), ("tool", "c1"), ("assistant", None), ("tool", "c2")] == [
        (event.role, event.tool_call_id) for event in events
    ]
    assert ["found 1", "found 2"] == [event.content for event in events if event.role == "tool"]
    assert ["c1", "c2"] == [event.tool_calls[0]["id"] for event in events if event.tool_calls]


def test_plain_messages():
    """Messages that the program appends are the transcript, whatever its calls sent; ids are given in the order of time (S0-09)."""

    def program():
        with optree.session("agent") as session, optree.turn():
            session.message("hello")
            ask([user("hello"), user("not in the transcript")], "hi")
            session.message(assistant("hi"))

    events = recorded(program)
    assert [("user", "hello"), ("assistant", "hi")] == said(events)
    assert ["msg_001", "msg_002", "msg_003"] == [event.message_id for event in events]


def test_messages_with_ids():
    """Messages keep their ids and links, and what has none gets ids that follow (S0-30, S1-14)."""

    def program():
        with optree.session("agent") as session, optree.turn():
            session.message({"role": "piece_of_text", "content": "a prompt"}, message_id="msg_041", cause="msg_040")
            session.message(user("[x]: a prompt"), message_id="m", substance="msg_041")
            session.message("more")

    events = recorded(program)
    made, heard, more = events[1:]
    assert isinstance(made, PieceOfText)
    assert ("msg_041", ("msg_040",), "a prompt") == (made.message_id, made.cause, made.content)
    assert ("m", "msg_041") == (heard.message_id, heard.substance)
    assert ["msg_042", "msg_043"] == [events[0].message_id, more.message_id]


def test_sub_agents():
    """Each session is an agent below its parent's; a second one of a name is told from the first (S0-101)."""

    def program():
        with optree.session("lead"), optree.turn():
            for question in ("one", "two"):
                with optree.session("reader"), optree.turn():
                    ask([user(question)], question.upper())

    events = recorded(program)
    created = [event for event in events if isinstance(event, AgentCreated)]
    assert [("lead", None), ("reader", "lead"), ("reader@1.2", "lead")] == [(one.agent_id, one.parent) for one in created]
    assert [("lead", None), ("reader", "openai:gpt-4o"), ("reader", "openai:gpt-4o")] == [(one.name, one.language_model) for one in created]
    assert [("user", "two"), ("assistant", "TWO")] == said(events, "reader@1.2")


def test_turns_only():
    """Where no request was recorded, turns tell what was asked and answered (S0-09)."""

    def program():
        with optree.session("agent"), optree.turn(user="why?", system="Be brief.") as turn:
            turn.assistant("because")

    assert [("system", "Be brief."), ("user", "why?"), ("assistant", "because")] == said(recorded(program))


def test_no_messages_at_all():
    """A session in which nothing was said is an agent with an empty transcript."""

    def program():
        with optree.session("agent"), optree.turn(), optree.tool("t"):
            pass

    [only] = recorded(program)
    assert ("agent", "msg_001") == (only.agent_id, only.message_id)


def test_thoughts():
    """Reasoning that was streamed is a thought in the agent's perspective, before what it said (S0-105)."""

    def program():
        with optree.session("agent"), optree.turn(), optree.llm("m") as op:
            op.request(messages=[user("q")])
            op.think("let me ")
            op.think("see")
            op.response("a")

    with capture() as recording:
        program()
    assert "[Heard]: q\n[Thought]: let me see\n[Said]: a" == SessionViewer(recording.tree).extract_agent_perspective("agent")


def test_every_source(tmp_path, monkeypatch):
    """A viewer takes a live session, a tree, what was loaded, and a saved session by its txn or its file (S1-43)."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    with optree.session("agent") as session, optree.turn():
        session.message("hello")
        live = SessionViewer(session).get_transcript("agent")
    assert optree.flush("snapshot", 60)
    loaded = optree.load(session.txn)
    [path] = tmp_path.rglob("*.json.zst")
    assert [live] * 4 == [SessionViewer(source).get_transcript("agent") for source in (loaded, loaded.tree, session.txn, path)]
    assert "hello" == live[0]["content"]


def test_what_could_not_be_read_of_a_saved_session_is_among_the_faults(tmp_path, monkeypatch):
    """Views of a saved session say in their faults what of it could not be read."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    with optree.session("agent"), optree.turn(user="q"), optree.tool("search") as op:
        op.log("found")
    assert optree.flush("snapshot", 60)
    [path] = tmp_path.rglob("*.json.zst")
    path.write_bytes(path.read_bytes()[:-20])
    assert optree.load(path).damage.lost() == [fault.said for fault in SessionViewer(path).faults] != []


@pytest.mark.slow
def test_linear():
    """Calls that each send the whole history again are read in time as their number deserves: each message once (S0-109)."""

    def reading(calls):
        history = [SYSTEM]
        with capture() as recording, optree.session("agent"), optree.turn():
            for number in range(calls):
                history.append(user(f"question {number}"))
                ask(history, f"answer {number}")
                history.append(assistant(f"answer {number}"))
        assert 2 * calls + 2 == len(events_of(recording.tree))
        return lambda: events_of(recording.tree)

    assert SQUARE > growth(reading, 60)
