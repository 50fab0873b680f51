"""Requests and answers of model calls, as transcript entries in one form, whichever provider they were for. Nothing here raises.

Tool calls become `tool_calls`, tool results entries of role ``tool``, and content that is text only becomes one text; other blocks stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from optree.conversation.content import call_of, is_thought, text_of, thought_of
from optree.conversation.events import TranscriptEntry
from optree.messages import (
    MEMBERS,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    answers,
    body,
    is_message,
    json_text,
    message,
    parts,
)
from optree.values import encode, is_list, is_object

SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
HISTORY_KEYS = ("messages", "input", "contents", "prompt")
"""Where a request has its instructions, and its history."""


def entries_of(found: Any, role: str = "user") -> list[TranscriptEntry]:
    """Return the entries that a message is: one for each result in it, then one for the rest; none where it says nothing.

    Their ids are empty. *role* is that of a message that names none.
    """
    if not is_message(found):
        return []
    said = message(found, role)
    if is_object(found) and all(isinstance(one, ReasoningPart) and one.block is found for one in said.parts) and said.parts:
        thought = "\n".join(one.text for one in said.parts if isinstance(one, ReasoningPart))
        return [_entry(said.role, None, None, {"reasoning_content": thought})] if thought else []
    more: dict[str, Any] = {}
    if is_object(found) and not any(one.block is found for one in said.parts):
        more = {key: value for key, value in found.items() if key not in MEMBERS and value is not None}
    made: list[TranscriptEntry] = []
    kept: list[Part] = []
    calls: list[dict[str, Any]] = []
    for one in said.parts:
        if isinstance(one, ToolResultPart):
            made.append(_entry("tool", _tool_content(one.content), one.name, {} if one.block else more))
            made[-1].tool_call_id = one.id or one.name
        elif isinstance(one, ToolCallPart):
            calls.append(_call(one))
        elif one.block is not None:  # else it stays among what is more
            kept.append(one)
    if kept or calls or not made:
        made.append(_entry(said.role, _normal(kept) if kept else None, said.name, more))
        made[-1].tool_calls = calls or None
    return made


def new_entries(request: Any) -> list[TranscriptEntry]:
    """Return what is new in a request, as entries without ids: what follows its last answer, and then its system prompts."""
    found = history_in(request)
    if found is None:  # the original ai-agent's may hold figures alone: they are nobody's words
        own = is_object(request) and body(request) is request and not any(key in request for key in HISTORY_KEYS)
        return [_entry("user", encode(request).decode(), None, {})] if request and (own or not is_object(request)) else []
    entries = [entry for one in (found if is_list(found) else [found]) for entry in entries_of(one)]
    answered = max((place for place, entry in enumerate(entries) if entry.role == "assistant"), default=-1)
    new = [entry for entry in entries[answered + 1 :] if entry.role != "system"]
    system = [entry for entry in entries if entry.role == "system"]
    if (told := instructions_in(request)) and told is not found:
        system += entries_of(told, "system")
    return new + system


def answers_of(response: Any) -> list[TranscriptEntry]:
    """Return the entries that an answer is: a text, a message, or what a provider's interface returns; without those that say nothing."""
    entries = (entry for answer in answers(response) for held in answer.messages for entry in entries_of(held, "assistant"))
    return [entry for entry in with_thoughts(entries) if entry.tool_calls or entry.content not in (None, "", []) or is_thought(entry)]


def with_thoughts(entries: Iterable[TranscriptEntry]) -> Iterator[TranscriptEntry]:
    """Yield entries in their order; a thought goes with the assistant's entry that follows it, and is one of its own where none does."""
    held: list[TranscriptEntry] = []
    for entry in entries:
        if is_thought(entry):
            held.append(entry)
            continue
        if held and entry.role == "assistant":
            thought = "\n".join(filter(None, map(thought_of, held)))
            yield msgspec.structs.replace(entry, more={"reasoning_content": thought, **entry.more})
        else:
            yield from held
            yield entry
        held.clear()
    yield from held


def body_of(request: Any) -> Any:
    """Return what was sent: a program may have given the whole body where a request has its messages."""
    request = body(request)
    inner = request.get("messages") if is_object(request) else None
    return inner if is_object(inner) and any(key in inner for key in (*HISTORY_KEYS, *SYSTEM_KEYS)) else request


def history_in(request: Any) -> Any:
    """Return what of a request is its history: a list of messages, a reference to a pooled one, a text, or None."""
    sent = body_of(request)
    found = next((sent[key] for key in HISTORY_KEYS if sent.get(key) is not None), None) if is_object(sent) else sent
    return found if is_message(found) else None


def instructions_in(request: Any) -> Any:
    """Return the instructions that a request has beside its history; None if there are none."""
    sent = body_of(request)
    found = next((sent[key] for key in SYSTEM_KEYS if sent.get(key)), None) if is_object(sent) else None
    return found.get("parts", found) if is_object(found) else found


def _entry(role: str, content: Any, name: str | None, more: dict[str, Any]) -> TranscriptEntry:
    return TranscriptEntry(message_id="", role=role, content=content, name=name, more=more)


def _call(found: ToolCallPart) -> dict[str, Any]:
    """Return a call as OpenAI has it, as which it may have been given."""
    if is_object(found.block.get("function")):
        return found.block
    call = call_of(found)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _normal(kept: list[Part]) -> Any:
    """Return parts as one text where all are texts, as their blocks otherwise."""
    texts = [one.text for one in kept if isinstance(one, TextPart)]
    return "\n".join(filter(None, texts)) if len(texts) == len(kept) else [one.block for one in kept]


def _tool_content(content: Any) -> Any:
    """Return a result as one text, unless it has parts that are none."""
    if is_list(content):
        return _normal(parts(content))
    return text_of(content) if content is None or isinstance(content, str) else json_text(content)
