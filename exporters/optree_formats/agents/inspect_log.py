"""Inspect's logs, `.eval` and JSON: each sample of an evaluation is a session. An `.eval` is a zip archive with a file a sample.

Events are read one by one; what they refer to (messages, attachments) is put back in their place. What the archive unpacks to is bounded.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard
from msgspec import Raw

from optree import FormatError, SessionTreeBuilder, Tree
from optree.exporting import Fault, Format, Read, TypedDecoder, decode, is_list, is_object, open_file, open_regular, text, txn_of
from optree_formats.agents.inspect_events import Sample
from optree_formats.agents.recording import text_in, time_of

AGENT = "inspect"
_ZIP = b"PK\x03\x04"
_NAMES = (b"_journal/", b"header.json", b"samples/", b"summaries.json")
_JSON = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*(?:"status"\s*:\s*"\w+"\s*,\s*)?(?:"invalidated"\s*:\s*\w+\s*,\s*)?"eval"\s*:\s*\{')
_SAMPLE = re.compile(r"samples/[^/]+\.json")
_LOCAL_HEADER = 30
_STORED, _DEFLATED, _ZSTD = 0, 8, 93
_MOST_BYTES, _MOST_RATIO, _SPARE_BYTES = 1 << 30, 200, 64 << 20
"""An archive may unpack to so much, or if that is more to so many times its size and a rest."""
_WINDOW = 128 << 20
_BROKEN = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    zlib.error,
    zstandard.ZstdError,
    struct.error,
    IndexError,
    OverflowError,
)
"""What a file that is not as it should be raises."""
_members: TypedDecoder[dict[str, Raw]] = TypedDecoder(dict[str, Raw])
_items: TypedDecoder[list[Raw]] = TypedDecoder(list[Raw])


class InspectLog(Format):
    """The logs of Inspect; read, not written."""

    name = "inspect"
    suffix = ""
    about = "logs of Inspect, .eval or JSON: each sample a session (read only)"
    cannot_hold: tuple[str, ...] = ()

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by the names of the archive's first files, or by how a log in JSON begins."""
        if path.is_dir():
            return False
        return (head.startswith(_ZIP) and head[_LOCAL_HEADER:].startswith(_NAMES)) or _JSON.match(head) is not None

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read all samples of a log; one that cannot be read is a fault."""
        with open_regular(path) as plain, open_file(path) as file:
            if plain.read(len(_ZIP)) == _ZIP:  # read in its place: only what samples need is in memory
                return self._samples(path, *_archive(plain, path.stat().st_size, path.name), strict=strict)
            try:
                data = file.read()
            except EOFError as error:
                raise FormatError(f"{path.name}: {error}") from error
        contents = _archive(io.BytesIO(data), len(data), path.name) if data.startswith(_ZIP) else _document(data, path.name)
        return self._samples(path, *contents, strict=strict)

    def _samples(self, path: Path, log: dict[str, Any], samples: Iterator[tuple[str, _LaterSample]], *, strict: bool) -> Read:
        read = Read([], [])
        for name, sample in samples:
            notes: list[str] = []
            try:
                tree = _tree(log, sample(), notes)
            except _BROKEN as error:
                notes.append(f"cannot be read, and is left out: {text(error)}")
                tree = None
            if strict and notes:
                raise FormatError(f"{path.name}: {name}: {notes[0]}")
            read.faults += (Fault(0, f"{name}: {note}") for note in notes)
            read.trees += [] if tree is None else [tree]
        return read


INSPECT = InspectLog()


class _LaterSample:
    """A sample's bytes, made when they are asked for, so that one at a time is held."""

    def __init__(self, archive: _SampleArchive | None, entry: Any) -> None:
        self._archive, self._entry = archive, entry

    def __call__(self) -> bytes:
        return bytes(self._entry) if self._archive is None else self._archive.read(self._entry)


