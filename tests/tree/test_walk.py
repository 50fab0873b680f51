import re

import msgspec
import pytest
from hypothesis import given

from optree import SessionTreeBuilder, flatten, format_tree, session, snapshot_summary, tool, walk_ops, walk_sessions
from optree._builder import Stream
from optree._nodes import Totals
from optree._tree.fold import Tree
from optree._tree.text import format_end, last_seen, lasted, seen_of, state
from optree._tree.totals import tokens_said
from optree._tree.walk import ops_beneath
from optree.testing import START, Ticking, capture
from tests.strategies import play, programs

NOW = START * 1e3
"""What the clock shows first, in ms: the session's begin."""


@pytest.fixture
def root():
    """Return a run that researches with a sub-agent, which failed at a tool."""
    root = SessionTreeBuilder("researcher", txn="t", now=Ticking(step=1.0))
    root.set_title("Rain", status="asking")
    turn = root.begin_turn(user="why does it\nrain?")
    ask = root.begin_op("llm", "openai:gpt-4o")
    ask.log("asking", "WRN", direction="request", details={"try": 2})
    ask.account(input_tokens=1812, output_tokens=64, cache_read_tokens=1000, cost_usd=0.0031, latency=5)
    ask.end()
    read = root.begin_op("session", "reader")
    child = root.attach_child_session(read, "reader")
    search = child.begin_op("tool", "mcp:search")
    search.log("gone", "ERR", direction="response")
    search.request(query="rain")
    search.response("x" * 10)
    search.end("failed", "404: no such page")
    child.end_session("failed", "404")
    read.end("failed", "404")
    turn.end()
    return root


def test_walk(root):
    """Sessions and ops come in the order of their paths."""
    assert ["", "1.2"] == [session.path for session in walk_sessions(root.node)]
    assert ["1.1", "1.2", "1.2.1.1"] == [op.path for *_, op in walk_ops(root.node)]


@pytest.mark.parametrize(
    ("status", "ended", "live", "expected", "shown"),
    [
        ("ok", NOW + 3e3, True, "ok", "✓ 3.00 s"),
        ("failed", NOW + 3e3, True, "failed", "✗ failed 3.00 s"),
        (None, NOW + 3e3, True, "ended", "3.00 s"),
        (None, None, True, "running", "… running"),
        (None, None, False, "interrupted", "⚡ interrupted at least 2.00 s"),
    ],
)
def test_how_it_ended(status, ended, live, expected, shown):
    """The outcome is the status that was given, or that there is none: success is not made out of an end."""
    node = SessionTreeBuilder("a", now=Ticking()).node
    node.status, node.ended_at = status, ended
    assert expected == state(node, live=live)
    node.seen_at = NOW + 2e3
    assert shown == format_end(node, seen_of(node, live=live))


def test_flat_logs(root):
    """The derived logs name their node, agent and session, each by itself (S4-62, S4-63, S4-64)."""
    first, second = flatten(root.node).logs
    assert {
        "timestamp": 1700000004000.0,
        "severity": "WRN",
        "message": "asking",
        "direction": "request",
        "details": {"try": 2},
        "turn": 1,
        "type": "llm",
        "remoteIdentifier": "openai:gpt-4o",
        "path": "1.1",
        "agentId": "researcher",
        "callPath": "researcher",
        "txnId": "t",
        "parentTxnId": None,
        "originTxnId": "t",
    } == first
    assert ("1.2.1.1", "reader", "researcher->reader", "t:1.2", "t", "t") == tuple(
        second[key] for key in ("path", "agentId", "callPath", "txnId", "parentTxnId", "originTxnId")
    )


def test_flat_accounting(root):
    """The derived accounting holds each entry once: the child's is not repeated for its parent (S4-56, S4-57, S4-62)."""
    first, second = flatten(root.node).accounting
    assert ("t:1.1#1", "llm", "ok", 5.0, "openai", "gpt-4o", 0.0031) == tuple(
        first[key] for key in ("id", "type", "status", "latency", "provider", "model", "costUsd")
    )
    assert {"inputTokens": 812, "outputTokens": 64, "cacheReadInputTokens": 1000, "totalTokens": 1876} == first["tokens"]
    sent = next(walk_ops(root.node.turns[0].ops[1].child_session))[2].request.size
    assert ("t:1.2.1.1#2", "tool", "failed", "mcp:search", sent, 10, "404: no such page") == tuple(
        second[key] for key in ("id", "type", "status", "command", "charactersIn", "charactersOut", "error")
    )


