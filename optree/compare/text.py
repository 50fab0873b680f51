"""A comparison as text: the tree as `optree tree` draws it, with a sign for each node that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from optree.compare import wording
from optree.compare.comparison import Comparison
from optree.compare.details import change_phrase
from optree.compare.wording import Line

Paint = Callable[[str, str], str]
"""Given a style (`path`, `dim`, `ok`, `failed`, `cancelled`, `running`) and a text, returns the text as it shall be shown."""
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
    pending: list[tuple[str, Iterator[tuple[Line, bool]]]] = [("", _siblings(root, everything=everything))]
    while pending:
        indent, siblings = pending[-1]
        item = next(siblings, None)
        if item is None:
            pending.pop()
            continue
        line, last = item
        below = indent + ("   " if last else "│  ")
        written.append(paint("dim", indent + ("└─ " if last else "├─ ")) + _node(line, paint))
        written += _fields(line, paint("dim", below + ("│" if line.below else " ")), paint)
        pending.append((below, _siblings(line, everything=everything)))
    return "\n".join(line.replace("\n", "\\n") for line in written)  # a name may have any character


def _siblings(line: Line, *, everything: bool) -> Iterator[tuple[Line, bool]]:
    found = list(wording.lines(line.below, everything=everything))
    return ((one, at == len(found) - 1) for at, one in enumerate(found))


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
