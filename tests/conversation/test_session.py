import gzip
import threading

import pytest

from optree.conversation import LoggedString, MessageString, Session, SessionLogger, load_session, read_events
from optree.errors import FormatError, NotFoundError, SetupError
from tests.conversation.conftest import lines

HELLO = {"role": "user", "content": "Hello"}


@pytest.fixture
def session(file):
    """Return a new session in a file."""
    with Session(file) as found:
        yield found


def test_new(file, session):
    """A new session gives agents and messages ids of three digits, from one on, in one space for all events (S0-08, S0-14, S0-30).

    Agent ids are the session's to give (S1-04, S1-14, S1-26, S1-30).
    """
    assert ["agent_001", "agent_002"] == [session.allocate_agent_id() for _ in range(2)]
    assert "msg_001" == session.log_agent_created("agent_001", language_model="m")
    assert "msg_002" == session.log_transcript_entry("agent_001", HELLO)
    assert "msg_003" == session.log_piece_of_text("agent_001", "Meet", "msg_002")
    assert "msg_004" == session.log_agent_created("agent_002", "msg_002", "Jack", "m")
    assert ["msg_001", "msg_002", "msg_003", "msg_004"] == [event["message_id"] for event in lines(file)]


def test_lines(file, session):
    """Each event is one line, there as soon as the call returns, behind all that was before (S0-04, S0-05, S0-35, S0-61, S1-02, S1-31)."""
    before = b""
    for number in range(20):
        session.log_transcript_entry(f"agent_{number % 3}", {"role": "user", "content": f"line\nbreak {number}"})
        data = file.read_bytes()
        assert data.startswith(before)
        assert (number + 1, b"\n") == (data.count(b"\n"), data[-1:])
        before = data
    assert {"agent_0", "agent_1", "agent_2"} == {event["agent_id"] for event in lines(file)}


def test_what_is_written(file, session):
    """The three kinds of events have the members that seed 001 gives them, and nothing beside what happened (S0-12, S0-36, S1-27..29)."""
    session.log_agent_created("agent_001", cause=None, name=None, language_model="m")
    call = {"id": "c", "type": "function", "function": {"name": "task", "arguments": "{}"}}
    session.log_transcript_entry("agent_001", {"role": "assistant", "content": None, "tool_calls": [call]})
    session.log_agent_created("agent_002", "msg_002", "Jack", "m")
    session.log_piece_of_text("agent_001", "Meet", ["msg_001", "msg_002"])
    session.log_transcript_entry("agent_002", {"role": "user", "content": "Meet"}, substance="msg_004")
    session.log_transcript_entry("agent_001", {"role": "tool", "content": "done", "tool_call_id": "c", "name": "task"})
    kinds = {"agent_created", "transcript_entry", "piece_of_text"}
    found = lines(file)
    assert kinds == {event["event_type"] for event in found}
    assert [
        {"agent_id": "agent_001", "language_model": "m"},
        {"agent_id": "agent_001", "role": "assistant", "tool_calls": [call]},
        {"agent_id": "agent_002", "cause": "msg_002", "name": "Jack", "language_model": "m"},
        {"agent_id": "agent_001", "content": "Meet", "cause": ["msg_001", "msg_002"]},
        {"agent_id": "agent_002", "role": "user", "content": "Meet", "substance": "msg_004"},
        {"agent_id": "agent_001", "role": "tool", "tool_call_id": "c", "content": "done", "name": "task"},
    ] == [{key: value for key, value in event.items() if key not in ("message_id", "event_type")} for event in found]


def test_beyond_999(file, session):
    """The counter goes on beyond three digits, and is restored there (S0-14)."""
    for _ in range(999):
        session.log_transcript_entry("agent_001", HELLO)
    assert "msg_1000" == session.log_transcript_entry("agent_001", HELLO)
    with Session.load(file) as again:
        assert "msg_1001" == again.log_transcript_entry("agent_001", HELLO)


def test_substance_or_cause(file, session):
    """Substance and cause together are refused, with what to do; nothing is written. A piece of text takes no substance (S1-10, S1-12)."""
    with pytest.raises(SetupError, match="give the substance alone if it is the same content"):
        session.log_transcript_entry("agent_001", HELLO, "msg_001", cause="msg_002")
    assert b"" == file.read_bytes()
    with pytest.raises(TypeError):
        session.log_piece_of_text("agent_001", "text", "msg_001", substance="msg_001")


