"""Calls of models on CrewAI: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import asyncio
import os
from importlib.util import find_spec

import pytest

if find_spec("crewai") is None:
    pytest.skip("crewai is tried in an environment of its own: make test-frameworks", allow_module_level=True)
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import LLM, Agent, BaseLLM, Crew
from crewai.events import crewai_event_bus
from crewai.flow.runtime import Flow as RuntimeFlow
from crewai.llms.base_llm import llm_call_context
from crewai.llms.providers.openai.completion import OpenAICompletion
from crewai.tools import tool
from pydantic import BaseModel

import optree
from optree._capture import instrument, uninstrument
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.conftest import outcome, survives, with_hooks
from tests.capture.frameworks.crews import (  # noqa: F401 - model_of_crewai is a fixture
    ASKS,
    MARKS,
    REFUSED,
    SPENT,
    Scripted,
    ask,
    broken,
    crew_of,
    model_of_crewai,
    scripted,
    served_by,
    weather,
)
from tests.capture.provider import Reply
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL, MESSAGE, QUESTION

pytestmark = MARKS


def test_a_model_that_calls_nobody(recording):
    """A model of the program's own that calls nobody has an op of what is known: messages, answer, tokens, calls of tools, once."""
    ask(crew_of(scripted(ASKS, "It rains"), weather))
    first, second = calls_of(recording)
    assert ("scripted", None) == (first.name, first.attributes.get("provider"))
    asked = recording.tree.pool.resolve(decode(second.request.payload))
    assert ["system", "user", "assistant", "tool"] == [message["role"] for message in asked["messages"]][:4]
    assert ASKS == decode(first.response.payload)["choices"][0]["message"]["tool_calls"]
    assert "It rains" == decode(second.response.payload)["choices"][0]["message"]["content"]
    assert [(3, 2)] * 2 == [(op.accounting[0].tokens.input_tokens, op.accounting[0].tokens.output_tokens) for op in (first, second)]
    assert (2, 6) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


class Telling(BaseLLM):
    """A model that tells of itself by CrewAI's events."""

    def call(self, messages, *_args, **_more):
        """Say something, piece by piece."""
        with llm_call_context():
            self._emit_call_started_event(messages)
            for piece in ("It ", "rains"):
                self._emit_stream_chunk_event(piece)
            assert optree.flush()
            self._emit_call_completed_event("It rains", "llm_call", usage=SPENT, finish_reason="length")
        return "It rains"


class Asking(BaseLLM):
    """A model that asks another one."""

    other: object

    def call(self, *args, **more):
        """Ask it."""
        return self.other.call(*args, **more)


class Later(Scripted):
    """A model whose method calls that of its base class."""

    def call(self, *args, **more):
        """Say what the base class says."""
        return super().call(*args, **more)


def test_what_a_model_tells_by_events(recording):
    """What a model that calls nobody tells by events is in its op: its stream, tokens and why it ended."""
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        Telling(model="told/one", provider="told").call(QUESTION)
    [op] = calls_of(recording)
    assert ("told:told/one", "length", 3) == (
        op.name, decode(op.response.payload)["choices"][0]["finish_reason"], session.totals.input_tokens,
    )  # fmt: skip


def test_a_model_that_asks_another(recording, provider, model):
    """A model that asks another one, or its base class, is no second call."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == Asking(model="router", other=model).call(QUESTION)
        assert "It rains" == Asking(model="router", other=scripted("It rains")).call("Weather?")
        later = Later(model="later")
        later.says = ["It rains"]
        later.call("Weather?")
    assert ["openai-compatible:gpt-5", "scripted", "later"] == [op.name for op in calls_of(recording)]
    assert 3 == session.totals.llm_requests


def test_a_model_in_an_op_of_the_programs(recording):
    """In an open llm op of the program's, such a call is that op, and counts once."""
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.llm("planner"):
        scripted("It rains").call("Weather?")
    [op] = ops_of(recording)
    assert ("planner", 1, 3) == (op.name, session.totals.llm_requests, session.totals.input_tokens)
    assert b"It rains" in bytes(op.response.payload)


