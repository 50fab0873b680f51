"""A comparison for people: its words (signs, deltas, counts), as text, and as one self-contained page of HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, NamedTuple

from optree._tree.text import Paint, branches
from optree._tree.totals import cost_said, dollars
from optree._visible import visible
from optree.compare.comparison import Comparison, Difference, Figures
from optree.compare.details import Change, change_phrase
from optree.redaction import redact

SIGNS = {"same": " ", "changed": "~", "added": "+", "removed": "-", "moved": ">"}
_COUNTED = (
    ("input", "input_tokens"), ("cached", "cache_read_input_tokens"), ("written", "cache_write_input_tokens"),
    ("output", "output_tokens"), ("ops", "ops"),
)  # fmt: skip
_SECOND = 1000


class ShownLine(NamedTuple):
    """A node as it is drawn: an op and the sub-agent's session in it are one line. *hidden* counts the nodes that one line stands for."""

    difference: Difference
    mark: str
    changes: list[Change]
    below: list[Difference]
    hidden: int = 0


def drawn(difference: Difference) -> ShownLine:
    """Return how a node is drawn."""
    child = difference.below[0] if difference.type == "op" and difference.below else None
    if child is not None and child.type == "session" and child.mark in (difference.mark, "changed", "same"):
        own = difference.changes + [change for change in child.changes if change not in difference.changes]
        return ShownLine(
            difference, difference.mark if difference.mark != "same" else child.mark, own, [*child.below, *difference.below[1:]]
        )
    return ShownLine(difference, difference.mark, difference.changes, difference.below)


def lines(below: list[Difference], *, everything: bool) -> Iterator[ShownLine]:
    """Yield siblings as they are drawn; without *everything*, those that are the same throughout become one line that counts them."""
    same: list[Difference] = []
    for difference in below:
        if everything or difference.differs:
            yield from _hidden(same)
            same = []
            yield drawn(difference)
        else:
            same.append(difference)
    yield from _hidden(same)


def _hidden(same: list[Difference]) -> Iterator[ShownLine]:
    if same:
        yield ShownLine(same[0], "same", [], [], len(same))


def hidden_phrase(line: ShownLine) -> str:
    """Return the text of a line that stands for nodes that are the same."""
    what = "turn" if line.difference.type == "turn" else "op" if line.difference.type == "op" else "session"
    return f"… {line.hidden:,} {what}{'s' if line.hidden > 1 else ''} the same"


def path_phrase(difference: Difference) -> str:
    """Return a node's path, both where they differ."""
    if difference.path_a is None or difference.path_b is None or difference.path_a == difference.path_b:
        return (difference.path_b if difference.path_a is None else difference.path_a) or ""
    return f"{difference.path_a}→{difference.path_b}"


def delta_phrase(difference: Difference) -> str:
    """Return how a node's money, tokens and time changed; for a node of one session alone, its own figures."""
    if difference.mark in ("added", "removed"):
        return _sum_phrase((difference.figures_b if difference.mark == "added" else difference.figures_a) or Figures())
    change = difference.delta or Figures()
    parts = [signed_dollars(change.cost_usd)] if change.cost_usd else []
    parts += [f"{change.unknown_costs:+,} unknown cost{'s' if abs(change.unknown_costs) > 1 else ''}"] if change.unknown_costs else []
    tokens = (change.input_tokens, change.output_tokens)
    parts += [f"{tokens[0]:+,}→{tokens[1]:+,} tok"] if any(tokens) else []
    parts += [signed_span(change.latency_ms)] if change.latency_ms else []
    return " ".join(parts)


