"""What a message says, whichever provider's form it has, in one neutral shape: a role, and parts; a transcript as a provider takes it.

Nothing here raises.

Known are plain texts, OpenAI's chat and responses interfaces, Anthropic's and Bedrock's blocks, Gemini's parts, Ollama's messages, those of
the AI SDK, and the parts of the GenAI conventions. Any other block is an `Other`; a number or a truth value is not a message.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Struct

from optree._interrupts import pass_on, suppress
from optree._values import encode, is_list, is_object, objects_of, text_of

THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking", "tool_plan")
"""Members in which a message may have its reasoning, beside its content."""
MEMBERS: Final = frozenset({"role", "content", "parts", "tool_calls", "tool_call_id", "function_call", "refusal", "name"})
"""The other members of a message that are read."""
HISTORY_KEYS: Final = ("messages", "input", "contents", "prompt")
"""Where a request has its messages."""
ROLES: Final = {"model": "assistant", "ai": "assistant", "human": "user", "developer": "system", "function": "tool"}
_ITEMS = {"function_call": "assistant", "reasoning": "assistant", "function_call_output": "tool"}
"""Items of OpenAI's responses interface that have no role."""
_SPOKEN = {"content", "parts", "tool_calls", "function_call", "refusal"}
_TEXTS = {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"}
_HEARD = {"audio", "input_audio", "output_audio"}
"""Blocks of OpenAI's realtime interface whose text is their transcript."""
_CLOSED = {"thinking", "redacted_thinking", "reasoning"}
_CALLS = {"tool_use", "server_tool_use", "function_call", "tool_call", "tool-call"}
_RESULTS = {"tool_result", "function_call_output", "tool_call_response", "tool-result"}
_UNDER_WAY = {"queued", "in_progress"}
"""Of OpenAI's responses interface, states of a response that has not ended."""
_KNOWN = _TEXTS | _CLOSED | _CALLS | _RESULTS
NO_RESULT: Final = "[interrupted: the process ended before this call's result was recorded]"
"""What stands in a transcript for the result of a call that was lost."""
_BARE = {"text", "thoughtSignature", "thought_signature", "signature"}
"""What a text of Gemini's, which has no type, may say of itself, or Bedrock's reasoning."""


class TextPart(Struct, gc=False):
    """A text. Each part has the *block* of content that it stands in."""

    block: Any
    text: str


class ReasoningPart(Struct, gc=False):
    """Reasoning: empty if the provider does not show it. One that stands beside the content has no block."""

    block: Any
    text: str


class ToolCallPart(Struct, gc=False):
    """A tool call; *arguments* are as they were given, most often JSON text or an object."""

    block: dict[str, Any]
    id: str | None
    name: str
    arguments: Any

    def decoded(self) -> Any:
        """Return the arguments as a value; text that is not JSON, as of a stream that was cut, stays text."""
        if isinstance(self.arguments, str):
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(self.arguments)
        return self.arguments


class ToolResultPart(Struct, gc=False):
    """What a tool gave for the call of that id. One that is a whole message has no block."""

    block: Any
    id: str | None
    name: str | None
    content: Any


class Other(Struct, gc=False):
    """A block of another kind, such as an image."""

    block: Any


Part = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | Other


class ParsedMessage(Struct):
    """A message: its role is in `ROLES`' words where they have one for it."""

    role: str
    parts: list[Part]
    name: str | None = None


class Answer(Struct):
    """One of the answers in a response: its messages, as they were given, and why it ended, as the provider says it."""

    messages: list[Any]
    finish: Any = None


def body(payload: Any) -> Any:
    """Return the decoded content of a request or response as the original ai-agent keeps it; any other value as it is.

    The original keeps what its SDK, or else its HTTP client, sent and got as ``{"format", "encoding": "base64", "value"}``, beside
    figures such as the number of messages. None if it cannot be decoded.
    """
    if not is_object(payload):
        return payload
    for captured in (payload.get("sdk"), payload.get("raw"), payload):
        if _is_captured(captured):
            return _decoded(captured.get("value"))
    return payload


def opened(payload: Any) -> Any:
    """Return a payload for people: what the original ai-agent keeps of it in base64 stands decoded among its figures; else it is as it is.

    The content replaces a count or a preview of it. Values that cannot be decoded stay.
    """
    decoded = body(payload)
    if decoded is payload or decoded is None or _is_captured(payload):
        return payload if decoded is None else decoded
    held = {name: opened(value) if _is_captured(value) else value for name, value in payload.items() if name != "textPreview"}
    used = next(name for name in ("sdk", "raw") if name in held and _is_captured(payload[name]))
    if not is_object(decoded):
        return held
    del held[used]
    return {**held, **decoded}


def kept_hidden(payload: Any, hide: Callable[[Any], Any]) -> Any:
    """Return a payload with what *hide* takes out also taken out of what is kept in base64; the same object if nothing is taken out."""
    if not is_object(payload):
        return payload
    if not _is_captured(payload):
        held = {name: kept_hidden(value, hide) if _is_captured(value) else value for name, value in payload.items()}
        return held if any(held[name] is not value for name, value in payload.items()) else payload
    decoded = body(payload)
    shown = hide(decoded)
    if shown == decoded:
        return payload
    return {**payload, "value": b2a_base64(shown.encode() if isinstance(shown, str) else encode(shown), newline=False).decode()}


def is_message(found: Any) -> bool:
    """Tell whether a value may be a message, or several: not a number, such as a count of messages, nor a truth value."""
    return isinstance(found, str) or is_object(found) or is_list(found)


def message(found: Any, role: str = "user") -> ParsedMessage:
    """Return what a message is; *role* is that of one that names none."""
    if not is_object(found):
        return ParsedMessage(role, parts(found) if is_message(found) else [])
    own_role, kind = found.get("role"), _type(found)
    if own_role is None and kind in _KNOWN:
        return ParsedMessage(_ITEMS.get(kind, role), [part(found)])
    known = ROLES.get(own_role, own_role) if isinstance(own_role, str) and own_role else role
    name, call = text_of(found.get("name")), _identity(found, "tool_call_id")
    content = _first(found, "content", "parts")
    own_parts = parts(content)
    if call or (known == "tool" and not any(isinstance(item, ToolResultPart) for item in own_parts)):
        return ParsedMessage("tool", [ToolResultPart(None, call, name, content)], name)
    calls = tool_calls(found.get("tool_calls"))
    if content is None and own_role is None and not calls:
        return ParsedMessage(role, [part(found)], name)
    if thought := reasoning_in(found):
        own_parts.insert(0, ReasoningPart(None, thought))
    if isinstance(refusal := found.get("refusal"), str):
        own_parts.append(TextPart(refusal, refusal))
    if is_object(called := found.get("function_call")):
        calls.append(_call(called, called))
    return ParsedMessage(known, own_parts + calls, name)


def answers(response: Any) -> list[Answer]:
    """Return the answers in a response: a text, a message, messages, or what a provider's interface returns; empty if there is none."""
    response = body(response)
    if response is not None and not is_message(response):
        return []
    if not is_object(response):
        content: Any = response
        several = is_list(response) and any(is_object(item) and ("role" in item or _type(item) in _ITEMS) for item in response)
        return [Answer(content if several else [content])]
    for key, inner in (("choices", "message"), ("candidates", "content")):
        if is_list(entries := response.get(key)):
            choices = filter(is_object, entries)
            return [Answer([_first(choice, inner, "text")], _first(choice, "finish_reason", "finishReason")) for choice in choices]
    if is_list(items := response.get("output")):
        return [Answer(items, response.get("status"))]
    if is_object(result := response.get("response")) and is_list(messages := result.get("messages")):  # the AI SDK's result
        return [Answer(messages, response.get("finishReason"))]
    held = items.get("message") if is_object(items) else response.get("message")  # the former is Bedrock's
    finish = _first(response, "stop_reason", "finish_reason", "done_reason", "stopReason")
    return [Answer([held if is_object(held) else _answer_message(response)], finish)]


def is_under_way(answer: dict[str, Any]) -> bool:
    """Tell whether an answer is a response of OpenAI's that runs in the background, and has not ended yet."""
    return answer.get("background") is True and answer.get("object") == "response" and answer.get("status") in _UNDER_WAY


def answered(messages: list[Any]) -> list[Any]:
    """Return messages with a result for every tool call that has none, and without second results for one call.

    Calls are known by their ids; those without one, as Gemini's are, by their names: their results stand right behind.
    """
    parts_of_each = [message(item).parts for item in messages]
    results = [[one.id for one in here if isinstance(one, ToolResultPart) and one.id] for here in parts_of_each]
    known = {call for ids in results for call in ids}
    unnamed = _unnamed(parts_of_each)
    seen: set[str] = set()
    completed: list[Any] = []
    for item, held, ids in zip(messages, parts_of_each, results, strict=True):
        if ids and seen.issuperset(ids):
            continue
        seen.update(ids)
        completed.append(item)
        completed += [
            lost
            for call in held
            if isinstance(call, ToolCallPart) and (call.id not in known if call.id else id(call) in unnamed)
            for lost in _lost(call)
        ]
    return completed


def parts(content: Any) -> list[Part]:
    """Return the parts of a message's content."""
    if content is None:
        return []
    return [part(block) for block in content] if is_list(content) else [part(content)]


def part(block: Any) -> Part:
    """Return what a block of content is."""
    if not is_object(block):
        return TextPart(block, str.__str__(block)) if isinstance(block, str) else Other(block)
    kind = _type(block)
    call = block if kind in _CALLS else _first(block, "functionCall", "function_call", "toolUse")
    if is_object(call):
        return _call(block, call)
    result = block if kind in _RESULTS else _first(block, "functionResponse", "function_response", "toolResult")
    if is_object(result):
        return _result(block, result)
    thought = block.get("reasoningContent")
    source = {"text": thought.get("reasoningText")} if is_object(thought) else block
    if kind in _CLOSED or block.get("thought") is True or source is not block:
        return ReasoningPart(
            block, next(filter(None, (texts_of(source.get(key)) for key in ("thinking", "text", "content", "summary"))), "")
        )
    is_heard = kind in _HEARD and isinstance(block.get("transcript"), str)
    if kind not in _TEXTS and not is_heard and not _is_bare(block):
        return Other(block)
    return TextPart(block, json_text(_first(block, "text", "content", "refusal", "transcript") or ""))


def tool_calls(listed: Any) -> list[Part]:
    """Return the calls in a message's list of them, as OpenAI has it."""
    calls = objects_of(listed)
    return [_call(call, inner if is_object(inner := call.get("function")) else call) for call in calls]


def reasoning_in(members: Mapping[str, Any]) -> str:
    """Return the reasoning that stands beside a message's content."""
    for key in THOUGHTS:
        if isinstance(thought := members.get(key), str) and thought:
            return thought
    return ""


def json_text(value: Any) -> str:
    """Return a value as JSON text; a text stays as it is."""
    return value if isinstance(value, str) else encode(value).decode()


def _is_captured(value: Any) -> TypeGuard[dict[str, Any]]:
    return is_object(value) and value.get("encoding") == "base64"


def _decoded(captured: Any) -> Any:
    """Return what text in base64 holds: a value if it is JSON, else the text; None if it is neither."""
    try:
        data = a2b_base64(captured)
    except (ValueError, TypeError) as error:
        pass_on(error)
        return None
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(data)
    with suppress(UnicodeDecodeError):
        return data.decode()
    return None


def _answer_message(response: dict[str, Any]) -> dict[str, Any]:
    """Return the message that a response is, without members about the call, such as usage; else the response itself."""
    if isinstance(preview := response.get("textPreview"), str):  # the original ai-agent's, of at most 4,096 characters
        return {"content": preview}
    if not _SPOKEN & set(response):
        return response
    return {key: value for key, value in response.items() if key in MEMBERS or key in THOUGHTS}


def _call(block: dict[str, Any], named: dict[str, Any]) -> ToolCallPart:
    identity = _identity(block, "call_id", "id", "toolCallId") or _identity(named, "id", "toolUseId")
    return ToolCallPart(block, identity, str(_first(named, "name", "toolName") or ""), _first(named, "input", "arguments", "args"))


def _result(block: dict[str, Any], result: dict[str, Any]) -> ToolResultPart:
    content = _first(result, "content", "output", "response", "result")
    if "toolCallId" in result and is_object(content) and "value" in content:
        content = content["value"]
    identity = _identity(result, "tool_use_id", "call_id", "id", "toolCallId", "toolUseId")
    return ToolResultPart(block, identity, text_of(_first(result, "name", "toolName")), content)


def texts_of(content: Any) -> str:
    """Return the text in a content, its blocks in lines."""
    return "\n".join(item.text for item in parts(content) if isinstance(item, TextPart) and item.text)


def _is_bare(block: dict[str, Any]) -> bool:
    """Tell whether a block without a type is a text: it says nothing else. Python clients name the members that are not there, too."""
    return isinstance(block.get("text"), str) and {key for key, value in block.items() if value is not None and value is not False} <= _BARE


def _first(members: dict[str, Any], *keys: str) -> Any:
    """Return the first of these members whose value is not None."""
    for key in keys:
        if (value := members.get(key)) is not None:
            return value
    return None


def _identity(members: dict[str, Any], *keys: str) -> str | None:
    """Return the first of some members that is an id: a text or a number."""
    for key in keys:
        if (value := members.get(key)) and isinstance(value, (str, int)):
            return str(value)
    return None


def _type(block: dict[str, Any]) -> str:
    return text_of(block.get("type")) or ""


def _unnamed(messages: list[list[Part]]) -> set[int]:
    """Return which calls without an id have no result, each by the identity of its part; *messages* are their parts."""
    lost: set[int] = set()
    waiting: list[ToolCallPart] = []
    behind_calls = False
    for here in [*messages, []]:
        calls = [one for one in here if isinstance(one, ToolCallPart) and not one.id]
        names = [one.name for one in here if isinstance(one, ToolResultPart) and not one.id]
        if not names and not (calls and behind_calls):
            lost.update(map(id, waiting))
            waiting = []
        behind_calls = bool(calls)
        waiting += calls
        for name in names:
            told = next((call for call in waiting if call.name == name), None)
            if told is not None:
                waiting.remove(told)
    return lost


def _lost(call: ToolCallPart) -> list[dict[str, Any]]:
    """Return the answer that says that a call's result was lost, in the form of the call; none to calls that the provider makes itself."""
    kind = call.block.get("type")
    if "functionCall" in call.block or is_object(call.block.get("function_call")):
        result = {**({"id": call.id} if call.id else {}), "name": call.name, "response": {"error": NO_RESULT}}
        return [{"role": "user", "parts": [{"functionResponse" if "functionCall" in call.block else "function_response": result}]}]
    if call.id is None or kind == "server_tool_use":
        return []
    if kind == "tool_use":
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": NO_RESULT, "is_error": True}]}]
    if kind == "function_call":
        return [{"type": "function_call_output", "call_id": call.id, "output": NO_RESULT}]
    return [{"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}]
