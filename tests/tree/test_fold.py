from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree import _nodes as nodes
from optree import _records as r
from optree import flatten, walk_ops
from optree._nodes import AccountingEntry, LogEntry, ReasoningChunk, Tokens, Totals
from optree._tree import Fold, Tree
from optree._tree.fold import UNKNOWN
from optree._tree.totals import add_entry
from optree._tree.walk import to_plain
from optree._values import MAX_TEXT, cut, decode, raw
from tests.strategies import SETTERS, paths, play, programs, shuffled

TOKENS = ["inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"]
labels = paths.map(lambda parts: ".".join(map(str, parts)))
op_labels = paths.filter(lambda parts: parts and len(parts) % 2 == 0).map(lambda parts: ".".join(map(str, parts)))


@given(programs)
def test_fold_is_the_live_tree(program):
    """The records of any program make exactly the tree that grew while it ran, to the last field (S4-01, S4-02, S4-04)."""
    played = play(program)
    assert played.live == played.folded()


@given(programs)
def test_saved_tree_reads_back(program):
    """A tree written as JSON and read again is the same tree (S4-06 to S4-26)."""
    live = play(program).live
    assert live == msgspec.json.decode(msgspec.json.encode(live), type=Tree)


@given(programs, st.randoms(use_true_random=False))
def test_order_does_not_matter(program, random):
    """Records in any order that keeps each list's own give the same tree."""
    played = play(program)
    assert played.live == played.folded(shuffled(played.records(), random))


@given(programs, st.data())
def test_replay_changes_nothing(program, data):
    """A run of records that is delivered twice changes nothing."""
    played = play(program)
    first = data.draw(st.integers(0, len(played.lines)))
    last = data.draw(st.integers(first, len(played.lines)))
    assert played.live == played.folded([*played.records()[:last], *played.records()[first:]])


@given(programs, st.data())
def test_late_duplicates_change_nothing(program, data):
    """Any records that come again at the end change nothing, those apart of which the last one holds."""
    played = play(program)
    again = [record for record in played.records() if not isinstance(record, SETTERS)]
    chosen = data.draw(st.lists(st.sampled_from(again), max_size=8))
    assert played.live == played.folded([*played.records(), *chosen])


@given(programs, st.data())
def test_torn_records_make_a_tree(program, data):
    """Records with any of them lost make a tree that can be written and read, with all that is left below a root."""
    played = play(program)
    kept = data.draw(st.lists(st.booleans(), min_size=len(played.lines), max_size=len(played.lines)))
    tree = played.folded([record for record, keep in zip(played.records(), kept, strict=True) if keep])
    assert tree == msgspec.json.decode(msgspec.json.encode(tree), type=Tree)
    assert {op.path for *_, op in walk_ops(tree.session)} <= {op.path for *_, op in walk_ops(played.live.session)}


@given(programs, st.data())
def test_prefix_goes_on(program, data):
    """A tree that was saved at any point and gets the records again from any earlier point becomes the whole tree."""
    played = play(program)
    saved = data.draw(st.integers(0, len(played.lines)))
    position = data.draw(st.integers(0, saved))
    before = played.folded(played.records()[:saved])
    fold = Fold("t", msgspec.json.decode(msgspec.json.encode(before), type=Tree))
    for record in played.records()[position:]:
        fold.apply(record)
    assert played.live == fold.finish()


some_records = st.one_of(
    st.builds(r.SessionBegin, labels, st.floats(0, 1e13), st.text(), st.text()),
    st.builds(r.SessionEnd, labels, st.floats(0, 1e13), st.just("ok")),
    st.builds(r.SessionResume, labels, st.floats(0, 1e13)),
    st.builds(r.TurnBegin, labels, st.floats(0, 1e13)),
    st.builds(r.TurnEnd, labels, st.floats(0, 1e13), st.just("ok")),
    st.builds(r.OpBegin, labels, st.floats(0, 1e13), st.just("llm"), st.text()),
    st.builds(r.OpEnd, labels, st.floats(0, 1e13), st.just("ok")),
    st.builds(
        r.Entries, op_labels, st.integers(-1, 9), st.lists(st.builds(LogEntry, st.floats(0, 1e13), st.just("VRB"), st.text()), max_size=3)
    ),
    st.builds(r.Accounted, op_labels, st.builds(AccountingEntry, st.text(), st.floats(0, 1e13), st.just("llm"))),
    st.builds(r.Gap, st.floats(0, 1e13), st.integers(0, 9)),
)


