"""Programs on Google's ADK, as its documentation writes them, become whole trees: agents, hand-offs, tools, calls of models."""

import asyncio
import contextlib
import json
import logging
import re
import signal
import sys

import pytest

adk = pytest.importorskip("google.adk", reason="google-adk is tried in an environment of its own: make test-frameworks")

import httpx  # noqa: E402
from google import genai  # noqa: E402
from google.adk.agents import Agent, LoopAgent, ParallelAgent, SequentialAgent  # noqa: E402
from google.adk.agents.base_agent import BaseAgent  # noqa: E402
from google.adk.agents.live_request_queue import LiveRequestQueue  # noqa: E402
from google.adk.agents.run_config import RunConfig, StreamingMode, ToolThreadPoolConfig  # noqa: E402
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow  # noqa: E402
from google.adk.flows.llm_flows.tools import _error_handler  # noqa: E402
from google.adk.models import BaseLlm, Gemini, LlmResponse  # noqa: E402
from google.adk.models.base_llm_connection import BaseLlmConnection  # noqa: E402
from google.adk.plugins.base_plugin import BasePlugin  # noqa: E402
from google.adk.plugins.plugin_manager import PluginManager  # noqa: E402
from google.adk.runners import InMemoryRunner, Runner  # noqa: E402
from google.adk.tools import AgentTool, FunctionTool  # noqa: E402
from google.adk.workflow import Workflow  # noqa: E402
from google.genai import types  # noqa: E402

import optree  # noqa: E402
from optree.capture import LIBRARIES, START, instrument, uninstrument  # noqa: E402
from optree.nodes import Tokens  # noqa: E402
from optree.store import Directory  # noqa: E402
from optree.store.recovery import load  # noqa: E402
from optree.testing import capture  # noqa: E402
from optree.tree import walk_ops, walk_sessions  # noqa: E402
from optree.values import decode  # noqa: E402
from tests.capture.conftest import outcome, with_hooks  # noqa: E402
from tests.capture.provider import EVENTS, Reply  # noqa: E402
from tests.cli.conftest import ROOT, CommandLine  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # what aiohttp says of google-genai
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),  # sequences, loops and the like, in favour of workflows
]
USAGE = {"promptTokenCount": 12, "candidatesTokenCount": 2, "totalTokenCount": 17, "thoughtsTokenCount": 3}


def gives(*parts):
    """Return a reply of Gemini's with these parts."""
    return Reply(answer(*parts))


def answer(*parts):
    """Return an answer of Gemini's."""
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": "gemini-3-2026"}


def streamed(*answers):
    """Return the same as a stream."""
    return Reply(*(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in answers), kind=EVENTS)


def calls(name, **arguments):
    """Return the part of an answer that calls a tool."""
    return {"functionCall": {"name": name, "args": arguments}}


RAINS = gives({"text": "It rains"})
ASKS = gives(calls("weather", city="Athens"))
HANDS_OFF = gives(calls("transfer_to_agent", agent_name="Billing"))


@pytest.fixture
def quiet():
    """Have ADK say nothing of what these tests have fail."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=["aiohttp", "httpx"])
def sent_by(request):
    """Return what google-genai sends by."""
    return request.param


class Asking:
    """A program with agents on the scripted provider."""

    def __init__(self, provider, sent_by="aiohttp", retries=None):
        self.provider, self.sent_by, self.retries, self.client = provider, sent_by, retries, None

    def model(self):
        """Return Gemini, as the provider plays it."""
        return Gemini(model="gemini-3", client=self.client)

    def agent(self, name="Forecaster", **more):
        """Return an agent on it."""
        return Agent(name=name, model=self.model(), **more)

    def run(self, program):
        """Run an asynchronous program to its end."""

        async def running():
            options = {"base_url": self.provider.url, "retry_options": self.retries}
            if self.sent_by == "httpx":
                options["httpx_async_client"] = httpx.AsyncClient()
            self.client = genai.Client(api_key="none", http_options=options)
            try:
                return await program()
            finally:
                await self.client.aio.aclose()
                if self.sent_by == "httpx":
                    await options["httpx_async_client"].aclose()

        return asyncio.run(running())

    def ask(self, make, question="Weather?", **more):
        """Ask the agent that is made, and return the texts that come."""
        return self.run(lambda: texts(make(), question, **more))


@pytest.fixture
def asking(provider):
    """Return a program on the provider."""
    return Asking(provider)


class Scripted(BaseLlm):
    """A model that calls nobody."""

    answers: list

    async def generate_content_async(self, llm_request, stream=False):  # noqa: ARG002, FBT002 - as ADK calls it
        """Give the next answers that are written down for it."""
        for one in self.answers.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one


def scripted(*answers):
    """Return a model that gives these answers, each a list of responses."""
    return Scripted(model="parrot-1", answers=list(answers))


def response(*parts, **more):
    """Return a model's response."""
    made = [part if isinstance(part, types.Part) else types.Part(text=part) for part in parts]
    return LlmResponse(content=types.Content(role="model", parts=made), **more)


