import dataclasses
import math
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree import CycleError, SessionTreeBuilder, current, flatten, llm, session, tool, turn, walk_ops
from optree import _records as r
from optree._builder import Stream
from optree._builder.figures import MAX_COUNT, PROMPT_CHARACTERS
from optree._ids import trace_id
from optree._tree import Fold, Tree
from optree._values import MAX_TEXT, decode
from optree.testing import START, Ticking, capture, shape
from tests.hostile import Raising, RaisingModel, RaisingText
from tests.strategies import Taker

NOW = START * 1e3


@pytest.fixture
def root():
    """Return a builder in memory with a clock that ticks in milliseconds."""
    return SessionTreeBuilder("researcher", txn="t", now=Ticking(), attributes={"ingress": {"source": "cli"}})


# Nodes


def test_session_node(root):
    """A session's node has its ids, agent, path of agents, times and attributes from its begin on (S4-06 to S4-12, S4-64)."""
    node = root.node
    assert ("t", trace_id("t"), "researcher", "researcher", "t", "") == (
        node.id,
        node.trace_id,
        node.agent_id,
        node.call_path,
        node.origin_txn_id,
        node.path,
    )
    assert (NOW, None, None, {"ingress": {"source": "cli"}}) == (node.started_at, node.ended_at, node.status, node.attributes)


@pytest.mark.parametrize(("status", "success"), [("ok", True), ("failed", False), ("cancelled", False)])
def test_session_end(root, status, success):
    """Only a session that ended ok counts as a success; its end has time, error and final report (S4-10, S4-11, S4-54)."""
    root.end_session(status, "why", final_report={"answer": 42})
    node = root.node
    assert (status, success, "why", {"answer": 42}) == (node.status, node.success, node.error, decode(node.final_report))
    assert node.ended_at > node.started_at


def test_title_and_status(root):
    """Title and latest status are for people; the one does not touch the other (S4-14)."""
    root.set_title("Rain")
    root.set_title(status="asking")
    assert ("Rain", "asking") == (root.node.session_title, root.node.latest_status)


def test_turn_node(root):
    """A turn has its index, times, attributes and effective prompts from its begin on (S4-13, S4-15, S4-16, S4-28)."""
    first = root.begin_turn(user="why?", system="be brief", attributes={"label": "x"})
    node = first.node
    assert ("t:1", "1", 1, {"user": "why?", "system": "be brief"}, {"label": "x"}) == (
        node.id,
        node.path,
        node.index,
        node.prompts,
        node.attributes,
    )
    assert (True, None) == (node.started_at > root.node.started_at, node.ended_at)
    first.end("failed", "why")
    assert ("failed", "why", True) == (node.status, node.error, node.ended_at > node.started_at)


def test_system_turn(root):
    """Turn 0 is the system's; counting goes on from 1."""
    assert ["0", "1", "2"] == [root.begin_turn(0).path, root.begin_turn().path, root.begin_turn().path]


def test_given_index_is_taken(root):
    """A turn that was given its index leaves that number to no other: one path is one node (S4-28, S4-122)."""
    paths = [root.begin_turn(1).path, root.begin_turn().path, root.begin_turn(5).path, root.begin_turn().path]
    assert 4 == len(set(paths))


def test_same_index_twice(root):
    """A turn that is begun a second time gives no path to a second node (S4-122)."""
    for _ in range(2):
        root.begin_op("tool", "x", turn=root.begin_turn(1))
    paths = [one.path for one in root.node.turns] + [op.path for *_, op in walk_ops(root.node)]
    assert len(paths) == len(set(paths))


def test_prompts_are_capped(root):
    """Prompts and the assistant's text are cut behind a notice (S4-16, S4-17, S4-18)."""
    one = root.begin_turn(user="u" * (PROMPT_CHARACTERS + 1))
    one.assistant("a" * (PROMPT_CHARACTERS + 1))
    for found, letter in ((one.node.prompts["user"], "u"), (one.node.assistant["content"], "a")):
        notice = f"[TRUNCATED] Original size {PROMPT_CHARACTERS + 1} characters; truncated to {PROMPT_CHARACTERS} characters.\n\n"
        assert notice + letter * PROMPT_CHARACTERS == found