@given(st.lists(some_records, max_size=12))
def test_random_records_make_a_tree(found):
    """Records that no builder would write make a tree too, and nothing raises."""
    fold = Fold("t")
    for record in found:
        fold.apply(record)
    tree = fold.finish()
    assert tree == msgspec.json.decode(msgspec.json.encode(tree), type=Tree)


@given(programs)
def test_totals_are_the_sums(program):
    """Each session's totals are the sums over its own entries and those of all sessions below it (S4-57, S4-58)."""
    root = to_plain(play(program).live)["session"]
    for session in sessions_of(root):
        ops = [op for below in sessions_of(session) for turn in below["turns"] for op in turn["ops"]]
        entries = [entry for op in ops for entry in op["accounting"]]
        calls, tools = ([entry for entry in entries if entry["type"] == kind] for kind in ("llm", "tool"))
        expected = {
            "llmRequests": len(calls),
            "llmFailed": len(failed(calls)),
            "toolsRun": len([op for op in ops if op["kind"] == "tool"]),
            "toolsFailed": len(failed(tools)),
            "costUsd": pytest.approx(summed(entries, "costUsd")),
            "upstreamInferenceCostUsd": pytest.approx(summed(calls, "upstreamInferenceCostUsd")),
            "knownCosts": len([entry for entry in entries if "costUsd" in entry]),
            "unknownCosts": len([entry for entry in entries if "costUsd" not in entry and (entry in calls or "tokens" in entry)]),
            "charactersIn": summed(tools, "charactersIn"),
            "charactersOut": summed(tools, "charactersOut"),
            **{key: summed([entry.get("tokens", {}) for entry in entries], key) for key in TOKENS},
        }
        assert expected == dict.fromkeys(expected, 0) | session.get("totals", {})


def sessions_of(session):
    """Return a session and all below it, as plain values."""
    below = [op["childSession"] for turn in session["turns"] for op in turn["ops"] if "childSession" in op]
    return [session, *(found for child in below for found in sessions_of(child))]


def failed(entries):
    """Return the entries of what failed."""
    return [entry for entry in entries if entry.get("status", "ok") != "ok"]


def summed(entries, key):
    """Return the sum over one member, which may be missing."""
    return sum(entry.get(key, 0) for entry in entries)


def test_what_counts_to_the_totals_of_what_kind():
    """A model's entry counts its own cost and the upstream's, a tool's its characters; tokens count wherever they are (S4-57)."""
    totals = Totals()
    tokens = Tokens(input_tokens=7, output_tokens=5, cache_read_input_tokens=3, cache_write_input_tokens=2)
    given = {"tokens": tokens, "cost_usd": 0.25, "upstream_inference_cost_usd": 0.125, "characters_in": 11, "characters_out": 13}
    for number, (kind, status) in enumerate([("llm", "ok"), ("llm", "failed"), ("tool", "ok"), ("tool", "failed"), ("tool", "ok")]):
        add_entry(totals, AccountingEntry(str(number), 1.0, kind, status=status, **given))
    assert Totals(
        llm_requests=2, llm_failed=1, tools_failed=1, cost_usd=1.25, upstream_inference_cost_usd=0.25, known_costs=5,
        input_tokens=35, output_tokens=25, cache_read_input_tokens=15, cache_write_input_tokens=10, characters_in=33, characters_out=39,
    ) == totals  # fmt: skip


@given(programs)
def test_accounting_entries_stand_once(program):
    """Each accounting entry stands in one place of the tree, under its own id; ends add one where none is (S4-55, S4-57, S4-59)."""
    played = play(program)
    found = flatten(played.live.session).accounting
    assert {1} >= set(Counter(entry["id"] for entry in found).values())
    ended = [op for *_, op in walk_ops(played.live.session) if op.kind in ("llm", "tool") and op.ended_at is not None]
    assert played.accounted <= len(found) <= played.accounted + len(ended)


def test_an_entry_that_failed_after_all():
    """An entry that comes again as failed takes the place of the first; a failure is never taken back (S4-55)."""
    fold = Fold("t")
    for status, text in (("ok", None), ("failed", "late"), ("ok", None)):
        fold.apply(r.Accounted("1.1", AccountingEntry("t:1.1#1", 1.0, "llm", status=status, error=text)))
    [entry] = fold.finish().session.turns[0].ops[0].accounting
    assert ("failed", "late") == (entry.status, entry.error)
    assert (1, 1) == (fold.finish().session.totals.llm_requests, fold.finish().session.totals.llm_failed)


