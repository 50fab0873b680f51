"""What a block of a file has beside what a node's fields give: kept when it is read, and put back when it is written.

It stands among the node's attributes (of a log line: its details) under `AS_TOLD`, as ``{"members": {…}, "without": [pointers]}``: members
that differ from what the fields alone would give, and members that the fields would give and the file does not have (as JSON pointers).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree.nodes import AS_TOLD
from optree.store.plain_values import block_of, object_of
from optree.values import decode, is_list, is_object

_MARK = f'"{AS_TOLD}"'.encode()
_LISTS = frozenset({"turns", "steps", "ops", "logs", "accounting"})
"""What a block has below it: nodes and entries of the tree."""
_DEPTH = 2
"""How far down objects are compared member by member: a node's own, and those of its attributes. Deeper ones differ as a whole."""


def difference(told: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return what `restored` needs to make *told* of *made*; empty if they are the same JSON. What is below them is left to itself."""
    without: list[str] = []
    below = {name for name, value in told.items() if (name in _LISTS and is_list(value)) or (name == "childSession" and is_object(value))}
    own, known = ({name: value for name, value in block.items() if name not in below} for block in (told, made))
    members = _members(own, known, "", without, _DEPTH)
    found = {"members": members, "without": without}
    return {name: value for name, value in found.items() if value}


def restored(made: dict[str, Any], rest: Any) -> dict[str, Any]:
    """Return a block as it was told. What it has below it is the tree's, and stays."""
    block = object_of(rest)
    own = {name: value for name, value in object_of(block.get("members")).items() if not (name in _LISTS and made.get(name))}
    found = _merged(made, own, _DEPTH)
    without = block.get("without")
    for pointer in without if is_list(without) else []:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in str(pointer).split("/")[1:]]
        if not (parts[0:1] and parts[0] in _LISTS and found.get(parts[0])):
            _drop(found, parts)
    return found


def told_of(attributes: Raw | UnsetType) -> dict[str, Any]:
    """Return what is kept under `AS_TOLD` of a node's attributes, or of a log line's details."""
    if attributes is UNSET or _MARK not in bytes(attributes):
        return {}
    found = decode(attributes)
    return object_of(found.get(AS_TOLD)) if is_object(found) else {}


def kept_in(attributes: Raw | UnsetType, told: dict[str, Any]) -> Raw | UnsetType:
    """Return attributes with *told* in them under `AS_TOLD`; as they are if there is nothing to keep."""
    if not told:
        return attributes
    there: dict[str, Any] = {} if attributes is UNSET else decode(attributes)
    return block_of({**there, AS_TOLD: told})


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON: true is not 1, and 1.5 is not 1."""
    try:
        return msgspec.json.encode(one) == msgspec.json.encode(other)
    except OverflowError:
        return bool(one == other)


def _members(told: dict[str, Any], made: dict[str, Any], place: str, without: list[str], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in told.items():
        there = made.get(name)
        if depth and is_object(value) and is_object(there):
            inner = _members(value, there, f"{place}/{_escaped(name)}", without, depth - 1)
            found |= {name: inner} if inner else {}
        elif name not in made or not same(value, there):
            found[name] = value
    without += [f"{place}/{_escaped(name)}" for name in made if name not in told]
    return found


def _merged(made: dict[str, Any], members: dict[str, Any], depth: int) -> dict[str, Any]:
    found = dict(made)
    for name, value in members.items():
        there = found.get(name)
        if depth and is_object(value) and is_object(there):
            found[name] = _merged(there, value, depth - 1)
        else:
            found[name] = value
    return found


def _drop(block: dict[str, Any], parts: list[str]) -> None:
    for part in parts[:-1]:
        inner = block.get(part)
        if not is_object(inner):
            return
        block = inner
    if parts:
        block.pop(parts[-1], None)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
