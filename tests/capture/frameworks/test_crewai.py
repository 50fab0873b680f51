"""Programs on CrewAI, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import os
import threading
from importlib.util import find_spec

import pytest

if find_spec("crewai") is None:
    pytest.skip("crewai is tried in an environment of its own: make test-frameworks", allow_module_level=True)
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import Agent, Crew, Flow, Process, Task
from crewai.flow.async_feedback.types import HumanFeedbackPending
from crewai.flow.flow import listen, router, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.hooks.dispatch import HookAborted
from crewai.knowledge.knowledge import Knowledge
from crewai.knowledge.storage.knowledge_storage import KnowledgeStorage
from crewai.memory.unified_memory import Memory

import optree
from optree._capture.calls.program import program_name
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode, encode
from tests.capture.frameworks.crews import (  # noqa: F401 - model_of_crewai is a fixture
    MARKS,
    ask,
    broken,
    crew_of,
    forecaster,
    model_of_crewai,
    scripted,
    task_of,
    weather,
)
from tests.capture.recordings import calls_of, ops_of, paths_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL, QUESTION

pytestmark = MARKS


@pytest.mark.captured("crewai", "crews", "tools", added="one line", checks=("agents", "calls", "tokens"))
def test_a_crew_is_a_session(recording, provider, model):
    """A crew's run is a session of its name, a task an op in it, and what an agent does for the task is the agent's session."""
    provider.says(CHAT_TOOL, CHAT)
    assert "It rains" == ask(crew_of(model, weather))
    session = recording.tree.session
    assert ("meteo", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"user": "city: Athens"}, "ok") == (turn.prompts, turn.status)
    [task, agent_op] = turn.ops
    assert ("system", "task Weather in Athens?", "task", "ok") == (task.kind, task.name, task.attributes["type"], task.status)
    assert {"description": "Weather in Athens?", "expected_output": "a sentence"} == decode(task.request.payload)
    assert ("session", "forecaster", task.path) == (agent_op.kind, agent_op.name, agent_op.parent_op)
    [_, agent] = walk_sessions(recording.tree)
    assert ("It rains", "ok") == (decode(agent.final_report), agent.status)
    assert agent.turns[0].prompts["user"].startswith("Weather in Athens?")
    assert ["openai-compatible:gpt-5"] * 2 == [op.name for op in calls_of(recording)]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls_of(recording)]
    assert (2, 16) == (session.totals.llm_requests, session.totals.input_tokens)
    assert optree.current_session() is None


def test_tools_have_arguments_and_results(recording, provider, model):
    """A tool is an op of the agent's, with arguments and result; what the program records in it is within it."""
    provider.says(CHAT_TOOL, CHAT)
    ask(crew_of(model, weather))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


def test_a_tool_that_raises_failed(recording, provider, model):
    """A tool that raises is failed with its exception; the model is told, and the crew goes on."""
    provider.says(CHAT_TOOL, CHAT)
    assert "It rains" == ask(crew_of(model, broken))
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert "ok" == recording.tree.session.status


@pytest.mark.parametrize("way", ["kickoff_async", "akickoff"])
def test_async(recording, provider, model, way):
    """A crew that is awaited is the same tree."""
    provider.says(CHAT_TOOL, CHAT)

    async def asking():
        found = await getattr(crew_of(model, weather), way)({"city": "Athens"})
        assert optree.current_session() is None
        return found.raw

    assert "It rains" == asyncio.run(asking())
    assert ["meteo", "meteo->forecaster"] == paths_of(recording)
    assert ("ok", 2, 2) == (
        recording.tree.session.status, recording.tree.session.totals.llm_requests, recording.tree.session.totals.tools_run,
    )  # fmt: skip
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ("rain in Athens", op.path) == (decode(op.response.payload), inner.parent_op)


