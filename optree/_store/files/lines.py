"""Reading files of JSON lines piece by piece, in bounded memory, whatever is wrong in them; plain, gzip and zstd.

Whole blocks of lines are decoded at once, which is many times as quick as line by line; only a block with a bad line in it is halved
until the bad lines stand alone. So a reader reports each bad line by its number, and has all others.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

import msgspec
import zstandard

from optree._interrupts import pass_on
from optree._store.files.compression import GZIP, ZSTD, is_packed, limit_of, too_large
from optree._store.files.descriptors import open_regular
from optree._values import text
from optree.errors import FormatError

T = TypeVar("T")
AnyPath = str | PathLike[str]
BLOCK_BYTES = 1 << 20
HEAD_BYTES = 1 << 16
"""Of a file, by which formats are recognised."""
MAX_LINE_BYTES = 64 << 20
"""A longer line is no line of a log: reading stops there."""
_BIT = 2 << 10
"""Bytes of a zstd file that are unpacked at once: to some 64 MB at most."""
_WINDOW = 128 << 20
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_BROKEN = b"(the compressed file breaks off here)"
"""Stands for the line that is torn where a compressed file breaks off between two lines."""
_any_lines: Callable[[bytes], list[Any]] = msgspec.json.Decoder().decode_lines


class Fault(NamedTuple):
    """What was wrong at one line; lines count from 1. The line was left out, unless *said* says else."""

    line: int
    said: str

    def of(self, name: object) -> str:
        """Return the fault as text, with the file's *name*, and the line if there is one."""
        return f"{name}, line {self.line}: {self.said}" if self.line else f"{name}: {self.said}"


class LineBlock(NamedTuple, Generic[T]):
    """Lines that could be decoded, in their order."""

    line: int
    """Number of the first."""
    data: bytes
    values: list[T]

    def line_of(self, index: int) -> int:
        """Return the number of the line that a value is on; slow, for faults."""
        seen = -1
        for offset, line in enumerate(self.data.split(b"\n")):
            seen += len(_any_lines(line)) if line.strip(_BLANK) else 0
            if seen >= index:
                return self.line + offset
        return self.line


class BadLine(NamedTuple):
    """A line that could not be decoded."""

    line: int
    data: bytes
    said: str


def opened(path: AnyPath) -> BinaryIO:
    """Open a file for reading; gzip and zstd are unpacked as they are read. Raises `OSError`, also for a pipe or a device."""
    file = open_regular(path)
    head = file.read(4)
    file.seek(0)
    if head == ZSTD:
        return io.BufferedReader(_Frames(file, _zstd), BLOCK_BYTES)
    if head[:2] == GZIP:
        return io.BufferedReader(_Frames(file, _gzip), BLOCK_BYTES)
    return file


def _zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def check_size(path: Path) -> None:
    """Raise `FormatError` for a packed file that unpacks to more than is read: in bounded memory, before anything is made of it."""
    if not path.is_file() or not is_packed(path):
        return
    packed, unpacked = path.stat().st_size, 0
    with suppress(EOFError), opened(path) as source:  # damage is the reader's to report
        while piece := cast("io.BufferedReader", source).read1(BLOCK_BYTES):
            unpacked += len(piece)
            if unpacked > limit_of(packed):
                raise too_large(path.name, packed)


class _Frames(io.RawIOBase):
    """Reads frames of zstd, or members of gzip, one after the other, in small bits, since a few bytes may unpack to very many.

    Tells when one breaks off. Zeros after a member of gzip end the file, as `gzip` has it.
    """

    def __init__(self, file: BinaryIO, make: Callable[[], Any]) -> None:
        self._file, self._make = file, make
        self._frame = make()
        self._begun = False
        self._packed = b""
        self._data = memoryview(b"")

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as one bit goes; raises `EOFError` where the file breaks off or is damaged."""
        while not self._data and (bit := self._packed or self._file.read(_BIT)):
            if bit[:1] == b"\0" and not self._begun:
                break
            try:
                self._data = memoryview(self._frame.decompress(bit))
            except (zstandard.ZstdError, zlib.error) as error:
                raise EOFError("a compressed frame is damaged") from error
            self._begun, self._packed = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._make()
        if not self._data and self._begun:
            raise EOFError("a compressed frame breaks off")
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def blocks(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, as many as make a block, each block with the number of its first line. A byte order mark is left out.

    The last block may end without a newline. A compressed source that breaks off ends there, in a line that is torn. Raises `OSError`,
    and `FormatError` for a line longer than `MAX_LINE_BYTES`.
    """
    number, rest = 1, b""
    while (piece := _piece(source)) and piece is not _BROKEN:
        if number == 1 and not rest:
            piece = piece.removeprefix(_BOM)
        whole, newline, torn = piece.rpartition(b"\n")
        if not newline:
            rest += piece
            if len(rest) > MAX_LINE_BYTES:
                raise FormatError(f"line {number} is longer than {MAX_LINE_BYTES} bytes: this is no file of lines")
            continue
        block = rest + whole + newline
        yield number, block
        number += block.count(b"\n")
        rest = torn
    if piece is _BROKEN or rest:
        yield number, rest or _BROKEN


def decoded(source: BinaryIO, decode_lines: Callable[[bytes], list[T]]) -> Iterator[LineBlock[T] | BadLine]:
    """Yield the values of a file's lines, block by block, and each bad line in its place. Blank lines are passed over.

    *decode_lines* is that of a `msgspec.json.Decoder`.
    """
    for first, block in blocks(source):
        yield from _decoded(first, block, decode_lines)


def _decoded(first: int, block: bytes, decode_lines: Callable[[bytes], list[T]]) -> Iterator[LineBlock[T] | BadLine]:
    """Decode a block, or its halves where it has a bad line."""
    pending = [(first, block)]
    while pending:
        number, data = pending.pop()
        try:
            yield LineBlock(number, data, decode_lines(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            half, end = len(data) // 2, len(data) - 1
            middle = data.find(b"\n", half, end) + 1 or data.rfind(b"\n", 0, half) + 1
            if middle:
                head = data[:middle]
                pending += [(number + head.count(b"\n"), data[middle:]), (number, head)]
            elif data.strip(_BLANK):
                yield BadLine(number, data.strip(_BLANK), _reason(error))


def _piece(source: BinaryIO) -> bytes:
    """Read on; where a compressed source breaks off, or is damaged, return `_BROKEN` after what could be unpacked."""
    try:
        read: Callable[[int], bytes] = getattr(source, "read1", source.read)  # `read` may lose what it has when it comes to the break
        return read(BLOCK_BYTES)
    except EOFError:
        return _BROKEN


def _reason(error: Exception) -> str:
    return "is nested too deeply" if isinstance(error, RecursionError) else text(error).replace("$[0]", "$")


def head_of(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, unpacked as far as they can be; of a directory none. Raises `OSError` for what cannot be opened."""
    if path.is_dir():
        return b""
    head = b""
    with opened(path) as source:
        while len(head) < limit:
            try:
                piece: bytes = cast("io.BufferedReader", source).read1(limit - len(head))
            except (OSError, EOFError) as error:  # the packed data is damaged, or breaks off
                pass_on(error)
                break
            if not piece:
                break
            head += piece
    return head
