"""Reading a file of spans, whose content tells what it is: OTLP as protobuf, or JSON, OTLP's or Jaeger's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from optree import FormatError, NotFoundError
from optree.exporting import REAL, is_list, unpack
from optree_otel.incoming import jaeger_json, otlp_json
from optree_otel.incoming.otlp_protobuf import read_protobuf
from optree_otel.incoming.spans import InSpan, SpansRead


def read_file(path: str | Path) -> SpansRead:
    """Return the spans of a file in OTLP: JSON, JSON lines or protobuf, or in Jaeger's own JSON; plain, gzip or zstd.

    Spans that cannot be read are passed over, each with a note. Raises `NotFoundError`, `FormatError` (none of it is OTLP) and `OSError`.
    """
    path = Path(path)
    if path.is_dir():
        raise NotFoundError(f"{path} is a directory: name the files in it")
    try:
        data = REAL.read(path)  # not `Path.exists` before: from Python 3.14 on it is False where a directory may not be read
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{path} is no file: give one that a Collector's file exporter, Jaeger or Tempo has written") from error
    return read(data, path.name)


def read(data: bytes, name: str = "the input") -> SpansRead:
    """Return the spans in bytes; *name* is what messages call them. Raises `FormatError` if nothing in them is OTLP."""
    if not data:
        raise FormatError(f"{name} is empty: nothing was ever exported to it")
    content, whole = unpack(data)
    result = _read(name, content)
    if not whole:
        result.notes.append(f"{name} breaks off: only the beginning of its {len(data)} bytes could be unpacked")
    for span in result.spans:
        if 0 < span.end_ns < span.start_ns:
            result.notes.append(f"span {span.number} ends before it starts: it is taken to last no time")
    return result


def _read(name: str, data: bytes) -> SpansRead:
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return read_json(name, data)
        except FormatError:
            if data[:1] != b"\n":  # a newline is also how protobuf may begin
                raise
    return read_protobuf(name, data)


def read_json(name: str, data: bytes) -> SpansRead:
    """Return the spans of a JSON file. Raises `FormatError` if it holds none of what is known."""
    result = SpansRead()
    seen = False
    for label, document in _documents(name, data, result.notes):
        traces = jaeger_json.traces(document)
        if traces is not None:
            seen = seen or bool(traces)
            for span, processes in traces:
                _take(result, jaeger_json.to_span, span, processes)
        elif (parts := otlp_json.parts(label, document, result.notes)) is not None:
            seen = True
            for part in parts:
                _take(result, otlp_json.to_span, *part)
    if not seen:
        message = f" ({result.notes[0]})" if result.notes else ""
        raise FormatError(
            f"{name} is JSON, but holds no OTLP spans{message}: it has no 'resourceSpans', nor the 'data' of a Jaeger's answer"
        )
    return result


def _take(collected: SpansRead, make: Callable[..., InSpan], *parts: Any) -> None:
    number = len(collected.spans) + len(collected.notes) + 1
    try:
        span = make(*parts)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        collected.notes.append(f"span {number} is passed over: {error}")
        return
    span.number = number
    collected.spans.append(span)


def _documents(name: str, data: bytes, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each document with what to call it; lines that are no JSON are noted."""
    try:
        whole = msgspec.json.decode(data)
    except RecursionError:
        notes.append(f"{name} is nested too deeply to be OTLP")
        return
    except msgspec.DecodeError:
        yield from _lines(data, notes)
        return
    if is_list(whole):
        yield from ((f"document {number}", document) for number, document in enumerate(whole, 1))
    else:
        yield name, whole


def _lines(data: bytes, notes: list[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                notes.append(f"line {number} is no JSON and is passed over: {error}")
