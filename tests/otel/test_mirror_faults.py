import os
import subprocess
import sys
import threading
from collections import Counter
from types import ModuleType

import pytest
import requests
from opentelemetry import context, trace

import optree
from optree._store import Directory
from optree_otel.delivered import DeliveredFile, is_sending
from optree_otel.mirror import OtelMirror
from optree_otel.pending import send, sweep, waiting
from optree_otel.settings import resolve
from optree_otel.signals import names
from tests.otel import receiver as fake
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import environ, expected, loaded, mirrored, resume, run, sessions, tracing
from tests.otel.receiver import PROTOCOLS, Fault, away, partial, receiver

HANGS = Fault(way="hang")


def ids(collector):
    """Return how often each span came, by its id in hex."""
    return Counter(span.span_id.hex() for span in collector.spans())


def test_what_is_delivered_stays_delivered(tmp_path):
    """After a kill in the middle of a request only what the collector has not acknowledged is sent again."""
    with receiver("http/protobuf") as collector:
        collector.script(Fault(), HANGS)
        with tracing(tmp_path, collector.endpoint, "slow") as (program, txn):
            assert collector.wait_until(lambda: collector.requests >= 2, 30)
            program.kill()
            program.wait()
        first = ids(collector)
        assert first
        assert [txn, "True"] == resume(txn, ["brief", "flush"], tmp_path, collector.endpoint)
        assert {1} == set(ids(collector).values())
        assert {node.span_id for node in expected(loaded(tmp_path, txn).session)} == set(ids(collector))


def test_partial_success_is_counted(tmp_path):
    """What the collector takes and throws away is counted and said, and the flush is no success."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        collector.script(partial(1, "too old"))
        with optree.session("lead"), optree.turn():
            pass
        assert not optree.flush("export", 20)
        counts = optree.health()["otel"]["traces"]
    assert (1, 1) == (counts["delivered"], counts["rejected"])
    assert "too old" in counts["last_error"]


def test_trouble_is_readable(tmp_path):
    """While nothing passes, health says why; once it does, it says so no longer, and nothing is missing."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        collector.always = fake.unavailable()
        before = optree.health()["problems"]  # what other tests left in this process
        with optree.session("lead"), optree.turn():
            pass
        assert not optree.flush("export", 0.5)
        said = f"OpenTelemetry traces: {collector.endpoint}/v1/traces answered 503: try later"
        assert sorted([said, *before]) == sorted(optree.health()["problems"])
        collector.always = None
        assert wait_for(lambda: optree.flush("export", 10))
        assert before == optree.health()["problems"]
        assert [1, 1] == list(ids(collector).values())


def test_bad_nodes_do_not_cost_the_others(tmp_path):
    """Half characters, no numbers, 40 MiB, thousands of lines, an end before the start: each is sent, marked, and so are its neighbours."""
    for protocol in PROTOCOLS:
        with receiver(protocol) as collector, mirrored(tmp_path, collector.endpoint, protocol=protocol, content="true"):
            with optree.session("lead", note="\ud800"), optree.turn(user="\udfff"):
                with optree.tool("half \ud800 name", deep={"x": float("nan")}) as op:
                    op.log("\udc00")
                    op.account(cost_usd=float("nan"))
                with optree.llm(model="inf", temperature=float("inf")) as op:
                    op.response("x" * (40 << 20))
                with optree.tool("lines", big="y" * (40 << 20)) as op:
                    for number in range(5_000):
                        op.log(f"line {number}")
                with optree.tool("") as op:
                    op.bare.started_at += 60_000
                with optree.tool("good"):
                    pass
            assert optree.flush("export", 60)
            assert 7 == len(ids(collector)) == sum(ids(collector).values())
            spans = {key.key: span for span in collector.spans() for key in span.attributes if key.key.startswith("optree.invalid.")}
            assert "optree.invalid.time" in spans
            assert all(span.end_time_unix_nano > span.start_time_unix_nano > 0 for span in collector.spans())
            assert all(one.message.ByteSize() < 4 << 20 for one in collector.received)
            assert (0, 0) == tuple(optree.health()["otel"]["traces"][count] for count in ("lost", "rejected"))