def totals_phrases(comparison: Comparison) -> list[str]:
    """Return the figures of both sessions and their deltas, a phrase each; a figure that both lack is left out."""
    a, b = comparison.root.figures_a or Figures(), comparison.root.figures_b or Figures()
    phrases = _costs(a, b)
    for name, field in _COUNTED:
        before, after = getattr(a, field), getattr(b, field)
        phrases += [_phrase(name, before, after, "{:,}".format, "{:+,}".format)] if before or after else []
    if a.latency_ms is None or b.latency_ms is None:
        return [*phrases, f"time {span(a.latency_ms)} → {span(b.latency_ms)}"]
    return [*phrases, _phrase("time", a.latency_ms, b.latency_ms, span, signed_span)]


def _costs(a: Figures, b: Figures) -> list[str]:
    """Return what both sessions cost; a difference only where it is known."""
    cost_a, cost_b = (
        cost_said(figures.cost_usd or 0.0, figures.known_costs, figures.unknown_costs).removeprefix("cost ") for figures in (a, b)
    )
    if not cost_a and not cost_b:
        return []
    if a.unknown_costs or b.unknown_costs:
        return [f"cost {cost_a or '$0'}" if cost_a == cost_b else f"cost {cost_a or '$0'} → {cost_b or '$0'}"]
    return [_phrase("cost", a.cost_usd or 0.0, b.cost_usd or 0.0, dollars, signed_dollars)]


def _phrase(name: str, before: Any, after: Any, shown: Callable[[Any], str], signed: Callable[[Any], str]) -> str:
    return f"{name} {shown(before)}" if before == after else f"{name} {shown(before)} → {shown(after)} ({signed(after - before)})"


