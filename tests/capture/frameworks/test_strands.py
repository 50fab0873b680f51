"""Programs on Strands Agents, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import threading
from importlib.util import find_spec

import pytest

if find_spec("strands") is None:
    pytest.skip("strands-agents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from strands import ToolContext, tool
from strands.agent.agent import Agent
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeNodeCallEvent,
    BeforeToolCallEvent,
)
from strands.multiagent import Swarm

import optree
from optree._capture.calls.program import program_name
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.frameworks.strands_programs import (
    ASKS,
    CALL,
    RAINS,
    Forecast,
    Scripted,
    agent,
    ask,
    asks,
    graph_of,
    outcome_of,
    says,
    served_by,
    weather,
)
from tests.capture.recordings import calls_of, ops_of, paths_of

WAYS = ["__call__", "invoke_async", "stream_async"]


@pytest.mark.captured("strands-agents", "Agent", "tools", "streamed", added="one line", checks=("agents", "calls", "tokens", "tools"))
@pytest.mark.parametrize("way", WAYS)
def test_an_agent_is_a_session(recording, provider, way):
    """An agent's run is a session of its name with the question and what it came to, in each way to run it; calls and tools are in it."""
    provider.says(ASKS, RAINS)
    assert "It rains" == ask(agent(served_by(provider), weather, system_prompt="Be brief."), way=way)
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"user": "Weather?", "system": "Be brief."}, "ok") == (turn.prompts, turn.status)
    assert ["openai-compatible:gpt-5", "weather", "thermometer", "openai-compatible:gpt-5"] == [op.name for op in turn.ops]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls_of(recording)]
    assert (2, 16, 2) == (session.totals.llm_requests, session.totals.input_tokens, session.totals.tools_run)
    assert {"ingress"} == session.attributes.keys()
    assert optree.current_session() is None


@pytest.mark.captured("strands-agents", "Agent", "sub-agents", added="one line", checks=("agents", "calls"))
def test_an_agent_as_a_tool(recording, provider):
    """An agent that another calls as a tool is a session in the op of that."""
    provider.says(asks(("researcher", {"input": "Weather in Athens?"})), RAINS, says("All rain"))
    model = served_by(provider)
    assert "All rain" == ask(agent(model, agent(model, name="researcher", description="finds out"), name="lead"))
    assert ["lead", "lead->researcher"] == paths_of(recording)
    [op], [_, child] = [op for op in ops_of(recording, "researcher") if op.kind == "tool"], walk_sessions(recording.tree)
    assert ({"input": "Weather in Athens?"}, "It rains\n") == (decode(op.request.payload), decode(op.response.payload))
    [inner] = [one for one in ops_of(recording) if one.kind == "session"]
    assert (op.path, "Weather in Athens?") == (inner.parent_op, child.turns[0].prompts["user"])
    assert (3, 1) == (recording.tree.session.totals.llm_requests, child.totals.llm_requests)


@pytest.mark.captured("strands-agents", "Graph", "sub-agents", "at once", added="one line", checks=("agents", "calls"))
@pytest.mark.parametrize("way", WAYS)
def test_a_graph(recording, provider, way):
    """A graph is a session, its nodes are ops in it, those at once beside each other, with their agents in them."""
    provider.says(RAINS)
    model = served_by(provider)
    graph = graph_of({"look": model, "ask": model, "write": model}, [("look", "write"), ("ask", "write")], set_graph_id="meteo")
    ask(graph, way=way)
    session = recording.tree.session
    assert ("meteo", "ok", {"user": "Weather?"}) == (session.agent_id, session.status, session.turns[0].prompts)
    assert "write: It rains" in decode(session.final_report)
    assert ["meteo", "meteo->ask", "meteo->look", "meteo->write"] == sorted(paths_of(recording))
    ops = {op.name: op for op in session.turns[0].ops}
    assert [f"node {name}" for name in ("ask", "look", "write")] == sorted(name for name, op in ops.items() if op.kind == "system")
    assert [ops[f"node {name}"].path for name in ("ask", "look", "write")] == [ops[name].parent_op for name in ("ask", "look", "write")]
    assert (3, "ok", "node") == (session.totals.llm_requests, ops["node write"].status, ops["node write"].attributes["type"])


def test_a_graph_in_a_graph(recording):
    """A graph that is a node of another is a session in that node's op; agents and graphs without a name have that of their node."""
    unnamed = Agent(model=Scripted("It rains"), callback_handler=None)
    inner = graph_of({"window": unnamed})
    ask(graph_of({"look": inner}, set_graph_id="meteo"))
    assert ["meteo", "meteo->look", "meteo->look->window"] == paths_of(recording)
    assert ["ok"] * 3 == [session.status for session in walk_sessions(recording.tree)]


