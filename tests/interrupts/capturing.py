"""Calls of a model over HTTP that are captured, and the hooks for that: put in, taken out, and put in by an import."""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import httpx
import httpx2
import openai

import optree
from optree import _capture as capture
from optree._capture.calls.program import PROGRAM
from optree._tree.walk import walk_ops
from tests.interrupts.scenarios import finish

URL = "https://api.openai.com/v1/chat/completions"
ASKED = {"model": "gpt-5", "messages": [{"role": "user", "content": "Weather?"}]}
ANSWER = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "gpt-5", "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}],
}  # fmt: skip
PIECE = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
EVENTS = [
    {**PIECE, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "It "}}]},
    {**PIECE, "choices": [{"index": 0, "delta": {"content": "rains"}, "finish_reason": "stop"}]},
    {**PIECE, "choices": [], "usage": ANSWER["usage"]},
]
STREAM = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS) + b"data: [DONE]\n\n"


class _Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces, none of which is there yet."""

    def __iter__(self) -> Iterator[bytes]:
        yield from (STREAM[:100], STREAM[100:])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def _answer(request: httpx.Request) -> httpx.Response:
    """Be the provider: the path of a request says what it does."""
    if request.url.path.startswith("/gone"):
        raise httpx.ConnectError("gone")
    if request.url.path.startswith("/down"):
        return httpx.Response(500, json={"error": {"message": "down"}})
    if request.url.path.startswith("/stream"):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Stream())
    return httpx.Response(200, json=ANSWER)


_client = httpx.Client(transport=httpx.MockTransport(_answer))
_awaited = httpx.AsyncClient(transport=httpx.MockTransport(_answer))
_sdk = openai.OpenAI(api_key="none", http_client=httpx.Client(transport=httpx.MockTransport(_answer)), max_retries=0)
_other = httpx.Client(transport=httpx.MockTransport(_answer))
HOOKED: list[tuple[Any, str, Any]] = [
    (owner, name, vars(owner)[name])
    for owner, name in (
        *((module.Client, "send") for module in (httpx, httpx2)),
        *((module.AsyncClient, "send") for module in (httpx, httpx2)),
        *((owner, "request") for owner in (openai._base_client.SyncAPIClient, openai._base_client.AsyncAPIClient)),
    )
]
"""What is hooked, and what stands there without hooks."""


def _post(before: str = "") -> None:
    _client.post(URL.replace("/v1", f"{before}/v1"), json=ASKED)


def _streamed() -> None:
    with _client.stream("POST", URL.replace("/v1", "/stream/v1"), json=ASKED) as response:
        for _ in response.iter_bytes():
            pass


def _left_open() -> None:
    with optree.session("reader"), optree.turn():
        response = _client.send(_client.build_request("POST", URL.replace("/v1", "/stream/v1"), json=ASKED), stream=True)
        next(response.iter_raw())
    response.close()


def _awaited_stream() -> None:
    async def read() -> None:
        async with _awaited.stream("POST", URL.replace("/v1", "/stream/v1"), json=ASKED) as response:
            async for _ in response.aiter_bytes():
                pass

    finish(read())


def _gone() -> None:
    with suppress(httpx.ConnectError):
        _post("/gone")


def _own(call: Callable[[], object]) -> Callable[[Any], object]:
    """Return a call whose op is its own: the program's, in which it is made, has its answer."""

    def run(op: Any) -> None:
        op.response("said")
        call()

    return run


def _sdk_call() -> None:
    _sdk.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}])


def _awaited_call() -> None:
    finish(_awaited.post(URL, json=ASKED))


CAPTURED: dict[str, Callable[[Any], object]] = {
    "captured call, in the program's op": lambda _: _post(),
    "captured call": _own(_post),
    "captured call of an SDK": _own(_sdk_call),
    "captured call, awaited": _own(_awaited_call),
    "captured call, streamed": _own(_streamed),
    "captured call, awaited and streamed": _own(_awaited_stream),
    "captured call, streamed and left open": _own(_left_open),
    "captured call, refused": _own(lambda: _post("/down")),
    "captured call, not answered": _own(_gone),
}
"""Calls inside a session, a turn and an op, while the hooks are in."""
OUTSIDE: dict[str, Callable[[], object]] = {"captured call without session": _post}
"""Calls where no session is open."""


def _import() -> None:
    del sys.modules["httpx2"]
    importlib.import_module("httpx2")


HOOKING: dict[str, Callable[[], object]] = {
    "instrument": optree.instrument,
    "uninstrument": optree.uninstrument,
    "import of a hooked module": _import,
    "instrument_client": partial(optree.instrument_client, _other),
    "uninstrument_client": partial(optree.uninstrument_client, _other),
}


@contextmanager
def hooks(*, are_in: bool) -> Iterator[None]:
    """Have the hooks in, or out, at first; out at last."""
    optree.instrument() if are_in else optree.uninstrument()
    (optree.instrument_client if are_in else optree.uninstrument_client)(_other)
    try:
        yield
    finally:
        sys.modules["httpx2"] = httpx2
        optree.uninstrument()
        optree.uninstrument_client(_other)


def hook_flaws() -> list[str]:
    """Return what is wrong with the hooks: none is there once they are taken out, and each once they are put in, whatever was before."""
    sys.modules["httpx2"] = httpx2
    optree.uninstrument()
    found = [f"{owner.__name__}.{name} is still hooked" for owner, name, before in HOOKED if vars(owner)[name] is not before]
    found += ["the finder is still there"] if capture.FINDER in sys.meta_path else []
    optree.instrument()
    found += [f"{owner.__name__}.{name} is not hooked" for owner, name, before in HOOKED if vars(owner)[name] is before]
    found += ["no finder"] if capture.FINDER not in sys.meta_path else []
    found += [f"{name} is not looked for when it is imported" for name in capture.FINDER._finding]
    found += captured_flaws()
    optree.uninstrument()
    optree.instrument_client(_other)
    found += captured_flaws(_other)
    optree.uninstrument_client(_other)
    found += [] if type(_other) is httpx.Client else ["the client is still recorded"]
    return found


def captured_flaws(client: httpx.Client = _client) -> list[str]:
    """Return what is wrong with the next call of a model."""
    with optree.session("probe of a call") as session, optree.turn(), optree.tool("t"):
        client.post(URL, json=ASKED)
    ops = [(op.kind, op.status, op.response is not None, len(op.accounting)) for _, _, op in walk_ops(session.tree)]
    expected = [("tool", "ok", False, 1), ("llm", "ok", True, 1)]
    return [] if ops == expected else [f"the next call is recorded as {ops}"]


def end_program() -> list[str]:
    """End the session of calls without one, as the program's end does; returns what is open in it though no call is under way."""
    session = PROGRAM._session
    if session is None:
        return []
    nodes = [node for turn in session.builder.node.turns for node in (turn, *turn.ops)]
    found = [f"open in the program's session: {node.path}" for node in nodes if node.ended_at is None]
    PROGRAM.end(None)
    atexit.unregister(PROGRAM._end_at_exit)
    return found