def test_jack_is_not_jill(file):
    """A sub-agent that has gone keeps its id: after a resume the next one gets another (S1-19, S1-20, S1-22, S0-67)."""
    with Session(file) as session:
        root, jack = session.allocate_agent_id(), session.allocate_agent_id()
        session.log_agent_created(root)
        session.log_agent_created(jack, "msg_001", "Jack")
        session.evict(jack)
    with Session.load(file) as session:
        jill = session.allocate_agent_id()
        assert ("agent_002", "agent_003") == (jack, jill)
        assert "msg_003" == session.log_agent_created(jill, "msg_001", "Jill")


def test_only_load_resumes(file):
    """A session that exists cannot be begun anew, which would leave its counters behind: the error says what to do (S1-22, S1-30)."""
    with Session(file) as session:
        session.log_transcript_entry("agent_001", HELLO)
    with pytest.raises(SetupError, match=r"Session\.load\('.*session\.jsonl'\) goes on with it"):
        Session(file)
    with pytest.raises(NotFoundError, match=r"missing\.jsonl is not there: Session\('.*missing\.jsonl'\) begins a session in it"):
        Session.load(file.with_name("missing.jsonl"))
    assert not file.with_name("missing.jsonl").exists()


@pytest.mark.parametrize(
    ("there", "message", "agent"),
    [
        ('{"message_id": "msg_7", "event_type": "agent_created", "agent_id": "agent_9"}', "msg_008", "agent_010"),
        ('{"message_id": 41, "event_type": "agent_created", "agent_id": "agent_root"}', "42", "agent_001"),
        ('{"message_id": "x", "event_type": "transcript_entry", "agent_id": "agent_jill_inner", "role": "user"}', "msg_001", "agent_001"),
        ('{"message_id": "a", "event_type": "piece_of_text", "agent_id": "agent_004", "cause": "msg_5.c"}', "msg_006", "agent_005"),
        (
            '{"message_id": "a", "event_type": "transcript_entry", "agent_id": "b", "role": "u", "substance": "msg_15"}',
            "msg_016",
            "agent_001",
        ),
        ('{"message_id": "msg_٣", "event_type": "agent_created", "agent_id": "agent_٣"}', "msg_001", "agent_001"),
        ('{"message_id": "msg_' + "9" * 700 + '", "event_type": "agent_created", "agent_id": "agent_"}', "msg_001", "agent_001"),
        ('{"message_id": "msg_2", "event_type": "agent_created", "agent_id": "a", "parent": "agent_006"}', "msg_003", "agent_007"),
        ('{"message_id": torn', "msg_001", "agent_001"),
    ],
    ids=["short", "number", "names", "caused", "referred to", "other digits", "too long", "parent", "none"],
)
def test_ids_of_any_form(file, there, message, agent):
    """Whatever form ids have, what is given later collides with none in the file, also where it is only referred to (S1-35, S1-36)."""
    file.write_text(there + "\n")
    with Session.load(file) as session:
        assert agent == session.allocate_agent_id()
        assert message == session.log_agent_created(agent)
    events, _ = read_events(file)
    assert len(events) == len({event.message_id for event in events}) == len({event.agent_id for event in events})


def test_registry(example):
    """Loading reads once what is known of each agent that ever lived, and no transcript is kept for it (S1-03, S1-21, S1-25, S1-34)."""
    with Session.load(example("seed001_jack_and_jill")) as session:
        found = session.list_agents()
        assert ["agent_root", "agent_jack", "agent_jill"] == list(found)
        jack = found["agent_jack"]
        assert ("Jack", "anthropic/claude-sonnet-4-5-20250929", "agent_root", ("msg_003",)) == (
            jack.name, jack.language_model, jack.parent, jack.cause,
        )  # fmt: skip
        assert (8, 4, 4) == tuple(one.entries for one in found.values())
        assert {} == session.agents
        assert ("agent_001", "msg_021") == (session.allocate_agent_id(), session.log_agent_created("agent_001"))


