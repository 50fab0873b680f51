"""Compressing and unpacking: zstd, gzip or none. The libraries are imported where they are used, to keep `import optree` quick."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from optree._interrupts import pass_on
from optree._store.files.descriptors import open_regular
from optree.errors import FormatError

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
MAX_BYTES = 1 << 30
MAX_RATIO, SPARE_BYTES = 200, 64 << 20
"""A file may unpack to `MAX_BYTES`, or if that is more to so many times its size and a rest: few bytes can ask for terabytes."""
_WINDOW = 8 << 20
_CHUNK = 1 << 20
_SMALL_CHUNK = 1 << 10
_MAX_FIRST = 16 << 20
_contexts: deque[Any] = deque(maxlen=4)
"""zstd's compressors that no thread uses at the moment: `zstandard` is imported where it is needed."""


def compressor(name: str) -> Callable[[bytes], bytes]:
    """Return what makes a frame of bytes; frames one after the other are one file. *name* is `zstd`, `gzip` or `none`."""
    if name == "zstd":
        return _zstd
    return _gzip if name == "gzip" else bytes


def _zstd(data: bytes) -> bytes:
    """Return a frame; a context, which costs as much as a small frame to make, is one thread's at a time and used again."""
    try:
        context = _contexts.pop()
    except IndexError:
        import zstandard

        context = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True)
    frame: bytes = context.compress(data)
    _contexts.append(context)
    return frame


def unpacked_frames(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield the contents of zstd frames, for a check before a file is used. Raises what zstandard raises."""
    import zstandard

    decompress = zstandard.ZstdDecompressor().decompress
    for piece in pieces:
        yield decompress(piece)


def unpack(data: bytes, name: str = "it") -> tuple[bytes, bool]:
    """Return a file's content, and whether all of it could be unpacked; what is in no known format is returned as it is.

    Raises `FormatError`, with *name* in its message, for data that unpacks to more than `limit_of` its size.
    """
    if data[:4] == ZSTD:
        return _unzstd(data, name)
    return _gunzip(data, name) if data[:2] == GZIP else (data, True)


def is_packed(path: Path) -> bool:
    """Tell whether a file is zstd or gzip. Raises `OSError`."""
    with open_regular(path) as file:
        head = file.read(4)
    return head == ZSTD or head[:2] == GZIP


def limit_of(packed: int) -> int:
    """Return how many bytes a file of that size may unpack to."""
    return max(MAX_BYTES, MAX_RATIO * packed + SPARE_BYTES)


def too_large(name: str, packed: int) -> FormatError:
    """Return the error that says so of a file."""
    return FormatError(
        f"{name} unpacks to more than {limit_of(packed) >> 20} MB from {packed} bytes, and is not read further: "
        "if that is right, unpack it yourself (zstd -d, gunzip) and name what comes out"
    )


def first_frame(file: BinaryIO) -> bytes:
    """Return the content of a file's first frame, or its beginning where it has no frames; what can be read of it, 16 MB at most."""
    start = file.read(1 << 16)
    if start[:4] != ZSTD:
        start += file.read(_MAX_FIRST)
        return _beginning(start) if start[:2] == GZIP else start
    content, whole = _unzstd_frame(start, file)
    return content if whole or len(content) >= _MAX_FIRST else b""


def _gzip(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, 6, mtime=0)


def _unzstd(data: bytes, name: str) -> tuple[bytes, bool]:
    import zstandard

    out = io.BytesIO()
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data, read_across_frames=True)
    try:
        while chunk := reader.read(_CHUNK):
            if out.tell() + len(chunk) > limit_of(len(data)):
                raise too_large(name, len(data))
            out.write(chunk)
    except zstandard.ZstdError:
        out.close()
        return _before_damage(data), False
    return out.getvalue(), True


def _before_damage(data: bytes) -> bytes:
    """Return the content of the zstd frames before the first that is damaged, as their checksums tell; one without is passed as damaged."""
    out, file = io.BytesIO(), io.BytesIO(data)
    while out.tell() <= limit_of(len(data)):
        at = file.tell()
        content, whole = _unzstd_frame(b"", file, limit_of(len(data)), checked=True)
        if not whole or file.tell() == at:
            break
        out.write(content)
    return out.getvalue()


def _unzstd_frame(start: bytes, file: BinaryIO, limit: int = _MAX_FIRST, *, checked: bool = False) -> tuple[bytes, bool]:
    """Return the content of a frame that begins with *start* and goes on in a file, and whether it came to its end in order.

    With *checked* it must have a checksum. Of a damaged frame nothing is returned, of one that is longer than *limit* its beginning. The
    file stands behind the frame then.
    """
    import zstandard

    text = bytearray()
    packed = start or file.read(_SMALL_CHUNK)
    try:
        if checked and not zstandard.get_frame_parameters(packed).has_checksum:
            return b"", False
        reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        while packed and not reader.eof and len(text) < limit:
            piece, packed = packed[:_SMALL_CHUNK], packed[_SMALL_CHUNK:]
            text += reader.decompress(piece)
            packed = packed if packed or reader.eof else file.read(_SMALL_CHUNK)
        file.seek(-len(packed) - len(reader.unused_data), io.SEEK_CUR)
    except zstandard.ZstdError:
        return b"", False
    return bytes(text), reader.eof


def _gunzip(data: bytes, name: str) -> tuple[bytes, bool]:
    import gzip
    import zlib

    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as reader:
            while chunk := reader.read1(_CHUNK):
                if out.tell() + len(chunk) > limit_of(len(data)):
                    raise too_large(name, len(data))
                out.write(chunk)
    except (EOFError, OSError, zlib.error) as error:
        pass_on(error)
        return _whole_members(data), False
    return out.getvalue(), True


def _whole_members(data: bytes) -> bytes:
    """Return the content of the members of gzip before the first that is damaged, as their checksums tell."""
    out = io.BytesIO()
    while data and out.tell() <= limit_of(len(data)):
        content, data = _member(data, limit_of(len(data)))
        out.write(content)
    return out.getvalue()


def _member(data: bytes, limit: int) -> tuple[bytes, bytes]:
    """Return the content of a member of gzip, and what is behind it; of a damaged one nothing, of one longer than *limit* its beginning."""
    import zlib

    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(data, limit)
    except zlib.error:
        return b"", b""
    return (content, reader.unused_data) if reader.eof or len(content) >= limit else (b"", b"")


def _beginning(data: bytes) -> bytes:
    """Return the content of the first member of gzip, or the beginning of a long one."""
    return _member(data, _CHUNK)[0]
