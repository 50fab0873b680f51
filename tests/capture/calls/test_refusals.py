"""What providers say of calls that they refuse: recorded with their codes, and said again in a replay, from which SDKs raise the same."""

import asyncio
import json
from functools import partial

import anthropic
import httpx
import ollama
import openai
import pytest
from google import genai

import optree
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.clients.test_bedrock import converse, converse_stream, event, streamed
from tests.capture.provider import Reply, events
from tests.capture.sdk_calls import QUESTION

pytestmark = pytest.mark.usefixtures("hooked")
OPENAI = {"error": {"message": "Slow down", "type": "requests", "code": "rate_limit_exceeded", "param": None}}
KEY = {"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key", "param": None}}
FIELD = {"error": {"message": "No such field", "type": "invalid_request_error", "code": None, "param": "modle"}}
ANTHROPIC = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req-1"}
GOOGLE = {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED", "details": [{"reason": "RATE"}]}}
FAILED = {"id": "r", "object": "response", "created_at": 1, "model": "gpt-5", "status": "failed", "output": [], "tools": [],
          "parallel_tool_calls": True, "tool_choice": "auto", "error": {"code": "server_error", "message": "Broke"}}  # fmt: skip


def of_openai(url, *, streamed=False, responses=False):
    """Ask by OpenAI's client, and read to the end."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if responses:
            answer = client.responses.create(model="gpt-5", input="Weather?", stream=streamed)
            last = list(answer)[-1].response if streamed else answer
            raise RuntimeError(last.status, last.error.code, last.error.message)
        answer = client.chat.completions.create(model="gpt-5", messages=QUESTION, stream=streamed)
        return list(answer) if streamed else answer


def of_anthropic(url, *, streamed=False):
    """Ask by Anthropic's client."""
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="claude-5", max_tokens=9, messages=QUESTION, stream=streamed)
        return list(answer) if streamed else answer


def of_google(url, *, streamed=False):
    """Ask by Gemini's client."""
    with genai.Client(api_key="none", http_options={"base_url": url}) as client:
        if streamed:
            return list(client.models.generate_content_stream(model="gemini-3", contents="Weather?"))
        return client.models.generate_content(model="gemini-3", contents="Weather?")


def of_google_asyncio(url):
    """Ask by its asynchronous one, which sends through aiohttp."""

    async def ask():
        async with genai.Client(api_key="none", http_options={"base_url": url}).aio as client:
            return await client.models.generate_content(model="gemini-3", contents="Weather?")

    return asyncio.run(ask())


def of_ollama(url, *, streamed=False):
    """Ask by Ollama's client."""
    with ollama.Client(url) as client:
        answer = client.chat(model="m", messages=QUESTION, stream=streamed)
        return list(answer) if streamed else answer


def by_httpx(url, *, streamed=False, path="/v2/chat"):
    """Ask with no client of the provider's."""
    with httpx.Client() as client:
        answer = client.post(f"{url}{path}", json={"model": "m", "messages": QUESTION, "stream": streamed})
        raise RuntimeError(answer.status_code, answer.json())


def shown(error):
    """Return what a program may ask of an exception."""
    known = {name: getattr(error, name, None) for name in ("status_code", "code", "type", "param", "body", "status", "details", "error")}
    response = getattr(error, "response", None)
    more = {name: value for name, value in response.items() if name != "ResponseMetadata"} if isinstance(response, dict) else None
    return type(error), str(error), getattr(error, "message", None), known, more


STREAMED = partial(partial, streamed=True)
THROTTLED = Reply({"message": "Slow down"}, status=429, headers={"x-amzn-errortype": "ThrottlingException"})
THROWN = streamed(event("throttlingException", {"message": "Slow down"}, "exception"))
CALLS = {
    "openai": ("rate_limit_exceeded", "rate_limit", 429, of_openai, Reply(OPENAI, status=429)),
    "openai-key": ("invalid_api_key", "auth", 401, of_openai, Reply(KEY, status=401, headers={"x-request-id": "req-9"})),
    "openai-field": ("invalid_request_error", "invalid", 400, of_openai, Reply(FIELD, status=400)),
    "openai-stream": ("rate_limit_exceeded", "rate_limit", None, STREAMED(of_openai), events(OPENAI)),
    "openai-refused-stream": ("rate_limit_exceeded", "rate_limit", 429, STREAMED(of_openai), Reply(OPENAI, status=429)),
    "responses": ("server_error", "model", None, partial(of_openai, responses=True), Reply(FAILED)),
    "responses-stream": (
        "server_error", "model", None, partial(of_openai, streamed=True, responses=True),
        events({"type": "response.created", "sequence_number": 0, "response": FAILED | {"status": "in_progress", "error": None}},
               {"type": "response.failed", "sequence_number": 1, "response": FAILED}, names=True),
    ),
    "anthropic": ("overloaded_error", "model", 529, of_anthropic, Reply(ANTHROPIC, status=529, headers={"request-id": "req-1"})),
    "anthropic-stream": ("overloaded_error", "model", None, STREAMED(of_anthropic), events(ANTHROPIC, names=True, done=False)),
    "google": ("RESOURCE_EXHAUSTED", "rate_limit", 429, of_google, Reply(GOOGLE, status=429)),
    "google-refused-stream": ("RESOURCE_EXHAUSTED", "rate_limit", 429, STREAMED(of_google), Reply(GOOGLE, status=429)),
    "google-asyncio": ("RESOURCE_EXHAUSTED", "rate_limit", 429, of_google_asyncio, Reply(GOOGLE, status=429)),
    "bedrock": ("ThrottlingException", "rate_limit", 429, converse, THROTTLED),
    "bedrock-stream": ("throttlingException", "rate_limit", None, converse_stream, THROWN),
    "bedrock-stream-model": (
        "modelStreamErrorException", "model", None, converse_stream,
        streamed(event("modelStreamErrorException", {"message": "It broke"}, "exception")),
    ),
    "bedrock-stream-invalid": (
        "validationException", "invalid", None, converse_stream,
        streamed(event("validationException", {"message": "Too long"}, "exception")),
    ),
    "bedrock-http": (
        "ThrottlingException", "rate_limit", 429, by_httpx,
        Reply({"__type": "com.amazon.coral.service#ThrottlingException", "message": "Slow down"}, status=429),
    ),
    "ollama": (None, "model", 404, of_ollama, Reply({"error": "model 'm' not found"}, status=404)),
    "ollama-stream": (None, "model", None, STREAMED(of_ollama), Reply(b'{"error": "it broke"}\n', kind="application/x-ndjson")),
    "cohere": (None, "auth", 401, by_httpx, Reply({"message": "invalid api token"}, status=401)),
    "mistral": (
        "rate_limited", "rate_limit", 429, partial(by_httpx, path="/v1/chat/completions"),
        Reply({"object": "error", "message": "Slow down", "type": "rate_limited", "code": "1300"}, status=429),
    ),
}  # fmt: skip