def used(**more):
    """Return a response's usage."""
    return types.GenerateContentResponseUsageMetadata(prompt_token_count=12, candidates_token_count=2, total_token_count=14, **more)


def tool_call(name, **arguments):
    """Return the part of a response that calls a tool."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


async def events(root, question="Weather?", *, plugins=(), **more):
    """Yield the events of a run."""
    kind = "agent" if isinstance(root, BaseAgent) else "node"
    runner = InMemoryRunner(app_name="weather", plugins=list(plugins), **{kind: root})
    session = await runner.session_service.create_session(app_name="weather", user_id="somebody")
    async for event in runner.run_async(user_id="somebody", session_id=session.id, new_message=types.UserContent(question), **more):
        yield event


async def texts(root, question="Weather?", **more):
    """Run an agent, and return what its events say."""
    found = [event async for event in events(root, question, **more)]
    return [part.text for event in found if event.content for part in event.content.parts or [] if part.text]


def weather(city: str) -> str:
    """Tell the weather."""
    optree.current().log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


def sky(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def broken() -> str:
    """Do nothing good."""
    raise ValueError("no such thermometer")


def shape(recording):
    """Return the paths of what was recorded, with kind, name and status."""
    return [(op.path, op.kind, op.name.rpartition(":")[2], op.status) for _, _, op in walk_ops(recording.tree)]


def op_of(recording, name):
    """Return the first op of a name."""
    return next(op for _, _, op in walk_ops(recording.tree) if op.name == name)


def names(recording):
    """Return each session's path of agents."""
    return [session.call_path for session in walk_sessions(recording.tree)]


def test_a_run_is_a_session(recording, provider, sent_by):
    """A run is a session with the agent's name, a turn of what was asked, and the call in it, whose tokens count once."""
    provider.says(RAINS)
    asking = Asking(provider, sent_by)
    assert ["It rains"] == asking.ask(lambda: asking.agent(instruction="Be brief."))
    session = recording.tree.session
    assert ("Forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"system": "Be brief.", "user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    assert [("1.1", "llm", "gemini-3", "ok")] == shape(recording)
    assert [Tokens(12, 5, 0, 0, 17, 3)] == [entry.tokens for entry in turn.ops[0].accounting]
    assert (1, 12) == (session.totals.llm_requests, session.totals.input_tokens)


def test_a_run_without_a_loop(recording):
    """`Runner.run`, which runs the agent in a thread of its own, is recorded the same, in the session that is open where it is called."""
    with optree.session("lead"), optree.turn(user="Weather?"):
        runner = InMemoryRunner(Agent(name="Forecaster", model=scripted([response("It rains", usage_metadata=used())])), app_name="weather")
        made = asyncio.run(runner.session_service.create_session(app_name="weather", user_id="somebody"))
        found = list(runner.run(user_id="somebody", session_id=made.id, new_message=types.UserContent("Weather?")))
    assert ["It rains"] == [event.content.parts[0].text for event in found]
    assert ["lead", "lead->Forecaster"] == names(recording)
    assert (1, 12) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


def test_a_streamed_run(recording, provider, sent_by):
    """A streamed answer is one call, with its text as it came; between two events the program is where it was."""
    provider.says(streamed(answer({"text": "It "}), answer({"text": "rains"})))
    asking, here = Asking(provider, sent_by), []

    async def program():
        with optree.session("lead"), optree.turn(user="Weather?") as turn:
            async for _ in events(asking.agent(), run_config=RunConfig(streaming_mode=StreamingMode.SSE)):
                here.append(optree.current_session().agent)
                with optree.tool("beside"):
                    pass
        return turn

    turn = asking.run(program)
    assert ["lead"] * 3 == here
    assert {"Forecaster", "beside"} == {op.name for op in turn.node.ops}
    assert [("llm", "ok")] == [(op.kind, op.status) for _, _, op in walk_ops(recording.tree) if op.kind == "llm"]
    assert "It rains" == decode(list(walk_sessions(recording.tree))[1].final_report)


def test_tools_have_arguments_and_results(recording, provider, asking):
    """A tool is an op of its agent, behind the call that asked for it, with arguments and result; what the program does in it is within."""
    provider.says(ASKS, RAINS)
    asking.ask(lambda: asking.agent(tools=[weather]))
    op = op_of(recording, "weather")
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))
    assert ["looking at Athens"] == [log.message for log in op.logs]
    assert op.path == op_of(recording, "thermometer").parent_op
    assert ["llm", "tool", "tool", "llm"] == [kind for _, kind, _, _ in sorted(shape(recording))]