@pytest.mark.captured("strands-agents", "Graph", "failed", added="one line", checks=("agents", "calls"))
def test_a_graph_that_fails(recording):
    """A node whose agent fails is failed with the agent, and so is the graph; a node that a callback stops is failed without one."""
    with pytest.raises(ConnectionError):
        ask(graph_of({"look": Scripted(ConnectionError("no line"))}, set_graph_id="meteo"))
    assert [("meteo", "failed"), ("meteo->look", "failed")] == outcome_of(recording)[0]
    [node, _, call] = ops_of(recording)
    assert ("failed", "ConnectionError: no line", "network") == (node.status, node.error, call.attributes["error.type"])
    stopped = graph_of({"look": Scripted("It rains")}, set_graph_id="meteo")
    stopped.hooks.add_callback(BeforeNodeCallEvent, lambda event: setattr(event, "cancel_node", "not today"))
    with pytest.raises(RuntimeError, match="not today"):
        ask(stopped)
    later = recording.sessions[1].tree
    assert ("failed", ["failed"]) == (later.session.status, [op.status for op in later.session.turns[0].ops])
    assert optree.current_session() is None


@pytest.mark.captured("strands-agents", "Swarm", "sub-agents", added="one line", checks=("agents", "calls"))
def test_a_swarm(recording, provider):
    """A swarm is a session with those of its agents in it; a hand-off is an op, and no tool."""
    provider.says(asks(("handoff_to_agent", {"agent_name": "billing", "message": "pay"})), says("Done"), says("Paid"))
    model = served_by(provider)
    swarm = Swarm([agent(model, name="triage"), agent(model, name="billing")], id="desk")
    assert "billing: Paid" in ask(swarm)
    assert ["desk", "desk->triage", "desk->billing"] == paths_of(recording)
    [op] = ops_of(recording, "handoff to billing")
    assert ("system", {"type": "handoff", "from": "triage", "to": "billing"}) == (op.kind, op.attributes)
    assert ({"agent_name": "billing", "message": "pay"}, "ok") == (decode(op.request.payload), op.status)
    assert (3, 0) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.tools_run)


def test_a_swarm_that_fails(recording):
    """A swarm one of whose agents failed is failed with its error, though Strands raises nothing."""
    swarm = Swarm([agent(Scripted(ConnectionError("no line")), name="triage")], id="desk")
    assert "failed" == swarm("Pay").status.value
    assert [("desk", "failed"), ("desk->triage", "failed")] == outcome_of(recording)[0]
    assert "ConnectionError: no line" == recording.tree.session.error


def test_a_swarm_in_a_graph_that_fails(recording):
    """A node of a graph in which a swarm failed is failed, though nothing is raised out of it."""
    swarm = Swarm([agent(Scripted(ConnectionError("no line")), name="triage")], id="desk")
    assert "failed" == graph_of({"look": swarm}, set_graph_id="meteo")("Pay").status.value
    assert [("meteo", "failed"), ("meteo->desk", "failed"), ("meteo->desk->triage", "failed")] == outcome_of(recording)[0]
    assert ("failed", "what ran in it failed, or was cancelled") == (
        ops_of(recording, "node look")[0].status, ops_of(recording, "node look")[0].error,
    )  # fmt: skip


def test_a_swarm_that_hands_over_too_often(recording):
    """A swarm that a limit ends is failed; a hand-off that names no agent is a failed one."""
    hands_over = [("handoff_to_agent", {"agent_name": "billing", "message": "pay"})]
    triage = agent(Scripted([("handoff_to_agent", {"message": "pay"})], hands_over, "Done"), name="triage")
    swarm = Swarm([triage, agent(Scripted("Paid"), name="billing")], id="desk", max_handoffs=1)
    assert "failed" == swarm("Pay").status.value
    assert ("failed", "a node of it failed, or a limit was reached") == (recording.tree.session.status, recording.tree.session.error)
    assert [("handoff to ?", "failed"), ("handoff to billing", "ok")] == [
        (op.name, op.status) for op in ops_of(recording) if op.kind == "system"
    ]


def test_within_a_session_of_the_programs(recording, provider):
    """In a session and turn of the program's an agent is a sub-agent, and the program's own place is found again behind it."""
    provider.says(RAINS)
    with optree.session("lead") as session, optree.turn(user="Weather?") as turn:
        ask(agent(served_by(provider)))
        with optree.tool("speaker"):
            pass
    assert ["lead", "lead->forecaster"] == paths_of(recording)
    assert ["forecaster", "speaker"] == [op.name for op in turn.node.ops]
    assert 1 == session.totals.llm_requests


