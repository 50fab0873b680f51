"""Diagrams in Mermaid's language: sequences and graphs, whose labels may hold any text. Ids are made here; labels are escaped.

Mermaid refuses diagrams of more than 50,000 characters or 500 edges, so what is beyond is left out and counted in a last label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from msgspec import Struct

MOST_LINES = 400
MOST_PARTICIPANTS = 100
MOST_CHARACTERS = 45_000
LABEL_CHARACTERS = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9 ,?'!.:()_-]|(?<=\d)[.)]|(?<![A-Za-z0-9])[_-]|[_-](?![A-Za-z0-9])|:(?! )")
"""What Mermaid may take for its own or for Markdown; dots, colons, dashes and the like only where they could begin something."""
_KEYWORDS = re.compile(r"direction|\b(?:end|style|classDef|click|linkStyle|default|graph|subgraph|wrap|nowrap)", re.IGNORECASE)
_ASCII = 128


class Arrow(Struct):
    """Something said from one to another; a note over *source* where *target* is None."""

    source: str
    target: str | None
    text: str
    dotted: bool = False


class Edge(Struct):
    """A line of a graph."""

    source: str
    target: str
    text: str = ""
    dotted: bool = False


def sequence(names: dict[str, str], arrows: Sequence[Arrow]) -> str:
    """Return a sequence diagram: *names* are the participants in their order, by id."""
    ids = {agent: f"p{number}" for number, agent in enumerate(names, 1) if number <= MOST_PARTICIPANTS}
    lines = ["sequenceDiagram", *(f"    participant {one} as {label(names[agent], 40)}" for agent, one in ids.items())]
    drawn = [arrow for arrow in arrows if arrow.source in ids and (arrow.target is None or arrow.target in ids)]
    left = len(arrows) - _within(lines, (_arrow(arrow, ids) for arrow in drawn))
    if left and ids:
        lines.append(f"    Note over {next(iter(ids.values()))}: and {left} more")
    return "\n".join(lines)


def graph(names: dict[str, str], edges: Sequence[Edge], direction: str = "TD") -> str:
    """Return a graph: *names* are the nodes' labels by id; nodes without a name have their ids."""
    ids: dict[str, str] = {}
    lines = [f"flowchart {direction}"]
    left = len(edges) - _within(lines, (_line(edge, names, ids) for edge in edges))
    alone = [one for one in names if one not in ids] if not left else []
    left += len(alone) - _within(lines, (f"    {_node(one, names, ids)}" for one in alone))
    if left:
        lines.append(f'    more["and {left} more"]')
    return "\n".join(lines)


def label(text: str, length: int = LABEL_CHARACTERS) -> str:
    """Return a text as a label, shortened: what Mermaid might understand goes as codes of characters; lines stay lines."""
    lines = [" ".join("".join(map(_visible, line)).split()) for line in text[: length * 4].splitlines()]
    shown = "\n".join(filter(None, lines))
    if len(shown) > length or len(text) > length * 4:
        shown = shown[: length - 1] + "…"
    return "<br/>".join(_escaped(line) for line in shown.split("\n")) or " "


def _escaped(line: str) -> str:
    return _KEYWORDS.sub(lambda found: f"{_code(found[0][0])}{found[0][1:]}", _UNSAFE.sub(lambda found: _safe(found[0]), line))


def _safe(char: str) -> str:
    return char if ord(char) >= _ASCII and char not in "ﬂ¶°ß" else _code(char)


def _code(char: str) -> str:
    return f"#{ord(char)};"


def _visible(char: str) -> str:
    return " " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs", "Co", "Cn") else char


def _within(lines: list[str], more: Iterable[str]) -> int:
    """Add lines as far as there is room for them; returns how many were added."""
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in lines)
    before = len(lines)
    for line in more:
        room -= len(line) + 1
        if room < 0 or len(lines) >= MOST_LINES:
            break
        lines.append(line)
    return len(lines) - before


def _arrow(arrow: Arrow, ids: dict[str, str]) -> str:
    if arrow.target is None:
        return f"    Note over {ids[arrow.source]}: {label(arrow.text)}"
    return f"    {ids[arrow.source]}{'-->>' if arrow.dotted else '->>'}{ids[arrow.target]}: {label(arrow.text)}"


def _line(edge: Edge, names: dict[str, str], ids: dict[str, str]) -> str:
    line = "-.->" if edge.dotted else "-->"
    said = f'|"{label(edge.text, 40)}"|' if edge.text else ""
    return f"    {_node(edge.source, names, ids)} {line}{said} {_node(edge.target, names, ids)}"


def _node(one: str, names: dict[str, str], ids: dict[str, str]) -> str:
    """Return a node's id, with its label where it is named first."""
    if one in ids:
        return ids[one]
    ids[one] = f"n{len(ids) + 1}"
    return f'{ids[one]}["{label(names.get(one, one))}"]'
