"""`optree show`: one node in full, as a transcript."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from optree._cli.options import Json, SessionsDir, Txn, directory
from optree._cli.screen import painting, show_json, when
from optree._cli.screen import show as show_text
from optree._cli.sessions import Node, find_node, open_session, say_lost, state_of
from optree._console import resolved
from optree._nodes import AS_TOLD, AccountingEntry, LogEntry, OperationNode, Pool, SessionNode, TurnNode
from optree._providers.messages import answers, opened
from optree._tree.path import Path
from optree._tree.text import branches, format_end, seen_of
from optree._tree.totals import cost_said, has_unknown_cost, tokens_said
from optree._tree.walk import ops_beneath
from optree._values import decode, is_list, is_object
from optree.redaction import redact

_TEXTS = frozenset({"text", "output_text", "input_text", "summary_text", "reasoning_text"})
_OF_TEXT = frozenset({"type", "text", "cache_control"})
_USUAL_ENDS = frozenset({"stop", "stop_sequence", "end_turn", "tool_calls", "tool_call", "tool-calls", "tool_use", "function_call"}).union(
    {"complete", "completed", "eos_token"}
)
"""Reasons why an answer ended that is whole."""
Part = tuple[str, list[str]]
"""A heading, and the lines below it."""


def show(
    *,
    txn: Txn,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The node's path, as in 1.2; '' is the session itself.", show_default=False)],
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show one node in full: what was sent, each message with its role, reasoning, what came back, logs, accounting, its error.

    Example: [bold]optree show last 1.1[/bold]
    """
    label = str(Path.parse(path))
    loaded, live = open_session(txn, directory(sessions_dir))
    say_lost(loaded)
    session, node = find_node(loaded.session, label)
    if as_json:
        show_json(
            {"txn": loaded.txn, "path": label, "type": _type(node), "agentId": session.agent_id, "node": _plain(node, loaded.tree.pool)}
        )
        return
    style = painting()
    running = state_of(loaded.session, live) == "running"
    seen = seen_of(loaded.session, live=running)
    lines = [f"{style('path', label or '(root)')} {_title(node, session)}{format_end(node, seen, style)}"]
    lines.append(f"started {when(node.started_at)}" + (f", ended {when(node.ended_at)}" if node.ended_at is not None else ""))
    for heading, below in _parts(node, loaded.tree.pool):
        lines += ["", style("title", heading), *(f"  {line}".rstrip() for line in below)]
    show_text("\n".join(line.replace("\n", "\\n") for line in lines), redacted=True)  # a name may have any character


def _type(node: Node) -> str:
    return "session" if isinstance(node, SessionNode) else "turn" if isinstance(node, TurnNode) else "op"


def _title(node: Node, session: SessionNode) -> str:
    if isinstance(node, SessionNode):
        return f"session {node.agent_id} "
    return f"turn of {session.agent_id} " if isinstance(node, TurnNode) else f"{node.kind} {node.name} of {session.agent_id} "


def _plain(node: Node, pool: Pool) -> dict[str, Any]:
    """Return a node as a saved file has it, its request with what it refers to; what is below it is left out."""
    if isinstance(node, OperationNode):
        child = node.child_session and msgspec.structs.replace(node.child_session, turns=[])
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(node, child_session=child)))
        if node.request is not None:
            result["request"]["payload"] = resolved(node.request.payload, pool)
        return result
    empty = msgspec.structs.replace(node, turns=[]) if isinstance(node, SessionNode) else msgspec.structs.replace(node, ops=[])
    return msgspec.json.decode(msgspec.json.encode(empty), type=dict[str, Any])


def _parts(node: Node, pool: Pool) -> Iterator[Part]:
    """Yield what a node has to tell, in the order in which it came."""
    if isinstance(node, SessionNode):
        yield from _session(node)
    elif isinstance(node, TurnNode):
        for block in (node.prompts, node.assistant):
            for role, text in (block or {}).items():
                yield ("assistant" if block is node.assistant else role), _text(text)
        yield from _optional("ops", list(_ops(node)))
    else:
        if node.request is not None:
            yield from _request(redact(opened(resolved(node.request.payload, pool))))
        yield from _optional("reasoning", _text("" if node.reasoning is None else node.reasoning.text))
        if node.response is not None:
            yield "response (partial)" if node.response.partial else "response", _answered(redact(opened(decode(node.response.payload))))
        if node.child_session is not None:
            yield from _session(node.child_session)
            yield from _attributes(node.child_session.attributes_json, "session attributes")
        yield from _optional("logs", [line for entry in node.logs for line in _log(entry)])
        yield from _optional("accounting", [_bill(entry) for entry in node.accounting])
    yield from _attributes(node.attributes_json)
    yield from _optional("error", _text(node.error or ""))


def _ops(turn: TurnNode) -> Iterator[str]:
    """Yield a line for each op of a turn; what was begun within an op is drawn beneath it."""
    below = ops_beneath(turn)
    for top in below[turn.path]:
        yield f"{top.path} {top.kind} {top.name}"
        for op, branch, _ in branches(below[top.path], lambda op: below[op.path]):
            yield f"{branch}{op.path} {op.kind} {op.name}"


