"""Answers that are errors, or cannot be read, though their status is 200; and what class an error has by its code and words."""

import json

import httpx
import openai
import pytest

import optree
from optree._tracing.failures import class_of_error, class_of_status, class_of_text
from optree._tree import walk_ops
from optree.testing import capture, replay
from tests.capture import sdk_calls as calls
from tests.capture.calls.test_refusals import of_anthropic, of_google, of_openai
from tests.capture.conftest import outcome
from tests.capture.provider import EVENTS, JSON, Reply, events

pytestmark = pytest.mark.usefixtures("hooked")
CHUNK = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "gpt-5",
    "choices": [{"index": 0, "delta": {"content": "Hal"}}],
}
UPSTREAM = {"error": {"code": 502, "message": "Upstream broke"}, "finish_reason": "error", "index": 0}
DELTA = CHUNK | {"choices": [UPSTREAM | {"delta": {"content": ""}}]}
WHOLE = json.loads(calls.CHAT.pieces[0]) | {"choices": [UPSTREAM | {"message": {"role": "assistant", "content": ""}}]}
VLLM = {"object": "error", "message": "It broke", "type": "InternalServerError", "param": None, "code": 500}
GEMINI = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}
SAYS = b'data: {"candidates": [{"content": {"parts": [{"text": "Hal"}], "role": "model"}, "index": 0}], "modelVersion": "gemini-3"}\n\n'
ERRORS = {
    "vLLM's stream": ("InternalServerError", "model", of_openai, True, events(CHUNK, VLLM)),
    "OpenRouter's answer": (None, "model", of_openai, False, Reply(WHOLE)),
    "OpenRouter's stream": (None, "model", of_openai, True, events(CHUNK, DELTA)),
    "OpenRouter's whole error": (None, "rate_limit", of_openai, False, Reply({"error": {"message": "Upstream", "code": 429}})),
    "OpenRouter's 402": (None, "quota", of_openai, True, events({"error": {"message": "Insufficient", "code": 402}})),
    "OpenRouter's 401": (None, "auth", of_openai, True, events({"error": {"message": "No such user", "code": "401"}})),
    "Gemini's event": ("UNAVAILABLE", "model", of_google, True, events(GEMINI, done=False)),
    "Gemini's line": ("UNAVAILABLE", "model", of_google, True, Reply(SAYS, json.dumps(GEMINI).encode() + b"\n", kind=EVENTS)),
    "Gemini's lines": ("UNAVAILABLE", "model", of_google, True, Reply(SAYS, json.dumps(GEMINI, indent=2).encode(), kind=EVENTS)),
}


def asked(ask, url, *, streamed):
    """Return what a client comes to, the op, and the recording."""
    with capture() as recorded, optree.session("agent"), optree.turn():
        found = outcome(lambda: ask(url, streamed=streamed))
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    return found, op, recorded


@pytest.mark.parametrize(("code", "kind", "ask", "streamed", "reply"), ERRORS.values(), ids=ERRORS)
def test_an_error_within_an_answer(provider, code, kind, ask, streamed, reply):
    """An error in the place of an answer, or within a stream, makes the op a failed one, with its code, class and body."""
    provider.says(reply)
    _, op, _ = asked(ask, provider.url, streamed=streamed)
    types = (op.attributes["error.type"], op.attributes["error.class"])
    assert ("failed", (code or kind, kind)) == (op.status, types)
    assert "error" in json.dumps(op.attributes["error.body"])


def test_what_an_answer_that_is_an_error_took(provider):
    """The tokens that it tells are the op's, and a replay gives the same."""
    provider.says(Reply(WHOLE))
    found, op, recorded = asked(of_openai, provider.url, streamed=False)
    assert (17, "failed") == (op.accounting[0].tokens.total_tokens, op.accounting[0].status)
    with replay(recorded.tree):
        assert repr(found) == repr(asked(of_openai, provider.url, streamed=False)[0])


UNREAD = {
    "half a document": (of_openai, False, Reply(b'{"id": "c", "choices": [')),
    "a page": (of_openai, False, Reply(b"<html>Sign in</html>", kind="text/html")),
    "nothing": (of_openai, False, Reply(b"")),
    "blanks": (of_anthropic, False, Reply(b" \n")),
    "an event": (of_openai, True, Reply(calls.CHAT_EVENTS.pieces[0], b'data: {"id": "c", "obj\n\n', kind=EVENTS)),
    "a last event": (of_openai, True, Reply(b'data: {"id": "c", "obj', kind=EVENTS)),
    "an empty event": (of_openai, True, Reply(b"data:\n\n", kind=EVENTS)),
    "an empty stream": (of_openai, True, Reply(b"", kind=EVENTS)),
    "an error that is no JSON": (of_anthropic, True, Reply(b"event: error\ndata: not JSON\n\n", kind=EVENTS)),
    "a page for a stream": (of_openai, True, Reply(b"<html>Sign in</html>", kind="text/html")),
}


