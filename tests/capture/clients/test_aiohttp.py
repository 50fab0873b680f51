"""Calls of models through aiohttp are ops; what the program reads, and how it ends, is what it is without hooks."""

import asyncio
import gc
import json
import threading
from pathlib import Path

import aiohttp
import anthropic
import openai
import pytest
from aiohttp.streams import StreamReader
from google import genai

import optree
from optree._capture import uninstrument
from optree._nodes import Tokens
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.calls.test_broken import CHATS, STREAMS, outcome
from tests.capture.provider import EVENTS, Provider, Reply
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, MESSAGE, MESSAGE_EVENTS, QUESTION

BODY = {"model": "gpt-5", "messages": QUESTION}
EVENTS_BYTES = b"".join(CHAT_EVENTS.pieces)
GEMINI = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "It rains"}]}, "finishReason": "STOP"}],
    "modelVersion": "gemini-3",
    "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "totalTokenCount": 17},
}


def asked(read, url, **options):
    """Return what *read* makes of an answer."""

    async def asking():
        async with (
            aiohttp.ClientSession(**options.pop("session", {})) as session,
            session.post(f"{url}/v1/chat/completions", **({"json": BODY} | options)) as response,
        ):
            return await read(response)

    return asyncio.run(asking())


async def whole(response):
    """Read it at once."""
    return await response.read()


async def value(response):
    """Read its JSON."""
    return await response.json()


async def said(response):
    """Read its text."""
    return await response.text()


async def in_chunks(response):
    """Read it in pieces of five bytes."""
    pieces = [piece async for piece in response.content.iter_chunked(5)]
    return b"".join(pieces), max(map(len, pieces))  # where they part is the network's


async def as_it_comes(response):
    """Read what there is."""
    return b"".join([piece async for piece in response.content.iter_any()])


async def in_http_chunks(response):
    """Read it with the ends of chunks."""
    return b"".join([piece async for piece, _ in response.content.iter_chunks()])


async def in_lines(response):
    """Read line by line."""
    return [line async for line in response.content]


async def line_by_line(response):
    """Read lines by its method."""
    found = []
    while line := await response.content.readline():
        found.append(line)
    return found


async def exactly(response):
    """Read more than there is."""
    try:
        return await response.content.readexactly(100_000)
    except asyncio.IncompleteReadError as error:
        return error.partial, error.expected


async def until(response):
    """Read up to a mark, and then the rest."""
    return await response.content.readuntil(b":"), await response.content.readany() + await response.content.read()


async def raised_for_status(response):
    """Raise for a refusal."""
    response.raise_for_status()
    return await response.read()


READ = [whole, value, said, in_chunks, as_it_comes, in_http_chunks, in_lines, line_by_line, exactly, until]
ALL = [
    *[(value, reply, f"json: {name}") for name, reply in CHATS.items()],
    *[(raised_for_status, reply, f"raise_for_status: {name}") for name, reply in CHATS.items()],
    *[(as_it_comes, reply, f"iter_any: {name}") for name, reply in STREAMS.items()],
    *[(in_lines, reply, f"lines: {name}") for name, reply in STREAMS.items()],
]


@pytest.fixture
def hold():
    """Return what the end of an answer waits for."""
    event = threading.Event()
    yield event
    event.set()


def only_op(recording):
    """Return the only op."""
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    return op


@pytest.mark.captured("aiohttp", "OpenAI's chat", "plain", "streamed", added="one line", checks=("calls", "answers", "tokens"))
@pytest.mark.parametrize("read", READ, ids=[read.__name__ for read in READ])
@pytest.mark.parametrize("reply", [CHAT, CHAT_EVENTS], ids=["document", "events"])
def test_a_call_is_an_op(provider, recording, read, reply):
    """However the program reads an answer, it gets what it would get, and the op has the answer and its tokens, once."""
    provider.says(reply)
    options = {} if reply is CHAT else {"json": {**BODY, "stream": True}}
    with optree.session("agent"), optree.turn():
        hooked = outcome(lambda url: asked(read, url, **options), provider)
    uninstrument()
    assert outcome(lambda url: asked(read, url, **options), provider) == hooked
    op = only_op(recording)
    assert ("llm", "openai-compatible:gpt-5") == (op.kind, op.name)
    assert "ok" == op.status
    assert Tokens(8, 5, 4, 0, 17, 3) == op.accounting[0].tokens
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.parametrize(("read", "reply", "name"), ALL, ids=[name for *_, name in ALL])
def test_a_broken_answer_is_what_it_is_without_hooks(provider, recording, read, reply, name):  # noqa: ARG001 - for pytest alone
    """Result, exception and requests are what they are without hooks; the call is an op that has ended, and optree reports no fault."""
    provider.says(reply)
    before = optree.health()["failures"]
    with optree.session("agent"), optree.turn():
        hooked = outcome(lambda url: asked(read, url), provider)
    uninstrument()
    assert outcome(lambda url: asked(read, url), provider) == hooked
    assert only_op(recording).status in ("ok", "failed", "cancelled")
    assert before == optree.health()["failures"]


