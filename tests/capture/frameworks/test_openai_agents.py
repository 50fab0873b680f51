"""Programs on OpenAI's Agents SDK, as its documentation writes them, become whole trees: agents, hand-offs, tools and guardrails."""

import asyncio
import sys

import pytest

agents = pytest.importorskip("agents", reason="the SDK is not there for this Python")

import openai  # noqa: E402
from agents import Agent, GuardrailFunctionOutput, Model, ModelResponse, RunConfig, Runner, Usage, function_tool  # noqa: E402
from agents.mcp import MCPServerStdio  # noqa: E402

import optree  # noqa: E402
from optree._capture import START, instrument, uninstrument  # noqa: E402
from optree._nodes import Tokens  # noqa: E402
from optree._tree import walk_ops, walk_sessions  # noqa: E402
from optree._values import decode  # noqa: E402
from optree.testing import capture  # noqa: E402
from tests.capture.conftest import outcome, with_hooks  # noqa: E402
from tests.capture.provider import Reply, events  # noqa: E402
from tests.cli.conftest import ROOT, CommandLine  # noqa: E402

pytestmark = pytest.mark.usefixtures("traced")
USAGE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
         "output_tokens_details": {"reasoning_tokens": 3}}  # fmt: skip


def body(*output):
    """Return what OpenAI's responses give."""
    return {
        "id": "resp", "object": "response", "created_at": 1, "model": "gpt-5-2026", "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "status": "completed", "output": list(output), "usage": USAGE,
    }  # fmt: skip


def says(text):
    """Return the output of a model that says a text."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def calls(name, arguments="{}", call="call-1"):
    """Return the output of a model that calls a tool."""
    return {"type": "function_call", "id": "f", "call_id": call, "name": name, "arguments": arguments, "status": "completed"}


def streamed(*output):
    """Return the same output as a stream's reply."""
    return events({"type": "response.completed", "sequence_number": 0, "response": body(*output)}, done=False, names=True)


RAINS = Reply(body(says("It rains")))
ASKS = Reply(body(calls("weather", '{"city": "Athens"}')))
HANDS_OFF = Reply(body(calls("transfer_to_billing", call="call-9")))


@pytest.fixture(params=["exported", "not exported"])
def traced(request, provider):
    """Have the SDK call the provider, with its own tracing on, or off as for providers other than OpenAI."""
    agents.set_trace_processors([])
    agents.set_tracing_disabled(request.param == "not exported")
    client = openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
    agents.set_default_openai_client(client, use_for_tracing=False)
    yield
    agents.set_tracing_disabled(False)


def run(coroutine):
    """Run a program to its end; its client is closed in its own loop."""

    async def running():
        try:
            return await coroutine
        finally:
            await agents.models._openai_shared.get_default_openai_client().close()

    return asyncio.run(running())


@function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    optree.current().log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


@function_tool
def broken() -> str:
    """Do nothing good."""
    raise ValueError("no such thermometer")


def forecaster(**more):
    """Return an agent with a tool."""
    return Agent(name="Forecaster", instructions="Be brief.", model="gpt-5", tools=[weather, broken], **more)


async def ask(agent=None, question="Weather?", **more):
    """Ask an agent."""
    return (await Runner.run(agent or forecaster(), question, **more)).final_output


def shape(recording):
    """Return the paths of what was recorded, with kind, name and status."""
    return [(op.path, op.kind, op.name.rpartition(":")[2], op.status) for _, _, op in walk_ops(recording.tree)]


def op_of(recording, name):
    """Return the first op of a name."""
    return next(op for _, _, op in walk_ops(recording.tree) if op.name == name)


