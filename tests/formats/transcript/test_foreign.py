import json

import pytest

from optree._cli.format_loss import lacking
from optree._values import decode
from optree.errors import FormatError
from optree_formats.transcript import FORMAT
from optree_formats.transcript.wire import UNLIKE
from tests.formats.transcript.lines import CHILD, RUN, event, line, message, step, text, tool, write

AT = "2026-06-08T08:14:{:02d}Z"


def tree(tmp_path, *events):
    """Return the tree of a run's events, each (type, payload, path), one a second, and the faults."""
    lines = [line(1, "run.started", {"workflow_name": "review"}, timestamp=AT.format(0))]
    for seq, (kind, payload, path) in enumerate(events, 2):
        lines.append(line(seq, kind, payload, path=path, timestamp=AT.format(seq)))
    lines.append(line(len(lines) + 1, "run.completed", {"workflow_name": "review", "status": "success"}, timestamp=AT.format(59)))
    found = FORMAT.read(write(tmp_path / f"{RUN}.jsonl", *lines))
    return found.trees[0].session, [fault.said for fault in found.faults if not fault.said.startswith("not held")]


def ops(session):
    """Return the ops of a session that has one turn."""
    [turn] = session.turns
    return turn.ops


def test_an_agents_step(tmp_path):
    """A step of an agent is a model's call with what was sent, thought and answered; the run is a session with one turn.

    (S2-22, S2-26, S2-27, S2-58)
    """
    blocks = [
        {"type": "thinking", "fidelity": "agent_emitted", "thinking": "First"},
        text("Found 2", "agent_emitted"),
        {"type": "tool_use", "fidelity": "agent_emitted", "tool_name": "Read", "tool_id": "u1", "tool_input": {"path": "main.go"}},
    ]
    session, wrong = tree(
        tmp_path,
        ("step.started", step(), "analyze"),
        ("message.user", message(text("Review"), text("Be brief")), "review"),
        ("message.assistant", message(*blocks, role="assistant"), "review"),
        ("step.completed", step(result=True), "analyze"),
    )
    [op] = ops(session)
    asked = [{"role": "user", "content": "Review"}, {"role": "system", "content": "Be brief"}]
    assert ([], "review", "ok", 59_000.0) == (wrong, session.agent_id, session.status, session.ended_at - session.started_at)
    assert ("llm", "analyze", "ok", 3000.0) == (op.kind, op.name, op.status, op.latency)
    assert {"messages": asked} == decode(op.request.payload)
    assert ("Found 2", "Read", "First") == (
        (answer := decode(op.response.payload))["content"],
        answer["tool_calls"][0]["function"]["name"],
        op.reasoning.final,
    )
    assert {"step": {"path": "analyze", "kind": "agent", "messages": "review", "unlike": ["times"], "result": True}} == op.attributes


def test_kinds_of_steps(tmp_path):
    """Commands, operations, loops and steps of one's own are ops of the system, with their results (S2-22, S2-32)."""
    kinds = ["command", "operation", "terminal", "parallel", "for_each", "while", "my_kind"]
    events = [(f"step.{what}", step(kind, kind), kind) for kind in kinds for what in ("started", "completed")]
    session, wrong = tree(tmp_path, *events)
    assert ([], [("system", kind, kind) for kind in kinds]) == (
        wrong,
        [(op.kind, op.name, op.attributes["step"]["kind"]) for op in ops(session)],
    )


@pytest.mark.parametrize("path", ["parallel_block.branch_a", "parallel_block/branch_a"])
def test_paths_lead_to_parents(tmp_path, path):
    """A step below another has it as its parent, whether dots or slashes join their path (S2-15)."""
    session, _ = tree(
        tmp_path,
        ("step.started", step("parallel_block", "parallel"), "parallel_block"),
        ("step.started", step("branch_a", "command"), path),
        ("step.completed", step("branch_a", "command", error="exit 1"), path),
        ("step.completed", step("parallel_block", "parallel"), "parallel_block"),
    )
    assert [(None, "ok", None), ("1.1", "failed", "exit 1")] == [(op.parent_op, op.status, op.error) for op in ops(session)]


