"""What a session has that a format does not hold: for one line that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from optree.nodes import PIECE_OF_TEXT, OperationNode, Payload, SessionNode
from optree.tree import Tree, walk_ops, walk_sessions


def lacking(tree: Tree, cannot_hold: Sequence[str]) -> list[str]:
    """Return those of *cannot_hold* that a session has something of, with how many; what cannot be counted is for `optree formats`."""
    counted = ((what, _COUNTS[what](tree)) for what in cannot_hold if what in _COUNTS)
    return [f"{what} ({number})" for what, number in counted if number]


def _ops(has: Callable[[OperationNode], int | bool]) -> Callable[[Tree], int]:
    return lambda tree: sum(int(has(op)) for _, _, op in walk_ops(tree.session))


def _sessions(has: Callable[[SessionNode], int | bool]) -> Callable[[Tree], int]:
    return lambda tree: sum(int(has(session)) for session in walk_sessions(tree.session))


def _odd(status: str | None) -> bool:
    return status not in (None, "ok", "failed")


def _pieces(op: OperationNode) -> int:
    """Return in how many chunks an op's reasoning came; none if it came at once."""
    chunks = len(op.reasoning.chunks) if op.reasoning is not None else 0
    return chunks if chunks > 1 else 0


def _is_empty(part: Payload | None) -> bool:
    return part is not None and bytes(part.payload) in (b"null", b"{}", b"[]", b'""')


_IN_FIELDS = frozenset({"provider", "model", "name", "latency", "error"})
_OF_TURNS = frozenset({"prompts", "assistant", "warnings", "errors"})
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
    "chunks of reasoning": _ops(_pieces),
    "where reasoning was cut into chunks, and when each came: its text is held, and when the first came": _ops(_pieces),
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
    "attributes of turns that are named prompts, assistant, warnings or errors": _sessions(
        lambda session: sum(len(turn.attributes.keys() & _OF_TURNS) for turn in session.turns)
    ),
    "ends of sessions": _sessions(lambda session: session.ended_at is not None),
    "empty names of ops": _ops(lambda op: not op.name),
    "empty titles": _sessions(lambda session: session.session_title == ""),
    "colons in call paths": _sessions(lambda session: ":" in session.call_path),
    "requests of session and system ops": _ops(lambda op: op.kind in ("session", "system") and op.request is not None),
    "responses of unfinished tools, sessions and system ops": _ops(
        lambda op: op.kind != "llm" and op.ended_at is None and op.response is not None
    ),
    "payloads that are null or empty": _ops(lambda op: sum(_is_empty(part) for part in (op.request, op.response))),
    "who created an agent": _sessions(lambda session: bool(session.path)),
    "causes of entries": _sessions(lambda session: sum(bool(one.cause) and one.role != PIECE_OF_TEXT for one in session.messages)),
    "who made a text": _sessions(lambda session: sum(one.role == PIECE_OF_TEXT for one in session.messages)),
    "times": _sessions(lambda session: len(session.messages)),
    "gaps in ops' numbers": _sessions(lambda session: sum(_gaps(turn.ops) for turn in session.turns)),
}
"""How many of each a session has, by the words in which formats say what they do not hold."""


def _gaps(ops: list[OperationNode]) -> bool:
    return any(op.path.rpartition(".")[2] != str(number) for number, op in enumerate(ops, 1))