def test_revive_and_evict(example):
    """Any agent that ever lived comes back with its whole transcript; one that is in memory is the same object (S1-32, S1-33)."""
    root, session = load_session(example("seed001_jack_and_jill"))
    jack = root.subagents["Jack"]
    assert jack is session.revive("agent_jack")
    session.evict("agent_jack")
    session.evict("agent_jack")
    assert ["Jill"] == list(root.subagents)
    again = session.revive("agent_jack")
    assert again is not jack
    assert jack.transcript == again.transcript
    assert ("Jack", jack.language_model) == (again.name, again.language_model)
    assert again is root.subagent("Jack")
    again.harken("one more")
    session.evict("agent_jack")
    assert {"role": "user", "content": "one more"} == session.revive("agent_jack").transcript[-1]
    with pytest.raises(NotFoundError, match="no agent 'agent_9' in this session; there are: agent_root, agent_jack, agent_jill"):
        session.revive("agent_9")


def test_many_transient_agents(file):
    """A long session of many agents that come and go keeps only those that are in memory (S1-33)."""
    root, session = load_session(file)
    for number in range(300):
        root.create(f"helper {number}", "Help.")
        session.evict(f"agent_{number + 2:03d}")
    assert (["agent_001"], {}, 301) == (list(session.agents), root.subagents, len(session.list_agents()))
    assert [{"role": "system", "content": "Help."}] == session.revive("agent_150").transcript


def test_ready_for_a_provider(example):
    """Two results for one call load and stay in the transcript, while a provider is given one, and one for a call without (S1-59)."""
    with Session.load(example("seed001_jack_and_jill")) as session:
        whole, ready = session.transcript("agent_root"), session.messages("agent_root")
        assert (2, 1) == tuple(sum(one.get("tool_call_id") == "c3" for one in some) for some in (whole, ready))
    with Session.load(example("seed001_inner_monologue")) as session:
        [lost] = [one for one in session.messages("agent_jill") if one.get("tool_call_id") == "c4"]
        assert lost["content"].startswith("[interrupted")


def test_logged_strings_as_ids(file, session):
    """Where an id is asked for, a text that carries one will do."""
    first = LoggedString("Hello", session.log_transcript_entry("agent_001", HELLO))
    session.log_transcript_entry("agent_002", {"role": "user", "content": LoggedString("[Jack]: Hello", "msg_001")}, first)
    session.log_piece_of_text("agent_001", MessageString("x"), [first])
    assert ["msg_001", "[Jack]: Hello"] == [lines(file)[1][key] for key in ("substance", "content")]
    assert "msg_001" == lines(file)[2]["cause"]


class Completion:
    """What a provider's library returns."""

    def model_dump(self):
        """Return the message as plain values."""
        return {"role": "assistant", "content": "Hi", "refusal": None}


@pytest.mark.parametrize(
    ("message", "role", "content"),
    [
        (Completion(), "assistant", "Hi"),
        ("Hi", "user", "Hi"),
        ({}, "unknown", None),
        ({"role": 3, "content": b"\xff"}, "unknown", {"$bytes": "/w=="}),
    ],
    ids=["a library's", "text", "empty", "wrong types"],
)  # fmt: skip
def test_any_message(file, session, message, role, content):
    """Whatever is logged as a message is, in some form, and nothing raises into the agent."""
    session.log_transcript_entry("agent_001", message)
    [event], faults = read_events(file)
    assert (role, content, []) == (event.role, event.content, faults)


def test_exactly(file, session):
    """A transcript is rebuilt as it was logged: tool calls, results, names, and members unknown to the seeds (S0-03, S0-09, S0-63)."""
    call = {"id": "c", "type": "function", "function": {"name": "task", "arguments": "{}"}}
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "done", "tool_call_id": "c", "name": "task"},
        {"role": "assistant", "content": "日本 \u2028 \x00 “quotes”", "name": "bot"},
    ]
    for one in said:
        session.log_transcript_entry("agent_001", one)
    with Session.load(file) as again:
        assert said == again.transcript("agent_001")


def test_compressed_is_refused(tmp_path):
    """A packed file cannot be appended to: it is refused, with what to do."""
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(FormatError, match="unpack it first"):
        Session.load(path)


