"""Programs on smolagents, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from importlib.util import find_spec

import pytest

if find_spec("smolagents") is None:
    pytest.skip("smolagents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from smolagents import ActionStep, FinalAnswerStep, PlanningStep, PythonInterpreterTool, TaskStep, tool
from smolagents.local_python_executor import CodeOutput
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError, AgentGenerationError

import optree
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.conftest import outcome
from tests.capture.frameworks.smols import (  # noqa: F401 - model_of_smolagents is a fixture
    ANSWER,
    CODE,
    DONE,
    REFUSED,
    WEATHER,
    Scripted,
    asks,
    broken,
    calling,
    calls,
    coding,
    model_of_smolagents,
    says,
    weather,
)
from tests.capture.recordings import calls_of, ops_of, paths_of


def outline(turn):
    """Return the ops of a turn, each with its kind, its name and the name of what it is in."""
    names = {op.path: op.name for op in turn.ops}
    return [(op.kind, op.name, names.get(op.parent_op)) for op in turn.ops]


@pytest.mark.captured("smolagents", "ToolCallingAgent", "tools", added="one line", checks=("agents", "calls", "tokens"))
def test_a_run_is_a_session(recording, provider, model):
    """A run is a session of the agent's name, its steps are ops in it, and calls of models and tools are in their steps."""
    provider.says(WEATHER, DONE)
    assert "It rains" == calling(model, weather, instructions="Be brief").run("Weather?")
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"user": "Weather?", "system": "Be brief"}, "ok") == (turn.prompts, turn.status)
    assert [
        ("system", "step 1", None),
        ("llm", "openai-compatible:gpt-5", "step 1"),
        ("tool", "weather", "step 1"),
        ("tool", "thermometer", "weather"),
        ("system", "step 2", None),
        ("llm", "openai-compatible:gpt-5", "step 2"),
        ("tool", "final_answer", "step 2"),
    ] == outline(turn)
    assert {"ok"} == {op.status for op in turn.ops}
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls_of(recording)]
    assert (2, 16) == (session.totals.llm_requests, session.totals.input_tokens)
    assert optree.current_session() is None


def test_an_agent_without_a_name(recording):
    """An agent that has no name has that of its class."""
    assert "It rains" == coding(Scripted(CODE), weather, name=None).run("Weather?")
    assert "CodeAgent" == recording.tree.session.agent_id


def test_tools_have_arguments_and_results(recording, provider, model):
    """A tool is an op with arguments and result, and what the program records in it is its."""
    provider.says(WEATHER, DONE)
    calling(model, weather).run("Weather?")
    [op], [final] = ops_of(recording, "weather"), ops_of(recording, "final_answer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert ["looking at Athens"] == [log.message for log in op.logs]
    assert ({"answer": "It rains"}, "It rains") == (decode(final.request.payload), decode(final.response.payload))


@tool
def look(where: dict, at: str = "noon") -> str:
    """Look.

    Args:
        where: Where.
        at: When.
    """
    return f"{len(where)} {at}"


@pytest.mark.parametrize(
    ("args", "told", "expected"),
    [
        (({"place": "Athens"},), {}, {"where": {"place": "Athens"}}),
        (({"where": {}, "at": "dawn"},), {}, {"where": {}, "at": "dawn"}),
        (({}, "dawn"), {}, {"where": {}, "at": "dawn"}),
        (({"where": "Athens"},), {"at": "dawn"}, {"where": {"where": "Athens"}, "at": "dawn"}),
        ((), {"where": {}, "at": "dawn"}, {"where": {}, "at": "dawn"}),
    ],
)
def test_arguments_of_a_tool(recording, args, told, expected):
    """A tool that the program calls has its arguments by name, in each way to give them; one mapping may have them all."""
    with optree.session("lead"):
        found = look(*args, **told)
    [op] = ops_of(recording, "look")
    assert (expected, found) == (decode(op.request.payload), decode(op.response.payload))


def test_arguments_that_a_tool_does_not_take(recording):
    """A tool that the program calls with more than it takes is a failed op."""
    with optree.session("lead"), pytest.raises(TypeError):
        weather("Athens", "Rome")
    assert [({"city": "Athens"}, "failed")] == [(decode(op.request.payload), op.status) for op in ops_of(recording, "weather")]


@pytest.mark.captured("smolagents", "CodeAgent", "tools", added="one line", checks=("calls", "tools"))
def test_code(recording, provider, model):
    """Code is an op with what it is, what it came to and what it printed; tools that it calls, in a thread, are in it."""
    provider.says(ANSWER)
    assert "It rains" == coding(model, weather).run("Weather?")
    [turn] = recording.tree.session.turns
    assert [
        ("system", "step 1", None),
        ("llm", "openai-compatible:gpt-5", "step 1"),
        ("system", "python_interpreter", "step 1"),
        ("tool", "weather", "python_interpreter"),
        ("tool", "thermometer", "weather"),
        ("tool", "final_answer", "python_interpreter"),
    ] == outline(turn)
    [code], [op] = ops_of(recording, "python_interpreter"), ops_of(recording, "weather")
    assert {"code": "found = weather('Athens')\nprint(found)\nfinal_answer('It rains')"} == decode(code.request.payload)
    assert ({"output": "It rains", "logs": "rain in Athens\n"}, "code") == (decode(code.response.payload), code.attributes["type"])
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))


