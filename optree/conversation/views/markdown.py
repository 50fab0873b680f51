"""Sections as Markdown, for pages and comments. What agents said is shown as they said it: it can neither format nor break the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from optree.conversation.views.hooks import Part
from optree.conversation.views.sections import Section, SectionRow
from optree.visible import visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&@!])")
_LIST = re.compile(r"^([^\S\n]*)([-+=]|\d+[.)])(?=\s|$|[-+=])", re.MULTILINE)
_MARKS = {"same": "", "removed": "~~", "added": "**"}


def to_markdown(sections: Sequence[Section]) -> str:
    """Return sections as Markdown: a heading each, and a list with what was said as quotations."""
    return "\n\n".join("\n".join(_section(section)) for section in sections)


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    shown = _SPECIAL.sub(r"\\\1", visible(text))
    return _LIST.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", shown).replace("://", ":\\//")


def code(text: str) -> str:
    """Return a text as code within a line."""
    line = visible(" ".join(text.split()))
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"### {escaped(' '.join(section.title.split()))}"
        yield ""
    for row in section.rows:
        yield from _row(row)


def _row(row: SectionRow) -> Iterator[str]:
    indent = "  " * row.depth
    who = f"**{escaped(' '.join(row.who.split()))}**" if row.who else ""
    note = f"*{escaped(row.note)}*" if row.note else ""
    lead = " ".join(filter(None, [who, escaped(row.what), code(row.key), row.when, note]))
    lines = _shown(row.text)
    if not lead:
        yield from (f"{indent}- {line}" for line in lines)
        return
    yield f"{indent}- {lead}"
    yield from (f"{indent}  > {line}".rstrip() + ("  " if place < len(lines) - 1 and line else "") for place, line in enumerate(lines))


def _shown(text: str | list[Part]) -> list[str]:
    if isinstance(text, str):
        return [_spaced(line) for line in escaped(text).split("\n")] if text else []
    return "".join(_marked(kind, escaped(part)) for kind, part in text).split("\n")


def _marked(kind: str, text: str) -> str:
    """Return a part of a diff: struck out what went, bold what came; a mark stands close to its words, on each line."""
    mark = _MARKS[kind]
    return "\n".join(re.sub(r"^(\s*)(\S.*?)(\s*)$", rf"\1{mark}\2{mark}\3", line) for line in text.split("\n")) if mark else text


def _spaced(line: str) -> str:
    """Keep spaces at a line's begin, which Markdown would take for code, or drop."""
    bare = line.lstrip(" \t")
    return "&nbsp;" * len(line[: len(line) - len(bare)].expandtabs(4)) + bare
