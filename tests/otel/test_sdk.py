"""Spans through opentelemetry-sdk: the same as by our own encoder, and what is told of their delivery stays true."""

import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import optree
from optree_otel import make
from optree_otel.otlp.sdk import SdkTransport
from optree_otel.otlp.sdk_spans import read
from optree_otel.session_exporter import SavedView, SessionExporter, nodes
from optree_otel.settings import Destination, resolve
from optree_otel.signals.resource import request
from optree_otel.signals.spans import REMOTE_PARENT, Link, Span, SpanEvent, encode_span
from tests.otel import receiver as fake
from tests.otel.backends.jaeger import Jaeger
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import delivered_whole, environ, expected, loaded, mirrored, run, seen, trace_of, unsent
from tests.otel.receiver import PROTOCOLS, receiver
from tests.otel.signals.test_protobuf import resource_bytes
from tests.otel.tree_of_all import tree_of_all
from tests.strategies import play, programs

SUCCESS, FAILURE = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


class Taking(SpanProcessor):
    """Keeps what it is handed, and counts what it is told."""

    def __init__(self):
        self.spans, self.flushed, self.shut_down = [], 0, 0

    def on_end(self, span):
        """Keep it."""
        self.spans.append(span)

    def force_flush(self, timeout_millis=30_000):  # noqa: ARG002 - the SDK's form
        """Count it."""
        self.flushed += 1
        return True

    def shutdown(self):
        """Count it."""
        self.shut_down += 1


class Answering(SpanExporter):
    """Answers as it is told, the last of it for ever: a result, or an exception; keeps what it has taken."""

    def __init__(self, *answers):
        self.answers, self.taken, self.late, self.asked, self.shut_down = list(answers), [], [], 0, 0

    def export(self, spans):
        """Answer."""
        self.asked += 1
        self.late += spans if self.shut_down else []
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is not FAILURE:
            self.taken += spans
        return answer

    def shutdown(self):
        """Count it."""
        self.shut_down += 1


def told(message):
    """Return the spans of a request by their ids, each with all that is said of it, its resource and its scope, in bytes."""
    return {
        span.span_id: (group.resource.SerializeToString(), group.schema_url, part.scope.SerializeToString(), part.schema_url, span)
        for group in message.resource_spans
        for part in group.scope_spans
        for span in part.spans
    }


def by_us(collector):
    """Return what a receiver got."""
    return {key: value for one in collector.received if one.signal == "traces" for key, value in told(one.message).items()}


def ids(spans):
    """Return the ids of spans, in hex, sorted."""
    return sorted(f"{span.context.span_id:016x}" for span in spans)


def by_id(spans):
    """Return a backend's spans in order."""
    return sorted(spans, key=lambda span: span.span_id)