def test_a_model_whose_answer_is_an_object(recording):
    """An answer that is an object of pydantic's is recorded as its JSON."""

    class Forecast(BaseModel):
        rain: bool

    with optree.session("lead"):
        scripted(Forecast(rain=True)).call("Weather?", response_model=Forecast)
    assert '{"rain":true}' == decode(calls_of(recording)[0].response.payload)["choices"][0]["message"]["content"]


@pytest.mark.captured(
    "crewai", "LLM, by OpenAI's and Anthropic's clients and LiteLLM", "plain", "streamed", added="one line", checks=("calls", "answers")
)
def test_models_of_crewai(recording, provider, model):
    """The models of CrewAI are recorded on the wire, once: OpenAI's and Anthropic's clients, streams, and LiteLLM."""
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        provider.says(CHAT)
        LLM(model="openai/gpt-5", is_litellm=True, base_url=f"{provider.url}/v1", api_key="none", num_retries=0).call("Weather?")
        provider.says(MESSAGE)
        LLM(model="anthropic/claude-sonnet-4-5", base_url=provider.url, api_key="none").call("Weather?")
        provider.says(CHAT_EVENTS)
        LLM(model="openai/gpt-5", base_url=f"{provider.url}/v1", api_key="none", stream=True).call("Weather?")
        provider.says(CHAT)
        asyncio.run(model.acall("Weather?"))
    assert ["ok"] * 4 == [op.status for op in calls_of(recording)]
    assert [b"It rains" in bytes(op.response.payload) for op in calls_of(recording)] == [True] * 4
    assert (4, 32) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.captured("crewai", "crews", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider, model):
    """A refused call is one failed op, its agent, task and crew failed with it, and the program gets CrewAI's exception."""
    provider.says(REFUSED)
    crew = crew_of(model)
    crew.agents[0].max_retry_limit = 0
    with pytest.raises(ValueError, match="not found"):
        ask(crew)
    assert [("failed", "model")] == [(op.status, op.attributes["error.type"]) for op in calls_of(recording)]
    assert ["failed", "failed"] == [session.status for session in walk_sessions(recording.tree)]
    assert "not found" in recording.tree.session.error