@pytest.mark.parametrize("way", ["kickoff_for_each", "kickoff_for_each_async", "akickoff_for_each"])
def test_each_input_is_a_run(recording, way):
    """Each input of `kickoff_for_each` is a session of its own, with the input as its question, also where they run at once."""
    cities = [{"city": city} for city in ("Athens", "Rome", "Oslo")]
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        found = getattr(crew_of(scripted("It rains")), way)(cities)
        assert 3 == len(asyncio.run(found) if asyncio.iscoroutine(found) else found)
    runs = [one for one in walk_sessions(recording.tree) if one.agent_id == "meteo"]
    assert ["city: Athens", "city: Oslo", "city: Rome"] == sorted(run.turns[0].prompts["user"] for run in runs)
    assert [1, 1, 1] == [run.totals.llm_requests for run in runs]
    assert (3, 9) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.captured("crewai", "crews", "at once", added="one line", checks=("agents", "calls"))
def test_tasks_at_once(recording):
    """Tasks that run at once are siblings, each with its agent and the call of that."""
    barrier = threading.Barrier(3, timeout=30)

    def together(_messages):
        barrier.wait()
        return "It rains"

    agents = [Agent(role=f"agent {city}", goal="g", backstory="b", llm=scripted(together)) for city in ("Athens", "Rome", "Oslo")]
    tasks = [Task(description=f"{agent.role}?", expected_output="s", agent=agent, async_execution=True) for agent in agents]
    last = Task(description="Sum", expected_output="s", agent=forecaster(scripted("All rain")), context=tasks)
    assert "All rain" == Crew(name="meteo", agents=[*agents, last.agent], tasks=[*tasks, last]).kickoff().raw
    ops = {op.name: op for op in recording.tree.session.turns[0].ops}
    for agent in agents:
        assert (ops[f"task {agent.role}?"].path, None) == (ops[agent.role].parent_op, ops[f"task {agent.role}?"].parent_op)
    assert [1, 1, 1, 1] == [one.totals.llm_requests for one in walk_sessions(recording.tree) if one.path]
    assert "ok" == recording.tree.session.status


@pytest.mark.captured("crewai", "flows", "sub-agents", added="one line", checks=("agents", "calls"))
def test_a_flow(recording, provider, model):
    """A flow is a session of its name, its methods are ops with what they are given and return, and crews in them are sub-agents."""
    provider.says(CHAT)

    class Outlook(Flow):
        @start()
        def city(self):
            return "Athens"

        @router(city)
        def choose(self):
            return "far"

        @listen("far")
        def look(self, city):
            with optree.tool("window"):
                return crew_of(model).kickoff({"city": city})

        @listen(look)
        async def tell(self, found):
            return f"{found.raw}!"

    assert "It rains!" == Outlook().kickoff({"day": "Monday"})
    session = recording.tree.session
    assert ("Outlook", "ok", "It rains!") == (session.agent_id, session.status, decode(session.final_report))
    assert {"user": "day: Monday"} == session.turns[0].prompts
    methods = [op for op in session.turns[0].ops if op.attributes.get("type") == "method"]
    assert ["method city", "method choose", "method look", "method tell"] == [op.name for op in methods]
    assert [None] * 4 == [op.parent_op for op in methods]
    assert ["Athens", "far", "It rains", "It rains!"] == [decode(op.response.payload) for op in methods]
    assert "It rains" in decode(methods[3].request.payload).values()
    assert ["Outlook", "Outlook->meteo", "Outlook->meteo->forecaster"] == paths_of(recording)
    assert (methods[2].path, 1) == (ops_of(recording, "window")[0].parent_op, session.totals.llm_requests)


def test_a_flow_that_is_streamed(recording):
    """A flow whose stream the program reads is the same tree, and crews that one of its methods awaits at once are siblings in it."""

    class Outlook(Flow):
        @start()
        async def look(self):
            found = await asyncio.gather(*(crew_of(scripted("It rains")).akickoff({"city": city}) for city in ("Athens", "Rome")))
            return [one.raw for one in found]

    flow = Outlook()
    flow.stream = True
    stream = flow.kickoff()
    assert list(stream)
    assert ["It rains", "It rains"] == stream.result
    method, *crews = recording.tree.session.turns[0].ops
    assert ("method look", ["It rains", "It rains"], [method.path] * 2) == (
        method.name, decode(method.response.payload), [op.parent_op for op in crews],
    )  # fmt: skip
    assert ["city: Athens", "city: Rome"] == sorted(
        one.turns[0].prompts["user"] for one in walk_sessions(recording.tree) if one.agent_id == "meteo"
    )
    assert ("ok", 2) == (recording.tree.session.status, recording.tree.session.totals.llm_requests)
    assert optree.current_session() is None


