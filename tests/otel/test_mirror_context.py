import asyncio
import contextlib
import subprocess
import sys
import threading
from contextlib import ExitStack

import httpx
import pytest
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import optree
from optree._capture import instrument, uninstrument
from optree._ids import span_id
from tests.capture.provider import Provider, Reply
from tests.otel import mirroring
from tests.otel.mirroring import environ, trace_of


@pytest.fixture
def mirrored(tmp_path, jaeger):
    """Makes this process mirror its sessions to Jaeger, with options; what was current before is current afterwards."""
    before = context.get_current()
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(mirroring.mirrored(tmp_path, jaeger.http, **options))
    assert before == context.get_current()


@pytest.fixture
def tracer(jaeger):
    """A stock SDK's tracer, of a provider that is not the global one."""
    provider = TracerProvider(resource=Resource({"service.name": "stock"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{jaeger.http}/v1/traces")))
    yield provider.get_tracer("the tests")
    provider.shutdown()


def here():
    """Return the ids of OpenTelemetry's current span, in hex; None where there is none."""
    found = trace.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


def of(session, op):
    """Return the ids that an op's span has."""
    return trace_of(session.txn), span_id(op.node.op_id)


def by_name(jaeger, trace_id, count):
    """Return the spans of a trace by their names."""
    return {span.name: span for span in jaeger.wait_for_trace(trace_id, count)}


def test_inside_an_op_its_span_is_the_current_one(mirrored):
    """In nested ops, after them, across threads, in generators and between tasks the current span is the innermost open op's."""
    mirrored()
    with optree.session("lead") as session, optree.turn():
        outside = here()
        with optree.tool("outer") as outer:
            assert of(session, outer) == here()
            with optree.tool("inner") as inner:
                assert of(session, inner) == here()
            assert of(session, outer) == here()
            seen = []
            for run in (optree.wrap(lambda: seen.append(here())), lambda: seen.append(here())):
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
            assert [of(session, outer), None] == seen
        assert outside == here()
    assert here() is None


def test_across_await(mirrored):
    """Tasks that run at once see their own op's span, before and after each await."""
    mirrored()

    async def one(session):
        async with optree.tool("one") as op:
            for _ in range(3):
                assert of(session, op) == here()
                await asyncio.sleep(0)

    async def main():
        async with optree.session("lead") as session, optree.turn():
            around = here()
            await asyncio.gather(*(one(session) for _ in range(4)))
            assert around == here()

    asyncio.run(main())
    assert here() is None


def test_in_generators(mirrored):
    """A traced generator has its op's span inside, and its caller's own outside; also one that is closed early, and an async one."""
    mirrored()
    inside = []

    @optree.tool
    def numbers():
        for number in range(3):
            inside.append(here())
            yield number

    @optree.tool
    async def numbers_later():
        for number in range(3):
            inside.append(here())
            yield number

    async def drain():
        async with contextlib.aclosing(numbers_later()) as found:
            async for _ in found:
                assert around == here()

    with optree.session("lead") as session, optree.turn():
        around = here()
        for _ in numbers():
            assert around == here()
        closed = numbers()
        next(closed)
        closed.close()
        assert around == here()
        asyncio.run(drain())
        ops = session.tree.session.turns[0].ops
    assert [span_id(ops[place].op_id) for place in (0, 0, 0, 1, 2, 2, 2)] == [found[1] for found in inside]


def test_in_a_generator_with_blocks_of_its_own(mirrored):
    """A traced generator that yields within a block of its own has the block's span inside, and its caller's own outside."""
    mirrored()
    inside = []

    @optree.session(agent="assistant")
    def answer():
        inside.append(here())
        with optree.turn(), optree.tool("look"):
            for number in range(2):
                inside.append(here())
                yield number
        inside.append(here())
        yield 2

    with optree.session("lead"), optree.turn():
        around = here()
        for _ in answer():
            assert around == here()
    around, look, again, behind = inside
    assert (look, around) == (again, behind)
    assert look != around
    assert None is here()


def test_a_stock_span_inside_an_op_hangs_under_it(mirrored, tracer, jaeger):
    """What other instrumentation makes inside an op is in the op's trace, below its span; the global provider is as it was."""
    provider = trace.get_tracer_provider()
    mirrored()
    query = tracer.start_as_current_span("query")
    with optree.session("lead") as session, optree.turn(), optree.tool("search") as op, query, optree.tool("within") as within:
        assert of(session, within) == here()
    assert optree.flush("export", 20)
    spans = by_name(jaeger, trace_of(session.txn), 5)
    assert span_id(op.node.op_id) == spans["query"].parent_id
    assert spans["execute_tool search"].span_id == spans["execute_tool within"].parent_id
    assert [] == [warning for span in jaeger.shown(trace_of(session.txn)) for warning in span.warnings]
    assert provider is trace.get_tracer_provider()


@pytest.mark.parametrize("parent", ["child", "link", "ignore"])
def test_a_session_inside_a_stock_span(mirrored, tracer, jaeger, parent):
    """It becomes its child, is linked to it, or knows nothing of it, as the option says."""
    mirrored(parent=parent)
    with tracer.start_as_current_span("request") as request:
        around = here()
        with optree.session("lead") as session, optree.turn():
            pass
        assert around == here()
    assert optree.flush("export", 20)
    trace_id, request_id = f"{request.get_span_context().trace_id:032x}", f"{request.get_span_context().span_id:016x}"
    spans = by_name(jaeger, trace_id if parent == "child" else trace_of(session.txn), 3 if parent == "child" else 2)
    root = spans["invoke_agent lead"]
    assert (request_id if parent == "child" else "") == root.parent_id
    assert ([(trace_id, request_id)] if parent == "link" else []) == [(link.trace_id, link.span_id) for link in root.links]


def test_what_leaves_the_process_names_the_op(mirrored, tracer):
    """The header that OpenTelemetry injects and the environment of a child process name the span that the mirror sends."""
    mirrored()
    with tracer.start_as_current_span("request"), optree.session("lead") as session, optree.turn(), optree.tool("call"):
        carrier = {}
        propagate.inject(carrier)
        assert "-".join(["00", *here(), "01"]) == carrier["traceparent"] == optree.child_env({})["TRACEPARENT"]
        assert trace_of(session.txn) not in carrier["traceparent"]


def test_a_trace_per_turn_is_told_to_children(mirrored):
    """With a trace for each turn, a child process is given its turn's."""
    mirrored(trace_per_turn=True)
    with optree.session("lead"), optree.turn(), optree.tool("call"):
        assert "-".join(["00", *here(), "01"]) == optree.child_env({})["TRACEPARENT"]


def test_without_a_mirror_children_are_told_the_same(tmp_path):
    """The ids follow from the names: a process that mirrors nothing gives those that a mirror would send."""
    code = (
        "import optree\n"
        "with optree.session('lead') as s, optree.turn(), optree.tool('call') as op:\n"
        "    from optree._ids import span_id, trace_id\n"
        "    print(optree.child_env({})['TRACEPARENT'] == f'00-{trace_id(s.txn)}-{span_id(op.node.op_id)}-01')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ(tmp_path), capture_output=True, text=True, check=True)
    assert "True\n" == done.stdout


@pytest.fixture
def provider():
    """Answers as OpenAI does, by httpx's calls, which are recorded meanwhile."""
    provider = Provider()
    provider.says(Reply({"model": "gpt-5", "choices": [{"message": {"role": "assistant", "content": "It rains"}}]}))
    instrument(("httpx",))
    yield provider
    uninstrument()
    provider.close()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_in_what_sends_a_captured_call(mirrored, jaeger, tracer, provider, is_awaited, fails):
    """What traces an HTTP client stands below the op of the call that is sent: its span has the op's as parent, also where it fails."""
    mirrored()

    class Sent(httpx.HTTPTransport):
        def handle_request(self, request):
            with tracer.start_as_current_span("POST"):
                if fails:
                    raise httpx.ConnectError("refused", request=request)
                return super().handle_request(request)

    class SentLater(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            with tracer.start_as_current_span("POST"):
                if fails:
                    raise httpx.ConnectError("refused", request=request)
                return await super().handle_async_request(request)

    asked = {"model": "gpt-5", "messages": [{"role": "user", "content": "Weather?"}]}

    async def ask_later():
        async with httpx.AsyncClient(transport=SentLater()) as client:
            await client.post(f"{provider.url}/v1/chat/completions", json=asked)

    def ask():
        with httpx.Client(transport=Sent()) as client:
            client.post(f"{provider.url}/v1/chat/completions", json=asked)

    with optree.session("lead") as session, optree.turn() as turn:
        outside = here()
        with pytest.raises(httpx.ConnectError) if fails else contextlib.nullcontext():
            asyncio.run(ask_later()) if is_awaited else ask()
        assert outside == here()
    [op] = turn.node.ops
    spans = by_name(jaeger, trace_of(session.txn), 4)
    assert (span_id(op.op_id), "llm") == (spans["POST"].parent_id, op.kind)
