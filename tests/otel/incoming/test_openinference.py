"""Spans as OpenInference's instrumentations of Anthropic's client and of OpenAI's Agents make them: names and order as observed."""

import json
import time

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_span_in_context

from optree._providers.messages import ToolCallPart, message
from optree.testing import capture, shape
from optree_otel.incoming import OpTreeSpanProcessor, sessions
from optree_otel.incoming.processor import _read

KIND = "openinference.span.kind"
AGENTS = "openinference.instrumentation.openai_agents"
CALL = {"tool_call.id": "toolu_1", "tool_call.function.name": "weather", "tool_call.function.arguments": '{"city": "Athens"}'}
ANSWER = "llm.output_messages.0.message."


@pytest.fixture
def exported():
    """Return what a stock exporter got."""
    return InMemorySpanExporter()


@pytest.fixture
def tracers(exported):
    """Return what gives a library's tracer."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(OpTreeSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider.get_tracer


def begin(tracer, name, kind, above=None, **attributes):
    """Start a span below another."""
    return tracer.start_span(name, set_span_in_context(above) if above else None, attributes={KIND: kind, **attributes})


def told(span, name="", **attributes):
    """End a span with what it tells then."""
    span.set_attributes({key.replace("__", "."): value for key, value in attributes.items()})
    if name:
        span.update_name(name)
    span.end()


def agents_run(tracer):
    """Make the spans of a run in which one agent hands over to another, which calls a tool."""
    whole = begin(tracer, "Agent workflow", "AGENT")
    run = begin(tracer, "Agent workflow", "CHAIN", whole)
    triage = begin(tracer, "triage", "AGENT", run)
    turn = begin(tracer, "turn", "CHAIN", triage)
    answered(tracer, turn)
    told(begin(tracer, "handoff", "TOOL", turn), "handoff to ferries", input__value="triage", output__value="ferries")
    turn.end()
    told(triage, graph__node__id="triage", agent__name="triage")
    ferries = begin(tracer, "ferries", "AGENT", run)
    turn = begin(tracer, "turn", "CHAIN", ferries)
    answered(tracer, turn)
    told(begin(tracer, "timetable", "TOOL", turn), tool__name="timetable", input__value='{"to": "Aegina"}', output__value="at 9")
    turn.end()
    told(ferries, graph__node__id="ferries", agent__name="ferries", graph__node__parent_id="triage")
    run.end()
    whole.end()


def answered(tracer, above):
    """Make the span of a model call, which tells at its end whose model it was and what it was asked."""
    asked = {"llm.input_messages.1.message.role": "user", "llm.input_messages.1.message.content": "ferry?"}
    call = begin(tracer, "response", "LLM", above, **{"llm.system": "openai"})
    call.set_attributes(asked | {"llm.model_name": "gpt-4o", "llm.token_count.prompt": 30, "llm.token_count.completion": 5})
    call.end()


AGENT = ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))
EXPECTED = (
    "Agent workflow",
    "ok",
    (
        "turn 1",
        "ok",
        ("session triage", "ok", ("triage", "ok", (*AGENT, ("tool handoff to ferries", "ok")))),
        ("session ferries", "ok", ("ferries", "ok", (*AGENT, ("tool timetable", "ok")))),
    ),
)


def test_agents_that_hand_over(tracers, exported):
    """Agents, calls, tools and handoffs are there under their names, and nothing for the loops around them, live and imported alike."""
    with capture(now=time.time) as recording:
        agents_run(tracers(AGENTS))
    assert EXPECTED == shape(recording.tree)
    [imported] = sessions(map(_read, exported.get_finished_spans()))
    assert EXPECTED == shape(imported)
    assert recording.tree.session.totals == imported.session.totals
    turns = [recording.tree.session.turns[0], *(op.child_session.turns[0] for op in recording.tree.session.turns[0].ops)]
    assert [{"user": "ferry?"}] * 3 == [turn.prompts for turn in turns]
    assert [{"user": "ferry?"}] * 3 == [
        turn.prompts for turn in (imported.session.turns[0], *(op.child_session.turns[0] for op in imported.session.turns[0].ops))
    ]


def test_chains_of_others(tracers):
    """A chain of any other library is an op: there it is a step that somebody has named."""
    with capture(now=time.time) as recording:
        tracer = tracers("openinference.instrumentation.langchain")
        whole = begin(tracer, "graph", "CHAIN")
        begin(tracer, "plan", "CHAIN", whole).end()
        whole.end()
    assert ("graph", "ok", ("turn 1", "ok", ("system plan", "ok"))) == shape(recording.tree)


@pytest.mark.parametrize("listed", [True, False])
def test_tool_calls_among_the_content(tracers, listed):
    """A call that stands as a block in the content, and perhaps among the calls as well, is one call with its name and arguments."""
    block = {f"{ANSWER}contents.1.message_content.type": "tool_use", **{f"{ANSWER}contents.1.{key}": said for key, said in CALL.items()}}
    text = {f"{ANSWER}contents.0.message_content.type": "text", f"{ANSWER}contents.0.message_content.text": "let me look"}
    calls = {f"{ANSWER}tool_calls.0.{key}": said for key, said in CALL.items()} if listed else {}
    with capture(now=time.time) as recording:
        call = begin(tracers("openinference.instrumentation.anthropic"), "messages.create", "LLM", **{"llm.model_name": "claude"})
        call.set_attributes({f"{ANSWER}role": "assistant", **text, **calls, **block})
        call.end()
    op = recording.tree.session.turns[0].ops[0]
    said = message(msgspec.json.decode(op.response.payload))
    assert [("weather", "toolu_1", {"city": "Athens"})] == [
        (part.name, part.id, part.decoded()) for part in said.parts if isinstance(part, ToolCallPart)
    ]
    assert "let me look" == said.parts[0].text


def test_the_whole_request(tracers):
    """Anthropic's request, told as JSON when the call starts, and again spread over attributes later, is recorded once."""
    sent = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with capture(now=time.time) as recording:
        given = {"llm.provider": "anthropic", "input.value": json.dumps(sent), "input.mime_type": "application/json"}
        call = begin(tracers("openinference.instrumentation.anthropic"), "messages.create", "LLM", **given)
        call.set_attributes({"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "hi"})
        call.end()
    op = recording.tree.session.turns[0].ops[0]
    request = recording.tree.pool.resolve(msgspec.json.decode(op.request.payload))
    assert ("anthropic:claude", sent["messages"], 9) == (op.name, request["messages"], request["max_tokens"])
    assert 1 == len(recording.tree.pool.links)
