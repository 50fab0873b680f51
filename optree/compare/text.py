"""A comparison as text: the tree as `optree tree` draws it, with a sign for each node that differs."""

from __future__ import annotations

from collections.abc import Iterator

from optree.compare import wording
from optree.compare.comparison import Comparison
from optree.compare.details import change_phrase
from optree.compare.wording import Line
from optree.tree.text import Paint, branches

_STYLES = {"added": "ok", "removed": "failed", "changed": "cancelled", "moved": "running"}


def format_comparison(found: Comparison, *, everything: bool = False, paint: Paint = lambda _style, text: text) -> str:
    """Return a comparison as text: a line for each node, marked ``+ - ~ >``, its changed fields below it.

    Without *everything* nodes that are the same throughout are counted only.
    """
    root = wording.drawn(found.root)
    written = [
        f"- {found.txn_a}",
        f"+ {found.txn_b}",
        f"  {' · '.join(wording.totals_phrases(found))}",
        f"  {wording.counts_phrase(found)}",
    ]
    written += ["", f"{_sign(root, paint)} {paint('agent', found.root.label)}", *_fields(root, "", paint)]

    def below(line: Line) -> Iterator[Line]:
        return wording.lines(line.below, everything=everything)

    for line, branch, inner in branches(below(root), below):
        written.append(paint("dim", branch) + _node(line, paint))
        written += _fields(line, paint("dim", inner + ("│" if line.below else " ")), paint)
    return "\n".join(line.replace("\n", "\\n") for line in written)  # a name may have any character


def _node(line: Line, paint: Paint) -> str:
    if line.hidden:
        return paint("dim", wording.hidden_phrase(line))
    found = line.found
    name = found.label if found.type == "op" else f"{found.type} {found.label}".rstrip()
    parts = [_sign(line, paint), paint("path", wording.path_phrase(found)), name, paint("dim", wording.delta_phrase(found))]
    return " ".join(part for part in parts if part)


def _sign(line: Line, paint: Paint) -> str:
    sign = wording.SIGNS[line.mark]
    return paint(_STYLES[line.mark], sign) if line.mark in _STYLES else sign


def _fields(line: Line, indent: str, paint: Paint) -> list[str]:
    return [f"{indent}    {paint('dim', '·')} {change_phrase(change)}" for change in line.changes]
