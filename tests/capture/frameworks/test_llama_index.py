"""Programs on LlamaIndex, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import threading
from importlib.util import find_spec

import pytest

if find_spec("llama_index") is None:
    pytest.skip("llama-index-core is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel
from workflows.errors import WorkflowCancelledByUser, WorkflowTimeoutError
from workflows.retry_policy import ConstantDelayRetryPolicy

import optree
from optree._capture.calls.program import program_name
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.frameworks.llamas import (  # noqa: F401 - two are fixtures
    MARKS,
    REFUSED,
    TOOL_EVENTS,
    Own,
    ask,
    asks_for,
    call,
    forecaster,
    model_of_llama_index,
    nothing_is_left,
    scripted,
)
from tests.capture.recordings import calls_of, ops_of, paths_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL
from tests.capture.tools import broken, weather

pytestmark = MARKS


@pytest.mark.captured("llama-index-core", "FunctionAgent", "tools", "streamed", added="one line", checks=("agents", "calls", "tokens"))
@pytest.mark.parametrize(
    ("streaming", "replies"), [(True, [TOOL_EVENTS, CHAT_EVENTS]), (False, [CHAT_TOOL, CHAT])], ids=["streamed", "plain"]
)
def test_an_agent_is_a_session(recording, provider, model, streaming, replies):
    """An agent's run is a session of its name, with what the user says as its turn and the answer as its report."""
    provider.says(*replies)
    assert "It rains" == ask(forecaster(model, weather, streaming=streaming))
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"user": "Weather?", "system": "You tell the weather."}, "ok") == (turn.prompts, turn.status)
    assert [("llm", None), ("tool", None), ("tool", "1.2"), ("llm", None)] == [(op.kind, op.parent_op) for op in turn.ops]
    assert ["openai-compatible:gpt-5"] * 2 == [op.name for op in calls_of(recording)]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls_of(recording)]
    assert (2, 16, 2) == (session.totals.llm_requests, session.totals.input_tokens, len(provider.requests))


def test_tools_have_arguments_and_results(recording, provider, model):
    """A tool is an op of the agent's, with arguments and result; what the program records in it, in a thread, is within it."""
    provider.says(TOOL_EVENTS, CHAT_EVENTS)
    ask(forecaster(model, weather))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


def test_a_result_that_is_no_text(recording):
    """A result of plain values is recorded as they are."""

    def look(city: str) -> dict:
        """Look out."""
        return {"city": city, "rain": True}

    ask(forecaster(scripted(call("look", city="Athens"), "It rains"), look))
    assert {"city": "Athens", "rain": True} == decode(ops_of(recording, "look")[0].response.payload)


def test_tools_that_fail(recording):
    """A tool that raises, or is not there, is failed; the model is told, and the agent goes on."""
    model = scripted(call("weather", city="Athens"), call("barometer"), "It rains")
    assert "It rains" == ask(forecaster(model, broken))
    [raised], [unknown] = ops_of(recording, "weather"), ops_of(recording, "barometer")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (
        raised.status, raised.error, raised.attributes["error.type"],
    )  # fmt: skip
    assert ("failed", True) == (unknown.status, unknown.error.startswith("tool_error: Tool barometer not found"))
    assert ("ok", 3) == (recording.tree.session.status, recording.tree.session.totals.llm_requests)


def test_tools_at_once(recording, provider, model):
    """Tools that run at the same time are siblings, each with what it does itself."""
    barrier = threading.Barrier(2, timeout=30)

    def together(city: str) -> str:
        """Look with others."""
        barrier.wait()
        with optree.tool(f"window {city}"):
            barrier.wait()
        return city

    tool = FunctionTool.from_defaults(together)
    provider.says(asks_for(("together", '{"city": "Athens"}'), ("together", '{"city": "Rome"}')), CHAT_EVENTS)
    assert "It rains" == ask(forecaster(model, tool))
    found = {decode(op.response.payload): op for op in ops_of(recording, "together")}
    assert {"Athens": None, "Rome": None} == {city: op.parent_op for city, op in found.items()}
    for city, op in found.items():
        assert [op.path] == [inner.parent_op for inner in ops_of(recording, f"window {city}")]