def test_a_tool_that_raises_failed(recording, provider, asking):
    """A tool's exception, which ends the run, is the error of its op, and that of the session."""
    provider.says(gives(calls("broken")), RAINS)
    with pytest.raises(ValueError, match="no such thermometer"):
        asking.ask(lambda: asking.agent(tools=[broken]))
    op, session = op_of(recording, "broken"), recording.tree.session
    assert ("failed", "ValueError: no such thermometer", "invalid") == (op.status, op.error, op.attributes["error.type"])
    assert ("failed", "ValueError: no such thermometer") == (session.status, session.error)


def test_a_tool_whose_failure_the_model_is_told(recording, provider, asking):
    """A tool's op has its exception too where a callback answers in its place, and the run goes on."""
    provider.says(gives(calls("broken")), RAINS)

    def told(tool, args, tool_context, error):  # noqa: ARG001 - as ADK calls it
        return {"error": str(error)}

    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[broken], on_tool_error_callback=told))
    op = op_of(recording, "broken")
    assert ("failed", "ValueError: no such thermometer") == (op.status, op.error)
    assert "ok" == recording.tree.session.status


def test_a_tool_that_does_not_exist_failed(recording, provider, asking):
    """A tool that the model has made up is a failed op, and the run goes on."""
    provider.says(gives(calls("nothing", city="Athens")), RAINS)
    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[weather]))
    op = op_of(recording, "nothing")
    assert ("failed", {"city": "Athens"}) == (op.status, decode(op.request.payload))


def test_tools_that_run_at_once(recording, provider, asking):
    """Tools that one answer asks for are siblings, each with what was done in it."""
    cities = ["Athens", "Rome", "Oslo"]
    provider.says(gives(*(calls("weather", city=city) for city in cities)), RAINS)
    asking.ask(lambda: asking.agent(tools=[weather]))
    found = [op for _, _, op in walk_ops(recording.tree) if op.name == "weather"]
    assert sorted(f"rain in {city}" for city in cities) == sorted(decode(op.response.payload) for op in found)
    inner = [op.parent_op for _, _, op in walk_ops(recording.tree) if op.name == "thermometer"]
    assert sorted(op.path for op in found) == sorted(inner)


def test_a_tool_that_is_cancelled_with_its_sibling(recording, provider, asking):
    """A tool whose call ADK cancels, as another one of the same answer has failed, is cancelled."""
    provider.says(gives(calls("forever"), calls("failing")), RAINS)
    begun = asyncio.Event()

    async def forever() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def failing() -> str:
        """Fail."""
        await begun.wait()
        raise ValueError("no such thermometer")

    with pytest.raises(ValueError, match="no such thermometer"):
        asking.ask(lambda: asking.agent(tools=[forever, failing]))
    assert ("cancelled", "failed") == (op_of(recording, "forever").status, op_of(recording, "failing").status)


def test_what_plugins_do_with_tools(recording, provider, asking):
    """A plugin that answers in a tool's place, or changes what one has answered, keeps nothing from being recorded."""
    provider.says(gives(calls("weather", city="Athens"), calls("weather", city="Rome")), RAINS)

    class Known(BasePlugin):
        async def before_tool_callback(self, *, tool, tool_args, tool_context):  # noqa: ARG002 - as ADK calls it
            return {"sky": "sun"} if tool_args["city"] == "Rome" else None

        async def after_tool_callback(self, *, tool, tool_args, tool_context, result):  # noqa: ARG002 - as above
            return {"sky": result} if isinstance(result, str) else None

    asking.ask(lambda: asking.agent(tools=[weather]), plugins=[Known("known")])
    found = [decode(op.response.payload)["sky"] for _, _, op in walk_ops(recording.tree) if op.name == "weather"]
    assert ["rain in Athens", "sun"] == found


def test_a_hand_off_is_a_sub_agent(recording, provider, asking):
    """The agent that gets the conversation has a session in that of the run, with who handed it over, and its calls in it."""
    provider.says(HANDS_OFF, RAINS)
    assert ["It rains"] == asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]))
    root, child = walk_sessions(recording.tree)
    assert ("Triage", "Billing", "Triage->Billing") == (root.agent_id, child.agent_id, child.call_path)
    assert ("Triage", "ok", "Weather?") == (child.attributes["handed_over_by"], child.status, child.turns[0].prompts["user"])
    assert [("1.1", "llm", "gemini-3", "ok"), ("1.2", "session", "Billing", "ok"), ("1.2.1.1", "llm", "gemini-3", "ok")] == shape(recording)
    assert (2, 1) == (root.totals.llm_requests, child.totals.llm_requests)


def test_a_conversation_that_comes_back(recording, provider, asking):
    """The first agent goes on in the run's session when it gets the conversation back: nobody calls itself."""
    provider.says(HANDS_OFF, gives(calls("transfer_to_agent", agent_name="Triage")), RAINS)
    asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]))
    assert ["Triage", "Triage->Billing"] == names(recording)
    assert ["ok", "ok"] == [session.status for session in walk_sessions(recording.tree)]
    assert [("1.1", "llm"), ("1.2", "session"), ("1.2.1.1", "llm"), ("1.3", "llm")] == sorted(one[:2] for one in shape(recording))


