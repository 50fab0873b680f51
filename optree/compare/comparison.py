"""Two sessions compared: their trees aligned, and what each node of one is in the other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from optree._nodes import OperationNode, Pool, SessionNode, TurnNode
from optree._tree import Tree
from optree._tree.totals import of_entries
from optree._tree.walk import Rooted, tree_in
from optree.compare.alignment import match
from optree.compare.content import Content, Digests, Exact, Node, Stable, bottom_up, children, contents, kind_of, money
from optree.compare.details import Change, Changes, as_line, excerpt
from optree.compare.histories import Histories


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
    result: dict[int, Figures] = {}
    for node in bottom_up(root):
        total = _own(node)
        for child in children(node):
            below = result[id(child)]
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(below, name))
        total.cost_usd = money(total.cost_usd or 0.0)
        result[id(node)] = total
    for total in result.values():
        if total.unknown_costs and not total.known_costs:
            total.cost_usd = None
    return result


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
    untold = node.kind == "llm" and not node.accounting  # as out of a transcript: a call costs something, though no entry says it
    return Figures(
        1,
        sums.all_input_tokens,
        sums.output_tokens,
        sums.cache_read_input_tokens,
        sums.cache_write_input_tokens,
        money(sums.cost_usd),
        sums.known_costs,
        sums.unknown_costs + untold,
        latency,
    )


def _latency(node: Node) -> float | None:
    if node.ended_at is None:
        return None
    measured = node.latency if isinstance(node, OperationNode) else None
    return round(max(0.0, node.ended_at - node.started_at if measured is None else measured), 3)


Mark = Literal["same", "changed", "added", "removed", "moved"]
"""`moved`: the same content under another parent, or in another order among its siblings."""


class Difference(Struct, rename="camel", omit_defaults=True):
    """One node of the comparison. *path_a* and *path_b* are its paths in the two sessions, None where it has none.

    *figures_a*, *figures_b* and *delta* count all that is below it. A node is `changed` by its own fields: not by what is below it, and
    never by times alone. Nodes below one that is the same throughout are left out, unless everything was asked for.
    """

    mark: Mark
    type: Literal["session", "turn", "op"]
    label: str
    """An op's kind and name, a session's agent, the user's prompt of a turn."""
    path_a: str | None = None
    path_b: str | None = None
    changes: list[Change] = []
    figures_a: Figures | None = None
    figures_b: Figures | None = None
    delta: Figures | None = None
    below: list[Difference] = []
    differs: bool = False
    """True if its mark, or that of a node below it, is not `same`."""


class Comparison(Struct, rename="camel"):
    """Two sessions, aligned. *counts* is the number of nodes that differ, by mark and type, as in ``{"added": {"op": 2}}``."""

    txn_a: str
    txn_b: str
    same: bool
    counts: dict[str, dict[str, int]]
    delta: Figures
    """Of the whole: the second session's figures less the first's."""
    root: Difference


def compare(a: Rooted, b: Rooted, *, everything: bool = False, exact: bool = False) -> Comparison:
    """Align two sessions and return what differs; with *everything*, nodes that are the same as well.

    Siblings are aligned by their content first (all but times, paths, logs, reasoning and attributes), then by kind, name and likeness.
    What a provider makes anew for each call (`optree.compare.content`) counts as content only with *exact*.
    What is gone in one place then, and new in another with the same content, is `moved`. A session that is given without its tree has no
    pool: its requests are compared, but what they refer to cannot be shown.
    """
    tree_a, tree_b = _tree(a), _tree(b)
    comparer = _Comparer(tree_a, tree_b, everything=everything, exact=exact)
    root = comparer.compared()
    change = delta(root.figures_a, root.figures_b)
    return Comparison(tree_a.session.origin_txn_id, tree_b.session.origin_txn_id, not root.differs, _counted(root), change, root)


def walk(root: Difference) -> Iterator[Difference]:
    """Yield a difference and all below it, in the order of the trees."""
    pending = [root]
    while pending:
        difference = pending.pop()
        yield difference
        pending.extend(reversed(difference.below))


