import json
import os
import re

import pytest
from msgspec import Raw

from optree import SessionTreeBuilder
from optree import _records as r
from optree._builder import Stream
from optree._console import KEPT_OPS, LINE_BYTES, ConsoleWriter, LineOptions, LineRenderer
from optree._nodes import AS_TOLD, LogEntry, ReasoningChunk
from optree.testing import Ticking

FORM = re.compile(r"\[txn:t\] \[path:[0-9.]*\] \S+ \[(VRB|WRN|ERR|TRC|THK|FIN)\] [→←] (llm|tool|session|system|turn) \S+: .*")
LONG = 30.0


class Keeping:
    """Keeps what it takes."""

    def __init__(self):
        self.records = []

    def take(self, batch):
        """Keep records."""
        self.records += batch


class Lines:
    """Renders what it takes."""

    def __init__(self, **options):
        self.renderer = LineRenderer("t", LineOptions(**options))
        self.lines = []
        self.of = []

    def take(self, batch):
        """Render records."""
        for record in batch:
            found = list(self.renderer.render(record))
            self.lines += found
            self.of += [getattr(record, "path", None)] * len(found)


def run(**options):
    """Run a program with an LLM call, a tool that fails and a sub-agent; return the lines that it makes."""
    lines = Lines(**options)
    stream = Stream([lines], "all")
    root = SessionTreeBuilder("researcher", txn="t", stream=stream, now=Ticking())
    turn = root.begin_turn(user="why?")
    ask = root.begin_op("llm", "openai:gpt-4o")
    ask.request([{"role": "user", "content": "why?"}], headers={"authorization": "Bearer abcdefgh1jkl"}, temperature=0.5)
    ask.think("hm, ")
    ask.log("retrying after 429", "WRN", direction="response")
    ask.log("chunk of SSE", "TRC", direction="response")
    ask.log("quiet")
    ask.response("because")
    ask.account(input_tokens=1812, output_tokens=64, cache_read_tokens=1000, cost_usd=0.0031)
    ask.node.latency = None
    ask.end()
    read = root.begin_op("session", "reader")
    child = root.attach_child_session(read, "reader")
    search = child.begin_op("tool", "mcp:search")
    search.request(query="rain", api_key="s3cret")
    search.response({"error": "gone"})
    search.end("failed", "404: no such page")
    child.end_session("failed", "404")
    read.end("failed", "404")
    turn.end()
    root.end_session()
    stream.close()
    assert "" == stream.last_failure
    return [re.sub(r"latency \d+ ms", "latency 7 ms", line) for line in lines.lines], lines.of


DEFAULT = [
    "[txn:t] [path:1.1] researcher [WRN] ← llm openai:gpt-4o: retrying after 429",
    "[txn:t] [path:1.2.1.1] reader [ERR] ← tool mcp:search: failed: 404: no such page, latency 7 ms, size 16",
    "[txn:t] [path:1.2] reader [ERR] ← session reader: failed: 404",
]
VERBOSE = [
    "[txn:t] [path:] researcher [VRB] → session researcher: begins",
    "[txn:t] [path:1] researcher [VRB] → turn 1: why?",
    re.compile(r"\[txn:t\] \[path:1\.1\] researcher \[VRB\] → llm openai:gpt-4o: request, 1 message, \d+ bytes"),
    DEFAULT[0],
    "[txn:t] [path:1.1] researcher [VRB] → llm openai:gpt-4o: quiet",
    "[txn:t] [path:1.1] researcher [THK] ← llm openai:gpt-4o: hm, ",
    "[txn:t] [path:1.1] researcher [VRB] ← llm openai:gpt-4o: ok, latency 7 ms, size 7, tokens 1,812→64, cached 1,000, cost $0.003100",
    "[txn:t] [path:1.2] reader [VRB] → session reader: begins",
    "[txn:t] [path:1.2.1] reader [VRB] → turn 1: ",
    re.compile(r"\[txn:t\] \[path:1\.2\.1\.1\] reader \[VRB\] → tool mcp:search: request, \d+ bytes"),
    DEFAULT[1],
    "[txn:t] [path:1.2.1] reader [VRB] ← turn 1: failed",
    DEFAULT[2],
    "[txn:t] [path:] researcher [FIN] ← session researcher: ok",
]


