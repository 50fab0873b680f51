"""The Claude Agent SDK, which runs Claude Code as a child process: nothing of it is HTTP, so what the two tell each other is taken.

Messages are taken as they arrive, whether or not the program reads them. What the SDK is called back for (tools in the process,
permissions, hooks) runs within the tool's op.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from optree._capture.frameworks.claude_agent_sdk.messages import Conversation
from optree._capture.frameworks.mcp import ANCESTRY, PARENT
from optree._capture.hooks import Hook, IsOn
from optree._tracing import context
from optree._tracing.faults import guarded
from optree._tracing.propagate import place_of
from optree._values import is_object, object_of, text_of


def queries(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook where the SDK begins to read its child process, and leaves it, and where it is called back."""
    kind = module.Query
    start, close, control, mcp = kind.start, kind.close, kind._handle_control_request, kind._handle_sdk_mcp_request  # noqa: SLF001 - it has no others

    @functools.wraps(start)
    async def started(query: Any, *args: Any, **kwargs: Any) -> Any:
        if is_on():
            _begin(query)
        return await start(query, *args, **kwargs)

    @functools.wraps(close)
    async def closed(query: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await close(query, *args, **kwargs)
        finally:
            if (watched := _conversations.get(query)) is not None:
                watched.over()

    @functools.wraps(control)
    async def called_back(query: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        conversation = _conversation(query)
        place = None if conversation is None else conversation.called_back(request)
        if conversation is None or place is None:
            return await control(query, request, *args, **kwargs)
        try:
            return await control(query, request, *args, **kwargs)
        finally:
            conversation.nesting.end(place)

    @functools.wraps(mcp)
    async def to_server(query: Any, server: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        return await mcp(query, server, (_placed(message) or message) if is_on() else message, *args, **kwargs)

    return [
        (kind, "start", started),
        (kind, "close", closed),
        (kind, "_handle_control_request", called_back),
        (kind, "_handle_sdk_mcp_request", to_server),
    ]


def clients(module: ModuleType, is_on: IsOn) -> list[Hook]:
    """Hook where a client begins, which may be asked again and again."""
    connect = module.ClaudeSDKClient.connect

    @functools.wraps(connect)
    async def connected(client: Any, *args: Any, **kwargs: Any) -> Any:
        value = await connect(client, *args, **kwargs)
        if is_on():
            _is_client(client)
        return value

    return [(module.ClaudeSDKClient, "connect", connected)]


@guarded
def _is_client(client: Any) -> None:
    if (conversation := _conversation(client._query)) is not None:  # noqa: SLF001 - it has no other name
        conversation.is_client = True


class _WatchedChild:
    """Replaces the SDK's message stream and observes what passes between SDK and child."""

    def __init__(self, query: Any) -> None:
        transport = query.transport
        system = getattr(getattr(transport, "_options", None), "system_prompt", None)
        self.conversation = Conversation(text_of(system))
        self._query, self._transport = ref(query), transport
        self._stream, function = query._message_send, transport.write  # noqa: SLF001 - it has no other name

        @functools.wraps(function)
        async def write(data: Any, *args: Any, **kwargs: Any) -> Any:
            self.conversation.write(data)
            return await function(data, *args, **kwargs)

        self._write, self._before = write, getattr(transport, "__dict__", {}).get("write")
        with suppress(AttributeError):  # one of the program's that takes none: prompts are not seen then
            transport.write = write  # all who write have the transport, and nothing else in common

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, message: Any) -> None:
        self._take(message)
        await self._stream.send(message)

    def send_nowait(self, message: Any) -> None:
        self._take(message)
        self._stream.send_nowait(message)

    @guarded
    def _take(self, message: Any) -> None:
        if message.get("type") == "end":
            self.over()
        else:
            self.conversation.take(message)

    @guarded
    def over(self) -> None:
        """Take that the child has ended, or is left; the transport writes as before."""
        self.conversation.over(is_left=getattr(self._query(), "_closed", True))
        if getattr(self._transport, "__dict__", {}).get("write") is self._write:
            if self._before is None:
                del self._transport.write
            else:
                self._transport.write = self._before


_conversations: Final[WeakKeyDictionary[Any, _WatchedChild]] = WeakKeyDictionary()


def _conversation(query: Any) -> Conversation | None:
    found = _conversations.get(query)
    return None if found is None else found.conversation


@guarded
def _begin(query: Any) -> None:
    if query not in _conversations:
        _conversations[query] = query._message_send = _WatchedChild(query)  # noqa: SLF001 - it has no other place


@guarded
def _placed(message: Any) -> dict[str, Any] | None:
    """Return a call of a server's tool that names the op it is made in, as `optree._capture.frameworks.mcp` has it."""
    here = context.here()
    if here is None or not is_object(message) or message.get("method") != "tools/call" or not is_object(sent := message.get("params")):
        return None
    parent, ancestry, traceparent = place_of(here)
    known = sent.get("_meta")
    meta = {"traceparent": traceparent, PARENT: parent, ANCESTRY: ancestry, **object_of(known)}
    return {**message, "params": {**sent, "_meta": meta}}
