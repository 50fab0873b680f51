"""Calls that go on when what they are in has ended: each is accounted for once."""

import msgspec
import pytest

from optree import SessionTreeBuilder
from optree._builder import Stream
from optree._builder.handles import account_late
from optree._nodes import placeholder_of
from optree._tree import Fold
from optree._tree.unfold import unfold


class Kept:
    """Keeps records."""

    def __init__(self):
        self.records = []

    def take(self, batch):
        """Keep copies of them: an entry may be changed later."""
        self.records += [msgspec.json.decode(msgspec.json.encode(record), type=type(record)) for record in batch]


@pytest.fixture
def built():
    """Return a builder with an open sub-agent, and a taker that has its records."""
    recording = Kept()
    builder = SessionTreeBuilder("lead", txn="t", stream=Stream([recording]))
    builder.begin_turn()
    child = builder.attach_child_session(builder.begin_op("session", "reader"), "reader")
    child.begin_turn()
    return builder, child, recording


@pytest.mark.parametrize("ends", ["turn", "sub-agent", "session"])
@pytest.mark.parametrize("usage", [{}, {"usage_at_start": {"prompt_tokens": 100}}])
def test_a_call_that_is_accounted_for_after_its_end(ends, usage, built):
    """What it took is known then, and stands in place of the entry that says nobody knows: in tree, totals and a fold of its records."""
    builder, child, recording = built
    op = child.begin_op("llm", "openai:gpt-5", attributes=usage)
    if ends == "turn":
        child.end_turn(child.current_turn)
    else:
        (child if ends == "sub-agent" else builder).end_session()
    assert ([placeholder_of(op.node.op_id)], 1) == ([entry.id for entry in op.node.accounting], builder.node.totals.unknown_costs)
    op.account(input_tokens=100, output_tokens=10, cost_usd=1.0)
    op.account(cost_usd=0.5)
    assert [("ok", 1.0), ("ok", 0.5)] == [(entry.status, entry.cost_usd) for entry in op.node.accounting]
    totals = builder.node.totals
    assert (2, 0, 0, 1.5, 100) == (
        totals.llm_requests, totals.llm_failed, totals.unknown_costs, totals.cost_usd, totals.input_tokens,
    )  # fmt: skip
    fold = Fold("t")
    for record in recording.records:
        fold.apply(record)
    assert builder.tree == fold.finish()
    again = Fold("t")
    for record in unfold(builder.tree):
        again.apply(record)
    assert builder.tree == again.finish()


@pytest.mark.parametrize(("failed", "status"), [(False, "ok"), (True, "failed")])
def test_an_answer_that_is_read_after_its_end(failed, status, built):
    """Its usage is entered as of a call that went well, or did not."""
    builder, child, _ = built
    op = child.begin_op("llm", "openai:gpt-5")
    builder.end_session()
    account_late(op, {"prompt_tokens": 100, "completion_tokens": 10}, failed=failed)
    assert [(status, 100)] == [(entry.status, entry.tokens.input_tokens) for entry in op.node.accounting]
    assert (1, int(failed)) == (builder.node.totals.llm_requests, builder.node.totals.llm_failed)


def test_what_stands_for_a_call_comes_behind_its_entry(built):
    """As where a process that resumed a session did not know yet what another one has accounted for: the entry counts alone, too."""
    _, child, recording = built
    op = child.begin_op("llm", "openai:gpt-5")
    op.account(cost_usd=1.0)
    known = recording.records[-1]
    fold = Fold("t")
    for record in recording.records:
        fold.apply(record)
    open_entry = type(known.entry)(placeholder_of(op.node.op_id), 1.0, "llm", "failed")
    fold.apply(type(known)(op.path, open_entry))
    assert (1, 0) == (fold.finish().session.totals.llm_requests, fold.finish().session.totals.unknown_costs)
