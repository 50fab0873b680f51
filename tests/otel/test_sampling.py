"""Sampling by session: what is not sampled is not sent, is on disk all the same, and is never told to be delivered."""

import re
import subprocess
import sys
import threading
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

import optree
from optree._ids import trace_id
from optree_otel.delivered import is_unsampled
from optree_otel.sampling import SAMPLERS, Sampler
from optree_otel.settings import resolve
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import delivered_whole, environ, expected, loaded, mirrored, resume, run, sessions, trace_of, unsent
from tests.otel.receiver import receiver

OFF = {"OTEL_TRACES_SAMPLER": "always_off"}


def sdk_takes(ratio, of):
    """Return what the SDK's sampler says of a trace id."""
    return TraceIdRatioBased(ratio).should_sample(None, of, "").decision is Decision.RECORD_AND_SAMPLE


def ids(spans):
    """Return the ids of spans, in hex, sorted."""
    return sorted(f"{span.context.span_id:016x}" for span in spans)


def arrived(collector):
    """Return the ids of the spans that a receiver got, in hex, sorted."""
    return sorted(span.span_id.hex() for span in collector.spans())


def wanted(base, txn):
    """Return the ids that a session's spans must have, sorted."""
    return sorted(one.span_id for one in expected(loaded(base, txn).session))


