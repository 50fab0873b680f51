"""Why calls failed: seven classes, the same for all providers, in the tree and in spans."""

import json

import httpx
import openai
import pytest

import optree
from optree._tree import walk_ops
from tests.capture.provider import EVENTS, events
from tests.capture.sdk_calls import QUESTION

ASKED = {"model": "gpt-5", "messages": QUESTION}
OVERLOADED = 'data: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'


def refusing(status, said):
    """Return what answers with a status and an error."""
    return lambda _: httpx.Response(status, json={"error": {"message": said}})


def raising(kind):
    """Return what raises in place of an answer."""

    def respond(request):
        raise kind("no answer", request=request)

    return respond


FAILURES = [
    ("auth", refusing(401, "bad key")),
    ("auth", refusing(403, "not yours")),
    ("quota", refusing(402, "nothing left")),
    ("quota", refusing(429, "You exceeded your current quota, please check your plan")),
    ("quota", refusing(400, "Your credit balance is too low")),
    ("rate_limit", refusing(429, "slow down")),
    ("timeout", refusing(408, "too slow")),
    ("timeout", refusing(504, "too slow")),
    ("timeout", raising(httpx.ReadTimeout)),
    ("timeout", raising(httpx.ConnectTimeout)),
    ("network", raising(httpx.ConnectError)),
    ("network", raising(httpx.RemoteProtocolError)),
    ("model", refusing(404, "no such model")),
    ("model", refusing(500, "down")),
    ("model", refusing(529, "overloaded")),
    ("model", lambda _: httpx.Response(200, headers={"content-type": EVENTS}, text=OVERLOADED)),
    ("invalid", refusing(400, "messages: at least one")),
    ("invalid", refusing(422, "no such field")),
]


@pytest.mark.parametrize(("expected", "respond"), FAILURES, ids=[f"{at}-{expected}" for at, (expected, _) in enumerate(FAILURES)])
@pytest.mark.parametrize("is_joined", [False, True])
def test_the_class_of_a_failure(recording, expected, respond, is_joined):
    """An op whose call failed has the class of that, with the message, be it the program's op or not (S4-45)."""
    with optree.session("agent"), optree.turn(), httpx.Client(transport=httpx.MockTransport(respond)) as client:

        def ask():
            found = client.post("https://api.openai.com/v1/chat/completions", json=ASKED)
            if is_joined and (found.is_error or "overloaded" in found.text):
                raise RuntimeError("no answer")

        try:
            if is_joined:
                with optree.llm("planner"):
                    ask()
            else:
                ask()
        except (httpx.HTTPError, RuntimeError):
            pass
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("failed", expected) == (op.status, op.attributes.get("error.class") or op.attributes.get("error.type"))


def test_what_went_well_at_last_has_none(recording):
    """A call that was refused, and answered when it was made again, has no class."""
    answers = iter([httpx.Response(429, json={}), httpx.Response(200, json={"object": "chat.completion", "model": "m", "choices": []})])
    transport = httpx.MockTransport(lambda _: next(answers))
    with optree.session("agent"), optree.turn(), openai.OpenAI(api_key="none", http_client=httpx.Client(transport=transport)) as client:
        client.with_options(max_retries=1).chat.completions.create(**ASKED)
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("ok", None) == (op.status, op.attributes.get("error.type"))


FAILED = {"status": "failed", "output": [], "error": {"code": "server_error", "message": "Something broke"}, "usage": {"input_tokens": 7}}
LAST_EVENTS = [
    {"type": "response.failed", "response": {"object": "response", "model": "gpt-5", **FAILED}},
    {"type": "error", "code": "server_error", "message": "Something broke", "param": None},
]


@pytest.mark.parametrize("event", LAST_EVENTS, ids=[event["type"] for event in LAST_EVENTS])
def test_a_stream_of_responses_that_fails(recording, event):
    """A stream of OpenAI's responses whose last event says that it failed is a failed op, with the tokens that are told."""
    sent = httpx.Response(200, headers={"content-type": EVENTS}, text=f"data: {json.dumps(event)}\n\n")
    transport = httpx.MockTransport(lambda _: sent)
    with optree.session("agent"), optree.turn(), httpx.Client(transport=transport) as client:
        client.post("https://api.openai.com/v1/responses", json={"model": "gpt-5", "input": "Weather?", "stream": True})
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert ("failed", "Something broke", "model") == (op.status, op.error, op.attributes["error.class"])
    told = op.accounting[0].tokens
    assert (7 if "response" in event else None) == (None if told is None else told.input_tokens)


def test_a_stream_that_fails_behind_its_turn(provider, recording):
    """One that the program reads on when its turn has ended, and whose last event says that it failed, counts as a failed call."""
    provider.says(events(LAST_EVENTS[0], done=False))
    with optree.session("agent") as session, httpx.Client() as client:
        with optree.turn():
            asked = client.build_request(
                "POST", f"{provider.url}/v1/responses", json={"model": "gpt-5", "input": "Weather?", "stream": True}
            )
            answer = client.send(asked, stream=True)
        answer.read()
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert [("failed", 7)] == [(entry.status, entry.tokens.input_tokens) for entry in op.accounting]
    assert (1, 1) == (session.totals.llm_requests, session.totals.llm_failed)
