"""Programs on Google's ADK, as its documentation writes them, become whole trees: agents, hand-offs, tools, calls of models."""

import asyncio
import re
import sys

import pytest

adk = pytest.importorskip("google.adk", reason="google-adk is tried in an environment of its own: make test-frameworks")

from google.adk.agents import Agent, LoopAgent, ParallelAgent, SequentialAgent  # noqa: E402
from google.adk.agents.base_agent import BaseAgent  # noqa: E402
from google.adk.agents.run_config import RunConfig, StreamingMode  # noqa: E402
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow  # noqa: E402
from google.adk.flows.llm_flows.tools import _error_handler  # noqa: E402
from google.adk.plugins.base_plugin import BasePlugin  # noqa: E402
from google.adk.plugins.plugin_manager import PluginManager  # noqa: E402
from google.adk.runners import InMemoryRunner, Runner  # noqa: E402
from google.adk.tools import AgentTool  # noqa: E402
from google.adk.workflow import Workflow  # noqa: E402
from google.genai import types  # noqa: E402

import optree  # noqa: E402
from optree._capture import LIBRARIES, instrument, uninstrument  # noqa: E402
from optree._nodes import Tokens  # noqa: E402
from optree._tree import walk_ops, walk_sessions  # noqa: E402
from optree._values import decode  # noqa: E402
from optree.testing import capture  # noqa: E402
from tests.capture.frameworks.adk_programs import (  # noqa: E402
    ASKS,
    HANDS_OFF,
    RAINS,
    WARNINGS,
    Asking,
    answer,
    broken,
    calls,
    events,
    gives,
    names,
    op_of,
    response,
    scripted,
    shape,
    streamed,
    texts,
    used,
    weather,
)
from tests.cli.conftest import ROOT, CommandLine  # noqa: E402

pytestmark = WARNINGS


@pytest.mark.captured("google-adk", "Runner", "plain", added="one line", checks=("agents", "calls", "tokens"))
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


@pytest.mark.captured("google-adk", "Runner", "streamed", added="one line", checks=("agents", "calls"))
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


def test_a_tool_that_is_not_called_for_its_arguments_failed(recording, provider, asking):
    """A tool that ADK does not call, since the model left an argument out, failed by what the model is told."""
    provider.says(gives(calls("weather")), RAINS)
    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[weather]))
    op = op_of(recording, "weather")
    assert "failed" == op.status
    assert "Invoking `weather()` failed" in op.error
    assert "city" in str(decode(op.response.payload)["error"])


def test_a_tool_that_does_not_exist_failed(recording, provider, asking):
    """A tool that the model has made up is a failed op, and the run goes on."""
    provider.says(gives(calls("nothing", city="Athens")), RAINS)
    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[weather]))
    op = op_of(recording, "nothing")
    assert ("failed", {"city": "Athens"}) == (op.status, decode(op.request.payload))


@pytest.mark.captured("google-adk", "Runner", "tools", "at once", added="one line", checks="tools")
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


@pytest.mark.captured("google-adk", "Runner", "sub-agents", added="one line", checks=("agents", "calls"))
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
    known = {"type": "handoff", "from": "Triage", "to": "Billing", "error.type": "invalid", "error.class": "invalid"}
    assert ("system", "failed", known) == (op.kind, op.status, op.attributes)


def test_a_hand_off_to_nobody(recording, provider, asking):
    """A hand-off to an agent that does not exist is a failed op, and ends the run, with ADK's exception."""
    provider.says(gives(calls("transfer_to_agent", agent_name="Nobody")), RAINS)
    with pytest.raises(ValueError, match="Nobody"):
        asking.ask(lambda: asking.agent("Triage", sub_agents=[asking.agent("Billing", description="bills")]))
    assert ("failed", ["Triage"]) == (recording.tree.session.status, names(recording))
    op = op_of(recording, "handoff to Nobody")
    known = {"type": "handoff", "from": "Triage", "to": "Nobody", "error.type": "invalid", "error.class": "invalid"}
    assert ("system", "failed", recording.tree.session.error, known) == (op.kind, op.status, op.error, op.attributes)


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


@pytest.mark.captured("google-adk", "SequentialAgent, ParallelAgent, LoopAgent", "sub-agents", added="one line", checks=("agents", "calls"))
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


@pytest.mark.captured("google-adk", "Workflow", "sub-agents", added="one line", checks="agents")
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


@pytest.mark.captured("google-adk", "Runner", "tools", "sub-agents", "killed", added="--auto", checks=("agents", "calls"))
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(HANDS_OFF, ASKS)
    session = killed(PROGRAM)
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
