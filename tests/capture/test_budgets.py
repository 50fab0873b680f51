"""Calls of models that are captured count against budgets, and are refused by them before anything is sent."""

import asyncio
import sys

import httpx
import openai
import pytest

import optree
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_ops
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CALLS, CHAT, CHAT_EVENTS, QUESTION, chat
from tests.cli.conftest import CommandLine

AGENT = """
import sys
import openai, optree
optree.instrument()
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
with optree.budget(calls=2) as budget:
    try:
        while True:
            client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}])
    except optree.BudgetExceeded:
        print(budget.used["calls"], "calls")
"""
DOWN = Reply({"error": {"message": "down"}}, status=500, headers={"retry-after-ms": "1"})


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(("call", "reply"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_a_captured_call_counts(provider, call, reply):
    """A call through a client counts once with its tokens, whole or streamed; the next one is refused before it is sent."""
    provider.says(reply)
    with optree.session("agent"), optree.turn(), optree.budget(tokens=17) as budget:
        call(provider.url)
        with pytest.raises(optree.BudgetExceeded):
            call(provider.url)
    assert ((17, 1), 1, {"usd": 0.0, "tokens": 0, "calls": 0}) == (
        (budget.used["tokens"], budget.used["calls"]), len(provider.requests), budget.reserved,
    )  # fmt: skip


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_does_not_try_a_refused_call_again(provider, is_async):
    """A client that tries again by itself, and hides what is raised in an exception of its own, does neither with a budget's refusal."""

    async def asking():
        async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=5) as client:
            await client.chat.completions.create(model="gpt-5", messages=QUESTION)

    def ask():
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=5) as client:
            client.chat.completions.create(model="gpt-5", messages=QUESTION)

    with optree.session("agent") as session, optree.budget(calls=0) as budget, pytest.raises(optree.BudgetExceeded) as raised:
        asyncio.run(asking()) if is_async else ask()
    assert (None, [], 0, []) == (raised.value.__cause__, provider.requests, budget.reserved["calls"], [*walk_ops(session.tree)])


@pytest.mark.usefixtures("recording")
def test_a_bare_client_raises_it_too(provider):
    """Without a client around it, `httpx` raises the refusal itself, and goes on to take what asks no model."""
    provider.says(CHAT)
    with httpx.Client() as client, optree.session("agent"), optree.budget(calls=0):
        with pytest.raises(optree.BudgetExceeded):
            client.post(f"{provider.url}/v1/chat/completions", json={"model": "gpt-5", "messages": QUESTION})
        client.post(f"{provider.url}/v1/files", json={"name": "x"})
    assert 1 == len(provider.requests)


@pytest.mark.usefixtures("recording")
def test_attempts_are_one_call(provider):
    """What a client sends again after a failure is one call, and needs no more of the budget."""
    provider.says(DOWN, DOWN, CHAT)
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=2)
    with client, optree.session("agent"), optree.budget(calls=1) as budget:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert [3, 1, 17, 1] == [len(provider.requests), budget.used["calls"], budget.used["tokens"], budget.unknown_cost]


@pytest.mark.usefixtures("recording")
def test_the_programs_own_op_is_the_call(provider):
    """A call within an op of the program's is that op's: reserved with it, and counted once."""
    provider.says(CHAT)
    with optree.session("agent"), optree.turn(), optree.budget(calls=1) as budget:
        with optree.llm(provider="openai", model="gpt-5"):
            chat(provider.url)
            assert 1 == budget.reserved["calls"]
        assert (1, 17, 0) == (budget.used["calls"], budget.used["tokens"], budget.reserved["calls"])


@pytest.mark.usefixtures("recording")
def test_a_stream_that_is_read_behind_its_op_counts(provider):
    """The tokens of a stream count also if the program reads it when its own op has ended."""
    provider.says(CHAT_EVENTS)
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
    with client, optree.session("agent"), optree.budget(calls=1) as budget:
        with optree.llm(provider="openai", model="gpt-5") as op:
            usage = {"include_usage": True}
            stream = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True, stream_options=usage)
        assert 0 == budget.used["tokens"]
        for _ in stream:
            pass
        optree.flush()
        assert (17, "ok") == (budget.used["tokens"], op.node.status)


@pytest.mark.usefixtures("recording")
def test_as_much_as_a_late_answer_took_is_held_for_the_next_call(provider):
    """The tokens of a stream that was read behind its op are what the next call may take too: one that would pass the limit is refused."""
    provider.says(CHAT_EVENTS)
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
    with client, optree.session("agent"), optree.budget(tokens=20) as budget:
        with optree.llm(provider="openai", model="gpt-5"):
            usage = {"include_usage": True}
            stream = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=True, stream_options=usage)
        for _ in stream:
            pass
        optree.flush()
        with pytest.raises(optree.BudgetExceeded):
            chat(provider.url)
        assert (17, 1) == (budget.used["tokens"], len(provider.requests))


def test_calls_without_a_session(provider, tmp_path):
    """Calls of a program that begins no session are limited too; what is refused leaves no turn."""
    line = CommandLine(tmp_path)
    (line.folder / "agent.py").write_text(AGENT)
    provider.says(CHAT)
    process = line.start(sys.executable, "agent.py", provider.url)
    assert ("2 calls\n", 0) == (process.communicate()[0], process.returncode)
    [txn] = line.txns()
    session = load(txn, Directory.of(line.base)).session
    assert (["ok", "ok"], 2) == ([turn.status for turn in session.turns], session.attributes["optree.budget.calls.used"])
    assert 2 == len(provider.requests)
