"""Snapshots: the whole tree in one file, one JSON document in many zstd frames.

    {"version":1,"meta":{…}            frame 1: all that a listing needs
    ,"session":{…,"turns":[            the open parts, written anew each time
    {…},{…}                            frames of finished turns and of finished blocks of ops, reused byte for byte
    …]},"pool":{…}}                    the content pool, in frames as well

A snapshot is taken while the tree grows. That is sound since the journal's position is read first, and applying a record twice changes
nothing: the file may be ahead of its position, never behind it. Encoding stops for others after each piece.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from optree._nodes import OperationNode, SessionNode, TurnNode
from optree._store.files.compression import compressor
from optree._tree.fold import Tree
from optree._values import dumps, encode

VERSION = 1
BLOCK = 16
"""Finished ops of an unfinished turn are kept in frames of this many."""
GROWN_BLOCK = 64
MAX_NESTED = 60
"""Sessions in each other that a snapshot can hold: decoders give up on JSON that is nested too deep. A journal is flat."""
_GLUE_BYTES = 1 << 18
_LONG_BYTES = 1 << 14
_SUM = re.compile(rb'[0-9a-f]{8}"\}')


class SnapshotWriter:
    """Makes the pieces of a snapshot file, and remembers the frames of nodes that cannot change any more."""

    def __init__(self, compression: str = "zstd", *, reuse: bool = True, sums: bool = True) -> None:
        """Make a writer; with *sums* pieces that are not compressed have checksums of their own, as compressed frames have."""
        self.compression = compression
        self._sums = sums and compression == "none"
        self.encoded = 0
        """Bytes of JSON that were encoded in all: what snapshots cost, for tests and benchmarks."""
        self._reuse = reuse
        self._frames: dict[str, bytes] = {}
        self._glue: list[bytes] = []
        self._glue_size = 0
        self._out: list[bytes] = []

    def pieces(self, tree: Tree, meta: dict[str, Any], touched: set[str]) -> list[bytes]:
        """Return the file's content; *touched* names ops that changed after their end, and is emptied."""
        self._forget(touched)
        self._compress = compressor(self.compression)
        self._out, self._glue, self._glue_size = [], [], 0
        head = b'{"version":%d,"meta":%b' % (VERSION, encode(meta))
        self._add(head + meta_sum(head) if self._sums else head)
        self._cut()
        self._add(b',"session":')
        self._session(tree.session)
        self._add(b',"pool":')
        self._pool(tree)
        if self._sums:
            self._cut()
            self._add(b',"crc":"%08x"' % _crc(self._out))
        self._add(b"}\n")
        self._cut()
        return self._out

    def _session(self, session: SessionNode) -> None:
        _check_depth(session)
        shallow = msgspec.structs.replace(session, turns=[], messages=[])
        head, _, tail = dumps(shallow).partition(b'"turns":[]')
        self._add(head + b'"turns":[')
        for position, turn in enumerate(list(session.turns)):
            if position:
                self._add(b",")
            self._turn(turn)
        self._add(b"]")
        if session.messages:
            self._add(b',"messages":[')
            self._grown(f"{session.path}:messages", list(session.messages), dumps)
            self._add(b"]")
        self._add(tail)

    def _turn(self, turn: TurnNode) -> None:
        if turn.path in self._frames:
            self._keep(self._frames[turn.path])
            return
        ops = list(turn.ops)
        if self._reuse and turn.ended_at is not None and all(_finished(op) for op in ops):
            self._frames[turn.path] = self._frame(dumps(turn))
            for number in range(0, len(ops), BLOCK):
                self._frames.pop(f"{turn.path}#{number}", None)
            self._keep(self._frames[turn.path])
            return
        head, _, tail = dumps(msgspec.structs.replace(turn, ops=[])).partition(b'"ops":[]')
        self._add(head + b'"ops":[')
        for number in range(0, len(ops), BLOCK):
            if number:
                self._add(b",")
            self._block(f"{turn.path}#{number}", ops[number : number + BLOCK])
        self._add(b"]" + tail)

    def _block(self, key: str, ops: list[OperationNode]) -> None:
        if key not in self._frames and self._reuse and len(ops) == BLOCK and all(_finished(op) for op in ops):
            self._frames[key] = self._frame(dumps(ops)[1:-1])
        if key in self._frames:
            self._keep(self._frames[key])
            return
        for position, op in enumerate(ops):
            if position:
                self._add(b",")
            if op.child_session is None or _finished(op):
                self._add(dumps(op))
            else:
                head = dumps(msgspec.structs.replace(op, child_session=None))
                self._add(head[:-1] + b',"childSession":')
                self._session(op.child_session)
                self._add(b"}")

    def _pool(self, tree: Tree) -> None:
        self._add(b'{"blobs":{')
        self._grown("blobs", list(tree.pool.blobs.items()), lambda items: dumps(dict(items)))
        self._add(b'},"links":{')
        self._grown("links", list(tree.pool.links.items()), lambda items: dumps(dict(items)))
        self._add(b"}}")

    def _grown(self, key: str, items: list[Any], to_json: Callable[[list[Any]], bytes]) -> None:
        """Add the members of a list or an object that only grows: full blocks are frames, the rest is written anew."""
        for first in range(0, len(items), GROWN_BLOCK):
            block = items[first : first + GROWN_BLOCK]
            comma = b"," if first else b""
            if len(block) < GROWN_BLOCK or not self._reuse:
                self._add(comma + to_json(block)[1:-1])
                continue
            name = f"{key}@{first}"
            if name not in self._frames:
                self._frames[name] = self._frame(comma + to_json(block)[1:-1])
            self._keep(self._frames[name])

    def _forget(self, touched: set[str]) -> None:
        while touched:
            path = touched.pop()
            while path:
                number = path.rpartition(".")[2]
                turn = path.rpartition(".")[0]
                self._frames.pop(turn, None)
                self._frames.pop(f"{turn}#{(int(number) - 1) // BLOCK * BLOCK}", None)
                path = turn.rpartition(".")[0]

    def _add(self, data: bytes) -> None:
        self._glue.append(data)
        self._glue_size += len(data)
        self.encoded += len(data)
        if self._glue_size > _GLUE_BYTES:
            self._cut()

    def _cut(self) -> None:
        if self._glue:
            self._out.append(self._compress(b"".join(self._glue)))
            self._glue, self._glue_size = [], 0

    def _keep(self, frame: bytes) -> None:
        self._cut()
        self._out.append(frame)

    def _frame(self, data: bytes) -> bytes:
        self.encoded += len(data)
        frame = self._compress(data)
        if len(data) > _LONG_BYTES:
            time.sleep(0)  # let other threads run: one piece never holds them for long
        return frame


