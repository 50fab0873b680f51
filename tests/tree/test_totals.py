"""Totals, against sums that are made here: what costs, what is not known to cost, what ran; live, loaded and in text."""

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree._builder import SessionTreeBuilder, Stream
from optree._nodes import AccountingEntry, Tokens, Totals
from optree._tree import Fold, Tree, walk_ops
from optree._tree.text import format_totals, format_tree
from optree._tree.totals import add_failure, cost_said, dollars, flaws_of_parts, leave_out_impossible, stored_parts
from optree._tree.walk import flatten
from tests.strategies import play, programs

USAGES = st.sampled_from(
    [
        {"usage": {"prompt_tokens": 1200, "completion_tokens": 64, "prompt_tokens_details": {"cached_tokens": 1000}}},
        {"usage": {"input_tokens": 3, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 1000, "output_tokens": 50}},
        {"usage": {"promptTokenCount": 90, "cachedContentTokenCount": 80, "candidatesTokenCount": 4, "thoughtsTokenCount": 2}},
        {"usage": {"prompt_tokens": 194, "completion_tokens": 2, "cost": 0.1}},
        {"input_tokens": 1200, "cache_read_tokens": 1000, "cost_usd": 0.0031},
        {"input_tokens": 2, "cache_read_tokens": 1000},
        {"prompt_tokens": 812, "cost": 0.2},
        {"cost_usd": 0.0},
        {"cost_usd": float("nan"), "input_tokens": -1},
        {},
    ]
)
"""Mixed on purpose: providers' own, bare figures, contradictory ones, and none."""


COUNT, COST = 10**12, 1e9
"""The most that a call can come to."""


@pytest.mark.parametrize(
    ("name", "most", "least"),
    [
        ("cost_usd", COST, -COST),
        ("upstream_inference_cost_usd", COST, -COST),
        ("characters_in", COUNT, 0),
        ("characters_out", COUNT, 0),
        *((name, COUNT, 0) for name in Tokens.__struct_fields__),
    ],
)
def test_what_no_call_can_come_to_is_left_out(name, most, least):
    """A figure of somebody else's beyond what is stated is taken out, and named; up to that it stays, in the entry and in all sums."""
    for value in (most, least):
        assert ([], value) == _left(name, value)
    for value in (most + 1000, *([least - 1000] if least else [])):
        assert (["tokens" if name in Tokens.__struct_fields__ else name], None) == _left(name, value)


def _left(name, value):
    """Return what is named of an entry with that figure, and the figure that is left."""
    if name not in Tokens.__struct_fields__:
        entry = AccountingEntry("x", 1.0, "tool", **{name: value})
        return leave_out_impossible(entry), getattr(entry, name)
    entry = AccountingEntry("x", 1.0, "tool", tokens=Tokens(**{name: value}))
    return leave_out_impossible(entry), getattr(entry.tokens, name, None)


def test_a_failure_that_is_told_later():
    """An entry that was added as ok and then failed is one more failure of its kind, and no more of anything else."""
    totals = Totals()
    for kind in ("llm", "tool", "tool"):
        add_failure(totals, AccountingEntry("x", 1.0, kind))
    assert Totals(llm_failed=1, tools_failed=2) == totals


def summed(root):
    """Return what a tree comes to, by a sum of its own: (entries' figures, requests, tools)."""
    ops = [op for *_, op in walk_ops(root)]
    entries = [entry for op in ops for entry in op.accounting]
    tokens = [entry.tokens for entry in entries if entry.tokens is not None]
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens")
    found = {name: sum(getattr(one, name) for one in tokens) for name in names}
    found["cost_usd"] = pytest.approx(fsum(entry.cost_usd for entry in entries if entry.cost_usd is not None), rel=1e-12)
    found["known_costs"] = sum(entry.cost_usd is not None for entry in entries)
    found["unknown_costs"] = sum(entry.cost_usd is None and (entry.type == "llm" or entry.tokens is not None) for entry in entries)
    found["llm_requests"] = sum(entry.type == "llm" for entry in entries)
    found["tools_run"] = sum(op.kind == "tool" for op in ops)
    found["llm_failed"] = sum(entry.type == "llm" and entry.status == "failed" for entry in entries)
    found["tools_failed"] = sum(entry.type == "tool" and entry.status == "failed" for entry in entries)
    return found


