"""Events of one sample of Inspect, as one session: calls of models and tools, and agents that are called by agents."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree import LogEntry, Op, SessionTreeBuilder
from optree.exporting import OpKind, PooledHistory, Severity, Status, is_list, is_object, text
from optree_formats.agents.recording import SessionRecording, text_in, time_of

_ATTACHMENT = "attachment://"
_MOST_NESTED = 100
_NAMES = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "input_tokens_cache_read": "cache_read_input_tokens",
    "input_tokens_cache_write": "cache_creation_input_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "total_cost": "total_cost",
}
"""Members of Inspect's usage, and their names elsewhere; its input is without cached tokens."""
_SILENT = frozenset(
    {"sample_init", "sample_limit", "sandbox", "state", "store", "input", "score", "score_edit", "error", "info", "approval", "step",
     "subtask", "compaction", "interrupt", "anchor", "checkpoint", "branch"}
)  # fmt: skip
_SEVERITIES: dict[str, Severity] = {"warning": "WRN", "error": "ERR", "critical": "ERR"}


class _InspectPlace(Struct):
    """Where what happens in a span goes."""

    recording: SessionRecording
    agents: int = 0
    """How many agents it is in."""
    op: Op | None = None
    """The op that the span itself ends: that of a sub-agent."""
    alone: bool = False
    """True if no tool's event has that op's end."""
    sent: tuple[list[Any], PooledHistory] = ([], PooledHistory())
    """What the last call of a model here was sent."""