def test_an_agent_without_a_name(recording):
    """An agent that has no name is a session of the script's, and in another session one called agent."""
    unnamed = Agent(model=Scripted("It rains"), callback_handler=None)
    ask(unnamed)
    assert [program_name()] == paths_of(recording)
    with optree.session("lead"):
        ask(unnamed)
        ask(graph_of({"look": Scripted("It rains")}))
        ask(Swarm([agent(Scripted("It rains"))]))
    assert ["lead", "lead->agent", "lead->graph", "lead->graph->look", "lead->swarm", "lead->swarm->forecaster"] == [
        one.call_path for one in walk_sessions(recording.sessions[1].tree)
    ]


IMAGE = {"image": {"format": "png", "source": {"bytes": b"x"}}}


@pytest.mark.parametrize(
    ("asked", "prompts"),
    [
        ([{"text": "Weather"}, IMAGE, {"text": "today?"}], {"user": "Weather\ntoday?"}),
        ([{"role": "user", "content": [{"text": "Weather"}, {"text": "today?"}]}], {"user": "Weather\ntoday?"}),
        ([IMAGE], None),
        ([], None),
        (None, None),
    ],
    ids=["blocks", "messages", "no text", "empty", "nothing"],
)
def test_questions_in_blocks(recording, asked, prompts):
    """What is asked in blocks, or in messages, is the turn's question; where no text is in it, there is none."""
    ask(agent(Scripted("It rains")), asked)
    assert ("ok", prompts) == (recording.tree.session.status, recording.tree.session.turns[0].prompts)


@pytest.mark.captured("strands-agents", "Agent", "parsed", added="one line", checks=("calls", "tokens"))
def test_structured_output(recording, provider):
    """What a model gives an output of a type by is an op, and no tool; the output is the session's report."""
    provider.says(asks(("Forecast", {"rain": True})))
    result = agent(served_by(provider))("Weather?", structured_output_model=Forecast)
    assert Forecast(rain=True) == result.structured_output
    [op] = ops_of(recording, "Forecast")
    assert ("system", {"type": "output"}, {"rain": True}) == (op.kind, op.attributes, decode(op.request.payload))
    assert ({"rain": True}, 0, 1) == (
        decode(recording.tree.session.final_report), recording.tree.session.totals.tools_run, recording.tree.session.totals.llm_requests,
    )  # fmt: skip


def test_structured_output_that_is_forced(recording):
    """A model that is told to give its output by a tool has that as a parameter of the call."""
    agent(Scripted("It rains", [("Forecast", {"rain": True})]))("Weather?", structured_output_model=Forecast)
    asked = [recording.tree.pool.resolve(decode(op.request.payload)).get("tool_choice") for op in calls_of(recording)]
    assert [None, {"tool": {"name": "Forecast"}}] == asked


@pytest.mark.filterwarnings("ignore:Agent.structured_output:DeprecationWarning")
def test_structured_output_in_the_old_way(recording):
    """The older way to ask for an output is a session with it as its report; one that fails is failed."""
    asking = agent(Scripted({"rain": True}, {"rain": "?"}))
    assert Forecast(rain=True) == asking.structured_output(Forecast, "Weather?")
    session = recording.tree.session
    assert ("forecaster", "ok", {"user": "Weather?"}, {"rain": True}) == (
        session.agent_id, session.status, session.turns[0].prompts, decode(session.final_report),
    )  # fmt: skip
    with pytest.raises(ValueError, match="rain"):
        asking.structured_output(Forecast, "Weather?")
    assert "failed" == recording.sessions[1].tree.session.status


def test_a_limit_is_noted(recording):
    """A run that a limit ends says so."""
    asking = agent(Scripted([CALL]), weather)
    asking("Weather?", limits={"turns": 1})
    assert ("ok", "limit_turns") == (recording.tree.session.status, recording.tree.session.attributes["stop_reason"])


def test_runs_at_once(recording, provider):
    """Runs in threads, and in tasks of asyncio, each in a session of their own, stay apart."""
    provider.says(RAINS)
    model, cities = served_by(provider), [f"city {number}" for number in range(4)]

    async def together():
        await asyncio.gather(*(agent(model, name=city).invoke_async(f"Weather in {city}?") for city in cities))

    asyncio.run(together())
    threads = [threading.Thread(target=ask, args=(agent(model, name=city), f"Weather in {city}?")) for city in cities]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = [one.tree.session for one in recording.sessions]
    assert sorted((city, f"Weather in {city}?", 1) for city in cities * 2) == sorted(
        (one.agent_id, one.turns[0].prompts["user"], one.totals.llm_requests) for one in found
    )


