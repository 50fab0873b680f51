import pytest

from optree_formats.transcript import ContentBlock, InvalidEventError, MessagePayload, Recorder, StepPayload
from tests.formats.transcript.lines import CHILD, RUN, TIME, message, step, text, tool

BAD = {
    "empty type": ("", step(), {}, "an event needs a type"),
    "unknown type": ("step.paused", step(), {}, "'step.paused' is no type of event: choose one of message.assistant"),
    "no payload": ("step.started", None, {}, "Expected `object`, got `null`"),
    "no name": ("step.started", {"kind": "agent"}, {}, "missing required field `name`"),
    "no kind": ("step.started", {"name": "a"}, {}, "missing required field `kind`"),
    "empty kind": ("run.started", step(kind=""), {}, "kind may not be empty"),
    "no role": ("message.user", {"blocks": []}, {}, "missing required field `role`"),
    "strange role": ("message.user", message(role="system"), {}, "'system'"),
    "other role": ("message.user", message(role="assistant"), {}, "its payload has the role 'assistant'"),
    "no blocks": ("message.user", {"role": "user"}, {}, "missing required field `blocks`"),
    "unknown block": ("message.user", message({"type": "image", "fidelity": "router"}), {}, "'image'"),
    "block without fidelity": ("message.user", message({"type": "text", "text": "a"}), {}, "missing required field `fidelity`"),
    "no call id": ("tool.call", {"name": "Read", "input": 1, "fidelity": "router"}, {}, "missing required field `call_id`"),
    "empty call id": ("tool.call", tool(""), {}, "call_id may not be empty"),
    "no input": ("tool.call", {"name": "Read", "call_id": "c", "fidelity": "router"}, {}, "missing required field `input`"),
    "no output": ("tool.result", {"name": "Read", "call_id": "c", "fidelity": "router"}, {}, "missing required field `output`"),
    "strange fidelity": ("tool.call", tool("c", fidelity="guessed"), {}, "'guessed'"),
    "unknown member": ("step.started", step(more=1), {}, "unknown field `more`"),
    "no child": ("step.call_workflow.started", step(), {}, "child_run_id '' is no UUID v4"),
    "child elsewhere": ("step.started", step(), {"child_run_id": CHILD}, "have a child_run_id"),
    "child that is none": ("step.call_workflow.started", step(), {"child_run_id": "7"}, "child_run_id '7' is no UUID v4"),
    "path that is none": ("step.started", step(), {"path": 1}, "path is text"),
    "iteration below 0": ("step.started", step(), {"iteration": -1}, "a number from 0"),
    "time without zone": ("run.started", None, {"timestamp": TIME[:-1]}, "with a zone"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(tmp_path, name):
    """What the seed does not allow is refused with what is wrong, and no file is made (S2-14, S2-30, S2-42, S2-43, S2-67)."""
    kind, payload, more, said = BAD[name]
    with pytest.raises(InvalidEventError) as caught:
        Recorder(tmp_path, RUN).record(kind, payload, **more)
    assert said in str(caught.value)
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(("run_id", "parent"), [("", ""), ("run-1", ""), (RUN.replace("-41d4", "-11d4"), ""), (RUN, "7")])
def test_ids_that_are_no_uuid_v4(tmp_path, run_id, parent):
    """A run id that is no UUID v4 is refused before anything is recorded (S2-11)."""
    with pytest.raises(InvalidEventError, match="no UUID v4"):
        Recorder(tmp_path, run_id, parent)


def test_taken(tmp_path):
    """All ten types are written, with payloads as objects or as mappings (S2-20, S2-21, S2-22, S2-23, S2-28, S2-29)."""
    recorder = Recorder(tmp_path, RUN)
    assert all(
        [
            recorder.record("run.started"),
            recorder.record("step.started", step()),
            recorder.record("message.user", MessagePayload(role="user", blocks=[ContentBlock(type="text", fidelity="router", text="a")])),
            recorder.record("message.assistant", message(text("b", "agent_emitted"), role="assistant")),
            recorder.record("tool.call", {"name": "Read", "call_id": "c", "input": {"path": "a"}, "fidelity": "router"}),
            recorder.record("tool.result", {"name": "Read", "call_id": "c", "output": "x", "fidelity": "agent_emitted"}),
            recorder.record("step.call_workflow.started", step(kind="call_workflow"), child_run_id=CHILD),
            recorder.record("step.call_workflow.completed", step(kind="call_workflow"), child_run_id=CHILD),
            recorder.record("step.completed", StepPayload(name="analyze", kind="agent", error="no")),
            recorder.record("run.completed", step("w", "workflow", result={"a": 1})),
        ]
    )
