"""An event as YAML: block style, fields in their order, comments in their places. Same event, same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optree.exporting import is_list, is_object
from optree_formats.markdown import scalars
from optree_formats.markdown.comments import Comment, Place, escaped, lines

_STEP = 2
_LONG_KEY = 1000
"""YAML wants a sign before a longer key."""
_NONE = Comment()


def emit(value: Mapping[str, Any], comments: Mapping[Place, Comment]) -> str:
    """Return plain values, as `optree.values.plain` makes them, as the text of a YAML map that is not empty; with a newline at its end."""
    own = comments.get((), _NONE)
    out = lines(own.before, 0)
    _map(out, value, (), 0, comments)
    return "\n".join(out) + "\n"


def _map(out: list[str], value: Mapping[str, Any], place: Place, indent: int, comments: Mapping[Place, Comment]) -> None:
    for key, item in value.items():
        here = (*place, key)
        comment = comments.get(here, _NONE)
        _before(out, item, comment, indent)
        written = scalars.bare_or_quoted(key)
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
    elif isinstance(item, str) and (found := scalars.block(item)) is not None:
        header, said = found
        out.append(f"{start} {header}{beside}")
        out += [f"{' ' * (indent + _STEP)}{line}" if line else "" for line in said]
    else:
        out.append(f"{start} {scalars.inline(item)}{beside}")


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


def _beside(said: str | None) -> str:
    return "" if said is None or "\n" in said else f"  # {escaped(said)}".rstrip()