@pytest.mark.captured("openai-agents", "Runner", "plain", added="one line", checks=("agents", "calls", "tokens"))
def test_a_run_is_a_session(recording, provider):
    """A run is a session with the agent's name, a turn of what was asked, and the call in it, whose tokens count once."""
    provider.says(RAINS)
    assert "It rains" == run(ask())
    session = recording.tree.session
    assert ("Forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"system": "Be brief.", "user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    assert [("1.1", "llm", "gpt-5", "ok")] == shape(recording)
    assert [Tokens(8, 5, 4, 0, 17, 3)] == [entry.tokens for entry in turn.ops[0].accounting]
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


def test_run_sync(recording, provider):
    """A program without a loop of its own is recorded the same."""
    provider.says(RAINS)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert "It rains" == Runner.run_sync(forecaster(), "Weather?").final_output
        loop.run_until_complete(agents.models._openai_shared.get_default_openai_client().close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert ("Forecaster", [("1.1", "llm", "gpt-5", "ok")]) == (recording.tree.session.agent_id, shape(recording))


@pytest.mark.captured("openai-agents", "Runner", "streamed", "tools", added="one line", checks=("agents", "calls"))
def test_a_streamed_run(recording, provider):
    """A run whose events the program follows is the same tree, ended when the run is, with what it came to."""
    provider.says(streamed(calls("weather", '{"city": "Athens"}')), streamed(says("It rains")))

    async def asking():
        result = Runner.run_streamed(forecaster(), "Weather?")
        assert optree.current_session() is None  # the program's own context is as it was
        kinds = [event.type async for event in result.stream_events()]
        return result.final_output, kinds.count("raw_response_event")

    assert ("It rains", 2) == run(asking())
    session = recording.tree.session
    assert ("Forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert ["llm", "tool", "tool", "llm"] == [kind for _, kind, _, _ in shape(recording)]
    assert 2 == session.totals.llm_requests


def test_tools_have_arguments_and_results(recording, provider):
    """A function tool is an op of its agent, with arguments and result; what the program records in it is within it."""
    provider.says(ASKS, RAINS)
    run(ask())
    op = op_of(recording, "weather")
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))
    assert ["looking at Athens"] == [log.message for log in op.logs]
    inner = op_of(recording, "thermometer")
    assert ("tool", op.path, "ok") == (inner.kind, inner.parent_op, op.status)


def test_a_tool_that_raises_failed(recording, provider):
    """The op of a tool whose exception the SDK tells the model has that exception, and the text that the model gets; the run goes on."""
    provider.says(Reply(body(calls("broken"))), RAINS)
    assert "It rains" == run(ask())
    op = op_of(recording, "broken")
    assert ("failed", "ValueError: no such thermometer", "invalid") == (op.status, op.error, op.attributes["error.type"])
    assert "ok" == recording.tree.session.status


SERVER = """
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("library")

@server.tool()
def broken() -> str:
    '''Break.'''
    raise ToolError("nope")

server.run()
"""


def test_a_tool_behind_mcp_that_failed(recording, provider, tmp_path):
    """Its op has failed, though the SDK tells the model what the server says; the run goes on."""
    provider.says(Reply(body(calls("broken"))), RAINS)
    (tmp_path / "server.py").write_text(SERVER)

    async def asked():
        async with MCPServerStdio(params={"command": sys.executable, "args": [str(tmp_path / "server.py")]}) as server:
            return await ask(Agent(name="Reader", model="gpt-5", mcp_servers=[server]))

    assert "It rains" == run(asked())
    op = op_of(recording, "broken")
    assert ("failed", [("failed", "broken")]) == (op.status, [(entry.status, entry.command) for entry in op.accounting])
    assert "nope" in op.error
    assert (1, "ok") == (recording.tree.session.totals.tools_failed, recording.tree.session.status)


@pytest.mark.captured("openai-agents", "Runner", "tools", "at once", added="one line", checks="tools")
def test_tools_that_run_at_once(recording, provider):
    """Tools that one answer asks for are siblings, each with what was done in it."""
    cities = ["Athens", "Rome", "Oslo"]
    provider.says(Reply(body(*(calls("weather", f'{{"city": "{city}"}}', city) for city in cities))), RAINS)
    run(ask())
    tools = [op for _, _, op in walk_ops(recording.tree) if op.name == "weather"]
    assert [(f"rain in {city}", None) for city in cities] == [(decode(op.response.payload), op.parent_op) for op in tools]
    inner = [op.parent_op for _, _, op in walk_ops(recording.tree) if op.name == "thermometer"]
    assert sorted(op.path for op in tools) == sorted(inner)


@pytest.mark.captured("openai-agents", "Runner", "sub-agents", added="one line", checks=("agents", "calls"))
def test_a_hand_off_is_a_sub_agent(recording, provider):
    """The agent that gets the conversation has a session in that of the run, with who handed it over, and its calls in it."""
    provider.says(HANDS_OFF, RAINS)
    billing = Agent(name="Billing", model="gpt-5")
    assert "It rains" == run(ask(Agent(name="Triage", model="gpt-5", handoffs=[billing])))
    root, child = walk_sessions(recording.tree)
    assert ("Triage", "Billing", "Triage->Billing") == (root.agent_id, child.agent_id, child.call_path)
    assert ("Triage", "ok", "Weather?") == (child.attributes["handed_over_by"], child.status, child.turns[0].prompts["user"])
    assert [("1.1", "llm", "gpt-5", "ok"), ("1.2", "session", "Billing", "ok"), ("1.2.1.1", "llm", "gpt-5", "ok")] == shape(recording)
    assert (2, 1) == (root.totals.llm_requests, child.totals.llm_requests)


def test_a_conversation_that_comes_back(recording, provider):
    """The first agent goes on in the run's session when it gets the conversation back: nobody calls itself."""
    first, other = Agent(name="Triage", model="gpt-5"), Agent(name="Billing", model="gpt-5")
    first.handoffs, other.handoffs = [other], [first]
    provider.says(HANDS_OFF, Reply(body(calls("transfer_to_triage", call="call-8"))), RAINS)
    run(ask(first))
    assert ["Triage", "Billing"] == [session.agent_id for session in walk_sessions(recording.tree)]
    assert [("1.1", "llm"), ("1.2", "session"), ("1.2.1.1", "llm"), ("1.3", "llm")] == sorted(one[:2] for one in shape(recording))


@pytest.mark.captured("openai-agents", "Runner", "sub-agents", added="one line", checks=("agents", "calls"))
def test_an_agent_as_a_tool(recording, provider):
    """An agent that another one calls as a tool is a session within the tool's op, with its own input as its turn."""
    provider.says(Reply(body(calls("ask_forecaster", '{"input": "Rain?"}'))), RAINS, RAINS)
    lead = Agent(name="Lead", model="gpt-5", tools=[forecaster().as_tool("ask_forecaster", "Ask for the weather.")])
    run(ask(lead))
    lead_session, child = walk_sessions(recording.tree)
    assert ("Lead->Forecaster", "Rain?") == (child.call_path, child.turns[0].prompts["user"])
    inside = next(op for _, _, op in walk_ops(recording.tree) if op.child_session is child)
    assert op_of(recording, "ask_forecaster").path == inside.parent_op
    assert 3 == lead_session.totals.llm_requests


@pytest.mark.parametrize("is_triggered", [False, True])
def test_guardrails(recording, provider, is_triggered):
    """A guardrail is a system op; one that is triggered is a warning, and ends the run with the SDK's exception."""
    provider.says(RAINS)

    @agents.input_guardrail(run_in_parallel=False)
    async def polite(_context, _agent, _input):
        checked = await Runner.run(Agent(name="Checker", model="gpt-5"), "Polite?")
        return GuardrailFunctionOutput(output_info=checked.final_output, tripwire_triggered=is_triggered)

    agent = forecaster(input_guardrails=[polite])
    if is_triggered:
        with pytest.raises(agents.InputGuardrailTripwireTriggered):
            run(ask(agent))
    else:
        run(ask(agent))
    op = op_of(recording, "guardrail polite")
    assert ("system", "ok", {"triggered": is_triggered}) == (op.kind, op.status, decode(op.response.payload))
    assert is_triggered == ("guardrail polite was triggered" in [log.message for log in op.logs])
    assert ["Forecaster", "Checker"] == [session.agent_id for session in walk_sessions(recording.tree)]
    assert ("failed" if is_triggered else "ok") == recording.tree.session.status


def test_a_streamed_run_that_a_guardrail_ends(recording, provider):
    """A streamed run that a guardrail ends is failed, with the exception that the program gets."""
    provider.says(streamed(says("It rains")))

    @agents.output_guardrail
    def never(_context, _agent, _output):
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    async def asking():
        async for _ in Runner.run_streamed(forecaster(output_guardrails=[never]), "Weather?").stream_events():
            pass

    with pytest.raises(agents.OutputGuardrailTripwireTriggered):
        run(asking())
    assert "failed" == recording.tree.session.status
    assert "OutputGuardrailTripwireTriggered" in recording.tree.session.error


@pytest.mark.captured("openai-agents", "Runner", "at once", added="one line", checks=("agents", "calls"))
def test_runs_at_once(recording, provider):
    """Runs at once within a session of the program's are sub-agents of it, each with its own turn and call."""
    provider.says(RAINS)

    async def asking():
        with optree.session("lead"), optree.turn(user="Everywhere?"):
            await asyncio.gather(*(ask(question=f"Weather in {number}?") for number in range(5)))

    run(asking())
    root, *children = walk_sessions(recording.tree)
    assert ("lead", 5, 40) == (root.agent_id, root.totals.llm_requests, root.totals.input_tokens)
    asked = sorted(child.turns[0].prompts["user"] for child in children)
    assert [f"Weather in {number}?" for number in range(5)] == asked
    assert [1] * 5 == [child.totals.llm_requests for child in children]


@pytest.mark.captured("openai-agents", "Runner", "failed", added="one line", checks=("agents", "calls"))
def test_a_run_that_fails(recording, provider):
    """A refused call is a failed op of the agent's session, which failed with the exception that the program gets."""
    provider.says(Reply({"error": {"message": "no such model"}}, status=404))
    with pytest.raises(openai.NotFoundError):
        run(ask())
    assert [("1.1", "llm", "gpt-5", "failed")] == shape(recording)
    assert "failed" == recording.tree.session.status
    assert "NotFoundError" in recording.tree.session.error


def test_too_many_turns(recording, provider):
    """A run that the SDK breaks off is failed, with its exception; what was done stands as it was."""
    provider.says(ASKS, Reply(body(calls("weather", '{"city": "Rome"}', "call-2"))))
    with pytest.raises(agents.MaxTurnsExceeded):
        run(ask(max_turns=1))
    assert ("failed", "ok") == (recording.tree.session.status, op_of(recording, "weather").status)
    assert "MaxTurnsExceeded" in recording.tree.session.error


def test_a_cancelled_run(recording, provider):
    """A run whose task is cancelled is cancelled, and nothing of it stays open, or current."""
    provider.says(ASKS)
    begun = asyncio.Event()

    @function_tool
    async def forever() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def asking():
        task = asyncio.create_task(ask(Agent(name="Waiter", model="gpt-5", tools=[forever])))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return optree.current_session()

    provider.says(Reply(body(calls("forever"))))
    assert run(asking()) is None
    assert "cancelled" == recording.tree.session.status
    assert ["ok", "cancelled"] == [op.status for _, _, op in walk_ops(recording.tree)]


def test_a_call_that_is_not_seen_on_the_wire(recording):
    """A model of the program's own that tells of its call, as those of the SDK's extensions do, has an op of what it tells."""

    class Parrot(Model):
        async def get_response(self, *_args, **told):
            with agents.generation_span(model="parrot-1", input=[{"role": "user", "content": told["input"][0]["content"]}]) as span:
                span.span_data.output = [{"role": "assistant", "content": "Weather!"}]
                span.span_data.usage = {"input_tokens": 3, "output_tokens": 2}
            output = openai.types.responses.ResponseOutputMessage.model_validate(says("Weather!"))
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *_args, **_kwargs):
            raise NotImplementedError

    assert "Weather!" == run(ask(Agent(name="Bird", model=Parrot())))
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("llm", "parrot-1", "ok") == (op.kind, op.attributes["model"], op.status)
    assert [(3, 2)] == [(entry.tokens.input_tokens, entry.tokens.output_tokens) for entry in op.accounting]
    assert b"Weather!" in bytes(op.response.payload)


