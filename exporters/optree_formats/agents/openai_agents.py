"""Traces of the OpenAI Agents SDK, as its exporters hand them on: objects `trace` and `trace.span`, in a document or in lines.

A trace is a session; each agent in it, called or handed over to, is one below. Spans of turns and tasks only repeat what others took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from optree import Op, SessionTreeBuilder, Tree
from optree.exporting import Fault, Format, Read, Status, decode, is_list, is_object, open_file, text, txn_of
from optree_formats.agents.lines import BOM, ObjectLines, decoded, member, parsed
from optree_formats.agents.recording import SessionRecording, text_in, time_of

AGENT = "openai-agents"
PROVIDER = "openai"
_BEGINS = re.compile(rb'\s*(?:\{\s*"data"\s*:\s*)?(?:\[\s*)?\{\s*"object"\s*:\s*"trace(?:\.span)?"')
_REPEATED = ("task", "turn")
"""Names of custom spans that stand around others; their usage is a sum of these."""
_LARGEST_DOCUMENT = 64 << 20


class OpenAIAgents(Format):
    """The traces of the OpenAI Agents SDK; read, not written."""

    name = "openai-agents"
    suffix = ""
    about = "traces of the OpenAI Agents SDK, as its exporters hand them on (read only)"
    cannot_hold: tuple[str, ...] = ()

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by the first object."""
        return not path.is_dir() and _BEGINS.match(head.removeprefix(BOM)) is not None

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read all traces of a file."""
        faults: list[Fault] = []
        traces: dict[str, _AgentsTrace] = {}
        document = _document(path)
        lines = ObjectLines(path, faults, strict=strict, lists=True)
        for value in lines if document is None else document:
            for item in _items(value):
                if (flaw := _take(item, traces)) and document is None:
                    lines.fault(flaw)
                elif flaw:
                    faults.append(Fault(0, flaw))
        trees = [tree for trace in traces.values() if (tree := _tree(trace, faults)) is not None]
        return Read(trees, faults)


OPENAI_AGENTS = OpenAIAgents()


class _AgentsTrace(Struct):
    """A trace's spans, by id."""

    id: str
    about: dict[str, Any] = {}
    spans: dict[str, dict[str, Any]] = {}


def _document(path: Path) -> list[Any] | None:
    """Return what a file holds that is one document over several lines; None for one of lines."""
    with open_file(path) as file, suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError):
        data = file.readline(_LARGEST_DOCUMENT).removeprefix(BOM).strip()
        if decoded(data, file) is file:  # it is no JSON by itself
            return [decode(data + b"\n" + file.read(_LARGEST_DOCUMENT))]
    return None


def _items(value: Any) -> Iterator[Any]:
    """Yield the objects in a batch, a list, or alone."""
    batch = value.get("data") if is_object(value) and "object" not in value else value
    yield from batch if is_list(batch) else [batch]


def _take(item: Any, traces: dict[str, _AgentsTrace]) -> str:
    """Take an object up; returns what is wrong with it."""
    if not is_object(item):
        return "holds no trace and no span: passed over"
    kind, identity = item.get("object"), item.get("id")
    if kind not in ("trace", "trace.span"):
        return f"is of a type that is not known, {text(kind)[:80]!r}: passed over"
    of = identity if kind == "trace" else item.get("trace_id")
    if not isinstance(identity, str) or not isinstance(of, str):
        return "has no id: passed over"
    trace = traces.setdefault(of, _AgentsTrace(of))
    flaw = ""
    if kind == "trace":
        trace.about = item
    elif identity in trace.spans:
        flaw = "is there already: passed over"
    elif time_of(item.get("started_at")) is None:
        flaw = "has no time: passed over"
    else:
        trace.spans[identity] = item
    return flaw


class _AgentsPlace(Struct):
    """Where what is in a span goes."""

    recording: SessionRecording
    within: Op | None = None


def _tree(trace: _AgentsTrace, faults: list[Fault]) -> Tree | None:
    """Return a trace's tree; None for one without spans."""
    if not trace.spans:
        faults.append(Fault(0, f"trace {trace.id[:80]} has no spans, and is left out"))
        return None
    children: dict[str, list[dict[str, Any]]] = {}
    for span in sorted(trace.spans.values(), key=_began):
        above = span.get("parent_id")
        children.setdefault(above if isinstance(above, str) and above in trace.spans else "", []).append(span)
    began = min(map(_began, trace.spans.values()))
    about = {"workflow": trace.about.get("workflow_name"), "group": trace.about.get("group_id"), "metadata": trace.about.get("metadata")}
    attributes = {name: value for name, value in about.items() if value}
    name, own = text(trace.about.get("workflow_name") or AGENT), {"ingress": {"source": AGENT}, **attributes}
    builder = SessionTreeBuilder(name, txn=txn_of(trace.id, AGENT), attributes=own, at=began)
    root = SessionRecording(builder)
    root.begin_turn(began)
    pending = [(span, _AgentsPlace(root)) for span in reversed(children.pop("", []))]
    ends: list[tuple[dict[str, Any], Op, SessionRecording, SessionRecording | None]] = []
    while pending:
        span, above_place = pending.pop()
        place, op, agent = _begin(span, above_place)
        if op is not None:
            ends.append((span, op, above_place.recording, agent))
        pending += [(child, place) for child in reversed(children.pop(text(span["id"]), []))]
    for span, op, recording, agent in reversed(ends):
        _end(span, op, recording, agent)
    if children:
        faults.append(Fault(0, f"{sum(map(len, children.values()))} spans of trace {trace.id[:80]} are in a circle, and left out"))
    _close(root, [span for span, _, _, _ in ends])
    return builder.tree


