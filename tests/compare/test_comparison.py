import copy
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optree
from optree._builder import SessionTreeBuilder
from optree._nodes import Payload
from optree.compare import compare, format_comparison, walk
from optree.testing import capture
from tests.compare.sessions import assistant, call, described, places, run, user
from tests.strategies import play, programs

SWAPPED = {"added": "removed", "removed": "added"}
FEW = settings(max_examples=30)


def differing(found):
    """Return mark, label and paths of every node that differs."""
    return [(one.mark, one.label, one.path_a, one.path_b) for one in walk(found.root) if one.mark != "same"]


def changed(found):
    """Return the changed fields of all nodes."""
    return {change.what: (change.before, change.after) for one in walk(found.root) for change in one.changes}


@FEW
@given(programs)
def test_nothing_differs_from_itself(program):
    """Any tree compared with itself, and with a copy of itself, is the same."""
    tree = play(program).folded()
    for other in (tree, msgspec.json.decode(msgspec.json.encode(tree), type=type(tree))):
        found = compare(tree, other, everything=True)
        assert (True, []) == (found.same, differing(found))


@FEW
@given(described, st.data())
def test_inserted_and_removed_ops_are_found(turns, data):
    """However many ops are inserted into, or removed from, any places of a session: exactly those are found."""
    more, count = copy.deepcopy(turns), data.draw(st.integers(1, 6))
    for number in range(count):
        place = data.draw(st.sampled_from(places(more)))
        place.insert(data.draw(st.integers(0, len(place))), ("inserted", {"number": f"new {number}"}))
    one, other = run(turns), run(more)
    inserted = [op.path for _, _, op in optree.walk_ops(other.session) if op.name == "inserted"]
    assert count == len(inserted)
    assert {("added", "tool inserted", None, path) for path in inserted} == set(differing(compare(one, other)))
    assert {("removed", "tool inserted", path, None) for path in inserted} == set(differing(compare(other, one)))


@FEW
@given(programs, programs)
def test_both_ways_mirror_each_other(first, second):
    """What is added one way is removed the other way, and all else is the same with its sides exchanged."""
    one, other = play(first).folded(), play(second).folded()
    there, back = compare(one, other, everything=True), compare(other, one, everything=True)
    mirrored = [(SWAPPED.get(one.mark, one.mark), one.path_b or "-", one.path_a or "-", len(one.changes)) for one in walk(there.root)]
    assert sorted(mirrored) == sorted((one.mark, one.path_a or "-", one.path_b or "-", len(one.changes)) for one in walk(back.root))
    forth, again = there.delta.cost_usd, back.delta.cost_usd
    assert (None if forth is None else -forth) == again


@FEW
@given(programs, programs)
def test_any_comparison_can_be_shown(first, second):
    """Any two trees give text and JSON, and each op stands in the whole comparison once."""
    one, other = play(first).folded(), play(second).folded()
    found = compare(one, other, everything=True)
    assert format_comparison(found, everything=True).startswith(f"- {found.txn_a}\n+ {found.txn_b}\n")
    assert found.same == json.loads(msgspec.json.encode(found))["same"]
    ops = (node.figures_a.ops if node.mark == "moved" else 1 for node in walk(found.root) if node.path_a and stands_for_ops(node))
    assert sum(1 for _ in optree.walk_ops(one.session)) == sum(ops)
    assert found.same or differing(found)


def stands_for_ops(node):
    """Tell whether a node is an op, or one that moved with all its ops."""
    return node.type == "op" or node.mark == "moved"


def test_times_change_nothing():
    """Sessions that differ in their times alone are the same, and their latencies are shown as differences."""
    turns = [("go", [("search", {"q": 1}), ("helper", [("help", [("read", {})])])])]
    found = compare(run(turns), run(turns, step=0.5))
    assert (True, []) == (found.same, differing(found))
    assert found.delta.latency_ms > 1000