@pytest.mark.captured("openai-agents", "Runner, by OpenAI's chat", "plain", added="one line", checks="calls")
def test_chat_completions(recording, provider):
    """A model by OpenAI's chat is one op too, though the SDK's span tells of the same call."""
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    choice = {"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}
    provider.says(Reply({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}))
    agents.set_default_openai_api("chat_completions")
    try:
        assert "It rains" == run(ask())
    finally:
        agents.set_default_openai_api("responses")
    assert [("1.1", "llm", "gpt-5", "ok")] == shape(recording)
    assert (1, 12) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


def test_a_run_without_tracing(recording, provider):
    """A run that is configured not to be traced by the SDK is recorded all the same."""
    provider.says(ASKS, RAINS)
    run(ask(run_config=RunConfig(tracing_disabled=True)))
    assert ["llm", "tool", "tool", "llm"] == [kind for _, kind, _, _ in shape(recording)]


def test_a_trace_of_several_runs(request, recording, provider):
    """Runs within a trace of the program's, where the SDK traces, are sub-agents of a session with its name."""
    provider.says(RAINS)

    async def asking():
        with agents.trace("Two questions"):
            await ask()
            with agents.custom_span("between"):
                await ask()

    run(asking())
    if "not exported" in request.node.name:
        return
    root, *children = walk_sessions(recording.tree)
    assert ("Two questions", "ok", ["Forecaster"] * 2) == (root.agent_id, root.status, [child.agent_id for child in children])
    assert ["session", "system", "session"] == [op.kind for _, _, op in walk_ops(recording.tree) if op.kind != "llm"]


CASES = {
    "plain": ([RAINS], forecaster),
    "tools": ([ASKS, RAINS], forecaster),
    "broken": ([Reply(body(calls("broken"))), RAINS], forecaster),
    "unknown tool": ([Reply(body(calls("nothing")))], forecaster),
    "refused": ([Reply({"error": {"message": "slow down"}}, status=429)], forecaster),
    "nonsense": ([Reply(b"{")], forecaster),
    "broken off": ([Reply(b'{"id"', short=9)], forecaster),
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_sees_no_difference(provider, case):
    """What a program gets, returned or raised, and what the provider is sent, is the same with the hooks and without."""
    replies, agent = CASES[case]

    def result():
        provider.requests.clear()
        provider.says(*replies)
        client = openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
        agents.set_default_openai_client(client, use_for_tracing=False)
        return outcome(lambda: run(ask(agent()))), [path for path, _ in provider.requests]

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, monkeypatch):
    """A hook that raises, as with spans of another release, leaves the run as it is, and the calls are recorded."""
    provider.says(ASKS, RAINS)
    monkeypatch.setattr(agents.tracing.FunctionSpanData, "type", property(lambda _data: 1 / 0))
    assert "It rains" == run(ask())
    assert 2 == recording.tree.session.totals.llm_requests


def test_uninstrumented_nothing_is_recorded(provider):
    """Once the hooks are taken out, a run is as it was, and nothing is recorded of it."""
    provider.says(RAINS)
    functions = (agents.run.AgentRunner.run, agents.run.start_streaming, agents.tracing.spans.SpanImpl.start)
    instrument()
    assert all(hasattr(one, "__wrapped__") for one in (agents.run.AgentRunner.run, agents.run.start_streaming))
    uninstrument()
    assert functions == (agents.run.AgentRunner.run, agents.run.start_streaming, agents.tracing.spans.SpanImpl.start)
    with capture() as recording:
        run(ask())
    assert not recording.records


def test_another_package_of_that_name(tmp_path):
    """A program's own package that is named as the SDK's runs as it is, and nothing is said of it."""
    line = CommandLine(tmp_path)
    (line.folder / "agents/tracing").mkdir(parents=True)
    for name in ("__init__", "run", "tracing/__init__", "tracing/spans"):
        (line.folder / f"agents/{name}.py").write_text("ran = True\n")
    (line.folder / "own.py").write_text("import agents.run, agents.tracing.spans\nprint(agents.run.ran, agents.tracing.spans.ran)\n")
    process = line.start(sys.executable, "own.py", env=line.env | {"OPTREE_AUTO": "1", "PYTHONPATH": f"{START}:{ROOT}"})
    assert ("True True\n", "") == process.communicate()


PROGRAM = """
import asyncio, os, signal, sys
import agents, openai

agents.set_tracing_disabled(True)
agents.set_default_openai_client(openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0))


@agents.function_tool
def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


billing = agents.Agent(name="Billing", model="gpt-5", tools=[weather])
print(asyncio.run(agents.Runner.run(agents.Agent(name="Triage", model="gpt-5", handoffs=[billing]), "Weather?")).final_output)
"""


@pytest.mark.captured("openai-agents", "Runner", "tools", "sub-agents", "killed", added="--auto", checks=("agents", "calls"))
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(HANDS_OFF, ASKS)
    session = killed(PROGRAM)
    assert [("1.1", "llm"), ("1.2", "session"), ("1.2.1.1", "llm"), ("1.2.1.2", "tool")] == [
        (op.path, op.kind) for _, _, op in walk_ops(session)
    ]
    assert ("Triage", None, ["Triage", "Billing"]) == (
        session.agent_id, session.status, [one.agent_id for one in walk_sessions(session)],
    )  # fmt: skip
    assert (2, 16) == (session.totals.llm_requests, session.totals.input_tokens)
