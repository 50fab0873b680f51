import threading

import pytest

import optree
from optree._builder import SessionTreeBuilder, Stream
from optree._tree import walk_ops
from optree.errors import SetupError
from optree.exporting import OpEnd, RecordSubscription
from optree.testing import Ticking, capture, shape
from optree_formats.markdown import FORMAT, EventLog, extract_events, follow, live, read_log, verify
from tests.formats.held import whole
from tests.otel.backends.waiting import wait_for


def work():
    """Run an agent with a model call, a tool, a failure and a sub-agent."""
    with optree.turn(user="Where?"):
        with optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[{"role": "user", "content": "Where?"}])
            op.think("maps")
            op.log("slow", severity="WRN")
            op.account(input_tokens=812, output_tokens=64, cost_usd=0.0031)
            op.response({"role": "assistant", "content": "I look it up."})
        with optree.tool("search") as op:
            op.request(query="Paris", headers={"Authorization": "Bearer secret-token-1234567890"}, key="sk-abcdefghijklmnopqrst")
            op.response("found")
        with optree.session(agent="writer"), optree.turn(user="write"), optree.tool("save") as op:
            op.end("failed", "FileNotFoundError: no such file")


def test_log_grows_while_a_session_runs(tmp_path):
    """A session's log is there while it runs, reads back as its tree, and gets its end and summary (S3-01, S3-03, S3-64)."""
    path = tmp_path / "live" / "session-log.md"
    with capture(Ticking(step=0.1)) as recording:
        with optree.session(agent="researcher"):
            following = follow(optree.current_session(), path, verbosity="verbose")
            with optree.turn(user="first"), optree.tool("look") as op:
                op.request(at="sky")
                assert following.flush(10)
                assert ["session_start", "user_message", "tool_call"] == [fields["type"] for fields in extract_events(path)]
            work()
        assert following.close(10)
    assert (0, "") == following.failures
    read = FORMAT.read(path, strict=True)
    assert shape(recording.tree) == shape(read.trees[0])
    live, back = ({op.path: op for _, _, op in walk_ops(tree.session)} for tree in (recording.tree, read.trees[0]))
    assert [(op.attributes, op.error, op.latency) for op in live.values()] == [
        (op.attributes, op.error, op.latency) for op in back.values()
    ]
    assert recording.tree.session.totals == read.trees[0].session.totals
    assert "session_end" == extract_events(path)[-1]["type"]
    assert [] == verify(path)
    assert "search: 1" in path.with_name("session-summary.yml").read_text()


def test_credentials_stay_out_of_live_logs(tmp_path):
    """A log in a project's directory may be committed: credentials are replaced unless one asks for them."""
    with capture(Ticking()), optree.session(agent="researcher"):
        following = follow(optree.current_session(), tmp_path / "a", verbosity="verbose")
        work()
        assert following.close(10)
    text = (tmp_path / "a" / "session-log.md").read_text()
    assert "sk-abcdefghijklmnopqrst" not in text
    assert "secret-token-1234567890" not in text
    assert "[REDACTED]" in text


def test_minimal_log(tmp_path):
    """Production's level has types, times and outcomes only (S3-35, S3-36)."""
    with capture(Ticking()), optree.session(agent="researcher"):
        following = follow(optree.current_session(), tmp_path / "a", verbosity="minimal")
        work()
        assert following.close(10)
    text = (tmp_path / "a" / "session-log.md").read_text()
    assert ["why"] == [line.split(":")[0].strip() for line in text.split("\n") if "I look it up." in line]
    assert "Where?" not in text
    kinds = [entry.kind for entry in read_log(tmp_path / "a" / "session-log.md").entries]
    assert {"tool_call", "tool_result", "tool_error", "model_output", "agent_start", "agent_end"} <= set(kinds)


