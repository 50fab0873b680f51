"""The past, recorded with the times that others tell."""

from msgspec import UNSET

from optree import _records as r
from optree._builder import SessionTreeBuilder, Stream
from optree._nodes import AccountingEntry, LogEntry, Tokens
from optree._tree import Fold
from optree.testing import Ticking


class Noting(list):
    """Keeps the records of a stream."""

    def take(self, batch):
        """Take a batch."""
        self.extend(batch)


def past(found):
    """Return a builder whose records are noted in *found*, with an agent within an agent and what they did."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking(), stream=Stream([found]), at=10.0)
    turn = root.begin_turn(user="why?", at=20.0)
    llm = root.begin_op("llm", "openai:gpt-4o", turn=turn, at=30.0)
    root.set_request(llm, {"temperature": 0}, [{"role": "user", "content": "why?"}], at=30.0)
    root.set_response(llm, "because", at=40.0)
    root.record(r.Entries("1.1", logs=[LogEntry(35.0, "VRB", "hm")]))
    root.record(r.Accounted("1.1", AccountingEntry("t:1.1#1", 40.0, "llm", tokens=Tokens(7, 5), cost_usd=0.5)))
    root.record(r.OpEnd("1.1", 40.0, "ok", 10.0, None, "thought"))
    call = root.begin_op("session", "lead", turn=turn, at=50.0)
    child = root.attach_child_session(call, "lead", at=51.0)
    child.record(r.SessionEnd("1.2", 59.0, "ok", None, UNSET))
    root.record(r.OpEnd("1.2", 60.0, "failed", 10.0, "gone"))
    root.record(r.TurnEnd("1", 70.0, "ok"))
    root.record(r.SessionEnd("", 80.0, "ok"))
    root.record(r.TurnSet("1", ended_at=75.0))
    root.core.stream.close()
    return root


def test_times_are_those_that_were_told():
    """Begins and ends have the times that were given, and nothing is added: no accounting, no warning, no end of what is inside."""
    root = past(Noting())
    [turn] = root.node.turns
    [llm, call] = turn.ops
    child = call.child_session
    assert [(10.0, 80.0), (20.0, 75.0), (30.0, 40.0), (50.0, 60.0), (51.0, 59.0)] == [
        (node.started_at, node.ended_at) for node in (root.node, turn, llm, call, child)
    ]
    assert (["t:1.1#1"], [], ["hm"], [], "thought") == (
        [entry.id for entry in llm.accounting],
        [*call.accounting],
        [entry.message for entry in llm.logs],
        [*call.logs],
        llm.reasoning.final,
    )
    assert (0.5, 1, True) == (root.node.totals.cost_usd, root.node.totals.llm_requests, child.attributes["cycle"])


def test_the_records_make_the_same_tree():
    """What went to the journal folds to the tree that was built."""
    found = Noting()
    root = past(found)
    fold = Fold("t")
    for record in found:
        fold.apply(record)
    assert root.tree == fold.finish()


def test_what_is_not_there_is_passed_over():
    """What is of no op or turn of this session, and the begin of one, changes nothing, raises nothing, and is not written."""
    found = Noting()
    root = SessionTreeBuilder("lead", now=Ticking(), stream=Stream([found]))
    root.record(r.OpEnd("7.7", 1.0, "ok"))
    root.record(r.TurnEnd("7", 1.0, "ok"))
    root.record(r.TurnBegin("7", 1.0))
    root.core.stream.close()
    assert [r.SessionBegin] == [type(record) for record in found]


def test_a_time_that_is_none_is_now():
    """A time that is no number is the present one."""
    root = SessionTreeBuilder("lead", now=Ticking(), stream=Stream([]))
    before = root.node.started_at
    assert before < root.begin_turn(at="noon").node.started_at
    root.core.stream.close()