def test_a_flow_that_fails(recording):
    """A method that raises is failed with its exception, and so is the flow; the program gets the exception."""

    class Outlook(Flow):
        @start()
        def look(self):
            raise ValueError("fog")

    with pytest.raises(ValueError, match="fog"):
        Outlook().kickoff()
    [op] = ops_of(recording)
    assert ("failed", "ValueError: fog") == (op.status, op.error)
    assert ("failed", "ValueError: fog") == (recording.tree.session.status, recording.tree.session.error)
    assert optree.current_session() is None


def test_a_guardrail_that_refuses(recording):
    """A guardrail is an op of the task, with what it says and which retry it is; what it refuses is tried again as another session."""

    def long_enough(output):
        return (True, output.raw.upper()) if len(output.raw) > 10 else (False, "too short")

    assert "IT RAINS A LOT" == ask(crew_of(scripted("It rains", "It rains a lot"), guardrail=long_enough))
    task, *within = recording.tree.session.turns[0].ops
    assert ["forecaster", "guardrail long_enough"] * 2 == [op.name for op in within]
    assert [task.path] * 4 == [op.parent_op for op in within]
    assert [("guardrail", 0), ("guardrail", 1)] == [(op.attributes["type"], op.attributes["retry"]) for op in within[1::2]]
    assert ["guardrail long_enough refused: too short"] == [log.message for log in within[1].logs]
    assert "IT RAINS A LOT" == decode(within[3].response.payload) == decode(task.response.payload)


def test_names_that_are_texts_without_content(saved):
    """With content off, a task and a guardrail that have but a description are called what they are; a name of a task's own stays."""
    optree.configure(content=False)
    for name in (None, "look"):
        agent = forecaster(scripted("It rains", '{"valid": true, "feedback": null}'))
        ask(Crew(name="meteo", agents=[agent], tasks=[task_of(agent, guardrail="names no patient", name=name)]))
    written = saved()
    assert written.count('"name":"task look"') == written.count('"name":"task"') == 1
    assert written.count('"name":"guardrail"') >= 1
    for said in ("Weather", "Athens", "patient", "rains"):
        assert said not in written


def test_what_a_guardrail_says_without_content(recording):
    """With content off it is recorded that a guardrail refused, and not what it said of the answer: a model may have said that."""
    optree.configure(content=False)
    says = scripted("It rains", '{"valid": false, "feedback": "names Jane"}', "It snows", '{"valid": true, "feedback": null}')
    assert "It snows" == ask(crew_of(says, guardrail="names no patient"))
    assert ["guardrail refused"] == [log.message for op in ops_of(recording) for log in op.logs]
    assert b"Jane" not in encode(recording.records)


def test_a_guardrail_that_never_lets_go(recording):
    """A task whose retries are used up is failed with what the guardrail said, and so is the crew."""
    crew = crew_of(scripted("It rains"), guardrail=lambda _output: (False, "too short"), guardrail_max_retries=1)
    with pytest.raises(Exception, match="too short"):
        ask(crew)
    task, session = recording.tree.session.turns[0].ops[0], recording.tree.session
    assert ("failed", "failed") == (task.status, session.status)
    assert "too short" in task.error
    assert "too short" in session.error


@pytest.mark.captured("crewai", "crews", "retries", added="one line", checks=("agents", "calls"))
def test_an_agent_that_tries_again(recording):
    """An agent's attempt that fails is a failed session beside the one that succeeds."""
    assert "It rains" == ask(crew_of(scripted(RuntimeError("busy"), "It rains")))
    attempts = [one for one in walk_sessions(recording.tree) if one.agent_id == "forecaster"]
    assert [("failed", "RuntimeError: busy"), ("ok", None)] == [(one.status, one.error) for one in attempts]
    assert ["failed", "ok"] == [op.status for op in calls_of(recording)]
    assert "ok" == recording.tree.session.status


