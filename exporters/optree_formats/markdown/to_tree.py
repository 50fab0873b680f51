"""From a log to a tree: of one that was made of a tree (`of_tree`), and of one that knows nothing of trees, as seed 003 shows one.

Of the first each event has its node's path, so their order does not matter. In the second a user's message begins a turn; a tool call, or
what goes into a model, begins an op, which its result ends; every other event is an op of the system that ends as it begins. Narratives
become log lines; comments, and fields that have no place in a tree, become attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from optree import AccountingEntry, LogEntry, Message, Path, PathError, Tree
from optree.exporting import (
    ENDED,
    MAX_NESTED,
    Accounted,
    Entries,
    Fault,
    MessageAdded,
    OpBegin,
    OpEnd,
    OpKind,
    OpSet,
    Payload,
    ReasoningChunk,
    RecordedTree,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    Status,
    Tokens,
    TurnBegin,
    TurnEnd,
    TurnSet,
    encode,
    is_list,
    is_object,
    leave_out_impossible,
    parent_path,
    pass_on,
    text,
)
from optree_formats.markdown.events import moment
from optree_formats.markdown.of_tree import NODE, SCHEMA, SYSTEM
from optree_formats.markdown.op_fields import as_kept, entries, payload, reasoning_at
from optree_formats.markdown.own_yaml import Comments
from optree_formats.markdown.reader import Entry

_KINDS: Final[dict[str, OpKind]] = {"model_input": "llm", "tool_call": "tool", "agent_call": "session", "system_step": "system"}
_ENDS = frozenset(["model_output", "tool_result", "tool_error", "agent_result", "system_end"])
_STATUSES = get_args(Status)
_BAD = (PathError, msgspec.ValidationError, LookupError, TypeError, ValueError)


def tree_of(log_entries: list[Entry], txn: str) -> tuple[Tree, list[Fault]]:
    """Return the tree that a log's entries describe, and faults, by line, where an entry was left out or mended."""
    own = next((entry.fields.get("tree") == SCHEMA for entry in log_entries if entry.kind == "session_start"), False)
    return _OwnLog(txn).read(log_entries) if own else _ForeignLog(txn).read(log_entries)


