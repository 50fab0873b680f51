"""A session whose program records its calls itself, by text and figures, is replayed: answers come in the form of what is asked."""

import asyncio

import anthropic
import httpx
import openai
import pytest
from botocore.exceptions import ClientError

import optree
from optree._capture import instrument, uninstrument
from optree._capture.replay.answering import reply_of
from optree._capture.replay.recorded import RecordedCall, first_difference
from optree._nodes import OperationNode, Payload, Tokens
from optree._providers.messages import TextPart, answers, message
from optree._providers.usage import read
from optree._values import decode, raw
from optree.testing import capture, replay
from tests.capture.clients.test_aiohttp import gemini, gemini_reply
from tests.capture.clients.test_bedrock import CALLS as BEDROCK
from tests.capture.clients.test_bedrock import converse, invoke
from tests.capture.conftest import record
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CALLS, MESSAGE, MESSAGE_EVENTS, QUESTION

pytestmark = [
    pytest.mark.usefixtures("hooked"),
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # what aiohttp says of Gemini's client
]


def by_hand(call, url):
    """Ask within an op of the program's, which records what is said, and not how it is sent."""
    with optree.llm(provider="openai", model="gpt-5") as op:
        op.request(messages=QUESTION, temperature=0)
        said = call(url)
        op.account(input_tokens=12, output_tokens=5, cache_read_tokens=4)
        op.response(said)
    return said


def unhooked(run):
    """Return what a program returns, and what it records, without hooks."""
    uninstrument()
    try:
        return record(run)
    finally:
        instrument()


def gemini_plain(url):
    """Ask Gemini."""
    return asyncio.run(gemini(url, streamed=False))


def gemini_stream(url):
    """Ask Gemini, and read its stream."""
    return asyncio.run(gemini(url, streamed=True))


def bedrock_converse(url):
    """Ask Converse."""
    return "".join(part.get("text", "") for part in converse(url)["output"]["message"]["content"])


OTHERS = [
    (gemini_plain, gemini_reply(streamed=False)), (gemini_stream, gemini_reply(streamed=True)),
    (bedrock_converse, {call.__name__: reply for call, reply, *_ in BEDROCK}["converse"]),
]  # fmt: skip
TEXTS = [(call, reply) for call, reply in CALLS if "parsed" not in call.__name__] + OTHERS


@pytest.mark.parametrize(("call", "reply"), TEXTS, ids=[call.__name__ for call, _ in TEXTS])
def test_a_text_that_the_program_recorded(provider, call, reply):
    """A client gets an answer from which the program reads that text again, whole or streamed, and nothing is sent."""
    provider.says(reply)
    expected, recorded = unhooked(lambda: by_hand(call, provider.url))
    provider.says(Reply({}, status=500))
    with replay(recorded.tree):
        found, again = record(lambda: by_hand(call, provider.url))
    assert (expected, 1) == (found, len(provider.requests))
    totals = [one.tree.session.totals for one in (recorded, again)]
    assert [(1, 8, 4, 5)] * 2 == [(t.llm_requests, t.input_tokens, t.cache_read_input_tokens, t.output_tokens) for t in totals]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_figures_come_with_it(provider, streamed):
    """A program that accounts for the usage which its client tells accounts for the same."""

    def asked():
        with anthropic.Anthropic(base_url=provider.url, api_key="none") as client, optree.llm(provider="anthropic", model="claude-5") as op:
            op.request(messages=QUESTION)
            if streamed:
                with client.messages.stream(model="claude-5", max_tokens=64, messages=QUESTION) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(model="claude-5", max_tokens=64, messages=QUESTION)
            op.account(answer.usage)
            op.response(answer.content[0].text)

    provider.says(MESSAGE_EVENTS if streamed else MESSAGE)
    _, recorded = unhooked(asked)
    with replay(recorded.tree):
        _, again = record(asked)
    expected, found = (one.tree.session.totals for one in (recorded, again))
    assert (8, 4, 5) == (expected.input_tokens, expected.cache_read_input_tokens, expected.output_tokens)
    assert (8, 4, 5) == (found.input_tokens, found.cache_read_input_tokens, found.output_tokens)


