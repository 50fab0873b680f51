"""An event as a section of the log: heading, narrative, block of YAML, rule; at three levels of verbosity.

Nothing that an event says can be taken for the log's own marks: titles are one line, and lines of a narrative that Markdown or a reader
would take for a heading, a fence, a rule or a comment are escaped with a backslash, which Markdown does not show.
"""

from __future__ import annotations

import re
from typing import Any

from optree.exporting import cut, is_list, is_object
from optree_formats.markdown.comments import Comments, Place, Where, under
from optree_formats.markdown.emit import emit
from optree_formats.markdown.events import PROTOCOL, LogEvent, Verbosity
from optree_formats.markdown.times import clock

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
    told = event.narrative.strip() if verbosity != "minimal" else ""
    said = f"{escape(told)}\n\n" if told else ""
    return f"## {clock(at)} — {title(event, tool)}\n\n{said}```yaml\n{emit(fields, comments)}```\n\n"


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
    said = _CONTROLS.sub("\ufffd", narrative.replace("\r\n", "\n").replace("\r", "\n"))
    said = _TICKS.sub(lambda found: "``&#96;" if found[1] else f"``&amp;{found[2]}", said)
    return said if _REMARK.fullmatch(said) and not _MARKS.search(said, 4) else _MARKS.sub(r"\1\\", said)


def unescape(written: str) -> str:
    """Return a narrative as it was before `escape`."""
    written = _ESCAPED.sub(r"\1", written)
    return _TICKS.sub(lambda found: found[0] if found[1] else "```" if found[2] == "#96;" else f"``&{found[2][4:]}", written)


def one_line(said: str) -> str:
    """Return a text for a heading."""
    return cut(_LINE_BREAKS.sub(" ", said), LONG_TEXT).strip().replace("```", "``&#96;") or "(unnamed)"


def quoted(said: str, limit: int = 120) -> str:
    """Return the first line of a text for a narrative: in quotation marks, and without meaning for Markdown."""
    lines = said.strip().split("\n", 1)
    first = _LINE_BREAKS.sub(" ", lines[0])
    more = "…" if len(first) > limit or len(lines) > 1 else ""
    return f"“{_INLINE.sub(_escape, first[:limit])}{more}”"


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _of_level(event: LogEvent, comments: Comments, verbosity: Verbosity) -> Comments:
    if not event.levels:
        return comments
    found: Comments = {}
    wheres: tuple[Where, ...] = ("before", "beside", "end")
    for place, comment in comments.items():
        kept = {where: getattr(comment, where) for where in wheres if verbosity in event.levels.get((place, where), (verbosity,))}
        found[place] = type(comment)(**kept)
    return found


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