@pytest.mark.captured("llama-index-core", "ReActAgent", "tools", added="one line", checks=("calls", "tools"))
def test_an_agent_that_asks_by_text(recording):
    """An agent on a model without tools calls them too; what such a model streams is in its ops, once."""
    first = Own(says='Thought: look\nAction: weather\nAction Input: {"city": "Athens"}')
    agent = ReActAgent(name="forecaster", tools=[FunctionTool.from_defaults(weather, return_direct=True)], llm=first)
    assert "rain in Athens" == ask(agent)
    assert [("own", "ok"), ("weather", "ok"), ("thermometer", "ok")] == [(op.name, op.status) for op in ops_of(recording)]
    assert ({"city": "Athens"}, 3) == (decode(ops_of(recording, "weather")[0].request.payload), recording.tree.session.totals.input_tokens)
    assert b"Action Input" in bytes(calls_of(recording)[0].response.payload)


def team_of(first, second, third="It rains", **more):
    """Return two agents of which one hands over to the other."""
    triage = forecaster(scripted(first, third), name="triage", system_prompt=None)
    return AgentWorkflow(agents=[triage, forecaster(second, weather)], root_agent="triage", **more)


@pytest.mark.captured("llama-index-core", "AgentWorkflow", "sub-agents", added="one line", checks=("agents", "calls", "tools"))
def test_a_hand_off(recording):
    """An agent that gets the conversation is a session in that of the first one, which goes on when it gets it back."""
    over = call("handoff", to_agent="forecaster", reason="It knows")
    back = call("handoff", to_agent="triage", reason="Done")
    assert "It rains" == ask(team_of(over, scripted(call("weather", city="Athens"), back)))
    assert ["triage", "triage->forecaster"] == paths_of(recording)
    session, inner = walk_sessions(recording.tree)
    assert ["llm", "tool", "session", "llm"] == [op.kind for op in session.turns[0].ops]
    assert ["llm", "tool", "tool", "llm", "tool"] == [op.kind for op in inner.turns[0].ops]
    assert ("triage", {"user": "Weather?"}, "ok") == (inner.attributes["handed_over_by"], inner.turns[0].prompts, inner.status)
    assert inner.ended_at < session.turns[0].ops[-1].started_at
    assert ("It rains", "It knows") == (decode(session.final_report), decode(ops_of(recording, "handoff")[0].request.payload)["reason"])


def test_the_last_agent_has_the_report(recording):
    """The agent that answers at last has the report too, and each agent the name that it has."""
    over = call("handoff", to_agent="forecaster", reason="It knows")
    assert "It rains" == ask(team_of(over, scripted("It rains")))
    assert ["It rains"] * 2 == [decode(session.final_report) for session in walk_sessions(recording.tree)]
    assert ["ok", "ok"] == [session.status for session in walk_sessions(recording.tree)]


def test_what_an_agent_is_asked(recording):
    """Without a message it is the user's last one of a history that an agent is asked; an answer of the program's type is its report."""
    history = [ChatMessage(role=role, content=said) for role, said in (("user", "Hello"), ("assistant", "Hi"), ("user", "Weather?"))]
    agent = forecaster(scripted("It rains"), structured_output_fn=lambda _messages: {"rain": True})
    ask(agent, None, chat_history=history)
    session = recording.tree.session
    assert ("Weather?", {"rain": True}) == (session.turns[0].prompts["user"], decode(session.final_report))


@pytest.mark.parametrize(("asked", "expected"), [({}, {}), ({"city": "Athens"}, {"user": "city: Athens"})], ids=["nothing", "one text"])
def test_what_a_workflow_is_asked(recording, asked, expected):
    """What a workflow is given is its turn, by name; one that is given nothing is asked nothing."""

    class Plain(Workflow):
        @step
        async def tell(self, ev: StartEvent) -> StopEvent:  # noqa: ARG002 - its type says when it runs
            return StopEvent(result="It rains")

    async def running():
        return await Plain().run(**asked)

    assert "It rains" == asyncio.run(running())
    assert (expected, "It rains") == (recording.tree.session.turns[0].prompts or {}, decode(recording.tree.session.final_report))