CASES = {"plain": [CHAT], "tools": [CHAT_TOOL, CHAT], "refused": [REFUSED], "nonsense": [Reply(b"{")], "broken off": [Reply(b"{", short=9)]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tools", [weather, broken], ids=["weather", "broken"])
def test_the_program_sees_no_difference(provider, case, tools):
    """What a program gets, returned or raised, what the provider is sent and which events there are, is the same with hooks and without."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        model = served_by(provider)
        return outcome(lambda: ask(crew_of(model, tools))), [path for path, _ in provider.requests], model.get_token_usage_summary()

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, model, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(CHAT_TOOL, CHAT)
    survives("optree._capture.frameworks.crewai._RUNS.above", recording, monkeypatch, lambda: ask(crew_of(model, weather)))


def test_uninstrumented_nothing_is_recorded(provider, model):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once, also of models made meanwhile."""
    owners = [
        (type(crewai_event_bus), "emit"),
        (Crew, "kickoff"),
        (Agent, "kickoff"),
        (RuntimeFlow, "kickoff_async"),
        (OpenAICompletion, "call"),
    ]
    before = [vars(owner)[name] for owner, name in owners]
    provider.says(CHAT)
    instrument()
    made = type("Made", (Scripted,), {"call": lambda _self, *_args, **_more: "It rains"})(model="made")
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        ask(crew_of(model))
        ask(crew_of(made))
        assert not recording.records
        instrument()
        instrument()
        ask(crew_of(model))
        ask(crew_of(made))
        uninstrument()
    assert [1, 1] == [one.totals.llm_requests for one in recording.sessions]


def test_a_run_that_is_under_way_is_ended(recording):
    """A run that is under way when the hooks are taken out ends with it."""

    def leave(_messages):
        uninstrument()
        return "It rains"

    assert "It rains" == ask(crew_of(scripted(leave)))
    assert ["ok", "ok"] == [session.status for session in walk_sessions(recording.tree)]
    assert optree.current_session() is None


PROGRAM = """
import os, signal, sys
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

@tool("weather")
def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

model = LLM(model="openai/gpt-5", base_url=sys.argv[1] + "/v1", api_key="none")
agent = Agent(role="forecaster", goal="Tell the weather", backstory="You look out", llm=model, tools=[weather])
print(Crew(agents=[agent], tasks=[Task(description="Weather?", expected_output="a sentence", agent=agent)]).kickoff())
"""


@pytest.mark.captured("crewai", "crews", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(CHAT_TOOL)
    session = killed(PROGRAM)
    assert ("agent", None) == (session.agent_id, session.ended_at)
    ops = {op.name: op for _, _, op in walk_ops(session)}
    assert ({"city": "Athens"}, None) == (decode(ops["weather"].request.payload), ops["weather"].ended_at)
    assert ("system", None) == (ops["task Weather?"].kind, ops["task Weather?"].ended_at)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


def not_to_be_run(function):
    """Return the same tool, which may not run."""

    def run(city: str) -> str:
        raise AssertionError(city)

    return function.model_copy(update={"func": run})


class TextOnly(Scripted):
    """A model that asks for tools by text."""

    def supports_function_calling(self):
        """Take none."""
        return False


def asks_by_text(*_):
    """Return a model that asks for the tool so, and tells what that said."""
    model = TextOnly(model="scripted")
    model.says = [
        'Thought: look\nAction: weather\nAction Input: {"city": "Athens"}',
        lambda messages: f"Thought: I know\nFinal Answer: {messages[-1]['content'][-40:]}",
    ]
    return model


@pytest.mark.parametrize("asks", [served_by, asks_by_text])
@pytest.mark.parametrize("function", [weather, broken])
def test_tools_in_a_replay(provider, asks, function, hooked):  # noqa: ARG001 - the hooks are there
    """In a replay tools get their results, and failures, and do not run, whether a model calls them or asks for them by text."""
    provider.says(CHAT_TOOL, CHAT)
    with capture() as recorded:
        expected = ask(crew_of(asks(provider), function))
    sent = len(provider.requests)
    with replay(recorded.tree), capture() as again:
        assert expected == ask(crew_of(asks(provider), not_to_be_run(function)))
    assert sent == len(provider.requests)
    before, behind = ops_of(recorded, "weather"), ops_of(again, "weather")
    assert [f"test-1:{op.path}" for op in before] == [op.attributes.get(REPLAY_OF) for op in behind]
    assert [(op.status, op.error, op.response and op.response.payload) for op in before] == [
        (op.status, op.error, op.response and op.response.payload) for op in behind
    ]


def test_a_tool_that_runs_again_is_tried_again(hooked):  # noqa: ARG001 - as above
    """In a replay a tool that calls others runs as often as CrewAI tries it, within its one op."""
    tries = []

    @tool("weather")
    def flaky(city: str) -> str:
        """Tell the weather."""
        tries.append(city)
        if len(tries) % 2:
            raise ConnectionError("busy")
        with optree.tool("thermometer") as op:
            op.request(city=city)
        return "rain"

    with capture() as recorded:
        expected = ask(crew_of(asks_by_text(), flaky))
    with replay(recorded.tree), capture() as again:
        assert expected == ask(crew_of(asks_by_text(), flaky))
    assert (4, ["ok"], ["ok"]) == (len(tries), *[[op.status for op in ops_of(one, "weather")] for one in (recorded, again)])


def test_models_in_a_replay(hooked):  # noqa: ARG001 - as above
    """In a replay a model that calls nobody is called again: its calls count as made, and have no recorded answer."""
    with capture() as recorded:
        expected = ask(crew_of(scripted(ASKS, "It rains"), weather))
    with replay(recorded.tree), capture() as again:
        assert expected == ask(crew_of(scripted(ASKS, "It rains"), weather))
    assert [None, None] == [op.attributes.get(REPLAY_OF) for op in calls_of(again)]
