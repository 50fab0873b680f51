"""What was said in a span: messages, arguments, results, reasoning. Messages come out as providers of chats take them.

A GenAI message is ``{role, parts}``, one of OpenInference is spread over attributes (``llm.input_messages.0.message.role``), as are those
of Traceloop's older releases (``gen_ai.prompt.0.role``). What has no counterpart stays as it is, as a part of the content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from optree.exporting import TextPart, is_list, is_message, is_object, text
from optree.exporting import parse_message as message_of
from optree_otel.incoming.conventions import parsed
from optree_otel.incoming.spans import InSpan, list_of
from optree_otel.signals import names

DETAILS: Final = "gen_ai.client.inference.operation.details"
"""The event that may carry the content instead of the span."""
_INPUT: Final = ("input.value", "traceloop.entity.input")
_OUTPUT: Final = ("output.value", "final_result", "traceloop.entity.output")
_ARGUMENTS: Final = (names.TOOL_ARGUMENTS, "tool.parameters", "tool_arguments", *_INPUT)
_RESULT: Final = (names.TOOL_RESULT, "tool_response", *_OUTPUT)
_SPREAD: Final = (
    "llm.input_messages.",
    "llm.output_messages.",
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "llm.tools.",
    "embedding.embeddings.",
)
_WHOLE: Final = frozenset(
    {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.SYSTEM_INSTRUCTIONS, names.TOOL_DEFINITIONS, *_ARGUMENTS, *_RESULT,
     "pydantic_ai.all_messages", "input.mime_type", "output.mime_type"}
)  # fmt: skip
_THOUGHTS: Final = ("reasoning", "thinking")
_WORD: Final = re.compile(r"[\w.:/@+-]{0,128}", re.ASCII)
_NAMES_OF_SAID: Final = re.compile(
    r"(?:input|output|prompt|completion|content|message|transcript|arg|argument|parameter|variable|result|response|request|query|question"
    r"|answer|text|document|description|instruction|sequence|body|data|value|embedding|vector)s?(?:\.\d+)*$",
    re.IGNORECASE,
)
"""What names of attributes end with that have what is said."""


class LlmContent(Struct):
    """The content of an LLM call: its messages, other members of its request, its answer, and its reasoning."""

    messages: list[Any] | None = None
    members: dict[str, Any] = {}
    answer: Any = None
    reasoning: str | None = None


def of_llm(span: InSpan) -> LlmContent:
    """Return the content of an LLM call."""
    block = _with_details(span)
    whole_input = None if block.get(names.INPUT_MESSAGES) is not None else _first(block, _INPUT)
    sent = whole_input.get("messages") if is_object(whole_input) else None
    messages = sent if is_list(sent) else _messages(block, names.INPUT_MESSAGES, "llm.input_messages.", "gen_ai.prompt.")
    system = _system(block.get(names.SYSTEM_INSTRUCTIONS))
    answers = _messages(block, names.OUTPUT_MESSAGES, "llm.output_messages.", "gen_ai.completion.")
    call = LlmContent(messages=[*system, *messages] or None)
    if is_object(whole_input) and is_list(sent):  # the provider's own request
        call.members.update({key: value for key, value in whole_input.items() if key not in ("messages", "model")})
    elif call.messages is None and whole_input is not None:
        call.members["input"] = whole_input
    if "tools" not in call.members and (tools := parsed(block.get(names.TOOL_DEFINITIONS)) or _tools(block)):
        call.members["tools"] = tools
    thoughts = [message.pop("reasoning") for message in answers if is_object(message) and "reasoning" in message]
    call.reasoning = "\n".join(thoughts) or None
    call.answer = answers[0] if len(answers) == 1 else answers or _first(block, _OUTPUT)
    return call


def of_tool(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments and the result of a tool call; None for one that the span does not have."""
    return _first(attributes, _ARGUMENTS), _first(attributes, _RESULT)