def test_code_that_fails(recording):
    """Code that raises is failed, and so is its step; the model is told, and the run goes on."""
    assert "It rains" == coding(Scripted("<code>\nweather('Athens')\n</code>", CODE.replace("weather", "str")), broken).run("Weather?")
    [tool_op], [failed, ok] = ops_of(recording, "weather"), ops_of(recording, "python_interpreter")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (
        tool_op.status, tool_op.error, tool_op.attributes["error.type"],
    )  # fmt: skip
    assert ("failed", "ok") == (failed.status, ok.status)
    assert failed.error.startswith("InterpreterError: Code execution failed")
    [first, second] = ops_of(recording, "step 1", "step 2")
    assert ("failed", "ok", "ok") == (first.status, second.status, recording.tree.session.status)
    assert first.error.startswith("AgentExecutionError: Code execution failed")


def test_code_that_a_tool_runs(recording):
    """Tools that code calls are in the op of the tool that runs it."""
    agent = calling(Scripted(calls("python_interpreter", code="1 + 1"), calls("final_answer", answer="2")), PythonInterpreterTool())
    assert "2" == agent.run("1 + 1?")
    [op] = ops_of(recording, "python_interpreter")
    assert ("tool", {"code": "1 + 1"}) == (op.kind, decode(op.request.payload))
    assert decode(op.response.payload).endswith("Output: 2")


class Sandbox(RemotePythonExecutor):
    """Where code runs that is sent away."""

    def send_tools(self, tools):
        """Leave them here."""

    def run_code_raise_errors(self, code):
        """Say that it was done."""
        return CodeOutput(output="It rains", logs=f"ran {code}", is_final_answer=True)


def test_code_that_runs_elsewhere(recording):
    """Code that is sent away is an op too."""
    agent = coding(Scripted("<code>1</code>"))
    agent.python_executor = Sandbox([], agent.logger)
    with optree.session("lead"):
        assert "It rains" == agent.run("Weather?")
        agent.python_executor(code_action="1")
    for op in ops_of(recording, "python_interpreter"):
        assert ({"code": "1"}, {"output": "It rains", "logs": "ran 1"}) == (decode(op.request.payload), decode(op.response.payload))
    assert 2 == len(ops_of(recording, "python_interpreter"))


SEEN = ContextVar("seen", default=None)


def test_code_sees_the_context_that_it_would(recording):
    """Code runs in a thread whose context variables are those that it has without hooks."""

    @tool
    def look() -> str:
        """Tell what is seen."""
        return str(SEEN.get())

    token = SEEN.set("the program's")
    try:
        assert "None" == coding(Scripted("<code>final_answer(look())</code>"), look).run("Seen?")
    finally:
        SEEN.reset(token)
    assert 1 == len(ops_of(recording, "look"))