def matches(expected, found):
    """Compare line by line; an expected line may be a pattern."""
    assert len(expected) == len(found), "\n".join(found)
    for one, line in zip(expected, found, strict=True):
        if isinstance(one, re.Pattern):
            assert one.fullmatch(line), line
        else:
            assert one == line


def test_default():
    """By default there are lines for warnings and errors only (S4-118)."""
    assert DEFAULT == run()[0]


def test_verbose():
    """Verbose adds one summary a request and response, with latency, sizes, tokens and cost (S4-43, S4-44, S4-119)."""
    matches(VERBOSE, run(verbose=True)[0])


def test_trace_llm():
    """Tracing LLMs adds what was sent, received and logged in detail at the LLM op's path, redacted (S4-48, S4-120)."""
    added = [line for line in run(trace_llm=True)[0] if line not in DEFAULT]
    assert 3 == len(added)
    assert all(line.startswith("[txn:t] [path:1.1] researcher [TRC] ") for line in added)
    assert '"headers":{"authorization":"[REDACTED]"}' in added[0]
    assert "[txn:t] [path:1.1] researcher [TRC] ← llm openai:gpt-4o: chunk of SSE" == added[1]
    assert '[txn:t] [path:1.1] researcher [TRC] ← llm openai:gpt-4o: "because"' == added[2]


def test_trace_tools():
    """Tracing tools adds arguments and raw results at the tool op's path, redacted (S4-49, S4-53, S4-120)."""
    added = [line for line in run(trace_tools=True)[0] if line not in DEFAULT]
    assert [
        '[txn:t] [path:1.2.1.1] reader [TRC] → tool mcp:search: {"query":"rain","api_key":"[REDACTED]"}',
        '[txn:t] [path:1.2.1.1] reader [TRC] ← tool mcp:search: {"error":"gone"}',
    ] == added


def test_options_do_not_change_lines():
    """A line is the same whatever else is shown, and each has the one form (S4-115, S4-116, S4-117)."""
    everything = run(verbose=True, trace_llm=True, trace_tools=True)[0]
    for options in ({}, {"verbose": True}, {"trace_llm": True}, {"trace_tools": True}):
        assert set(run(**options)[0]) <= set(everything)
    assert [] == [line for line in everything if not FORM.fullmatch(line)]


def test_one_node_a_line():
    """Each line names the path of the one node that it comes from (S4-63, S4-67, S4-121, S4-139)."""
    lines, paths = run(verbose=True, trace_llm=True, trace_tools=True)
    assert paths == [re.match(r"\[txn:t\] \[path:([0-9.]*)\]", line)[1] for line in lines]


def test_reasoning_is_one_line():
    """Chunks are rendered as lines of reasoning, the last one at the op's end (S4-27, S4-66, S4-67)."""
    lines = Lines(verbose=True)
    lines.take([r.OpBegin("1.1", 1.0, "llm", "m"), r.Entries("1.1", 0, [], 0, [ReasoningChunk("a ", 1.0), ReasoningChunk("b\nc", 1.0)])])
    assert ["[txn:t] [path:1.1] - [THK] ← llm m: a b\\n"] == lines.lines
    lines.take([r.OpEnd("1.1", 2.0, "ok", 1.0)])
    assert "[txn:t] [path:1.1] - [THK] ← llm m: c" == lines.lines[1]


def test_secrets_over_several_chunks():
    """A credential in streamed reasoning is replaced also where it came in pieces, between other lines (S4-66, S4-120)."""
    lines = Lines(verbose=True)
    lines.take([r.OpBegin("1.1", 1.0, "llm", "m")])
    for piece in ("my key is sk-", "proj-abcdefgh", "ijklmnopqrstuvwx", "yz, I think"):
        lines.take([r.Entries("1.1", 0, [], 0, [ReasoningChunk(piece, 1.0)]), r.Entries("1.1", 0, [LogEntry(1.0, "WRN", "on")])])
    lines.take([r.OpEnd("1.1", 2.0, "ok", 1.0)])
    assert "[txn:t] [path:1.1] - [THK] ← llm m: my key is [REDACTED], I think" == lines.lines[4]
    assert (5 + 1, 0) == (len(lines.lines), "".join(lines.lines).count("abcdefgh"))