@pytest.mark.parametrize("given", [{"data": json.dumps(BODY)}, {"data": json.dumps(BODY).encode()}, {"json": BODY}])
def test_bodies_of_all_kinds(provider, recording, given):
    """A request's body may be JSON, text or bytes, and its address relative."""
    provider.says(CHAT)

    async def asking():
        async with aiohttp.ClientSession(base_url=provider.url) as session:
            return await (await session.post("/v1/chat/completions", **given)).json()

    with optree.session("agent"), optree.turn():
        asyncio.run(asking())
    assert {"messages": QUESTION} == recording.tree.pool.resolve(decode(only_op(recording).request.payload))


def test_other_requests_pass(provider, recording):
    """What asks no model, by whatever body, is not recorded, and its answer is as it came."""
    provider.says(Reply({"ok": True}))

    async def asking():
        found = []
        async with aiohttp.ClientSession(base_url=provider.url) as session:
            for options in ({"json": {"input": "x"}}, {"json": [1]}, {"data": {"a": "b"}}, {"data": b"\xff"}, {}):
                async with session.post("/embeddings", **options) as response:
                    found.append((await response.json(), type(response.content)))
        return found

    with optree.session("agent"):
        assert [({"ok": True}, StreamReader)] * 5 == asyncio.run(asking())
    assert [] == list(walk_ops(recording.tree))


def test_a_body_that_cannot_be_read(provider, recording):
    """A body that aiohttp refuses raises what it would raise."""
    provider.says(CHAT)
    given = {"json": {"model": "gpt-5", "messages": [object()]}}
    with optree.session("agent"), optree.turn():
        hooked = outcome(lambda url: asked(whole, url, **given), provider)
    uninstrument()
    assert outcome(lambda url: asked(whole, url, **given), provider) == hooked
    assert "failed" == only_op(recording).status


def test_a_packed_answer_that_is_left_packed(provider, recording):
    """A session that does not unpack answers gets the bytes as they came; the op has what they say."""
    provider.says(CHATS["packed"])
    with optree.session("agent"), optree.turn():
        assert CHATS["packed"].pieces[0] == asked(whole, provider.url, session={"auto_decompress": False})
    assert b"It rains" in bytes(only_op(recording).response.payload)


def test_what_is_traced(provider, recording):
    """With `trace_llm` the op has lines of what was asked, of the answer's headers, and of how much came (S4-120)."""
    optree.configure(trace_llm=True)
    provider.says(Reply(*CHAT.pieces, headers={"x-request-id": "r-1"}))
    asked(value, provider.url)
    sent, head, over = [one for one in only_op(recording).logs if one.severity == "TRC"]
    assert (True, "r-1") == (sent.message.startswith("POST /v1/chat/completions, "), decode(head.details)["headers"]["x-request-id"])
    assert over.message.startswith(f"{len(CHAT.pieces[0]):,} bytes in ")


def test_a_stream_that_is_closed(provider, recording, hold):
    """A stream that the program closes is cancelled, with what had come."""
    provider.says(Reply(EVENTS_BYTES[:400], EVENTS_BYTES[400:], kind=EVENTS, hold=hold))

    async def beginning(response):
        return await response.content.readany()

    with optree.session("agent"), optree.turn():
        asked(beginning, provider.url)
        assert "cancelled" == only_op(recording).status
    assert only_op(recording).response.partial


def test_a_stream_that_is_forgotten(provider, recording, hold):
    """A stream that the program neither reads nor closes ends with its response."""
    provider.says(Reply(EVENTS_BYTES[:400], EVENTS_BYTES[400:], kind=EVENTS, hold=hold))

    async def forgetting():
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{provider.url}/v1/chat/completions", json=BODY)
            await response.content.readany()
            del response
            gc.collect()

    with optree.session("agent"), optree.turn():
        asyncio.run(forgetting())
    gc.collect()
    assert "cancelled" == only_op(recording).status


def test_a_timeout(provider, recording, hold):
    """A stream that takes too long is failed, by the exception that the program gets."""
    provider.says(Reply(EVENTS_BYTES[:400], EVENTS_BYTES[400:], kind=EVENTS, hold=hold))
    with optree.session("agent"), optree.turn(), pytest.raises(TimeoutError):
        asked(whole, provider.url, timeout=aiohttp.ClientTimeout(total=0.3))
    op = only_op(recording)
    assert "failed" == op.status
    assert "Timeout" in op.error


@pytest.mark.usefixtures("recording")
def test_an_exception_that_names_an_address(provider):
    """What a client raises names the whole address: in the tree a credential in that is left out."""
    key = "AIzaSyAbCdEfGhIjKlMnOpQrStUvWxYz0123456"
    provider.says(Reply({"error": {"message": "slow down"}}, status=429))
    with capture() as recorded, optree.session("agent"), optree.turn(), pytest.raises(aiohttp.ClientResponseError) as raised:
        asked(value, provider.url, params={"key": key}, session={"raise_for_status": True})
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    assert f"?key={key}" in str(raised.value)
    assert ["?key=[REDACTED]", "?key=[REDACTED]"] == [said[said.index("?") :].strip("'") for said in (op.error, op.logs[0].message)]