USAGES = {
    "/v1/chat/completions": {
        "prompt_tokens": 14, "completion_tokens": 5, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "/v1/completions": {
        "prompt_tokens": 14, "completion_tokens": 5, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "/v1/responses": {
        "input_tokens": 14, "output_tokens": 5, "total_tokens": 19,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 3},
    },
    "/v1/messages": {"input_tokens": 8, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2},
    "/v2/chat": {"tokens": {"input_tokens": 14, "output_tokens": 5}},
    "/api/chat": {"prompt_eval_count": 14, "eval_count": 5},
    "/m:generateContent": {
        "promptTokenCount": 14, "cachedContentTokenCount": 4, "thoughtsTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 19,
    },
    "Converse": {"inputTokens": 8, "outputTokens": 5, "totalTokens": 19, "cacheReadInputTokens": 4, "cacheWriteInputTokens": 2},
}  # fmt: skip
"""What each interface tells of 8 fresh tokens, 4 out of the cache and 2 into it, and of 5 answered, 3 of which are reasoning."""
SPENT = Tokens(8, 5, 4, 2, 19, 3)


def given(path, *entries):
    """Return the answer that a text comes as, and what is recorded that it took."""
    node = OperationNode("1.1", "1", "llm", "p:m", 1.0, (), entries, status="ok", response=Payload(raw("It rains"), None, 8))
    return decode(reply_of(RecordedCall("txn", node, {"model": "m"}), path, "").body)


@pytest.mark.parametrize("path", USAGES)
def test_what_is_given_says_what_was_recorded(path):
    """In each interface's form the answer has the text, an end, and the same tokens by that interface's convention."""
    answer = given(path, optree.AccountingEntry("1#1", 1.0, "llm", "ok", 1.0, "p", "m", tokens=SPENT))
    parts = [part for one in answers(answer) for said in one.messages for part in message(said, "assistant").parts]
    assert [(TextPart, "It rains")] == [(type(part), part.text) for part in parts]
    assert any(word in str(answer) for word in ("stop", "STOP", "end_turn", "COMPLETE", "completed"))
    told = answer.get("usage") or answer.get("usageMetadata") or {name: answer[name] for name in USAGES[path]}
    assert USAGES[path] == told
    found = read(answer).tokens
    assert (14, 5) == (found.all_input_tokens, found.output_tokens)


LAST = {"/v1/responses": "response.output_text.delta", "/v1/messages": "content_block_delta", "/v2/chat": "content-delta"}


@pytest.mark.parametrize(("path", "last"), LAST.items(), ids=LAST)
def test_a_text_that_broke_off_ends_in_the_middle(path, last):
    """The beginning of a stream that was recorded ends with the last of its text: nothing tells that a part, or the whole, has ended."""
    come = Payload(raw("It rains"), None, 8, partial=True)
    node = OperationNode("1.1", "1", "llm", "p:m", 1.0, (), (), status="cancelled", response=come)
    body = reply_of(RecordedCall("txn", node, {"model": "m", "stream": True}), path, "").body
    told = [decode(line.removeprefix(b"data: ")) for line in body.splitlines() if line.startswith(b"data: ")]
    assert (last, True) == (told[-1]["type"], "It rains" in str(told[-1]))


def test_what_a_failed_attempt_took_is_not_told():
    """The answer tells the tokens of the attempt that was answered, whichever was accounted for last."""
    answered = optree.AccountingEntry("1#1", 1.0, "llm", "ok", 1.0, "p", "m", tokens=SPENT)
    failed = optree.AccountingEntry("1#2", 1.0, "llm", "failed", 1.0, "p", "m", tokens=Tokens(7, 0, 0, 0, 7))
    for entries in ((answered, failed), (failed, answered)):
        assert USAGES["/v1/messages"] == given("/v1/messages", *entries)["usage"]
    assert "usage" not in given("/v1/messages", failed)


def test_a_text_for_an_interface_that_is_not_known(provider):
    """A recorded text that cannot be put into a form is no answer: nothing is sent, and the replay says why."""
    provider.says({call.__name__: reply for call, reply, *_ in BEDROCK}["invoke"])
    _, recorded = unhooked(lambda: by_hand(lambda url: invoke(url)["content"][0]["text"], provider.url))
    with pytest.raises(ClientError) as raised, replay(recorded.tree):
        record(lambda: by_hand(invoke, provider.url))
    why = "1.1: the answer at 1.1 of test-1 is a text, and the form of an answer there is not known"
    assert (1, [f"optree replay: {why}"]) == (len(provider.requests), raised.value.__notes__)


def test_a_call_that_a_kill_broke_off_and_that_was_made_again():
    """A call that was interrupted, and made again when the session was gone on with, is one call of the replay."""
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json={}))
    body = {"model": "gpt-5", "messages": QUESTION}
    client = openai.OpenAI(base_url="https://api.openai.com/v1", api_key="none", http_client=httpx.Client(transport=transport))

    def asked():
        with optree.llm(provider="openai", model="gpt-5") as op:
            op.request(messages=QUESTION)
            said = client.chat.completions.create(**body).choices[0].message.content
            op.response(said)
        return said

    with capture() as recorded, optree.session("agent"), optree.turn(user="Weather?"):
        for status in ("interrupted", "ok"):
            with optree.llm(provider="openai", model="gpt-5") as op:
                op.request(messages=QUESTION)
                if status == "ok":
                    op.response("It rains")
                else:
                    op.end("interrupted")
    with replay(recorded.tree):
        assert "It rains" == record(asked)[0]


def test_long_texts_are_shown_where_they_differ():
    """Of two long texts a difference has the part around the first character that is another."""
    before, now = "a" * 300 + "Athens" + "b" * 300, "a" * 300 + "Berlin" + "b" * 300
    said = first_difference({"messages": [{"content": before}]}, {"messages": [{"content": now}]})
    assert f"messages[0].content is …{'a' * 20}Berlin{'b' * 54}…, not …{'a' * 20}Athens{'b' * 54}…" == said
