"""What each call of a builder records, member by member, and what it says has changed for the next snapshot."""

import json
import threading

import pytest

import optree
from optree import SessionTreeBuilder
from optree import _background as background
from optree import _records as r
from optree._builder import Op, Stream, handles
from optree._builder.core import POOL_BYTES
from optree._builder.figures import PROMPT_CHARACTERS, last_said, number, whole
from optree._builder.outcome import outcome
from optree._builder.subscriber import Subscriber
from optree._ids import content_id, trace_id
from optree._nodes import OperationNode, TurnNode
from optree._providers.amounts import MAX_COUNT
from optree._tree import Fold
from optree._tree.unfold import unfold
from optree._values import MAX_TEXT, decode, dumps
from optree.testing import Ticking, capture

LONG = 30.0
"""Seconds after which a test gives up: never reached where things work."""


class Kept:
    """Keeps records as plain values. Times, of a clock that ticks in seconds, and what took how long are looked at and left out."""

    def __init__(self):
        self.records = []

    def take(self, batch):
        """Keep records."""
        self.records += [json.loads(dumps(record)) for record in batch]

    def told(self):
        """Return what came since the last time, without times."""
        found, self.records = [_timeless(record) for record in self.records], []
        return found


def _timeless(record):
    dated = [record, record.get("message"), record.get("entry"), *record.get("logs", ()), *record.get("chunks", ())]
    times = [found.pop(name) for found in dated if found is not None for name in ("ts", "timestamp") if name in found]
    assert [] == [time for time in times if time % 1000 or time < 1000]
    if record["t"] == "op.end":
        assert 0 <= record.pop("latency") < LONG * 1e3
    return record


@pytest.fixture
def built():
    """Return a builder whose clock ticks in seconds, and what keeps its records."""
    kept = Kept()
    builder = SessionTreeBuilder("lead", txn="t", now=Ticking(1.0, 1.0), stream=Stream([kept], "all"), attributes={"own": 1})
    yield builder, kept
    builder.core.stream.close()


def test_records_of_a_session(built):
    """Its begin, title, messages and end."""
    builder, kept = built
    builder.set_title("Rain", status="asking", attributes={"more": 2})
    builder.append_message("hi", message_id="m1")
    builder.append_message({"role": "assistant", "content": "ho"}, message_id=2, substance="m1", cause=["m1", 3])
    builder.append_message({"content": 1}, cause="m1")
    builder.append_message([1], cause=None)
    builder.set_final_report("r")
    builder.end_session("failed", "why")
    said = {"role": "assistant", "content": "ho"}
    assert [
        {"t": "session.begin", "path": "", "agent": "lead", "callPath": "lead", "attributes": {"own": 1}},
        {"t": "session.set", "path": "", "title": "Rain", "latestStatus": "asking", "attributes": {"more": 2}},
        {"t": "message", "path": "", "at": 0, "message": {"role": "user", "body": {"role": "user", "content": "hi"}, "id": "m1"}},
        {
            "t": "message", "path": "", "at": 1,
            "message": {"role": "assistant", "body": said, "id": "2", "substance": "m1", "cause": ["m1", "3"]},
        },
        {"t": "message", "path": "", "at": 2, "message": {"role": "unknown", "body": {"content": 1}, "cause": ["m1"]}},
        {"t": "message", "path": "", "at": 3, "message": {"role": "unknown", "body": [1]}},
        {"t": "session.set", "path": "", "finalReport": "r"},
        {"t": "session.end", "path": "", "status": "failed", "error": "why", "finalReport": "r"},
    ] == kept.told()  # fmt: skip


def test_a_report_given_with_the_end_counts(built):
    """It takes the place of one that was set before."""
    builder, kept = built
    builder.set_final_report("before")
    builder.end_session(final_report="at the end")
    assert "at the end" == kept.told()[-1]["finalReport"] == decode(builder.node.final_report)


