"""What the content of an entry says: its text, calls, results and thoughts, as `optree.messages` reads them. Nothing here raises."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from optree.conversation.events import AnyEvent, TranscriptEntry
from optree.messages import (
    ROLES,
    Other,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    json_text,
    part,
    parts,
    reasoning_in,
    tool_calls,
)

Kind = Literal["system", "heard", "thought", "said", "called", "received"]
"""What an entry is to its agent: its instructions, what it heard, thought and no more, said, did, or got back from a tool."""

_PLAIN_ROLES: dict[str, Kind] = {"system": "system", "tool": "received"}


class Call(NamedTuple):
    """A tool call; *arguments* is JSON text."""

    id: str
    name: str
    arguments: str


def text_of(content: Any) -> str:
    """Return what a content says, as text: of blocks their texts and results, other blocks as JSON; calls and thoughts are left out."""
    if isinstance(content, str):
        return str.__str__(content)
    return "\n".join(filter(None, map(_said, parts(content))))


def calls_of(entry: TranscriptEntry) -> list[Call]:
    """Return the tool calls that an entry makes."""
    return [call_of(found) for found in (*tool_calls(entry.tool_calls), *_parts(entry)) if isinstance(found, ToolCallPart)]


def answered_by(entry: TranscriptEntry) -> list[str]:
    """Return the ids of the calls whose results an entry holds."""
    found = [str(entry.tool_call_id)] if entry.tool_call_id else []
    return found + [one.id or one.name or "" for one in _parts(entry) if isinstance(one, ToolResultPart)]


def thought_of(entry: TranscriptEntry) -> str:
    """Return the reasoning that stands in an entry, which is no part of its text."""
    thoughts = (one.text for one in _parts(entry) if isinstance(one, ReasoningPart))
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


def call_of(found: ToolCallPart) -> Call:
    """Return a call as entries have it: one without an id goes by its name."""
    name = found.name or "unknown"
    return Call(found.id or name, name, "" if found.arguments is None else json_text(found.arguments))


def call_in(block: Any) -> Call | None:
    """Return the call that a block of content is."""
    return call_of(found) if isinstance(found := part(block), ToolCallPart) else None


def result_in(block: Any) -> ToolResultPart | None:
    """Return the result that a block of content is."""
    return found if isinstance(found := part(block), ToolResultPart) else None


def _said(found: Part) -> str:
    if isinstance(found, TextPart):
        return found.text
    if isinstance(found, ToolResultPart):
        return text_of(found.content)
    return json_text(found.block) if isinstance(found, Other) else ""


def _parts(entry: TranscriptEntry) -> list[Part]:
    """Return the parts of a content that has any but its text."""
    return [] if isinstance(entry.content, str) else parts(entry.content)
