"""What a provider makes anew for each call, and what is left of requests and responses without it.

Left out are the `VOLATILE` members of what providers return, and of the messages that programs send back. Ids of tool calls are renamed
after the call's name and arguments, where it is made and where its result names it, so that a result that goes to another call is a
change. An id that stands for several calls is kept as it is: the program gives it. What models and tools say is never looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from optree.compare.content import sorted_json
from optree.compare.histories import decoded
from optree.conversation.content import HISTORY_KEYS, body_of, call_in, result_in
from optree.ids import content_id
from optree.tree import Tree, walk_ops
from optree.values import is_list, is_object

VOLATILE = frozenset({
    "id", "created", "created_at", "createdAt", "completed_at", "createTime", "timestamp", "system_fingerprint",
    "request_id", "_request_id", "requestId", "response_id", "responseId",
})  # fmt: skip
"""Members that are left out, by name."""
_REFERENCES = ("tool_call_id", "tool_use_id", "call_id")
_BELOW = ("choices", "candidates", "message", "delta", "output", "content", "parts", "tool_calls")
"""Members of what a provider returns that hold more of its own."""
_GEMINI = ("functionCall", "functionResponse", "function_call", "function_response")
"""Members that hold a call or a result, with its id."""
_OF_REQUESTS = ("previous_response_id", "request_id", "requestId", "timestamp")
"""Members of a model's request of which only counts that they are there."""
_TYPES = frozenset({
    "message", "reasoning", "text", "output_text", "thinking", "function", "function_call", "function_call_output",
    "tool_use", "server_tool_use", "tool_result",
})  # fmt: skip
_OBJECTS = ("chat.completion", "chat.completion.chunk", "text_completion", "response")


class Exact:
    """Everything counts."""

    def body(self, body: bytes) -> bytes:
        """Return a message's JSON as it is."""
        return body

    def request(self, name: str, value: Any, kind: str) -> Any:  # noqa: ARG002 - as Stable has it
        """Return a member of a request as it is."""
        return value

    def response(self, value: Any, kind: str) -> Any:  # noqa: ARG002 - as Stable has it
        """Return a response as it is."""
        return value


class Stable:
    """What counts of sessions that are compared with each other."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._names: dict[str, str] = {}
        for value in (value for tree in trees for value in _spoken(tree)):
            for identity, name in _named(value):
                self._names[identity] = identity if self._names.get(identity, name) != name else name

    def body(self, body: bytes) -> bytes:
        """Return a message's JSON without what is volatile; damaged JSON as it is."""
        found = decoded(body)
        if found is None:
            return body
        kept = self._kept(found)
        return body if kept == found else msgspec.json.encode(kept)

    def request(self, name: str, value: Any, kind: str) -> Any:
        """Return a member of a request without what is volatile: of a model's its history, of others the id of the call they answer."""
        if kind == "llm" and name in _OF_REQUESTS:
            return name if isinstance(value, str | int | float) else value
        if kind != "llm":
            return self._names.get(value, value) if name in _REFERENCES and isinstance(value, str) else value
        body = body_of({name: value})
        if body is value:  # a whole body that stands where the messages are
            return {key: self._kept(item) if key in HISTORY_KEYS else item for key, item in value.items()}
        return self._kept(value) if name in ("", *HISTORY_KEYS) else value

    def response(self, value: Any, kind: str) -> Any:
        """Return a model's response without what is volatile; others as they are."""
        return self._kept(value) if kind == "llm" else value

    def _kept(self, value: Any) -> Any:
        if is_list(value):
            return [self._kept(item) for item in value]
        if not is_object(value):
            return value
        of_provider, answer = _is_providers(value), _is_answer(value)
        call = _id_of_call(value)
        found: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, str) and (key in _REFERENCES or (call is not None and item == call)):
                found[key] = self._names.get(item, item)
            elif key in _GEMINI and is_object(item) and isinstance(item.get("id"), str):
                found[key] = {**item, "id": self._names.get(item["id"], item["id"])}
            elif of_provider and key in VOLATILE and not is_object(item) and not is_list(item):
                continue
            else:
                found[key] = self._kept(item) if key in _BELOW and not answer else item
        return found


def _is_providers(value: dict[str, Any]) -> bool:
    """Tell whether an object is one of a provider's interface: a response, a message, or a block of one."""
    return (
        value.get("object") in _OBJECTS
        or is_list(value.get("choices"))
        or is_list(value.get("candidates"))
        or isinstance(value.get("role"), str)
        or value.get("type") in _TYPES
    )


def _is_answer(value: dict[str, Any]) -> bool:
    """Tell whether an object holds a tool's result."""
    return value.get("role") in ("tool", "function") or result_in(value) is not None


def _id_of_call(value: dict[str, Any]) -> str | None:
    """Return the id that a tool call is made with."""
    gemini = value.get("functionCall", value.get("function_call"))
    found = None
    if "role" not in value and (is_object(value.get("function")) or call_in(value) is not None):
        found = value.get("call_id") or value.get("id") or (gemini.get("id") if is_object(gemini) else None)
    return found if isinstance(found, str) and found else None


def _named(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each tool call's id, and what it is renamed to."""
    pending = [value]
    while pending:
        one = pending.pop()
        if is_list(one):
            pending += one
        elif is_object(one):
            identity = _id_of_call(one)
            if identity is not None:
                yield identity, _name(one)
            if not _is_answer(one):
                pending += [one[key] for key in (*_BELOW, *HISTORY_KEYS) if key in one and identity is None]


def _name(call: dict[str, Any]) -> str:
    function = call.get("function")
    known = call_in({"type": "tool_call", **function} if is_object(function) else call)
    if known is None:
        return ""
    arguments = decoded(known.arguments.encode("utf-8", "replace"))
    said = known.arguments.encode("utf-8", "replace") if arguments is None else sorted_json(arguments)
    return f"call of {known.name} {content_id(said)[:12]}"


def _spoken(tree: Tree) -> Iterator[Any]:
    """Yield all that may hold tool calls."""
    for body in tree.pool.blobs.values():
        if b"call" in bytes(body) or b"tool_use" in bytes(body):
            yield decoded(body)
    for _, _, op in walk_ops(tree.session):
        if op.kind == "llm":
            for payload in (op.request, op.response):
                yield None if payload is None else decoded(payload.payload)
