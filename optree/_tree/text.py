"""The tree as text (`opTreeAscii` of seed 004), pure, without colour codes unless a painter is given, and the snapshot summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from optree._clock import now_ms
from optree._nodes import OperationNode, SessionNode, Totals, TurnNode
from optree._tree.totals import cost_said, of_entries, tokens_said
from optree._tree.walk import Rooted, ops_beneath, root_of, walk_sessions
from optree._values import is_object, shortened

ENDED = "ended"
"""The state of a node that has an end but no status, as in files of other programs."""
_SHORTEST = 0.05
"""Milliseconds that read as more than 0.0: shorter times of nodes that broke off are not shown."""
T = TypeVar("T")
_SECOND, _MINUTE, _HOUR = 1000, 60, 3600
Paint = Callable[[str, str], str]
"""Given a style (`agent`, `path`, `failed`, `dim`…) and a text, returns the text as it shall be shown."""
_MARKS = {"ok": "✓", "failed": "✗", "cancelled": "⊘", "interrupted": "⚡", "running": "…", "ended": ""}


def state(node: SessionNode | TurnNode | OperationNode, *, live: bool = True) -> str:
    """Return a node's state for people: its status, or `ENDED`, or `running` (`interrupted` where nothing lives any more).

    Every view and every format that shows an outcome takes it from here.
    """
    if node.status is not None:
        return node.status
    if node.ended_at is not None:
        return ENDED
    return "running" if live else "interrupted"


class Seen(NamedTuple):
    """What is known of the times in a tree."""

    live: bool
    """True if its process goes on."""
    until: float
    """When it was last seen to live, in epoch ms."""
    untimed: float | None
    """The result of `untimed_until`."""


def untimed_until(root: SessionNode) -> float | None:
    """Return up to when the times in a root session, of a conversation that has none, are only an order; None if all are times."""
    block = root.attributes.get("conversation")
    until = block.get("untimedUntil") if is_object(block) else None
    return until if isinstance(until, int | float) else None


def seen_of(root: SessionNode, *, live: bool) -> Seen:
    """Return up to when a tree is known, which is now if its process is *live*."""
    return Seen(live, now_ms() if live else last_seen(root), untimed_until(root))


def took(node: SessionNode | TurnNode | OperationNode, seen: Seen) -> float | None:
    """Return how long a node took, in milliseconds; for one that broke off, at least. None if that is unknown."""
    ended = seen.until if node.ended_at is None else node.ended_at
    latency = node.latency if isinstance(node, OperationNode) else None
    began = node.started_at if latency is None else ended - latency
    return lasted(began, ended, seen.untimed, broke_off=state(node, live=seen.live) == "interrupted")


def lasted(began: float, ended: float, untimed: float | None, *, broke_off: bool) -> float | None:
    """Return how long something took, never negative; None if that is unknown, as when it broke off and was not seen after its begin."""
    elapsed = max(0.0, ended - began)
    return None if (untimed is not None and ended <= untimed) or (broke_off and elapsed < _SHORTEST) else elapsed


def snapshot_summary(root: Rooted, *, live: bool = True) -> dict[str, Any]:
    """Return what is going on in a tree, for a display that is refreshed: a line an agent, the totals, the time.

    Args:
        root: As for `walk_sessions`.
        live: Whether the process that records it goes on.

    Returns:
        ``{lines, totals, runStartedAt, runElapsedSec}``: epoch milliseconds and seconds. A line is ``{agentId, callPath, path, status,
            elapsedSec, title, latestStatus}``; an unknown ``elapsedSec`` is None.
    """
    root = root_of(root)
    seen = seen_of(root, live=live)
    lines = [
        {
            "agentId": session.agent_id,
            "callPath": session.call_path,
            "path": session.path,
            "status": state(session, live=live),
            "elapsedSec": None if (known := took(session, seen)) is None else round(known / 1e3, 3),
            "title": session.session_title,
            "latestStatus": session.latest_status,
        }
        for session in walk_sessions(root)
    ]
    return {"lines": lines, "totals": totals_summary(root), "runStartedAt": root.started_at, "runElapsedSec": lines[0]["elapsedSec"]}


def totals_summary(root: SessionNode) -> dict[str, Any]:
    """Return the totals of a tree as plain values, with how many agents ran."""
    agents = sum(1 for _ in walk_sessions(root))
    return {**msgspec.to_builtins(root.totals), "unknownCosts": root.totals.unknown_costs, "agentsRun": agents}


def last_seen(session: SessionNode) -> float:
    """Return the last time at which anything in a session was seen to happen, or its process to live, in epoch ms."""
    latest = max(session.started_at, session.seen_at or 0.0)
    for node in walk_sessions(session):
        latest = max(latest, node.ended_at or 0.0, *(message.timestamp for message in node.messages[-1:]), 0.0)
        for turn in node.turns:
            latest = max(latest, turn.ended_at or turn.started_at, *(op_seen(op) for op in turn.ops), 0.0)
    return latest


def op_seen(op: OperationNode) -> float:
    """Return the last time at which anything in an op itself was seen to happen, in epoch ms."""
    chunks = op.reasoning.chunks[-1:] if op.reasoning else ()
    times = [op.started_at, op.ended_at or 0.0, *(entry.timestamp for entry in op.logs[-1:]), *(chunk.ts for chunk in chunks)]
    return max([*times, *(entry.timestamp for entry in op.accounting[-1:])])


def format_tree(root: Rooted, *, live: bool | None = None, paint: Paint = lambda _style, text: text) -> str:
    """Return a tree as text: a line for each session, turn and operation, as `optree tree` prints it.

    Args:
        root: As for `walk_sessions`.
        live: Whether nodes without an end are shown as ``running``, not as ``interrupted``; by default if *root* is an open session.
        paint: Called with a style (``path``, ``agent``, ``dim``, an operation's kind, a status) and a text; returns the text to show.
    """
    live = getattr(root, "running", False) is True if live is None else live
    root = root_of(root)
    seen = seen_of(root, live=live)
    lines = [_session(root, seen, paint)]
    top: list[TurnNode | OperationNode] = [*root.turns]
    lines += (paint("dim", branch) + _describe(node, seen, paint) for node, branch, _ in branches(top, _Below()))
    return "\n".join(line.replace("\n", "\\n") for line in lines)  # a name may have any character


def branches(top: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[tuple[T, str, str]]:
    """Yield each node of a tree, with what is drawn before it, and what is drawn before all that is below it."""
    pending: list[tuple[str, list[T]]] = [("", [*top][::-1])]
    while pending:
        indent, nodes = pending[-1]
        if not nodes:
            pending.pop()
            continue
        node = nodes.pop()
        inner = indent + ("│  " if nodes else "   ")
        yield node, indent + ("├─ " if nodes else "└─ "), inner
        pending.append((inner, [*below(node)][::-1]))


def format_totals(totals: Totals) -> str:
    """Return totals as one short phrase."""
    parts = [f"{totals.llm_requests} llm", f"{totals.tools_run} tool"] if totals.llm_requests or totals.tools_run else []
    return " · ".join(filter(None, [*parts, tokens_said(totals), cost_said(totals.cost_usd, totals.known_costs, totals.unknown_costs)]))


class _Below:
    """What is drawn beneath a node: a turn's ops, those that were begun within an op beneath that, a sub-agent's turns."""

    def __init__(self) -> None:
        self._ops: dict[str, list[OperationNode]] = {}

    def __call__(self, node: SessionNode | TurnNode | OperationNode) -> Sequence[TurnNode | OperationNode]:
        if isinstance(node, SessionNode):
            return node.turns
        if isinstance(node, TurnNode):
            self._ops.update(ops_beneath(node))
        ops = self._ops.pop(node.path)
        return [*node.child_session.turns, *ops] if isinstance(node, OperationNode) and node.child_session else ops


def _describe(node: TurnNode | OperationNode, seen: Seen, paint: Paint) -> str:
    if isinstance(node, TurnNode):
        label = (node.prompts or {}).get("user") or node.attributes.get("label") or ""
        return _phrase(paint("path", node.path), _word(node), format_end(node, seen, paint), _painted(paint, "dim", label))
    if node.child_session is not None:
        return f"{paint('path', node.path)} {_session(node.child_session, seen, paint)}"
    logs = f"{len(node.logs)} log{'s' if len(node.logs) > 1 else ''}" if node.logs else ""
    title = _phrase(paint("path", node.path), paint(node.kind, node.kind), node.name)
    return _phrase(title, format_end(node, seen, paint), _tokens(node), _answer(node), logs, _painted(paint, "failed", node.error))


def _word(turn: TurnNode) -> str:
    """Return what a turn is: `turn`, or which step of the original ai-agent's it was."""
    step = turn.attributes.get("step")
    return f"step {step['kind']}" if is_object(step) and isinstance(step.get("kind"), str) else "turn"


def _answer(op: OperationNode) -> str:
    """Return how much came of an answer that is not whole."""
    return f"partial answer, {op.response.size:,} characters" if op.response is not None and op.response.partial else ""


def _session(session: SessionNode, seen: Seen, paint: Paint) -> str:
    return _phrase(
        paint("agent", session.agent_id),
        f"“{session.session_title}”" if session.session_title else "",
        format_end(session, seen, paint),
        f"resumed ×{len(session.resumed_at)}" if session.resumed_at else "",
        paint("dim", totals) if (totals := format_totals(session.totals)) else "",
        _painted(paint, "failed", session.error),
    )


def format_end(node: SessionNode | TurnNode | OperationNode, seen: Seen, paint: Paint = lambda _style, text: text) -> str:
    """Return how a node ended, and how long it took: of one that broke off, at least."""
    status = state(node, live=seen.live)
    known = None if status == "running" else took(node, seen)
    least = "at least " if status == "interrupted" else ""
    return _phrase(
        paint(status, _phrase(_MARKS[status], "" if status in ("ok", ENDED) else status)),
        "" if known is None else f"{least}{_duration(known)}",
    )


def _phrase(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _painted(paint: Paint, style: str, text: str | None) -> str:
    short = _short(text)
    return paint(style, short) if short else ""


def _tokens(op: OperationNode) -> str:
    sums = of_entries(op.accounting)
    return _phrase(tokens_said(sums), cost_said(sums.cost_usd, sums.known_costs, sums.unknown_costs))


def _duration(milliseconds: float) -> str:
    return duration(milliseconds / 1e3) if milliseconds >= _SECOND else f"{milliseconds:.1f} ms"


def duration(seconds: float) -> str:
    """Return seconds for people."""
    if seconds < _MINUTE:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), _MINUTE)
    return f"{minutes} min {rest:02d} s" if seconds < _HOUR else f"{minutes // 60} h {minutes % 60:02d} min"


def _short(text: str | None, limit: int = 72) -> str:
    return shortened(" ".join((text or "").split()), limit)
