"""Calls of models on Agno: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import asyncio
import functools
from importlib.util import find_spec

import pytest

if find_spec("agno") is None:
    pytest.skip("agno is tried in an environment of its own: make test-frameworks", allow_module_level=True)

import agno.agent._run
from agno.models.base import Model
from agno.models.message import Message
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.tools.function import Function, FunctionCall
from pydantic import BaseModel

import optree
from optree._capture import instrument, uninstrument
from optree._nodes import REPLAY_OF, Tokens
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.conftest import broke_off_in_a_tool, outcome, stay_what_they_are, survives, with_hooks
from tests.capture.frameworks.agno_programs import ASKS, MARKS, WAYS, Scripted, asks_for, desk_of, forecaster, scripted, served_by
from tests.capture.provider import Reply
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL, RESPONSE
from tests.capture.tools import broken, weather

pytestmark = MARKS
REFUSED = Reply({"error": {"message": "no such model"}}, status=404)
BUSY = Reply({"error": {"message": "busy"}}, status=503)


def pieces(city: str):
    """Tell the weather piece by piece."""
    yield "rain in "
    yield city


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_calls_nobody(recording, way):
    """A model of the program's own that calls nobody has an op of what is known: messages, answer, tokens, calls of tools, once."""
    WAYS[way](forecaster(scripted(ASKS, "It rains"), weather, system_message="Look out"), "Weather?")
    first, second = calls_of(recording)
    assert ("scripted", None) == (first.name, first.attributes.get("provider"))
    asked = recording.tree.pool.resolve(decode(second.request.payload))
    assert ["system", "user", "assistant", "tool"] == [message["role"] for message in asked["messages"]]
    assert "weather" == asked["tools"][0]["function"]["name"]
    assert ASKS == decode(first.response.payload)["choices"][0]["message"]["tool_calls"]
    assert "It rains" == decode(second.response.payload)["choices"][0]["message"]["content"].strip()
    assert [(3, 2)] * 2 == [(op.accounting[0].tokens.input_tokens, op.accounting[0].tokens.output_tokens) for op in (first, second)]
    assert (2, 6) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


@pytest.mark.parametrize("way", WAYS)
def test_what_such_a_model_tells(recording, way):
    """Tokens of the cache, which are within the input, reasoning, what it cost, and thoughts as they come are told of such a call too."""
    spends = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "cost": 0.5}
    cached = {"cache_read_tokens": 4, "cache_write_tokens": 2, "reasoning_tokens": 3}
    WAYS[way](forecaster(Scripted(says=["It rains"], spends=spends | cached, thinks="Look out")), "Weather?")
    [op] = calls_of(recording)
    [entry] = op.accounting
    assert (Tokens(6, 5, 4, 2, 17, 3), 0.5, 0.5) == (entry.tokens, entry.cost_usd, recording.tree.session.totals.cost_usd)
    assert "Look out" == decode(op.response.payload)["choices"][0]["message"]["reasoning_content"].strip()
    assert (["Look ", "out "] if "stream" in way else []) == ([chunk.text for chunk in op.reasoning.chunks] if op.reasoning else [])


class Forecast(BaseModel):
    """The weather."""

    rain: bool


@pytest.mark.parametrize(
    ("named", "name", "provider", "is_native"),
    [({"provider": "Meteo"}, "Meteo:scripted", "Meteo", False), ({"name": "Parrot"}, "scripted", None, True)],
)
@pytest.mark.parametrize("way", WAYS)
def test_what_such_a_model_is_asked(recording, way, named, name, provider, is_native):
    """Such a call has the provider's name, the settings that are sent, and each message whole."""
    model = Scripted(says=[ASKS, '{"rain": true}'], temperature=0.5, supports_native_structured_outputs=is_native, **named)
    WAYS[way](forecaster(model, weather, tool_choice="auto", output_schema=Forecast, system_message="Look out"), "Weather?")
    op = calls_of(recording)[1]
    assert (name, provider) == (op.name, op.attributes.get("provider"))
    asked = recording.tree.pool.resolve(decode(op.request.payload))
    assert ["weather"] == [one["function"]["name"] for one in asked.pop("tools")]
    assert {
        "temperature": 0.5, "tool_choice": "auto",
        "response_format": Forecast.model_json_schema() if is_native else {"type": "json_object"},
        "messages": [
            {"role": "system", "content": "Look out"},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": ASKS},
            {"role": "tool", "content": "rain in Athens", "tool_call_id": "call-1"},
        ],
    } == asked  # fmt: skip
    assert {"role": "assistant", "content": '{"rain": true}'} == decode(op.response.payload)["choices"][0]["message"]


def test_a_model_in_an_op_of_the_programs(recording):
    """In an open llm op of the program's, such a call is that op, and counts once."""
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.llm("planner"):
        scripted("It rains").response([Message(role="user", content="Weather?")])
    [op] = ops_of(recording)
    assert ("planner", 1, 3) == (op.name, session.totals.llm_requests, session.totals.input_tokens)
    assert b"It rains" in bytes(op.response.payload)


