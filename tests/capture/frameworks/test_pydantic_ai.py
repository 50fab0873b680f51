"""Programs on Pydantic AI, as its documentation writes them, become whole trees: agents, tools, outputs and retries."""

import asyncio
import contextlib
import json
import sys
import threading

import pytest
from msgspec import UNSET

pydantic_ai = pytest.importorskip("pydantic_ai", reason="the framework is not there for this Python")

import openai  # noqa: E402
from pydantic import BaseModel  # noqa: E402
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, ModelRetry, PromptedOutput, RunContext, ToolOutput  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability, Instrumentation  # noqa: E402
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.fallback import FallbackModel  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.models.test import TestModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

import optree  # noqa: E402
from optree._capture import instrument, uninstrument  # noqa: E402
from optree._nodes import Tokens  # noqa: E402
from optree._store import Directory  # noqa: E402
from optree._store.reading.recovery import load  # noqa: E402
from optree._tree import walk_ops, walk_sessions  # noqa: E402
from optree._values import decode  # noqa: E402
from tests.capture.conftest import outcome, with_hooks  # noqa: E402
from tests.capture.provider import EVENTS, Reply, events  # noqa: E402
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, MESSAGE, MESSAGE_EVENTS, RESPONSE, RESPONSE_EVENTS, USAGE  # noqa: E402
from tests.cli.conftest import CommandLine  # noqa: E402


def calling(name, arguments="{}", call="call-1"):
    """Return a call of a tool, as a model asks for it."""
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls):
    """Return the answer of a model that asks for tools."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    return Reply({"id": "chat-2", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "choices": choices, "usage": USAGE})


ASKS = asks(calling("weather", '{"city": "Athens"}'))


class Forecast(BaseModel):
    """What an agent is to return."""

    city: str
    rain: int


GOOD, BAD = '{"city": "Athens", "rain": 3}', '{"city": "Athens", "rain": "much"}'


@pytest.fixture
def model(provider):
    """Return a model that calls the provider."""
    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(base_url=f"{provider.url}/v1", api_key="none"))


def weather(city: str) -> str:
    """Tell the weather."""
    optree.current().log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


def run(model, coroutine):
    """Run a program to its end; its client is closed in its own loop."""

    async def running():
        async with model.client:
            return await coroutine

    return asyncio.run(running())


def ask(model, agent=None, question="Weather?", **more):
    """Ask an agent that has a tool."""

    async def asking():
        return (await (agent or Agent(model, name="forecaster", tools=[weather])).run(question, **more)).output

    return run(model, asking())


def shape(recording):
    """Return the paths of what was recorded, with kind, name and status."""
    return [(op.path, op.kind, op.name.rpartition(":")[2], op.status) for _, _, op in walk_ops(recording.tree)]


def op_of(recording, name):
    """Return the first op of a name."""
    return next(op for _, _, op in walk_ops(recording.tree) if op.name == name)


def failure(op):
    """Return how an op ended, with the class of that."""
    return op.status, op.error, (op.attributes or {}).get("error.type")


@pytest.mark.captured("pydantic-ai-slim", "agents", "plain", added="one line", checks=("agents", "calls", "tokens"))
def test_a_run_is_a_session(recording, provider, model):
    """A run is a session with the agent's name, a turn of what was asked, and the call in it, whose tokens count once."""
    provider.says(CHAT)
    agent = Agent(model, name="forecaster", system_prompt="Be brief.", instructions="Be kind.")
    assert "It rains" == ask(model, agent, ["Weather?", "Today."])
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"system": "Be brief.\n\nBe kind.", "user": "Weather?\nToday."}, "ok") == (turn.prompts, turn.status)
    assert [("1.1", "llm", "gpt-5", "ok")] == shape(recording)
    assert [Tokens(8, 5, 4, 0, 17, 3)] == [entry.tokens for entry in turn.ops[0].accounting]
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