def test_threads(file, session, monkeypatch):
    """Threads that log at once get different ids, and every line is whole, in the order of its id."""
    monkeypatch.setattr("optree._store.files.line_log.WAIT_SECONDS", 60.0)  # who has waited longer for the others has an id of its own kind

    def log(agent):
        for _ in range(100):
            session.log_transcript_entry(agent, HELLO)

    threads = [threading.Thread(target=log, args=(f"agent_{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [f"msg_{number:03d}" for number in range(1, 401)] == [event["message_id"] for event in lines(file)]


# Seed 000's logger


def test_logger(file):
    """The logger of seed 000 has its methods and its members, ids that go on after those in the file, and 0 for none (S0-56..60).

    A piece of text names no agent, and only what is set is written (S0-22, S0-23, S0-24).
    """
    logger = SessionLogger(file)
    assert (0, 1) == (logger._get_last_message_id(), logger.message_counter)
    assert "msg_001" == logger.log_agent_created(agent_id="agent_001", language_model="m")
    assert "msg_002" == logger.log_transcript_entry(
        agent_id="agent_001", message={"role": "assistant", "content": None, "tool_calls": [{}]}
    )
    assert "msg_003" == logger.log_piece_of_text(content="Meet", caused_by="msg_002")
    assert "msg_004" == logger.log_piece_of_text("alone")
    assert "msg_005" == logger.log_agent_created("agent_002", name="Jack", language_model="m")
    assert "msg_006" == SessionLogger(file).log_transcript_entry("agent_002", {"role": "user", "content": "Meet"}, content_id="msg_003")
    entry, created = {"event_type": "transcript_entry"}, {"event_type": "agent_created", "language_model": "m"}
    piece = {"event_type": "piece_of_text"}
    assert [
        {**created, "message_id": "msg_001", "agent_id": "agent_001"},
        {**entry, "message_id": "msg_002", "agent_id": "agent_001", "role": "assistant", "content": None, "tool_calls": [{}]},
        {**piece, "message_id": "msg_003", "content": "Meet", "caused_by": "msg_002"},
        {**piece, "message_id": "msg_004", "content": "alone"},
        {**created, "message_id": "msg_005", "agent_id": "agent_002", "name": "Jack"},
        {**entry, "message_id": "msg_006", "agent_id": "agent_002", "role": "user", "content": "Meet", "content_id": "msg_003"},
    ] == lines(file)


def test_logger_appends(file):
    """The logger never changes what is in the file, and two of them on one file give no id twice (S0-56, S0-61)."""
    first, second = SessionLogger(file), SessionLogger(file)
    ids = [logger.log_transcript_entry("agent_001", HELLO) for logger in (first, second) * 3]
    assert [f"msg_{number:03d}" for number in range(1, 7)] == ids


def test_a_file_keeps_its_form(example):
    """A file of seed 000 is gone on with in its own form, unless another is asked for (S1-61)."""
    path = example("seed000_jack_and_jill")
    with Session.load(path) as session:
        session.log_transcript_entry("agent_jill", HELLO, "msg_018")
    assert "msg_018" == lines(path)[-1]["content_id"]
    with Session.load(path, version=2) as session:
        session.log_transcript_entry("agent_jill", HELLO, "msg_018")
    assert "msg_018" == lines(path)[-1]["substance"]


def test_strange_arguments(file, session):
    """Whatever a program gives for ids, names and causes is taken as text: nothing raises into the agent."""
    session.log_agent_created(7, 3, b"Jack", 5)
    session.log_transcript_entry(None, HELLO, 12, cause=None)
    session.log_piece_of_text(7, object, {"msg_001"})
    assert ["7", "3"] == [lines(file)[0][key] for key in ("agent_id", "cause")]
    assert "msg_014" == session.log_transcript_entry("a", HELLO, cause=[1, 2])  # after 12, and the text
    assert ([], 4) == (read_events(file)[1], len(lines(file)))


def test_calls_with_strange_ids(session):
    """Tool calls whose ids are no texts do not keep a transcript from being read."""
    odd = {"role": "assistant", "content": None, "tool_calls": [{"id": ["x"], "function": {"name": "t"}}, {"id": {}}, {}]}
    session.log_transcript_entry("a", odd)
    session.log_transcript_entry("a", {"role": "assistant", "tool_calls": 7})
    assert [odd, {"role": "assistant", "content": None, "tool_calls": 7}] == session.messages("a")