class Sample(SessionRecording):
    """Records one sample."""

    def __init__(self, builder: SessionTreeBuilder, sample: dict[str, Any], notes: list[str]) -> None:
        super().__init__(builder)
        self._sample, self._notes = sample, notes
        data = sample.get("events_data")
        messages = data.get("messages") if is_object(data) else None
        self._messages: list[Any] = messages if is_list(messages) else []
        attachments = sample.get("attachments")
        self._attachments: dict[str, Any] = attachments if is_object(attachments) else {}
        self._root = _InspectPlace(self)
        self._places: dict[str, _InspectPlace] = {}
        self._called: dict[str, Op] = {}
        """Ops of tools that are agents, by the agents' spans."""
        self._unknown: set[str] = set()
        self._last: Op | None = None

    def take(self, event: Any) -> None:
        """Record an event; what is not understood is noted, each once."""
        kind = text(event.get("event")) if is_object(event) else ""
        ts = time_of(event.get("timestamp")) if is_object(event) else None
        if ts is None:
            self._note("an event has no time: passed over")
        elif kind == "model":
            self._model(event, ts)
        elif kind == "tool":
            self._tool(event, ts)
        elif kind == "span_begin":
            self._begin_span(event, ts)
        elif kind == "span_end":
            self._end_span(event, ts)
        elif kind == "logger":
            self._logged(event, ts)
        elif kind not in _SILENT:
            self._note(f"events of type {kind[:80]!r} are not known: passed over")

    def close(self, ended: float | None) -> None:
        """End the session as the sample says it ended; one that is not complete stays open."""
        messages = self._sample.get("messages")
        for message in messages if is_list(messages) else []:
            if is_object(message):
                self.say(self._whole(message), self.latest)
        if ended is None:
            return
        error, limit = self._sample.get("error"), self._sample.get("limit")
        error_text = text(error.get("message")) if is_object(error) else None
        if error_text is None and is_object(limit):
            error_text = f"limit of {text(limit.get('type'))} reached: {text(limit.get('limit'))}"
        status: Status = "ok" if error_text is None else "failed"
        output = self._sample.get("output")
        answer = output.get("completion") if is_object(output) else None
        report = {"answer": answer, "target": self._sample.get("target"), "scores": self._sample.get("scores")}
        self.end_turn(ended, status, error_text, answer if isinstance(answer, str) else None)
        self.end(ended, status, error_text, {name: value for name, value in report.items() if value})

    def _note(self, note: str) -> None:
        if note not in self._unknown:
            self._unknown.add(note)
            self._notes.append(note)

    def _place(self, span: Any) -> _InspectPlace:
        return self._places.get(span, self._root) if isinstance(span, str) else self._root

    def _begin_span(self, event: dict[str, Any], ts: float) -> None:
        identity, above = text(event.get("id") or ""), self._place(event.get("parent_id"))
        place = _InspectPlace(above.recording, above.agents, sent=above.sent)
        if event.get("type") == "agent":
            place.agents += 1
            if above.agents:
                self._sub_agent(place, identity, text(event.get("name") or "agent"), ts)
        self._places[identity] = place

    def _sub_agent(self, place: _InspectPlace, identity: str, name: str, ts: float) -> None:
        op = self._called.pop(identity, None)
        place.alone = op is None
        place.op = op or place.recording.tool(name, ts, None, "session")
        builder = place.recording.child(place.op, name, ts)
        if builder is None:
            self._note("agents that are nested too deeply stay ops")
            return
        place.recording = SessionRecording(builder)
        place.recording.begin_turn(ts)

    def _end_span(self, event: dict[str, Any], ts: float) -> None:
        place = self._places.get(text(event.get("id") or ""))
        if place is None or place.op is None:
            return
        status: Status = "failed" if place.op.node.status == "failed" else "ok"
        if place.recording.builder.path == place.op.path:
            place.recording.end_turn(ts, status, place.op.node.error)
            place.recording.end(ts, status, place.op.node.error)
        if place.alone:
            self.finish(place.op, ts, "ok")
        place.op = None

    # Calls

    def _model(self, event: dict[str, Any], ts: float) -> None:
        place = self._place(event.get("span_id"))
        provider, slash, model = text(event.get("model") or "unknown").partition("/")
        output = event.get("output")
        output = output if is_object(output) else {}
        recording = place.recording
        recording.history = self._history(place, event)
        members = {name: event[name] for name in ("tools", "tool_choice", "config") if event.get(name)}
        known = {"cache": event.get("cache"), "role": event.get("role"), "retries": event.get("retries")}
        op = recording.call(provider if slash else "unknown", model if slash else provider, ts, members, known)
        self._last = op
        if event.get("pending") is True:
            return
        ended = time_of(event.get("completed")) or ts
        error = event.get("error")
        choices = output.get("choices")
        message = choices[0].get("message") if is_list(choices) and choices and is_object(choices[0]) else None
        message = self._whole(message) if is_object(message) else None
        if error is None:
            recording.answer(op, ended, message)
        if event.get("cache") != "read":  # that is an answer of before, which took its tokens then
            recording.account(op, ended, _usage(output.get("usage")), failed=error is not None)
        content = message.get("content") if message is not None else None
        thoughts = [text(block.get("reasoning") or "") for block in content if is_object(block)] if is_list(content) else []
        error_text = None if error is None else text(error)
        stop = choices[0].get("stop_reason") if message is not None and is_list(choices) else None
        recording.finish(
            op, ended, "ok" if error is None else "failed", error_text, "\n".join(filter(None, thoughts)), {"stopReason": stop}
        )

    def _tool(self, event: dict[str, Any], ts: float) -> None:
        recording = self._place(event.get("span_id")).recording
        agent = event.get("agent_span_id")
        name, identity = text(event.get("function") or "tool"), event.get("id")
        kind: OpKind = "session" if isinstance(agent, str) else "tool"
        op = recording.tool(name, ts, self._whole(event.get("arguments")), kind, {"toolCallId": identity})
        self._last = op
        if isinstance(agent, str):
            self._called[agent] = op
        if event.get("pending") is True:
            return
        ended = time_of(event.get("completed")) or ts
        error = event.get("error")
        error_text = None if error is None else text(error.get("message") if is_object(error) else error)
        recording.answer(op, ended, self._whole(event.get("result")) or None)
        recording.finish(op, ended, "ok" if error is None else "failed", error_text)

    def _logged(self, event: dict[str, Any], ts: float) -> None:
        message = event.get("message")
        if self._last is not None and is_object(message):
            severity = _SEVERITIES.get(text(message.get("level")), "VRB")
            self.log(self._last, [LogEntry(ts, severity, text_in(message.get("message")))])

    # What events refer to

    def _history(self, place: _InspectPlace, event: dict[str, Any]) -> PooledHistory:
        """Return what a model was sent; a history that goes on from the last one costs what is new."""
        refs, inputs = event.get("input_refs"), event.get("input")
        keys: list[Any] = [*_expanded(refs, len(self._messages)), *(inputs if is_list(inputs) else [])]
        before, history = place.sent
        if keys[: len(before)] != before:
            before, history = [], PooledHistory()
        for key in keys[len(before) :]:
            message = self._messages[key] if isinstance(key, int) else key
            history = self.builder.core.appended(history, self._whole(message))
        place.sent = (keys, history)
        return history

    def _whole(self, value: Any, depth: int = 0) -> Any:
        """Return a value with its attachments in their places."""
        if isinstance(value, str):
            return self._attachments.get(value.removeprefix(_ATTACHMENT), value) if value.startswith(_ATTACHMENT) else value
        if depth > _MOST_NESTED:
            return value
        if is_object(value):
            return {name: self._whole(item, depth + 1) for name, item in value.items()}
        return [self._whole(item, depth + 1) for item in value] if is_list(value) else value


def _expanded(refs: Any, most: int) -> list[int]:
    """Return the places of messages that ranges name."""
    places: list[int] = []
    for bounds in refs if is_list(refs) else []:
        if is_list(bounds) and len(bounds) == 2 and all(type(end) is int for end in bounds):  # noqa: PLR2004 - first and behind the last
            places += range(max(0, bounds[0]), min(bounds[1], most))
        if len(places) > most:
            break
    return places


def _usage(usage: Any) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in usage.items() if value is not None} if is_object(usage) else {}
