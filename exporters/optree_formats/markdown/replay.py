"""Replay: the state that a session was in, at a moment or after an event, from its log alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from os import PathLike
from typing import Any

from msgspec import Struct, field

from optree import SetupError
from optree.exporting import is_list, is_object
from optree_formats import AnyPath
from optree_formats.markdown.reader import Entry, read_log
from optree_formats.markdown.times import following, moment, since_midnight


class State(Struct):
    """What was so, once a number of events had happened."""

    events: int = 0
    """How many had."""
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
    found = moment(at) if day is None else following(day, first or 0.0)
    if found is None:
        raise SetupError(f"{str(at)[:80]!r} is no time: write it as 2025-12-30T12:00:00Z or 12:00:00")
    return found


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
        if is_list(found := fields.get(name)):
            state.files_in_context = [str(file) for file in found]
    if is_list(found := fields.get("excluded")):
        state.excluded = [str(file) for file in found]
    usage, budget, used = (fields.get(name) for name in ("budget_usage", "budget", "used"))
    if isinstance(usage, (int, float)):
        state.budget_usage = float(usage)
    elif isinstance(budget, (int, float)) and isinstance(used, (int, float)) and budget:
        state.budget_usage = used / budget
