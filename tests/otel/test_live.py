"""The live trace of real runs in real backends: whole at every moment, beside a canonical trace that is what it is without."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from optree_otel.incoming import read, sessions
from tests.otel.backends.ask import get
from tests.otel.backends.spans import spans_of
from tests.otel.backends.waiting import wait_for
from tests.otel.live_looks import LIVE, closed, live_id, must_be_closed, must_be_there, orphans, own_id, warnings, whole
from tests.otel.mirroring import delivered_whole, environ, expected, loaded, run, seen, trace_of
from tests.otel.mirroring import sessions as folder

AGENT = str(Path(__file__).with_name("live_agent.py"))
GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


@contextmanager
def agent(base, endpoint, *arguments, **more):
    """Run the agent beside the test; gives it and its session's txn."""
    command, env = [sys.executable, AGENT, *arguments], environ(base, endpoint, **LIVE, **more)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield program, program.stdout.readline().strip()
        finally:
            program.kill()


def go_on(program):
    """Let the agent take its next step."""
    program.stdin.write("\n")
    program.stdin.flush()


def resume(txn, base, endpoint, *arguments, **more):
    """Let the agent go on with a session to its end."""
    command = [sys.executable, "-m", "optree", "load", txn, "--", sys.executable, AGENT, *arguments]
    done = subprocess.run(command, env=environ(base, endpoint, **LIVE, **more), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def names(spans):
    """Return the names of spans, sorted."""
    return sorted(span.name for span in spans)


def test_a_live_trace_is_whole_at_every_moment(jaeger, tmp_path):
    """At each of more than 20 moments all that began is there, under its parent, once, and Jaeger warns of nothing."""
    moments = 0
    with agent(tmp_path, jaeger.http, "moments") as (program, txn):
        for line in program.stdout:
            delivered, _, moment = line.partition(" ")
            spans = whole(jaeger, txn, loaded(tmp_path, txn).session)
            assert ("True", [], []) == (delivered, orphans(spans), warnings(jaeger, live_id(txn))), moment
            moments += 1
            if "session ended" not in moment:
                go_on(program)
    assert moments > 20
    root = loaded(tmp_path, txn).session
    assert must_be_closed(root) <= closed(spans)
    assert {"lead live", "helper live", "inner live"} == {span.service for span in spans}
    assert [] == [name for span in spans for name in span.attributes if name.startswith("gen_ai.usage.") or name == "optree.cost_usd"]
    assert {"open", "close", "whole"} == {span.attributes["optree.phase"] for span in spans}
    check_canonical(jaeger, tmp_path, txn, root, spans)


def check_canonical(jaeger, base, txn, root, live):
    """See that the canonical trace is there as without the live one, but for the links between their roots."""
    wanted = expected(root)
    spans = jaeger.wait_for_trace(trace_of(txn), len(wanted))
    assert wanted == seen(spans)
    assert [] == [text for span in jaeger.shown(trace_of(txn)) for text in span.warnings]
    [top] = [span for span in spans if not span.parent_id]
    [anchor] = [span for span in live if not span.parent_id]
    assert [(trace_of(txn), top.span_id)] == [(link.trace_id, link.span_id) for link in anchor.links]
    assert [(live_id(txn), anchor.span_id)] == [(link.trace_id, link.span_id) for link in top.links]
    assert [] == [span.name for span in spans if "optree.phase" in span.attributes]
    assert delivered_whole(base, txn)


def test_closes_tell_times_status_and_sums(jaeger, tmp_path):
    """What closes an anchor has the node's own times, how it ended, and what was used in it."""
    with agent(tmp_path, jaeger.http, "moments") as (program, txn):
        program.communicate("\n" * 30, timeout=60)
    root = loaded(tmp_path, txn).session
    spans = {span.name: span for span in whole(jaeger, txn, root)}
    turn = spans["turn 1: ok"]
    assert (int(root.turns[0].started_at * 1e6), int(root.turns[0].ended_at * 1e6)) == (turn.start_ns, turn.end_ns)
    told = [turn.attributes[f"optree.total.{name}"] for name in ("input_tokens", "output_tokens", "cost_usd")]
    assert [20, 10, 0.5] == told
    assert "execute_tool slow: ok" in spans
    broken = spans["execute_tool broken"]
    assert ("error", True) == (broken.status, broken.status_message.startswith("ValueError: invalid literal"))


def test_each_node_is_visible_while_it_is_open(jaeger, tmp_path):
    """A session, a turn, an op that lives long and a sub-agent's session are there while they are open, and without a flush."""
    with agent(tmp_path, jaeger.http, "visible") as (program, txn):
        nodes = [txn, f"{txn}:1", f"{txn}:1.1", f"{txn}:1.2/session"]
        for node in nodes:
            wait_for(lambda node=node: own_id(node) in [span.span_id for span in jaeger.trace(live_id(txn))])
            go_on(program)
            program.stdout.readline()


@pytest.mark.parametrize(("before", "more"), [("delivered", {}), ("lost", GRPC), ("not noted", {})], ids=str)
def test_a_killed_session_goes_on_in_the_same_live_trace(jaeger, tmp_path, before, more):
    """Killed in a sub-agent and resumed, what was open is closed as interrupted; what was sent and not noted is sent as it was."""
    endpoint = f"http://{jaeger.grpc}" if more else jaeger.http
    nowhere = "http://127.0.0.1:1"
    with agent(tmp_path, nowhere if before == "lost" else endpoint, "killed", before, **more) as (program, txn):
        program.wait(30)
    if before == "not noted":
        forget_arrivals(tmp_path)
    assert [txn, "True"] == resume(txn, tmp_path, endpoint, "killed", "lost", **more)
    root = loaded(tmp_path, txn).session
    spans = wait_for(lambda: found if must_be_closed(root) <= closed(found := jaeger.trace(live_id(txn))) else [])
    once = {span.span_id: span for span in spans}
    assert [] == [span.name for span in spans if span != once[span.span_id]]
    assert (before != "not noted") == (len(once) == len(spans))
    assert must_be_there(root) <= set(once)
    assert [] == orphans(spans)
    assert [] == warnings(jaeger, live_id(txn))
    ends = {span.attributes["optree.path"] for span in once.values() if span.attributes.get("optree.status") == "interrupted"}
    assert {"1", "1.2", "1.3", "1.3.1", "1.3.1.1"} == ends
    assert 1 == names(once.values()).count("invoke_agent lead: ok")


def forget_arrivals(base):
    """Leave of what is noted what was before it was sent, as if the process had been killed before it knew."""
    [file] = (folder(base) / ".otel" / "notes").glob("*/*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "?" in line]
    assert 0 < len(kept) < len(lines)
    file.write_text("".join(kept))


def test_a_session_that_goes_on_after_its_end_is_closed_again(jaeger, tmp_path):
    """Resumed after its end, a session has one anchor, and a close for each time that it ended."""
    with agent(tmp_path, jaeger.http, "beating") as (program, txn):
        program.communicate("\n", timeout=60)
    assert delivered_whole(tmp_path, txn)
    resume(txn, tmp_path, jaeger.http, "killed")
    root = loaded(tmp_path, txn).session
    spans = wait_for(lambda: found if names(found := jaeger.trace(live_id(txn))).count("invoke_agent lead: ok") == 2 else [])
    assert [] == orphans(spans)
    assert [] == warnings(jaeger, live_id(txn))
    ends = sorted((span for span in spans if span.name == "invoke_agent lead: ok"), key=lambda span: span.start_ns)
    assert [root.started_at, root.resumed_at[0]] == pytest.approx([span.start_ns / 1e6 for span in ends])
    assert [None, 1] == [span.attributes.get("optree.round") for span in ends]


def test_nothing_comes_before_what_it_hangs_under(collector, tmp_path):
    """After a time without a collector, each request that arrives makes a trace without orphans with those before it."""
    server = collector()
    server.stop()
    with agent(tmp_path, server.http, "moments", "hasty") as (program, txn):
        for _ in range(12):
            assert "False" == program.stdout.readline().partition(" ")[0]
            go_on(program)
        server.start()
        program.communicate("\n" * 30, timeout=60)
    arrived = []
    for batch in server.batches():
        arrived += [span for span in spans_of(batch) if span.trace_id == live_id(txn)]
        assert [] == orphans(arrived)
    assert must_be_closed(loaded(tmp_path, txn).session) <= closed(arrived)


def test_a_silent_session_gives_signs_of_life(jaeger, tmp_path):
    """While nothing else happens there are heartbeats under the innermost container, fewer and fewer."""
    with agent(tmp_path, jaeger.http, "beating") as (program, txn):
        beats = wait_for(lambda: found if len(found := heartbeats(jaeger, txn)) >= 2 else [])
        go_on(program)
        program.wait(30)
    assert {"heartbeat: in quiet"} == {beat.name for beat in beats}
    assert {own_id(f"{txn}:1")} == {beat.parent_id for beat in beats}
    assert "1.1 quiet" == beats[0].attributes["optree.current_op"]
    first, second = sorted(beat.start_ns for beat in beats[:2])
    assert second - first > 0.5e9


def heartbeats(jaeger, txn):
    """Return the signs of life of a session."""
    return [span for span in jaeger.trace(live_id(txn)) if span.attributes["optree.phase"] == "heartbeat"]


def test_both_traces_are_one_session_when_they_come_in(jaeger, tmp_path):
    """An answer of Jaeger with both traces is read as the session that the canonical one gives alone; the live one gives its shape too."""
    with agent(tmp_path, jaeger.http, "moments") as (program, txn):
        program.communicate("\n" * 30, timeout=60)
    whole(jaeger, txn, loaded(tmp_path, txn).session)
    jaeger.wait_for_trace(trace_of(txn), len(expected(loaded(tmp_path, txn).session)))
    answers = [get(jaeger.address("query"), f"/api/v3/traces/{trace}", raw_traces="true") for trace in (trace_of(txn), live_id(txn))]
    [alone] = sessions(read(answers[0]).spans)
    [both] = sessions(read(b"\n".join(answers)).spans)
    [live] = sessions(read(answers[1]).spans)
    assert alone == both
    assert shape(alone.session) == shape(live.session)


def shape(session):
    """Return paths, kinds, names and statuses of a tree."""
    return [
        (op.path, op.kind, op.name, op.status, op.parent_op, op.child_session and (op.child_session.status, shape(op.child_session)))
        for turn in session.turns
        for op in turn.ops
    ]


def test_several_processes_make_one_live_trace(jaeger, tmp_path):
    """What sub-processes, forks, threads and tasks do is in it as well; what they had no time to send at their end, the next run sends."""
    txn, done = run(["everything"], tmp_path, jaeger.http, **LIVE)
    run(["brief", "flush"], tmp_path, jaeger.http, **LIVE)
    root = loaded(tmp_path, txn).session
    assert "True" == done
    assert [] == orphans(whole(jaeger, txn, root, once=False))
    assert [] == warnings(jaeger, live_id(txn))
    assert expected(root) == seen(jaeger.wait_for_trace(trace_of(txn), len(expected(root))))


@pytest.mark.tempo
def test_tempo_has_a_whole_live_trace_at_every_moment(tempo, tmp_path):
    """At each moment all that began is there, under its parent, once; a search names the anchor as the root."""
    with agent(tmp_path, tempo.http, "moments") as (program, txn):
        for line in program.stdout:
            spans = whole(tempo, txn, loaded(tmp_path, txn).session)
            assert [] == orphans(spans), line
            if "session ended" not in line:
                go_on(program)
    conditions = ['resource.service.name = "lead live"', 'span.optree.phase = "open"', 'span.optree.kind = "session"']
    query = f'{{ {" && ".join(conditions)} && span.optree.txn = "{txn}" }}'
    assert {live_id(txn): [own_id(txn)]} == wait_for(lambda: tempo.search(query), 30)
