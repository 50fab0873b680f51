"""How a comparison is said: signs, deltas, counts. Shared by text and page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from optree.compare.comparison import Comparison, Difference
from optree.compare.details import Change
from optree.compare.figures import Figures
from optree.tree.totals import cost_said, dollars

SIGNS = {"same": " ", "changed": "~", "added": "+", "removed": "-", "moved": ">"}
_COUNTED = (
    ("input", "input_tokens"), ("cached", "cache_read_input_tokens"), ("written", "cache_write_input_tokens"),
    ("output", "output_tokens"), ("ops", "ops"),
)  # fmt: skip
_SECOND = 1000


class Line(NamedTuple):
    """A node as it is drawn: an op and the sub-agent's session in it are one line. *hidden* counts the nodes that one line stands for."""

    found: Difference
    mark: str
    changes: list[Change]
    below: list[Difference]
    hidden: int = 0


def drawn(found: Difference) -> Line:
    """Return how a node is drawn."""
    child = found.below[0] if found.type == "op" and found.below else None
    if child is not None and child.type == "session" and child.mark in (found.mark, "changed", "same"):
        own = found.changes + [change for change in child.changes if change not in found.changes]
        return Line(found, found.mark if found.mark != "same" else child.mark, own, [*child.below, *found.below[1:]])
    return Line(found, found.mark, found.changes, found.below)


def lines(below: list[Difference], *, everything: bool) -> Iterator[Line]:
    """Yield siblings as they are drawn; without *everything*, those that are the same throughout become one line that counts them."""
    same: list[Difference] = []
    for found in below:
        if everything or found.differs:
            yield from _hidden(same)
            same = []
            yield drawn(found)
        else:
            same.append(found)
    yield from _hidden(same)


def _hidden(same: list[Difference]) -> Iterator[Line]:
    if same:
        yield Line(same[0], "same", [], [], len(same))


def hidden_phrase(line: Line) -> str:
    """Return what a line says that stands for nodes that are the same."""
    what = "turn" if line.found.type == "turn" else "op" if line.found.type == "op" else "session"
    return f"… {line.hidden:,} {what}{'s' if line.hidden > 1 else ''} the same"


def path_phrase(found: Difference) -> str:
    """Return a node's path, both where they differ."""
    if found.path_a is None or found.path_b is None or found.path_a == found.path_b:
        return (found.path_b if found.path_a is None else found.path_a) or ""
    return f"{found.path_a}→{found.path_b}"


def delta_phrase(found: Difference) -> str:
    """Return how a node's money, tokens and time changed; of what only one session has, what it comes to."""
    if found.mark in ("added", "removed"):
        return _sum_phrase((found.figures_b if found.mark == "added" else found.figures_a) or Figures())
    change = found.delta or Figures()
    parts = [signed_dollars(change.cost_usd)] if change.cost_usd else []
    parts += [f"{change.unknown_costs:+,} unknown cost{'s' if abs(change.unknown_costs) > 1 else ''}"] if change.unknown_costs else []
    tokens = (change.input_tokens, change.output_tokens)
    parts += [f"{tokens[0]:+,}→{tokens[1]:+,} tok"] if any(tokens) else []
    parts += [signed_span(change.latency_ms)] if change.latency_ms else []
    return " ".join(parts)


def totals_phrases(found: Comparison) -> list[str]:
    """Return the figures of both sessions and their deltas, a phrase each; a figure that both lack is left out."""
    a, b = found.root.figures_a or Figures(), found.root.figures_b or Figures()
    phrases = _costs(a, b)
    for name, field in _COUNTED:
        before, after = getattr(a, field), getattr(b, field)
        phrases += [_phrase(name, before, after, "{:,}".format, "{:+,}".format)] if before or after else []
    if a.latency_ms is None or b.latency_ms is None:
        return [*phrases, f"time {span(a.latency_ms)} → {span(b.latency_ms)}"]
    return [*phrases, _phrase("time", a.latency_ms, b.latency_ms, span, signed_span)]


def _costs(a: Figures, b: Figures) -> list[str]:
    """Return what both sessions cost; a difference only where it is known."""
    one, other = (cost_said(found.cost_usd or 0.0, found.known_costs, found.unknown_costs).removeprefix("cost ") for found in (a, b))
    if not one and not other:
        return []
    if a.unknown_costs or b.unknown_costs:
        return [f"cost {one or '$0'}" if one == other else f"cost {one or '$0'} → {other or '$0'}"]
    return [_phrase("cost", a.cost_usd or 0.0, b.cost_usd or 0.0, dollars, signed_dollars)]


def _phrase(name: str, before: Any, after: Any, shown: Callable[[Any], str], signed: Callable[[Any], str]) -> str:
    return f"{name} {shown(before)}" if before == after else f"{name} {shown(before)} → {shown(after)} ({signed(after - before)})"


def counts_phrase(found: Comparison) -> str:
    """Return how many nodes differ, and how."""
    parts = [
        f"{number:,} {what}{'s' if number > 1 else ''} {mark}"
        for mark, by_type in found.counts.items()
        for what, number in by_type.items()
        if number
    ]
    return ", ".join(parts) or "the same"


def signed_dollars(amount: float) -> str:
    """Return a difference of money."""
    return ("" if amount < 0 else "+") + dollars(amount)


def span(milliseconds: float | None) -> str:
    """Return a duration."""
    if milliseconds is None:
        return "no end"
    return f"{milliseconds / _SECOND:,.2f} s" if abs(milliseconds) >= _SECOND else f"{milliseconds:.1f} ms"


def signed_span(milliseconds: float | None) -> str:
    """Return a difference of durations."""
    return "" if milliseconds is None else ("" if milliseconds < 0 else "+") + span(milliseconds)


def _sum_phrase(total: Figures) -> str:
    cost = cost_said(total.cost_usd or 0.0, total.known_costs, total.unknown_costs)
    parts = [cost] if cost else []
    parts += [f"{total.input_tokens:,}→{total.output_tokens:,} tok"] if total.input_tokens or total.output_tokens else []
    parts += [span(total.latency_ms)] if total.latency_ms is not None else []
    return " ".join(parts)