def test_a_hand_off_that_goes_on(recording, provider, asking):
    """An agent that has got the conversation and hands it on is ended, and who comes then is named by it."""
    provider.says(HANDS_OFF, gives(calls("transfer_to_agent", agent_name="Clerk")), RAINS)
    asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent(name, description=name) for name in ("Billing", "Clerk")]))
    assert ["Triage", "Triage->Billing", "Triage->Clerk"] == names(recording)
    found = [(session.attributes.get("handed_over_by"), session.status) for session in walk_sessions(recording.tree)]
    assert [(None, "ok"), ("Triage", "ok"), ("Billing", "ok")] == found


def test_a_hand_off_that_fails(recording, provider, asking):
    """A hand-off by an agent that cannot is a failed op with who was to get the conversation, and the run goes on."""
    provider.says(HANDS_OFF, RAINS)
    assert ["It rains"] == asking.ask(lambda: asking.agent("Triage"))
    op = op_of(recording, "handoff to Billing")
    known = {"type": "handoff", "from": "Triage", "to": "Billing", "error.type": "invalid"}
    assert ("system", "failed", known) == (op.kind, op.status, op.attributes)


def test_a_hand_off_to_nobody(recording, provider, asking):
    """A hand-off to an agent that does not exist ends the run, with ADK's exception."""
    provider.says(gives(calls("transfer_to_agent", agent_name="Nobody")), RAINS)
    with pytest.raises(ValueError, match="Nobody"):
        asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]))
    assert ("failed", ["Triage"]) == (recording.tree.session.status, names(recording))


def test_a_hand_off_that_is_refused(recording, provider, asking):
    """A hand-off that a callback answers in place of is an op with the arguments and that answer."""
    provider.says(HANDS_OFF, RAINS)

    def refuse(tool, args, tool_context):  # noqa: ARG001 - as ADK calls it
        return {"error": "the office is closed"}

    asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")], before_tool_callback=refuse))
    op = op_of(recording, "transfer_to_agent")
    assert ({"agent_name": "Billing"}, {"error": "the office is closed"}) == (decode(op.request.payload), decode(op.response.payload))
    assert ["Triage"] == names(recording)


def test_an_agent_as_a_tool(recording, provider, asking):
    """An agent that another one calls as a tool is a session within the tool's op, with its own input as its turn."""
    provider.says(gives(calls("Forecaster", request="Rain?")), RAINS, RAINS)
    asking.ask(lambda: asking.agent("Lead", tools=[AgentTool(asking.agent(description="weather"))]))
    lead, child = walk_sessions(recording.tree)
    assert ("Lead->Forecaster", "Rain?") == (child.call_path, child.turns[0].prompts["user"])
    inside = next(op for _, _, op in walk_ops(recording.tree) if op.child_session is child)
    assert ("tool", inside.parent_op) == (op_of(recording, "Forecaster").kind, op_of(recording, "Forecaster").path)
    assert 3 == lead.totals.llm_requests


@pytest.mark.parametrize(("kind", "more"), [(SequentialAgent, {}), (ParallelAgent, {}), (LoopAgent, {"max_iterations": 2})])
def test_agents_of_agents(recording, provider, asking, kind, more):
    """Sequences, parallel agents and loops are sessions, with one for each run of those that they run."""
    provider.says(RAINS)
    made = asking.ask(lambda: kind(name="Team", sub_agents=[asking.agent("First"), asking.agent("Second")], **more))
    rounds = more.get("max_iterations", 1)
    assert ["It rains"] * 2 * rounds == made
    assert sorted(["Team", *["Team->First", "Team->Second"] * rounds]) == sorted(names(recording))
    assert {("ok", "Weather?")} == {(one.status, one.turns[0].prompts["user"]) for one in walk_sessions(recording.tree)}
    assert [1] * 2 * rounds == [one.totals.llm_requests for one in walk_sessions(recording.tree)][1:]


def test_an_agent_that_ends_a_loop(recording, provider, asking):
    """An agent whose tool ends the loop that it is in has ended in order, and so has the loop."""
    provider.says(gives(calls("stop")))

    def stop(tool_context) -> str:
        """Stop."""
        tool_context.actions.escalate = True
        tool_context.actions.skip_summarization = True
        return "enough"

    stop.__annotations__["tool_context"] = adk.tools.ToolContext
    asking.ask(lambda: LoopAgent(name="Loop", sub_agents=[asking.agent("Worker", tools=[stop])], max_iterations=5))
    assert [("Loop", "ok"), ("Loop->Worker", "ok")] == [(one.call_path, one.status) for one in walk_sessions(recording.tree)]


