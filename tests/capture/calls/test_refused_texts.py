"""Refusals that are no JSON object, those that say the request again, and those that are long."""

import json

import pytest

import optree
from optree._builder.outcome import told_in
from optree._capture.calls.bodies import MOST_KEPT
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.calls.test_refusals import of_anthropic, of_google, of_ollama, of_openai, refused, shown
from tests.capture.provider import EVENTS, Reply

pytestmark = pytest.mark.usefixtures("hooked")
PRIVATE = "PRIVATE-QUESTION"
FIELD = {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"messages": [{"content": PRIVATE}]}}
FASTAPI = {"detail": [FIELD, FIELD | {"loc": ["body", "max_tokens"]}]}
FLAGGED = {"error": {"message": "Flagged", "code": 403, "metadata": {"flagged_input": PRIVATE}}}
PAGE = f"<html>{PRIVATE}</html>".encode()
ECHOES = {
    "fastapi": (Reply(FASTAPI, status=422), "body.model: Field required; body.max_tokens: Field required"),
    "openrouter": (Reply(FLAGGED, status=403), "Flagged"),
    "a page": (Reply(PAGE, status=502, kind="text/html"), ""),
    "an object for a message": (Reply({"error": {"message": {"input": PRIVATE}}}, status=400), ""),
    "a list for an error": (Reply({"error": [{"input": PRIVATE}]}, status=400), ""),
    "google": (
        Reply({"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "bad", "details": [{"x": PRIVATE}]}}, status=400),
        "bad",
    ),
}
ASKS = {"openai": of_openai, "anthropic": of_anthropic, "google": of_google, "ollama": of_ollama}


def said(recorded):
    """Return all that a session says of its failures but `error.body`: errors, log lines and their details."""
    found = [recorded.tree.session.error, *(turn.error for turn in recorded.tree.session.turns)]
    for _, _, op in walk_ops(recorded.tree):
        found += [op.error, {name: value for name, value in op.attributes.items() if name != "error.body"}]
        found += [(line.message, decode(line.details) if line.details else None) for line in op.logs]
    return repr(found)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize(("reply", "expected"), ECHOES.values(), ids=ECHOES)
def test_what_a_refusal_says_again(provider, reply, expected, ask):
    """What a provider says of the request stands in `error.body` alone, however a client shows it; the message is of what is no content."""
    provider.says(reply)
    with capture() as recorded, pytest.raises(Exception) as raised, optree.session("agent"), optree.turn():  # noqa: PT011 - any client's
        ask(provider.url)
    [op] = [op for _, _, op in walk_ops(recorded.tree)]
    assert PRIVATE in repr(op.attributes["error.body"])
    assert PRIVATE not in said(recorded)
    assert expected in said(recorded)
    assert f"{reply.status}" in op.error
    assert type(raised.value).__name__ in recorded.tree.session.error


def test_what_an_own_op_says_of_it(provider):
    """An op of the program's, whose error is the client's exception, says status, code and message too."""
    provider.says(Reply({"error": {"message": "Flagged", "code": "flagged", "input": PRIVATE}}, status=403))

    def ask():
        with optree.llm("planner"):
            of_anthropic(provider.url)

    _, op, recorded = refused(ask)
    assert "PermissionDeniedError: Error code: 403 - flagged: Flagged" == op.error
    assert PRIVATE not in said(recorded)


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_part_that_is_no_json_says(provider, streamed):
    """The log line on a part that cannot be read has its size, and none of its bytes."""
    part = b'{"id": "c", "choices": [{"message": {"content": "' + PRIVATE.encode()
    provider.says(Reply(b"data: " + part + b"\n\n", kind=EVENTS) if streamed else Reply(part))
    with capture() as recorded, optree.session("agent"), optree.turn(), pytest.raises(json.JSONDecodeError):
        of_openai(provider.url, streamed=streamed)
    assert f"{len(part)} bytes" in said(recorded)
    assert PRIVATE not in said(recorded)


TEXTS = {
    "a page": Reply(PAGE, status=502, kind="text/html; charset=UTF-8"),
    "a text": Reply(b"Internal Server Error", status=500, kind="text/plain"),
    "nothing": Reply(b"", status=500, kind="text/plain"),
    "nothing, as JSON": Reply(b"", status=500),
    "another encoding": Reply("Grüße".encode("latin-1"), status=400, kind="text/plain; charset=latin-1"),
    "a list": Reply([{"error": {"code": 400, "message": "API key not valid", "status": "INVALID_ARGUMENT"}}], status=400),
    "a list of nothing": Reply([], status=400),
    "a JSON text": Reply("plainly no", status=400),
    "null": Reply(None, status=400),
    "an object without a message": Reply({"statusCode": 401, "why": ["no"]}, status=401),
    "half of an object": Reply(b'{"error": {"message": "tru', status=400),
}


def text_by_httpx(url):
    """Return an answer's status, content type and text as the exception's arguments."""
    import httpx

    with httpx.Client() as client:
        answer = client.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "Weather?"}]})
        body = answer.json() if answer.content[:1] in (b"{", b"[") and answer.content[-1:] in (b"}", b"]") else answer.content
        raise RuntimeError(answer.status_code, answer.headers["content-type"], body)