def test_run_sync(recording, provider, model):
    """A program without a loop of its own is recorded the same; an agent without a name has that of its variable, as in the framework."""
    provider.says(CHAT)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        oracle = Agent(model)
        assert "It rains" == oracle.run_sync("Weather?").output
        loop.run_until_complete(model.client.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert ("oracle", [("1.1", "llm", "gpt-5", "ok")]) == (recording.tree.session.agent_id, shape(recording))


def test_a_run_that_is_left_before_its_end(recording, provider, model):
    """A run that the program iterates and leaves ends there in order; what it records in between is within it."""
    provider.says(ASKS, CHAT)

    async def asking():
        async with Agent(model, name="forecaster", tools=[weather]).iter("Weather?") as steps:
            async for step in steps:
                if Agent.is_call_tools_node(step):
                    with optree.tool("ruler"):
                        break
        return optree.current_session()

    assert run(model, asking()) is None
    session = recording.tree.session
    assert ("forecaster", "ok", UNSET) == (session.agent_id, session.status, session.final_report)
    assert [("1.1", "llm", "gpt-5", "ok"), ("1.2", "tool", "ruler", "ok")] == shape(recording)


def streamed(provider, model, function):
    """Have a run streamed, which asks for a tool first."""
    called = {"index": 0, **calling("weather", '{"city": "Athens"}')}
    chunk = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": [called]}, "finish_reason": "tool_calls"}
    provider.says(events({**chunk, "choices": [choice]}, {**chunk, "choices": [], "usage": USAGE}), CHAT_EVENTS)
    return run(model, function(Agent(model, name="forecaster", tools=[weather])))


async def by_run_stream(agent):
    """Read a run's text as it comes."""
    async with agent.run_stream("Weather?") as result:
        return "".join([text async for text in result.stream_text(delta=True)])


async def by_events(agent):
    """Read a run's events."""
    async with agent.run_stream_events("Weather?") as told:
        return [event async for event in told][-1].result.output


async def by_handler(agent):
    """Have a run's events handled."""

    async def handle(_context, told):
        async for _ in told:
            pass

    return (await agent.run("Weather?", event_stream_handler=handle)).output


@pytest.mark.captured("pydantic-ai-slim", "agents", "streamed", "tools", added="one line", checks=("agents", "calls", "tokens"))
@pytest.mark.parametrize("function", [by_run_stream, by_events, by_handler])
def test_a_streamed_run(recording, provider, model, function):
    """A run that is streamed, in each way that there is, is the same tree, with what it came to."""
    assert "It rains" == streamed(provider, model, function)
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert ["llm", "tool", "tool", "llm"] == [kind for _, kind, _, _ in shape(recording)]
    assert (2, 16) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.captured("pydantic-ai-slim", "agents", "streamed", "cancelled", added="one line", checks="calls")
def test_a_stream_that_is_left(recording, provider, model):
    """A stream that the program leaves early, ahead of its usage, ends the run in order, and the call as cancelled."""
    hold = threading.Event()
    provider.says(Reply(*CHAT_EVENTS.pieces[:-1], kind=EVENTS, hold=hold))

    async def asking():
        async with Agent(model, name="forecaster").run_stream("Weather?") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    run(model, asking())
    hold.set()
    assert ("ok", ["cancelled"]) == (recording.tree.session.status, [op.status for _, _, op in walk_ops(recording.tree)])


def test_tools_have_arguments_and_results(recording, provider, model):
    """A tool is an op of its agent, with arguments and result; what the program records in it is within it."""
    provider.says(ASKS, CHAT)
    ask(model)
    op = op_of(recording, "weather")
    assert ({"city": "Athens"}, "rain in Athens") == (decode(op.request.payload), decode(op.response.payload))
    assert ["looking at Athens"] == [log.message for log in op.logs]
    inner = op_of(recording, "thermometer")
    assert ("tool", op.path, "ok") == (inner.kind, inner.parent_op, op.status)


@pytest.mark.captured("pydantic-ai-slim", "agents", "tools", "at once", added="one line", checks="tools")
def test_tools_that_run_at_once(recording, provider, model):
    """Tools that one answer asks for are siblings, each with what was done in it."""
    cities = ["Athens", "Rome", "Oslo"]
    provider.says(asks(*(calling("weather", json.dumps({"city": city}), city) for city in cities)), CHAT)
    ask(model)
    tools = [op for _, _, op in walk_ops(recording.tree) if op.name == "weather"]
    assert sorted((f"rain in {city}", None) for city in cities) == sorted((decode(op.response.payload), op.parent_op) for op in tools)
    inner = [op.parent_op for _, _, op in walk_ops(recording.tree) if op.name == "thermometer"]
    assert sorted(op.path for op in tools) == sorted(inner)


@pytest.mark.captured("pydantic-ai-slim", "agents", "sub-agents", added="one line", checks=("agents", "calls"))
def test_an_agent_within_a_tool(recording, provider, model):
    """An agent that a tool of another one runs is a session within the tool's op, with its own input as its turn."""
    provider.says(asks(calling("forecast", '{"question": "Rain?"}')), CHAT, CHAT)
    inner = Agent(model, name="forecaster")

    async def forecast(context: RunContext, question: str) -> str:
        return (await inner.run(question, usage=context.usage)).output

    ask(model, Agent(model, name="lead", tools=[forecast]))
    lead, child = walk_sessions(recording.tree)
    assert ("lead->forecaster", "Rain?", "ok") == (child.call_path, child.turns[0].prompts["user"], child.status)
    inside = next(op for _, _, op in walk_ops(recording.tree) if op.child_session is child)
    assert op_of(recording, "forecast").path == inside.parent_op
    assert (3, 1) == (lead.totals.llm_requests, child.totals.llm_requests)


def test_runs_at_once(recording, provider, model):
    """Runs at once within a session of the program's are sub-agents of it, each with its own turn and call."""
    provider.says(CHAT)
    agent = Agent(model, name="forecaster")

    async def asking():
        with optree.session("lead"), optree.turn(user="Everywhere?"):
            await asyncio.gather(*(agent.run(f"Weather in {number}?") for number in range(5)))

    run(model, asking())
    root, *children = walk_sessions(recording.tree)
    assert ("lead", 5, 40) == (root.agent_id, root.totals.llm_requests, root.totals.input_tokens)
    assert [f"Weather in {number}?" for number in range(5)] == sorted(child.turns[0].prompts["user"] for child in children)
    assert [1] * 5 == [child.totals.llm_requests for child in children]


@pytest.mark.captured("pydantic-ai-slim", "agents", "tools", "retries", added="one line", checks="tools")
def test_a_tool_that_asks_the_model_to_try_again(recording, provider, model):
    """A tool's `ModelRetry` is the failure of that op, and the next call is an op of its own; the run goes on."""
    provider.says(ASKS, asks(calling("weather", '{"city": "Rome"}', "call-2")), CHAT)

    def weather(city: str) -> str:
        if city == "Athens":
            raise ModelRetry("not there")
        return "rain"

    ask(model, Agent(model, name="forecaster", tools=[weather]))
    first, second = (op for _, _, op in walk_ops(recording.tree) if op.name == "weather")
    assert (("failed", "ModelRetry: not there", "invalid"), "ok") == (failure(first), second.status)
    assert ({"city": "Athens"}, {"city": "Rome"}) == (decode(first.request.payload), decode(second.request.payload))
    assert "ok" == recording.tree.session.status


@pytest.mark.parametrize(
    ("name", "sent", "said"),
    [("weather", '{"town": "Athens"}', "city"), ("wether", "{}", "Unknown tool name: 'wether'"), ("weather", "{", "JSON")],
)
@pytest.mark.parametrize("retries", [1, 0])
def test_a_call_of_a_tool_that_is_refused(recording, provider, model, name, sent, said, retries):
    """A call whose arguments do not fit, or of a tool that is not there, is a failed op with what was sent, the last one of a run too."""
    provider.says(asks(calling(name, sent)), CHAT)
    agent = Agent(model, name="forecaster", tools=[weather], retries=retries)
    with contextlib.nullcontext() if retries else pytest.raises(UnexpectedModelBehavior):
        ask(model, agent)
    op = op_of(recording, name)
    assert ("failed", "invalid") == (op.status, op.attributes["error.type"])
    assert said in op.error
    assert (decode(sent.encode()) if sent.endswith("}") else {"input": sent}) == decode(op.request.payload)
    assert ("ok" if retries else "failed") == recording.tree.session.status


def test_a_tool_that_raises(recording, provider, model):
    """An exception of a tool's ends its op and the run, which failed with what the program gets."""
    provider.says(ASKS)

    def weather(city: str) -> str:
        raise PermissionError(f"not {city}")

    with pytest.raises(PermissionError):
        ask(model, Agent(model, name="forecaster", tools=[weather]))
    assert ("failed", "PermissionError: not Athens", "auth") == failure(op_of(recording, "weather"))
    assert ("failed", "PermissionError: not Athens") == (recording.tree.session.status, recording.tree.session.error)


def test_a_tool_that_waits_for_somebody(recording, provider, model):
    """A call that needs approval is no failure; when it is approved, it is an op of that run."""
    provider.says(ASKS, CHAT)

    def weather(context: RunContext, city: str) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired
        return f"rain in {city}"

    agent = Agent(model, name="forecaster", tools=[weather], output_type=[str, DeferredToolRequests])

    async def asking():
        asked = await agent.run("Weather?")
        approved = pydantic_ai.DeferredToolResults(approvals={call.tool_call_id: True for call in asked.output.approvals})
        return (await agent.run(message_history=asked.all_messages(), deferred_tool_results=approved)).output

    with optree.session("program"):
        assert "It rains" == run(model, asking())
    first, second = (op for _, _, op in walk_ops(recording.tree) if op.name == "weather")
    assert ("ok", None, ["ApprovalRequired"]) == (first.status, first.response, [log.message for log in first.logs])
    assert ("ok", "rain in Athens") == (second.status, decode(second.response.payload))


def says(text):
    """Return the answer of a model that says a text."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    return Reply({"id": "chat-3", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "choices": choices, "usage": USAGE})


OUTPUTS = {
    "tool": (Forecast, lambda text: asks(calling("final_result", text)), "tool", "final_result"),
    "text": (PromptedOutput(Forecast), says, "system", "output"),
}


@pytest.mark.captured("pydantic-ai-slim", "agents", "parsed", "retries", added="one line", checks="calls")
@pytest.mark.parametrize(("kind", "retries"), [("tool", 1), ("text", 1), ("tool", 0), ("text", 0)])
def test_an_output_that_does_not_fit(recording, provider, model, kind, retries):
    """An answer that is no output of the type asked for is a failed op with what came; one that is has none, and is the report."""
    output, reply, op_kind, name = OUTPUTS[kind]
    provider.says(reply(BAD), reply(GOOD))
    with contextlib.nullcontext() if retries else pytest.raises(UnexpectedModelBehavior):
        ask(model, Agent(model, name="forecaster", output_type=output, retries=retries))
    tail = [("1.3", "llm", "gpt-5", "ok")] * retries
    assert [("1.1", "llm", "gpt-5", "ok"), ("1.2", op_kind, name, "failed"), *tail] == shape(recording)
    op = op_of(recording, name)
    assert (json.loads(BAD), "invalid") == (decode(op.request.payload), op.attributes["error.type"])
    assert op.error.startswith("ValidationError: 1 validation error")
    report = recording.tree.session.final_report
    assert (json.loads(GOOD) if retries else None) == (None if report is UNSET else decode(report))


def test_an_output_that_a_validator_refuses(recording, provider, model):
    """What an output validator says is the failure of an op of its own."""
    provider.says(CHAT, says("It will rain"))
    agent = Agent(model, name="forecaster")

    @agent.output_validator
    def future(said: str) -> str:
        if "will" not in said:
            raise ModelRetry("not the future")
        return said

    assert "It will rain" == ask(model, agent)
    assert ["llm", "system", "llm"] == [kind for _, kind, _, _ in shape(recording)]
    op = op_of(recording, "output")
    assert ("failed", "ModelRetry: not the future", "invalid") == failure(op)


def test_an_output_function(recording, provider, model):
    """A function that makes the output is an op with what it got and gave; an agent that it hands over to is within it."""
    provider.says(asks(calling("hand_over", '{"question": "Rain?"}')), CHAT)
    other = Agent(model, name="forecaster")

    async def hand_over(question: str) -> str:
        return (await other.run(question)).output

    lead = Agent(model, name="lead", output_type=ToolOutput(hand_over, name="hand_over"))
    assert "It rains" == ask(model, lead)
    _, child = walk_sessions(recording.tree)
    op = op_of(recording, "hand_over")
    assert ("tool", "ok", "It rains") == (op.kind, op.status, decode(op.response.payload))
    assert {"question": "Rain?"} == decode(op.request.payload)
    assert op.path == next(one.parent_op for _, _, one in walk_ops(recording.tree) if one.child_session is child)


@pytest.mark.captured("pydantic-ai-slim", "agents", "failed", added="one line", checks="calls")
def test_a_run_that_fails(recording, provider, model):
    """A refused call is a failed op of the agent's session, which failed with the exception that the program gets."""
    provider.says(Reply({"error": {"message": "no such model"}}, status=404))
    with pytest.raises(ModelHTTPError):
        ask(model)
    assert [("1.1", "llm", "gpt-5", "failed")] == shape(recording)
    assert "model" == op_of(recording, "openai-compatible:gpt-5").attributes["error.type"]
    session = recording.tree.session
    assert ("failed", True) == (session.status, "404" in session.error)


def test_another_model_answers(recording, provider, model):
    """What a fallback tries is a call each, and each is counted once."""
    provider.says(Reply({"error": {"message": "down"}}, status=503), Reply({"error": {"message": "down"}}, status=503), CHAT)
    client = model.client.with_options(max_retries=0)
    first, second = (OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)) for name in ("gpt-5", "gpt-6"))
    first.client.max_retries = 0
    assert "It rains" == ask(model, Agent(FallbackModel(first, first, second), name="forecaster"))
    assert [("gpt-5", "failed"), ("gpt-5", "failed"), ("gpt-6", "ok")] == [(name, status) for _, _, name, status in shape(recording)]
    assert 8 == recording.tree.session.totals.input_tokens