def test_an_agent_alone(recording, provider, model):
    """An agent that is run without a crew is a session of its role, with what it is asked, plain and awaited."""
    provider.says(CHAT_TOOL, CHAT)
    assert "It rains" == forecaster(model, weather).kickoff("Weather?").raw
    session = recording.tree.session
    assert ("forecaster", "ok", {"user": "Weather?"}) == (session.agent_id, session.status, session.turns[0].prompts)
    assert ("It rains", 2, 2) == (decode(session.final_report), session.totals.llm_requests, session.totals.tools_run)
    provider.says(CHAT)
    assert "It rains" == asyncio.run(forecaster(model).kickoff_async(QUESTION)).raw
    session = recording.sessions[1].tree.session
    assert ("ok", {"user": "Weather?"}) == (session.status, session.turns[0].prompts)


@pytest.mark.captured("crewai", "crews", "sub-agents", added="one line", checks=("agents", "tools"))
def test_work_that_is_delegated(recording):
    """What an agent delegates to a coworker is that one's session, in the op of the tool that delegates."""
    arguments = '{"task": "Look", "context": "Athens", "coworker": "forecaster"}'
    asks = [{"id": "call-1", "type": "function", "function": {"name": "delegate_work_to_coworker", "arguments": arguments}}]
    lead = Agent(role="lead", goal="g", backstory="b", llm=scripted(asks, "It rains there"), allow_delegation=True)
    crew = Crew(name="meteo", agents=[lead, forecaster(scripted("It rains"))], tasks=[task_of(lead)])
    assert "It rains there" == ask(crew)
    assert ["meteo", "meteo->lead", "meteo->lead->forecaster"] == paths_of(recording)
    [op] = ops_of(recording, "delegate_work_to_coworker")
    assert ("tool", "It rains") == (op.kind, decode(op.response.payload))
    assert [op.path] == [one.parent_op for one in ops_of(recording, "forecaster")]


def test_a_manager(recording):
    """In a hierarchical crew the manager's session has the task."""
    crew = Crew(
        name="meteo", agents=[forecaster(scripted("It rains"))], tasks=[Task(description="Weather?", expected_output="s")],
        process=Process.hierarchical, manager_llm=scripted("It rains"),
    )  # fmt: skip
    assert "It rains" == crew.kickoff().raw
    assert (["meteo", "meteo->Crew Manager"], 1) == (paths_of(recording), recording.tree.session.totals.llm_requests)


def test_memories_and_knowledge(recording, tmp_path):
    """What is looked up in a memory or in knowledge is a tool's op, with the query and what was found."""

    class Shelf(Knowledge):
        def query(self, query, *_args, **_more):
            return [{"content": f"about {query[0]}", "score": 1.0}]

    memory = Memory(embedder=lambda texts: [[float(len(one)), 1.0] for one in texts], storage=str(tmp_path))
    memory.remember("Athens is rainy", scope="/", categories=["weather"], importance=0.5)
    crew = crew_of(scripted("Athens", "It rains"))
    crew.agents[0].knowledge = Shelf(collection_name="shelf", sources=[], storage=KnowledgeStorage())
    with optree.session("lead"), optree.turn(user="Weather?"):
        assert ["Athens is rainy"] == [found.record.content for found in memory.recall("Athens", depth="shallow")]
        assert "It rains" == ask(crew)
    [recalled], [known] = ops_of(recording, "memory"), ops_of(recording, "knowledge")
    assert ("tool", "Athens", ["Athens is rainy"]) == (
        recalled.kind,
        decode(recalled.request.payload)["query"],
        decode(recalled.response.payload),
    )
    assert ("tool", "Athens") == (known.kind, decode(known.request.payload)["query"])
    assert "about Athens" in decode(known.response.payload)
    assert [known.path, None] == [op.parent_op for op in calls_of(recording)]


def test_a_flow_that_waits_for_a_person(recording, tmp_path):
    """A flow that waits for a person's feedback is no error; to go on is a run of its own, from the method that waited."""

    class Later:
        def request_feedback(self, context, flow):  # noqa: ARG002 - as it is called
            raise HumanFeedbackPending(context=context)

    class Outlook(Flow):
        @start()
        @human_feedback(message="Really?", provider=Later())
        def look(self):
            return "It rains"

        @listen(look)
        def tell(self, found):
            return f"{found.feedback}!"

    store = SQLiteFlowPersistence(str(tmp_path / "flows.db"))
    pending = Outlook(persistence=store).kickoff()
    assert isinstance(pending, HumanFeedbackPending)
    [op] = ops_of(recording)
    assert ("ok", ["waits for feedback: Really?"], "ok") == (op.status, [log.message for log in op.logs], recording.tree.session.status)
    assert "yes!" == Outlook.from_pending(pending.context.flow_id, store).resume("yes")
    later = recording.sessions[1].tree.session
    assert ("Outlook", "ok", ["method look", "method tell"]) == (later.agent_id, later.status, [op.name for op in later.turns[0].ops])
    assert optree.current_session() is None


