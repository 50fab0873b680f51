"""How much of a session a transcript does not hold, by the words in which the format says so: what only reading and writing it can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import UNSET

from optree import OperationNode, Tree, walk_ops, walk_sessions
from optree.exporting import Payload, Reasoning, decode, is_object, raw
from optree_formats.transcript import messages
from optree_formats.transcript.building import held
from optree_formats.transcript.steps import STEP, UNLIKE
from optree_formats.transcript.wire import decoded


def _requests(tree: Tree) -> int:
    found = (tree.pool.resolve(decoded(op.request.payload)) for op in _ops(tree) if op.kind == "llm" and op.request is not None)
    return sum(not (said := messages.sent(request)) or messages.request_of(said) != request for request in found)


def _thoughts(tree: Tree) -> int:
    found = (op for op in _ops(tree) if op.kind == "llm" and op.response is not None and op.reasoning is None)
    return sum(any(block.type == "thinking" for block in messages.answer(_value(tree, op.response), "")) for op in found)


def _unfinished(tree: Tree) -> int:
    found = (op for op in _ops(tree) if op.kind == "llm" and op.response is not None and op.ended_at is None)
    return sum(_value(tree, op.response) != messages.answer_of(messages.answer(_value(tree, op.response), "")) for op in found)


def _latencies(tree: Tree) -> int:
    return sum(op.ended_at is not None and op.latency != max(0.0, op.ended_at - op.started_at) for op in _ops(tree))


def _sizes(tree: Tree) -> int:
    found = ((part, held(raw(_value(tree, part)))) for part in _parts(tree))
    return sum(part.size != (None if back is None else back.size) for part, back in found)


def _thought(reasoning: Reasoning) -> str:
    return "".join(chunk.text for chunk in reasoning.chunks) if reasoning.final is None else reasoning.final


def _value(tree: Tree, part: Payload | None) -> object:
    return None if part is None else tree.pool.resolve(decoded(part.payload))


def _ops(tree: Tree) -> Iterator[OperationNode]:
    return (op for _, _, op in walk_ops(tree.session))


def _parts(tree: Tree) -> Iterator[Payload]:
    return (part for op in _ops(tree) for part in (op.request, op.response) if part is not None)


def _unlike(what: str) -> Callable[[Tree], int]:
    return lambda tree: sum(is_object(step := op.attributes.get(STEP)) and what in (step.get("unlike") or ()) for op in _ops(tree))


COUNTS: dict[str, Callable[[Tree], int]] = {
    "of llm ops' requests all but new texts and tool results": _requests,
    "of unfinished llm ops' responses all but texts and calls": _unfinished,
    "that reasoning in a response is not the op's own": _thoughts,
    "latencies as they were measured": _latencies,
    "sizes of payloads as they were counted": _sizes,
    "empty reasoning": lambda tree: sum(op.reasoning is not None and not _thought(op.reasoning) for op in _ops(tree)),
    "empty prompts": lambda tree: sum(
        not text for session in walk_sessions(tree.session) for turn in session.turns for text in (turn.prompts or {}).values()
    ),
    "reports that are null": lambda tree: sum(
        session.final_report is not UNSET and decode(session.final_report) is None for session in walk_sessions(tree.session)
    ),
    **{said: _unlike(what) for what, said in UNLIKE.items()},
}
