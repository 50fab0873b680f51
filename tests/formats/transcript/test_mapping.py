import pytest
from msgspec import json

from optree import SessionTreeBuilder
from optree._values import decode
from optree.testing import Ticking
from optree_formats.transcript import FORMAT, run_id_of
from optree_formats.transcript.messages import answer, answer_of, request_of, roles, sent
from tests.formats.transcript.lines import text
from tests.formats.transcript.trees import review, unfinished

ROOT, SUB = run_id_of("t"), run_id_of("t:1.4")


def runs(tree, folder):
    """Return the events of each run, as plain values."""
    return {path.stem: [json.decode(line) for line in path.read_bytes().splitlines()] for path in FORMAT.write(tree, folder)}


@pytest.fixture
def events(tmp_path):
    """Return the events of a review."""
    return runs(review(), tmp_path)[ROOT]


def told(events, path):
    """Return what stands at a path: types and payloads."""
    return [(event["type"], event["payload"]) for event in events if event["path"] == path]


def test_a_session_is_a_run(events):
    """A session begins and ends a run of its agent's name; its report is the result (S2-20, S2-21, S2-31, S2-34)."""
    assert [
        ("run.started", {"name": "reviewer", "kind": "workflow"}),
        ("run.completed", {"name": "reviewer", "kind": "workflow", "result": {"issues": 2}}),
    ] == told(events, "")
    assert {0} == {event["iteration"] for event in events}


def test_a_turn_is_a_step(events):
    """A turn is a step, with the prompt and the system prompt that it began with, and what was said in it (S2-15, S2-22, S2-26, S2-36)."""
    step = {"name": "turn_1", "kind": "turn"}
    prompts = {"role": "user", "blocks": [text("Review main.go"), text("Be brief")]}
    expected = [("step.started", step), ("message.user", prompts), ("step.completed", {**step, "result": "Found 2 issues."})]
    assert expected == told(events, "turn_1")


def test_a_model_call_is_an_agents_step(events):
    """A model's call is a step of kind agent, with what it was sent, its thoughts, text and calls (S2-22, S2-23, S2-26, S2-27, S2-52)."""
    begun, asked, answered, ended = told(events, "turn_1.op_1")
    said = {"type": "text", "fidelity": "agent_emitted", "text": "I look at it"}
    use = {"type": "tool_use", "fidelity": "agent_emitted", "tool_name": "read", "tool_id": "c1", "tool_input": {"path": "main.go"}}
    assert ("step.started", {"name": "openai:gpt-4o", "kind": "agent"}) == begun
    assert ("message.user", {"role": "user", "blocks": [text("Review main.go"), text("Be brief")]}) == asked
    assert ("message.assistant", "assistant") == (answered[0], answered[1]["role"])
    assert [{"type": "thinking", "fidelity": "agent_emitted", "thinking": "First I should"}, said, use] == answered[1]["blocks"][:3]
    assert ("step.completed", "I look at it") == (ended[0], ended[1]["result"]["content"])


def test_tools(events):
    """A tool is its call and its result, seen by the router, linked by an id of their own; a failure has its error.

    (S2-28, S2-29, S2-37, S2-38, S2-39, S2-40, S2-41)
    """
    called, result = told(events, "turn_1.op_2")
    tool = {"name": "read", "call_id": "t:1.2", "input": {"path": "main.go"}, "output": None, "fidelity": "router"}
    assert [("tool.call", tool), ("tool.result", {**tool, "output": "package main"})] == [called, result]
    assert ("tool.result", "no such file") == (told(events, "turn_1.op_3")[1][0], told(events, "turn_1.op_3")[1][1]["error"])


def test_calls_that_only_the_agent_reports(events):
    """A call without an op is told once its result is sent, as the agent's report: what the router saw is not doubled (S2-52, S2-53)."""
    calls = [(one["payload"]["name"], one["payload"]["fidelity"]) for one in events if one["type"] == "tool.call"]
    assert [("read", "router"), ("grep", "router"), ("lint", "agent_emitted")] == calls
    reported = [one["payload"] for one in events if one["payload"] and one["payload"].get("call_id") == "c2"]
    tool = {"name": "lint", "call_id": "c2", "input": {}, "output": None, "fidelity": "agent_emitted"}
    assert [tool, {**tool, "output": "clean"}] == reported