def test_names_and_prompts_are_redacted():
    """Credentials in the names of agents and ops, and in a prompt before it is cut, are replaced (S4-120)."""
    lines = Lines(verbose=True)
    key = "ghp_" + "a1B2" * 9
    lines.take([r.SessionBegin("", 1.0, f"agent {key}", "x"), r.TurnBegin("1", 1.0, {"user": "x" * 190 + " " + key})])
    lines.take([r.OpBegin("1.1", 1.0, "tool", key), r.OpEnd("1.1", 2.0, "failed", 3.0, f"no {key}")])
    assert 3 == len(lines.lines)
    assert "ghp_" not in "".join(lines.lines)
    assert "[txn:t] [path:1.1] agent [REDACTED] [ERR] ← tool [REDACTED]: failed: no [REDACTED], latency 3 ms" == lines.lines[2]


def test_control_characters():
    """Nothing that is logged can start a line, move the cursor, or turn the direction of text."""
    lines = Lines()
    hostile = "a\nb\rc\x1b[31md\x00e\x7ff\x85g\u2028h\u202ei\u2066j\u200bk\tl"
    lines.take([r.SessionBegin("", 1.0, "age\nnt", "x"), r.OpBegin("1.1", 1.0, "tool", "na\x1bme")])
    lines.take([r.Entries("1.1", 0, [LogEntry(1.0, "WRN", hostile)])])
    assert [
        "[txn:t] [path:1.1] age\\nnt [WRN] → tool na\\x1bme: a\\nb\\rc\\x1b[31md\\x00e\\x7ff\\x85g\\u2028h\\u202ei\\u2066j\\u200bk\\tl"
    ] == lines.lines


def test_redaction_of_logs():
    """Credentials in a log line, its details or an error are replaced (S4-120)."""
    lines = Lines()
    lines.take([r.OpBegin("1.1", 1.0, "llm", "m"), r.Entries("1.1", 0, [LogEntry(1.0, "WRN", "sent Bearer abcdefgh1jkl")])])
    lines.take([r.OpEnd("1.1", 2.0, "failed", 3.0, "bad key sk-abcdefghijklmnopqrst")])
    assert [
        "[txn:t] [path:1.1] - [WRN] → llm m: sent [REDACTED]",
        "[txn:t] [path:1.1] - [ERR] ← llm m: failed: bad key [REDACTED], latency 3 ms",
    ] == lines.lines


def test_details_are_shown_redacted():
    """A log line's details follow it, without credentials."""
    lines = Lines()
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([lines], "all"))
    builder.begin_op("llm", "m").log("refused", "WRN", details={"status": 401, "api_key": "s3cret"})
    builder.core.stream.close()
    assert ['[txn:t] [path:1.1] a [WRN] → llm m: refused {"status":401,"api_key":"[REDACTED]"}'] == lines.lines


def test_payloads_are_capped():
    """A traced payload is cut behind a notice (S4-65, S4-80, S4-120)."""
    lines = Lines(trace_tools=True)
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([lines]))
    builder.begin_op("tool", "x").response("y" * 10_000)
    assert 1 == len(lines.lines)
    prefix = "[txn:t] [path:1.1] a [TRC] ← tool x: [TRUNCATED] Original size 10002 characters; truncated to 4096 characters."
    assert lines.lines[0].startswith(prefix)
    assert 4095 == lines.lines[0].count("y")


def test_traced_requests_have_their_messages():
    """What is sent is shown in full, messages and long members too, not as references to a pool; redacted (S4-48, S4-120)."""
    lines = Lines(trace_llm=True)
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([lines]))
    secret = "Bearer abcdefgh1jkl"
    op = builder.begin_op("llm", "m")
    op.request([{"role": "user", "content": "why?"}, {"role": "user", "content": secret}], manual="m" * 2000)
    op.request([{"role": "user", "content": "why?"}, {"role": "user", "content": "next"}])
    first, second = [line.partition(" m: ")[2] for line in lines.lines]
    expected = [{"role": "user", "content": "why?"}, {"role": "user", "content": "[REDACTED]"}]
    assert {"manual": "m" * 2000, "messages": expected} == json.loads(first)
    assert ["why?", "next"] == [message["content"] for message in json.loads(second)["messages"]]


