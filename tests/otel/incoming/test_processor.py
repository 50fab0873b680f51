import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

import optree
from optree import _records as records
from optree._tracing.runtime import RUNTIME
from optree.testing import capture, shape
from optree_otel.incoming import OpTreeSpanProcessor
from optree_otel.incoming import processor as processor_module
from tests.otel.incoming.made import AGENT, LLM, TOOL
from tests.otel.mirroring import environ

KILLED = """
import json, os, signal
import optree
from opentelemetry.sdk.trace import TracerProvider
from optree_otel import OpTreeSpanProcessor
from tests.otel.incoming.made import LLM
provider = TracerProvider()
provider.add_span_processor(OpTreeSpanProcessor())
asked = [{"role": "user", "parts": [{"type": "text", "content": "ferry?"}]}]
with optree.session("mine"):
    provider.get_tracer("program").start_span("chat gpt-4o", attributes=LLM | {"gen_ai.input.messages": json.dumps(asked)})
    os.kill(os.getpid(), signal.SIGKILL)
"""
HELD = ("planner", None, ("turn 1", None))


@pytest.fixture
def recording():
    """Record in memory what is recorded."""
    with capture(now=time.time) as made:
        yield made


@pytest.fixture
def processor():
    """Return a processor."""
    return OpTreeSpanProcessor()


@pytest.fixture
def tracer(processor):
    """Return a tracer of a program whose spans are recorded."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider.get_tracer("program")


def below(span):
    """Return the context of what happens within a span."""
    return set_span_in_context(span)


def asked(tree, op):
    """Return the messages that a call sent."""
    return tree.pool.resolve(msgspec.json.decode(op.request.payload))["messages"]


def until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_live(tracer, recording):
    """Each span is there as soon as it starts, and what it has told at the end as soon as it ends."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    assert HELD == shape(recording.tree)
    call = tracer.start_span("chat gpt-4o", below(agent), attributes=LLM)
    assert ("planner", None, ("turn 1", None, ("llm openai:gpt-4o", None))) == shape(recording.tree)
    call.set_attribute("gen_ai.usage.input_tokens", 12)
    call.set_attribute("gen_ai.output.messages", '[{"role":"assistant","parts":[{"type":"text","content":"so"}]}]')
    call.end()
    assert 12 == recording.tree.session.totals.input_tokens
    op = recording.tree.session.turns[0].ops[0]
    assert ({"role": "assistant", "content": "so"}, "ok") == (msgspec.json.decode(op.response.payload), op.status)
    agent.end()
    assert ("planner", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) == shape(recording.tree)


def test_switched_off(tracer, processor, recording):
    """Spans that start while optree is switched off are not recorded; one that is open goes on to its end."""
    with tracer.start_as_current_span("invoke_agent planner", attributes=AGENT):
        optree.configure(enabled=False)
        tracer.start_span("chat gpt-4o", attributes=LLM).end()
    tracer.start_span("invoke_agent planner", attributes=AGENT).end()
    assert ("planner", "ok", ("turn 1", "ok")) == shape(recording)
    assert (1, 0) == (len(recording.sessions), processor.forgotten)


def test_times(tracer, recording):
    """Starts and ends are those of the spans, also where a program gives its own."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT, start_time=10**18)
    tracer.start_span("chat gpt-4o", below(agent), attributes=LLM, start_time=10**18 + 5 * 10**6).end(10**18 + 9 * 10**6)
    agent.end(10**18 + 10**9)
    session = recording.tree.session
    op = session.turns[0].ops[0]
    assert [1e12, 1e12, 1e12 + 5, 1e12 + 9, 4.0, 1e12 + 1000] == [
        session.started_at, session.turns[0].started_at, op.started_at, op.ended_at, op.latency, session.ended_at
    ]  # fmt: skip


def test_records(tracer, recording):
    """The records, folded, are the live tree: what is on disk cannot differ from it."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    nested = tracer.start_span("invoke_agent reader", below(agent), attributes={**AGENT, "gen_ai.agent.name": "reader"})
    call = tracer.start_span("chat gpt-4o", below(nested), attributes=LLM | {"gen_ai.usage.input_tokens": 3})
    call.record_exception(ValueError("no luck"))
    call.set_status(Status(StatusCode.ERROR, "no luck"))
    for span in (call, nested, agent):
        span.end()
    fold = optree._tree.Fold(recording.tree.session.origin_txn_id)
    for record in recording.records:
        fold.apply(record)
    assert msgspec.json.encode(recording.tree) == msgspec.json.encode(fold.finish())