@pytest.mark.captured("smolagents", "managed agents", "sub-agents", added="one line", checks=("agents", "calls"))
@pytest.mark.parametrize("lead", ["code", "calls"])
def test_a_managed_agent(recording, provider, model, lead):
    """An agent that another one calls, in code or as a tool, is a session there, asked what the other one says."""
    provider.says(WEATHER, DONE)
    below = calling(model, weather)
    if lead == "code":
        agent = coding(Scripted("<code>final_answer(forecaster('Rain?'))</code>"), name="lead", managed_agents=[below])
    else:
        agent = calling(Scripted(calls("forecaster", task="Rain?"), calls("final_answer", answer="It rains")), name="lead",
                        managed_agents=[below])  # fmt: skip
    assert "It rains" in agent.run("Weather?")
    assert ["lead", "lead->forecaster"] == paths_of(recording)
    [op] = ops_of(recording, "forecaster")
    [around] = ops_of(recording, "python_interpreter") if lead == "code" else [ops_of(recording, "step 1")[0]]
    assert ("session", around.path) == (op.kind, op.parent_op)
    [_, session] = walk_sessions(recording.tree)
    assert ("Rain?", "It rains", 2) == (session.turns[0].prompts["user"], decode(session.final_report), session.totals.llm_requests)
    assert 2 + (1 if lead == "code" else 2) == recording.tree.session.totals.llm_requests


def test_a_managed_agent_that_fails(recording):
    """An agent that fails where another one calls it is a failed session, and no op of a tool; the model is told, and the run goes on."""
    below = calling(Scripted(ConnectionError("away")))
    agent = calling(Scripted(calls("forecaster", task="Rain?"), calls("final_answer", answer="?")), name="lead", managed_agents=[below])
    assert "?" == agent.run("Weather?")
    assert [("session", "failed")] == [(op.kind, op.status) for op in ops_of(recording, "forecaster")]


@pytest.mark.parametrize("says", [CODE, ConnectionError("away")], ids=["ok", "failed"])
def test_a_run_after_a_call(recording, says):
    """An agent that was called as another one calls it, whether that failed or not, is asked in its next run what the program asks."""
    agent = coding(Scripted(says), weather)
    with optree.session("lead"):
        outcome(lambda: agent("Rain?"))
        outcome(lambda: agent.run("Snow?"))
    assert ["Rain?", "Snow?"] == [session.turns[0].prompts["user"] for session in walk_sessions(recording.tree) if session.path]


def test_a_run_in_an_open_session(recording, provider, model):
    """Within an open session a run is a sub-agent's, in the op that it is called in."""
    provider.says(DONE)
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.tool("ask") as op:
        calling(model).run("Rain?")
    assert (["lead", "lead->forecaster"], op.path) == (paths_of(recording), ops_of(recording, "forecaster")[0].parent_op)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.captured("smolagents", "ToolCallingAgent", "at once", added="one line", checks=("agents", "calls"))
def test_tools_at_once(recording, provider, model):
    """Tools and agents that are called at once, in threads, are siblings in their step."""
    barrier = threading.Barrier(3, timeout=30)

    @tool
    def look(city: str) -> str:
        """Look.

        Args:
            city: Where.
        """
        barrier.wait()
        with optree.tool(f"window to {city}"):
            return city

    def together(_messages):
        barrier.wait()
        return calls("final_answer", answer="It rains")

    asked = [{"name": "look", "arguments": f'{{"city": "{city}"}}'} for city in ("Athens", "Rome")]
    provider.says(says(None, *asked, {"name": "forecaster", "arguments": '{"task": "Rain?"}'}), DONE)
    assert "It rains" == calling(model, look, name="lead", managed_agents=[calling(Scripted(together))]).run("Weather?")
    step = ops_of(recording, "step 1")[0]
    looks = {decode(op.request.payload)["city"]: op for op in ops_of(recording, "look")}
    assert {step.path} == {op.parent_op for op in [*looks.values(), *ops_of(recording, "forecaster")]}
    for city in ("Athens", "Rome"):
        assert looks[city].path == ops_of(recording, f"window to {city}")[0].parent_op
    assert (3, ["lead", "lead->forecaster"]) == (recording.tree.session.totals.llm_requests, paths_of(recording))


def test_a_tool_that_raises_failed(recording, provider, model):
    """A tool that raises is failed with its exception and its class, and so is the step; the model is told, and the run goes on."""
    provider.says(WEATHER, DONE)
    assert "It rains" == calling(model, broken).run("Weather?")
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert ["failed", "ok"] == [op.status for op in ops_of(recording, "step 1", "step 2")]
    assert "ok" == recording.tree.session.status