def test_loops(tmp_path):
    """A step that runs again has an op for each time; its iteration is kept (S2-16)."""
    lines = [line(1)]
    for turn in range(3):
        for what in ("started", "completed"):
            one = line(len(lines) + 1, f"step.{what}", step("fix", "command"), path=f"loop:{turn}/fix")
            lines.append(one.replace(b'"iteration":0', b'"iteration":%d' % turn))
    [found] = FORMAT.read(write(tmp_path / "t", *lines)).trees
    assert [(None, "loop:0/fix"), (1, "loop:1/fix"), (2, "loop:2/fix")] == [
        (op.attributes["step"].get("iteration"), op.attributes["step"]["path"]) for op in ops(found.session)
    ]


def test_tools(tmp_path):
    """A call and its result, wherever their path is, are a tool's op below the agent that is at work (S2-28, S2-29, S2-38)."""
    session, wrong = tree(
        tmp_path,
        ("step.started", step(), "analyze"),
        ("tool.call", tool("c1", given={"path": "a"}), ""),
        ("tool.call", tool("c2", "Bash", given="ls"), ""),
        ("tool.result", tool("c2", "Bash", given="ls", error="exit 1"), ""),
        ("tool.result", tool("c1", given={"path": "a"}, output="text"), ""),
    )
    _, read, bash = ops(session)
    assert ([], "1.1", "1.1") == (wrong, read.parent_op, bash.parent_op)
    assert ("Read", {"path": "a"}, "text", "ok") == (read.name, decode(read.request.payload), decode(read.response.payload), read.status)
    assert ("Bash", "failed", "exit 1", None) == (bash.name, bash.status, bash.error, bash.response)
    assert {"callId": "c1", "fidelity": "router"} == read.attributes["step"]


def test_calls_on_both_channels_count_once(tmp_path):
    """A call that the agent reports and the router saw is one op, the router's; so is one that only the agent reports (S2-52, S2-53)."""
    both, alone = {"path": "a"}, {"path": "b"}
    session, wrong = tree(
        tmp_path,
        ("tool.call", tool("toolu_1", given=both, fidelity="agent_emitted"), ""),
        ("tool.call", tool("uuid-1", given=both), ""),
        ("tool.result", tool("uuid-1", given=both, output="x"), ""),
        ("tool.result", tool("toolu_1", given=both, output="x", fidelity="agent_emitted"), ""),
        ("tool.call", tool("toolu_2", given=alone, fidelity="agent_emitted"), ""),
        ("tool.result", tool("toolu_2", given=alone, output="y", fidelity="agent_emitted"), ""),
    )
    assert ([], [("router", "ok"), ("agent_emitted", "ok")]) == (
        wrong,
        [(op.attributes["step"]["fidelity"], op.status) for op in ops(session)],
    )


def test_results_without_calls(tmp_path):
    """A second result for a call, one without any, and an end without a start are reported and kept."""
    session, wrong = tree(
        tmp_path,
        ("tool.call", tool("c1"), ""),
        ("tool.result", tool("c1", output=1), ""),
        ("tool.result", tool("c1", output=2), ""),
        ("step.completed", step("late", "command"), "late"),
    )
    assert ["seq 4: a result of call 'c1', which is not open; kept", "seq 5: step 'late' ends that did not begin; kept"] == wrong
    assert [1, 2, None] == [decode(op.response.payload) if op.response else None for op in ops(session)]


def test_what_has_not_ended_stays_open(tmp_path):
    """A file that breaks off gives a session, a turn and steps without an end."""
    path = write(tmp_path / "t", line(1), line(2, "step.started", step(), path="analyze"), line(3, "tool.call", tool("c")))
    session = FORMAT.read(path).trees[0].session
    assert [None] * 4 == [node.ended_at for node in (session, *session.turns, *ops(session))]


