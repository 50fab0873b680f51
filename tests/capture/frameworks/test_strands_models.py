"""Calls of models on Strands: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import asyncio
import inspect
from importlib.util import find_spec

import pytest

if find_spec("strands") is None:
    pytest.skip("strands-agents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

import boto3
import openai
from strands import ModelRetryStrategy, ToolContext, tool
from strands.event_loop import event_loop
from strands.hooks import AfterToolCallEvent
from strands.models import BedrockModel
from strands.multiagent import Swarm
from strands.multiagent.graph import Graph
from strands.tools.executors import _executor
from strands.types.exceptions import EventLoopException

import optree
from optree._capture import instrument, uninstrument
from optree._capture.replay import RAN_FOR, WHY
from optree._nodes import REPLAY_OF, Tokens
from optree._providers.messages import answers
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.testing import capture
from tests.capture.conftest import broke_off_in_a_tool, outcome, stay_what_they_are, survives, twice, with_hooks
from tests.capture.frameworks.strands_programs import (
    ASKS,
    CALL,
    RAINS,
    Forecast,
    Scripted,
    agent,
    ask,
    asks,
    broken,
    graph_of,
    says,
    served_by,
    weather,
)
from tests.capture.provider import AWS_EVENTS, Reply, aws_event
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import CHAT

REFUSED = Reply({"error": {"message": "no such model", "code": "model_not_found"}}, status=404)
LIMITED = Reply({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, status=429)


def test_a_model_that_calls_nobody(recording):
    """A model of the program's own that calls nobody has an op of what is known: messages, answer, tokens, reasoning, once."""
    settings = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 64, "stop_sequences": ["."], "params": {"seed": 7}}
    ask(agent(Scripted([CALL], "Look.</think>It rains", api_key="none", **settings), weather, system_prompt="Be brief."))
    first, second = calls_of(recording)
    assert ("parrot-1", None) == (first.name, first.attributes.get("provider"))
    asked = recording.tree.pool.resolve(decode(second.request.payload))
    assert (["user", "assistant", "user"], "Be brief.") == ([message["role"] for message in asked["messages"]], asked["system"])
    assert settings == {name: value for name, value in asked.items() if name not in ("messages", "system", "tools")}
    assert "weather" == asked["tools"][0]["name"]
    assert "weather" == decode(first.response.payload)["output"]["message"]["content"][0]["toolUse"]["name"]
    assert "It rains" == decode(second.response.payload)["output"]["message"]["content"][-1]["text"]
    assert (["end_turn"], "Look.") == (
        [one.finish for one in answers(decode(second.response.payload))], "".join(chunk.text for chunk in second.reasoning.chunks),
    )  # fmt: skip
    assert [Tokens(12, 2, 0, 0, 14)] * 2 == [op.accounting[0].tokens for op in (first, second)]
    assert (2, 24) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"inputTokens": 12, "outputTokens": 2, "totalTokens": 14, "cacheReadInputTokens": 4}, Tokens(8, 2, 4, 0, 14)),
        ({"inputTokens": 8, "outputTokens": 2, "totalTokens": 14, "cacheReadInputTokens": 4}, Tokens(8, 2, 4, 0, 14)),
        ({"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}, Tokens()),
    ],
    ids=["within", "beside", "none"],
)
def test_what_such_a_model_tells_of_tokens(recording, usage, tokens):
    """Cached tokens are within the input, or beside it, as the total says, and beside it in the answer; none are noted as such."""
    ask(agent(Scripted("It rains", usage=usage)))
    assert [tokens] == [entry.tokens for op in calls_of(recording) for entry in op.accounting]
    assert [tokens.input_tokens] == [decode(op.response.payload).get("usage", {}).get("inputTokens", 0) for op in calls_of(recording)]
    assert (tokens == Tokens()) == any("tells no tokens" in log.message for op in calls_of(recording) for log in op.logs)


def test_a_model_that_asks_another(recording, provider):
    """A model of the program's that asks another one over HTTP is no second call."""
    provider.says(RAINS)
    other = served_by(provider)

    class Router(Scripted):
        def stream(self, *args, **more):
            return other.stream(*args, **more)

    assert "It rains" == ask(agent(Router()))
    assert ["openai-compatible:gpt-5"] == [op.name for op in calls_of(recording)]