class _Comparer:
    """The work of one comparison. Explicit stacks: sessions may be nested deeper than Python's recursion."""

    def __init__(self, a: Tree, b: Tree, *, everything: bool, exact: bool) -> None:
        self.a, self.b = a.session, b.session
        self.everything = everything
        stable = Exact() if exact else Stable([a, b])
        histories = Histories(stable.body)
        digests = Digests(a.pool, stable, histories), Digests(b.pool, stable, histories)
        self.changes = Changes(*digests)
        self.content: dict[int, Content] = {**contents(a.session, digests[0]), **contents(b.session, digests[1])}
        self.figures: dict[int, Figures] = {**figures(a.session), **figures(b.session)}
        self.compared_nodes: list[tuple[Difference, Node | None, Node | None]] = []
        """What was found so far, each parent before what is below it, with the nodes."""

    def compared(self) -> Difference:
        root = self._difference(self.a, self.b)
        at = 0
        while at < len(self.compared_nodes):
            difference, a, b = self.compared_nodes[at]
            at += 1
            if difference.mark == "moved" or (not self.everything and self._is_same(a, b)):
                continue
            pairs = match(children(a) if a else [], children(b) if b else [], self.content)
            difference.below = [self._difference(pair.a, pair.b, moved=pair.moved) for pair in pairs]
        self._find_moves()
        self._nest()
        for difference, _, _ in reversed(self.compared_nodes):
            difference.differs = difference.mark != "same" or any(below.differs for below in difference.below)
        return root

    def _is_same(self, a: Node | None, b: Node | None) -> bool:
        return a is not None and b is not None and self.content[id(a)].whole == self.content[id(b)].whole

    def _difference(self, a: Node | None, b: Node | None, *, moved: bool = False) -> Difference:
        node = b or a
        if node is None:
            raise ValueError("a difference is of one node at least")
        paths = (None if a is None else a.path, None if b is None else b.path)
        result = Difference("same", kind_of(node), label(node), *paths)
        if a is None or b is None:
            result.mark = "added" if a is None else "removed"
        elif moved:
            result.mark = "moved"
        elif self.content[id(a)].own != self.content[id(b)].own:
            result.changes = self.changes.between(a, b)
            result.mark = "changed" if result.changes else "same"
        result.figures_a = None if a is None else self.figures[id(a)]
        result.figures_b = None if b is None else self.figures[id(b)]
        result.delta = delta(result.figures_a, result.figures_b)
        self.compared_nodes.append((result, a, b))
        return result

    def _find_moves(self) -> None:
        """Make one of what was removed in one place and added in another."""
        removed: defaultdict[str, deque[tuple[Difference, Node]]] = defaultdict(deque)
        for difference, a, _ in self.compared_nodes:
            if difference.mark == "removed" and a is not None:
                removed[self.content[id(a)].whole].append((difference, a))
        gone: set[int] = set()
        largest = sorted(self.compared_nodes, key=lambda row: -row[0].figures_b.ops if row[0].figures_b else 0)  # a whole before its parts
        for difference, _, b in largest:
            if difference.mark != "added" or b is None:
                continue
            places = removed.get(self.content[id(b)].whole)
            while places and places[0][0].mark != "removed":
                places.popleft()
            if places:
                before, a = places.popleft()
                difference.mark, difference.path_a, difference.figures_a = "moved", a.path, self.figures[id(a)]
                difference.delta = delta(difference.figures_a, difference.figures_b)
                for part in [*walk(before), *list(walk(difference))[1:]]:
                    part.mark = "same"
                difference.below = []
                gone.add(id(before))
        for difference, _, _ in self.compared_nodes:
            difference.below = [below for below in difference.below if id(below) not in gone]

    def _nest(self) -> None:
        """Put ops that were begun within another beneath it."""
        nodes = {id(difference): (a, b) for difference, a, b in self.compared_nodes}
        for turn in [difference for difference, _, _ in self.compared_nodes if difference.type == "turn"]:
            below, turn.below = turn.below, []
            places: dict[tuple[int, str], Difference] = {}
            for difference in below:
                above = turn
                for side, (node, path) in enumerate(zip(nodes[id(difference)], (difference.path_a, difference.path_b), strict=True)):
                    if isinstance(node, OperationNode) and node.parent_op is not None:
                        above = places.get((side, node.parent_op), above)
                    if path is not None:
                        places[side, path] = difference
                above.below.append(difference)


def label(node: Node) -> str:
    """Return what a node is called."""
    if isinstance(node, SessionNode):
        return node.agent_id
    if isinstance(node, TurnNode):
        return excerpt(as_line((node.prompts or {}).get("user") or node.attributes.get("label") or ""))
    return f"{node.kind} {node.name}"


def _tree(source: Rooted) -> Tree:
    return Tree(source, Pool()) if isinstance(source, SessionNode) else tree_in(source)


def _counted(root: Difference) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {mark: {"session": 0, "turn": 0, "op": 0} for mark in ("added", "removed", "changed", "moved")}
    for difference in walk(root):
        if difference.mark in counts:
            counts[difference.mark][difference.type] += 1
    return counts