@pytest.mark.parametrize("asked", [asks("window", city="Athens"), asks("weather", town="Athens")], ids=["unknown", "arguments"])
def test_a_tool_that_cannot_be_called(recording, provider, model, asked):
    """A call of a tool that is not there, or with arguments that it does not take, is one failed op."""
    provider.says(asked, DONE)
    assert "It rains" == calling(model, weather).run("Weather?")
    [op, final] = [op for op in ops_of(recording) if op.kind == "tool"]
    assert ("failed", "final_answer") == (op.status, final.name)
    assert op.error.startswith("AgentTool")
    assert "Athens" in decode(op.request.payload).values()


def test_a_step_whose_answer_cannot_be_read(recording):
    """A step whose answer has no code is failed with what smolagents says of it."""
    assert "It rains" == coding(Scripted("no code", CODE), weather).run("Weather?")
    failed, ok = ops_of(recording, "step 1", "step 2")
    assert ("failed", "ok") == (failed.status, ok.status)
    assert failed.error.startswith("AgentParsingError: Error in code parsing")


def test_plans(recording):
    """A plan is an op with its text, and the call of the model in it."""
    agent = coding(Scripted("The plan", "<code>1</code>", "Another plan", CODE), weather, planning_interval=1)
    assert "It rains" == agent.run("Weather?")
    first, second = ops_of(recording, "planning")
    assert [first.path, second.path] == [op.parent_op for op in calls_of(recording)[::2]]
    assert ("The plan" in decode(first.response.payload), "Another plan" in decode(second.response.payload)) == (True, True)
    assert ("planning", "ok", None) == (first.attributes["type"], first.status, first.parent_op)


def test_no_answer_in_time(recording):
    """A run that has used all its steps asks for an answer in an op, with a warning."""
    assert "It may rain" == coding(Scripted("<code>1</code>", "It may rain"), max_steps=1).run("Weather?")
    [op] = ops_of(recording, "final answer")
    assert ([("WRN", "no final answer by step 1")], "It may rain") == (
        [(log.severity, log.message) for log in op.logs], decode(op.response.payload),
    )  # fmt: skip
    assert ["step", "step"] == [one.attributes["type"] for one in ops_of(recording, "step 1", "final answer")]
    assert [ops_of(recording, "step 1")[0].path, op.path] == [call.parent_op for call in calls_of(recording)]
    assert ("ok", "It may rain") == (recording.tree.session.status, decode(recording.tree.session.final_report))


def test_checks_of_the_answer(recording):
    """What checks an answer is an op beside the step, failed where the answer is refused; what it records is in it."""

    def is_sure(answer, _memory, agent):  # noqa: ARG001 - as smolagents calls it
        with optree.tool("judge"):
            return "may" not in answer

    agent = coding(Scripted("<code>final_answer('It may rain')</code>", CODE), weather, final_answer_checks=[is_sure])
    assert "It rains" == agent.run("Weather?")
    first, second = ops_of(recording, "final answer checks")
    assert ("failed", "ok", "guardrail", None) == (first.status, second.status, second.attributes["type"], second.response)
    assert first.error.startswith("AgentError: Check is_sure failed")
    assert [first.path, second.path] == [op.parent_op for op in ops_of(recording, "judge")]
    assert ["ok", "ok"] == [op.status for op in ops_of(recording, "step 1", "step 2")]


@pytest.mark.captured("smolagents", "agents", "streamed", added="one line", checks=("calls", "answers"))
def test_a_stream(recording):
    """A run that is read step by step is the same tree; what the program does between two steps is not in it."""
    agent = coding(Scripted(CODE), weather, stream_outputs=True)
    with optree.session("lead"):
        stream = agent.run("Weather?", stream=True)
        assert not ops_of(recording)
        kinds = set()
        for item in stream:
            with optree.tool("shown"):
                kinds.add(type(item).__name__)
    assert {"ChatMessageStreamDelta", "ToolCall", "ActionOutput", "ActionStep", "FinalAnswerStep"} == kinds
    assert {None} == {op.parent_op for op in ops_of(recording, "shown")}
    [_, session] = walk_sessions(recording.tree)
    assert ("ok", "It rains", "coder") == (session.status, decode(session.final_report), session.agent_id)
    [call] = calls_of(recording)
    assert (ops_of(recording, "step 1")[0].path, 3) == (call.parent_op, call.accounting[0].tokens.input_tokens)
    assert f"{CODE} " == decode(call.response.payload)["choices"][0]["message"]["content"]