def meta_sum(head: bytes) -> bytes:
    """Return what follows a snapshot's meta where it is not compressed: the CRC-32 of all before it."""
    return b',"metaCrc":"%08x"' % crc32(head)


def sum_fits(text: bytes) -> bool:
    """Tell whether a document that ends with the checksum of all before it is as it was written; one without is taken as it is."""
    body, mark, tail = text.rstrip().rpartition(b',"crc":"')
    return not mark or _SUM.fullmatch(tail) is None or tail == b'%08x"}' % crc32(body)


def _crc(pieces: list[bytes]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc


def _check_depth(session: SessionNode) -> None:
    if session.path.count(".") >= 2 * MAX_NESTED:
        raise ValueError(f"sub-agents are nested more than {MAX_NESTED} deep: the session is kept as a journal, which loads all the same")


def _finished(op: OperationNode) -> bool:
    """Tell whether an op cannot change any more, with all that is in it. An explicit stack: trees may be deep."""
    pending = [op]
    while pending:
        current = pending.pop()
        if current.ended_at is None:
            return False
        session = current.child_session
        if session is None:
            continue
        _check_depth(session)
        if session.ended_at is None or any(turn.ended_at is None for turn in session.turns):
            return False
        pending.extend(child for turn in session.turns for child in turn.ops)
    return True