@pytest.mark.parametrize(("ask", "streamed", "reply"), UNREAD.values(), ids=UNREAD)
def test_an_answer_that_cannot_be_read(provider, ask, streamed, reply):
    """It is a failed op of the class `invalid`, with a log line, also where the client closes the stream by its own exception."""
    provider.says(reply)
    _, op, _ = asked(ask, provider.url, streamed=streamed)
    assert ("failed", "invalid", "invalid") == (op.status, op.attributes["error.type"], op.attributes["error.class"])
    assert op.error.startswith("the answer cannot be read: ")
    assert [op.error.partition(": ")[2]] == [log.message for log in op.logs if log.severity == "WRN"]


@pytest.mark.parametrize(
    "name", ["half a document", "a page", "nothing", "a last event", "an empty event", "an empty stream", "an error that is no JSON"]
)
def test_an_unread_answer_is_given_again(provider, name):
    """A replay gives the same bytes, of which the client makes the same."""
    ask, streamed, reply = UNREAD[name]
    provider.says(reply)
    expected, _, recorded = asked(ask, provider.url, streamed=streamed)
    with replay(recorded.tree):
        found, op, _ = asked(ask, provider.url, streamed=streamed)
    assert expected == found
    assert "failed" == op.status


def test_what_a_program_closes_is_no_failure(provider):
    """A stream or a document that the program closes in the middle of is `cancelled`, though its last piece is a part."""
    for kind, piece in ((EVENTS, b'data: {"id'), (JSON, b'{"id')):
        provider.says(Reply(piece, kind=kind, short=100))
        with capture() as recorded, optree.session("agent"), optree.turn(), httpx.Client() as client:
            body = {"model": "m", "messages": calls.QUESTION, "stream": True}
            with client.stream("POST", f"{provider.url}/v1/chat/completions", json=body) as answer:
                next(answer.iter_bytes())
        assert ["cancelled"] == [op.status for _, _, op in walk_ops(recorded.tree)]


def test_events_by_another_name(provider):
    """A stream whose head calls it something else is read as one."""
    provider.says(Reply(*calls.CHAT_EVENTS.pieces, kind="text/plain"))
    _, op, _ = asked(of_openai, provider.url, streamed=True)
    assert ("ok", "It rains") == (op.status, json.loads(bytes(op.response.payload))["choices"][0]["message"]["content"])


def google(*details):
    """Return a refusal of Gemini's."""
    return error(429, "You exceeded your current quota, please check", code=429, status="RESOURCE_EXHAUSTED", details=list(details))


def error(at, message, **more):
    """Return a refusal with the status *at*."""
    return Reply({"error": {"message": message, **more}}, status=at)


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "5s"}
MINUTE = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerMinutePerProject"}]}
DAY = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}, 7]}
CLASSES = [
    ("invalid", error(400, "Invalid schema for function 'get_billing_info': no")),
    ("invalid", error(400, "see https://x.example/insufficient_quota", code="invalid_parameters")),
    ("model", error(404, "The model `ft:gpt-4o:acme:billing-bot` does not exist")),
    ("model", error(500, "worker for team billing crashed: insufficient_quota")),
    ("auth", error(401, "no key; your credit balance is at https://x.example/billing")),
    ("quota", error(400, "Budget has been exceeded! Max budget: 1.0", type="budget_exceeded", code="400")),
    ("quota", error(402, "Insufficient Balance")),
    ("quota", error(400, "Billing hard limit has been reached", code="billing_hard_limit_reached")),
    ("quota", Reply({"code": "It may not", "error": "Your team has run out of credits. Purchase more."}, status=403)),
    ("quota", error(429, "no", code="insufficient_quota")),
    ("rate_limit", error(400, "no", code="rate_limit_exceeded")),
    ("rate_limit", error(503, "no", code="too_many_requests")),
    ("rate_limit", google(RETRY)),
    ("rate_limit", google(MINUTE)),
    ("quota", google(DAY, None)),
    ("model", error(424, "The model broke")),
]


@pytest.mark.parametrize(("expected", "reply"), CLASSES, ids=[f"{at}-{kind}" for at, (kind, _) in enumerate(CLASSES)])
@pytest.mark.parametrize("is_own", [False, True])
def test_classes(provider, expected, reply, is_own):
    """The provider's code comes first, then the status; words count as whole phrases, and none within a name or an address."""
    provider.says(reply)
    kinds = []

    def ask(url, **options):
        try:
            return of_openai(url, **options)
        except openai.APIError as raised:
            kinds.append(class_of_error(raised))
            raise

    def planned():
        with optree.llm("planner"):
            ask(provider.url)

    with capture() as recorded, optree.session("agent"), optree.turn():
        outcome(planned if is_own else lambda: ask(provider.url))
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    assert (expected, [expected]) == (op.attributes["error.class"], kinds)


def test_words_of_a_quota():
    """Words of a quota are phrases, in a text alone too; a code in quotes is no other name."""
    assert [None, None] == [class_of_text(one) for one in ("no 'billing' for \"credit_balance\"", "https://x.example/insufficient_quota")]
    assert ["quota", "quota"] == [class_of_text(one) for one in ("{'code': 'insufficient_quota'}", "Your credit balance is too low")]
    assert ["quota", "model"] == [class_of_status(status, "insufficient_quota") for status in (429, 404)]