class Asking(Scripted):
    """A model that asks another one."""

    def invoke(self, messages, *_args, **_more):
        """Ask it."""
        return self.says[0].response(messages)


def test_a_model_that_asks_another(recording, provider):
    """A model that asks another one is no second call, whether that goes over HTTP or not."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        for other in (served_by(provider), scripted("It rains")):
            assert "It rains" == Asking(says=[other]).response([Message(role="user", content="Weather?")]).content
    assert ["openai-compatible:gpt-5", "scripted"] == [op.name for op in calls_of(recording)]
    assert 2 == session.totals.llm_requests


def test_a_call_between_pieces(recording, provider):
    """What the program asks between the pieces of a stream is a call of its own, and none of the stream's."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Go"):
        for _ in scripted("It rains all day").response_stream([Message(role="user", content="Weather?")]):
            served_by(provider).response([Message(role="user", content="Weather?")])
    names = [op.name for op in calls_of(recording)]
    assert 1 == names.count("scripted")
    assert len(provider.requests) == names.count("openai-compatible:gpt-5")
    assert len(names) == session.totals.llm_requests
    assert b"It rains all day" in bytes(ops_of(recording, "scripted")[0].response.payload)


@pytest.mark.captured("agno", "OpenAIChat and OpenAIResponses", "plain", "streamed", added="one line", checks=("calls", "answers"))
def test_models_of_agno(recording, provider):
    """Agno's models are recorded on the wire, once, plain, awaited and as streams."""
    asked = [Message(role="user", content="Weather?")]
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        provider.says(CHAT)
        served_by(provider).response(list(asked))
        asyncio.run(served_by(provider).aresponse(list(asked)))
        provider.says(CHAT_EVENTS)
        list(served_by(provider).response_stream(list(asked)))
        provider.says(RESPONSE)
        OpenAIResponses(id="gpt-5", base_url=f"{provider.url}/v1", api_key="none").response(list(asked))
    assert ["ok"] * 4 == [op.status for op in calls_of(recording)]
    assert [True] * 4 == [b"It rains" in bytes(op.response.payload) for op in calls_of(recording)]
    assert (4, 32) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.captured("agno", "agents", "retries", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider):
    """A refused call is a failed op, and the run failed with it; what Agno sends again is an op of its own."""
    provider.says(REFUSED)
    forecaster(served_by(provider)).run("Weather?")
    assert [("failed", "model")] == [(op.status, op.attributes["error.type"]) for op in calls_of(recording)]
    assert ("failed", "no such model") == (recording.tree.session.status, recording.tree.session.error)
    provider.says(BUSY, CHAT)
    model = OpenAIChat(id="gpt-5", base_url=f"{provider.url}/v1", api_key="none", max_retries=0, retries=1, delay_between_retries=0)
    with optree.session("lead"), optree.turn(user="Go"):
        assert "It rains" == forecaster(model).run("Weather?").content
    assert ["failed", "ok"] == [op.status for _, _, op in walk_ops(recording.sessions[1].tree) if op.kind == "llm"]


def test_a_tool_without_a_function(recording):
    """A tool's call that fails without an exception is failed by what Agno says of it."""
    FunctionCall(function=Function(name="nowhere"), arguments={"city": "Athens"}).execute()
    [op] = ops_of(recording, "nowhere")
    assert ("failed", "tool_error: Entrypoint is not set", {"city": "Athens"}) == (op.status, op.error, decode(op.request.payload))


