"""Which node of one session is which of the other, among siblings: by content first, then by kind, name and likeness."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from optree.compare.alignment import MOST_CELLS, Pairs, align, best
from optree.compare.content import Content, Node

_ALIKE = 0.1
"""What two nodes of the same kind and name weigh that share nothing: less than any likeness, more than no partner."""

_TURNS_ALIKE = 0.3
"""What two turns weigh at least that are one in another place; they have no names to tell."""


class Match(NamedTuple):
    """Two nodes that are one, or a node without a partner; *moved* are the same content in another place among their siblings."""

    a: Node | None
    b: Node | None
    moved: bool = False


def match(a: Sequence[Node], b: Sequence[Node], content: Mapping[int, Content]) -> list[Match]:
    """Return siblings matched, in the order of *b*; what only *a* has stands where it was."""
    one, other = [content[id(node)] for node in a], [content[id(node)] for node in b]
    same = align([found.whole for found in one], [found.whole for found in other])
    moved = _moved(one, other, same)
    came, gone = {y for _, y in moved}, {x for x, _ in moved}
    pairs: Pairs = []
    x = y = 0
    for next_x, next_y in [*same, (len(a), len(b))]:
        rows, columns = [at for at in range(x, next_x) if at not in gone], [at for at in range(y, next_y) if at not in came]
        pairs += _alike(rows, columns, one, other)
        pairs.append((next_x, next_y))
        x, y = next_x + 1, next_y + 1
    left_a = set(range(len(a))) - gone - {x for x, _ in pairs}
    left_b = set(range(len(b))) - came - {y for _, y in pairs}
    crossing = _crossing(sorted(left_a), sorted(left_b), one, other)
    return list(_merged(a, b, pairs, {y: (x, True) for x, y in moved} | {y: (x, False) for x, y in crossing}))


def _crossing(rows: list[int], columns: list[int], one: Sequence[Content], other: Sequence[Content]) -> Pairs:
    """Return pairs of what is left, of the same kind and name, in any order: the most alike first."""
    if not rows or not columns or len(rows) * len(columns) > MOST_CELLS:
        return []
    weighed = [(_likeness(one[x], other[y]), x, y) for x in rows for y in columns]
    weighed = [(weight, x, y) for weight, x, y in weighed if weight > (_TURNS_ALIKE if one[x].key == "turn" else 0)]
    weighed.sort(key=lambda found: (-found[0], found[1] + found[2], abs(found[1] - found[2])))
    pairs: Pairs = []
    taken_a, taken_b = set[int](), set[int]()
    for _, x, y in weighed:
        if x not in taken_a and y not in taken_b:
            pairs.append((x, y))
            taken_a.add(x)
            taken_b.add(y)
    return pairs


def _moved(one: Sequence[Content], other: Sequence[Content], same: Pairs) -> Pairs:
    """Return what is in both, but not in the same order."""
    staying_a, staying_b = {x for x, _ in same}, {y for _, y in same}
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for y, found in enumerate(other):
        if y not in staying_b:
            places[found.whole].append(y)
    return [(x, places[found.whole].popleft()) for x, found in enumerate(one) if x not in staying_a and places.get(found.whole)]


def _alike(rows: list[int], columns: list[int], one: Sequence[Content], other: Sequence[Content]) -> Pairs:
    """Return pairs of the same kind and name, in order: the most alike where there are few, else by kind and name alone."""
    if not rows or not columns:
        return []
    if len(rows) * len(columns) > MOST_CELLS:
        pairs = align([one[x].key for x in rows], [other[y].key for y in columns])
    else:
        pairs = best(
            [one[x].whole for x in rows], [other[y].whole for y in columns], lambda x, y: _likeness(one[rows[x]], other[columns[y]])
        )
    return [(rows[x], columns[y]) for x, y in pairs]


def _likeness(a: Content, b: Content) -> float:
    if a.key != b.key:
        return 0.0
    shared = len(a.features & b.features)
    return _ALIKE + (shared / (len(a.features) + len(b.features) - shared) if shared else 0.0)


def _merged(a: Sequence[Node], b: Sequence[Node], pairs: Pairs, elsewhere: Mapping[int, tuple[int, bool]]) -> Iterator[Match]:
    """Yield the matches; *elsewhere* has the partners of what is not in order, and whether they are the same."""
    gone = {x for x, _ in elsewhere.values()}
    x = y = 0
    for next_x, next_y in pairs:
        for at in range(x, next_x):
            if at not in gone:
                yield Match(a[at], None)
        for at in range(y, next_y):
            yield Match(a[elsewhere[at][0]], b[at], elsewhere[at][1]) if at in elsewhere else Match(None, b[at])
        if next_x < len(a) and next_y < len(b):
            yield Match(a[next_x], b[next_y])
        x, y = next_x + 1, next_y + 1
