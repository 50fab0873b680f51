"""The summary of a session, ``session-summary.yml`` beside its log: made of the log, so it can be made again at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from optree.exporting import REAL, is_object, open_regular
from optree_formats import AnyPath
from optree_formats.markdown.comments import Comment, Comments, add, place_of
from optree_formats.markdown.emit import emit
from optree_formats.markdown.reader import Entry, read_log
from optree_formats.markdown.seals import Chain

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
        "retrospective": f"{(retrospective or _told(turns, tools, codes, demons, reason)).strip()}\n",
    }


def summary_text(summary: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Return a summary as YAML; *comments* stand beside the fields that they name, as ``tool_usage.fs.read``."""
    found: Comments = {(): Comment(before=f"{FILE} (generated at session end)")}
    for name, said in (comments or {}).items():
        place = place_of(name, summary)
        add(found, place, said, "before" if is_object(_at(summary, place)) else "beside")
    return emit(summary, found)


def write_summary(
    log: AnyPath, target: AnyPath | None = None, *, retrospective: str = "", comments: Mapping[str, str] | None = None
) -> Path:
    """Write the summary of a log beside it, in place of an older one, with the log's last seal; returns its path. Raises `OSError`."""
    log = Path(log)
    target = Path(target) if target else log.with_name(FILE)
    found = read_log(log)
    chain = Chain()
    with open_regular(log) as source:
        for line in source:
            chain.add(line)
    made = summarise(found.entries, session_id=found.head.session_id, retrospective=retrospective, seal=chain.last)
    REAL.replace(target, [summary_text(made, comments).encode()])
    return target


def _name(said: object) -> str:
    return said if isinstance(said, str) and said else UNKNOWN


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _told(turns: int, tools: Counter[str], codes: Counter[str], demons: Counter[str], reason: str) -> str:
    """Say what can be said without having been there."""
    most = f", most of them {tools.most_common(1)[0][0]}" if len(tools) > 1 and 2 * tools.most_common(1)[0][1] > tools.total() else ""
    first = f"{turns} turns with {tools.total()} tool calls{most}."
    second = f"{codes.total()} errors, {demons.total()} repairs."
    return f"{first}\n{second}\n{f'It ended with {reason}.' if reason else 'It has not ended.'}"
