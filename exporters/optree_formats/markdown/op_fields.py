"""The content of an op as fields of its events and back: request, answer, reasoning, log lines, accounting; and its narrative for people.

Of a payload that the original ai-agent keeps in base64, ``{"format", "encoding": "base64", "value"}``, the value stands decoded, and the
encoding says so; what would not come back byte for byte stays as it is. Each message of a history is written once, and each long member
once: later requests name the op that had it before.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from bisect import bisect_left
from typing import Any, Literal

import msgspec
from msgspec import DecodeError

from optree import AccountingEntry, LogEntry, OperationNode, SessionNode, TurnNode
from optree.exporting import (
    ENDED,
    Payload,
    Pool,
    Reasoning,
    cost_said,
    decode,
    encode,
    is_list,
    is_object,
    last_index,
    pass_on,
    payload_body,
    sanitize,
    state,
    totals_of,
)
from optree_formats.markdown.events import iso, moment, quoted

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
    values: dict[str, Any] = msgspec.json.decode(data)
    return values


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
    items = fields.get(name)
    return tuple(msgspec.json.decode(encode(item), type=kind) for item in items) if is_list(items) else ()


def reasoning_at(fields: dict[str, Any], at: float) -> float:
    """Return when an event's reasoning began."""
    began = moment(fields.get("reasoning_at"))
    return at if began is None else began


def _reasoning(reasoning: Reasoning) -> dict[str, Any]:
    chunks = reasoning.chunks
    streamed = {"reasoning": "".join(chunk.text for chunk in chunks), "reasoning_at": iso(chunks[0].ts)} if chunks else {}
    return {**streamed, **({} if reasoning.final is None else {"reasoning_final": reasoning.final})}


def _of_model(op: OperationNode) -> dict[str, Any]:
    """Return the figures that the seed has for a model's output."""
    tokens = sum(entry.tokens.output_tokens for entry in op.accounting if entry.tokens is not None)
    figures: dict[str, Any] = {"tokens": tokens} if tokens and op.ended_at is not None else {}
    answer: Any = payload_body(decode(op.response.payload)) if op.response is not None else None
    if is_object(answer) and is_list(calls := answer.get("tool_calls")):
        figures["tool_calls"] = len(calls)
    text = answer.get("content") if is_object(answer) else answer
    if isinstance(text, str):
        figures["text_length"] = len(text)
    return figures


def _answer(name: str, response: Payload) -> dict[str, Any]:
    value: Any = decode(response.payload)
    size = {} if response.size == _size(value, bytes(response.payload)) else {"size": response.size}
    return {name: readable(value), **size, **{mark: True for mark in _MARKS if getattr(response, mark)}}


def _size(value: Any, data: bytes) -> int:
    return len(value) if isinstance(value, str) else len(data)


_BASE64, _JSON, _TEXT = "base64", "base64 of JSON", "base64 of text"


def readable(payload: Any) -> Any:
    """Return a payload with what it keeps in base64 decoded: as a value where it is JSON, else as a text."""
    return _each(payload, _opened)


def as_kept(payload: Any) -> Any:
    """Return the payload that `readable` was given."""
    return _each(payload, _closed)


def _each(payload: Any, change: Any) -> Any:
    """Return a payload with a change made to it, or to each of its members."""
    if not is_object(payload):
        return payload
    return change(payload) if "encoding" in payload else {name: change(value) for name, value in payload.items()}


def _opened(encoded: Any) -> Any:
    if not is_object(encoded) or encoded.get("encoding") != _BASE64 or not isinstance(encoded.get("value"), str):
        return encoded
    try:
        data = a2b_base64(encoded["value"], strict_mode=True)
        text = data.decode()
    except ValueError:
        return encoded
    if _base64(data) != encoded["value"]:
        return encoded
    try:
        value = msgspec.json.decode(data)
    except (DecodeError, RecursionError):
        value = None
    if (is_object(value) or is_list(value)) and encode(value) == data:
        return {**encoded, "encoding": _JSON, "value": value}
    return {**encoded, "encoding": _TEXT, "value": text}