class Unchanged(AbstractCapability):
    """What has streams opened before they are read."""

    async def on_model_request_error(self, _context, *, request_context, error):  # noqa: ARG002 - as the framework calls it
        """Change nothing."""
        raise error


@pytest.mark.captured(
    "pydantic-ai-slim",
    "agents, by OpenAI's chat and responses, and Anthropic's messages",
    "plain",
    "streamed",
    added="one line",
    checks=("calls", "tokens"),
)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_each_client_is_counted_once(recording, provider, model, name, is_streamed):
    """A call is one op by each client, with the framework's own instrumentation on, and where a capability may recover it."""
    if name == "chat":
        provider.says(CHAT_EVENTS if is_streamed else CHAT)
    elif name == "responses":
        provider.says(RESPONSE_EVENTS if is_streamed else RESPONSE)
        model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(base_url=f"{provider.url}/v1", api_key="none"))
    else:
        provider.says(MESSAGE_EVENTS if is_streamed else MESSAGE)
        model = AnthropicModel("claude-5", provider=AnthropicProvider(base_url=provider.url, api_key="none"))

    async def asking():
        agent = Agent(model, name="forecaster", capabilities=[Unchanged(), Instrumentation()])
        if is_streamed:
            async with agent.run_stream("Weather?") as result:
                return await result.get_output()
        return (await agent.run("Weather?")).output

    assert "It rains" == run(model, asking())
    totals = recording.tree.session.totals
    assert ([("1.1", "llm", "ok")], 1, 8, 5) == (
        [(path, kind, status) for path, kind, _, status in shape(recording)], totals.llm_requests, totals.input_tokens, totals.output_tokens
    )  # fmt: skip


