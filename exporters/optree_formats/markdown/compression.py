"""Compression of a log that has ended: fewer events that tell the same story.

A run of calls of one tool becomes one ``tool_summary``; results lose their long texts. Errors with their calls, repairs, every other event,
every comment and every narrative stay: those of calls that were collapsed stand in the summary, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optree.exporting import is_list, is_object
from optree_formats.markdown.comments import Comments, Place, add, under
from optree_formats.markdown.events import LogEvent
from optree_formats.markdown.reader import Entry

AT_LEAST = 3
"""How many calls make a run that is collapsed."""
SHORT = 80
"""Characters of a text in a result that stay."""


def fewer_events(entries: Iterable[Entry], at_least: int = AT_LEAST) -> list[LogEvent]:
    """Return the events of a log, compressed. Sections without an event are kept as events of type ``note``."""
    kept = list(entries)
    failed = {_call(entry) for entry in kept if entry.kind == "tool_error"}
    tools = {_call(entry): str(entry.fields.get("tool", "")) for entry in kept if entry.kind == "tool_call"}
    done = {_call(entry) for entry in kept if entry.kind == "tool_result"} & tools.keys() - failed
    events: list[LogEvent] = []
    run: list[Entry] = []
    for entry in kept:
        tool = tools[_call(entry)] if entry.kind in ("tool_call", "tool_result") and _call(entry) in done else None
        if tool is None or (run and tools[_call(run[0])] != tool):
            events += _collapsed(run, at_least)
            run = []
        if tool is None:
            events.append(_kept(entry))
        else:
            run.append(entry)
    return events + _collapsed(run, at_least)


def _call(entry: Entry) -> str:
    return str(entry.fields.get("call_id", ""))


def _kept(entry: Entry) -> LogEvent:
    """Return an event without what is verbose in it."""
    if entry.fault or not entry.kind:
        raw = {"raw": entry.raw} if entry.raw else {}
        event = LogEvent.of_plain(entry.kind or "note", {**entry.fields, **raw}, narrative=entry.narrative, title=entry.title, at=entry.at)
        event.comments = dict(entry.comments)
    else:
        event = entry.event()
    if entry.kind == "tool_result":
        event.fields = {key: _short(value) if key == "result" else value for key, value in event.fields.items()}
        event.fields = {key: value for key, value in event.fields.items() if value is not _GONE}
        _move_comments(event)
    if entry.after:
        event.narrative = f"{event.narrative}\n\n{entry.after}".strip()
    return event


class _Gone:
    """Stands for a value that was too long."""


_GONE = _Gone()


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SHORT and "\n" not in value else _GONE
    if is_object(value):
        kept = {key: _short(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not _GONE}
    if is_list(value):
        return [item for item in map(_short, value) if item is not _GONE]
    return value


def _move_comments(event: LogEvent) -> None:
    """Keep comments whose fields have gone, or whose places have moved, at the end of the event."""
    there = under(event.comments, event.fields)
    for place, comment in event.comments.items():
        if place not in there:
            for said in comment.texts():
                add(there, (), said, "end")
    event.comments = there


def _collapsed(run: list[Entry], at_least: int) -> list[LogEvent]:
    calls = [entry for entry in run if entry.kind == "tool_call"]
    if len(calls) < at_least:
        return [_kept(entry) for entry in run]
    results = [entry for entry in run if entry.kind == "tool_result"]
    durations = [found for entry in results if isinstance(found := entry.fields.get("duration_ms"), (int, float))]
    whys = [str(args.get("why")) for entry in calls if is_object(args := entry.fields.get("args")) and args.get("why")]
    fields: dict[str, Any] = {
        "tool": calls[0].fields.get("tool"),
        "calls": len(calls),
        "succeeded": sum(1 for entry in results if entry.fields.get("success") is True),
        **({"duration_ms": sum(durations)} if durations else {}),
        "call_ids": [_call(entry) for entry in calls],
        "whys": list(dict.fromkeys(whys)),
    }
    said = [part for entry in run for part in (entry.narrative, entry.after) if part]
    event = LogEvent("tool_summary", fields, narrative="\n\n".join(said), at=run[0].at)
    event.comments = _gathered(run)
    return [event]


def _gathered(run: list[Entry]) -> Comments:
    """Return all comments of a run, at the end of its summary."""
    found: Comments = {}
    place: Place = ()
    for entry in run:
        for comment in entry.comments.values():
            for said in comment.texts():
                add(found, place, said, "end")
    return found
