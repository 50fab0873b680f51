"""Files of JSON: one document, a list of them, or one a line; each is OTLP, or what a Jaeger's page and its older API give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from optree import FormatError
from optree.exporting import is_list
from optree_otel.incoming import jaeger_json, otlp_json
from optree_otel.incoming.spans import InSpan, SpansRead


def read_json(name: str, data: bytes) -> SpansRead:
    """Return the spans of a JSON file. Raises `FormatError` if it holds none of what is known."""
    found = SpansRead()
    seen = False
    for label, document in _documents(name, data, found.notes):
        traces = jaeger_json.traces(document)
        if traces is not None:
            seen = seen or bool(traces)
            for span, processes in traces:
                _take(found, jaeger_json.made, span, processes)
        elif (parts := otlp_json.parts(label, document, found.notes)) is not None:
            seen = True
            for part in parts:
                _take(found, otlp_json.made, *part)
    if not seen:
        said = f" ({found.notes[0]})" if found.notes else ""
        raise FormatError(f"{name} is JSON, but holds no OTLP spans{said}: it has no 'resourceSpans', nor the 'data' of a Jaeger's answer")
    return found


def _take(found: SpansRead, make: Callable[..., InSpan], *parts: Any) -> None:
    number = len(found.spans) + len(found.notes) + 1
    try:
        made = make(*parts)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        found.notes.append(f"span {number} is passed over: {error}")
        return
    made.number = number
    found.spans.append(made)


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