def cli(base, endpoint, *arguments):
    """Return what the command line prints."""
    command = [sys.executable, "-m", "optree", *arguments]
    done = subprocess.run(command, env=environ(base, endpoint), capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


@given(st.floats(0, 1), st.integers(1, (1 << 128) - 1))
def test_a_ratio_takes_what_the_sdk_takes(ratio, of):
    """Of the same trace id both say the same."""
    assert sdk_takes(ratio, of) == Sampler(ratio).takes(of.to_bytes(16), None)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("above", [None, True, False])
def test_a_parent_decides_where_it_is_asked(name, above):
    """With ``parentbased_`` the span above wins, if there is one."""
    found = resolve({}, {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": "0.0"}).sampler
    alone = name.endswith("_on")
    assert (above if name.startswith("parentbased") and above is not None else alone) == found.takes(b"\1" * 16, above)


@pytest.mark.parametrize(
    ("options", "variables", "found", "problem"),
    [
        ({}, {}, Sampler(), ""),
        ({}, {"OTEL_TRACES_SAMPLER_ARG": "0.5"}, Sampler(), ""),
        ({}, {"OTEL_TRACES_SAMPLER": "TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, Sampler(0.5), ""),
        ({}, {"OTEL_TRACES_SAMPLER": "traceidratio"}, Sampler(), ""),
        ({"sampler": "always_off"}, {"OTEL_TRACES_SAMPLER": "always_on"}, Sampler(0.0), ""),
        ({"sampler_arg": 0.25}, {"OPTREE_OTEL_SAMPLER": "parentbased_traceidratio"}, Sampler(0.25, by_parent=True), ""),
        ({}, {"OTEL_TRACES_SAMPLER": "jaeger_remote"}, Sampler(), "OTEL_TRACES_SAMPLER='jaeger_remote'"),
        ({"sampler": "traceidratio", "sampler_arg": "7"}, {}, Sampler(), "sampler_arg='7'"),
        ({"sampler": "traceidratio", "sampler_arg": "half"}, {}, Sampler(), "sampler_arg='half'"),
    ],
)
def test_options(options, variables, found, problem):
    """Ours, then OPTREE's variable, then OpenTelemetry's; what is not possible is passed over and said, and all is sent."""
    said = resolve(options, variables)
    assert (found, bool(problem)) == (said.sampler, bool(said.problems))
    assert problem in " ".join(said.problems)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": "half"}, "otel: sampler='half' is not possible; choose one of always_on"),
        ({"sampler_arg": "half"}, "otel: sampler_arg='half' is not possible; give a share"),
        ({"exporter": "zipkin"}, "otel: exporter='zipkin' takes no spans; give a SpanExporter"),
        ({"exporter": object}, "takes no spans"),
        ({"exportr": "sdk"}, "there is no option 'exportr'; the options are endpoint"),
    ],
)
def test_a_wrong_option_is_refused(options, said):
    """`configure` refuses what is not possible, and says what is; nothing is changed."""
    before = optree.configure()
    with pytest.raises(optree.SetupError, match=re.escape(said)):
        optree.configure(otel=options, verbose=True)
    assert before == optree.configure()


def test_a_wrong_variable_is_said_at_the_start(tmp_path):
    """What the environment says and is not possible is said when the first session begins, and the session is sent."""
    code = "import optree, sys\nwith optree.session('lead'):\n    print('begun', file=sys.stderr, flush=True)"
    env = environ(tmp_path, "http://127.0.0.1:9", OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="half")
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True).stderr
    assert "OTEL_TRACES_SAMPLER_ARG='half' is not possible and passed over" in said.partition("begun")[0]
    assert 1 == said.count("OTEL_TRACES_SAMPLER_ARG")


def test_what_is_not_sampled(tmp_path):
    """It is not sent, not pending and not delivered; the disk has all of it, and what is handed on says that it is not sampled."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint, sampler="always_off", live=True):
        with optree.session("lead") as session, optree.turn(), optree.llm(provider="openai", model="gpt-4o") as op:
            op.log("asked")
            op.account(input_tokens=1, output_tokens=2)
            told = optree.child_env({})["TRACEPARENT"]
            current = trace.get_current_span().get_span_context()
        assert optree.flush("export", 20)
        health = optree.health()["otel"]
        assert collector.wait_for(1, signal="metrics")
        assert {"metrics"} == {one.signal for one in collector.received}
    assert (1, 0, 0, []) == (health["unsampled"], health["traces"]["delivered"], health["traces"]["lost"], health["problems"])
    assert (f"00-{trace_of(session.txn)}-{current.span_id:016x}-00", False) == (told, current.trace_flags.sampled)
    assert (True, False, []) == (is_unsampled(sessions(tmp_path), session.txn), delivered_whole(tmp_path, session.txn), unsent(tmp_path))
    assert ("asked", 3) == (loaded(tmp_path, session.txn).session.turns[0].ops[0].logs[0].message, len(wanted(tmp_path, session.txn)))


def test_export_sends_it_whole(tmp_path):
    """Who asks for a session gets it: it is delivered then, and not before."""
    txn, _ = run(["brief", "flush"], tmp_path, "http://127.0.0.1:9", **OFF)
    assert "pending" not in cli(tmp_path, "", "status")
    with receiver("http/protobuf") as collector:
        assert "delivered already" not in cli(tmp_path, collector.endpoint, "export", txn)
        assert wanted(tmp_path, txn) == arrived(collector)
        assert "delivered already" in cli(tmp_path, collector.endpoint, "export", txn)
    assert (False, True) == (is_unsampled(sessions(tmp_path), txn), delivered_whole(tmp_path, txn))


@pytest.mark.parametrize("live", ["false", "true"])
@pytest.mark.parametrize("ratio", ["0.0", "0.5", "1.0"])
def test_all_processes_of_a_session_decide_alike(tmp_path, ratio, live):
    """Threads, tasks, forks and other processes: all of it is sent, or nothing, by what the SDK says of the trace id."""
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio, "OPTREE_OTEL_LIVE": live}
    with receiver("http/protobuf") as collector:
        txn, whole = run(["everything"], tmp_path, collector.endpoint, **sampler)
        taken = sdk_takes(float(ratio), int(trace_id(txn), 16))
        assert "True" == whole
        own = [span for span in collector.spans() if span.trace_id.hex() == trace_id(txn)]
        assert (wanted(tmp_path, txn) if taken else []) == sorted(span.span_id.hex() for span in own)
        assert taken or not collector.spans()
    assert taken != is_unsampled(sessions(tmp_path), txn)


@pytest.mark.parametrize(("flags", "sent"), [(1, 2), (0, 0)])
def test_a_session_inside_a_span_follows_it(tmp_path, flags, sent):
    """With ``parentbased_always_on`` a session in a span that is not sampled is not sent."""
    above = trace.NonRecordingSpan(trace.SpanContext(7, 9, is_remote=False, trace_flags=trace.TraceFlags(flags)))
    with mirrored(tmp_path, "", exporter=(memory := InMemorySpanExporter()), sampler="parentbased_always_on"):
        with trace.use_span(above), optree.session("lead"), optree.turn():
            pass
        assert optree.flush("export", 20)
        assert sent == len(memory.get_finished_spans())
        with optree.session("alone"):
            pass
        assert optree.flush("export", 20)
    assert sent + 1 == len(memory.get_finished_spans())


def test_without_a_decision_it_is_sent(tmp_path, monkeypatch):
    """Where nobody can tell what is above, as in an OpenTelemetry that is imported by half, the session is sent."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint, sampler="parentbased_always_off"):
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
        with optree.session("lead") as session, optree.turn():
            pass
        assert optree.flush("export", 20)
    assert wanted(tmp_path, session.txn) == arrived(collector)


def test_what_is_not_sampled_is_not_missed_at_the_end(tmp_path):
    """Where an exporter hangs, only what was to be sent counts as left."""
    reached, go_on = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans):
            reached.set()
            assert go_on.wait(60)
            return super().export(spans)

    above = trace.NonRecordingSpan(trace.SpanContext(7, 9, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with mirrored(tmp_path, "", exporter=Hanging(), sampler="parentbased_always_off") as mirroring:
        with trace.use_span(above), optree.session("sent") as sent:
            pass
        assert reached.wait(20)
        with optree.session("left out"), optree.turn():
            pass
    found = (mirroring.health()["problems"], unsent(tmp_path))
    go_on.set()
    assert ([], [sent.txn]) == found


def failing(agent="lead"):
    """Run a session that fails."""
    with pytest.raises(ValueError, match="no"), optree.session(agent) as session, optree.turn(), optree.tool("search"):
        raise ValueError("no")
    return session.txn


def test_a_session_that_failed_is_sent_whole(tmp_path):
    """At its end, with all that was in it, once each; then it is delivered."""
    with mirrored(tmp_path, "", exporter=(memory := InMemorySpanExporter()), sampler="always_off"):
        with optree.session("well"), optree.turn():
            pass
        txn = failing()
        assert optree.flush("export", 20)
        assert wanted(tmp_path, txn) == ids(memory.get_finished_spans())
        assert wait_for(lambda: optree.flush("export", 10) and delivered_whole(tmp_path, txn))
        assert (2, []) == (optree.health()["otel"]["unsampled"], optree.health()["otel"]["problems"])
    assert 3 == len(memory.get_finished_spans())
    assert not is_unsampled(sessions(tmp_path), txn)


def test_a_program_that_never_flushes_leaves_nothing_pending(tmp_path):
    """With the next session that fails, the one before counts as delivered: its other processes have been looked after."""
    with mirrored(tmp_path, "", exporter=(memory := InMemorySpanExporter()), sampler="always_off"):
        first = failing()
        assert wait_for(lambda: failing() and delivered_whole(tmp_path, first))
    assert set(wanted(tmp_path, first)) <= set(ids(memory.get_finished_spans()))


def test_not_if_nobody_wants_that(tmp_path):
    """With ``sample_failed`` false it is not sent."""
    with mirrored(tmp_path, "", exporter=(memory := InMemorySpanExporter()), sampler="always_off", sample_failed=False):
        txn = failing()
        assert optree.flush("export", 20)
    assert ((), True) == (memory.get_finished_spans(), is_unsampled(sessions(tmp_path), txn))


TEAM = """
import multiprocessing, sys, optree

@optree.tool
def work(n):
    return n

def child(n):
    work(n)
    optree.flush("export", 20)  # what goes on after it is taken up again
    work(n)

if __name__ == "__main__":
    with optree.session("lead") as session, optree.turn():
        print(session.txn, flush=True)
        for method in ("fork", "spawn"):
            one = multiprocessing.get_context(method).Process(target=optree.wrap(child), args=(1,))
            one.start()
            one.join()
        work(2)
        if "fail" in sys.argv:
            raise ValueError("no")
"""


def team(base, endpoint, *arguments):
    """Run a session of three processes, none of it sampled; returns its txn, and what the program said on stderr."""
    program = base / "team.py"
    program.write_text(TEAM)
    env = environ(base, endpoint, OPTREE_OTEL_DELIVER_AT_EXIT="true", **OFF)
    done = subprocess.run([sys.executable, str(program), *arguments], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (1 if arguments else 0) == done.returncode, done.stderr
    return done.stdout.strip(), done.stderr


def test_of_what_is_not_sampled_no_process_notes_anything(tmp_path):
    """Nor does anyone say at the end that something is left."""
    with receiver("http/protobuf") as collector:
        txn, errors = team(tmp_path, collector.endpoint)
        assert [] == collector.spans()
    assert ("", []) == (errors, unsent(tmp_path))
    assert (7, True, False) == (len(wanted(tmp_path, txn)), is_unsampled(sessions(tmp_path), txn), delivered_whole(tmp_path, txn))


def test_also_what_other_processes_have_of_it(tmp_path):
    """A session that failed is sent with the parts of forked and spawned processes, after the end of a program that waits for nothing."""
    with receiver("http/protobuf") as collector:
        txn, _ = team(tmp_path, collector.endpoint, "fail")
        assert 7 == len(wanted(tmp_path, txn))
        assert wait_for(lambda: wanted(tmp_path, txn) == arrived(collector), 60)
        assert wait_for(lambda: delivered_whole(tmp_path, txn), 60)


@pytest.mark.parametrize(("first", "then", "sent"), [("always_off", "always_on", False), ("always_on", "always_off", True)])
def test_a_decision_stands_when_a_session_goes_on(tmp_path, first, then, sent):
    """Who resumes a session does not decide again: a trace is whole, or not there."""
    with receiver("http/protobuf") as collector:
        txn, *_ = run(["crashing", "delivered"], tmp_path, collector.endpoint, OTEL_TRACES_SAMPLER=first)
        assert txn == resume(txn, ["brief", "flush"], tmp_path, collector.endpoint, OTEL_TRACES_SAMPLER=then)[0]
        assert wait_for(lambda: (sorted(set(arrived(collector))) == wanted(tmp_path, txn)) == sent)
        assert sent == bool(collector.spans())
    assert sent != is_unsampled(sessions(tmp_path), txn)
