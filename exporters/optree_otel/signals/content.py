"""Content: messages, arguments, results and reasoning, which go out only where the user has said so, without credentials.

Texts are cut, and older messages left out, until the JSON is within the limit: it always parses.

A part of an unknown type is passed on as it is, which the conventions allow. Schema: semantic-conventions-genai,
docs/gen-ai/gen-ai-*-messages.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from optree import OperationNode, TurnNode
from optree.exporting import (
    Answer,
    Payload,
    Pool,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    decode,
    dumps,
    is_list,
    is_message,
    is_object,
    json_text,
    parse_answers,
    parse_message,
    parse_parts,
    payload_body,
    payload_shown,
    redact,
    redact_pieces,
)
from optree.exporting import Part as ParsedPart
from optree_otel.signals import names
from optree_otel.signals.protobuf import Attribute
from optree_otel.signals.spans import SpanEvent, nanoseconds

_SHORTEST = 16
_SLACK = 4
"""At most this many times the limit is read of a text; the rest would be cut away."""
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


def call_attributes(op: OperationNode, request: dict[str, Any], pool: Pool | None, limit: int) -> list[Attribute]:
    """Return the messages of a model call: instructions, tools, input and output, each JSON of at most *limit* bytes."""
    attributes: list[Attribute] = []
    sent_body = payload_body(request)
    request = sent_body if is_object(sent_body) else {"messages": sent_body}
    system = next((request[key] for key in ("system", "instructions", "systemInstruction", "system_instruction") if key in request), None)
    if system is not None:
        value = _resolved(system, pool)
        instructions = value.get("parts", value) if is_object(value) else value
        attributes.append((names.SYSTEM_INSTRUCTIONS, fit_json(message_parts(instructions), limit)))
    if is_list(tools := _resolved(request.get("tools"), pool)):
        attributes.append((names.TOOL_DEFINITIONS, fit_json([_definition(tool) for tool in tools], limit)))
    sent = next((request[key] for key in ("messages", "input", "contents", "prompt") if key in request), None)
    if is_message(sent):
        left_out, messages = _input(sent, pool, limit)
        attributes.append((names.INPUT_MESSAGES, fit_json(chat_messages(messages), limit, left_out)))
    if op.response is not None:
        reasoning = ("" if op.reasoning is None else op.reasoning.text)[: limit * _SLACK]
        attributes.append(
            (
                names.OUTPUT_MESSAGES,
                fit_json(output_messages(_value(op.response, pool), reasoning, partial=bool(op.response.partial)), limit),
            )
        )
    return attributes


def tool_attributes(op: OperationNode, pool: Pool | None, limit: int) -> list[Attribute]:
    """Return what a tool was called with and what it gave, as JSON of at most *limit* bytes."""
    attributes: list[Attribute] = []
    if op.request is not None:
        attributes.append((names.TOOL_ARGUMENTS, fit_json(_value(op.request, pool), limit)))
    if op.response is not None:
        attributes.append((names.TOOL_RESULT, fit_json(_value(op.response, pool), limit)))
    return attributes


def turn_attributes(turn: TurnNode, limit: int) -> list[Attribute]:
    """Return a turn's prompts and its answer, as messages."""
    attributes: list[Attribute] = []
    prompts = turn.prompts or {}
    if system := prompts.get("system"):
        attributes.append((names.SYSTEM_INSTRUCTIONS, fit_json(message_parts(system), limit)))
    if user := prompts.get("user"):
        attributes.append((names.INPUT_MESSAGES, fit_json([chat_message(user)], limit)))
    if turn.assistant and (answer := turn.assistant.get("content")):
        attributes.append((names.OUTPUT_MESSAGES, fit_json(output_messages(answer), limit)))
    return attributes


