"""From a log that knows nothing of trees, as seed 003 shows one, to a tree.

A user's message begins a turn; a tool call, or what goes into a model, begins an op, which its result ends; every other event is an op of
the system that ends as it begins. Narratives become log lines; comments, and fields that have no place in a tree, become attributes.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from optree import AccountingEntry, LogEntry, Tree
from optree.exporting import (
    Accounted,
    Entries,
    Fault,
    OpBegin,
    OpEnd,
    OpKind,
    Payload,
    RecordedTree,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionSet,
    Status,
    Tokens,
    TurnBegin,
    TurnEnd,
    encode,
    is_object,
    leave_out_impossible,
    text,
)
from optree_formats.markdown.comments import Comments
from optree_formats.markdown.reader import Entry
from optree_formats.markdown.to_tree import block, raw

_REASONS: dict[str, Status] = {
    "error": "failed",
    "failed": "failed",
    "crash": "failed",
    "cancelled": "cancelled",
    "interrupted": "interrupted",
}
_AGENT = "agent"
_EVENT = "event"
_RESULTS = frozenset(["tool_result", "tool_error", "model_output"])
_OWN = {
    "session_start": {"type", "timestamp", "session_id", "agent"},
    "tool_call": {"type", "timestamp", "tool", "args"},
    "tool_result": {"type", "timestamp", "call_id", "success", "duration_ms", "result"},
    "tool_error": {"type", "timestamp", "call_id", "error"},
    "model_input": {"type", "timestamp", "model"},
    "model_output": {"type", "timestamp"},
    "user_message": {"type", "timestamp"},
}


def tree_of(found: list[Entry], txn: str) -> tuple[Tree, list[Fault]]:
    """Return a tree that tells what a log's entries do, and what was mended, by line."""
    making = _Making(txn)
    for entry in found:
        if entry.kind or entry.fields:
            making.take(entry)
    making.finish()
    return making.records.finish(), making.faults