@pytest.mark.parametrize(
    ("response", "said"),
    [("text", "text"), ({"role": "assistant", "content": "inner"}, "inner"), ({"content": [1]}, None), ([1], None)],
)
def test_assistant_is_what_the_last_response_said(root, response, said):
    """A turn that was not told what the assistant said takes it from its last LLM response (S4-17)."""
    one = root.begin_turn()
    root.begin_op("llm", "m").response(response)
    root.begin_op("tool", "x").response("not this")
    one.end()
    assert (None if said is None else {"content": said}) == one.node.assistant


def test_op_node(root):
    """An op has its id, kind, name, time and attributes at once, its status and latency when it ends (S4-19, S4-20, S4-29, S4-31)."""
    op = root.begin_op("llm", "openai:gpt-4o", attributes={"isFinalTurn": False})
    node = op.node
    assert ("t:1.1", "1.1", "llm", "openai:gpt-4o", {"isFinalTurn": False}) == (
        node.op_id,
        node.path,
        node.kind,
        node.name,
        node.attributes,
    )
    assert (True, None, None) == (node.started_at > NOW, node.ended_at, node.status)
    op.end("failed", "quota", reasoning="in short", isFinalTurn=True, mapped="rate limit")
    assert ("failed", "quota", "in short", {"isFinalTurn": True, "mapped": "rate limit"}) == (
        node.status,
        node.error,
        node.reasoning.final,
        node.attributes,
    )
    assert (True, True) == (node.ended_at > node.started_at, node.latency >= 0)


def test_lists_are_always_there(root):
    """Logs and accounting of an op, and ops of a turn, stand in a file also when they are empty (S4-21, S4-22, S4-140)."""
    root.begin_op("llm", "m")
    saved = root.snapshot()["session"]["turns"][0]
    assert ([], []) == (saved["ops"][0]["logs"], saved["ops"][0]["accounting"])
    root.begin_turn()
    assert [] == root.snapshot()["session"]["turns"][1]["ops"]


def test_field_names(root):
    """Files have the field names of the seed (S4-06 to S4-26)."""
    op = root.begin_op("session", "reader")
    root.attach_child_session(op, "reader")
    op.think("hm")
    op.request(query="x")
    op.response("y")
    op.account(characters_in=1)
    op.log("z")
    op.end(reasoning="r")
    root.end_session()
    saved = root.snapshot()["session"]
    assert {"id", "traceId", "agentId", "callPath", "startedAt", "endedAt", "success", "attributes", "turns", "totals"} <= set(saved)
    assert {"id", "index", "startedAt", "endedAt", "ops"} <= set(saved["turns"][0])
    names = {"opId", "kind", "startedAt", "endedAt", "status", "logs", "accounting", "childSession", "reasoning", "request", "response"}
    found = saved["turns"][0]["ops"][0]
    assert names <= set(found)
    assert ({"text", "ts"}, {"chunks", "final"}) == (set(found["reasoning"]["chunks"][0]), set(found["reasoning"]))
    assert ({"kind", "payload", "size"}, {"payload", "size"}) == (set(found["request"]), set(found["response"]))
    assert {"timestamp", "severity", "message"} == set(found["logs"][0])


def test_logs(root):
    """A log line keeps severity, direction and details; what is no severity or direction is passed over (S4-60)."""
    op = root.begin_op("llm", "m")
    for severity in ("VRB", "WRN", "ERR", "TRC", "THK", "FIN", "INFO"):
        op.log("x", severity, direction="response")
    op.log("y", direction="up", details={"status": 429})
    assert ["VRB", "WRN", "ERR", "TRC", "THK", "FIN", "VRB", "VRB"] == [entry.severity for entry in op.node.logs]
    assert ["response"] * 7 + [None] == [entry.direction for entry in op.node.logs]
    assert {"status": 429} == decode(op.node.logs[-1].details)


def test_reasoning_is_kept_as_emitted(root):
    """Chunks of reasoning are kept one by one with their times, uncapped (S4-24, S4-47, S4-66, S4-68)."""
    op = root.begin_op("llm", "m")
    chunks = ["", "a", " b", "c" * 100_000]
    for chunk in chunks:
        op.think(chunk)
    assert chunks == [chunk.text for chunk in op.node.reasoning.chunks]
    times = [chunk.ts for chunk in op.node.reasoning.chunks]
    assert sorted(set(times)) == times