def test_no_fault_reaches_the_program(tmp_path, monkeypatch):
    """A folder that is a file, an OpenTelemetry that is imported by half: the program runs on, and health says it."""
    sessions(tmp_path).mkdir(parents=True)
    (sessions(tmp_path) / ".otel").write_text("a file")
    for name in ("opentelemetry.trace", "opentelemetry.context"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    ran = []
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        with optree.session("lead"), optree.turn(), optree.tool("search"):
            ran.append(optree.child_env({})["TRACEPARENT"])
        assert optree.flush("export", 20)
        problems = " ".join(optree.health()["problems"])
        assert 3 == len(ids(collector))
    assert 1 == len(ran)
    assert "faults of the mirror itself, the last: AttributeError" in problems


def test_an_op_that_outlives_its_session_leaves_nothing_current(tmp_path):
    """Also where the session is delivered and gone: what the thread begins next is a trace of its own."""
    inside, go_on = threading.Event(), threading.Event()
    after = []

    def work():
        with optree.tool("slow"):
            inside.set()
            go_on.wait(20)
        after.append(trace.get_current_span().get_span_context().is_valid)

    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        thread = threading.Thread(target=work)
        with optree.session("first") as session:
            thread.start()
            assert inside.wait(20)
        assert optree.flush("export", 20)
        assert wait_for(lambda: session.txn not in mirroring._mirror.exporters)
        go_on.set()
        thread.join()
    assert [False] == after


def test_what_we_send_is_unseen(tmp_path, monkeypatch):
    """Other instrumentation sees in the context that it is to leave our requests alone, and is as it was in the program's threads."""
    seen, send = [], requests.Session.send

    def traced(self, *args, **kwargs):
        seen.append(is_instrumentation_enabled())
        return send(self, *args, **kwargs)

    def is_instrumentation_enabled():
        return not any(context.get_value(key) for key in ("suppress_instrumentation", context._SUPPRESS_INSTRUMENTATION_KEY))

    monkeypatch.setattr(requests.Session, "send", traced)
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        with optree.session("lead"):
            pass
        assert optree.flush("export", 20)
    assert {False} == set(seen)
    assert is_instrumentation_enabled()


def test_what_is_left_is_told(tmp_path):
    """At the end the mirror knows how many spans a later run is to send."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        collector.always = fake.unavailable()
        with optree.session("lead"), optree.turn(), optree.tool("search"):
            pass
        mirror = mirroring._mirror
        assert (False, 3) == (mirror.close(0.1), mirror.left())
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        with optree.session("lead"):
            pass
        assert optree.flush("export", 20)
        assert wait_for(lambda: not mirroring._mirror.left())


def test_a_flush_is_whole_while_earlier_runs_are_still_swept(tmp_path):
    """What others have left may take longer than the flush: what this process has is told by itself."""
    go_on = threading.Event()
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint) as mirroring:
        with optree.session("lead"):
            pass
        mirroring._mirror._sweeping = threading.Thread(target=go_on.wait, daemon=True)
        mirroring._mirror._sweeping.start()
        assert optree.flush("export", 1.0)
        assert 1 == len(ids(collector))
        go_on.set()


def sent_again(base, mirror, txn):
    """Send a session once more, as soon as its process has let go of it; returns how many spans were put on their way."""
    directory = Directory.of(base, None, None)
    wait_for(lambda: not (directory.is_running(txn) or is_sending(directory.sessions, txn)), 60)
    return send(mirror, loaded(base, txn), directory, again=True).spans


def test_what_is_sent_again_is_not_measured_again(tmp_path):
    """A call counts in the metrics of the process that made it, and in no other's."""
    with receiver("http/protobuf") as collector:
        with mirrored(tmp_path, collector.endpoint) as mirroring:
            with optree.session("lead") as session, optree.llm("openai:gpt") as op:
                op.account(input_tokens=100, output_tokens=5)
            assert optree.flush("export", 20)
            assert mirroring._mirror.meter.used
        mirror = OtelMirror(resolve({"endpoint": collector.endpoint}, {}))
        assert 3 == sent_again(tmp_path, mirror, session.txn)
        assert mirror.flush(20)
        assert not mirror.meter.used


def posts(collector):
    """Return the values of each request of metrics: how many calls it counts."""
    return [
        metric.histogram.data_points[0].count
        for one in collector.received
        if one.signal == "metrics"
        for metric in one.message.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == names.OPERATION_DURATION
    ]


def called():
    """Run a session with one model call."""
    with optree.session("lead"), optree.llm("openai:gpt") as op:
        op.account(input_tokens=100, output_tokens=5)


def test_figures_are_posted_once(tmp_path):
    """What has been counted goes out once, and again only with what was counted since; the end adds nothing."""
    with receiver("http/protobuf") as collector:
        with mirrored(tmp_path, collector.endpoint):
            called()
            assert optree.flush("export", 20)
            assert optree.flush("export", 20)
            called()
            assert optree.flush("export", 20)
        assert [1, 2] == posts(collector)


def test_the_end_posts_figures_once(tmp_path):
    """A process that ends posts them once, with all that it has counted."""
    with receiver("http/protobuf") as collector:
        with mirrored(tmp_path, collector.endpoint) as mirroring:
            called()
            called()
            assert mirroring.flush(20)
            mirroring.close(1.0)
        assert [2] == posts(collector)


def test_a_large_session_is_not_swept_in_the_background(tmp_path):
    """It is passed over and told; who asks for it gets it sent."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            [txn] = run(["brief"], tmp_path, gone)
        mirror = OtelMirror(resolve({"endpoint": collector.endpoint}, {}))
        assert [] == sweep(mirror, Directory.of(tmp_path, None, None), most=10)
        assert "1 sessions of earlier runs are too large" in " ".join(mirror.health()["problems"])
        assert [txn] == [sent.txn for sent in sweep(mirror, Directory.of(tmp_path, None, None))]
        assert mirror.flush(20)
        assert 4 == len(ids(collector))


def test_notes_that_are_no_rounds(tmp_path):
    """A note that somebody else wrote does not keep what waits from being counted."""
    [txn] = run(["brief"], tmp_path, "http://127.0.0.1:1")
    DeliveredFile(sessions(tmp_path), txn, "other").add(["@x", "@"])
    assert 4 == waiting(Directory.of(tmp_path, None, None), txn)


def test_what_is_left_at_the_end_is_said(tmp_path):
    """A program that ends before its spans are sent says on stderr how many they are, and what sends them."""
    program = "import optree\nwith optree.session('a'), optree.turn():\n pass\n"
    environment = {**os.environ, "OPTREE_BASE_DIR": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert (
        "OpenTelemetry: 2 spans are not sent yet: the next run with the same settings sends them, or optree export --pending"
        in ended.stderr
    )


UNSAVED = """
import os, sys, optree
with optree.session("lead") as session, optree.turn():
    child = os.fork() if sys.argv[1] == "fork" else 0
    if child or sys.argv[1] != "fork":
        with optree.tool("search") as op:
            op.log("found")
        if child:
            os.waitpid(child, 0)
    else:
        with optree.tool("elsewhere"):
            pass
        os._exit(0)
whole = sys.argv[1] == "away" or optree.flush("export", 20)
print(session.txn, whole, len(optree.health()["problems"]))
"""


def unsaved(base, endpoint, way):
    """Run an agent whose sessions directory is a file; returns what it printed, and the complaints."""
    (base / "sessions").write_text("a file")
    command = [sys.executable, "-W", "ignore", "-c", UNSAVED, way]
    done = subprocess.run(command, env=environ(base, endpoint), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("way", ["alone", "fork"])
def test_a_session_that_cannot_be_saved_is_mirrored(tmp_path, way):
    """It goes out from memory, whole and once, and health has one problem: that nothing is saved."""
    with receiver("http/protobuf") as collector:
        (_, whole, problems), said = unsaved(tmp_path, collector.endpoint, way)
        assert ("True", "1") == (whole, problems)
        assert ["execute_tool search", "invoke_agent lead", "turn 1"] == sorted(span.name for span in collector.spans())
        assert ["optree.log"] == [event.name for span in collector.spans() for event in span.events]
    first, *others = said.splitlines()
    assert "optree: nothing is saved in" in first
    assert [True] * len(others) == ["records are lost, in " in line for line in others]


def test_what_is_neither_saved_nor_sent_is_said_to_be_lost(tmp_path):
    """No later run can send it."""
    _, said = unsaved(tmp_path, "http://127.0.0.1:9", "away")
    assert "OpenTelemetry: 3 spans were not sent, and no later run can: their session could not be saved" in said
    assert "the next run" not in said
