"""Runs that others wrote, in and out again: what they said of their steps, loops and calls is what is written."""

import json

import pytest

from optree._tree import walk_ops
from optree._values import decode
from optree.errors import FormatError
from optree_formats.transcript import FORMAT, Event, read
from tests.formats.transcript.lines import CHILD, RUN, event, line, message, step, text, tool, write

AT = "2026-06-08T08:14:{:02d}Z"


def foreign(*events):
    """Return a run's lines: of each event its type, payload and further members."""
    every = [("run.started", step("review", "workflow"), {}), *events, ("run.completed", step("review", "workflow"), {})]
    return [line(seq, kind, payload, timestamp=AT.format(seq), **more) for seq, (kind, payload, more) in enumerate(every, 1)]


def there_and_back(tmp_path, *lines):
    """Read a run's file and write the tree; returns the events of both as plain values."""
    path = write(tmp_path / f"{RUN}.jsonl", *lines)
    read_ = FORMAT.read(path)
    [tree] = read_.trees
    (tmp_path / "out").mkdir()
    files = FORMAT.write(tree, tmp_path / "out" / f"{RUN}.jsonl")
    written = [json.loads(one) for one in files[0].read_bytes().splitlines()]
    return [json.loads(one) for one in lines], written, tree, read_.faults


KINDS = ["command", "operation", "terminal", "parallel", "for_each", "while", "my_kind", "agent"]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_come_back(tmp_path, kind):
    """A step has its own path, kind and iteration again, in a loop as well (S2-15, S2-16, S2-22)."""
    turns = [
        (f"step.{what}", step("fix", kind), {"path": f"loop:{turn}/fix", "iteration": turn})
        for turn in range(3)
        for what in ("started", "completed")
    ]
    lines = foreign(
        ("step.started", step("1st", kind), {"path": "1st"}), ("step.completed", step("1st", kind, result=[1]), {"path": "1st"}), *turns
    )
    first, second, _, faults = there_and_back(tmp_path, *lines)
    assert [] == faults
    assert _bare(first) == _bare(second)


def _bare(events):
    """Return events without our own member of the run's start."""
    return [{name: value for name, value in one.items() if name != "optree"} for one in events]


def test_calls_come_back(tmp_path):
    """Calls have their ids, who reported them, and both channels again (S2-28, S2-29, S2-38, S2-52)."""
    both = {"path": "a"}
    first, second, _, faults = there_and_back(
        tmp_path,
        *foreign(
            ("step.started", step(), {"path": "analyze"}),
            ("tool.call", tool("toolu_1", given=both, fidelity="agent_emitted"), {}),
            ("tool.call", tool("uuid-1", given=both), {}),
            ("tool.result", tool("uuid-1", given=both, output="x"), {}),
            ("tool.result", tool("toolu_1", given=both, output="x", fidelity="agent_emitted"), {}),
            ("tool.call", tool("toolu_2", "Bash", given="ls", fidelity="agent_emitted"), {}),
            ("tool.result", tool("toolu_2", "Bash", given="ls", output=None, error="exit 1", fidelity="agent_emitted"), {}),
            ("step.completed", step(), {"path": "analyze"}),
        ),
    )
    assert [] == faults
    strip = [{**one, "seq": 0, "timestamp": ""} for one in _bare(first)]
    assert sorted(map(json.dumps, strip)) == sorted(json.dumps({**one, "seq": 0, "timestamp": ""}) for one in _bare(second))


def test_messages_come_back(tmp_path):
    """An agent's messages have their own path again, and its step the result that it gave, not the answer (S2-26, S2-27)."""
    first, second, tree, _ = there_and_back(
        tmp_path,
        *foreign(
            ("step.started", step(), {"path": "analyze"}),
            ("message.user", message(text("Review"), text("Be brief")), {"path": "review"}),
            ("message.assistant", message(text("Found 2", "agent_emitted"), role="assistant"), {"path": "review"}),
            ("step.completed", step(result=True), {"path": "analyze"}),
        ),
    )
    assert "Found 2" == decode(next(op for _, _, op in walk_ops(tree.session)).response.payload)
    assert [{**one, "timestamp": ""} for one in _bare(first)] == [{**one, "timestamp": ""} for one in _bare(second)]


def test_a_run_that_was_called_comes_back(tmp_path):
    """A step that called a run has its path, and the run its id (S2-12, S2-33)."""
    call = {"path": "sub", "iteration": 2, "child_run_id": CHILD}
    write(tmp_path / f"{CHILD}.jsonl", line(1, "run.started", step("sub", "workflow"), run_id=CHILD, parent_run_id=RUN))
    first, second, _, faults = there_and_back(
        tmp_path,
        *foreign(
            ("step.call_workflow.started", step("sub", "call_workflow"), call),
            ("step.call_workflow.completed", step("sub", "call_workflow"), call),
        ),
    )
    assert [] == faults
    assert _bare(first) == _bare(second)
    assert (tmp_path / "out" / f"{CHILD}.jsonl").exists()


