"""Reads back, quickly, the part of YAML that `emit` writes. What is not of that form is refused, and is for `foreign_yaml` to read."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from optree_formats.markdown import scalars
from optree_formats.markdown.comments import Comments, Place, Where, add, shown
from optree_formats.markdown.scalars import NotOurs

_KEY = re.compile(r'(?:([A-Za-z_][A-Za-z0-9_./-]*)|"((?:[^"\\]|\\.)*)"):(?: |$)')
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"(?:  #(.*))?')
_OTHER = re.compile(r"(\[\]|\{\}|[A-Za-z_.+0-9-][^\s#:,\[\]{}]*)(?:  #(.*))?")
_BLOCK = re.compile(r"(\|-?)(?:  #(.*))?")
_BESIDE = re.compile(r"  #(.*)")
_DEEPEST = 200


class _Line(NamedTuple):
    indent: int
    said: str


def parse(text: str) -> tuple[dict[str, Any], Comments]:
    """Return a map with its comments; raises `NotOurs`."""
    return _YamlReader(text).read()


class _YamlReader:
    def __init__(self, text: str) -> None:
        self.raw = text.removesuffix("\n").split("\n")
        self.at = 0
        self.waiting: list[_Line] = []
        """Comments that were passed: what comes next says whose they are."""
        self.comments: Comments = {}
        self._at: int = -1
        self._line = _Line(0, "")
        """The last line that `_next` gave, which is asked for several times."""

    def read(self) -> tuple[dict[str, Any], Comments]:
        line = self._next()
        self._claim(())
        if line is None or line.indent or line.said.startswith("- "):
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
            said = raw.lstrip(" ")
            if not said:
                raise NotOurs
            line = _Line(len(raw) - len(said), said)
            if said[0] != "#":
                self._at, self._line = self.at, line
                return line
            self.waiting.append(line)
            self.at += 1
        return None

    def _map(self, place: Place, indent: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        while self._goes_on(place, indent):
            line = self._next()
            found = _KEY.match(line.said) if line is not None else None
            if found is None:
                raise NotOurs
            key = found[1] if found[1] is not None else scalars.unquoted(found[2])
            if key in value or (found[1] is not None and scalars.bare_or_quoted(key) != key):
                raise NotOurs
            here = (*place, key)
            self._claim(here)
            value[key] = self._value(line.said[found.end() :] if line else "", here, indent)
        return value

    def _list(self, place: Place, indent: int) -> list[Any]:
        value: list[Any] = []
        while self._goes_on(place, indent):
            line = self._next()
            if line is None or line.said[:1] != "-" or line.said[1:2] not in ("", " "):
                raise NotOurs
            here = (*place, len(value))
            self._claim(here)
            rest = line.said[2:]
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
        if found := _TEXT.fullmatch(rest):
            self._beside(here, found[2])
            return scalars.unquoted(found[1])
        if found := _BLOCK.fullmatch(rest):
            self._beside(here, found[2])
            return self._block(indent + 2, keep=found[1] == "|")
        if found := _OTHER.fullmatch(rest):
            self._beside(here, found[2])
            return [] if found[1] == "[]" else {} if found[1] == "{}" else scalars.bare(found[1])
        if not rest or (found := _BESIDE.fullmatch(f" {rest}")) or (found := _BESIDE.fullmatch(rest)):
            self._beside(here, found[1] if found else None)
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
        if line.said[:1] == "-" and line.said[1:2] in ("", " "):
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
            add(self.comments, here, "\n".join(shown(line.said[1:]) for line in lines), where)

    def _beside(self, here: Place, said: str | None) -> None:
        if said is not None:
            add(self.comments, here, shown(said), "beside")