def test_nothing_is_kept_that_is_not_traced():
    """Without tracing the renderer keeps no content."""
    lines = Lines(verbose=True)
    SessionTreeBuilder("a", txn="t", stream=Stream([lines])).begin_op("llm", "m").request([{"role": "user", "content": "why?"}])
    assert {} == lines.renderer._pool.links == lines.renderer._pool.blobs


@pytest.mark.parametrize(("told", "expected"), [(False, [{"$lost": "1 earlier messages"}]), (True, [{"role": "user", "content": "why?"}])])
def test_messages_from_before(told, expected):
    """What a request refers to from before a resumption is shown where the writer was told of it, else said to be elsewhere."""
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([]))
    op = builder.begin_op("llm", "m")
    op.request([{"role": "user", "content": "why?"}])
    writer = ConsoleWriter("t", LineOptions(trace_llm=True))
    writer.introduce(builder.node, builder.core.pool if told else None)
    begun, sent = r.OpBegin("1.1", 1.0, "llm", "m"), r.Requested("1.1", 1.0, op.node.request)
    [line] = [line for record in (begun, sent) for line in writer._renderer.render(record)]
    assert {"messages": expected} == json.loads(line.partition(" m: ")[2])


@pytest.mark.parametrize(("status", "severity"), [("failed", "ERR"), ("cancelled", "WRN"), ("interrupted", "WRN")])
def test_ends_that_are_not_ok(status, severity):
    """A node that did not end well is told by default (S4-45, S4-118)."""
    lines = Lines()
    lines.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.OpEnd("1.1", 2.0, status, 3.0), r.SessionEnd("", 2.0, status)])
    assert [
        f"[txn:t] [path:1.1] - [{severity}] ← tool x: {status}, latency 3 ms",
        f"[txn:t] [path:] - [{severity}] ← session -: {status}",
    ] == lines.lines


@pytest.mark.parametrize("text", ["y" * 100_000, "\u202e" * 5000, "é" * 9000])
def test_lines_are_capped(text):
    """No line is longer than 8 KiB, with a notice of what it was, whatever it has (S4-65)."""
    lines = Lines()
    lines.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.Entries("1.1", 0, [LogEntry(1.0, "WRN", text)])])
    [line] = lines.lines
    assert LINE_BYTES - 4 <= len(line.encode()) <= LINE_BYTES
    assert re.search(r" \[TRUNCATED\] Original size \d+ bytes; truncated to 8192 bytes\.$", line)


def test_negative_latency():
    """A latency is never shown as negative."""
    lines = Lines()
    lines.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.OpEnd("1.1", 0.0, "failed", -3.0)])
    assert ["[txn:t] [path:1.1] - [ERR] ← tool x: failed, latency 0 ms"] == lines.lines


def test_colours():
    """Colours stand around a line, which is otherwise the same; without them there is no escape code."""
    plain, coloured = run()[0], run(colour=True)[0]
    assert [f"\x1b[33m{plain[0]}\x1b[0m", f"\x1b[31m{plain[1]}\x1b[0m", f"\x1b[31m{plain[2]}\x1b[0m"] == coloured
    assert "\x1b" not in "".join(run(verbose=True, trace_llm=True, trace_tools=True)[0])


def test_renderer_forgets_what_ended():
    """Ops that ended long ago are forgotten: memory does not grow with the session."""
    lines = Lines()
    for number in range(KEPT_OPS + 100):
        lines.take([r.OpBegin(f"1.{number}", 1.0, "tool", "x"), r.OpEnd(f"1.{number}", 2.0, "ok", 1.0)])
    assert KEPT_OPS == len(lines.renderer._ops)


def test_entries_behind_their_op():
    """Entries that come behind their op's end are still told with its kind and name."""
    lines = Lines()
    lines.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.OpEnd("1.1", 2.0, "ok", 1.0), r.TurnEnd("1", 3.0, "ok")])
    lines.take([r.Entries("1.1", 0, [LogEntry(1.0, "WRN", "late")])])
    assert ["[txn:t] [path:1.1] - [WRN] → tool x: late"] == lines.lines