def reasoning_events(op: OperationNode) -> list[SpanEvent]:
    """Return an op's streamed reasoning as events, one for each chunk; its final text alone where nothing was streamed."""
    reasoning = op.reasoning
    if reasoning is None:
        return []
    if not reasoning.chunks and reasoning.final:
        return [SpanEvent(nanoseconds(op.ended_at or op.started_at), names.REASONING, [(names.REASONING_TEXT, reasoning.final)])]
    texts = redact_pieces([chunk.text for chunk in reasoning.chunks])  # a credential may lie over several
    return [
        SpanEvent(nanoseconds(chunk.ts), names.REASONING, [(names.REASONING_TEXT, piece)])
        for chunk, piece in zip(reasoning.chunks, texts, strict=True)
    ]


def text_of(data: msgspec.Raw, limit: int) -> str:
    """Return a stored value as it reads: a text as it is, anything else as JSON of at most *limit* bytes."""
    value = _decoded(data)
    return redact(value) if isinstance(value, str) else fit_json(value, limit)


def fit_json(value: Any, limit: int, left_out: int = 0) -> str:
    """Return *value* without credentials as JSON of at most *limit* bytes.

    Texts in it are cut, with a mark, then the older items of a list left out; *left_out* counts those that were not even read.
    """
    hidden = redact(value)
    data = _encoded(hidden, left_out)
    if len(data) <= limit:
        return data.decode()
    short = _shortened(hidden, _SHORTEST)
    least, longest = _encoded(short, left_out), limit
    if len(least) <= limit:  # else no length of texts is short enough, and there is no need to try them
        while len(data) > limit and longest > _SHORTEST:
            longest //= 2
            data = _encoded(_shortened(hidden, longest), left_out)
        return (data if len(data) <= limit else least).decode()
    while len(least) > limit and is_list(short) and len(short) > 1:
        dropped = (len(short) + 1) // 2
        left_out, short = left_out + dropped, short[dropped:]
        least = _encoded(short, left_out)
    return least.decode() if len(least) <= limit else f'{{"type":"optree.left_out","bytes":{len(least)}}}'


def _encoded(value: Any, left_out: int) -> bytes:
    """Return JSON; before a list of messages of which some are missing goes one that says so."""
    if left_out and is_list(value):
        note = {"role": "system", "parts": [{"type": "optree.left_out", "count": left_out}]}
        value = [note, *value]
    return dumps(value)


def _shortened(value: Any, longest: int) -> Any:
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}…[+{len(value) - longest} characters]"
    if is_object(value):
        return {key: _shortened(item, longest) for key, item in value.items()}
    return [_shortened(item, longest) for item in value] if is_list(value) else value


def _input(sent: Any, pool: Pool | None, limit: int) -> tuple[int, list[Any]]:
    """Return the messages that were sent, and how many older ones are left out: of a pooled history only the newest are read."""
    if is_object(sent) and "$history" in sent and pool is not None:
        messages = _newest(pool, str(sent["$history"]), limit * _SLACK)
        total = sent.get("count")
        return max(0, total - len(messages)) if isinstance(total, int) else 0, messages
    value = _resolved(sent, pool)
    return 0, value if is_list(value) else [value]


def _newest(pool: Pool, head: str, limit: int) -> list[Any]:
    """Return the last messages of a history, about *limit* bytes of them but one at least, oldest first."""
    result: list[Any] = []
    seen: set[str] = set()
    while head in pool.links and head not in seen and (limit > 0 or not result):
        seen.add(head)
        head, blob = pool.links[head]
        data = pool.blobs.get(blob)
        limit -= len(memoryview(data)) if data is not None else 0
        result.append(None if data is None else _decoded(data))
    result.reverse()
    return result


def _definition(tool: Any) -> dict[str, Any]:
    """Return a tool's definition: its type, name, description and parameters."""
    if not is_object(tool):
        return {"type": "function", "name": str(tool), "description": ""}
    function = tool.get("function")
    inner: dict[str, Any] = function if is_object(function) else tool
    definition: dict[str, Any] = {
        "type": str(tool.get("type") or "function"),
        "name": str(inner.get("name") or ""),
        "description": str(inner.get("description") or ""),
    }
    schema = inner.get("parameters", inner.get("input_schema"))
    return definition if schema is None else {**definition, "parameters": schema}


def _value(payload: Payload, pool: Pool | None) -> Any:
    return payload_shown(_resolved(_decoded(payload.payload), pool))


