"""The summary of a session, ``session-summary.yml`` beside its log: made of the log, so it can be made again at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from optree import SetupError
from optree.exporting import REAL, is_list, is_object, open_regular
from optree_formats import AnyPath
from optree_formats.markdown.events import following, moment, since_midnight
from optree_formats.markdown.integrity import Chain
from optree_formats.markdown.own_yaml import Comment, Comments, add, emit, place_of
from optree_formats.markdown.reader import Entry, read_log

FILE = "session-summary.yml"
SUMMED = ("session_id", "tool", "calls", "error", "code", "demon", "reason")
"""Fields that a summary is made of."""
UNKNOWN = "(unknown)"


def summarise(entries: Iterable[Entry], *, session_id: str = "", retrospective: str = "", seal: str = "") -> dict[str, Any]:
    """Return what a log's entries add up to, with the fields of the seed; totals are the sums of their maps."""
    tools: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    demons: Counter[str] = Counter()
    turns, times, reason = 0, list[float](), ""
    for entry in entries:
        fields = entry.fields
        if entry.at is not None:
            times.append(entry.at)
        if entry.kind == "session_start":
            session_id = session_id or str(fields.get("session_id", ""))
        elif entry.kind in ("user_message", "turn_start"):
            turns += 1
        elif entry.kind == "tool_call":
            tools[_name(fields.get("tool"))] += 1
        elif entry.kind == "tool_summary":
            calls = fields.get("calls")
            tools[_name(fields.get("tool"))] += calls if isinstance(calls, int) else 1
        elif entry.kind in ("tool_error", "error"):
            error = fields.get("error", fields)
            codes[_name(error.get("code") if is_object(error) else None)] += 1
        elif entry.kind == "repair":
            demons[_name(fields.get("demon"))] += 1
        elif entry.kind == "session_end":
            reason = _name(fields.get("reason"))
    minutes = round((max(times) - min(times)) / 60_000, 2) if times else 0
    return {
        "session_id": session_id,
        "duration_minutes": int(minutes) if minutes == int(minutes) else minutes,
        "turns": turns,
        "tool_usage": dict(tools.most_common()),
        "errors": {"total": codes.total(), "by_code": dict(codes.most_common())},
        "repairs": {"total": demons.total(), "by_demon": dict(demons.most_common())},
        **({"seal": seal} if seal else {}),
        "retrospective": f"{(retrospective or _default_retrospective(turns, tools, codes, demons, reason)).strip()}\n",
    }


def summary_text(summary: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Return a summary as YAML; *comments* stand beside the fields that they name, as ``tool_usage.fs.read``."""
    by_place: Comments = {(): Comment(before=f"{FILE} (generated at session end)")}
    for name, text in (comments or {}).items():
        place = place_of(name, summary)
        add(by_place, place, text, "before" if is_object(_at(summary, place)) else "beside")
    return emit(summary, by_place)


def write_summary(
    log: AnyPath, target: AnyPath | None = None, *, retrospective: str = "", comments: Mapping[str, str] | None = None
) -> Path:
    """Write the summary of a log beside it, in place of an older one, with the log's last seal; returns its path. Raises `OSError`."""
    log = Path(log)
    target = Path(target) if target else log.with_name(FILE)
    parsed = read_log(log)
    chain = Chain()
    with open_regular(log) as source:
        for line in source:
            chain.add(line)
    summary = summarise(parsed.entries, session_id=parsed.head.session_id, retrospective=retrospective, seal=chain.last)
    REAL.replace(target, [summary_text(summary, comments).encode()])
    return target


def _name(value: object) -> str:
    return value if isinstance(value, str) and value else UNKNOWN


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _default_retrospective(turns: int, tools: Counter[str], codes: Counter[str], demons: Counter[str], reason: str) -> str:
    """Return a retrospective that is made of the counts alone."""
    most = f", most of them {tools.most_common(1)[0][0]}" if len(tools) > 1 and 2 * tools.most_common(1)[0][1] > tools.total() else ""
    first = f"{turns} turns with {tools.total()} tool calls{most}."
    second = f"{codes.total()} errors, {demons.total()} repairs."
    return f"{first}\n{second}\n{f'It ended with {reason}.' if reason else 'It has not ended.'}"


class State(Struct):
    """Counters of a log, after its first *events* events."""

    events: int = 0
    """How many events are counted."""
    at: float | None = None
    """Time of the last, in epoch milliseconds."""
    session_id: str = ""
    ended: bool = False
    last: str = ""
    """Type of the last event."""
    turns: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    """Events by type."""
    open_calls: dict[str, dict[str, Any]] = {}
    """Fields of the calls that had neither result nor error yet, by call id."""
    files_in_context: list[str] = []
    """As the last event that told of them had it."""
    excluded: list[str] = []
    budget_usage: float | None = None
    errors: list[dict[str, Any]] = []
    """Errors so far: code, message and what else they held."""


def state_at(log: AnyPath | Iterable[Entry], at: float | str | datetime | None = None) -> State:
    """Return the state after an event, or at a time; without *at* at the end.

    *at* is the number of the event, from 1, if it is an int; else the time: epoch milliseconds as a float, a `datetime`, ISO 8601, or
    ``HH:MM:SS`` as headings have it, of the first day.

    Raises `SetupError` for a text that is no time, and `OSError`.
    """
    entries = read_log(log).entries if isinstance(log, (str, PathLike)) else log
    state = State()
    until: float | None = None
    for entry in entries:
        if not entry.kind:
            continue
        if isinstance(at, int) and state.events >= at:
            break
        if at is not None and not isinstance(at, int):
            until = _moment(at, entry.at) if until is None else until
            if entry.at is not None and entry.at > until:
                break
        _apply(state, entry)
    return state


def _moment(at: float | str | datetime, first: float | None) -> float:
    if isinstance(at, datetime):
        return at.timestamp() * 1e3
    if isinstance(at, float):
        return at
    day = since_midnight(str(at))
    timestamp = moment(at) if day is None else following(day, first or 0.0)
    if timestamp is None:
        raise SetupError(f"{str(at)[:80]!r} is no time: write it as 2025-12-30T12:00:00Z or 12:00:00")
    return timestamp


def _apply(state: State, entry: Entry) -> None:
    """Let one event happen."""
    fields, kind = entry.fields, entry.kind
    state.events += 1
    state.at, state.last = entry.at, kind
    state.counts[kind] += 1
    call = str(fields.get("call_id", ""))
    if kind == "session_start":
        state.session_id = str(fields.get("session_id", ""))
    elif kind in ("user_message", "turn_start"):
        state.turns += 1
    elif kind == "tool_call":
        state.open_calls[call] = fields
    elif kind in ("tool_result", "tool_error"):
        state.open_calls.pop(call, None)
    state.ended = kind == "session_end" or (state.ended and kind != "session_resume")
    error = fields.get("error")
    if kind in ("tool_error", "error"):
        state.errors.append(error if is_object(error) else fields)
    _context(state, fields)


def _context(state: State, fields: dict[str, Any]) -> None:
    for name in ("files_in_context", "included"):
        if is_list(files := fields.get(name)):
            state.files_in_context = [str(file) for file in files]
    if is_list(files := fields.get("excluded")):
        state.excluded = [str(file) for file in files]
    usage, budget, used = (fields.get(name) for name in ("budget_usage", "budget", "used"))
    if isinstance(usage, (int, float)):
        state.budget_usage = float(usage)
    elif isinstance(budget, (int, float)) and isinstance(used, (int, float)) and budget:
        state.budget_usage = used / budget
