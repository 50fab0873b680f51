"""Traces of the OpenAI Agents SDK: those in `data` its version 0.24.0 exported, against a scripted provider."""

import json
from pathlib import Path

import pytest

from optree import walk_ops
from optree._formats.installed import format_named
from optree.errors import FormatError

TRACES = format_named("openai-agents")
FOLDER = Path(__file__).with_name("data") / "openai-agents"
BOTH = pytest.mark.parametrize("name", ["chat.jsonl", "responses.jsonl"])


def span(identity, second, kind, above=None, until=None, error=None, **data):
    """Return a span of one trace, from a second to one after it."""
    stamp = "2026-11-23T15:00:{:06.3f}+00:00"
    made = {"object": "trace.span", "id": identity, "trace_id": "trace_1", "parent_id": above, "started_at": stamp.format(second)}
    made["ended_at"] = stamp.format(second + 1 if until is None else until) if until != 0 else None
    return {**made, "span_data": {"type": kind, **data}, "error": error}


def read(path, *items, strict=True):
    """Return the trees and the faults of a file with these objects, one a line."""
    path.write_text("".join(json.dumps(one) + "\n" for one in items))
    found = TRACES.read(path, strict=strict)
    return found.trees, found.faults


def kept(tree, payload):
    """Return a request or response in full."""
    return tree.pool.resolve(json.loads(bytes(payload.payload)))


@BOTH
def test_traces_of_the_sdk_itself(name):
    """A trace is a session; agents that were called and handed over to are sessions in it, tools have outcomes, an error is on its op."""
    sums, broken = TRACES.read(FOLDER / name, strict=True).trees
    main, other = sums.session.turns[0].ops
    model = "openai:gpt-4o" if name == "chat.jsonl" else "openai:unknown"
    assert [
        ("llm", model),
        ("tool", "add"),
        ("llm", model),
        ("tool", "ask_helper"),
        ("session", "helper"),
        ("llm", model),
        ("system", "handoff"),
    ] == [(op.kind, op.name) for op in main.child_session.turns[0].ops]
    asked, helper = main.child_session.turns[0].ops[3:5]
    assert (asked.path, "helper", "other", "sums", "ok") == (
        helper.parent_op,
        helper.child_session.agent_id,
        other.name,
        sums.session.agent_id,
        sums.session.status,
    )
    [agent] = broken.session.turns[0].ops
    assert ("failed", "Error in agent run: Error running tool broken: no such file") == (agent.status, agent.error)
    tool = agent.child_session.turns[0].ops[1]
    assert ("failed", "Error running tool: no such file") == (tool.status, tool.error)
    assert "failed" == broken.session.status


@BOTH
def test_their_tokens_are_those_that_the_sdk_counted_itself(name):
    """Totals equal the sum that the SDK gives with each run, and are counted once; no cost is said, so it is unknown."""
    items = [item for line in (FOLDER / name).read_text().splitlines() for item in json.loads(line)["data"]]
    own = [item["span_data"]["data"]["usage"] for item in items if not item.get("parent_id", "x")]
    for tree, usage in zip(TRACES.read(FOLDER / name).trees, own, strict=True):
        totals = tree.session.totals
        assert (usage["input_tokens"], usage["cached_input_tokens"], usage["output_tokens"], usage["requests"], 0) == (
            totals.all_input_tokens,
            totals.cache_read_input_tokens,
            totals.output_tokens,
            totals.llm_requests,
            totals.known_costs,
        )


def test_a_call_says_what_was_asked_and_answered():
    """A generation has its messages, answer and configuration, a tool its arguments and result; times are the file's."""
    tree, _ = TRACES.read(FOLDER / "chat.jsonl").trees
    call, tool = tree.session.turns[0].ops[0].child_session.turns[0].ops[:2]
    assert [{"content": "MAIN", "role": "system"}, {"role": "user", "content": "What is 1+2?"}] == kept(tree, call.request)["messages"]
    assert "add" == kept(tree, call.response)["tool_calls"][0]["function"]["name"]
    assert ({"x": 1, "y": 2}, "3") == (kept(tree, tool.request), kept(tree, tool.response))
    assert all(op.started_at <= op.ended_at for _, _, op in walk_ops(tree.session))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("batch", [True, False])
def test_forms_of_the_same(tmp_path, indent, batch):
    """A batch, a list, in one line or in many, are the same traces."""
    items = [item for line in (FOLDER / "chat.jsonl").read_text().splitlines() for item in json.loads(line)["data"]]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"data": items} if batch else items, indent=indent))
    assert TRACES.detect(path, path.read_bytes())
    before, found = TRACES.read(FOLDER / "chat.jsonl"), TRACES.read(path, strict=True)
    assert [tree.session for tree in before.trees] == [tree.session for tree in found.trees]


def test_what_has_not_ended_stays_open(tmp_path):
    """A span without an end, and the session that it is in, stay open; one whose parent is not there stands in the session itself."""
    [tree], _ = read(
        tmp_path / "t.jsonl",
        span("a", 1, "agent", until=0, name="main"),
        span("g", 2, "generation", "a", until=0, model="gpt-4o", usage={"input_tokens": 5, "output_tokens": 2}),
        span("x", 3, "function", "gone", name="add", input="{"),
    )
    agent, tool = tree.session.turns[0].ops
    assert (None, None, None, "ok") == (tree.session.ended_at, agent.ended_at, agent.child_session.ended_at, tool.status)
    assert (5, {"arguments": "{"}) == (tree.session.totals.all_input_tokens, kept(tree, tool.request))


def test_what_is_odd_is_said_by_line(tmp_path):
    """What is no span, has no id or time, or is there twice is said by line and passed over; with --strict it is refused."""
    items = [
        {"object": "trace", "id": "trace_1", "workflow_name": "w"},
        span("a", 1, "agent", name="main"),
        span("a", 1, "agent", name="again"),
        {"object": "of_tomorrow"},
        7,
        {**span("b", 1, "function"), "started_at": None},
        {**span("c", 1, "function"), "id": 3},
        span("d", 1, "function", "e"),
        span("e", 1, "function", "d"),
        {**span("f", 2, "generation", "a", usage=7, input=8, output=[]), "span_data": 9},
        {"object": "trace", "id": "trace_2"},
    ]
    [tree], faults = read(tmp_path / "t.jsonl", *items, strict=False)
    assert [3, 4, 5, 6, 7, 0, 0] == [fault.line for fault in faults]
    assert ["main", "custom"] == [op.name for _, _, op in walk_ops(tree.session)]
    with pytest.raises(FormatError, match="line 3: is there already"):
        read(tmp_path / "t.jsonl", *items)