def test_results_go_to_the_model(events):
    """What a model is sent after its answer is what is new: tool results, and the system prompt again (S2-36, S2-47)."""
    [asked] = [payload for kind, payload in told(events, "turn_1.op_6") if kind == "message.user"]
    result = {"type": "tool_result", "fidelity": "router", "tool_id": "c1", "tool_content": "package main"}
    assert [result, {**result, "tool_id": "c2", "tool_content": "clean", "fidelity": "agent_emitted"}, text("Be brief")] == asked["blocks"]


def test_system_ops(events):
    """An op of the system is a step of kind operation; that it was cancelled is an error, and said exactly beside (S2-22, S2-33)."""
    step = {"name": "check budget", "kind": "operation"}
    ended = {**step, "error": "cancelled", "result": {"left": 3}}
    assert [("step.started", step), ("step.completed", ended)] == told(events, "turn_1.op_5")
    [beside] = [one["optree"] for one in events if one["path"] == "turn_1.op_5" and one["type"] == "step.completed"]
    assert {"status": "cancelled", "error": None} == beside


def test_sub_agents(tmp_path):
    """A sub-agent is a run of its own: the parent's step names it at start and end, and all its events name the parent.

    (S2-12, S2-13, S2-24, S2-25, S2-60, S2-61, S2-62, S2-63)
    """
    found = runs(review(), tmp_path)
    calls = [(one["type"], one["child_run_id"], one["payload"]["kind"]) for one in found[ROOT] if "child_run_id" in one]
    assert [(f"step.call_workflow.{what}", SUB, "call_workflow") for what in ("started", "completed")] == calls
    assert ([ROOT, SUB], {ROOT}) == ([*found], {one["parent_run_id"] for one in found[SUB]})
    assert list(range(1, len(found[SUB]) + 1)) == [one["seq"] for one in found[SUB]]
    assert not any("parent_run_id" in one for one in found[ROOT])


def test_a_call_of_an_agent_that_never_began_stands_where_it_began(tmp_path):
    """It is a step like any other, though no run is to be named."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    turn = root.begin_turn()
    call = root.begin_op("session", "reader", turn=turn)
    root.begin_op("system", "tidy", turn=turn).end()
    call.end("failed", "no such agent")
    [events] = runs(root.tree, tmp_path).values()
    assert [
        ("run.started", ""), ("step.started", "turn_1"), ("step.started", "turn_1.op_1"), ("step.started", "turn_1.op_2"),
        ("step.completed", "turn_1.op_2"), ("step.completed", "turn_1.op_1"),
    ] == [(one["type"], one["path"]) for one in events]  # fmt: skip


def test_deeper(tmp_path):
    """Each level has its file, linked to the one above and the one below (S2-65)."""
    found = runs(review(levels=3), tmp_path)
    links = [(run, {one.get("parent_run_id") for one in events}) for run, events in found.items()]
    below = [{one["child_run_id"] for one in events if "child_run_id" in one} for events in found.values()]
    ids = [*found]
    assert [(ids[0], {None}), (ids[1], {ids[0]}), (ids[2], {ids[1]}), (ids[3], {ids[2]})] == links
    assert [{ids[1]}, {ids[2]}, {ids[3]}, set()] == below


def test_unfinished(tmp_path):
    """What has not ended has no event that says so; what was thought and answered is there (S2-27)."""
    found = runs(unfinished(), tmp_path)
    assert not any(one["type"].endswith((".completed", ".result")) for events in found.values() for one in events)
    blocks = [one["payload"]["blocks"] for one in found[run_id_of("t:1.1")] if one["type"] == "message.assistant"]
    assert [[("thinking", "hm"), ("text", "so f")]] == [[(one["type"], one[one["type"]]) for one in each] for each in blocks]


def test_nothing_stands_where_others_look(events):
    """What the seed's members cannot say of a node is in a member of ours beside them, and only there (S2-70)."""
    seeds = {"seq", "run_id", "parent_run_id", "child_run_id", "type", "path", "iteration", "timestamp", "payload"}
    assert {"optree"} == {name for event in events for name in event} - seeds
    assert {"txn", "attributes", "title", "latestStatus"} == set(events[0]["optree"])