def _session(session: SessionNode) -> Iterator[Part]:
    known = {"title": session.session_title, "status": session.latest_status, "call path": session.call_path}
    yield f"session {session.agent_id}", [f"{name}: {value}" for name, value in known.items() if value]
    for message in session.messages:
        yield from _message(redact(decode(message.body)))
    if session.final_report is not UNSET:
        yield "final report", _text_lines(redact(decode(session.final_report)))


def _optional(heading: str, lines: list[str]) -> Iterator[Part]:
    if lines:
        yield heading, lines


def _attributes(block: Raw | UnsetType, heading: str = "attributes") -> Iterator[Part]:
    if block is not UNSET and (attributes := redact(decode(block))):
        yield heading, _members(attributes)


def _request(payload: Any) -> Iterator[Part]:
    """Yield the members of a request that are no messages, then each message."""
    if not is_object(payload):
        yield "request", _text_lines(payload)
        return
    histories = [name for name in ("messages", "input") if is_list(payload.get(name))]
    rest = {name: value for name, value in payload.items() if name not in histories and name != "system"}
    yield from _optional("request", _members(rest))
    if "system" in payload:
        yield "system", _text_lines(payload["system"])
    for name in histories:
        for message in payload[name]:
            yield from _message(message)


def _message(message: Any) -> Iterator[Part]:
    if not is_object(message):
        yield "message", _text_lines(message)
        return
    role = str(message.get("role") or message.get("type") or "message")
    rest = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    content = message.get("content")
    yield role, [*(_text_lines(content) if content is not None else []), *_members(rest)]


def _text_lines(value: Any) -> list[str]:
    """Return a message or a response as lines: its text as it is, with what stands beside it (sources, say), other parts as JSON."""
    if isinstance(value, str):
        return _text(value)
    if is_list(value):
        return [line for part in value for line in _text_lines(part)]
    if is_object(value) and isinstance(value.get("text"), str):
        beside = {name: member for name, member in value.items() if name not in _OF_TEXT and member not in (None, [], {})}
        if not beside or value.get("type") in _TEXTS:
            return [*_text(value["text"]), *_members(beside)]
    return _text(msgspec.json.format(msgspec.json.encode(value)).decode()) if is_object(value) else [str(value)]


def _answered(response: Any) -> list[str]:
    """Return a response as lines; a provider's own as its messages, with an empty line between two."""
    if not is_object(response) or not any(is_list(response.get(name)) for name in ("choices", "candidates", "output", "content")):
        return _text_lines(response)
    found = answers(response)
    messages = [lines for answer in found for message in answer.messages for _, lines in _message(message) if lines]
    shown = [line for lines in messages for line in ("", *lines)][1:]
    details = response.get("incomplete_details")
    why = details.get("reason") if is_object(details) else None
    ends = [f"{answer.finish}: {why}" if why else str(answer.finish) for answer in found if answer.finish is not None]
    return (shown or _text_lines(response)) + [f"finish reason: {end}" for end in ends if end.lower() not in _USUAL_ENDS]


def _members(block: Any) -> list[str]:
    if not is_object(block):
        return _text_lines(block)
    lines: list[str] = []
    for name, value in block.items():
        first, *more = (_text(value) or [""]) if isinstance(value, str) else [msgspec.json.encode(value).decode()]
        lines += [f"{name}: {first}", *(f"  {line}" for line in more)]
    return lines


def _text(text: str) -> list[str]:
    return text.replace("\r\n", "\n").expandtabs(4).split("\n") if text else []


def _log(entry: LogEntry) -> list[str]:
    side = "←" if entry.direction == "response" else "→"
    first, *more = _text(entry.message) or [""]
    details = "" if entry.details is UNSET else " " + msgspec.json.encode(redact(_details(decode(entry.details)))).decode()
    return [
        f"{_clock(entry.timestamp)} [{entry.severity}] {side} {first}{'' if more else details}",
        *more,
        *([details] if more and details else []),
    ]


def _details(details: Any) -> Any:
    """Return a log line's details, with the members that the file it came from has of it."""
    origin = details.get(AS_TOLD) if is_object(details) else None
    members = origin.get("members") if is_object(origin) else None
    return {**{name: value for name, value in details.items() if name != AS_TOLD}, **members} if is_object(members) else details


def _clock(milliseconds: float) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1e3).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return "?"


def _bill(entry: AccountingEntry) -> str:
    names = (entry.provider, entry.model) if entry.type == "llm" else (entry.mcp_server, entry.command)
    parts = [entry.type, ":".join(filter(None, names)), entry.status]
    parts.append(tokens_said(entry.tokens) if entry.tokens is not None else "")
    parts += [f"{entry.characters_in or 0:,}→{entry.characters_out or 0:,} characters"] if entry.type == "tool" else []
    parts.append(cost_said(entry.cost_usd or 0.0, entry.cost_usd is not None, has_unknown_cost(entry)))
    parts += ["tried again" if entry.status == "failed" else "beside the calls"] if entry.retried else []
    parts += [f"replayed from {entry.replay_of}"] if entry.replay_of is not None else []
    parts += [entry.error] if entry.error else []
    parts += [msgspec.json.encode(redact(decode(entry.details))).decode()] if entry.details is not UNSET else []
    return " ".join(" ".join(filter(None, parts)).split())