@pytest.mark.parametrize("at", ["messageStart", "contentBlockDelta"])
def test_a_call_between_pieces(recording, provider, at):
    """What the program asks between the pieces of a stream is a call of its own session's, and none of the agent's."""
    provider.says(CHAT)
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)

    async def run():
        async for event in agent(Scripted("It rains")).stream_async("Weather?"):
            if at in event.get("event", {}):
                client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Is it true?"}])

    asyncio.run(run())
    agents, programs = sorted(recording.sessions, key=lambda tree: tree.agent != "forecaster")
    [own] = [op for _, _, op in walk_ops(agents) if op.kind == "llm"]
    assert ["openai-compatible:gpt-5"] * len(provider.requests) == [op.name for _, _, op in walk_ops(programs)]
    assert (b"It rains" in bytes(own.response.payload), Tokens(12, 2, 0, 0, 14)) == (True, own.accounting[0].tokens)


@pytest.mark.captured("strands-agents", "BedrockModel", "streamed", "tools", added="one line", checks=("calls", "answers", "tokens"))
@pytest.mark.usefixtures("hooked")
def test_a_model_of_bedrock(provider):
    """The models of Bedrock, which are Strands' default, are asked in a thread: each call is one op of the agent's, also in a replay."""

    def reply(block, delta, reason):
        usage = {"inputTokens": 8, "outputTokens": 5, "totalTokens": 17, "cacheReadInputTokens": 4}
        told = [
            ("messageStart", {"role": "assistant"}),
            *([("contentBlockStart", {"contentBlockIndex": 0, "start": block})] if block else []),
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}),
            ("contentBlockStop", {"contentBlockIndex": 0}),
            ("messageStop", {"stopReason": reason}),
            ("metadata", {"usage": usage, "metrics": {"latencyMs": 7}}),
        ]
        return Reply(*(aws_event(*one) for one in told), kind=AWS_EVENTS)

    def run():
        session = boto3.Session(aws_access_key_id="none", aws_secret_access_key="none", region_name="us-east-1")
        model = BedrockModel(boto_session=session, endpoint_url=provider.url, model_id="us.amazon.nova-pro-v1:0")
        return ask(agent(model, weather))

    called = {"toolUse": {"toolUseId": "call-1", "name": "weather"}}
    asking = reply(called, {"toolUse": {"input": '{"city": "Athens"}'}}, "tool_use")
    expected, found, recorded, _ = twice(provider, [asking, reply({}, {"text": "It rains"}, "end_turn")], run)
    assert ("It rains", "It rains") == (expected, found)
    assert ["llm", "tool", "tool", "llm"] == [op.kind for op in recorded.tree.session.turns[0].ops]
    assert [Tokens(8, 5, 4, 0, 17)] * 2 == [op.accounting[0].tokens for op in calls_of(recorded)]
    assert b"It rains" in bytes(calls_of(recorded)[1].response.payload)


@pytest.mark.captured("strands-agents", "Agent", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider):
    """A refused call is one failed op, its agent failed with it, and the program gets Strands' exception."""
    provider.says(REFUSED)
    with pytest.raises(Exception, match="no such model"):
        ask(agent(served_by(provider)))
    assert [("failed", "model_not_found")] == [(op.status, op.attributes["error.type"]) for op in calls_of(recording)]
    assert "failed" == recording.tree.session.status
    assert "no such model" in recording.tree.session.error


@pytest.mark.captured("strands-agents", "Agent", "retries", added="one line", checks=("calls", "tokens"))
def test_what_is_tried_again(recording, provider):
    """What the client sends again is an attempt of one op; what Strands asks again is an op of its own."""
    provider.says(LIMITED, RAINS)
    assert "It rains" == ask(agent(served_by(provider, max_retries=1)))
    assert [("ok", ["failed", "ok"])] == [(op.status, [one.status for one in op.accounting]) for op in calls_of(recording)]
    provider.says(LIMITED, RAINS)
    retrying = ModelRetryStrategy(max_attempts=2, initial_delay=0)
    assert "It rains" == ask(agent(served_by(provider), retry_strategy=retrying))
    later = recording.sessions[1].tree.session
    assert (["failed", "ok"], "ok", 8) == ([op.status for op in later.turns[0].ops], later.status, later.totals.input_tokens)