def counts_phrase(comparison: Comparison) -> str:
    """Return how many nodes differ, and how."""
    parts = [
        f"{number:,} {what}{'s' if number > 1 else ''} {mark}"
        for mark, by_type in comparison.counts.items()
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


_STYLES = {"added": "ok", "removed": "failed", "changed": "cancelled", "moved": "running"}


def format_comparison(comparison: Comparison, *, everything: bool = False, paint: Paint = lambda _style, text: text) -> str:
    """Return a comparison as text: a line for each node, marked ``+ - ~ >``, its changed fields below it.

    Without *everything* nodes that are the same throughout are counted only.
    """
    root = drawn(comparison.root)
    written = [
        f"- {comparison.txn_a}",
        f"+ {comparison.txn_b}",
        f"  {' · '.join(totals_phrases(comparison))}",
        f"  {counts_phrase(comparison)}",
    ]
    written += ["", f"{_sign(root, paint)} {paint('agent', comparison.root.label)}", *_fields(root, "", paint)]

    def below(line: ShownLine) -> Iterator[ShownLine]:
        return lines(line.below, everything=everything)

    for line, branch, inner in branches(below(root), below):
        written.append(paint("dim", branch) + _node(line, paint))
        written += _fields(line, paint("dim", inner + ("│" if line.below else " ")), paint)
    return "\n".join(line.replace("\n", "\\n") for line in written)  # a name may have any character


def _node(line: ShownLine, paint: Paint) -> str:
    if line.hidden:
        return paint("dim", hidden_phrase(line))
    difference = line.difference
    name = difference.label if difference.type == "op" else f"{difference.type} {difference.label}".rstrip()
    parts = [_sign(line, paint), paint("path", path_phrase(difference)), name, paint("dim", delta_phrase(difference))]
    return " ".join(part for part in parts if part)


def _sign(line: ShownLine, paint: Paint) -> str:
    sign = SIGNS[line.mark]
    return paint(_STYLES[line.mark], sign) if line.mark in _STYLES else sign


def _fields(line: ShownLine, indent: str, paint: Paint) -> list[str]:
    return [f"{indent}    {paint('dim', '·')} {change_phrase(change)}" for change in line.changes]


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --add: #1a7f37; --del: #cf222e; --chg: #9a6700; --mov: #0969da; }
@media (prefers-color-scheme: dark) { :root { --dim: #999; --add: #3fb950; --del: #f85149; --chg: #d29922; --mov: #58a6ff; } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; text-align: left; }
ul { list-style: none; margin: 0; padding-left: 1.1rem; border-left: 1px solid var(--line); }
li { margin: .1rem 0; }
summary { cursor: pointer; }
.leaf { padding-left: 1rem; }
code, .sign, .path { font-family: ui-monospace, monospace; }
.path { color: var(--dim); }
.dim { color: var(--dim); }
.added > .node .sign, .added > .node .name { color: var(--add); }
.removed > .node .sign, .removed > .node .name { color: var(--del); }
.changed > .node .sign { color: var(--chg); }
.moved > .node .sign { color: var(--mov); }
.sign { display: inline-block; width: 1.2em; font-weight: bold; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; margin: .1rem 0 .4rem 2.2rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
del { color: var(--del); text-decoration: none; } ins { color: var(--add); text-decoration: none; }
del::before { content: "- "; } ins::before { content: "+ "; } del, ins { display: block; }
"""
_WORDS = {"same": "", "changed": "changed", "added": "added", "removed": "removed", "moved": "moved"}


def format_page(comparison: Comparison, *, everything: bool = False) -> str:
    """Return a comparison as a page of HTML; credentials are replaced, and whatever the sessions hold is shown as text."""
    return "".join(_page(comparison, everything=everything))


def _page(comparison: Comparison, *, everything: bool) -> Iterator[str]:
    title = f"{_text(comparison.txn_a)} → {_text(comparison.txn_b)}"
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    yield f"<p>{_text(counts_phrase(comparison))}</p>\n<table>"
    for phrase in totals_phrases(comparison):
        name, _, figures = phrase.partition(" ")
        yield f"<tr><th>{_text(name)}</th><td>{_text(figures)}</td></tr>"
    yield "</table>\n"
    root = drawn(comparison.root)
    yield f'<div class="{root.mark}">{_html_node(root)}{_html_fields(root)}</div>\n'
    yield from _tree(root, everything=everything)
    yield "</body></html>\n"


def _tree(root: ShownLine, *, everything: bool) -> Iterator[str]:
    pending = [("<ul>", lines(root.below, everything=everything), "</ul>\n")]
    yield pending[-1][0]
    while pending:
        line = next(pending[-1][1], None)
        if line is None:
            yield pending.pop()[2]
        elif line.hidden:
            yield f'<li class="leaf dim">{_text(hidden_phrase(line))}</li>\n'
        elif line.below:
            opened = " open" if line.difference.differs and line.mark not in ("added", "removed") else ""
            yield f'<li><details class="{line.mark}"{opened}><summary class="node">{_words(line)}</summary>{_html_fields(line)}<ul>'
            pending.append(("", lines(line.below, everything=everything), "</ul></details></li>\n"))
        else:
            yield f'<li class="leaf {line.mark}">{_html_node(line)}{_html_fields(line)}</li>\n'


def _html_node(line: ShownLine) -> str:
    return f'<span class="node">{_words(line)}</span>'


def _words(line: ShownLine) -> str:
    difference = line.difference
    name = difference.label if difference.type == "op" else f"{difference.type} {difference.label}".rstrip()
    sign = SIGNS[line.mark]
    return (
        f'<span class="sign" title="{_WORDS[line.mark]}">{sign}</span><span class="path">{_text(path_phrase(difference))}</span> '
        f'<span class="name">{_text(name)}</span> <span class="dim">{_text(delta_phrase(difference))}</span>'
    )


def _html_fields(line: ShownLine) -> str:
    if not line.changes:
        return ""
    rows = (
        f"<dt>{_text(change.what)}</dt><dd>"
        + ("" if change.before is None else f"<del>{_text(change.before)}</del>")
        + ("" if change.after is None else f"<ins>{_text(change.after)}</ins>")
        + "</dd>"
        for change in line.changes
    )
    return f"<dl>{''.join(rows)}</dl>"


def _text(text: str) -> str:
    """Return a text as HTML shows it, without credentials; invisible characters are written out."""
    known = redact(text)
    return escape(visible(known))
