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
from msgspec import Raw, Struct

from optree import FormatError, LogEntry, Op, SessionTreeBuilder, Tree
from optree.exporting import (
    Fault,
    Format,
    OpKind,
    PooledHistory,
    Read,
    Severity,
    Status,
    TypedDecoder,
    is_list,
    is_object,
    open_file,
    open_regular,
    text,
    txn_of,
)
from optree_formats.agents.lines import decoded, member
from optree_formats.agents.recording import SessionRecording, text_in, time_of

_ATTACHMENT = "attachment://"
_MOST_NESTED = 100
_USAGE_NAMES = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "input_tokens_cache_read": "cache_read_input_tokens",
    "input_tokens_cache_write": "cache_creation_input_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "total_cost": "total_cost",
}
"""Members of Inspect's usage, and their names elsewhere; its input is without cached tokens."""
_SILENT = frozenset(
    {"sample_init", "sample_limit", "sandbox", "state", "store", "input", "score", "score_edit", "error", "info", "approval", "step",
     "subtask", "compaction", "interrupt", "anchor", "checkpoint", "branch"}
)  # fmt: skip
_SEVERITIES: dict[str, Severity] = {"warning": "WRN", "error": "ERR", "critical": "ERR"}


class _InspectPlace(Struct):
    """Where what happens in a span goes."""

    recording: SessionRecording
    agents: int = 0
    """How many agents it is in."""
    op: Op | None = None
    """The op that the span itself ends: that of a sub-agent."""
    alone: bool = False
    """True if no tool's event has that op's end."""
    sent: tuple[list[Any], PooledHistory] = ([], PooledHistory())
    """What the last call of a model here was sent."""