def kept(totals):
    """Return the same of totals that were kept."""
    return {name: getattr(totals, name) for name in NAMES}


NAMES = list(summed(SessionTreeBuilder("a").node))


@given(programs)
def test_totals_of_any_program(program):
    """The totals that grow with any program are what its leaves come to, in each session, live and loaded (S4-57, S4-58, S4-136)."""
    played = play(program)
    for root in (played.live.session, played.folded().session):
        sessions = [root, *(op.child_session for *_, op in walk_ops(root) if op.child_session is not None)]
        assert [summed(session) for session in sessions] == [kept(session.totals) for session in sessions]


@given(st.lists(st.tuples(st.sampled_from(["llm", "tool", "session", "system"]), st.lists(USAGES, max_size=3)), max_size=8))
def test_any_mixture_adds_up(ops):
    """Any mixture of usages in a tree of two sessions: leaves, totals, and the ledger's lines come to the same."""
    root = SessionTreeBuilder("a", stream=Stream([]))
    child = root.attach_child_session(root.begin_op("session", "b"), "b")
    for (kind, usages), builder in zip(ops, [root, child] * len(ops), strict=False):
        op = builder.begin_op(kind, "openai:gpt-4o")
        for figures in usages:
            op.account(**figures)
        op.end()
    for session in (root.node, child.node):
        assert summed(session) == kept(session.totals)
    lines = flatten(root.node).accounting
    names = {"inputTokens": "input_tokens", "cacheReadInputTokens": "cache_read_input_tokens", "outputTokens": "output_tokens"}
    told = {name: sum(line.get("tokens", {}).get(shown, 0) for line in lines) for shown, name in names.items()}
    assert told == {name: getattr(root.node.totals, name) for name in told}
    assert all(sum(line["tokens"][name] for name in line["tokens"] if name not in _BESIDE) == line["tokens"]["totalTokens"]
               for line in lines if "tokens" in line)  # fmt: skip


_BESIDE = ("totalTokens", "reasoningOutputTokens")


def test_a_call_by_hand():
    """OpenAI's 1,200 of which 1,000 cached are 1,200, not 2,200; Anthropic's 200 beside 1,000 are 1,200."""
    root = SessionTreeBuilder("a")
    root.begin_op("llm", "openai:gpt-4o").account(input_tokens=1200, cache_read_tokens=1000, output_tokens=64, cost_usd=0.0031)
    root.begin_op("llm", "anthropic:claude").account(input_tokens=200, cache_read_tokens=1000, output_tokens=64)
    totals = root.node.totals
    assert (2400, 2000, 128, 0.0031, 1, 1) == (
        totals.all_input_tokens,
        totals.cache_read_input_tokens,
        totals.output_tokens,
        totals.cost_usd,
        totals.known_costs,
        totals.unknown_costs,
    )
    assert "2 llm · 0 tool · 2,400→128 tok (2,000 cached) · $0.003100 + 1 unknown" == format_totals(totals)
    lines = format_tree(root.node, live=True).splitlines()
    assert "1,200→64 tok (1,000 cached) $0.003100" in lines[2]
    assert "1,200→64 tok (1,000 cached) cost unknown" in lines[3]


def test_what_ran():
    """Tool ops are counted as they begin, whatever is accounted for; model calls by their attempts (S4-55)."""
    root = SessionTreeBuilder("a")
    for kind in ("tool", "system", "session", "llm"):
        root.begin_op(kind, "x")
    call = root.begin_op("llm", "m")
    for _ in range(3):
        call.account(input_tokens=1)
    tool = root.begin_op("tool", "y")
    for _ in range(2):
        tool.account(characters_in=1)
    assert (2, 3) == (root.node.totals.tools_run, root.node.totals.llm_requests)


def test_costs_said():
    """A cost that nobody gave is unknown, one of 0 is $0, and a sum says what is not in it."""
    assert ["", "cost unknown", "$0", "$0.003100", "$0.003100 + 2 unknown", "$0 + 1 unknown"] == [
        cost_said(*given) for given in [(0.0, 0, 0), (0.0, 0, 3), (0.0, 1, 0), (0.0031, 1, 0), (0.0031, 4, 2), (0.0, 1, 1)]
    ]
    assert ["$0.0000001", "-$1,250.500000", "$0.300000"] == [dollars(amount) for amount in (1e-7, -1250.5, 0.1 + 0.2)]