CASES = {"plain": [CHAT], "tools": [CHAT_TOOL, CHAT], "refused": [REFUSED], "nonsense": [Reply(b"{")], "broken off": [Reply(b"{", short=9)]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("function", [weather, broken])
@pytest.mark.parametrize("way", ["run", "astream"])
def test_the_program_sees_no_difference(provider, case, function, way):
    """What a program gets, and what the provider is sent, is the same with hooks and without, and its own hooks are called as often."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        called = []

        def around(function_name, function_call, arguments):
            called.append((function_name, arguments))
            return function_call(**arguments)

        def run():
            return str(
                WAYS[way](forecaster(served_by(provider), function, tool_hooks=[around], post_hooks=[lambda: called.append(1)]), "Go")
            )

        return outcome(run), [path for path, _ in provider.requests], called

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(CHAT_TOOL, CHAT)
    survives(
        "optree._capture.frameworks.agno._instructions",
        recording,
        monkeypatch,
        lambda: forecaster(served_by(provider), weather).run("Go").content,
    )


def test_functions_stay_what_they_are():
    """What stands in the place of a function is of its kind: plain, a coroutine function, a generator function, an async one."""
    stay_what_they_are("agno")


def test_uninstrumented_nothing_is_recorded():
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once."""
    owners = [(agno.agent._run, "_run"), (agno.agent._run, "_arun_stream"), (FunctionCall, "execute"), (Model, "_invoke_with_retry")]
    before = [vars(owner)[name] for owner, name in owners]
    instrument()
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        forecaster(scripted("It rains")).run("Weather?")
        assert not recording.records
        instrument()
        instrument()
        forecaster(scripted("It rains")).run("Weather?")
        uninstrument()
    assert [1] == [one.totals.llm_requests for one in recording.sessions]


@pytest.mark.parametrize("way", ["run", "stream", "astream"])
@pytest.mark.parametrize("function", [weather, pieces, broken])
def test_switched_off_nothing_is_recorded(recording, way, function):
    """While optree is switched off a program on Agno gets the same as before, and nothing is recorded."""

    def run():
        model = scripted([asks_for(function.__name__)], lambda messages: str(messages[-1].content))
        return WAYS[way](forecaster(model, function), "Weather?").strip()

    expected, recorded = run(), len(recording.records)
    optree.configure(enabled=False)
    assert (expected, recorded) == (run(), len(recording.records))


def test_a_run_that_is_under_way_is_ended(recording):
    """A run that is under way when the hooks are taken out ends with it."""

    def leave(_messages):
        uninstrument()
        return "It rains"

    assert "It rains" == forecaster(scripted(leave)).run("Weather?").content
    assert ("ok", 1) == (recording.tree.session.status, recording.tree.session.totals.llm_requests)
    assert optree.current_session() is None


PROGRAM = """
import os, signal, sys
from agno.agent import Agent
from agno.models.openai import OpenAIChat

def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

model = OpenAIChat(id="gpt-5", base_url=sys.argv[1] + "/v1", api_key="none")
Agent(name="forecaster", model=model, tools=[weather], telemetry=False).print_response("Weather?")
"""


@pytest.mark.captured("agno", "agents", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(CHAT_TOOL)
    broke_off_in_a_tool(killed(PROGRAM), "forecaster")


async def awaited(city: str) -> str:
    """Tell it later."""
    return f"rain in {city}"


def not_to_be_run(function):
    """Return the same tool, which may not run."""

    @functools.wraps(function)
    def run(city):
        raise AssertionError(city)

    @functools.wraps(function)
    async def arun(city):
        raise AssertionError(city)

    return arun if asyncio.iscoroutinefunction(function) else run


@pytest.mark.parametrize(
    ("function", "way"), [(weather, "run"), (broken, "run"), (weather, "arun"), (awaited, "arun"), (weather, "stream"), (broken, "astream")]
)
def test_tools_in_a_replay(function, way, hooked):  # noqa: ARG001 - the hooks are there
    """In a replay tools get their results, and failures, and do not run; the hooks around them are called."""
    called = []

    def around(function_name, function_call, arguments):
        called.append((function_name, arguments))
        return function_call(**arguments)

    def run(tool):
        model = scripted([asks_for(function.__name__)], lambda messages: str(messages[-1].content))
        return WAYS[way](forecaster(model, tool, tool_hooks=[around]), "Weather?").strip()

    with capture() as recorded:
        expected = run(function)
    with replay(recorded.tree), capture() as again:
        assert expected == run(not_to_be_run(function))
    before, behind = ops_of(recorded, function.__name__), ops_of(again, function.__name__)
    assert [f"test-1:{op.path}" for op in before] == [op.attributes.get(REPLAY_OF) for op in behind]
    assert [(op.status, op.error, op.response and op.response.payload) for op in before] == [
        (op.status, op.error, op.response and op.response.payload) for op in behind
    ]
    assert [(function.__name__, {"city": "Athens"})] * 2 == called


def test_a_replay_of_a_team(provider, hooked):  # noqa: ARG001 - as above
    """In a replay a member of a team is asked again, within the tool that runs for it, and its models get their recorded answers."""

    def run():
        return desk_of(forecaster(served_by(provider), weather, id="forecaster")).run("Weather?").content

    provider.says(CHAT_TOOL, CHAT)
    with capture() as recorded:
        expected = run()
    sent = len(provider.requests)
    with replay(recorded.tree), capture() as again:
        assert expected == run()
    assert sent == len(provider.requests)
    assert [op.name for op in ops_of(recorded) if op.name != "thermometer"] == [op.name for op in ops_of(again)]


def test_a_tool_that_yields_in_a_replay(hooked):  # noqa: ARG001 - as above
    """In a replay a tool that yields gives what it yielded."""

    def run(function):
        return forecaster(scripted([asks_for("pieces")], lambda messages: messages[-1].content), function).run("Weather?").content

    with capture() as recorded:
        assert "rain in Athens" == run(pieces)
    with replay(recorded.tree), capture() as again:
        assert "rain in Athens" == run(pieces)
    [op], [given] = ops_of(recorded, "pieces"), ops_of(again, "pieces")
    assert (f"test-1:{op.path}", op.response.payload) == (given.attributes.get(REPLAY_OF), given.response.payload)