def send(mirror, tree, folder):
    """Send a tree by a mirror, with content, and wait until it is there."""
    one = SessionExporter(
        SavedView(tree),
        folder,
        "0000",
        resources=mirror.resources,
        profile=mirror.profile,
        addressee=mirror.addressee,
        content=True,
        saved=False,
    )
    mirror.send(one, [key for key, _ in nodes(tree.session)])
    assert mirror.flush(60)


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    """A function that sends a tree by our encoder and through the SDK, and returns what came, three times: ours, exporter, processor."""
    memory, taking, folder = InMemorySpanExporter(), Taking(), tmp_path_factory.mktemp("both")
    with receiver("http/protobuf") as collector:
        off = {"OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in off.items():
                patch.setenv(name, value)
            ours, theirs = make({"endpoint": collector.endpoint}), make({"exporter": [memory, taking]})

        def both(tree):
            memory.clear()
            collector.received.clear()
            taking.spans.clear()
            send(ours, tree, folder)
            send(theirs, tree, folder)
            return by_us(collector), told(encode_spans(memory.get_finished_spans())), told(encode_spans(taking.spans))

        yield both
        ours.close(1.0)
        theirs.close(1.0)


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_both_ways_have_the_same_spans(program, both_ways):
    """Of any session: ids, parents, kinds, times, attributes, events, links, status, flags, counts of what was dropped, resource, scope."""
    tree = play(program).live
    ours, exporter, processor = both_ways(tree)
    assert len(list(nodes(tree.session))) == len(ours)
    assert (ours, ours) == (exporter, processor)


def test_both_ways_have_the_same_spans_of_a_tree_with_everything(both_ways):
    """The same where each field of each node has a value."""
    ours, exporter, processor = both_ways(tree_of_all().tree)
    assert (ours, ours) == (exporter, processor)


def test_all_of_a_span_comes_back():
    """Also what our sessions seldom have: a trace state, remote parents and links, counts of what was dropped, values of all types."""
    values = {"text": "Ω", "none": None, "yes": True, "big": 1 << 60, "ratio": 0.5, "raw": b"\0\xff", "list": ["a", 1], "map": {"in": [{}]}}
    far = Link(b"L" * 16, b"l" * 8, [("why", "cause")], 2, REMOTE_PARENT)
    base = (b"t" * 16, b"s" * 8, b"p" * 8, "name", 5, 7, 9, list(values.items()))
    rich = Span(*base, [SpanEvent(8, "event", [("n", 1)], 3)], [far], 2, "boom", (), "a=1,b=2", REMOTE_PARENT, 4, 5, 6)
    poor = Span(b"t" * 16, b"r" * 8, b"", "", 1, 1, 2, [])
    body = request([(resource_bytes(), [encode_span(rich), encode_span(poor)])])
    assert body == encode_spans(read(body)).SerializeToString()
    assert [True, True] == [span.context.trace_flags.sampled for span in read(body)]


def test_a_running_program(tmp_path):
    """What a program does goes through while it runs, once each; nothing is sent anywhere else, and the session counts as delivered."""
    memory, taking = InMemorySpanExporter(), Taking()
    with mirrored(tmp_path, "", exporter=[memory, taking]):
        with optree.session("lead") as session, optree.turn(user="hello"), optree.llm(provider="openai", model="gpt-4o") as op:
            op.log("asked")
        assert optree.flush("export", 20)
        health = optree.health()["otel"]
        wanted = sorted(one.span_id for one in expected(loaded(tmp_path, session.txn).session))
        assert (3, []) == (health.pop("traces")["delivered"], health.pop("problems"))
        assert {"others": {}, "unsampled": 0, "delivering": 0} == health
    assert (wanted, wanted) == (ids(memory.get_finished_spans()), ids(taking.spans))
    assert (True, 1) == (taking.flushed >= 1, taking.shut_down)
    assert delivered_whole(tmp_path, session.txn)


class Called:
    """A processor that is no subclass, as LangSmith's is none: a tracer provider takes such a one too."""

    def __init__(self):
        self.spans = []

    def on_start(self, span, parent_context=None):
        """Do nothing."""

    def on_end(self, span):
        """Keep it."""
        self.spans.append(span)

    def force_flush(self, timeout_millis=30_000):  # noqa: ARG002 - the SDK's form
        """Hold nothing back."""
        return True

    def shutdown(self):
        """Do nothing."""


def test_a_processor_that_is_no_subclass(tmp_path):
    """What has a processor's methods gets the spans."""
    called = Called()
    with mirrored(tmp_path, "", exporter=called):
        with optree.session("lead"), optree.turn(user="hello"):
            pass
        assert optree.flush("export", 20)
    assert ["turn 1", "invoke_agent lead"] == [span.name for span in called.spans]


def test_the_live_trace_goes_the_same_way(tmp_path):
    """Both traces come, from two threads that call it one at a time; it is shut down once neither needs it, and not before."""
    busy = threading.Lock()

    class Alone(Answering):
        def export(self, spans):
            assert busy.acquire(blocking=False)
            try:
                return super().export(spans)
            finally:
                busy.release()

    with mirrored(tmp_path, "", exporter=(exporter := Alone(SUCCESS)), live=True):
        with optree.session("lead"), optree.turn(), optree.tool("search"):
            pass
        assert optree.flush("export", 20)
        assert 0 == exporter.shut_down
        services = [span.resource.attributes["service.name"] for span in exporter.taken]
        assert (3, {"lead", "lead live"}) == (services.count("lead"), set(services))
    assert (1, []) == (exporter.shut_down, exporter.late)


def test_the_end_shuts_down_what_fails_too(tmp_path):
    """Also in the middle of a pause before the next attempt."""
    with mirrored(tmp_path, "", exporter=(exporter := Answering(FAILURE))):
        with optree.session("lead"):
            pass
        assert wait_for(lambda: exporter.asked)
    assert 1 == exporter.shut_down


@pytest.mark.parametrize("failing", [FAILURE, OSError("no route"), TimeoutError()], ids=str)
def test_what_fails_is_sent_again(tmp_path, failing):
    """FAILURE, and what the network raises, is tried again until it is taken: delivered means SUCCESS, and nothing else."""
    exporter = Answering(failing)
    with mirrored(tmp_path, "", exporter=exporter):
        with optree.session("lead") as session, optree.turn():
            pass
        assert not optree.flush("export", 1)
        assert wait_for(lambda: exporter.asked)
        health = optree.health()["otel"]
        assert (0, [session.txn]) == (health["traces"]["delivered"], unsent(tmp_path))
        assert "Answering" in " ".join(health["problems"])
        exporter.answers = [SUCCESS]
        assert wait_for(lambda: optree.flush("export", 10))
        assert (2, 2) == (optree.health()["otel"]["traces"]["delivered"], len(set(ids(exporter.taken))))
    assert (2, 1) == (len(exporter.taken), exporter.shut_down)
    assert delivered_whole(tmp_path, session.txn)


def outcome(*exporters):
    """Return what becomes of one request with two spans, and how often it may be handed over: a function."""
    body = request([(resource_bytes(), [encode_span(Span(b"t" * 16, bytes([n]) * 8, b"", "n", 1, 1, 2, [])) for n in (1, 2)])])
    transport = SdkTransport(Destination("http/protobuf", "", exporters=exporters)).connect()
    return lambda: transport.send("traces", body, 1.0)


class Poisoned(Taking):
    """Raises at the first span."""

    def on_end(self, span):
        """Raise, or keep it."""
        if not self.spans:
            self.spans.append(None)
            raise ValueError("not that one")
        super().on_end(span)


@pytest.mark.parametrize(
    ("exporter", "kind", "rejected", "said"),
    [
        (Answering(SUCCESS), "delivered", 0, ""),
        (Answering(None), "delivered", 0, ""),
        (Answering(FAILURE), "retry", 0, "tests.otel.test_sdk.Answering answered FAILURE"),
        (Answering(ConnectionError("gone")), "retry", 0, "tests.otel.test_sdk.Answering: ConnectionError: gone"),
        (Answering(KeyError("x")), "failed", 0, "tests.otel.test_sdk.Answering: KeyError: 'x'"),
        (Taking(), "delivered", 0, ""),
        (Poisoned(), "delivered", 1, "tests.otel.test_sdk.Poisoned: on_end raised ValueError: not that one"),
    ],
)
def test_answers(exporter, kind, rejected, said):
    """What each answer counts as; an error of its own code is tried a few times, then the span that causes it is given up."""
    found = outcome(exporter)()
    assert (kind, rejected, said) == (found.kind, found.rejected, found.text)


def test_of_several_each_gets_each_span_once():
    """One that fails is asked again alone; delivered means that all have it."""
    first, second, third = Answering(SUCCESS), Answering(FAILURE, ValueError("oh"), SUCCESS), Taking()
    again = outcome(first, second, third)
    assert ["retry", "failed", "delivered"] == [again().kind for _ in range(3)]
    assert [["01" * 8, "02" * 8]] * 3 == [ids(first.taken), ids(second.taken), ids(third.spans)]
    assert "delivered" == again().kind  # sent once more on purpose, as `optree export --again` does
    assert [4, 4, 4] == [len(first.taken), len(second.taken), len(third.spans)]


def test_a_slow_exporter_holds_nobody_up(tmp_path):
    """While it hangs, the program's calls return and a flush ends in time; what it does not take is not delivered."""
    reached, go_on = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans):
            reached.set()
            assert go_on.wait(60)
            return super().export(spans)

    with mirrored(tmp_path, "", exporter=(hanging := Hanging())):
        with optree.session("lead") as session, optree.turn(), optree.tool("search"):
            pass
        assert reached.wait(20)
        with optree.session("second"), optree.turn():
            pass
        assert not optree.flush("export", 0.2)
        assert session.txn in unsent(tmp_path)
        go_on.set()
        assert wait_for(lambda: optree.flush("export", 10))
    assert 5 == len(hanging.get_finished_spans())


