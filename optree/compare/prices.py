"""Prices per token, worked out from what calls cost: never assumed.

A call's cost is the sum of its four counts of tokens (input, output, cache read, cache write), each times its price. Several calls of one
model are several such equations. Their least-squares solution is taken only if there are more calls than prices, if it explains every cost,
and if the costs determine it: else the price is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from optree.nodes import AccountingEntry

COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens")
_EXPLAINED = 0.005
"""The share of a cost that prices may leave unexplained."""
_ROUNDED = 1e-6
"""Dollars that rounding may have taken from a cost, or added to it."""
_SURE = 0.02
"""The largest standard error of a price, as a share of the dearest one."""
_SINGULAR = 1e-10


class Prices(Struct):
    """US dollars for one token of a model; None for a kind that none of its calls had."""

    input: float
    output: float | None
    cache_read: float
    cache_write: float | None
    calls: int
    """Calls that they come from."""


def prices(entries: Iterable[AccountingEntry]) -> dict[tuple[str | None, str | None], Prices]:
    """Return the prices that can be worked out, by provider and model."""
    rows: defaultdict[tuple[str | None, str | None], list[tuple[list[float], float]]] = defaultdict(list)
    for entry in entries:
        if entry.tokens is not None and entry.cost_usd is not None and entry.status == "ok":
            counts = [float(getattr(entry.tokens, name)) for name in COUNTS]
            rows[entry.provider, entry.model].append((counts, entry.cost_usd))
    return {model: found for model, known in rows.items() if (found := _derived(known)) is not None}


def _derived(rows: Sequence[tuple[list[float], float]]) -> Prices | None:
    used = [column for column in range(len(COUNTS)) if any(counts[column] for counts, _ in rows)]
    if len(rows) <= len(used) or not {0, 2} <= set(used):
        return None
    matrix = [[counts[column] for column in used] for counts, _ in rows]
    solved = _least_squares(matrix, [cost for _, cost in rows])
    if solved is None:
        return None
    each, spread = solved
    left = [abs(cost - sum(count * one for count, one in zip(row, each, strict=True))) for row, (_, cost) in zip(matrix, rows, strict=True)]
    if any(rest > _ROUNDED + _EXPLAINED * abs(cost) for rest, (_, cost) in zip(left, rows, strict=True)):
        return None
    noise = (sum(rest * rest for rest in left) / (len(rows) - len(used))) ** 0.5
    if min(each) < -_SURE * max(each) or any(noise * one > _SURE * max(each) for one in spread):
        return None
    known = dict(zip(used, (max(0.0, one) for one in each), strict=True))
    return Prices(known[0], known.get(1), known[2], known.get(3), len(rows))


def _least_squares(matrix: list[list[float]], values: list[float]) -> tuple[list[float], list[float]] | None:
    """Return the solution and its standard errors for a noise of 1; None if the equations do not determine it."""
    width = len(matrix[0])
    scale = [max(abs(row[column]) for row in matrix) for column in range(width)]
    rows = [[row[column] / scale[column] for column in range(width)] for row in matrix]
    normal = [[sum(row[x] * row[y] for row in rows) for y in range(width)] for x in range(width)]
    inverse = _inverted(normal)
    if inverse is None:
        return None
    sums = [sum(row[x] * value for row, value in zip(rows, values, strict=True)) for x in range(width)]
    solution = [sum(inverse[x][y] * sums[y] for y in range(width)) / scale[x] for x in range(width)]
    return solution, [max(0.0, inverse[x][x]) ** 0.5 / scale[x] for x in range(width)]


def _inverted(matrix: list[list[float]]) -> list[list[float]] | None:
    """Return the inverse of a small symmetric matrix (Gauss and Jordan, largest pivot first); None if it has none."""
    width = len(matrix)
    rows = [[*row, *(float(x == y) for y in range(width))] for x, row in enumerate(matrix)]
    largest = max(abs(item) for row in matrix for item in row)
    for column in range(width):
        pivot = max(range(column, width), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) <= _SINGULAR * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        top = rows[column][column]
        rows[column] = [item / top for item in rows[column]]
        for row in range(width):
            if row != column and (factor := rows[row][column]):
                rows[row] = [item - factor * other for item, other in zip(rows[row], rows[column], strict=True)]
    return [row[width:] for row in rows]
