"""Messages as the GenAI conventions have them: ``{"role": …, "parts": […]}``, from providers' forms.

A part of an unknown type is passed on as it is, which the conventions allow. Schema: semantic-conventions-genai,
docs/gen-ai/gen-ai-*-messages.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from optree.exporting import (
    Answer,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    is_object,
    json_text,
    parse_answers,
    parse_message,
    parse_parts,
)
from optree.exporting import Part as ParsedPart

Part = dict[str, Any]
Message = dict[str, Any]

FINISHES: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "incomplete": "length",
    "tool_calls": "tool_call",
    "tool_use": "tool_call",
    "function_call": "tool_call",
    "safety": "content_filter",
    "refusal": "content_filter",
    "failed": "error",
}
"""Why a model stopped, as providers say it, and as the conventions do; others go as they are."""


def finish(reason: object) -> str:
    """Return why a model stopped, in the conventions' words; ``stop`` where nothing is said."""
    said = reason.lower() if isinstance(reason, str) and reason else "stop"
    return FINISHES.get(said, said)


def message(found: Any) -> Message:
    """Return a message of a request."""
    said = parse_message(found)
    made: Message = {"role": said.role, "parts": [_part(one) for one in said.parts]}
    return made if said.name is None else {**made, "name": said.name}


def history(listed: Sequence[Any]) -> list[Message]:
    """Return a request's messages. An item that is only reasoning is none: what it says stands in the answer behind it."""
    made: list[Message] = []
    thoughts: list[Part] = []
    for found in listed:
        if is_object(found) and found.get("type") == "reasoning" and "role" not in found:
            thoughts += [one for one in message(found)["parts"] if one["content"]]
            continue
        one = message(found)
        if one["role"] == "assistant":
            one["parts"][:0] = thoughts
            thoughts = []
        made.append(one)
    return made


def parts(content: Any) -> list[Part]:
    """Return the parts of a message's content."""
    return [_part(one) for one in parse_parts(content)]


def output(response: Any, reasoning: str = "", *, partial: bool = False) -> list[Message]:
    """Return a response's messages, each with its `finish_reason`; *reasoning* is what was streamed beside it.

    One that is *partial* did not come to its end: none of the conventions' reasons says that.
    """
    made = [_answer(found) for found in parse_answers(response)]
    if reasoning and made and not any(item["type"] == "reasoning" for item in made[0]["parts"]):
        made[0]["parts"].insert(0, {"type": "reasoning", "content": reasoning})
    return [{**one, "finish_reason": "incomplete"} for one in made] if partial else made


def _answer(found: Answer) -> Message:
    held = [_part(one, whole=one.block is item) for item in found.messages for one in parse_message(item).parts]
    reason = finish(found.finish)
    called = reason == "stop" and any(one["type"] == "tool_call" for one in held)
    return {"role": "assistant", "parts": held, "finish_reason": "tool_call" if called else reason}


def _part(found: ParsedPart, *, whole: bool = False) -> Part:
    """Return a part; what is a whole answer and of no known form, such as structured output, was said as JSON."""
    if isinstance(found, TextPart):
        return {"type": "text", "content": found.text}
    if isinstance(found, ReasoningPart):
        return {"type": "reasoning", "content": found.text}
    if isinstance(found, ToolResultPart):
        return {"type": "tool_call_response", "id": found.id or found.name, "response": found.content}
    if isinstance(found, ToolCallPart):
        if found.block.get("type") == "server_tool_use":
            inner = {"type": found.name or "unknown", "input": found.arguments}
            return {"type": "server_tool_call", "id": found.id, "name": found.name, "server_tool_call": inner}
        return {"type": "tool_call", "id": found.id, "name": found.name, "arguments": found.decoded()}
    return _other(found.block, whole)


def _other(block: Any, whole: bool) -> Part:
    kind = block.get("type") if is_object(block) else None
    if not isinstance(kind, str):
        return {**block, "type": "unknown"} if is_object(block) and not whole else {"type": "text", "content": json_text(block)}
    return (_MEDIA[kind](block) if kind in _MEDIA else None) or block


def _image(block: Message) -> Part | None:
    found = block.get("image_url")
    url = found.get("url") if is_object(found) else found
    return _media("image", url) if isinstance(url, str) else None


def _media(modality: str, url: str) -> Part:
    if url.startswith("data:") and "," in url:
        head, _, data = url.partition(",")
        return {"type": "blob", "modality": modality, "mime_type": head[5:].partition(";")[0], "content": data}
    return {"type": "uri", "modality": modality, "uri": url}


def _source(block: Message) -> Part | None:
    """Return an image or a document of Anthropic's."""
    source, modality = block.get("source"), str(block["type"])
    if not is_object(source):
        return None
    if isinstance(source.get("data"), str):
        media = source.get("media_type")
        return {"type": "blob", "modality": modality, "mime_type": None if media is None else str(media), "content": source["data"]}
    if isinstance(source.get("url"), str):
        return _media(modality, source["url"])
    return {"type": "file", "modality": modality, "file_id": str(source["file_id"])} if "file_id" in source else None


def _audio(block: Message) -> Part | None:
    found = block.get("input_audio")
    if not is_object(found):
        return None
    return {"type": "blob", "modality": "audio", "mime_type": f"audio/{found.get('format', '*')}", "content": str(found.get("data", ""))}


_MEDIA: dict[str, Callable[[Message], Part | None]] = {
    "image_url": _image,
    "input_image": _image,
    "image": _source,
    "document": _source,
    "input_audio": _audio,
}