def test_an_insertion_in_the_middle_changes_nothing_behind_it():
    """What follows an inserted op, turn or sub-agent is the same, at its new path."""
    ops = [("search", {"q": number}) for number in range(4)]
    one = run([("first", ops), ("second", ops)])
    other = run([("first", [*ops[:2], ("helper", [("x", ops)]), *ops[2:]]), ("between", []), ("second", ops)])
    found = compare(one, other, everything=True)
    assert {"op": 5, "session": 1, "turn": 2} == found.counts["added"]
    assert 0 == sum(sum(found.counts[mark].values()) for mark in ("removed", "changed", "moved"))
    assert [("1.3", "1.4"), ("1.4", "1.5"), ("2", "3")] == [
        (one.path_a, one.path_b) for one in walk(found.root) if one.path_a in ("1.3", "1.4", "2") and one.path_b
    ]


def test_moved():
    """An op in another order, or in another turn or agent, has moved: it is neither added nor removed."""
    one = run([("first", [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3})]), ("second", [("d", {"n": 4})])])
    order = run([("first", [("b", {"n": 2}), ("c", {"n": 3}), ("a", {"n": 1})]), ("second", [("d", {"n": 4})])])
    assert [("moved", "tool a", "1.1", "1.3")] == differing(compare(one, order))
    elsewhere = run([("first", [("b", {"n": 2}), ("c", {"n": 3})]), ("second", [("d", {"n": 4}), ("helper", [("x", [("a", {"n": 1})])])])])
    found = compare(one, elsewhere)
    assert ("moved", "tool a", "1.1", "2.2.1.1") in differing(found)
    assert 0 == sum(found.counts["removed"].values())


def test_a_moved_whole_is_one_move():
    """A turn that went to another place takes its ops along; only the turn is said to have moved."""
    ops = [("a", {"n": 1}), ("b", {"n": 2})]
    one = run([("x", ops), ("y", [("c", {})]), ("z", [("d", {})])])
    other = run([("y", [("c", {})]), ("z", [("d", {})]), ("x", ops)])
    assert [("moved", "x", "1", "3")] == differing(compare(one, other))


def test_what_changed_is_named():
    """Arguments, messages, parameters, response, status, error, tokens and cost are named with what they were and are."""
    trees = []
    for number in (1, 2):
        with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
            history = [user("hello"), assistant(f"answer {number}"), user("and?")]
            call(
                [*history, user("more")] if number == 2 else history, 10 * number, temperature=0.2 * number, tools=[{"name": f"t{number}"}]
            )
            with optree.tool("search") as op:
                op.request(q="x", page=number, **({"only": True} if number == 1 else {}))
                op.response({"hits": number, "same": True})
                op.end("failed" if number == 2 else "ok", "no luck" if number == 2 else None)
        trees.append(recording.tree)
    found = changed(compare(*trees))
    assert ("0.2", "0.4") == found["request.temperature"]
    assert ("assistant: answer 1", "assistant: answer 2") == found["request.messages[1]"]
    assert (None, "user: more") == found["request.messages[3]"]
    assert ('{"name":"t1"}', '{"name":"t2"}') == found["request.tools[0]"]
    assert (("1", "2"), ("true", None)) == (found["request.page"], found["request.only"])
    assert (("1", "2"), ("ok", "failed"), (None, "no luck")) == (found["response.hits"], found["status"], found["error"])
    assert (("10", "20"), ("$0.000780", "$0.000810")) == (found["tokens.input"], found["cost"])
    assert not {"request.q", "response.same", "request.messages[0]", "tokens.output"} & set(found)


def test_deltas_add_up():
    """The difference of the whole is the sum of those of its parts, for money to the last digit, and tokens."""
    one, other = (calls([100, 200]), calls([100, 250, 300]))
    found = compare(one, other, everything=True)
    ops = [op for op in walk(found.root) if op.type == "op"]
    assert (350, 1) == (found.delta.input_tokens, found.delta.ops)
    assert found.delta.input_tokens == sum(op.delta.input_tokens for op in ops)
    assert found.delta.cost_usd == round(sum(op.delta.cost_usd for op in ops), 12) == pytest.approx(350 * 3e-6 + 50 * 15e-6)
    assert found.delta == found.root.delta


def calls(figures):
    """Return a session of calls with so many input tokens."""
    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        for number, figure in enumerate(figures):
            call([user(f"question {number}")], figure)
    return recording.tree


