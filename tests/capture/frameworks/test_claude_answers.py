"""What a conversation with Claude Code cost adds up to what it says, and what is not told is unknown."""

import asyncio
import json

import pytest

pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not there: make .venv/has-claude")

import optree
from optree._cli import sums
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._tree.totals import PICO
from optree._tree.walk import flatten
from optree._values import decode
from tests.capture.frameworks.claude import (
    ASKED,
    INIT,
    MODEL,
    SIMPLE,
    answer,
    ask,
    call_of,
    calls,
    costs,
    op_of,
    reading,
    returned,
    said,
    talk,
    told,
)


@pytest.mark.captured("claude-agent-sdk", "query", "cached", added="one line", checks=("tokens", "price"))
def test_the_bill_adds_up(recording, child):
    """What the result tells beyond the calls stands at the result; the calls cost 0 then, as their entries say; nothing is unknown."""
    ask(child, ASKED, INIT, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))
    expected = {"1.1": [(call_of(1), 0.0)], "1.3": [(call_of(1), 0.0)], "1.4": [(Tokens(0, 88, 0, 0, 88), 0.02)]}
    assert (expected, (0.02, 3, 0)) == costs(recording)
    assert {"cache_write_1h_tokens": 30, "cost_in": "1.4"} == decode(op_of(recording, MODEL).accounting[0].details)
    result = op_of(recording, "result").attributes
    assert (0.02, 5, 2) == (result["total_cost_usd"], result["duration_ms"], result["num_turns"])


def test_the_bill_by_model(recording, child):
    """What a result tells beyond the calls is its model's, and no call more; what no model is told to have cost is of none."""
    haiku, other = "claude-haiku-4-5", {"inputTokens": 7, "outputTokens": 2, "costUSD": 0.001}
    of_model = told(2, 0.02, 90)["say"]["modelUsage"][MODEL]
    both = told(2, 0.021, modelUsage={f"{MODEL}[1m]": of_model, haiku: other})
    more = told(2, 0.026, modelUsage={f"{MODEL}[1m]": of_model, haiku: other})
    steps = [ASKED, INIT, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), both, ASKED, more]
    talk(child, "one", "two", steps=steps)
    lines, _ = sums.readable(flatten(recording.tree.session).accounting)
    models = sums.by(sums.of_type(lines, llm=True), sums.model)
    assert {f"anthropic:{MODEL}": (2, 90, 20, 0.02), f"anthropic:{haiku}": (0, 2, 7, 0.001)} == {
        name: (one.calls, one.totals.output_tokens, one.totals.input_tokens, one.pico_dollars / PICO) for name, one in models.items()
    }
    tools = sums.by(sums.of_type(lines, llm=False), sums.tool)
    assert {"result": 0.005} == {name: one.pico_dollars / PICO for name, one in tools.items() if one.pico_dollars}
    totals = recording.tree.session.totals
    assert (2, 0.026, 92, 0) == (totals.llm_requests, round(totals.cost_usd, 9), totals.output_tokens, totals.unknown_costs)


def test_models_by_other_names(recording, child):
    """A result that names its models as no call does is accounted for without them, and its sums are what it tells."""
    parts = {"outputTokens": 45, "inputTokens": 10, "cacheReadInputTokens": 100, "cacheCreationInputTokens": 50, "costUSD": 0.01}
    other = told(2, 0.02, modelUsage={"one": parts, "other": parts})
    ask(child, ASKED, INIT, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), other)
    assert ([(Tokens(0, 88, 0, 0, 88), 0.02)], (0.02, 3, 0)) == (costs(recording)[0]["1.4"], costs(recording)[1])
    assert 2 == recording.tree.session.totals.llm_requests


def test_the_cost_of_a_turn_of_one_call(recording, child):
    """Where a turn is one call, that has its cost and its output tokens."""
    ask(child, *SIMPLE)
    assert ({"1.1": [(call_of(90), 0.02)]}, (0.02, 1, 0)) == costs(recording)
    assert 90 == recording.tree.session.totals.output_tokens


def test_a_cost_that_is_not_told(recording, child):
    """Without a result, or with one that crashed and has lost its sums, costs are unknown and said to be."""
    crashed = told(1, 0.0, 0, subtype="error_during_execution", is_error=True)
    ask(child, ASKED, INIT, answer("m-1", said("It rains")), crashed)
    assert ({"1.1": [(call_of(1), None)]}, (0.0, 0, 1)) == costs(recording)


@pytest.mark.captured("claude-agent-sdk", "ClaudeSDKClient", "cached", added="one line", checks=("tokens", "price"))
def test_sums_of_several_turns(recording, child):
    """Results tell sums since the child began, or since the conversation was reset: each turn costs what is new."""
    reset = {"say": {"type": "conversation_reset", "new_conversation_id": "n", "uuid": "u", "session_id": "s-1"}}
    steps = [
        ASKED, answer("m-1", said("one")), told(1, 0.02, 90), ASKED, answer("m-2", said("two")), told(2, 0.05, 150),
        ASKED, reset, answer("m-3", said("three")), told(1, 0.01, 7), ASKED, answer("m-4", said("four")), told(2, 0.02, 9),
    ]  # fmt: skip
    talk(child, "one", "two", "three", "four", steps=steps)
    found = {"1.1": (90, 0.02), "2.1": (60, 0.03), "3.1": (7, 0.01), "4.1": (2, 0.01)}
    assert {path: [(call_of(output), cost)] for path, (output, cost) in found.items()} == {
        path: [(tokens, round(cost, 9)) for tokens, cost in one] for path, one in costs(recording)[0].items()
    }
    assert (0.07, 4, 0) == costs(recording)[1]


def test_calls_that_have_a_price(recording, child, tmp_path):
    """Prices work nothing out by tokens that are preliminary; where a stream tells all of them, the result has what is beyond that."""
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"anthropic": {MODEL: {"input": 10, "output": 50, "request": 0.005}}}))
    optree.configure(prices=prices)
    ask(child, ASKED, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))
    found, sums = costs(recording)
    assert (0.0, 0.02, 0.02) == (found["1.1"][0][1], found["1.4"][0][1], sums[0])


def test_a_budget(recording, child):
    """A budget counts what calls cost once that is told, each call once; a prompt that would pass it is refused before it is sent."""
    child.does(ASKED, answer("m-1", calls("Read")), returned("here"), answer("m-2", said("It rains")), told(2, 0.02, 90))

    async def program():
        with optree.session("desk"), optree.budget(usd=0.03, tokens=10_000, calls=9) as budget:
            await reading(child)
            with pytest.raises(optree.BudgetExceeded):
                await reading(child)
        return *(round(budget.used[name], 9) for name in ("usd", "tokens", "calls")), budget.unknown_cost

    assert (0.02, 2 * 160 + 90, 2, 0) == asyncio.run(program())
    assert (["desk", "claude-code"], 2) == (
        [session.agent_id for session in walk_sessions(recording.tree)],
        recording.tree.session.totals.llm_requests,
    )