def test_a_cancelled_run(recording, provider, model):
    """A run whose task is cancelled is cancelled, and nothing of it stays open, or current."""
    provider.says(asks(calling("forever")))
    begun = asyncio.Event()

    async def forever() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def asking():
        task = asyncio.create_task(Agent(model, name="waiter", tools=[forever]).run("Wait."))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return optree.current_session()

    assert run(model, asking()) is None
    assert "cancelled" == recording.tree.session.status
    assert ["ok", "cancelled"] == [op.status for _, _, op in walk_ops(recording.tree)]


def test_a_run_that_cancels_itself(recording, provider, model):
    """A run that is cancelled by what the framework has for it is cancelled, with what the program gets."""
    provider.says(asks(calling("stop")))

    async def stop(context: RunContext) -> str:
        context.cancel()
        await asyncio.Event().wait()
        return ""

    with pytest.raises(pydantic_ai.exceptions.RunCancelled):
        ask(model, Agent(model, name="waiter", tools=[stop]))
    assert ("cancelled", "cancelled") == (recording.tree.session.status, op_of(recording, "stop").status)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_model_that_is_not_seen_on_the_wire(recording, is_streamed):
    """A model that calls nobody over HTTP has an op of what the framework knows: what was sent, what came, and the tokens."""

    async def asking():
        agent = Agent(TestModel(custom_output_text="It rains"), name="forecaster", tools=[weather], instructions="Be brief.")
        if is_streamed:
            async with agent.run_stream("Weather?") as result:
                return await result.get_output()
        return (await agent.run("Weather?")).output

    assert "It rains" == asyncio.run(asking())
    assert ["llm", "tool", "tool", "llm"] == [kind for _, kind, _, _ in shape(recording)]
    llm = [op for _, _, op in walk_ops(recording.tree) if op.kind == "llm"][1]
    assert ("test:test", "ok") == (llm.name, llm.status)
    sent = recording.tree.pool.resolve(decode(llm.request.payload))["messages"]
    assert [("user", "Weather?"), ("assistant", None), ("user", None)] == [(one["role"], one["parts"][0].get("content")) for one in sent]
    assert [{"type": "text", "content": "It rains"}] == decode(llm.response.payload)["choices"][0]["message"]["parts"]
    assert [True] == [entry.tokens.input_tokens > 0 and entry.tokens.output_tokens > 0 for entry in llm.accounting]