def test_hand_offs_within_a_sequence(recording, provider, asking):
    """A hand-off within another agent is within its session."""
    provider.says(HANDS_OFF, RAINS, RAINS)
    asking.ask(
        lambda: SequentialAgent(
            name="Team",
            sub_agents=[asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]), asking.agent("Last")],
        )
    )
    assert ["Team", "Team->Triage", "Team->Triage->Billing", "Team->Last"] == names(recording)
    assert {"ok"} == {session.status for session in walk_sessions(recording.tree)}
    assert "Triage" == list(walk_sessions(recording.tree))[2].attributes["handed_over_by"]


def test_a_workflow(recording, provider, asking):
    """A workflow is a session of its name, with those of its agents in it, and what it comes to as its report."""
    provider.says(RAINS)

    def shout(node_input: str) -> str:
        return node_input.upper()

    asking.ask(lambda: Workflow(name="Bulletin", edges=[("START", asking.agent(), shout)]))
    assert ["Bulletin", "Bulletin->Forecaster"] == names(recording)
    assert ("ok", "IT RAINS") == (recording.tree.session.status, decode(recording.tree.session.final_report))


def test_runs_at_once(recording, provider, asking):
    """Runs at once within a session of the program's are sub-agents of it, each with its own turn and call."""
    provider.says(RAINS)

    async def program():
        with optree.session("lead"), optree.turn(user="Everywhere?"):
            await asyncio.gather(*(texts(asking.agent(), f"Weather in {number}?") for number in range(5)))

    asking.run(program)
    root, *children = walk_sessions(recording.tree)
    assert ("lead", 5, 60) == (root.agent_id, root.totals.llm_requests, root.totals.input_tokens)
    assert [f"Weather in {number}?" for number in range(5)] == sorted(child.turns[0].prompts["user"] for child in children)
    assert [1] * 5 == [child.totals.llm_requests for child in children]


def test_a_run_that_fails(recording, provider, sent_by):
    """A refused call is a failed op of the agent's session, which failed with the exception that the program gets."""
    provider.says(Reply({"error": {"code": 404, "message": "no such model", "status": "NOT_FOUND"}}, status=404))
    asking = Asking(provider, sent_by)
    with pytest.raises(genai.errors.ClientError):
        asking.ask(asking.agent)
    assert [("1.1", "llm", "gemini-3", "failed")] == shape(recording)
    assert "model" == op_of(recording, "google-compatible:gemini-3").attributes["error.type"]
    assert "failed" == recording.tree.session.status
    assert "no such model" in recording.tree.session.error


def test_a_call_that_is_tried_again(recording, provider, sent_by):
    """What google-genai sends again after a refusal is an attempt of the same call."""
    provider.says(Reply({"error": {"code": 503, "message": "busy"}}, status=503), RAINS)
    asking = Asking(provider, sent_by, {"attempts": 2, "initial_delay": 0.001, "jitter": 0})
    assert ["It rains"] == asking.ask(asking.agent)
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert (2, 1) == (len(provider.requests), recording.tree.session.totals.llm_requests)
    assert (["failed", "ok"], "ok", 12) == (
        [entry.status for entry in op.accounting],
        op.status,
        recording.tree.session.totals.input_tokens,
    )


def test_a_budget(recording, provider, sent_by):
    """A call that a budget refuses is not sent, and the program gets that exception."""
    provider.says(gives(calls("sky", city="Athens")), RAINS)
    asking = Asking(provider, sent_by, {"attempts": 3, "initial_delay": 0.001, "jitter": 0})
    with optree.session("lead"), optree.turn(), optree.budget(calls=1), pytest.raises(optree.BudgetExceeded):
        asking.ask(lambda: asking.agent(tools=[sky]))
    assert (1, 1) == (len(provider.requests), recording.tree.session.totals.llm_requests)
    assert ["ok", "failed"] == [session.status for session in walk_sessions(recording.tree)]


def test_a_cancelled_run(recording, provider, asking):
    """A run whose task is cancelled is cancelled, and nothing of it stays open, or current."""
    provider.says(gives(calls("forever")))
    begun = asyncio.Event()

    async def forever() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def program():
        task = asyncio.create_task(texts(asking.agent(tools=[forever])))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return optree.current_session()

    assert asking.run(program) is None
    assert "cancelled" == recording.tree.session.status
    assert ["ok", "cancelled"] == [op.status for _, _, op in sorted(walk_ops(recording.tree), key=lambda found: found[2].path)]


@pytest.mark.parametrize("make", [lambda agent: agent, lambda agent: SequentialAgent(name="Team", sub_agents=[agent])])
def test_a_run_that_the_program_leaves(recording, provider, asking, make):
    """A run whose events the program wants no more of is cancelled, and what was under way in it."""
    provider.says(ASKS, RAINS)

    async def program():
        found = events(make(asking.agent(tools=[weather])))
        async for _ in found:
            break
        await found.aclose()

    asking.run(program)
    assert {"cancelled"} == {session.status for session in walk_sessions(recording.tree)}
    assert [("llm", "ok")] == [(op.kind, op.status) for _, _, op in walk_ops(recording.tree) if op.kind == "llm"]


