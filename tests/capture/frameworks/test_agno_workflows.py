"""Workflows of Agno's: sessions in which steps, and what holds several of them, are ops, with the agents that work on them."""

import asyncio
from importlib.util import find_spec

import pytest

if find_spec("agno") is None:
    pytest.skip("agno is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from agno.exceptions import RunCancelledException
from agno.workflow import Condition, Loop, Parallel, Router, Step, Steps, Workflow
from agno.workflow.types import HumanReview, StepInput, StepOutput

import optree
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.frameworks.agno_programs import MARKS, forecaster, read, scripted
from tests.capture.recordings import calls_of, ops_of, paths_of

pytestmark = MARKS


def plan(step_input: StepInput) -> StepOutput:
    """Plan what to look for."""
    with optree.tool("almanac"):
        return StepOutput(content=f"plan: {step_input.input}")


def city(name):
    """Return a step that asks an agent about a city."""
    return Step(name=name, agent=forecaster(scripted(f"rain in {name}"), name=f"agent {name}"))


def outlook(*steps):
    """Return a workflow."""
    return Workflow(name="outlook", steps=list(steps), telemetry=False)


WAYS = {
    "run": lambda flow, asked: flow.run(asked),
    "arun": lambda flow, asked: asyncio.run(_awaited(flow, asked)),
    "stream": lambda flow, asked: list(flow.run(asked, stream=True)),
    "astream": lambda flow, asked: asyncio.run(read(flow.arun(asked, stream=True))),
}


async def _awaited(flow, asked):
    found = await flow.arun(asked)
    assert optree.current_session() is None
    return found


@pytest.mark.captured("agno", "workflows", "sub-agents", "at once", added="one line", checks=("agents", "calls"))
@pytest.mark.parametrize("way", WAYS)
def test_a_workflow(recording, way):
    """A workflow is a session of its name, a step an op with what it is given and comes to; agents are in their steps, branches apart."""
    WAYS[way](outlook(plan, Parallel(city("Athens"), city("Rome"), name="cities"), city("Oslo")), "Weather?")
    session = recording.tree.session
    assert ("outlook", "ok", "rain in Oslo", {"user": "Weather?"}) == (
        session.agent_id, session.status, decode(session.final_report).strip(), session.turns[0].prompts,
    )  # fmt: skip
    steps = {op.name: op for op in session.turns[0].ops if op.kind == "system"}
    assert {"step plan", "parallel cities", "step Athens", "step Rome", "step Oslo"} == set(steps)
    assert [steps["parallel cities"].path] * 2 == [steps[f"step {name}"].parent_op for name in ("Athens", "Rome")]
    assert [None] * 3 == [steps[name].parent_op for name in ("step plan", "parallel cities", "step Oslo")]
    assert {"input": "Weather?"} == decode(steps["step plan"].request.payload)
    assert {"input", "previous_step_content"} == decode(steps["step Oslo"].request.payload).keys()
    assert ("plan: Weather?", steps["step plan"].path) == (
        decode(steps["step plan"].response.payload),
        ops_of(recording, "almanac")[0].parent_op,
    )
    for name in ("Athens", "Rome", "Oslo"):
        [agent] = ops_of(recording, f"agent {name}")
        assert (steps[f"step {name}"].path, f"rain in {name}") == (agent.parent_op, decode(steps[f"step {name}"].response.payload).strip())
    assert [1, 1, 1] == [one.totals.llm_requests for one in walk_sessions(recording.tree) if one.path]
    assert (3, 9) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.parametrize("way", WAYS)
def test_what_holds_steps(recording, way):
    """Loops, conditions, routers and groups are ops around their steps, which are there as often as they ran."""
    road = city("road")
    WAYS[way](
        outlook(
            Loop(name="again", steps=[city("Oslo")], max_iterations=2),
            Condition(name="rain", evaluator=lambda _given: True, steps=[city("home")]),
            Router(name="way", selector=lambda _given: [road], choices=[road]),
            Steps(name="last", steps=[city("Rome")]),
        ),
        "Weather?",
    )
    ops = {op.path: op for op in ops_of(recording)}
    around = [
        (op.attributes["type"], op.name, ops[op.parent_op].name if op.parent_op else None) for op in ops.values() if op.kind == "system"
    ]
    assert [
        ("loop", "loop again", None),
        ("step", "step Oslo", "loop again"),
        ("step", "step Oslo", "loop again"),
        ("condition", "condition rain", None),
        ("step", "step home", "condition rain"),
        ("router", "router way", None),
        ("step", "step road", "router way"),
        ("steps", "steps last", None),
        ("step", "step Rome", "steps last"),
    ] == around
    assert [True] * 5 == [op.request is not None for op in ops.values() if op.kind == "system" and op.attributes["type"] == "step"]
    assert [None] * 4 == [op.request for op in ops.values() if op.kind == "system" and op.attributes["type"] != "step"]
    assert 5 == len(calls_of(recording))


def test_what_holds_steps_without_a_name(recording):
    """What holds steps, and has no name, is called as its kind."""
    outlook(Parallel(city("Athens"), city("Rome"))).run("Weather?")
    assert "parallel" == ops_of(recording)[0].name


def bad(step_input: StepInput) -> StepOutput:
    """Fail."""
    raise ConnectionError(f"nobody knows {step_input.input}")


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_step_that_fails(recording, way):
    """A step that raises is a failed op; the workflow fails with it, or goes on where it is to be skipped, as Agno has it."""
    WAYS[way](outlook(Step(name="bad", executor=bad, max_retries=0, human_review=HumanReview(on_error="skip")), city("Oslo")), "Weather?")
    [op] = ops_of(recording, "step bad")
    assert ("failed", "ConnectionError: nobody knows Weather?", "ok") == (op.status, op.error, recording.tree.session.status)
    assert 1 == len(calls_of(recording))


@pytest.mark.parametrize(
    ("raised", "said", "ended"),
    [
        (None, {"error": "no rain"}, ("failed", "no rain")),
        (None, {"error": None}, ("failed", "it had no success")),
        (RunCancelledException("enough"), {}, ("cancelled", "RunCancelledException: enough")),
    ],
    ids=["said", "unsaid", "cancelled"],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_step_without_success(recording, way, raised, said, ended):
    """A step that says that it had no success is failed, though it raises nothing; one out of which the run is cancelled is cancelled."""

    def look(_given):
        if raised is not None:
            raise raised
        return StepOutput(content="nothing", success=False, **said)

    WAYS[way](outlook(Step(name="look", executor=look, max_retries=0)), "Weather?")
    [op] = ops_of(recording, "step look")
    assert ended == (op.status, op.error)
    assert ("nothing" if raised is None else None) == (op.response and decode(op.response.payload))


def test_a_workflow_that_fails(recording):
    """A workflow out of which a step raises is failed, and the program gets that exception."""
    with pytest.raises(ConnectionError, match="nobody knows"):
        outlook(Step(name="bad", executor=bad, max_retries=0, human_review=HumanReview(on_error="fail"))).run("Weather?")
    assert ("failed", "ConnectionError: nobody knows Weather?") == (recording.tree.session.status, recording.tree.session.error)


def test_a_workflow_in_a_workflow(recording):
    """A workflow that a step of another runs is a session in that step."""
    inner = Workflow(name="inner", steps=[city("Oslo")], telemetry=False)
    outlook(Step(name="ask", workflow=inner)).run("Weather?")
    assert ["outlook", "outlook->inner", "outlook->inner->agent Oslo"] == paths_of(recording)
    assert ops_of(recording, "step ask")[0].path == ops_of(recording, "inner")[0].parent_op


def test_a_workflow_whose_stream_is_left(recording):
    """A workflow whose stream is closed in an agent's answer is cancelled, with the step, the agent and the call, each once."""
    stream = outlook(Step(name="look", agent=forecaster(scripted("It rains all day")))).run("Weather?", stream=True, stream_events=True)
    next(event for event in stream if event.event == "RunContent")
    stream.close()
    assert ["cancelled", "cancelled"] == [session.status for session in walk_sessions(recording.tree)]
    assert [("step look", "cancelled"), ("forecaster", "cancelled"), ("scripted", "cancelled")] == [
        (op.name, op.status) for op in ops_of(recording)
    ]
    assert optree.current_session() is None


@pytest.mark.parametrize("kind", ["agent", "workflow"])
def test_an_input_with_keys_that_are_no_texts(recording, kind):
    """A run that is given a dict with keys that JSON does not have is a session that says what it was asked."""
    given = {(1, 2): "Athens"}
    if kind == "agent":
        forecaster(scripted("It rains")).run(given)
    else:
        outlook(Step(name="look", executor=lambda _: "It rains")).run(given)
    assert {"(1, 2)": "Athens"} == decode(recording.tree.session.turns[0].prompts["user"].encode())
