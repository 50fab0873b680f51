import msgspec
import pytest
from hypothesis import given, settings

from optree._ids import span_id, trace_id, txn_of
from optree._tree import Tree, walk_ops, walk_sessions
from optree_otel.incoming import InSpan, read, sessions
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES, encode
from optree_otel.signals.mapping import op_span, session_span, turn_span
from optree_otel.signals.protobuf import field
from optree_otel.signals.scope import SpanScope
from tests.otel.incoming.made import LLM, START
from tests.otel.tree_of_all import TXN, tree_of_all
from tests.strategies import play, programs

MICROSECOND = 0.001  # ms
SUMS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens")


def sent(tree, *, content=False):
    """Return a tree's canonical trace as it leaves, in bytes."""
    txn = tree.session.origin_txn_id
    scopes = {"": SpanScope(txn, bytes.fromhex(trace_id(txn)), tree.session, content=content, pool=tree.pool)}
    spans = []
    for session in walk_sessions(tree.session):
        scope = scopes[session.path]
        spans.append(session_span(session, scope))
        for turn in session.turns:
            spans += [turn_span(turn, scope), *(op_span(op, scope) for op in turn.ops)]
            scopes |= {op.path: scope.for_child(op, op.child_session) for op in turn.ops if op.child_session}
    inner = b"".join(field(2, encode(span, PROFILES["default"])) for span in spans)
    return field(1, field(2, inner))


def back(tree, **options):
    """Return the only tree that comes back of a tree's trace, of which nothing is to be said."""
    found = read(sent(tree, **options))
    [again] = sessions(found.spans, found.notes)
    assert [] == found.notes
    return again


def status_of(node):
    """Return a node's status; what was open is sent as `interrupted`."""
    return node.status or "interrupted"


def nodes(tree):
    """Return all that must come back: by path, what a node is, how it ended, and what was logged in it."""
    found = {}
    for session in walk_sessions(tree.session):
        found["session", session.path] = (session.agent_id, session.call_path, status_of(session))
        found |= {("turn", turn.path): (turn.index, status_of(turn)) for turn in session.turns}
    for _, _, op in walk_ops(tree.session):
        logs = [(entry.severity, entry.message, entry.direction) for entry in op.logs]
        name = op.name if op.child_session is None else op.child_session.agent_id  # the span of a sub-agent's op is named after it
        characters = [sum(getattr(entry, name) or 0 for entry in op.accounting) for name in ("characters_in", "characters_out")]
        found["op", op.path] = (op.kind, name, status_of(op), op.parent_op, logs, characters if op.kind == "tool" else [])
    return found


def times(tree):
    """Return the start of each node, its end where it has one, and the time of each log line."""
    found = {}
    for session in walk_sessions(tree.session):
        for node in (session, *session.turns, *(op for turn in session.turns for op in turn.ops)):
            key = (type(node).__name__, node.path)
            found[key, "start"], found[key, "end"] = node.started_at, node.ended_at
            found |= {(key, number): entry.timestamp for number, entry in enumerate(getattr(node, "logs", ()))}
    return {key: value for key, value in found.items() if value is not None}


@settings(max_examples=60)
@given(programs)
def test_out_and_in(program):
    """Any session comes back from its spans: paths, kinds, names, statuses, times to the microsecond, logs, and all sums."""
    tree = play(program).live
    again = back(tree)
    assert nodes(tree) == nodes(again)
    for key, value in times(tree).items():
        assert value == pytest.approx(times(again)[key], abs=MICROSECOND, rel=0)
    for before, after in zip(walk_sessions(tree.session), walk_sessions(again.session), strict=True):
        assert [getattr(before.totals, name) for name in SUMS] == [getattr(after.totals, name) for name in SUMS]
        assert before.totals.cost_usd == pytest.approx(after.totals.cost_usd)


