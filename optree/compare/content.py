"""What a node holds, in short: digests that two nodes share if their content is the same, whatever their times and paths."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree.ids import content_id
from optree.nodes import OperationNode, Payload, Pool, SessionNode, Tokens, TurnNode
from optree.values import decode, is_list, is_object

Node = SessionNode | TurnNode | OperationNode
_SKETCH = 48
"""Features that are kept of a node: the smallest of their hashes, which are a fair sample (bottom-k sketch)."""


class Content(NamedTuple):
    """A node's content in short."""

    key: str
    """Kind and name: what has another key is another thing."""
    own: str
    """Digest of the node itself."""
    whole: str
    """Digest of the node and all below it."""
    features: frozenset[int]
    """A sample of hashes of what it holds: the more two nodes share, the more alike they are."""


def contents(root: SessionNode) -> dict[int, Content]:
    """Return the content of each node of a tree by the `id` of the node's object."""
    nodes: list[Node] = []
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        nodes.append(node)
        pending += children(node)
    found: dict[int, Content] = {}
    for node in reversed(nodes):  # what is below comes first
        found[id(node)] = _content(node, [found[id(child)] for child in children(node)])
    return found


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


def members(payload: Payload | None) -> dict[str, str]:
    """Return the content id of each member of a request, by name; of what is no object one member without a name."""
    if payload is None:
        return {}
    found = decode(payload.payload)
    if not is_object(found):
        return {"": content_id(sorted_json(found))}
    return {name: member_id(name, value) for name, value in found.items()}


def member_id(name: str, value: Any) -> str:
    """Return the content id of a member as it is recorded: the same whether it is pooled or in its place."""
    if is_object(value):
        if "$history" in value:
            return f"history {value['$history']}"
        if len(value) == 1 and "$blob" in value:
            return str(value["$blob"])
    if name == "messages" and is_list(value):
        head = ""
        for item in value:
            head = content_id(head.encode(), content_id(msgspec.json.encode(item)).encode())
        return f"history {head}"
    return content_id(msgspec.json.encode(value))


def sorted_json(value: Any) -> bytes:
    """Return a plain value as JSON, the same whatever the order of its members."""
    return msgspec.json.encode(value, order="sorted")


def resolved(value: Any, pool: Pool) -> Any:
    """Return a plain value with what it refers to in its place; members of the program's own that only look so stay as they are."""
    try:
        return pool.resolve(value)
    except (TypeError, AttributeError):
        return value


def own_tokens(op: OperationNode) -> Tokens:
    """Return the tokens of an op's own accounting, summed."""
    total = Tokens()
    for entry in op.accounting:
        if entry.tokens is not None:
            for name in Tokens.__struct_fields__:
                setattr(total, name, getattr(total, name) + getattr(entry.tokens, name))
    return total


def own_cost(op: OperationNode) -> float | None:
    """Return the money of an op's own accounting; None if no entry says any."""
    costs = [entry.cost_usd for entry in op.accounting if entry.cost_usd is not None]
    return money(sum(costs)) if costs else None


def money(dollars: float) -> float:
    """Return money without the dust that adding binary fractions leaves."""
    return round(dollars, 12)


def _content(node: Node, below: list[Content]) -> Content:
    key, held = _held(node)
    own = content_id(key.encode(), *(b"\0" + feature.encode("utf-8", "replace") for feature in held))
    whole = content_id(own.encode(), *(child.whole.encode() for child in below)) if below else own
    hashes = {crc32(feature.encode("utf-8", "replace")) for feature in held}
    for child in below:
        hashes |= {crc32(child.own.encode()), crc32(child.whole.encode())}
        if isinstance(node, OperationNode):
            hashes |= child.features
    return Content(key, own, whole, frozenset(sorted(hashes)[:_SKETCH]))


def _held(node: Node) -> tuple[str, list[str]]:
    ended = f"status {node.status}\0{node.error}"
    if isinstance(node, SessionNode):
        return f"session {node.agent_id}", [ended, f"report {_digest(node.final_report)}"]
    if isinstance(node, TurnNode):
        blocks = (("prompts", node.prompts), ("assistant", node.assistant))
        return "turn", [ended, *(f"{name} {role} {text}" for name, block in blocks for role, text in sorted((block or {}).items()))]
    held = [ended, f"cost {own_cost(node)} {own_tokens(node)}"]
    held += [f"request {name} {digest}" for name, digest in sorted(members(node.request).items())]
    if node.response is not None:
        held.append(f"response {_digest(node.response.payload)}{node.response.size if node.response.truncated else ''}")
    return f"{node.kind} {node.name}", held


def _digest(block: Raw | UnsetType) -> str:
    return "" if block is UNSET else content_id(sorted_json(decode(block)))