ENDING = """
import sys, threading, optree
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Printing(SpanExporter):
    def export(self, spans):
        if {hangs}:
            threading.Event().wait()
        print(*[span.name for span in spans], sep=chr(10), flush=True)
        return SpanExportResult.SUCCESS
    def shutdown(self):
        print("shut down", flush=True)

optree.configure(otel={{"exporter": {exporter}}})
with optree.session("lead"), optree.turn():
    pass
if {waits}:
    print(optree.flush("export", 30), flush=True)
"""


def ended(base, exporter, *, hangs=False, waits=False):
    """Return what a program printed, to its end."""
    code, env = ENDING.format(exporter=exporter, hangs=hangs, waits=waits), environ(base, OPTREE_OTEL_DELIVER_AT_EXIT="true")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines(), done.stderr


def test_a_flush_reaches_what_a_processor_holds(tmp_path):
    """`flush` calls force_flush and waits for it; the end of the process shuts the processor down."""
    said, _ = ended(tmp_path, "BatchSpanProcessor(Printing(), schedule_delay_millis=3_600_000)", waits=True)
    assert ["turn 1", "invoke_agent lead", "True", "shut down"] == said


def test_an_exporter_that_hangs_does_not_keep_the_process(tmp_path):
    """The process ends; what is not delivered is said, and waits for the next run: no other process has the program's objects."""
    said, errors = ended(tmp_path, "Printing()", hangs=True)
    assert [] == said
    assert "2 spans are not sent yet" in errors
    assert 1 == len(unsent(tmp_path))