def test_a_report_is_there_before_the_end():
    """What a session gives as its result is recorded when it is set, and kept by an end that tells none."""
    with capture() as recording, optree.session("a") as session:
        session.builder.set_final_report({"found": 1})
        records = [*recording.records], unfold(recording.tree)
    for found in records:
        fold = Fold("t")
        for record in [*found, r.SessionEnd("", 1.0, "ok")]:
            fold.apply(record)
        assert {"found": 1} == decode(fold.finish().session.final_report)


def test_records_of_turns(built):
    """Prompts, attributes that are no mapping, what the assistant said, and how it ended."""
    builder, kept = built
    turn = builder.begin_turn(user="why?", system="be brief", attributes=["x"])
    turn.assistant("so it is")
    turn.end("failed", "late")
    builder.begin_turn(attributes={}).end()
    assert [
        {"t": "turn.begin", "path": "1", "prompts": {"system": "be brief", "user": "why?"}, "attributes": {"value": ["x"]}},
        {"t": "turn.set", "path": "1", "assistant": {"content": "so it is"}},
        {"t": "turn.end", "path": "1", "status": "failed", "error": "late"},
        {"t": "turn.begin", "path": "2"},
        {"t": "turn.end", "path": "2", "status": "ok"},
    ] == kept.told()[1:]


def test_records_of_a_call(built):
    """Lines, thoughts and chunks with their places, the request with its pool, what it cost, its end."""
    builder, kept = built
    op = builder.begin_op("llm", "openai:gpt-4o", attributes={"a": 1})
    op.log("plain")
    op.log("more", "WRN", "request", {"b": 2})
    op.think("hm")
    assert 2 == len(op.node.logs)  # what is asked for is brought to the node: places go on from there
    long, asked = "x" * POOL_BYTES, {"role": "user", "content": "why?"}
    op.request([asked], temperature=0, long=long)
    op.chunk("be")
    op.chunk("cause")
    builder.set_op(op, c=3)
    op.account(input_tokens=1, output_tokens=2, cost_usd=0.5, latency=7)
    op.end(reasoning="so", d=4)
    blob, message = content_id(json.dumps(long).encode()), content_id(b'{"role":"user","content":"why?"}')
    link = content_id(b"", message.encode())
    request = {"temperature": 0, "long": {"$blob": blob}, "messages": {"$history": link, "count": 1, "bytes": 32}}
    size = len(json.dumps({"temperature": 0, "long": long, "messages": [asked]}, separators=(",", ":")))
    entry = {
        "id": "t:1.1#1", "type": "llm", "latency": 7.0, "provider": "openai", "model": "gpt-4o",
        "tokens": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, "costUsd": 0.5,
    }  # fmt: skip
    assert [
        {"t": "turn.begin", "path": "1"},
        {"t": "op.begin", "path": "1.1", "kind": "llm", "name": "openai:gpt-4o", "attributes": {"a": 1}},
        {"t": "entries", "path": "1.1", "logs": [{"severity": "VRB", "message": "plain"}]},
        {
            "t": "entries", "path": "1.1", "logsAt": 1,
            "logs": [{"severity": "WRN", "message": "more", "direction": "request", "details": {"b": 2}}],
        },
        {"t": "entries", "path": "1.1", "logsAt": 2, "chunks": [{"text": "hm"}]},
        {"t": "pool", "blobs": {blob: long, message: asked}, "links": [[link, "", message]]},
        {"t": "request", "path": "1.1", "request": {"payload": request, "kind": "llm", "size": size}},
        {"t": "entries", "path": "1.1", "logsAt": 2, "chunksAt": 1, "text": "be"},
        {"t": "entries", "path": "1.1", "logsAt": 2, "chunksAt": 1, "textAt": 2, "text": "cause"},
        {"t": "op.set", "path": "1.1", "attributes": {"c": 3}},
        {"t": "accounting", "path": "1.1", "entry": entry},
        {"t": "response", "path": "1.1", "response": {"payload": "because", "size": 7}},
        {"t": "op.end", "path": "1.1", "status": "ok", "reasoning": "so", "attributes": {"d": 4}},
    ] == kept.told()[1:]  # fmt: skip


