"""Answers that are broken in all ways: the program gets the same results and exceptions, by as many requests, with hooks and without."""

import gzip
import json
import zlib
from pathlib import Path

import pytest

import optree
from optree._capture import uninstrument
from optree._tree import walk_ops
from tests.capture import sdk_calls as calls
from tests.capture.provider import EVENTS, JSON, Reply

_CHAT = json.loads(calls.CHAT.pieces[0])
_EVENTS = b"".join(calls.CHAT_EVENTS.pieces)
_MESSAGE = json.loads(calls.MESSAGE.pieces[0])


def _chat(**changes):
    return Reply({**_CHAT, **changes})


def _stream(*pieces, **options):
    return Reply(*pieces, kind=EVENTS, **options)


def _packed(data, name, kind=JSON):
    return Reply(data, kind=kind, headers={"content-encoding": name})


CHATS = {
    "empty": Reply(b""),
    "no JSON": Reply(b"<html>gateway</html>", kind="text/html"),
    "half of it": Reply(calls.CHAT.pieces[0][:60]),
    "less than was promised": Reply(calls.CHAT.pieces[0][:60], short=100),
    "a list": Reply([1, 2]),
    "null": Reply(b"null"),
    "a number": Reply(b"7"),
    "wrong content type": Reply(calls.CHAT.pieces[0], kind="text/plain"),
    "no content type": Reply(calls.CHAT.pieces[0], kind=""),
    "a type with odd characters": Reply(calls.CHAT.pieces[0], kind="application/json; charset=\xff"),
    "a stream where none was asked for": calls.CHAT_EVENTS,
    "no choices": _chat(choices=[]),
    "choices null": _chat(choices=None),
    "choices of numbers": _chat(choices=[1]),
    "a choice without message": _chat(choices=[{"index": 0, "finish_reason": "stop"}]),
    "no usage": _chat(usage=None),
    "usage of text": _chat(usage={"prompt_tokens": "many", "completion_tokens": "few", "total_tokens": None}),
    "usage below 0": _chat(usage={"prompt_tokens": -5, "completion_tokens": -1, "total_tokens": -6}),
    "usage beyond all bounds": _chat(usage={"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 1}),
    "usage that contradicts itself": _chat(usage={**calls.USAGE, "total_tokens": 3}),
    "usage a list": _chat(usage=[1]),
    "an unknown model": _chat(model="none/such:latest"),
    "a model that is a number": _chat(model=5),
    "unknown members": _chat(extra={"deep": [[[[]]]]}, service_tier="new"),
    "tool calls of one id": _chat(choices=[{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}] * 2}}]),
    "very deep": Reply(b'{"choices":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "deep": Reply(b'{"choices":' + b'[{"a":' * 300 + b"1" + b"}]" * 300 + b"}"),
    "not UTF-8": Reply(calls.CHAT.pieces[0].replace(b"rains", b"\xff\xfe")),
    "packed": _packed(gzip.compress(calls.CHAT.pieces[0]), "gzip"),
    "packed by deflate": _packed(zlib.compress(calls.CHAT.pieces[0]), "deflate"),
    "packed by deflate without a head": _packed(zlib.compress(calls.CHAT.pieces[0], wbits=-15), "deflate"),
    "packed twice": _packed(gzip.compress(zlib.compress(calls.CHAT.pieces[0])), "deflate, gzip"),
    "said to be packed": _packed(calls.CHAT.pieces[0], "gzip"),
    "packed in an unknown way": _packed(calls.CHAT.pieces[0], "zip9"),
    "refused without a body": Reply(b"", status=500),
    "refused with a page": Reply(b"<html>", status=502, kind="text/html"),
    "refused with odd JSON": Reply(b'{"error": [1]}', status=400),
    "refused with null": Reply(b'{"error": null}', status=404),
    "a status nobody knows": Reply(b"{}", status=599),
    "a redirect to nowhere": Reply(b"", status=302, headers={"location": "/nowhere"}),
    "no content": Reply(b"", status=204),
}  # fmt: skip
STREAMS = {
    "empty": _stream(b""),
    "no JSON": _stream(b"data: {nonsense\n\n", _EVENTS),
    "half of an event": _stream(_EVENTS[:70]),
    "cut": _stream(_EVENTS[:250], short=10),
    "in single bytes": _stream(*[_EVENTS[at : at + 1] for at in range(len(_EVENTS))]),
    "other ends of lines": _stream(_EVENTS.replace(b"\n", b"\r\n")),
    "comments and other fields": _stream(b": hi\n\nretry: 5\nid: 1\n\n", _EVENTS),
    "an event of several lines": _stream(_EVENTS.replace(b'"object"', b'\ndata: "object"')),
    "no end": _stream(b"".join(calls.CHAT_EVENTS.pieces[:-1])),
    "more behind the end": _stream(_EVENTS, b"data: {}\n\n"),
    "numbers and lists": _stream(b"data: 5\n\ndata: []\n\ndata: null\n\n", _EVENTS),
    "an error": _stream(calls.CHAT_EVENTS.pieces[0], b'data: {"error": {"message": "overloaded"}}\n\n'),
    "an error that is a text": _stream(calls.CHAT_EVENTS.pieces[0], b'data: {"error": "overloaded"}\n\n'),
    "chunks without choices": _stream(b'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}\n\n', _EVENTS),
    "content of other kinds": _stream(_EVENTS.replace(b'"It "', b"5").replace(b'"rains"', b'[1, {"type": "text", "text": 7}]')),
    "indices far away": _stream(_EVENTS.replace(b'"index": 0', b'"index": 99999')),
    "a whole answer instead": calls.CHAT,
    "deep": _stream(b'data: {"choices":' + b'[{"a":' * 300 + b"1" + b"}]" * 300 + b"}\n\n", _EVENTS),
    "packed": _packed(gzip.compress(_EVENTS), "gzip", EVENTS),
    "packed, and cut": Reply(gzip.compress(_EVENTS)[:60], kind=EVENTS, headers={"content-encoding": "gzip"}),
    "said to be packed": _packed(_EVENTS, "gzip", EVENTS),
    "a lot in a few bytes": _packed(gzip.compress(b"data: " + b" " * (70 << 20) + b"{}\n\n" + _EVENTS), "gzip", EVENTS),
    "refused": Reply({"error": {"message": "slow down"}}, status=429),
}
MESSAGES = {
    "no content": Reply({**_MESSAGE, "content": None}),
    "content of another kind": Reply({**_MESSAGE, "content": [{"type": "hologram", "x": 1}]}),
    "no usage": Reply({key: value for key, value in _MESSAGE.items() if key != "usage"}),
    "overloaded": Reply({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, status=529),
}
ALL = [
    *[(calls.chat, reply, f"chat: {name}") for name, reply in CHATS.items()],
    *[(calls.chat_async, reply, f"chat, async: {name}") for name, reply in CHATS.items()],
    *[(calls.chat_stream, reply, f"stream: {name}") for name, reply in STREAMS.items()],
    *[(calls.chat_async_stream, reply, f"stream, async: {name}") for name, reply in STREAMS.items()],
    *[(calls.message, reply, f"message: {name}") for name, reply in MESSAGES.items()],
]


def outcome(call, provider):
    """Return what a program gets of a call: its result, or its exception with its causes, and how many requests that took."""
    before = len(provider.requests)
    try:
        found = repr(call(provider.url))
    except Exception as error:  # noqa: BLE001 - whatever it is
        causes, one = [], error
        while one is not None:
            causes.append((type(one).__name__, str(one)))
            one = one.__cause__
        found = repr(causes)
    return found, len(provider.requests) - before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients leave sockets of broken answers open
@pytest.mark.parametrize(("call", "reply", "name"), ALL, ids=[name for *_, name in ALL])
def test_a_broken_answer_is_what_it_is_without_hooks(provider, recording, call, reply, name):  # noqa: ARG001 - for pytest alone
    """Result, exception and requests are what they are without hooks; the call is an op that has ended, and optree reports no fault."""
    provider.says(reply)
    before = optree.health()["failures"]
    with optree.session("agent"), optree.turn():
        hooked = outcome(call, provider)
    uninstrument()
    assert outcome(call, provider) == hooked
    ops = [op for _, _, op in walk_ops(recording.tree)]
    assert hooked[1] == len(ops) == 1
    assert ops[0].status in ("ok", "failed", "cancelled")
    assert before == optree.health()["failures"]


def test_the_documentation_counts_them():
    """The page on capture says how many broken answers there are."""
    page = Path(__file__).parents[3] / "docs/howto/capture.md"
    assert f"{len(ALL)} broken answers" in page.read_text("utf-8")