@pytest.mark.parametrize(
    ("pieces", "expected", "missing"),
    [
        ([(0, "the sky "), (8, "is blue")], "the sky is blue", 0),
        ([(0, "the sky "), (0, "the sky "), (8, "is blue")], "the sky is blue", 0),
        ([(0, "the sky "), (4, "sky is"), (10, " blue")], "the sky is blue", 0),
        ([(0, "the sky "), (11, "blue")], "the sky [… 3 characters lost]blue", 1),
        ([(4, "sky"), (20, "blue")], "[… 4 characters lost]sky[… 13 characters lost]blue", 2),
    ],
    ids=["in turn", "one twice", "overlapping", "one is lost", "two are lost"],
)
def test_an_answer_that_streamed_is_put_together(pieces, expected, missing):
    """Text that came of an answer stands in its op as partial, each character once; what is missing before a piece is one loss."""
    fold = Fold("t")
    fold.apply(r.OpBegin("1.1", 1.0, "llm", "m"))
    for at, said in pieces:
        fold.apply(r.Entries("1.1", text_at=at, text=said))
    [op] = fold.finish().session.turns[0].ops
    assert (expected, True, missing) == (decode(op.response.payload), op.response.partial, fold.missing)


@pytest.mark.parametrize(
    ("responded", "expected"),
    [
        (None, ("P1 P2 C1 C2", True, [])),
        (nodes.Payload(raw("P1 P2 ")), ("P1 P2 C1 C2", None, [])),
        (nodes.Payload(raw({"content": "P1 P2 "})), ({"content": "P1 P2 "}, None, ["another process streamed of the answer too: C1 C2"])),
    ],
)
def test_an_answer_of_two_processes(responded, expected):
    """What a forked process streams stands behind what the op's own process made of the answer; nothing takes its place."""
    fold = Fold("t")
    fold.apply(r.OpBegin("1.1", 1.0, "llm", "m"))
    fold.apply(r.Entries("1.1", text_at=0, text="P1 P2 "))
    if responded is not None:
        fold.apply(r.Responded("1.1", 2.0, responded))
    fold.apply(r.Entries("1.1", text_at=r.BESIDE, text="C1 "))
    fold.apply(r.Entries("1.1", text_at=r.BESIDE, text="C2"))
    [op] = fold.finish().session.turns[0].ops
    assert expected == (decode(op.response.payload), op.response.partial, [entry.message for entry in op.logs])
    assert op.response.size == (len(expected[0]) if isinstance(expected[0], str) else responded.size)


@pytest.mark.parametrize(
    ("text", "truncated"),
    [
        (cut("x" * (MAX_TEXT + 1)), True),
        ("[TRUNCATED] Original size", None),
        ("é" * MAX_TEXT, None),
    ],
    ids=["cut", "said", "long"],
)
def test_a_streamed_answer_that_was_cut_says_so(text, truncated):
    """An answer is marked as cut where it was, not where it only speaks of that, nor where it is only long in bytes."""
    fold = Fold("t")
    fold.apply(r.OpBegin("1.1", 1.0, "llm", "m"))
    fold.apply(r.Entries("1.1", text_at=0, text=text))
    [op] = fold.finish().session.turns[0].ops
    assert truncated is op.response.truncated


def test_records_over_a_loaded_tree_find_its_nodes():
    """What comes later of sessions, turns and ops that were loaded, also of a sub-agent's, is theirs: no node is there twice."""
    first = Fold("t")
    for path in ("1.1", "1.1.1.1"):
        first.apply(r.OpBegin(path, 1.0, "session", "x"))
    first.apply(r.SessionBegin("1.1", 1.0, "b", "a->b"))
    tree = msgspec.json.decode(msgspec.json.encode(first.finish()), type=Tree)
    after = Fold("t", tree)
    for end in (
        r.OpEnd("1.1.1.1", 2.0, "ok", 1.0),
        r.TurnEnd("1.1.1", 3.0, "ok"),
        r.SessionEnd("1.1", 4.0, "ok"),
        r.TurnEnd("1", 5.0, "ok"),
    ):
        after.apply(end)
    [turn] = after.finish().session.turns
    [op] = turn.ops
    [inner] = op.child_session.turns
    assert (5.0, None, 4.0, 3.0, 2.0) == (turn.ended_at, op.ended_at, op.child_session.ended_at, inner.ended_at, inner.ops[0].ended_at)