class _Making:
    def __init__(self, txn: str) -> None:
        self.records = RecordedTree(txn)
        self.faults: list[Fault] = []
        self.txn = txn
        self.at = 0.0
        self.begun = self.ended = False
        self.turn = self.op = 0
        self.open_calls: dict[str, tuple[str, str, float]] = {}
        """Path, tool and begin of open calls, by call id."""
        self.asked: list[tuple[str, float]] = []
        """Paths and begins of open llm ops."""

    def take(self, entry: Entry) -> None:
        self.at = entry.at if entry.at is not None else self.at
        kind, fields = entry.kind or "note", entry.fields
        if not self.begun:
            self._begin(entry if kind == "session_start" else Entry(0))
            if kind == "session_start":
                return
        if kind == "session_end":
            self._end(entry)
        elif kind == "user_message":
            self._turn(entry)
        elif kind == "tool_call":
            self._call(entry)
        elif kind in ("tool_result", "tool_error"):
            self._result(entry, failed=kind == "tool_error" or fields.get("success") is False)
        elif kind == "model_input":
            path = self._op("llm", text(fields.get("model", "model")), entry)
            self.asked.append((path, self.at))
        elif kind == "model_output":
            self._answer(entry)
        else:
            self.records.apply(OpEnd(self._op("system", kind, entry), self.at, "ok", 0.0))

    def finish(self) -> None:
        """Begin the session of a log that has no event."""
        if not self.begun:
            self._begin(Entry(0))

    def _begin(self, entry: Entry) -> None:
        self.begun = True
        agent = text(entry.fields.get("agent") or _AGENT)
        self.records.apply(SessionBegin("", self.at, agent, agent, block(_rest(entry))))
        if isinstance(purpose := entry.fields.get("purpose"), str):
            self.records.apply(SessionSet("", self.at, purpose))

    def _end(self, entry: Entry) -> None:
        if self.ended:
            self.faults.append(Fault(entry.block_line, "the session had ended before: this end holds"))
        self.ended = True
        self._end_turn()
        self.records.apply(
            SessionEnd("", self.at, _REASONS.get(str(entry.fields.get("reason")), "ok"), None, raw(_rest(entry) or entry.fields))
        )

    def _turn(self, entry: Entry | None) -> None:
        self._end_turn()
        self.turn, self.op = self.turn + 1, 0
        said = entry.fields.get("content", entry.narrative or None) if entry else None
        prompts = {"user": text(said)} if said is not None else None
        self.records.apply(TurnBegin(str(self.turn), self.at, prompts, block(_rest(entry)) if entry else UNSET))

    def _end_turn(self) -> None:
        if self.turn:
            self.records.apply(TurnEnd(str(self.turn), self.at, "ok"))

    def _op(self, kind: OpKind, name: str, entry: Entry) -> str:
        """Begin an op; its narrative is its first log line."""
        if not self.turn:
            self._turn(None)
        self.op += 1
        path = f"{self.turn}.{self.op}"
        self.records.apply(OpBegin(path, self.at, kind, name, None, block(_rest(entry))))
        self._say(path, entry)
        return path

    def _say(self, path: str, entry: Entry) -> None:
        lines = [LogEntry(self.at, "VRB", said) for said in (entry.narrative, entry.after) if said]
        if lines:
            self.records.apply(Entries(path, -1, tuple(lines), -1))

    def _call(self, entry: Entry) -> None:
        tool = text(entry.fields.get("tool", "(unknown)"))
        path = self._op("tool", tool, entry)
        if (args := entry.fields.get("args")) is not None:
            self.records.apply(self.records.request(path, self.at, args if is_object(args) else {"value": args}))
        self.open_calls[str(entry.fields.get("call_id", ""))] = path, tool, self.at

    def _result(self, entry: Entry, *, failed: bool) -> None:
        fields = entry.fields
        call = str(fields.get("call_id", ""))
        if call not in self.open_calls:
            self.faults.append(
                Fault(entry.block_line, f"{entry.kind}: no call {call[:80]!r} is open: one of an unknown tool is put in its place")
            )
            self._call(Entry(entry.line, fields={"call_id": call}))
        path, tool, began = self.open_calls.pop(call)
        self._say(path, entry)
        size = 0
        if "result" in fields:
            data = encode(fields["result"])
            size = len(fields["result"]) if isinstance(fields["result"], str) else len(data)
            self.records.apply(Responded(path, self.at, Payload(raw(fields["result"]), None, size)))
        error = fields.get("error")
        said = text(error.get("message", error.get("code", ""))) if is_object(error) else None if error is None else text(error)
        latency = _number(fields.get("duration_ms"), self.at - began)
        told = AccountingEntry(
            f"{self.txn}:{path}#1", self.at, "tool", "failed" if failed else "ok", latency, command=tool, characters_out=size, error=said
        )
        self.records.apply(Accounted(path, told))
        kept = {"error": error} if is_object(error) and error.keys() - {"message"} else {}
        self.records.apply(OpEnd(path, self.at, "failed" if failed else "ok", latency, said, None, block({**_rest(entry), **kept})))

    def _answer(self, entry: Entry) -> None:
        fields = entry.fields
        if not self.asked:
            self.asked.append((self._op("llm", text(fields.get("model", "model")), Entry(entry.line)), self.at))
        path, began = self.asked.pop()
        self._say(path, entry)
        got = int(_number(fields.get("tokens"), 0.0))
        told = AccountingEntry(
            f"{self.txn}:{path}#1", self.at, "llm", "ok", self.at - began, tokens=Tokens(0, got, total_tokens=got) if got else None
        )
        leave_out_impossible(told)
        self.records.apply(Accounted(path, told))
        self.records.apply(OpEnd(path, self.at, "ok", self.at - began, None, None, block(_rest(entry))))


def _rest(entry: Entry) -> dict[str, Any]:
    """Return what of an event becomes attributes: fields without a place of their own, and its comments."""
    own = _OWN.get(entry.kind, {"type", "timestamp"})
    rest = {key: value for key, value in entry.fields.items() if key not in own}
    said = _said(entry.comments)
    return {**rest, **({"result_comments" if entry.kind in _RESULTS else "comments": said} if said else {})}


def _said(comments: Comments) -> dict[str, str]:
    return {".".join(map(str, place)) or _EVENT: "\n".join(comment.texts()) for place, comment in comments.items()}


def _number(value: Any, otherwise: float) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return float(value) if usable else otherwise