@pytest.mark.parametrize("ask", [text_by_httpx, of_openai, of_anthropic, of_google], ids=["httpx", "openai", "anthropic", "google"])
@pytest.mark.parametrize("reply", TEXTS.values(), ids=TEXTS)
def test_a_refusal_that_is_no_object_is_given_again(provider, reply, ask):
    """A replay gives the same text with the same content type, from which a client raises the same."""
    provider.says(reply)
    expected, op, recorded = refused(lambda: ask(provider.url))
    assert "error.body" in op.attributes
    with replay(recorded.tree):
        found, again, _ = refused(lambda: ask(provider.url))
    assert shown(expected) == shown(found)
    assert [op.error, op.attributes["error.body"]] == [again.error, again.attributes["error.body"]]


def test_a_long_page(provider):
    """Of a long page the first 16 KiB are kept, and no half of a credential."""
    key = "sk-proj-" + "Ab3dEf7hIjKlMn0pQrStUvWxYz12345678901234567890abcd"
    provider.says(Reply(b"x" * ((16 << 10) - 20) + b" " + key.encode() + b"y" * 9999, status=502, kind="text/html"))
    _, op, _ = refused(lambda: of_openai(provider.url))
    body = op.attributes["error.body"]
    assert (16 << 10) - 19 >= len(body) > 16_000
    assert key[:8] not in body


@pytest.mark.parametrize(("data", "kind", "expected"), [
    (b'"' + b"x" * 9000 + b'"', "application/json", '"' + "x" * 9000 + '"'),
    ("€".encode() * 9999, "text/plain; charset=utf-8", "€" * (MOST_KEPT // 3)),
], ids=["JSON", "cut"])  # fmt: skip
def test_a_long_text(provider, data, kind, expected):
    """A text of up to 16 KiB is kept whole, be it JSON or not; of a longer one as many whole characters as are in what is read."""
    provider.says(Reply(data, status=500, kind=kind))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert expected == op.attributes["error.body"]


def test_a_long_list(provider):
    """Of a long body lists have their first 20 members, with as much text as 16 KiB are; the log line has one notice of what is cut."""
    field = {"loc": ["body", 3], "msg": "bad", "input": "y" * 100}
    provider.says(Reply({"detail": [field] * 20_000}, status=422))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert [field] * 20 == op.attributes["error.body"]["detail"]
    provider.says(Reply({"detail": [{"a": ["z" * 5000] * 30}] * 30}, status=422))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert len(json.dumps(op.attributes["error.body"])) < 30_000
    provider.says(Reply({"error": {"message": "m" * 3_000_000}}, status=400))
    _, op, _ = refused(lambda: of_openai(provider.url))
    assert [1, 1] == [one.count("[TRUNCATED]") for one in (op.error, *(log.message for log in op.logs))]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            'litellm.X: OpenAIException - {"error": {"message": "too long", "prompt": "P"}}. Model: m',
            "OpenAIException - too long",
        ),
        ('Invalid: [{"role": "user", "content": "P"}]', "Invalid: …"),
        ("1 error [input_value={'content': 'P'}]", "1 error [input_value=…"),
        ('\ufeff{"prompt": "P"}', "…"),
        ('```json\n{"prompt": "P"}', "…"),
        ('Bad: {"a":' * 3000, "Bad: …"),
        ("<html>P", ""),
        ("one of ['low', 'high'] (1 < 2)", "one of ['low', 'high'] (1 < 2)"),
    ],
)
def test_messages_that_quote_a_body(said, expected):
    """Of a body behind a proxy's words the message in it counts, and nothing else of it."""
    found = told_in({"message": said}).message
    assert found.endswith(expected) if expected else not found
    assert "P" not in found.replace("Prompt", "")


def test_messages_of_odd_errors():
    """Whatever an error is, its message is a text of what is no content."""
    assert "" == told_in({"detail": [[[{"msg": "deep"}]]]}).message
    assert "a.0: no" == told_in({"detail": {"loc": ["a", 0, None], "msg": "no", "input": PRIVATE}}).message
    assert "b" == told_in({"message": ["x"], "detail": "b"}).message
    assert len(told_in({"detail": [{"loc": ["a"], "msg": "n" * 5000}] * 9}).message) < 1000
    assert (429, None) == told_in({"message": "no", "code": "429"})[2:0:-1]
    assert ("", None, 0, False) == told_in(7)