@pytest.mark.captured("smolagents", "agents", "cancelled", added="one line", checks="calls")
@pytest.mark.parametrize("kind", ["ToolCall", "ActionStep"])
def test_a_stream_that_is_left(recording, kind):
    """A run that the program reads no further is cancelled, and so is the step that it is in."""
    stream = coding(Scripted(CODE), weather).run("Weather?", stream=True)
    assert kind in (type(item).__name__ for item in stream)
    if kind == "ToolCall":
        with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):  # as smolagents has it
            stream.close()
    else:
        stream.close()
    assert "cancelled" == recording.tree.session.status
    assert ["cancelled" if kind == "ToolCall" else "ok"] == [op.status for op in ops_of(recording, "step 1")]
    assert optree.current_session() is None


def test_an_agent_that_is_interrupted(recording):
    """A run that the program interrupts is cancelled."""
    agent = coding(Scripted("<code>1</code>"), step_callbacks=[lambda _step, agent: agent.interrupt()])
    with pytest.raises(AgentError, match="interrupted"):
        agent.run("Weather?")
    assert ("cancelled", "AgentError: Agent interrupted.") == (recording.tree.session.status, recording.tree.session.error)
    assert ["ok"] == [op.status for op in ops_of(recording, "step 1")]


@pytest.mark.captured("smolagents", "agents", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider, model):
    """A refused call is one failed op, its step and run failed with it, and the program gets smolagents' exception."""
    provider.says(REFUSED)
    with pytest.raises(AgentGenerationError, match="no such model"):
        calling(model).run("Weather?")
    [call] = calls_of(recording)
    assert ("failed", "model") == (call.status, call.attributes["error.type"])
    assert ["failed"] == [op.status for op in ops_of(recording, "step 1")]
    assert "failed" == recording.tree.session.status
    assert recording.tree.session.error.startswith("AgentGenerationError: Error while generating output")


def test_runs_at_once(recording, provider, model):
    """Runs in threads and in tasks at once are sessions of their own, each with its calls."""
    provider.says(DONE)
    barrier = threading.Barrier(4, timeout=30)

    def run(number):
        barrier.wait()
        return calling(model, name=f"agent_{number}").run("Weather?")

    async def tasks():
        return await asyncio.gather(*(asyncio.to_thread(run, number) for number in range(2)))

    with ThreadPoolExecutor() as pool:
        found = [pool.submit(run, number) for number in (2, 3)]
        assert ["It rains"] * 2 == asyncio.run(tasks())
        assert ["It rains"] * 2 == [one.result() for one in found]
    assert [f"agent_{number}" for number in range(4)] == sorted(one.tree.session.agent_id for one in recording.sessions)
    assert [(1, "ok")] * 4 == [(one.totals.llm_requests, one.tree.session.status) for one in recording.sessions]


def test_step_by_step(recording):
    """Steps that a program makes itself are ops of its session, or outside of one of the program's."""
    agent = coding(Scripted("<code>weather('Athens')</code>", CODE), weather)
    agent.python_executor.send_tools(agent.tools)
    agent.memory.steps.append(TaskStep(task="Weather?"))
    with optree.session("lead"):
        assert not agent.step(ActionStep(step_number=1, timing=None)).is_final_answer
    assert "It rains" == agent.step(ActionStep(step_number=2, timing=None)).output
    first, second = ({op.name: op for op in one.tree.session.turns[0].ops} for one in recording.sessions)
    for ops, number in ((first, 1), (second, 2)):
        step = ops[f"step {number}"]
        assert ("ok", step.path, step.path) == (step.status, ops["scripted"].parent_op, ops["python_interpreter"].parent_op)


def test_callbacks_of_the_program(recording):
    """Callbacks get each step once, as without hooks; what they record is in the run."""
    seen = []

    def noted(step, agent):
        seen.append((type(step).__name__, agent.name))
        with optree.tool("noted"):
            pass

    kinds = dict.fromkeys((ActionStep, PlanningStep, FinalAnswerStep), noted)
    coding(Scripted("The plan", CODE), weather, planning_interval=2, step_callbacks=kinds).run("Weather?")
    assert [("PlanningStep", "coder"), ("ActionStep", "coder"), ("FinalAnswerStep", "coder")] == seen
    assert [None] * 3 == [op.parent_op for op in ops_of(recording, "noted")]
