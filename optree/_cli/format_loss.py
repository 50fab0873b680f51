"""What a session has that a format does not hold: for one line about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from optree._formats import Format
from optree._nodes import AS_TOLD, PIECE_OF_TEXT, OperationNode, Payload, SessionNode
from optree._tree import Tree, walk_ops, walk_sessions
from optree._values import is_object


def lacking(tree: Tree, form: Format) -> list[str]:
    """Return what of a session a format does not hold, with how many of each; what neither it nor this can count is named all the same."""
    own: Mapping[str, Callable[[Tree], int]] = getattr(form, "counts", {})
    counts = {**_COUNTS, **own}
    counted = [(what, counts[what](tree) if what in counts else None) for what in form.cannot_hold]
    return [what if number is None else f"{what} ({number})" for what, number in counted if number != 0]


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


_OWN = "conversation"
"""The attribute of a session that is made of events, and becomes events again."""
_REFERENCE = re.compile(r'"\$(?:history|blob)":"([^"]+)"')
_TOLD = frozenset({"members", "without", "accounting", "order", "file"})
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
    "accounting entry by entry": _ops(lambda op: sum(entry.type == "llm" for entry in op.accounting)),
    "reasoning": _ops(lambda op: op.reasoning is not None),
    "chunks of reasoning": _ops(lambda op: len(op.reasoning.chunks) if op.reasoning is not None else 0),
    "where reasoning was cut into chunks, and when each came: its text is held, and when the first came": _ops(_pieces),
    "requests": _ops(lambda op: op.request is not None),
    "responses": _ops(lambda op: op.response is not None),
    "that an answer broke off: it is said to be truncated": _ops(lambda op: op.response is not None and bool(op.response.partial)),
    "reports": _sessions(lambda session: session.final_report is not UNSET),
    "titles": _sessions(lambda session: session.session_title is not None or session.latest_status is not None),
    "attributes": lambda tree: (
        _ops(lambda op: bool(op.attributes))(tree)
        + _sessions(lambda one: bool(one.attributes.keys() - {_OWN}) + sum(bool(turn.attributes) for turn in one.turns))(tree)
    ),
    "resumes": _sessions(lambda session: len(session.resumed_at)),
    "statuses": _ops(lambda op: op.status is not None),
    "fractions of milliseconds": lambda tree: sum(not time.is_integer() for time in _times(tree)),
    "ids of accounting entries": _ops(lambda op: sum(entry.id != f"{op.op_id}#{place}" for place, entry in enumerate(op.accounting, 1))),
    "sizes of payloads as they were counted": _ops(lambda op: sum(part is not None and part.size is not None for part in _parts(op))),
    "content in the pool that nothing refers to": lambda tree: len(_unused(tree)),
    "statuses of turns": _sessions(lambda session: sum(turn.status is not None for turn in session.turns)),
    "errors of turns": _sessions(lambda session: sum(turn.error is not None for turn in session.turns)),
    "statuses other than ok and failed": lambda tree: (
        _ops(lambda op: _odd(op.status))(tree)
        + _sessions(lambda one: _odd(one.status) + sum(_odd(turn.status) for turn in one.turns))(tree)
    ),
    "parents of ops": _ops(lambda op: op.parent_op is not None),
    "attributes of names that it uses itself": lambda tree: (
        _ops(lambda op: len(op.attributes.keys() & _IN_FIELDS) + _of_ones_own(op.attributes))(tree)
        + _sessions(lambda one: _of_ones_own(one.attributes) + sum(_of_ones_own(turn.attributes) for turn in one.turns))(tree)
    ),
    "attributes of turns that are named prompts, assistant, warnings or errors": _sessions(
        lambda session: sum(len(turn.attributes.keys() & _OF_TURNS) for turn in session.turns)
    ),
    "ends of sessions": _sessions(
        lambda session: session.ended_at is not None and (session.status is not None or _OWN not in session.attributes)
    ),
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
    "that turns were left open in sessions that have ended": _sessions(
        lambda session: session.ended_at is not None and sum(turn.ended_at is None for turn in session.turns)
    ),
    "gaps in ops' numbers": _sessions(lambda session: sum(_gaps(turn.ops) for turn in session.turns)),
}
"""How many of each a session has, by the words in which formats name what they do not hold."""


def _parts(op: OperationNode) -> tuple[Payload | None, Payload | None]:
    return op.request, op.response


def _times(tree: Tree) -> Iterator[float]:
    """Yield all times and durations of a session."""
    for session in walk_sessions(tree.session):
        yield from filter(None, (session.started_at, session.ended_at))
        for turn in session.turns:
            yield from filter(None, (turn.started_at, turn.ended_at))
    for _, _, op in walk_ops(tree.session):
        yield from filter(None, (op.started_at, op.ended_at, op.latency))
        yield from (entry.timestamp for entry in op.logs)
        yield from (time for entry in op.accounting for time in (entry.timestamp, entry.latency) if time is not None)
        yield from (chunk.ts for chunk in (op.reasoning.chunks if op.reasoning is not None else ()))


def _unused(tree: Tree) -> set[str]:
    """Return the content in the pool to which no payload leads."""
    parts = (part for _, _, op in walk_ops(tree.session) for part in _parts(op) if part is not None)
    named = [name for part in parts for name in _REFERENCE.findall(bytes(part.payload).decode("utf-8", "replace"))]
    used: set[str] = set()
    for name in named:
        while name not in used:
            used.add(name)
            name, blob = tree.pool.links.get(name, (name, name))  # noqa: PLW2901 - the link before
            used.add(blob)
    return {*tree.pool.blobs, *tree.pool.links} - used


def _of_ones_own(attributes: dict[str, Any]) -> bool:
    """Tell whether an attribute with the name under which reading keeps a file's members is the program's own."""
    kept = attributes.get(AS_TOLD, {})
    return not is_object(kept) or bool(kept.keys() - _TOLD)


def _gaps(ops: list[OperationNode]) -> bool:
    return any(op.path.rpartition(".")[2] != str(number) for number, op in enumerate(ops, 1))