def test_within_a_session_of_the_programs(recording, provider, model):
    """In a session and turn of the program's a crew is a sub-agent, and the program's own place is found again behind it."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?") as turn:
        ask(crew_of(model))
        with optree.tool("speaker"):
            pass
    assert ["lead", "lead->meteo", "lead->meteo->forecaster"] == paths_of(recording)
    assert ["meteo", "speaker"] == [op.name for op in turn.node.ops]
    assert 1 == session.totals.llm_requests


def test_a_crew_without_a_name(recording):
    """A crew that has no name is a session of the script's, and in another session one called crew."""
    agent = forecaster(scripted("It rains"))
    Crew(agents=[agent], tasks=[task_of(agent)]).kickoff({"city": "Athens", "day": "Monday"})
    session = recording.tree.session
    assert (program_name(), {"user": '{"city":"Athens","day":"Monday"}'}) == (
        session.agent_id, {name: one.replace(" ", "") for name, one in session.turns[0].prompts.items()},
    )  # fmt: skip
    with optree.session("lead"):
        Crew(agents=[agent], tasks=[task_of(agent)]).kickoff({"city": "Athens"})
    assert ["lead", "lead->crew", "lead->crew->forecaster"] == [one.call_path for one in walk_sessions(recording.sessions[1].tree)]


def test_a_task_alone(recording):
    """A task that is executed without a crew is in a session of the script's."""
    assert "It rains" == task_of(forecaster(scripted("It rains"))).execute_sync().raw
    assert [program_name(), f"{program_name()}->forecaster"] == paths_of(recording)
    assert "ok" == recording.tree.session.status


def test_a_streamed_crew(recording, provider, model):
    """A crew whose stream the program reads is the same tree, with its call once."""
    provider.says(CHAT_EVENTS)
    crew = crew_of(model)
    crew.stream = True
    stream = crew.kickoff({"city": "Athens"})
    assert "It rains" == "".join(chunk.content for chunk in stream)
    assert "It rains" == stream.result.raw
    assert ("meteo", "ok", 1) == (
        recording.tree.session.agent_id, recording.tree.session.status, recording.tree.session.totals.llm_requests,
    )  # fmt: skip
    assert optree.current_session() is None


def test_a_crew_that_is_cancelled(recording):
    """A crew whose task of asyncio is cancelled is cancelled with what is open in it, and nothing of it stays current.

    The model's call goes on in a thread of CrewAI's, to its end.
    """
    release = threading.Event()

    async def cancelling():
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def hold(_messages):
            loop.call_soon_threadsafe(begun.set)
            release.wait(30)
            return "It rains"

        running = asyncio.ensure_future(crew_of(scripted(hold)).akickoff({"city": "Athens"}))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert optree.current_session() is None
        release.set()

    asyncio.run(cancelling())
    assert ["cancelled", "cancelled"] == [session.status for session in walk_sessions(recording.tree)]
    assert [("system", "cancelled"), ("session", "cancelled"), ("llm", "ok")] == [(op.kind, op.status) for op in ops_of(recording)]


def test_an_agent_that_ends_without_an_event(recording):
    """An agent that a hook stops ends with the exception, though CrewAI tells of no end, and what comes behind it is in its place."""

    def stop(_messages):
        raise HookAborted("stopped")

    with optree.session("lead") as session, optree.turn(user="Weather?"):
        with pytest.raises(HookAborted):
            ask(crew_of(scripted(stop)))
        ask(crew_of(scripted("It rains")))
    runs = [one for one in walk_sessions(recording.tree) if one.path]
    assert ["lead->meteo", "lead->meteo->forecaster"] * 2 == [one.call_path for one in runs]
    assert ["failed", "failed", "ok", "ok"] == [one.status for one in runs]
    assert ["meteo", "meteo"] == [op.name for op in session.tree.session.turns[0].ops]