def _closed(opened: Any) -> Any:
    if not is_object(opened):
        return opened
    value = opened.get("value")
    if opened.get("encoding") == _JSON:
        return {**opened, "encoding": _BASE64, "value": _base64(encode(value))}
    if opened.get("encoding") == _TEXT and isinstance(value, str):
        return {**opened, "encoding": _BASE64, "value": _base64(value.encode())}
    return opened


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


_HISTORY = {"$history", "count", "bytes"}


class Requests:
    """Remembers which parts of a pool are in the log."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._links: dict[str, tuple[str, int]] = {}
        """Path of the op, and place in its history, by link."""
        self._blobs: dict[tuple[str, str], str] = {}
        """Path of the op by member and blob."""

    def fields(self, op: OperationNode) -> dict[str, Any]:
        """Return the fields of an op's request; none if it has no request.

        ``request`` holds its members, ``same_as`` those that stand in another op's, ``messages`` its history from where ``continues`` ends.
        """
        if op.request is None:
            return {}
        payload: Any = readable(decode(op.request.payload))
        if not is_object(payload):
            return {"request": payload}
        members: dict[str, Any] = {}
        same: dict[str, str] = {}
        history: dict[str, Any] = {}
        for key, value in payload.items():
            if key == "messages" and self._is_history(value):
                history = self._history(op.path, value["$history"])
            elif is_object(value) and value.keys() == {"$blob"} and value["$blob"] in self.pool.blobs:
                blob = value["$blob"]
                if (key, blob) in self._blobs:
                    same[key] = self._blobs[key, blob]
                else:
                    self._blobs[key, blob] = op.path
                    members[key] = decode(self.pool.blobs[blob])
            else:
                members[key] = value
        fields: dict[str, Any] = {"request": members} if members or not (history or same) else {}
        order = [key for key in payload if key in members or key in same]
        if same:
            fields["same_as"] = same
        if same and order != [*members, *same]:
            fields["order"] = order
        return {**fields, **history}

    def _is_history(self, value: Any) -> bool:
        return is_object(value) and value.keys() == _HISTORY and (value["$history"] in self.pool.links or not value["$history"])

    def _history(self, path: str, head: str) -> dict[str, Any]:
        """Return a history's messages from where another's ends that the log has already."""
        new: list[tuple[str, str]] = []
        link = head
        while link and link in self.pool.links and link not in self._links:
            before, blob = self.pool.links[link]
            new.append((link, blob))
            link = before
        new.reverse()
        known = self._links.get(link)
        start = known[1] if known else 0
        for number, (new_link, _) in enumerate(new, start + 1):
            self._links[new_link] = (path, number)
        messages = [decode(self.pool.blobs.get(blob)) for _, blob in new]
        return {**({"continues": {"path": known[0], "count": known[1]}} if known else {}), "messages": messages}


def turn_story(session: SessionNode, user: str | None) -> str:
    """Tell what the user wants."""
    if not user or not user.strip():
        return ""
    return f"{quoted(session.agent_id)} is told: {quoted(user)}" if session.path else f"The user says: {quoted(user)}"


def op_story(session: SessionNode, op: OperationNode, pool: Pool) -> str:
    """Tell what an op is about to do."""
    if op.kind == "session":
        return f"{quoted(session.agent_id)} calls the agent {quoted(op.name)}."
    if op.kind != "llm" or op.request is None:
        return ""
    payload: Any = decode(op.request.payload)
    history = payload.get("messages") if is_object(payload) else None
    if is_object(history) and isinstance(count := history.get("count"), int):
        last = _last(pool, history.get("$history"))
        ending = f": {quoted(last)}" if last.strip() else "."
        return f"{'1 message goes' if count == 1 else f'{count} messages go'} to the model, the last{ending}" if count else ""
    return ""


def result_story(op: OperationNode) -> str:
    """Tell how an op ended."""
    parts = [_status(op)]
    tokens = [entry.tokens for entry in op.accounting if entry.tokens is not None]
    if op.kind == "llm" and any(used.total_tokens for used in tokens):
        sums = totals_of(op.accounting)
        cost = cost_said(sums.cost_usd, sums.known_costs, sums.unknown_costs)
        parts.append(f"{sums.all_input_tokens} tokens in, {sums.output_tokens} out, {cost}")
    outcome = op.error or answer_text(op)
    return ", ".join(parts) + (f": {quoted(outcome)}" if outcome.strip() else ".")


def answer_text(op: OperationNode) -> str:
    """Return the text of what an op got back: a text, a message, or a list of content blocks; empty if it is something else."""
    return _text(decode(op.response.payload)) if op.response is not None else ""


def _text(answer: Any) -> str:
    if is_object(answer):
        answer = answer.get("content", answer.get("text"))
    if is_list(answer):
        answer = next((item.get("text") for item in answer if is_object(item) and isinstance(item.get("text"), str)), "")
    return answer if isinstance(answer, str) else ""


def _status(op: OperationNode) -> str:
    word = {"ok": "Done", "failed": "Failed", "cancelled": "Cancelled", "interrupted": "Interrupted"}.get(op.status or "", "Ended")
    if op.latency is None:
        return word
    seconds = op.latency >= 1000  # noqa: PLR2004 - a second
    return f"{word} after {op.latency / 1000:.1f} s" if seconds else f"{word} after {op.latency:.0f} ms"


def _last(pool: Pool, head: Any) -> str:
    _, blob = pool.links.get(head, ("", "")) if isinstance(head, str) else ("", "")
    return _text(decode(pool.blobs.get(blob)))


NOT_STATED = "not stated"
Source = Literal["args", "attributes", "assistant", "nobody"]
_CODES = (
    ("NOT_FOUND", ("not found", "notfound", "no such file")),
    ("PERMISSION_DENIED", ("permission", "forbidden", "denied", "unauthorized")),
    ("TIMEOUT", ("timeout", "timed out")),
    ("QUOTA_EXCEEDED", ("quota", "rate limit", "too many requests")),
    ("INVALID_ARGS", ("valueerror", "typeerror", "invalid", "keyerror", "validationerror")),
)
_LONGEST = 300
NEAR = 50
"""How many ops before a call are searched for the assistant's message."""