def test_a_call_between_pieces(recording, provider):
    """What the program asks between the pieces of a stream is a call of its own, and none of the stream's."""
    provider.says(CHAT)

    async def saying(_messages, _known):
        yield "It "
        yield "rains"

    async def asking():
        async with Agent(FunctionModel(stream_function=saying), name="forecaster").run_stream("Weather?") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "And in Greek?"}])

    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client:
        asyncio.run(asking())
    calls = [op for _, _, op in walk_ops(recording.tree) if op.kind == "llm"]
    [own] = [op for op in calls if op.name.startswith("function:")]
    assert len(provider.requests) + 1 == len(calls)
    assert b"It rains" in bytes(own.response.payload)


def test_a_model_that_is_not_seen_fails(recording):
    """A model of the program's own that raises is a failed op."""

    def raising(_messages, _known):
        raise TimeoutError("too slow")

    with pytest.raises(TimeoutError):
        asyncio.run(Agent(FunctionModel(raising), name="forecaster").run("Weather?"))
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("failed", "TimeoutError: too slow", "timeout") == failure(op)


def test_a_model_of_the_programs_that_calls_one(recording, provider, model):
    """A call over the wire that a model of the program's own makes is no second op."""
    provider.says(CHAT)

    async def relay(messages, known):
        return await model.request(messages, None, known.model_request_parameters)

    assert "It rains" == ask(model, Agent(FunctionModel(relay), name="forecaster"))
    assert [("1.1", "llm", "gpt-5", "ok")] == shape(recording)


