"""Which items of two sequences, and which siblings of two sessions, are the same: in order, in bounded time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from optree.compare.content import Content, Node

Pairs = list[tuple[int, int]]
"""Positions in the first and in the second sequence, both rising."""
MOST_EDITS = 600
"""Up to so many insertions and removals the alignment is the shortest one. Its time grows with their square."""
MOST_CELLS = 60_000
"""Up to so many pairs of items are weighed one by one."""


def align(a: Sequence[str], b: Sequence[str]) -> Pairs:
    """Return pairs of equal items: the most that there are, while at most `MOST_EDITS` items have no partner.

    The other way round it finds the same pairs: of several shortest answers the choice does not depend on which sequence comes first.
    """
    if tuple(b) < tuple(a):
        return [(x, y) for y, x in _align(b, a)]
    return _align(a, b)


def best(a: Sequence[str], b: Sequence[str], weight: Callable[[int, int], float]) -> Pairs:
    """Return the pairs with the greatest sum of weights; 0 means that two items are no pair. For `MOST_CELLS` pairs at most.

    *a* and *b* say which way round to begin, so that the answer is the same from both sides.
    """
    if tuple(b) < tuple(a):
        return [(x, y) for y, x in _heaviest(len(b), len(a), lambda y, x: weight(x, y))]
    return _heaviest(len(a), len(b), weight)


def _align(a: Sequence[str], b: Sequence[str]) -> Pairs:
    start, end = 0, 0
    shorter = min(len(a), len(b))
    while start < shorter and a[start] == b[start]:
        start += 1
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    inner_a, inner_b = a[start : len(a) - end], b[start : len(b) - end]
    shortest = _shortest(inner_a, inner_b)
    middle = _by_occurrence(inner_a, inner_b) if shortest is None else shortest
    tail = [(len(a) - back, len(b) - back) for back in range(end, 0, -1)]
    return [*((at, at) for at in range(start)), *((start + x, start + y) for x, y in middle), *tail]


def _shortest(a: Sequence[str], b: Sequence[str]) -> Pairs | None:
    """Return the pairs of a shortest edit script (Myers 1986, greedy, forward); None if it takes more than `MOST_EDITS`."""
    shared = (Counter(a) & Counter(b)).total()
    if not shared:
        return []
    if len(a) + len(b) - 2 * shared > MOST_EDITS:
        return None
    last = len(a) - len(b)
    reach, trail = {1: 0}, list[dict[int, int]]()
    for edits in range(min(len(a) + len(b), MOST_EDITS) + 1):
        trail.append(reach.copy())
        for diagonal in range(-edits, edits + 1, 2):
            x = _step(reach, diagonal, edits)
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if diagonal == last and x >= len(a):
                return _traced(trail, len(a), len(b))
    return None


def _step(reach: dict[int, int], diagonal: int, edits: int) -> int:
    """Return how far a diagonal is reached by one more insertion or removal."""
    down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
    return reach[diagonal + 1] if down else reach[diagonal - 1] + 1


def _traced(trail: list[dict[int, int]], x: int, y: int) -> Pairs:
    pairs: Pairs = []
    for edits in range(len(trail) - 1, -1, -1):
        reach, diagonal = trail[edits], x - y
        entered = _step(reach, diagonal, edits)
        while x > entered:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if edits == 0:
            break
        down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
        x, y = (x, y - 1) if down else (x - 1, y)
    pairs.reverse()
    return pairs


def _by_occurrence(a: Sequence[str], b: Sequence[str]) -> Pairs:
    """Return a long, not always the longest, rising list of pairs: the nth occurrence of an item goes with its nth."""
    places = {key: at for at, key in enumerate(_numbered(b))}
    pairs = [(at, places[key]) for at, key in enumerate(_numbered(a)) if key in places]
    tops: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for at, (_, y) in enumerate(pairs):
        pile = bisect_left(tops, y)
        tops[pile : pile + 1] = [y]
        heads[pile : pile + 1] = [at]
        before.append(heads[pile - 1] if pile else -1)
    rising: Pairs = []
    at = heads[-1] if heads else -1
    while at >= 0:
        rising.append(pairs[at])
        at = before[at]
    rising.reverse()
    return rising


def _numbered(keys: Sequence[str]) -> list[tuple[str, int]]:
    seen = Counter[str]()
    result: list[tuple[str, int]] = []
    for key in keys:
        result.append((key, seen[key]))
        seen[key] += 1
    return result


def _heaviest(rows: int, columns: int, weight: Callable[[int, int], float]) -> Pairs:
    weights = [[weight(x, y) for y in range(columns)] for x in range(rows)]
    sums = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for x in range(rows - 1, -1, -1):
        row, below, own = sums[x], sums[x + 1], weights[x]
        for y in range(columns - 1, -1, -1):
            paired = own[y] + below[y + 1] if own[y] else 0.0
            row[y] = max(paired, below[y], row[y + 1])
    pairs: Pairs = []
    x = y = 0
    while x < rows and y < columns:
        if weights[x][y] and sums[x][y] == weights[x][y] + sums[x + 1][y + 1]:
            pairs.append((x, y))
            x, y = x + 1, y + 1
        elif sums[x][y] == sums[x + 1][y]:
            x += 1
        else:
            y += 1
    return pairs


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
    """Return siblings matched, in the order of *b*; nodes of *a* alone stand where they were."""
    contents_a, contents_b = [content[id(node)] for node in a], [content[id(node)] for node in b]
    same = align([item.whole for item in contents_a], [item.whole for item in contents_b])
    moved = _moved(contents_a, contents_b, same)
    came, gone = {y for _, y in moved}, {x for x, _ in moved}
    pairs: Pairs = []
    x = y = 0
    for next_x, next_y in [*same, (len(a), len(b))]:
        rows, columns = [at for at in range(x, next_x) if at not in gone], [at for at in range(y, next_y) if at not in came]
        pairs += _alike(rows, columns, contents_a, contents_b)
        pairs.append((next_x, next_y))
        x, y = next_x + 1, next_y + 1
    left_a = set(range(len(a))) - gone - {x for x, _ in pairs}
    left_b = set(range(len(b))) - came - {y for _, y in pairs}
    crossing = _crossing(sorted(left_a), sorted(left_b), contents_a, contents_b)
    return list(_merged(a, b, pairs, {y: (x, True) for x, y in moved} | {y: (x, False) for x, y in crossing}))


def _crossing(rows: list[int], columns: list[int], contents_a: Sequence[Content], contents_b: Sequence[Content]) -> Pairs:
    """Return pairs of the nodes that are not matched yet, of the same kind and name, in any order: the most alike first."""
    if not rows or not columns or len(rows) * len(columns) > MOST_CELLS:
        return []
    weighed = [(_likeness(contents_a[x], contents_b[y]), x, y) for x in rows for y in columns]
    weighed = [(weight, x, y) for weight, x, y in weighed if weight > (_TURNS_ALIKE if contents_a[x].key == "turn" else 0)]
    weighed.sort(key=lambda cell: (-cell[0], cell[1] + cell[2], abs(cell[1] - cell[2])))
    pairs: Pairs = []
    taken_a, taken_b = set[int](), set[int]()
    for _, x, y in weighed:
        if x not in taken_a and y not in taken_b:
            pairs.append((x, y))
            taken_a.add(x)
            taken_b.add(y)
    return pairs


def _moved(contents_a: Sequence[Content], contents_b: Sequence[Content], same: Pairs) -> Pairs:
    """Return the pairs of equal nodes that are not in the same order."""
    staying_a, staying_b = {x for x, _ in same}, {y for _, y in same}
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for y, item in enumerate(contents_b):
        if y not in staying_b:
            places[item.whole].append(y)
    return [(x, places[item.whole].popleft()) for x, item in enumerate(contents_a) if x not in staying_a and places.get(item.whole)]


def _alike(rows: list[int], columns: list[int], contents_a: Sequence[Content], contents_b: Sequence[Content]) -> Pairs:
    """Return pairs of the same kind and name, in order: the most alike where there are few, else by kind and name alone."""
    if not rows or not columns:
        return []
    if len(rows) * len(columns) > MOST_CELLS:
        pairs = align([contents_a[x].key for x in rows], [contents_b[y].key for y in columns])
    else:
        pairs = best(
            [contents_a[x].whole for x in rows],
            [contents_b[y].whole for y in columns],
            lambda x, y: _likeness(contents_a[rows[x]], contents_b[columns[y]]),
        )
    return [(rows[x], columns[y]) for x, y in pairs]


def _likeness(a: Content, b: Content) -> float:
    if a.key != b.key:
        return 0.0
    shared = len(a.features & b.features)
    return _ALIKE + (shared / (len(a.features) + len(b.features) - shared) if shared else 0.0)


def _merged(a: Sequence[Node], b: Sequence[Node], pairs: Pairs, elsewhere: Mapping[int, tuple[int, bool]]) -> Iterator[Match]:
    """Yield the matches; *elsewhere* has the partners of nodes that are out of order, and whether they are the same."""
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
