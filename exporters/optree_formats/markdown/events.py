"""An event of the log, and how it is written: a heading, its narrative, a block of YAML and a rule, at three levels of verbosity.

Seed 003 names the types and their fields; fields beyond them are welcome, and other types too. What cannot stand in a log is refused
with the error that its companion, the tool calling protocol, describes: ``{code, message, recoverable, suggestion}``. Nothing that an event
says can be taken for the log's own marks: titles are one line, and lines of a narrative that Markdown or a reader would take for a heading,
a fence, a rule or a comment are escaped with a backslash, which Markdown does not show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from optree import SetupError
from optree.exporting import clean, cut, is_list, is_object, plain, text
from optree_formats.markdown.own_yaml import Comments, Place, Where, add, emit, place_of, under

DAY = 86_400_000.0
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|[+-]\d\d:?\d\d)?")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = 1e18
_LAST = 253_402_300_800_000.0


def iso(ms: float) -> str | float:
    """Return a time as ISO 8601; as the number itself where that would not give it back."""
    if not 0 <= ms < _LAST:
        return ms
    whole, _, parts = f"{ms:.4f}".partition(".")
    seconds, milli = divmod(int(whole), 1000)
    fraction = f"{milli:03d}{parts}".rstrip("0")
    written = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"
    return written if moment(written) == ms else ms


def clock(ms: float) -> str:
    """Return a time of day as headings show it."""
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%H:%M:%S") if 0 <= ms < _LAST else "00:00:00"


def moment(value: object) -> float | None:
    """Return the epoch milliseconds of a time as `iso` writes it, or others do; None for any other value. Without a zone it is UTC."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) < _NEVER else None
    match = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    try:
        day = datetime(*(int(part or 0) for part in match.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    seconds = int((day - _EPOCH).total_seconds()) - _offset(match[8])
    digits = (match[7] or "").ljust(9, "0")
    return float(f"{seconds * 1000 + int(digits[:3])}.{digits[3:]}") if seconds >= 0 else seconds * 1000.0


def since_midnight(stamp: str) -> float | None:
    """Return the milliseconds since midnight of a heading's time; None for a text that is not a time."""
    match = _CLOCK.fullmatch(stamp)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59 or int(match[3] or 0) > 60:  # noqa: PLR2004 - a clock's
        return None
    digits = (match[4] or "").ljust(9, "0")
    return float(f"{((int(match[1]) * 60 + int(match[2])) * 60 + int(match[3] or 0)) * 1000 + int(digits[:3])}.{digits[3:]}")


def _offset(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)


def following(time_of_day: float, latest: float) -> float:
    """Return the moment of a time of day that comes behind *latest*: on its day, or the next if that is half a day earlier or more."""
    midnight = latest - latest % DAY
    days = 1 if latest - (midnight + time_of_day) > DAY / 2 else 0
    return midnight + days * DAY + time_of_day


PROTOCOL = "EVENT-LOG/0.2"
Verbosity = Literal["minimal", "standard", "verbose"]
Code = Literal[
    "NOT_FOUND", "PERMISSION_DENIED", "TIMEOUT", "INVALID_ARGS", "MISSING_WHY", "QUOTA_EXCEEDED", "SESSION_ENDED",
]  # fmt: skip


class Kind(NamedTuple):
    """The seed's rules for a type: the fields that it must have, and those that it may have."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "session_start": Kind(("session_id", "protocol"), ("timestamp", "purpose")),
    "session_end": Kind(("session_id", "reason"), ("timestamp", "stats")),
    "tool_call": Kind(("tool", "call_id", "args")),
    "tool_result": Kind(("call_id", "success"), ("duration_ms", "result")),
    "tool_error": Kind(("call_id", "error")),
    "model_input": Kind((), ("timestamp", "tokens", "files_in_context", "budget_usage")),
    "model_output": Kind((), ("timestamp", "tokens", "tool_calls", "text_length")),
    "context_assembly": Kind((), ("timestamp", "budget", "used", "included", "excluded", "warning")),
    "gc_run": Kind((), ("trigger", "freed_tokens", "files_affected", "action")),
    "repair": Kind(("demon", "action"), ("path", "stub_contents")),
    "bootstrap": Kind(("files_created",)),
    "user_message": Kind((), ("timestamp", "length", "attachments")),
    "user_approval": Kind(("action", "approved"), ("tool", "command_preview")),
    "recovery": Kind(("from", "backup")),
    "model_turn": Kind(),
    "working_set_update": Kind(),
    "cache_advice": Kind(),
    "summary_created": Kind(),
    "error": Kind(),
    "warning": Kind(),
}
"""The types of the seed, and of the schema that goes with it (the last six)."""
TIMED = frozenset(name for name, kind in KINDS.items() if "timestamp" in kind.optional)
"""Types that have their timestamp in the block as well as in the heading."""
_TYPE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class Refused(SetupError):  # noqa: N818 - what happened to the event, as its sender reads it
    """An event that the log does not take; *error* is the answer for the caller."""

    def __init__(self, code: Code, message: str, suggestion: str, *, recoverable: bool = True) -> None:
        super().__init__(f"{code}: {message}: {suggestion}")
        self.error: dict[str, Any] = {"code": code, "message": message, "recoverable": recoverable, "suggestion": suggestion}


class LogEvent:
    """One event, to be written. *at* is its time in epoch milliseconds; by default that of its writing.

    Values are taken as plain data (`optree._values.plain`); of a ruamel.yaml `CommentedMap` the comments too.
    """

    def __init__(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        /,
        *,
        narrative: str = "",
        title: str = "",
        at: float | None = None,
        **more: Any,
    ) -> None:
        members = dict(fields or {})
        members.pop("type", None)
        self.fields: dict[str, Any] = {"type": text(kind), **plain(members), **plain(more)}
        self.comments: Comments = {}
        self.narrative = text(narrative)
        self.title = text(title)
        self.at = at
        self.levels: dict[tuple[Place, Where], frozenset[Verbosity]] = {}
        """Levels at which a comment is shown, where they were given."""
        self.details: set[Place] = set()
        """Fields that only `verbose` shows."""
        if hasattr(fields, "ca"):
            self._take_comments(fields)

    @classmethod
    def of_plain(cls, kind: str, fields: Mapping[str, Any], *, narrative: str = "", title: str = "", at: float | None = None) -> LogEvent:
        """Return an event of fields that are plain data already, and are taken as they are, however long or deep."""
        event = cls(kind, narrative=narrative, title=title, at=at)
        event.fields = {**event.fields, **fields, "type": event.kind}
        return event

    @property
    def kind(self) -> str:
        """The event's type."""
        return str(self.fields["type"])

    def comment(self, name: str | Place, said: str, *, where: Where | None = None, at: tuple[Verbosity, ...] | None = None) -> LogEvent:
        """Attach a comment to a field (``args.why``, ``included.0``), or to the event (``""``); returns the event.

        It stands *before* its field, *beside* it, or at the *end* inside it; the event's own stand at its end, unless said else. *at* names
        the levels that show it: by default all that show the field and comments. Raises `KeyError` for a field that is not there.
        """
        place = place_of(name, self.fields)
        known: Where = where or ("before" if place else "end")
        if place == ("type",) and known == "before":
            place = ()
        add(self.comments, place, said, known)
        if at is not None:
            self.levels[place, known] = frozenset(at)
        return self

    def detail(self, *names: str) -> LogEvent:
        """Mark fields that only the level `verbose` shows; returns the event. Raises `KeyError` for a field that is not there."""
        self.details.update(place_of(name, self.fields) for name in names)
        return self

    def check(self) -> None:
        """Raise `Refused` if the event cannot stand in a log."""
        kind = self.kind
        if not _TYPE.fullmatch(kind):
            raise Refused("INVALID_ARGS", f"{kind[:80]!r} is no type", "name it with small letters, digits and _, as tool_call")
        missing = [name for name in KINDS.get(kind, Kind()).required if name not in self.fields]
        if missing == ["args"] or (kind == "tool_call" and not _why(self.fields)):
            raise Refused(
                "MISSING_WHY", f"the call of {text(self.fields.get('tool'))[:80]!r} does not say why", "say in args.why what it is for"
            )
        if missing:
            raise Refused("INVALID_ARGS", f"a {kind} needs {', '.join(missing)}", "give each of them a value")
        error = self.fields.get("error")
        if kind == "tool_error" and not (is_object(error) and {"code", "message"} <= error.keys()):
            raise Refused("INVALID_ARGS", "a tool_error's error is a map with code and message", "see the error codes in the protocol")

    def _take_comments(self, fields: Any) -> None:
        from optree_formats.markdown.foreign_yaml import comments_of

        self.comments = {place: comment for place, comment in comments_of(fields).items() if not place or place[0] in self.fields}


def tool_call(tool: str, args: Mapping[str, Any], *, why: str, call_id: str, **more: Any) -> LogEvent:
    """Return the event of a tool call; *more* are further fields, `narrative` and `at`."""
    return LogEvent("tool_call", tool=tool, call_id=call_id, args={**args, "why": why}, **more)


def tool_error(call_id: str, code: Code | str, message: str, *, suggestion: str | None = None, **more: Any) -> LogEvent:
    """Return the event of a call that failed; *suggestion* says how it can be mended."""
    error = {"code": code, "message": message, **({} if suggestion is None else {"suggestion": suggestion})}
    return LogEvent("tool_error", call_id=call_id, error=error, **more)


def _why(fields: Mapping[str, Any]) -> bool:
    args = fields.get("args")
    why = args.get("why") if is_object(args) else None
    return isinstance(why, str) and bool(clean(why).strip())


LONG_TEXT = 240
"""Characters of a text that `standard` shows."""
RULE = "---\n\n"
_MINIMAL = frozenset(
    [
        "type",
        "timestamp",
        "session_id",
        "protocol",
        "agent",
        "path",
        "call_id",
        "tool",
        "success",
        "action",
        "approved",
        "reason",
        "status",
        "from",
        "backup",
    ]
)
_VERBOSE = frozenset(["reasoning", "logs", "analysis_notes", "first_line"])
"""Fields that only `verbose` shows, wherever they stand."""
_TITLES = {
    "tool_call": "tool",
    "tool_result": "tool",
    "tool_error": "tool",
    "user_approval": "tool",
    "repair": "path",
    "tool_summary": "tool",
}
_LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKS = re.compile(
    r"^(?= {0,3}(?:#{1,6}(?:\s|$)|(?:[-=*_][ \t]*){3,}$|=+[ \t]*$|-+[ \t]*$|<!|<[?A-Za-z/])|[ \t]*(?:~{3}|\\))([ \t]*)", re.MULTILINE
)
_ESCAPED = re.compile(r"^([ \t]*)\\(?=[#`~=*_<\\-])", re.MULTILINE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
_REMARK = re.compile(r"<!-- (?!seal )(?:(?!--|[<>]).)* -->", re.DOTALL)
_TICKS = re.compile(r"``(?:(`)|&((?:amp;)*#96;))")
"""Three backticks, which the seed's own queries take for a block wherever they stand, and what is written for them."""
_INLINE = re.compile(r"[\\`*_<>\[\]~|&#]")


def header(session_id: str, started: str, protocol: str = PROTOCOL, *more: str) -> str:
    """Return the head of a log; *more* are further lines of it."""
    lines = [f"Started: {started}", f"Protocol: {protocol}", *more]
    return "\n".join([f"# Session Log: {one_line(session_id)}", "", *lines, "", RULE])


def section(event: LogEvent, at: float, verbosity: Verbosity, *, tool: str = "") -> str:
    """Return an event as text, up to where its block ends; *tool* is that of the call that it belongs to."""
    fields, comments = shown(event, verbosity)
    narrative = event.narrative.strip() if verbosity != "minimal" else ""
    paragraph = f"{escape(narrative)}\n\n" if narrative else ""
    return f"## {clock(at)} — {title(event, tool)}\n\n{paragraph}```yaml\n{emit(fields, comments)}```\n\n"


def title(event: LogEvent, tool: str = "") -> str:
    """Return an event's heading: its type in words, and what it is about."""
    if event.title:
        return one_line(event.title)
    words = one_line(event.kind.replace("_", " ").replace(".", " ").title())
    about = event.fields.get(_TITLES.get(event.kind, "")) or tool
    return f"{words}: {one_line(about)}" if isinstance(about, str) and about else words


def shown(event: LogEvent, verbosity: Verbosity) -> tuple[dict[str, Any], Comments]:
    """Return an event's fields and comments at a level."""
    if verbosity == "minimal":
        return _minimal(event.fields), {}
    if verbosity == "verbose":
        return event.fields, _of_level(event, event.comments, verbosity)
    fields = _standard(event.fields, (), event.details)
    return fields, _of_level(event, under(event.comments, fields), verbosity)


def escape(narrative: str) -> str:
    """Return a narrative that stands in a log as nothing but text; an HTML comment may stand for itself."""
    result = _CONTROLS.sub("\ufffd", narrative.replace("\r\n", "\n").replace("\r", "\n"))
    result = _TICKS.sub(lambda match: "``&#96;" if match[1] else f"``&amp;{match[2]}", result)
    return result if _REMARK.fullmatch(result) and not _MARKS.search(result, 4) else _MARKS.sub(r"\1\\", result)


def unescape(written: str) -> str:
    """Return a narrative as it was before `escape`."""
    written = _ESCAPED.sub(r"\1", written)
    return _TICKS.sub(lambda match: match[0] if match[1] else "```" if match[2] == "#96;" else f"``&{match[2][4:]}", written)


def one_line(value: str) -> str:
    """Return a text for a heading."""
    return cut(_LINE_BREAKS.sub(" ", value), LONG_TEXT).strip().replace("```", "``&#96;") or "(unnamed)"


def quoted(value: str, limit: int = 120) -> str:
    """Return the first line of a text for a narrative: in quotation marks, and without meaning for Markdown."""
    lines = value.strip().split("\n", 1)
    first = _LINE_BREAKS.sub(" ", lines[0])
    more = "…" if len(first) > limit or len(lines) > 1 else ""
    return f"“{_INLINE.sub(_escape, first[:limit])}{more}”"


def _escape(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def _of_level(event: LogEvent, comments: Comments, verbosity: Verbosity) -> Comments:
    if not event.levels:
        return comments
    visible: Comments = {}
    wheres: tuple[Where, ...] = ("before", "beside", "end")
    for place, comment in comments.items():
        kept = {where: getattr(comment, where) for where in wheres if verbosity in event.levels.get((place, where), (verbosity,))}
        visible[place] = type(comment)(**kept)
    return visible


def _minimal(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in fields.items() if key in _MINIMAL}
    args, error = fields.get("args"), fields.get("error")
    if fields["type"] == "tool_call" and is_object(args):
        kept["args"] = {"why": args.get("why")}
    if is_object(error):
        kept["error"] = {key: error[key] for key in ("code", "message") if key in error}
    return kept


def _standard(value: Any, place: Place, details: set[Place]) -> Any:
    if is_object(value):
        kept = {key: item for key, item in value.items() if key not in _VERBOSE and (*place, key) not in details}
        return {key: _standard(item, (*place, key), details) for key, item in kept.items()}
    if is_list(value):
        return [_standard(item, (*place, number), details) for number, item in enumerate(value)]
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return f"{value[:LONG_TEXT]}… ({len(value)} characters)"
    return value