def test_a_budget(recording, provider):
    """What a budget refuses is not sent, and reaches the program as the cause of Strands' exception."""
    provider.says(ASKS, RAINS)
    with optree.budget(tokens=5), pytest.raises(EventLoopException) as caught:
        ask(agent(served_by(provider), broken))
    assert (optree.BudgetExceeded, 1) == (type(caught.value.__cause__), len(provider.requests))
    assert ("failed", 1) == (recording.tree.session.status, recording.tree.session.totals.llm_requests)


CASES = {"plain": [RAINS], "tools": [ASKS, RAINS], "refused": [REFUSED], "nonsense": [Reply(b"{")], "broken off": [Reply(b"{", short=9)]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("function", [weather, broken], ids=["weather", "broken"])
def test_the_program_sees_no_difference(provider, case, function):
    """What a program gets, returned or raised, what the provider is sent, and what callbacks are told is the same with hooks."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        told = []
        asking = agent(served_by(provider), function)
        asking.callback_handler = lambda **event: told.append(sorted(event))
        asking.add_hook(lambda event: told.append((event.selected_tool.tool_name, event.result)), AfterToolCallEvent)
        return outcome(lambda: ask(asking)), [path for path, _ in provider.requests], told

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(ASKS, RAINS)
    survives("optree._capture.frameworks.strands._question_of", recording, monkeypatch, lambda: ask(agent(served_by(provider), weather)))


def test_functions_stay_what_they_are(hooked):  # noqa: ARG001 - the hooks are there
    """What stands in the place of a function is of its kind, and so is the stream that the program gets."""
    stay_what_they_are("strands-agents")
    instrument()
    runners = [agent(Scripted("It rains")), graph_of({"look": Scripted("It rains")}), Swarm([agent(Scripted("It rains"))])]
    assert [True] * 3 == [inspect.isasyncgen(one.stream_async("Weather?")) for one in runners]


def test_uninstrumented_nothing_is_recorded(provider):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once."""
    asking = agent(served_by(provider), broken)
    owners = [
        (type(asking), "stream_async"),
        (type(asking), "structured_output_async"),
        (Graph, "stream_async"),
        (Graph, "_execute_node"),
        (Swarm, "stream_async"),
        (_executor.ToolExecutor, "_stream"),
        (_executor, "_run_tool"),
        (event_loop, "stream_messages"),
    ]
    before = [vars(owner)[name] for owner, name in owners]
    instrument()
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        provider.says(ASKS, RAINS)
        ask(asking)
        assert not recording.records
        instrument()
        instrument()
        provider.says(ASKS, RAINS)
        ask(asking)
        uninstrument()
    assert (2, 1) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.tools_run)


@pytest.mark.parametrize("function", [weather, broken])
def test_switched_off_nothing_is_recorded(recording, function):
    """While optree is switched off a program on Strands gets the same as before, and nothing is recorded."""

    def run():
        return ask(graph_of({"look": agent(Scripted([CALL], "It rains"), function)}))

    expected, recorded = run(), len(recording.records)
    optree.configure(enabled=False)
    assert (expected, recorded) == (run(), len(recording.records))


def test_a_run_that_is_under_way_is_ended(recording):
    """A run that is under way when the hooks are taken out ends with it."""

    async def leave(_messages):
        uninstrument()
        return "It rains"

    assert "It rains" == ask(agent(Scripted(leave)))
    assert (["ok"], 1) == ([one.status for one in walk_sessions(recording.tree)], recording.tree.session.totals.llm_requests)
    assert optree.current_session() is None


PROGRAM = """
import os, signal, sys
from strands import Agent, tool
from strands.models.openai import OpenAIModel

@tool
def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

model = OpenAIModel(client_args={"base_url": sys.argv[1] + "/v1", "api_key": "none"}, model_id="gpt-5")
Agent(name="forecaster", model=model, tools=[weather], callback_handler=None)("Weather?")
"""


