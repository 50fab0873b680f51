"""What a node and all below it cost: money, tokens, time."""

from __future__ import annotations

from msgspec import Struct

from optree.compare.content import Node, bottom_up, children, money
from optree.nodes import OperationNode, SessionNode
from optree.tree.totals import of_entries


class Figures(Struct, rename="camel"):
    """Sums over a node and all below it; *latency_ms* is the node's own, from its begin to its end, None for what has no end.

    *input_tokens* are all that were sent, with those read from and written to the cache. *cost_usd* is what *known_costs* accounting
    entries come to, None where none of them says its cost; *unknown_costs* do not say theirs.
    """

    ops: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    cost_usd: float | None = 0.0
    known_costs: int = 0
    unknown_costs: int = 0
    latency_ms: float | None = None


_SUMMED = [name for name in Figures.__struct_fields__ if name != "latency_ms"]


def figures(root: SessionNode) -> dict[int, Figures]:
    """Return the figures of each node of a tree by the `id` of the node's object."""
    found: dict[int, Figures] = {}
    for node in bottom_up(root):
        total = _own(node)
        for child in children(node):
            below = found[id(child)]
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(below, name))
        total.cost_usd = money(total.cost_usd or 0.0)
        found[id(node)] = total
    for total in found.values():
        if total.unknown_costs and not total.known_costs:
            total.cost_usd = None
    return found


def delta(a: Figures | None, b: Figures | None) -> Figures:
    """Return *b* less *a*, None counting as nothing; the latency only where both have one."""
    before, after = a or Figures(), b or Figures()
    change = Figures(**{name: (getattr(after, name) or 0) - (getattr(before, name) or 0) for name in _SUMMED})
    change.cost_usd = None if None in (before.cost_usd, after.cost_usd) else money(change.cost_usd or 0.0)
    if before.latency_ms is not None and after.latency_ms is not None:
        change.latency_ms = round(after.latency_ms - before.latency_ms, 3)
    return change


def _own(node: Node) -> Figures:
    latency = _latency(node)
    if not isinstance(node, OperationNode):
        return Figures(latency_ms=latency)
    sums = of_entries(node.accounting)
    return Figures(
        1,
        sums.all_input_tokens,
        sums.output_tokens,
        sums.cache_read_input_tokens,
        sums.cache_write_input_tokens,
        money(sums.cost_usd),
        sums.known_costs,
        sums.unknown_costs,
        latency,
    )


def _latency(node: Node) -> float | None:
    if node.ended_at is None:
        return None
    measured = node.latency if isinstance(node, OperationNode) else None
    return round(max(0.0, node.ended_at - node.started_at if measured is None else measured), 3)