REQUESTS = [
    ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, [("user", "u"), ("system", "s")]),
    ({"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]}]}, [("user", "u"), ("system", "s")]),
    ({"input": "u", "instructions": "s"}, [("user", "u"), ("system", "s")]),
    ({"contents": [{"role": "user", "parts": [{"text": "u"}]}]}, [("user", "u")]),
    ({"messages": [{"role": "user", "content": "old"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "new"}]},
     [("user", "new")]),
    ({"prompt": "u"}, [("user", "u")]),
    ({"question": "u"}, [("user", '{"question":"u"}')]),
    ({"messages": 3, "bytes": 1200, "isFinalTurn": False}, []),
    ({"messages": 1, "sdk": {"format": "sdk", "encoding": "base64", "value": "/w=="}}, []),
    ({"messages": []}, []),
    ({}, []),
    (None, []),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "expected"), REQUESTS)
def test_requests(request_, expected):
    """What is new in a request is found in each provider's form, and again in the request that is made of it (S2-26, S2-36)."""
    found = sent(request_)
    assert expected == [(role, block.text) for role, block in found]
    assert found == sent(request_of(found))


ANSWERS = [
    ("so", [("text", "so")]),
    ({"role": "assistant", "content": "so", "reasoning_content": "hm"}, [("thinking", "hm"), ("text", "so")]),
    ({"choices": [{"message": {"content": "so"}}]}, [("text", "so")]),
    (
        {
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "c", "name": "t", "input": 1},
            ]
        },
        [("thinking", "hm"), ("text", "so"), ("tool_use", "t")],
    ),
    ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "so"}]}]}, [("text", "so")]),
    ({"candidates": [{"content": {"parts": [{"text": "so"}]}}]}, [("text", "so")]),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": "{"}}]}, [("tool_use", "t")]),
    ({"answer": 42}, [("text", '{"answer":42}')]),
    (42, []),
    (None, []),
    ("", []),
]


@pytest.mark.parametrize(("response", "expected"), ANSWERS)
def test_answers(response, expected):
    """An answer's thoughts, text and calls are found in each provider's form, and again in the answer that is made of them.

    (S2-27, S2-44, S2-45, S2-46)
    """
    found = answer(response, "")
    assert expected == [(block.type, block.thinking or block.text or block.tool_name) for block in found]
    spoken = [block for block in found if block.type != "thinking"]
    again = answer(answer_of(found), "")
    assert [(one.type, one.text, one.tool_id) for one in spoken] == [(one.type, one.text, one.tool_id) for one in again]
    assert [decode(one.tool_input) for one in spoken if one.tool_input] == [decode(one.tool_input) for one in again if one.tool_input]


def test_default_roles():
    """Of two texts the second is the system's prompt; results are the tools' (S2-36)."""
    blocks = [block for _, block in sent({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})]
    result = [block for _, block in sent({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]})]
    assert (["user"], ["user", "system"], ["tool", "user"]) == (roles(blocks[:1]), roles(blocks), roles([*result, blocks[0]]))


@pytest.mark.parametrize(("title", "status"), [("Rain", None), (None, "asking"), ("Rain", "asking")])
def test_what_stands_only_in_what_a_run_tells_comes_back(tmp_path, title, status):
    """A title, a status, the txn, a call of an agent that never began, and thoughts without an answer, open and ended."""
    root = SessionTreeBuilder("lead", txn="txn-1", now=Ticking())
    root.set_title(title, status=status)
    turn = root.begin_turn()
    root.begin_op("session", "reader", turn=turn)
    for _ in range(2):
        op = root.begin_op("llm", "m", turn=turn)
        op.think("hm")
    op.end()
    FORMAT.write(root.tree, tmp_path)
    [back] = FORMAT.read(tmp_path).trees
    assert ("txn-1", title, status) == (back.session.origin_txn_id, back.session.session_title, back.session.latest_status)
    found = [(op.kind, op.name, thoughts(op)) for op in back.session.turns[0].ops]
    assert [("session", "reader", ""), ("llm", "m", "hm"), ("llm", "m", "hm")] == found


def thoughts(op):
    """Return an op's reasoning, streamed or final."""
    return "" if op.reasoning is None else op.reasoning.final or "".join(chunk.text for chunk in op.reasoning.chunks)