def test_flat_lists_are_in_order_of_time():
    """What a parent did after its child comes behind it, though the child stands deeper; of one time, the parent's comes first (S4-62)."""
    times = iter(float(second) for second in range(100))
    root = SessionTreeBuilder("lead", txn="t", now=lambda: next(times))
    first = root.begin_op("tool", "first")
    read = root.begin_op("session", "reader")
    search = root.attach_child_session(read, "reader").begin_op("llm", "m")
    for op, said in ((search, "a"), (first, "b"), (search, "c"), (first, "d")):
        op.log(said)
        op.account(model=said)
    found = flatten(root.tree.session)
    assert (["a", "b", "c", "d"], ["a", "b", "c", "d"]) == (
        [line["message"] for line in found.logs],
        [entry["model"] for entry in found.accounting],
    )
    assert ["tool", "llm"] == [next(line["type"] for line in found.logs if line["message"] == said) for said in "ba"]


def test_flat_lists_tell_what_a_file_of_others_told():
    """Lines and entries of a file that optree did not write keep what it said of them; paths are the tree's (S4-62)."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    told = {"members": {"agentId": "theirs", "stack": "at x", "path": "9.9", "more": {"a": 1}}}
    op = root.begin_op("llm", "m", attributes={"ai-agent": {"accounting": [{"members": {"agentId": "billed", "path": "9"}}]}})
    op.log("one", details={"ai-agent": told})
    op.log("two", details={"ai-agent": told, "try": 2})
    op.log("three", details={"try": 2})
    op.account(model="m", cost_usd=0.5)
    found = flatten(root.tree.session)
    assert [("theirs", "at x", "1.1", None), ("theirs", "at x", "1.1", {"try": 2}), ("lead", None, "1.1", {"try": 2})] == [
        tuple(line.get(key) for key in ("agentId", "stack", "path", "details")) for line in found.logs
    ]
    assert [("billed", "1.1", 0.5)] == [(entry["agentId"], entry["path"], entry["costUsd"]) for entry in found.accounting]
    assert ["more" in line for line in found.logs] == [False] * 3


@given(programs)
def test_flat_lists_are_deterministic(program):
    """The same tree gives the same lists, in order of time, live or read back (S4-62, S4-132)."""
    live = play(program).live
    found = flatten(live.session)
    again = flatten(msgspec.json.decode(msgspec.json.encode(live), type=Tree).session)
    assert found == again
    assert sorted(entry["timestamp"] for entry in found.logs) == [entry["timestamp"] for entry in found.logs]
    assert sum(len(op.logs) for *_, op in walk_ops(live.session)) == len(found.logs)


def test_totals(root):
    """A session's totals are its own and those of all below; a child's are its own (S4-58)."""
    child = root.node.turns[0].ops[1].child_session
    assert (812, 64, 1000, 0.0031, 1, 0, 1, 1, 10) == tuple(
        getattr(root.node.totals, name)
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cost_usd", "llm_requests", "llm_failed", "tools_run",
                     "tools_failed", "characters_out")
    )  # fmt: skip
    assert (0, 1, 1) == (child.totals.llm_requests, child.totals.tools_run, child.totals.tools_failed)


def test_summary(root):
    """The summary has a line an agent, the totals and the time, and nothing else (S4-14, S4-58, S4-127, S4-128)."""
    root.end_session()
    found = snapshot_summary(root.node)
    assert [("researcher", "", "ok", "Rain", "asking"), ("reader", "1.2", "failed", None, None)] == [
        tuple(line[key] for key in ("agentId", "path", "status", "title", "latestStatus")) for line in found["lines"]
    ]
    totals = found["totals"]
    assert (2, 1, 1, 812) == (totals["agentsRun"], totals["llmRequests"], totals["toolsRun"], totals["inputTokens"])
    took = (root.node.ended_at - root.node.started_at) / 1e3
    assert (NOW, took, took) == (found["runStartedAt"], found["runElapsedSec"], found["lines"][0]["elapsedSec"])
    assert {"lines", "totals", "runStartedAt", "runElapsedSec"} == found.keys()


def test_a_clock_that_goes_back_gives_no_negative_time():
    """A session whose clock went back meanwhile took no time: its times never go back."""
    times = iter([9.0, 5.0])
    root = SessionTreeBuilder("a", txn="t", now=lambda: next(times))
    root.end_session()
    found = snapshot_summary(root.node)
    assert (9000.0, 0.0, 0.0) == (root.node.ended_at, found["runElapsedSec"], found["lines"][0]["elapsedSec"])


@pytest.mark.parametrize(
    ("attributes", "word"),
    [({"step": {"kind": "internal"}}, "step internal"), ({"step": {"kind": 3}}, "turn"), ({"step": "x"}, "turn"), (None, "turn")],
)
def test_what_a_turn_of_the_original_was(attributes, word):
    """A turn that was a step of the original ai-agent is called so."""
    root = SessionTreeBuilder("a", txn="t", now=Ticking())
    root.begin_turn(attributes=attributes).end()
    assert f"1 {word} ✓" in format_tree(root.tree.session)


@pytest.mark.parametrize(
    ("sent", "received", "said"),
    [(0, 0, ""), (5, 0, "5→0 tok"), (0, 5, "0→5 tok"), (1200, 34, "1,200→34 tok")],
)
def test_tokens_are_said_where_there_are_any(sent, received, said):
    """Sent and received ones are told together, if one of them is there."""
    assert said == tokens_said(Totals(input_tokens=sent, output_tokens=received))


def test_summary_of_what_broke_off():
    """What broke off is interrupted, and its time ends with the last that was seen (S4-30)."""
    root = SessionTreeBuilder("a", now=Ticking(step=1.0))
    op = root.begin_op("llm", "m")
    for _ in range(6):
        op.think("…")
    found = snapshot_summary(root.tree.session, live=False)
    assert (op.node.reasoning.chunks[-1].ts, "interrupted", 8.0) == (
        last_seen(root.node),
        found["lines"][0]["status"],
        found["runElapsedSec"],
    )
    assert "running" == snapshot_summary(root.node)["lines"][0]["status"]


def test_text(root):
    """The tree as text has one line a node, with what it took, cost and said (S4-113)."""
    root.node.turns[0].ops[0].latency = 12.3
    root.node.turns[0].ops[1].child_session.turns[0].ops[0].latency = 5000.0
    expected = [
        "researcher “Rain” … running 1 llm · 1 tool · 1,812→64 tok (1,000 cached) · $0.003100",
        "└─ 1 turn ✓ 17.00 s why does it rain?",
        "   ├─ 1.1 llm openai:gpt-4o ✓ 12.3 ms 1,812→64 tok (1,000 cached) $0.003100 1 log",
        "   └─ 1.2 reader ✗ failed 9.00 s 0 llm · 1 tool 404",
        "      └─ 1.2.1 turn ✗ failed 7.00 s",
        "         └─ 1.2.1.1 tool mcp:search ✗ failed 5.00 s 1 log 404: no such page",
    ]
    assert expected == [line.rstrip() for line in format_tree(root.node, live=True).splitlines()]


def test_text_of_what_broke_off():
    """What has no end reads as interrupted in a tree that no longer lives, as running in one that does (S4-30)."""
    root = SessionTreeBuilder("a", now=lambda: START)
    root.begin_op("tool", "x")
    assert "a ⚡ interrupted 0 llm · 1 tool\n└─ 1 turn ⚡ interrupted\n   └─ 1.1 tool x ⚡ interrupted" == _stripped(format_tree(root.node))
    assert "a … running 0 llm · 1 tool\n└─ 1 turn … running\n   └─ 1.1 tool x … running" == _stripped(format_tree(root.node, live=True))


def test_what_a_program_has_of_its_running_session_reads_as_running():
    """A session in its block, and a builder, are of what goes on; after the end they are not, and nothing need be said (S4-30)."""
    with capture(), session("a") as own, tool("x"):
        assert "a … running" == _stripped(format_tree(own))[:11]
        assert "… running" in format_tree(own).splitlines()[-1]
    assert "running" not in format_tree(own)
    root = SessionTreeBuilder("a", now=lambda: START)
    assert ("a … running", "a ⚡ interrupted") == (format_tree(root).strip(), format_tree(root, live=False).strip())


def test_text_is_painted():
    """A painter gets each part with its style; without one the text is plain."""
    root = SessionTreeBuilder("a")
    root.begin_op("tool", "x").end("failed", "why")
    root.attach_child_session(root.begin_op("session", "y"), "b")
    painted = format_tree(root.node, paint=lambda style, part: f"<{style}>{part}</{style}>").splitlines()
    assert painted[0].startswith("<agent>a</agent> <interrupted>⚡ interrupted</interrupted>")
    assert painted[1].startswith("<dim>└─ </dim><path>1</path> turn <interrupted>")
    assert painted[2].startswith("<dim>   ├─ </dim><path>1.1</path> <tool>tool</tool> x <failed>✗ failed</failed>")
    assert painted[2].endswith(" <failed>why</failed>")
    assert painted[3].startswith("<dim>   └─ </dim><path>1.2</path> <agent>b</agent> <interrupted>")
    assert format_tree(root.node) == re.sub("<[^>]*>", "", "\n".join(painted))


def test_a_line_is_one_line_and_short():
    """Names with a line break stay on their line; of long texts so many characters are shown, of all but the longest all."""
    root = SessionTreeBuilder("a\nb", now=Ticking())
    root.begin_turn(user="x" * 72)
    root.begin_turn(user="y" * 73)
    first, one, other = format_tree(root.node).splitlines()
    assert first.startswith("a\\nb ")
    assert one.endswith(" " + "x" * 72)
    assert other.endswith(" " + "y" * 71 + "…")


@pytest.mark.parametrize(
    ("expected", "began", "ended", "untimed", "broke_off"),
    [
        (5.0, 10.0, 15.0, None, False),
        (0.0, 15.0, 10.0, None, False),
        (None, 10.0, 15.0, 15.0, False),
        (5.0, 10.0, 15.0, 14.0, False),
        (None, 10.0, 10.0, None, True),
        (5000.0, 10.0, 5010.0, None, True),
        (0.0, 10.0, 10.0, None, False),
    ],
)
def test_how_long_it_lasted(expected, began, ended, untimed, broke_off):
    """A duration is never negative; up to where times are only an order, and of what was not seen after its begin, nobody knows it."""
    assert expected == lasted(began, ended, untimed, broke_off=broke_off)


@pytest.mark.parametrize(
    ("milliseconds", "said"), [(7.04, "7.0 ms"), (1500.0, "1.50 s"), (113_280.0, "1 min 53 s"), (3_780_000.0, "1 h 03 min")]
)
def test_long_times_are_said_in_minutes(milliseconds, said):
    """A tree says how long its nodes took as a listing of sessions does."""
    builder = SessionTreeBuilder("a")
    builder.begin_op("tool", "slow").end()
    builder.node.turns[0].ops[0].latency = milliseconds
    assert f"slow ✓ {said}" in format_tree(builder.node)


def test_a_conversation_without_times_has_no_durations():
    """What an import says of its times is read; anything else there is none of it."""
    root = SessionTreeBuilder("a", attributes={"conversation": {"untimedUntil": 15.0}})
    assert 15.0 == seen_of(root.node, live=False).untimed
    for block in ({"conversation": {"untimedUntil": "15"}}, {"conversation": 15.0}, {}):
        assert None is seen_of(SessionTreeBuilder("a", attributes=block).node, live=False).untimed


def test_deep_trees():
    """Trees deeper than Python's recursion limit are built, walked, summed, shown and written."""
    depth = 1200
    root = builder = SessionTreeBuilder("a", stream=Stream([]), cycles="mark")
    for number in range(depth):
        op = builder.begin_op("session", "a")
        builder = builder.attach_child_session(op, f"a{number}")
    builder.begin_op("llm", "m").account(input_tokens=1)
    assert (depth + 1, 1) == (len(list(walk_sessions(root.node))), root.node.totals.input_tokens)
    assert depth + 1 == len(snapshot_summary(root.node)["lines"])
    assert 1 + 2 * (depth + 1) == len(format_tree(root.node).splitlines())
    root.core.stream.close()