def test_told_late(tracer, recording):
    """An LLM call that says a moment after its start what it is begins then, with its own start and its full name."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    call = tracer.start_span("ChatCompletion", below(agent))
    assert HELD == shape(recording.tree)
    call.set_attributes({"llm.system": "openai", "llm.invocation_parameters": '{"model":"gpt-4o"}'})
    until(lambda: recording.tree.session.turns[0].ops)
    op = recording.tree.session.turns[0].ops[0]
    assert ("llm", "openai:gpt-4o", call.start_time / 1_000_000) == (op.kind, op.name, op.started_at)
    call.end()
    agent.end()


def test_told_in_part(tracer, recording, monkeypatch):
    """An LLM call that does not say whose it is begins all the same, after the last look."""
    monkeypatch.setattr(processor_module, "LOOKS", (0.0, 0.01))
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    call = tracer.start_span("chat gpt-4o", below(agent), attributes={"gen_ai.operation.name": "chat"})
    until(lambda: recording.tree.session.turns[0].ops)
    assert ("llm", "chat gpt-4o") == (recording.tree.session.turns[0].ops[0].kind, recording.tree.session.turns[0].ops[0].name)
    call.set_attributes(LLM | {"gen_ai.usage.input_tokens": 5})
    call.end()
    agent.end()
    [entry] = recording.tree.session.turns[0].ops[0].accounting
    assert ("openai", "gpt-4o", 5) == (entry.provider, entry.model, entry.tokens.input_tokens)


def test_asked_at_the_start(tracer, recording):
    """A call that tells its messages when it starts is in the tree with them while it runs, once; its turn has the user's words."""
    said = [{"role": "user", "parts": [{"type": "text", "content": "ferry?"}]}]
    call = tracer.start_span("chat gpt-4o", attributes=LLM | {"gen_ai.input.messages": json.dumps(said)})
    session = recording.tree.session
    op = session.turns[0].ops[0]
    assert ("llm", "openai:gpt-4o", None) == (op.kind, op.name, op.ended_at)
    assert [{"role": "user", "content": "ferry?"}] == asked(recording.tree, op)
    assert {"user": "ferry?"} == session.turns[0].prompts
    call.end()
    assert 1 == sum(isinstance(record, records.Requested) for record in recording.records)


def test_without_content(tracer, recording):
    """With content off, no text of a span's attributes or events is recorded, under whatever name; numbers, words and ids are."""
    said = "Jane Doe is ill"
    optree.configure(content=False)
    agent = tracer.start_span(
        "invoke_agent planner", attributes=AGENT | {"langfuse.trace.input": said, "tenant": "acme", "gen_ai.agent.description": said}
    )
    of_call = {"gcp.vertex.agent.llm_request": json.dumps({"contents": said}), "gen_ai.prompt": "ill", "llm.prompts.0": said}
    call = tracer.start_span("chat gpt-4o", below(agent), attributes=LLM | of_call | {"gen_ai.response.finish_reasons": ["stop"]})
    call.add_event("gen_ai.user.message", {"content": said})
    call.add_event("llm.content.completion.chunk", {"llm.chunk": said, "llm.number": 1})
    call.set_attribute("ai.response.text", said)
    call.end()
    of_tool = {"gcp.vertex.agent.tool_call_args": said, "mlflow.spanInputs": ["ill"], "gen_ai.tool.description": said}
    tracer.start_span("execute_tool ferries", below(agent), attributes=TOOL | of_tool).end()
    agent.end()
    written = msgspec.json.encode(recording.records)
    for word in (b"Jane", b'"ill"'):
        assert word not in written
    assert ["stop"] == recording.tree.session.turns[0].ops[0].attributes["gen_ai.response.finish_reasons"]
    for kept in (b'"tenant":"acme"', b'"message":"llm.content.completion.chunk","details":{"llm.number":1}'):
        assert kept in written


