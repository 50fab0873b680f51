import subprocess
import sys

import pytest

import optree
from optree._store import Directory
from optree._store.files.lock import is_running
from optree_otel.mirror import OtelMirror
from optree_otel.pending import Sent, send, sweep
from optree_otel.settings import resolve
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import (
    delivered_whole,
    environ,
    expected,
    loaded,
    mirrored,
    resume,
    run,
    seen,
    sessions,
    trace_of,
    tracing,
    unsent,
)
from tests.otel.receiver import receiver, unavailable


def once(spans):
    """Return the spans by id; each of them is there once."""
    assert len({span.span_id for span in spans}) == len(spans)
    return seen(spans)


@pytest.mark.parametrize("before", ["delivered", "lost"])
def test_a_killed_session_that_goes_on_is_one_trace(jaeger, tmp_path, before):
    """Killed in the middle and resumed, whether its first part was sent or not: no hole, and nothing twice."""
    [txn] = run(["crashing", before], tmp_path, jaeger.http)
    assert [txn, "True"] == resume(txn, ["crashing", before], tmp_path, jaeger.http)
    wanted = expected(loaded(tmp_path, txn).session)
    assert {"interrupted", "ok"} == {node.told for node in wanted}
    assert wanted == once(jaeger.wait_for_trace(trace_of(txn), len(wanted)))
    assert [] == [warning for span in jaeger.shown(trace_of(txn)) for warning in span.warnings]
    assert delivered_whole(tmp_path, txn)


def test_killed_while_the_collector_is_away(jaeger, tmp_path):
    """A session that is killed and resumed with nobody listening is sent whole when a person has it sent elsewhere."""
    [txn] = run(["crashing", "lost"], tmp_path, "http://127.0.0.1:1")
    resume(txn, ["crashing", "lost", "no flush"], tmp_path, "http://127.0.0.1:1")
    assert [txn] == unsent(tmp_path)
    command = [sys.executable, "-m", "optree", "export", "--pending", "--any-destination"]
    subprocess.run(command, env=environ(tmp_path, jaeger.http), capture_output=True, timeout=60, check=True)
    wanted = expected(loaded(tmp_path, txn).session)
    assert wanted == once(jaeger.wait_for_trace(trace_of(txn), len(wanted)))


@pytest.mark.parametrize("origin", ["", "00-11111111111111112222222222222222-3333333333333333-01"])
def test_a_delivered_session_goes_on_in_a_round(jaeger, tmp_path, origin):
    """Resumed after its end, a session has a second root span; resumed again, a third; the trace stays the same.

    Below somebody else's span they are linked to the first. Elsewhere Jaeger would take such a link for their parent.
    """
    more = {"TRACEPARENT": origin} if origin else {}
    txn, _ = run(["brief", "flush"], tmp_path, jaeger.http, **more)
    for _ in range(2):
        assert delivered_whole(tmp_path, txn)
        assert [txn, "True"] == resume(txn, ["brief", "flush"], tmp_path, jaeger.http)
    trace = origin[3:35] or trace_of(txn)
    spans = wait_for(lambda: found if len(found := jaeger.trace(trace)) >= 12 else [])
    assert 12 == len({span.span_id for span in spans})
    roots = sorted((span for span in spans if span.attributes["optree.kind"] == "session"), key=lambda span: span.start_ns)
    assert [origin[36:52]] * 3 == [span.parent_id for span in roots]
    link = [roots[0].span_id] if origin else []
    assert [None, 1, 2] == [root.attributes.get("optree.round") for root in roots]
    assert [[], link, link] == [[link.span_id for link in span.links] for span in roots]
    assert [4, 4, 4] == [len(_below(spans, root.span_id)) for root in roots]


def _below(spans, top):
    """Return a span's id and those of all below it."""
    return [top, *(found for span in spans if span.parent_id == top for found in _below(spans, span.span_id))]