def test_a_call_that_finds_no_server(recording):
    """A request that nobody answers is a failed op with an attempt that failed."""
    provider = Provider()
    provider.close()
    with optree.session("agent"), optree.turn(), pytest.raises(aiohttp.ClientConnectorError):
        asked(whole, provider.url)
    op = only_op(recording)
    assert ("failed", ["failed"]) == (op.status, [entry.status for entry in op.accounting])


def test_a_stream_is_read_on_after_a_pause(provider, recording, hold):
    """A read that was given up and tried again does not end the op."""
    provider.says(Reply(EVENTS_BYTES[:400], EVENTS_BYTES[400:], kind=EVENTS, hold=hold))

    async def twice(response):
        found = await response.content.readany()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.01)
        hold.set()
        return found + await response.content.read()

    with optree.session("agent"), optree.turn():
        assert EVENTS_BYTES == asked(twice, provider.url)
    op = only_op(recording)
    assert ("ok", Tokens(8, 5, 4, 0, 17, 3)) == (op.status, op.accounting[0].tokens)


async def gemini(url, *, streamed):
    """Ask Gemini by its asynchronous client."""
    client = genai.Client(api_key="none", http_options={"base_url": url})
    models = client.aio.models
    if streamed:
        answer = await models.generate_content_stream(model="gemini-3", contents="Weather?")
        found = "".join([part.text async for part in answer])
    else:
        found = (await models.generate_content(model="gemini-3", contents="Weather?")).text
    await client.aio.aclose()
    return found


def gemini_reply(*, streamed):
    """Return what Gemini answers."""
    return Reply(b"data: " + json.dumps(GEMINI).encode() + b"\r\n\r\n", kind=EVENTS) if streamed else Reply(GEMINI)


@pytest.mark.captured("google-genai", "aio.models", "plain", "streamed", added="one line", checks=("calls", "tokens"))
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # what aiohttp says of it
@pytest.mark.parametrize("streamed", [False, True])
def test_geminis_asynchronous_client(provider, recording, streamed):
    """Gemini's client takes aiohttp for its asynchronous calls where that is installed: they are ops, streams too."""
    provider.says(gemini_reply(streamed=streamed))
    with optree.session("agent"), optree.turn():
        assert "It rains" == asyncio.run(gemini(provider.url, streamed=streamed))
    op = only_op(recording)
    assert ("google-compatible:gemini-3", "ok") == (op.name, op.status)
    assert [Tokens(12, 5, 0, 0, 17, 3)] == [entry.tokens for entry in op.accounting]


def test_the_documentation_counts_them():
    """The page on capture says how many broken answers there are."""
    page = Path(__file__).parents[3] / "docs/howto/capture.md"
    assert f"{len(ALL)} by aiohttp" in page.read_text("utf-8")


def through_openai(url, streamed):
    """Ask by OpenAI's client over aiohttp; returns what is said."""

    async def asking():
        options = {"base_url": f"{url}/v1", "api_key": "none", "http_client": openai.DefaultAioHttpClient()}
        async with openai.AsyncOpenAI(**options) as client:
            found = await client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=streamed)
            if not streamed:
                return found.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in found if chunk.choices])

    return asyncio.run(asking())


def through_anthropic(url, streamed):
    """Ask by Anthropic's."""

    async def asking():
        options = {"base_url": url, "api_key": "none", "http_client": anthropic.DefaultAioHttpClient()}
        async with anthropic.AsyncAnthropic(**options) as client:
            asks = {"model": "claude-5", "max_tokens": 99, "messages": QUESTION}
            if not streamed:
                return (await client.messages.create(**asks)).content[0].text
            async with client.messages.stream(**asks) as stream:
                return await stream.get_final_text()

    return asyncio.run(asking())


SDKS = [
    *((through_openai, streamed, reply) for streamed, reply in ((False, CHAT), (True, CHAT_EVENTS))),
    *((through_anthropic, streamed, reply) for streamed, reply in ((False, MESSAGE), (True, MESSAGE_EVENTS))),
]


@pytest.mark.parametrize(("ask", "streamed", "reply"), SDKS)
@pytest.mark.parametrize("refused", [False, True])
def test_a_client_that_sends_through_it_is_one_call(recording, provider, ask, streamed, reply, refused):
    """What OpenAI's or Anthropic's client sends through aiohttp is seen once: one op, one answer, its tokens once; tried again too."""
    provider.says(*([Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after-ms": "1"})] if refused else []), reply)
    with optree.session("agent"), optree.turn():
        hooked = ask(provider.url, streamed)
    [(_, _, op)] = list(walk_ops(recording.tree))
    totals = recording.tree.session.totals
    assert ("ok", 1, 1 + refused) == (op.status, totals.llm_requests, len(op.accounting))
    assert 17 == totals.input_tokens + totals.output_tokens + totals.cache_read_input_tokens
    provider.says(reply)
    with replay(recording.tree), capture() as again, optree.session("agent"), optree.turn():
        assert hooked == ask(provider.url, streamed)
    assert 1 == len(list(walk_ops(again.tree)))
    uninstrument()
    assert hooked == ask(provider.url, streamed)
