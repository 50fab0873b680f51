"""Programs on Strands Agents, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import threading
from importlib.util import find_spec

import pytest

if find_spec("strands") is None:
    pytest.skip("strands-agents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from pydantic import BaseModel
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
from strands.tools.executors import SequentialToolExecutor

import optree
from optree._capture.program import program_name
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.strands_programs import (
    ASKS,
    CALL,
    RAINS,
    Scripted,
    agent,
    ask,
    asks,
    broken,
    calls_of,
    graph_of,
    ops_of,
    paths_of,
    says,
    served_by,
    weather,
)

WAYS = ["__call__", "invoke_async", "stream_async"]


class Forecast(BaseModel):
    """The weather."""

    rain: bool


def outcome_of(recording):
    """Return each agent's path and status, and each op's kind, name and status."""
    return (
        [(one.call_path, one.status) for one in walk_sessions(recording.tree)],
        [(op.kind, op.name.rpartition(":")[2], op.status) for op in ops_of(recording)],
    )


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


def test_tools_have_arguments_and_results(recording, provider):
    """A tool is an op of the agent's, with arguments and result; what the program records in it is within it."""
    provider.says(ASKS, RAINS)
    ask(agent(served_by(provider), weather))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


@pytest.mark.captured("strands-agents", "Agent", "tools", "failed", added="one line", checks="tools")
def test_a_tool_that_raises_failed(recording, provider):
    """A tool that raises is failed with its exception and class; the model is told, and the agent goes on."""
    provider.says(ASKS, RAINS)
    assert "It rains" == ask(agent(served_by(provider), broken))
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert ("Error: ConnectionError - no thermometer in Athens", "ok") == (decode(op.response.payload), recording.tree.session.status)


def test_tools_that_say_that_they_failed(recording):
    """A result that is an error, and a tool that is not there, are failed by what is said of them; other results are recorded whole."""

    @tool
    def limited() -> dict:
        """Refuse."""
        return {"status": "error", "content": [{"text": "rate limit exceeded"}]}

    @tool
    def table() -> dict:
        """Give a table."""
        return {"status": "success", "content": [{"text": "two"}, {"json": {"rain": 2}}]}

    ask(agent(Scripted([("limited", {}), ("table", {}), ("nowhere", {})], "It rains"), limited, table))
    [refused], [whole], [unknown] = ops_of(recording, "limited"), ops_of(recording, "table"), ops_of(recording, "nowhere")
    assert ("failed", "tool_error: rate limit exceeded", "rate_limit") == (refused.status, refused.error, refused.attributes["error.type"])
    assert ("ok", [{"text": "two"}, {"json": {"rain": 2}}]) == (whole.status, decode(whole.response.payload))
    assert ("failed", "Exception: Unknown tool: nowhere") == (unknown.status, unknown.error)


@pytest.mark.captured("strands-agents", "Agent", "tools", "at once", added="one line", checks="tools")
def test_tools_at_once(recording, provider):
    """Tools that run at once, in threads, are siblings, each with what is recorded in it."""
    barrier = threading.Barrier(3, timeout=30)

    @tool(name="weather")
    def together(city: str) -> str:
        """Tell the weather."""
        barrier.wait()
        with optree.tool(f"thermometer {city}"):
            barrier.wait()
        return f"rain in {city}"

    cities = ["Athens", "Oslo", "Rome"]
    provider.says(asks(*(("weather", {"city": city}) for city in cities)), RAINS)
    ask(agent(served_by(provider), together))
    found = {decode(op.request.payload)["city"]: op for op in ops_of(recording, "weather")}
    assert {city: f"rain in {city}" for city in cities} == {city: decode(op.response.payload) for city, op in found.items()}
    assert [found[city].path for city in cities] == [ops_of(recording, f"thermometer {city}")[0].parent_op for city in cities]
    assert [None] * 3 == [op.parent_op for op in found.values()]


def test_tools_one_by_one(recording):
    """Tools that run one after another, in the agent's own task, are siblings, and the next call of the model is beside them."""
    ask(agent(Scripted([CALL, CALL], "It rains"), weather, tool_executor=SequentialToolExecutor()))
    assert ["parrot-1", "weather", "thermometer", "weather", "thermometer", "parrot-1"] == [op.name for op in ops_of(recording)]
    first, second = ops_of(recording, "weather")
    assert [None, None, first.path, None, second.path, None] == [op.parent_op for op in ops_of(recording)]


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
    assert ["lead", "lead->agent", "lead->graph", "lead->graph->look"] == [
        one.call_path for one in walk_sessions(recording.sessions[1].tree)
    ]


@pytest.mark.parametrize(
    "asked",
    [[{"text": "Weather"}, {"text": "today?"}], [{"role": "user", "content": [{"text": "Weather"}, {"text": "today?"}]}]],
    ids=["blocks", "messages"],
)
def test_questions_in_blocks(recording, asked):
    """What is asked in blocks, or in messages, is the turn's question."""
    ask(agent(Scripted("It rains")), asked)
    assert {"user": "Weather\ntoday?"} == recording.tree.session.turns[0].prompts


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