REPLIES = [(ASKS, CHAT), (CHAT,), (Reply({}, status=401),), (asks(calling("weather", "{")), CHAT), (Reply(b"{"),)]


@pytest.mark.parametrize("replies", REPLIES)
def test_a_program_is_not_changed(provider, model, replies):
    """A program gets the same result, or exception, and sends the same with the hooks in as without."""

    def attempt():
        provider.requests.clear()
        provider.says(*replies)
        agent = Agent(model, output_type=str)
        agent.tool_plain(name="weather")(lambda city: city)
        return outcome(lambda: run(model, agent.run("Weather?")).output), agent.name, [path for path, _ in provider.requests]

    bare = attempt()
    assert bare == with_hooks(attempt)


def test_hooks_are_taken_out(provider, model):
    """Without its hooks the framework is as it was, and a run that is under way goes on unrecorded."""
    provider.says(CHAT)
    before = Agent.iter
    instrument()
    assert before is not Agent.iter
    uninstrument()
    assert before is Agent.iter
    assert "It rains" == ask(model)


PROGRAM = """
import sys
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

forecaster = Agent(OpenAIChatModel("gpt-5", provider=OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none")))

@forecaster.tool_plain
def weather(city: str) -> str:
    return "rain in " + city

print(forecaster.run_sync("Weather?").output)
"""


def test_a_program_that_does_not_name_optree(provider, tmp_path):
    """`optree run --auto` records a program of the framework's that does not name optree, as the agent's session."""
    provider.says(ASKS, CHAT)
    line = CommandLine(tmp_path)
    (line.folder / "program.py").write_text(PROGRAM)
    assert "It rains\n" == line("run", "--auto", "--", sys.executable, "program.py", provider.url).stdout
    [txn] = line.txns()
    session = load(txn, Directory.of(line.base)).session
    assert ("forecaster", "ok", 2, 1) == (session.agent_id, session.status, session.totals.llm_requests, session.totals.tools_run)
