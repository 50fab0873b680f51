"""Clients of httpx and httpx2, and SDKs' on them, that are recorded one by one, with nothing else hooked."""

import asyncio
import gc
import weakref

import anthropic
import httpx
import httpx2
import openai
import pytest

import optree
from optree._capture import instrument, uninstrument
from optree._tree import walk_ops
from optree.testing import capture
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, MESSAGE, QUESTION

ASKED = {"model": "gpt-5", "messages": QUESTION}
REFUSED = Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after-ms": "1"})


@pytest.fixture
def recorded():
    """Return what a test records, without hooks."""
    with capture() as recording:
        yield recording


def calls(recording):
    """Return the names of the ops of models."""
    return [op.name for _, _, op in walk_ops(recording.tree) if op.kind == "llm"]


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_client_of_the_programs(recorded, provider, module):
    """Its calls are recorded, those of another client are not, and none once it is let go; it stays what it is."""
    provider.says(CHAT)
    url = f"{provider.url}/v1/chat/completions"
    with optree.session("agent"), optree.turn(), module.Client() as client, module.Client() as other:
        assert client is optree.instrument_client(client) is optree.instrument_client(client)
        for one in (client, other, client):
            assert 200 == one.post(url, json=ASKED).status_code
        assert (True, repr(module.Client)) == (isinstance(client, module.Client), repr(type(client)))
        for _ in range(2):
            optree.uninstrument_client(client)
        client.post(url, json=ASKED)
        assert module.Client is type(client)
    assert ["openai-compatible:gpt-5"] * 2 == calls(recorded)


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_an_asynchronous_client(recorded, provider, module):
    """So are those of an asynchronous one, streams too."""
    provider.says(CHAT_EVENTS)

    async def run():
        async with module.AsyncClient() as client:
            optree.instrument_client(client)
            async with client.stream("POST", f"{provider.url}/v1/chat/completions", json={**ASKED, "stream": True}) as response:
                return [piece async for piece in response.aiter_raw()]

    with optree.session("agent") as session, optree.turn():
        assert b"".join(asyncio.run(run())) == b"".join(CHAT_EVENTS.pieces)
    assert (["openai-compatible:gpt-5"], 5) == (calls(recorded), session.totals.output_tokens)


def test_an_sdks_client(recorded, provider):
    """An SDK's client is recorded by itself, with what is made of it: what it sends again is an attempt of the same op."""
    options = {"base_url": f"{provider.url}/v1", "api_key": "none"}
    with optree.session("agent") as session, optree.turn(), openai.OpenAI(**options) as client, openai.OpenAI(**options) as other:
        optree.instrument_client(client)
        for one in (client, other, client.with_options(max_retries=3)):
            provider.says(REFUSED, CHAT)
            assert "It rains" == one.chat.completions.create(**ASKED).choices[0].message.content
        assert isinstance(client, openai.OpenAI)
        provider.says(MESSAGE)
        with anthropic.Anthropic(base_url=provider.url, api_key="none") as third:
            optree.instrument_client(third).messages.create(model="claude-5", max_tokens=9, messages=QUESTION)
    assert ["openai-compatible:gpt-5"] * 2 + ["anthropic-compatible:claude-5"] == calls(recorded)
    assert (3, [2, 2, 1]) == (session.totals.llm_requests, [len(op.accounting) for _, _, op in walk_ops(recorded.tree)])


def test_an_sdks_asynchronous_client(recorded, provider):
    """So is an asynchronous one."""

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
            return (await optree.instrument_client(client).chat.completions.create(**ASKED)).choices[0].message.content

    provider.says(REFUSED, CHAT)
    with optree.session("agent") as session, optree.turn():
        assert "It rains" == asyncio.run(run())
    assert (1, ["openai-compatible:gpt-5"]) == (session.totals.llm_requests, calls(recorded))


@pytest.mark.parametrize("comes_first", [True, False])
def test_beside_hooks_for_all(recorded, provider, comes_first):
    """Where all clients are hooked too, before or after, each call is recorded once."""
    provider.says(CHAT)
    try:
        with optree.session("agent"), optree.turn(), httpx.Client() as client:
            if comes_first:
                instrument()
            optree.instrument_client(client)
            instrument()
            client.post(f"{provider.url}/v1/chat/completions", json=ASKED)
    finally:
        uninstrument()
    assert 1 == len(calls(recorded))


def test_a_client_that_is_forgotten_is_gone():
    """Nothing of it is held: it is gone with its last reference, without a garbage collection."""
    client = optree.instrument_client(httpx.Client())
    client.close()
    known = weakref.ref(client)
    gc.disable()
    try:
        del client
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("client", [None, object(), "client"])
def test_what_is_no_client(client):
    """What sends nothing by httpx is refused, with its class's name."""
    with pytest.raises(optree.SetupError, match=f"a builtins.{type(client).__qualname__} is no client"):
        optree.instrument_client(client)