def test_writer(tmp_path):
    """The writer writes whole lines, one after the other, to its descriptor (S4-118)."""
    path = tmp_path / "lines"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    writer = ConsoleWriter("t", LineOptions(), fd)
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([writer]))
    writer.look_in(builder.core)
    builder.begin_op("tool", "lone \ud800").end("failed", "é")
    assert writer.flush(LONG)
    os.close(fd)
    [line] = path.read_text("utf-8").splitlines()
    assert re.fullmatch(r"\[txn:t\] \[path:1\.1\] a \[ERR\] ← tool lone [?\ufffd]: failed: é, latency \d+ ms", line)


def test_a_quiet_console_is_given_what_it_prints(tmp_path):
    """With default options the writer is given nothing that it would not print, and its lines are those that all records would give."""
    fd = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT)
    writer, given, everything = ConsoleWriter("t", LineOptions(), fd), Keeping(), Keeping()
    given.wants = writer.wants
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([everything, writer, given]))
    writer.look_in(builder.core)
    op = builder.begin_op("llm", "openai:gpt-5")
    op.log("plain")
    op.log("late", "WRN")
    op.account(input_tokens=3, output_tokens=1, cost_usd=0.5)
    op.response("four")
    op.end("failed", "no")
    builder.begin_op("tool", "fine").end()
    builder.end_session("failed", "no")
    assert writer.flush(LONG)
    os.close(fd)
    renderer = LineRenderer("t", LineOptions())
    expected = [line for record in everything.records for line in renderer.render(record)]
    assert (3, expected) == (len(expected), (tmp_path / "lines").read_text("utf-8").splitlines())
    assert [r.SessionBegin, r.Entries, r.OpEnd, r.SessionEnd] == [type(record) for record in given.records]


def test_a_session_that_goes_well_wakes_no_thread(tmp_path):
    """With default options nothing of a session without problems is queued for the console's thread; agents of later lines are known."""
    fd = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT)
    writer = ConsoleWriter("t", LineOptions(), fd)
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([writer]))
    writer.look_in(builder.core)
    below = builder.begin_op("session", "b")
    child = builder.attach_child_session(below, "b")
    child.begin_op("tool", "fine").end()
    child.end_session()
    below.end()
    assert 0 == writer._job._begun + len(writer._queue)
    below = builder.begin_op("session", "c")
    builder.attach_child_session(below, "c").begin_op("tool", "x").end("failed", "no")
    below.end()
    assert writer.flush(LONG)
    os.close(fd)
    [line] = (tmp_path / "lines").read_text("utf-8").splitlines()
    assert re.fullmatch(r"\[txn:t\] \[path:1\.2\.1\.1\] c \[ERR\] ← tool x: failed: no, latency \d+ ms", line)


def test_closed_descriptor():
    """A descriptor that takes nothing more holds up and breaks nothing."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = ConsoleWriter("t", LineOptions(), writing)
    writer.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.OpEnd("1.1", 2.0, "failed", 3.0)])
    assert writer.flush(LONG)
    os.close(writing)
    assert (0, "") == (writer.failures, writer.last_failure)


def test_introduced_sessions():
    """A writer that joins a session which began before knows its agents."""
    builder = SessionTreeBuilder("a", txn="t")
    child = builder.attach_child_session(builder.begin_op("session", "b"), "b")
    writer = ConsoleWriter("t", LineOptions())
    writer.introduce(builder.node)
    found = list(writer._renderer.render(r.Entries(f"{child.path}.1.1", 0, [LogEntry(1.0, "ERR", "x")])))
    assert ["[txn:t] [path:1.1.1.1] b [ERR] → system unknown: x"] == found


def test_agents_that_log_lines_name():
    """The agent that a line of another program's file names as its own is shown without credentials, too."""
    lines = Lines()
    told = json.dumps({AS_TOLD: {"members": {"agentId": "agent ghp_" + "a1B2" * 9}}}).encode()
    lines.take([r.OpBegin("1.1", 1.0, "tool", "x"), r.Entries("1.1", 0, [LogEntry(1.0, "WRN", "said", details=Raw(told))])])
    assert ["[txn:t] [path:1.1] agent [REDACTED] [WRN] → tool x: said"] == lines.lines