def test_a_model_that_calls_nobody(recording):
    """A model of the program's own has an op of what it was asked and what it answered, with its usage."""
    model = scripted(
        [response(tool_call("weather", city="Athens"), usage_metadata=used(), model_version="parrot-1.2")], [response("Rain!")]
    )
    assert ["Rain!"] == asyncio.run(texts(Agent(name="Bird", model=model, tools=[weather], instruction="Be brief.")))
    assert [("1.1", "llm", "parrot-1", "ok"), ("1.2", "tool", "weather", "ok"), ("1.3", "tool", "thermometer", "ok"),
            ("1.4", "llm", "parrot-1", "ok")] == sorted(shape(recording))  # fmt: skip
    first, second = (op for _, _, op in walk_ops(recording.tree) if op.kind == "llm")
    assert [Tokens(12, 2, 0, 0, 14)] == [entry.tokens for entry in first.accounting]
    assert b"weather" in bytes(first.response.payload)
    assert b"Be brief." in bytes(first.request.payload)
    assert b"Rain!" in bytes(second.response.payload)
    assert (2, 12) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


@pytest.mark.parametrize("is_told_twice", [False, True])
def test_a_stream_that_calls_nobody(recording, is_told_twice):
    """Its stream is one call, whose text counts once, also where the last piece has what the whole answer behind it has too."""
    pieces = [response("It ", partial=True), response("rains", partial=True)]
    if is_told_twice:
        pieces.append(response("", partial=True, usage_metadata=used(), finish_reason=types.FinishReason.STOP))
    model = scripted([*pieces, response("It rains", usage_metadata=used())])
    asyncio.run(texts(Agent(name="Bird", model=model), run_config=RunConfig(streaming_mode=StreamingMode.SSE)))
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("ok", [Tokens(12, 2, 0, 0, 14)]) == (op.status, [entry.tokens for entry in op.accounting])
    assert b"It rains" in bytes(op.response.payload)


def test_answers_without_a_whole_one(recording):
    """A stream that has pieces alone is their text, and one that gives several answers is a call for each."""
    pieces = [response("It ", partial=True), response("rains", partial=True, usage_metadata=used())]
    model = scripted(pieces, [response("It rains", usage_metadata=used()), response("or not", usage_metadata=used())])
    for _ in range(2):
        with optree.session("lead"), optree.turn():
            asyncio.run(texts(Agent(name="Bird", model=model), run_config=RunConfig(streaming_mode=StreamingMode.SSE)))
    first, second = recording.sessions
    [op] = [op for _, _, op in walk_ops(first.tree) if op.kind == "llm"]
    assert (b"It rains" in bytes(op.response.payload), 12) == (True, first.totals.input_tokens)
    assert ([b"It rains", b"or not"], 24) == (
        [re.search(b"It rains|or not", bytes(op.response.payload))[0] for _, _, op in walk_ops(second.tree) if op.kind == "llm"],
        second.totals.input_tokens,
    )


def test_a_model_of_the_programs_that_fails(recording):
    """An exception of a model's, and an answer that is none, are the op's error; a callback may answer in its place."""
    with pytest.raises(ConnectionError, match="no parrot"):
        asyncio.run(texts(Agent(name="Bird", model=scripted([ConnectionError("no parrot")]))))
    op = op_of(recording, "parrot-1")
    assert ("failed", "ConnectionError: no parrot", "network") == (op.status, op.error, op.attributes["error.type"])
    assert "failed" == recording.tree.session.status


def test_a_refusal(recording):
    """An answer that is an error's is the op's, and none of the run's, which goes on."""
    asyncio.run(texts(Agent(name="Bird", model=scripted([LlmResponse(error_code="SAFETY", error_message="not that")]))))
    assert ("failed", "SAFETY: not that") == (op_of(recording, "parrot-1").status, op_of(recording, "parrot-1").error)
    assert "ok" == recording.tree.session.status


def test_a_model_that_is_not_called(recording):
    """A callback that answers in a model's place leaves no call."""
    agent = Agent(name="Bird", model=scripted(), before_model_callback=lambda callback_context, llm_request: response("Rain!"))  # noqa: ARG005 - as ADK calls it
    assert ["Rain!"] == asyncio.run(texts(agent))
    assert [] == shape(recording)
    assert "Rain!" == decode(recording.tree.session.final_report)


