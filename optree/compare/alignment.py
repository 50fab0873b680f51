"""Alignment of two sequences: which items of one are which of the other, in order, in bounded time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

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
    found = _shortest(inner_a, inner_b)
    middle = _by_occurrence(inner_a, inner_b) if found is None else found
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
    found: list[tuple[str, int]] = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found


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