def test_pooled_or_in_its_place():
    """A request that is stored in the pool is the same as one that holds its messages itself."""
    one, other = calls([5]), calls([5])
    [(_, _, op)] = optree.walk_ops(other.session)
    op.request = Payload(msgspec.Raw(b'{ "messages": [ {"role":"user","content":"question 0"} ] }'))
    assert compare(one, other).same


def test_many_messages_differ():
    """Of long histories that differ throughout the first few messages are named, and the rest is counted."""
    trees = []
    for number in (1, 2):
        with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
            call([user(f"{number} {place}") for place in range(200)])
        trees.append(recording.tree)
    found = changed(compare(*trees))
    assert [f"request.messages[{place}]" for place in range(5)] == [what for what in found if "[" in what]
    assert (None, "195 more that may differ") == found["request.messages"]


def test_truncated_payloads():
    """Responses that were cut are compared by what is left of them, and by what they measured in full."""
    trees = [run([("go", [("read", {})])]) for _ in range(3)]
    for tree, size in zip(trees, (5000, 5000, 6000), strict=True):
        [(_, _, op)] = optree.walk_ops(tree.session)
        op.response = Payload(msgspec.Raw(b'"[TRUNCATED] begin"'), None, size, True)
    assert compare(trees[0], trees[1]).same
    assert {"response": ("5,000 characters, cut", "6,000 characters, cut")} == changed(compare(trees[0], trees[2]))


def test_credentials_are_not_shown():
    """A credential is hidden in what changed, by its form and by its member's name; that it changed is seen."""
    keys = [f"sk-abcdefghijklmnopqrstuvwxyz{number}" for number in (1, 2)]
    one, other = (run([("go", [("fetch", {"api_key": "hush" + key, "note": f"with {key} here"})])]) for key in keys)
    found = compare(one, other)
    assert {"request.api_key", "request.note", "response"} == set(changed(found))
    assert not any(word in msgspec.json.encode(found) for word in (b"abcdefghij", b"hush"))


def test_without_a_pool():
    """Sessions may be given without their trees: all but pooled messages is compared."""
    one, other = calls([5]), calls([6])
    assert {"tokens.input", "cost"} == set(changed(compare(one.session, other.session)))


def test_deeply_nested():
    """Sub-agents nested deeper than Python's recursion are compared all the same."""
    trees = []
    for leaf in (1, 2):
        builder = optree.SessionTreeBuilder("agent 0")
        outer = builder
        for level in range(1, 400):
            host = builder.begin_op("session", f"agent {level}", turn=builder.begin_turn())
            builder = builder.attach_child_session(host, f"agent {level}")
        builder.begin_op("tool", "read", turn=builder.begin_turn()).request(n=leaf)
        trees.append(outer.tree)
    found = compare(*trees)
    assert {"request.n": ("1", "2")} == changed(found)
    assert 1 == len(differing(found))
    assert "request.n: 1 → 2" in format_comparison(found)


def test_ops_stand_beneath_those_that_they_were_begun_in():
    """A comparison has the shape of the trees: what was begun within an op is below it, in text, page and JSON."""

    def session(said):
        with capture() as recording, optree.session("a"), optree.turn(), optree.tool("outer"), optree.llm("inner") as op:
            op.response(said)
        return recording.tree

    found = compare(session("yes"), session("no"))
    [turn] = found.root.below
    [outer] = turn.below
    [inner] = outer.below
    assert (("same", "tool outer"), ("changed", "llm inner")) == ((outer.mark, outer.label), (inner.mark, inner.label))
    [drawn] = [line for line in format_comparison(found).splitlines() if "llm inner" in line]
    assert drawn.startswith("      └─ ~ 1.2")


def test_a_call_that_nobody_accounted_for_has_an_unknown_cost():
    """A call out of a transcript, of which nobody says what it took, is compared as one of unknown cost, not of $0."""
    trees = []
    for cost in (None, 0.5):
        builder = SessionTreeBuilder("agent")
        op = builder.begin_op("llm", "openai:gpt-4o")
        op.account(cost_usd=cost)
        op.end()
        op.node.accounting = op.node.accounting if cost else ()
        trees.append(builder.tree)
    assert "cost unknown → $0.500000" in format_comparison(compare(*trees))
