"""Requests and answers of model calls, as transcript entries in one form, whichever provider they were for. Nothing here raises.

Tool calls become `tool_calls`, tool results entries of role ``tool``, and content that is text only becomes one text; other blocks stay.
"""

from __future__ import annotations

from typing import Any

from optree.conversation.content import call_in, json_text, result_in, text_in, text_of
from optree.conversation.events import TranscriptEntry
from optree.values import is_list, is_object

SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
HISTORY_KEYS = ("messages", "input", "contents", "prompt")
"""Where a request has its instructions, and its history."""

_ROLES = {"model": "assistant", "ai": "assistant", "human": "user", "developer": "system", "function": "tool"}
_NAMED = {"role", "content", "parts", "tool_calls", "tool_call_id", "name"}
_ITEM_ROLES = {"function_call": "assistant", "reasoning": "assistant", "function_call_output": "tool"}
"""Items of OpenAI's responses interface that have no role."""


def entries_of(message: Any, role: str = "user") -> list[TranscriptEntry]:
    """Return the entries that a message is: several where it holds results and more, none where it says nothing.

    Their ids are empty. *role* is that of a message that names none.
    """
    if not is_object(message):
        return [] if message is None else [_entry(role, _normal(message if is_list(message) else [message]))]
    item = message.get("type")
    if "role" not in message and isinstance(item, str) and item in _ITEM_ROLES:
        return _of_blocks(_ITEM_ROLES[item], [message], {})
    given = message.get("role")
    known = _ROLES.get(given, given) if isinstance(given, str) else role
    content = message.get("content", message.get("parts"))
    if content is None and given is None and not message.get("tool_calls"):
        content = [message]
    if message.get("tool_call_id") or (known == "tool" and not any(map(result_in, content if is_list(content) else ()))):
        return [_entry("tool", _tool_content(content), message)]
    return _of_blocks(known, content if is_list(content) else [] if content is None else [content], message)


def answers_of(response: Any) -> list[TranscriptEntry]:
    """Return the entries that an answer is: a text, a message, or what a provider's interface returns."""
    if not is_object(response):
        told = is_list(response) and any(is_object(item) and ("role" in item or item.get("type") in _ITEM_ROLES) for item in response)
        return _of_all(response) if told else _spoken(entries_of(response, "assistant"))
    for key, inner in (("choices", "message"), ("candidates", "content")):
        if is_list(found := response.get(key)):
            return _of_all([item.get(inner, item.get("text")) for item in found if is_object(item)])
    if is_list(items := response.get("output")):
        return _of_all(items)
    if is_object(inner_message := response.get("message")):
        return _of_all([inner_message])
    return _spoken(entries_of(_without_envelope(response), "assistant"))


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


def _of_all(messages: list[Any]) -> list[TranscriptEntry]:
    return [entry for message in messages for entry in _spoken(entries_of(message, "assistant"))]


def _spoken(entries: list[TranscriptEntry]) -> list[TranscriptEntry]:
    """Leave out what says nothing."""
    return [entry for entry in entries if entry.tool_calls or entry.content not in (None, "", [])]


def _without_envelope(response: dict[str, Any]) -> dict[str, Any]:
    """Leave out what an answer tells about the call, such as usage, where it holds a message of its own."""
    if not {"content", "parts", "tool_calls"} & set(response):
        return {"role": "assistant", "content": response}
    return {key: value for key, value in response.items() if key in _NAMED or key in ("reasoning_content", "reasoning", "thinking")}


def _of_blocks(role: str, blocks: list[Any], message: dict[str, Any]) -> list[TranscriptEntry]:
    """Return an entry for each result among the blocks, then one for the rest."""
    made: list[TranscriptEntry] = []
    kept: list[Any] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if (result := result_in(block)) is not None:
            made.append(_entry("tool", _tool_content(result.content), {"tool_call_id": result.call_id, "name": result.name}))
        elif (call := call_in(block)) is not None:
            calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        else:
            kept.append(block)
    listed = message.get("tool_calls")
    calls = [call for call in listed if is_object(call)] + calls if is_list(listed) else calls
    if kept or calls or not made:
        own = _entry(role, _normal(kept) if kept else None, message)
        own.tool_calls = calls or None
        made.append(own)
    return made


def _entry(role: str, content: Any, message: dict[str, Any] | None = None) -> TranscriptEntry:
    told = message or {}
    call, name = told.get("tool_call_id"), told.get("name")
    more = {key: value for key, value in told.items() if key not in _NAMED and value is not None} if "role" in told else {}
    return TranscriptEntry(
        message_id="",
        role=role,
        content=content,
        tool_call_id=str(call) if call else None,
        name=name if isinstance(name, str) else None,
        more=more,
    )


def _normal(blocks: list[Any]) -> Any:
    """Return blocks as one text where all are texts."""
    texts = [text_in(block) for block in blocks]
    return "\n".join(filter(None, texts)) if all(text is not None for text in texts) else blocks


def _tool_content(content: Any) -> Any:
    """Return a result as one text, unless it has parts that are none."""
    if is_list(content):
        return _normal(content)
    return text_of(content) if content is None or isinstance(content, str) else json_text(content)