class Sample(SessionRecording):
    """Records one sample."""

    def __init__(self, builder: SessionTreeBuilder, sample: dict[str, Any], notes: list[str]) -> None:
        super().__init__(builder)
        self._sample, self._notes = sample, notes
        messages = member(sample, "events_data", "messages")
        self._messages: list[Any] = messages if is_list(messages) else []
        attachments = sample.get("attachments")
        self._attachments: dict[str, Any] = attachments if is_object(attachments) else {}
        self._root = _InspectPlace(self)
        self._places: dict[str, _InspectPlace] = {}
        self._called: dict[str, Op] = {}
        """Ops of tools that are agents, by the agents' spans."""
        self._unknown: set[str] = set()
        self._last: Op | None = None

    def take(self, event: Any) -> None:
        """Record an event; what is not understood is noted, each once."""
        kind, ts = text(member(event, "event")), time_of(member(event, "timestamp"))
        if ts is None:
            self._note("an event has no time: passed over")
        elif kind == "model":
            self._model(event, ts)
        elif kind == "tool":
            self._tool(event, ts)
        elif kind == "span_begin":
            self._begin_span(event, ts)
        elif kind == "span_end":
            self._end_span(event, ts)
        elif kind == "logger":
            self._logged(event, ts)
        elif kind not in _SILENT:
            self._note(f"events of type {kind[:80]!r} are not known: passed over")

    def close(self, ended: float | None) -> None:
        """End the session as the sample says it ended; one that is not complete stays open."""
        messages = self._sample.get("messages")
        for message in messages if is_list(messages) else []:
            if is_object(message):
                self.say(self._whole(message), self.latest)
        if ended is None:
            return
        error, limit = self._sample.get("error"), self._sample.get("limit")
        error_text = text(error.get("message")) if is_object(error) else None
        if error_text is None and is_object(limit):
            error_text = f"limit of {text(limit.get('type'))} reached: {text(limit.get('limit'))}"
        status: Status = "ok" if error_text is None else "failed"
        answer = member(self._sample, "output", "completion")
        report = {"answer": answer, "target": self._sample.get("target"), "scores": self._sample.get("scores")}
        self.end_turn(ended, status, error_text, answer if isinstance(answer, str) else None)
        self.end(ended, status, error_text, {name: value for name, value in report.items() if value})

    def _note(self, note: str) -> None:
        if note not in self._unknown:
            self._unknown.add(note)
            self._notes.append(note)

    def _place(self, span: Any) -> _InspectPlace:
        return self._places.get(span, self._root) if isinstance(span, str) else self._root

    def _begin_span(self, event: dict[str, Any], ts: float) -> None:
        identity, above = text(event.get("id") or ""), self._place(event.get("parent_id"))
        place = _InspectPlace(above.recording, above.agents, sent=above.sent)
        if event.get("type") == "agent":
            place.agents += 1
            if above.agents:
                self._sub_agent(place, identity, text(event.get("name") or "agent"), ts)
        self._places[identity] = place

    def _sub_agent(self, place: _InspectPlace, identity: str, name: str, ts: float) -> None:
        op = self._called.pop(identity, None)
        place.alone = op is None
        place.op = op or place.recording.tool(name, ts, None, "session")
        builder = place.recording.child(place.op, name, ts)
        if builder is None:
            self._note("agents that are nested too deeply stay ops")
            return
        place.recording = SessionRecording(builder)
        place.recording.begin_turn(ts)

    def _end_span(self, event: dict[str, Any], ts: float) -> None:
        place = self._places.get(text(event.get("id") or ""))
        if place is None or place.op is None:
            return
        status: Status = "failed" if place.op.node.status == "failed" else "ok"
        if place.recording.builder.path == place.op.path:
            place.recording.end_turn(ts, status, place.op.node.error)
            place.recording.end(ts, status, place.op.node.error)
        if place.alone:
            self.finish(place.op, ts, "ok")
        place.op = None

    # Calls

    def _model(self, event: dict[str, Any], ts: float) -> None:
        place = self._place(event.get("span_id"))
        provider, slash, model = text(event.get("model") or "unknown").partition("/")
        recording = place.recording
        recording.history = self._history(place, event)
        members = {name: event[name] for name in ("tools", "tool_choice", "config") if event.get(name)}
        known = {"cache": event.get("cache"), "role": event.get("role"), "retries": event.get("retries")}
        op = recording.call(provider if slash else "unknown", model if slash else provider, ts, members, known)
        self._last = op
        if event.get("pending") is True:
            return
        ended = time_of(event.get("completed")) or ts
        error = event.get("error")
        choices = member(event, "output", "choices")
        message = choices[0].get("message") if is_list(choices) and choices and is_object(choices[0]) else None
        message = self._whole(message) if is_object(message) else None
        if error is None:
            recording.answer(op, ended, message)
        if event.get("cache") != "read":  # that is an answer of before, which took its tokens then
            recording.account(op, ended, _usage(member(event, "output", "usage")), failed=error is not None)
        content = member(message, "content")
        thoughts = [text(block.get("reasoning") or "") for block in content if is_object(block)] if is_list(content) else []
        error_text = None if error is None else text(error)
        stop = choices[0].get("stop_reason") if message is not None and is_list(choices) else None
        recording.finish(
            op, ended, "ok" if error is None else "failed", error_text, "\n".join(filter(None, thoughts)), {"stopReason": stop}
        )

    def _tool(self, event: dict[str, Any], ts: float) -> None:
        recording = self._place(event.get("span_id")).recording
        agent = event.get("agent_span_id")
        name, identity = text(event.get("function") or "tool"), event.get("id")
        kind: OpKind = "session" if isinstance(agent, str) else "tool"
        op = recording.tool(name, ts, self._whole(event.get("arguments")), kind, {"toolCallId": identity})
        self._last = op
        if isinstance(agent, str):
            self._called[agent] = op
        if event.get("pending") is True:
            return
        ended = time_of(event.get("completed")) or ts
        error = event.get("error")
        error_text = None if error is None else text(error.get("message") if is_object(error) else error)
        recording.answer(op, ended, self._whole(event.get("result")) or None)
        recording.finish(op, ended, "ok" if error is None else "failed", error_text)

    def _logged(self, event: dict[str, Any], ts: float) -> None:
        message = event.get("message")
        if self._last is not None and is_object(message):
            severity = _SEVERITIES.get(text(message.get("level")), "VRB")
            self.log(self._last, [LogEntry(ts, severity, text_in(message.get("message")))])

    # What events refer to

    def _history(self, place: _InspectPlace, event: dict[str, Any]) -> PooledHistory:
        """Return what a model was sent; a history that goes on from the last one costs what is new."""
        refs, inputs = event.get("input_refs"), event.get("input")
        keys: list[Any] = [*_expanded(refs, len(self._messages)), *(inputs if is_list(inputs) else [])]
        before, history = place.sent
        if keys[: len(before)] != before:
            before, history = [], PooledHistory()
        for key in keys[len(before) :]:
            message = self._messages[key] if isinstance(key, int) else key
            history = self.builder.core.appended(history, self._whole(message))
        place.sent = (keys, history)
        return history

    def _whole(self, value: Any, depth: int = 0) -> Any:
        """Return a value with its attachments in their places."""
        if isinstance(value, str):
            return self._attachments.get(value.removeprefix(_ATTACHMENT), value) if value.startswith(_ATTACHMENT) else value
        if depth > _MOST_NESTED:
            return value
        if is_object(value):
            return {name: self._whole(item, depth + 1) for name, item in value.items()}
        return [self._whole(item, depth + 1) for item in value] if is_list(value) else value