def of_agent(span: InSpan) -> tuple[str | None, str | None, Any]:
    """Return what an agent was asked, its last message, and its result; None for one that the span does not have."""
    block = _with_details(span)
    user = asked_by_user(_messages(block, names.INPUT_MESSAGES, "llm.input_messages.", "gen_ai.prompt."))
    if user is None:
        user = asked_by_user(_of_run(block), first=True)
    answers = _messages(block, names.OUTPUT_MESSAGES, "llm.output_messages.", "gen_ai.completion.")
    last = _content(answers[-1]) if answers else None
    result = _first(block, _OUTPUT)
    if result is None and span.message == "":
        result = last
    return user or _text(_first(block, _INPUT)), last or _text(result), result


def asked_by_user(messages: list[Any], *, first: bool = False) -> str | None:
    """Return the last text that a user said in messages of any form, or the *first*; None if there is none."""
    chat = [message_of(message, "unknown") for message in messages if is_message(message)]
    texts = (
        "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
        for message in (chat if first else reversed(chat))
        if message.role == "user"
    )
    return next((text for text in texts if text), None)


def remaining(span: InSpan, *, texts: bool = True) -> dict[str, Any]:
    """Return the attributes that are not content, with the span's ids: what an op keeps of it; without *texts*, as `without_texts`."""
    kept = {key: value for key, value in span.attributes.items() if key not in _WHOLE and not key.startswith(_SPREAD)}
    kept = kept if texts else without_texts(kept)
    kept["otel.trace_id"], kept["otel.span_id"] = span.trace_id, span.span_id
    if span.scope:
        kept["otel.scope.name"] = span.scope
    return kept


def without_texts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are numbers, yes or no, or single words, but for words under names of content.

    Each instrumentation has names of its own for what is said (``gcp.vertex.agent.llm_request``, ``langfuse.trace.input``).
    """
    return {key: value for key, value in attributes.items() if _is_no_text(value) and not (_is_said(value) and _NAMES_OF_SAID.search(key))}


def _is_no_text(value: Any) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, (list, tuple)):
        return all(map(_is_no_text, cast("list[Any]", value)))
    return value is None or isinstance(value, (bool, int, float))


def _is_said(value: Any) -> bool:
    """Tell whether a value has words or many numbers."""
    return isinstance(value, (str, list, tuple))


def unspread(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return the list that was spread over attributes as ``<prefix><number>.<name>…``, in the order of its numbers."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            holder = root
            *above, last = key[len(prefix) :].split(".")
            for part in above:
                inner = holder.setdefault(part, {})
                if not is_object(inner):
                    inner = holder[part] = {"value": inner}
                holder = inner
            holder[last] = value
    items = _listed(root)
    return items if is_list(items) else []


def _listed(value: Any, depth: int = 0) -> Any:
    if not is_object(value) or depth > 32:  # noqa: PLR2004 - deeper than any message
        return value
    if value and all(key.isdecimal() and key.isascii() for key in value):
        return [_listed(value[key], depth + 1) for key in sorted(value, key=int)]
    return {key: _listed(item, depth + 1) for key, item in value.items()}


def _of_run(block: Mapping[str, Any]) -> list[Any]:
    """Return the messages of a run of Pydantic AI: those from before it are left out."""
    value = parsed(block.get("pydantic_ai.all_messages"))
    begin = block.get("pydantic_ai.new_message_index")
    listed = value[begin:] if is_list(value) and isinstance(begin, int) and begin > 0 else value
    return [converted for message in listed for converted in _from_parts(message)] if is_list(listed) else []


def _with_details(span: InSpan) -> Mapping[str, Any]:
    details = next((event.attributes for event in span.events if event.name == DETAILS), None)
    return span.attributes if details is None else {**details, **span.attributes}


def _messages(block: Mapping[str, Any], whole: str, *spread: str) -> list[Any]:
    value = parsed(block.get(whole))
    if is_list(value):
        return [converted for message in value for converted in _from_parts(message)]
    for prefix in spread:
        if items := unspread(block, prefix):
            return [_from_spread(message) for message in items]
    return [] if value is None else [value]


def _system(instructions: Any) -> list[Any]:
    value = parsed(instructions)
    if not value:
        return []
    return _from_parts({"role": "system", "parts": value if is_list(value) else [{"type": "text", "content": value}]})


def _from_parts(message: Any) -> list[Any]:
    """Return a GenAI message as one of a chat, or several: each tool's answer is a message of its own."""
    if not is_object(message) or not is_list(message.get("parts")):
        return [message]
    converted: dict[str, Any] = {"role": message.get("role", "unknown")}
    content: list[Any] = []
    results: list[Any] = []
    for part in message["parts"]:
        _place(part if is_object(part) else {"type": "text", "content": part}, converted, content, results)
    if content:
        plain = all(item.get("type") == "text" for item in content)
        converted["content"] = "\n".join(text(item["text"]) for item in content) if plain else content
    if message.get("finish_reason"):
        converted["finish_reason"] = message["finish_reason"]
    return [*results, *([converted] if len(converted) > 1 or not results else [])]


