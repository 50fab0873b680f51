"""Reads YAML and JSON of any form, as others write it, with its comments: ruamel.yaml finds the structure, values are made here.

So no tag runs code, an alias that multiplies or contains itself is refused, of a key that comes twice the last value holds, and what looks
like a date stays a text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from io import StringIO
from typing import Any, NamedTuple, cast

from optree import FormatError, SetupError
from optree.exporting import clean
from optree_formats.markdown.own_yaml import Comments, Place, Where, add, bare, shown

MAX_CHARACTERS = 1 << 18
"""A longer text is not read: it would take too long."""
MAX_VALUES = 100_000
"""Values that a text may stand for, with each alias counted as all that it names."""
MAX_DEPTH = 64
"""Containers in each other: the library's time grows with the square of that."""
_BRACKET = re.compile(r"[\[{]|[\]}]")
_DASHES = re.compile(r"[-?:][ \t]+")


class Parsed(NamedTuple):
    """What a text of YAML holds."""

    value: Any
    comments: Comments
    faults: list[tuple[int, str]]
    """What was mended: line in the text, from 0, and what it was."""


class _Entry(NamedTuple):
    line: int
    column: int
    place: Place


def parse(text: str) -> Parsed:
    """Read one document. Raises `FormatError` for a text that is not YAML, with the line; `SetupError` without ruamel.yaml."""
    if len(text) > MAX_CHARACTERS:
        raise FormatError(f"{len(text)} characters in one block: blocks that optree did not write are read up to {MAX_CHARACTERS}")
    if max(_brackets(text), _indents(text)) > MAX_DEPTH:
        raise FormatError(f"is nested too deeply: blocks that optree did not write are read up to {MAX_DEPTH} levels")
    node = _composed(text)
    maker = _Maker(text)
    value = maker.value(node, ())
    _attach(text, maker)
    return Parsed(value, maker.comments, maker.faults)


def _brackets(text: str) -> int:
    """Return how many brackets are open at most; those in texts count too, since only the library can tell them apart."""
    depth = deepest = 0
    for bracket in _BRACKET.finditer(text):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _indents(text: str) -> int:
    """Return how many lines, and dashes on a line, stand deeper each than the one before."""
    open_columns: list[int] = []
    deepest = 0
    for line in text.split("\n"):
        at = len(line) - len(line.lstrip(" "))
        if at == len(line):
            continue
        while open_columns and open_columns[-1] >= at:
            open_columns.pop()
        open_columns.append(at)
        while dash := _DASHES.match(line, at):
            at = dash.end()
            open_columns.append(at)
        deepest = max(deepest, len(open_columns))
    return deepest