@pytest.mark.parametrize(("length", "pooled"), [(POOL_BYTES - 3, False), (POOL_BYTES - 2, True)])
def test_what_is_pooled(built, length, pooled):
    """A member is stored apart from so many bytes of JSON on, its quotes among them."""
    builder, kept = built
    builder.begin_op("tool", "x").request(long="x" * length)
    assert pooled == ("pool" in [record["t"] for record in kept.told()])


def test_records_of_a_tool(built):
    """It has its parent, its request and answer with their sizes, and its own accounting when it ends."""
    builder, kept = built
    above = builder.begin_op("llm", "m")
    kept.told()
    op = builder.begin_op("tool", "search", parent=above)
    op.request(q=1)
    op.response({"found": 2})
    op.end("failed", "gone")
    *begun, accounted, ended = kept.told()
    assert [
        {"t": "op.begin", "path": "1.2", "kind": "tool", "name": "search", "parentOp": "1.1"},
        {"t": "request", "path": "1.2", "request": {"payload": {"q": 1}, "kind": "tool", "size": 7}},
        {"t": "response", "path": "1.2", "response": {"payload": {"found": 2}, "size": 11}},
    ] == begun
    assert 0 <= accounted["entry"].pop("latency") < LONG * 1e3
    entry = {
        "id": "t:1.2#1",
        "type": "tool",
        "status": "failed",
        "command": "search",
        "charactersIn": 7,
        "charactersOut": 11,
        "error": "gone",
    }
    assert [
        {"t": "accounting", "path": "1.2", "entry": entry},
        {"t": "op.end", "path": "1.2", "status": "failed", "error": "gone"},
    ] == [accounted, ended]


def test_records_of_a_child(built):
    """A sub-agent's session begins in its op; when it ends, what is open in it ends with it, as cancelled or as it did."""
    builder, kept = built
    op = builder.begin_op("session", "reader")
    child = builder.attach_child_session(op, "reader", attributes={"e": 5})
    child.begin_op("session", "deeper")
    kept.told()
    child.end_session("ok", final_report=[1])
    op.end()
    assert {"parentTraceId": trace_id("t"), "parentCallPath": "lead", "toolName": "reader"} == child.node.attributes["ingress"]["subAgent"]
    assert 5 == child.node.attributes["e"]
    assert [
        {"t": "op.end", "path": "1.1.1.1", "status": "cancelled"},
        {"t": "turn.end", "path": "1.1.1", "status": "ok"},
        {"t": "session.end", "path": "1.1", "status": "ok", "finalReport": [1]},
        {"t": "op.end", "path": "1.1", "status": "ok"},
    ] == kept.told()


def test_an_agent_that_calls_itself_is_marked(built):
    """In the session's attributes, and with a line on the op."""
    builder, kept = built
    child = builder.attach_child_session("1.1", "lead")
    builder.core.stream.flush()
    begun, line = kept.told()[-2:]
    assert ["session lead"] == [f"{op.kind} {op.name}" for op in builder.node.turns[0].ops]
    assert (True, True) == (child.node.attributes["cycle"], begun["attributes"]["cycle"])
    assert [{"severity": "WRN", "message": "agent lead calls itself: lead->lead"}] == line["logs"]


def test_a_session_ends_each_turn_that_is_open(built):
    """The one that began last and those before it; an op that begins afterwards gets a turn of its own."""
    builder, _ = built
    turns = [builder.begin_turn(), builder.begin_turn()]
    builder.end_session()
    assert ["ok", "ok"] == [turn.node.status for turn in turns]
    assert "3.1" == builder.begin_op("tool", "x").path


def test_what_comes_late_to_a_redacted_session_is_there_at_once():
    """A text that is streamed waits until it cannot be part of a credential, but not behind the op's end."""
    builder = SessionTreeBuilder("a", txn="t", redacted=True)
    op = builder.begin_op("llm", "m")
    op.think("first")
    assert () == tuple(op.node.reasoning.chunks if op.node.reasoning else ())
    op.end()
    op.think("late")
    assert ["first", "late"] == [chunk.text for chunk in op.node.reasoning.chunks]