def _expanded(refs: Any, most: int) -> list[int]:
    """Return the places of messages that ranges name."""
    places: list[int] = []
    for bounds in refs if is_list(refs) else []:
        if is_list(bounds) and len(bounds) == 2 and all(type(end) is int for end in bounds):  # noqa: PLR2004 - first and behind the last
            places += range(max(0, bounds[0]), min(bounds[1], most))
        if len(places) > most:
            break
    return places


def _usage(usage: Any) -> dict[str, Any]:
    return {_USAGE_NAMES.get(name, name): value for name, value in usage.items() if value is not None} if is_object(usage) else {}


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
            found = decoded(archive.read(heads[head])) if head in heads else None
            log = log or (found if is_object(found) else {})
    samples = ((name, _LaterSample(archive, entry)) for name, entry in heads.items() if _SAMPLE.fullmatch(name))
    return log, samples


def _document(data: bytes, name: str) -> tuple[dict[str, Any], Iterator[tuple[str, _LaterSample]]]:
    """Return what a log in JSON says of its evaluation, and its samples."""
    try:
        members = _members(data)
        samples = _items(bytes(members.pop("samples"))) if "samples" in members else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{name} is no log of Inspect: {text(error)}") from error
    log = {key: decoded(value) for key, value in members.items() if key in ("eval", "status", "error")}
    return log, ((f"sample {number}", _LaterSample(None, sample)) for number, sample in enumerate(samples, 1))


def _tree(log: dict[str, Any], data: bytes, notes: list[str]) -> Tree | None:
    """Return a sample's tree; None for one that never began."""
    raw = _members(data)
    events = _events(raw.pop("events", None), notes)
    sample = {name: decoded(value) for name, value in raw.items()}
    about = log.get("eval")
    began = time_of(sample.get("started_at"))
    first = next((ts for event in events if (ts := time_of(member(decoded(event), "timestamp"))) is not None), None)
    known = [ts for ts in (began, first) if ts is not None]
    if not known:
        notes.append("never began, and is left out")
        return None
    names = [text(sample.get("id")), text(sample.get("epoch"))]
    identity = sample.get("uuid") if isinstance(sample.get("uuid"), str) else "-".join([text(member(about, "run_id")), *names])
    kept = {"sampleId": sample.get("id"), "epoch": sample.get("epoch"), "task": member(about, "task"), "model": member(about, "model")}
    attributes = {name: value for name, value in kept.items() if value is not None}
    agent = text(member(about, "task") or AGENT)
    builder = SessionTreeBuilder(agent, txn=txn_of(identity, AGENT), attributes={"ingress": {"source": AGENT}, **attributes}, at=min(known))
    recording = Sample(builder, sample, notes)
    recording.begin_turn(min(known), _asked(sample.get("input")))
    for event in events:
        recording.take(decoded(event))
    recording.close(time_of(sample.get("completed_at")))
    return builder.tree


def _events(data: Raw | None, notes: list[str]) -> list[Raw]:
    try:
        return [] if data is None else _items(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        notes.append(f"its events cannot be read: {text(error)}")
        return []


def _asked(value: Any) -> str | None:
    """Return what a sample asks: its text, or the last message of the user's."""
    if isinstance(value, str):
        return value
    messages = value if is_list(value) else []
    texts = [text_in(message.get("content")) for message in messages if is_object(message) and message.get("role") == "user"]
    return texts[-1] if texts else None