def test_an_event_with_a_response(recording):
    """An event that a step gives is recorded with its members, also one that has a response as an agent's answer has."""

    class Asked(Workflow):
        @step
        async def first(self, ev: StartEvent) -> HumanResponseEvent:  # noqa: ARG002 - its type says when it runs
            return HumanResponseEvent(response="yes")

        @step
        async def second(self, ev: HumanResponseEvent) -> StopEvent:
            return StopEvent(result=ev.response)

    async def running():
        return await Asked().run()

    assert "yes" == asyncio.run(running())
    first, second = ops_of(recording)
    assert ({"HumanResponseEvent": {"response": "yes"}}, "yes") == (decode(first.response.payload), decode(second.response.payload))


def test_an_agent_without_a_name(recording):
    """An agent that has no name is a session of the script's, and in another session one called as LlamaIndex calls it."""
    agent = AgentWorkflow.from_tools_or_functions([weather], llm=scripted("It rains"))
    assert "It rains" == ask(agent)
    assert program_name() == recording.tree.session.agent_id
    with optree.session("lead"):
        ask(FunctionAgent(llm=scripted("It rains")))
    assert ["lead", "lead->Agent"] == [one.call_path for one in walk_sessions(recording.sessions[1].tree)]


@pytest.mark.captured("llama-index-core", "agents as tools", "sub-agents", added="one line", checks=("agents", "calls"))
def test_an_agent_as_a_tool(recording, provider, model):
    """An agent that another one's tool runs is a session in the op of that tool, within the program's own session and turn."""
    inner = forecaster(model)

    async def consult(question: str) -> str:
        """Ask the forecaster."""
        return str(await inner.run(user_msg=question))

    provider.says(CHAT_EVENTS)
    with optree.session("lead") as session, optree.turn(user="Weather?") as turn:
        assert "It rains" == ask(forecaster(scripted(call("consult", question="Rain?"), "It rains"), consult, name="lead agent"))
        with optree.tool("speaker"):
            pass
    assert ["lead", "lead->lead agent", "lead->lead agent->forecaster"] == paths_of(recording)
    [op], [agent] = ops_of(recording, "consult"), ops_of(recording, "forecaster")
    assert (op.path, "It rains") == (agent.parent_op, decode(op.response.payload))
    assert (["lead agent", "speaker"], 3) == ([one.name for one in turn.node.ops], session.totals.llm_requests)


class Found(Event):
    """What was found out about a city."""

    city: str
    rain: str


class Outlook(Workflow):
    """A workflow as the documentation writes them: one step begins several, another one has what all found."""

    @step
    async def cities(self, ctx: Context, ev: StartEvent) -> Found | None:
        """Begin with all."""
        for city in ev.cities:
            ctx.send_event(Found(city=city, rain=""))
        await ctx.store.set("number", len(ev.cities))

    @step(num_workers=3)
    async def look(self, ev: Found) -> StopEvent | InputRequiredEvent:
        """Have an agent look at one."""
        agent = forecaster(scripted(f"rain in {ev.city}"), name=f"agent {ev.city}")
        return InputRequiredEvent(prefix=str(await agent.run(user_msg=ev.city)))

    @step(num_workers=1)
    async def sum_up(self, ctx: Context, ev: InputRequiredEvent) -> StopEvent | None:
        """Wait for all."""
        found = ctx.collect_events(ev, [InputRequiredEvent] * await ctx.store.get("number"))
        return None if found is None else StopEvent(result=sorted(one.prefix for one in found))


@pytest.mark.captured("llama-index-core", "workflows", "at once", "sub-agents", added="one line", checks=("agents", "calls"))
def test_a_workflow(recording):
    """A workflow is a session of its class's name, its steps are ops with the events that they get and give, and agents are in these."""

    async def running():
        return await Outlook(timeout=30).run(cities=["Athens", "Oslo", "Rome"])

    assert ["rain in Athens", "rain in Oslo", "rain in Rome"] == asyncio.run(running())
    session = recording.tree.session
    assert ("Outlook", "ok", {"user": '{"cities":["Athens","Oslo","Rome"]}'}) == (
        session.agent_id, session.status, session.turns[0].prompts,
    )  # fmt: skip
    assert ["rain in Athens", "rain in Oslo", "rain in Rome"] == decode(session.final_report)
    steps = [op for op in session.turns[0].ops if op.attributes.get("type") == "step"]
    assert ["step cities", *["step look"] * 3, *["step sum_up"] * 3] == sorted(op.name for op in steps)
    looks = {decode(op.request.payload)["Found"]["city"]: op for op in steps if op.name == "step look"}
    for city, op in looks.items():
        assert [op.path] == [agent.parent_op for agent in ops_of(recording, f"agent {city}")]
        assert {"InputRequiredEvent": {"prefix": f"rain in {city}"}} == decode(op.response.payload)
    assert [1, 1, 1] == [one.totals.llm_requests for one in walk_sessions(recording.tree) if one.path]