# How ops end, and what they are told


@pytest.mark.parametrize(
    ("accounted", "status", "expected"),
    [
        (False, "ok", ["ok"]),
        (False, "cancelled", ["failed"]),
        (False, "interrupted", ["failed"]),
        (True, "ok", ["ok"]),
        (True, "cancelled", ["ok"]),
        (True, "failed", ["ok", "failed"]),
        (True, "interrupted", ["ok", "failed"]),
    ],
)
def test_how_an_attempt_is_accounted_for(built, accounted, status, expected):
    """Once, and as failed where it failed: said before, it is said again. What came before somebody stopped it was no failure."""
    builder, kept = built
    op = builder.begin_op("llm", "p:m")
    if accounted:
        op.account(input_tokens=1)
    op.end(status, "why" if status != "ok" else None)
    found = [record["entry"] for record in kept.told() if record["t"] == "accounting"]
    assert expected == [entry.get("status", "ok") for entry in found]
    assert ["t:1.1#1"] == sorted({entry["id"] for entry in found})
    assert ("why" if expected[-1] == "failed" else None) == found[-1].get("error")
    assert (1, expected.count("failed")) == (builder.node.totals.llm_requests, builder.node.totals.llm_failed)


def test_an_error_that_was_told_stays(built):
    """The end of an op that failed says nothing else of an attempt that has its own error."""
    builder, _ = built
    op = builder.begin_op("llm", "p:m")
    op.account(error="429")
    op.end("failed", "gave up")
    assert [("failed", "429")] == [(entry.status, entry.error) for entry in op.node.accounting]


@pytest.mark.parametrize("kind", ["session", "system"])
def test_what_is_no_call_has_no_accounting(built, kind):
    """Only model calls and tools get an entry of themselves."""
    builder, _ = built
    op = builder.begin_op(kind, "x")
    op.end("failed")
    assert () == op.node.accounting


@pytest.mark.parametrize(("status", "partial"), [("ok", None), ("failed", True), ("cancelled", True)])
def test_what_was_streamed_is_the_answer(built, status, partial):
    """In part, unless the op went well; one that was given whole stays as it is."""
    builder, _ = built
    streamed, whole_ = builder.begin_op("llm", "m"), builder.begin_op("llm", "m")
    for op in (streamed, whole_):
        op.chunk("ab")
        op.chunk("c")
        if op is whole_:
            op.response("whole")
        op.end(status)
    assert [("abc", partial), ("whole", None)] == [
        (decode(op.node.response.payload), op.node.response.partial) for op in (streamed, whole_)
    ]


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("openai:gpt-4o", {}, ("openai", "gpt-4o")),
        ("openai:gpt-4o", {"model": "other"}, ("openai", "gpt-4o")),
        ("chat", {"provider": "p", "model": 7}, ("p", "7")),
        ("chat", {"model": "m"}, (None, "m")),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789:m", {}, (None, None)),
    ],
)
def test_whose_model_an_attempt_called(built, name, attributes, expected):
    """As the op's name says, else its attributes; a name that may be a credential says nothing."""
    builder, _ = built
    op = builder.begin_op("llm", name, attributes=attributes)
    op.account(input_tokens=1)
    [entry] = op.node.accounting
    assert expected == (entry.provider, entry.model)


@pytest.mark.parametrize("index", [True, -1, "2", None, 1.0])
def test_a_number_that_is_none(built, index):
    """A turn that is given none, or what is none, has the next free one."""
    builder, _ = built
    builder.begin_turn()
    assert 2 == builder.begin_turn(index).node.index


def test_an_op_is_put_where_it_can_be(built):
    """What is no turn, no parent in the turn and no kind is passed over."""
    builder, _ = built
    first, second = builder.begin_turn(), builder.begin_turn()
    above = builder.begin_op("llm", "m", turn=first)
    found = [
        builder.begin_op("juggling", "x", turn="1", parent=above).node,
        builder.begin_op("tool", "y", turn=first, parent=above).node,
        builder.begin_op("tool", "z", turn=first, parent="1.1").node,
    ]
    assert [("2.1", "system", None), ("1.2", "tool", "1.1"), ("1.3", "tool", None)] == [(op.path, op.kind, op.parent_op) for op in found]
    assert second is builder.current_turn