def test_what_was_not_taken_goes_with_the_next_run(tmp_path):
    """The saved session is the spool here too: a later run with an exporter of the same class sends it, one of another does not."""
    ended(tmp_path, "Printing()", hangs=True)
    with mirrored(tmp_path, "", exporter=(another := InMemorySpanExporter())):
        with optree.session("other"):
            pass
        assert wait_for(lambda: optree.flush("export", 10) and optree.health()["otel"]["others"])
        assert {"__main__.Printing": 1} == optree.health()["otel"]["others"]
    assert 1 == len(another.get_finished_spans())
    said, _ = ended(tmp_path, "Printing()", waits=True)
    assert ["True", *["invoke_agent lead"] * 2, "shut down", *["turn 1"] * 2] == sorted(said)
    assert [] == unsent(tmp_path)


# The stock exporter by its name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_stock_exporter_sends_the_same(tmp_path, protocol):
    """By ``sdk`` the stock exporter of either protocol sends what our encoder sends, and says who it is."""
    tree = tree_of_all().tree
    with receiver(protocol) as one, receiver(protocol) as other:
        for collector, exporter in ((one, "otlp"), (other, "sdk")):
            mirror = make({"endpoint": collector.endpoint, "protocol": protocol, "exporter": exporter})
            send(mirror, tree, tmp_path)
            mirror.close(1.0)
        assert by_us(one) == by_us(other)
    agents = [next(sent for sent in at.received if sent.signal == "traces").headers["user-agent"] for at in (one, other)]
    assert [True, False] == ["optree/" in agent for agent in agents]


def test_what_the_stock_exporter_fails_to_send_is_sent_again(tmp_path, monkeypatch):
    """Its batch processor tells nobody what came of a batch: here it is known, and only what is missing goes again."""
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint, exporter="sdk"):
        collector.script(fake.accepted(), fake.refused())
        with optree.session("lead") as session, optree.turn(), optree.tool("a"), optree.tool("b"):
            pass
        assert wait_for(lambda: optree.flush("export", 10))
        assert {4} == {len(collector.spans()), len(by_us(collector)), optree.health()["otel"]["traces"]["delivered"]}
        assert 1 == optree.health()["otel"]["traces"]["retried"]
    assert delivered_whole(tmp_path, session.txn)


def test_forked_and_joined_processes_send_their_parts(tmp_path):
    """With threads, tasks, forks and other processes each node comes once, whoever sends it, by ``OPTREE_OTEL_EXPORTER=sdk``."""
    with receiver("http/protobuf") as collector:
        txn, whole = run(["everything"], tmp_path, collector.endpoint, OPTREE_OTEL_EXPORTER="sdk")
        wanted = sorted(one.span_id for one in expected(loaded(tmp_path, txn).session))
        assert wait_for(lambda: len(collector.spans()) >= len(wanted))
    assert ("True", wanted) == (whole, sorted(span.span_id.hex() for span in collector.spans()))


