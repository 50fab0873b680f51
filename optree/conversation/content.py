"""The content of an entry as text, and providers' requests and answers of model calls as entries. Nothing here raises.

Tool calls become `tool_calls`, tool results entries of role ``tool``, and content that is text only becomes one text; other blocks stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from optree._providers.messages import (
    HISTORY_KEYS,
    MEMBERS,
    ROLES,
    Other,
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
    part,
    parts,
    reasoning_in,
    tool_calls,
)
from optree._values import encode, is_list, is_object
from optree.conversation.events import AnyEvent, TranscriptEntry

Kind = Literal["system", "heard", "thought", "said", "called", "received"]
"""What an entry is to its agent: its instructions, a message that it heard, a thought alone, its answer, its calls, or a tool's result."""

_PLAIN_ROLES: dict[str, Kind] = {"system": "system", "tool": "received"}
SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
"""Where a request has its instructions."""


class Call(NamedTuple):
    """A tool call; *arguments* is JSON text."""

    id: str
    name: str
    arguments: str


def text_of(content: Any) -> str:
    """Return a content as text: of blocks their texts and results, other blocks as JSON; calls and thoughts are left out."""
    if isinstance(content, str):
        return str.__str__(content)
    return "\n".join(filter(None, map(_part_text, parts(content))))


def calls_of(entry: TranscriptEntry) -> list[Call]:
    """Return the tool calls that an entry makes."""
    return [call_of(piece) for piece in (*tool_calls(entry.tool_calls), *_parts(entry)) if isinstance(piece, ToolCallPart)]


def answered_by(entry: TranscriptEntry) -> list[str]:
    """Return the ids of the calls whose results an entry holds."""
    ids = [str(entry.tool_call_id)] if entry.tool_call_id else []
    return ids + [result.id or result.name or "" for result in _parts(entry) if isinstance(result, ToolResultPart)]


def thought_of(entry: TranscriptEntry) -> str:
    """Return the reasoning that stands in an entry, which is no part of its text."""
    thoughts = (thought.text for thought in _parts(entry) if isinstance(thought, ReasoningPart))
    return "\n".join(filter(None, (reasoning_in(entry.more), *thoughts)))


def kind_of(entry: TranscriptEntry) -> Kind:
    """Return what an entry is to its agent."""
    role = ROLES.get(entry.role, entry.role)
    if role in _PLAIN_ROLES:
        return _PLAIN_ROLES[role]
    if role == "assistant":
        return "called" if calls_of(entry) else "thought" if is_thought(entry) else "said"
    return "received" if answered_by(entry) else "heard"


def is_thought(entry: TranscriptEntry) -> bool:
    """Tell whether an assistant's entry has a thought and nothing else."""
    nothing = entry.content in (None, "", []) and not entry.tool_calls and entry.substance is None
    return nothing and ROLES.get(entry.role, entry.role) == "assistant" and bool(thought_of(entry))


def is_utterance(event: AnyEvent) -> bool:
    """Tell whether an agent communicates here rather than acts: an assistant's entry with content and without tool calls."""
    return isinstance(event, TranscriptEntry) and kind_of(event) == "said" and bool(text_of(event.content))


def call_of(call: ToolCallPart) -> Call:
    """Return a call as entries have it: one without an id goes by its name."""
    name = call.name or "unknown"
    return Call(call.id or name, name, "" if call.arguments is None else json_text(call.arguments))


def call_in(block: Any) -> Call | None:
    """Return the call that a block of content is."""
    return call_of(call) if isinstance(call := part(block), ToolCallPart) else None


def result_in(block: Any) -> ToolResultPart | None:
    """Return the result that a block of content is."""
    return result if isinstance(result := part(block), ToolResultPart) else None


def _part_text(piece: Part) -> str:
    if isinstance(piece, TextPart):
        return piece.text
    if isinstance(piece, ToolResultPart):
        return text_of(piece.content)
    return json_text(piece.block) if isinstance(piece, Other) else ""


def _parts(entry: TranscriptEntry) -> list[Part]:
    """Return the parts of a content that has any but its text."""
    return [] if isinstance(entry.content, str) else parts(entry.content)