@pytest.mark.parametrize("end", ["op", "turn", "session"])
def test_errors_are_capped(built, end):
    """An error of megabytes is cut, with a notice."""
    builder, _ = built
    op = builder.begin_op("tool", "x")
    ends = {"op": op.end, "turn": op.turn.end, "session": builder.end_session}
    ends[end]("failed", "x" * (PROMPT_CHARACTERS + 1))
    node = {"op": op.node, "turn": op.turn.node, "session": builder.node}[end]
    assert node.error.startswith(f"[TRUNCATED] Original size {PROMPT_CHARACTERS + 1} characters; truncated to {PROMPT_CHARACTERS}")


@pytest.mark.parametrize("status", ["error", 5])
def test_a_status_that_is_none_is_said_in_the_error(built, status):
    """Unless there is an error; it counts as failed."""
    builder, _ = built
    first, second = builder.begin_op("tool", "x"), builder.begin_op("tool", "y")
    first.end(status)
    second.end(status, "why")
    said = f"ended with status {str(status)!r}, which is none of ok, failed, cancelled, interrupted"
    assert [("failed", said), ("failed", "why")] == [(op.node.status, op.node.error) for op in (first, second)]
    builder.end_session(status)
    assert ("failed", said) == (builder.node.status, builder.node.error)


def test_handles_say_what_they_are(built):
    """A handle shows its op's id, kind and name; an id is taken for it wherever an op is asked for."""
    builder, _ = built
    op = builder.begin_op("tool", "x")
    assert ("<Op t:1.1 tool 'x'>", op, op, None) == (repr(op), builder.op(op), builder.op("t:1.1"), builder.op(7))
    assert 2 == len({op, op, Op.of(builder, op.turn, op.node)})  # a handle is itself alone
    assert ("t", True, ["lead"]) == (builder.txn, builder.running, builder.ancestry())
    builder.end_session()
    assert not builder.running


# What changed after its end


LATE = {
    "log": (lambda _builder, op: op.log("x"), "1.1"),
    "think": (lambda _builder, op: op.think("x"), "1.1"),
    "chunk": (lambda _builder, op: op.chunk("x"), "1.1"),
    "account": (lambda _builder, op: op.account(input_tokens=1), "1.1"),
    "set_op": (lambda builder, op: builder.set_op(op, a=1), "1.1"),
    "request": (lambda _builder, op: op.request(a=1), "1.1"),
    "response": (lambda _builder, op: op.response("x"), "1.1"),
    "assistant": (lambda _builder, op: op.turn.assistant("x"), "1.1"),
    "op in an ended turn": (lambda builder, op: builder.begin_op("tool", "x", turn=op.turn), "1.3"),
    "title": (lambda builder, _op: builder.core.builders["1.2"].set_title("x"), "1.2"),
    "message": (lambda builder, _op: builder.core.builders["1.2"].append_message("x"), "1.2"),
    "turn": (lambda builder, _op: builder.core.builders["1.2"].begin_turn(), "1.2"),
}


@pytest.mark.parametrize("call", LATE)
def test_what_changes_after_its_end_is_saved_again(built, call):
    """The next snapshot, which takes finished turns over as they are, is told of it; of what comes in time it is not."""
    builder, _ = built
    change, expected = LATE[call]
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "m", turn=turn)
    child = builder.attach_child_session(builder.begin_op("session", "reader", turn=turn), "reader")
    if call != "op in an ended turn":
        change(builder, op)
        builder.core.settle()
    assert set() == builder.core.touched
    child.end_session()
    turn.end()
    assert set() == builder.core.touched
    change(builder, op)
    builder.core.settle()
    assert {expected} == builder.core.touched


