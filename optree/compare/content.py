"""What a node holds, in short: digests that two nodes share if their content is the same, whatever their times and paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, cast
from zlib import crc32

from msgspec import UNSET, Raw, UnsetType

from optree.compare.digests import Digests, sorted_json
from optree.ids import content_id
from optree.nodes import OperationNode, SessionNode, Tokens, TurnNode
from optree.tree.totals import has_unknown_cost
from optree.values import decode

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


def contents(root: SessionNode, digests: Digests) -> dict[int, Content]:
    """Return the content of each node of a tree by the `id` of the node's object; *digests* are those of its pool."""
    found: dict[int, Content] = {}
    for node in bottom_up(root):
        found[id(node)] = _content(node, [found[id(child)] for child in children(node)], digests)
    return found


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
    found = (entry.tokens for entry in reversed(op.accounting))
    return next((tokens for tokens in found if tokens is not None and tokens.total_tokens), None)


def own_cost(op: OperationNode) -> float | None:
    """Return the money of an op's own accounting; None if no entry says any."""
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
