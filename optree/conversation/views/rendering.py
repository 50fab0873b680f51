"""What each view shows, as text for a terminal, as Markdown, and as plain values for JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from optree._values import is_list, is_object
from optree._visible import column, columns, one_line, visible
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.perspectives import Part
from optree.conversation.views.sections import Ask, Section, SectionRow, chosen, events, moments, spreads
from optree.conversation.views.stream import StreamView

Paint = Callable[[str, str], str]
"""Given a style and a text, returns the text as it shall be shown."""
NARROWEST = 20
_INDENT = 4
_WIDEST = 28
"""Columns that a name takes at most."""
_STYLES = {"said": "agent", "Said": "agent", "calls": "tool", "Action": "tool", "is told": "dim"}
_STARTS = {"same": ("\x00", "", ""), "removed": ("\x01", "[-", "-]"), "added": ("\x02", "{+", "+}")}
_COLOURS = {"\x00": "", "\x01": "failed", "\x02": "ok"}
_CHARACTERS = 1024
"""Of a word at most, on one line: some take no column."""
_WORDS = re.compile(r"\S+\s*|\s+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&@!])")
_LIST = re.compile(r"^([^\S\n]*)([-+=]|\d+[.)])(?=\s|$|[-+=])", re.MULTILINE)
_MARKS = {"same": "", "removed": "~~", "added": "**"}


def to_text(sections: Sequence[Section], width: int, paint: Paint = lambda _style, text: text) -> str:
    """Return sections as text of *width* columns; long words are broken."""
    return "\n\n".join("\n".join(_section(section, width, paint)) for section in sections)


def _section(section: Section, width: int, paint: Paint) -> Iterator[str]:
    if section.title:
        yield paint("title", visible(" ".join(section.title.split())))
    sizes = [_column(section.rows, cell) for cell in (_when, _key, _who, _what)]
    for row in section.rows:
        yield from (line.rstrip() for line in _lines(row, sizes, width, paint))


def _lines(row: SectionRow, sizes: list[int], width: int, paint: Paint) -> Iterator[str]:
    """Yield a row's lines: its text stands beside the other columns, or below them where there is no room."""
    lead = [("dim", row.when), ("path", _key(row)), ("agent", _who(row)), (_STYLES.get(row.what, ""), _what(row))]
    cell = [paint(style, text) + " " * (size - columns(text)) for (style, text), size in zip(lead, sizes, strict=True) if size]
    first = "".join(f"  {text}" for text in cell)
    used = sum(size + 2 for size in sizes if size) + 2
    beside = width - used >= NARROWEST
    used = used if beside else _INDENT
    texts = _text_lines(row, max(NARROWEST, width - used), paint)
    if not beside or not texts:
        yield first
    else:
        yield f"{first}  {texts.pop(0)}"
    yield from (" " * used + line for line in texts)


def _text_lines(row: SectionRow, room: int, paint: Paint) -> list[str]:
    """Return the lines of a row's text, its note behind the last line where it fits, else below."""
    is_diff = not isinstance(row.text, str)
    text = visible(row.text) if isinstance(row.text, str) else _marked(row.text)
    body = list(_painted(wrapped(text, room), paint)) if is_diff else list(wrapped(text, room))
    about = visible(" ".join(row.note.split()))
    note = about if about.startswith("←") or not about else f"({about})"
    if note and body and not is_diff and columns(body[-1]) + 2 + columns(note) <= room:
        return [*body[:-1], f"{body[-1]}  {paint('dim', note)}"]
    return [*body, *(paint("dim", line) for line in wrapped(note, room))]


def _marked(parts: list[Part]) -> str:
    """Return a diff as text: removed and added parts in marks, each behind a control character that stands for its style."""
    return "".join(f"{_STARTS[kind][0]}{_STARTS[kind][1]}{visible(text)}{_STARTS[kind][2]}" for kind, text in parts)


def _painted(lines: Iterator[str], paint: Paint) -> Iterator[str]:
    """Yield lines of a marked text in their styles, which may go over several lines."""
    style = ""
    for line in lines:
        painted = ""
        for piece in re.split("([\\x00-\\x02])", line):
            if piece in _COLOURS:
                style = _COLOURS[piece]
            else:
                painted += paint(style, piece) if style else piece
        yield painted


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield a text's lines, each at most *width* columns; empty for no text."""
    for line in text.expandtabs(4).split("\n") if text else ():
        if columns(line) <= width:
            yield line.rstrip()
            continue
        yield from _broken(line, width)


