"""Compressing and unpacking: zstd, gzip or none. The libraries are imported where they are used, to keep `import optree` quick."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import BinaryIO

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
MAX_BYTES = 4 << 30
"""Most that a file may unpack to: a few bytes can ask for terabytes."""
_WINDOW = 8 << 20
_CHUNK = 1 << 20
_SMALL_CHUNK = 1 << 10


def compressor(name: str) -> Callable[[bytes], bytes]:
    """Return what makes a frame of bytes; frames one after the other are one file. *name* is `zstd`, `gzip` or `none`."""
    if name == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress
    return _gzip if name == "gzip" else bytes


def unpacked_frames(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield the contents of zstd frames, for a check before a file is used. Raises what zstandard raises."""
    import zstandard

    decompress = zstandard.ZstdDecompressor().decompressobj
    for piece in pieces:
        yield decompress().decompress(piece)


def unpack(data: bytes) -> tuple[bytes, bool]:
    """Return a file's content, and whether all of it could be unpacked; what is in no known format is returned as it is."""
    if data[:4] == ZSTD:
        return _unzstd(data)
    return _gunzip(data) if data[:2] == GZIP else (data, True)


def first_frame(file: BinaryIO) -> bytes:
    """Return the content of a file's first frame, or its beginning where it has no frames; what can be read of it."""
    start = file.read(1 << 16)
    if start[:4] != ZSTD:
        return _gunzip(start + file.read(), 1 << 20)[0] if start[:2] == GZIP else start + file.read()
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    text = b""
    try:
        text = reader.decompress(start)
        while not reader.eof and (more := file.read(1 << 16)):
            text += reader.decompress(more)
    except zstandard.ZstdError:
        pass
    return text


def _gzip(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, 6, mtime=0)


def _unzstd(data: bytes) -> tuple[bytes, bool]:
    import zstandard

    out = io.BytesIO()
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data, read_across_frames=True)
    try:
        while chunk := reader.read(_CHUNK):
            if out.tell() + len(chunk) > MAX_BYTES:
                return out.getvalue(), False
            out.write(chunk)
    except zstandard.ZstdError:
        out.close()
        return _before_damage(data), False
    return out.getvalue(), True


def _before_damage(data: bytes) -> bytes:
    """Return what can be unpacked of zstd frames before the first error: read in small pieces, since an error loses its whole piece."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    reader = decompressor.decompressobj()
    out = io.BytesIO()
    position = 0
    try:
        while position < len(data) and out.tell() <= MAX_BYTES:
            piece = data[position : position + _SMALL_CHUNK]
            out.write(reader.decompress(piece))
            position += len(piece)
            if reader.eof:
                position -= len(reader.unused_data)
                reader = decompressor.decompressobj()
    except zstandard.ZstdError:
        pass
    return out.getvalue()


def _gunzip(data: bytes, limit: int | None = None) -> tuple[bytes, bool]:
    import gzip
    import zlib

    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as reader:
            while chunk := reader.read1(_CHUNK):
                if out.tell() + len(chunk) > (MAX_BYTES if limit is None else limit):
                    return out.getvalue(), False
                out.write(chunk)
    except (EOFError, OSError, zlib.error):
        return out.getvalue(), False
    return out.getvalue(), True