class _SampleArchive:
    """A zip archive, whose files are unpacked within one bound."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._size, self._name = file, size, name
        self._left = max(_MOST_BYTES, _MOST_RATIO * size + _SPARE_BYTES)
        try:
            with zipfile.ZipFile(file) as archive:
                self.entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, *_BROKEN) as error:
            raise FormatError(f"{name} is no whole archive: {error}") from error

    def read(self, entry: zipfile.ZipInfo) -> bytes:
        """Return a file. Raises `FormatError` where all together unpack to too much, and what the packings raise."""
        self._file.seek(entry.header_offset)
        names = struct.unpack_from("<HH", self._file.read(_LOCAL_HEADER), 26)
        self._file.seek(entry.header_offset + _LOCAL_HEADER + sum(names))
        packed = self._file.read(min(entry.compress_size, self._size))
        if entry.compress_type == _ZSTD:
            reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(packed, read_across_frames=True)
            data = reader.read(self._left + 1)
        elif entry.compress_type == _DEFLATED:
            data = zlib.decompressobj(-15).decompress(packed, self._left + 1)
        elif entry.compress_type == _STORED:
            data = packed
        else:
            raise FormatError(f"{self._name}: {entry.filename} is packed in a way that is not known ({entry.compress_type})")
        self._left -= len(data)
        if self._left < 0:
            raise FormatError(f"{self._name} unpacks to too much from {self._size} bytes: it is not read further")
        return data


def _archive(file: BinaryIO, size: int, name: str) -> tuple[dict[str, Any], Iterator[tuple[str, _LaterSample]]]:
    """Return what an archive says of its evaluation, and its samples."""
    archive = _SampleArchive(file, size, name)
    heads = {entry.filename: entry for entry in archive.entries}
    log: dict[str, Any] = {}
    for head in ("header.json", "_journal/start.json"):
        with suppress(*_BROKEN):
            log = log or (_object(archive.read(heads[head])) if head in heads else {})
    samples = ((name, _LaterSample(archive, entry)) for name, entry in heads.items() if _SAMPLE.fullmatch(name))
    return log, samples


def _document(data: bytes, name: str) -> tuple[dict[str, Any], Iterator[tuple[str, _LaterSample]]]:
    """Return what a log in JSON says of its evaluation, and its samples."""
    try:
        members = _members(data)
        samples = _items(bytes(members.pop("samples"))) if "samples" in members else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{name} is no log of Inspect: {text(error)}") from error
    log = {key: _value(value) for key, value in members.items() if key in ("eval", "status", "error")}
    return log, ((f"sample {number}", _LaterSample(None, sample)) for number, sample in enumerate(samples, 1))


def _object(data: bytes) -> dict[str, Any]:
    value = _value(Raw(data))
    return value if is_object(value) else {}


def _value(data: Raw) -> Any:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _tree(log: dict[str, Any], data: bytes, notes: list[str]) -> Tree | None:
    """Return a sample's tree; None for one that never began."""
    raw = _members(data)
    events = _events(raw.pop("events", None), notes)
    sample = {name: _value(value) for name, value in raw.items()}
    about = log.get("eval")
    began = time_of(sample.get("started_at"))
    first = next((ts for event in events if (ts := _time(event)) is not None), None)
    known = [ts for ts in (began, first) if ts is not None]
    if not known:
        notes.append("never began, and is left out")
        return None
    names = [text(sample.get("id")), text(sample.get("epoch"))]
    identity = sample.get("uuid") if isinstance(sample.get("uuid"), str) else "-".join([text(_of(about, "run_id")), *names])
    kept = {"sampleId": sample.get("id"), "epoch": sample.get("epoch"), "task": _of(about, "task"), "model": _of(about, "model")}
    attributes = {name: value for name, value in kept.items() if value is not None}
    agent = text(_of(about, "task") or AGENT)
    builder = SessionTreeBuilder(agent, txn=txn_of(identity, AGENT), attributes={"ingress": {"source": AGENT}, **attributes}, at=min(known))
    recording = Sample(builder, sample, notes)
    recording.begin_turn(min(known), _asked(sample.get("input")))
    for event in events:
        recording.take(_value(event))
    recording.close(time_of(sample.get("completed_at")))
    return builder.tree


def _events(data: Raw | None, notes: list[str]) -> list[Raw]:
    try:
        return [] if data is None else _items(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        notes.append(f"its events cannot be read: {text(error)}")
        return []


def _time(event: Raw) -> float | None:
    value = _value(event)
    return time_of(value.get("timestamp")) if is_object(value) else None


def _asked(value: Any) -> str | None:
    """Return what a sample asks: its text, or the last message of the user's."""
    if isinstance(value, str):
        return value
    messages = value if is_list(value) else []
    texts = [text_in(message.get("content")) for message in messages if is_object(message) and message.get("role") == "user"]
    return texts[-1] if texts else None


def _of(about: Any, name: str) -> Any:
    return about.get(name) if is_object(about) else None