def test_messages_without_a_step(tmp_path):
    """Messages that no agent's step encloses are a model's call of their own."""
    session, _ = tree(
        tmp_path,
        ("message.user", message(text("why?")), "review"),
        ("message.assistant", [text("so", "agent_emitted")], "review"),
        ("message.assistant", message(text("so", "agent_emitted"), role="assistant"), "review"),
    )
    [op] = ops(session)
    assert ("llm", "review", "so") == (op.kind, op.name, decode(op.response.payload))


def test_only_the_end_is_there(tmp_path):
    """A run of which only the end is left is a session that has its name."""
    session = FORMAT.read(write(tmp_path / "t", line(5, "run.completed", step("w", "workflow", error="no")))).trees[0].session
    assert ("w", "failed", "no", False) == (session.agent_id, session.status, session.error, session.success)


@pytest.mark.parametrize("kind", ["step.paused", "input.required"])
def test_unknown_events(tmp_path, kind):
    """An event of an unknown type is reported, and becomes an op of the system (S2-68)."""
    session, wrong = tree(tmp_path, (kind, step(), "a"))
    assert ([f"unknown type of event {kind!r}; kept"], [("system", kind)]) == (wrong, [(op.kind, op.name) for op in ops(session)])


def test_written_again(tmp_path):
    """A tree of a foreign run is written as one of ours, and comes back the same."""
    session, _ = tree(
        tmp_path,
        ("step.started", step(), "analyze"),
        ("message.user", message(text("Review")), "review"),
        ("tool.call", tool("c1", given={"path": "a"}), ""),
        ("tool.result", tool("c1", given={"path": "a"}, output="text"), ""),
        ("step.completed", step(error="no"), "analyze"),
    )
    [first] = FORMAT.read(tmp_path / f"{RUN}.jsonl").trees
    assert session == first.session
    (path,) = FORMAT.write(first, tmp_path / "own.jsonl")
    (again,) = FORMAT.write(FORMAT.read(path, strict=True).trees[0], tmp_path / "again.jsonl")
    assert (RUN, path.read_bytes()) == (first.session.id, again.read_bytes())


def through(tmp_path, *lines):
    """Return the events of a file of these lines after a way in and out, as plain values without what is ours."""
    [tree] = FORMAT.read(write(tmp_path / f"{RUN}.jsonl", *lines)).trees
    (path,) = FORMAT.write(tree, tmp_path / "back.jsonl")
    events = [json.loads(one) for one in path.read_bytes().splitlines()]
    return [{name: value for name, value in one.items() if name != "optree"} for one in events]


@pytest.mark.parametrize("heard", [0, 1, 2], ids=["none", "that of the step", "another"])
def test_the_iteration_of_messages_comes_back(tmp_path, heard):
    """Messages in a later round of a loop keep its number, or the one that they had themselves (S2-16)."""
    events = [
        {**event(2, "step.started", step(), path="loop:1/analyze"), "iteration": 1},
        {**event(3, "message.user", message(text("why?")), path="review"), "iteration": heard},
        {**event(4, "message.assistant", message(text("so", "agent_emitted"), role="assistant"), path="review"), "iteration": heard},
        {**event(5, "step.completed", step(result=True), path="loop:1/analyze"), "iteration": 1},
    ]
    lines = [line(1, payload={"name": "w", "kind": "workflow"}), *(json.dumps(one).encode() for one in events)]
    assert events == through(tmp_path, *lines)[1:]


