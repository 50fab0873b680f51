"""Reading logs, ours and others': every event with its place, its time, its narrative, its raw text, its value and its comments.

Whatever the bytes are, reading goes on to the end; what is wrong is said by line. Memory holds one event at a time (`stream_log`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from optree import FormatError, SetupError
from optree.exporting import Fault, is_list, is_object, line_blocks, open_file
from optree_formats import AnyPath
from optree_formats.markdown import foreign_yaml, own_yaml
from optree_formats.markdown.blocks import Fenced, Heading, Numbered, Text, documents, parted, pieces
from optree_formats.markdown.events import LogEvent, following, moment, since_midnight, unescape
from optree_formats.markdown.own_yaml import Comment, Comments, Place, place_of

_LANGUAGES = frozenset(["yaml", "yml", "json"])
_MAX_TEXT_LINES = 100_000
_MAX_BAD_LINES = 100
_HEAD = re.compile(r"(?:>\s*)?\*{0,2}(Session|Session ID|Started|Created|Date|Protocol)\*{0,2}\s*:(.*)", re.IGNORECASE)
_TITLE = re.compile(r"Session[ -]Log\s*[:—–-]\s*(.*)", re.IGNORECASE)
_STAMP = re.compile(r"\[?([\dT:.Z+ -]*\d(?:Z|[+-]\d\d:?\d\d)?)\]?(?:\s+[—–-]+\s+(.*)|\s*)")
_KIND = re.compile(r"(?:^|[{,])[ \t]*[\"']?(?:type|event)[\"']?[ \t]*:[ \t]*[\"']?([\w.-]+)", re.MULTILINE)
_DOCUMENT = re.compile(r"^(?:---|\.\.\.)(?=\s|$)[ \t]*(?:#.*)?\n?", re.MULTILINE)
_SEAL = re.compile(r"<!-- seal [0-9a-f]+ -->\s*")
_RULE = re.compile(r" {0,3}(?:-[ \t]*){3,}")


class Head(Struct):
    """What stands above the first event."""

    session_id: str = ""
    started: str = ""
    protocol: str = ""


class Entry(Struct):
    """One event of a log, or a section that has none."""

    line: int
    """Line of the heading; of the block, where it has none."""
    title: str = ""
    time: str = ""
    """Time as the heading has it."""
    at: float | None = None
    """When it was, in epoch milliseconds: by its timestamp, else by the heading's time, the log's start and the order of events."""
    narrative: str = ""
    after: str = ""
    """What stands behind the block, before the next heading."""
    raw: str = ""
    """The block as it stands."""
    block_line: int = 0
    """Line of the block's first line, behind its fence."""
    kind: str = ""
    """The event's type; empty where there is none."""
    number: int = 0
    """Its number among the log's events, from 1; 0 for a section without one."""
    fields: dict[str, Any] = {}
    comments: Comments = {}
    fault: str = ""
    """Why the block could not be read; what its text says is in *raw*."""

    def comment(self, name: str | Place) -> Comment:
        """Return the comments of a field, ``args.why``, or of the event itself, ``""``; raises `KeyError` for a field that is not there."""
        return self.comments.get(place_of(name, self.fields), Comment())

    def event(self) -> LogEvent:
        """Return it as an event that can be written."""
        event = LogEvent.of_plain(self.kind, self.fields, narrative=self.narrative, title=self.title, at=self.at)
        event.comments = dict(self.comments)
        return event


class Log(Struct):
    """A whole log."""

    head: Head
    entries: list[Entry]
    faults: list[Fault]


def read_log(path: AnyPath) -> Log:
    """Read a log, plain or packed with gzip or zstd. Raises `OSError`."""
    log = Log(Head(), [], [])
    with open_file(path) as source:
        for item in stream_log(source):
            if isinstance(item, Head):
                log.head = item
            elif isinstance(item, Entry):
                log.entries.append(item)
            else:
                log.faults.append(item)
    return log


def extract_events(path: AnyPath) -> list[dict[str, Any]]:
    """Return the fields of a log's events, in their order; what cannot be read is left out. Raises `OSError`."""
    return [entry.fields for entry in read_log(path).entries if entry.fields]