def test_a_tool_that_is_called_directly(recording):
    """A tool that the program calls itself through the agent is a tool op, in the program's session if there is no other."""
    asking = agent(Scripted("It rains"), weather)
    with optree.session("lead"):
        asking.tool.weather(city="Athens")
    [op] = ops_of(recording, "weather")
    asking.tool.weather(city="Rome")
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))
    other = recording.sessions[1].tree.session
    assert (program_name(), ["weather", "thermometer"]) == (other.agent_id, [op.name for op in other.turns[0].ops])


def test_what_callbacks_do_with_tools(recording):
    """Arguments that a callback changes are those of the op, what it forbids is failed, and one it has called again is one op."""
    again = iter([True, False, False])

    def before(event):
        if event.tool_use["input"]["city"] == "Oslo":
            event.cancel_tool = "not there"
        else:
            event.tool_use["input"]["city"] = "Rome"

    asking = agent(Scripted([CALL], [("weather", {"city": "Oslo"})], "It rains"), weather)
    asking.add_hook(before, BeforeToolCallEvent)
    asking.add_hook(lambda event: setattr(event, "retry", next(again)), AfterToolCallEvent)
    ask(asking)
    [first, second] = ops_of(recording, "weather")
    assert ({"city": "Rome"}, "rain in Rome", "ok") == (decode(first.request.payload), decode(first.response.payload), first.status)
    assert ["looking at Rome", "called again", "looking at Rome"] == [log.message for log in first.logs]
    assert ("failed", "tool_error: not there") == (second.status, second.error)


def test_an_agent_that_waits_for_an_answer(recording):
    """A run that a tool interrupts to ask somebody is in order and says why it stopped; what it is told is the next run's question."""

    @tool(context=True)
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approval', reason='much')}"

    asking = agent(Scripted([("pay", {})], "Done"), pay)
    result = asking("Pay!")
    assert "interrupt" == result.stop_reason
    session, [op] = recording.tree.session, ops_of(recording, "pay")
    assert ("ok", "interrupt", "ok", None) == (session.status, session.attributes["stop_reason"], op.status, op.response)
    assert ["waits for an answer: approval"] == [log.message for log in op.logs]
    asking([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}])
    later = recording.sessions[1].tree.session
    assert ({"user": "yes"}, ["pay", "parrot-1"], "paid: yes") == (
        later.turns[0].prompts, [op.name for op in later.turns[0].ops], decode(later.turns[0].ops[0].response.payload),
    )  # fmt: skip


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


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_tool_whose_pieces_are_left(recording, how):
    """A tool that yields pieces is cancelled with the run, if the program reads no further."""

    @tool
    async def pieces():
        """Tell piece by piece."""
        for piece in ("it ", "rains"):
            yield piece

    async def leaving():
        stream = agent(Scripted([("pieces", {})]), pieces).stream_async("Weather?")
        async for event in stream:
            if "tool_stream_event" in event:
                break
        if how == "closed":
            await stream.aclose()
        del stream
        assert optree.current_session() is None

    asyncio.run(leaving())
    assert ([("forecaster", "cancelled")], [("llm", "parrot-1", "ok"), ("tool", "pieces", "cancelled")]) == outcome_of(recording)


@pytest.mark.parametrize("at_most", [1, 4])
def test_tools_in_the_background(recording, at_most):
    """A tool that goes on beside its agent is one op until it has its result, with what it records; those that wait for others too."""
    config = {"always": ["weather"], "max_concurrency": at_most}
    ask(agent(Scripted([CALL, ("weather", {"city": "Rome"})], "It rains", "All rain"), weather, background_tasks=config))
    found = {decode(op.request.payload)["city"]: op for op in ops_of(recording, "weather")}
    assert {"Athens": "rain in Athens", "Rome": "rain in Rome"} == {city: decode(op.response.payload) for city, op in found.items()}
    assert sorted(op.path for op in found.values()) == sorted(op.parent_op for op in ops_of(recording, "thermometer"))
    assert {(None, "ok")} == {(op.parent_op, op.status) for op in calls_of(recording)}


@pytest.mark.parametrize("error", [ConnectionError("no line"), None])
def test_a_tool_in_the_background_that_fails(recording, error):
    """A tool in the background that raises, or that does not end before its run does, is no success."""

    async def go():
        begun, release = asyncio.Event(), asyncio.Event()

        @tool
        async def later() -> str:
            """Wait."""
            begun.set()
            await release.wait()
            raise error

        async def last(_messages):
            await begun.wait()
            if error is not None:
                release.set()
            return "It rains"

        config = {"always": ["later"], "wait_for_completion": error is not None}
        await agent(Scripted([("later", {})], last, "It rained"), later, background_tasks=config).invoke_async("Weather?")

    asyncio.run(go())
    [op] = ops_of(recording, "later")
    assert ("cancelled" if error is None else "failed", "ok") == (op.status, recording.tree.session.status)


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
