"""What goes before what in a live trace, whatever was lost before."""

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from optree_otel.delivered import Addressee
from optree_otel.live_trace import CLOSE, HEARTBEAT, OPEN, LiveItem, LiveTrace
from optree_otel.session_exporter import Key, SavedView, SessionExporter, nodes
from optree_otel.signals.limits import PROFILES
from optree_otel.signals.resource import Resources
from tests.otel.tree_of_all import tree_of_all


def live_trace(folder, tree=None):
    """Return the live trace of a tree of which nothing was sent."""
    resources = Resources(program="tests", per_agent="always")
    saved, nobody = SavedView(tree or tree_of_all().tree), Addressee("", "")
    exporter = SessionExporter(saved, folder, "0000", resources=resources, profile=PROFILES["default"], addressee=nobody)
    return LiveTrace(exporter, resources)


def decoded(made):
    """Return spans as protobuf reads them."""
    return [Span.FromString(one.body) for one in made]


def keys_of(tree):
    """Return all keys of a tree, those of ended nodes twice: with how they begin and how they end."""
    return [(what, key) for key, node in nodes(tree.session) for what in ((OPEN, CLOSE) if node.ended_at is not None else (OPEN,))]


@given(st.data())
@settings(max_examples=40)
def test_in_any_order_and_whatever_is_lost_nothing_is_orphaned(tmp_path_factory, data):
    """Items in any order, some of them lost and sent again: each span comes behind its parent, and no id says two things."""
    tree = tree_of_all().tree
    trace = live_trace(tmp_path_factory.mktemp("live"), tree)
    arrived: dict[bytes, bytes] = {}
    for what, key in data.draw(st.permutations(keys_of(tree))):
        item = LiveItem(trace, what, key)
        made = trace.spans(item)
        if made and data.draw(st.booleans()):
            trace.undo(item)
            made = trace.spans(item)
        for span in decoded(made):
            assert not span.parent_span_id or span.parent_span_id in arrived
            assert arrived.setdefault(span.span_id, span.SerializeToString()) == span.SerializeToString()
    ends = [trace.spans(LiveItem(trace, CLOSE, key)) for key, node in nodes(tree.session) if node.ended_at is not None]
    assert not any(ends)


def test_what_is_noted_is_not_sent_again(tmp_path):
    """Another process that takes the session up sends what is not noted, and nothing else."""
    tree = tree_of_all().tree
    trace = live_trace(tmp_path, tree)
    items = [LiveItem(trace, CLOSE, key) for key in trace.missing()]
    half = len(items) // 2
    sent = {span.span_id for item in items[:half] for span in decoded(trace.spans(item))}
    trace.exporter.file.add([note for item in items[:half] for note in trace.notes(item)])
    trace.exporter.file.release()
    second = live_trace(tmp_path, tree)
    rest = [span.span_id for key in second.missing() for span in decoded(second.spans(LiveItem(second, CLOSE, key)))]
    assert second.known
    assert set() == sent & set(rest)
    assert len(set(rest)) == len(rest) > 0
    assert {span.span_id for item in items[half:] for span in decoded(trace.spans(item))} == set(rest)


def test_a_heartbeat_brings_the_anchors_that_it_needs(tmp_path):
    """A sign of life under a container that was never anchored comes behind its anchors, and has no kind of a node."""
    trace = live_trace(tmp_path)
    *anchors, beat = decoded(trace.spans(LiveItem(trace, HEARTBEAT, now=1.76e12)))
    assert beat.parent_span_id in {span.span_id for span in anchors}
    told = {pair.key: pair.value.string_value for pair in beat.attributes}
    assert "heartbeat" == told["optree.phase"]
    assert "optree.kind" not in told


def test_in_a_joined_process_only_its_own_nodes_are_anchored(tmp_path):
    """What another process began is that one's to anchor: this one may not know it."""
    tree = tree_of_all().tree
    trace = live_trace(tmp_path, tree)
    trace.begun = {"1"}
    assert [] == trace.spans(LiveItem(trace, OPEN, Key("session", "")))
    [turn] = decoded(trace.spans(LiveItem(trace, OPEN, Key("turn", "1"))))
    assert turn.parent_span_id == trace.scope("").session_span_id