def _broken(line: str, width: int) -> Iterator[str]:
    indent = line[: len(line) - len(line.lstrip())][: width // 2]
    current, used = "", 0
    for word in _WORDS.findall(line):
        size = columns(word.rstrip())
        if used and used + size > width:
            yield current.rstrip()
            current, used = indent, len(indent)
        at = 0
        while used + size > width:
            piece = _fitting(word[at : at + _CHARACTERS], width - used)
            yield current + piece
            at += len(piece)
            size -= columns(piece)
            current, used = "", 0
        current += word[at:]
        used += columns(word[at:])
    if current.strip():
        yield current.rstrip()


def _fitting(word: str, width: int) -> str:
    """Return the beginning of a word that fits, one character at least."""
    used = 0
    for place, char in enumerate(word):
        used += column(char)
        if used > width and place:
            return word[:place]
    return word


def _column(rows: Sequence[SectionRow], cell: Callable[[SectionRow], str]) -> int:
    return max((columns(cell(row)) for row in rows), default=0)


def _when(row: SectionRow) -> str:
    return row.when


def _key(row: SectionRow) -> str:
    return one_line(row.key)


def _who(row: SectionRow) -> str:
    return "  " * row.depth + _short(row.who) if row.who else ""


def _what(row: SectionRow) -> str:
    return _short(row.what)


def _short(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if columns(line) <= _WIDEST else _fitting(line, _WIDEST - 1) + "…"


def to_markdown(sections: Sequence[Section]) -> str:
    """Return sections as Markdown: a heading each, and a list with the texts as quotations."""
    return "\n\n".join("\n".join(_markdown_section(section)) for section in sections)


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    shown = _SPECIAL.sub(r"\\\1", visible(text))
    return _LIST.sub(lambda match: f"{match[1]}{match[2][:-1]}\\{match[2][-1]}", shown).replace("://", ":\\//")


def code(text: str) -> str:
    """Return a text as code within a line."""
    line = visible(" ".join(text.split()))
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def _markdown_section(section: Section) -> Iterator[str]:
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
    return "".join(_markdown_part(kind, escaped(part)) for kind, part in text).split("\n")


def _markdown_part(kind: str, text: str) -> str:
    """Return a part of a diff: struck out what went, bold what came; a mark stands close to its words, on each line."""
    mark = _MARKS[kind]
    return "\n".join(re.sub(r"^(\s*)(\S.*?)(\s*)$", rf"\1{mark}\2{mark}\3", line) for line in text.split("\n")) if mark else text


def _spaced(line: str) -> str:
    """Keep spaces at a line's begin, which Markdown would take for code, or drop."""
    bare = line.lstrip(" \t")
    return "&nbsp;" * len(line[: len(line) - len(bare)].expandtabs(4)) + bare


def value(view: str, viewer: SessionViewer, ask: Ask) -> Any:
    """Return a view as plain values."""
    return hidden(viewer.stream, msgspec.to_builtins(_VALUES[view](viewer, ask)))


def hidden(stream: StreamView, value: Any) -> Any:
    """Return plain values without what is to be hidden, which names and ids may hold too; keys stay apart."""
    if is_object(value):
        result: dict[str, Any] = {}
        for key, item in value.items():
            shown = stream.shown(key)
            free = shown if shown not in result else f"{shown} {len(result) + 1}"
            result[free] = hidden(stream, item)
        return result
    if is_list(value):
        return [hidden(stream, item) for item in value]
    return stream.shown(value) if isinstance(value, str) else value


def _causality(viewer: SessionViewer, ask: Ask) -> Any:
    wanted = {one.message_id for one in events("timeline", viewer, ask)}
    parents = {one: above for one, above in viewer.causality().items() if one in wanted}
    index = {one: parent for one, parent in viewer.build_causality_index().items() if one in wanted}
    return {"parents": parents, "index": index, "links": [link for link in viewer.links() if link.message_id in wanted]}


def _events(view: str) -> Callable[[SessionViewer, Ask], Any]:
    """Return the view's events in full."""

    def made(viewer: SessionViewer, ask: Ask) -> Any:
        return viewer.stream.all_plain(events(view, viewer, ask))

    return made


_VALUES: dict[str, Callable[[SessionViewer, Ask], Any]] = {
    "transcripts": lambda viewer, ask: {agent: viewer.get_transcript(agent) for agent in chosen(viewer, ask)},
    "dialog": lambda viewer, ask: viewer.extract_dialog(ask.eyes, heard=ask.heard, spoken=True),
    "perspective": lambda viewer, ask: {agent: viewer.extract_agent_perspective(agent) for agent in chosen(viewer, ask)},
    "timeline": lambda viewer, ask: moments("timeline", viewer, ask),
    "flow": _events("flow"),
    "references": _events("references"),
    "during": lambda viewer, ask: moments("during", viewer, ask),
    "causality": _causality,
    "hooks": lambda viewer, ask: viewer.hooks(agents=ask.eyes),
    "agents": lambda viewer, ask: [one for one in viewer.agent_tree() if not ask.agents or one.agent_id in ask.agents],
    "heard": lambda viewer, ask: {one.message_id: [hop.agent_id for hop in one.hops] for one in spreads(viewer, ask)},
    "propagation": spreads,
}
