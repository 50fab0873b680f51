"""Reading a snapshot: ours in zstd, gzip or plain JSON, and the files of the original ai-agent (versions 1 and 2)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from optree._interrupts import pass_on
from optree._nodes import Pool, SessionNode
from optree._patterns import Pattern
from optree._store.files.compression import GZIP, ZSTD, first_frame, unpack
from optree._store.files.descriptors import open_regular
from optree._store.files.system import OS, REAL
from optree._store.reading.snapshot import VERSION, meta_sum, sum_fits
from optree._tree.fold import Tree
from optree._tree.walk import name_safely, walk_sessions
from optree._values import TypedDecoder, is_list, is_object
from optree.errors import DamagedError, FormatError

_INDEX, _NUMBER = "(?:0|[1-9][0-9]{0,17})", "[1-9][0-9]{0,17}"
_OP = Pattern(rf"(?:{_INDEX}\.{_NUMBER}\.)*{_INDEX}\.{_NUMBER}")
_TURN = Pattern(rf"(?:{_INDEX}\.{_NUMBER}\.)*{_INDEX}")
"""Paths of ops (and of the sessions in them) and of turns: as `optree._tree.Path` has them, but told quickly."""
_SUM_CHARACTERS = len(meta_sum(b""))
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')


_Open: TypeAlias = "tuple[bytes, _Open | None]"
"""A bracket that is open: what closes it, and the one around it."""


class Snapshot(msgspec.Struct):
    """What a snapshot file says."""

    tree: Tree
    meta: dict[str, Any]
    damage: str = ""
    """Empty, or what is missing from the file, for people."""
    notes: list[str] = []
    """What was passed over in a file of the original ai-agent."""
    renamed: list[str] = []
    """Values in the file that cannot be ids, with the ids that replace them."""


class _File(msgspec.Struct):
    version: int
    session: SessionNode
    meta: dict[str, Any] = {}
    pool: Pool = msgspec.field(default_factory=Pool)


_decode_file: TypedDecoder[_File] = TypedDecoder(_File)


def read_snapshot(path: Path, system: OS = REAL) -> Snapshot:
    """Read a whole snapshot file. A truncated one gives what its valid part holds, with `damage` set.

    Raises `FormatError` (not ours, or newer) and `DamagedError` (nothing can be read); each names the file.
    """
    data = _content(path, system)
    if not data:
        raise DamagedError(f"{path.name} is empty: nothing was ever written to it; its journal, if there is one, has the session")
    text, whole = _unpack(path.name, data)
    if text is data and not sum_fits(data):
        raise DamagedError(
            f"{path.name} does not match its checksum: it was changed; restore it from a copy, or, if it was you who edited it, take its "
            'last member out, "crc"'
        )
    if whole:
        try:
            return _parse(path.name, text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if isinstance(error, msgspec.ValidationError):
                raise FormatError(f"{path.name} is JSON, but no session: {error}") from error
        except RecursionError:
            raise FormatError(f"{path.name} is no session file: it is nested deeper than any session can be") from None
    damaged = not whole and data[:4] == ZSTD
    damage = f"is damaged: what is valid of its {len(data)} bytes" if damaged else f"breaks off: its {len(data)} bytes"
    return _salvage(path.name, text, damage)


def read_meta(path: Path) -> dict[str, Any]:
    """Return a snapshot's meta from its first frame only; empty if that cannot be read."""
    try:
        return meta_of(path)
    except OSError as error:
        pass_on(error)
        return {}


def meta_of(path: Path) -> dict[str, Any]:
    """Return a snapshot's meta as `read_meta` does; raises `OSError` for a file that cannot be opened or read."""
    with open_regular(path) as file:
        text = first_frame(file)
    head, mark, rest = text.partition(b'"meta":')
    from json import JSONDecoder

    decoded = rest.decode("utf-8", "surrogateescape")
    try:
        meta, end = JSONDecoder().raw_decode(decoded)
    except ValueError as error:
        pass_on(error)
        return {}
    checksum = decoded[end : end + _SUM_CHARACTERS].encode("utf-8", "surrogateescape")
    wrong = checksum.startswith(b',"metaCrc":"') and checksum != meta_sum(head + mark + decoded[:end].encode("utf-8", "surrogateescape"))
    return meta if is_object(meta) and not wrong else {}


def _content(path: Path, system: OS) -> bytes:
    """Return what a file holds, as far as it may be a session's: a hole of zeros, which may be of any size, ends it."""
    seen, packed = 0, False
    for piece in system.pieces(path):
        if not seen:
            packed = piece[:4] == ZSTD or piece[:2] == GZIP
            if not packed and piece.lstrip()[:1] != b"{":
                return piece
        hole = (0 if not piece.strip(b"\0") else -1) if packed else piece.find(b"\0")
        if hole >= 0:
            return system.read(path, seen + hole)
        seen += len(piece)
    return system.read(path)