def refused(ask):
    """Return what a call raises, and its op."""
    with capture() as recorded, optree.session("agent"), optree.turn(), pytest.raises(Exception) as raised:  # noqa: PT011 - returned
        ask()
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    return raised.value, op, recorded


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # what aiohttp says of Gemini's client
@pytest.mark.parametrize(("code", "kind", "status", "ask", "reply"), CALLS.values(), ids=CALLS)
def test_a_refusal_is_recorded_and_given_again(provider, code, kind, status, ask, reply):
    """An op has the provider's code as `error.type`, beside the class, and all that was said; a replay raises the same (S4-45)."""
    provider.says(reply)
    expected, op, recorded = refused(lambda: ask(provider.url))
    known = op.attributes
    types = (known.get("error.type"), known.get("error.class"))
    assert ((code or kind, kind), status, "failed") == (types, known.get("http.response.status_code"), op.status)
    assert 1 == len(provider.requests)
    with replay(recorded.tree):
        found, again, _ = refused(lambda: ask(provider.url))
    assert shown(expected) == shown(found)
    assert 1 == len(provider.requests)
    names = ("error.type", "error.class", "error.body", "http.response.status_code", "request_id")
    assert [known.get(name) for name in names] == [again.attributes.get(name) for name in names]


def test_an_attempt_has_the_code(provider):
    """The log line of an attempt that was refused has the code, also where the next is answered; then the op has none."""
    ok = {"object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]}
    provider.says(Reply(OPENAI, status=429, headers={"retry-after-ms": "1"}), Reply(ok))
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none")
    with capture() as recorded, optree.session("agent"), optree.turn(), client:
        client.chat.completions.create(model="m", messages=QUESTION)
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    limits = {"retry-after-ms": "1"}
    assert [{"error.type": "rate_limit_exceeded", "error.class": "rate_limit", "headers": limits}] == [
        decode(log.details) for log in op.logs if "attempt" in log.message
    ]
    assert ("ok", []) == (op.status, [name for name in op.attributes if name.startswith("error.")])


def test_an_op_of_the_programs(provider):
    """An op of the program's own has the code of the call in it too."""
    provider.says(Reply(OPENAI, status=429))

    def ask():
        with optree.llm("planner"):
            of_openai(provider.url)

    _, op, _ = refused(ask)
    assert ("rate_limit_exceeded", "rate_limit", OPENAI) == tuple(op.attributes[f"error.{name}"] for name in ("type", "class", "body"))


def test_a_long_error(provider):
    """Of a very long error the code is recorded, and the beginning of its texts; a code that is none stands in the body alone."""
    long = {"error": {"message": "m" * 100_000, "code": "too_long", "deep": [["x" * 50_000]]}, "input": ["y" * 50_000]}
    provider.says(Reply(long, status=400))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert ("too_long", "too_long") == (op.attributes["error.type"], op.attributes["error.body"]["error"]["code"])
    assert len(json.dumps(op.attributes)) < 4000
    assert len(op.error) + sum(len(log.message) for log in op.logs) < 30_000
    provider.says(Reply({"error": {"message": "no", "code": "it is not\nso"}}, status=400))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert ("invalid", "it is not\nso") == (op.attributes["error.type"], op.attributes["error.body"]["error"]["code"])


@pytest.mark.parametrize("body", ["{}", "[]", "null", '"no"', '{"error": []}', '{"error": [1]}', "<html>", "", '{"message": {"a": 1}}'])
def test_an_error_of_another_shape(provider, body):
    """Whatever a refusal says, it is recorded as one, and a replay refuses with the same status."""
    provider.says(Reply(body.encode(), status=500))
    before = optree.health()["failures"]
    expected, op, recorded = refused(lambda: of_openai(provider.url))
    with replay(recorded.tree):
        found, _, _ = refused(lambda: of_openai(provider.url))
    assert ("model", type(expected), 500) == (op.attributes["error.type"], type(found), found.status_code)
    assert before == optree.health()["failures"]