def test_results_in_an_answer_are_kept(tmp_path):
    """What an agent's message reports as a tool's result is in the response, between what was said before it and behind, and comes back.

    (S2-26, S2-27)
    """
    use = {"type": "tool_use", "fidelity": "agent_emitted", "tool_name": "Read", "tool_id": "u1", "tool_input": {"path": "a"}}
    result = {"type": "tool_result", "fidelity": "agent_emitted", "tool_id": "u1", "tool_content": "only here"}
    said = message(use, result, text("Found 2", "agent_emitted"), role="assistant")
    lines = [line(1), line(2, "step.started", step(), path="a"), line(3, "message.assistant", said, path="a")]
    assert [said] == [one["payload"] for one in through(tmp_path, *lines, line(4, "step.completed", step(), path="a"))[2:3]]
    [tree] = FORMAT.read(tmp_path / f"{RUN}.jsonl").trees
    asked, told, answered = decode(ops(tree.session)[0].response.payload)
    assert (("Read", {"role": "tool", "tool_call_id": "u1", "content": "only here"}, {"role": "assistant", "content": "Found 2"})) == (
        asked["tool_calls"][0]["function"]["name"],
        told,
        answered,
    )


def test_what_is_not_held_of_messages_is_named(tmp_path):
    """What does not come back of messages is said at import, does not stop strict reading, and is named at export with how many."""
    said = message(text("x", "router"), {"type": "command", "fidelity": "agent_emitted", "command": "ls"}, role="assistant")
    lines = [line(1), line(2, "step.started", step(), path="a"), line(3, "message.assistant", said, path="a")]
    path = write(tmp_path / "t", *lines, line(4, "step.completed", step(), path="a", timestamp=AT.format(59)))
    found = FORMAT.read(path, strict=True)
    [fault] = found.faults
    words = {one for one in lacking(found.trees[0], FORMAT) if "their messages" in one or "of messages" in one}
    assert {f"{UNLIKE[one]} (1)" for one in ("times", "fidelity", "texts")} == words
    assert [True] * 3 == [one in fault.said for one in words]


def result(**more):
    """Return a block with the result of a tool."""
    return {"type": "tool_result", "fidelity": "router", "tool_id": "u1", **more}


STARTED = event(2, "step.started", step(), path="a")
ASKED = event(3, "message.user", message(text("why?")), path="a")
COMPLETED = event(9, "step.completed", step(), path="a")
LOST = {
    "a member of an envelope": ("members", [{**STARTED, "colour": 1}, COMPLETED]),
    "a member of a message's envelope": ("members", [STARTED, {**ASKED, "colour": 1}, COMPLETED]),
    "a member of an unknown event": ("members", [{**event(2, "step.paused", {"a": 1}), "colour": 1}]),
    "a member of a step": ("members", [event(2, "step.started", step(colour=1), path="a"), COMPLETED]),
    "a member of a step's end": ("members", [STARTED, event(9, "step.completed", step(colour=1), path="a")]),
    "a member of a message": ("members", [STARTED, event(3, "message.user", {**message(text("x")), "colour": 1}, path="a"), COMPLETED]),
    "a member of a block": ("members", [STARTED, event(3, "message.user", message({**text("x"), "colour": 1}), path="a"), COMPLETED]),
    "a member of a call": ("members", [event(2, "tool.call", tool("c", colour=1)), event(3, "tool.result", tool("c"))]),
    "a member of a call's result": ("members", [event(2, "tool.call", tool("c")), event(3, "tool.result", tool("c", colour=1))]),
    "an empty result": ("contents", [STARTED, event(3, "message.user", message(result()), path="a"), COMPLETED]),
    "a second message": ("events", [STARTED, ASKED, ASKED, COMPLETED]),
    "a second message elsewhere": ("places", [STARTED, ASKED, {**ASKED, "path": "b"}, COMPLETED]),
    "a second message in another round": ("places", [STARTED, ASKED, {**ASKED, "iteration": 3}, COMPLETED]),
    "an answer elsewhere": (
        "places",
        [STARTED, ASKED, event(4, "message.assistant", message(text("so", "agent_emitted"), role="assistant"), path="b"), COMPLETED],
    ),
}


