"""Attempts that failed before another one was answered, or was under way when its op ended: one call, billed once."""

import asyncio
import contextlib
import socket
import threading

import httpx
import openai
import pytest

import optree
from optree import _speed as speed
from optree._tree import walk_ops
from optree.testing import capture
from tests.capture.provider import Reply
from tests.capture.sdk_calls import QUESTION

BUSY = Reply({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, status=429, headers={"retry-after-ms": "1"})
ANSWER = Reply(
    {
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1200, "completion_tokens": 64, "total_tokens": 1264},
    }
)


def ask(url, retries=0):
    """Ask by a client that tries again so often."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=retries) as client:
        return client.chat.completions.create(model="gpt-5", messages=QUESTION)


def ask_again(url):
    """Ask by one client, and where it is refused by another."""
    try:
        return ask(url)
    except openai.RateLimitError:
        return ask(url)


@optree.llm(provider="openai", model="gpt-5")
def decorated(asking, url):
    """Be a call of the program's own."""
    return asking(url)


def in_block(asking, url):
    """Be a block of the program's own."""
    with optree.llm(provider="openai", model="gpt-5"):
        asking(url)


def given(asking, url):
    """Give the answer to a block of the program's own."""
    with optree.llm(provider="openai", model="gpt-5") as op:
        op.response(asking(url))


def captured(asking, url):
    """Record nothing by hand."""
    asking(url)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("asking", [lambda url: ask(url, 2), ask_again], ids=["client", "program"])
@pytest.mark.parametrize("way", [decorated, in_block, given, captured])
@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_answered_after_a_refusal_is_billed(provider, way, asking, compiled):
    """Within an op of the program's own too the answer's tokens are the call's, which counts once, and in a budget (S4-45)."""
    if way is captured and asking is ask_again:
        pytest.skip("two calls, as nothing says that they are one")
    provider.says(BUSY, ANSWER)
    with contextlib.nullcontext() if compiled else speed.plainly():
        with capture() as recorded, optree.session("agent"), optree.turn(), optree.budget(tokens=10_000) as budget:
            way(asking, provider.url)
        totals = recorded.tree.session.totals
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    assert [("failed", True), ("ok", False)] == [(entry.status, entry.retried) for entry in op.accounting]
    assert (1200, 64, 1, 1264, 1) == (
        totals.input_tokens, totals.output_tokens, totals.llm_requests, budget.used["tokens"], budget.used["calls"],
    )  # fmt: skip


def test_a_refusal_that_is_still_open_is_over(provider, recording):
    """A client that tries again before it has read or closed the refusal makes attempts at one call."""
    provider.says(BUSY, ANSWER)
    path, asked = f"{provider.url}/v1/chat/completions", {"model": "gpt-5", "messages": QUESTION}
    with optree.session("agent"), optree.turn(), optree.llm(provider="openai", model="gpt-5"), httpx.Client() as client:
        refused = client.send(client.build_request("POST", path, json=asked), stream=True)
        answer = client.post(path, json=asked)
        refused.close()
    assert (429, 200) == (refused.status_code, answer.status_code)
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert [("failed", True), ("ok", False)] == [(entry.status, entry.retried) for entry in op.accounting]
    totals = recording.tree.session.totals
    assert ("ok", 1, 0) == (op.status, totals.llm_requests, totals.llm_failed)
    assert ["attempt 1 failed: 429 Too Many Requests"] == [line.message.partition(": slow")[0] for line in op.logs]
    assert "http.response.status_code" not in op.attributes


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("before", [[], [BUSY]], ids=["first", "second"])
def test_an_attempt_that_the_program_gives_up_costs_what_nobody_knows(provider, before, is_own):
    """It is one call of unknown cost, whether one before it was refused or not."""

    async def waiting():
        async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=2) as client:
            await asyncio.wait_for(client.chat.completions.create(model="gpt-5", messages=QUESTION), 0.3)

    over = threading.Event()
    provider.says(*before, Reply({}, hold=over))
    own = optree.llm(provider="openai", model="gpt-5") if is_own else contextlib.nullcontext()
    with capture() as recorded, optree.session("agent"), optree.turn(), contextlib.suppress(asyncio.TimeoutError), own:
        asyncio.run(waiting())
    over.set()
    totals = recorded.tree.session.totals
    assert (1, 1, 0.0) == (totals.llm_requests, totals.unknown_costs, totals.cost_usd)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(("is_sent", "unknown"), [(True, 1), (False, 0)])
def test_an_attempt_that_timed_out_costs_what_nobody_knows(is_sent, unknown):
    """A request that a server took, which says nothing, may cost something; one that found no server costs nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent, capture() as recorded, optree.session("agent"), optree.turn():
        url = f"http://127.0.0.1:{silent.getsockname()[1] if is_sent else 9}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=0.1) as client, pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(model="gpt-5", messages=QUESTION)
    totals = recorded.tree.session.totals
    assert (1, unknown, 1 - unknown) == (totals.llm_requests, totals.unknown_costs, totals.known_costs)


@pytest.mark.usefixtures("recording")
def test_an_attempt_that_waited_for_a_connection_costs_nothing(provider):
    """A request that was not sent, as the client has no connection free for it, costs nothing; the one that has it is answered."""
    over = threading.Event()
    provider.says(Reply(ANSWER.pieces[0][:9], ANSWER.pieces[0][9:], hold=over))
    path, asked = f"{provider.url}/v1/chat/completions", {"model": "gpt-5", "messages": QUESTION}
    one = httpx.Client(limits=httpx.Limits(max_connections=1), timeout=httpx.Timeout(30, pool=0.01))
    with capture() as recorded, optree.session("agent"), optree.turn(), one, one.stream("POST", path, json=asked) as answer:
        with pytest.raises(httpx.PoolTimeout):
            one.post(path, json=asked)
        over.set()
        answer.read()
    first, second = [op.accounting[0] for _, _, op in walk_ops(recorded.tree)]
    assert [("ok", None), ("failed", 0.0)] == [(entry.status, entry.cost_usd) for entry in (first, second)]
