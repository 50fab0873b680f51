"""When nodes ended that a crash broke off, as their spans tell it."""

import pytest
from msgspec.structs import replace

from optree._builder import SessionTreeBuilder
from optree._store.reading.interrupted import interrupt, open_nodes
from optree.testing import Ticking
from optree_otel.signals.mapping import op_span, session_span, turn_span
from tests.otel.signals.test_mapping import scope_of
from tests.otel.tree_of_all import TXN


def broken_off():
    """Return a session in which an op was begun in a sub-agent, and the handles of all that is open, the innermost first."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    turn = builder.begin_turn()
    outer = builder.begin_op("session", "reader")
    child = builder.attach_child_session(outer, "reader")
    inner = child.begin_turn()
    silent = child.begin_op("tool", "silent")
    return builder, [silent, inner, child, outer, turn, builder]


@pytest.mark.parametrize("closed", [False, True])
def test_an_op_that_broke_off_at_once_lasts_as_long_as_what_it_was_in(closed):
    """Nothing is known of it but its start: it ends with the last sign of life around it, be the tree as it broke off or closed since."""
    builder, opened = broken_off()
    silent, child = opened[0], opened[2]
    later = child.begin_op("tool", "later")
    later.end()
    if closed:
        for node in open_nodes(builder.node):
            interrupt(node)
        assert silent.node.ended_at == silent.node.started_at
    scope = scope_of(builder)
    within = scope.for_child(opened[3].node, child.node)
    last = int(later.node.ended_at * 1e6)
    spans = [op_span(silent.node, within), turn_span(opened[1].node, within), session_span(child.node, within)]
    spans += [op_span(opened[3].node, scope), turn_span(opened[4].node, scope), session_span(builder.node, scope)]
    assert [last] * 6 == [span.end_ns for span in spans]


def test_what_was_open_lasted_as_long_as_its_process_lived():
    """Where the process was known to live seconds after the last record, all that was open lasted until then; what had ended did not."""
    builder, opened = broken_off()
    ended = builder.begin_op("tool", "ended", turn=opened[4])
    ended.end()
    heard = opened[2].begin_op("tool", "heard of")
    heard.log("at work")
    seen = builder.node.started_at + 3000
    scope = replace(scope_of(builder), seen_at=seen)
    within = scope.for_child(opened[3].node, opened[2].node)
    spans = [
        op_span(opened[0].node, within),
        op_span(heard.node, within),
        turn_span(opened[1].node, within),
        session_span(opened[2].node, within),
    ]
    spans += [op_span(opened[3].node, scope), turn_span(opened[4].node, scope), session_span(builder.node, scope)]
    assert [int(seen * 1e6)] * 7 == [span.end_ns for span in spans]
    assert int(ended.node.ended_at * 1e6) == op_span(ended.node, scope).end_ns


def test_what_broke_off_is_over_before_the_session_goes_on():
    """In a session that was resumed, it does not last into what came after; nor where only it broke off."""
    builder, opened = broken_off()
    silent = opened[0].node
    for node in open_nodes(builder.node):
        interrupt(node)
    began = builder.node.started_at
    builder.node.resumed_at, builder.node.ended_at, builder.node.status = [began + 60_000], began + 90_000, "ok"
    scope = scope_of(builder)
    within = scope.for_child(opened[3].node, opened[2].node)
    assert int(silent.started_at * 1e6) + 1 == op_span(silent, within).end_ns
    assert turn_span(opened[4].node, scope).end_ns < int((began + 60_000) * 1e6)
    alone = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    turn = alone.begin_turn()
    op = alone.begin_op("tool", "silent")
    interrupt(op.node)
    alone.begin_op("tool", "later", turn=turn).end()
    turn.end()
    assert int(op.node.started_at * 1e6) + 1 == op_span(op.node, scope_of(alone)).end_ns