def _composed(text: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError
    except ImportError:
        raise SetupError("reading YAML that optree did not write needs ruamel.yaml: pip install 'optree-tracing[markdown]'") from None
    try:
        return cast("Any", YAML(typ="safe", pure=True)).compose(text)
    except RecursionError:
        raise FormatError("is nested too deeply") from None
    except MarkedYAMLError as error:
        problem, mark = cast("Any", error).problem or cast("Any", error).context, cast("Any", error).problem_mark
        raise FormatError(f"{problem}{f' (line {mark.line + 1} of the block)' if mark else ''}") from None
    except Exception as error:  # noqa: BLE001 - whatever the text makes the library do
        raise FormatError(f"is no YAML: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None


class _Maker:
    """Makes plain values of nodes, and notes where each stands."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.left = MAX_VALUES
        self.above: set[int] = set()
        self.entries: list[_Entry] = []
        self.spans: list[tuple[int, int]] = []
        """Where the texts of scalars are: a ``#`` in them begins no comment."""
        self.comments: Comments = {}
        self.faults: list[tuple[int, str]] = []

    def value(self, node: Any, place: Place) -> Any:
        self.left -= 1
        if self.left < 0:
            raise FormatError(f"stands for more than {MAX_VALUES} values: its aliases multiply")
        if node is None:
            return None
        kind = type(node).__name__
        if kind == "ScalarNode":
            return self._scalar(node)
        if id(node) in self.above:
            raise FormatError(f"contains itself, by an alias (line {node.start_mark.line + 1} of the block)")
        self.above.add(id(node))
        try:
            if kind == "SequenceNode":
                return self._list(node, place)
            return self._map(node, place)
        finally:
            self.above.discard(id(node))

    def _scalar(self, node: Any) -> Any:
        written: str = node.value
        header = 1 if node.style in ("|", ">") else 0
        self.spans.append((node.start_mark.index + header, node.end_mark.index))
        if node.style or node.tag.endswith(":str"):
            return clean(written)
        return bare(clean(written))

    def _map(self, node: Any, place: Place) -> dict[str, Any]:
        members: dict[str, Any] = {}
        least = min((key.start_mark.column for key, _ in node.value), default=0)
        for key, item in node.value:
            name = self._key(key)
            if name == "<<" and key.tag.endswith(":merge"):
                merged = self.value(item, (*place, name))
                members = {**merged, **members} if isinstance(merged, dict) else {**members, name: merged}
                continue
            if name in members:
                self.faults.append((key.start_mark.line, f"{name[:80]!r} stands there twice: the last value holds"))
            column = key.start_mark.column if node.flow_style else min(least, node.start_mark.column)  # of `? key` as of the others
            self.entries.append(_Entry(key.start_mark.line, column, (*place, name)))
            members[name] = self.value(item, (*place, name))
        return members

    def _key(self, key: Any) -> str:
        if type(key).__name__ == "ScalarNode":
            self._scalar(key)
            return clean(str(key.value))
        return clean(str(self.value(key, ())))

    def _list(self, above: Any, place: Place) -> list[Any]:
        """Note where the dash of each item stands, which may be on a line before it, but behind the item before."""
        items: list[Any] = []
        least, column = above.start_mark.line, above.start_mark.column
        for number, node in enumerate(above.value):
            line = node.start_mark.line
            while not above.flow_style and line > least and self.lines[line][column : column + 1] != "-":
                line -= 1
            least = max(least, node.start_mark.line)
            self.entries.append(_Entry(line, node.start_mark.column if above.flow_style else column, (*place, number)))
            items.append(self.value(node, (*place, number)))
        return items


def _attach(text: str, maker: _Maker) -> None:
    """Give each comment to the place that it stands at."""
    maker.entries.sort(key=lambda entry: entry[:2])
    columns = {entry.place: entry.column for entry in maker.entries}
    spans = sorted(set(maker.spans))
    starts = [start for start, _ in spans]
    comments: dict[tuple[Place, Where], list[str]] = {}
    offset = 0
    for number, line in enumerate(maker.lines):
        at = line.find("#")
        while at >= 0:
            if (at == 0 or line[at - 1] in " \t") and not _inside(text, offset + at, starts, spans):
                whose = _whose(maker.entries, columns, number, at, alone=not line[:at].strip())
                comments.setdefault(whose, []).append(shown(line[at + 1 :]))
                break
            at = line.find("#", at + 1)
        offset += len(line) + 1
    for (place, where), lines in comments.items():
        add(maker.comments, place, "\n".join(lines), where)


def _inside(text: str, index: int, starts: list[int], spans: list[tuple[int, int]]) -> bool:
    """Tell whether a character is in a scalar; the header line of a block is not."""
    last = bisect_right(starts, index) - 1
    if last < 0 or index >= spans[last][1]:
        return False
    start = spans[last][0]
    return not (text[start - 1] in "|>" and "\n" not in text[start:index])


def _whose(entries: list[_Entry], columns: dict[Place, int], line: int, column: int, *, alone: bool) -> tuple[Place, Where]:
    """Return the place that a comment belongs to, and where it stands there."""
    behind = bisect_right(entries, (line, column, ()), key=lambda entry: (entry.line, entry.column, ()))
    last = entries[behind - 1] if behind else None
    following = entries[behind] if behind < len(entries) else None
    if not alone:
        return (last.place, "beside") if last else ((), "before")
    if last is None:
        return (), "before"
    if following is not None and column <= following.column:
        return following.place, "before"
    return _ending(last.place, columns, column), "end"


def _ending(place: Place, columns: dict[Place, int], column: int) -> Place:
    """Return the innermost container that a comment in this column can end, of those that are open behind the last entry."""
    while len(place) > 1 and columns.get(place, 0) > column:
        place = place[:-1]
    return place[:-1]


def comments_of(value: Any) -> Comments:
    """Return the comments of a commented map by their places: it is written by its own library, and read again."""
    from ruamel.yaml import YAML

    written = StringIO()
    writer = cast("Any", YAML(typ="rt", pure=True))
    writer.width = 1 << 20
    writer.dump(value, written)
    return parse(written.getvalue()).comments
