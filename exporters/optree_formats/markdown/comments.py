"""Comments as data: which belong to which place of an event.

A place is a tuple of keys and list indices, ``("args", "why")``; the event itself is ``()``. A comment stands on lines of its own before
the field of its place, beside it on its line, or at the end of the map or list that it is::

    # before ()
    result:
      path: hot.yml  # beside ("result", "path")
      # before ("result", "lines")
      lines: 50
      # end of ("result",)
    # end of ()
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

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
        return [said for said in (self.before, self.beside, self.end) if said is not None]


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


def add(comments: Comments, place: Place, said: str, where: Where) -> None:
    """Add a comment behind what is there already."""
    said = "\n".join(line.rstrip() for line in clean(said).replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    comment = comments.setdefault(place, Comment())
    before = getattr(comment, where)
    setattr(comment, where, said if before is None else f"{before}\n{said}")


def lines(said: str | None, indent: int) -> list[str]:
    """Return a comment, if there is one, as lines of YAML; what a line cannot hold, or would end a Markdown block, is escaped."""
    return [f"{' ' * indent}# {escaped(line)}".rstrip() for line in said.split("\n")] if said is not None else []


def escaped(line: str) -> str:
    """Return one line of a comment as it is written."""
    return _HIDDEN.sub(_hide, line)


def shown(line: str) -> str:
    """Return what a written line of a comment says, given from behind its ``#``."""
    return _SHOWN.sub(lambda found: chr(int(found[1] or found[2], 16)), line.removeprefix(" ").rstrip())


def _hide(found: re.Match[str]) -> str:
    said = found[0]
    if said == "```":
        return "``\\x60"
    return f"\\x{ord(said):02x}" if ord(said) <= 0xFF else f"\\u{ord(said):04x}"  # noqa: PLR2004 - what two digits hold


def under(comments: Mapping[Place, Comment], kept: Any) -> Comments:
    """Return the comments of those places that *kept* still has."""
    found: Comments = {}
    for place, comment in comments.items():
        try:
            place_of(place, kept)
        except (KeyError, TypeError):
            continue
        found[place] = comment
    return found
