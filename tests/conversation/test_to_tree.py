"""Events become a tree, and the tree the same events."""

from hypothesis import given, settings

from optree._ids import is_txn
from optree._tree import walk_sessions
from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.of_tree import events_of
from optree.conversation.to_tree import MAX_NESTED, TICK, tree_of
from tests.formats.streams import event_lists


def created(agent, number=None, **more):
    """Return the creation of an agent."""
    return AgentCreated(message_id=f"c_{agent}" if number is None else f"c_{number}", agent_id=agent, **more)


def said(agent, number, **more):
    """Return what an agent's user said."""
    return TranscriptEntry(message_id=f"m_{number}", agent_id=agent, role="user", content="hi", **more)


def nested(tree):
    """Return each agent with its parent's path of calls."""
    return [session.call_path for session in walk_sessions(tree.session)]


@settings(max_examples=60)
@given(event_lists)
def test_events_come_back_as_they_were(events):
    """A stream becomes a tree and the same stream again: ids, links, order, agents and times (S0-03)."""
    assert events == events_of(tree_of(events, txn="t"))


@settings(max_examples=30)
@given(event_lists)
def test_the_same_stream_has_the_same_txn(events):
    """The txn follows from the events, may name a session on disk, and is that of the stream when it has grown at its end."""
    txn = tree_of(events).session.origin_txn_id
    assert is_txn(txn)
    assert txn == tree_of(list(events), start=5.0).session.origin_txn_id
    many = [said("a", number) for number in range(20)]
    assert tree_of(many).session.origin_txn_id == tree_of([*many, said("a", "new")]).session.origin_txn_id


def test_agents_nest_by_name_cause_and_call():
    """A parent is known by its name, by its message or one call of it, or by the call that was waiting for that name (S1-05, S0-10)."""
    calls = [{"id": "k", "function": {"name": "task", "arguments": '{"name": "Inner"}'}}]
    events = [
        created("root"),
        said("root", 1),
        created("a", parent="root"),
        created("b", cause=("m_1",)),
        created("c", cause=("m_1.call_7",)),
        TranscriptEntry(message_id="m_2", agent_id="a", role="assistant", tool_calls=calls),
        created("d", name="Inner"),
    ]
    assert ["root", "root->a", "root->a->Inner", "root->b", "root->c"] == nested(tree_of(events))


def test_a_parent_that_is_missing_is_said():
    """An agent whose parent is not in the stream stands below the root, and keeps the name of its parent."""
    notes = []
    events = [created("root"), created("lost", parent="nobody")]
    tree = tree_of(events, notes=notes)
    assert ["root", "root->lost"] == nested(tree)
    assert ["agent lost was created by nobody, who is not in the stream"] == notes
    assert [None, "nobody"] == [event.parent for event in events_of(tree)]


def test_parents_in_a_circle_are_cut():
    """Agents that created each other, or themselves, all have their place; each cut is said."""
    notes = []
    events = [created("a", parent="c"), created("b", parent="a"), created("c", parent="b"), created("d", parent="d")]
    tree = tree_of(events, notes=notes)
    assert 4 == len(nested(tree))
    assert ["agent c would be created by b, which it created itself: that link is cut",
            "agent d would be created by d, which it created itself: that link is cut"] == notes  # fmt: skip
    assert events == events_of(tree)


def test_very_deep_agents_stand_beside_each_other():
    """Agents that are nested more deeply than a snapshot holds are flattened below the deepest, in their order; none is lost."""
    events = [created(f"a{number}", parent=f"a{number - 1}" if number else None) for number in range(200)]
    tree = tree_of(events)
    assert 200 == len(nested(tree))
    assert MAX_NESTED == max(path.count("->") for path in nested(tree))
    assert events == events_of(tree)


def test_an_agent_that_only_speaks_gets_a_session():
    """Entries of an agent whose creation is not in the stream are in a session of their own, whose creation no event told of (S0-90)."""
    events = [said("jill", 1), created("inner", parent="jill"), said("inner", 2)]
    tree = tree_of(events)
    assert ["jill", "jill->inner"] == nested(tree)
    assert events == events_of(tree)


def test_a_text_of_unknown_make_is_of_whom_its_cause_tells():
    """A piece of text without an agent, as seed 000 has it, is with the agent of its cause, and with the root if that is unknown."""
    texts = [PieceOfText(message_id="t_1", content="x", cause=("m_2",)), PieceOfText(message_id="t_2", content="y", cause=("nobody",))]
    tree = tree_of([created("root"), said("jill", 2), *texts])
    assert [["t_2"], ["m_2", "t_1"]] == [[message.id for message in session.messages] for session in walk_sessions(tree.session)]


def test_an_event_that_is_there_twice():
    """The same event twice is once; two that differ under one id both stay; each is said."""
    notes = []
    other = TranscriptEntry(message_id="m_1", agent_id="a", role="user", content="other")
    tree = tree_of([said("a", 1), said("a", 1), other], notes=notes)
    assert 2 == len(tree.session.messages)
    assert ["event m_1 is there twice: once is enough", "two events have the id m_1, and differ: both are kept"] == notes


def test_times_tick_where_there_are_none():
    """Events without times are a tick apart from the start on; those that have one keep it."""
    tree = tree_of([said("a", 1), said("a", 2), said("a", 3, timestamp=500.0), said("a", 4)], start=100.0)
    assert [100.0, 100.0 + TICK, 500.0, 500.0 + TICK] == [message.timestamp for message in tree.session.messages]


def test_how_an_agent_ended_is_not_made_up():
    """Sessions of a conversation, and what holds them, reach to the last event in them and have no outcome: no event tells of one."""
    tree = tree_of([created("a", name="Ann"), said("a", 1), created("b", parent="a"), said("b", 2), said("a", 3)], start=100.0)
    [turn] = tree.session.turns
    [op] = turn.ops
    ends = [(node.ended_at, node.status, node.error) for node in (tree.session, turn, op, op.child_session)]
    assert [(104.0, None, None), *[(103.0, None, None)] * 3] == ends
    assert (None, "Ann", "hi") == (tree.session.success, tree.session.agent_id, tree.session.session_title)


def test_no_events_are_an_empty_session():
    """A stream without events is a session without messages."""
    assert [] == tree_of([]).session.messages