def test_asked_late(tracer, recording):
    """What a call tells after its start is added while it still runs: its model, its name, and what it asks."""
    call = tracer.start_span("messages.create", attributes={"openinference.span.kind": "LLM", "llm.provider": "anthropic"})
    op = recording.tree.session.turns[0].ops[0]
    assert "anthropic" == op.name
    call.set_attributes(
        {"llm.model_name": "claude", "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "hi"}
    )
    until(lambda: recording.tree.session.turns[0].ops[0].request)
    op = recording.tree.session.turns[0].ops[0]
    assert ("anthropic:claude", "claude", None) == (op.name, op.attributes["model"], op.ended_at)
    call.end()


def test_asked_in_the_providers_form(tracer, recording):
    """Where a call's whole request is told at its start as JSON, model, messages and the other members are taken from it."""
    request = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "system": "be brief"}
    given = {"openinference.span.kind": "LLM", "llm.provider": "anthropic", "input.value": json.dumps(request)}
    call = tracer.start_span("messages.create", attributes=given)
    op = recording.tree.session.turns[0].ops[0]
    assert ("anthropic:claude", [{"role": "user", "content": "hi"}]) == (op.name, asked(recording.tree, op))
    members = msgspec.json.decode(op.request.payload)
    assert ("claude", 9, "be brief") == tuple(members[name] for name in ("model", "max_tokens", "system"))
    call.end()


def test_killed(tmp_path):
    """Of a process that is killed in the middle of a call the tree has the call, with its model and what it asked, and how long it ran."""
    done = subprocess.run([sys.executable, "-c", KILLED], env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert -9 == done.returncode, done.stderr
    loaded = optree.load("last", optree.Directory.of(tmp_path))
    [op] = loaded.session.turns[0].ops
    assert ("llm", "openai:gpt-4o", None) == (op.kind, op.name, op.status)
    assert [{"role": "user", "content": "ferry?"}] == asked(loaded.tree, op)
    assert ({"user": "ferry?"}, op.started_at) == (loaded.session.turns[0].prompts, loaded.session.turns[0].started_at)


def test_turn_begins_with_its_call(tracer, recording):
    """Where the program has opened no turn, one begins and ends with the calls in it."""
    with optree.session("mine"):
        call = tracer.start_span("a call")
        call.set_attributes(LLM)
        call.end()
    session = recording.tree.session
    [turn] = session.turns
    [op] = turn.ops
    assert op.started_at == turn.started_at
    assert op.ended_at <= turn.ended_at <= session.ended_at


def test_late_ends(tracer, recording):
    """What ends after the turn and the session around it lets both last as long, in the live tree and in the records."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    nested = tracer.start_span("invoke_agent reader", below(agent), attributes={**AGENT, "gen_ai.agent.name": "reader"})
    call = tracer.start_span("chat gpt-4o", below(nested), attributes=LLM)
    for span in (nested, agent, call):
        span.end()
    session = recording.tree.session
    child = session.turns[0].ops[0].child_session
    ends = {node.ended_at for node in (child.turns[0].ops[0], child.turns[0], child, session.turns[0], session)}
    assert {call.end_time / 1_000_000} == ends
    fold = optree._tree.Fold(session.origin_txn_id)
    for record in recording.records:
        fold.apply(record)
    assert msgspec.json.encode(recording.tree) == msgspec.json.encode(fold.finish())


def test_links_and_sampling(processor, recording):
    """A span with links is recorded as any other; one whose parent was sampled out begins anew; one that is sampled out is nothing."""

    class Some(Sampler):
        def should_sample(self, *given):
            _, _, name, _, attributes, *_ = given
            return SamplingResult(Decision.DROP if name == "GET /" else Decision.RECORD_AND_SAMPLE, attributes)

        def get_description(self):
            return "all but requests"

    provider = TracerProvider(sampler=Some(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("program")
    dropped = tracer.start_span("GET /")
    link = Link(SpanContext(1, 2, is_remote=True))
    tracer.start_span("invoke_agent planner", below(dropped), attributes=AGENT, links=[link]).end()
    dropped.end()
    assert ("planner", "ok", ("turn 1", "ok")) == shape(recording.tree)
    assert (1, 0) == (len(recording.sessions), processor.forgotten)


def test_told_at_the_end(tracer, recording, monkeypatch):
    """A span that tells only at its end what it was is recorded then; one that has to hold others before is a `system` op, and billed."""
    monkeypatch.setattr(processor_module.Later, "add", lambda *_: None)
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    call, holder = tracer.start_span("a", below(agent)), tracer.start_span("b", below(agent))
    inner = tracer.start_span("execute_tool search", below(holder), attributes=TOOL)
    for span in (call, holder):
        span.set_attributes(LLM | {"gen_ai.usage.input_tokens": 5})
    for span in (inner, holder, call, agent):
        span.end()
    ops = [("system b", "ok"), ("tool search", "ok"), ("llm openai:gpt-4o", "ok")]
    assert ("planner", "ok", ("turn 1", "ok", *ops)) == shape(recording.tree)
    assert 10 == recording.tree.session.totals.input_tokens


def test_in_between(tracer, recording):
    """Spans between and beside are `system` ops; those of a program that no agent has to do with are nothing."""
    with tracer.start_as_current_span("GET /"), tracer.start_as_current_span("SELECT"):
        pass
    assert [] == recording.sessions
    with tracer.start_as_current_span("GET /"), tracer.start_as_current_span("step"):
        with tracer.start_as_current_span("chat gpt-4o", attributes=LLM), tracer.start_as_current_span("POST"):
            pass
        with tracer.start_as_current_span("SELECT"):
            pass
    ops = [("system step", "ok"), ("llm openai:gpt-4o", "ok"), ("system POST", "ok"), ("system SELECT", "ok")]
    assert ("GET /", "ok", ("turn 1", "ok", *ops)) == shape(recording.tree)
    assert [None, "1.1", "1.2", "1.1"] == [op.parent_op for op in recording.tree.session.turns[0].ops]


def test_bare_call(tracer, recording):
    """A call that nothing is around stands in a session named after its service, which ends with it."""
    tracer.start_span("chat gpt-4o", attributes=LLM).end()
    assert ("shop", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) == shape(recording.tree)


def test_inside_optree(tracer, recording):
    """Inside a session that the program's own decorators have opened, spans become ops of that session."""
    used = LLM | {"gen_ai.usage.input_tokens": 4}
    with (
        optree.session("mine"),
        optree.turn(),
        optree.tool("search"),
        tracer.start_as_current_span("invoke_agent planner", attributes=AGENT),
    ):
        tracer.start_span("chat gpt-4o", attributes=used).end()
    inner = ("planner", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok")))
    assert ("mine", "ok", ("turn 1", "ok", ("tool search", "ok"), ("session planner", "ok", inner))) == shape(recording.tree)
    assert (4, "1.1") == (recording.tree.session.totals.input_tokens, recording.tree.session.turns[0].ops[1].parent_op)


def test_remote_parent(tracer, recording):
    """A span whose parent is another process's begins a session."""
    parent = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))
    tracer.start_span("invoke_agent planner", below(parent), attributes=AGENT).end()
    assert ("planner", "ok", ("turn 1", "ok")) == shape(recording.tree)
    assert f"{2:016x}" == recording.tree.session.attributes["ingress"]["parentSpanId"]


