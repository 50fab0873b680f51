"""Reading a file of spans: what it is, its content tells."""

from __future__ import annotations

from pathlib import Path

from optree import FormatError, NotFoundError
from optree.exporting import REAL, unpack
from optree_otel.incoming.json_files import read_json
from optree_otel.incoming.otlp_protobuf import read_protobuf
from optree_otel.incoming.spans import SpansRead


def read_file(path: str | Path) -> SpansRead:
    """Return the spans of a file in OTLP: JSON, JSON lines or protobuf, or in Jaeger's own JSON; plain, gzip or zstd.

    Spans that cannot be read are passed over, each with a note. Raises `NotFoundError`, `FormatError` (none of it is OTLP) and `OSError`.
    """
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"{path} is no file: give one that a Collector's file exporter, Jaeger or Tempo has written")
    if path.is_dir():
        raise NotFoundError(f"{path} is a directory: name the files in it")
    return read(REAL.read(path), path.name)


def read(data: bytes, name: str = "the input") -> SpansRead:
    """Return the spans in bytes; *name* is what messages call them. Raises `FormatError` if nothing in them is OTLP."""
    if not data:
        raise FormatError(f"{name} is empty: nothing was ever exported to it")
    content, whole = unpack(data)
    found = _read(name, content)
    if not whole:
        found.notes.append(f"{name} breaks off: only the beginning of its {len(data)} bytes could be unpacked")
    for span in found.spans:
        if 0 < span.end_ns < span.start_ns:
            found.notes.append(f"span {span.number} ends before it starts: it is taken to last no time")
    return found


def _read(name: str, data: bytes) -> SpansRead:
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return read_json(name, data)
        except FormatError:
            if data[:1] != b"\n":  # a newline is also how protobuf may begin
                raise
    return read_protobuf(name, data)
