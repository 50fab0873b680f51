"""From a log that was made of a tree (`of_tree`) back to the tree: each event has its node's path, so their order does not matter."""

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
    ReasoningChunk,
    RecordedTree,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    Status,
    TurnBegin,
    TurnEnd,
    TurnSet,
    encode,
    is_list,
    is_object,
    parent_path,
    pass_on,
)
from optree_formats.markdown.captured import as_kept
from optree_formats.markdown.entries import entries, payload, reasoning_at
from optree_formats.markdown.of_tree import NODE, SYSTEM
from optree_formats.markdown.reader import Entry
from optree_formats.markdown.times import moment

_KINDS: Final[dict[str, OpKind]] = {"model_input": "llm", "tool_call": "tool", "agent_call": "session", "system_step": "system"}
_ENDS = frozenset(["model_output", "tool_result", "tool_error", "agent_result", "system_end"])
_STATUSES = get_args(Status)
_BAD = (PathError, msgspec.ValidationError, LookupError, TypeError, ValueError)


def tree_of(found: list[Entry], txn: str) -> tuple[Tree, list[Fault]]:
    """Return the tree that a log's entries tell of, and what of them could not be taken, by line."""
    return _Back(txn).read(found)


class _Back:
    def __init__(self, txn: str) -> None:
        self.records = RecordedTree(txn)
        self.faults: list[Fault] = []
        self.calls: dict[str, dict[str, Any]] = {}
        """Fields of the events that hold requests, by path."""
        self.histories: dict[str, list[Any]] = {}
        self.paths: dict[str, str] = {}
        """Call paths of sessions, by path."""

    def read(self, found: list[Entry]) -> tuple[Tree, list[Fault]]:
        self.calls = {node_path(entry.fields): entry.fields for entry in found if entry.kind in _KINDS or entry.kind in SYSTEM}
        for entry in found:
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
        causes = tuple(str(one) for one in cause) if is_list(cause) else ()
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
        said = fields.get("assistant")
        if is_object(said):
            self.records.apply(TurnSet(path, {str(key): str(value) for key, value in said.items()}))

    # Ops

    def _op_start(self, kind: str, fields: dict[str, Any], path: str, at: float) -> None:
        known = _KINDS.get(kind, "system")
        name = str(fields.get({"llm": "model", "tool": "tool"}.get(known, "name"), kind if kind in SYSTEM else ""))
        self.records.apply(OpBegin(path, at, known, name, _text(fields.get("parent")), block(fields.get("attributes"))))
        members = self._members(fields)
        if members is not None:
            history = self._history(fields, path) if "messages" in fields else None
            self.records.apply(self.records.request(path, at, members, history, kind="llm" if known == "llm" else "tool"))
        self._held(fields, path, at)

    def _op_end(self, fields: dict[str, Any], path: str, at: float, *, failed: bool) -> None:
        self._held(fields, path, at)
        error = fields.get("error")
        said = error.get("message") if is_object(error) and error.get("stated") is not False else None
        status = _status(fields, "failed" if failed else "ok")
        latency = fields.get("duration_ms")
        known = float(latency) if isinstance(latency, (int, float)) else None
        self.records.apply(
            OpEnd(path, at, status, known, _text(said), _text(fields.get("reasoning_final")), block(fields.get("attributes")))
        )

    def _addition(self, fields: dict[str, Any], path: str, at: float) -> None:
        self._held(fields, path, at)
        if "attributes" in fields:
            self.records.apply(OpSet(path, at, attributes=block(fields["attributes"])))

    def _held(self, fields: dict[str, Any], path: str, at: float) -> None:
        """Take what an op holds, of whichever event of it."""
        logs: tuple[LogEntry, ...] = entries(fields, "logs", LogEntry)
        said = fields.get("reasoning")
        chunks = (ReasoningChunk(said, reasoning_at(fields, at)),) if isinstance(said, str) else ()
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
            found = fields.get("request")
            members = found if is_object(found) else {} if found is None else {"value": found}
        same = fields.get("same_as")
        if is_object(same):
            members = {**members, **{key: self._member(str(path), key) for key, path in same.items()}}
            order = fields.get("order")
            if is_list(order):
                members = {key: members[key] for key in [*order, *members] if key in members}
        there = (
            "request" in fields or "messages" in fields or is_object(same) or (is_object(args) and fields.get("args_given") is not False)
        )
        return as_kept(members) if there else None

    def _member(self, path: str, key: str) -> Any:
        fields = self.calls[path]
        found = fields.get("args", fields.get("request"))
        return found[key] if is_object(found) else None

    def _history(self, fields: dict[str, Any], path: str) -> list[Any]:
        """Return an op's whole history: the part of an earlier op's that it continues, and its own messages."""
        continues, own = fields.get("continues"), fields.get("messages")
        before = self.histories[str(continues["path"])][: int(continues["count"])] if is_object(continues) else []
        self.histories[path] = [*before, *(own if is_list(own) else [])]
        return self.histories[path]

    _STEPS: Final[dict[str, Callable[[_Back, dict[str, Any], str, float], None]]] = {
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
    """Return an attribute block; none for what is no map."""
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
    found = fields.get(NODE, "") if fields.get("type") == "repair" and NODE in fields else fields.get("path", "")
    return found if isinstance(found, str) else str(found)


def _check(path: str, *, begins_session: bool) -> None:
    """Raise `PathError` for what is no path, or lies deeper than a snapshot holds."""
    dots = path.count(".")
    if dots > 2 * MAX_NESTED + 1 or (begins_session and dots >= 2 * MAX_NESTED):
        raise PathError(f"{path[:40]}… lies in more than {MAX_NESTED} sessions, and no snapshot holds more")
    Path.parse(path)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _status(fields: dict[str, Any], otherwise: Status = "ok") -> Status | None:
    """Return how something ended; None where the log says no more than that it did."""
    found: Any = fields.get("status")
    known: Status = found if found in _STATUSES else otherwise
    return None if found == ENDED else known