def _stripped(found):
    return "\n".join(line.rstrip() for line in found.splitlines())


def nested():
    """Return a session in which a model call is within a tool's, and another behind that."""
    root = SessionTreeBuilder("a", now=Ticking())
    turn = root.begin_turn()
    tool = root.begin_op("tool", "outer", turn=turn)
    inner = root.begin_op("llm", "inner", turn=turn, parent=tool)
    root.begin_op("tool", "deep", turn=turn, parent=inner).end()
    inner.end()
    tool.end()
    root.begin_op("llm", "next", turn=turn).end()
    turn.end()
    root.end_session()
    return root


def test_an_op_stands_beneath_the_one_that_it_was_begun_in():
    """The tree draws who began what, which paths do not tell: ops of a turn are numbered as they come (S4-113)."""
    drawn = [
        (column, re.search(r"1\.\d", line)[0]) for line in format_tree(nested().node).splitlines()[2:] for column in [line.index("1.")]
    ]
    assert [(6, "1.1"), (9, "1.2"), (12, "1.3"), (6, "1.4")] == drawn


def test_an_op_whose_parent_is_not_there_stands_in_its_turn():
    """Parents that were lost, that come later, or that an op is itself leave it where its path says: nothing is left out."""
    root = nested()
    first, second, third, fourth = root.node.turns[0].ops
    first.parent_op, second.parent_op, third.parent_op, fourth.parent_op = "1.1", "9.9", "1.4", None
    assert {"1": [first, second, third, fourth], "1.1": [], "1.2": [], "1.3": [], "1.4": []} == ops_beneath(root.node.turns[0])