def test_own_spans(processor, recording):
    """Spans of optree itself are not recorded again."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    provider.get_tracer("optree").start_span("invoke_agent planner", attributes=AGENT).end()
    assert ([], 0) == (recording.sessions, processor.forgotten)


def test_out_of_order(tracer, recording):
    """A span that ends after the one around it, or after the session, is recorded with its own end; one that never ends stays open."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    tool = tracer.start_span("execute_tool search", below(agent), attributes=TOOL)
    call = tracer.start_span("chat gpt-4o", below(tool), attributes=LLM)
    tracer.start_span("execute_tool never", below(agent), attributes={**TOOL, "gen_ai.tool.name": "never"})
    tool.end()
    agent.end()
    call.set_attribute("gen_ai.usage.input_tokens", 8)
    call.end()
    ops = [("tool search", "ok"), ("llm openai:gpt-4o", "ok"), ("tool never", None)]
    assert ("planner", "ok", ("turn 1", "ok", *ops)) == shape(recording.tree)
    assert (8, call.end_time / 1_000_000) == (recording.tree.session.totals.input_tokens, recording.tree.session.turns[0].ops[1].ended_at)


def test_threads(tracer, recording):
    """Spans of many threads in one session: each is there once, under its own path, and each figure is counted."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)

    def work():
        for _ in range(50):
            with tracer.start_as_current_span("execute_tool search", below(agent), attributes=TOOL) as tool:
                tracer.start_span("chat gpt-4o", below(tool), attributes=LLM | {"gen_ai.usage.input_tokens": 1}).end()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agent.end()
    ops = recording.tree.session.turns[0].ops
    assert (800, 800, {"ok"}) == (len(ops), len({op.path for op in ops}), {op.status for op in ops})
    by_path = {op.path: op for op in ops}
    assert {"tool"} == {by_path[op.parent_op].kind for op in ops if op.kind == "llm"}
    assert (400, 400) == (recording.tree.session.totals.input_tokens, recording.tree.session.totals.tools_run)


def test_parallel_sessions(tracer, recording):
    """Traces that go on at once are sessions of their own."""
    agents = [tracer.start_span("invoke_agent planner", attributes={**AGENT, "gen_ai.agent.name": name}) for name in "abc"]
    for agent in agents:
        tracer.start_span("chat gpt-4o", below(agent), attributes=LLM).end()
    for agent in agents:
        agent.end()
    expected = [(name, "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) for name in "abc"]
    assert expected == [shape(session.tree) for session in recording.sessions]


def test_never_raises(tracer, recording, monkeypatch):
    """A fault of recording does not reach the program, and `health` tells of it."""
    monkeypatch.setattr(RUNTIME.problems, "reported", [])
    monkeypatch.setattr(processor_module.content, "of_agent", lambda *_: 1 / 0)
    tracer.start_span("invoke_agent planner", attributes=AGENT).end()
    assert 1 == len(recording.sessions)
    assert "a span of 'invoke_agent planner' is not recorded: ZeroDivisionError: division by zero" in optree.health()["problems"]


def test_nothing_kept(tracer, processor, recording):
    """After its end nothing of a trace is kept, also where spans have ended in any order."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    late = tracer.start_span("step", below(agent))
    inner = tracer.start_span("chat gpt-4o", below(late), attributes=LLM)
    for span in (agent, inner, late):
        span.end()
    assert (1, 0, {}) == (len(recording.sessions), processor._live._count, processor._live._traces)


