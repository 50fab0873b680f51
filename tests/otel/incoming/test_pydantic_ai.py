"""A real framework under the processor: what it calls its spans may change with any release."""

import asyncio
import time

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel

from optree.testing import capture, shape
from optree_otel.incoming import OpTreeSpanProcessor, sessions
from optree_otel.incoming.processor import _read
from tests.otel.receiver import until

HELPER = ("helper", "ok", ("turn 1", "ok", ("llm test:test", "ok")))
NAMED = ("planner", None, ("turn 1", None, ("llm function:function:look:", None)))
OPS = [("tool weather", "ok"), ("tool ask_helper", "ok"), ("session helper", "ok", HELPER)]


def answer(messages, _info):
    """Think, call both tools, then say it."""
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("Sunny; the ferry goes at 9.")])
    calls = [ToolCallPart("weather", {"city": "Athens"}), ToolCallPart("ask_helper", {"question": "ferry?"})]
    return ModelResponse(parts=[ThinkingPart("two lookups"), *calls])


@pytest.fixture
def exported():
    """Return what a stock exporter got of the same spans."""
    return InMemorySpanExporter()


@pytest.fixture
def planner(exported):
    """Return an agent whose second tool asks another agent."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(OpTreeSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exported))
    seen = [Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))]
    helper = Agent(TestModel(custom_output_text="at 9"), name="helper", capabilities=seen)
    agent = Agent(FunctionModel(answer), name="planner", system_prompt="Plan trips.", capabilities=seen)

    @agent.tool_plain
    def weather(city: str) -> str:
        return f"sunny in {city}"

    @agent.tool_plain
    async def ask_helper(question: str) -> str:
        return (await helper.run(question)).output

    return agent


def test_live(planner):
    """A run is a live session: the agent that a tool asks is a child session, and the figures add up."""
    with capture(now=time.time) as recording:
        result = asyncio.run(planner.run("Plan Athens"))
    first, *others, last = shape(recording.tree)[2][2:]
    assert ({("llm function:function:answer:", "ok")}, sorted(OPS)) == ({first, last}, sorted(others))
    session = recording.tree.session
    by_name = {op.name: op for op in session.turns[0].ops}
    assert by_name["ask_helper"].path == by_name["helper"].parent_op
    assert (3, 2, result.output) == (session.totals.llm_requests, session.totals.tools_run, msgspec.json.decode(session.final_report))
    assert "two lookups" == session.turns[0].ops[0].reasoning.final
    assert (result.usage.input_tokens, result.usage.output_tokens) == tuple(
        getattr(session.totals, name) - getattr(by_name["helper"].child_session.totals, name) for name in ("input_tokens", "output_tokens")
    )


def test_while_it_runs():
    """A model call is in the tree with its model while it runs; the turn has the user's prompt, also after an earlier conversation."""
    seen = []

    def look(messages, info):
        if seen:
            return ModelResponse(parts=[TextPart("at 9")])
        seen.append(until(lambda: NAMED == shape(recording.tree)))
        return answer(messages[:1], info)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(OpTreeSpanProcessor())
    agent = Agent(
        FunctionModel(look), name="planner", capabilities=[Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))]
    )
    agent.tool_plain(lambda city: city, name="weather")
    agent.tool_plain(lambda question: question, name="ask_helper")
    with capture(now=time.time) as recording:
        before = asyncio.run(agent.run("Plan Athens"))
    assert seen[0]
    assert "Plan Athens" == recording.tree.session.turns[0].prompts["user"]
    with capture(now=time.time) as recording:
        asyncio.run(agent.run("Then Aegina", message_history=before.all_messages()))
    assert "Then Aegina" == recording.tree.session.turns[0].prompts["user"]


def test_live_and_imported(planner, exported):
    """The session that was recorded live, and the one that is made of the exported spans afterwards, are the same tree."""
    with capture(now=time.time) as recording:
        asyncio.run(planner.run("Plan Athens"))
    [imported] = sessions(map(_read, exported.get_finished_spans()))
    assert shape(recording.tree) == shape(imported)
    assert recording.tree.session.totals == imported.session.totals
