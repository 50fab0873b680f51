"""What a session has that a format does not hold: for one line that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from optree.nodes import OperationNode, SessionNode
from optree.tree import Tree, walk_ops, walk_sessions


def lacking(tree: Tree, cannot_hold: Sequence[str]) -> list[str]:
    """Return those of *cannot_hold* that a session has something of, with how many; what is told in words of its own stands as it is."""
    found: list[str] = []
    for what in cannot_hold:
        count = _COUNTS.get(what)
        if count is None:
            found.append(what)
        elif number := count(tree):
            found.append(f"{what} ({number})")
    return found


def _ops(has: Callable[[OperationNode], int | bool]) -> Callable[[Tree], int]:
    return lambda tree: sum(int(has(op)) for _, _, op in walk_ops(tree.session))


def _sessions(has: Callable[[SessionNode], int | bool]) -> Callable[[Tree], int]:
    return lambda tree: sum(int(has(session)) for session in walk_sessions(tree.session))


def _odd(status: str | None) -> bool:
    return status not in (None, "ok", "failed")


_IN_FIELDS = frozenset({"provider", "model", "name", "latency", "error"})
_COUNTS: dict[str, Callable[[Tree], int]] = {
    "messages": _sessions(lambda session: len(session.messages)),
    "turns": _sessions(lambda session: len(session.turns)),
    "turn 0": _sessions(lambda session: any(turn.index == 0 for turn in session.turns)),
    "ops": _ops(lambda op: op.kind != "session"),
    "logs": _ops(lambda op: len(op.logs)),
    "accounting": _ops(lambda op: len(op.accounting)),
    "accounting of tools": _ops(lambda op: sum(entry.type == "tool" for entry in op.accounting)),
    "accounting entry by entry": _ops(lambda op: len(op.accounting) > 1),
    "reasoning": _ops(lambda op: op.reasoning is not None),
    "chunks of reasoning": _ops(lambda op: len(op.reasoning.chunks) if op.reasoning is not None else 0),
    "requests": _ops(lambda op: op.request is not None),
    "responses": _ops(lambda op: op.response is not None),
    "reports": _sessions(lambda session: session.final_report is not UNSET),
    "titles": _sessions(lambda session: session.session_title is not None or session.latest_status is not None),
    "attributes": _ops(lambda op: bool(op.attributes)),
    "resumes": _sessions(lambda session: len(session.resumed_at)),
    "statuses": _ops(lambda op: op.status is not None),
    "statuses of turns": _sessions(lambda session: sum(turn.status is not None for turn in session.turns)),
    "errors of turns": _sessions(lambda session: sum(turn.error is not None for turn in session.turns)),
    "statuses other than ok and failed": lambda tree: (
        _ops(lambda op: _odd(op.status))(tree) + _sessions(lambda one: _odd(one.status))(tree)
    ),
    "parents of ops": _ops(lambda op: op.parent_op is not None),
    "attributes of names that it uses itself": _ops(lambda op: len(op.attributes.keys() & _IN_FIELDS)),
    "ends of sessions": _sessions(lambda session: session.ended_at is not None),
    "empty names of ops": _ops(lambda op: not op.name),
    "empty titles": _sessions(lambda session: session.session_title == ""),
    "colons in call paths": _sessions(lambda session: ":" in session.call_path),
    "ids of accounting entries": lambda _: 0,
    "fractions of milliseconds": lambda _: 0,
    "sizes of payloads as they were counted": lambda _: 0,
    "gaps in ops' numbers": _sessions(lambda session: sum(_gaps(turn.ops) for turn in session.turns)),
}
"""How many of each a session has, by the words in which formats say what they do not hold; 0 for what nobody would miss."""


def _gaps(ops: list[OperationNode]) -> bool:
    return any(op.path.rpartition(".")[2] != str(number) for number, op in enumerate(ops, 1))