def test_an_answer_goes_on_behind_what_was_loaded():
    """Over a tree that has the beginning of an answer, what comes later stands behind it; a whole answer takes its place."""
    first = Fold("t")
    first.apply(r.OpBegin("1.1", 1.0, "llm", "m"))
    first.apply(r.Entries("1.1", text_at=0, text="the sky "))
    tree = msgspec.json.decode(msgspec.json.encode(first.finish()), type=Tree)
    after = Fold("t", tree)
    after.apply(r.Entries("1.1", text_at=4, text="sky is"))
    [op] = after.finish().session.turns[0].ops
    assert ("the sky is", True, 0) == (decode(op.response.payload), op.response.partial, after.missing)


def test_an_op_is_told_more_of_itself():
    """What is set of an op after its begin is merged into what it began with; a name stays if none is told."""
    fold = Fold("t")
    fold.apply(r.OpBegin("1.1", 1.0, "llm", "m", attributes=raw({"a": 1, "b": 1})))
    fold.apply(r.OpSet("1.1", 2.0, attributes=raw({"b": 2, "c": 2})))
    fold.apply(r.OpSet("1.1", 3.0, name="openai:gpt-4o"))
    [op] = fold.finish().session.turns[0].ops
    assert ("openai:gpt-4o", {"a": 1, "b": 2, "c": 2}) == (op.name, op.attributes)


@pytest.mark.parametrize(("end", "status"), [(5.0, None), (10.0, "ok"), (11.0, "ok")])
def test_an_end_from_before_a_resume_is_over(end, status):
    """A session that was resumed is open; its end counts from the moment of the last resume on."""
    fold = Fold("t")
    fold.apply(r.SessionBegin("", 1.0, "a", "a", "x"))
    fold.apply(r.SessionResume("", 10.0))
    fold.apply(r.SessionEnd("", end, "ok"))
    assert (status, [10.0]) == (fold.finish().session.status, fold.finish().session.resumed_at)


def test_an_op_that_nobody_began_starts_with_its_first_entry():
    """Where the begin was lost, an op begins when anything of it was first seen: a line, a thought, an entry."""
    fold = Fold("t")
    fold.apply(r.Entries("1.1", 0, [LogEntry(7.0, "WRN", "late")]))
    fold.apply(r.Entries("1.2", 0, [], 0, [ReasoningChunk("hm", 8.0)]))
    fold.apply(r.Accounted("1.3", AccountingEntry("t:1.3#1", 9.0, "tool")))
    assert [7.0, 8.0, 9.0] == [op.started_at for op in fold.finish().session.turns[0].ops]


def test_entries_of_an_unknown_op():
    """An entry whose op's begin was lost is kept under a placeholder that readers can tell."""
    fold = Fold("t")
    fold.apply(r.Entries("1.2.3.1", 0, [LogEntry(5.0, "WRN", "late")]))
    [(session, turn, op)] = [found for found in walk_ops(fold.finish().session) if found[2].path == "1.2.3.1"]
    assert (UNKNOWN, "1.2", "1.2.3", UNKNOWN) == (session.agent_id, session.path, turn.path, op.name)
    assert (LogEntry(5.0, "WRN", "late"),) == op.logs


def test_begin_after_its_entries():
    """A begin that comes late turns the placeholder into the node."""
    fold = Fold("t")
    fold.apply(r.Entries("1.1", 0, [LogEntry(5.0, "WRN", "x")]))
    fold.apply(r.OpBegin("1.1", 4.0, "llm", "openai:gpt-4o"))
    [(_, _, op)] = walk_ops(fold.finish().session)
    assert ("llm", "openai:gpt-4o", 4.0, 1) == (op.kind, op.name, op.started_at, len(op.logs))


def test_begin_after_its_end():
    """Attributes of a begin that comes after its op's end are kept, below those of the end."""
    fold = Fold("t")
    fold.apply(r.OpEnd("1.1", 5.0, "ok", 1.0, attributes=raw({"a": "end", "b": 2})))
    fold.apply(r.OpBegin("1.1", 4.0, "llm", "m", attributes=raw({"a": "begin", "c": 3})))
    [(_, _, op)] = walk_ops(fold.finish().session)
    assert {"a": "end", "b": 2, "c": 3} == op.attributes


def test_lost_entries_are_counted():
    """Entries that must have stood before others that were read are counted as missing."""
    fold = Fold("t")
    fold.apply(r.Entries("1.1", 3, [LogEntry(1.0, "VRB", "fourth")], 2, [ReasoningChunk("third", 1.0)]))
    assert 3 + 2 == fold.missing


def test_dropped_records_are_counted():
    """What writers say they could not write is counted."""
    fold = Fold("t")
    fold.apply(r.Gap(1.0, 3))
    fold.apply(r.Gap(2.0, 4))
    assert 7 == fold.dropped