def test_what_a_crash_left_open_goes_out_on_request(jaeger, tmp_path):
    """A session that crashed and is not resumed keeps its open nodes to itself, until somebody sends them as interrupted."""
    [txn] = run(["crashing", "lost"], tmp_path, jaeger.http)
    run(["brief", "flush"], tmp_path, jaeger.http)
    assert [] == unsent(tmp_path)
    nodes = expected(loaded(tmp_path, txn).session)
    ended = [node for node in nodes if node.told != "interrupted"]
    assert ended == once(jaeger.wait_for_trace(trace_of(txn), len(ended)))
    mirror = OtelMirror(resolve({"endpoint": jaeger.http}, {}))
    found = sweep(mirror, Directory.of(tmp_path, None, None), also_open=True)
    assert [(txn, len(nodes) - len(ended), "")] == [(sent.txn, sent.spans, sent.reason) for sent in found]
    assert mirror.flush(20)
    spans = jaeger.wait_for_trace(trace_of(txn), len(nodes))
    assert [node[:4] for node in nodes] == [span[:4] for span in once(spans)]
    assert {"interrupted"} == {span.told for span in once(spans)} - {"ok"}
    assert delivered_whole(tmp_path, txn)
    assert [txn, "True"] == resume(txn, ["brief", "flush"], tmp_path, jaeger.http)
    assert len(nodes) + 4 == len(once(jaeger.wait_for_trace(trace_of(txn), len(nodes) + 4)))


def test_two_processes_do_not_send_the_same(tmp_path):
    """What a living process has on its way, nobody else sends, also when it has ended the session already."""
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        with tracing(tmp_path, collector.endpoint, "brief", "stay") as (program, txn):
            wait_for(lambda: not is_running(sessions(tmp_path) / f"{txn}.live"))
            mirror = OtelMirror(resolve({"endpoint": collector.endpoint}, {}))
            assert ([], {}) == (sweep(mirror, Directory.of(tmp_path, None, None)), mirror.others)
            program.kill()
            program.wait()
            collector.always = None
            assert [Sent(txn, 4)] == sweep(mirror, Directory.of(tmp_path, None, None))
            assert mirror.flush(20)
            assert 4 == len({span.span_id for span in collector.spans()}) == len(collector.spans())


def test_sent_once_more(jaeger, tmp_path):
    """A delivered session can be sent again: the same spans, below the same parent."""
    origin = "00-11111111111111112222222222222223-3333333333333333-01"
    txn, _ = run(["brief", "flush"], tmp_path, jaeger.http, TRACEPARENT=origin)
    first = {span.span_id: span for span in jaeger.wait_for_trace(origin[3:35], 4)}
    where = Directory.of(tmp_path, None, None)
    mirror = OtelMirror(resolve({"endpoint": jaeger.http}, {}))
    assert "is delivered already; send it once more with --again" == send(mirror, loaded(tmp_path, txn), where).reason
    assert 4 == send(mirror, loaded(tmp_path, txn), where, again=True).spans
    assert mirror.flush(20)
    both = jaeger.wait_for_trace(origin[3:35], 8)
    assert sorted([*first, *first]) == sorted(span.span_id for span in both)
    assert all(seen([first[span.span_id]]) == seen([span]) for span in both)


@pytest.mark.parametrize("waits", [True, False])
def test_a_conversation_that_one_process_goes_on_with(jaeger, tmp_path, waits):
    """Each request of a service has its root span in the one trace, with what was done for it below; nothing is sent twice."""
    with mirrored(tmp_path, jaeger.http) as mirroring:
        txn = None
        for number in range(6):
            with optree.session("assistant", resume=txn) as session, optree.turn(user=f"question {number}"), optree.tool("search"):
                txn = session.txn
            assert not waits or optree.flush("export", 30)
        assert optree.flush("export", 30)
        assert 18 == mirroring.health()["traces"]["delivered"]
    spans = wait_for(lambda: found if len(found := jaeger.trace(trace_of(txn))) >= 18 else [])
    assert 18 == len({span.span_id for span in spans})
    roots = sorted((span for span in spans if span.attributes["optree.kind"] == "session"), key=lambda span: span.start_ns)
    assert [None, *range(1, 6)] == [root.attributes.get("optree.round") for root in roots]
    assert [3] * 6 == [len(_below(spans, root.span_id)) for root in roots]
    assert delivered_whole(tmp_path, txn)