def _resolved(value: Any, pool: Pool | None) -> Any:
    return value if pool is None else pool.resolve(value)


def _decoded(data: msgspec.Raw) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError:
        return bytes(data).decode(errors="replace")


def finish(reason: object) -> str:
    """Return why a model stopped, in the conventions' words; ``stop`` where nothing is said."""
    word = reason.lower() if isinstance(reason, str) and reason else "stop"
    return FINISHES.get(word, word)


def chat_message(message: Any) -> Message:
    """Return a message of a request."""
    parsed = parse_message(message)
    result: Message = {"role": parsed.role, "parts": [_part(part) for part in parsed.parts]}
    return result if parsed.name is None else {**result, "name": parsed.name}


def chat_messages(listed: Sequence[Any]) -> list[Message]:
    """Return a request's messages. An item that is only reasoning is not a message of its own: it is put before the answer that follows."""
    messages: list[Message] = []
    thoughts: list[Part] = []
    for item in listed:
        if is_object(item) and item.get("type") == "reasoning" and "role" not in item:
            thoughts += [part for part in chat_message(item)["parts"] if part["content"]]
            continue
        message = chat_message(item)
        if message["role"] == "assistant":
            message["parts"][:0] = thoughts
            thoughts = []
        messages.append(message)
    return messages


def message_parts(content: Any) -> list[Part]:
    """Return the parts of a message's content."""
    return [_part(part) for part in parse_parts(content)]


def output_messages(response: Any, reasoning: str = "", *, partial: bool = False) -> list[Message]:
    """Return a response's messages, each with its `finish_reason`; *reasoning* is what was streamed beside it.

    One that is *partial* did not come to its end: none of the conventions' reasons says that.
    """
    messages = [_answer(answer) for answer in parse_answers(response)]
    if reasoning and messages and not any(item["type"] == "reasoning" for item in messages[0]["parts"]):
        messages[0]["parts"].insert(0, {"type": "reasoning", "content": reasoning})
    return [{**message, "finish_reason": "incomplete"} for message in messages] if partial else messages


def _answer(answer: Answer) -> Message:
    parts = [_part(part, whole=part.block is item) for item in answer.messages for part in parse_message(item).parts]
    reason = finish(answer.finish)
    called = reason == "stop" and any(part["type"] == "tool_call" for part in parts)
    return {"role": "assistant", "parts": parts, "finish_reason": "tool_call" if called else reason}


def _part(part: ParsedPart, *, whole: bool = False) -> Part:
    """Return a part; a *whole* answer of no known form, such as structured output, is JSON text."""
    if isinstance(part, TextPart):
        return {"type": "text", "content": part.text}
    if isinstance(part, ReasoningPart):
        return {"type": "reasoning", "content": part.text}
    if isinstance(part, ToolResultPart):
        return {"type": "tool_call_response", "id": part.id or part.name, "response": part.content}
    if isinstance(part, ToolCallPart):
        if part.block.get("type") == "server_tool_use":
            inner = {"type": part.name or "unknown", "input": part.arguments}
            return {"type": "server_tool_call", "id": part.id, "name": part.name, "server_tool_call": inner}
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.decoded()}
    return _other(part.block, whole)


def _other(block: Any, whole: bool) -> Part:
    kind = block.get("type") if is_object(block) else None
    if not isinstance(kind, str):
        return {**block, "type": "unknown"} if is_object(block) and not whole else {"type": "text", "content": json_text(block)}
    return (_MEDIA[kind](block) if kind in _MEDIA else None) or block


def _image(block: Message) -> Part | None:
    image = block.get("image_url")
    url = image.get("url") if is_object(image) else image
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
    audio = block.get("input_audio")
    if not is_object(audio):
        return None
    return {"type": "blob", "modality": "audio", "mime_type": f"audio/{audio.get('format', '*')}", "content": str(audio.get("data", ""))}


_MEDIA: dict[str, Callable[[Message], Part | None]] = {
    "image_url": _image,
    "input_image": _image,
    "image": _source,
    "document": _source,
    "input_audio": _audio,
}