def test_a_tool_that_waits_for_a_person(recording):
    """A call that somebody has to allow is an op that says so, in order; to go on is a run of its own, with the tool's call."""
    asks = response(tool_call("sky", city="Athens"), usage_metadata=used())
    agent = Agent(name="Bird", model=scripted([asks], [response("It rains")]), tools=[FunctionTool(sky, require_confirmation=True)])

    async def program():
        runner = InMemoryRunner(agent, app_name="weather")
        made = await runner.session_service.create_session(app_name="weather", user_id="somebody")
        found = [one async for one in runner.run_async(user_id="somebody", session_id=made.id, new_message=types.UserContent("Weather?"))]
        [asked] = [call for one in found for call in one.get_function_calls() if call.name == "adk_request_confirmation"]
        allowed = types.FunctionResponse(id=asked.id, name=asked.name, response={"confirmed": True})
        message = types.UserContent(types.Part(function_response=allowed))
        return [one async for one in runner.run_async(user_id="somebody", session_id=made.id, new_message=message)]

    with optree.session("lead"), optree.turn():
        assert "It rains" == asyncio.run(program())[-1].content.parts[0].text
    assert ["lead", "lead->Bird", "lead->Bird"] == names(recording)
    assert {"ok"} == {status for _, _, _, status in shape(recording)}
    first, second = (decode(op.response.payload) for _, _, op in walk_ops(recording.tree) if op.name == "sky")
    assert ("confirmation" in first["error"], "rain in Athens") == (True, second)


def test_an_agent_that_waits_for_a_person(recording):
    """An agent in an agent that waits for somebody to allow a call has ended in order, and so has what it is part of."""
    asks = response(tool_call("sky", city="Athens"), usage_metadata=used())
    inner = Agent(
        name="Inner", model=scripted([asks]), mode="single_turn", description="d", tools=[FunctionTool(sky, require_confirmation=True)]
    )
    outer = Agent(name="Outer", model=scripted([response(tool_call("Inner", request="go"), usage_metadata=used())]), sub_agents=[inner])
    asyncio.run(texts(outer))
    assert [("Outer", "ok"), ("Outer->Inner", "ok")] == [(one.call_path, one.status) for one in walk_sessions(recording.tree)]


def test_tools_in_threads(recording):
    """What a tool does that ADK runs in a thread is within its op."""
    model = scripted([response(tool_call("weather", city="Athens"), usage_metadata=used())], [response("It rains")])
    config = RunConfig(tool_thread_pool_config=ToolThreadPoolConfig())
    assert ["It rains"] == asyncio.run(texts(Agent(name="Bird", model=model, tools=[weather]), run_config=config))
    assert op_of(recording, "weather").path == op_of(recording, "thermometer").parent_op


class Line(BaseLlmConnection):
    """A live model's line: it answers what it is sent."""

    def __init__(self):
        self.answers = asyncio.Queue()

    async def send_history(self, history):
        """Take what was said before."""

    async def send_realtime(self, blob):
        """Take sound."""

    async def send_content(self, content):
        """Answer it: by a call of a tool, and by a text once that has answered."""
        has_result = any(part.function_response for part in content.parts)
        await self.answers.put(response("It rains") if has_result else response(tool_call("weather", city="Athens")))
        if has_result:
            await self.answers.put(LlmResponse(turn_complete=True))

    async def receive(self):
        """Give the answers."""
        while True:
            yield await self.answers.get()

    async def close(self):
        """End it."""


class Live(Scripted):
    """A live model that calls nobody."""

    @contextlib.asynccontextmanager
    async def connect(self, llm_request):  # noqa: ARG002 - as ADK calls it
        """Give the line."""
        yield Line()


def test_a_live_run(recording):
    """A live run is a session with its tools in it, which ends as cancelled when the program wants no more of it."""
    queue = LiveRequestQueue()

    async def program():
        runner = InMemoryRunner(Agent(name="Bird", model=Live(model="parrot-live", answers=[]), tools=[weather]), app_name="weather")
        made = await runner.session_service.create_session(app_name="weather", user_id="somebody")
        queue.send_content(types.UserContent("Weather?"))
        async with contextlib.aclosing(runner.run_live(user_id="somebody", session_id=made.id, live_request_queue=queue)) as found:
            async for event in found:
                if event.turn_complete:
                    break

    asyncio.run(program())
    assert [("Bird", "cancelled")] == [(one.call_path, one.status) for one in walk_sessions(recording.tree)]
    assert ("ok", "rain in Athens") == (op_of(recording, "weather").status, decode(op_of(recording, "weather").response.payload))
    assert op_of(recording, "weather").path == op_of(recording, "thermometer").parent_op


def test_a_second_message(recording, provider, asking):
    """Each message of a conversation is a run of its own; one that ADK gives to the agent that has the conversation is its session."""
    provider.says(HANDS_OFF, RAINS, RAINS)

    async def program():
        runner = InMemoryRunner(asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]), app_name="weather")
        session = await runner.session_service.create_session(app_name="weather", user_id="somebody")
        with optree.session("chat"):
            for question in ("Weather?", "And now?"):
                message = types.UserContent(question)
                with optree.turn(user=question):
                    _ = [event async for event in runner.run_async(user_id="somebody", session_id=session.id, new_message=message)]

    asking.run(program)
    run = ["chat->Triage", "chat->Triage->Billing"]
    assert ["chat", *run, *run] == names(recording)
    assert [None, "Weather?", "Weather?", "And now?", "And now?"] == [
        (one.turns[0].prompts or {}).get("user") if one.agent_id != "chat" else None for one in walk_sessions(recording.tree)
    ]


