"""YAML as a log has it: an event is written in block style with its comments in their places; what has that form is read back quickly.

A text stands bare only if it can be nothing else, whichever version of YAML a reader follows, and three backticks never stand in a row: no
query for fenced blocks is misled by what a text says. What has another form is for `foreign_yaml`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from optree.exporting import clean, is_list, is_object

Place = tuple[str | int, ...]
Where = Literal["before", "beside", "end"]


class Comment(Struct):
    """The comments of one place, without their ``#``; several lines are one text with line breaks."""

    before: str | None = None
    beside: str | None = None
    end: str | None = None

    def texts(self) -> list[str]:
        """Return those that are there."""
        return [text for text in (self.before, self.beside, self.end) if text is not None]


Comments = dict[Place, Comment]

_HIDDEN = re.compile(r"```|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")
_SHOWN = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})")


def place_of(name: str | Place, value: Any) -> Place:
    """Return the place that a name such as ``args.why`` or ``included.0`` has in *value*; raises `KeyError` if there is none.

    A key that has a dot in it is found as well; a tuple is taken as it is.
    """
    place: Place = ()
    if isinstance(name, tuple):
        place, rest = name, ""
        for key in name:
            if not ((is_object(value) and key in value) or (is_list(value) and isinstance(key, int) and key < len(value))):
                raise KeyError(name)
            inner: Any = value
            value = inner[key]
        return place
    rest = name
    while rest:
        key, rest = _next(rest, value)
        value = value[key]
        place = (*place, key)
    return place


def _next(name: str, value: Any) -> tuple[str | int, str]:
    """Split off the longest key that *value* has."""
    end = len(name)
    while end > 0:
        key = name[:end]
        if is_object(value) and key in value:
            return key, name[end + 1 :]
        if is_list(value) and key.isdecimal() and int(key) < len(value):
            return int(key), name[end + 1 :]
        end = name.rfind(".", 0, end)
    raise KeyError(name)