def test_a_tool_costs_nothing_unless_said():
    """A tool's call is not of unknown cost; one that took tokens is."""
    root = SessionTreeBuilder("a")
    root.begin_op("tool", "x").account(characters_in=3)
    assert (0, 0) == (root.node.totals.known_costs, root.node.totals.unknown_costs)
    root.begin_op("tool", "x").account(input_tokens=3)
    assert (0, 1, 3) == (root.node.totals.known_costs, root.node.totals.unknown_costs, root.node.totals.input_tokens)


def test_old_totals_are_made_anew():
    """Totals of a file are summed from its leaves when it is loaded: those of 0.1.0 counted accounted calls, and knew no unknown costs."""
    root = SessionTreeBuilder("a", txn="t")
    root.begin_op("tool", "x")
    root.begin_op("llm", "m").account(input_tokens=5)
    expected = root.node.totals
    root.node.totals = Totals(input_tokens=5, llm_requests=1, tools_run=7)
    assert expected == Fold("t", Tree(root.node, root.core.pool)).finish().session.totals


def test_a_long_sum_is_whole_in_the_tree():
    """The line of a session has its whole sum, however long: an amount that is cut would be another one."""
    root = SessionTreeBuilder("a")
    for cost in (12.345678, None):
        op = root.begin_op("llm", "openai:x")
        op.account(input_tokens=1_234_567, output_tokens=123_456, cache_read_tokens=1_000_000, reasoning_tokens=40_000, cost_usd=cost)
        op.end()
    expected = "2 llm · 0 tool · 2,469,134→246,912 tok (2,000,000 cached, 80,000 reasoning) · $12.345678 + 1 unknown"
    assert expected in format_tree(root.node).splitlines()[0]


STORED = {"inputTokens": 7, "outputTokens": 5, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 2}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({}, dict.fromkeys(STORED, 0) | {"totalTokens": 0, "reasoningOutputTokens": 0}),
        (STORED, STORED | {"totalTokens": 17, "reasoningOutputTokens": 0}),
        (STORED | {"totalTokens": 20, "reasoningOutputTokens": 4}, STORED | {"totalTokens": 20, "reasoningOutputTokens": 4}),
        (STORED | {"cachedTokens": 9}, STORED | {"totalTokens": 17, "reasoningOutputTokens": 0}),
        ({"cachedTokens": 9}, dict.fromkeys(STORED, 0) | {"cacheReadInputTokens": 9, "totalTokens": 9, "reasoningOutputTokens": 0}),
        (STORED | {"totalTokens": 12}, STORED | {"inputTokens": 2, "totalTokens": 12, "reasoningOutputTokens": 0}),
        (STORED | {"inputTokens": 4, "totalTokens": 9}, STORED | {"inputTokens": 4, "totalTokens": 9, "reasoningOutputTokens": 0}),
        ({"inputTokens": "7"}, dict.fromkeys(STORED, 0) | {"inputTokens": "7", "totalTokens": 0, "reasoningOutputTokens": 0}),
    ],
)
def test_tokens_out_of_a_file(block, expected):
    """Parts that a file leaves out are 0, a total that it leaves out is their sum, and the original's other name is understood.

    A total that is input and output alone proves that the input includes the cached; more cached than sent proves nothing.
    """
    assert expected == stored_parts(block)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (STORED, []),
        (STORED | {"totalTokens": 18}, ["totalTokens 18, and its parts add up to 17"]),
        ({"inputTokens": -2000}, ["inputTokens -2,000 is below 0", "totalTokens -2,000 is below 0"]),
        ({"inputTokens": -1, "totalTokens": 3}, ["inputTokens -1 is below 0", "totalTokens 3, and its parts add up to -1"]),
        ({"inputTokens": "7", "totalTokens": 20}, []),
    ],
)
def test_tokens_that_contradict_themselves(parts, expected):
    """What a file's own tokens contradict is told, a sentence each; what is no count is for the caller to judge."""
    assert expected == flaws_of_parts(stored_parts(parts))