def test_a_process_of_its_own_sends_by_the_stock_exporter_too(tmp_path):
    """What a short program leaves is delivered after its end in the same way."""
    with receiver("http/protobuf") as collector:
        run(["brief"], tmp_path, collector.endpoint, OPTREE_OTEL_EXPORTER="sdk", OPTREE_OTEL_DELIVER_AT_EXIT="true")
        assert collector.wait_until(lambda: bool(collector.received), 60)
        assert wait_for(lambda: not unsent(tmp_path))
    assert not any("optree/" in one.headers["user-agent"] for one in collector.received if one.signal == "traces")


def test_jaeger_has_the_same_by_both_ways(jaeger, tmp_path):
    """A real Jaeger each: what our encoder and what the stock exporter sends of one session is equal, span by span, and has no warnings."""
    txn, _ = run(["everything"], tmp_path)
    wanted = expected(loaded(tmp_path, txn).session)
    with Jaeger(tmp_path / "second") as second:
        for backend, exporter in ((jaeger, "otlp"), (second, "sdk")):
            env = environ(tmp_path, backend.http, OPTREE_OTEL_EXPORTER=exporter)
            command = [sys.executable, "-m", "optree", "export", txn, "--again"]
            subprocess.run(command, env=env, capture_output=True, timeout=120, check=True)
        ours, theirs = (by_id(backend.wait_for_trace(trace_of(txn), len(wanted))) for backend in (jaeger, second))
        assert (wanted, ours) == (seen(theirs), theirs)
        assert [] == [warning for span in second.shown(trace_of(txn)) for warning in span.warnings]


# Options


@pytest.mark.parametrize(
    "given",
    ["console", InMemorySpanExporter, object(), [], ["otlp"], [InMemorySpanExporter(), 7], TracerProvider(), Called],
    ids=["text", "class", "object", "none", "own", "number", "provider", "processor's class"],
)
def test_what_takes_no_spans_is_said(given):
    """Nothing is sent then, and least of all to a collector that nobody has named."""
    found = resolve({"exporter": given}, {})
    assert (None, None, None) == (found.traces, found.logs, found.metrics)
    assert "takes no spans; give a SpanExporter or a SpanProcessor" in found.problems[0]
    with pytest.raises(optree.SetupError, match="takes no spans"):
        make({"exporter": given})


def test_log_records_and_metrics_go_where_somebody_says():
    """An exporter of spans takes neither: without an endpoint they go nowhere."""
    memory = InMemorySpanExporter()
    alone, named = resolve({"exporter": memory}, {}), resolve({"exporter": memory}, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://x:1/l"})
    assert ((memory,), None, None, ()) == (alone.traces.exporters, alone.logs, alone.metrics, alone.problems)
    assert "http://x:1/l" == named.logs.shown
    assert resolve({"exporter": memory}, {"OTEL_TRACES_EXPORTER": "none"}).traces is None
    assert resolve({"exporter": memory}, {"OTEL_TRACES_EXPORTER": "console"}).traces is not None


def test_whom_waiting_sessions_are_for():
    """By ``sdk`` the same collector as without; otherwise classes and, where it is known, the address, without a password."""
    redaction = optree.Redaction()
    here = {"endpoint": "http://x:4318"}
    assert resolve(here, {}).addressee(redaction) == resolve({**here, "exporter": "sdk"}, {}).addressee(redaction)
    memory = InMemorySpanExporter()
    memory._endpoint = "https://me:secret@example/v1/traces"
    shown = [resolve({"exporter": one}, {}).addressee(redaction).shown for one in (memory, BatchSpanProcessor(memory), [Taking(), memory])]
    name = "opentelemetry.sdk.trace.export.in_memory_span_exporter.InMemorySpanExporter"
    assert not any("secret" in one or "me:" in one for one in shown)
    assert "opentelemetry.sdk.trace.export.BatchSpanProcessor" == shown[1].partition("(")[0]
    assert shown[2].startswith("tests.otel.test_sdk.Taking, ")
    assert name not in resolve({"exporter": Taking()}, {}).addressee(redaction).shown
