import gc
import time
from itertools import count
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType

import msgspec
import pytest

import optree
from optree._ids import span_id, trace_id
from optree._store import Directory, open_session
from optree._store.saving import StoreOptions
from optree_otel.mirror import OtelMirror
from optree_otel.pending import send
from optree_otel.settings import resolve
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import expected, loaded, mirrored, seen, trace_of
from tests.otel.receiver import raw

CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, MethodDescriptorType)


def work(turns, ops, text=""):
    """Record a session; returns it."""
    with optree.session("lead") as session:
        for _ in range(turns):
            with optree.turn():
                for number in range(ops):
                    with optree.tool("work") as op:
                        if text:
                            op.log(f"{text}{number}")
    return session


def test_twenty_thousand_spans(jaeger, tmp_path):
    """A session of that many arrives whole, each span once and below its parent."""
    with mirrored(tmp_path, jaeger.http):
        session = work(19, 1052)
        assert optree.flush("export", 60)
        wanted = expected(session.tree.session)
        assert 20_008 == len(wanted)
        assert wanted == seen(jaeger.wait_for_trace(trace_of(session.txn), len(wanted), 60))


def test_a_day_long_session(jaeger, tmp_path):
    """A session of 24 hours comes with its real times, whole."""
    times = count(int(time.time()) - 30 * 3600, 240)
    where = Directory.of(tmp_path, None, None)
    builder, store = open_session("lead", StoreOptions(where, now=lambda: float(next(times))))
    for _ in range(12):
        turn = builder.begin_turn()
        for _ in range(10):
            builder.begin_op("tool", "work").end()
        turn.end()
    builder.end_session()
    store.close(10.0)
    mirror = OtelMirror(resolve({"endpoint": jaeger.http}, {}))
    tree = loaded(tmp_path, builder.txn)
    assert 133 == send(mirror, tree, where).spans
    assert mirror.flush(20)
    mirror.close(0.1)
    spans = jaeger.wait_for_trace(trace_of(builder.txn), 133)
    assert expected(tree.session) == seen(spans)
    root = next(span for span in spans if not span.parent_id)
    assert root.end_ns - root.start_ns > 24 * 3600 * 10**9
    assert [] == [warning for span in jaeger.shown(trace_of(builder.txn)) for warning in span.warnings]


def test_a_trace_per_turn(jaeger, tmp_path):
    """Each turn is a trace of its own, linked to the session's and to the turn before; the session's has its root."""
    with mirrored(tmp_path, jaeger.http, trace_per_turn=True):
        session = work(3, 2)
        assert optree.flush("export", 20)
    [root] = jaeger.wait_for_trace(trace_of(session.txn), 1)
    turns = [jaeger.wait_for_trace(trace_id(f"{session.txn}/turn/{index}"), 3) for index in (1, 2, 3)]
    tops = [next(span for span in spans if span.attributes["optree.kind"] == "turn") for spans in turns]
    assert [""] * 3 == [top.parent_id for top in tops]
    assert [[top.span_id] * 2 for top in tops] == [
        [span.parent_id for span in spans if span is not top] for top, spans in zip(tops, turns, strict=True)
    ]
    assert [[root.span_id], [root.span_id, tops[0].span_id], [root.span_id, tops[1].span_id]] == [
        [link.span_id for link in top.links] for top in tops
    ]


def test_megabytes_of_lines_over_grpc(jaeger, tmp_path):
    """An op with 3 MB of lines passes a limit of 4 MiB a message, cut and counted; so do all others."""
    with mirrored(tmp_path, f"http://{jaeger.grpc}", protocol="grpc", profile="jaeger"):
        with optree.session("lead") as session, optree.turn():
            for _ in range(4):
                with optree.tool("talks") as op:
                    for number in range(100):
                        op.log(f"{number}" + "x" * 30_000)
        assert optree.flush("export", 30)
        counts = optree.health()["otel"]["traces"]
    assert (6, 0, 0) == (counts["delivered"], counts["lost"], counts["rejected"])
    spans = jaeger.wait_for_trace(trace_of(session.txn), 6)
    told = [span.attributes.get("optree.dropped.events", 0) + len(span.events) for span in spans if span.name == "execute_tool talks"]
    assert [100] * 4 == told


def held(root):
    """Return how many objects can be reached from *root*, and the characters of their texts; what is the session's own is left out."""
    found, waiting = {}, [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in found and not (isinstance(one, CODE) or type(one).__module__.startswith("optree.")):
            found[id(one)] = one
            waiting += msgspec.structs.astuple(one) if isinstance(one, msgspec.Struct) else gc.get_referents(one)
    return len(found), sum(len(one) for one in found.values() if isinstance(one, str))


def test_what_waits_is_held_as_references(tmp_path):
    """While the collector is silent, an op that has ended is an item and its key for the mirror, whatever it holds."""
    with raw("hang") as silent, mirrored(tmp_path, f"http://127.0.0.1:{silent.port}") as mirroring:
        work(1, 10)
        senders = mirroring._mirror
        wait_for(lambda: senders.traces.held_bytes)
        ops, longest = 4_000, len("1.4000")
        before = held(senders)
        work(1, ops, "x" * 1000)
        assert senders.traces.waiting >= ops
        objects, characters = (now - was for now, was in zip(held(senders), before, strict=True))
        assert 3 <= objects / ops < 3.5  # with the op's path
        assert characters / ops < longest + 1


@pytest.mark.tempo
def test_a_trace_that_tempo_would_throw_away(tempo, tmp_path):
    """What is over Tempo's limit of a trace is counted and said, and the rest arrives, the root too; a trace per turn has room for all."""
    for per_turn in (False, True):
        with mirrored(tmp_path / str(per_turn), tempo.http, profile="tempo", trace_per_turn=per_turn):
            session = work(4, 800, "x" * 1900)
            assert optree.flush("export", 60)
            health = optree.health()
        over = 0 if per_turn else sum(int(said.split()[2]) for said in health["problems"] if "left out" in said)
        assert per_turn == (not over)
        traces = [trace_of(session.txn), *((trace_id(f"{session.txn}/turn/{index}") for index in range(1, 5)) if per_turn else ())]
        spans = [span for trace in traces for span in tempo.wait_for_trace(trace, 1, 60)]
        wait_for(lambda: 3205 - over == sum(len(tempo.trace(trace)) for trace in traces), 60)  # noqa: B023 - called here
        assert span_id(session.txn) in [span.span_id for span in spans]