@pytest.mark.captured("strands-agents", "Agent", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(ASKS)
    broke_off_in_a_tool(killed(PROGRAM), "forecaster")


def counted(ran):
    """Return a tool that writes down where it was asked for the weather."""

    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        return "rain"

    return weather


def replayed(provider, replies, *functions, **more):
    """Return what an agent with these tools says, recorded and in a replay, what each tool op had, and how often tools ran."""
    expected, found, recorded, again = twice(provider, replies, lambda: ask(agent(served_by(provider), *functions, **more)))
    assert expected == found
    pairs = [(op.status, op.error, op.response and decode(op.response.payload)) for op in ops_of(recorded) if op.kind == "tool"]
    assert pairs == [(op.status, op.error, op.response and decode(op.response.payload)) for op in ops_of(again) if op.kind == "tool"]
    return again


@pytest.mark.parametrize(
    "result",
    ["rain", {"rain": 1}, {"status": "success", "content": [{"text": "rain"}, {"json": {"mm": 2}}]},
     {"status": "error", "content": [{"text": "no thermometer"}]}, ConnectionError("no line"), ValueError("no such city")],
    ids=["text", "object", "blocks", "error", "raised", "refused"],
)  # fmt: skip
@pytest.mark.usefixtures("hooked")
def test_tools_in_a_replay(provider, result):
    """In a replay tools get their results, and failures, and do not run; the model and the program's callbacks are told the same."""
    ran, told = [], []

    @tool(name="weather")
    def plain(city: str):
        """Tell the weather."""
        ran.append(city)
        if isinstance(result, Exception):
            raise result
        return dict(result) if isinstance(result, dict) else result

    def after(event: AfterToolCallEvent):
        told.append((event.result, repr(event.exception)))

    again = replayed(provider, [ASKS, RAINS], plain, hooks=[after])
    assert (["Athens"], 2, told[0]) == (ran, len(told), told[1])
    assert ["test-1:1.2"] == [op.attributes[REPLAY_OF] for op in ops_of(again, "weather")]


@pytest.mark.usefixtures("hooked")
def test_a_tool_that_is_called_again_in_a_replay(provider):
    """A tool that a callback has called again gets its result each time, and does not run."""
    ran, tries = [], []

    def again(event: AfterToolCallEvent):
        tries.append(event)
        event.retry = len(tries) % 2 == 1

    replayed(provider, [ASKS, RAINS], counted(ran), hooks=[again])
    assert (["Athens"] * 2, 4) == (ran, len(tries))


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("change", [lambda one: one.state.set("city", 1), lambda one: one.cancel(after_current_tools=True)])
def test_a_tool_that_changes_its_agent_runs(provider, change):
    """A tool that changed the state of its agent, or stopped it, runs again in a replay, which is noted."""
    ran = []

    @tool(name="weather", context=True)
    def noting(city: str, tool_context: ToolContext) -> str:
        """Tell the weather."""
        ran.append(city)
        change(tool_context.agent)
        return "rain"

    again = replayed(provider, [ASKS, RAINS], noting)
    [op] = ops_of(again, "weather")
    assert (["Athens"] * 2, "test-1:1.2") == (ran, op.attributes[RAN_FOR])
    assert op.attributes[WHY].endswith("it is, or has, a change of its agent")


@pytest.mark.usefixtures("hooked")
def test_hand_offs_and_agents_in_a_replay(provider):
    """In a replay a swarm hands over as it did, and agents that are called as tools run, with their tools' results."""
    ran = []

    def run():
        model = served_by(provider)
        scout = agent(model, counted(ran), name="scout", description="looks out")
        swarm = Swarm([agent(model, scout, name="triage"), agent(model, name="billing")], id="desk")
        return ask(swarm)

    replies = [
        asks(("scout", {"input": "Look"})), ASKS, RAINS, asks(("handoff_to_agent", {"agent_name": "billing", "message": "pay"})),
        says("Done"), says("Paid"),
    ]  # fmt: skip
    expected, found, recorded, again = twice(provider, replies, run)
    assert (expected, ["Athens"]) == (found, ran)
    assert "billing: Paid" in found
    assert [(op.path, op.name, op.status) for op in ops_of(recorded)] == [(op.path, op.name, op.status) for op in ops_of(again)]


@pytest.mark.usefixtures("hooked")
def test_an_output_in_a_replay(provider):
    """In a replay an output of a type is made of the recorded answer again."""
    replies = [asks(("Forecast", {"rain": True}))]
    expected, found, *_ = twice(
        provider, replies, lambda: agent(served_by(provider))("Weather?", structured_output_model=Forecast).structured_output
    )
    assert (Forecast(rain=True), expected) == (expected, found)


@pytest.mark.usefixtures("hooked")
def test_models_in_a_replay(provider):
    """In a replay a model that calls nobody is called again: its calls count as made, and have no recorded answer."""
    expected, found, _, again = twice(provider, [RAINS], lambda: ask(graph_of({"look": Scripted([CALL], "It rains")})))
    assert expected == found
    assert [None] * len(calls_of(again)) == [op.attributes.get(REPLAY_OF) for op in calls_of(again)]