def _unpack(name: str, data: bytes) -> tuple[bytes, bool]:
    """Return the JSON text, and whether all of the file could be unpacked."""
    if data[:4] != ZSTD and data[:2] != GZIP and data.lstrip()[:1] != b"{":
        if _is_json(data):
            raise FormatError(f"{name} is JSON, but no session: it is neither zstd, gzip nor JSON of a session, which is an object")
        raise FormatError(f"{name} is no session file: it is neither zstd, gzip nor JSON")
    return unpack(data, name)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _parse(name: str, text: bytes) -> Snapshot:
    """Decode a complete document; raises `msgspec.DecodeError`."""
    head = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "opTree" in head:
        return _ai_agent(msgspec.json.decode(text))
    if "version" not in head or "session" not in head:
        raise FormatError(f"{name} is JSON, but no session of optree or ai-agent: it has no 'version' and 'session'")
    version = msgspec.json.decode(head["version"])
    if not isinstance(version, int) or version > VERSION:
        raise FormatError(
            f"{name} has version {version}; this optree reads up to {VERSION}: install a newer one (pip install -U optree-tracing)"
        )
    try:
        file = _decode_file(text)
    except msgspec.ValidationError:
        file = _decode_file(_without_totals(text))
    _check_paths(name, file.session)
    tree = Tree(file.session, file.pool)
    return Snapshot(tree, file.meta, renamed=name_safely(tree))


def _without_totals(text: bytes) -> bytes:
    """Return a document without its sessions' totals: totals that are not numbers are summed anew from the entries."""
    document: Any = msgspec.json.decode(text)
    pending: list[Any] = [document.get("session")]
    while pending:
        value: Any = pending.pop()
        if is_object(value):
            value.pop("totals", None)
            pending += [value[name] for name in ("turns", "ops", "childSession") if name in value]
        elif is_list(value):
            pending += value
    return msgspec.json.encode(document)


def _check_paths(name: str, root: SessionNode) -> None:
    """Raise `FormatError` if a node's path is not valid: all that reads trees relies on paths."""
    for session in walk_sessions(root):
        wrong = [session.path] if session.path and _OP.fullmatch(session.path) is None else []
        wrong += [turn.path for turn in session.turns if _TURN.fullmatch(turn.path) is None]
        wrong += [op.path for turn in session.turns for op in turn.ops if _OP.fullmatch(op.path) is None]
        if wrong:
            raise FormatError(f"{name} is no session file: a node has the path {wrong[0][:80]!r}, and paths are numbers, as in 1.2")


def _salvage(name: str, text: bytes, damage: str) -> Snapshot:
    """Close what a document that breaks off left open after its last whole value, and read that; *damage* begins the message."""
    for closed in _closings(text):
        try:
            snapshot = _parse(name, closed)
        except (msgspec.DecodeError, UnicodeDecodeError, FormatError, RecursionError):
            continue
        kept = sum(1 for _ in snapshot.tree.session.turns)
        turns = f"{kept} turn{'' if kept == 1 else 's'} of the root session"
        snapshot.damage = f"{name} {damage} unpack to {len(text)} bytes of JSON; kept is the session's beginning, with {turns}"
        return snapshot
    raise DamagedError(f"{name} is damaged: no part of it can be read; restore it from a copy, or load an older session (optree ls)")


def _closings(text: bytes) -> Iterator[bytes]:
    """Yield the text cut after each of its last complete values or opened lists, with the open brackets closed; longest first."""
    open_: _Open | None = None
    cuts: deque[tuple[int, _Open | None]] = deque(maxlen=256)
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in b"{[":
            open_ = (b"}" if token == b"{" else b"]", open_)
        elif token in b"}]" and open_ is not None:
            open_ = open_[1]
        if token in b"[}]":
            cuts.append((match.end(), open_))
    for end, innermost in reversed(cuts):
        closing, bracket = bytearray(), innermost
        while bracket is not None:
            closing += bracket[0]
            bracket = bracket[1]
        yield text[:end] + closing


def _ai_agent(document: dict[str, Any]) -> Snapshot:
    from optree._store.reading import ai_agent  # not before there is such a file: this module is imported with optree

    version = document.get("version")
    if version not in ai_agent.VERSIONS:
        raise FormatError(
            f"an ai-agent file of version {version}; this optree reads versions 1 and 2 here; "
            "version 3 is a folder of records: optree import FOLDER"
        )
    converted = ai_agent.tree_of(document)
    return Snapshot(converted.tree, converted.meta, notes=converted.notes, renamed=converted.renamed + name_safely(converted.tree))
