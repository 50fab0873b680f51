"""The quick way of ops: the bytes of the general way, for all that it takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optree._builder import SessionTreeBuilder
from optree._nodes import OperationNode
from optree.testing import Ticking
from optree_otel.signals import quick
from optree_otel.signals.limits import PROFILES, encode
from optree_otel.signals.mapping import op_span
from optree_otel.signals.scope import SpanScope, trace_id
from tests.otel.tree_of_all import TXN

texts = st.text(max_size=40) | st.sampled_from(
    ["Bearer abcdefgh12345", "sk-abcdefghijklmnopqrst", "x" * 3000, "gpt-4o", "openai", "", "\ud800"]
)
numbers = st.integers(0, 1 << 40) | st.floats(0, 1e9)
names = ("provider", "model", "operation", "temperature", "n", "tool_call_id", "base_url", "response_model", "finish_reason", "team", "a.b")
blocks = st.none() | st.dictionaries(st.sampled_from(names), texts | numbers | st.lists(texts, max_size=2), max_size=4)
lines = st.lists(st.tuples(texts, st.sampled_from(["VRB", "WRN", "ERR"]), st.none() | st.just({"cells": 12})), max_size=5)
accounts = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "input_tokens": st.integers(0, 1 << 40),
            "output_tokens": st.integers(0, 5000),
            "cache_read_tokens": st.integers(0, 20_000),
            "cache_write_tokens": st.integers(0, 20_000),
            "cost_usd": st.floats(0, 1e6),
            "actual_model": texts,
            "actual_provider": texts,
        },
    ),
    max_size=2,
)
requests = st.none() | st.dictionaries(st.sampled_from(["temperature", "max_tokens", "model", "stop", "n"]), texts | numbers, max_size=3)
responses = st.none() | texts | st.just({"id": "r1", "model": "gpt-4o-2024", "choices": [{"finish_reason": "stop"}]})


def recorded(kind, name, block, said, spent, request, response, chunks, *, ended=True, status="ok"):
    """Return an op with all this, and the scope of its session."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op(kind, name, attributes=block)
    if request is not None:
        op.request([{"role": "user", "content": "hi"}], **request)
    for message, severity, details in said:
        op.log(message, severity, details=details)
    for chunk in chunks:
        op.think(chunk)
    for entry in spent:
        op.account(**entry) if kind == "llm" else op.account(cost_usd=entry.get("cost_usd"))
    if response is not None:
        op.response(response)
    if ended:
        op.end(status)
    return op.node, SpanScope(builder.txn, trace_id(builder.txn), builder.node, pool=builder.core.pool)


def plain_op(kind="llm", name="openai:gpt-4o", **changes) -> tuple[OperationNode, SpanScope]:
    """Return an op as most are."""
    said = [(f"row {number} of table 7 checked", "VRB", None) for number in range(10)]
    spent = [{"input_tokens": 18_342, "output_tokens": 512, "cache_read_tokens": 16_000, "cost_usd": 0.01843}] if kind == "llm" else []
    return recorded(kind, name, changes.pop("block", None), said, spent, None, None, ["I should", " look"], **changes)


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(["llm", "tool", "system"]),
    name=texts | st.sampled_from(["openai:gpt-4o", "anthropic:claude", "search"]),
    block=blocks,
    said=lines,
    spent=accounts,
    request=requests,
    response=responses,
    chunks=st.lists(texts, max_size=2),
    profile=st.sampled_from(list(PROFILES.values())),
)
def test_an_op_has_the_bytes_of_the_general_way(kind, name, block, said, spent, request, response, chunks, profile):
    """Whatever an op holds, on the first look at its shape and on the next."""
    op, scope = recorded(kind, name, block, said, spent, request, response, chunks)
    scope.profile = profile
    expected = encode(op_span(op, scope), profile)
    assert [expected, expected] == [quick.encode_op(op, scope), quick.encode_op(op, scope)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block": {"provider": "openai", "model": "gpt-4o", "team": "red", "temperature": 0.5, "base_url": "https://api.openai.com/v1"}},
        {"kind": "tool", "name": "search"},
        {"kind": "tool", "name": "mcp:search", "block": {"provider": "mcp", "tool_call_id": "c7"}},
        {"kind": "system", "name": "compact"},
    ],
)
def test_most_ops_go_the_quick_way(changes):
    """It is worth its lines only if it is taken."""
    op, scope = plain_op(**changes)
    assert encode(op_span(op, scope), scope.profile) == quick._encoded(op, scope)


@pytest.mark.parametrize(
    "changes",
    [
        {"block": {"provider": "openai", "model": "sk-abcdefghijklmnopqrst"}},
        {"block": {"gen_ai.request.model": "another"}},
        {"block": {"response_model": "gpt-4o-2024"}},
        {"name": "gpt-4o"},
        {"kind": "session", "name": "reader"},
        {"ended": False},
    ],
)
def test_other_ops_go_the_general_way(changes):
    """Nothing is guessed: what is not like most is left to it, and has its bytes."""
    op, scope = plain_op(**changes)
    assert quick._encoded(op, scope) is None
    assert encode(op_span(op, scope), scope.profile) == quick.encode_op(op, scope)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_ops_that_did_not_end_well_tell_it(status):
    """Their status and error are the general way's to tell."""
    op, scope = plain_op(status=status)
    assert encode(op_span(op, scope), scope.profile) == quick.encode_op(op, scope)


def test_a_credential_in_a_log_line_does_not_leave():
    """The quick way looks at all texts before it writes them."""
    op, scope = recorded("llm", "openai:gpt-4o", None, [("key sk-abcdefghijklmnopqrst", "VRB", None)], [], None, None, [])
    assert b"sk-abc" not in quick.encode_op(op, scope)