def test_llm_accounting(root):
    """An attempt's entry has tokens with their sum, cost, latency, provider, model and where it was routed (S4-44, S4-46, S4-55)."""
    op = root.begin_op("llm", "router:auto")
    op.account(
        input_tokens=1,
        output_tokens=20,
        cache_read_tokens=300,
        cache_write_tokens=4000,
        cost_usd=0.5,
        latency=7,
        actual_provider="openai",
        actual_model="gpt-4o",
        upstream_inference_cost_usd=0.25,
    )
    [entry] = op.node.accounting
    assert ("t:1.1#1", "llm", "ok", 7.0, "router", "auto", "openai", "gpt-4o", 0.5, 0.25) == (
        entry.id,
        entry.type,
        entry.status,
        entry.latency,
        entry.provider,
        entry.model,
        entry.actual_provider,
        entry.actual_model,
        entry.cost_usd,
        entry.upstream_inference_cost_usd,
    )
    tokens = entry.tokens
    assert (1, 20, 300, 4000, 4321) == (
        tokens.input_tokens,
        tokens.output_tokens,
        tokens.cache_read_input_tokens,
        tokens.cache_write_input_tokens,
        tokens.total_tokens,
    )


def test_tool_accounting_by_itself(root):
    """A tool call gets its entry with its end: sizes, latency, status, error, unless it was given one (S4-49, S4-53, S4-56, S4-135)."""
    op = root.begin_op("tool", "mcp:search")
    op.request(query="rain")
    op.response("found")
    op.end("failed", "timeout")
    [entry] = op.node.accounting
    assert ("tool", "failed", "mcp:search", "timeout", op.node.request.size, 5) == (
        entry.type,
        entry.status,
        entry.command,
        entry.error,
        entry.characters_in,
        entry.characters_out,
    )
    assert op.node.latency == entry.latency
    given = root.begin_op("tool", "x")
    given.account(characters_in=5)
    given.end()
    assert [5] == [one.characters_in for one in given.node.accounting]


def test_entries_after_the_end_are_kept_in_memory(root):
    """What a builder that records nowhere is told after an op's end is in its tree, also when nobody holds the op any more."""
    root.begin_turn()
    op = root.begin_op("llm", "gpt")
    op.log("before")
    op.end()
    op.log("late")
    op.log("warning", severity="WRN")
    op.think("and")
    op.think("so")
    del op
    node = root.node.turns[0].ops[0]
    assert ["before", "late", "warning"] == [entry.message for entry in node.logs]
    assert ["and", "so"] == [chunk.text for chunk in node.reasoning.chunks]