def test_content():
    """With content, prompts, answers, messages, arguments and results come back as well."""
    tree = tree_of_all().tree
    again = back(tree, content=True)
    turn, found = tree.session.turns[0], again.session.turns[0]
    assert (turn.prompts, turn.assistant) == (found.prompts, found.assistant)
    assert (tree.session.session_title, tree.session.latest_status) == (again.session.session_title, again.session.latest_status)
    assert msgspec.json.decode(tree.session.final_report) == msgspec.json.decode(again.session.final_report)
    call = found.ops[0]
    asked = again.pool.resolve(msgspec.json.decode(call.request.payload))
    assert [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Paris?"}] == asked["messages"]
    assert "rain or sun?" == "".join(chunk.text for chunk in call.reasoning.chunks)
    assert "search" == msgspec.json.decode(call.response.payload)["tool_calls"][0]["function"]["name"]


def test_own_attributes():
    """What the program itself had set comes back under its own names."""
    again = back(tree_of_all().tree)
    assert ("blue", "u1", {"source": "cli"}) == tuple(again.session.attributes[key] for key in ("team", "user.id", "ingress"))
    assert {"phase": "late"} == {key: value for key, value in again.session.turns[1].attributes.items() if not key.startswith("otel.")}


def test_same_txn():
    """A session of ours keeps its txn, and with it the ids of its nodes and its trace."""
    again = back(tree_of_all().tree)
    assert (TXN, trace_id(TXN)) == (again.session.origin_txn_id, again.session.trace_id)


def test_missing_spans():
    """What was never sent stands as a placeholder: the rest is where it was."""
    tree = tree_of_all().tree
    spans = [span for span in read(sent(tree)).spans if span.attributes[names.KIND] not in ("session", "turn")]
    [again] = sessions(spans)
    assert [op.path for *_, op in walk_ops(tree.session)] == [op.path for *_, op in walk_ops(again.session)]
    assert ("(unknown)", None) == (again.session.agent_id, again.session.status)
    assert tree.session.totals.cost_usd == again.session.totals.cost_usd


def test_any_order():
    """The order of the spans in a file does not matter, nor that some stand there twice."""
    tree = tree_of_all().tree
    found = read(sent(tree)).spans
    [again] = sessions([*found[::-1], *found])
    assert nodes(tree) == nodes(again)


def test_changed_twin():
    """Of two spans with one id that say different things the second is reported, not taken."""
    found = read(sent(tree_of_all().tree))
    twin = msgspec.structs.replace(found.spans[0], name="other", number=99)
    sessions([*found.spans, twin], found.notes)
    assert [f"span 99 ('other') is passed over: span {found.spans[0].number} has the same id and says something else"] == found.notes


def test_others_inside():
    """Spans of other instrumentation inside ours become ops behind those that there are, in the op that they happened in."""
    tree = tree_of_all().tree
    trace, above = trace_id(TXN), span_id(f"{TXN}:1.1")
    mine = [
        InSpan(trace, "a" * 16, "POST", START, START + 10, parent_id=above),
        InSpan(trace, "b" * 16, "chat gpt-4o", START, START + 9, parent_id="a" * 16, attributes=LLM),
    ]
    [again] = sessions([*read(sent(tree)).spans, *mine])
    added = again.session.turns[0].ops[len(tree.session.turns[0].ops) :]
    assert [("system", "POST", "1.1"), ("llm", "openai:gpt-4o", added[0].path)] == [(op.kind, op.name, op.parent_op) for op in added]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({names.PATH: "1.x"}, "is no path"),
        ({names.PATH: "1.1.1"}, "does not fit their kind"),
    ],
)
def test_bad_names(change, said):
    """A span whose path is none is passed over."""
    found = read(sent(tree_of_all().tree))
    bad = next(span for span in found.spans if span.attributes[names.KIND] == "tool")
    bad.attributes |= change
    trees = sessions(found.spans, found.notes)
    assert [TXN] == [tree.session.origin_txn_id for tree in trees]
    assert (1, True) == (len(found.notes), said in found.notes[0])


def test_bad_txn():
    """A span whose txn is none becomes a session of its own under one that may name a file, and that is said."""
    found = read(sent(tree_of_all().tree))
    bad = next(span for span in found.spans if span.attributes[names.KIND] == "tool")
    bad.attributes[names.TXN] = "../../etc"
    trees = sessions(found.spans, found.notes)
    assert {TXN, txn_of("../../etc", "otel")} == {tree.session.origin_txn_id for tree in trees}
    assert ["'../../etc' cannot name a session"] == [note.partition(":")[0] for note in found.notes]


def test_tree_type():
    """What comes back is a tree with a pool, as a loaded one."""
    assert isinstance(back(tree_of_all().tree), Tree)