CASES = {
    "plain": ([RAINS], {}),
    "tools": ([gives(calls("sky", city="Athens")), RAINS], {"tools": [sky]}),
    "broken": ([gives(calls("broken")), RAINS], {"tools": [broken]}),
    "unknown tool": ([gives(calls("nothing")), RAINS], {}),
    "no such agent": ([gives(calls("transfer_to_agent", agent_name="Nobody")), RAINS], {"hands_off": True}),
    "hand-off": ([HANDS_OFF, RAINS], {"hands_off": True}),
    "refused": ([Reply({"error": {"code": 429, "message": "slow down"}}, status=429)], {}),
    "nonsense": ([Reply(b"{")], {}),
    "broken off": ([Reply(b'{"candidates"', short=9)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_sees_no_difference(provider, case):
    """What a program gets, returned or raised, and what the provider is sent, is the same with the hooks and without."""
    replies, more = CASES[case]
    more = dict(more)
    hands_off = more.pop("hands_off", False)

    def result():
        provider.requests.clear()
        provider.says(*replies)
        asking = Asking(provider, "httpx")

        def make():
            return asking.agent(sub_agents=[asking.agent("Billing", description="bills")] if hands_off else [], **more)

        return outcome(lambda: asking.ask(make)), [path for path, _ in provider.requests]

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, asking, monkeypatch):
    """A hook that raises, as with contexts of another release, leaves the run as it is, and the calls are recorded."""
    provider.says(gives(calls("sky", city="Athens")), RAINS)
    monkeypatch.setattr("optree.capture.adk._said", lambda _content: 1 / 0)
    monkeypatch.setattr("optree.capture.nesting.arguments_of", lambda _sent: 1 / 0)
    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[sky]))
    assert 2 == recording.tree.session.totals.llm_requests


def functions():
    """Return what is hooked."""
    return (
        Runner.run_async, Runner.run_live, BaseAgent.run_async, BaseAgent.run_live, PluginManager.run_before_tool_callback,
        PluginManager.run_after_tool_callback, PluginManager.run_on_tool_error_callback, _error_handler.notify_tool_cancelled,
        BaseLlmFlow._run_and_handle_error,
    )  # fmt: skip


def test_uninstrumented_nothing_is_recorded(provider, asking):
    """Once the hooks are taken out, a run is as it was, and nothing is recorded of it."""
    provider.says(RAINS)
    before = functions()
    assert set(LIBRARIES["google-adk"].modules) <= set(instrument())
    assert all(one is not other for one, other in zip(before, functions(), strict=True))
    uninstrument()
    assert before == functions()
    with capture() as recording:
        assert ["It rains"] == asking.ask(asking.agent)
    assert not recording.records


PROGRAM = """
import asyncio, os, signal, sys
from google import genai
from google.adk.agents import Agent
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner

model = Gemini(model="gemini-3", client=genai.Client(api_key="none", http_options={"base_url": sys.argv[1]}))


def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


billing = Agent(name="Billing", model=model, tools=[weather], description="bills")
asyncio.run(InMemoryRunner(Agent(name="Triage", model=model, sub_agents=[billing])).run_debug("Weather?", quiet=True))
"""


def test_a_kill_keeps_the_tree(provider, tmp_path):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(HANDS_OFF, ASKS)
    line = CommandLine(tmp_path)
    (line.folder / "agent.py").write_text(PROGRAM)
    process = line.start(sys.executable, "agent.py", provider.url, env=line.env | {"OPTREE_AUTO": "1", "PYTHONPATH": f"{START}:{ROOT}"})
    assert ("True\n", -signal.SIGKILL) == (process.communicate()[0], process.returncode)
    [txn] = line.txns()
    session = load(txn, Directory.of(line.base)).session
    found = sorted((op.path, op.kind) for _, _, op in walk_ops(session))
    assert [("1.1", "llm"), ("1.2", "session"), ("1.2.1.1", "llm"), ("1.2.1.2", "tool")] == found
    assert ("Triage", None, ["Triage", "Billing"]) == (
        session.agent_id, session.status, [one.agent_id for one in walk_sessions(session)],
    )  # fmt: skip
    assert (2, 24) == (session.totals.llm_requests, session.totals.input_tokens)


def test_the_documentations_example(tmp_path):
    """The example on the page about ADK runs as it stands, and prints the tree that is shown below it, but for the times."""
    page = (ROOT / "docs/howto/adk.md").read_text("utf-8")
    code, shown = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0] for kind in ("python", "text"))
    line = CommandLine(tmp_path)
    (line.folder / "example.py").write_text(code)
    process = line.start(sys.executable, "example.py", env=line.env | {"PYTHONPATH": str(ROOT)})
    printed, _ = process.communicate()
    assert 0 == process.returncode
    expected, found = (re.sub(r"\d+\.\d+ m?s\b", "0 ms", one).strip() for one in (shown, printed))
    assert expected == found
