"""A comparison as one page of HTML: self-contained, without scripts, folded by the browser itself."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from optree.compare import wording
from optree.compare.comparison import Comparison
from optree.compare.wording import Line
from optree.redaction import redact
from optree.visible import visible

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


def format_page(found: Comparison, *, everything: bool = False) -> str:
    """Return a comparison as a page of HTML; credentials are replaced, and whatever the sessions hold is shown as text."""
    return "".join(_page(found, everything=everything))


def _page(found: Comparison, *, everything: bool) -> Iterator[str]:
    title = f"{_text(found.txn_a)} → {_text(found.txn_b)}"
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    yield f"<p>{_text(wording.counts_phrase(found))}</p>\n<table>"
    for phrase in wording.totals_phrases(found):
        name, _, figures = phrase.partition(" ")
        yield f"<tr><th>{_text(name)}</th><td>{_text(figures)}</td></tr>"
    yield "</table>\n"
    root = wording.drawn(found.root)
    yield f'<div class="{root.mark}">{_node(root)}{_fields(root)}</div>\n'
    yield from _tree(root, everything=everything)
    yield "</body></html>\n"


def _tree(root: Line, *, everything: bool) -> Iterator[str]:
    pending = [("<ul>", wording.lines(root.below, everything=everything), "</ul>\n")]
    yield pending[-1][0]
    while pending:
        line = next(pending[-1][1], None)
        if line is None:
            yield pending.pop()[2]
        elif line.hidden:
            yield f'<li class="leaf dim">{_text(wording.hidden_phrase(line))}</li>\n'
        elif line.below:
            opened = " open" if line.found.differs and line.mark not in ("added", "removed") else ""
            yield f'<li><details class="{line.mark}"{opened}><summary class="node">{_words(line)}</summary>{_fields(line)}<ul>'
            pending.append(("", wording.lines(line.below, everything=everything), "</ul></details></li>\n"))
        else:
            yield f'<li class="leaf {line.mark}">{_node(line)}{_fields(line)}</li>\n'


def _node(line: Line) -> str:
    return f'<span class="node">{_words(line)}</span>'


def _words(line: Line) -> str:
    found = line.found
    name = found.label if found.type == "op" else f"{found.type} {found.label}".rstrip()
    sign = wording.SIGNS[line.mark]
    return (
        f'<span class="sign" title="{_WORDS[line.mark]}">{sign}</span><span class="path">{_text(wording.path_phrase(found))}</span> '
        f'<span class="name">{_text(name)}</span> <span class="dim">{_text(wording.delta_phrase(found))}</span>'
    )


def _fields(line: Line) -> str:
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
    """Return a text as HTML shows it, without credentials; what nobody could see is written out."""
    known = redact(text)
    return escape(visible(known))