def test_the_program_does_not_wait_for_the_log(tmp_path):
    """The program goes on while nothing can be written, and what happened meanwhile is in the log when it can."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream)
    following = follow(builder, tmp_path / "a")
    log = following.log
    log._lock.acquire()
    try:
        for _ in range(200):
            builder.begin_op("tool", "x").end()  # would not return if it waited: this thread holds the lock
        assert 0 == builder.core.stream.late
    finally:
        log._lock.release()
    builder.end_session()
    assert following.close(30)
    assert 200 == sum(fields["type"] == "tool_result" for fields in extract_events(log.path))
    stream.close()


def test_log_that_begins_in_the_middle(tmp_path):
    """A log may begin when turns, ops and sub-agents are open already: they are in it, and all that follows (S3-01)."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream, now=Ticking())
    turn = builder.begin_turn(user="before")
    host = builder.begin_op("session", "writer", turn=turn)
    child = builder.attach_child_session(host, "writer")
    following = follow(builder, tmp_path / "a", verbosity="verbose")
    child.begin_op("tool", "save").end()
    child.end_session()
    host.end()
    turn.end()
    builder.end_session()
    assert following.close(10)
    assert (0, "") == following.failures
    kinds = [fields["type"] for fields in extract_events(following.log.path)]
    assert ["session_start", "user_message", "agent_call", "agent_start", "turn_start", "tool_call", "tool_result"] == kinds[:7]
    assert ["turn_end", "agent_end", "agent_result", "turn_end", "session_end"] == kinds[7:]
    assert shape(builder.tree) == shape(FORMAT.read(following.log.path, strict=True).trees[0])
    stream.close()


def test_what_comes_late_is_added(tmp_path):
    """Entries that come after their op's end are additions to it, and read back as the op's own."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream, now=Ticking())
    following = follow(builder, tmp_path / "a", verbosity="verbose")
    op = builder.begin_op("llm", "m")
    op.end()
    op.log("late")
    op.account(input_tokens=5)
    builder.set_title("found later")
    assert wait_for(lambda: following.flush() and len(extract_events(following.log.path)) >= 6)
    assert following.close(10)
    (tree,) = FORMAT.read(following.log.path, strict=True).trees
    back = tree.session.turns[0].ops[0]
    assert (["late"], 5) == ([entry.message for entry in back.logs], tree.session.totals.input_tokens)
    assert "found later" == tree.session.session_title
    stream.close()


def test_faults_are_counted_not_raised(tmp_path):
    """A log that can no longer be written costs the program nothing; the faults are counted."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream)
    following = follow(builder, tmp_path / "a")
    following.log.close()
    worker = threading.Thread(target=lambda: builder.begin_op("tool", "x").end())
    worker.start()
    worker.join(10)
    assert wait_for(lambda: following.failures[0] > 0)
    assert "closed" in following.failures[1]
    following.close()
    stream.close()


def test_ended_log_is_taken_up_again(tmp_path):
    """A session that is followed again goes on in its log, behind a resume, and the log of another is refused (S3-01, S3-14)."""
    for _ in range(2):
        stream = Stream([])
        builder = SessionTreeBuilder("lead", txn="t", stream=stream)
        following = follow(builder, tmp_path / "a")
        builder.begin_op("tool", "x").end()
        builder.end_session()
        assert following.close(10)
        stream.close()
    kinds = [fields["type"] for fields in extract_events(following.log.path)]
    assert (2, 1) == (kinds.count("session_end"), kinds.count("session_resume"))
    assert (2, 1) == (kinds.count("tool_result"), kinds.count("session_start"))
    with pytest.raises(SetupError, match="is the log of session t"):
        follow(SessionTreeBuilder("lead", txn="u"), tmp_path / "a")


