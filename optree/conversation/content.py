"""What the content of an entry says, whichever provider's form it has: its text, calls, results and thoughts. Nothing here raises.

Known are plain texts, OpenAI's chat and responses interfaces, Anthropic's blocks, Gemini's parts, and the parts of the GenAI conventions.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from optree.conversation.events import AnyEvent, TranscriptEntry
from optree.values import encode, is_list, is_object

Kind = Literal["system", "heard", "said", "called", "received"]
"""What an entry is to its agent: its instructions, what it heard, said, did, or got back from a tool."""

_TEXTS = {"text", "input_text", "output_text", "refusal"}
_THOUGHTS = {"thinking", "redacted_thinking", "reasoning"}
_CALLS = {"tool_use", "server_tool_use", "function_call", "tool_call"}
_RESULTS = {"tool_result", "function_call_output", "tool_call_response"}
_PLAIN_ROLES: dict[str, Kind] = {"system": "system", "developer": "system", "tool": "received", "function": "received"}
_ASSISTANT = {"assistant", "model", "ai"}


class Call(NamedTuple):
    """A tool call; *arguments* is JSON text."""

    id: str
    name: str
    arguments: str


class Result(NamedTuple):
    """What a tool gave for the call of that id."""

    call_id: str
    name: str | None
    content: Any


def text_of(content: Any) -> str:
    """Return what a content says, as text: of blocks their texts and results, other blocks as JSON; calls and thoughts are left out."""
    if content is None:
        return ""
    if isinstance(content, str):
        return str.__str__(content)
    blocks: list[Any] = content if is_list(content) else [content]
    return "\n".join(said for said in map(_said, blocks) if said)


def calls_of(entry: TranscriptEntry) -> list[Call]:
    """Return the tool calls that an entry makes."""
    listed: Any = entry.tool_calls
    found = [_function(call) for call in listed if is_object(call)] if is_list(listed) else []
    return found + [call for block in _blocks(entry.content) if (call := call_in(block)) is not None]


def answered_by(entry: TranscriptEntry) -> list[str]:
    """Return the ids of the calls whose results an entry holds."""
    found = [str(entry.tool_call_id)] if entry.tool_call_id else []
    return found + [result.call_id for block in _blocks(entry.content) if (result := result_in(block)) is not None]


def thought_of(entry: TranscriptEntry) -> str:
    """Return the reasoning that stands in an entry, which is no part of its text."""
    more = next((said for key in ("reasoning_content", "reasoning", "thinking") if isinstance(said := entry.more.get(key), str)), "")
    return "\n".join(filter(None, [more, *(thought_in(block) for block in _blocks(entry.content))]))


def kind_of(entry: TranscriptEntry) -> Kind:
    """Return what an entry is to its agent."""
    if entry.role in _PLAIN_ROLES:
        return _PLAIN_ROLES[entry.role]
    if entry.role in _ASSISTANT:
        return "called" if calls_of(entry) else "said"
    return "received" if answered_by(entry) else "heard"


def is_utterance(event: AnyEvent) -> bool:
    """Tell whether an agent communicates here rather than acts: an assistant's entry with content and without tool calls."""
    return isinstance(event, TranscriptEntry) and kind_of(event) == "said" and bool(text_of(event.content))


def call_in(block: Any) -> Call | None:
    """Return the call that a block of content is."""
    if not is_object(block):
        return None
    gemini = block.get("functionCall", block.get("function_call"))
    if is_object(gemini):
        return _call(block.get("id") or gemini.get("id"), gemini.get("name"), gemini.get("args", gemini.get("arguments")))
    if _type(block) in _CALLS:
        given = next((block[key] for key in ("input", "arguments", "args") if key in block), None)
        return _call(block.get("call_id") or block.get("id"), block.get("name"), given)
    return None


def result_in(block: Any) -> Result | None:
    """Return the result that a block of content is."""
    if not is_object(block):
        return None
    gemini = block.get("functionResponse", block.get("function_response"))
    if is_object(gemini):
        name = _string(gemini.get("name"))
        return Result(_string(gemini.get("id")) or name or "", name, gemini.get("response"))
    if _type(block) in _RESULTS:
        identity = next((block[key] for key in ("tool_use_id", "call_id", "id") if block.get(key)), "")
        given = next((block[key] for key in ("content", "output", "response") if key in block), None)
        return Result(str(identity), _string(block.get("name")), given)
    return None


def thought_in(block: Any) -> str:
    """Return the reasoning that a block of content is; empty if it is none, or closed."""
    if not is_object(block):
        return ""
    if _type(block) in _THOUGHTS:
        summary = block.get("summary")
        said = text_of(summary) if is_list(summary) else ""
        return next((text for key in ("thinking", "text", "content") if isinstance(text := block.get(key), str) and text), said)
    return _string(block.get("text")) or "" if block.get("thought") is True else ""


def text_in(block: Any) -> str | None:
    """Return the text that a block of content is; None if it is something else."""
    if isinstance(block, str):
        return str.__str__(block)
    if not is_object(block) or block.get("thought") is True:
        return None
    if _type(block) in _TEXTS or ("type" not in block and set(block) <= {"text", "thoughtSignature"}):
        return next((text for key in ("text", "content", "refusal") if isinstance(text := block.get(key), str)), None)
    return None


def json_text(value: Any) -> str:
    """Return a value as JSON text; a text stays as it is."""
    return value if isinstance(value, str) else encode(value).decode()


def _said(block: Any) -> str:
    if (text := text_in(block)) is not None:
        return text
    if (result := result_in(block)) is not None:
        return text_of(result.content)
    if call_in(block) is not None or (is_object(block) and (_type(block) in _THOUGHTS or block.get("thought") is True)):
        return ""
    return json_text(block)


def _blocks(content: Any) -> list[Any]:
    return content if is_list(content) else []


def _function(call: dict[str, Any]) -> Call:
    inner = call.get("function")
    named: dict[str, Any] = inner if is_object(inner) else call
    return _call(call.get("id"), named.get("name"), named.get("arguments"))


def _call(identity: Any, name: Any, arguments: Any) -> Call:
    known = _string(name) or "unknown"
    return Call(str(identity) if identity else known, known, "" if arguments is None else json_text(arguments))


def _type(block: dict[str, Any]) -> str:
    return _string(block.get("type")) or ""


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