def _index(op: OperationNode) -> int:
    return last_index(op.path)


def why_of(turn: TurnNode, op: OperationNode, args: dict[str, Any]) -> tuple[str, Source]:
    """Return why a tool was called, and the source: its arguments, its attributes, the assistant before the call, or ``nobody``."""
    why = args.get("why")
    if isinstance(why, str) and why.strip():
        return why, "args"
    why = op.attributes.get("why")
    if isinstance(why, str) and why.strip():
        return why, "attributes"
    before = _said_before(turn, op)
    return (before, "assistant") if before else (NOT_STATED, "nobody")


def code_of(op: OperationNode) -> str:
    """Return the error code that an op's error comes closest to."""
    if op.status in ("cancelled", "interrupted"):
        return str(op.status).upper()
    error = (op.error or "").lower()
    return next((code for code, marks in _CODES if any(mark in error for mark in marks)), "FAILED")


def _said_before(turn: TurnNode, op: OperationNode) -> str:
    """Return the first line of the last text that a model gave in the turn before the op began."""
    ops = turn.ops
    here = bisect_left(ops, last_index(op.path), key=_index)
    for earlier in reversed(ops[max(0, here - NEAR) : here]):
        if earlier.kind == "llm" and earlier.response is not None and earlier.ended_at is not None and earlier.ended_at <= op.started_at:
            lines = answer_text(earlier).strip().split("\n", 1)
            return lines[0][:_LONGEST].strip()
    return ""