def test_a_step_that_is_tried_again(recording):
    """A step that raises is a failed op, and each attempt is one; in the last one the run fails with it."""

    class Flaky(Workflow):
        tries = 0

        @step(retry_policy=ConstantDelayRetryPolicy(delay=0, maximum_attempts=3))
        async def look(self, ev: StartEvent) -> StopEvent:
            self.tries += 1
            if self.tries < ev.good:
                raise ConnectionError("busy")
            return StopEvent(result=self.tries)

    async def running(good):
        return await Flaky().run(good=good)

    assert 2 == asyncio.run(running(2))
    with pytest.raises(ConnectionError, match="busy"):
        asyncio.run(running(9))
    first, second = (one.tree.session for one in recording.sessions)
    assert [("failed", "ConnectionError: busy"), ("ok", None)] == [(op.status, op.error) for op in first.turns[0].ops]
    assert (["failed"] * 3, "ok", "failed", "ConnectionError: busy") == (
        [op.status for op in second.turns[0].ops], first.status, second.status, second.error,
    )  # fmt: skip


def test_a_tool_that_waits_for_a_person(recording):
    """A tool that waits for an event is no error, and an op of its own when it is called again."""

    async def confirm(ctx: Context) -> str:
        """Ask a person."""
        said = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(prefix="Really?"))
        return said.response

    async def running():
        handler = forecaster(scripted(call("confirm"), "It rains"), confirm).run(user_msg="Weather?")
        async for event in handler.stream_events():
            if isinstance(event, InputRequiredEvent):
                handler.ctx.send_event(HumanResponseEvent(response="yes"))
        return str(await handler)

    assert "It rains" == asyncio.run(running())
    waiting, answered = ops_of(recording, "confirm")
    assert ("ok", ["waits for an event"], None) == (waiting.status, [log.message for log in waiting.logs], waiting.response)
    assert ("ok", "yes", {}) == (answered.status, decode(answered.response.payload), decode(answered.request.payload))


class Forecast(BaseModel):
    """An answer of a type that the program gives."""

    rain: bool


def test_tools_that_no_agent_calls(recording, provider, model):
    """A tool that the program calls, or has a model call, is an op; the form of an answer is none."""
    tool = FunctionTool.from_defaults(weather)
    provider.says(CHAT_TOOL)

    async def remember(ctx: Context, city: str, when: str) -> str:
        """Keep it in the run's state."""
        await ctx.store.set("city", city)
        return f"{when} in {city}"

    async def remembering():
        ctx = Context(forecaster(scripted("It rains")))
        return (await FunctionTool.from_defaults(remember).acall(ctx=ctx, city="Rome", when="now")).content

    with optree.session("lead"), optree.turn(user="Weather?"):
        assert "now in Rome" == asyncio.run(remembering())
        assert "noon in Bern" == FunctionTool.from_defaults(lambda city, when: f"{when} in {city}", name="clock")("Bern", "noon").content
        assert "rain in Rome" == tool(city="Rome").content
        assert "rain in Oslo" == asyncio.run(tool.acall("Oslo")).content
        assert "rain in Athens" == str(model.predict_and_call([tool], "Weather?"))
        scripted(call("Forecast", rain=True)).as_structured_llm(Forecast).complete("Weather?")
    assert [{"city": "Rome"}, {"input": "Oslo"}, {"city": "Athens"}] == [decode(op.request.payload) for op in ops_of(recording, "weather")]
    assert (["llm", "llm"], []) == ([op.kind for op in calls_of(recording)], ops_of(recording, "Forecast"))
    assert [{"city": "Rome", "when": "now"}, {"input": ["Bern", "noon"]}] == [
        decode(op.request.payload) for op in ops_of(recording, "remember", "clock")
    ]


@pytest.mark.captured("llama-index-core", "FunctionAgent", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider, model):
    """A refused call is one failed op, its agent failed with it, and the program gets the client's exception."""
    provider.says(REFUSED)
    with pytest.raises(Exception, match="no such model"):
        ask(forecaster(model, weather))
    assert [("failed", "model")] == [(op.status, op.attributes["error.type"]) for op in calls_of(recording)]
    assert ("failed", True) == (recording.tree.session.status, "no such model" in recording.tree.session.error)