def add(comments: Comments, place: Place, text: str, where: Where) -> None:
    """Add a comment behind those that the place has already."""
    text = "\n".join(line.rstrip() for line in clean(text).replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    comment = comments.setdefault(place, Comment())
    before = getattr(comment, where)
    setattr(comment, where, text if before is None else f"{before}\n{text}")


def lines(comment: str | None, indent: int) -> list[str]:
    """Return a comment, if there is one, as lines of YAML; what a line cannot hold, or would end a Markdown block, is escaped."""
    return [f"{' ' * indent}# {escaped(line)}".rstrip() for line in comment.split("\n")] if comment is not None else []


def escaped(line: str) -> str:
    """Return one line of a comment as it is written."""
    return _HIDDEN.sub(_hide, line)


def shown(line: str) -> str:
    """Return the text of a written line of a comment, given from behind its ``#``."""
    return _SHOWN.sub(lambda match: chr(int(match[1] or match[2], 16)), line.removeprefix(" ").rstrip())


def _hide(match: re.Match[str]) -> str:
    text = match[0]
    if text == "```":
        return "``\\x60"
    return f"\\x{ord(text):02x}" if ord(text) <= 0xFF else f"\\u{ord(text):04x}"  # noqa: PLR2004 - what two digits hold


def under(comments: Mapping[Place, Comment], kept: Any) -> Comments:
    """Return the comments of those places that *kept* still has."""
    remaining: Comments = {}
    for place, comment in comments.items():
        try:
            place_of(place, kept)
        except (KeyError, TypeError):
            continue
        remaining[place] = comment
    return remaining


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nil", "nan", "inf", "infinity", "undefined"])
_ESCAPE = re.compile(r'```|["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "```": "``\\x60"}
_UNESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0abtnvfre\"/\\N_LP \t]))")
_LONG = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "/": "/", "\\": "\\",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", "\t": "\t",
}  # fmt: skip
_NO_BLOCK = re.compile(
    r"```|[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[ \t]+(?:\n|$)|\n[ \t]*\t"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NAMED: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_MAX_DIGITS = 400
_LAST = 0x10FFFF


class NotOurs(Exception):  # noqa: N818 - a turn in the road, not an error
    """The text has a form that we do not write."""


def inline(value: Any) -> str:
    """Return a value that is no filled container, on one line."""
    if isinstance(value, str):
        return bare_or_quoted(value)
    if isinstance(value, float):
        return _number(value)
    if not value and isinstance(value, (dict, list)):
        return "[]" if isinstance(value, list) else "{}"
    return json.dumps(value)


def bare_or_quoted(text: str) -> str:
    """Return a text, in quotes where it needs them."""
    return text if _BARE.fullmatch(text) and text.lower() not in _WORDS else quoted(text)


def quoted(value: str) -> str:
    """Return a text in double quotes, on one line."""
    return f'"{_ESCAPE.sub(_escape, clean(value))}"'


def unquoted(written: str) -> str:
    """Return what stands between double quotes, as `quoted` writes it. Raises `NotOurs` for a code that is no character's."""
    return clean(_UNESCAPE.sub(_unescape, written)) if "\\" in written else written


def block(text: str) -> tuple[str, list[str]] | None:
    """Return a text of several lines as the header of a block and its lines; None if it must be quoted."""
    if "\n" not in text or text[0] in " \t\n" or text.endswith("\n\n") or _NO_BLOCK.search(text):
        return None
    return ("|", text[:-1].split("\n")) if text.endswith("\n") else ("|-", text.split("\n"))


def bare(written: str) -> Any:
    """Return what a bare scalar means: YAML 1.2's core, in which dates and ``yes`` are texts; so are numbers with leading zeros."""
    if written in _NAMED:
        return _NAMED[written]
    if len(written) < _MAX_DIGITS:
        if _INT.fullmatch(written):
            return int(written)
        if _FLOAT.fullmatch(written):
            return float(written)
    return written


def _number(value: float) -> str:
    """Return a float; with a point before its exponent, without which YAML 1.1 takes it for a text."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else f"{mantissa}{e}{exponent}"


def _escape(match: re.Match[str]) -> str:
    text = match[0]
    code = ord(text[0])
    return _SHORT.get(text) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004 - what two digits hold


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if not digits:
        return _LONG[match[4]]
    code = int(digits, 16)
    if code > _LAST:
        raise NotOurs
    return chr(code)


_STEP = 2
_LONG_KEY = 1000
"""YAML wants a sign before a longer key."""
_NONE = Comment()


def emit(value: Mapping[str, Any], comments: Mapping[Place, Comment]) -> str:
    """Return plain values, as `optree._values.plain` makes them, as the text of a YAML map that is not empty; with a newline at its end."""
    own = comments.get((), _NONE)
    out = lines(own.before, 0)
    _map(out, value, (), 0, comments)
    return "\n".join(out) + "\n"


def _map(out: list[str], value: Mapping[str, Any], place: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    for key, item in value.items():
        here = (*place, key)
        comment = comments.get(here, _NONE)
        _before(out, item, comment, indent)
        written = bare_or_quoted(key)
        if len(written) > _LONG_KEY:
            out.append(f"{' ' * indent}? {written}")
            written = ""
        _item(out, f"{' ' * indent}{written}:", item, here, indent, comments)
    _end(out, comments.get(place, _NONE), indent)


def _list(out: list[str], value: Iterable[Any], place: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    for number, item in enumerate(value):
        here = (*place, number)
        comment = comments.get(here, _NONE)
        _before(out, item, comment, indent)
        if item and isinstance(item, (dict, list)):
            _nested(out, item, here, indent, comments)
        else:
            _item(out, f"{' ' * indent}-", item, here, indent, comments)
    _end(out, comments.get(place, _NONE), indent)


def _nested(out: list[str], item: Any, here: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    """Write a container in a list: its first line beside the dash, unless a comment comes between."""
    inner: list[str] = []
    _container(inner, item, here, indent + _STEP, comments)
    comment = comments.get(here, _NONE)
    if comment.beside is not None or inner[0].lstrip().startswith("#"):
        out.append(f"{' ' * indent}-{_beside(comment.beside)}")
    else:
        inner[0] = f"{' ' * indent}- {inner[0].lstrip()}"
    out += inner


def _item(out: list[str], start: str, item: Any, here: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    beside = _beside(comments.get(here, _NONE).beside)
    if item and isinstance(item, (dict, list)):
        out.append(f"{start}{beside}")
        _container(out, item, here, indent + _STEP, comments)
    elif isinstance(item, str) and (parts := block(item)) is not None:
        header, body = parts
        out.append(f"{start} {header}{beside}")
        out += [f"{' ' * (indent + _STEP)}{line}" if line else "" for line in body]
    else:
        out.append(f"{start} {inline(item)}{beside}")


def _container(out: list[str], item: Any, here: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    if is_object(item):
        _map(out, item, here, indent, comments)
    elif is_list(item):
        _list(out, item, here, indent, comments)


def _before(out: list[str], item: Any, comment: Comment, indent: int) -> None:
    """Write what stands before a field: also what has no place behind it."""
    out += lines(comment.before, indent)
    if comment.beside is not None and "\n" in comment.beside:
        out += lines(comment.beside, indent)
    if not (item and isinstance(item, (dict, list))):
        out += lines(comment.end, indent)


def _end(out: list[str], comment: Comment, indent: int) -> None:
    out += lines(comment.end, indent)


def _beside(comment: str | None) -> str:
    return "" if comment is None or "\n" in comment else f"  # {escaped(comment)}".rstrip()


_KEY = re.compile(r'(?:([A-Za-z_][A-Za-z0-9_./-]*)|"((?:[^"\\]|\\.)*)"):(?: |$)')
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"(?:  #(.*))?')
_OTHER = re.compile(r"(\[\]|\{\}|[A-Za-z_.+0-9-][^\s#:,\[\]{}]*)(?:  #(.*))?")
_BLOCK = re.compile(r"(\|-?)(?:  #(.*))?")
_BESIDE = re.compile(r"  #(.*)")
_DEEPEST = 200


class _Line(NamedTuple):
    indent: int
    text: str


def parse(text: str) -> tuple[dict[str, Any], Comments]:
    """Return a map with its comments; raises `NotOurs`."""
    return _YamlReader(text).read()


class _YamlReader:
    def __init__(self, text: str) -> None:
        self.raw = text.removesuffix("\n").split("\n")
        self.at = 0
        self.waiting: list[_Line] = []
        """Comments that were passed: they belong to the value that comes next."""
        self.comments: Comments = {}
        self._at: int = -1
        self._line = _Line(0, "")
        """The last line that `_next` gave, which is asked for several times."""

    def read(self) -> tuple[dict[str, Any], Comments]:
        line = self._next()
        self._claim(())
        if line is None or line.indent or line.text.startswith("- "):
            raise NotOurs
        value = self._map((), 0)
        if self._next() is not None:
            raise NotOurs
        return value, self.comments

    def _next(self) -> _Line | None:
        """Return the next line that is no comment, without passing it; the comments before it wait."""
        if self.at == self._at:
            return self._line
        while self.at < len(self.raw):
            raw = self.raw[self.at]
            text = raw.lstrip(" ")
            if not text:
                raise NotOurs
            line = _Line(len(raw) - len(text), text)
            if text[0] != "#":
                self._at, self._line = self.at, line
                return line
            self.waiting.append(line)
            self.at += 1
        return None

    def _map(self, place: Place, indent: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        while self._goes_on(place, indent):
            line = self._next()
            match = _KEY.match(line.text) if line is not None else None
            if match is None:
                raise NotOurs
            key = match[1] if match[1] is not None else unquoted(match[2])
            if key in value or (match[1] is not None and bare_or_quoted(key) != key):
                raise NotOurs
            here = (*place, key)
            self._claim(here)
            value[key] = self._value(line.text[match.end() :] if line else "", here, indent)
        return value

    def _list(self, place: Place, indent: int) -> list[Any]:
        value: list[Any] = []
        while self._goes_on(place, indent):
            line = self._next()
            if line is None or line.text[:1] != "-" or line.text[1:2] not in ("", " "):
                raise NotOurs
            here = (*place, len(value))
            self._claim(here)
            rest = line.text[2:]
            if _KEY.match(rest) or rest.startswith("- ") or rest == "-":
                self.raw[self.at] = " " * (indent + 2) + rest  # the first line of what is in the list's item
                self._at = -1
                value.append(self._container(here, indent + 2))
            else:
                value.append(self._value(rest, here, indent))
        return value

    def _value(self, rest: str, here: Place, indent: int) -> Any:
        """Read what stands behind a key or a dash, and pass its lines."""
        self.at += 1
        if match := _TEXT.fullmatch(rest):
            self._beside(here, match[2])
            return unquoted(match[1])
        if match := _BLOCK.fullmatch(rest):
            self._beside(here, match[2])
            return self._block(indent + 2, keep=match[1] == "|")
        if match := _OTHER.fullmatch(rest):
            self._beside(here, match[2])
            return [] if match[1] == "[]" else {} if match[1] == "{}" else bare(match[1])
        if not rest or (match := _BESIDE.fullmatch(f" {rest}")) or (match := _BESIDE.fullmatch(rest)):
            self._beside(here, match[1] if match else None)
            return self._container(here, indent + 2)
        raise NotOurs

    def _container(self, here: Place, indent: int) -> Any:
        if indent > _DEEPEST * 2:
            raise NotOurs
        kept, self.waiting = self.waiting, []
        line = self._next()
        if line is None or line.indent != indent:
            raise NotOurs
        self.waiting = kept + self.waiting
        if line.text[:1] == "-" and line.text[1:2] in ("", " "):
            return self._list(here, indent)
        return self._map(here, indent)

    def _block(self, indent: int, *, keep: bool) -> str:
        lines: list[str] = []
        while self.at < len(self.raw):
            line = self.raw[self.at]
            if line and not line.startswith(" " * indent):
                break
            lines.append(line[indent:])
            self.at += 1
        if not lines or not lines[0] or not lines[-1] or lines[0][0] == " ":
            raise NotOurs
        return "\n".join(lines) + ("\n" if keep else "")

    def _goes_on(self, place: Place, indent: int) -> bool:
        """Tell whether the next line is of the container at *place*; comments at its end are its own."""
        line = self._next()
        if line is not None and line.indent == indent:
            if any(comment.indent != indent for comment in self.waiting):
                raise NotOurs
            return True
        if line is not None and line.indent > indent:
            raise NotOurs
        own = next((number for number, comment in enumerate(self.waiting) if comment.indent != indent), len(self.waiting))
        self._give(self.waiting[:own], place, "end")
        self.waiting = self.waiting[own:] if own else self.waiting
        return False

    def _claim(self, here: Place) -> None:
        self._give(self.waiting, here, "before")
        self.waiting = []

    def _give(self, lines: list[_Line], here: Place, where: Where) -> None:
        """Add lines of a comment, all at once: to add each to those before it takes long."""
        if lines:
            add(self.comments, here, "\n".join(shown(line.text[1:]) for line in lines), where)

    def _beside(self, here: Place, comment: str | None) -> None:
        if comment is not None:
            add(self.comments, here, shown(comment), "beside")