class _OwnLog:
    def __init__(self, txn: str) -> None:
        self.records = RecordedTree(txn)
        self.faults: list[Fault] = []
        self.calls: dict[str, dict[str, Any]] = {}
        """Fields of the events that hold requests, by path."""
        self.histories: dict[str, list[Any]] = {}
        self.paths: dict[str, str] = {}
        """Call paths of sessions, by path."""

    def read(self, log_entries: list[Entry]) -> tuple[Tree, list[Fault]]:
        self.calls = {
            node_path(entry.fields): entry.fields
            for entry in log_entries
            if entry.kind in _KINDS or entry.kind in SYSTEM or (entry.kind == "addition" and {"request", "messages"} & entry.fields.keys())
        }
        for entry in log_entries:
            if not entry.kind:
                continue
            try:
                self._take(entry.kind, entry.fields, moment(entry.fields.get("timestamp")) or entry.at or 0.0)
            except _BAD as error:
                self.faults.append(Fault(entry.block_line, f"{entry.kind}: left out: {type(error).__name__}: {error}"))
        return self.records.finish(), self.faults

    def _take(self, kind: str, fields: dict[str, Any], at: float) -> None:
        path = node_path(fields)
        if path:
            _check(path, begins_session=kind == "agent_start")
        if kind in _KINDS or kind in SYSTEM:
            self._op_start(kind, fields, path, at)
        elif kind in _ENDS:
            self._op_end(fields, path, at, failed=kind == "tool_error")
        else:
            step = self._STEPS.get(kind)
            if step is not None:
                step(self, fields, path, at)

    # Sessions and turns

    def _session_start(self, fields: dict[str, Any], path: str, at: float) -> None:
        agent = str(fields.get("agent", ""))
        above = self.paths.get(parent_path(parent_path(path)))
        expected = agent if above is None else f"{above}->{agent}"
        self.paths[path] = str(fields.get("call_path", expected))
        self.records.apply(SessionBegin(path, at, agent, self.paths[path], block(fields.get("attributes"))))
        self._session_set(fields, path, at)

    def _session_set(self, fields: dict[str, Any], path: str, at: float) -> None:
        title, status = _text(fields.get("title")), _text(fields.get("latest_status"))
        if title is not None or status is not None:
            self.records.apply(SessionSet(path, at, title, status))

    def _session_end(self, fields: dict[str, Any], path: str, at: float) -> None:
        report = raw(fields["final_report"]) if "final_report" in fields else UNSET
        self.records.apply(SessionEnd(path, at, _status(fields), _text(fields.get("error")), report))

    def _resume(self, _: dict[str, Any], path: str, at: float) -> None:
        self.records.apply(SessionResume(path, at))

    def _message(self, fields: dict[str, Any], path: str, at: float) -> None:
        cause = fields.get("cause")
        causes = tuple(str(cause_id) for cause_id in cause) if is_list(cause) else ()
        substance, identity = _text(fields.get("substance")), _text(fields.get("id"))
        message = Message(at, str(fields["role"]), raw(fields["body"]), identity, substance, causes)
        self.records.apply(MessageAdded(path, -1, message))

    def _turn_start(self, fields: dict[str, Any], path: str, at: float) -> None:
        others = fields.get("prompts")
        prompts: dict[str, str] = {str(key): str(value) for key, value in others.items()} if is_object(others) else {}
        if "content" in fields:
            prompts["user"] = str(fields["content"])
        self.records.apply(TurnBegin(path, at, prompts or None, block(fields.get("attributes"))))
        self._assistant(fields, path)

    def _turn_end(self, fields: dict[str, Any], path: str, at: float) -> None:
        self._assistant(fields, path)
        self.records.apply(TurnEnd(path, at, _status(fields), _text(fields.get("error"))))

    def _assistant(self, fields: dict[str, Any], path: str) -> None:
        assistant = fields.get("assistant")
        if is_object(assistant):
            self.records.apply(TurnSet(path, {str(key): str(value) for key, value in assistant.items()}))

    # Ops

    def _op_start(self, kind: str, fields: dict[str, Any], path: str, at: float) -> None:
        known = _KINDS.get(kind, "system")
        name = str(fields.get({"llm": "model", "tool": "tool"}.get(known, "name"), kind if kind in SYSTEM else ""))
        self.records.apply(OpBegin(path, at, known, name, _text(fields.get("parent")), block(fields.get("attributes"))))
        self._request(fields, path, at, known)
        self._held(fields, path, at)

    def _op_end(self, fields: dict[str, Any], path: str, at: float, *, failed: bool) -> None:
        self._held(fields, path, at)
        error = fields.get("error")
        message = error.get("message") if is_object(error) and error.get("stated") is not False else None
        status = _status(fields, "failed" if failed else "ok")
        latency = fields.get("duration_ms")
        known = float(latency) if isinstance(latency, (int, float)) else None
        self.records.apply(
            OpEnd(path, at, status, known, _text(message), _text(fields.get("reasoning_final")), block(fields.get("attributes")))
        )

    def _request(self, fields: dict[str, Any], path: str, at: float, kind: OpKind) -> None:
        members = self._members(fields)
        if members is not None:
            history = self._history(fields, path) if "messages" in fields else None
            self.records.apply(self.records.request(path, at, members, history, kind="llm" if kind == "llm" else "tool"))

    def _addition(self, fields: dict[str, Any], path: str, at: float) -> None:
        op = self.records.ops.get(path)
        if op is not None:
            self._request(fields, path, op.started_at, op.kind)
        self._held(fields, path, at)
        if "attributes" in fields:
            self.records.apply(OpSet(path, at, attributes=block(fields["attributes"])))

    def _held(self, fields: dict[str, Any], path: str, at: float) -> None:
        """Take what an op holds, of whichever event of it."""
        logs: tuple[LogEntry, ...] = entries(fields, "logs", LogEntry)
        reasoning = fields.get("reasoning")
        chunks = (ReasoningChunk(reasoning, reasoning_at(fields, at)),) if isinstance(reasoning, str) else ()
        if logs or chunks:
            self.records.apply(Entries(path, -1, logs, -1, chunks))
        for entry in entries(fields, "accounting", AccountingEntry):
            self.records.apply(Accounted(path, entry))
        answer = payload(fields, "result") or payload(fields, "response")
        if answer is not None:
            self.records.apply(Responded(path, at, answer))

    def _members(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Return the members of a request, those that stand in others' too; None if there is no request."""
        args = fields.get("args")
        if is_object(args):
            members = {key: value for key, value in args.items() if key != "why" or "why_from" not in fields or "given_why" in fields}
            if "given_why" in fields:
                members["why"] = fields["given_why"]
        else:
            request = fields.get("request")
            members = request if is_object(request) else {} if request is None else {"value": request}
        same = fields.get("same_as")
        if is_object(same):
            members = {**members, **{key: self._member(str(path), key) for key, path in same.items()}}
            order = fields.get("order")
            if is_list(order):
                members = {key: members[key] for key in [*order, *members] if key in members}
        has_request = (
            "request" in fields or "messages" in fields or is_object(same) or (is_object(args) and fields.get("args_given") is not False)
        )
        return as_kept(members) if has_request else None

    def _member(self, path: str, key: str) -> Any:
        fields = self.calls[path]
        members = fields.get("args", fields.get("request"))
        return members[key] if is_object(members) else None

    def _history(self, fields: dict[str, Any], path: str) -> list[Any]:
        """Return an op's whole history: the part of an earlier op's that it continues, and its own messages."""
        continues, own = fields.get("continues"), fields.get("messages")
        before = self.histories[str(continues["path"])][: int(continues["count"])] if is_object(continues) else []
        self.histories[path] = [*before, *(own if is_list(own) else [])]
        return self.histories[path]

    _STEPS: Final[dict[str, Callable[[_OwnLog, dict[str, Any], str, float], None]]] = {
        "session_start": _session_start,
        "agent_start": _session_start,
        "session_end": _session_end,
        "agent_end": _session_end,
        "session_update": _session_set,
        "session_resume": _resume,
        "message": _message,
        "user_message": _turn_start,
        "turn_start": _turn_start,
        "turn_end": _turn_end,
        "addition": _addition,
    }


def block(attributes: Any) -> Raw | UnsetType:
    """Return an attribute block; none for a value that is not a map."""
    return raw(attributes) if is_object(attributes) and attributes else UNSET


def raw(value: Any) -> Raw:
    """Return a plain value as JSON, whole: texts were cut when they were recorded."""
    try:
        return Raw(msgspec.json.encode(value))
    except Exception as error:  # noqa: BLE001 - numbers that JSON cannot hold, of logs that others wrote
        pass_on(error)
        return Raw(encode(value))


def node_path(fields: dict[str, Any]) -> str:
    """Return the path of the node that an event is of; in a repair, where ``path`` is the repaired file, it is ``node``."""
    path = fields.get(NODE, "") if fields.get("type") == "repair" and NODE in fields else fields.get("path", "")
    return path if isinstance(path, str) else str(path)


def _check(path: str, *, begins_session: bool) -> None:
    """Raise `PathError` for a text that is not a path, or for a path deeper than a snapshot holds."""
    dots = path.count(".")
    if dots > 2 * MAX_NESTED + 1 or (begins_session and dots >= 2 * MAX_NESTED):
        raise PathError(f"{path[:40]}… lies in more than {MAX_NESTED} sessions, and no snapshot holds more")
    Path.parse(path)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _status(fields: dict[str, Any], otherwise: Status = "ok") -> Status | None:
    """Return how a node ended; None where the log only says that it ended."""
    status: Any = fields.get("status")
    known: Status = status if status in _STATUSES else otherwise
    return None if status == ENDED else known


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


class _ForeignLog:
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

    def read(self, log_entries: list[Entry]) -> tuple[Tree, list[Fault]]:
        for entry in log_entries:
            if entry.kind or entry.fields:
                self.take(entry)
        if not self.begun:
            self._begin(Entry(0))
        return self.records.finish(), self.faults

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
        content = entry.fields.get("content", entry.narrative or None) if entry else None
        prompts = {"user": text(content)} if content is not None else None
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
        lines = [LogEntry(self.at, "VRB", narrative) for narrative in (entry.narrative, entry.after) if narrative]
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
        message = text(error.get("message", error.get("code", ""))) if is_object(error) else None if error is None else text(error)
        latency = _number(fields.get("duration_ms"), self.at - began)
        accounting = AccountingEntry(
            f"{self.txn}:{path}#1", self.at, "tool", "failed" if failed else "ok", latency, command=tool, characters_out=size, error=message
        )
        self.records.apply(Accounted(path, accounting))
        kept = {"error": error} if is_object(error) and error.keys() - {"message"} else {}
        self.records.apply(OpEnd(path, self.at, "failed" if failed else "ok", latency, message, None, block({**_rest(entry), **kept})))

    def _answer(self, entry: Entry) -> None:
        fields = entry.fields
        if not self.asked:
            self.asked.append((self._op("llm", text(fields.get("model", "model")), Entry(entry.line)), self.at))
        path, began = self.asked.pop()
        self._say(path, entry)
        tokens = int(_number(fields.get("tokens"), 0.0))
        accounting = AccountingEntry(
            f"{self.txn}:{path}#1", self.at, "llm", "ok", self.at - began, tokens=Tokens(0, tokens, total_tokens=tokens) if tokens else None
        )
        leave_out_impossible(accounting)
        self.records.apply(Accounted(path, accounting))
        self.records.apply(OpEnd(path, self.at, "ok", self.at - began, None, None, block(_rest(entry))))


def _rest(entry: Entry) -> dict[str, Any]:
    """Return what of an event becomes attributes: fields without a place of their own, and its comments."""
    own = _OWN.get(entry.kind, {"type", "timestamp"})
    rest = {key: value for key, value in entry.fields.items() if key not in own}
    comments = _comment_texts(entry.comments)
    return {**rest, **({"result_comments" if entry.kind in _RESULTS else "comments": comments} if comments else {})}


def _comment_texts(comments: Comments) -> dict[str, str]:
    return {".".join(map(str, place)) or _EVENT: "\n".join(comment.texts()) for place, comment in comments.items()}


def _number(value: Any, otherwise: float) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return float(value) if usable else otherwise