def _began(span: dict[str, Any]) -> float:
    return time_of(span.get("started_at")) or 0.0


def _ended(span: dict[str, Any]) -> float | None:
    return time_of(span.get("ended_at"))


def _begin(span: dict[str, Any], above: _AgentsPlace) -> tuple[_AgentsPlace, Op | None, SessionRecording | None]:
    """Begin what a span stands for; returns where its children go, its op, and the session in that."""
    data = span.get("span_data")
    data = data if is_object(data) else {}
    kind, ts, recording = text(data.get("type") or "custom"), _began(span), above.recording
    name = text(data.get("name") or kind)
    if kind == "custom" and name in _REPEATED:
        return above, None, None
    if kind in ("generation", "response"):
        return above, _call(data, recording, ts, above.within), None
    if kind == "function":
        op = recording.begin("tool", name, ts, {"mcp": data.get("mcp_data")}, above.within)
        recording.ask(op, ts, parsed(data.get("input")))
        return _AgentsPlace(recording, op), op, None
    if kind == "agent":
        attributes = {key: data.get(key) for key in ("tools", "handoffs", "output_type")}
        op = recording.begin("session", name, ts, attributes, above.within)
        builder = recording.child(op, name, ts)
        if builder is None:
            return _AgentsPlace(recording, op), op, None
        child = SessionRecording(builder)
        child.begin_turn(ts)
        return _AgentsPlace(child), op, child
    op = recording.begin("system", name, ts, {key: value for key, value in data.items() if key not in ("type", "name")}, above.within)
    return _AgentsPlace(recording, op), op, None


def _call(data: dict[str, Any], recording: SessionRecording, ts: float, within: Op | None) -> Op:
    """Begin a call of a model."""
    model = text(data.get("model") or "unknown")
    asked = data.get("input")
    messages = asked if is_list(asked) else None
    known = {"provider": PROVIDER, "model": model, "responseId": data.get("response_id")}
    op = recording.begin("llm", f"{PROVIDER}:{model}", ts, known, within)
    members = {"model": model, **({"config": data["model_config"]} if data.get("model_config") else {})}
    recording.builder.set_request(op, members, messages, at=ts)
    prompts = [text_in(message.get("content")) for message in messages or [] if is_object(message) and message.get("role") == "user"]
    turn = recording.turn
    if prompts and turn is not None and not turn.node.prompts:
        recording.prompt(prompts[-1])
    return op


def _end(span: dict[str, Any], op: Op, recording: SessionRecording, agent: SessionRecording | None) -> None:
    """End an op as its span says; one whose span has not ended stays open."""
    data, ended = span.get("span_data"), _ended(span)
    data = data if is_object(data) else {}
    error = _error(span)
    status: Status = "ok" if error is None else "failed"
    at = op.node.started_at if ended is None else max(ended, op.node.started_at)
    output = data.get("output")
    if op.node.kind == "llm":
        recording.answer(op, at, output[0] if is_list(output) and len(output) == 1 else output)
        recording.account(op, at, _usage(data.get("usage")), failed=error is not None, within=True)
    elif op.node.kind == "tool":
        recording.answer(op, at, output)
    if ended is None:
        return
    if agent is not None:
        agent.end_turn(ended, status, error)
        agent.end(ended, status, error)
    recording.finish(op, ended, status, error)


def _close(root: SessionRecording, spans: list[dict[str, Any]]) -> None:
    """End the session, if all in it has ended; it failed if an agent did that stands right in it."""
    if any(_ended(span) is None for span in spans):
        return
    top = [op for turn in root.builder.node.turns for op in turn.ops if op.kind == "session" and op.parent_op is None]
    error = next((op.error for op in reversed(top) if op.status == "failed"), None)
    status: Status = "ok" if error is None else "failed"
    last = max((ended for span in spans if (ended := _ended(span)) is not None), default=root.latest)
    root.end_turn(last, status, error)
    root.end(last, status, error)


def _error(span: dict[str, Any]) -> str | None:
    error = span.get("error")
    if not is_object(error):
        return None if error is None else text(error)
    return ": ".join(text(part) for part in (error.get("message"), member(error, "data", "error")) if part) or "failed"


def _usage(usage: Any) -> Any:
    """Return a usage with its details beside the sums; how many requests it is of is no token."""
    if not is_object(usage):
        return {}
    details = usage.get("details")
    merged = {**(details if is_object(details) else {}), **usage}
    return {name: value for name, value in merged.items() if name not in ("details", "requests", "request_usage_entries")}