@pytest.mark.captured("strands-agents", "Agent", "cancelled", added="one line", checks=("agents", "calls"))
def test_a_run_that_is_cancelled(recording):
    """A run whose task is cancelled is cancelled with the tool that is open in it, and nothing of it stays current."""

    async def cancelling():
        begun = asyncio.Event()

        @tool
        async def forever() -> str:
            """Wait."""
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.ensure_future(agent(Scripted([("forever", {})]), forever).invoke_async("Weather?"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert optree.current_session() is None

    asyncio.run(cancelling())
    assert ([("forecaster", "cancelled")], [("llm", "parrot-1", "ok"), ("tool", "forever", "cancelled")]) == outcome_of(recording)


def test_a_run_that_the_program_cancels(recording):
    """A run that is ended by `Agent.cancel` is cancelled; one that is to end once its tools have answered is in order."""

    @tool(context=True)
    def stop(tool_context: ToolContext, at_once: bool) -> str:
        """Stop."""
        tool_context.agent.cancel(after_current_tools=not at_once)
        return "stopping"

    asking = agent(Scripted([("stop", {"at_once": True})], [("stop", {"at_once": False})]), stop)
    assert ["cancelled", "cancelled"] == [asking("Weather?").stop_reason for _ in range(2)]
    assert ["cancelled", "ok"] == [one.tree.session.status for one in recording.sessions]


def test_a_run_that_the_program_cancels_in_an_answer(recording):
    """A run that is ended while its model answers is cancelled, and so is the call."""

    async def cancelling():
        asking = agent(Scripted("It rains"))
        async for event in asking.stream_async("Weather?"):
            if "data" in event:
                asking.cancel()

    asyncio.run(cancelling())
    assert ([("forecaster", "cancelled")], [("llm", "parrot-1", "cancelled")]) == outcome_of(recording)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_stream_that_is_left(recording, how):
    """A stream that the program reads no further is cancelled, with what is open in it; its own ops between events are its own."""

    async def leaving():
        stream = agent(Scripted("It rains")).stream_async("Weather?")
        async for event in stream:
            if "data" in event:
                with optree.tool("speaker"):
                    break
        if how == "closed":
            await stream.aclose()
        del stream
        assert "lead" == optree.current_session().agent

    with optree.session("lead"), optree.turn(user="Weather?"):
        asyncio.run(leaving())
    assert [("lead", "ok"), ("lead->forecaster", "cancelled")] == outcome_of(recording)[0]
    [speaker], [call] = ops_of(recording, "speaker"), calls_of(recording)
    assert (None, "cancelled") == (speaker.parent_op, call.status)


def test_a_stream_that_is_left_at_its_result(recording):
    """A program that reads no further than the result has had the whole run."""

    async def leaving():
        async for event in agent(Scripted("It rains")).stream_async("Weather?"):
            if "result" in event:
                break

    asyncio.run(leaving())
    assert ([("forecaster", "ok")], [("llm", "parrot-1", "ok")]) == outcome_of(recording)


def test_an_agent_that_is_busy(recording):
    """A run that Strands refuses, as the agent has another one, is a failed session, and the other goes on."""
    asking = agent(Scripted([("again", {})], "It rains"))

    @tool
    async def again() -> str:
        """Ask the same agent."""
        return str(await asking.invoke_async("Again?"))

    asking.tool_registry.register_tool(again)
    ask(asking)
    assert ["ok", "failed"] == [one.status for one in walk_sessions(recording.tree)]
    assert "failed" == ops_of(recording, "again")[0].status


def test_the_programs_callbacks(recording):
    """Callbacks of the program's are called as often as they were, and find their agent; what they record is in the run."""
    seen = []
    asking = agent(Scripted([CALL], "It rains"), weather)
    kinds = [BeforeModelCallEvent, AfterModelCallEvent, BeforeToolCallEvent, AfterToolCallEvent, AfterInvocationEvent]
    asking.add_hook(lambda event: seen.append((type(event), optree.current_session().agent)), kinds)
    ask(asking)
    model, tools = kinds[:2], kinds[2:4]
    assert [(kind, "forecaster") for kind in (*model, *tools, *model, AfterInvocationEvent)] == seen
    assert "ok" == recording.tree.session.status