@pytest.mark.captured("llama-index-core", "agents", "cancelled", added="one line", checks="calls")
@pytest.mark.parametrize("way", ["cancel_run", "task", "timeout"])
def test_a_run_that_is_cancelled(recording, way):
    """A run that the program takes back is cancelled with the tool that it was in, one that takes too long has failed."""
    begun = []

    async def running():
        entered = asyncio.Event()

        async def wait() -> str:
            """Wait for good."""
            entered.set()
            await asyncio.Event().wait()

        handler = forecaster(scripted(call("wait")), wait, timeout=0.2 if way == "timeout" else None).run(user_msg="Weather?")
        await entered.wait()
        begun.append(way)
        if way == "cancel_run":
            await handler.cancel_run()
            await handler
        elif way == "timeout":
            await handler

    if way == "task":  # which the program leaves alone
        asyncio.run(running())
    else:
        with pytest.raises(WorkflowCancelledByUser if way == "cancel_run" else WorkflowTimeoutError):
            asyncio.run(running())
    assert [way] == begun
    status = "failed" if way == "timeout" else "cancelled"
    assert (status, ["ok", "cancelled"]) == (recording.tree.session.status, [op.status for op in ops_of(recording)])
    assert optree.current_session() is None


def test_a_run_that_goes_on_behind_its_step(recording):
    """An agent that one step begins and another one awaits ends as it ends itself."""

    class Later(Event):
        pass

    class Two(Workflow):
        @step
        async def first(self, ev: StartEvent) -> Later:  # noqa: ARG002 - its type says when it runs
            self.handler = forecaster(scripted("It rains")).run(user_msg="Weather?")
            return Later()

        @step
        async def second(self, ev: Later) -> StopEvent:  # noqa: ARG002 - as above
            return StopEvent(result=str(await self.handler))

    async def running():
        return await Two().run()

    assert "It rains" == asyncio.run(running())
    assert ["ok", "ok"] == [session.status for session in walk_sessions(recording.tree)]
    assert [("step first", "ok"), ("forecaster", "ok"), ("step second", "ok")] == [
        (op.name, op.status) for op in ops_of(recording) if op.kind != "llm"
    ]


def test_runs_at_once(recording):
    """Runs in threads, and in tasks of one loop, stay apart, each with its own calls and tools."""
    barrier = threading.Barrier(4, timeout=30)

    def together(messages):
        barrier.wait()
        return ChatMessage(role="assistant", content=f"rain in {messages[-1].content}")

    def in_thread(city):
        async def both():
            names = f"{city} 1", f"{city} 2"
            return await asyncio.gather(*(forecaster(scripted("ok"), name=name).run(user_msg=name) for name in names))

        ask(forecaster(scripted(together), name=city), city)
        asyncio.run(both())

    threads = [threading.Thread(target=in_thread, args=(city,)) for city in ("Athens", "Oslo", "Rome", "Bern")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = [one.tree.session for one in recording.sessions]
    names = sorted(name for city in ("Athens", "Oslo", "Rome", "Bern") for name in (city, f"{city} 1", f"{city} 2"))
    assert names == sorted(run.agent_id for run in runs)
    assert [(run.agent_id, 1) for run in runs] == [(run.turns[0].prompts["user"], run.totals.llm_requests) for run in runs]


class Hostile:
    """An object whose members raise when they are asked for."""

    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_values_that_json_does_not_hold(recording):
    """A workflow is told of with keys that are no texts, and is ok with its step where members of its result raise."""

    class Telling(Workflow):
        @step
        async def tell(self, ev: StartEvent) -> StopEvent:  # noqa: ARG002 - LlamaIndex asks for the annotation
            return StopEvent(result=Hostile())

    async def telling():
        return await Telling().run(grid={(1, 2): "x"})

    assert isinstance(asyncio.run(telling()), Hostile)
    session = recording.tree.session
    assert {"grid": {"(1, 2)": "x"}} == decode(session.turns[0].prompts["user"].encode())
    assert ("ok", [("step tell", "ok")]) == (session.status, [(op.name, op.status) for op in ops_of(recording)])
