"""Requests and answers of model calls, as transcript entries in one form, whichever provider they were for. Nothing here raises.

Tool calls become `tool_calls`, tool results entries of role ``tool``, and content that is text only becomes one text; other blocks stay.
"""

from __future__ import annotations

from typing import Any

from optree.conversation.content import call_of, text_of
from optree.conversation.events import TranscriptEntry
from optree.messages import MEMBERS, Part, Text, ToolCall, ToolResult, answers, json_text, message, parts
from optree.values import is_list, is_object

SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
HISTORY_KEYS = ("messages", "input", "contents", "prompt")
"""Where a request has its instructions, and its history."""


def entries_of(found: Any, role: str = "user") -> list[TranscriptEntry]:
    """Return the entries that a message is: one for each result in it, then one for the rest; none where it says nothing.

    Their ids are empty. *role* is that of a message that names none.
    """
    if found is None:
        return []
    said = message(found, role)
    more: dict[str, Any] = {}
    if is_object(found) and not any(one.block is found for one in said.parts):
        more = {key: value for key, value in found.items() if key not in MEMBERS and value is not None}
    made: list[TranscriptEntry] = []
    kept: list[Part] = []
    calls: list[dict[str, Any]] = []
    for one in said.parts:
        if isinstance(one, ToolResult):
            made.append(_entry("tool", _tool_content(one.content), one.name, {} if one.block else more))
            made[-1].tool_call_id = one.id or one.name
        elif isinstance(one, ToolCall):
            calls.append(_call(one))
        elif one.block is not None:  # else it stays among what is more
            kept.append(one)
    if kept or calls or not made:
        made.append(_entry(said.role, _normal(kept) if kept else None, said.name, more))
        made[-1].tool_calls = calls or None
    return made


def answers_of(response: Any) -> list[TranscriptEntry]:
    """Return the entries that an answer is: a text, a message, or what a provider's interface returns; without those that say nothing."""
    entries = (entry for answer in answers(response) for held in answer.messages for entry in entries_of(held, "assistant"))
    return [entry for entry in entries if entry.tool_calls or entry.content not in (None, "", [])]


def body_of(request: Any) -> Any:
    """Return what was sent: a program may have given the whole body where a request has its messages."""
    inner = request.get("messages") if is_object(request) else None
    return inner if is_object(inner) and any(key in inner for key in (*HISTORY_KEYS, *SYSTEM_KEYS)) else request


def history_in(request: Any) -> Any:
    """Return what of a request is its history: a list of messages, a reference to a pooled one, a text, or None."""
    body = body_of(request)
    return next((body[key] for key in HISTORY_KEYS if body.get(key) is not None), None) if is_object(body) else body


def instructions_in(request: Any) -> Any:
    """Return the instructions that a request has beside its history; None if there are none."""
    body = body_of(request)
    found = next((body[key] for key in SYSTEM_KEYS if body.get(key)), None) if is_object(body) else None
    return found.get("parts", found) if is_object(found) else found


def _entry(role: str, content: Any, name: str | None, more: dict[str, Any]) -> TranscriptEntry:
    return TranscriptEntry(message_id="", role=role, content=content, name=name, more=more)


def _call(found: ToolCall) -> dict[str, Any]:
    """Return a call as OpenAI has it, as which it may have been given."""
    if is_object(found.block.get("function")):
        return found.block
    call = call_of(found)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _normal(kept: list[Part]) -> Any:
    """Return parts as one text where all are texts, as their blocks otherwise."""
    texts = [one.text for one in kept if isinstance(one, Text)]
    return "\n".join(filter(None, texts)) if len(texts) == len(kept) else [one.block for one in kept]


def _tool_content(content: Any) -> Any:
    """Return a result as one text, unless it has parts that are none."""
    if is_list(content):
        return _normal(parts(content))
    return text_of(content) if content is None or isinstance(content, str) else json_text(content)
