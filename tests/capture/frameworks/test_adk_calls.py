"""What becomes of programs on Google's ADK when things go wrong or wait, and of models that call nobody; the programs are as they were."""

import asyncio
import contextlib
import gc
import re

import pytest

pytest.importorskip("google.adk", reason="google-adk is tried in an environment of its own: make test-frameworks")

from google import genai
from google.adk.agents import Agent, SequentialAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig, StreamingMode, ToolThreadPoolConfig
from google.adk.models import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types

import optree
from optree._nodes import Tokens
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from tests.capture.conftest import outcome, with_hooks
from tests.capture.frameworks.adk_programs import (
    ASKS,
    HANDS_OFF,
    RAINS,
    WARNINGS,
    Asking,
    Live,
    broken,
    calls,
    events,
    gives,
    names,
    op_of,
    response,
    scripted,
    shape,
    sky,
    texts,
    tool_call,
    used,
    weather,
)
from tests.capture.provider import Reply

pytestmark = WARNINGS


@pytest.mark.captured("google-adk", "Runner", "failed", added="one line", checks="calls")
def test_a_run_that_fails(recording, provider, sent_by):
    """A refused call is a failed op of the agent's session, which failed with the exception that the program gets."""
    provider.says(Reply({"error": {"code": 404, "message": "no such model", "status": "NOT_FOUND"}}, status=404))
    asking = Asking(provider, sent_by)
    with pytest.raises(genai.errors.ClientError):
        asking.ask(asking.agent)
    assert [("1.1", "llm", "gemini-3", "failed")] == shape(recording)
    known = op_of(recording, "google-compatible:gemini-3").attributes
    assert ("NOT_FOUND", "model") == (known["error.type"], known["error.class"])
    assert "failed" == recording.tree.session.status
    assert "no such model" in recording.tree.session.error


@pytest.mark.captured("google-adk", "Runner", "retries", added="one line", checks="calls")
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


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("kind", [Agent, SequentialAgent])
def test_a_run_that_is_dropped(recording, kind, is_streamed):
    """A program that ends while it has not read all events of a run gets no error that it would not get without hooks."""
    config = RunConfig(streaming_mode=StreamingMode.SSE if is_streamed else StreamingMode.NONE)

    def made():
        model = scripted([response("It ", partial=is_streamed, usage_metadata=used()), response("rains", usage_metadata=used())])
        agent = Agent(name="Forecaster", model=model)
        return agent if kind is Agent else SequentialAgent(name="Steps", sub_agents=[agent])

    async def program():
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context["message"]))
        runner = InMemoryRunner(made(), app_name="weather")
        await runner.session_service.create_session(app_name="weather", user_id="somebody", session_id="one")
        run = runner.run_async(user_id="somebody", session_id="one", new_message=types.UserContent("Weather?"), run_config=config)
        async for _ in run:
            break
        return said

    assert [] == asyncio.run(program())
    gc.collect()
    assert {"cancelled"} == {session.status for session in walk_sessions(recording.tree)}


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


@pytest.mark.captured("google-adk", "Runner", "cancelled", added="one line", checks=("agents", "calls"))
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
    monkeypatch.setattr("optree._capture.frameworks.adk._said", lambda _content: 1 / 0)
    monkeypatch.setattr("optree._capture.frameworks.nesting.arguments_of", lambda _sent: 1 / 0)
    assert ["It rains"] == asking.ask(lambda: asking.agent(tools=[sky]))
    assert 2 == recording.tree.session.totals.llm_requests