def test_an_event_of_an_unknown_type_is_kept(tmp_path):
    """An event of a type of later times is an op of the system with its payload, and is written out again as it was (S2-65)."""
    lines = foreign(("input.required", {"prompt": "Go on?"}, {"path": "ask", "iteration": 1}))
    first, second, tree, faults = there_and_back(tmp_path, *lines)
    assert ["unknown type of event 'input.required'; kept"] == [fault.said for fault in faults]
    [(_, _, op)] = walk_ops(tree.session)
    assert ("system", "input.required", None) == (op.kind, op.name, op.status)
    assert ({"prompt": "Go on?"}, op.started_at) == (decode(op.response.payload), op.ended_at)
    assert {"type": "input.required", "path": "ask", "iteration": 1} == op.attributes["step"]
    assert _bare(first) == _bare(second)
    [back] = FORMAT.read(tmp_path / "out" / f"{RUN}.jsonl").trees
    assert op == next(walk_ops(back.session))[2]


WHOLE = event(payload=step("review", "workflow"))
LOOSE = {
    "array for a payload": (line(1, "message.user", [text("hi")]), "payload is an array, not an object"),
    "array for a step": (line(1, "step.started", [1]), "payload is an array, not an object"),
    "object for blocks": (line(1, "message.user", {"role": "user", "blocks": text("hi")}), "blocks is no array"),
    "member of other case": (json.dumps({**WHOLE, "Path": "x"}).encode(), "has a member 'Path', which is path in another case"),
    "payload's member of other case": (line(1, payload={**step(), "Name": "x"}), "has a member 'Name', which is name in another case"),
    "member twice": (json.dumps(WHOLE).encode()[:-1] + b',"path":"b"}', "has the member 'path' twice"),
    "payload's member twice": (
        json.dumps(WHOLE).replace('"kind": "workflow"', '"kind": "a", "kind": "b"').encode(),
        "has the member 'kind' twice",
    ),
}


@pytest.mark.parametrize("name", LOOSE)
def test_strict_reading_refuses_what_is_loose(tmp_path, name):
    """Strict reading refuses an array in place of an object, members of another case and members twice; otherwise they are read."""
    found, said = LOOSE[name]
    path = write(tmp_path / "x", found)
    assert 1 == sum(isinstance(one, Event) for one in read(path))
    with pytest.raises(FormatError, match="line 1"):
        [*read(path, strict=True)]
    with pytest.raises(FormatError) as caught:
        [*read(path, strict=True)]
    assert said in str(caught.value)


def test_an_event_of_an_unknown_type_in_files_of_earlier_versions(tmp_path):
    """What optree once wrote as a step of kind operation, with the type beside, is the event that it was (S2-65)."""
    at, beside = {"path": "ask", "iteration": 1}, {"attributes": {"step": {"type": "input.required", "path": "ask", "iteration": 1}}}
    said = step("input.required", "operation")
    lines = foreign(("step.started", said, {**at, "optree": beside}), ("step.completed", {**said, "result": {"prompt": "Go on?"}}, at))
    _, second, _, _ = there_and_back(tmp_path, *lines)
    assert [("input.required", "ask", 1, {"prompt": "Go on?"})] == [
        (one["type"], one["path"], one["iteration"], one["payload"]) for one in second[1:-1]
    ]


RUNS = {
    "of AWF": ({"workflow_name": "review"}, {"workflow_name": "review", "status": "completed"}),
    "failed": ({"workflow_name": "review"}, {"workflow_name": "review", "status": "failed"}),
    "null": (None, None),
    "as ours": (step("review", "workflow"), step("review", "workflow", error="no")),
    "more": (step("review", "workflow", inputs={"a": 1}), step("review", "pipeline", result=[1], status="completed")),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_others_say_of_a_run_comes_back(tmp_path, name):
    """The payloads of a run's start and end, whatever their members are, are written as they were, and again (S2-21, S2-65)."""
    begun, ended = RUNS[name]
    lines = [line(1, "run.started", begun), line(2, "run.completed", ended)]
    _, second, tree, _ = there_and_back(tmp_path, *lines)
    assert [begun, ended] == [one["payload"] for one in second]
    [back] = FORMAT.read(tmp_path / "out" / f"{RUN}.jsonl").trees
    assert (tree.session, name != "as ours") == (back.session, "transcript" in tree.session.attributes)


def test_an_end_that_is_no_longer_so_is_not_put_back(tmp_path):
    """What a file said of its run's end is left out where the session has ended otherwise since."""
    write(tmp_path / f"{RUN}.jsonl", line(1, "run.started", None), line(2, "run.completed", {"workflow_name": "w", "status": "completed"}))
    [tree] = FORMAT.read(tmp_path / f"{RUN}.jsonl").trees
    tree.session.status, tree.session.error = "failed", "no"
    (path,) = FORMAT.write(tree, tmp_path / "back.jsonl")
    assert step("w", "workflow", error="no") == json.loads(path.read_bytes().splitlines()[1])["payload"]


def test_what_came_before_a_run_began(tmp_path):
    """A run begins when its start says so, whatever its file has before that."""
    lines = [
        line(1, "step.started", step(), path="a", timestamp=AT.format(1)),
        line(2, "run.started", step("review", "workflow"), timestamp=AT.format(2)),
        line(3, "step.completed", step(), path="a", timestamp=AT.format(3)),
    ]
    [tree] = FORMAT.read(write(tmp_path / f"{RUN}.jsonl", *lines)).trees
    [(_, _, op)] = walk_ops(tree.session)
    assert (2000.0, -1000.0) == (op.ended_at - op.started_at, op.started_at - tree.session.started_at)
