"""What an op holds besides its request, as fields of its event, and back: status, error, answer, reasoning, log lines, accounting."""

from __future__ import annotations

from typing import Any

import msgspec

from optree import AccountingEntry, LogEntry, OperationNode
from optree.exporting import ENDED, Payload, Reasoning, decode, encode, is_list, is_object, pass_on, payload_body, sanitize, state
from optree_formats.markdown.captured import as_kept, readable
from optree_formats.markdown.times import iso, moment

_MARKS = ("truncated", "partial")
"""What an answer's event may say of it."""


def held(op: OperationNode) -> dict[str, Any]:
    """Return the fields of all that an op holds, where it holds it."""
    fields: dict[str, Any] = {}
    if op.status not in (None, "ok") or state(op) == ENDED:
        fields["status"] = state(op)
    if op.latency is not None:
        fields["duration_ms"] = int(op.latency) if op.latency.is_integer() else op.latency
    if op.error is not None:
        fields["error"] = {"message": op.error}
    if op.kind == "llm":
        fields |= _of_model(op)
    if op.response is not None:
        fields |= _answer("result" if op.kind == "tool" else "response", op.response)
    if op.reasoning is not None:
        fields |= _reasoning(op.reasoning)
    if op.logs:
        fields["logs"] = [builtins(entry) for entry in op.logs]
    if op.accounting:
        fields["accounting"] = [builtins(entry) for entry in op.accounting]
    return fields


def builtins(entry: LogEntry | AccountingEntry) -> dict[str, Any]:
    """Return an entry as plain values, with the names that it has in files."""
    try:
        data = msgspec.json.encode(entry)
    except Exception as error:  # noqa: BLE001 - texts that JSON cannot hold, of a tree that no journal has seen
        pass_on(error)
        data = msgspec.json.encode(sanitize(entry))
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def payload(fields: dict[str, Any], name: str) -> Payload | None:
    """Return the answer that an event's fields hold."""
    if name not in fields:
        return None
    value = as_kept(fields[name])
    data = encode(value)
    size = fields.get("size", _size(value, data))
    marks = (True if fields.get(mark) is True else None for mark in _MARKS)
    return Payload(msgspec.Raw(data), None, size if isinstance(size, int) else None, *marks)


def entries(fields: dict[str, Any], name: str, kind: type[Any]) -> tuple[Any, ...]:
    """Return the log lines, or accounting entries, that an event's fields hold. Raises `msgspec.ValidationError`."""
    found = fields.get(name)
    return tuple(msgspec.json.decode(encode(item), type=kind) for item in found) if is_list(found) else ()


def reasoning_at(fields: dict[str, Any], at: float) -> float:
    """Return when an event's reasoning began."""
    found = moment(fields.get("reasoning_at"))
    return at if found is None else found


def _reasoning(reasoning: Reasoning) -> dict[str, Any]:
    chunks = reasoning.chunks
    said = {"reasoning": "".join(chunk.text for chunk in chunks), "reasoning_at": iso(chunks[0].ts)} if chunks else {}
    return {**said, **({} if reasoning.final is None else {"reasoning_final": reasoning.final})}


def _of_model(op: OperationNode) -> dict[str, Any]:
    """Return the figures that the seed has for a model's output."""
    tokens = sum(entry.tokens.output_tokens for entry in op.accounting if entry.tokens is not None)
    found: dict[str, Any] = {"tokens": tokens} if tokens and op.ended_at is not None else {}
    answer: Any = payload_body(decode(op.response.payload)) if op.response is not None else None
    if is_object(answer) and is_list(calls := answer.get("tool_calls")):
        found["tool_calls"] = len(calls)
    text = answer.get("content") if is_object(answer) else answer
    if isinstance(text, str):
        found["text_length"] = len(text)
    return found


def _answer(name: str, response: Payload) -> dict[str, Any]:
    value: Any = decode(response.payload)
    size = {} if response.size == _size(value, bytes(response.payload)) else {"size": response.size}
    return {name: readable(value), **size, **{mark: True for mark in _MARKS if getattr(response, mark)}}


def _size(value: Any, data: bytes) -> int:
    return len(value) if isinstance(value, str) else len(data)
