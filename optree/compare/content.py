"""What a node, a request or a response holds, in short: digests that two of them share if their content is the same.

Left out are the `VOLATILE` members of what providers return, and of the messages that programs send back. Ids of tool calls are renamed
after the call's name and arguments, where it is made and where its result names it, so that a result that goes to another call is a
change. An id that stands for several calls is kept as it is: the program gives it. What models and tools say is never looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree._ids import content_id
from optree._nodes import OperationNode, Payload, Pool, SessionNode, Tokens, TurnNode
from optree._providers.messages import HISTORY_KEYS, opened
from optree._tree import Tree, walk_ops
from optree._tree.totals import has_unknown_cost
from optree._values import decode, is_list, is_object
from optree.compare.histories import ROOT, Histories, decoded
from optree.conversation.content import body_of, call_in, result_in

Node = SessionNode | TurnNode | OperationNode
_SKETCH = 48
"""Features that are kept of a node: the smallest of their hashes, which are a fair sample (bottom-k sketch)."""
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


class WhatCounts(Protocol):
    """What counts as content of a message's JSON, and of an op's request and response, given with the op's kind."""

    def body(self, body: bytes) -> bytes:
        """Return what counts of a message."""
        ...

    def request(self, name: str, value: Any, kind: str) -> Any:
        """Return what counts of a member of a request."""
        ...

    def response(self, value: Any, kind: str) -> Any:
        """Return what counts of a response."""
        ...


class Digests:
    """Digests of one session's payloads. *histories* may be shared with another session: what both have is looked at once."""

    def __init__(self, pool: Pool, stable: WhatCounts, histories: Histories) -> None:
        self.pool, self.stable, self.histories = pool, stable, histories
        self._heads = {ROOT: ""}
        self._blobs: dict[tuple[str, str, str], str] = {}

    def members(self, payload: Payload | None, kind: str) -> dict[str, str]:
        """Return the content id of each member of a request, by name; a request that is not an object is one member without a name."""
        if payload is None:
            return {}
        request = opened(decode(payload.payload))
        return {name: self._member(name, value, kind) for name, value in (request if is_object(request) else {"": request}).items()}

    def response(self, payload: Payload, kind: str) -> str:
        """Return the content id of a response."""
        return content_id(sorted_json(self.stable.response(opened(decode(payload.payload)), kind)))

    def history(self, value: Any) -> int | None:
        """Return the node of a pooled history; None for any other value."""
        head = value.get("$history") if is_object(value) else None
        return self.histories.linked(head, self.pool) if isinstance(head, str) else None

    def whole(self, name: str, value: Any, kind: str) -> Any:
        """Return the stable part of a member, its references resolved; a value that only looks like a reference stays as it is."""
        try:
            resolved = self.pool.resolve(value)
        except (TypeError, AttributeError, ValueError):
            resolved = value
        return self.stable.request(name, resolved, kind)

    def _member(self, name: str, value: Any, kind: str) -> str:
        node = self.history(value)
        if node is not None:
            return f"history {self._chain(node)}"
        blob = value.get("$blob") if is_object(value) and len(value) == 1 else None
        if not isinstance(blob, str):
            return self._in_place(name, value, kind)
        key = (name, kind, blob)
        if key not in self._blobs:
            known = decoded(self.pool.blobs.get(blob))
            self._blobs[key] = f"lost {blob}" if known is None else self._in_place(name, known, kind)
        return self._blobs[key]

    def _in_place(self, name: str, value: Any, kind: str) -> str:
        if name == "messages" and is_list(value):
            return f"history {self._chain(self.histories.listed(value))}"
        return content_id(sorted_json(self.stable.request(name, value, kind)))

    def _chain(self, node: int) -> str:
        """Return the content id of a history: it does not depend on which history came first."""
        way: list[int] = []
        while node not in self._heads:
            way.append(node)
            node = self.histories.parent[node]
        head = self._heads[node]
        for ancestor in reversed(way):
            head = self._heads[ancestor] = content_id(head.encode(), self.histories.item[ancestor].encode())
        return head


def sorted_json(value: Any) -> bytes:
    """Return a plain value as JSON, the same whatever the order of its members."""
    return msgspec.json.encode(value, order="sorted")


class Content(NamedTuple):
    """A node's content in short."""

    key: str
    """Kind and name: what has another key is another thing."""
    own: str
    """Digest of the node itself."""
    whole: str
    """Digest of the node and all below it."""
    features: frozenset[int]
    """A sample of hashes of the node's content: the more two nodes share, the more alike they are."""


def contents(root: SessionNode, digests: Digests) -> dict[int, Content]:
    """Return the content of each node of a tree by the `id` of the node's object; *digests* are those of its pool."""
    result: dict[int, Content] = {}
    for node in bottom_up(root):
        result[id(node)] = _content(node, [result[id(child)] for child in children(node)], digests)
    return result


def bottom_up(root: Node) -> Iterator[Node]:
    """Return a node and all below it, what is below a node always before it."""
    nodes = [root]
    for node in nodes:  # which grows
        nodes += children(node)
    return reversed(nodes)


def children(node: Node) -> list[Node]:
    """Return the nodes right below a node."""
    if isinstance(node, SessionNode):
        return cast("list[Node]", node.turns)
    if isinstance(node, TurnNode):
        return cast("list[Node]", node.ops)
    return [] if node.child_session is None else [node.child_session]