def stream_log(source: BinaryIO) -> Iterator[Head | Entry | Fault]:
    """Yield the head, then every event and fault as it is reached. Raises `OSError`."""
    reading = _LogReading()
    lines, is_yaml, named = parted(_lines(source, reading.faults))
    reading.head.session_id = named if is_yaml else ""
    for piece in documents(lines) if is_yaml else pieces(lines):
        if isinstance(piece, Text):
            reading.text(piece)
        elif isinstance(piece, Heading):
            reading.heading(piece)
        elif piece.language in _LANGUAGES:
            reading.block(piece)
        else:
            reading.other(piece)
        yield from reading.ready()
    reading.finish()
    yield from reading.ready()


def _lines(source: BinaryIO, faults: list[Fault]) -> Iterator[Numbered]:
    bad = 0
    number = 0
    try:
        for _, block in line_blocks(source):
            for line in block.removesuffix(b"\n").split(b"\n"):
                number += 1
                try:
                    yield number, line.removesuffix(b"\r").decode()
                except UnicodeDecodeError:
                    bad += 1
                    if bad <= _MAX_BAD_LINES:
                        faults.append(Fault(number, "is no UTF-8: what cannot be read is marked"))
                    yield number, line.removesuffix(b"\r").decode(errors="replace")
    except FormatError as error:
        faults.append(Fault(number + 1, str(error)))


class _LogReading:
    """Puts pieces together to entries."""

    def __init__(self) -> None:
        self.head = Head()
        self.faults: list[Fault] = []
        self._out: list[Head | Entry] = []
        self._headed = False
        self._section: Entry | None = None
        """The heading that the next block belongs to."""
        self._pending: Entry | None = None
        """The last entry, until it is known what stands behind it."""
        self._text: list[str] = []
        self._number = 0
        self._latest: float | None = None

    def ready(self) -> Iterator[Head | Entry | Fault]:
        yield from self._out
        yield from self.faults
        self._out.clear()
        self.faults.clear()

    def text(self, piece: Text) -> None:
        if not self._headed and (match := _HEAD.fullmatch(piece.text)):
            self._say(match[1].lower(), match[2].strip().strip("*` "))
        elif not _SEAL.fullmatch(piece.text) and len(self._text) < _MAX_TEXT_LINES:
            self._text.append(piece.text)

    def other(self, piece: Fenced) -> None:
        """Take a block of another language: it is part of the narrative."""
        fence = "`" * 3
        self._text += [f"{fence}{piece.language}", *piece.text.split("\n"), fence]

    def heading(self, piece: Heading) -> None:
        if piece.level == 1:
            if not self._headed and (match := _TITLE.fullmatch(piece.text)):
                self.head.session_id = self.head.session_id or match[1].strip()
            elif self._headed:
                self._text.append(f"# {piece.text}")
            return
        self._end_section()
        match = _STAMP.fullmatch(piece.text)
        stamp = match[1].strip() if match else ""
        timed = match is not None and (since_midnight(stamp) is not None or moment(stamp) is not None)
        title = (match[2] or "") if timed and match else piece.text
        self._section = Entry(piece.line, title.strip(), stamp if timed else "")

    def block(self, piece: Fenced) -> None:
        self._start()
        for entry in self._events(piece):
            self._flush()
            self._place(entry)
            self._pending = entry
        if not piece.whole:
            self.faults.append(Fault(piece.line - 1, "the block that begins here has no end: it was torn"))
        if piece.dropped:
            self.faults.append(
                Fault(piece.line - 1, f"the block that begins here is too long: {piece.dropped} characters of it are left out")
            )

    def finish(self) -> None:
        self._end_section()
        self._start()

    def _start(self) -> None:
        """Give out the head, once."""
        if not self._headed:
            self._headed = True
            self._latest = moment(self.head.started)
            self._out.insert(0, self.head)

    def _say(self, name: str, value: str) -> None:
        if name.startswith("session"):
            self.head.session_id = self.head.session_id or value
        elif name == "protocol":
            self.head.protocol = self.head.protocol or value
        else:
            self.head.started = self.head.started or value

    def _end_section(self) -> None:
        narrative = self._narrative()
        if self._pending is not None:
            self._pending.after = narrative
        elif self._section is not None:
            self._start()
            self._section.narrative = narrative
            self._time(self._section)
            self._out.append(self._section)
        elif narrative:
            self._start()  # text between the head and the first heading belongs to neither
        self._flush()
        self._section = None

    def _flush(self) -> None:
        if self._pending is not None:
            self._out.append(self._pending)
            self._pending = None

    def _narrative(self) -> str:
        lines = self._text
        self._text = []
        while lines and (not lines[-1].strip() or _RULE.fullmatch(lines[-1])):
            lines.pop()
        first = 0
        while first < len(lines) and (not lines[first].strip() or _RULE.fullmatch(lines[first])):
            first += 1
        return unescape("\n".join(lines[first:]))

    def _events(self, piece: Fenced) -> Iterator[Entry]:
        """Read a block: one event as a rule, several where it has several documents or a list of them, none that is whole if it is bad."""
        above = self._section or Entry(max(1, piece.line - 1))
        documents = _documents(piece.text)
        for offset, document in documents:
            line = piece.line + offset
            blank = Entry(above.line, above.title, above.time, raw=document, block_line=line)
            try:
                value, comments, mended = parse(document, json=piece.language == "json")
            except (FormatError, SetupError) as error:
                blank.fault = str(error)
                blank.kind = match[1] if (match := _KIND.search(document)) else ""
                self.faults.append(Fault(line, f"{blank.kind or 'a block'}: {error}; its text is kept"))
                yield blank
                continue
            self.faults += [Fault(line + number, what) for number, what in mended]
            found_any = False
            for fields, own in _maps(value, comments):
                found_any = True
                yield Entry(
                    above.line, above.title, above.time, raw=document, block_line=line, kind=_kind(fields), fields=fields, comments=own
                )
            if not found_any and (document.strip() or len(documents) == 1):
                blank.fault = "holds no event: no map of fields"
                self.faults.append(Fault(line, f"the block {blank.fault}; its text is kept"))
                yield blank

    def _place(self, entry: Entry) -> None:
        """Give an entry its narrative, number and time."""
        entry.narrative = self._narrative()
        if entry.kind:
            self._number += 1
            entry.number = self._number
        self._time(entry)

    def _time(self, entry: Entry) -> None:
        at = moment(entry.fields.get("timestamp"))
        if at is None and entry.time:
            at = moment(entry.time)
            day = since_midnight(entry.time)
            if at is None and day is not None and self._latest is not None:
                at = following(day, self._latest)
        entry.at = at if at is not None else self._latest
        self._latest = entry.at


