"""What a block of a file has beside what a node's fields give: kept when it is read, and put back when it is written.

It stands among the node's attributes (of a log line: its details) under `AS_TOLD`, as ``{"members": {…}, "without": [pointers]}``: members
that differ from what the fields alone would give, and members that the fields would give and the file does not have (as JSON pointers).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree._nodes import AS_TOLD
from optree._values import block_of, decode, is_list, is_object, object_of

_MARK = f'"{AS_TOLD}"'.encode()
_LISTS = frozenset({"turns", "steps", "ops", "logs", "accounting"})
"""What a block has below it: nodes and entries of the tree."""
_DEPTH = 2
"""How far down objects are compared member by member: a node's own, and those of its attributes. Deeper ones differ as a whole."""


def difference(original: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return what `restored` needs to make *original* of *written*; empty if they are the same JSON. Nodes below them are left out."""
    without: list[str] = []
    below = {
        name for name, value in original.items() if (name in _LISTS and is_list(value)) or (name == "childSession" and is_object(value))
    }
    own, known = ({name: value for name, value in block.items() if name not in below} for block in (original, written))
    members = _members(own, known, "", without, _DEPTH)
    rest = {"members": members, "without": without}
    return {name: value for name, value in rest.items() if value}


def restored(written: dict[str, Any], rest: Any) -> dict[str, Any]:
    """Return a block as the file had it. The nodes below it are those of the tree, and stay."""
    block = object_of(rest)
    own = {name: value for name, value in object_of(block.get("members")).items() if not (name in _LISTS and written.get(name))}
    merged = _merged(written, own, _DEPTH)
    without = block.get("without")
    for pointer in without if is_list(without) else []:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in str(pointer).split("/")[1:]]
        if not (parts[0:1] and parts[0] in _LISTS and merged.get(parts[0])):
            _drop(merged, parts)
    return merged


def told_of(attributes: Raw | UnsetType) -> dict[str, Any]:
    """Return what is kept under `AS_TOLD` of a node's attributes, or of a log line's details."""
    if attributes is UNSET or _MARK not in bytes(attributes):
        return {}
    decoded = decode(attributes)
    return object_of(decoded.get(AS_TOLD)) if is_object(decoded) else {}


def kept_in(attributes: Raw | UnsetType, original: dict[str, Any]) -> Raw | UnsetType:
    """Return attributes with *original* in them under `AS_TOLD`; as they are if there is nothing to keep."""
    if not original:
        return attributes
    members: dict[str, Any] = {} if attributes is UNSET else decode(attributes)
    return block_of({**members, AS_TOLD: original})


def same(first: Any, second: Any) -> bool:
    """Tell whether two values are the same JSON: true is not 1, and 1.5 is not 1."""
    try:
        return msgspec.json.encode(first) == msgspec.json.encode(second)
    except OverflowError:
        return bool(first == second)


def _members(original: dict[str, Any], written: dict[str, Any], place: str, without: list[str], depth: int) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    for name, value in original.items():
        ours = written.get(name)
        if depth and is_object(value) and is_object(ours):
            inner = _members(value, ours, f"{place}/{_escaped(name)}", without, depth - 1)
            differing |= {name: inner} if inner else {}
        elif name not in written or not same(value, ours):
            differing[name] = value
    without += [f"{place}/{_escaped(name)}" for name in written if name not in original]
    return differing


def _merged(written: dict[str, Any], members: dict[str, Any], depth: int) -> dict[str, Any]:
    merged = dict(written)
    for name, value in members.items():
        ours = merged.get(name)
        if depth and is_object(value) and is_object(ours):
            merged[name] = _merged(ours, value, depth - 1)
        else:
            merged[name] = value
    return merged


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