def test_sizes_of_requests(root):
    """A request's size counts the bytes of its JSON before histories were pooled (S4-25, S4-43)."""
    op = root.begin_op("llm", "m")
    members = {"temperature": 0.5, "ü": "é", "messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "x" * 600}]}
    op.request(**members)
    assert len(msgspec.json.encode(members)) == op.node.request.size


def test_long_responses(root):
    """A response text beyond the cap is cut behind a notice, with its true size (S4-26, S4-65)."""
    op = root.begin_op("tool", "x")
    op.response("x" * (MAX_TEXT + 1))
    assert (MAX_TEXT + 1, True) == (op.node.response.size, op.node.response.truncated)
    assert decode(op.node.response.payload).startswith(f"[TRUNCATED] Original size {MAX_TEXT + 1} characters; truncated to {MAX_TEXT}")


@pytest.mark.parametrize(
    "payload",
    [{"content": "x" * (MAX_TEXT + 1)}, ["x" * 600_000] * 8],
    ids=["one long member", "many members"],
)
def test_large_responses_are_capped(root, payload):
    """No payload puts megabytes into the tree, and one that was cut says so (S4-65)."""
    op = root.begin_op("tool", "x")
    op.response(payload)
    assert len(bytes(op.node.response.payload)) < 1.1 * MAX_TEXT
    assert op.node.response.truncated


# Life cycles


def test_attempts_are_ops(root):
    """Each attempt is an op of its own, with what belongs to it (S4-32, S4-42)."""
    for number in range(3):
        op = root.begin_op("llm", "openai:gpt-4o")
        op.log(f"attempt {number}")
        op.account(input_tokens=number)
        op.end("ok" if number == 2 else "failed")
    ops = root.node.turns[0].ops
    assert ["1.1", "1.2", "1.3"] == [op.path for op in ops]
    assert [(["attempt 0"], 0), (["attempt 1"], 1), (["attempt 2"], 2)] == [
        ([entry.message for entry in op.logs], op.accounting[0].tokens.input_tokens) for op in ops
    ]


def test_parallel_ops_are_siblings(root):
    """Tools that run at once, also while the LLM streams, are siblings with their own times and entries (S4-33 to S4-36)."""
    one = root.begin_turn()
    ask = root.begin_op("llm", "m")
    ask.think("let me ")
    tools = [root.begin_op("tool", f"tool {number}", attributes={"batch": True}) for number in range(3)]
    ask.think("see")
    for number, op in reversed(list(enumerate(tools))):
        op.log(str(number))
        op.end()
    ask.end()
    one.end()
    assert ("turn 1", "ok", ("llm m", "ok"), *((f"tool tool {number}", "ok") for number in range(3))) == shape(one.node)
    assert [["0"], ["1"], ["2"]] == [[entry.message for entry in op.logs] for op in one.node.ops[1:]]
    starts = [op.started_at for op in one.node.ops]
    assert sorted(set(starts)) == starts
    assert ["let me ", "see"] == [chunk.text for chunk in ask.node.reasoning.chunks]


def test_parents(root):
    """An op knows the op that it began in, within the same turn."""
    outer = root.begin_op("llm", "m")
    inner = root.begin_op("tool", "x", parent=outer)
    other = root.begin_op("tool", "y", turn=root.begin_turn(), parent=outer)
    assert ("1.1", None) == (inner.node.parent_op, other.node.parent_op)


def test_everything_ends_once(root):
    """The first end holds; a second does nothing, in the tree and in the records."""
    taker = Taker()
    root.core.stream.subscribe(taker)
    one, op = root.begin_turn(), root.begin_op("tool", "x")
    before = len(taker.lines)
    for status in ("ok", "failed"):
        op.end(status)
        one.end(status)
        root.end_session(status)
    assert ("ok", "ok", "ok") == (op.node.status, one.node.status, root.node.status)
    assert ["accounting", "op.end", "turn.end", "session.end"] == [msgspec.json.decode(line)["t"] for line in taker.lines[before:]]


def test_what_is_open_ends_with_what_is_around(root):
    """The end of a turn or session ends what is still open in it; success is not invented for it (S4-30)."""
    root.begin_op("tool", "x")
    root.end_session()
    assert ("researcher", "ok", ("turn 1", "ok", ("tool x", "cancelled"))) == shape(root.node)


def test_open_children_end_with_their_parent(root):
    """A sub-agent that is open when its parent ends is not left running in an op that has ended (S4-30, S4-37)."""
    op = root.begin_op("session", "reader")
    child = root.attach_child_session(op, "reader")
    child.begin_op("llm", "m")
    root.end_session("failed", "stopped")
    expected = ("reader", "failed", ("turn 1", "failed", ("llm m", "failed")))
    assert ("researcher", "failed", ("turn 1", "failed", ("session reader", "failed", expected))) == shape(root.node)


def test_unfinished_nodes_have_no_end(root):
    """What did not end has its start only (S4-30)."""
    root.begin_op("llm", "m")
    saved = root.snapshot()["session"]
    for node in (saved, saved["turns"][0], saved["turns"][0]["ops"][0]):
        assert ("startedAt" in node, set()) == (True, {"endedAt", "status", "success", "latency"} & set(node))


def test_late_entries(root):
    """What comes after an op's end is kept on that op (S4-61)."""
    op = root.begin_op("tool", "x")
    op.end()
    op.log("late")
    op.think("later")
    op.account(cost_usd=0.25)
    assert (["late"], ["later"], 2) == (
        [entry.message for entry in op.node.logs],
        [chunk.text for chunk in op.node.reasoning.chunks],
        len(op.node.accounting),
    )
    assert 0.25 == root.node.totals.cost_usd


def test_ops_without_a_turn(root):
    """An op that begins while no turn is open opens one (S4-61)."""
    first = root.begin_op("tool", "x")
    first.turn.end()
    assert ("1.1", "2.1", True) == (first.path, root.begin_op("tool", "y").path, root.current_turn.implicit)


def test_by_id(root):
    """Those who hold only an op's id or path can do all that a handle can (S4-42)."""
    op = root.begin_op("llm", "m")
    for name in (op, op.id, op.path):
        root.append_log(name, "x")
        root.append_reasoning(name, "y")
        root.append_accounting(name, input_tokens=1)
        root.set_request(name, {"a": 1})
        root.set_response(name, "z")
    root.end_op(op.id, "failed", "why", mapped=True)
    node = op.node
    assert (3, 3, 3, "failed", {"mapped": True}) == (
        len(node.logs),
        len(node.reasoning.chunks),
        len(node.accounting),
        node.status,
        node.attributes,
    )


def test_unknown_ids_are_reported(root):
    """An id that names no op is counted and told, and nothing is recorded outside the tree (S4-61)."""
    root.append_log("t:9.9", "x")
    root.end_op("nonsense")
    assert (2, "no op 'nonsense' in session t: what was given for it is not recorded") == (
        root.core.stream.failures,
        root.core.stream.last_failure,
    )


# Sub-agents


def test_child_session(root):
    """A sub-agent's session hangs in its op, names its parent, and goes by paths from the root (S4-23, S4-37, S4-52, S4-63, S4-64)."""
    op = root.begin_op("session", "reader")
    child = root.attach_child_session(op, "reader")
    assert op.node.child_session is child.node
    inner = child.begin_op("tool", "x")
    assert ("t:1.1", "1.1", "1.1.1.1", "researcher->reader", "t", "t", root.node.trace_id) == (
        child.node.id,
        child.node.path,
        inner.path,
        child.node.call_path,
        child.node.parent_txn_id,
        child.node.origin_txn_id,
        child.node.trace_id,
    )
    source = {"parentTraceId": root.node.trace_id, "parentCallPath": "researcher", "toolName": "reader"}
    assert {"source": "sub-agent", "subAgent": source} == child.node.attributes["ingress"]


def test_child_updates_are_the_parents(root):
    """What a sub-agent records, at any depth, is in the root's tree and totals at once (S4-02, S4-37, S4-38, S4-57, S4-58)."""
    builder, builders = root, [root]
    for depth in range(5):
        builder = builder.attach_child_session(builder.begin_op("session", f"a{depth}"), f"a{depth}")
        builders.append(builder)
    for number in (1, 2):
        builder.begin_op("llm", "m").account(input_tokens=number)
    assert [3] * 6 == [one.node.totals.input_tokens for one in builders]
    assert ["m", "m"] == [op.name for *_, op in walk_ops(root.node)][-2:]
    assert [1, 2] == [entry["tokens"]["inputTokens"] for entry in flatten(root.node).accounting]


def test_blocked_cycles_record_nothing():
    """A refused sub-agent leaves no session behind."""
    root = SessionTreeBuilder("a", cycles="block")
    op = root.begin_op("session", "a")
    with pytest.raises(CycleError):
        root.attach_child_session(op, "a")
    assert op.node.child_session is None


# Hostile values: recording never raises, the tree can always be written and read, and what was there is marked.


@dataclasses.dataclass
class Holder:
    """Plain data around something else."""

    held: object


def _cycle():
    found: list[object] = []
    found.append(found)
    return found


def _deep():
    found: object = 0
    for _ in range(5000):
        found = {"in": found}
    return found


HOSTILE = {
    "nan": math.nan,
    "infinity": math.inf,
    "bytes": b"\xff",
    "surrogate": "\ud800",
    "cycle": _cycle(),
    "deep": _deep(),
    "raising": Raising(),
    "raising text": RaisingText("x"),
    "raising model": RaisingModel(),
    "huge": 2**80,
    "set": {1, 2},
    "dataclass": Holder(Raising()),
    "tuple keys": {(1, 2): 3},
    "surrogate key": {"\udfff": 1},
    "mock": Mock(spec=str),
    "class": Holder,
    "function": _deep,
    "generator": (number for number in range(3)),
    "none": None,
}
PLACES = {
    "log": lambda _builder, op, value: op.log(value),
    "severity": lambda _builder, op, value: op.log("x", value),
    "direction": lambda _builder, op, value: op.log("x", "WRN", direction=value),
    "details": lambda _builder, op, value: op.log("x", details=value),
    "details member": lambda _builder, op, value: op.log("x", details={"a": value}),
    "think": lambda _builder, op, value: op.think(value),
    "tokens": lambda _builder, op, value: op.account(input_tokens=value, cache_write_tokens=value),
    "cost": lambda _builder, op, value: op.account(cost_usd=value, upstream_inference_cost_usd=value),
    "latency": lambda _builder, op, value: op.account(latency=value),
    "accounting status": lambda _builder, op, value: op.account(status=value),
    "accounting texts": lambda _builder, op, value: op.account(provider=value, model=value, error=value),
    "unknown figure": lambda _builder, op, value: op.account(nonsense=value),
    "request member": lambda _builder, op, value: op.request(member=value),
    "request": lambda builder, op, value: builder.set_request(op, value),
    "messages": lambda _builder, op, value: op.request(value),
    "message of many": lambda _builder, op, value: op.request([value, {"content": value}]),
    "headers": lambda _builder, op, value: op.request(headers={b"authorization": value}),
    "response": lambda _builder, op, value: op.response(value),
    "end status": lambda _builder, op, value: op.end(value),
    "end error": lambda _builder, op, value: op.end("failed", value),
    "end reasoning": lambda _builder, op, value: op.end(reasoning=value),
    "end attributes": lambda _builder, op, value: op.end(member=value),
    "op name": lambda builder, _op, value: builder.begin_op("tool", value),
    "op kind": lambda builder, _op, value: builder.begin_op(value, "x"),
    "op attributes": lambda builder, _op, value: builder.begin_op("tool", "x", attributes=value).end(member=1),
    "turn prompts": lambda builder, _op, value: builder.begin_turn(user=value, system=value),
    "turn attributes": lambda builder, _op, value: builder.begin_turn(attributes=value),
    "turn index": lambda builder, _op, value: builder.begin_turn(value),
    "assistant": lambda _builder, op, value: op.turn.assistant(value),
    "turn end": lambda _builder, op, value: op.turn.end(value, value),
    "title": lambda builder, _op, value: builder.set_title(value, status=value),
    "message": lambda builder, _op, value: builder.append_message(value),
    "message role": lambda builder, _op, value: builder.append_message({"role": value}),
    "child": lambda builder, op, value: builder.attach_child_session(op, value, attributes={"a": value}),
    "child attributes": lambda builder, op, value: builder.attach_child_session(op, "x", attributes=value),
    "session end": lambda builder, _op, value: builder.end_session(value, value, final_report=value),
    "id": lambda builder, _op, value: builder.append_log(value, "x"),
    "id to end": lambda builder, _op, value: builder.end_op(value),
    "session": lambda _builder, _op, value: SessionTreeBuilder(value, attributes=value),
}


@pytest.mark.parametrize("place", PLACES)
def test_hostile_values(place):
    """No value in any place raises into the program or spoils the tree, and the records make the same tree."""
    wrong = {}
    for name, value in HOSTILE.items():
        taker = Taker()
        builder = SessionTreeBuilder("a", txn="t", stream=Stream([taker]))
        op = builder.begin_op("llm", "m")
        try:
            PLACES[place](builder, op, value)
            builder.core.stream.flush()
            saved = msgspec.json.encode(builder.tree)
            fold = Fold("t")
            for line in taker.lines:
                fold.apply(r.parse(line[:-1]))
            again = msgspec.json.decode(saved, type=Tree)
            if builder.core.stream.failures and not place.startswith("id"):
                wrong[name] = builder.core.stream.last_failure
            elif not builder.tree == again == fold.finish():
                wrong[name] = "live, saved and folded tree differ"
        except Exception as error:  # noqa: BLE001 - what tracing raises is what the test looks for
            wrong[name] = repr(error)[:120]
        finally:
            builder.core.stream.close()
    assert {} == wrong


@given(st.text(st.characters()))
def test_any_text_without_a_store(found):
    """A tree that is kept in memory only can be written whatever text was logged."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("tool", found)
    op.log(found)
    op.think(found)
    assert builder.snapshot()["session"]["turns"]


@pytest.mark.parametrize("status", ["error", "success", "", None, 1])
def test_unknown_status(status):
    """A status that does not exist is not taken for success, and does not make the session unreadable."""
    taker = Taker()
    builder = SessionTreeBuilder("a", txn="t", stream=Stream([taker]))
    builder.begin_op("tool", "x").end(status)
    builder.core.stream.close()
    fold = Fold("t")
    for line in taker.lines:
        fold.apply(r.parse(line[:-1]))
    assert "failed" == fold.ops["1.1"].status == builder.node.turns[0].ops[0].status


def test_values_are_taken_at_the_call(root):
    """What changes after the call is kept as it was when it was given."""
    op = root.begin_op("llm", "m", attributes=(attributes := {"a": [1]}))
    op.log("x", details=(details := {"a": [1]}))
    op.request(messages := [{"a": [1]}], tools=(tools := {"a": [1]}))
    op.response(response := {"a": [1]})
    root.append_message(message := {"a": [1]})
    for value in (attributes, details, messages[0], tools, response, message):
        value["a"].append(2)
    request = root.core.pool.resolve(decode(op.node.request.payload))
    assert [[1]] * 6 == [
        found["a"]
        for found in (
            op.node.attributes,
            decode(op.node.logs[0].details),
            root.core.pool.history(decode(op.node.request.payload)["messages"]["$history"])[0],
            request["tools"],
            decode(op.node.response.payload),
            decode(root.node.messages[0].body),
        )
    ]


def test_saved_redacted():
    """With `redacted`, credentials get neither into the tree nor into the records."""
    taker = Taker()
    builder = SessionTreeBuilder("a", stream=Stream([taker], "all"), redacted=True, attributes={"apiKey": "s3cret"})
    builder.begin_turn(user="my key is sk-s3cret0123456789abcdef").assistant("Bearer s3cret0123456789")
    op = builder.begin_op("llm", "m", attributes={"token": "s3cret"})
    op.request([{"content": "sk-s3cret0123456789abcdef"}], api_key="s3cret", extra={"password": "s3cret"})
    op.log("Bearer s3cret0123456789", details={"cookie": "s3cret"})
    op.think("sk-s3cret0123456789abcdef")
    op.response({"secret": "s3cret"})
    op.end("failed", "Bearer s3cret0123456789", reasoning="sk-s3cret0123456789abcdef", token="s3cret")
    builder.append_message("sk-s3cret0123456789abcdef")
    builder.set_title("sk-s3cret0123456789abcdef", status="Bearer s3cret0123456789")
    builder.end_session("failed", "Bearer s3cret0123456789", final_report={"secret": "s3cret"})
    builder.core.stream.close()
    found = [msgspec.json.decode(line)["t"] for line in taker.lines if b"s3cret" in line]
    assert [] == found
    assert b"s3cret" not in msgspec.json.encode(builder.tree)


# The doubles that are shipped


def test_ticking():
    """The clock shows its start first, then one step more each time."""
    clock = Ticking(10.0, 0.5)
    assert [10.0, 10.5, 11.0] == [clock() for _ in range(3)]


def test_capture_and_shape():
    """Root sessions inside the block are recorded in memory, whole, under counted ids and ticking times."""

    @tool
    def search(query):
        current().log("searching")
        return query

    @session(agent="reader")
    def read():
        return search("x")

    with capture() as recording:
        with session("researcher"), turn(user="why?"):
            with llm(provider="openai", model="gpt-4o") as op:
                op.account(input_tokens=1)
            read()
        with session("second"):
            pass
    first, second = recording.sessions
    inner = ("reader", "ok", ("turn 1", "ok", ("tool search", "ok")))
    assert ("researcher", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"), ("session reader", "ok", inner))) == shape(first.tree)
    assert (("second", "ok"), "test-1", "test-2", NOW) == (shape(second.tree), first.txn, second.txn, first.tree.session.started_at)
    assert 1 == sum(len(record.logs) for record in recording.records if isinstance(record, r.Entries))


def test_capture_stands_alone(tmp_path, monkeypatch):
    """A capture neither sees what is open outside, nor is seen there, nor writes anything."""
    monkeypatch.setenv("OPTREE_PARENT", "t:1.1")
    with capture() as outer, session("outer") as opened, turn():
        with capture() as inner, session("inner"):
            pass
        with tool("x"):
            pass
    assert ("inner", "ok") == shape(inner.tree)
    assert ("outer", "ok", ("turn 1", "ok", ("tool x", "ok"))) == shape(outer.tree) == shape(opened.tree)
    assert [] == list(tmp_path.iterdir())


def test_capture_of_a_lone_op():
    """An op without a session gets one of its own, inside the capture too."""
    with capture() as recording, tool("lonely"):
        pass
    assert ("lonely", "ok", ("turn 1", "ok", ("tool lonely", "ok"))) == shape(recording.tree)


def test_capture_names_what_it_has():
    """The only tree is asked for only where there is one."""
    with capture() as recording:
        pass
    with pytest.raises(AssertionError, match="0 root sessions were recorded, not one"):
        _ = recording.tree


def test_failed_attempts_count(root):
    """Every LLM attempt is accounted for, also one that failed before it cost anything, or after (S4-32, S4-55)."""
    for status, figures in (("failed", None), ("failed", {"input_tokens": 5, "cost_usd": 0.1}), ("ok", None), ("ok", {"output_tokens": 2})):
        op = root.begin_op("llm", "p:m")
        if figures:
            op.account(**figures)
        op.end(status, "429" if status == "failed" else None)
    totals = root.node.totals
    assert (4, 2, 5, 2, 0.1) == (totals.llm_requests, totals.llm_failed, totals.input_tokens, totals.output_tokens, totals.cost_usd)
    assert [("failed", "429"), ("failed", "429"), ("ok", None), ("ok", None)] == [
        (entry.status, entry.error) for op in root.node.turns[0].ops for entry in op.accounting
    ]


def test_clock_that_is_set_back():
    """When the clock is set back, time stands still rather than go back: nothing ends before it began."""
    times = iter([1000.0, 1000.0, 1001.0, 400.0, 401.0, 402.0, 403.0])
    builder = SessionTreeBuilder("a", now=lambda: next(times, 404.0))
    op = builder.begin_op("tool", "x")
    op.end()
    builder.end_session()
    assert 0 <= op.node.ended_at - op.node.started_at
    assert 0 <= builder.node.ended_at - builder.node.started_at


def test_plain_prompt_is_one_value(root):
    """A prompt that is plain text is kept as such; an iterator of messages is the program's to use, and is left alone."""
    op = root.begin_op("llm", "m")
    op.request(messages="y" * 100_000)
    assert "y" * 100_000 == root.core.pool.resolve(decode(op.node.request.payload))["messages"]
    messages = (message for message in [{"role": "user", "content": "a"}])
    op.request(messages=messages)
    assert [{"role": "user", "content": "a"}] == list(messages)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *(("DEBUG", "VRB"), ("INFO", "VRB"), ("WARNING", "WRN"), ("WARN", "WRN"), ("ERROR", "ERR"), ("CRITICAL", "ERR"), ("TRACE", "TRC")),
        *(("WRN", "WRN"), ("odd", "VRB")),
        *(("debug", "VRB"), ("info", "VRB"), ("warning", "WRN"), ("error", "ERR"), ("exception", "ERR"), ("critical", "ERR")),
        *(("FATAL", "ERR"), ("wrn", "WRN"), ("err", "ERR"), ("trace", "TRC"), ("vrb", "VRB")),
    ],
)
def test_severities_of_the_standard_library(root, given, kept):
    """Severities may be given by the names of the standard library's logging, and structlog's (S4-60)."""
    op = root.begin_op("llm", "m")
    op.log("x", given)
    op.log("x", given)
    assert [kept] * 2 == [entry.severity for entry in op.node.logs]
    said = [] if given != "odd" else ["1.1: log(severity='odd') is none of VRB, WRN, ERR, TRC, THK, FIN: it is VRB"]
    assert said == list(root.core.stream.reports)


def test_credentials_in_nested_headers(root):
    """Credentials in headers are not kept wherever the headers stand (S4-48, S4-120)."""
    op = root.begin_op("tool", "fetch")
    op.request(arguments={"extra_headers": {"Authorization": "Bearer s3cret", "accept": "json"}})
    op.response({"response_headers": {"set-cookie": "s3cret"}})
    assert {"extra_headers": {"Authorization": "[REDACTED]", "accept": "json"}} == decode(op.node.request.payload)["arguments"]
    assert {"response_headers": {"set-cookie": "[REDACTED]"}} == decode(op.node.response.payload)


def test_counts_that_no_file_can_hold(root):
    """A token count beyond what any call can come to is left out, one below zero is none: the entry is not lost for it."""
    op = root.begin_op("llm", "m")
    op.account(input_tokens=10**20, output_tokens=-5, cache_read_tokens=MAX_COUNT)
    tokens = op.node.accounting[0].tokens
    assert (0, 0, MAX_COUNT) == (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_input_tokens)
    assert 1 == len(root.snapshot()["session"]["turns"][0]["ops"][0]["accounting"])