def numbered(events):
    """Return events in their order as lines, behind a run's start."""
    return [line(1), *(json.dumps({**one, "seq": seq}).encode() for seq, one in enumerate(events, 2))]


@pytest.mark.parametrize(("what", "events"), LOST.values(), ids=LOST)
def test_what_does_not_come_back_is_named(tmp_path, what, events):
    """What an event has and its step's op does not hold is said when it is read and when it is written; each does not come back."""
    lines = numbered(events)
    assert [json.loads(one) for one in lines[1:]] != through(tmp_path, *lines)[1:]
    found = FORMAT.read(tmp_path / f"{RUN}.jsonl")
    assert 1 == sum(fault.said.startswith("not held") and UNLIKE[what] in fault.said for fault in found.faults)
    assert 1 == sum(one.startswith(UNLIKE[what]) for one in lacking(found.trees[0], FORMAT))


CONTENTS = ["a text", "", None, 3, {"a": [1]}, [], [{"type": "image", "data": "x"}], [{"type": "text", "text": "a"}]]


@pytest.mark.parametrize("content", CONTENTS, ids=repr)
def test_a_result_comes_back_or_is_named(tmp_path, content):
    """Whatever a tool's result in a message is, it comes back, or it is named."""
    lines = numbered([STARTED, event(3, "message.user", message(result(tool_content=content)), path="a"), COMPLETED])
    same = [json.loads(one) for one in lines[1:]] == through(tmp_path, *lines)[1:]
    said = [fault.said for fault in FORMAT.read(tmp_path / f"{RUN}.jsonl").faults]
    assert same != any(one.startswith("not held") for one in said)


def test_members_of_a_runs_events_come_back(tmp_path):
    """Members of the envelopes of a run's start and end that the format does not have are kept, and written again."""
    events = [
        {**event(1, payload=step("w", "workflow")), "colour": {"a": 1.5}},
        {**event(2, "run.completed", step("w", "workflow")), "n": 1},
    ]
    assert events == through(tmp_path, *(json.dumps(one).encode() for one in events))


@pytest.mark.parametrize("kind", ["step.forked", "step.started", "step.completed"])
def test_a_run_that_an_event_names_is_read(tmp_path, kind):
    """A run that an event names is below it, of whatever type it is, and is written and read again so."""
    write(tmp_path / f"{CHILD}.jsonl", line(1, "run.started", step("child", "workflow"), run_id=CHILD, parent_run_id=RUN))
    lines = [line(1), *([line(2, "step.started", step(), path="a")] if kind == "step.completed" else [])]
    lines.append(line(len(lines) + 1, kind, step(), path="a", child_run_id=CHILD))
    found = FORMAT.read(write(tmp_path / f"{RUN}.jsonl", *lines))
    (tmp_path / "back").mkdir()
    again = FORMAT.read(FORMAT.write(found.trees[0], tmp_path / "back")[0])
    for read in (found, again):
        [op] = ops(read.trees[0].session)
        assert ("child", CHILD) == (op.child_session.agent_id, op.child_session.attributes.get("runId"))


def test_a_run_that_has_no_place_is_said(tmp_path):
    """A run that only a message names, or a step that has another, is not taken for one of the tree, and that is said."""
    write(tmp_path / f"{CHILD}.jsonl", line(1, "run.started", step("child", "workflow"), run_id=CHILD, parent_run_id=RUN))
    lines = [line(1), line(2, "step.started", step(), path="a"), line(3, "message.user", message(text("x")), path="a", child_run_id=CHILD)]
    path = write(tmp_path / f"{RUN}.jsonl", *lines)
    assert 1 == sum(f"run {CHILD} is left out: no step of {RUN} begins it" in fault.said for fault in FORMAT.read(path).faults)
    with pytest.raises(FormatError, match="is left out"):
        FORMAT.read(path, strict=True)