def test_too_many(tracer, processor, recording, monkeypatch):
    """Spans that never end are forgotten beyond a limit, but for those that something is recorded of."""
    monkeypatch.setattr(processor_module, "MOST_OPEN", 20)
    monkeypatch.setattr(processor._live, "_most", 20)
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    kept = [tracer.start_span("GET /") for _ in range(50)]
    assert 0 < processor.forgotten <= len(kept)
    assert processor._live._count <= 21
    agent.end()
    assert "ok" == recording.tree.session.status


def test_late_processor(processor, recording):
    """A span whose start was never seen is counted, not guessed."""
    provider = TracerProvider(shutdown_on_exit=False)
    span = provider.get_tracer("program").start_span("invoke_agent planner", attributes=AGENT)
    processor.on_end(span)
    assert (1, []) == (processor.forgotten, recording.sessions)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="left out: this system has no fork")
def test_fork(tracer, recording):
    """A forked child begins with no open spans, and a lock that nobody holds."""
    agent = tracer.start_span("invoke_agent planner", attributes=AGENT)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if not child:
        tracer.start_span("chat gpt-4o", attributes=LLM).end()
        os.write(writing, str(len(recording.sessions)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"2" == os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    agent.end()


def test_collected():
    """A processor that is not used any more is not kept alive."""
    processor = OpTreeSpanProcessor()
    reference = weakref.ref(processor)
    del processor
    gc.collect()
    assert reference() is None


def test_flush(tracer, processor, recording):
    """Flushing and shutting down deliver what is recorded; what is open stays open."""
    tracer.start_span("invoke_agent planner", attributes=AGENT)
    assert processor.force_flush(1000)
    processor.shutdown()
    assert HELD == shape(recording.tree)


def test_on_disk(tracer, tmp_path, monkeypatch):
    """A session that was recorded from spans is on disk as any other, with its bill."""
    monkeypatch.setattr(RUNTIME, "config", msgspec.structs.replace(RUNTIME.config, base_dir=tmp_path, console=False))
    with tracer.start_as_current_span("invoke_agent planner", attributes=AGENT):
        tracer.start_span("chat gpt-4o", attributes=LLM | {"operation.cost": 0.5}).end()
    assert optree.flush("snapshot", 60)
    loaded = optree.load("last", optree.Directory.of(tmp_path))
    assert ("planner", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) == shape(loaded.tree)
    assert (0.5, "clean", 1) == (
        loaded.session.totals.cost_usd, loaded.damage.state, len((tmp_path / "accounting.jsonl").read_text().splitlines())
    )  # fmt: skip