def kind_of(node: Node) -> Literal["session", "turn", "op"]:
    """Return `session`, `turn` or `op`."""
    return "session" if isinstance(node, SessionNode) else "turn" if isinstance(node, TurnNode) else "op"


def own_tokens(op: OperationNode) -> Tokens:
    """Return the tokens of an op's own accounting, summed."""
    total = Tokens()
    for entry in op.accounting:
        if entry.tokens is not None:
            for name in Tokens.__struct_fields__:
                setattr(total, name, getattr(total, name) + getattr(entry.tokens, name))
    return total


def last_tokens(op: OperationNode) -> Tokens | None:
    """Return the tokens of an op's last accounting entry that has any, which is its last attempt; None if none has."""
    counts = (entry.tokens for entry in reversed(op.accounting))
    return next((tokens for tokens in counts if tokens is not None and tokens.total_tokens), None)


def own_cost(op: OperationNode) -> float | None:
    """Return the money of an op's own accounting; None if no entry has any."""
    costs = [entry.cost_usd for entry in op.accounting if entry.cost_usd is not None]
    return money(sum(costs)) if costs else None


def money(dollars: float) -> float:
    """Return money without the dust that adding binary fractions leaves."""
    return round(dollars, 12)


def _content(node: Node, below: list[Content], digests: Digests) -> Content:
    key, held = _held(node, digests)
    own = content_id(key.encode(), *(b"\0" + feature.encode("utf-8", "replace") for feature in held))
    whole = content_id(own.encode(), *(child.whole.encode() for child in below)) if below else own
    hashes = {crc32(feature.encode("utf-8", "replace")) for feature in held}
    for child in below:
        hashes |= {crc32(child.own.encode()), crc32(child.whole.encode())}
        if isinstance(node, OperationNode):
            hashes |= child.features
    return Content(key, own, whole, frozenset(sorted(hashes)[:_SKETCH]))


def _held(node: Node, digests: Digests) -> tuple[str, list[str]]:
    ended = f"status {node.status}\0{node.error}"
    if isinstance(node, SessionNode):
        return f"session {node.agent_id}", [ended, f"report {_digest(node.final_report)}"]
    if isinstance(node, TurnNode):
        blocks = (("prompts", node.prompts), ("assistant", node.assistant))
        return "turn", [ended, *(f"{name} {role} {text}" for name, block in blocks for role, text in sorted((block or {}).items()))]
    held = [ended, f"cost {own_cost(node)} {sum(map(has_unknown_cost, node.accounting))} {own_tokens(node)}"]
    held += [f"request {name} {digest}" for name, digest in sorted(digests.members(node.request, node.kind).items())]
    if node.response is not None:
        held.append(f"response {digests.response(node.response, node.kind)}{node.response.size if node.response.truncated else ''}")
    return f"{node.kind} {node.name}", held


def _digest(block: Raw | UnsetType) -> str:
    return "" if block is UNSET else content_id(sorted_json(decode(block)))


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
        """Return a message's JSON without its volatile parts; damaged JSON as it is."""
        value = decoded(body)
        if value is None:
            return body
        kept = self._kept(value)
        return body if kept == value else msgspec.json.encode(kept)

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
        result: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, str) and (key in _REFERENCES or (call is not None and item == call)):
                result[key] = self._names.get(item, item)
            elif key in _GEMINI and is_object(item) and isinstance(item.get("id"), str):
                result[key] = {**item, "id": self._names.get(item["id"], item["id"])}
            elif of_provider and key in VOLATILE and not is_object(item) and not is_list(item):
                continue
            else:
                result[key] = self._kept(item) if key in _BELOW and not answer else item
        return result


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
    identity = None
    if "role" not in value and (is_object(value.get("function")) or call_in(value) is not None):
        identity = value.get("call_id") or value.get("id") or (gemini.get("id") if is_object(gemini) else None)
    return identity if isinstance(identity, str) and identity else None


def _named(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each tool call's id, and what it is renamed to."""
    pending = [value]
    while pending:
        item = pending.pop()
        if is_list(item):
            pending += item
        elif is_object(item):
            identity = _id_of_call(item)
            if identity is not None:
                yield identity, _name(item)
            if not _is_answer(item):
                pending += [item[key] for key in (*_BELOW, *HISTORY_KEYS) if key in item and identity is None]


def _name(call: dict[str, Any]) -> str:
    function = call.get("function")
    known = call_in({"type": "tool_call", **function} if is_object(function) else call)
    if known is None:
        return ""
    arguments = decoded(known.arguments.encode("utf-8", "replace"))
    data = known.arguments.encode("utf-8", "replace") if arguments is None else sorted_json(arguments)
    return f"call of {known.name} {content_id(data)[:12]}"


def _spoken(tree: Tree) -> Iterator[Any]:
    """Yield all that may hold tool calls."""
    for body in tree.pool.blobs.values():
        if b"call" in bytes(body) or b"tool_use" in bytes(body):
            yield decoded(body)
    for _, _, op in walk_ops(tree.session):
        if op.kind == "llm":
            for payload in (op.request, op.response):
                yield None if payload is None else decoded(payload.payload)