def test_the_root_is_saved_each_time(built):
    """Of the root's own session nothing is to be told: it stands in each snapshot anew."""
    builder, _ = built
    builder.end_session()
    builder.set_title("x")
    assert set() == builder.core.touched


def test_durations_are_in_milliseconds(monkeypatch):
    """Of an attempt and of the op, since the op began."""
    monkeypatch.setattr(handles, "monotonic", Ticking(0.0, 1.0))
    op = SessionTreeBuilder("a").begin_op("llm", "m")
    op.account(input_tokens=1)
    op.end()
    assert ([1000.0], 2000.0) == ([entry.latency for entry in op.node.accounting], op.node.latency)


def test_a_late_call_by_id_lasts_since_the_op_began():
    """What an attempt took, where nobody says it, counts from the op's begin also for one that is named by its id after its end."""
    times = [1_700_000_000.0]
    builder = SessionTreeBuilder("a", txn="t", now=lambda: times[-1])
    op = builder.begin_op("llm", "m")
    op.account(latency=3)
    op.end()
    times.append(times[0] + 100.0)
    builder.append_accounting("t:1.1", input_tokens=1)
    [_, late] = builder.op("1.1").node.accounting
    assert 100_000 <= late.latency < 100_000 + LONG * 1e3


@pytest.mark.parametrize("call", ["append_log", "append_reasoning", "append_chunk", "append_accounting", "set_request", "set_response"])
def test_calls_by_an_unknown_id(built, call):
    """Each says that it knows no such op, and records nothing."""
    builder, kept = built
    kept.told()
    given = {"set_request": [{}], "append_accounting": []}.get(call, ["x"])
    getattr(builder, call)("t:7.7", *given)
    builder.set_op("t:7.8", a=1)
    said = "no op 't:7.8' in session t: what was given for it is not recorded"
    assert ([], 2, said) == (kept.told(), builder.core.stream.failures, builder.core.stream.last_failure)


def test_calls_on_an_op_that_ended(built):
    """An op that has ended is found by its id in whichever session it is, with its turn; a path that is none is not."""
    builder, _ = built
    child = builder.attach_child_session(builder.begin_op("session", "reader"), "reader")
    first, second = child.begin_turn(), child.begin_turn()
    for turn in (first, second):
        builder.end_op(child.begin_op("tool", "x", turn=turn), "ok")
    found = builder.op("t:1.1.2.1")
    assert (("1.1.2.1", "1.1.2"), child, None) == ((found.path, found.turn.path), found.builder, builder.op("t:1.1.2.2"))
    found.log("late")
    assert ["late"] == [entry.message for entry in second.node.ops[0].logs]
    assert found is builder.op("1.1.2.1")


# Values


@pytest.mark.parametrize(
    ("size", "expected"),
    [(MAX_TEXT - 2, (MAX_TEXT - 2, None)), (MAX_TEXT - 1, (MAX_TEXT - 1, None)), (MAX_TEXT + 1, (MAX_TEXT + 1, True))],
)
def test_how_long_a_response_may_be(built, size, expected):
    """A text of so many characters is whole; a longer one says that it was cut, and how long it was."""
    builder, _ = built
    op = builder.begin_op("tool", "x")
    op.response("x" * size)
    assert expected == (op.node.response.size, op.node.response.truncated)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, 3),
        (0, 0),
        (-1, 0),
        (2.9, 2),
        ("7", 7),
        (True, 1),
        (None, 0),
        ("x", 0),
        (MAX_COUNT, MAX_COUNT),
        (MAX_COUNT + 1, MAX_COUNT),
        (float("nan"), 0),
    ],
)
def test_counts(given, expected):
    """What is a count is kept within what a count can be; all else is none."""
    assert expected == whole(given)


@pytest.mark.parametrize(
    ("given", "expected"), [(1.5, 1.5), (-2, -2.0), ("3", 3.0), (float("inf"), 0.0), (-float("inf"), 0.0), ("inf", 0.0), ([], 0.0)]
)
def test_figures(given, expected):
    """What is a finite number is kept; all else is none."""
    assert expected == number(given)