def _place(part: dict[str, Any], converted: dict[str, Any], content: list[Any], results: list[Any]) -> None:
    kind = part.get("type")
    if kind == "text":
        content.append({"type": "text", "text": part.get("content", "")})
    elif kind == "tool_call":
        function = {"name": part.get("name"), "arguments": _as_json(part.get("arguments"))}
        converted.setdefault("tool_calls", []).append({"id": part.get("id"), "type": "function", "function": function})
    elif kind == "tool_call_response":
        result = part.get("response", part.get("result"))
        results.append({"role": "tool", "tool_call_id": part.get("id"), "content": result})
    elif kind in _THOUGHTS and isinstance(part.get("content"), str):
        converted["reasoning"] = converted["reasoning"] + "\n" + part["content"] if "reasoning" in converted else part["content"]
    else:
        content.append(part)


def _from_spread(entry: Any) -> Any:
    """Return a message of OpenInference or Traceloop as one of a chat."""
    message = entry.get("message", entry) if is_object(entry) else entry
    if not is_object(message):
        return {"role": "unknown", "content": message}
    converted: dict[str, Any] = {"role": "unknown", **message}
    converted.pop("contents", None)
    parts = [_block(part) for part in list_of(message.get("contents"))]
    calls = [_call(call) for call in list_of(message.get("tool_calls"))]
    known = {call.get("id") for call in calls if is_object(call)}
    called = [_call(part) for part in parts if is_object(part) and is_object(part.get("tool_call"))]
    calls += [call for call in called if call.get("id") not in known]
    parts = [part for part in parts if not (is_object(part) and part.get("type") == "tool_use" and (calls or len(part) == 1))]
    thoughts = [text(part.get("text", "")) for part in parts if is_object(part) and part.get("type") in _THOUGHTS]
    others = [part for part in parts if not (is_object(part) and part.get("type") in _THOUGHTS)]
    if thoughts:
        converted["reasoning"] = "\n".join(thoughts)
    if others and "content" not in converted:
        plain = all(is_object(part) and part.get("type") == "text" for part in others)
        converted["content"] = "\n".join(text(part.get("text", "")) for part in others) if plain else others
    if calls:
        converted["tool_calls"] = calls
    return converted


def _block(part: Any) -> Any:
    """Return a part of a message's content; one that is a tool call has what is called beside its type."""
    block = part.get("message_content", part) if is_object(part) else part
    if is_object(part) and is_object(block) and is_object(call := part.get("tool_call")):
        return {**block, "tool_call": call}
    return block


def _call(call: Any) -> Any:
    call = call.get("tool_call", call) if is_object(call) else call
    if not is_object(call) or "function" in call:
        return {"type": "function", **call} if is_object(call) else call
    return {"id": call.get("id"), "type": "function", "function": {"name": call.get("name"), "arguments": call.get("arguments")}}


def _tools(block: Mapping[str, Any]) -> list[Any]:
    tools = [tool.get("tool", tool) if is_object(tool) else tool for tool in unspread(block, "llm.tools.")]
    return [parsed(tool["json_schema"]) if is_object(tool) and "json_schema" in tool else tool for tool in tools]


def _first(block: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((parsed(block[key]) for key in keys if block.get(key) is not None), None)


def _content(message: Any) -> str | None:
    value = message.get("content") if is_object(message) else message
    return value if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else _as_json(value)


def _as_json(value: Any) -> Any:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode() if value is not None else ""