def parse(text: str, *, json: bool = False) -> tuple[Any, Comments, list[tuple[int, str]]]:
    """Read one document: its value, its comments, and what was mended in it. Raises `FormatError`, `SetupError` without ruamel.yaml."""
    if json:
        try:
            return msgspec.json.decode(text.encode(errors="replace")), {}, []
        except (msgspec.DecodeError, RecursionError):
            pass  # with comments, perhaps, or a comma too many: YAML's flow form takes more
    if not text.strip():
        return None, {}, []
    try:
        value, comments = own_yaml.parse(text)
    except (own_yaml.NotOurs, RecursionError):
        foreign = foreign_yaml.parse(text)
        return foreign.value, foreign.comments, foreign.faults
    return value, comments, []


def _documents(text: str) -> list[tuple[int, str]]:
    """Return a block's documents, each with the number of its first line in the block."""
    if not _DOCUMENT.search(text):
        return [(0, text)]
    parts: list[tuple[int, str]] = []
    start = 0
    for mark in [*_DOCUMENT.finditer(text), None]:
        part = text[start : mark.start() if mark else len(text)]
        if part.strip():
            parts.append((text.count("\n", 0, start), part))
        start = mark.end() if mark else len(text)
    return parts or [(0, text)]


def _maps(value: Any, comments: Comments) -> Iterator[tuple[dict[str, Any], Comments]]:
    if is_object(value):
        yield value, comments
    elif is_list(value):
        for number, item in enumerate(value):
            if is_object(item):
                yield item, {place[1:]: comment for place, comment in comments.items() if place and place[0] == number}


def _kind(fields: dict[str, Any]) -> str:
    kind = fields.get("type", fields.get("event"))
    return kind if isinstance(kind, str) else "" if kind is None else str(kind)