def _turn(*responses):
    turn = TurnNode("t:1", "1", 1, 1.0, [])
    for at, (kind, response) in enumerate(responses, 1):
        op = OperationNode(f"t:1.{at}", f"1.{at}", kind, "m", 1.0, (), ())
        builder = SessionTreeBuilder("a")
        op.response = None if response is None else builder.core.response(kind, response)
        turn.ops.append(op)
    return turn


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([], None),
        ([("llm", "a"), ("llm", "b"), ("llm", None), ("tool", "c")], "b"),
        ([("llm", {"content": "a"})], "a"),
        ([("llm", "a"), ("llm", {"content": [1]})], None),
        ([("tool", "c")], None),
    ],
)
def test_what_was_said_last(responses, expected):
    """The text of the last model call that has an answer."""
    assert expected == last_said(_turn(*responses))


class CancelledError(BaseException):
    """As asyncio and trio name theirs."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ("ok", None)),
        (SystemExit(), ("ok", None)),
        (SystemExit(0), ("ok", None)),
        (SystemExit(1), ("failed", "SystemExit: 1")),
        (ValueError("x"), ("failed", "ValueError: x")),
        (ValueError(), ("failed", "ValueError")),
        (ValueError(0), ("failed", "ValueError: 0")),
        (KeyboardInterrupt(), ("cancelled", "KeyboardInterrupt")),
        (GeneratorExit(), ("cancelled", "GeneratorExit")),
        (CancelledError("why"), ("cancelled", "CancelledError")),
        (type("Cancelled", (BaseException,), {})("why"), ("cancelled", "Cancelled")),  # trio's
        (type("Cancelled", (Exception,), {})("why"), ("failed", "Cancelled: why")),
    ],
)
def test_how_a_block_was_left(error, expected):
    """Normally, or with an exit that says all is well: ok. What others stopped is cancelled, all else failed."""
    assert expected == outcome(error)


# Subscribers


def test_when_a_subscriber_has_finished():
    """Once it is closed and has handled all that it took; what comes afterwards is dropped and counted."""
    begun, gate = threading.Event(), threading.Event()

    def handle(_record):
        begun.set()
        gate.wait(LONG)

    subscriber = Subscriber(handle)
    assert (False, "") == (subscriber.finished, subscriber.last_failure)
    subscriber.take([r.Gap(1.0, 1)])
    assert begun.wait(LONG)
    subscriber.close()
    assert (False, False) == (subscriber.flush(0), subscriber.finished)
    subscriber.take([r.Gap(1.0, 3)])
    gate.set()
    assert subscriber.flush(LONG)
    assert subscriber.flush(LONG)
    assert (True, 1) == (subscriber.finished, subscriber.dropped)


def test_a_subscriber_without_a_thread(monkeypatch):
    """Where no thread can be started, it says so and keeps what it was to take, which a thread handles once there can be one."""

    def refused(*_):
        raise RuntimeError("can't start new thread")

    handled = []
    subscriber = Subscriber(lambda record: handled.append(record.dropped), "without-a-thread")
    with monkeypatch.context() as patch:
        patch.setattr(background, "start_new_thread", refused)
        subscriber.take([r.Gap(1.0, 1)])
    assert (0, "there can be no more threads", False) == (subscriber.dropped, subscriber.last_failure, subscriber.flush(0))
    subscriber.take([r.Gap(1.0, 2)])
    assert (True, [1, 2]) == (subscriber.flush(LONG), handled)


def test_subscribers_of_one_name_share_a_thread():
    """However many there are, also after some of them are closed."""
    threads = set()
    for _ in range(3):
        subscriber = Subscriber(lambda _record: threads.add(threading.current_thread().name), "shared")
        subscriber.take([r.Gap(1.0, 1)])
        assert subscriber.flush(LONG)
        subscriber.close()
    running = [thread.name for thread in threading.enumerate() if thread.name == "optree-shared"]
    assert ({"optree-shared"}, ["optree-shared"]) == (threads, running)
