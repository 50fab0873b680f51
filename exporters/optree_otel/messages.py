"""Messages as the GenAI conventions have them: ``{"role": …, "parts": […]}``, from what providers send and answer.

Understood are OpenAI's chat and responses interfaces, Anthropic's blocks, Gemini's parts, Ollama's messages and plain text; a part of
another type is passed on as it is, which the conventions allow. Schema: semantic-conventions-genai, docs/gen-ai/gen-ai-*-messages.json.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from optree.values import is_list, is_object

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
    if not is_object(found):
        return {"role": "user", "parts": parts(found)}
    kind = found.get("type")
    if isinstance(kind, str) and kind in _ITEMS and "role" not in found:
        return {"role": _ITEMS[kind], "parts": [part(found)]}
    role = str(found.get("role") or "user")
    made: Message = {"role": _ROLES.get(role, role), "parts": _of_message(found)}
    if isinstance(found.get("name"), str):
        made["name"] = found["name"]
    return made


def _of_message(found: Message) -> list[Part]:
    content = found.get("content", found.get("parts"))
    if "tool_call_id" in found or found.get("role") == "tool":
        return [_tool_response(found.get("tool_call_id"), content)]
    told: list[Part] = []
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(found.get(key), str) and found[key]:
            told.append({"type": "reasoning", "content": found[key]})
            break
    told += parts(content)
    if isinstance(found.get("refusal"), str):
        told.append({"type": "text", "content": found["refusal"]})
    calls = found.get("tool_calls")
    told += [_function(call) for call in calls if is_object(call)] if is_list(calls) else []
    if is_object(found.get("function_call")):
        told.append(_function(found))
    return told


def parts(content: Any) -> list[Part]:
    """Return the parts of a message's content."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if is_list(content):
        return [part(block) for block in content]
    return [part(content)]


def part(block: Any) -> Part:
    """Return one part, from a block of content."""
    if isinstance(block, str):
        return {"type": "text", "content": block}
    if not is_object(block):
        return {"type": "text", "content": _json(block)}
    kind = block.get("type")
    if isinstance(kind, str):
        made = _PARTS[kind](block) if kind in _PARTS else None
        return made or block
    for key, make in _GEMINI.items():
        if key in block:
            return make(block[key])
    return {**block, "type": "unknown"}


def output(response: Any, reasoning: str = "") -> list[Message]:
    """Return a response's messages, each with its `finish_reason`; *reasoning* is what was streamed beside it."""
    made = _output(response)
    if reasoning and made and not any(item.get("type") == "reasoning" for item in made[0]["parts"]):
        made[0]["parts"].insert(0, {"type": "reasoning", "content": reasoning})
    return made


def _output(response: Any) -> list[Message]:
    if not is_object(response):
        return [_answer(parts(response), None)]
    for key, member in (("choices", "message"), ("candidates", "content")):
        if is_list(found := response.get(key)):
            return [_choice(item, member) for item in found if is_object(item)]
    if is_list(items := response.get("output")):
        made = [found for item in items for found in message(item)["parts"]]
        called = any(found.get("type") == "tool_call" for found in made)
        return [_answer(made, "tool_call" if called else response.get("status"))]
    inner = response.get("message")
    reason = response.get("stop_reason") or response.get("finish_reason") or response.get("done_reason")
    if is_object(inner):
        return [_answer(_of_message(inner), reason)]
    if "content" in response or "tool_calls" in response:
        return [_answer(_of_message(response), reason)]
    return [_answer([{"type": "text", "content": _json(response)}], reason)]


def _choice(found: Message, inner: str) -> Message:
    said = found.get(inner)
    held = _of_message(said) if is_object(said) else parts(found.get("text"))
    return _answer(held, found.get("finish_reason") or found.get("finishReason"))


def _answer(held: list[Part], reason: object) -> Message:
    return {"role": "assistant", "parts": held, "finish_reason": finish(reason)}


def _function(call: Message) -> Part:
    function = call.get("function") or call.get("function_call")
    named: Message = function if is_object(function) else call
    return _tool_call(call.get("id"), named.get("name"), named.get("arguments"))


def _tool_call(identity: Any, name: Any, arguments: Any) -> Part:
    if isinstance(arguments, str):
        with suppress(msgspec.DecodeError):  # not whole, as a stream that was cut leaves them: passed on as text
            arguments = msgspec.json.decode(arguments)
    return {"type": "tool_call", "id": _text(identity), "name": str(name or ""), "arguments": arguments}


def _tool_response(identity: Any, content: Any) -> Part:
    return {"type": "tool_call_response", "id": _text(identity), "response": content}


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
        return {"type": "blob", "modality": modality, "mime_type": _text(source.get("media_type")), "content": source["data"]}
    if isinstance(source.get("url"), str):
        return _media(modality, source["url"])
    return {"type": "file", "modality": modality, "file_id": str(source["file_id"])} if "file_id" in source else None


def _audio(block: Message) -> Part | None:
    found = block.get("input_audio")
    if not is_object(found):
        return None
    return {"type": "blob", "modality": "audio", "mime_type": f"audio/{found.get('format', '*')}", "content": str(found.get("data", ""))}


def _reasoning(block: Message) -> Part:
    summary = block.get("summary")
    said = "\n".join(str(item.get("text", "")) for item in summary if is_object(item)) if is_list(summary) else ""
    return {"type": "reasoning", "content": str(block.get("thinking") or block.get("text") or block.get("content") or said)}


def _server_call(block: Message) -> Part:
    return {
        "type": "server_tool_call",
        "id": _text(block.get("id")),
        "name": str(block.get("name") or ""),
        "server_tool_call": {"type": str(block.get("name") or "unknown"), "input": block.get("input")},
    }


def _said(block: Message) -> Part:
    """Return a part of text; one in the conventions' own form stays."""
    found = block.get("text", block.get("content", block.get("refusal", "")))
    return {"type": "text", "content": found if isinstance(found, str) else _json(found)}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_ROLES = {"model": "assistant"}
_ITEMS = {"function_call": "assistant", "reasoning": "assistant", "function_call_output": "tool"}
_PARTS: dict[str, Callable[[Message], Part | None]] = {
    "text": _said,
    "input_text": _said,
    "output_text": _said,
    "refusal": _said,
    "thinking": _reasoning,
    "reasoning": _reasoning,
    "tool_use": lambda block: _tool_call(block.get("id"), block.get("name"), block.get("input")),
    "tool_result": lambda block: _tool_response(block.get("tool_use_id"), block.get("content")),
    "function_call": lambda block: _tool_call(block.get("call_id") or block.get("id"), block.get("name"), block.get("arguments")),
    "function_call_output": lambda block: _tool_response(block.get("call_id"), block.get("output")),
    "server_tool_use": _server_call,
    "image_url": _image,
    "input_image": _image,
    "image": _source,
    "document": _source,
    "input_audio": _audio,
}
_GEMINI: dict[str, Callable[[Any], Part]] = {
    "text": lambda text: {"type": "text", "content": str(text)},
    "functionCall": lambda call: _tool_call(None, call.get("name"), call.get("args")) if is_object(call) else part(call),
    "functionResponse": lambda told: _tool_response(told.get("name"), told.get("response")) if is_object(told) else part(told),
}