def test_unknown_records_are_passed_over():
    """A record of a type that the fold does not know changes nothing."""
    fold = Fold("t")
    fold.apply(r.Header(format=1, min_reader=1, txn="t", writer="w", segment=1, first=1, created=1.0, optree="0"))
    assert {} == fold.sessions


@pytest.mark.parametrize("number", [1, 20, 600])
def test_deep_placeholders(number):
    """A lone record of a node however deep makes the nodes above it."""
    fold = Fold("t")
    path = ".".join(["1"] * (2 * number))
    fold.apply(r.OpBegin(path, 1.0, "llm", "deep"))
    assert [path] == [op.path for *_, op in walk_ops(fold.finish().session) if op.name == "deep"]


def test_entries_at_the_end():
    """A writer that does not own a list puts entries at its end, wherever that is."""
    fold = Fold("t")
    for number in range(3):
        fold.apply(r.Accounted("1.1", nodes.AccountingEntry(f"t:1.1#{number}", 1.0, "tool")))
    [(_, _, op)] = walk_ops(fold.finish().session)
    assert ["t:1.1#0", "t:1.1#1", "t:1.1#2"] == [entry.id for entry in op.accounting]


def test_one_id_in_two_ops():
    """An accounting id that a broken file gives in two ops is kept in both, and nothing raises."""
    fold = Fold("t")
    for path in ("1.1", "1.1", "1.2", "1.2"):
        fold.apply(r.Accounted(path, AccountingEntry("same", 1.0, "llm")))
    assert [1, 1] == [len(op.accounting) for _, _, op in walk_ops(fold.finish().session)]


def test_an_op_is_taken_out_whole():
    """An op that is taken out of a fold has all that came by then, and none of it is put into one that comes in its place."""
    fold = Fold("t")
    fold.apply(r.OpBegin("1.1", 1.0, "llm", "m"))
    fold.apply(r.Entries("1.1", logs=[LogEntry(2.0, "VRB", "slow")], chunks=[ReasoningChunk("hm", 2.0)], text="half"))
    fold.apply(r.Accounted("1.1", AccountingEntry("a", 3.0, "llm")))
    op = fold.take_op("1.1")
    assert (["slow"], ["hm"], ["a"]) == (
        [entry.message for entry in op.logs],
        [chunk.text for chunk in op.reasoning.chunks],
        [entry.id for entry in op.accounting],
    )
    assert ("half", True) == (decode(op.response.payload), op.response.partial)
    fold.apply(r.Accounted("1.1", AccountingEntry("a", 4.0, "llm")))
    late = fold.take_op("1.1")
    assert ((UNKNOWN, ()), [4.0]) == ((late.name, late.logs), [entry.timestamp for entry in late.accounting])
    with pytest.raises(KeyError):
        fold.take_op("1.1")


def test_what_is_set_ahead_of_its_begin():
    """A name, attributes and prompts that come before the begin of what they are set of are kept, as behind it."""
    records = [
        r.SessionBegin("", 1.0, "a", "a"), r.TurnBegin("1", 2.0, {"system": "s"}), r.OpBegin("1.1", 3.0, "tool", "x", None, raw({"a": 1})),
        r.TurnSet("1", prompts={"user": "u"}), r.OpSet("1.1", 4.0, "y", raw({"b": 2})),
    ]  # fmt: skip
    behind, ahead = Fold("t"), Fold("t")
    for record in records:
        behind.apply(record)
    for record in reversed(records):
        ahead.apply(record)
    assert behind.finish() == ahead.finish()
    [turn] = behind.finish().session.turns
    assert ({"system": "s", "user": "u"}, "y", {"a": 1, "b": 2}) == (turn.prompts, turn.ops[0].name, turn.ops[0].attributes)


@pytest.mark.parametrize(
    ("others", "begin"),
    [
        ([r.TurnEnd("1", 7.0, "ok")], 7.0),
        ([r.OpBegin("1.2", 4.0, "tool", "x"), r.OpBegin("1.1", 5.0, "tool", "x"), r.TurnEnd("1", 7.0, "ok")], 4.0),
        ([], 2.0),
        ([r.TurnBegin("1", 3.0)], 3.0),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_turn_of_which_only_what_was_set_came_first(first, others, begin):
    """It begins when something of it was first seen, at the latest with its session, and not in 1970."""
    given = r.TurnSet("1", {"content": "said"})
    fold = Fold("t")
    for record in [r.SessionBegin("", 2.0, "a", "a"), *([given, *others] if first else [*others, given])]:
        fold.apply(record)
    [turn] = fold.finish().session.turns
    assert begin == turn.started_at