def entries_of(source: Any, role: str = "user") -> list[TranscriptEntry]:
    """Return the entries that a message is: one for each result in it, then one for the rest; none where it is empty.

    Their ids are empty. *role* is that of a message that names none.
    """
    if not is_message(source):
        return []
    parsed = message(source, role)
    if is_object(source) and all(isinstance(one, ReasoningPart) and one.block is source for one in parsed.parts) and parsed.parts:
        thought = "\n".join(one.text for one in parsed.parts if isinstance(one, ReasoningPart))
        return [_entry(parsed.role, None, None, {"reasoning_content": thought})] if thought else []
    more: dict[str, Any] = {}
    if is_object(source) and not any(one.block is source for one in parsed.parts):
        more = {key: value for key, value in source.items() if key not in MEMBERS and value is not None}
    entries: list[TranscriptEntry] = []
    rest: list[Part] = []
    calls: list[dict[str, Any]] = []
    for one in parsed.parts:
        if isinstance(one, ToolResultPart):
            entries.append(_entry("tool", _tool_content(one.content), one.name, {} if one.block else more))
            entries[-1].tool_call_id = one.id or one.name
        elif isinstance(one, ToolCallPart):
            calls.append(_call(one))
        elif one.block is not None:  # else it stays among what is more
            rest.append(one)
    if rest or calls or not entries:
        entries.append(_entry(parsed.role, _normal(rest) if rest else None, parsed.name, more))
        entries[-1].tool_calls = calls or None
    return entries


def new_entries(request: Any) -> list[TranscriptEntry]:
    """Return what is new in a request, as entries without ids: what follows its last answer, and then its system prompts."""
    history = history_in(request)
    if history is None:  # the original ai-agent's may hold figures alone: they are no message
        own = is_object(request) and body(request) is request and not any(key in request for key in HISTORY_KEYS)
        return [_entry("user", encode(request).decode(), None, {})] if request and (own or not is_object(request)) else []
    entries = [entry for item in (history if is_list(history) else [history]) for entry in entries_of(item)]
    answered = max((place for place, entry in enumerate(entries) if entry.role == "assistant"), default=-1)
    new = [entry for entry in entries[answered + 1 :] if entry.role != "system"]
    system = [entry for entry in entries if entry.role == "system"]
    if (instructions := instructions_in(request)) and instructions is not history:
        system += entries_of(instructions, "system")
    return new + system


def answers_of(response: Any) -> list[TranscriptEntry]:
    """Return the entries that an answer is: a text, a message, or what a provider's interface returns; without those that say nothing."""
    entries = (entry for answer in answers(response) for block in answer.messages for entry in entries_of(block, "assistant"))
    return [entry for entry in with_thoughts(entries) if entry.tool_calls or entry.content not in (None, "", []) or is_thought(entry)]


def with_thoughts(entries: Iterable[TranscriptEntry]) -> Iterator[TranscriptEntry]:
    """Yield entries in their order; a thought goes with the assistant's entry that follows it, and is one of its own where none does."""
    thoughts: list[TranscriptEntry] = []
    for entry in entries:
        if is_thought(entry):
            thoughts.append(entry)
            continue
        if thoughts and entry.role == "assistant":
            thought = "\n".join(filter(None, map(thought_of, thoughts)))
            yield msgspec.structs.replace(entry, more={"reasoning_content": thought, **entry.more})
        else:
            yield from thoughts
            yield entry
        thoughts.clear()
    yield from thoughts


def body_of(request: Any) -> Any:
    """Return what was sent: a program may have given the whole body where a request has its messages."""
    request = body(request)
    inner = request.get("messages") if is_object(request) else None
    return inner if is_object(inner) and any(key in inner for key in (*HISTORY_KEYS, *SYSTEM_KEYS)) else request


def history_in(request: Any) -> Any:
    """Return what of a request is its history: a list of messages, a reference to a pooled one, a text, or None."""
    sent = body_of(request)
    history = next((sent[key] for key in HISTORY_KEYS if sent.get(key) is not None), None) if is_object(sent) else sent
    return history if is_message(history) else None


def instructions_in(request: Any) -> Any:
    """Return the instructions that a request has beside its history; None if there are none."""
    sent = body_of(request)
    instructions = next((sent[key] for key in SYSTEM_KEYS if sent.get(key)), None) if is_object(sent) else None
    return instructions.get("parts", instructions) if is_object(instructions) else instructions


def _entry(role: str, content: Any, name: str | None, more: dict[str, Any]) -> TranscriptEntry:
    return TranscriptEntry(message_id="", role=role, content=content, name=name, more=more)


def _call(call_part: ToolCallPart) -> dict[str, Any]:
    """Return a call as OpenAI has it, as which it may have been given."""
    if is_object(call_part.block.get("function")):
        return call_part.block
    call = call_of(call_part)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _normal(rest: list[Part]) -> Any:
    """Return parts as one text where all are texts, as their blocks otherwise."""
    texts = [piece.text for piece in rest if isinstance(piece, TextPart)]
    return "\n".join(filter(None, texts)) if len(texts) == len(rest) else [piece.block for piece in rest]


def _tool_content(content: Any) -> Any:
    """Return a result as one text, unless it has parts that are not text."""
    if is_list(content):
        return _normal(parts(content))
    return text_of(content) if content is None or isinstance(content, str) else json_text(content)