def test_log_gets_what_it_lacks(tmp_path):
    """A log that was closed, or left by a process that was killed, gets what happened since, and nothing twice (S3-01)."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream, now=Ticking())
    first = follow(builder, tmp_path / "a", verbosity="verbose")
    turn = builder.begin_turn(user="ask")
    builder.begin_op("tool", "one", turn=turn).end()
    assert first.close(10)
    builder.begin_op("tool", "two", turn=turn).end()
    again = follow(builder, tmp_path / "a", verbosity="verbose")
    turn.end()
    builder.end_session()
    assert again.close(10)
    kinds = [fields["type"] for fields in extract_events(again.log.path)]
    assert ["session_start", "user_message", *["tool_call", "tool_result"] * 2, "turn_end", "session_end"] == kinds
    assert shape(builder.tree) == shape(FORMAT.read(again.log.path, strict=True).trees[0])
    stream.close()


def test_sub_agent_that_begins_while_the_log_is_opened(tmp_path, monkeypatch):
    """What begins while the log is opened is in it (S3-01)."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream)
    host = builder.begin_op("session", "writer", turn=builder.begin_turn())
    children = []

    def slow(*given, **more):
        children.append(builder.attach_child_session(host, "writer"))
        return EventLog(*given, **more)

    monkeypatch.setattr(live, "EventLog", slow)
    following = follow(builder, tmp_path / "a")
    children[0].begin_op("tool", "save").end()
    builder.end_session()
    assert following.close(10)
    assert (0, "") == following.failures
    assert {"agent_start", "tool_result"} <= {fields["type"] for fields in extract_events(following.log.path)}
    stream.close()


def test_what_an_op_is_given_later_is_in_the_log(tmp_path):
    """Attributes that an op gets after its begin, or its end, and an answer that broke off while it was streamed, read back (S3-01)."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream, now=Ticking())
    following = follow(builder, tmp_path / "a", verbosity="verbose")
    op = builder.begin_op("llm", "m")
    builder.set_request(op, {"temperature": 0})
    builder.set_op(op, region="eu")
    op.chunk("half an ans")
    op.end("cancelled", retried=True)
    builder.set_op(op, rated="bad")
    builder.end_session()
    assert following.close(10)
    (tree,) = FORMAT.read(following.log.path, strict=True).trees
    back = tree.session.turns[0].ops[0]
    assert {"region": "eu", "retried": True, "rated": "bad"} == back.attributes
    assert ('"half an ans"', True) == (bytes(back.response.payload).decode(), back.response.partial)
    stream.close()


def test_other_followers_get_records_whole(tmp_path):
    """A log takes nothing out of the records that it shares with others who follow the session."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream)
    records = []
    following = follow(builder, tmp_path / "a")
    other = RecordSubscription(builder, records.append, name="markdown")  # the same thread, behind the log
    builder.begin_op("tool", "x").end(retried=True)
    assert following.close(10)
    assert other.close(10)
    assert [b'{"retried":true}'] == [bytes(record.attributes) for record in records if isinstance(record, OpEnd)]
    stream.close()


def test_a_request_that_comes_after_a_log_line_is_in_the_log(tmp_path):
    """What an op sends is in the log also where something of the op was written before, and later ops refer to it (S3-01)."""
    stream = Stream([])
    builder = SessionTreeBuilder("lead", txn="t", stream=stream, now=Ticking())
    following = follow(builder, tmp_path / "a", verbosity="verbose")
    messages = [{"role": "user", "content": "Where?"}]
    for number in range(2):
        op = builder.begin_op("llm", "m")
        op.log("asks")
        assert following.flush(10)
        builder.set_request(op, {"temperature": number, "system": "brief " * 200}, messages)
        op.end()
    tool = builder.begin_op("tool", "search")
    tool.log("looks")
    assert following.flush(10)
    builder.set_request(tool, {"query": "Paris", "why": "to know"})
    tool.end()
    builder.end_session()
    assert following.close(10)
    (tree,) = FORMAT.read(following.log.path, strict=True).trees
    assert whole(builder.tree) == whole(tree)
    assert 1 == following.log.path.read_text().count('content: "Where?"')
    stream.close()
